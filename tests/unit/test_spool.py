"""What a caller of the spool is promised while all goes well, and what is refused."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import wait
from datetime import timedelta

import pytest
from prometheus_client import CollectorRegistry

from cqueue import errors
from cqueue.spool import Spool, SpoolCollector
from cqueue.spool.disk import Disk
from cqueue.spool.options import OptionValues, SpoolOptions

TOPIC = "mail"
MODES = ("always", "interval:1ms", "os")


@pytest.fixture
def root(tmp_path):
    return tmp_path / "spool"


def small(root, **options):
    """A spool with segments of 4 KiB."""
    return Spool(root, **{"segment_bytes": 4096, "disk_reserve": 0, **options})


def fill(spool, count, *, topic=TOPIC):
    wait([spool.append(topic, b"%d" % number) for number in range(count)], timeout=10)


@pytest.mark.parametrize("fsync", MODES)
def test_messages_come_back_in_order_over_segments_and_opens(root, fsync):
    """In every mode messages have the offsets that the futures gave, now and after a close."""
    with small(root, fsync=fsync) as spool:
        offsets = [spool.append(TOPIC, b"%d" % number) for number in range(500)]
        assert [future.result(10) for future in offsets] == list(range(500))
        assert [one.payload for one in spool.records(TOPIC)] == [b"%d" % number for number in range(500)]
    with small(root, fsync=fsync) as spool:
        assert spool.status()[0].segments > 3
        assert [(one.offset, one.payload) for one in spool.records(TOPIC)] == [
            (number, b"%d" % number) for number in range(500)
        ]


def test_one_call_is_one_range_in_one_segment(root):
    """The messages of `append_many` have offsets that follow each other, also while others append."""
    with small(root) as spool:
        calls = [spool.append_many(TOPIC, [b"%d" % number] * 20) for number in range(30)]
        for number, call in enumerate(calls):
            offsets = call.result(10)
            assert len(offsets) == 20
            found = spool.pull(TOPIC, 0, offsets.start, 20)
            assert {one.payload for one in found} == {b"%d" % number}


def test_threads_append_and_read_together(root):
    """Four threads append and one reads: every message is read once, in the order of its thread."""
    with small(root, fsync="interval:1ms") as spool:
        threads = [
            threading.Thread(target=fill, args=(spool, 500), kwargs={"topic": TOPIC}) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        seen: list[bytes] = []
        while len(seen) < 2000:
            assert spool.wait(TOPIC, 0, len(seen), 10)
            seen += [one.payload for one in spool.pull(TOPIC, 0, len(seen), 100)]
        for thread in threads:
            thread.join()
    assert sorted(seen) == sorted([b"%d" % number for number in range(500)] * 4)


def test_pull_begins_anywhere_and_takes_no_more_than_asked(root):
    """A reader gets up to `max_count` records from any offset, across the borders of segments."""
    with small(root) as spool:
        fill(spool, 300)
        for offset in (0, 1, 99, 150, 299):
            found = spool.pull(TOPIC, 0, offset, 120)
            assert [one.offset for one in found] == list(range(offset, min(offset + 120, 300)))
        assert spool.pull(TOPIC, 0, 300, 10) == []
        assert spool.pull("unknown", 0, 0, 10) == []


def test_a_pull_of_large_messages_takes_some_of_them(root):
    """A reader that asks for a thousand need not have room for a gigabyte; over segments as well."""
    body = bytes(1 << 20)
    with small(root, segment_bytes=5 << 20, fsync="os") as spool:
        wait([spool.append(TOPIC, body) for _ in range(40)], timeout=60)
        found = spool.pull(TOPIC, 0, 0, 1000)
        assert [one.offset for one in found] == list(range(16))
        assert [one.offset for one in spool.records(TOPIC)] == list(range(40))
        spool.append("huge", bytes(4 << 20)).result(10)
        assert len(spool.pull("huge", 0, 0, 1000)) == 1


def test_messages_of_every_length_come_back(root):
    """Empty messages, and those as large as a segment, are stored and read like others."""
    with Spool(root, segment_bytes=1024 * 1024, disk_reserve=0) as spool:
        largest = 1024 * 1024 - 64 - 40 - 31
        sent = [b"", b"x", b"y" * 100_000, b"z" * largest, b"", b"e"]
        for payload in sent:
            spool.append(TOPIC, payload).result(10)
        assert [one.payload for one in spool.records(TOPIC)] == sent
        with pytest.raises(errors.BadInput, match="1,048,576 bytes at most"):
            spool.append(TOPIC, b"z" * (largest + 1))


def test_queues_keep_apart(root):
    """Topics and numbers are queues of their own, whatever characters a topic has."""
    topics = [("mail", 0), ("mail", 7), ("..", 0), (".lock", 0), ("a/b:ü %2E", 1)]
    with small(root) as spool:
        for topic, number in topics:
            spool.append(topic, topic.encode(), queue_id=number).result(10)
    with small(root) as spool:
        assert spool.queues() == sorted(topics)
        for topic, number in topics:
            assert [one.payload for one in spool.records(topic, number)] == [topic.encode()]
    assert {path.name for path in root.parent.iterdir()} == {"spool"}


@pytest.mark.parametrize("bad", ["", "x" * 221])
def test_bad_topics_and_payloads_are_refused(root, bad):
    """What cannot be stored is refused before anything is written."""
    with small(root) as spool:
        with pytest.raises(errors.BadInput):
            spool.append(bad, b"")
        with pytest.raises(errors.BadInput):
            spool.append(TOPIC, "text")
        with pytest.raises(errors.BadInput):
            spool.append_many(TOPIC, [])
        with pytest.raises(errors.BadInput):
            spool.append(TOPIC, b"", queue_id=-1)
        assert spool.queues() == []


def test_what_has_a_wrong_type_is_refused(root):
    """By a typed error: a thread that catches the errors of this library goes on. See test_annotations."""
    with pytest.raises(errors.BadInput, match="the path of its directory"):
        Spool("a\0b")
    with small(root) as spool:
        spool.append(TOPIC, b"x").result(10)
        with pytest.raises(errors.BadInput, match="offset is 'x'; it takes a whole number"):
            list(spool.records(TOPIC, offset="x"))
        with pytest.raises(errors.BadInput):  # its directory would be called so, and never be found again
            spool.append(TOPIC, b"x", queue_id=True)
        assert spool.queues() == [(TOPIC, 0)]


def test_progress_is_durable_and_never_goes_back(root):
    """A commit counts at the next open; an older one changes nothing, and one behind the end is refused."""
    with small(root) as spool:
        fill(spool, 10)
        spool.commit(TOPIC, 7)
        spool.commit(TOPIC, 3)
        assert spool.progress(TOPIC) == 7
        with pytest.raises(errors.BadInput, match="never appended"):
            spool.commit(TOPIC, 11)
    with small(root) as spool:
        assert spool.progress(TOPIC) == 7
        assert [one.offset for one in spool.records(TOPIC)] == [7, 8, 9]


def test_consumed_segments_go(root):
    """Only segments that are consumed as a whole are deleted; reading begins behind them."""
    with small(root) as spool:
        fill(spool, 500)
        spool.commit(TOPIC, 250)
    with small(root) as spool:
        spool.append(TOPIC, b"").result(10)
        status = spool.status()[0]
        assert 100 < status.first <= 250
        assert spool.pull(TOPIC, 0, 0, 1)[0].offset == status.first
        assert status.lost == []
    with small(root) as spool:
        assert [one.offset for one in spool.records(TOPIC)] == list(range(250, 501))
        assert spool.status()[0].lost == []


def test_consumed_messages_stay_for_the_retention(root):
    """With a retention, consumed messages can be read again until they are older than it."""
    with small(root) as spool:
        fill(spool, 500)
        spool.commit(TOPIC, 500)
    for retention, first in ((timedelta(hours=1), 0), (timedelta(0), 500)):
        with small(root, retention=retention) as spool:
            spool.append("other", b"").result(10)
            assert spool.status()[0].first == first


def test_what_was_stored_while_the_clock_was_ahead_is_not_kept_for_years(root, monkeypatch):
    """Nor all that is stored behind it; what is not consumed stays all the same."""
    ahead_ns = time.time_ns() + 365 * 86_400 * 10**9
    with monkeypatch.context() as patched, small(root) as spool:
        patched.setattr(time, "time_ns", lambda: ahead_ns)
        fill(spool, 500)
        spool.commit(TOPIC, 250)
    options = {"retention": timedelta(hours=1), "expire_unconsumed": True}
    with small(root, **options) as spool:
        spool.append("other", b"").result(10)
        assert spool.status()[0].first == 0, "it may be the clock of now that is wrong"
        fill(spool, 200)
    with small(root, **options) as spool:
        spool.append("other", b"").result(10)
        assert 100 < spool.status()[0].first <= 250


def test_unconsumed_messages_go_only_if_that_is_asked_for(root):
    """`expire_unconsumed` deletes what is too old and moves progress behind it; else all stays."""
    with small(root) as spool:
        fill(spool, 500)
    with small(root, retention=timedelta(0)) as spool:
        spool.append("other", b"").result(10)
        assert spool.status()[0].first == 0
    with small(root, retention=timedelta(0), expire_unconsumed=True) as spool:
        spool.append("other", b"").result(10)
        status = spool.status()[0]
        assert (status.first, status.progress, status.lost) == (500, 500, [])
    with small(root) as spool:
        assert spool.append(TOPIC, b"").result(10) == 500


def test_a_second_process_is_refused_and_may_look(root):
    """Another process cannot open the spool for writing, and is told who has it; it may read it."""
    program = (
        "import sys\n"
        "from cqueue import errors\n"
        "from cqueue.spool import Spool\n"
        "try: Spool(sys.argv[1])\n"
        "except errors.SpoolLocked as exc: print(exc)\n"
        "print([one.payload for one in Spool.open_readonly(sys.argv[1]).records('mail')])\n"
    )
    with small(root) as spool:
        fill(spool, 3)
        done = subprocess.run(
            [sys.executable, "-c", program, str(root)], capture_output=True, text=True, check=True, timeout=60
        )
        assert f"process {os.getpid()} has the spool" in done.stdout
        assert "[b'0', b'1', b'2']" in done.stdout
    small(root).close()


def test_a_fork_cannot_use_the_spool_and_does_not_hold_it(root):
    """A child of `fork` is told so at once, and the spool can be opened again while the child lives."""
    program = (
        "import os, sys\n"
        "from cqueue import errors\n"
        "from cqueue.spool import Spool\n"
        "spool = Spool(sys.argv[1])\n"
        "spool.append('mail', b'parent').result(10)\n"
        "ready, alive = os.pipe(), os.pipe()\n"
        "if not (child := os.fork()):\n"
        "    try: spool.append('mail', b'child')\n"
        "    except errors.Closed: os.write(ready[1], b'refused ')\n"
        "    try: spool.wait('mail', 0, 1, 60)\n"
        "    except errors.Closed: os.write(ready[1], b'twice')\n"
        "    os.close(alive[1]); os.read(alive[0], 1); os._exit(0)\n"
        "os.close(ready[1])\n"
        "with open(ready[0]) as said: print(said.read(13))\n"
        "spool.close()\n"
        "with Spool(sys.argv[1]) as again: print([one.payload for one in again.records('mail')])\n"
        "os.close(alive[1]); os.waitpid(child, 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, str(root)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.split("\n")[:2] == ["refused twice", "[b'parent']"]


def test_a_closed_spool_says_so(root):
    """After `close` nothing is taken any more; closing again does nothing."""
    spool = small(root)
    future = spool.append(TOPIC, b"last")
    spool.close()
    spool.close()
    assert future.result(0) == 0
    with pytest.raises(errors.Closed):
        spool.append(TOPIC, b"")
    with pytest.raises(errors.Closed):
        spool.commit(TOPIC, 1)
    with small(root) as spool:
        assert [one.payload for one in spool.records(TOPIC)] == [b"last"]


def test_a_cancelled_append_is_not_stored_or_was_too_late(root):
    """`cancel` tells the truth: True means that the message is not in the spool."""
    with small(root) as spool:
        futures = [spool.append(TOPIC, b"%d" % number) for number in range(200)]
        cancelled = {b"%d" % number for number, future in enumerate(futures) if future.cancel()}
        wait(futures, timeout=10)
        spool.append(TOPIC, b"end").result(10)
        stored = {one.payload for one in spool.records(TOPIC)}
        assert not cancelled & stored
        assert len(cancelled) + len(stored) == 201


def test_wait_tells_of_a_message_and_of_none(root):
    """`wait` returns when the offset is there, and False when its time is over."""
    with small(root) as spool:
        assert not spool.wait(TOPIC, 0, 0, 0.01)
        answer: list[bool] = []
        thread = threading.Thread(target=lambda: answer.append(spool.wait(TOPIC, 0, 0, 10)))
        thread.start()
        spool.append(TOPIC, b"")
        thread.join(10)
        assert answer == [True]


def test_status_tells_the_age_and_size_of_the_backlog(root):
    """The oldest message is the first that is not consumed; a queue without backlog has none."""
    with small(root) as spool:
        fill(spool, 2)
        first = spool.pull(TOPIC, 0, 0, 2)
        assert spool.status()[0].oldest_ms == first[0].appended_ms
        assert spool.status()[0].bytes >= 4096
        spool.commit(TOPIC, 2)
        assert spool.status()[0].oldest_ms is None


def test_every_option_can_be_given_by_name():
    """What type checkers accept is what the options are."""
    assert OptionValues.__annotations__.keys() == {one.name for one in dataclasses.fields(SpoolOptions)}


@pytest.mark.parametrize(
    "options",
    [
        {"fsync": "sometimes"},
        {"fsync": "interval:0ms"},
        {"segment_bytes": 100},
        {"max_bytes": 0},
        {"max_records": 0},
        {"disk_reserve": -1},
        {"on_full": "drop"},
        {"expire_unconsumed": True},
        {"block_timeout": timedelta(seconds=-1)},
        {"retention": timedelta(seconds=-1)},
        {"block_timeout": timedelta.max},
        {"fsync": None},
        {"segment_bytes": "4096"},
        {"segment_bytes": 4096.5},
        {"max_bytes": None},
        {"max_records": timedelta(1)},
        {"disk_reserve": [0]},
        {"on_full": ["block"]},
        {"block_timeout": 30},
        {"block_timeout": None},
        {"retention": 0},
    ],
)
def test_options_out_of_range_are_refused(options):
    """A spool that could not keep its word is not made."""
    with pytest.raises(errors.ConfigError):
        SpoolOptions(**options)


def test_a_misspelt_option_is_answered_with_the_nearest(root):
    with pytest.raises(errors.ConfigError, match=r"Spool has no option .max_byte.* mean .max_bytes."):
        Spool(root, max_byte=1)
    assert not root.exists()


def test_a_collector_of_no_spool_is_refused():
    """As it is made, and not at the first scrape."""
    with pytest.raises(errors.BadInput, match="takes a Spool"):
        SpoolCollector(5)


def test_what_it_holds_is_shown_to_prometheus(tmp_path):
    """Of each queue what waits, its age, its bytes and what was lost; and whether it is full."""
    registry = CollectorRegistry()
    with Spool(
        tmp_path / "spool", disk_reserve=0, segment_bytes=4096, max_records=6, on_full="raise"
    ) as spool:
        registry.register(SpoolCollector(spool))

        def shown(name, **labels):
            return registry.get_sample_value(f"cqueue_spool_{name}", labels)

        mail = {"topic": "mail", "queue_id": "7"}
        spool.append_many("mail", [b"x"] * 4, queue_id=7).result(10)
        spool.commit("mail", 1, queue_id=7)
        assert (shown("waiting", **mail), shown("lost", **mail), shown("full")) == (3, 0, 0)
        assert shown("bytes", **mail) >= 4096
        assert 0 <= shown("oldest_age_seconds", **mail) < 60
        with pytest.raises(errors.SpoolFull):
            spool.append_many("mail", [b"x"] * 4, queue_id=7)
        assert shown("full") == 1
        spool.commit("mail", 4, queue_id=7)
        assert (shown("waiting", **mail), shown("oldest_age_seconds", **mail)) == (0, 0)
        spool.forwarding["mail"].forwarded += 4
        spool.forwarding["mail"].failures += 1
        mail["queue_id"] = "0"
        assert (shown("forwarded_total", **mail), shown("failures_total", **mail)) == (4, 1)


class Free(Disk):
    """A disk that says how many bytes are free; None: it does not answer."""

    bytes = 1_000_000

    def free(self, path):
        if self.bytes is None:
            raise OSError("the disk does not answer")
        return self.bytes


def test_its_limits_and_the_room_on_its_disk_are_shown(tmp_path):
    """By path: two spools of one process have limits of their own. What no disk tells is not shown."""
    disk, registry = Free(), CollectorRegistry()
    options = {"segment_bytes": 4096, "disk": disk}
    with (
        Spool(tmp_path / "one", max_bytes=5000, max_records=50, disk_reserve=400_000, **options) as one,
        Spool(tmp_path / "two", max_bytes=7000, disk_reserve=0, **options),
    ):
        registry.register(SpoolCollector())

        def shown(name, spool="one"):
            return registry.get_sample_value(f"cqueue_spool_{name}", {"path": str(tmp_path / spool)})

        assert (shown("limit_bytes"), shown("limit_messages")) == (5000, 50)
        assert (shown("limit_bytes", "two"), shown("limit_messages", "two")) == (7000, 10_000_000)
        assert (shown("free_bytes"), shown("free_bytes", "two")) == (600_000, 1_000_000)
        assert (shown("used_bytes"), shown("used_messages")) == (0, 0)
        one.append("mail", b"x" * 100).result(10)
        assert 100 <= shown("used_bytes") < 200
        one.append("sms", b"").result(10)
        assert (shown("used_messages"), shown("used_messages", "two")) == (2, 0)
        one.commit("mail", 1)
        assert shown("used_messages") == 1
        one.commit("sms", 1)
        assert (shown("used_bytes"), shown("used_messages")) == (0, 0)
        disk.bytes = 399_999
        assert shown("free_bytes") == 0
        disk.bytes = None
        assert (shown("free_bytes"), shown("limit_bytes")) == (None, 5000)
        disk.bytes = 1_000_000


def test_one_topic_in_two_spools_is_one_sample(tmp_path):
    """Prometheus keeps one of two samples with the same labels, and so would show one spool's figure."""
    registry = CollectorRegistry()
    registry.register(SpoolCollector())
    with small(tmp_path / "one") as one, small(tmp_path / "two") as two:
        for spool in (one, two):
            spool.append_many("mail", [b"x"] * 3).result(10)
            spool.forwarding["mail"].forwarded += 2
        told = [(one.name, *one.labels.items()) for each in registry.collect() for one in each.samples]
        assert len(told) == len(set(told))
        mail = {"topic": "mail", "queue_id": "0"}
        assert registry.get_sample_value("cqueue_spool_waiting", mail) == 6
        assert registry.get_sample_value("cqueue_spool_forwarded_total", mail) == 4
        assert registry.get_sample_value("cqueue_spool_oldest_age_seconds", mail) < 60
        assert registry.get_sample_value("cqueue_spool_full") == 0


def test_only_the_own_user_reads_a_spool(tmp_path):
    """Whatever the umask: bodies stand in it. A directory that is there already keeps its rights."""
    before = os.umask(0)
    try:
        with small(tmp_path / "new" / "spool") as spool:
            fill(spool, 200)
            spool.commit(TOPIC, 100)
    finally:
        os.umask(before)
    made = [tmp_path / "new", *(tmp_path / "new").rglob("*")]
    assert {path.name for path in made} > {"progress", ".lock", TOPIC}
    wrong = {str(path): oct(path.stat().st_mode) for path in made if path.stat().st_mode & 0o077}
    assert wrong == {}
