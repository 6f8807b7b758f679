"""How a spool slows its callers down: water marks with hysteresis, waiting or refusing."""

from __future__ import annotations

import os
import signal
import sys
import threading
from concurrent.futures import wait
from contextlib import contextmanager
from datetime import timedelta

import pytest

from cqueue import errors
from cqueue.spool import Spool
from cqueue.spool.intake import Intake
from cqueue.spool.writer import Writer
from tests.fix_dispatcher import until
from tests.spool.images import UnsyncedDisk
from tests.unit.ctrl_c import at_each_moment, on_a_thread
from tests.unit.wanted import Wanted

TOPIC = "mail"


@pytest.fixture
def make(tmp_path):
    made = []

    def spool(**options):
        options = {"disk_reserve": 0, "segment_bytes": 65536, **options}
        made.append(Spool(tmp_path / "spool", **options))
        return made[-1]

    yield spool
    for one in made:
        one.close()


@contextmanager
def handled_by(handler):
    """Have a handler for SIGUSR1 within the block."""
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def signal_in(monkeypatch, owner, name):
    """Have the next call of a method raise SIGUSR1 before it goes on."""
    method = getattr(owner, name)

    def interrupted(*args):
        monkeypatch.undo()
        signal.raise_signal(signal.SIGUSR1)
        return method(*args)

    monkeypatch.setattr(owner, name, interrupted)


def fill(spool, count):
    wait([spool.append(TOPIC, b"x") for _ in range(count)], timeout=10)


def test_a_full_spool_refuses_until_half_is_consumed(make):
    """At 80 % of the records appends are refused; one consumed message does not help, the half does."""
    spool = make(max_records=100, on_full="raise")
    fill(spool, 80)
    for consumed in (0, 1, 30):
        spool.commit(TOPIC, consumed)
        assert spool.is_full()
        with pytest.raises(errors.SpoolFull, match=r"messages in .* bytes that are not consumed"):
            spool.append(TOPIC, b"x")
    spool.commit(TOPIC, 31)
    assert not spool.is_full()
    assert spool.append(TOPIC, b"x").result(10) == 80


def test_bytes_count_as_well(make):
    """The limit of bytes holds although there are few records."""
    spool = make(max_bytes=10_000, on_full="raise")
    spool.append(TOPIC, b"x" * 9000).result(10)
    with pytest.raises(errors.SpoolFull):
        spool.append(TOPIC, b"x")
    spool.commit(TOPIC, 1)
    spool.append(TOPIC, b"x").result(10)


def test_a_message_larger_than_the_rest_waits_for_room_and_others_pass(make):
    """The limit itself is never passed."""
    spool = make(max_bytes=10_000, on_full="raise")
    spool.append(TOPIC, b"x" * 4000).result(10)
    with pytest.raises(errors.SpoolFull):
        spool.append(TOPIC, b"x" * 8000)
    spool.append(TOPIC, b"x" * 10).result(10)
    with pytest.raises(errors.BadInput, match="max_bytes"):
        spool.append(TOPIC, b"x" * 11_000)


def test_a_caller_waits_until_there_is_room(make):
    """With `block` an append goes on when enough is consumed."""
    spool = make(max_records=10)
    fill(spool, 8)
    done, room = [], Wanted(spool._intake._room)
    spool._intake._room = room
    thread = threading.Thread(target=lambda: done.append(spool.append(TOPIC, b"late").result(10)))
    thread.start()
    until(lambda: thread in room.waiting)
    assert spool.end(TOPIC) == 8
    spool.commit(TOPIC, 8)
    thread.join(10)
    assert done == [8]


def test_a_caller_waits_no_longer_than_it_was_told(make):
    """After `block_timeout` nothing was stored, and the caller knows."""
    spool = make(max_records=10, block_timeout=timedelta(milliseconds=20))
    fill(spool, 8)
    with pytest.raises(errors.SpoolFull):
        spool.append(TOPIC, b"x")
    assert spool.status()[0].end == 8


def test_close_ends_the_waiting(make):
    """A caller that waits for room is told that the spool was closed."""
    spool = make(max_records=10)
    fill(spool, 8)
    errors_seen = []

    def late():
        try:
            spool.append(TOPIC, b"x")
        except errors.Closed as exc:
            errors_seen.append(exc)

    thread = threading.Thread(target=late)
    thread.start()
    spool.close()
    thread.join(10)
    assert len(errors_seen) == 1


def test_the_backlog_is_known_after_an_open(make):
    """What an earlier process left counts, less what was consumed of it."""
    spool = make(max_records=100, on_full="raise")
    fill(spool, 80)
    spool.commit(TOPIC, 20)
    spool.close()
    spool = make(max_records=70, on_full="raise")
    with pytest.raises(errors.SpoolFull, match="60 messages"):
        spool.append(TOPIC, b"x")


def test_the_level_is_exact_over_segments(make):
    """Bytes are counted from the first record that is not consumed, whichever segment has it."""
    spool = make(segment_bytes=4096)
    fill(spool, 1000)
    for consumed in (0, 1, 127, 128, 500, 999, 1000):
        spool.commit(TOPIC, consumed)
        used = spool.used()
        assert (used.records, used.size) == (1000 - consumed, (1000 - consumed) * 32)


def test_the_disk_reserve_is_kept(make):
    """No segment is created that would leave less than the reserve free."""
    spool = make(disk_reserve=1 << 60)
    with pytest.raises(errors.SpoolFull, match=r"takes 65,536 .* free.* disk_reserve keeps"):
        spool.append(TOPIC, b"x").result(10)
    assert spool.used().records == 0


def test_a_ctrl_c_at_any_moment_leaves_the_spool_to_others(make):
    """Whenever it ends a caller that appends, waits or commits: other threads are served, and limits hold."""
    spool = make(disk=UnsyncedDisk(), segment_bytes=1 << 20)

    at = spool.append(TOPIC, b"first").result(5)

    def go_on():
        nonlocal at
        at = on_a_thread(lambda: spool.append(TOPIC, b"y").result(5))
        assert spool.wait(TOPIC, 0, at, 5)

    assert at_each_moment(lambda: spool.append(TOPIC, b"x").result(5), go_on) > 50
    assert at_each_moment(lambda: spool.wait(TOPIC, 0, at + 1000, 0.001), go_on) > 10
    assert at_each_moment(lambda: spool.commit(TOPIC, at), go_on) > 10
    spool.commit(TOPIC, at)
    assert spool.used().records == spool.status()[0].end - at


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of files that a Ctrl-C leaves to the collector
def test_a_ctrl_c_while_a_spool_opens_leaves_nothing_behind(tmp_path):
    """At any moment: the lock is free again, and no thread is left."""
    spool = None

    def running():
        return {thread for thread in threading.enumerate() if thread.is_alive()}

    def reopen():
        nonlocal spool
        spool = Spool(tmp_path / "spool", disk=UnsyncedDisk(), disk_reserve=0, segment_bytes=65536)

    def check():
        spool.close()
        reopen()
        assert [one.payload for one in spool.records(TOPIC)] == [b"x"]
        spool.close()

    before = running()
    reopen()
    spool.append(TOPIC, b"x").result(5)
    check()
    assert at_each_moment(reopen, check) > 50
    spool.close()
    until(lambda: running() <= before)


def test_a_close_that_a_ctrl_c_ends_lets_nobody_in_before_all_is_stored(make, monkeypatch):
    """The next spool has every message that was acknowledged, and appends behind all of them."""

    class Held(UnsyncedDisk):
        def sync(self, handle):
            go.wait(20)

    go = threading.Event()
    spool = make(disk=Held())
    futures = [spool.append(TOPIC, b"%d" % number) for number in range(20)]
    with monkeypatch.context() as patch:
        patch.setattr(Writer, "join", lambda _: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            spool.close()
    with pytest.raises(errors.Closed):
        spool.append(TOPIC, b"late")
    with pytest.raises(errors.SpoolLocked):
        make()
    go.set()
    until(lambda: not spool.is_open)
    spool.close()
    again = make()
    assert [future.result(0) for future in futures] == list(range(20))
    assert again.append(TOPIC, b"20").result(5) == 20
    assert [one.payload for one in again.records(TOPIC)] == [b"%d" % number for number in range(21)]


def test_a_signal_handler_may_append_and_close_while_its_thread_waits(make):
    """The program's own handler is served in the middle of an append, and the append comes to its end."""

    class Signalling(UnsyncedDisk):
        signals = 0

        def sync(self, handle):
            if spool is not None and not self.signals:
                self.signals += 1
                until(lambda: sys._current_frames()[caller].f_code.co_name == "wait")
                os.kill(os.getpid(), signal.SIGUSR1)

    def last_words(*_):
        said.append(spool.append(TOPIC, b"last").result(5))
        spool.close()

    spool, said, caller = None, [], threading.get_ident()
    with handled_by(last_words):
        spool = make(disk=Signalling())
        assert spool.append(TOPIC, b"x").result() == 0
    assert said == [1]
    assert not spool.is_open


@pytest.mark.parametrize("call", ["append", "close"])
def test_a_signal_handler_that_could_only_wait_for_its_own_thread_is_refused(make, monkeypatch, call):
    """In the moment in which that thread holds the lock that the writer needs: else both would hang."""
    spool, told = make(), []

    def handler(*_):
        with pytest.raises(errors.NotDone, match="set a flag") as raised:
            spool.append(TOPIC, b"last").result(5) if call == "append" else spool.close()
        told.append(raised)

    with handled_by(handler):
        signal_in(monkeypatch, Intake, "_has_room")
        assert spool.append(TOPIC, b"x").result(5) == 0
    assert told
    assert spool.append(TOPIC, b"y").result(5) == 1


def test_a_signal_handler_cannot_append_below_the_first_append_to_a_queue(make, monkeypatch):
    """While its own thread looks for the queue on the disk; it hung there."""
    spool, told = make(), []

    def handler(*_):
        with pytest.raises(errors.NotDone, match="set a flag"):
            spool.append("other", b"last")
        told.append(1)

    with handled_by(handler):
        signal_in(monkeypatch, Spool, "_new_queue")
        assert spool.append(TOPIC, b"x").result(5) == 0
    assert told
    assert spool.append("other", b"y").result(5) == 0


def test_a_signal_handler_cannot_close_below_a_commit_of_its_own_thread(make):
    """The close would wait for the commit, and the commit for the handler."""

    class Signalling(UnsyncedDisk):
        armed = False

        def sync(self, handle):
            if self.armed:
                self.armed = False
                signal.raise_signal(signal.SIGUSR1)

    def handler(*_):
        with pytest.raises(errors.NotDone, match="set a flag"):
            spool.close()
        told.append(1)

    told, disk = [], Signalling()
    spool = make(disk=disk)
    spool.append(TOPIC, b"x").result(5)
    with handled_by(handler):
        disk.armed = True
        spool.commit(TOPIC, 1)
    assert told
    assert spool.progress(TOPIC) == 1


def test_a_commit_under_way_ends_before_the_spool_is_closed(make):
    """Its file is closed behind it, and not below it: another file may have the number by then."""

    class Slow(UnsyncedDisk):
        slow = False

        def sync(self, handle):
            if self.slow:
                self.slow = False
                begun.set()
                until(lambda: len(lock.by) > 1 or not spool.is_open)  # the close comes, and waits
            os.fstat(handle)

    begun, disk = threading.Event(), Slow()
    spool = make(disk=disk)
    spool.append(TOPIC, b"x").result(5)
    spool.append(TOPIC, b"y").result(5)
    queue = spool._queues[TOPIC, 0]
    queue._committing = lock = Wanted(queue._committing)
    disk.slow = True
    commit = threading.Thread(target=spool.commit, args=(TOPIC, 1))
    commit.start()
    begun.wait(5)
    spool.close()
    commit.join(5)
    assert make().progress(TOPIC) == 1
