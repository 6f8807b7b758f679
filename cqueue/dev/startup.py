"""Wait until launched nodes answer; if they do not, say why in terms of what to do about it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

from cqueue.dev import processes
from cqueue.dev.jars import Progress
from cqueue.dev.node import Node
from cqueue.dev.paths import command
from cqueue.errors import DevError

_POLL_SECONDS = 0.2
_SHOWN_LINES = 12

# What the server or the JVM writes, and what helps. The first that is found counts.
_REMEDIES = (
    (
        ("Address already in use", "is in use by another process"),
        "Something else took the port meanwhile; start again, another address is chosen then.",
    ),
    (
        ("No space left on device", "Insufficient disk space"),
        "Free some disk space, or choose another disk with --dir.",
    ),
    (
        ("insufficient memory for the Java", "Cannot allocate memory", "Could not reserve enough space"),
        "Free some memory, or choose a smaller --heap or fewer --nodes.",
    ),
    (("java.lang.OutOfMemoryError", "Too small maximum heap"), "Choose a bigger --heap."),
    (("ConfigurationException",), "A setting was refused; look at the overrides of cassandra.yaml."),
    (
        ("CommitLogReplayException", "CorruptSSTableException", "FSReadError"),
        "The data is damaged; {wipe} starts afresh (and deletes it).",
    ),
)
_LAST_RESORT = "{logs} shows the whole log; {wipe} starts afresh (and deletes the data)."
_LATE = "The machine may have too much to do: start it again later. {logs} shows the whole log."


def await_answers(
    nodes: Sequence[Node], launched: Mapping[int, int], limit: timedelta, progress: Progress
) -> None:
    """Wait until all `nodes` answer CQL.

    launched: process ids of those that were started just now, by number.

    Raises:
        DevError: a process ended, or `limit` passed; with the end of the log and a remedy.
    """
    deadline = time.monotonic() + limit.total_seconds()
    waiting = list(nodes)
    while waiting:
        _check(waiting, launched, deadline, limit, "did not answer CQL")
        time.sleep(_POLL_SECONDS)
        waiting = [node for node in waiting if not node.answers()]
        progress(f"Starting Cassandra: {len(nodes) - len(waiting)} of {len(nodes)} nodes answer")


def await_ring(nodes: Sequence[Node], launched: Mapping[int, int], limit: timedelta) -> None:
    """Wait until each of `nodes`, which are all of the cluster, finds all others alive.

    A node answers some time before its neighbours have noticed; writes to all replicas fail until then.

    Raises:
        DevError: as `await_answers`.
    """
    deadline = time.monotonic() + limit.total_seconds()
    waiting = [node for node in nodes if not node.sees_ring()]
    while waiting:
        _check(nodes, launched, deadline, limit, "did not find the other nodes")
        time.sleep(_POLL_SECONDS)
        waiting = [node for node in waiting if not node.sees_ring()]


def remedy(log: Sequence[str], directory: Path, otherwise: str = _LAST_RESORT) -> str:
    """One line on what to do about a start that left this log, of the cluster of this directory.

    otherwise: what helps where the log does not say it.
    """
    text = "\n".join(log)
    known = (advice for marks, advice in _REMEDIES if any(mark in text for mark in marks))
    return next(known, otherwise).format(logs=command("logs", directory), wipe=command("wipe", directory))


def telling(log: Sequence[str]) -> Sequence[str]:
    """The lines to show: from the last error on if there is one, for a failed server tidies up at length."""
    errors = [number for number, line in enumerate(log) if line.startswith("ERROR")]
    begin = errors[-1] if errors else max(len(log) - _SHOWN_LINES, 0)
    return log[begin : begin + _SHOWN_LINES]


def _check(
    nodes: Sequence[Node], launched: Mapping[int, int], deadline: float, limit: timedelta, failing: str
) -> None:
    for node in nodes:
        if _is_gone(node, launched):
            raise _failure(node, "ended while it was starting")
    if time.monotonic() >= deadline:
        raise _failure(nodes[0], f"{failing} within {limit.total_seconds():.0f} s", _LATE)


def _is_gone(node: Node, launched: Mapping[int, int]) -> bool:
    """Whether the node has no process any more.

    A process that becomes another program, as a prefix does, has no command line for a moment, so one that
    was launched here is looked up by its id as well.
    """
    pid = launched.get(node.number)
    return node.pid() is None and (pid is None or processes.is_gone(pid))


def _failure(node: Node, what: str, otherwise: str = _LAST_RESORT) -> DevError:
    log = node.log_tail(200)
    shown = "\n".join(f"  {line}" for line in telling(log)) or "  (empty)"
    advice = remedy(log, node.directory, otherwise)
    return DevError(f"Node {node.number} ({node.address}) {what}. From its log:\n{shown}\n{advice}")
