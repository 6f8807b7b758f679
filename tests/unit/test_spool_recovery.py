"""What an open makes of a directory after a crash or damage: nothing lost in silence, nothing invented."""

from __future__ import annotations

import errno
import random
import shutil
from datetime import timedelta
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import pytest

from cqueue.errors import NotDone, SpoolFull
from cqueue.spool import Spool, segment
from cqueue.spool.disk import Disk
from tests.spool.images import TOPIC, check, crashed, only_segment, payloads, read_back


@pytest.fixture
def image(tmp_path):
    """A spool whose process was killed with five messages in an open segment."""
    return crashed(tmp_path / "spool", payloads(5))


def small_image(tmp_path):
    """The same with three, for what is tried at every bit."""
    return crashed(tmp_path / "spool", payloads(3))


def copy(image, name="copy"):
    target = image.with_name(name)
    shutil.rmtree(target, ignore_errors=True)
    return shutil.copytree(image, target)


def sealed(image):
    """Return the same spool, closed in order."""
    target = copy(image, "sealed")
    Spool(target, disk_reserve=0, segment_bytes=4096).close()
    return target


def test_a_killed_process_loses_nothing(image):
    """What was acknowledged is read after the process is gone, and the next offset follows."""
    reading = read_back(image)
    assert list(reading.records.values()) == payloads(5)
    assert (reading.lost, reading.end) == ([], 5)
    with Spool(image, disk_reserve=0) as spool:
        assert spool.append(TOPIC, b"next").result(10) == 5


def test_an_open_file_cut_at_every_byte_gives_every_whole_record(image):
    """However short the file is, the records before the cut are read, and nothing else."""
    written = payloads(5)
    found, scan = segment.load(only_segment(image))
    stops = [*scan.positions[1:], found.end_position]
    padding = [-len(payload) % 8 for payload in written]
    for length in range(found.end_position + 1):
        target = copy(image)
        with only_segment(target).open("r+b") as file:
            file.truncate(length)
        reading = read_back(target)
        whole = sum(length >= stop - pad for stop, pad in zip(stops, padding, strict=True))
        assert list(reading.records.values()) == written[:whole]
        check(reading, written, synced=whole)


def test_a_sealed_file_cut_at_every_byte_reports_what_is_gone(image):
    """Where a later segment follows, every offset that was cut off is reported."""
    written = payloads(6)
    start = sealed(image)
    with Spool(start, disk_reserve=0, segment_bytes=4096) as spool:
        spool.append(TOPIC, written[5]).result(10)
    path = min(start.glob("*/*/*.seg"))
    for length in range(path.stat().st_size):
        target = copy(start)
        with min(target.glob("*/*/*.seg")).open("r+b") as file:
            file.truncate(length)
        check(read_back(target), written, synced=6)


@pytest.mark.acceptance
@pytest.mark.parametrize("is_sealed", [True, False])
def test_every_flipped_bit_is_harmless_or_reported(tmp_path, is_sealed):
    """Whichever bit of the file flips, messages are as they were or reported as lost.

    In an open file, the last record is an exception: it looks like a torn write, and is cut.
    """
    written, image = payloads(3), small_image(tmp_path)
    start = sealed(image) if is_sealed else image
    path = only_segment(start)
    data = path.read_bytes()
    used = len(data.rstrip(b"\0"))
    for bit in range(used * 8):
        target = copy(start)
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        (target / path.relative_to(start)).write_bytes(damaged)
        check(read_back(target), written, synced=3 if is_sealed else 2)


@pytest.mark.parametrize("seed", range(20))
def test_unsynced_pages_that_were_not_written_cost_no_synced_message(tmp_path, seed):
    """A power cut leaves any of the unsynced pages unwritten: all before the sync is read all the same."""
    random.seed(seed)
    written = payloads(300)
    target = crashed(tmp_path / "spool", written, segment_bytes=65536)
    path = only_segment(target)
    synced = random.randrange(300)
    _, scan = segment.load(path)
    data = bytearray(path.read_bytes())
    for start in range(scan.positions[synced], scan.end_position, 512):
        if random.random() < 0.3:
            data[start : start + 512] = bytes(512)
    path.write_bytes(data)
    reading = read_back(target)
    check(reading, written, synced=synced)
    assert all(offset in reading.records for offset in range(synced))


def test_damage_in_the_middle_is_a_range_and_its_bytes_are_kept(tmp_path):
    """Three damaged messages are one range in the status and in a file's name, until the file is deleted."""
    written = payloads(9)
    target = crashed(tmp_path / "spool", written)
    path = only_segment(target)
    positions = segment.load(path)[1].positions
    data = bytearray(path.read_bytes())
    data[positions[3] : positions[6]] = b"\xff" * (positions[6] - positions[3])
    path.write_bytes(data)
    with Spool(target, disk_reserve=0) as spool:
        assert spool.status()[0].lost == [range(3, 6)], "known at the open, before anybody reads"
    for _ in range(2):
        reading = read_back(target)
        assert sorted(reading.records) == [0, 1, 2, 6, 7, 8]
        assert reading.lost == [range(3, 6)]
    (kept,) = target.glob("*/*/lost/*")
    assert kept.read_bytes() == b"\xff" * (positions[6] - positions[3])
    kept.unlink()
    with Spool(target, disk_reserve=0) as spool:
        spool.commit(TOPIC, 6)
    assert read_back(target).lost == []


def test_damage_in_a_sealed_segment_shows_when_it_is_read_and_when_it_is_verified(image):
    """Nobody has to scan sealed segments at an open: a reader finds the damage, goes on, and reports it."""
    target = sealed(image)
    path = only_segment(target)
    data = bytearray(path.read_bytes())
    data[segment.FIRST_POSITION + 25] ^= 1
    path.write_bytes(data)
    with Spool.open_readonly(target) as spool:
        (finding,) = spool.verify()
        assert finding.offsets == range(1)
        assert [record.offset for record in spool.records(TOPIC)] == [1, 2, 3, 4]
    assert not list(target.glob("*/*/lost")), "who only looks changes nothing"
    for _ in range(2):
        reading = read_back(target)
        assert (sorted(reading.records), reading.lost) == ([1, 2, 3, 4], [range(1)])
        (kept,) = target.glob("*/*/lost/*")
        kept.write_bytes(b"looked at")
    read_back(target)
    assert kept.read_bytes() == b"looked at", "nor is it told again"


def test_damage_in_an_open_segment_costs_the_damaged_record_only(image):
    """Also once the segment is sealed."""
    written = payloads(5)
    with Spool(image.with_name("open"), disk_reserve=0, segment_bytes=4096) as spool:
        for payload in written:
            spool.append(TOPIC, payload).result(10)
        path = only_segment(image.with_name("open"))
        with path.open("r+b") as file:
            file.seek(segment.FIRST_POSITION + 25)
            file.write(b"\xff")
        assert [one.offset for one in spool.pull(TOPIC, 0, 0, 10)] == [1, 2, 3, 4]
        (queue,) = spool._queues.values()
        while len(queue.segments) == 1:
            spool.append(TOPIC, bytes(1000)).result(10)
        assert [one.offset for one in spool.pull(TOPIC, 0, 0, 5)] == [1, 2, 3, 4, 5]
        assert [one.payload for one in spool.pull(TOPIC, 0, 1, 4)] == written[1:]
        assert spool.status()[0].lost == [range(1)]


def test_what_is_appended_while_a_segment_is_verified_is_no_damage(tmp_path, monkeypatch):
    """The file is read, and then compared with what it held before."""
    with Spool(tmp_path / "spool", disk_reserve=0) as spool:
        spool.append(TOPIC, b"before").result(10)
        read_bytes = Path.read_bytes

        def append_after(path):
            data = read_bytes(path)
            if path.suffix == ".seg":
                spool.append(TOPIC, b"meanwhile").result(10)
            return data

        monkeypatch.setattr(Path, "read_bytes", append_after)
        assert spool.verify() == []
        assert spool.progress(TOPIC) == 0
        assert len(spool.pull(TOPIC, 0, 0, 10)) == 2


@pytest.mark.parametrize("is_sealed", [True, False])
def test_damage_behind_damage_that_is_known_is_reported_too(tmp_path, is_sealed):
    """Each time that a record is damaged while the spool is open, its reader reports it."""
    with Spool(tmp_path / "spool", disk_reserve=0, segment_bytes=65536) as spool:
        for payload in payloads(20):
            spool.append(TOPIC, payload).result(5)
        if is_sealed:
            spool.close()
            spool = Spool(tmp_path / "spool", disk_reserve=0, segment_bytes=65536)  # noqa: PLW2901
        path = only_segment(spool.path)
        for damaged in (3, 4, 12):
            data = bytearray(path.read_bytes())
            data[data.index(b"%d:" % damaged)] ^= 1
            path.write_bytes(data)
            assert damaged not in [one.offset for one in spool.pull(TOPIC, 0, damaged, 20)]
        assert [one.offset for one in spool.pull(TOPIC, 0, 0, 20)] == sorted({*range(20)} - {3, 4, 12})
        assert {*chain(*spool.status()[0].lost)} == {3, 4, 12}
        if not is_sealed:
            assert spool.append(TOPIC, b"next").result(5) == 20
            assert [one.offset for one in spool.pull(TOPIC, 0, 19, 20)] == [19, 20]
        spool.close()


def test_a_segment_that_vanishes_while_the_spool_is_open_is_a_range(tmp_path):
    """Its reader goes on behind it; what was consumed of it is not reported."""
    target = crashed(tmp_path / "spool", payloads(200))
    paths = sorted(target.glob("*/*/*.seg"))
    first, end = (int(path.name[:20]) for path in paths[1:3])
    with Spool(target, disk_reserve=0) as spool:
        paths[1].unlink()
        assert [one.offset for one in spool.pull(TOPIC, 0, 0, 200)] == [*range(first), *range(end, 200)]
        assert spool.status()[0].lost == [range(first, end)]
    with Spool(target, disk_reserve=0) as spool:
        assert spool.status()[0].lost == [range(first, end)], "as the next open finds it"


def test_consumed_messages_that_are_damaged_are_not_reported_as_lost(image):
    """Nobody needs a message that was consumed; only `verify` says that its bytes are bad."""
    with Spool(image, disk_reserve=0) as spool:
        spool.commit(TOPIC, 2)
    path = only_segment(image)
    data = bytearray(path.read_bytes())
    data[segment.FIRST_POSITION + 25] ^= 1
    path.write_bytes(data)
    with Spool(image, disk_reserve=0) as spool:
        assert [one.offset for one in spool.pull(TOPIC, 0, 0, 10)] == [1, 2, 3, 4]
        assert spool.status()[0].lost == []
        assert len(spool.verify()) == 1


def test_a_missing_segment_is_a_range(tmp_path):
    """A file that somebody deleted is reported as the offsets that it had."""
    written = payloads(200)
    target = crashed(tmp_path / "spool", written)
    paths = sorted(target.glob("*/*/*.seg"))
    assert len(paths) > 2
    first, end = (int(path.name[:20]) for path in paths[1:3])
    paths[1].unlink()
    reading = read_back(target)
    assert reading.lost == [range(first, end)]
    check(reading, written, synced=200)


def test_a_missing_first_segment_of_what_was_never_committed_is_a_range(tmp_path):
    """Nothing of it was consumed, also if there was no commit that says so."""
    target = crashed(tmp_path / "spool", payloads(200))
    gone, following, *_ = sorted(target.glob("*/*/*.seg"))
    gone.unlink()
    end = int(following.name[:20])
    reading = read_back(target)
    assert (reading.lost, min(reading.records)) == ([range(end)], end)


def test_a_missing_segment_that_was_consumed_is_no_loss(tmp_path):
    """Nobody misses offsets that were consumed."""
    target = crashed(tmp_path / "spool", payloads(200))
    paths = sorted(target.glob("*/*/*.seg"))
    with Spool(target, disk_reserve=0, retention=timedelta(hours=1)) as spool:
        spool.commit(TOPIC, int(paths[2].name[:20]))
    paths[1].unlink()
    reading = read_back(target)
    assert reading.lost == []
    assert max(reading.records) == 199


def test_a_reader_of_a_sealed_segment_goes_on_where_it_was(image, monkeypatch):
    """It begins wherever it likes, and reads what stands in front of that once."""
    monkeypatch.setattr(segment, "_READ_BYTES", 32)
    read, bytes_ = [], segment.Segment._bytes
    monkeypatch.setattr(segment.Segment, "_bytes", lambda *at: read.append(at[1]) or bytes_(*at))
    with Spool.open_readonly(sealed(image)) as spool:
        assert [one.payload for one in spool.pull(TOPIC, 0, 2, 2)] == payloads(5)[2:4]
        assert min(read) == segment.FIRST_POSITION
        read.clear()
        assert [one.payload for one in spool.pull(TOPIC, 0, 4, 2)] == payloads(5)[4:]
        assert min(read) > segment.FIRST_POSITION
        read.clear()
        assert [one.payload for one in spool.pull(TOPIC, 0, 2, 2)] == payloads(5)[2:4]  # tried again
        assert min(read) > segment.FIRST_POSITION
        assert [one.payload for one in spool.records(TOPIC)] == payloads(5)


def test_a_place_that_was_read_again_is_remembered_for_longer(image, monkeypatch):
    """Of six places those are forgotten that were not used for longest."""
    monkeypatch.setattr(segment, "_MARKS", 6)
    known, _ = segment.load(only_segment(sealed(image)))
    for offset in (4, 0, 4, 2, 1):
        known.read(offset, 1)
    assert known.near(4)[0] == 4


def test_offsets_begin_behind_all_that_was_consumed(image):
    """A machine that lost its unsynced end does not give a new message an offset that is consumed already."""
    with Spool(image, disk_reserve=0) as spool:
        spool.commit(TOPIC, 5)
    path = only_segment(image)
    path.write_bytes(path.read_bytes()[: segment.FIRST_POSITION + 8])
    with Spool(image, disk_reserve=0) as spool:
        assert spool.status()[0].lost == []
        assert spool.append(TOPIC, b"new").result(10) == 5
    reading = read_back(image)
    assert reading.records == {5: b"new"}


@pytest.mark.parametrize("slot", [0, 1])
def test_every_torn_commit_leaves_the_one_before(image, slot):
    """However little of a slot was written, progress is what it was before or after, never another."""
    with Spool(image, disk_reserve=0) as spool:
        for offset in range(1, 4 + slot):
            spool.commit(TOPIC, offset)
    (path,) = image.glob("*/*/progress")
    after = path.read_bytes()
    newest = 3 + slot
    at = newest % 2 * 4096
    for length in range(32):
        torn = after[:at] + after[at : at + length] + b"\xa5" * (32 - length) + after[at + 32 :]
        path.write_bytes(torn)
        with Spool.open_readonly(image) as spool:
            assert spool.progress(TOPIC) in {newest - 1, newest}


def test_unknown_progress_gives_everything_again(image):
    """Without a valid slot messages come again; none is left out, and none is called lost."""
    with Spool(image, disk_reserve=0) as spool:
        spool.commit(TOPIC, 3)
    (path,) = image.glob("*/*/progress")
    path.write_bytes(b"\xff" * 8192)
    with Spool.open_readonly(image) as spool:
        assert len(spool.verify()) == 2
    reading = read_back(image)
    assert (list(reading.records.values()), reading.lost) == (payloads(5), [])


def test_unknown_progress_begins_with_what_is_there(tmp_path):
    """Where the first segments are gone already, those that are left come again, and none is called lost."""
    target = crashed(tmp_path / "spool", payloads(200))
    with Spool(target, disk_reserve=0) as spool:
        spool.commit(TOPIC, 150)
    with Spool(target, disk_reserve=0) as spool:
        first = spool.status()[0].first
        assert first > 0
    (path,) = target.glob("*/*/progress")
    path.unlink()
    reading = read_back(target)
    assert (min(reading.records), max(reading.records), reading.lost) == (first, 199, [])


def test_what_a_killed_creation_left_is_removed(image):
    """Temporary files and segments without a record go at the next open, and cost no offset."""
    queue = only_segment(image).parent
    (queue / "00000000000000000005-aa.seg.new").write_bytes(b"half")
    (queue / f"{5:020d}-{'ab' * 16}.seg").write_bytes(bytes(4096))
    reading = read_back(image)
    assert (reading.end, reading.lost) == (5, [])
    assert len(list(queue.glob("*.seg"))) == 1
    assert not list(queue.glob("*.new"))


def test_a_reader_sees_what_is_stored_beside_what_a_failed_creation_left(tmp_path, monkeypatch):
    """The empty file has the same first offset, and its name may sort behind that of the other one."""

    class Once(Disk):
        """Fails to sync the first directory of segments."""

        has_failed = False

        def sync_directory(self, path):
            if path.name == "0" and not self.has_failed:
                self.has_failed = True
                raise OSError(errno.EIO, "no")
            super().sync_directory(path)

    numbers = iter([UUID(int=(1 << 128) - 1), UUID(int=1)])
    monkeypatch.setattr(segment, "uuid", SimpleNamespace(uuid4=lambda: next(numbers), UUID=UUID))
    with Spool(tmp_path / "spool", disk=Once(), disk_reserve=0, segment_bytes=8192) as spool:
        with pytest.raises(SpoolFull):
            spool.append(TOPIC, b"lost").result(10)
        for payload in payloads(5):
            spool.append(TOPIC, payload).result(10)
        with Spool.open_readonly(spool.path) as reader:
            assert reader.end(TOPIC) == 5
            assert [record.payload for record in reader.records(TOPIC)] == payloads(5)


def test_recovery_may_be_cut_off_and_begin_again(image):
    """Every state in which a killed recovery leaves the file is recovered like the first."""
    written = payloads(5)
    path = only_segment(image)
    end_position = segment.load(path)[0].end_position
    done = only_segment(sealed(image)).read_bytes()
    for length in range(end_position, len(done) + 1):
        path.write_bytes(done[:length])
        check(read_back(image), written, synced=5)


@pytest.mark.parametrize(
    "strange", ["backup/20261128", "x/\N{SUPERSCRIPT TWO}", "backup/007", "lost+found/1", "mail/0/copy.seg"]
)
@pytest.mark.parametrize("is_directory", [True, False])
def test_what_others_put_into_the_directory_is_left_alone(image, strange, is_directory):
    """Files and directories that are none of the spool's do not keep it from being opened, and stay."""
    target = image / strange
    target.parent.mkdir(parents=True, exist_ok=True)
    target.mkdir() if is_directory else target.write_bytes(b"x")
    with Spool(image, disk_reserve=0) as spool:
        assert spool.queues() == [(TOPIC, 0)]
        assert [one.payload for one in spool.records(TOPIC)] == payloads(5)
    assert target.exists()


def test_a_file_that_cannot_be_read_at_the_open_is_told_in_words_of_ours(image):
    """Not done, with the path; and the lock is free again."""
    data = only_segment(image)
    content = data.read_bytes()
    data.unlink()
    data.mkdir()
    with pytest.raises(NotDone, match=f"cannot be opened.*{data.name}"):
        Spool(image)
    data.rmdir()
    data.write_bytes(content)
    assert list(read_back(image).records.values()) == payloads(5)


def test_a_sector_that_the_disk_cannot_read_is_an_error_and_nothing_is_skipped(image, monkeypatch):
    """A reader is told, and finds every record once the disk answers again: none is taken for lost."""
    target = sealed(image)

    def unreadable(*_, **__):
        raise OSError(errno.EIO, "Input/output error")

    with Spool(target, disk_reserve=0) as spool:
        with monkeypatch.context() as patch:
            patch.setattr(type(target), "open", unreadable)
            patch.setattr(type(target), "read_bytes", unreadable)
            with pytest.raises(OSError, match="Input/output error"):
                spool.pull(TOPIC, 0, 0, 10)
            (status,) = spool.status()
            assert (status.end, status.oldest_ms is None) == (5, False), "metrics ask for it at each scrape"
        assert [one.payload for one in spool.records(TOPIC)] == payloads(5)
        assert spool.status()[0].lost == []


def test_a_file_that_the_disk_cannot_read_is_a_finding(image, monkeypatch):
    """With the offsets that it has, and the other files are looked at all the same."""

    def unreadable(_):
        raise OSError(errno.EIO, "Input/output error")

    target = sealed(image)
    with Spool.open_readonly(target) as spool:
        monkeypatch.setattr(segment.Segment, "scan", unreadable)
        (finding,) = spool.verify()
    assert finding.path == only_segment(target)
    assert finding.offsets == range(5)
    assert "Input/output error" in finding.text
