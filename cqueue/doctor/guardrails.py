"""Guardrails that refuse what cqueue does.

A guardrail is one line of `RULES`: what cqueue needs, and what breaks below it. The needs are the library's
own limits, imported where they have a name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cqueue.doctor import node_values as values
from cqueue.doctor.finding import Finding, Severity, Subject
from cqueue.doctor.site import unanswered
from cqueue.log.protocol.shards import SHARDS_AT_ONCE
from cqueue.message import MAX_BODY, MAX_DELAY
from cqueue.protocol.claim_draft import MAX_LISTED
from cqueue.protocol.send import PACK_BYTES
from cqueue.store.cassandra import BODY_BYTES_A_READ

if TYPE_CHECKING:
    from cqueue.doctor.site import Site
    from cqueue.settings import Settings

SUBJECT: Final = Subject("guardrails")
LARGEST_PAGE: Final = 5000
"""Rows in a page, at most: the driver's default, which holds for reads of the schema as well."""
ID_BYTES: Final = 20
"""Bytes of an id in a list: 16, and 4 for their length."""
COLUMNS: Final = 40
"""Columns of the widest table, with room for later migrations."""
MUTATION_BYTES: Final = 2 * MAX_BODY
"""Bytes of the largest mutation: a body, or 1 MiB of messages, with what goes with them."""
SHORT_DELAY_S: Final = 3600.0
"""Seconds of a delay that everybody uses: retries wait as long. Longer delays are a choice."""

OLD_S: Final = 86_400.0
"""Seconds of an age that messages of every queue may reach, where consumers are away for a day."""


@dataclass(frozen=True, slots=True)
class AtLeast:
    """A guardrail with a number: below `least` it refuses something; absent, -1 and 0 mean no limit.

    Attributes:
        name: of the setting.
        least: what cqueue needs, in the unit of `parse`.
        refused: what is refused below it.
        parse: reads the setting's text.
        fatal: a value below which cqueue does not work at all; up to `least` it is a warning.
        only_if: the setting counts only where this switch is true.
        shown: `least` as the setting has to be written.
    """

    name: str
    least: float
    refused: str
    parse: Callable[[str | None], float | None]
    fatal: float
    shown: str
    only_if: str | None = None


RULES: Final = (
    AtLeast(
        "in_select_cartesian_product_fail_threshold", MAX_LISTED,
        "claims and acks of more messages at once", values.number, MAX_LISTED, f"{MAX_LISTED}",
    ),
    AtLeast(
        "items_per_collection_fail_threshold", MAX_LISTED,
        "claims of more messages at once", values.number, MAX_LISTED, f"{MAX_LISTED}",
    ),
    AtLeast(
        "collection_size_fail_threshold", MAX_LISTED * ID_BYTES,
        "claims of many messages, and large headers", values.size, MAX_LISTED * ID_BYTES, "32KiB",
    ),
    AtLeast(
        "partition_keys_in_select_fail_threshold", SHARDS_AT_ONCE,
        "scans of logs", values.number, SHARDS_AT_ONCE, f"{SHARDS_AT_ONCE}",
    ),
    AtLeast(
        "page_size_fail_threshold", LARGEST_PAGE,
        "every connect, and lists", values.number, LARGEST_PAGE, f"{LARGEST_PAGE}",
    ),
    AtLeast(
        "column_value_size_fail_threshold", MAX_BODY,
        "larger bodies", values.size, 2 * PACK_BYTES, "1MiB",
    ),
    AtLeast(
        "max_mutation_size", MUTATION_BYTES,
        "large sends", values.size, 2 * PACK_BYTES, "2MiB",
    ),
    AtLeast(
        "native_transport_max_message_size", MUTATION_BYTES,
        "large sends", values.size, 2 * PACK_BYTES, "2MiB",
    ),
    AtLeast(
        "local_read_size_fail_threshold", BODY_BYTES_A_READ + MAX_BODY,
        "receives of large bodies", values.size, 2 * MAX_BODY, "8MiB", only_if="read_thresholds_enabled",
    ),
    AtLeast(
        "coordinator_read_size_fail_threshold", BODY_BYTES_A_READ + MAX_BODY,
        "receives of large bodies", values.size, 2 * MAX_BODY, "8MiB", only_if="read_thresholds_enabled",
    ),
    AtLeast(
        "maximum_timestamp_fail_threshold", MAX_DELAY.total_seconds(),
        "messages with a longer delay", values.seconds, SHORT_DELAY_S, f"{MAX_DELAY.days}d",
    ),
    AtLeast(
        "minimum_timestamp_fail_threshold", MAX_DELAY.total_seconds(),
        "acks of messages that are older", values.seconds, OLD_S, f"{MAX_DELAY.days}d",
    ),
    AtLeast(
        "columns_per_table_fail_threshold", COLUMNS,
        "`cqueue schema apply`", values.number, 0, f"{COLUMNS}",
    ),
)  # fmt: skip

SWITCHES: Final = (
    ("user_timestamps_enabled", "every send and ack: rows are written at the times of their ids", True),
    ("use_statements_enabled", "every connect", True),
    ("alter_table_enabled", "`cqueue schema apply`, which brings a keyspace up to date", False),
    ("zero_ttl_on_twcs_enabled", "`cqueue schema apply`, which makes the table of logs", False),
)
"""Switches that must be true: name, what is refused otherwise, and whether cqueue works at all without."""

DRIVER_READS: Final = frozenset({"ONE"})
"""Levels at which the driver reads nodes and tables when it connects."""
RARE_READS: Final = frozenset({"QUORUM", "SERIAL", "EACH_QUORUM", "LOCAL_ONE", "ALL"})
"""Levels of reads that few calls make."""
RARE_WRITES: Final = frozenset({"QUORUM", "SERIAL", "EACH_QUORUM"})
"""Levels of writes that only commands of operators make."""


def check(site: Site) -> Iterator[Finding]:
    """Read the settings of each node."""
    settings, failed = site.node_settings()
    yield from unanswered(SUBJECT, failed)
    if settings:
        yield from judged(settings, site.settings)


def judged(settings: values.NodeSettings, client: Settings) -> Iterator[Finding]:
    """Judge the guardrails of each node."""
    found = [
        *(finding for rule in RULES for finding in _at_least(rule, settings)),
        *(finding for switch in SWITCHES for finding in _switch(*switch, settings)),
        *_lists(settings, client),
        *_disk(settings),
    ]
    yield from found
    if not any(finding.severity is not Severity.INFO for finding in found):
        count = len(RULES) + len(SWITCHES) + 4
        yield SUBJECT.ok(f"none of {count} refuses what cqueue does")


def _at_least(rule: AtLeast, settings: values.NodeSettings) -> Iterator[Finding]:
    for text, nodes in values.by_value(settings, rule.name).items():
        value = rule.parse(text)
        on = [node for node in nodes if rule.only_if is None or settings[node].get(rule.only_if) == "true"]
        if value is None or value <= 0 or value >= rule.least or not on:
            continue
        yield SUBJECT.found(
            Severity.ERROR if value < rule.fatal else Severity.WARNING,
            f"{rule.name} is {text} {values.on(on, settings)}; {rule.shown} is needed",
            reason=f"Refused: {rule.refused}.",
            remedy=f"cassandra.yaml of those nodes: {rule.name}: {rule.shown}",
            figures={"setting": rule.name, "value": value, "least": rule.least, "nodes": on},
        )


def _switch(name: str, refused: str, fatal: bool, settings: values.NodeSettings) -> Iterator[Finding]:  # noqa: FBT001 - a row of a table
    nodes = values.by_value(settings, name).get("false")
    if nodes:
        yield SUBJECT.found(
            Severity.ERROR if fatal else Severity.WARNING,
            f"{name} is false {values.on(nodes, settings)}",
            reason=f"Refused: {refused}.",
            remedy=f"cassandra.yaml of those nodes: {name}: true",
            figures={"setting": name, "nodes": nodes},
        )


def _lists(settings: values.NodeSettings, client: Settings) -> Iterator[Finding]:
    """Judge the settings that list what may not be used: consistency levels, properties of tables."""
    own = {client.consistency.upper(), client.serial_consistency.upper()}
    reads, writes = "read_consistency_levels_disallowed", "write_consistency_levels_disallowed"
    for name, needed in ((reads, own | DRIVER_READS), (writes, own)):
        yield from _disallowed(name, needed, Severity.ERROR, "what every client does", settings)
    commands = "`cqueue schema apply` or `cqueue dc`"
    rare = f"{commands}, this check, or looks for bodies that a quorum lacks: their messages wait"
    yield from _disallowed(reads, RARE_READS - own, Severity.WARNING, rare, settings)
    yield from _disallowed(writes, RARE_WRITES - own, Severity.WARNING, commands, settings)
    apply, properties = "`cqueue schema apply`, which makes tables", ("compaction", "gc_grace_seconds", "id")
    for name in ("table_properties_disallowed", "table_properties_ignored"):
        yield from _disallowed(name, properties, Severity.WARNING, apply, settings)


def _disallowed(
    name: str, needed: Collection[str], severity: Severity, refused: str, settings: values.NodeSettings
) -> Iterator[Finding]:
    """Judge a setting that lists what is not allowed."""
    key = "levels" if "levels" in name else "properties"
    for text, nodes in values.by_value(settings, name).items():
        words = {word.strip().upper() for word in str(text or "").strip("[]{}").split(",")}
        mine = sorted(word for word in needed if word.upper() in words)
        if mine:
            listed = ", ".join(mine)
            yield SUBJECT.found(
                severity,
                f"{name} has {listed} {values.on(nodes, settings)}",
                reason=f"Refused: {refused}.",
                remedy=f"cassandra.yaml of those nodes: {name} without {listed}",
                figures={"setting": name, key: mine, "nodes": nodes},
            )


def _disk(settings: values.NodeSettings) -> Iterator[Finding]:
    name = "data_disk_usage_percentage_fail_threshold"
    for text, nodes in values.by_value(settings, name).items():
        percent = values.number(text)
        if percent is not None and percent > 0:
            yield SUBJECT.info(
                f"{name} is {text} {values.on(nodes, settings)}",
                reason=f"Sends and acks are refused while a replica's disk is more than {text} % full.",
                figures={"setting": name, "value": percent, "nodes": nodes},
            )
