"""The table of faults: printed after a run, and written to a page.

The page names the commit, and a fingerprint of the code on which stored messages depend. `python -m
tests.faults.table PAGE` compares it with the tree's, and says in the heading whether the code is newer.
"""

from __future__ import annotations

import ast
import os
import platform
import re
import subprocess
import sys
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
STORED_BY = ("cqueue/protocol", "cqueue/store", "schema")
TITLE = "# Faults, and what came of them"
OLD_TITLE = f"{TITLE} (older than the code)"
HEAD = f"""{TITLE}

Written by `make faults`; what is done, and what must hold, stands in the tests below `tests/faults/`.
Every row demands lost = 0, unexpected = 0, resurrected = 0, and never two holders of one message.
The [history checker](history.md) is the judge.
Rows 9, 18 and 19 run the worker that `tests/faults/worker.py` names.
Messages are sent a hundred at a time, so that they share rows, and consumers ack a part of them at a time.
Rows 22, 23 and 26 and the daemon of row 9 have messages that are sent one by one, or under derived ids.
`make test-all` runs rows 1 to 4, 7 (one node), 12, 13 and 23 to 26 as well, in short.

"""


class Row(NamedTuple):
    number: int
    fault: str
    outcome: str
    figures: dict
    reason: str


def cells(row):
    """Number, fault, outcome, figures."""
    figures = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in row.figures.items())
    outcome = {"passed": "held", "failed": "BROKEN"}.get(row.outcome, row.outcome)
    return str(row.number), row.fault, outcome, "; ".join(part for part in (row.reason, figures) if part)


def lines(rows):
    """For a terminal."""
    for row in sorted(rows, key=lambda row: row.number):
        number, fault, outcome, figures = cells(row)
        yield f"{number:>2}  {outcome:<7} {fault}: {figures}"


def write(path, rows, made):
    """As Markdown, with date, versions and class of the machine. made: what `made_at` said at the start."""
    text = HEAD + f"{_circumstances()}\n\n{made}\n\n| # | fault | result | figures |\n|---|---|---|---|\n"
    for row in sorted(rows, key=lambda row: row.number):
        text += "| " + " | ".join(cell.replace("|", "/") for cell in cells(row)) + " |\n"
    path.write_text(text, encoding="utf-8")


def _circumstances():
    import cassandra

    from cqueue import __version__
    from cqueue.dev.jars import cassandra_version

    gigabytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, cqueue {__version__}, Cassandra {cassandra_version()}, "
        f"Python {platform.python_version()}, driver {cassandra.__version__}, {platform.system()} "
        f"{platform.machine()}, {os.cpu_count()} cores, {gigabytes:.0f} GB."
    )


# ── is the table as new as the code? ──


def made_at(commit="HEAD", root=ROOT):
    """Say which commit was tested, and the fingerprint of its code."""
    command = ["git", "-C", root, "rev-parse", "--short=12", commit]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    code = ", ".join(f"`{one}`" for one in STORED_BY)
    return f"Commit {found}; code of {code}: fingerprint `{fingerprint(root)}`."


def fingerprint(root=ROOT):
    """Digest the code on which stored messages depend, without comments and docstrings."""
    digest = blake2b(digest_size=8)
    for directory in STORED_BY:
        for path in sorted((root / directory).rglob("*")):
            meaning = _MEANINGS.get(path.suffix)
            if meaning is not None and path.is_file():
                text = meaning(path.read_text(encoding="utf-8"))
                digest.update(f"{path.relative_to(root)}\0{text}\0".encode())
    return digest.hexdigest()


def _meaning_of_python(text):
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(getattr(node, "body", None), list):
            node.body = [one for one in node.body if not _is_text(one)]
    return ast.dump(tree)


def _is_text(node):
    value = getattr(node, "value", None)
    return isinstance(node, ast.Expr) and isinstance(getattr(value, "value", None), str)


def _meaning_of_cql(text):
    return " ".join(re.sub(r"--.*", "", text).split())


_MEANINGS = {".py": _meaning_of_python, ".cql": _meaning_of_cql}


def with_age(text, current):
    """Return the page with the heading that is true of code with this fingerprint."""
    made = re.search(r"fingerprint `(\w+)`", text)
    body = text.split("\n", 1)[1]
    return f"{TITLE if made and made[1] == current else OLD_TITLE}\n{body}"


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(with_age(page.read_text(encoding="utf-8"), fingerprint()), encoding="utf-8")
