"""Wait until launched nodes answer; if they do not, say why in terms of what to do about it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path

from cqueue.dev import processes
from cqueue.dev.jars import Progress
from cqueue.dev.node import Node
from cqueue.dev.paths import command
from cqueue.errors import DevError

MOST_LIMITS = 5
"""A start whose logs grow may take this many times the limit: a machine may have much else to do."""
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

    launched: process ids of those that were started just now, by number. limit: how long the logs may stand
    still; all of it may take five times as long.

    Raises:
        DevError: a process ended, or `limit` passed; with the end of the log and a remedy.
    """

    def tell(waiting: int) -> None:
        progress(f"Starting Cassandra: {len(nodes) - waiting} of {len(nodes)} nodes answer")

    _wait(nodes, launched, limit, is_ready=Node.answers, failing="did not answer CQL", tell=tell)


def await_ring(nodes: Sequence[Node], launched: Mapping[int, int], limit: timedelta) -> None:
    """Wait until each of `nodes`, which are all of the cluster, finds all others alive.

    A node answers some time before its neighbours have noticed; writes to all replicas fail until then.

    Raises:
        DevError: as `await_answers`.
    """
    failing = "did not find the other nodes"
    _wait(nodes, launched, limit, is_ready=Node.sees_ring, failing=failing, tell=lambda _: None)


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


def _wait(
    nodes: Sequence[Node],
    launched: Mapping[int, int],
    limit: timedelta,
    *,
    is_ready: Callable[[Node], bool],
    failing: str,
    tell: Callable[[int], None],
) -> None:
    began_s = grown_s = time.monotonic()
    size, waiting = 0, list(nodes)
    while waiting := [node for node in waiting if not is_ready(node)]:
        tell(len(waiting))
        for node in nodes:
            if _is_gone(node, launched):
                raise _failure(node, "ended while it was starting")
        now_s, limit_s = time.monotonic(), limit.total_seconds()
        if (grown := sum(node.log_size() for node in nodes)) != size:
            size, grown_s = grown, now_s
        # Also a log that grows ends it once: a server that does nothing but collect garbage says so for ever.
        if now_s >= min(grown_s + limit_s, began_s + MOST_LIMITS * limit_s):
            raise _failure(waiting[0], f"{failing} within {now_s - began_s:.0f} s", _LATE)
        time.sleep(_POLL_SECONDS)
    tell(0)


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
