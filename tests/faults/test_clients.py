"""Clients that are killed, stopped, too many, or at one row: rows 1 to 4, 13 and 24."""

from __future__ import annotations

import json
import random
import signal
import time
from collections import Counter
from datetime import timedelta
from itertools import pairwise

import pytest

import cqueue
from cqueue import ids
from cqueue.testing.events import OK, calls, read
from cqueue.testing.report import EXPIRED, REMADE
from tests.faults.lengths import NOISE_S, full
from tests.faults.stores import last_group, open_client
from tests.fix_dispatcher import until

pytestmark = [pytest.mark.cassandra, pytest.mark.fault, pytest.mark.quick, pytest.mark.timeout(300)]

S = 1_000_000_000


@pytest.mark.row(1, "none, full drain")
def test_without_faults_nothing_comes_twice(start_run, row):
    """20,000 messages through two producers and two consumers: no duplicate, but for remade sends."""
    run = start_run()
    count = full(20_000, 3000)
    consumers = run.start_all(2, "consume", batch=130)
    producers = run.start_all(2, "produce", count=count // 2)
    for child in producers:
        child.join(120)
    run.await_empty()
    assert len(consumers) == 2
    report = run.finish()
    assert report.clean, str(report)
    assert report.sends >= count
    assert set(report.reasons) <= {REMADE}, str(report)
    row(messages=report.sends, duplicates=len(report.duplicated), inversions=report.inversions)


@pytest.mark.row(2, "kill -9 of a consumer every 5 s")
def test_killed_consumers_delay_and_repeat_no_more_than_they_held(start_run, row):
    """Redelivery within visibility + 2 s; no more duplicates than were in flight at the kills.

    What a killed consumer held comes back one by one for each process, since any of it may have killed
    it: the criterion is for the first of each batch, and the table says when the last came.
    """
    visibility = full(6.0, 4.0)
    run = start_run(visibility=timedelta(seconds=visibility), lease=timedelta(seconds=2))
    consumers = run.start_all(3, "consume", batch=20, handle_s=0.02)
    run.start("produce", rate=full(300, 100))
    killed = []
    for turn in range(full(5, 2)):
        time.sleep(full(5, 2))
        victim = consumers[turn % 3]
        _kill_holding(victim)
        killed.append(victim)
        consumers[turn % 3] = run.start("consume", batch=20, handle_s=0.02)
    time.sleep(visibility + 3)
    report = run.finish()
    held = [_held(child.history) for child in killed]
    in_flight = sum(map(len, held))
    assert report.clean, str(report)
    assert len(report.duplicated) <= in_flight, str(report)
    assert set(report.reasons) <= {EXPIRED, REMADE}, str(report)
    after = {one.id: one.after_s for one in report.duplicated if one.reason == EXPIRED}
    came = [[after[id_] for id_ in batch if id_ in after] for batch in held]
    first = max(min(batch, default=0.0) for batch in came)
    last = max(after.values(), default=0.0)
    assert first <= visibility + 2 + NOISE_S, came
    row(
        messages=report.sends,
        kills=len(killed),
        in_flight=in_flight,
        duplicates=len(report.duplicated),
        first_of_a_batch=f"visibility + {first - visibility:.2f} s",
        last_of_a_batch=f"visibility + {last - visibility:.2f} s",
    )


def _kill_holding(child):
    """Kill it in a moment when it holds messages."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        child.signal(signal.SIGSTOP)
        if _held(child.history):
            child.kill()
            return
        child.signal(signal.SIGCONT)
        time.sleep(0.005)
    pytest.fail("it never held anything")


def _held(history):
    """What a process had received, and not been told to be acked, at its end."""
    held = set()
    for call in calls(read([history])):
        if call.operation == "receive":
            held |= {one["id"] for one in call.answered}
        elif call.operation == "ack" and call.outcome == OK:
            held -= {one["id"] for one in call.asked}
    return held


@pytest.mark.row(3, "kill -9 of a producer in mid-batch, same ids again")
def test_repeating_what_a_killed_producer_wrote_makes_no_second_copy(start_run, row, tmp_path):
    """Of what nobody answered there are 0 copies or 1, though the same ids are sent twice more."""
    run = start_run()
    rng = random.Random(3)
    unanswered = 0
    kills = full(6, 2)
    for turn in range(kills):
        journal = tmp_path / f"journal-{turn}"
        child = run.start("produce", journal=str(journal))
        time.sleep(0.5 + rng.random())
        until(lambda journal=journal: last_group(journal), 60, "it sent nothing")
        child.kill()
        with open_client(run.url) as client:
            group = last_group(journal)
            for _ in range(2):
                errors = [one for one in client._driver.store.together(group) if isinstance(one, Exception)]
                assert not errors
        unanswered += sum(len(call.asked) for call in calls(read([child.history])) if call.outcome != OK)
    run.start("consume", batch=500)
    run.await_empty()
    report = run.finish()
    assert report.clean, str(report)
    assert set(report.reasons) <= {REMADE}, str(report)
    row(kills=kills, messages=report.sends, unanswered=unanswered, duplicates=len(report.duplicated))


@pytest.mark.parametrize("point", ["lock", "read", "mutation"])
@pytest.mark.row(4, "SIGSTOP of a lock holder for 3 × its lease")
def test_a_stopped_lock_holder_does_nothing_stale(start_run, row, point):
    """When it wakes, what it claimed belongs to others: it delivers nothing of that."""
    lease, visibility = 2.0, 4.0
    run = start_run(
        visibility=timedelta(seconds=visibility),
        lease=timedelta(seconds=lease),
        shards=1,
        time_shard=timedelta(hours=1),
    )
    run.start("produce", count=300).join()
    holder = run.start("nack_all", batch=20, stop_after=point)
    deadline = time.monotonic() + 60
    while not holder.is_stopped():
        assert time.monotonic() < deadline, "the holder never came to that point"
        time.sleep(0.01)
    stopped = time.monotonic()
    run.start("consume", batch=50)
    run.await_empty(limit_s=60)
    taken_over_s = time.monotonic() - stopped
    time.sleep(max(0.0, stopped + 3 * lease - time.monotonic()))
    holder.signal(signal.SIGCONT)
    time.sleep(2)
    report = run.finish()
    errors = _errors(holder.history)
    taken_over = [one for one in _received(run.histories) if one["attempt"] > 1]
    assert report.clean, str(report)
    assert errors.keys() <= {"LeaseLost"}, errors
    assert not _received([holder.history])
    assert len(taken_over) == (20 if point == "mutation" else 0)
    row(
        point=f"after {point}",
        others_done_after=f"{taken_over_s:.1f} s",
        claimed_and_taken_over=len(taken_over),
        delivered_by_the_holder=0,
    )


def _received(histories):
    answered = [call.answered for call in calls(read(histories)) if call.operation == "receive"]
    return [one for some in answered for one in some or ()]


def _errors(history):
    return Counter(
        note["error"]
        for line in history.read_bytes().splitlines()
        if (note := json.loads(line).get("note", {})).get("error")
    )


@pytest.mark.row(13, "64 consumers on one wide row")
def test_many_consumers_of_one_wide_row_get_on(start_run, row):
    """Somebody receives at least every 2 s while there is something; one holder at a time."""
    run = start_run(shards=1, time_shard=timedelta(hours=1))
    run.start("produce", count=full(20_000, 1000)).join(120)
    run.start_all(4, "consume", threads=16, batch=20)
    run.await_empty(limit_s=150)
    report = run.finish()
    assert report.clean, str(report)
    receives = sorted(
        (call.ended_ns, call.answered[0]["fence"], call.owner)
        for call in calls(read(run.histories))
        if call.operation == "receive" and call.answered
    )
    ends = [ended for ended, _, _ in receives]
    gap = max((later - earlier) / S for earlier, later in pairwise(ends))
    assert gap <= 2 + NOISE_S
    assert len({fence for _, fence, _ in receives}) == len(receives), "two claims under one fence"
    owners = {owner for _, _, owner in receives}
    row(
        messages=report.sends,
        claims=len(receives),
        longest_gap=f"{gap:.2f} s",
        consumers_that_got_some=len(owners),
        per_s=round(len(receives) * 20 / ((ends[-1] - ends[0]) / S)),
    )


@pytest.mark.row(24, "two consumers that ack halves of one pack")
def test_two_consumers_that_ack_halves_of_a_row_lose_and_repeat_nothing(start_run, row):
    """Each of them marks its own half, and knows nothing of the other's; the row goes with both."""
    run = start_run(shards=1, time_shard=timedelta(hours=1))
    run.start("produce", count=full(20_000, 2000)).join(120)
    consumers = run.start_all(2, "consume", batch=30, handle_s=0.1)  # slow enough for both to start
    run.await_empty()
    for child in consumers:
        child.end()
    sharing = _packs_acked_by([child.history for child in consumers])
    report = run.finish()
    assert report.clean, str(report)
    assert set(report.reasons) <= {REMADE}, str(report)
    both = sum(len(owners) == 2 for owners in sharing.values())
    assert both, "no pack was acked by both"
    row(messages=report.sends, packs=len(sharing), acked_by_both=both, duplicates=len(report.duplicated))


def _packs_acked_by(histories):
    """Of each pack, which consumers acked messages of it."""
    owners = {}
    for history in histories:
        for call in calls(read([history])):
            for one in call.asked if call.operation == "ack" and call.outcome == OK else ():
                _, _, id_ = cqueue.MessageId(one["id"]).locate()
                if ids.is_packed(id_):
                    owners.setdefault(ids.pack_of(id_), set()).add(history)
    return owners
