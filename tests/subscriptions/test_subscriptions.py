"""Test subscriptions: every record is handled, in the order of its partition, whatever happens to members."""

import itertools
import threading
from collections import Counter
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import timedelta
from itertools import chain
from random import Random
from types import SimpleNamespace

import pytest

import cqueue
from cqueue.errors import (
    BadInput,
    Closed,
    InvalidQueueName,
    LogNotFound,
    NotDone,
    OutcomeUnknown,
    PositionExpired,
    RecordRejected,
    Refused,
    Unavailable,
)
from cqueue.log import LogConfig, LogRecord, catalog, member_threads
from cqueue.log import member as members
from cqueue.log.backlogs import PartitionBacklogs
from cqueue.log.listeners import ListenerCalls, RetryPolicy, batched
from cqueue.log.member_options import MemberOptions
from cqueue.log.owned_partitions import OwnedPartitions
from cqueue.log.protocol import progress
from cqueue.log.protocol.subscription_definition import Origin
from cqueue.store.log_operations import (
    BeatMember,
    ChangeDefinition,
    ChangeLog,
    ChangePositions,
    DefineSubscription,
    ListSubscriptions,
    PeekRecords,
    PositionRow,
    ReadLog,
    ReadSubscription,
    RecordRow,
    RemoveSubscription,
    SubscriptionRows,
)
from cqueue.store.record_page import ReadRecordPage
from tests.fix_dispatcher import until
from tests.fix_store import brief_store
from tests.properties import examples
from tests.subscriptions.subscribing import (
    Clocked,
    Member,
    Through,
    client_on,
    fill,
    live_together,
    lose_answers,
    made_log,
    noted,
)
from tests.unit.ctrl_c import ctrl_c_at, on_a_thread


def numbers(records):
    return [int(record.body) for record in records]


def by_partition(records):
    found = {}
    for record in records:
        found.setdefault(record.partition, []).append(int(record.body))
    return found


# ── one member ──


def test_every_record_is_handled_once_in_the_order_of_its_partition(client, log, store):
    fill(log, store, 100)
    member = Member(client)
    member.live()
    assert sorted(numbers(member.handled)) == list(range(100))
    assert all(found == sorted(found) for found in by_partition(member.handled).values())


def test_a_later_member_goes_on_where_the_last_one_was(client, log, store):
    """Records below a written position are not repeated, whether the last member left or died."""
    fill(log, store, 20)
    first = Member(client)
    first.live()
    first.leave()
    fill(log, store, 20, start=20)
    second = Member(client, start="latest")  # which counts for a new subscription only
    second.live()
    fill(log, store, 20, start=40)
    second.live()  # and is gone
    third = Member(client)
    third.live(10)
    assert sorted(numbers(first.handled)) == list(range(20))
    assert sorted(numbers(second.handled)) == list(range(20, 60))
    assert third.handled == []


def test_listeners_are_called_in_turn_and_the_position_waits_for_all(client, log, store):
    fill(log, store, 3, partition=0)
    calls = []

    def first(record):
        calls.append(("first", int(record.body)))

    def second(record):
        calls.append(("second", int(record.body)))
        if len(calls) < 5:
            raise ValueError("not now")

    member = Member(client, listeners=[first, second])
    member.pulse()
    member.work(5)
    assert member.subscription._owned.backlogs.by_partition[0].done < log_ids(log)[0]
    member.live(20)
    # What the first one has done it is not asked to do again.
    assert [number for who, number in calls if who == "first"] == [0, 1, 2]
    assert [number for who, number in calls if who == "second"] == [0, 0, 0, 0, 1, 2]


def log_ids(log):
    return [record.id.locate()[2] for record in log.scan()]


def test_a_listener_may_have_batches_of_one_partition(client, log, store):
    fill(log, store, 100)
    batches = []
    member = Member(client, batched(10)(batches.append))
    member.live()
    assert sorted(int(r.body) for batch in batches for r in batch) == list(range(100))
    assert max(map(len, batches)) == 10
    assert all(len({r.partition for r in batch}) == 1 for batch in batches)


def test_topics_and_partitions_can_be_chosen(client, log, store):
    """Unwanted records are passed, and not read again."""
    fill(log, store, 90)
    member = Member(client, topics=frozenset({"t1"}), partitions=[1, 3])
    member.live()
    chosen = [r for r in log.scan() if r.topic == "t1" and r.partition in (1, 3)]
    assert sorted(numbers(member.handled)) == sorted(numbers(chosen))
    member.leave()
    positions = member.subscription.positions()
    assert set(positions) == {1, 3}
    assert list(log.scan(positions, partitions=[1, 3])) == []


@pytest.mark.parametrize("by", ["latest", "time", "ids"])
def test_a_new_subscription_begins_where_it_is_told(client, log, store, by):
    fill(log, store, 40)
    records = list(log.scan())
    start = {
        "latest": "latest",
        "time": records[25].time,
        "ids": {r.partition: r.id for r in records[:25]} | {3: "latest"},
    }[by]
    expected = {
        "latest": [],
        "time": numbers(records[25:]),
        "ids": [n for n, r in zip(numbers(records), records, strict=True) if n >= 25 and r.partition != 3],
    }[by]
    member = Member(client, start=start)
    fill(log, store, 4, start=40)
    member.live()
    assert sorted(numbers(member.handled)) == [*expected, 40, 41, 42, 43]


def test_a_subscription_goes_on_though_its_start_is_forgotten_by_now(client, store):
    """A program gives the same start at each of its starts."""
    log, start = made_log(client, ttl=timedelta(minutes=5)), store.now
    first = Member(client, start=start)
    fill(log, store, 10)
    first.live()
    store.pass_time(minutes=4)
    first.live()
    first.leave()
    store.pass_time(minutes=2)
    fill(log, store, 10, start=10)
    second = Member(client, start=start)
    second.live()
    assert sorted(numbers(first.handled + second.handled)) == list(range(20))
    with pytest.raises(PositionExpired):
        Member(client, start=start, name="another")
    with pytest.raises(BadInput, match="on_expired"):
        Member(client, start=start, on_expired="ignore")


def test_new_partitions_are_read_from_their_beginning(client, log, store):
    member = Member(client, start="latest")
    member.live()
    log.alter(partitions=6)
    client._logs._entries.clear()
    fill(log, store, 6, partition=5)
    member.live(30)
    assert numbers(member.handled) == list(range(6))
    assert member.partitions == [0, 1, 2, 3, 4, 5]


def test_a_partition_that_is_added_while_nobody_reads_is_read_from_where_the_others_stand(client, store):
    """Members that come back just before the log forgets where they were miss nothing of it either."""
    log = made_log(client, ttl=timedelta(minutes=10))
    member = Member(client)
    member.live()
    log.alter(partitions=6)  # the member does not know of it any more
    fill(log, store, 6, partition=5)
    member.leave()
    store.pass_time(minutes=9, seconds=30)
    late = Member(client)
    late.live(30)
    assert numbers(late.handled) == list(range(6))


@pytest.mark.parametrize("ttl_s", [60, 180, 600])
def test_a_second_member_of_a_new_subscription_begins_where_the_first_one_does(client, store, ttl_s):
    """The margin above the earliest record is a tenth of the time to live, and may be shorter than 20 s."""
    log = made_log(client, ttl=timedelta(seconds=ttl_s))
    store.pass_time(seconds=2 * ttl_s)
    fill(log, store, 6)
    members = Member(client), Member(client)
    live_together(members, 20)
    assert sorted(numbers(members[0].handled + members[1].handled)) == list(range(6))


def test_a_partition_that_is_added_beside_a_forgotten_position_is_read_from_its_beginning(client, store):
    """What one member has not read for too long is no error of another one."""
    log = made_log(client, ttl=timedelta(minutes=10))
    Member(client, partitions=[0]).live()
    store.pass_time(minutes=20)
    log.alter(partitions=6)
    fill(log, store, 6, partition=5)
    member = Member(client, partitions=[5])
    member.live(30)
    assert numbers(member.handled) == list(range(6))


# ── failures ──


def test_a_record_that_fails_waits_alone(client, log, store):
    """Its partition waits with it, to keep the order; other partitions go on."""
    fill(log, store, 40)
    failing, began = [True], store.time_us

    def listener(record):
        if int(record.body) == 5 and failing[0]:
            raise ValueError("not now")
        member.handled.append(record)

    member = Member(client, listener, policy=RetryPolicy(0, lambda _: 3.0))
    member.live()
    stuck = next(r.partition for r in log.scan() if r.body == b"5")
    assert {p: len(found) for p, found in by_partition(member.handled).items() if p != stuck} == {
        p: 10 for p in range(4) if p != stuck
    }
    failing.clear()
    failing.append(False)
    member.live(10)
    assert all(found == sorted(found) for found in by_partition(member.handled).values())
    assert sorted(numbers(member.handled)) == list(range(40))
    assert store.time_us > began


def test_what_fails_to_the_end_goes_to_the_dead_letter_log(client, log, store):
    """The letter says why, from where and for which subscription; other records go on, in order."""
    fill(log, store, 20, headers={"a": "1"}, key="k")
    calls = Counter()

    def listener(record):
        calls[int(record.body)] += 1
        if int(record.body) in (5, 6):
            raise ValueError("never")
        member.handled.append(record)

    member = Member(client, listener, policy=RetryPolicy(3, lambda _: 1.0))
    member.live(30)
    assert numbers(member.handled) == [n for n in range(20) if n not in (5, 6)]
    assert (calls[5], calls[6], calls[7]) == (3, 3, 1)
    letters = list(client.log("events.dead").scan())
    assert numbers(letters) == [5, 6]
    headers = letters[0].headers
    assert headers["cqueue-dead-reason"] == "ValueError: never"
    assert headers["cqueue-dead-log"] == "events"
    assert headers["cqueue-dead-subscription"] == "billing"
    assert headers["cqueue-dead-attempts"] == "3"
    assert headers["a"] == "1"
    assert (letters[0].topic, letters[0].key) == ("t2", "k")
    (original,) = [r for r in log.scan() if r.body == b"5"]
    assert headers["cqueue-dead-id"] == original.id
    assert headers["cqueue-dead-partition"] == str(original.partition)


def test_a_listener_that_fails_says_so_and_which_record_it_was(client, log, store, caplog):
    """Each attempt logs one line, the last one with a traceback, and only the record's id."""
    fill(log, store, 1, partition=1, headers={"card": "4929"}, key="4929")

    def refuse(_record):
        raise ValueError("never")

    Member(client, refuse, policy=RetryPolicy(2, lambda _: 1.0)).live(10)
    lines = [r.getMessage() for r in caplog.records if r.name == "cqueue.log"]
    (record,) = log.scan()
    for line in lines:
        for part in (
            "log='events'",
            "subscription='billing'",
            f"record='{record.id}'",
            "partition=1",
            "refuse",
        ):
            assert part in line
        assert "error='ValueError'" in line
        assert "4929" not in line
    assert [line.partition(" ")[0] for line in lines] == ["event='listener_failed'", "event='record_dead'"]
    assert ["attempt=1" in lines[0], "attempt=2" in lines[1]] == [True, True]
    assert ["in refuse" in line for line in lines] == [False, True]


def test_of_a_batch_only_what_fails_alone_is_dead(client, log, store):
    fill(log, store, 30, partition=2)
    done = []

    def listener(records):
        if any(r.body == b"7" for r in records):
            raise RecordRejected("not this one")
        done.extend(numbers(records))

    Member(client, batched(10)(listener)).live(10)
    assert done == [n for n in range(30) if n != 7]
    (letter,) = client.log("events.dead").scan()
    assert letter.body == b"7"
    assert letter.headers["cqueue-dead-attempts"] == "1"


def test_a_batch_that_failed_stays_one_by_one_though_several_of_it_fail(client, log, store):
    fill(log, store, 10, partition=0)
    calls = []

    def listener(records):
        calls.append(numbers(records))
        if {0, 5} & set(calls[-1]):
            raise RecordRejected("not this one")

    Member(client, batched(10)(listener)).live(10)
    assert calls == [list(range(10))] + [[number] for number in range(10)]
    assert numbers(client.log("events.dead").scan()) == [0, 5]


def test_a_batch_that_fails_is_tried_one_by_one_though_its_last_record_is_older():
    """With low latency a record whose append took long waits behind later ones."""
    calls, buried, now_s = [], [], 0.0

    def listener(records):
        calls.append([record.body for record in records])
        raise ValueError("away")

    policy = RetryPolicy(max_attempts=3, wait=lambda _: 1.0)
    about = {"log": "events", "subscription": "billing"}
    delivery = ListenerCalls(
        [batched(10)(listener)],
        policy,
        lambda record, *_: buried.append(record.body),
        about=about,
        driver=SimpleNamespace(tracing=None),
    )
    backlogs = PartitionBacklogs()
    backlogs.open(PositionRow(0, 0, 1, "me", 0))
    for id_ in (10, 11, 12, 5):
        row = RecordRow(id_, "t", None, None, b"%d" % id_)
        backlogs.put(0, id_, LogRecord("events@1", 0, row))
    for _ in range(100):
        backlog = backlogs.next(now_s)
        if backlog is not None:
            delivery.deliver(backlog, backlog.chunk(delivery.chunk_size), now_s, lambda: True)
        now_s += 1.0
    assert calls[:2] == [[b"10", b"11", b"12", b"5"], [b"10"]]
    assert (len(calls), buried) == (13, [b"10", b"11", b"12", b"5"])


def test_a_log_that_goes_between_two_calls_is_no_failure_of_a_listener(client, log, store):
    """The second listener was not asked, so the record is no dead letter: the log's error ends the member."""
    dead = client.create_log("events.dead")
    fill(log, store, 1)

    def delete(_):
        client.delete_log("events")
        store.pass_time(seconds=20)  # until the log is looked up again

    calls = []
    member = Member(client, listeners=[delete, calls.append], policy=RetryPolicy(max_attempts=1))
    member.pulse()
    with pytest.raises(LogNotFound):
        member.work()
    store.pass_time(seconds=5)
    assert (calls, list(dead.scan())) == ([], [])


def test_a_dead_letter_that_cannot_be_stored_waits(client, log, store):
    """The record stays where it is, and its listener is not called again."""
    fill(log, store, 3, partition=0)
    calls = []

    def listener(record):
        calls.append(int(record.body))
        if record.body == b"1":
            raise RecordRejected("no")

    def trouble(operation):
        if type(operation).__name__ == "CreateLog":
            raise NotDone("no")

    member = Member(client, listener)
    store.trouble = trouble
    member.pulse()
    with pytest.raises(NotDone):
        member.work()
    store.trouble = lambda _: None
    member.live(10)
    assert calls == [0, 1, 2]
    assert numbers(client.log("events.dead").scan()) == [1]


def test_a_dead_letter_waits_while_its_log_is_being_deleted(client, log, store):
    """The member goes on, and stores the letter in a new log once the old one is gone."""
    fill(log, store, 1)
    client.create_log("events.dead")
    row = client._logs.entry("events.dead").row
    client._driver.ask(ChangeLog(row._replace(state="deleting"), row.version))
    client._logs._entries.clear()

    def listener(_):
        raise RecordRejected("no")

    member = Member(client, listener)
    member.pulse()
    with pytest.raises(NotDone, match="being deleted"):
        member.work()
    client.delete_log("events.dead")
    member.live(10)
    assert numbers(client.log("events.dead").scan()) == [0]


def test_a_log_whose_name_leaves_no_room_for_its_dead_letters_is_refused(client):
    client.create_log("e" * 196)
    with pytest.raises(InvalidQueueName, match=r"e\.dead"):
        client.subscribe("e" * 196, name="billing", listeners=[print])
    client.create_log("e" * 195)
    client.subscribe("e" * 195, name="billing", listeners=[print])


@pytest.mark.parametrize(("count", "size"), [(64, 240), (40, 400)])
def test_a_dead_letter_with_too_many_headers_keeps_what_fits(client, log, store, count, size):
    """Too many of them, or too many bytes."""
    fill(log, store, 1, headers={f"h{n}": "x" * size for n in range(count)})

    def listener(_):
        raise RecordRejected("é\ud800" * 1000)

    Member(client, listener).live(10)
    (letter,) = client.log("events.dead").scan()
    assert len(letter.headers) == 64 or sum(map(len, letter.headers.values())) > 15_000
    assert letter.headers["cqueue-dead-log"] == "events"


# ── pausing, moving, looking ──


def test_a_paused_subscription_waits_and_goes_on(client, log, store):
    member = Member(client)
    member.live()
    member.subscription.pause()
    assert member.subscription.paused
    fill(log, store, 10)
    member.live()
    assert member.handled == []
    member.subscription.resume()
    member.live()
    assert sorted(numbers(member.handled)) == list(range(10))


@pytest.mark.usefixtures("log")
def test_a_definition_of_a_newer_version_keeps_what_only_that_one_knows(client, store):
    """An older client reads the origin, and pausing erases no newer setting."""
    member = Member(client)
    member.step()
    key = member.subscription._key
    stored = store.execute(ReadSubscription(key)).definition
    newer = stored._replace(config='{"moon": 1, ' + stored.config[1:])
    assert store.execute(ChangeDefinition(key, newer, stored.version))
    member.subscription.pause()
    member.subscription.resume()
    assert store.execute(ReadSubscription(key)).definition.config == newer.config
    assert Origin.from_json(newer.config) == Origin.from_json(stored.config)


def test_positions_can_be_moved_back_and_on(client, log, store):
    """Members go on from the new positions, and a checkpoint under way does not undo the move."""
    fill(log, store, 40)
    member = Member(client)
    member.live()
    records = list(log.scan())
    member.handled.clear()
    member.subscription.seek(records[20].time)
    member.live()
    assert sorted(numbers(member.handled)) == list(range(20, 40))
    member.handled.clear()
    member.subscription.seek({2: "earliest"})
    member.live()
    assert numbers(member.handled) == numbers(r for r in records if r.partition == 2)
    member.subscription.pause()
    fill(log, store, 10, start=40)
    member.subscription.seek("latest")
    member.subscription.resume()
    member.handled.clear()
    member.live()
    assert set(numbers(member.handled)) <= set(range(40, 50))


@pytest.mark.usefixtures("log")
def test_a_change_that_comes_too_late_for_one_partition_is_made_of_the_others(client, store):
    """It is left out of the second try: sent again, it would have all of them refused each time."""
    member = Member(client)
    member.live()
    key = member.subscription._key
    stored = store.execute(ReadSubscription(key))
    wanted = [
        progress.changed(row, store.time_us, row.position + 1, row.owner) for row in stored.positions.values()
    ]
    beside = progress.changed(stored.positions[0], store.time_us, stored.positions[0].position, "other")
    assert store.execute(ChangePositions(key, stored.definition.config, (beside,)))
    tried = noted(store, ChangePositions)
    found = client._driver.run(progress.change(key, stored.definition.config, wanted))
    assert [len(each.changes) for each in tried] == [len(wanted), len(wanted) - 1]
    assert found == {each.row.partition: each.row for each in wanted} | {0: beside.row}
    assert found == store.execute(ReadSubscription(key)).positions


def test_a_move_that_a_member_outruns_each_time_is_not_done(client, log, store):
    """The caller is told, and may repeat the move."""
    fill(log, store, 4, partition=0)
    member = Member(client)
    member.live(3)

    def outrun(operation):
        if type(operation) is ChangePositions:
            row = store.store.execute(ReadSubscription(operation.key)).positions[0]
            ahead = progress.changed(row, store.time_us, row.position, row.owner)
            store.store.execute(replace(operation, changes=(ahead,)))

    store.trouble = outrun
    with pytest.raises(NotDone, match="too many"):
        member.subscription.seek({0: "earliest"})
    store.trouble = lambda _: None
    member.subscription.seek({0: "earliest"})
    member.live(3)
    assert numbers(member.handled) == [0, 1, 2, 3] * 2


def test_moving_a_subscription_that_nobody_reads_makes_its_positions(client, log, store):
    fill(log, store, 40)
    admin = Member(client)
    admin.subscription.seek("latest")
    member = Member(client)
    member.live()
    assert member.handled == []


def test_a_deleted_subscription_ends_its_members_and_begins_anew(client, log, store):
    fill(log, store, 10)
    member = Member(client)
    member.live()
    name = client.subscriptions(log.name)[0]
    client.delete_subscription(log.name, name)
    with pytest.raises(LogNotFound):
        member.live()
    store.pass_time(seconds=60)
    assert client.subscriptions(log.name) == []
    with pytest.raises(LogNotFound):
        client.delete_subscription(log.name, name)
    again = Member(client)
    again.live()
    assert sorted(numbers(again.handled)) == list(range(10))


@pytest.mark.usefixtures("log")
def test_a_subscription_that_may_have_been_made_is_not_reported_as_not_made(client, store):
    """Its definition stays, and keeps its first start: the program has to know."""
    lost = lose_answers(store, DefineSubscription, 1, stored=True)
    lose = store.trouble
    store.trouble = lambda operation: NotDone("away") if lost else lose(operation)
    with pytest.raises(OutcomeUnknown):
        Member(client)
    store.trouble = lambda _: None
    assert client.subscriptions("events") == ["billing"]


def test_a_subscription_that_is_made_again_at_once_ends_its_old_members(client, log, store):
    """A member that saw no read without the definition learns of the deletion from its own position."""
    fill(log, store, 10)
    member = Member(client)
    member.live()
    client.delete_subscription(log.name, "billing")
    again = Member(client)
    with pytest.raises(LogNotFound, match="deleted"):
        member.live(120)
    member.leave()
    again.live()
    assert sorted(numbers(again.handled)) == list(range(10))


@pytest.mark.parametrize(
    "act", [lambda member: member.subscription.seek("latest"), lambda member: member.live()]
)
def test_what_is_written_beside_a_deletion_leaves_no_position(client, log, store, act):
    """Else the next subscription of the name would begin there."""
    member, deleted = Member(client), []

    def trouble(operation):
        if type(operation) is ChangePositions and not deleted:
            deleted.append(client.delete_subscription(log.name, "billing"))

    store.trouble = trouble
    with pytest.raises(LogNotFound):
        act(member)
    store.pass_time(seconds=60)
    assert deleted
    assert client.subscriptions(log.name) == []


def test_what_is_taken_beside_a_deletion_is_none_of_the_next_subscription(client, log, store):
    """It begins where it was told to, and the member of the earlier one ends."""
    fill(log, store, 10)
    old, new = Member(client, start="latest"), []
    tried = noted(store, ChangePositions)
    note = store.trouble

    def trouble(operation):
        if type(operation) is ChangePositions and not new:
            client.delete_subscription(log.name, "billing")
            new.append(Member(client))
        return note(operation)

    store.trouble = trouble
    with pytest.raises(LogNotFound, match="deleted"):
        old.live()
    assert len(tried) == 1, "the other tries would be in vain"
    old.leave()
    new[0].live()
    assert sorted(numbers(new[0].handled)) == list(range(10))


def test_a_member_that_owns_nothing_ends_with_its_subscription_too(client, log):
    """It saw no read without a definition; and it leaves no heartbeat in the next subscription."""
    members = [Member(client, partitions=[0]) for _ in range(2)]
    live_together(members)
    (idle,) = [member for member in members if not member.partitions]
    client.delete_subscription(log.name, "billing")
    again = Member(client)
    with pytest.raises(LogNotFound, match="deleted"):
        idle.live()
    idle.leave()
    assert idle.subscription._member.name not in again.subscription.members()


@pytest.mark.parametrize("applied", [False, True])
def test_a_deletion_without_an_answer_is_made_again(client, log, store, applied):
    fill(log, store, 1)
    Member(client).live()
    lost = lose_answers(store, RemoveSubscription, 1, stored=applied)
    (name,) = client.subscriptions(log.name)
    client.delete_subscription(log.name, name)
    assert lost
    assert store.execute(ReadSubscription(lost[0].key)).definition is None


def test_a_deleted_log_leaves_no_subscription(client, log, store):
    fill(log, store, 3)
    Member(client).live()
    client.delete_log(log.name)
    store.pass_time(seconds=60)
    keys = store.execute(ListSubscriptions())
    assert all(store.execute(ReadSubscription(key)) == SubscriptionRows() for key in keys)


def test_a_move_in_the_middle_of_a_record_counts(client, log, store):
    """The record in hand is finished, and its checkpoint does not overwrite the new position."""
    fill(log, store, 10, partition=1)

    def listener(record):
        member.handled.append(record)
        if len(member.handled) == 5:
            admin.subscription.seek("earliest")

    member, admin = Member(client, listener), Member(client)
    member.live()
    assert numbers(member.handled)[-10:] == list(range(10))
    assert len(member.handled) > 10


def test_lag_counts_what_can_be_read_and_is_not_done(client, log, store):
    member = Member(client)
    assert {lag.count for lag in member.subscription.lag().values()} == {0}
    fill(log, store, 40)
    store.pass_time(seconds=30)
    lag = member.subscription.lag()
    assert sum(each.count for each in lag.values()) == 40
    assert all(35 < each.seconds < 36 for each in lag.values())
    member.live()
    assert {(each.count, each.seconds) for each in member.subscription.lag().values()} == {(0, 0.0)}


def test_a_forgotten_position_is_an_error_or_the_earliest(client, store):
    """A subscriber must know that it may have missed records, unless it does not mind."""
    log = made_log(client, ttl=timedelta(minutes=1))
    member = Member(client)
    fill(log, store, 4)
    member.live()
    member.leave()
    store.pass_time(minutes=10)
    fill(log, store, 4, start=4)
    late = Member(client)
    late.pulse()
    with pytest.raises(PositionExpired, match="on_expired"):
        late.work()
    late.leave()
    easy = Member(client, on_expired="earliest")
    easy.live(10)
    assert sorted(numbers(easy.handled)) == [4, 5, 6, 7]


@pytest.mark.parametrize("on_expired", ["error", "earliest"])
def test_records_that_expire_before_a_running_member_reads_them_are_an_error_too(client, store, on_expired):
    """A member that is paused, or whose listeners are slow, may fall behind what the log remembers."""
    log = made_log(client, ttl=timedelta(minutes=1))
    member = Member(client, on_expired=on_expired)
    fill(log, store, 4)
    member.live()
    member.subscription.pause()
    member.live(3)
    fill(log, store, 4, start=4)
    member.live(120)
    member.subscription.resume()
    fill(log, store, 4, start=8)
    with pytest.raises(PositionExpired) if on_expired == "error" else nullcontext():
        member.live(10)
    assert sorted(numbers(member.handled)) == [0, 1, 2, 3] + [8, 9, 10, 11] * (on_expired == "earliest")


def test_records_that_expire_while_they_are_read_are_an_error(client, store):
    """What the log forgets between a member's look at the clock and its read is missed all the same."""
    log = client.create_log("events", LogConfig(partitions=4, ttl=timedelta(minutes=1)))
    member = Member(client)
    member.live()
    log.append("t", b"0", partition=0)

    def hang_once(operation, execute):
        if isinstance(operation, PeekRecords):
            store.pass_time(seconds=10)
            store.around = lambda _, execute: execute()
        return execute()

    store.pass_time(seconds=55)
    store.around = hang_once
    with pytest.raises(PositionExpired):
        member.live()
    assert member.handled == []


@pytest.mark.parametrize("seeks", [False, True])
def test_a_log_that_has_forgotten_some_can_be_read_from_its_earliest_record(client, store, seeks):
    """Time goes on until the first read, so that what was the earliest position then is forgotten by now."""
    log = made_log(client, ttl=timedelta(minutes=1))
    fill(log, store, 4)
    store.pass_time(minutes=10)
    fill(log, store, 4, start=4)

    def execute_in_time(_, execute):
        store.pass_time(milliseconds=1)
        return execute()

    store.around = execute_in_time
    member = Member(client, start="latest" if seeks else "earliest")
    member.live()
    if seeks:
        member.subscription.seek("earliest")
    member.live()
    assert sorted(numbers(member.handled)) == [4, 5, 6, 7]


def with_a_hole(client, store):
    """A log whose ttl was shorter for a while: of its records 0, 1 and 2 the middle one has expired.

    Returns a time before the first one.
    """
    log, before = made_log(client, ttl=timedelta(days=7)), store.now
    fill(log, store, 1)
    store.pass_time(minutes=10)
    log.alter(ttl=timedelta(minutes=1))
    fill(log, store, 1, start=1)
    store.pass_time(seconds=30)
    log.alter(ttl=timedelta(days=7))
    store.pass_time(minutes=10)
    fill(log, store, 1, start=2)
    store.pass_time(seconds=5)
    return before


@pytest.mark.parametrize(("on_expired", "left"), [("error", [2]), ("earliest", [0, 2])])
def test_a_subscription_begins_behind_what_has_ended_or_does_not_mind(client, store, *, on_expired, left):
    """Where the ttl was shorter for a while, older records outlive younger ones; the lag says how many."""
    with_a_hole(client, store)
    member = Member(client, start="earliest", on_expired=on_expired)
    assert sum(lag.count for lag in member.subscription.lag().values()) == len(left)
    member.live()
    assert sorted(numbers(member.handled)) == left


@pytest.mark.parametrize(("on_expired", "left"), [("error", [2]), ("earliest", [0, 2])])
@pytest.mark.parametrize("at_a_time", [False, True])
def test_a_subscription_is_moved_to_where_its_members_go_on(client, store, *, at_a_time, on_expired, left):
    """Members that mind what has expired would end at a position before it."""
    before = with_a_hole(client, store)
    member = Member(client, start="latest", on_expired=on_expired)
    member.live(1)
    member.subscription.seek(before if at_a_time else "earliest", on_expired="earliest")
    member.live()
    assert sorted(numbers(member.handled)) == left


def test_a_position_does_not_grow_old_where_no_records_come(client):
    """The position of a quiet partition moves on: nothing was missed, so nothing is an error."""
    made_log(client, ttl=timedelta(minutes=1))
    member = Member(client)
    member.live(180)
    member = Member(client)
    member.live(10)
    assert member.partitions == [0, 1, 2, 3]


@pytest.mark.parametrize("low_latency", [False, True])
def test_a_full_buffer_of_one_partition_holds_up_no_other(client, log, store, low_latency):
    """The partition is read on, each record once and in order, when its first record succeeds."""
    log.append_many([cqueue.Record("t", b"%d" % number, partition=0) for number in range(30)])
    store.pass_time(seconds=5)
    is_broken = True

    def listener(record):
        if is_broken and record.partition == 0:
            raise ValueError("not now")
        member.handled.append(record)

    policy, pace = RetryPolicy(0, lambda _: 5.0), MemberOptions(buffer=10)
    member = Member(client, listener, policy=policy, pace=pace, low_latency=low_latency)
    member.live()
    fill(log, store, 30, start=30, partition=1)
    fill(log, store, 30, start=60, partition=0)
    member.live()
    assert by_partition(member.handled) == {1: list(range(30, 60))}
    member.subscription._loop.checkpoint()
    is_broken = False
    member.live(20)
    assert by_partition(member.handled)[0] == [*range(30), *range(60, 90)]
    assert {each.count for each in member.subscription.lag().values()} == {0}


def test_a_partition_that_is_not_read_on_can_be_lost(client, log, store):
    """Its member was paused, another one took over, and the first goes on with other partitions."""
    log.append_many([cqueue.Record("t", b"%d" % number, partition=0) for number in range(30)])
    store.pass_time(seconds=5)

    def fail(_):
        raise ValueError("not now")

    member = Member(client, fail, policy=RetryPolicy(0, lambda _: 5.0), pace=MemberOptions(buffer=10))
    member.live()
    store.pass_time(seconds=10)
    other = Member(client)
    other.live()
    assert numbers(other.handled) == list(range(30))
    member.pulse()
    member.work()
    assert ("lost", 0) in {(what, partition) for what, partition, _ in member.events}


def test_no_more_is_read_while_many_wait(client, log, store):
    """A slow listener does not fill the memory."""
    fill(log, store, 2000)

    def listener(_):
        raise ValueError("not now")

    member = Member(client, listener, policy=RetryPolicy(0, lambda _: 100.0), pace=MemberOptions(buffer=50))
    member.live()
    waiting = len(member.subscription._owned.backlogs)
    reads = noted(store, ReadRecordPage)
    fill(log, store, 100, start=2000)
    member.live()
    assert waiting >= 50
    assert len(member.subscription._owned.backlogs) == waiting
    assert reads == []


# ── several members ──


def test_members_share_the_partitions(client, store):
    """Each partition is read by one member, and each member has some."""
    log = made_log(client, partitions=16)
    members = [Member(client) for _ in range(3)]
    live_together(members)
    held = [member.partitions for member in members]
    assert sorted(chain(*held)) == list(range(16))
    assert all(held)
    fill(log, store, 300)
    live_together(members)
    handled = [r for member in members for r in member.handled]
    assert sorted(numbers(handled)) == list(range(300))


@pytest.mark.usefixtures("log")
def test_members_that_read_different_partitions_share_what_both_read(client):
    members = [Member(client, partitions=[0, 1]), Member(client, partitions=[1, 2, 3])]
    live_together(members)
    assert sorted(members[0].partitions + members[1].partitions) == [0, 1, 2, 3]
    assert set(members[0].partitions) <= {0, 1}


def test_a_member_that_joins_gets_its_part_without_a_record_done_twice(client, store):
    log = made_log(client, partitions=16)
    fill(log, store, 100)
    first = Member(client)
    first.live()
    second = Member(client)
    live_together([first, second])
    fill(log, store, 100, start=100)
    live_together([first, second])
    assert sorted(numbers(first.handled + second.handled)) == list(range(200))
    assert second.handled


def test_a_dead_members_partitions_are_taken_over_within_five_seconds(client, store):
    made_log(client, partitions=16)
    members = [Member(client) for _ in range(3)]
    live_together(members)
    survivors, died = members[:2], store.time_us
    members[2].pulse()  # its last one, the moment it dies
    while sorted(survivors[0].partitions + survivors[1].partitions) != list(range(16)):
        for member in survivors:
            member.pulse()
            member.work()
        store.pass_time(milliseconds=100)
    assert store.time_us - died <= 5_000_000


@pytest.mark.usefixtures("log")
def test_dead_members_are_shown_neither_as_alive_nor_as_owners(client, store):
    """Their rows stay, for seconds or for good, until others take over."""
    members = [Member(client) for _ in range(2)]
    live_together(members)
    names = sorted(member.subscription._member.name for member in members)
    looking = members[0].subscription
    assert (looking.members(), sorted(set(looking.owners().values()))) == (names, names)
    members[1].subscription._member.heartbeat()  # its last one
    store.pass_time(seconds=3)
    members[0].pulse()
    assert looking.members() == names
    store.pass_time(seconds=1)
    assert looking.members() == [looking._member.name]
    assert looking.owners() == dict.fromkeys(members[0].partitions, looking._member.name)
    store.pass_time(seconds=4)
    assert (looking.members(), looking.owners()) == ([], {})


@pytest.mark.usefixtures("log")
def test_a_member_that_leaves_gives_back_at_once(client):
    first, second = Member(client), Member(client)
    live_together([first, second])
    first.leave()
    second.pulse()
    second.work()
    assert second.partitions == [0, 1, 2, 3]


def half_way(client, log, store):
    """A member that has handled five of forty records, and has the others in hand."""
    fill(log, store, 40)
    member = Member(client)
    member.pulse()
    while len(member.handled) < 5:
        member.step()
    return member


def test_a_paused_owner_calls_no_listener_and_moves_no_position(client, log, store):
    """The owner wakes up with records in hand after a takeover, and finds out before it goes on."""
    paused = half_way(client, log, store)
    store.pass_time(seconds=10)
    other = Member(client)
    other.live()
    fill(log, store, 10, start=40)
    other.live()
    positions = other.subscription.positions()
    before = list(paused.handled)
    paused.work(50)
    assert paused.handled == before
    assert paused.partitions == []
    paused.subscription._loop.checkpoint()
    after = other.subscription.positions()
    assert all(after[p].locate()[2] >= at.locate()[2] for p, at in positions.items())
    assert sorted(numbers(other.handled)) == list(range(50)), "nothing was written down by the paused one"


def test_a_paused_owner_whose_heart_beats_before_it_looks_is_no_safer(client, log, store):
    """Its heartbeat thread may run first: ownership from before the gap is not trusted."""
    paused = half_way(client, log, store)
    store.pass_time(seconds=10)
    other = Member(client)
    other.live(3)
    paused.subscription._member.heartbeat()
    before = list(paused.handled)
    paused.work(50)
    assert paused.handled == before


def test_a_paused_owner_asks_before_each_of_several_calls_for_the_records_in_hand(client, log, store):
    """Beside a listener that takes batches, another one is called for each record of the batch."""
    fill(log, store, 6, partition=1)

    def handle(record):
        paused.handle(record)
        store.pass_time(seconds=10)
        other.live(8)

    paused, other = Member(client, listeners=[batched(100)(list), handle]), Member(client)
    paused.pulse()
    paused.work(50)
    assert numbers(paused.handled) == [0]
    assert numbers(other.handled) == list(range(6))


def test_an_owner_whose_look_at_the_configuration_takes_long_calls_no_listener(client, log, store):
    """It is read every 15 s, also between the question for the heartbeat's age and the answer."""
    fill(log, store, 4)
    member = Member(client)
    member.pulse()
    member.step()
    member.step()
    member.pulse()

    def slow(operation, execute):
        if isinstance(operation, ReadLog):
            store.pass_time(seconds=8)
        return execute()

    client._logs._entries.clear()
    store.around = slow
    assert member.subscription._member.trust_period() is None


def test_a_paused_owner_that_nobody_missed_goes_on(client, log, store):
    """The owner renews its fences, so that no other member takes over in that moment."""
    member = half_way(client, log, store)
    slow = Member(client)
    store.pass_time(seconds=10)
    slow.pulse()  # sees the other one dead, and is slow to act on it
    member.work()
    slow.work()
    assert sorted(numbers(member.handled)) == list(range(40))
    assert slow.handled == []


def test_each_partition_is_read_by_one_at_a_time_whatever_their_clocks():
    """Clocks that differ by the skew, pauses of any length, any order of steps: 0 missed, order kept."""
    _try_many(examples(40))


def _try_many(count):
    for seed in range(count):
        _try_schedule(Clocked(), Random(seed))


def without_confirming(monkeypatch):
    monkeypatch.setattr(OwnedPartitions, "is_trusted", lambda _: True)


def without_noticing_gaps(monkeypatch):
    monkeypatch.setattr(
        members.Member, "trust_period", lambda self: 1 if self.driver.clock.now_us() else None
    )


def without_new_fences(monkeypatch):
    monkeypatch.setattr(progress.policy, "next_fence", lambda stored, _: stored or 1)


def without_expiry(monkeypatch):
    monkeypatch.setattr(members, "is_alive", lambda _, row, now_us: now_us < row.seen + 1_000_000)


@pytest.mark.parametrize(
    "broken",
    [without_confirming, without_noticing_gaps, without_new_fences, without_expiry],
)
def test_each_rule_is_needed(monkeypatch, broken):
    """Without the rule, some schedule breaks ownership, moves a position back, or misses records."""
    broken(monkeypatch)
    with pytest.raises(AssertionError):
        _try_many(200)


def _try_schedule(store, rng):
    """Run one schedule, in which only records between a success and its checkpoint may repeat."""
    doors = [Through(store, rng.choice((0, 250_000, -250_000))) for _ in range(3)]
    clients = [client_on(door) for door in doors]
    log = made_log(clients[0], partitions=3)
    calls, sent = [], 0
    members = [_member(clients[n], n, calls) for n in range(3)]
    awake_us = [0, 0, 0]
    for _ in range(400):
        if rng.random() < 0.3 and sent < 150:
            fill_one(log, sent)
            sent += 1
        which = rng.randrange(3)
        doors[which].trouble = _trouble(rng) if rng.random() < 0.2 else (lambda _: None)
        if store.time_us < awake_us[which]:
            continue
        if rng.random() < 0.03:
            awake_us[which] = store.time_us + rng.choice((1, 3, 5, 9)) * 1_000_000
        try:
            if rng.random() < 0.4:
                members[which].pulse()
            for _ in range(rng.choice((1, 1, 3, 20))):
                members[which].step()
        except (NotDone, OutcomeUnknown):
            pass
        store.pass_time(milliseconds=rng.choice((1, 50, 400)))
    for door in doors:
        door.trouble = lambda _: None
    store.pass_time(seconds=10)
    live_together(members, 12)
    judge(calls, sent)


def _member(client, number, calls, **options):
    member = Member(
        client, lambda record: calls.append(("done", number, record.partition, record)), **options
    )
    tell = member.subscription._owned._report

    def report(what, partition, position):
        calls.append((what, number, partition, position))
        tell(what, partition, position)

    member.subscription._owned._report = report
    return member


def fill_one(log, number):
    log.append("t", b"%d" % number)


def _trouble(rng):
    """Fail an operation of the subscription now and then, or leave its outcome unknown."""

    def trouble(operation):
        if type(operation) in (ChangePositions, BeatMember, ReadSubscription) and rng.random() < 0.3:
            if type(operation) is ReadSubscription or rng.random() < 0.3:
                raise NotDone("no")
            raise OutcomeUnknown("no answer")

    return trouble


def judge(calls, sent):
    """Check a schedule: no record missed, one owner at a time, order kept, each repeat explained."""
    done = [int(at.body) for what, _, _, at in calls if what == "done"]
    assert set(done) == set(range(sent)), "missed"
    for partition in {call[2] for call in calls}:
        _judge_partition([call for call in calls if call[2] == partition])


def _judge_partition(calls):
    ids = sorted({at.id.locate()[2] for what, _, _, at in calls if what == "done"})
    holder, last, stored = None, None, 0
    for what, who, _, at in calls:
        if what == "acquired":
            holder, last = who, at
            assert at >= stored, "a position moved back"
            stored = at
        elif what == "done":
            id_ = at.id.locate()[2]
            assert who == holder, "read by one that had lost it"
            assert id_ == next(each for each in ids if each > last), "out of order, or a gap"
            last = id_
        elif what in ("checkpoint", "released") and who == holder:
            assert stored <= at, "a position moved back"
            stored = at


# ── unknown outcomes, and crashes ──


@pytest.mark.parametrize("applied", [False, True])
def test_a_checkpoint_without_an_answer_is_settled_by_a_serial_read(client, log, store, applied):
    """The member goes on with any of three outcomes, and repeats nothing."""
    fill(log, store, 40)
    member = Member(client)
    lose_answers(store, ChangePositions, 3, stored=applied)
    member.live()
    fill(log, store, 40, start=40)
    member.live()
    assert sorted(numbers(member.handled)) == list(range(80))
    member.leave()
    assert list(log.scan(member.subscription.positions())) == []


def test_a_checkpoint_that_fails_is_made_again_soon_though_no_records_come(client, log, store):
    fill(log, store, 40)
    member, failed = Member(client), []

    def trouble(operation):
        if type(operation) is ChangePositions and member.handled and not failed:
            failed.append(operation)
            raise NotDone("no")

    store.trouble = trouble
    for _ in range(20):
        member.pulse()
        with suppress(NotDone):
            member.work()
        store.pass_time(milliseconds=500)
    assert failed
    assert len(member.handled) == 40
    assert {lag.count for lag in member.subscription.lag().values()} == {0}


def test_nothing_is_handled_while_it_cannot_be_known_who_owns_it(client, log, store):
    member = half_way(client, log, store)
    store.pass_time(seconds=10)

    def trouble(operation):
        if type(operation) in (ChangePositions, ReadSubscription):
            raise OutcomeUnknown("no answer") if type(operation) is ChangePositions else NotDone("no")

    store.trouble = trouble
    for _ in range(3):
        with pytest.raises(OutcomeUnknown):
            member.step()
    assert len(member.handled) == 5
    store.trouble = lambda _: None
    member.live()
    assert sorted(numbers(member.handled)) == list(range(40))


def test_nothing_is_handled_while_no_fence_can_be_renewed(client, log, store):
    """A serial read that shows the old fence is no proof: another member is just about to take over."""
    member, slow = half_way(client, log, store), Member(client)
    store.pass_time(seconds=10)
    slow.pulse()
    lose_answers(store, ChangePositions, 30, stored=False)
    for _ in range(3):
        with suppress(OutcomeUnknown):
            member.step()
    store.trouble = lambda _: None
    slow.work()
    assert len(member.handled) == 5
    assert sorted({*numbers(member.handled), *numbers(slow.handled)}) == list(range(40))


def test_a_partition_whose_release_cannot_be_written_is_released_later_with_all_that_is_done(
    client, log, store
):
    fill(log, store, 40)
    member, other = Member(client), Member(client)
    member.pulse()
    member.work()
    other.pulse()
    member.pulse()
    lose_answers(store, ChangePositions, 4, stored=False)
    with suppress(OutcomeUnknown):
        member.step()
    live_together([member, other])
    assert sorted(numbers(member.handled)) == list(range(40))
    assert other.handled == []


def test_a_seek_beside_many_checkpoints_is_made(client, log, store):
    """Each try is refused for another partition: a clear answer, after which the others are tried again."""
    log.alter(partitions=8)
    member, left = Member(client), list(range(8))
    member.subscription.seek("earliest")
    key = member.subscription._key

    def checkpoint(operation):
        if type(operation) is ChangePositions and left:
            row = store.store.execute(ReadSubscription(key)).positions[left.pop()]
            beside = progress.changed(row, store.time_us, row.position, row.owner)
            assert store.store.execute(ChangePositions(key, operation.config, (beside,)))

    fill(log, store, 1)
    store.trouble = checkpoint
    member.subscription.seek("latest")
    assert not left
    horizon = log._catalog.entry(log.name).spec.horizon(store.time_us)
    positions = store.store.execute(ReadSubscription(key)).positions.values()
    assert [row.position for row in positions] == [horizon] * 8


class Crashed(BaseException):
    """The process is gone: nothing of it runs any more."""


@pytest.mark.parametrize("applied", [False, True])
def test_a_crash_at_any_operation_misses_nothing_and_keeps_the_order(applied):
    """A repeated record lies between a success and its checkpoint."""
    at = 0
    while _crash_at(at, applied=applied):
        at += 1
    assert at > 30


def _crash_at(at, *, applied):
    """Crash at the operation of that number; return whether there was one."""
    store = Clocked()
    door = Through(store)
    with client_on(store) as client:
        log = made_log(client, partitions=3)
        fill(log, store, 30)
        calls, left, here = [], [at], threading.get_ident()
        victim = _member(client_on(door), 0, calls, pace=MemberOptions(checkpoint_records=4))

        def trouble(operation):
            if threading.get_ident() != here:  # on a slow machine the catalog reads beside
                return
            left[0] -= 1
            if left[0] < 0:
                if applied:
                    store.execute(operation)
                raise Crashed

        door.trouble = trouble
        try:
            victim.live(4)
        except Crashed:
            crashed = True
        else:
            crashed = False
        other = _member(client, 1, calls)
        other.live(8)
        judge(calls, 30)
        twice = sum(Counter(int(c[3].body) for c in calls if c[0] == "done").values()) - 30
        assert twice <= 4 + 1, "more than a checkpoint interval was done again"
        return crashed


# ── what it costs ──


def test_an_idle_subscription_costs_at_most_two_statements_a_second(store, monkeypatch):
    """One member with 16 partitions sends heartbeats, and reads members, partitions and configuration."""
    clock = SimpleNamespace(monotonic=lambda: store.time_us / 1e6)
    monkeypatch.setattr(catalog, "time", clock)  # in real time the configuration would stay fresh
    counted = []

    class Counting(Through):
        def execute(self, operation):
            counted.append(type(operation).__name__)
            return super().execute(operation)

        def sample_time_us(self):
            counted.append("time")
            return super().sample_time_us()

    client = client_on(Counting(store))
    client.create_log("events", LogConfig(partitions=16))
    member = Member(client)
    member.live(30)
    counted.clear()
    _run_by_itself(member, store, seconds=300)
    assert len(counted) / 300 <= 2, Counter(counted)
    assert Counter(counted)["ReadLog"] in range(15, 21)


def _run_by_itself(member, store, seconds):
    """Run both threads of a member, each waiting as long as it says."""
    end_us = store.time_us + seconds * 1_000_000
    pulse_us = step_us = store.time_us
    while store.time_us < end_us:
        if store.time_us >= pulse_us:
            pulse_us = store.time_us + max(20_000, int(member.pulse() * 1e6))
            step_us = store.time_us  # a look wakes the reader
        if store.time_us >= step_us:
            step_us = store.time_us + int(member.step() * 1e6)
        store.time_us = max(store.time_us + 1, min(pulse_us, step_us))


# ── threads ──


@pytest.fixture
def live_log():
    """Return a log in real time."""
    with cqueue.Client(brief_store()) as client:
        yield client, client.create_log("events", LogConfig(partitions=2))


@pytest.mark.parametrize("low_latency", [False, True])
def test_what_was_read_when_a_ctrl_c_came_is_not_passed(client, log, store, low_latency):
    """Records that no listener was called with are left to the next member."""
    fill(log, store, 10)
    member = Member(client, low_latency=low_latency)
    loop = member.subscription._loop
    queue_records = loop._put

    def interrupted(found):
        if found.records:
            raise KeyboardInterrupt
        queue_records(found)

    loop._put = interrupted
    with pytest.raises(KeyboardInterrupt):
        member.subscription.run()
    assert member.handled == []
    other = Member(client)
    other.live()
    assert sorted(numbers(other.handled)) == list(range(10))


def ctrl_c_after_the_start_of(monkeypatch, name):
    """Let a Ctrl-C come while the main thread waits for a thread to begin. Return the threads begun."""
    begin, begun = threading.Thread.start, []

    def start(thread):
        begin(thread)
        begun.append(thread)
        if thread.name == name:
            raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", start)
    return begun


@pytest.mark.parametrize("name", ["cqueue-b", "cqueue-b-member"])
def test_a_ctrl_c_as_a_member_starts_ends_it(live_log, monkeypatch, name):
    """A member whose heartbeats went on would own partitions that nobody reads."""
    client, _ = live_log
    subscription = client.subscribe("events", name="b", listeners=[print])
    begun = ctrl_c_after_the_start_of(monkeypatch, name)
    with pytest.raises(KeyboardInterrupt):
        subscription.start() if name == "cqueue-b" else subscription.run()
    assert begun
    until(lambda: not any(thread.is_alive() for thread in begun))
    assert subscription.stop() is True
    assert subscription.members() == []


def test_a_ctrl_c_at_any_moment_of_a_run_holds_up_no_stop(client, log, store):
    """Nor does it leave a thread behind, or pass a record."""
    fill(log, store, 3)
    for number in itertools.count():
        handled = []
        member = Member(client, name=f"s{number}", listener=lambda record: handled.append(record) or end())  # noqa: B023
        end = member.subscription.stop
        try:
            with ctrl_c_at(1 + 47 * number):
                member.subscription.run()
        except (KeyboardInterrupt, RuntimeError):
            pass
        else:
            break
        assert on_a_thread(end) is True
        other = Member(client, name=f"s{number}")
        other.live(5)
        assert set(numbers(handled + other.handled)) == set(range(3))
        other.leave()
    assert number > 10


def test_a_subscription_runs_on_threads_of_its_own(live_log):
    client, log = live_log
    sent = [log.append("t", b"%d" % n) for n in range(10)]
    found, events = [], []
    with client.subscribe(
        "events", name="billing", listeners=[found.append], on_event=lambda *event: events.append(event)
    ) as subscription:
        until(lambda: len(found) == 10)
        assert subscription.partitions == [0, 1]
    assert {record.id for record in found} == set(sent)
    assert {what for what, _, _ in events} >= {"acquired", "released"}
    with pytest.raises(Closed):
        subscription.start()


def test_run_ends_when_a_listener_says_stop(live_log):
    client, log = live_log
    log.append("t", b"x")
    subscription = client.subscribe("events", name="b", listeners=[lambda _: subscription.stop()])
    runs = threading.Thread(target=subscription.run)
    runs.start()
    runs.join(30)
    assert not runs.is_alive()


def test_stop_waits_for_a_member_that_runs_on_a_thread_of_the_caller(live_log):
    client, log = live_log
    log.append("t", b"x")
    busy, go_on, handled = threading.Event(), threading.Event(), []

    def handle(record):
        busy.set()
        go_on.wait(30)
        handled.append(record)

    subscription = client.subscribe("events", name="b", listeners=[handle])
    runs = threading.Thread(target=subscription.run)
    runs.start()
    assert busy.wait(30)
    assert subscription.stop(timedelta()) is False
    threading.Timer(0.1, go_on.set).start()
    assert subscription.stop() is True
    assert [record.body for record in handled] == [b"x"]
    assert subscription.members() == []
    runs.join(30)
    assert subscription.stop() is True


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize("timeout", [5, timedelta(seconds=-1), timedelta.max])
def test_a_stop_with_a_wrong_timeout_is_refused(client, timeout):
    subscription = client.subscribe("events", name="b", listeners=[print])
    with pytest.raises(BadInput, match="timeout"):
        subscription.stop(timeout)
    with subscription:
        assert subscription.stop(timedelta(days=365)) is True


def test_no_listener_is_called_after_stop_and_what_all_have_handled_is_done(live_log):
    client, log = live_log
    log.append_many([cqueue.Record("t", b"%d" % n, partition=0) for n in range(50)])
    batches, calls = [], []

    def handle(record):
        calls.append(record)
        subscription.stop()

    def subscribe():
        return client.subscribe("events", name="b", listeners=[batched(100)(batches.append), handle])

    for number in range(2):
        subscription = subscribe()
        subscription.run()
        assert numbers(calls) == list(range(number + 1))
    assert [numbers(batch)[0] for batch in batches] == [0, 1]


def test_a_listener_may_end_a_subscription_that_has_a_thread_of_its_own(live_log):
    client, log = live_log
    log.append("t", b"x")
    answers = []
    subscription = client.subscribe(
        "events", name="b", listeners=[lambda _: answers.append(subscription.stop())]
    )
    subscription.start()
    until(lambda: not subscription._threads.thread.is_alive())
    assert answers == [False]
    assert subscription.stop() is True


def test_a_member_without_a_heart_ends(live_log, monkeypatch):
    """A member whose heartbeat thread fails would never see a takeover."""
    client, _ = live_log
    subscription = client.subscribe("events", name="b", listeners=[print])
    monkeypatch.setattr(subscription._member, "beat_and_read", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        subscription.run()


@pytest.mark.parametrize("error", [Unavailable("no answer"), OutcomeUnknown("no answer")])
def test_a_heartbeat_without_an_answer_is_sent_again(live_log, monkeypatch, error):
    """An outage that is shorter than a member's patience costs it nothing."""
    client, _ = live_log
    subscription = client.subscribe("events", name="b", listeners=[print])
    beat, errors, again = subscription._member.beat_and_read, [error], threading.Event()

    def unanswered_at_first():
        if errors:
            raise errors.pop()
        again.set()
        return beat()

    monkeypatch.setattr(subscription._member, "beat_and_read", unanswered_at_first)
    monkeypatch.setattr(member_threads, "TROUBLE_S", 0.01)
    with subscription:
        assert again.wait(30)


def test_a_refusal_is_told_once_as_an_error_and_the_member_goes_on(live_log, monkeypatch, caplog):
    """A member whose grants are mended needs no restart, and fills no log until then."""
    client, log = live_log
    log.append("t", b"x")
    found, left = [], [5]
    subscription = client.subscribe("events", name="b", listeners=[found.append])
    step = subscription._loop.step

    def refused_at_first():
        if left[0]:
            left[0] -= 1
            raise Refused("no grant")
        return step()

    monkeypatch.setattr(subscription._loop, "step", refused_at_first)
    monkeypatch.setattr(member_threads, "LASTING_S", 0.01)
    with subscription:
        until(lambda: found)
    told = [record for record in caplog.records if "subscription_trouble" in record.message]
    assert [record.levelname for record in told] == ["ERROR"]
    assert "error='no grant'" in told[0].message


def test_an_outage_is_told_by_a_line_for_each_error_though_steps_between_need_no_answer(
    live_log, monkeypatch, caplog
):
    """Reads and checkpoints fail in turn, with a wait for the next poll between: a line a second and more."""
    client, log = live_log
    caplog.set_level("INFO", logger="cqueue.log")
    log.append("t", b"x")
    found = []
    steps = iter([NotDone("the read failed"), None, NotDone("nothing was written"), None] * 5)
    subscription = client.subscribe("events", name="b", listeners=[found.append])
    step = subscription._loop.step

    def away_at_first():
        match next(steps, "over"):
            case "over":
                return step()
            case None:
                return 0.0
            case error:
                raise error

    monkeypatch.setattr(subscription._loop, "step", away_at_first)
    monkeypatch.setattr(member_threads, "TROUBLE_S", 0.0)
    with subscription:
        until(lambda: found)
    assert sum("subscription_trouble" in record.message for record in caplog.records) == 2


def test_what_ends_a_subscription_is_raised_by_stop(live_log):
    client, _ = live_log
    subscription = client.subscribe("events", name="b", listeners=[print])
    subscription.start()
    client.delete_log("events")
    until(lambda: not subscription._threads.thread.is_alive())
    with pytest.raises(LogNotFound):
        subscription.stop()


@pytest.mark.parametrize(
    "options",
    [
        {"listeners": []},
        {"listeners": print},
        {"listeners": ["print"]},
        {"name": "not a name"},
        {"start": "yesterday"},
        {"start": {9: "earliest"}},
        {"partitions": [4]},
        {"partitions": []},
        {"partitions": "01"},
        {"topics": "t1"},
        {"topics": []},
        {"on_expired": "ignore"},
        {"max_attempts": -1},
        {"buffer": 0},
        {"checkpoint_records": 0},
        {"poll_interval": timedelta()},
        {"max_poll_interval": timedelta(milliseconds=1)},
        {"checkpoint_interval": timedelta(hours=1)},
    ],
)
@pytest.mark.usefixtures("log")
def test_a_subscription_that_cannot_be_is_refused(client, options):
    values = {"name": "billing", "listeners": [print]} | options
    with pytest.raises(BadInput):
        client.subscribe("events", **values)


async def coroutine_listener(record):
    """Stands for a listener of a program with asyncio."""


def generator_listener(record):
    yield record


async def generating_coroutine_listener(record):
    yield record


class CallableListener:
    async def __call__(self, record):
        """Stands for an object with a coroutine method."""


@pytest.mark.parametrize(
    "listener",
    [
        coroutine_listener,
        generator_listener,
        generating_coroutine_listener,
        CallableListener(),
        batched(10)(coroutine_listener),
    ],
)
@pytest.mark.usefixtures("log")
def test_a_listener_that_would_not_run_is_refused(client, listener):
    """Its records would count as done, and nothing would have been done."""
    with pytest.raises(BadInput, match="calling it runs nothing"):
        client.subscribe("events", name="billing", listeners=[print, listener])


def test_a_subscription_to_no_log_is_refused(client):
    with pytest.raises(LogNotFound):
        client.subscribe("nosuch", name="b", listeners=[print])
    with pytest.raises(BadInput, match="batch size"):
        batched(0)
