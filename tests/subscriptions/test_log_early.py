"""Test records before they are stable: low-latency followers and subscriptions, and their notifications."""

import threading
import time
from datetime import timedelta
from functools import partial
from random import Random

import pytest

import cqueue
from cqueue.doorbell import Ring, Target
from cqueue.errors import NotDone
from cqueue.log import LogConfig
from cqueue.log.listeners import RetryPolicy
from cqueue.log.member_options import MemberOptions
from cqueue.log.notifier import AppendHints, AppendNotifier
from cqueue.store.log_operations import AppendRecords
from tests.fix_dispatcher import until
from tests.subscriptions.subscribing import Member, live_together, noted

SOON_S = 20.0
LONG = timedelta(minutes=1)


def early(client, listener=None, **options):
    member = Member(client, listener, low_latency=True, **options)
    client._append_notifier.listen(member.subscription._key.log, member.subscription._loop._hints)
    member.pulse()
    member.work()
    return member


def stored_position(member, partition):
    return member.subscription._look().rows.positions[partition].position


def id_of(log_id):
    return log_id.locate()[2]


# ── Subscriptions ──


def test_a_member_that_is_told_hands_a_record_out_before_it_is_stable(client, log, store):
    """A notified member also does not wait for its next poll."""
    member = early(client)
    store.pass_time(milliseconds=1)
    log.append("t", b"0", partition=1)
    member.work()
    assert member.bodies == [b"0"]


def test_positions_stay_at_the_horizon(client, log, store):
    """The position of an early record is written once no record before it can appear any more."""
    member = early(client, pace=MemberOptions(checkpoint_s=0.1))
    at = id_of(log.append("t", b"0", partition=1))
    for _ in range(20):
        member.pulse()
        member.work()
        assert stored_position(member, 1) < at or horizon(log, store) >= at
        store.pass_time(milliseconds=200)
    assert stored_position(member, 1) == at
    assert member.bodies == [b"0"]


def horizon(log, store):
    return log._catalog.entry("events").spec.horizon(store.time_us)


def test_a_record_that_lands_late_is_handed_out_after_later_ones(client, log, store):
    """The late record is handed out once, and no position passes it before it is done."""
    member = early(client)
    appended = noted(store, AppendRecords)
    log.append("t", b"0", partition=0)
    store.pass_time(milliseconds=50)
    log.append("t", b"2", partition=0)
    member.work()
    (first,) = appended[0].rows
    store.execute(AppendRecords(appended[0].shard, (first._replace(id=first.id + 1, body=b"1"),), 0))
    member.live(6)
    assert member.bodies == [b"0", b"2", b"1"]


def test_a_late_record_whose_listener_fails_holds_the_position(client, log, store):
    """Later records are done, but a successor begins before the failed one."""
    appended = noted(store, AppendRecords)

    def refuse_one(record):
        if record.body == b"1":
            raise ValueError("not now")

    policy = RetryPolicy(0, lambda _: 1000.0)
    member = early(client, refuse_one, policy=policy, pace=MemberOptions(checkpoint_s=0.1))
    first = log.append("t", b"0", partition=0)
    store.pass_time(milliseconds=50)
    log.append("t", b"2", partition=0)
    member.work()
    (row,) = appended[0].rows
    store.execute(AppendRecords(appended[0].shard, (row._replace(id=row.id + 1, body=b"1"),), 0))
    member.live(6)
    assert stored_position(member, 0) == id_of(first)
    member.leave()
    second = early(client)
    second.live(6)
    assert second.bodies == [b"1", b"2"]


def test_the_next_member_may_repeat_and_misses_nothing(client, log, store):
    """After a takeover, early records are handed out again."""
    member = early(client)
    for number in range(40):
        log.append("t", b"%d" % number)
        member.pulse()
        member.work()
        store.pass_time(milliseconds=100)
    member.leave()
    second = early(client)
    second.live(6)
    assert member.bodies == [b"%d" % number for number in range(40)]
    assert set(second.bodies) < {b"%d" % number for number in range(10, 40)}
    assert b"39" in second.bodies


@pytest.mark.parametrize("seed", range(20))
def test_members_that_come_and_go_miss_nothing(client, log, store, seed):
    """Each record is handed out at least once, whichever member is notified, and whatever fails."""
    rng = Random(seed)
    members, sent = [early(client), early(client)], 0
    store.trouble = lambda _: rng.random() < 0.02 and fail()

    def fail():
        raise NotDone("no")

    everybody = list(members)
    for _ in range(60):
        for _ in range(rng.randrange(4)):
            sent += try_(partial(log.append, "t", b"%d" % sent))
        for member in members:
            try_(member.pulse)
            try_(partial(member.work, rng.randrange(1, 30)))
        if rng.random() < 0.05:
            gone = members.pop(0)
            client._append_notifier.forget(gone.subscription._key.log, gone.subscription._loop._hints)
            store.trouble, trouble = lambda _: None, store.trouble
            members.append(early(client))
            store.trouble = trouble
            everybody.append(members[-1])
        store.pass_time(milliseconds=rng.choice((5, 100, 700)))
    store.trouble = lambda _: None
    live_together(members, 15)
    handled = {record.body for member in everybody for record in member.handled}
    assert handled >= {b"%d" % number for number in range(sent)}


def try_(act):
    try:
        act()
    except NotDone:
        return False
    return True


# ── Who is told ──


class Rung:
    """A doorbell that records its calls."""

    def __init__(self):
        self.rung = []
        self.heard = []

    def ring(self, target, flags=0):
        self.rung.append(target)

    def listen(self, name, heard):
        self.heard.append((name, heard))

    def forget(self, name, heard):
        self.heard.remove((name, heard))


def test_all_readers_of_a_log_are_told():
    """Readers of this and, once each, of other processes are notified; readers of other logs are not."""
    doorbell = Rung()
    notifier, woken = AppendNotifier(doorbell), []
    readers = [AppendHints(lambda number=number: woken.append(number)) for number in range(3)]
    for log, told in zip(("a@1", "a@1", "b@1"), readers, strict=True):
        notifier.listen(log, told)
    notifier.ring("a@1", {3})
    assert woken == [0, 1]
    assert [told.take() for told in readers] == [{3}, {3}, set()]
    assert doorbell.rung == [Target("a@1", b"3", to_all=True)]


def test_a_reader_is_told_of_what_others_ring_until_it_is_gone():
    doorbell = Rung()
    notifier, one, other = AppendNotifier(doorbell), AppendHints(lambda: None), AppendHints(lambda: None)
    notifier.listen("a@1", one)
    notifier.listen("a@1", other)
    notifier.forget("a@1", one)
    ((name, heard),) = doorbell.heard
    for place in (b"7", b"no number", b""):
        heard(Ring(b"", place, 0))
    assert name == "a@1"
    assert (one.take(), other.take()) == (set(), {7})
    notifier.forget("a@1", other)
    notifier.forget("a@1", other)  # the doorbell is not asked to forget what it was not asked to tell
    assert doorbell.heard == []


def test_only_what_was_acknowledged_rings(client, log, store):
    told = AppendHints(lambda: None)
    client._append_notifier.listen(log._catalog.entry("events").spec.partition, told)

    def fail_append(operation):
        if type(operation) is AppendRecords:
            raise NotDone("no")

    store.trouble = fail_append
    with pytest.raises(NotDone):
        log.append("t", b"x", partition=2)
    assert told.take() == set()
    store.trouble = lambda _: None
    log.append("t", b"x", partition=2)
    assert told.take() == {2}


# ── Live ──


@pytest.fixture
def live():
    with cqueue.connect("memory://") as client:
        yield client, client.create_log("events", LogConfig(partitions=2))


def as_it_waits(follower, act):
    """Call `act` once a poll of the follower waits."""

    def run():
        until(lambda: follower._awake._cond._waiters)
        act()

    threading.Thread(target=run).start()


def test_a_follower_that_waits_is_woken(live):
    """A notification comes long before the follower's next poll."""
    _, log = live
    with log.follow(low_latency=True, poll_interval=LONG) as follower:
        follower.poll()
        began_s = time.monotonic()
        as_it_waits(follower, lambda: log.append("t", b"x"))
        assert [record.body for record in follower.poll(timedelta(seconds=50))] == [b"x"]
        assert time.monotonic() - began_s < SOON_S


def test_closing_ends_a_poll_that_waits(live):
    _, log = live
    follower = log.follow(low_latency=True, poll_interval=LONG)
    follower.poll()
    as_it_waits(follower, follower.close)
    began_s = time.monotonic()
    with pytest.raises(cqueue.Closed):
        follower.poll(timedelta(seconds=50))
    assert time.monotonic() - began_s < SOON_S


def test_a_subscription_that_waits_is_woken(live):
    client, log = live
    found = threading.Event()
    subscription = client.subscribe(
        "events",
        name="b",
        listeners=[lambda _: found.set()],
        low_latency=True,
        start="latest",
        poll_interval=LONG,
        max_poll_interval=LONG,
    )
    with subscription:
        until(lambda: subscription.partitions == [0, 1] and subscription._owned.following.is_at_end)
        log.append("t", b"x")
        assert found.wait(SOON_S)
    assert client._append_notifier._readers == {}
