"""Refuses habits that make prose hard to read: python -m tests.prose [PATH …]

Looks at docstrings and comments of Python files and at Markdown pages; code blocks are left out.
Prints each place with the habit's name, and exits with 1 if there is any.

Python files are read by one pattern, not by `ast` and `tokenize`: those take four seconds for the whole tree.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

HABITS = {
    "'so many' or 'so long' in place of a number": re.compile(
        r"\b[Ss]o (?:many|long|few|much)\b(?!(?:\s+[\w`]+){0,4}\s+(?:as|that)\b)"
    ),
    "'whoever': say which process, thread or person": re.compile(r"\b[Ww]hoever\b"),
    "'how-manieth': say which number": re.compile(r"\b[Hh]ow-manieth\b"),
    "a sentence of one pronoun": re.compile(r"(?:^|[.:;]\s+)(?:It|That one|This one)\.(?:\s|$)"),
    "'Who …' as the subject of a statement": re.compile(r"(?:^|\.\s+)Who (?![^.?]*\?)[a-z]"),
    "'there is by now'": re.compile(r"\bthere (?:is|are) by now\b"),
}
ONE_WORD = "a docstring of one word: say what is returned or done"
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
PYTHON = re.compile(
    r"""
      ^[ \t]*r?"{3}(?P<docstring>.*?)(?<!\\)"{3}       # a text that begins its line
    | (?P<comment>\#[^\n]*(?:\n[ \t]*\#[^\n]*)*)       # a comment, with the lines it goes on over
    | "{3}.*?(?<!\\)"{3} | '{3}.*?(?<!\\)'{3}          # other texts: nothing in them is a comment
    | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*'
    """,
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)


def texts(path: Path) -> Iterator[tuple[int, str, bool]]:
    """Yield offset, text, and whether the text is a docstring."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        blank = CODE.sub(lambda found: re.sub(r"[^\n]", " ", found.group()), source)
        for line in re.finditer(r"^.+$", blank, re.MULTILINE):
            yield line.start(), line.group().lstrip("#-*| "), False
        return
    for found in PYTHON.finditer(source):
        if (docstring := found["docstring"]) is not None:
            yield found.start(), docstring, True
        elif comment := found["comment"]:
            yield found.start(), re.sub(r"(?m)^[ \t]*#[:!]? ?", "", comment), False


def habits(text: str, *, is_docstring: bool = False) -> Iterator[str]:
    """Yield the names of the habits that a text shows."""
    plain = " ".join(CODE.sub("x", text).split())
    for name, pattern in HABITS.items():
        if pattern.search(plain):
            yield name
    if is_docstring and re.fullmatch(r"[\w'-]+\.?", plain):
        yield ONE_WORD


def places(paths: list[Path]) -> Iterator[str]:
    """Yield each place with a habit, as `path:line: habit: text`."""
    for path in paths:
        for offset, text, is_docstring in texts(path):
            for name in habits(text, is_docstring=is_docstring):
                number = path.read_text(encoding="utf-8").count("\n", 0, offset) + 1
                yield f"{path}:{number}: {name}: {' '.join(text.split())[:100]}"


def tracked() -> list[Path]:
    """Return all Python files and Markdown pages, without the changelog, which tells of the past."""
    listed = subprocess.run(["git", "ls-files", "*.py", "*.md"], check=True, capture_output=True, text=True)
    return [path for line in listed.stdout.splitlines() if (path := Path(line)).name != "CHANGELOG.md"]


def main() -> int:
    """Check the given files, or all."""
    found = list(places([Path(name) for name in sys.argv[1:]] or tracked()))
    sys.stdout.writelines(f"{place}\n" for place in found)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
