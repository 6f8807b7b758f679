"""Entries of many threads are stored together; each has its own outcome, and nobody waits for ever."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import contextmanager, suppress
from types import SimpleNamespace

import pytest

from cqueue.errors import Closed, NotDone, Unavailable
from cqueue.runtime import waiting
from cqueue.runtime.batcher import FIRST_PAUSE_S, LONGEST_PAUSE_S, Batcher, Bounds, calls
from tests.fix_dispatcher import SOON_S, until
from tests.unit.ctrl_c import at_each_moment, on_a_thread
from tests.unit.wanted import Wanted


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Storing:
    """Remembers batches, and gives each entry what `outcome` makes of it. May hold batches back."""

    def __init__(self, *, held=False):
        self.batches = []
        self.outcome = lambda entry: entry
        self.begun = threading.Semaphore(0)
        self.go = threading.Semaphore(0) if held else None

    def __call__(self, entries):
        self.batches.append(entries)
        self.begun.release()
        if self.go is not None:
            assert self.go.acquire(timeout=SOON_S)
        return [self.outcome(entry) for entry in entries]


@pytest.fixture
def storing():
    return Storing()


@pytest.fixture
def held():
    return Storing(held=True)


def batcher(store, most=10, at_a_time=1, **options):
    bounds = {name: options.pop(name) for name in ("linger_s", "enough", "room") if name in options}
    return Batcher(store, Bounds(most, at_a_time, **bounds), name="test", **options)


def busy(batches, held, *entries):
    """Futures of entries, the first of which is being stored."""
    first = batches.submit(entries[0])
    assert held.begun.acquire(timeout=SOON_S)
    return [first, *(batches.submit(entry) for entry in entries[1:])]


def flushed(batches, wait_s):
    batches.hurry()
    return batches.wait_stored(wait_s)


class Caller(threading.Thread):
    """A thread that calls, and keeps the outcome or the error."""

    def __init__(self, batches, entry, limit_s=SOON_S):
        super().__init__(daemon=True)
        self._call = lambda: batches.call(entry, limit_s)
        self.outcome = self.error = None
        self.start()

    def run(self):
        try:
            self.outcome = self._call()
        except BaseException as exc:  # noqa: BLE001 - whatever it is
            self.error = exc

    def end(self):
        self.join(SOON_S)
        assert not self.is_alive()
        return self.outcome if self.error is None else self.error


# ── together ──


def test_what_comes_while_a_batch_is_stored_goes_together(held):
    batches = batcher(held)
    futures = busy(batches, held, 0, 1, 2, 3)
    held.go.release(2)
    assert [future.result(SOON_S) for future in futures] == [0, 1, 2, 3]
    assert held.batches == [[0], [1, 2, 3]]


def test_a_batch_is_stored_as_soon_as_it_is_full(storing):
    """Not later, though the first one would linger for an hour."""
    batches = batcher(storing, most=3, linger_s=3600.0)
    assert [future.result(SOON_S) for future in [batches.submit(entry) for entry in range(3)]] == [0, 1, 2]
    for entry in range(3):
        batches.put(entry)
    assert batches.wait_stored(SOON_S)
    assert storing.batches == [[0, 1, 2]] * 2


def test_the_first_of_a_batch_lingers(storing):
    """Then what is there is stored."""
    batches = batcher(storing, linger_s=0.05)
    begun_s = time.monotonic()
    with batches._mutex:  # its thread sees both, however slow this one is
        futures = [batches.submit(entry) for entry in range(2)]
        assert len(batches._workers) == 1
    assert [future.result(SOON_S) for future in futures] == [0, 1]
    assert time.monotonic() - begun_s >= 0.05
    assert storing.batches == [[0, 1]]


def test_a_batch_has_no_more_entries_than_it_may(held):
    batches = batcher(held, most=2)
    futures = busy(batches, held, 0, 1, 2, 3)
    held.go.release(3)
    assert [future.result(SOON_S) for future in futures] == [0, 1, 2, 3]
    assert held.batches == [[0], [1, 2], [3]]


def test_a_batch_that_has_enough_takes_all_that_is_queued(held):
    """Nobody lingers, though more would fit, and no batch is cut at `enough`."""
    batches = batcher(held, most=5, enough=2, linger_s=3600.0)
    futures = [batches.submit(entry) for entry in range(2)]
    assert held.begun.acquire(timeout=SOON_S)
    futures += [batches.submit(entry) for entry in range(2, 10)]
    held.go.release(3)
    assert [future.result(SOON_S) for future in futures] == list(range(10))
    assert held.batches == [[0, 1], [2, 3, 4, 5, 6], [7, 8, 9]]


def test_so_many_batches_are_stored_at_a_time_and_no_more(held):
    batches = batcher(held, most=1, at_a_time=2)
    futures = [batches.submit(entry) for entry in range(5)]
    for _ in range(2):
        assert held.begun.acquire(timeout=SOON_S)
    assert sorted(held.batches) == [[0], [1]]
    assert batches.pending == 5
    held.go.release(5)
    assert [future.result(SOON_S) for future in futures] == list(range(5))
    assert len(batches._workers) <= 2


def test_nothing_is_lost_however_many_threads_put():
    """Everything is stored once."""
    seen, mutex = [], threading.Lock()

    def store(entries):
        with mutex:
            seen.extend(entries)
        return entries

    batches = batcher(store, most=5, at_a_time=2)
    threads = [
        threading.Thread(target=lambda start=start: [batches.put(start + n) for n in range(2000)])
        for start in range(0, 40_000, 10_000)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert flushed(batches, SOON_S)
    assert len(seen) == len(set(seen)) == 8000


def test_threads_end_when_there_is_nothing_to_store(storing):
    """An idle batcher costs nothing, and is served again afterwards."""
    batches = batcher(storing)
    for entry in range(2):
        batches.put(entry)
        assert batches.wait_stored(SOON_S)
        until(lambda: not batches._workers)
    assert batches.submit(2).result(SOON_S) == 2


def test_what_comes_as_a_threads_wait_ends_is_stored(storing, monkeypatch):
    batches = by_hand(storing, Clock())
    monkeypatch.setattr(batches._entry_came, "wait", lambda _: batches._waiting.append(1))
    assert batches._take(new_first=True).entries == [1]


def test_a_thread_that_ends_beside_a_put_leaves_the_next_put_to_wake_another(storing, monkeypatch):
    """The entry of the first `put` was stored before that came to say that a thread is awake."""
    batches = by_hand(storing, Clock())
    monkeypatch.setattr(batches._entry_came, "wait", lambda _: setattr(batches, "_awake", True))
    assert batches._take(new_first=True) is None
    assert not batches._awake


# ── outcomes ──


def test_each_entry_has_an_outcome_of_its_own(held):
    """One that fails takes no other with it."""
    batches = batcher(held)
    held.outcome = lambda entry: Unavailable("no node") if entry == 2 else entry
    futures = busy(batches, held, 0, 1, 2, 3)
    held.go.release(2)
    assert [future.result(SOON_S) for future in futures if future is not futures[2]] == [0, 1, 3]
    assert isinstance(futures[2].exception(SOON_S), Unavailable)


@pytest.mark.parametrize("wrong", [lambda _: 1 / 0, lambda _: []])
def test_a_batch_that_breaks_is_told_to_all_of_its_callers(wrong):
    """It raised, or forgot entries; the next one is stored."""
    batches = batcher(lambda entries: wrong(entries) if 1 in entries else entries, most=1)
    assert isinstance(batches.submit(1).exception(SOON_S), ZeroDivisionError | ValueError)
    assert batches.call(2, SOON_S) == 2


def test_a_timeout_that_storing_raises_is_told(storing):
    """It is not taken for the caller's own."""

    def late(_):
        raise TimeoutError

    storing.outcome = late
    assert isinstance(Caller(batcher(storing), 1).end(), TimeoutError)


def test_calls_have_what_they_return_or_raise():
    some = calls("test", at_a_time=2, room=8)
    assert some.submit(lambda: 5).result(SOON_S) == 5
    assert isinstance(some.submit(lambda: 1 / 0).exception(SOON_S), ZeroDivisionError)


def test_what_failed_and_is_tried_again_is_pending_once(monkeypatch):
    """Also before its thread looks for the next batch: metrics and drains ask at any time."""
    seen = []

    def look(_):
        seen.append(batches.pending)

    monkeypatch.setattr("cqueue.runtime.batcher.time", SimpleNamespace(sleep=look))
    batches = batcher(lambda entries: [NotDone("no")] * len(entries))
    batches.put(1)
    until(lambda: seen)
    assert seen[0] == 1
    batches.close(drop_after_s=0.0)


# ── waiting, and not ──


def test_what_has_waited_for_all_of_its_time_is_not_stored(held):
    batches = batcher(held)
    (first,) = busy(batches, held, 0)
    assert isinstance(Caller(batches, "late", 0.01).end(), NotDone)
    held.go.release(2)
    assert first.result(SOON_S) == 0
    assert batches.submit(1).result(SOON_S) == 1
    assert held.batches == [[0], [1]]


class Impatient:
    """A lock for which a caller's time is over once its entry is being stored."""

    def __init__(self, begun):
        self._lock, self._begun = threading.Lock(), begun
        self._over, self.again = False, threading.Event()

    def acquire(self, timeout=-1.0):
        if timeout < 0:
            if self._over:
                self.again.set()
            return self._lock.acquire()
        assert self._begun.acquire(timeout=SOON_S)
        self._over = True
        return False

    def release(self):
        self._lock.release()


def test_what_is_being_stored_is_waited_for(held, monkeypatch):
    """However late it is: its outcome is what counts."""
    batches, ended = batcher(held), Impatient(held.begun)
    monkeypatch.setattr(waiting, "lock", lambda: ended)
    caller = Caller(batches, "slow")
    assert ended.again.wait(SOON_S)
    assert caller.is_alive()
    held.go.release()
    assert caller.end() == "slow"


def test_a_future_that_is_cancelled_in_time_is_not_stored(held):
    batches = batcher(held)
    first, second, third = busy(batches, held, 0, 1, 2)
    assert second.cancel()
    assert not first.cancel()
    held.go.release(2)
    assert [first.result(SOON_S), third.result(SOON_S)] == [0, 2]
    assert held.batches == [[0], [2]]


def test_who_submits_waits_for_room(held):
    """So memory is bounded."""
    batches = batcher(held, most=1, room=2)
    busy(batches, held, 0, 1)
    entered, room = threading.Event(), Wanted(batches._entry_done)
    batches._entry_done = room
    threading.Thread(target=lambda: (batches.submit(2), entered.set()), daemon=True).start()
    until(lambda: room.waiting)
    assert not entered.is_set()
    held.go.release()
    assert entered.wait(SOON_S)
    held.go.release(2)
    batches.close()
    assert held.batches == [[0], [1], [2]]


def test_who_waits_for_room_hears_that_it_is_closed(held):
    batches = batcher(held, most=1, room=1)
    busy(batches, held, 0)
    batches._entry_done = room = Wanted(batches._entry_done)
    caller = Caller(batches, 1)
    until(lambda: room.waiting)
    batches.close(drop_after_s=0.0, wait_s=0.0)
    assert isinstance(caller.end(), Closed)
    held.go.release()


def test_what_hears_of_an_outcome_may_submit_more_though_there_is_no_room():
    """It is called on a batcher's own thread, which would wait for itself."""
    some = calls("test", at_a_time=1, room=1)
    more = threading.Event()
    gate = threading.Event()
    first = some.submit(lambda: gate.wait(SOON_S))
    first.add_done_callback(lambda _: some.submit(more.set))
    gate.set()
    assert more.wait(SOON_S)


def test_ctrl_c_while_it_waits_withdraws_an_entry(held):
    """The thread of a caller is all that it stops; the others' entries are stored."""
    batches = batcher(held)
    futures = busy(batches, held, 0, 1)

    def stop():
        until(lambda: len(batches._waiting) == 2)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    threading.Thread(target=stop, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        batches.call("stopped", SOON_S)
    held.go.release(2)
    assert [future.result(SOON_S) for future in futures] == [0, 1]
    assert held.batches == [[0], [1]]


@pytest.fixture
def interrupt_after():
    """`interrupt_after(seconds)` is a block that a signal interrupts then, if it still runs."""
    inside = False

    def interrupt(*_):
        if inside:
            raise KeyboardInterrupt

    @contextmanager
    def after(seconds):
        nonlocal inside
        try:
            inside = True
            signal.setitimer(signal.ITIMER_REAL, seconds)
            yield
        finally:
            inside = False
            signal.setitimer(signal.ITIMER_REAL, 0)

    old = signal.signal(signal.SIGALRM, interrupt)
    yield after
    signal.signal(signal.SIGALRM, old)


@pytest.mark.interrupted
@pytest.mark.timeout(method="thread")  # the timer is in use
def test_ctrl_c_anywhere_in_a_call_holds_up_nobody(interrupt_after):
    """Whenever it comes, what others ask for is stored, and the count of what is left is right."""
    batches = batcher(lambda entries: entries)
    interrupted = 0
    for number in range(400):
        try:
            with interrupt_after((1 + number % 100) * 2e-6):
                batches.call("mine", SOON_S)
        except KeyboardInterrupt:
            interrupted += 1
        assert Caller(batches, "other").end() == "other"
        until(lambda: batches.pending == 0)
    assert interrupted > 10


def test_ctrl_c_at_any_moment_of_a_threads_start_leaves_a_thread_that_ends(storing):
    """A process waits at its end for the batcher's threads."""
    name = "interrupted-start"
    batches = Batcher(storing, Bounds(most=10), name=name)

    def check():
        nonlocal batches
        on_a_thread(batches.close)
        until(lambda: not any(thread.ident for thread in threading.enumerate() if thread.name == name))
        batches = Batcher(storing, Bounds(most=10), name=name)

    assert at_each_moment(lambda: batches.submit("mine"), check) > 10
    batches.close()


@pytest.mark.interrupted
def test_ctrl_c_at_any_moment_of_waiting_for_a_future_holds_up_nobody(held):
    """The future can still be set, so that others' entries are stored."""
    batches = batcher(held)
    future = batches.submit("mine")

    def wait():
        with suppress(TimeoutError):
            future.result(0.001)

    def check():
        nonlocal future
        held.go.release(2)
        assert on_a_thread(lambda: batches.call("other", SOON_S)) == "other"
        assert on_a_thread(future.result) == "mine"
        future = batches.submit("mine")

    assert at_each_moment(wait, check) > 10
    held.go.release()


@pytest.fixture
def no_thread(monkeypatch):
    """A context in which the system has no thread left."""

    def none_left(_):
        raise RuntimeError("can't start new thread")

    @contextmanager
    def lasting():
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", none_left)
            yield

    return lasting


def test_a_thread_that_cannot_be_started_is_told_and_nothing_is_stored(storing, no_thread):
    batches = batcher(storing)
    with no_thread():
        for call in (lambda: batches.submit(1), lambda: batches.call(1, SOON_S)):
            with pytest.raises(NotDone, match="thread"):
                call()
    assert batches.submit(2).result(SOON_S) == 2
    assert storing.batches == [[2]]


@pytest.mark.parametrize("go_on", [lambda batches: batches.put(2), Batcher.hurry])
def test_what_is_put_while_no_thread_can_be_started_is_stored_later(storing, no_thread, go_on):
    """An error would say "not done" of an entry that is stored with the next one."""
    batches = batcher(storing)
    with no_thread():
        batches.put(1)
    go_on(batches)
    assert batches.wait_stored(SOON_S)
    assert storing.batches[0][0] == 1


def test_after_a_fork_calls_say_so(storing):
    """At once, though another thread may have had the mutex, and there are no threads any more."""
    batches = batcher(storing)
    batches._pid += 1
    with batches._mutex:
        for call in (lambda: batches.submit(1), lambda: batches.call(1, SOON_S)):
            with pytest.raises(Closed, match="fork"):
                call()
        on_a_thread(batches.close)


# ── again ──


def by_hand(store, clock, **options):
    """A batcher without threads: `turn` is made by hand."""
    made = batcher(store, clock=clock, **options)
    made._start_thread = lambda: None
    return made


def turn(batches, *, new_first=True):
    """Store one batch, if there is one."""
    with batches._mutex:
        batch = batches._next(new_first=new_first)
    if batch is not None:
        batches._workers[threading.current_thread()] = len(batch.entries)
        batches._run(batch)
        batches._workers.clear()


def test_what_failed_is_stored_again_after_growing_pauses(storing):
    """And what comes new does not wait for it."""
    clock = Clock()
    batches = by_hand(storing, clock)
    storing.outcome = lambda entry: Unavailable("no node") if entry == "old" else entry
    batches.put("old")
    turn(batches)
    pauses = []
    for _ in range(10):
        pauses.append(batches._retries.left_s())
        turn(batches)
        clock.now += pauses[-1]
        turn(batches)
    assert len(storing.batches) == 11
    assert pauses[:3] == pytest.approx([FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S])
    assert pauses[-1] == pytest.approx(LONGEST_PAUSE_S)
    batches.put("new")
    turn(batches)
    assert storing.batches[-1] == ["new"]
    assert batches.pending == 1
    storing.outcome = lambda entry: entry
    clock.now += LONGEST_PAUSE_S
    turn(batches)
    assert storing.batches[-1] == ["old"]
    assert batches.pending == 0


def test_in_a_hurry_pauses_do_not_grow_and_what_is_given_up_counts_once(storing):
    clock = Clock()
    batches = by_hand(storing, clock)
    storing.outcome = lambda _: Unavailable("no node")
    batches.put(1)
    batches.hurry()
    for _ in range(3):
        turn(batches)
        assert batches._retries.left_s() == pytest.approx(FIRST_PAUSE_S)
        clock.now += FIRST_PAUSE_S
    batches.close(drop_after_s=0.0)
    turn(batches)
    assert len(storing.batches) == 3
    assert batches.pending == 1


def test_what_is_new_and_what_failed_take_turns(storing):
    """Neither keeps the other waiting, however much there is of it."""
    clock = Clock()
    batches = by_hand(storing, clock, most=1)
    storing.outcome = lambda entry: Unavailable("no node") if entry < 2 else entry
    for entry in range(2):
        batches.put(entry)
        turn(batches)
    clock.now += LONGEST_PAUSE_S
    for entry in range(2, 4):
        batches.put(entry)
    del storing.batches[:]
    for new_first in (True, False, True, False):
        turn(batches, new_first=new_first)
    assert storing.batches == [[2], [0], [3], [1]]


def test_its_thread_takes_what_is_new_and_what_failed_in_turn(storing, monkeypatch):
    batches = by_hand(storing, Clock())
    asked = []

    def take(*, new_first):
        asked.append(new_first)
        return None if len(asked) > 3 else SimpleNamespace(entries=[], futures={}, tries=len(asked) % 2)

    monkeypatch.setattr(batches, "_take", take)
    batches._work()
    assert asked == [True, True, False, True]


def test_what_is_new_does_not_wait_for_the_pause_of_what_failed(storing, monkeypatch):
    monkeypatch.setattr("cqueue.runtime.batcher.FIRST_PAUSE_S", LONGEST_PAUSE_S * 100)
    monkeypatch.setattr("cqueue.runtime.batcher.LONGEST_PAUSE_S", LONGEST_PAUSE_S * 100)
    storing.outcome = lambda entry: Unavailable("no node") if entry == "old" else entry
    batches = batcher(storing, daemon=True)
    batches._entry_came = came = Wanted(batches._entry_came)
    batches.put("old")
    for number in range(2):
        until(lambda number=number: len(came.waiting) > number)
        assert batches.submit(number).result(SOON_S) == number
    storing.outcome = lambda entry: entry
    batches.close()


def test_what_failed_is_repeated_by_what_it_has_in_common(storing):
    """So one wide row that cannot be reached delays no other; what did not fail is not stored again."""
    batches = by_hand(storing, Clock(), repeat=lambda entry: entry[0])
    storing.outcome = lambda entry: entry if entry == "b2" else Unavailable("no node")
    for entry in ("a1", "b1", "a2", "b2"):
        batches.put(entry)
    turn(batches)
    assert batches.pending == 3
    storing.outcome = lambda entry: entry
    batches.hurry()
    turn(batches)
    turn(batches)
    assert storing.batches[1:] == [["a1", "a2"], ["b1"]]
    assert batches.pending == 0


def test_what_raises_is_stored_again():
    """What was put is not lost by a bug."""
    tries = []

    def store(entries):
        tries.append(entries)
        if len(tries) == 1:
            raise RuntimeError("a bug")
        return entries

    batches = batcher(store)
    batches.put(1)
    assert flushed(batches, SOON_S)
    assert tries == [[1], [1]]


def test_in_a_hurry_nobody_lingers_and_no_pause_is_long(storing):
    """At a stop there is no time for either."""
    batches = batcher(storing, linger_s=3600.0)
    storing.outcome = lambda entry: Unavailable("no node") if len(storing.batches) < 3 else entry
    batches.put(1)
    assert flushed(batches, SOON_S)
    assert storing.batches == [[1]] * 3


def test_a_flush_says_when_something_is_left(held):
    batches = batcher(held)
    batches.put(1)
    assert not flushed(batches, 0.01)
    held.go.release()
    assert flushed(batches, SOON_S)


# ── close ──


def test_what_waits_is_stored_before_it_closes(held):
    batches = batcher(held)
    futures = busy(batches, held, 0, 1, 2)
    held.go.release(2)
    batches.close()
    assert [future.result(0) for future in futures] == [0, 1, 2]
    for late in (batches.submit, batches.put):
        with pytest.raises(Closed):
            late(3)


@pytest.mark.parametrize(("drop_after_s", "queued"), [(None, []), (SOON_S, [1])])
def test_a_close_waits_for_what_is_queued_or_fails(held, drop_after_s, queued):
    batches = batcher(held)
    held.outcome = lambda entry: Unavailable("no node") if len(held.batches) == 1 else entry
    batches.put(0)
    assert held.begun.acquire(timeout=SOON_S)
    for entry in queued:
        batches.put(entry)
    closing = threading.Thread(target=lambda: batches.close(drop_after_s=drop_after_s), daemon=True)
    closing.start()
    until(lambda: batches._closed)
    held.go.release(3)
    closing.join(SOON_S)
    assert sorted(held.batches) == [[0], [0], *([entry] for entry in queued)]


def test_at_a_close_nobody_lingers(storing):
    batches = batcher(storing, linger_s=3600.0, daemon=True)
    future = batches.submit(1)
    batches.close(wait_s=SOON_S)
    assert future.result(0) == 1


def test_what_is_dropped_is_not_stored(held):
    """What is being stored goes on; nobody waits for the rest."""
    batches = batcher(held)
    first, second = busy(batches, held, 0, 1)
    caller = Caller(batches, 2)
    until(lambda: len(batches._waiting) == 2)
    assert batches.submit(3).cancel()
    batches.put(4)
    batches.close(drop_after_s=0.0, wait_s=0.0)
    held.go.release()
    assert first.result(SOON_S) == 0
    assert isinstance(second.exception(SOON_S), Closed)
    assert isinstance(caller.end(), Closed)
    until(lambda: batches.pending == 4)  # what was given up still counts as not stored
    assert held.batches == [[0]]


def test_callbacks_of_what_is_dropped_may_wait_for_other_threads(held):
    """One that waits for a lock of the application, whose holder is just putting an entry, ended nothing."""
    batches = batcher(held)
    _, second = busy(batches, held, 0, 1)
    seen = []

    def tell(_):
        other = threading.Thread(target=lambda: seen.append(batches.pending), daemon=True)
        other.start()
        other.join(SOON_S)

    second.add_done_callback(tell)
    batches.close(drop_after_s=0.0, wait_s=0.0)
    assert seen == [2]
    held.go.release()


def test_what_fails_after_the_rest_was_dropped_is_not_stored_again():
    """Its thread ends: a dispatcher that has stopped sends nothing any more, though its client lives."""
    go, tries = threading.Event(), []

    def store(entries):
        tries.append(entries)
        go.wait(SOON_S)
        return [Unavailable("away")] * len(entries)

    batches = Batcher(store, Bounds(), name="test", daemon=True)
    batches.put(0)
    until(lambda: tries)
    batches.close(drop_after_s=0.0, wait_s=0.0)
    go.set()
    until(lambda: not batches._workers)
    assert tries == [[0]]
    assert batches.pending == 1
