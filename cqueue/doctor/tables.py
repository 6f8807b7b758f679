"""Tables: drift from the schema, gc_grace against hints and repair, sizes, tombstones and slow reads."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Final

from cqueue.doctor import node_values as values
from cqueue.doctor import statements as cql
from cqueue.doctor.finding import Finding, Severity, Subject, not_checked
from cqueue.doctor.site import unanswered
from cqueue.errors import CqueueError, SchemaMismatch
from cqueue.runtime.durations import show_duration
from cqueue.runtime.sequences import grouped
from cqueue.schema.deployment import DISPENSABLE
from cqueue.schema.drift import Drift, all_drift
from cqueue.schema.migrations import load_migrations
from cqueue.schema.options import HINT_WINDOW_S
from cqueue.store.keys import ALL_TOKENS

if TYPE_CHECKING:
    from cqueue.doctor.site import Answer, Site
    from cqueue.schema import Migration, State

SUBJECT: Final = Subject("tables")
LARGE_MIB: Final = 100
"""MiB of a partition from which its reads, repairs and compactions take long."""
MANY_TOMBSTONES: Final = 1000
"""Tombstones that 1 read in 100 may cross: readers aim at 500, and bound their reads at about this."""
REFUSED_TOMBSTONES: Final = 100_000
"""Tombstones at which Cassandra refuses a read, unless it is set otherwise."""
SLOW_MS: Final = 250
"""ms of 1 read in 100 on one node from which it is slow: a claim makes several, one after the other."""
FEW_READS: Final = 100
"""Reads since the node started below which their times say little: the first ones of a node are slow."""
DELETED_ROWS: Final = frozenset({"messages", "bodies", "shards", "log", "log_shards", "queues", "schedules"})
"""Tables whose rows are deleted. In the others rows expire, so that nothing can come back."""


def check(site: Site) -> Iterator[Finding]:
    """Read the schema, and what each node says about its tables."""
    keyspace = site.settings.keyspace
    schemas = {row.schema_version for answer in site.versions() for row in answer.rows}
    try:
        state = site.state()
    except CqueueError as exc:
        yield not_checked(SUBJECT, f"the schema: {exc}")
    else:
        yield from schema(state, load_migrations(), agreed=len(schemas) == 1)
        yield from _graces(site, state)
    silent: set[str] = set()
    for measure in (PARTITIONS, TOMBSTONES, LATENCY):
        answers = site.ask_each(measure.statement)
        new = [answer for answer in answers if answer.error is not None and answer.node not in silent]
        silent |= {answer.node for answer in new}
        yield from unanswered(SUBJECT, new, "sizes, tombstones and reads of ")
        yield from measure.judge(figures_of(answers, keyspace))


# ── Drift ──


def schema(state: State, known: tuple[Migration, ...], *, agreed: bool) -> Iterator[Finding]:
    """Judge the schema against these migrations. agreed: all nodes have one schema.

    A node that was away may not know the newest tables yet, and differences may be those of this node alone.
    """
    try:
        state.check_not_newer(known)
    except SchemaMismatch as exc:
        yield SUBJECT.error(
            f"{exc}".rstrip("."),
            reason="This version would misread what newer ones store, so it refuses to connect.",
            remedy="Install the version that the other processes have",
        )
        return
    found = all_drift(state, known)
    if found and not agreed:
        yield not_checked(SUBJECT, f"the schema: nodes disagree, and of one {found[0].where} differs")
    else:
        yield from drift(found)


def drift(found: Sequence[Drift]) -> Iterator[Finding]:
    """Judge the differences from the schema. A table's structure matters more than its options."""
    for one in found:
        yield SUBJECT.found(
            Severity.WARNING if _may_wait(one) else Severity.ERROR,
            f"{one.where} {one.problem}".rstrip("."),
            reason="Clients work all the same; `cqueue schema verify` says so until it is mended."
            if _may_wait(one)
            else "Clients are refused, or fail when they need it.",
            remedy="; ".join([*one.cql, *([one.remedy] if one.remedy else [])]) or "cqueue schema plan",
        )
    if not found:
        yield SUBJECT.ok("the schema is as this version wants it: tables, compaction, gc_grace")


def _may_wait(one: Drift) -> bool:
    """Return whether clients work with this difference: one of options, or of a migration that may wait."""
    if one.where.startswith("migration"):
        return "_post_" in one.where or one.where.partition("_pre_")[2] in DISPENSABLE
    return bool(one.cql) and not any(" ADD " in statement for statement in one.cql)


# ── gc_grace ──


def _graces(site: Site, state: State) -> Iterator[Finding]:
    deletes = {name: table.gc_grace_s or 0 for name, table in state.tables.items() if name in DELETED_ROWS}
    if not deletes:
        return
    settings, _ = site.node_settings()  # nodes that do not answer are reported by another check
    yield from hint_window(deletes, settings)
    copies = sum((state.replication or {}).values())
    if copies > 1:
        try:
            rows = site.read(cql.SELECT_REPAIRS)
            made = site.read(cql.SELECT_MADE_AT.format(keyspace=state.keyspace))
        except CqueueError as exc:
            yield not_checked(SUBJECT, f"the repair history: {exc}")
            return
        now = datetime.fromtimestamp(site.wall_us() / 1e6, UTC)
        since = min((row.applied_at.replace(tzinfo=UTC) for row in made if row.applied_at), default=None)
        yield from repairs(rows, state.keyspace, deletes, now, since)


def hint_window(graces: Mapping[str, int], settings: values.NodeSettings) -> Iterator[Finding]:
    """Judge gc_grace against the hint window. graces: gc_grace in seconds by table."""
    windows = [values.seconds(text) for text in values.by_value(settings, "max_hint_window")]
    window_s = max((one for one in windows if one is not None), default=float(HINT_WINDOW_S))
    short = {name: grace_s for name, grace_s in graces.items() if grace_s <= window_s}
    window = _time(window_s)
    if short:
        named = ", ".join(f"{name} {_time(grace_s)}" for name, grace_s in sorted(short.items()))
        yield SUBJECT.error(
            f"gc_grace is not above the hint window of {window}: {named}",
            reason="A node that was away for that long may lack deletions that the others have forgotten: "
            "acked messages come back.",
            remedy=f"cqueue schema apply --gc-grace {max(86_400, int(2 * window_s))}, and run what it prints",
            figures={"hint_window_s": window_s, **{f"{name}_s": one for name, one in short.items()}},
        )
    else:
        yield SUBJECT.ok(
            f"gc_grace is {_time(min(graces.values()))} or more, above the hint window of {window}",
            figures={"gc_grace_s": min(graces.values()), "hint_window_s": window_s},
        )


def repairs(
    rows: Iterable[Any],
    keyspace: str,
    graces: Mapping[str, int],
    now: datetime,
    since: datetime | None = None,
) -> Iterator[Finding]:
    """Judge when all of the tables was repaired last; a repair may be one of some tables or nodes only.

    rows: of the repair history, with times in UTC. graces: gc_grace in seconds by table. since: when the
    keyspace was made.
    """
    grace_s = min(graces.values())
    ages_s = _repair_ages_s(rows, keyspace, now)
    never = sorted(graces.keys() - ages_s.keys())
    age_s = None if never else max(ages_s[name] for name in graces)
    if age_s is not None and age_s <= grace_s:
        yield SUBJECT.ok(f"the last repair ended {_time(age_s)} ago", figures={"repair_age_s": age_s})
        return
    young_s = None if since is None else (now - since).total_seconds()
    if age_s is None and young_s is not None and young_s <= grace_s:
        yield SUBJECT.info(
            f"no repair of all tables yet; the keyspace is {_time(young_s)} old",
            reason=f"Each node has to be repaired within every gc_grace, {_time(grace_s)}.",
            remedy=f"nodetool repair -full {keyspace}, on every node",
            figures={"age_s": round(young_s), "gc_grace_s": grace_s},
        )
        return
    ended = (
        "not all token ranges are in the history"
        if age_s is None
        else f"the last one ended {_time(age_s)} ago"
    )
    old = never or sorted(name for name in graces if ages_s[name] > grace_s)
    of = "" if len(old) == len(graces) else f" of {', '.join(old)}"
    yield SUBJECT.warning(
        f"no repair{of} within gc_grace of {_time(grace_s)}: {ended}",
        reason="A node that missed a deletion for longer brings acked messages back. A tool that writes no "
        "history is not seen here.",
        remedy=f"nodetool repair -full {keyspace}, on every node, within every {_time(grace_s)}",
        figures={"repair_age_s": age_s, "gc_grace_s": grace_s},
    )


def _repair_ages_s(rows: Iterable[Any], keyspace: str, now: datetime) -> dict[str, float]:
    """Return how many seconds ago the last repairs of each whole table ended; not of one that had none."""
    ended = [
        ((now - row.finished_at.replace(tzinfo=UTC)).total_seconds(), row)
        for row in rows
        if row.keyspace_name == keyspace and row.finished_at is not None and not row.exception_message
    ]
    ages_s: dict[str, float] = {}
    gaps: dict[str, list[tuple[int, int]]] = defaultdict(lambda: [ALL_TOKENS])
    for age_s, row in sorted(ended, key=itemgetter(0)):
        done = [span for text in row.successful_ranges or () for span in _spans(text)]
        for name in (name for name in row.columnfamily_names or () if name not in ages_s):
            for begin, end in done:
                _take_out(gaps[name], begin, end)
            if not gaps[name]:
                ages_s[name] = age_s
    return ages_s


def _spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield the tokens of a range such as `(-5,7]`, each span with its begin below its end."""
    begin, end = map(int, text.strip("(]").split(","))
    yield from [(begin, end)] if begin < end else [(begin, ALL_TOKENS[1]), (ALL_TOKENS[0], end)]


def _take_out(gaps: list[tuple[int, int]], begin: int, end: int) -> None:
    """Take the tokens behind `begin` and up to `end` out of what is left, which stays in order."""
    first = bisect_right(gaps, begin, key=itemgetter(1))
    last = bisect_left(gaps, end, lo=first, key=itemgetter(0))
    if first < last:
        ends = (gaps[first][0], begin), (end, gaps[last - 1][1])
        gaps[first:last] = [gap for gap in ends if gap[0] < gap[1]]


# ── What the nodes say ──


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of one table on one node. other: a second figure of the same row, where there is one."""

    node: str
    table: str
    value: float
    other: float = 0


def figures_of(answers: Iterable[Answer], keyspace: str) -> list[Figure]:
    """Return the figures of a keyspace's tables, on each node that answered."""
    return [
        Figure(answer.node, row.table_name, float(row.figure), getattr(row, "other", None) or 0)
        for answer in answers
        for row in answer.rows
        if row.keyspace_name == keyspace and row.figure is not None
    ]


@dataclass(frozen=True, slots=True)
class Measure:
    """Figures of one kind: from where on they are bad, and what is said about the worst of a table.

    Texts are formatted with the `Figure`, whose `other` is the table's highest.

    Attributes:
        statement: reads the figures.
        warns, fails: the value and the `other` from which a figure is a warning, and an error.
        fewest: figures with a lower `other` say nothing.
        bad, reason, remedy: the finding about a bad figure.
        fine: said about the worst of all tables, where none is bad.
        key, other_key: names of value and `other` in the finding's figures.
    """

    statement: str
    warns: float
    bad: str
    reason: str
    remedy: str
    fine: str
    key: str
    other_key: str = ""
    fails: float = math.inf
    fewest: float = 0

    def judge(self, figures: Iterable[Figure]) -> Iterator[Finding]:
        """Judge the worst figure of each table."""
        tables = grouped((one.table, one) for one in figures if one.other >= self.fewest)
        worst = [
            replace(max(some, key=attrgetter("value")), other=max(one.other for one in some))
            for _, some in sorted(tables.items())
        ]
        bad = [one for one in worst if one.value >= self.warns or one.other >= self.fails]
        for one in bad:
            more = {self.other_key: one.other} if self.other_key else {}
            yield SUBJECT.found(
                Severity.ERROR if one.other >= self.fails else Severity.WARNING,
                self.bad.format(one),
                reason=self.reason,
                remedy=self.remedy.format(one),
                figures={"table": one.table, "node": one.node, self.key: one.value, **more},
            )
        if worst and not bad:
            most = max(worst, key=attrgetter("value"))
            yield SUBJECT.ok(self.fine.format(most), figures={"table": most.table, self.key: most.value})


PARTITIONS: Final = Measure(
    cql.SELECT_PARTITION_SIZES,
    warns=LARGE_MIB,
    bad="{0.table}: a partition of {0.value:,.0f} MiB on {0.node}",
    reason="Reads across it, compaction and repair take long and much memory.",
    remedy="A narrower time shard or more shards for new queues, more partitions for logs: "
    "docs/how-to/operate.md",
    fine=f"no partition of {LARGE_MIB} MiB; the largest has {{0.value:,.0f}} MiB or less ({{0.table}})",
    key="mib",
)
"""The largest partition, as last compacted or flushed."""
TOMBSTONES: Final = Measure(
    cql.SELECT_TOMBSTONES,
    warns=MANY_TOMBSTONES,
    fails=REFUSED_TOMBSTONES,
    bad="{0.table}: 1 read in 100 crosses {0.value:,.0f} tombstones or more on {0.node}, at most "
    "{0.other:,.0f}",
    reason="Reads are slow, and refused from 100,000 on. Acked messages are tombstones until their "
    "partition is dropped.",
    remedy="A narrower time shard for new queues; nodetool compact of the table now",
    fine="tombstones: 99 reads in 100 cross {0.value:,.0f} at most ({0.table})",
    key="p99",
    other_key="max",
)
"""Tombstones that recent reads crossed: `value` is the 99th percentile, `other` the maximum."""
LATENCY: Final = Measure(
    cql.SELECT_READ_LATENCY,
    warns=SLOW_MS,
    fewest=FEW_READS,
    bad="{0.table}: 1 read in 100 takes {0.value:,.0f} ms or more on {0.node}",
    reason="A claim makes several reads, one after the other.",
    remedy="On {0.node}: nodetool tpstats, nodetool compactionstats; iostat -x 5",
    fine="99 reads in 100 take {0.value:,.1f} ms at most on their node ({0.table})",
    key="p99_ms",
)
"""Recent reads: `value` is the 99th percentile, `other` the number of reads."""


def _time(seconds: float) -> str:
    return show_duration(timedelta(seconds=round(seconds)))
