"""Schedules and workers: what every store promises."""

import uuid

import pytest

from cqueue.store.control import (
    ChangeSchedule,
    CreateSchedule,
    Heartbeat,
    KeepResult,
    Listen,
    ListenerRow,
    ListSchedules,
    ReadDigests,
    ReadListeners,
    ReadResult,
    ReadSchedule,
    ReadWorkers,
    RemoveSchedule,
    RemoveWorker,
    ResultRow,
    ScheduleRow,
    WorkerRow,
)


@pytest.fixture
def queue():
    return f"queue-{uuid.uuid4().hex}@1"


def schedule(queue, key="k", **changes):
    return ScheduleRow(queue, key, 1, "active", 7, "{}", 1_000, 0, 0)._replace(**changes)


def test_a_schedule_is_created_once(store, queue):
    """Of two that create the same key the first one wins."""
    row = schedule(queue)
    assert store.execute(CreateSchedule(row)) is True
    assert store.execute(CreateSchedule(row._replace(state="paused"))) is False
    assert store.execute(ReadSchedule(queue, "k")) == row
    assert store.execute(ReadSchedule(queue, "other")) is None


def test_a_schedule_changes_only_from_the_version_seen(store, queue):
    """Two dispatchers that move a schedule on from the same state: one of them does."""
    row = schedule(queue)
    store.execute(CreateSchedule(row))
    moved = row._replace(
        state="done", generation=8, definition='{"a": 1}', next_at=0, previous=1_000, fired=1
    )
    assert store.execute(ChangeSchedule(moved, 1)) is True
    assert store.execute(ChangeSchedule(row, 1)) is False
    assert store.execute(ReadSchedule(queue, "k")) == moved._replace(version=2)
    assert store.execute(ChangeSchedule(schedule(queue, "other"), 1)) is False


def test_a_schedule_is_removed_only_from_the_version_seen(store, queue):
    store.execute(CreateSchedule(schedule(queue)))
    assert store.execute(RemoveSchedule(queue, "k", 2)) is False
    assert store.execute(RemoveSchedule(queue, "k", 1)) is True
    assert store.execute(RemoveSchedule(queue, "k", 1)) is False
    assert store.execute(CreateSchedule(schedule(queue, generation=9))) is True


def test_schedules_are_listed_by_key_for_each_queue(store, queue):
    for key in ("b", "a"):
        store.execute(CreateSchedule(schedule(queue, key)))
    store.execute(CreateSchedule(schedule(queue + "2", "c")))
    assert [row.key for row in store.execute(ListSchedules(queue))] == ["a", "b"]


def test_workers_are_seen_until_they_go(store):
    """A heartbeat replaces the one before; a worker that says good-bye is gone at once."""
    one, other = (f"worker-{uuid.uuid4().hex}" for _ in range(2))
    store.execute(Heartbeat(WorkerRow(one, "{}", 1), 60))
    store.execute(Heartbeat(WorkerRow(one, '{"queues": 2}', 2), 60))
    store.execute(Heartbeat(WorkerRow(other, "{}", 3), 60))
    rows = {row.worker: row for row in store.execute(ReadWorkers())}
    assert rows[one] == WorkerRow(one, '{"queues": 2}', 2)
    store.execute(RemoveWorker(one))
    workers = [row.worker for row in store.execute(ReadWorkers())]
    assert one not in workers
    assert other in workers


# ── Listeners ──


def listener(**changes):
    row = ListenerRow(f"host-{uuid.uuid4().hex}", "127.0.0.1", 40_000, b"k" * 16, b"abcdefgh")
    return row._replace(**changes)


def test_a_listener_is_found_until_its_time_is_over(store, eventually):
    """A process that dies is rung in vain only for as long as its row lives."""
    stays, goes = listener(), listener(address="::1", names=None)
    for each in (stays, goes, listener()):
        store.execute(Listen(each, 60))
    both = ReadListeners((stays.listener, goes.listener, "nobody"))
    assert set(store.execute(both)) == {stays, goes}
    assert store.execute(ReadDigests()).items() >= {(row.listener, row.digest) for row in (stays, goes)}
    store.execute(Listen(goes, 1))
    eventually(lambda: goes.listener not in store.execute(ReadDigests()))
    assert store.execute(both) == [stays]


def test_a_listener_is_overwritten(store):
    """What a process waits for changes while it runs."""
    row = listener()
    store.execute(Listen(row, 60))
    store.execute(Listen(row._replace(names=b""), 60))
    changed = row._replace(names=b"")
    assert store.execute(ReadListeners((row.listener,))) == [changed]
    assert store.execute(ReadDigests())[row.listener] == changed.digest != row.digest


def test_of_several_results_of_a_message_the_last_one_counts(store):
    """All columns come back as written, also those that are null the second time."""
    message = f"message-{uuid.uuid4().hex}"
    assert store.execute(ReadResult(message)) is None
    first = ResultRow(message, "succeeded", "json", b"\x00[1]", None, None, 1_000)
    store.execute(KeepResult(first, 60))
    assert store.execute(ReadResult(message)) == first
    last = ResultRow(message, "failed", None, None, "KeyError", "attempt 2: KeyError: 'x'", 2_000)
    store.execute(KeepResult(last, 60))
    assert store.execute(ReadResult(message)) == last
    store.execute(KeepResult(first, 60))  # decided earlier: stored again with an ack that is repeated
    assert store.execute(ReadResult(message)) == last
    assert store.execute(ReadResult(message + "2")) is None


def test_of_two_results_of_one_millisecond_one_counts_as_a_whole(store):
    """Cells of equal timestamps would mix: a task would have succeeded, and returned nothing."""
    message = f"message-{uuid.uuid4().hex}"
    both = [
        ResultRow(message, "succeeded", "json", b"[1]", None, None, 1_000),
        ResultRow(message, "failed", None, None, "KeyError", "attempt 2: KeyError: 'x'", 1_000),
    ]
    for row in both:
        store.execute(KeepResult(row, 60))
    assert store.execute(ReadResult(message)) in both


def test_a_result_expires(store, eventually):
    message = f"message-{uuid.uuid4().hex}"
    store.execute(KeepResult(ResultRow(message, "cancelled", None, None, None, "", 1), 3))
    assert store.execute(ReadResult(message)) is not None
    eventually(lambda: store.execute(ReadResult(message)) is None)
