"""Refuses habits that make prose hard to read: python -m tests.prose [PATH …]

Looks at docstrings and comments of Python files and at Markdown pages; code blocks are left out.
Prints each place with the habit's name, and exits with 1 if there is any.
"""

import ast
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

HABITS = {
    "'so many' or 'so long' in place of a number": re.compile(
        r"\b[Ss]o (?:many|long|few|much)\b(?!(?:\s+[\w`]+){0,4}\s+(?:as|that)\b)"
    ),
    "'whoever': say which process, thread or person": re.compile(r"\b[Ww]hoever\b"),
    "'how-manieth': say which number": re.compile(r"\bhow-manieth\b"),
    "a sentence of one pronoun": re.compile(r"(?:^|[.:;]\s+)(?:It|That one|This one)\.(?:\s|$)"),
    "'Who …' as the subject of a statement": re.compile(r"(?:^|\.\s+)Who (?![^.?]*\?)[a-z]"),
    "'there is by now'": re.compile(r"\bthere (?:is|are) by now\b"),
}
ONE_WORD = "a docstring of one word: say what is returned or done"
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of each docstring, of fields as well."""
    for node in ast.walk(tree):
        for statement in getattr(node, "body", []) if not isinstance(node, ast.Lambda | ast.IfExp) else []:
            value = getattr(statement, "value", None)
            is_text = isinstance(statement, ast.Expr) and isinstance(value, ast.Constant)
            if is_text and isinstance(value.value, str):
                yield statement.lineno, value.value


def comments(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of each block of comments; a comment that goes on over lines is one text."""
    block: list[str] = []
    first = last = 0
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type != tokenize.COMMENT:
                continue
            if block and token.start[0] != last + 1:
                yield first, " ".join(block)
                block = []
            if not block:
                first = token.start[0]
            last = token.start[0]
            block.append(token.string.lstrip("#: "))
    if block:
        yield first, " ".join(block)


def texts(path: Path) -> Iterator[tuple[int, str, bool]]:
    """Line, text, and whether the text is a docstring."""
    if path.suffix == ".md":
        blank = CODE.sub(lambda found: re.sub(r"[^\n]", " ", found.group()), path.read_text())
        for number, line in enumerate(blank.splitlines(), 1):
            yield number, line.lstrip("#-*| "), False
        return
    for number, text in docstrings(ast.parse(path.read_text())):
        yield number, text, True
    for number, text in comments(path):
        yield number, text, False


def habits(text: str, *, is_docstring: bool) -> Iterator[str]:
    """Names of the habits that a text shows."""
    plain = " ".join(CODE.sub("x", text).split())
    for name, pattern in HABITS.items():
        if pattern.search(plain):
            yield name
    if is_docstring and re.fullmatch(r"[\w'-]+\.?", plain):
        yield ONE_WORD


def places(paths: list[Path]) -> Iterator[str]:
    """Each place with a habit, as `path:line: habit: text`."""
    for path in paths:
        for number, text, is_docstring in texts(path):
            for name in habits(text, is_docstring=is_docstring):
                yield f"{path}:{number}: {name}: {' '.join(text.split())[:100]}"


def tracked() -> list[Path]:
    """All Python files and Markdown pages, but tests and the changelog, which tells of the past."""
    listed = subprocess.run(["git", "ls-files", "*.py", "*.md"], check=True, capture_output=True, text=True)
    paths = [Path(line) for line in listed.stdout.splitlines()]
    return [path for path in paths if path.parts[0] != "tests" and path.name != "CHANGELOG.md"]


def main() -> int:
    """Check the given files, or all."""
    found = list(places([Path(name) for name in sys.argv[1:]] or tracked()))
    for place in found:
        sys.stdout.write(f"{place}\n")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
