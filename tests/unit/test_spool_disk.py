"""A disk that is full or fails, at every single call: an error, and nothing acknowledged is lost."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import subprocess
from datetime import timedelta
from functools import partial

import pytest

from cqueue import errors
from cqueue.spool import Spool, writer
from cqueue.spool.disk import Disk
from cqueue.spool.queue_writer import QueueWriter
from tests.fix_dispatcher import until
from tests.spool.faulty import FOR_EVER, FaultyDisk

TOPIC = "mail"
# Three pairs fit into a segment.
PAYLOADS = [(b"%d " % number * 300)[:600] for number in range(9)]


class Run:
    """A producer's day with a disk that fails: what each append was told, and what is found afterwards."""

    def __init__(self, root, disk, fsync="always"):
        self.told = {}
        self.doubted = set()
        self.consumed = 0
        self.root = root
        shutil.rmtree(root, ignore_errors=True)
        # The directory was there before, so that only what happens to messages fails.
        root.mkdir()
        spool = Spool(root, disk=disk, fsync=fsync, segment_bytes=4096, disk_reserve=0)
        for number, payload in enumerate(PAYLOADS):
            self.append(spool, payload)
            if number == 5:
                self.commit(spool, 8)
        self.image = shutil.copytree(root, root.with_name("image"), dirs_exist_ok=False)
        try:
            spool.close()
        except errors.SpoolFailed as exc:
            self.doubted |= set(exc.offsets)

    def append(self, spool, payload):
        try:
            # The first half of what is written is a whole record.
            self.told[payload] = spool.append_many(TOPIC, [payload, payload + b"+"]).result(10).start
        except errors.SpoolFull:
            self.told[payload] = errors.SpoolFull
        except errors.SpoolFailed as exc:
            self.told[payload] = errors.SpoolFailed
            self.doubted |= set(exc.offsets)

    def commit(self, spool, offset):
        # A commit that fails may have been written: then these messages do not come again.
        self.consumed = offset
        with contextlib.suppress(errors.SpoolFailed, errors.BadInput):
            spool.commit(TOPIC, offset)

    def check(self, root):
        with Spool(root, segment_bytes=4096, disk_reserve=0) as spool:
            found = {one.offset: one.payload for one in spool.records(TOPIC, 0, 0)}
            first = spool.status()[0].first if spool.status() else 0
            lost = {offset for status in spool.status() for span in status.lost for offset in span}
        for payload, answer in self.told.items():
            if isinstance(answer, int) and answer not in self.doubted:
                assert answer < first or found.get(answer) == payload, f"{payload[:3]!r} was acknowledged"
            if answer is errors.SpoolFull:
                assert payload not in found.values(), f"{payload[:3]!r} was refused, and is there"
        assert {payload.rstrip(b"+") for payload in found.values()} <= set(PAYLOADS)
        assert len(set(found.values())) == len(found)
        assert lost <= self.doubted
        assert set(range(self.consumed, first)) <= self.doubted


def calls(tmp_path, fsync):
    disk = FaultyDisk()
    Run(tmp_path / "spool", disk, fsync)
    shutil.rmtree(tmp_path / "image")
    return disk.calls


class Recorded:
    """The module `os` of a disk: it notes the calls, writes two bytes at a time, and may fail at one."""

    def __init__(self):
        self.calls = []
        self.fails = ""

    def __getattr__(self, name):
        real = getattr(os, name)
        return partial(self._call, name, real) if callable(real) else real

    def _call(self, name, real, *args):
        self.calls.append(name)
        if name == self.fails:
            raise OSError(errno.EIO, name)
        return real(*args)

    def pwrite(self, handle, data, position):
        self.calls.append("pwrite")
        return os.pwrite(handle, data[:2], position)


def test_a_file_has_its_name_once_it_is_durable_and_a_creation_that_fails_leaves_nothing(
    tmp_path, monkeypatch
):
    disk, path, system = Disk(), tmp_path / "made" / "file", Recorded()
    monkeypatch.setattr("cqueue.spool.disk.os", system)
    named = ["open", "fsync", "close"]
    disk.make_directory(path.parent)
    assert system.calls == named
    handle = disk.create(path, b"abc", size=4096)
    assert system.calls == [*named, "open", "posix_fallocate", "pwrite", "pwrite", "fdatasync", *named]
    disk.cut(handle, 3)
    os.close(handle)
    assert path.read_bytes() == b"abc"
    system.fails = "fdatasync"
    with pytest.raises(OSError, match="fdatasync"):
        disk.create(path, b"later")
    assert system.calls[-1] == "close"
    assert list(path.parent.iterdir()) == [path]
    assert path.read_bytes() == b"abc"


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 2, FOR_EVER], ids=["once", "twice", "from-then-on"])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO], ids=["ENOSPC", "EIO"])
@pytest.mark.parametrize("fsync", ["always", "os"])
def test_every_call_may_fail(tmp_path, error, times, fsync):
    """Whichever call to the disk fails: acknowledged messages are there, refused ones are not, in two worlds.

    The two worlds are the directory as a crash leaves it, and as `close` does.
    """
    names = calls(tmp_path, fsync)
    assert {"write", "reserve", "sync", "cut", "sync_directory"} <= set(names)
    answers = set()
    for at in range(len(names)):
        run = Run(tmp_path / "spool", FaultyDisk(at=at, times=times, error=error), fsync)
        answers |= {answer for answer in run.told.values() if not isinstance(answer, int)}
        run.check(run.image)
        run.check(run.root)
        shutil.rmtree(run.image)
    assert answers == {errors.SpoolFull, errors.SpoolFailed}


def test_an_empty_segment_that_cannot_be_sealed_ends_nothing(tmp_path):
    """The second one takes nothing, and then the disk does not seal it either."""
    names = calls(tmp_path, "always")
    second = names.index("reserve", names.index("reserve") + 1)
    run = Run(tmp_path / "spool", FaultyDisk(at=names.index("sync_directory", second) + 1, times=2))
    assert [answer for answer in run.told.values() if not isinstance(answer, int)] == [errors.SpoolFailed]
    run.check(run.root)


def test_a_disk_that_was_full_goes_on_when_it_is_not(tmp_path):
    """After a failure the next append is stored: neither a full disk nor a failed fsync ends the spool."""
    names = calls(tmp_path, "always")
    for at, name in enumerate(names):
        run = Run(tmp_path / "spool", FaultyDisk(at=at), "always")
        failed = [payload for payload, answer in run.told.items() if not isinstance(answer, int)]
        assert len(failed) <= 1, (name, at)
        shutil.rmtree(run.image)


def test_nothing_is_acknowledged_before_it_is_durable(tmp_path):
    """The calls stand in the order that makes each step durable before the next one relies on it."""
    disk = FaultyDisk()
    created = ["write", "sync", "sync_directory"]
    with Spool(tmp_path, disk=disk, disk_reserve=0) as spool:
        assert disk.calls == []
        spool.append(TOPIC, b"a").result(10)
        # A directory each for the topic and the queue; then the progress; the segment; then the message.
        directories = ["sync_directory"] * 2
        assert disk.calls == [*directories, *created, "reserve", *created, "write", "sync"]
        disk.calls.clear()
        spool.append(TOPIC, b"b").result(10)
        assert disk.calls == ["write", "sync"]
        disk.calls.clear()
        spool.commit(TOPIC, 1)
        spool.commit(TOPIC, 2)
        assert disk.calls == ["write", "sync"] * 2
        disk.calls.clear()
    assert disk.calls == ["cut", "write", "sync"]
    with Spool(tmp_path, disk=disk, disk_reserve=0) as spool:
        disk.calls.clear()
        spool.commit(TOPIC, 2)  # changes nothing
        assert disk.calls == []


def test_a_commit_whose_sync_failed_writes_both_slots_again(tmp_path):
    """What the file holds is unknown then, so the next commit makes sure of the slot of before first."""
    disk = FaultyDisk()
    with Spool(tmp_path, disk=disk, disk_reserve=0) as spool:
        spool.append_many(TOPIC, [b"a", b"b", b"c"]).result(10)
        spool.commit(TOPIC, 1)
        disk.at = len(disk.calls) + 1
        with pytest.raises(errors.SpoolFailed, match="unknown whether 2 is committed"):
            spool.commit(TOPIC, 2)
        disk.calls.clear()
        spool.commit(TOPIC, 3)
        assert disk.calls == ["sync_directory", "write", "sync", "write", "sync"]
    with Spool.open_readonly(tmp_path) as spool:
        assert spool.progress(TOPIC) == 3
        assert spool.verify() == []


@pytest.mark.parametrize("times", [1, FOR_EVER], ids=["once", "from-then-on"])
def test_whichever_call_of_a_commit_fails_progress_stays(tmp_path, times):
    """Also of the first commit of a process: progress is that of the last commit that worked, or newer."""
    root, image = tmp_path / "spool", tmp_path / "image"
    with Spool(root, disk_reserve=0) as spool:
        spool.append_many(TOPIC, [b"x"] * 6).result(10)
        for offset in (1, 2):
            spool.commit(TOPIC, offset)
    for at in range(9):  # three calls to open the file, and two for each commit; from 7 on of the last one
        copy = shutil.copytree(root, tmp_path / str(at))
        disk, done = FaultyDisk(), 2
        with Spool(copy, disk=disk, disk_reserve=0) as spool:
            disk.at, disk.times = len(disk.calls) + at, times
            for offset in (3, 4, 5):
                with contextlib.suppress(errors.SpoolFailed):
                    spool.commit(TOPIC, offset)
                    done = offset
                shutil.copytree(copy, image)  # as a kill leaves it
                with Spool(image, disk_reserve=0) as found:
                    assert done <= found.progress(TOPIC) <= offset
                shutil.rmtree(image)
        assert (done == 5) is (times == 1 and at < 7), at


def test_a_failed_sync_is_never_asked_again(tmp_path):
    """A segment whose fsync failed gets no second one that might succeed: the next append has a new file."""
    disk = FaultyDisk()
    with Spool(tmp_path / "spool", disk=disk, disk_reserve=0, segment_bytes=4096) as spool:
        spool.append(TOPIC, b"a").result(10)
        disk.at = len(disk.calls) + 1
        with pytest.raises(errors.SpoolFailed, match="fsync failed") as failure:
            spool.append(TOPIC, b"b").result(10)
        assert failure.value.offsets == range(1, 2)
        assert [one.handle for one in spool._queues[TOPIC, 0].segments] == [-1]
        before = spool.status()[0].segments
        assert spool.append(TOPIC, b"c").result(10) == 2
        assert spool.status()[0].segments == before + 1


@pytest.mark.parametrize("fsync", ["interval:1ms"])
def test_a_failed_sync_behind_the_callers_back_is_told_by_the_next_append(tmp_path, fsync):
    """Messages that were acknowledged before their fsync failed are named, once, as in doubt."""
    disk = FaultyDisk(error=errno.EIO)
    with Spool(tmp_path / "spool", disk=disk, disk_reserve=0, fsync=fsync) as spool:
        spool.append(TOPIC, b"a").result(10)
        until(lambda: disk.calls[-1] == "sync")
        disk.at, disk.times = len(disk.calls) + 1, FOR_EVER
        assert spool.append(TOPIC, b"b").result(10) == 1
        until(lambda: len(disk.calls) > disk.at)
        disk.times = 0
        with pytest.raises(errors.SpoolFailed, match="told late") as failure:
            spool.append(TOPIC, b"c").result(10)
        assert failure.value.offsets == range(1, 2)
        assert spool.append(TOPIC, b"d").result(10) == 2


def test_a_spool_opens_on_a_disk_that_takes_nothing(tmp_path):
    """What was stored can be read although no file can be sealed or deleted, and later all goes on."""
    root = tmp_path / "spool"
    with Spool(root, disk_reserve=0) as spool:
        spool.append(TOPIC, b"a").result(10)
        image = shutil.copytree(root, tmp_path / "image")
    (image / TOPIC / "0" / "left.new").write_bytes(b"")
    with Spool(image, disk=FaultyDisk(at=0, times=FOR_EVER), disk_reserve=0) as spool:
        assert [one.payload for one in spool.records(TOPIC)] == [b"a"]
        with pytest.raises(errors.SpoolFull):
            spool.append(TOPIC, b"b").result(10)
    with Spool(image, disk_reserve=0) as spool:
        assert spool.append(TOPIC, b"b").result(10) == 1


@pytest.mark.parametrize("fsync", ["always", "os"])
def test_a_deleted_spool_takes_nothing_more(tmp_path, fsync):
    """No reader would find it. Nor is the directory made again: nothing would keep other processes out."""
    root = tmp_path / "spool"
    with Spool(root, fsync=fsync, disk_reserve=0) as spool:
        spool.append(TOPIC, b"a").result(10)
        shutil.rmtree(root)
        for topic in (TOPIC, TOPIC, "other"):
            with pytest.raises(errors.SpoolFull, match="was deleted"):
                spool.append(topic, b"b").result(10)
        assert not root.exists()
        with Spool(root, disk_reserve=0) as another, pytest.raises(errors.SpoolFull, match="was deleted"):
            spool.append(TOPIC, b"c").result(10)
        assert another.queues() == []


def test_a_deleted_lock_lets_no_second_process_write_beside_the_first(tmp_path):
    """Both would give the same offsets to their records, and one of two segments would not be read."""
    root = tmp_path / "spool"
    with Spool(root, disk_reserve=0) as spool:
        spool.append(TOPIC, b"a").result(10)
        (root / ".lock").unlink()
        with Spool(root, disk_reserve=0) as another:
            with pytest.raises(errors.SpoolFull, match=r"\.lock was deleted or moved; open the spool again"):
                spool.append(TOPIC, b"b").result(10)
            assert another.append(TOPIC, b"c").result(10) == 1
    with Spool(root, disk_reserve=0) as spool:
        assert [one.payload for one in spool.records(TOPIC)] == [b"a", b"c"]
        assert spool.verify() == []


def test_a_queue_whose_directory_was_deleted_begins_another_segment(tmp_path):
    """The append that finds that out is refused, and the next ones are stored; what is gone is a range."""
    root = tmp_path / "spool"
    with Spool(root, disk_reserve=0) as spool:
        spool.append(TOPIC, b"a").result(10)
        shutil.rmtree(root / TOPIC)
        with pytest.raises(errors.SpoolFull, match="was deleted"):
            spool.append(TOPIC, b"b").result(10)
        assert spool.append(TOPIC, b"c").result(10) == 1
        assert [one.payload for one in spool.pull(TOPIC, 0, 0, 9)] == [b"c"]
        assert spool.status()[0].lost == [range(1)]
    with Spool(root, disk_reserve=0) as spool:
        assert [one.payload for one in spool.records(TOPIC)] == [b"c"]


def test_what_lies_in_a_spool_that_was_moved_is_not_passed_over(tmp_path):
    """It is an error of the disk, and no range: its reader gets it once the directory is back."""
    root, away = tmp_path / "spool", tmp_path / "away"
    with Spool(root, disk_reserve=0) as spool:
        spool.append(TOPIC, b"a").result(10)
        root.rename(away)
        with pytest.raises(FileNotFoundError):
            spool.pull(TOPIC, 0, 0, 9)
        assert not root.exists()
        away.rename(root)
        assert [one.payload for one in spool.pull(TOPIC, 0, 0, 9)] == [b"a"]
        assert spool.status()[0].lost == []


def test_a_spool_in_the_place_of_one_that_was_moved_is_another(tmp_path):
    """The first process neither passes over what was moved, nor says where the other one's reader stands."""
    root, away = tmp_path / "spool", tmp_path / "away"
    with Spool(root, disk_reserve=0) as spool:
        for _ in range(2):
            spool.append(TOPIC, b"a").result(10)
        root.rename(away)
        with Spool(root, disk_reserve=0) as another:
            another.append(TOPIC, b"b").result(10)
            with pytest.raises(FileNotFoundError, match="open the spool again"):
                spool.pull(TOPIC, 0, 0, 9)
            with pytest.raises(errors.SpoolFailed, match="open the spool again"):
                spool.commit(TOPIC, 2)
            assert another.status()[0].lost == []
    for path, waiting in ((root, [b"b"]), (away, [b"a", b"a"])):
        with Spool.open_readonly(path) as left:
            assert [one.payload for one in left.records(TOPIC)] == waiting


def test_readers_see_only_what_is_durable(tmp_path):
    """With `always`, a message is not read before its fsync: else it could be forwarded and then lost."""
    seen = []

    class Watching(FaultyDisk):
        def sync(self, handle):
            seen.append(len(spool.pull(TOPIC, 0, 0, 10)))
            super().sync(handle)

    with Spool(tmp_path / "spool", disk=Watching(), disk_reserve=0) as spool:
        for _ in range(3):
            spool.append(TOPIC, b"a").result(10)
        assert seen[-3:] == [0, 1, 2]


def test_a_file_that_cannot_be_deleted_ends_nothing(tmp_path):
    """Expiry that fails is logged; appends go on, and the next open deletes the file."""
    root, disk = tmp_path / "spool", FaultyDisk()
    with Spool(root, disk_reserve=0) as spool:
        spool.append(TOPIC, b"a").result(10)
        spool.commit(TOPIC, 1)
    disk.at, disk.times = 0, FOR_EVER
    spool = Spool(root, disk=disk, disk_reserve=0)
    assert disk.calls == ["remove"]
    disk.times = 0
    assert spool.append(TOPIC, b"b").result(10) == 1
    spool.close()
    with Spool(root, disk_reserve=0) as spool:
        assert spool.status()[0].segments == 1
        assert [one.payload for one in spool.records(TOPIC)] == [b"b"]


def test_a_segment_whose_sync_failed_expires_once_a_later_one_is_stored(tmp_path, monkeypatch):
    """Its offsets are not the end that readers know, so they cannot be committed before."""
    looks, expire = [], QueueWriter.expire

    def expired_early(self, now_ms):
        looks.append(now_ms)
        expire(self, now_ms + 10_000)

    monkeypatch.setattr(writer, "EXPIRY_S", 0.01)
    monkeypatch.setattr(QueueWriter, "expire", expired_early)
    disk = FaultyDisk(error=errno.EIO)
    limits = {"retention": timedelta(seconds=1), "expire_unconsumed": True}
    with Spool(tmp_path / "spool", disk=disk, disk_reserve=0, **limits) as spool:
        spool.append(TOPIC, b"a").result(10)
        disk.at = len(disk.calls) + 1
        with pytest.raises(errors.SpoolFailed, match="fsync failed"):
            spool.append(TOPIC, b"b").result(10)
        before = len(looks)
        until(lambda: len(looks) > before + 1)
        assert spool.append(TOPIC, b"c").result(10) == 2
        until(lambda: spool.status()[0].segments == 1)
        assert spool.progress(TOPIC) == 2


def test_a_writer_that_dies_answers_everybody(tmp_path):
    """An error that nobody foresaw leaves no future without an answer and no caller waiting."""

    class Broken(FaultyDisk):
        def write(self, handle, data, position):
            if position:
                raise RuntimeError("unforeseen")
            super().write(handle, data, position)

    spool = Spool(tmp_path / "spool", disk=Broken(), disk_reserve=0)
    with pytest.raises(errors.SpoolFailed, match="RuntimeError"):
        spool.append(TOPIC, b"a").result(10)
    spool.close()
    with pytest.raises(errors.Closed):
        spool.append(TOPIC, b"b")


@pytest.fixture
def little_disk(tmp_path):
    """A file system of one MiB."""
    mount = tmp_path / "little"
    mount.mkdir()
    if (
        os.geteuid()
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(mount)], check=False, capture_output=True
        ).returncode
    ):
        pytest.skip("only root may mount a small file system")
    yield mount
    subprocess.run(["umount", "-l", str(mount)], check=True)


def fill_up(spool, stored):
    for number in itertools.count():
        payload = b"%d" % number * 100
        stored[spool.append(TOPIC, payload).result(10)] = payload


def test_a_disk_that_is_really_full(little_disk):
    """On a file system without space appends are refused, what was acknowledged is read, and room helps."""
    root = little_disk / "spool"
    stored = {}
    with Spool(root, segment_bytes=65536, disk_reserve=0) as spool:
        with pytest.raises(errors.SpoolFull, match="takes nothing more"):
            fill_up(spool, stored)
        assert len(stored) > 1000
        assert {one.offset: one.payload for one in spool.records(TOPIC)} == stored
    with Spool(root, segment_bytes=65536, disk_reserve=0) as spool:
        assert {one.offset: one.payload for one in spool.records(TOPIC)} == stored
        spool.commit(TOPIC, len(stored))
    with Spool(root, segment_bytes=65536, disk_reserve=0) as spool:
        assert spool.append(TOPIC, b"room again").result(10) == len(stored)


@pytest.mark.parametrize("reopened", [False, True], ids=["same-process", "next-process"])
@pytest.mark.parametrize("consumed", [0, 1], ids=["never-committed", "committed"])
def test_a_disk_without_one_free_byte_takes_commits(little_disk, monkeypatch, reopened, consumed):
    """Whatever has filled the disk: what is consumed is written down, and its segments make room."""
    monkeypatch.setattr(writer, "EXPIRY_S", 0.01)
    root, sizes = little_disk / "spool", {"segment_bytes": 65536, "disk_reserve": 0}
    spool, stored = Spool(root, **sizes), {}
    stored[spool.append(TOPIC, b"first").result(10)] = b"first"
    spool.commit(TOPIC, consumed)
    with pytest.raises(errors.SpoolFull):
        fill_up(spool, stored)
    (root / ".lock").write_bytes(b"")  # a killed process may leave it so, and a process number takes space
    if reopened:
        spool.close()
    with contextlib.suppress(OSError), (little_disk / "filler").open("wb", buffering=0) as filler:
        while True:
            filler.write(b"x" * 4096)
    if reopened:
        spool = Spool(root, **sizes)
    assert os.statvfs(little_disk).f_bavail == 0
    for end in (len(stored) // 2, len(stored)):
        spool.commit(TOPIC, end)
    until(lambda: spool.status()[0].segments == 0)
    assert spool.append(TOPIC, b"room again").result(10) == len(stored)
    spool.close()
    with Spool(root, **sizes) as spool:
        assert [one.payload for one in spool.records(TOPIC)] == [b"room again"]


def test_zeros_ahead_of_the_records_are_written_where_each_append_is_synced(tmp_path):
    """With `always` one write in many carries zeros, without a sync none; readers see no difference."""
    for fsync, most in (("always", 2), ("os", 0)):
        sizes = []

        class Measuring(FaultyDisk):
            def write(self, handle, data, position, sizes=sizes):
                sizes.append(len(data))
                super().write(handle, data, position)

        root = tmp_path / fsync
        with Spool(root, disk=Measuring(), disk_reserve=0, fsync=fsync, segment_bytes=1 << 20) as spool:
            for number in range(400):
                spool.append_many(TOPIC, [b"%d" % number * 100] * 3).result(10)
            image = shutil.copytree(root, tmp_path / f"{fsync}-image")
        assert sum(size > 100_000 for size in sizes) in {most, most // 2}
        with Spool(image, disk_reserve=0) as spool:
            assert len(list(spool.records(TOPIC))) == 1200
            assert spool.status()[0].lost == []
