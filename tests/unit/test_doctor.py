"""What the doctor concludes from what it has read.

Troubles stand here that cannot be made on one node shared by all tests: several nodes, other releases,
settings of cassandra.yaml, large partitions. tests/acceptance/test_doctor.py makes the others on a real
Cassandra, and tests/faults/test_doctor.py some of these on nodes of its own. docs/how-to/doctor.md lists what
was only tried here.
"""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event, current_thread
from types import SimpleNamespace

import pytest
from cassandra.connection import ConnectionException, ConnectionShutdown

import cqueue
from cqueue._version import __version__
from cqueue.dispatcher.service.membership import Worker
from cqueue.doctor import (
    CHECKS,
    Check,
    Finding,
    Severity,
    clocks,
    cluster_settings,
    consistency,
    examine,
    guardrails,
    node_values,
    nodes,
    queue_figures,
    queues,
    tables,
    versions,
    workers,
)
from cqueue.doctor import site as sites
from cqueue.doctor.clocks import Clock
from cqueue.doctor.queue_figures import Figures
from cqueue.doctor.queues import Letters
from cqueue.doctor.site import Answer, Replication, unanswered
from cqueue.doctor.tables import Figure
from cqueue.errors import Refused, Unavailable
from cqueue.runtime.tls import Validity
from cqueue.schema import FORMAT, Deployment, State
from cqueue.schema.drift import Drift
from cqueue.settings import load
from cqueue.store.operations import WideRow

ERROR, WARNING, NOT_CHECKED, INFO, OK = Severity
CLIENT = load("cassandra://h/shop?local_dc=dc1", environ={})
SERIAL = replace(CLIENT, serial_consistency="serial", consistency="quorum")
ROW = Deployment(FORMAT, "local_serial", 2000, 500, 86_400, 7, "dc1")
NODES = ("10.0.0.1", "10.0.0.2", "10.0.0.3")
S, DAY_S = 1_000_000, 86_400


def severities(found):
    return [finding.severity for finding in found]


def only(found):
    """The only finding; each that is not ok says why, or what to do."""
    (finding,) = found
    assert finding.severity in {OK, INFO} or (finding.reason and finding.remedy)
    return finding


# ── The examination ──


class Site:
    """What checks of these tests look at: nothing."""

    limit_s = 0.3


def finding(severity=OK, subject="one"):
    return Finding(severity, subject, "found")


def test_the_worst_comes_first_and_checks_keep_their_order():
    checks = [
        Check("a", lambda _: [finding(OK, "a"), finding(WARNING, "a")]),
        Check("b", lambda _: [finding(ERROR, "b"), finding(WARNING, "b"), finding(INFO, "b")]),
    ]
    found = examine(Site(), checks)
    assert [(one.severity, one.subject) for one in found] == [
        (ERROR, "b"), (WARNING, "a"), (WARNING, "b"), (INFO, "b"), (OK, "a"),
    ]  # fmt: skip


def test_a_check_that_hangs_is_left_behind_with_what_it_had_found():
    """And is never reported as ok; the others are not held up by it."""
    released, one_hangs, two_hangs, ended = (Event() for _ in range(4))

    def hang(hangs):
        hangs.set()
        released.wait(60)
        ended.set()

    def one(_):
        yield finding(WARNING)
        hang(one_hangs)
        yield finding(ERROR)

    def two(_):
        hang(two_hangs)
        yield finding(ERROR)

    class Patient(Site):
        """Its time begins when both checks hang, however late their threads run."""

        @property
        def limit_s(self):
            if not current_thread().name.startswith("doctor-"):
                assert one_hangs.wait(60)
                assert two_hangs.wait(60)
            return Site.limit_s

    try:
        found = examine(Patient(), [Check("one", one), Check("two", two)])
        assert not ended.is_set()
    finally:
        released.set()
    assert severities(found) == [WARNING, NOT_CHECKED, NOT_CHECKED]
    assert [one.subject for one in found[1:]] == ["one", "two"]
    assert "not done within 300ms" in found[1].found


def test_a_check_that_is_refused_or_has_a_bug_hides_no_other_one(caplog):
    """A permission that is missing is named; of a bug only the kind, as its text may hold anything."""

    def refused(_):
        raise Refused("Have an operator run: GRANT SELECT ON system_views TO shop.")

    def broken(_):
        raise KeyError("secret")

    found = examine(Site(), [Check("a", refused), Check("b", broken), Check("c", lambda _: [finding()])])
    assert severities(found) == [NOT_CHECKED, NOT_CHECKED, OK]
    assert "GRANT SELECT" in found[0].found
    assert "KeyError" in found[1].found
    assert "secret" not in found[1].found
    assert "doctor_check_failed" in caplog.text


def test_every_subject_is_checked():
    assert [check.subject for check in CHECKS] == [
        "nodes", "clocks", "consistency", "settings", "guardrails", "tables", "queues", "workers", "versions",
        "doorbell",
    ]  # fmt: skip


# ── Nodes ──


def answers(*away, rows=()):
    """Answers of three nodes of dc1, of which some are away."""
    error = Unavailable("no answer within 5 s")
    return [Answer(node, "dc1", list(rows), error if node in away else None) for node in NODES]


def test_a_node_that_is_away_is_named():
    """Several nodes cannot be had on the shared node."""
    found = list(nodes.judged(answers(NODES[2])))
    assert only(found).severity is WARNING
    assert only(found).found == "10.0.0.3 does not answer; away in dc1: 1 of 3 nodes"
    assert only(nodes.judged(answers())).severity is OK


def test_nodes_that_do_not_answer_for_one_reason_are_one_finding():
    """And each node is named once."""
    errors = [
        Unavailable("The read failed: 10.0.0.1:9042: Host has been marked down or removed"),
        Unavailable("The read failed: 10.0.0.2:9042: Host has been marked down or removed"),
        Unavailable("The read failed: Operation timed out - received only 1 responses"),
    ]
    told = [Answer(node, "dc1", [], error) for node, error in zip(NODES, errors, strict=True)]
    assert [one.found for one in unanswered("clocks", told, "hints of ")] == [
        "hints of 10.0.0.1, 10.0.0.2: Host has been marked down or removed",
        "hints of 10.0.0.3: Operation timed out - received only 1 responses",
    ]


def test_ranges_without_a_quorum_are_counted():
    """Three copies on three nodes bear one that is away, and not two; `serial` counts all data centres."""
    local = dict.fromkeys(NODES, "dc1")
    ring = [local, {**local, "10.1.0.1": "dc2"}]
    assert only(nodes.quorums(ring, {NODES[0]}, CLIENT)).severity is OK
    two = only(nodes.quorums(ring, set(NODES[:2]), CLIENT))
    assert (two.severity, two.figures["short"]) == (ERROR, 2)
    of_serial = only(nodes.quorums(ring, set(NODES[:2]), SERIAL))
    assert of_serial.figures["short"] == 2
    assert only(nodes.quorums(ring, {"10.1.0.1", NODES[0]}, CLIENT)).severity is OK
    assert only(nodes.quorums(ring, {"10.1.0.1", NODES[0]}, SERIAL)).figures["short"] == 1


def test_certificates_that_end_soon_are_shown():
    """On the shared node none does."""
    now = datetime(2030, 1, 1, tzinfo=UTC)
    day = timedelta(days=1)
    told = [
        ("a", Validity(now - 275 * day, now + 90 * day)),
        ("of a day, renewed each night", Validity(now - day / 2, now + day / 2)),
        ("the certificate of 10.0.0.2", Validity(now - 30 * day, now + 6.5 * day)),
    ]
    found = only(nodes.certificates(told, now))
    assert (found.severity, found.figures["left_days"]) == (WARNING, 6.5)
    assert found.found == "the certificate of 10.0.0.2 is valid until 2030-01-07 12:00 UTC"


def test_hints_that_wait_are_shown():
    """There is nobody to keep hints for on one node."""
    rows = [SimpleNamespace(address="10.0.0.3", files=2, oldest=datetime(2030, 1, 1, tzinfo=UTC))]
    told = [Answer(node, "dc1", rows) for node in NODES[:2]]
    away = Answer(NODES[2], "dc1", [], Unavailable("no answer"))
    assert severities(nodes.hints([away], away=set())) == [NOT_CHECKED]
    found = list(nodes.hints([*told, away], away={NODES[2]}))
    assert severities(found) == [INFO, INFO]  # the third is reported as away, and not again
    assert "keeps hints for 10.0.0.3, files: 2" in found[0].found


# ── Clocks ──


def clocks_at(*offsets_ms, error_ms=1):
    return [Clock(f"10.0.0.{n}", ms * 1000, error_ms * 1000) for n, ms in enumerate(offsets_ms, start=1)]


@pytest.mark.parametrize(
    ("offsets_ms", "severity"),
    [((0, 4, -3), OK), ((0, 4, 200), OK), ((0, 4, 300), WARNING), ((0, 4, -700), ERROR), ((0, 501), WARNING)],
)
def test_nodes_whose_clocks_differ_by_more_than_epsilon_are_named(offsets_ms, severity):
    """Several nodes cannot be had on the shared node; tests/faults/test_doctor.py sets the clock of one."""
    found = only(clocks.judged(clocks_at(*offsets_ms), 500_000))
    assert found.severity is severity
    assert found.figures["spread_ms"] == max(offsets_ms) - min(offsets_ms)


def test_only_the_nodes_that_are_off_are_named():
    """Of three the one; of two nobody knows which."""
    found = only(clocks.judged(clocks_at(0, 4, 1700), 500_000))
    assert found.found.endswith(": 10.0.0.3 +1,696 ms")
    found = only(clocks.judged(clocks_at(0, 1700), 500_000))
    assert found.found.endswith(": 10.0.0.1 -850 ms, 10.0.0.2 +850 ms")


def test_slow_answers_accuse_no_clock():
    """What a clock shows is as uncertain as half of the question's round trip."""
    assert only(clocks.judged(clocks_at(0, 300, error_ms=200), 500_000)).severity is OK
    assert severities(clocks.judged(clocks_at(0, 600, error_ms=400), 500_000)) == [NOT_CHECKED] * 2
    assert severities(clocks.judged(clocks_at(1500, error_ms=800), 500_000)) == [NOT_CHECKED]


@pytest.mark.parametrize(
    ("offset_ms", "text"), [(1500, "1,502 ms behind the nodes"), (-3000, "2,998 ms ahead of the nodes")]
)
def test_a_wrong_clock_of_this_machine_is_told(offset_ms, text):
    """Programs compute due times from it. Nothing says besides that all is well."""
    found = only(clocks.judged(clocks_at(offset_ms, offset_ms + 4), 500_000))
    assert (found.severity, found.found) == (WARNING, f"this machine is {text}")


@pytest.mark.parametrize("error_ms", [190, 1000])
def test_a_slow_answer_of_one_node_hides_no_difference_of_two_others(error_ms):
    """Such as that of a far data centre; the answers of the other two are as exact as ever."""
    slow = Clock("10.0.0.9", 0, error_ms * 1000)
    found = [*clocks.judged([*clocks_at(0, 2000), slow], 500_000)]
    assert found[-1].severity is ERROR
    assert "10.0.0.2" in found[-1].found
    assert "2,000 ms" in found[-1].found
    even = [*clocks.judged([*clocks_at(0, 4), slow], 500_000)]
    assert severities(even) == ([NOT_CHECKED] if error_ms == 1000 else []) + [OK]
    assert f"{3 - len(even[:-1])} nodes" in even[-1].found


def test_the_quickest_answer_of_each_node_counts():
    def answer(trip_ms, told_ms, error=None):
        return Answer("a", "dc1", [SimpleNamespace(ms=told_ms)], error, 0, trip_ms * 1_000_000)

    rounds = [[answer(400, 1_205)], [answer(2, 1_001)], [answer(0, 0, Unavailable("away"))]]
    assert clocks.measured(rounds, wall_gap_us=1_000_000) == [Clock("a", 500, 1500)]


# ── Consistency ──


def copies(**numbers):
    return Replication("NetworkTopologyStrategy", numbers)


@pytest.mark.parametrize(
    ("replication", "severity", "says"),
    [
        (copies(dc1=3), None, ""),
        (copies(dc1=5), ERROR, "a quorum is 3"),
        (copies(dc1=2), WARNING, "2 copies on 2 nodes"),
        (copies(dc1=1), WARNING, "1 copy on 2 nodes"),
        (copies(dc2=3), ERROR, "local_dc dc1 has no copies"),
        (Replication("SimpleStrategy", {"replication_factor": 1}), WARNING, "has SimpleStrategy"),
    ],
)
def test_copies_are_judged_against_the_nodes_there_are(replication, severity, says):
    """A data centre of several nodes cannot be had on the shared node."""
    count = 2 if severity else 3
    found = list(consistency.judged(replication, {"dc1": count, "dc2": 3}, CLIENT))
    if severity is None:
        assert found == []
        return
    assert only(found).severity is severity
    assert says in only(found).found


def test_a_remedy_adds_copies_step_by_step_and_keeps_those_of_the_other_data_centres():
    """Two more at once are a quorum that knows nothing: `schema apply` prints one copy more each time."""
    found = only(consistency.judged(copies(dc1=1, dc2=3), {"dc1": 3, "dc2": 3}, CLIENT))
    assert "cqueue schema apply --replication dc1=3,dc2=3, and what it prints" in found.remedy


@pytest.mark.parametrize(("nodes", "asked"), [(1, 1), (5, 3)])
@pytest.mark.parametrize(
    "replication", [Replication("SimpleStrategy", {"replication_factor": 1}), copies(dc2=3)]
)
def test_a_remedy_asks_for_no_more_copies_than_there_are_nodes(replication, nodes, asked):
    """`schema apply` refuses three copies on one node."""
    found = only(consistency.judged(replication, {"dc1": nodes, "dc2": 3}, CLIENT))
    assert f"--replication dc1={asked}," in found.remedy


def test_the_one_copy_at_home_is_not_the_only_one_where_another_centre_has_copies():
    """Its own centre alone votes; the other one gets what it acknowledges, a moment later."""
    found = only(consistency.judged(copies(dc1=1, dc2=3), {"dc1": 1, "dc2": 3}, CLIENT))
    assert (found.severity, found.found) == (WARNING, "dc1: 1 copy on 1 node")
    assert "only copy" not in found.reason
    assert "only copy" in only(consistency.judged(copies(dc1=1), {"dc1": 1}, CLIENT)).found


def test_a_remedy_asks_for_nodes_before_copies_that_would_have_none():
    found = only(consistency.judged(copies(dc1=1), {"dc1": 2}, CLIENT))
    assert found.remedy.startswith("Add nodes to dc1, then cqueue schema apply --replication dc1=3,")


@pytest.mark.parametrize(
    ("held", "on", "left"),
    [
        (copies(dc1=5), {"dc1": 2}, "'dc1': '2'"),
        (copies(dc1=3), {"dc1": 2}, "'dc1': '2'"),
        (copies(dc1=3, dc2=3), {"dc1": 3}, "'dc1': '3'"),
    ],
)
def test_copies_without_nodes_are_taken_away_by_hand(held, on, left):
    """`schema apply` cannot read without a quorum, and Cassandra takes no data centre without nodes."""
    found = only(consistency.judged(held, on, CLIENT))
    assert found.remedy.endswith(f"{{'class': 'NetworkTopologyStrategy', {left}}}")


@pytest.mark.parametrize(
    ("held", "on", "settings"),
    [
        (copies(dc1=1, dc2=1, dc3=1), {"dc1": 1, "dc2": 1, "dc3": 1}, SERIAL),
        (copies(dc1=3, dc2=3, dc3=1), {"dc1": 3, "dc2": 3, "dc3": 2}, SERIAL),
        (copies(dc1=3, dc2=1), {"dc1": 3, "dc2": 1}, CLIENT),
    ],
)
def test_one_copy_in_a_data_centre_is_not_the_only_one(held, on, settings):
    """With `serial` the data centres vote together; without it, others than the local one do not vote."""
    assert list(consistency.judged(held, on, settings)) == []


def test_with_serial_nodes_of_one_data_centre_may_be_too_few():
    """Four copies of six are a quorum, wherever they lie."""
    found = list(consistency.judged(copies(dc1=3, dc2=3), {"dc1": 3, "dc2": 1}, SERIAL))
    assert severities(found) == [WARNING, WARNING]
    assert found[0].found == "dc2: 3 copies on 1 node"
    found = list(consistency.judged(copies(dc1=3, dc2=3), {"dc1": 2, "dc2": 1}, SERIAL))
    assert found[0].found == "dc1, dc2: 6 copies on 3 nodes; a quorum is 4"
    found = next(consistency.judged(copies(dc1=3, dc2=1), {"dc1": 1, "dc2": 5}, SERIAL))
    assert found.found == "dc1, dc2: 4 copies on 2 nodes; a quorum is 3"
    assert "Add nodes to dc1, or ALTER KEYSPACE" in found.remedy


def test_no_statement_takes_the_last_copy_of_the_local_data_centre():
    """After it, every call of this client would fail."""
    for on in ({}, {"dc2": 3}):
        found = consistency.judged(copies(dc1=3, dc2=3), on, CLIENT)
        assert not [one for one in found if "ALTER" in one.remedy]


def test_serial_over_two_equal_data_centres_is_no_fail_over():
    found = only(consistency.judged(copies(dc1=3, dc2=3), {"dc1": 3, "dc2": 3}, SERIAL))
    assert found.severity is WARNING
    three = copies(dc1=3, dc2=3, dc3=1)
    per_centre = {"dc1": 3, "dc2": 3, "dc3": 1}
    assert WARNING not in severities(consistency.judged(three, per_centre, CLIENT))


def test_a_home_without_copies_is_an_error():
    found = consistency.home(replace(ROW, home_dc="dc1"), copies(dc2=3), CLIENT)
    assert severities(found) == [ERROR]


# ── Settings of the nodes ──


GOOD = {
    "paxos_variant": "v2",
    "paxos_state_purging": "legacy",
    "commitlog_sync": "batch",
    "commitlog_sync_period": "0ms",
    "memtable_allocation_type": "offheap_objects",
    "hinted_handoff_enabled": "true",
    "tombstone_warn_threshold": "1000",
    "tombstone_failure_threshold": "100000",
}


def cluster(*changes):
    """Settings of as many nodes as there are changes."""
    return {node: {**GOOD, **change} for node, change in zip(NODES, changes, strict=False)}


def test_a_good_cluster_is_without_findings():
    assert list(cluster_settings.judged(cluster({}, {}, {}), 3)) == []


@pytest.mark.parametrize(
    ("changes", "severity", "says"),
    [
        ([{"paxos_variant": "v1"}, {}, {}], WARNING, "v1 on 10.0.0.1"),
        ([{"paxos_variant": "v2_without_linearizable_reads"}] * 3, ERROR, "on all nodes"),
        ([{"paxos_state_purging": "gc_grace"}, {}, {}], ERROR, "legacy on 10.0.0.2, 10.0.0.3 and gc_grace"),
        ([{"paxos_state_purging": "gc_grace"}] * 3, None, ""),
        ([{"paxos_state_purging": "repaired"}] * 3, INFO, "repaired on all nodes"),
        ([{}, {"memtable_allocation_type": "heap_buffers"}], INFO, "heap_buffers on 10.0.0.2"),
        ([{"memtable_allocation_type": "unslabbed_heap_buffers"}], INFO, "unslabbed_heap_buffers"),
        ([{"memtable_allocation_type": "offheap_buffers"}], None, ""),
        ([{"hinted_handoff_enabled": "false"}] * 3, WARNING, "hinted_handoff_enabled is false"),
        ([{"tombstone_warn_threshold": "-1"}] * 3, WARNING, "tombstone_warn_threshold is -1"),
        ([{"tombstone_failure_threshold": "5000"}] * 3, WARNING, "tombstone_failure_threshold is 5000"),
        ([{"tombstone_failure_threshold": "1500"}] * 3, ERROR, "tombstone_failure_threshold is 1500"),
        ([{}, {"native_transport_idle_timeout": "3s"}], WARNING, "idle_timeout is 3s on 10.0.0.2"),
        ([{"native_transport_idle_timeout": "1m"}] * 3, None, ""),
        ([{"native_transport_idle_timeout": "0ms"}] * 3, None, ""),
    ],
)
def test_settings_are_judged_node_by_node(changes, severity, says):
    """The settings of the shared node cannot be changed; tests/faults/test_doctor.py sets some of these."""
    found = list(cluster_settings.judged(cluster(*changes), 3))
    if severity is None:
        assert found == []
        return
    assert only(found).severity is severity
    assert says in only(found).found


def test_paxos_state_that_waits_for_a_repair_needs_v2():
    change = {"paxos_variant": "v1", "paxos_state_purging": "repaired"}
    assert severities(cluster_settings.judged(cluster(change), 1)) == [WARNING, ERROR]


@pytest.mark.parametrize(("number", "severity"), [(1, ERROR), (2, WARNING), (3, INFO), (None, WARNING)])
def test_a_periodic_commit_log_is_as_bad_as_there_are_few_copies(number, severity):
    change = {"commitlog_sync": "periodic", "commitlog_sync_period": "10000ms"}
    found = only(cluster_settings.judged(cluster(change), number))
    assert found.severity is severity
    assert "10000ms" in found.reason


# ── Guardrails ──


OFF = {rule.name: None for rule in guardrails.RULES} | {name: "true" for name, *_ in guardrails.SWITCHES}
OFF["read_thresholds_enabled"] = "true"
MEASURED = {
    "user_timestamps_enabled": "false",
    "in_select_cartesian_product_fail_threshold": "25",
    "items_per_collection_fail_threshold": "100",
    "maximum_timestamp_fail_threshold": "1d",
    "partition_keys_in_select_fail_threshold": "20",
    "column_value_size_fail_threshold": "512KiB",
    "max_mutation_size": "256KiB",
    "native_transport_max_message_size": "256KiB",
    "local_read_size_fail_threshold": "512KiB",
    "zero_ttl_on_twcs_enabled": "false",
    "alter_table_enabled": "false",
}
OTHERS = {
    "page_size_fail_threshold": "500",
    "collection_size_fail_threshold": "1KiB",
    "minimum_timestamp_fail_threshold": "12h",
    "use_statements_enabled": "false",
    "read_consistency_levels_disallowed": "[LOCAL_QUORUM]",
    "write_consistency_levels_disallowed": "[LOCAL_SERIAL, ALL]",
    "table_properties_disallowed": "[compaction, comment]",
    "table_properties_ignored": "[comment, id]",
}


@pytest.mark.parametrize(("name", "value"), (MEASURED | OTHERS).items())
def test_each_guardrail_that_refuses_something_is_found(name, value):
    """Guardrails of the shared node cannot be set; tests/faults/test_doctor.py sets them on another one."""
    found = only(guardrails.judged({"10.0.0.1": {**OFF, name: value}}, CLIENT))
    assert found.severity in {WARNING, ERROR}
    assert name in found.found
    assert name in found.remedy
    assert "10.0.0.1" in found.found


def test_the_page_says_of_each_guardrail_what_is_needed_and_what_was_measured():
    """A row for each rule and each switch, and no other; with the numbers of the code."""
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "operate.md").read_text("utf-8")
    _, _, part = page.partition("### Guardrails that are in the way")
    part, _, _ = part.partition("\n## ")
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \|(?: `(\w+)`)? \| (.+) \| (.+) \|$", part, re.MULTILINE)
    needed = {rule.name: rule.shown for rule in guardrails.RULES}
    needed |= {name: "true" for name, *_ in guardrails.SWITCHES}
    assert {name: least for name, least, *_ in rows} == needed
    assert {name: value for name, _, value, *_ in rows if value} == MEASURED
    stops_all = {name for name, _, _, _, remedy in rows if remedy == "nothing works without"}
    switches = {name for name, _, fatal in guardrails.SWITCHES if fatal}
    assert stops_all == switches | {"page_size_fail_threshold"}
    assert part.count("\n| `") == len(rows)


@pytest.mark.parametrize("value", [None, "-1", "0", "null", "nonsense"])
def test_a_guardrail_that_is_off_refuses_nothing(value):
    settings = {"10.0.0.1": OFF | {rule.name: value for rule in guardrails.RULES}}
    assert severities(guardrails.judged(settings, CLIENT)) == [OK]


def test_a_guardrail_that_is_high_enough_refuses_nothing():
    settings = {"10.0.0.1": OFF | {rule.name: rule.shown for rule in guardrails.RULES}}
    assert severities(guardrails.judged(settings, CLIENT)) == [OK]


@pytest.mark.parametrize(
    ("name", "levels", "severity"),
    [
        ("read_consistency_levels_disallowed", "[ONE]", ERROR),
        ("read_consistency_levels_disallowed", "[ALL]", WARNING),
        ("read_consistency_levels_disallowed", "[ANY, TWO, THREE]", OK),
        ("write_consistency_levels_disallowed", "[ANY, ONE, TWO, THREE, LOCAL_ONE, ALL]", OK),
        ("write_consistency_levels_disallowed", "[EACH_QUORUM]", WARNING),
    ],
)
def test_levels_are_told_only_where_somebody_asks_for_them(name, levels, severity):
    """The driver reads at ONE to connect; nothing writes at less than a quorum, or at ALL."""
    assert severities(guardrails.judged({"10.0.0.1": {**OFF, name: levels}}, CLIENT)) == [severity]


def test_limits_of_reads_count_only_where_they_are_switched_on():
    limit = {"local_read_size_fail_threshold": "1MiB"}
    for switch, severity in (("false", OK), ("true", ERROR)):
        settings = {"10.0.0.1": {**OFF, **limit, "read_thresholds_enabled": switch}}
        assert severities(guardrails.judged(settings, CLIENT)) == [severity]


def test_a_full_disk_that_will_refuse_is_worth_knowing():
    settings = {"10.0.0.1": {**OFF, "data_disk_usage_percentage_fail_threshold": "80"}}
    assert severities(guardrails.judged(settings, CLIENT)) == [INFO, OK]


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (node_values.seconds, "3h", 10_800),
        (node_values.seconds, "10800000ms", 10_800),
        (node_values.seconds, "1d", DAY_S),
        (node_values.seconds, None, None),
        (node_values.size, "512KiB", 1 << 19),
        (node_values.size, "16777216B", 1 << 24),
        (node_values.size, "3h", None),
        (node_values.number, "-1", -1),
        (node_values.number, "", None),
    ],
)
def test_values_are_read_as_cassandra_writes_them(read, text, value):
    assert read(text) == value


# ── Tables ──


@pytest.mark.parametrize(
    ("drift", "severity"),
    [
        (
            Drift("column messages.body", "does not exist.", cql=("ALTER TABLE messages ADD body blob",)),
            ERROR,
        ),
        (Drift("migration 03_pre_log", "has not been applied.", "Run `cqueue schema apply`."), ERROR),
        (Drift("migration 07_post_packs", "has not been applied.", "Run `cqueue schema apply`."), WARNING),
        (Drift("migration 13_pre_workers", "has not been applied.", "Run `cqueue schema apply`."), WARNING),
        (
            Drift("table log", "has compaction a, not b.", cql=("ALTER TABLE log WITH compaction = b",)),
            WARNING,
        ),
        (Drift("keyspace shop", "does not exist.", "Run `cqueue schema apply`."), ERROR),
    ],
)
def test_structure_weighs_more_than_options(drift, severity):
    (found,) = tables.drift([drift])
    assert found.severity is severity
    assert found.remedy


def test_gc_grace_has_to_be_above_the_hint_window_of_every_node():
    """The hint window of the shared node cannot be changed; its real gc_grace is in the acceptance tests."""
    settings = {"a": {"max_hint_window": "3h"}, "b": {"max_hint_window": "36h"}}
    found = only(tables.hint_window({"messages": DAY_S, "log": 2 * DAY_S}, settings))
    assert found.severity is ERROR
    assert "messages 1d" in found.found
    assert "log" not in found.found
    assert only(tables.hint_window({"messages": DAY_S}, {"a": settings["a"]})).severity is OK
    assert only(tables.hint_window({"messages": 10_000}, {})).severity is ERROR


NOW = datetime(2030, 1, 10, tzinfo=UTC)


GRACES = {"messages": DAY_S, "bodies": 2 * DAY_S}


def repaired(*rows, ranges=("(0,0]",)):
    """A history of repairs: keyspace, how long ago each ended, its error, and its tables if not all.

    ranges: of each, as Cassandra writes them.
    """
    return [
        SimpleNamespace(
            keyspace_name=name,
            columnfamily_names={*some} or {*GRACES, "workers"},
            successful_ranges={*ranges},
            finished_at=age and (NOW - age).replace(tzinfo=None),
            exception_message=error,
        )
        for name, age, error, *some in rows
    ]


@pytest.mark.parametrize(
    ("rows", "severity"),
    [
        ([], WARNING),
        ([("shop", timedelta(hours=2), None)], OK),
        ([("shop", timedelta(hours=30), None)], WARNING),
        ([("other", timedelta(hours=2), None)], WARNING),
        ([("shop", timedelta(hours=2), "it failed")], WARNING),
        ([("shop", None, None)], WARNING),
    ],
)
def test_a_repair_has_to_end_within_gc_grace(rows, severity):
    """A keyspace of one copy is never repaired, and the shared node can hold no second one."""
    assert only(tables.repairs(repaired(*rows), "shop", GRACES, NOW)).severity is severity


def test_a_repair_of_some_tables_is_none_of_the_others():
    """Each table counts by its own last repair."""
    some = ("shop", timedelta(hours=2), None, "messages", "workers")
    found = only(tables.repairs(repaired(some), "shop", GRACES, NOW))
    assert (found.severity, found.found) == (
        WARNING,
        "no repair of bodies within gc_grace of 1d: not all token ranges are in the history",
    )
    all_before = ("shop", timedelta(hours=30), None)
    found = only(tables.repairs(repaired(all_before, some), "shop", GRACES, NOW))
    assert found.found.startswith("no repair of bodies within gc_grace of 1d: the last one ended 1d")
    others = ("shop", timedelta(hours=3), None, "bodies")
    assert only(tables.repairs(repaired(some, others), "shop", GRACES, NOW)).severity is OK


def test_a_repair_of_one_node_is_none_of_the_others():
    """All ranges count, and the oldest part says how old all is."""
    whole = ("shop", timedelta(hours=30), None)
    one = repaired(("shop", timedelta(hours=2), None), ranges=["(5,9]", "(-40,-7]"])
    assert only(tables.repairs(one, "shop", GRACES, NOW)).severity is WARNING
    assert (
        only(tables.repairs([*one, *repaired(whole)], "shop", GRACES, NOW)).figures["repair_age_s"] == 108_000
    )
    others = repaired(("shop", timedelta(hours=3), None), ranges=["(9,-40]", "(-7,6]"])
    assert only(tables.repairs([*others, *one], "shop", GRACES, NOW)).figures["repair_age_s"] == 10_800


def test_a_young_keyspace_need_not_have_been_repaired():
    made = NOW - timedelta(hours=2)
    assert severities(tables.repairs([], "shop", GRACES, NOW, made)) == [INFO]
    assert severities(tables.repairs([], "shop", GRACES, NOW, NOW - timedelta(days=2))) == [WARNING]


@pytest.mark.parametrize(("schemas", "severity"), [(["a", "a"], ERROR), (["a", "b"], NOT_CHECKED)])
def test_what_only_one_node_may_lack_is_no_error(schemas, severity):
    """A node that was away learns of new tables a moment after it is back; the check on versions names it."""
    told = [Answer(one, "dc1", [SimpleNamespace(schema_version=one)]) for one in schemas]
    empty = State(keyspace="shop")
    site = SimpleNamespace(settings=CLIENT, versions=lambda: told, state=lambda: empty, ask_each=lambda _: [])
    (found,) = tables.check(site)
    assert found.severity is severity
    assert "keyspace shop" in found.found


def test_large_partitions_are_named():
    """100 MiB in one partition, compacted, would take the shared node minutes."""
    found = only(tables.PARTITIONS.judge([Figure("a", "messages", 250), Figure("b", "messages", 3)]))
    assert found.severity is WARNING
    assert "messages: a partition of 250 MiB on a" in found.found
    assert only(tables.PARTITIONS.judge([Figure("a", "messages", 3)])).severity is OK


def test_tombstones_are_an_error_where_reads_were_refused():
    """Tombstones of a warning are made in the acceptance tests; 100,000 would take minutes."""
    assert only(tables.TOMBSTONES.judge([Figure("a", "messages", 900, 99_999)])).severity is OK
    assert only(tables.TOMBSTONES.judge([Figure("a", "messages", 1200, 5000)])).severity is WARNING
    assert only(tables.TOMBSTONES.judge([Figure("a", "messages", 10, 100_001)])).severity is ERROR


def test_slow_reads_are_named_once_there_are_enough_of_them():
    """The shared node cannot be slowed down."""
    assert list(tables.LATENCY.judge([Figure("a", "messages", 900, 5)])) == []
    assert only(tables.LATENCY.judge([Figure("a", "messages", 900, 5000)])).severity is WARNING
    assert only(tables.LATENCY.judge([Figure("a", "messages", 9, 5000)])).severity is OK


# ── Queues ──


PLACE = WideRow("q@1", 0, 0)


def figures(*, claimed_s=None, late_s=None, late=1, **others):
    """A queue whose oldest message was due, and claimed from, a while ago."""
    now_us = 1_800_000_000 * S
    found = Figures(now_us=now_us, **others)
    for _ in range(late if late_s is not None else 0):
        found.note_late(PLACE, now_us - late_s * S)
    if claimed_s is not None:
        found.claims[PLACE] = now_us - claimed_s * S
    return found


@pytest.mark.parametrize(
    ("found", "serving", "severity", "says"),
    [
        (figures(late_s=600, claimed_s=2), 1, INFO, "10m; the last claim where the oldest stands was 2s ago"),
        (figures(late_s=600, claimed_s=2), 0, INFO, "last claim"),
        (figures(late_s=600, claimed_s=300), 2, ERROR, "2 processes wait for it, and the last claim"),
        (figures(late_s=600), 1, ERROR, "1 process waits for it, and nothing was ever claimed where"),
        (figures(late_s=600, late=2, in_open_rows=1), 1, ERROR, "1 process waits for it"),
        (figures(late_s=600, late=2, in_open_rows=2), 1, WARNING, "1 process waits for it"),
        (figures(late_s=600, late=2, in_open_rows=2), 0, WARNING, "nobody is known to wait"),
        (figures(late_s=600, claimed_s=300, held=2), 2, WARNING, "consumers have up to 2 other messages"),
        (figures(late_s=90_000), 0, WARNING, "1 message due for up to 1d1h; nobody is known to wait"),
        (figures(late_s=600, late=3, partial=True), 0, WARNING, "3+ messages"),
        (figures(late_s=600, late=2, stragglers=2, claimed_s=2), 1, WARNING, "below the cursor"),
    ],
)
def test_late_messages_are_judged_by_who_waits_and_who_claims(found, serving, severity, says):
    (one,) = queues.late("q", found, serving)
    assert one.severity is severity
    assert says in one.found
    assert one.remedy


def test_messages_behind_handlers_that_take_minutes_are_no_error(monkeypatch):
    """Other messages are at work: nobody has to be woken at night."""
    monkeypatch.setattr(queue_figures, "LATE_US", 0)
    with cqueue.connect("memory://") as client:
        queue = client.create_queue("q", cqueue.QueueConfig(visibility=timedelta(minutes=10)))
        queue.send_many([cqueue.Message(b"%d" % number) for number in range(5)])
        with queue.consumer() as consumer:
            assert len(consumer.receive(2, wait=timedelta(seconds=10))) == 2
            now_us = client._driver.clock.now_us
            monkeypatch.setattr(client._driver.clock, "now_us", lambda **how: now_us(**how) + 120 * S)
            (found,) = [one for one in queues.of_client(client) if one.severity is not OK]
            monkeypatch.undo()
    assert (found.severity, found.figures["late"], found.figures["held"]) == (WARNING, 3, 2)
    assert "consumers have up to 2 other messages at work, and the last claim" in found.found


def test_a_message_that_came_late_into_an_open_row_is_no_error(monkeypatch):
    """A consumer that is well finds it minutes later: the finding says so, and to look again."""
    monkeypatch.setattr(queues, "listed", lambda _: ([replace(worker("w", 0.0), queues=("q",))], 0.0))
    with cqueue.connect("memory://") as client:
        queue = client.create_queue("q", cqueue.QueueConfig(derived_sends=True))
        queue.send_many([cqueue.Message(b"x", source="s", due=datetime.now(UTC) - timedelta(hours=2))])
        (found,) = queues.of_client(client)
    assert (found.severity, found.figures["late"]) == (WARNING, 1)
    assert "found within 5 minutes" in found.reason
    assert "Look again" in found.remedy


class Names:
    """Names of queues that count how often they are gone through."""

    def __init__(self, *names):
        self.names, self.looks = names, 0

    def __iter__(self):
        self.looks += 1
        return iter(self.names)

    def __contains__(self, name):
        return name in iter(self)


def test_the_queues_of_a_worker_are_gone_through_once(monkeypatch):
    """A worker of 100,000 queues has a list of as many: to look there for each of them took minutes."""
    monkeypatch.setattr(queue_figures, "LATE_US", 0)
    polled = Names("a", "b", "c")
    gone = replace(worker("gone", 0.0), queues=("b",), state="stopping")
    known = [replace(worker("w", 0.0), queues=polled), gone]
    monkeypatch.setattr(queues, "listed", lambda _: (known, 0.0))
    with cqueue.connect("memory://") as client:
        for name in ("a", "b", "c", "d"):
            client.create_queue(name).send(b"x")
        now_us = client._driver.clock.now_us
        monkeypatch.setattr(client._driver.clock, "now_us", lambda **how: now_us(**how) + 120 * S)
        found = {one.figures["queue"]: one.figures["waiting"] for one in queues.of_client(client)}
        monkeypatch.undo()
    assert found == {"a": 1, "b": 1, "c": 1, "d": 0}
    assert polled.looks == 1


def test_a_paused_queue_is_not_stuck():
    (one,) = queues.late("q", figures(late_s=600), 1, paused=True)
    assert one.severity is INFO
    assert "paused" in one.found


def test_a_queue_without_late_messages_has_no_findings():
    assert list(queues.late("q", figures(claimed_s=2), 1)) == []


@pytest.mark.parametrize(
    ("letters", "severity", "says"),
    [
        (Letters(0), None, ""),
        (
            Letters(12, 5, 3 * 3600.0),
            WARNING,
            "12 dead letters, 5 of them in the last hour; the oldest died 3h",
        ),
        (Letters(1, 0, 40 * 86_400.0), INFO, "1 dead letter; the oldest died 40d ago"),
        (Letters(10_000, 0, 4000.0, plus=True), INFO, "10,000+ dead letters"),
    ],
)
def test_dead_letters_are_a_warning_while_they_grow(letters, severity, says):
    """Letters that are hours old cannot be made: they die when they are buried."""
    found = list(queues.dead("q", letters))
    assert severities(found) == ([] if severity is None else [severity])
    assert all(says in one.found for one in found)


# ── Workers and versions ──


def worker(name, seen, version=__version__):
    return Worker(name, "host", 42, "shop:app", ("mail",), 8, version, started=0, state="running", seen=seen)


def test_late_heartbeats_are_named():
    (late,) = workers.judged([worker("a", 99), worker("b", 90)], now_s=100)
    assert (late.severity, late.figures["worker"], late.figures["age_s"]) == (WARNING, "b", 10)
    assert severities(workers.judged([worker("a", 99)], now_s=100)) == [OK]
    assert severities(workers.judged([], now_s=100)) == [INFO]
    assert severities(workers.judged([worker("a", 99, "0.0.9")], now_s=100)) == [INFO, OK]


@pytest.mark.parametrize(
    ("python", "driver", "expected"),
    [
        ((3, 11), "3.29.3", [WARNING]),
        ((3, 13), "3.30.1", []),
        ((3, 15), "3.30.1", [INFO]),
        ((3, 12), "3.28.0", [WARNING]),
        ((3, 12), "3.31.0.post1", [WARNING]),
    ],
)
def test_this_process_is_judged_by_what_is_tested(python, driver, expected):
    """Tests run on one Python and one driver."""
    assert severities(versions.of_process(python, driver)) == expected


def test_parts_that_the_driver_lacks_are_named():
    assert only(versions.missing_parts(["numbers for ids"])).severity is WARNING
    assert list(versions.missing_parts([])) == []


@pytest.mark.parametrize(
    ("locals_", "expected"),
    [
        ([("5.0.9", "a")] * 3, [OK]),
        ([("5.0.9", "a"), ("5.0.8", "a")], [WARNING]),
        ([("4.1.3", "a")], [ERROR]),
        ([("5.1.0", "a")], [WARNING]),
        ([("5.0.9", "a"), ("5.0.9", "b")], [ERROR]),
    ],
)
def test_nodes_of_other_releases_and_schemas_are_found(locals_, expected):
    """All nodes here are of one release."""
    rows = [SimpleNamespace(release_version=one, schema_version=other) for one, other in locals_]
    told = [Answer(node, "dc1", [row]) for node, row in zip(NODES, rows, strict=False)]
    assert severities(versions.of_nodes(told)) == expected


def test_the_tested_versions_are_those_of_the_package():
    """setup.cfg says what is installed and promised; the doctor says what is tested."""
    from pathlib import Path

    text = (Path(__file__).parents[2] / "setup.cfg").read_text(encoding="utf-8")
    first, limit = (".".join(map(str, one)) for one in versions.DRIVERS)
    assert f"cassandra-driver >={first},<{limit}" in text
    assert all(f"Python :: {major}.{minor}\n" in text for major, minor in versions.PYTHONS)
    after = versions.PYTHONS[1][1] + 1
    assert f"Python :: 3.{after}" not in text


def test_a_connection_that_the_driver_closed_itself_is_no_node_that_is_away():
    """It renews its pools as the doctor begins. The question is asked once more; a second failure counts."""
    rows, asked = [SimpleNamespace(name="x")], []

    class Future:
        def add_callbacks(self, took, failed):
            asked.append(1)
            failed(ConnectionShutdown("was closed")) if len(asked) in {1, 3, 4} else took(rows)

    host = SimpleNamespace(endpoint=SimpleNamespace(address="10.0.0.1"), datacenter="dc1")
    connection = SimpleNamespace(
        cluster=SimpleNamespace(metadata=SimpleNamespace(all_hosts=lambda: [host])),
        session=SimpleNamespace(execute_async=lambda *_, **_options: Future()),
    )
    site = sites.Site(CLIENT, connection, lambda: None, limit_s=10.0)
    assert [answer.rows for answer in site.ask_each("SELECT")] == [rows]
    assert [answer.error is None for answer in site.ask_each("SELECT")] == [False]
    assert len(asked) == 4


class Members:
    """A cluster whose nodes answer, fail, or are silent."""

    def __init__(self, *names):
        self.hosts = [
            SimpleNamespace(endpoint=SimpleNamespace(address=name), datacenter="dc1") for name in names
        ]
        self.silent, self.leaving = set(), set()

    def leave(self, name):
        self.hosts = [host for host in self.hosts if host.endpoint.address != name]

    def execute_async(self, *_, host, **_options):
        return SimpleNamespace(add_callbacks=lambda took, failed: self._answer(host, took, failed))

    def _answer(self, host, took, failed):
        name = host.endpoint.address
        if name in self.leaving:
            self.leave(name)
            failed(ConnectionException("Host has been marked down or removed"))
        elif name not in self.silent:
            took([])

    def site(self):
        metadata = SimpleNamespace(all_hosts=lambda: self.hosts)
        connection = SimpleNamespace(cluster=SimpleNamespace(metadata=metadata), session=self)
        return sites.Site(CLIENT, connection, lambda: None, limit_s=0.0)  # nobody is waited for


def test_a_silent_node_that_leaves_stands_for_no_other():
    """It is no member any more, so each of the others is waited for."""
    cluster = Members("a", "b", "c")
    cluster.silent = {"c"}
    site = cluster.site()
    assert [answer.error is None for answer in site.ask_each("SELECT")] == [True, True, False]
    cluster.leave("c")
    told = site.ask_each("SELECT")
    assert [(answer.node, answer.error) for answer in told] == [("a", None), ("b", None)]


def test_a_node_that_leaves_while_it_is_asked_is_not_away():
    """It needs no start, and the network to it no mending."""
    cluster = Members("a", "b")
    cluster.leaving = {"b"}
    assert [(answer.node, answer.error) for answer in cluster.site().ask_each("SELECT")] == [("a", None)]
