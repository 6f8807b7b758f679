"""Sending many lines: in batches, with a bar, and with an account of every line at the end."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from io import BufferedReader, BytesIO
from typing import BinaryIO

import typer

from cqueue.cli.context import CliContext
from cqueue.cli.failures import error_fields, exit_code, ids_to_look_for, worst
from cqueue.cli.interrupts import held_back
from cqueue.cli.values import counted
from cqueue.errors import BadInput, CqueueError, NotDone
from cqueue.runtime.sequences import parts

BATCH = 1000
CHUNK = 1 << 18
SHOWN = 10
"""Failed lines that are named for people; --json names all."""


@dataclass(slots=True)
class Tally:
    """The account of the lines so far: read, sent, under way, failed."""

    read: int = 0
    sent: int = 0
    under_way: int = 0  # not 0 if a batch ended without a result, and some of it may be sent
    failed: list[tuple[int, CqueueError]] = field(default_factory=list)  # line from 1

    @property
    def cassandra_failed(self) -> bool:
        """Return whether a line failed by no fault of its own: the lines after it would fail too."""
        return any(not isinstance(error, BadInput) for _, error in self.failed)


@dataclass(frozen=True, slots=True)
class Target:
    """The queue or log that lines go to, with its words: messages are sent, records are appended."""

    kind: str
    name: str
    noun: str
    done: str
    send: Callable[[list[bytes]], list[tuple[int, CqueueError]]]
    """Sends a batch, and returns (index, error) of each body that failed."""


def send_each(cli: CliContext, target: Target, source: BinaryIO) -> None:
    """Send each line, and account for all of them.

    A line that is refused is left out and the others go on; when Cassandra fails, the command stops after
    the batch, because what follows would fail too.
    """
    tally = Tally()
    try:
        _send_all(cli, target, source, tally)
    except (KeyboardInterrupt, CqueueError) as exc:
        _report(cli, target, tally, exc)
        raise
    _report(cli, target, tally)
    if tally.failed:
        raise typer.Exit(exit_code(worst(error for _, error in tally.failed)))


def _send_all(cli: CliContext, target: Target, source: BinaryIO, tally: Tally) -> None:
    read = 0
    # A bar would be drawn over lines that are typed.
    no_bar = nullcontext[Callable[..., None]](lambda *_, **__: None)
    bar = no_bar if source.isatty() else cli.bar("0 lines", _size(source))
    with held_back() as interrupts, bar as tell:
        for bodies in batches(source):
            with interrupts.step():
                _send_batch(target, bodies, tally)
            read += sum(map(len, bodies)) + len(bodies)
            tell(read, text=f"{tally.read:,} lines")
            if tally.cassandra_failed:
                return


def batches(source: BinaryIO) -> Iterator[list[bytes]]:
    """Yield lines without their ends (LF or CR LF), in batches of those that have come, `BATCH` at most.

    A slow pipe gives small batches: its lines are sent when they come, not when a batch is full.
    """
    begun = b""
    while chunk := _read_some(source):
        *lines, begun = (begun + chunk).split(b"\n")
        for some in parts(lines, BATCH):
            yield [line.removesuffix(b"\r") for line in some]
    if begun:
        yield [begun.removesuffix(b"\r")]


def _read_some(source: BinaryIO) -> bytes:
    if isinstance(source, BufferedReader | BytesIO):
        return source.read1(CHUNK)
    return source.read(CHUNK)


def _send_batch(target: Target, bodies: list[bytes], tally: Tally) -> None:
    tally.under_way = len(bodies)
    try:
        failed = target.send(bodies)
    except (BadInput, NotDone):
        tally.under_way = 0  # nothing of the batch is sent
        raise
    tally.under_way = 0
    tally.failed += [(tally.read + index + 1, error) for index, error in failed]
    tally.read += len(bodies)
    tally.sent += len(bodies) - len(failed)


def _report(cli: CliContext, target: Target, tally: Tally, ended: BaseException | None = None) -> None:
    """Print the account. ended: what ended the command before the last line."""
    interrupted = isinstance(ended, KeyboardInterrupt)
    result = {
        target.kind: target.name,
        target.done: tally.sent,
        "lines": tally.read,
        "unknown": tally.under_way,
        "interrupted": interrupted,
        "failed": [{"line": line, **error_fields(error)} for line, error in tally.failed],
    }
    if interrupted:
        cli.after_ctrl_c()
    cli.emit(result, f"{counted(tally.sent, target.noun)} {target.done} to {target.name}.")
    for text in _remarks(target.done, tally, ended):
        cli.remark(text)


def _remarks(done: str, tally: Tally, ended: BaseException | None) -> Iterable[str]:
    for line, error in tally.failed[:SHOWN]:
        yield f"line {line}: {type(error).__name__}: {error}"
        if told := ids_to_look_for(error):
            yield f"line {line}: {told}"
    if len(tally.failed) > SHOWN:
        yield f"… and {len(tally.failed) - SHOWN:,} more; --json names all."
    if ended is not None or tally.cassandra_failed:
        how = "Interrupted" if isinstance(ended, KeyboardInterrupt) else "Stopped"
        last = tally.read + tally.under_way
        unknown = f" Lines {tally.read + 1:,} to {last:,} may be {done} or not." if tally.under_way else ""
        yield f"{how} after line {tally.read:,}.{unknown} Nothing after line {last:,} was {done}."


def _size(source: BinaryIO) -> int | None:
    """Return the size of a file in bytes; a pipe has none."""
    try:
        status = os.fstat(source.fileno())
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None
