"""Reads the project's Markdown: code blocks, links, headings, and the commands in shell blocks."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

ROOT = Path(__file__).parents[2]

_FENCE = re.compile(r"^( *)(`{3,}|~{3,})\s*(\w*)")
_SKIP = re.compile(r"<!-- test: skip because (.+) -->")
_HEADING = re.compile(r"^#{1,6} +(.+?) *#*$")
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)(?: \"[^\"]*\")?\)")
_INLINE = re.compile(r"(`+)(.+?)\1")
_FILE = re.compile(r"# (\w+\.py)\n")
_ANCHOR = re.compile(r'<a (?:id|name)="([^"]+)">')


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced code block; `line` is that of its first line of text, from 1."""

    path: Path
    line: int
    language: str
    text: str
    skip: str | None

    @property
    def file(self) -> str | None:
        """The file that the reader is to write it to, if its first line names one."""
        named = _FILE.match(self.text)
        return named[1] if named else None

    @property
    def code(self) -> CodeType:
        """Of a Python block: compiled, with the lines that it has in its page."""
        return compile("\n" * (self.line - 1) + self.text, str(self.path), "exec")

    def __str__(self) -> str:
        return f"{name(self.path)}:{self.line}"


@dataclass(frozen=True, slots=True)
class Command:
    """A command line of a shell block or of inline code, as its words."""

    where: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.where}: {shlex.join(self.words)}"


def name(path: Path) -> str:
    """As people call it: from the top of the tree."""
    return path.relative_to(ROOT).as_posix()


def pages() -> list[Path]:
    """All pages for readers."""
    return [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


@cache
def _parse(path: Path) -> tuple[list[Block], str]:
    """The blocks, and the text with every block and what is in it replaced by empty lines."""
    blocks: list[Block] = []
    prose: list[str] = []
    fence: str | None = None
    start, language, inside = 0, "", list[str]()
    skip: str | None = None
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if fence is not None:
            prose.append("")
            if line.strip() == fence:
                blocks.append(Block(path, start, language, "\n".join(inside) + "\n", skip))
                fence = skip = None
            else:
                inside.append(line)
        elif opened := _FENCE.match(line):
            fence, language, inside, start = opened[2], opened[3], [], number + 1
            prose.append("")
        else:
            marker = _SKIP.search(line)
            skip = marker[1] if marker else skip if not line.strip() else None
            prose.append(line)
    if fence is not None:
        raise ValueError(f"{name(path)}:{start}: a code block that does not end")
    return blocks, "\n".join(prose)


def blocks(path: Path, *languages: str) -> list[Block]:
    """The page's code blocks in these languages."""
    return [block for block in _parse(path)[0] if block.language in languages]


def links(path: Path) -> list[str]:
    """Targets of the page's links, code left out."""
    return _LINK.findall(_INLINE.sub("", _parse(path)[1]))


def anchors(path: Path) -> set[str]:
    """What a link may name after `#`: headings as GitHub writes them, and explicit anchors."""
    found: dict[str, int] = {}
    prose = _parse(path)[1]
    for line in prose.splitlines():
        if heading := _HEADING.match(line):
            slug = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).lower())
            slug = slug.strip().replace(" ", "-")
            found[slug] = found.get(slug, -1) + 1
    repeated = {f"{slug}-{i}" for slug, count in found.items() for i in range(1, count + 1)}
    return {*found, *repeated, *_ANCHOR.findall(prose)}


def commands(path: Path) -> Iterator[Command]:
    """Each simple command of the page's shell blocks: pipes and lists taken apart."""
    for block in blocks(path, "sh", "bash", "console"):
        yield from commands_of(block)


def commands_of(block: Block) -> Iterator[Command]:
    """Each simple command of one shell block."""
    for line in block.text.replace("\\\n", " ").splitlines():
        yield from _simple_commands(str(block), line)


def inline_commands(path: Path) -> Iterator[Command]:
    """Command lines in running text: inline code that begins with `cqueue` and goes on in lower case."""
    for _, code in _INLINE.findall(_parse(path)[1]):
        if re.match(r"cqueue [a-z-]", code) and "=" not in code.partition(" ")[2].partition(" ")[0]:
            yield from _simple_commands(name(path), code)


def _simple_commands(where: str, line: str) -> Iterator[Command]:
    words = shlex.split(line, comments=True)
    part: list[str] = []
    for word in [*words, ";"]:
        if word in {"|", "||", "&&", ";", "&"} or word.endswith(";"):
            if stripped := word.removesuffix(";").strip("|&"):
                part.append(stripped)
            if part := _without_environment(part):
                yield Command(where, tuple(part))
            part = []
        elif word in {">", ">>", "<", "2>"}:
            part.append(word)
        else:
            part.append(word)


def _without_environment(words: list[str]) -> list[str]:
    while words and re.match(r"[A-Z_]+=", words[0]):
        words = words[1:]
    if any(redirect in words for redirect in (">", "<", ">>", "2>")):
        cut = min(words.index(redirect) for redirect in (">", "<", ">>", "2>") if redirect in words)
        words = words[:cut]
    return words


# ── What the command line takes ──


def complaint(words: tuple[str, ...]) -> str | None:
    """Why `cqueue …` would be refused for a command or option that does not exist; None if it would not."""
    command = _command_line()
    rest = list(words[1:])
    arguments = 0
    while rest:
        word = rest.pop(0)
        if word.startswith("-") and word != "-":
            option = _option(command, word)
            if option is None:
                return f"{command.name} has no option {word}"
            if not getattr(option, "is_flag", False) and "=" not in word and not _is_help(word):
                rest = rest[1:]
        elif hasattr(command, "commands"):
            if word not in command.commands:
                return f"{command.name} has no command {word}"
            command = _loaded(command.commands[word])
        else:
            arguments += 1
    if hasattr(command, "commands"):
        return None
    most = [param.nargs for param in command.params if param.param_type_name == "argument"]
    return None if -1 in most or arguments <= sum(most) else f"{command.name} takes fewer arguments"


@cache
def _command_line() -> Any:
    import typer.main

    from cqueue.cli.main import app

    return typer.main.get_command(app)


def _is_help(word: str) -> bool:
    return word in {"--help", "-h"}


def _option(command: Any, word: str) -> Any:
    wanted = word.partition("=")[0]
    if _is_help(wanted):
        return command
    for param in command.params:
        if param.param_type_name == "option" and wanted in {*param.opts, *param.secondary_opts}:
            return param
    return None


def _loaded(command: Any) -> Any:
    return command.load() if hasattr(command, "load") else command
