"""Numbered files of CQL, `NN_<pre|post>_<what>.cql`, and how they are read, filled in and compared.

`pre` migrations must be applied before processes with the new code start; `post` migrations only when the
last process with the old code has stopped. Each statement must be harmless when repeated, because a process
may die between a statement and its record.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, cast

from cqueue.errors import ConfigError

DIRECTORY: Final = Path(__file__).parent
"""Folder of the migrations."""

Phase = Literal["pre", "post"]

_FILE_NAME = re.compile(r"(\d{2})_(pre|post)_([a-z0-9_]+)\.cql")
# A comment, a quoted text or name, a semicolon, or a run of anything else. The order matters: `--` within
# quotes is no comment, a quote within a comment opens nothing.
_TOKEN = re.compile(
    r"(?P<comment>--[^\n]*|//[^\n]*|/\*.*?\*/)|(?P<quoted>'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\")|(?P<end>;)"
    r"|(?P<other>[^'\";/-]+|.)",
    re.DOTALL,
)
_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")


@dataclass(frozen=True, slots=True)
class Migration:
    """One migration file.

    Attributes:
        number: place in the order; 0 stands for the bookkeeping itself and has no file.
        phase: pre or post: before new code starts, or after old code has stopped.
        what: the rest of the name.
        cql: text of the file. It is split only where statements are asked for: a connect goes by the name.
    """

    number: int
    phase: Phase
    what: str
    cql: str

    @property
    def name(self) -> str:
        """File name without its ending."""
        return f"{self.number:02}_{self.phase}_{self.what}"

    @property
    def statements(self) -> tuple[str, ...]:
        """Statements without comments and closing semicolons, with placeholders."""
        return split_statements(self.cql)

    @property
    def checksum(self) -> str:
        """Checksum of the statements in the file; comments and white space do not count."""
        squeezed = (_outside_quotes(statement, r"\s+", " ") for statement in self.statements)
        return hashlib.sha256(";".join(squeezed).encode()).hexdigest()

    def render(self, values: Mapping[str, str]) -> tuple[str, ...]:
        """Return the statements with their placeholders filled in."""
        return tuple(fill_in(statement, values) for statement in self.statements)


def load_migrations(directory: Path = DIRECTORY) -> tuple[Migration, ...]:
    """Return all migrations of a directory, in order.

    Raises:
        ConfigError: a name is malformed, or the numbers are not 1, 2, 3 …
    """
    found = sorted((_read(path) for path in directory.glob("*.cql")), key=lambda migration: migration.number)
    for expected, migration in enumerate(found, start=1):
        if migration.number != expected:
            raise ConfigError(
                f"{directory}: migration {expected:02} is missing or there twice ({migration.name})."
            )
    return tuple(found)


def fill_in(statement: str, values: Mapping[str, str]) -> str:
    """Replace each `{name}`; CQL maps, which have quotes after the brace, stay.

    Raises:
        ConfigError: a placeholder has no value.
    """
    unknown = set(_PLACEHOLDER.findall(statement)) - set(values)
    if unknown:
        raise ConfigError(f"No value for {{{unknown.pop()}}} in: {statement[:60]}…")
    return _PLACEHOLDER.sub(lambda match: values[match[1]], statement)


def split_statements(text: str) -> tuple[str, ...]:
    """Split CQL at its semicolons; comments and blank lines are dropped, other line breaks stay."""
    statements: list[str] = []
    parts: list[str] = []
    for token in _TOKEN.finditer(text + ";"):
        if token["end"]:
            statements.append(_outside_quotes("".join(parts), r"\s*\n", "\n").strip())
            parts = []
        elif not token["comment"]:
            parts.append(token[0])
    return tuple(statement for statement in statements if statement)


def _outside_quotes(text: str, pattern: str, replacement: str) -> str:
    """Replace in a statement, except in quoted texts and names."""
    pieces = (token["quoted"] or re.sub(pattern, replacement, token[0]) for token in _TOKEN.finditer(text))
    return "".join(pieces)


def text_literal(value: str) -> str:
    """Return a text as CQL writes it."""
    return "'" + value.replace("'", "''") + "'"


def map_literal(value: Mapping[str, object]) -> str:
    """Return a map of texts as CQL writes it, in the given order."""
    return "{" + ", ".join(f"{text_literal(k)}: {text_literal(str(v))}" for k, v in value.items()) + "}"


def _read(path: Path) -> Migration:
    match = _FILE_NAME.fullmatch(path.name)
    if match is None:
        raise ConfigError(f"{path.name} is not a migration: the name is NN_pre_what.cql or NN_post_what.cql.")
    return Migration(int(match[1]), cast("Phase", match[2]), match[3], path.read_text(encoding="utf-8"))
