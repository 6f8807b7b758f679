"""`cqueue doctor`: what is wrong with the cluster, the keyspace, the queues and their processes."""

from __future__ import annotations

import sys
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cqueue.cli.commands import command
from cqueue.cli.context import CliContext
from cqueue.cli.failures import ExitCode
from cqueue.cli.table import one_line
from cqueue.errors import BadInput

if TYPE_CHECKING:
    from cqueue.doctor import Finding

app = typer.Typer()

INDENT: Final = 13
"""Columns before a finding's text: the longest severity, and a gap."""
ARROW: Final = "→ "
MOST_ALIKE: Final = 5
"""Findings of one severity, check and reason that a terminal shows: thousands of queues may have the same."""
SHORTEST_S, LONGEST_S = 1.0, 3600.0
STYLES: Final = {
    "error": "bold red",
    "warning": "bold yellow",
    "not checked": "bold magenta",
    "info": "cyan",
    "ok": "green",
}


@command(app)
def doctor(
    cli: CliContext,
    *,
    timeout: Annotated[timedelta | None, "What each check may take; by default 10s."] = None,
) -> None:
    """Look for what is wrong: nodes, clocks, settings, tables, queues, workers; say why, and what to do.

    Changes nothing. Exit code 1: there are warnings or errors. 3: some checks could not be made.
    """
    from cqueue.client import connect  # noqa: PLC0415 - keeps `cqueue --help` quick
    from cqueue.doctor import DEFAULT_LIMIT_S, examine, open_site  # noqa: PLC0415 - as above

    limit_s = DEFAULT_LIMIT_S if timeout is None else timeout.total_seconds()
    if not SHORTEST_S <= limit_s <= LONGEST_S:
        raise BadInput("--timeout goes from 1s to 1h.")
    settings = cli.settings()
    with cli.status("Connecting…") as show:
        make_client = partial(connect, cli.url)
        with open_site(settings, make_client, limit_s=limit_s) as site:
            show("Looking…")
            found = examine(site)
    _emit(cli, settings.address, found)


def _emit(cli: CliContext, address: str, found: Sequence[Finding]) -> None:
    counts = Counter(finding.severity.value for finding in found)
    code = ExitCode.DONE
    if counts["error"] or counts["warning"]:
        code = ExitCode.CHECK_FAILED
    elif counts["not checked"]:
        code = ExitCode.NOT_DONE
    numbers = {name.replace(" ", "_"): counts[name] for name in STYLES}
    document = {"cluster": address, "findings": found, **numbers, "exit_code": int(code)}
    cli.emit(document, lambda: _print_all(cli, address, found, counts))
    raise typer.Exit(code)


def _print_all(cli: CliContext, address: str, found: Sequence[Finding], counts: Counter[str]) -> None:
    shown = _few_alike(found) if cli.console.is_terminal else found
    for finding in reversed(shown):  # the worst last: what comes first scrolls away
        _print(cli, finding)
    parts = [
        f"{count} {name}{'s' if count > 1 and name in {'error', 'warning'} else ''}"
        for name in STYLES
        if (count := counts[name])
    ]
    for line in _wrapped(cli, f"{address}: {', '.join(parts) or 'nothing found'}."):
        cli.line(line)


def _few_alike(found: Iterable[Finding]) -> list[Finding]:
    """Return the first few findings of each severity, check and reason, and how many more there are."""
    alike: defaultdict[tuple[str, ...], list[Finding]] = defaultdict(list)
    for finding in found:
        alike[finding.severity, finding.subject, finding.reason or finding.found].append(finding)
    shown: list[Finding] = []
    for group in alike.values():
        shown += group[:MOST_ALIKE]
        if (more := len(group) - MOST_ALIKE) > 0:
            text, remedy = f"{more:,} more, for the same reason as those below", "A pipe shows all: … | less"
            shown.append(replace(group[0], found=text, reason="", remedy=remedy))
    return shown


def _print(cli: CliContext, finding: Finding) -> None:
    """Print one finding: a paragraph on a terminal, a line in a pipe."""
    severity, texts = finding.severity.value, _texts(finding)
    cli.console.print(severity.ljust(INDENT), style=STYLES[severity], end="")
    if not cli.console.is_terminal:
        cli.line(" ".join(texts))
        return
    lines = [line for text in texts for line in _wrapped(cli, text, INDENT)]
    cli.line(f"\n{' ' * INDENT}".join(lines))


def _texts(finding: Finding) -> list[str]:
    """Return what is said: what was found, why it matters, what to do."""
    what = f"{finding.subject}: {finding.found}"
    told = what if not finding.reason or what.endswith((".", "!")) else f"{what}."
    texts = [told, finding.reason, f"{ARROW}{finding.remedy}" if finding.remedy else ""]
    return [one_line(text) for text in texts if text]


def _wrapped(cli: CliContext, text: str, indent: int = 0) -> list[str]:
    """Break a text to the terminal's width; lines after a remedy's first stand below its text."""
    room = max(20, cli.console.width - indent) if cli.console.is_terminal else sys.maxsize
    later = " " * len(ARROW) if text.startswith(ARROW) else ""
    return textwrap.wrap(text, room, subsequent_indent=later, break_long_words=False, break_on_hyphens=False)
