"""Settings of the nodes that clients depend on: Paxos, commit log, memtables, hints, tombstones, hang-ups."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from cqueue.doctor import node_values as values
from cqueue.doctor.finding import Finding, Severity, Subject
from cqueue.doctor.site import unanswered
from cqueue.errors import CqueueError

if TYPE_CHECKING:
    from cqueue.doctor.site import Site

SUBJECT: Final = Subject("settings")
WARNED_TOMBSTONES: Final = 1000
"""Tombstones at which Cassandra has to warn: from its warnings readers learn how many they have crossed."""
LEAST_TOMBSTONES: Final = 10_000
"""Tombstones that a read has to be able to cross: it aims at 500, and a backlog may be ten times as dense."""
SAFE_COPIES: Final = 3
"""Copies at which `commitlog_sync: periodic` loses nothing unless nodes lose power together."""
IDLE_S: Final = 30.0
"""Seconds for which a client's connection may be idle at least: two heartbeats are 20 s apart at most."""
_RESTART: Final = "restart one after the other"


def check(site: Site) -> Iterator[Finding]:
    """Read the settings of each node."""
    settings, failed = site.node_settings()
    yield from unanswered(SUBJECT, failed)
    copies = None
    with suppress(CqueueError):
        copies = site.replication().copies.get(str(site.settings.local_dc))
    if settings:
        found = list(judged(settings, copies))
        yield from found
        if all(finding.severity is Severity.INFO for finding in found):
            modes = sorted({str(mode) for mode in values.by_value(settings, "commitlog_sync")})
            yield SUBJECT.ok(f"Paxos v2, commitlog_sync {', '.join(modes)}, hints on")


def judged(settings: values.NodeSettings, copies: int | None) -> Iterator[Finding]:
    """Judge the settings by node. copies: in the local data centre; None if they are not known."""
    yield from _paxos(settings)
    yield from _purging(settings)
    yield from _commit_log(settings, copies)
    yield from _memtables(settings)
    yield from _hints(settings)
    yield from _tombstones(settings)
    yield from _idle(settings)


def _paxos(settings: values.NodeSettings) -> Iterator[Finding]:
    for variant, nodes in values.by_value(settings, "paxos_variant").items():
        if variant == "v2":
            continue
        exact = "without_linearizable" in str(variant)
        yield SUBJECT.found(
            Severity.ERROR if exact else Severity.WARNING,
            f"paxos_variant is {variant} {values.on(nodes, settings)}",
            reason="Reads may miss a claim that was made: two consumers may get one message."
            if exact
            else "Claims need more round trips, and cqueue is tested with v2.",
            remedy=f"cassandra.yaml of those nodes: paxos_variant: v2; {_RESTART}",
            figures={"nodes": nodes},
        )


def _purging(settings: values.NodeSettings) -> Iterator[Finding]:
    """Judge how Paxos state is purged.

    `legacy` and `gc_grace` need nothing of an operator. With `repaired` state is kept until a Paxos repair.
    After another mode, `legacy` is unsafe: rows that were written without a time to live stay.
    """
    modes = values.by_value(settings, "paxos_state_purging")
    if "legacy" in modes and len(modes) > 1:
        yield SUBJECT.error(
            f"paxos_state_purging is legacy {values.on(modes['legacy'], settings)} and "
            f"{', '.join(str(mode) for mode in modes if mode != 'legacy')} on others",
            reason="A cluster that has left legacy must not go back to it: old proposals may come back.",
            remedy=f"cassandra.yaml of those nodes: paxos_state_purging: gc_grace; {_RESTART}",
            figures={"nodes": modes["legacy"]},
        )
    v1 = [node for node in modes.get("repaired", []) if settings[node].get("paxos_variant") == "v1"]
    if v1:
        yield SUBJECT.error(
            f"paxos_state_purging is repaired with paxos_variant v1 {values.on(v1, settings)}",
            reason="Only v2 keeps what a Paxos repair needs.",
            remedy=f"cassandra.yaml of those nodes: paxos_variant: v2; {_RESTART}",
            figures={"nodes": v1},
        )
    elif "repaired" in modes:
        yield SUBJECT.info(
            f"paxos_state_purging is repaired {values.on(modes['repaired'], settings)}",
            reason="system.paxos grows until each node is repaired, and claims write to it all the time.",
            remedy="nodetool repair --paxos-only, every hour on every node",
            figures={"nodes": modes["repaired"]},
        )


def _commit_log(settings: values.NodeSettings, copies: int | None) -> Iterator[Finding]:
    nodes = values.by_value(settings, "commitlog_sync").get("periodic")
    if not nodes:
        return
    periods = ", ".join(str(period) for period in values.by_value(settings, "commitlog_sync_period"))
    if copies is not None and copies >= SAFE_COPIES:
        severity = Severity.INFO
        reason = f"What was acknowledged in the last {periods} is lost if a quorum loses power together."
    else:
        severity = Severity.ERROR if copies == 1 else Severity.WARNING
        reason = (
            "A node acknowledges what only its memory holds. What was acknowledged in the last "
            f"{periods} is lost when {'the node is' if copies == 1 else 'nodes are'} killed."
        )
    yield SUBJECT.found(
        severity,
        f"commitlog_sync is periodic {values.on(nodes, settings)}",
        reason=reason,
        remedy=f"cassandra.yaml of those nodes: commitlog_sync: batch; {_RESTART}",
        figures={"nodes": nodes, "copies": copies},
    )


def _memtables(settings: values.NodeSettings) -> Iterator[Finding]:
    for kind, nodes in values.by_value(settings, "memtable_allocation_type").items():
        if kind in {"heap_buffers", "unslabbed_heap_buffers"}:
            yield SUBJECT.info(
                f"memtable_allocation_type is {kind} {values.on(nodes, settings)}",
                reason="Cassandra 5.0 keeps flushed memtables in the heap as long as a thread that wrote to "
                "them is idle. A small heap fills up under load.",
                remedy="cassandra.yaml of those nodes: memtable_allocation_type: offheap_objects; "
                f"{_RESTART}",
                figures={"nodes": nodes},
            )


def _hints(settings: values.NodeSettings) -> Iterator[Finding]:
    nodes = values.by_value(settings, "hinted_handoff_enabled").get("false")
    if nodes and len(settings) > 1:
        yield SUBJECT.warning(
            f"hinted_handoff_enabled is false {values.on(nodes, settings)}",
            reason="A node that was away for a moment lacks what it missed until it is repaired.",
            remedy="nodetool enablehandoff on those nodes, and the same in cassandra.yaml",
            figures={"nodes": nodes},
        )


def _tombstones(settings: values.NodeSettings) -> Iterator[Finding]:
    for text, nodes in values.by_value(settings, "tombstone_warn_threshold").items():
        warned = values.number(text)
        if warned is None or not 0 < warned <= WARNED_TOMBSTONES:
            yield SUBJECT.warning(
                f"tombstone_warn_threshold is {text} {values.on(nodes, settings)}",
                reason="Consumers learn from Cassandra's warnings how many tombstones a read has crossed. "
                "Without them they read too much at once.",
                remedy=f"cassandra.yaml of those nodes: tombstone_warn_threshold: {WARNED_TOMBSTONES}; "
                f"{_RESTART}",
                figures={"nodes": nodes, "warned": warned},
            )
    for text, nodes in values.by_value(settings, "tombstone_failure_threshold").items():
        most = values.number(text)
        if most is not None and 0 < most < LEAST_TOMBSTONES:
            yield SUBJECT.found(
                Severity.ERROR if most < 2 * WARNED_TOMBSTONES else Severity.WARNING,
                f"tombstone_failure_threshold is {text} {values.on(nodes, settings)}",
                reason="Acked messages are tombstones until compaction. Reads across more than these are "
                "refused, and the messages behind them wait.",
                remedy=f"cassandra.yaml of those nodes: tombstone_failure_threshold: 100000; {_RESTART}",
                figures={"nodes": nodes, "most": most},
            )


def _idle(settings: values.NodeSettings) -> Iterator[Finding]:
    name = "native_transport_idle_timeout"
    for text, nodes in values.by_value(settings, name).items():
        after_s = values.seconds(text)
        if after_s is not None and 0 < after_s < IDLE_S:
            yield SUBJECT.warning(
                f"{name} is {text} {values.on(nodes, settings)}",
                reason="Nodes hang up on clients that rest for so long. A call after that waits for a new "
                "connection, or raises Unavailable.",
                remedy=f"cassandra.yaml of those nodes: {name}: {IDLE_S * 2:.0f}s; {_RESTART}",
                figures={"nodes": nodes, "idle_s": after_s},
            )
