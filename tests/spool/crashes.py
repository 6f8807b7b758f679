"""`python -m tests.spool.crashes`: kill a process that writes a spool, and read what it stored.

Each round forks a child that appends from several threads, consumes and expires, and kills it with SIGKILL
after a random number of answers, also while it still recovers from the round before. Then what it
acknowledged must be there, and nothing that it did not append. A second part zeroes unsynced pages and flips
bits in images of a crash.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from cqueue.spool import Spool, segment
from tests.spool import images

TOPICS = ("a", "b")
MODES = ("always", "interval:1ms", "os")


def message(name: str, length: int) -> bytes:
    """Return a payload that tells whether it was ever made."""
    body = f"{name}:".encode() + b"." * length
    return b"%08x" % zlib.crc32(body) + body


def is_made(payload: bytes) -> bool:
    return payload[:8] == b"%08x" % zlib.crc32(payload[8:])


@dataclass
class Books:
    """What the children said: acknowledged messages and commits, by topic."""

    stored: dict[str, dict[int, bytes]] = field(default_factory=lambda: {topic: {} for topic in TOPICS})
    consumed: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TOPICS, 0))
    verified: int = 0

    def note(self, said: bytes) -> None:
        """Take all whole lines: a topic, then an offset with the payload, or `c` with an offset."""
        for line in said.split(b"\n")[:-1]:
            topic, offset, payload = line.split(b" ", 2)
            if payload:
                self.stored[topic.decode()][int(offset)] = payload
            else:
                self.consumed[topic.decode()] = max(self.consumed[topic.decode()], int(offset))

    def check(self, root: Path, options: dict[str, object]) -> None:
        """Open the spool and compare."""
        with Spool(root, **options) as spool:
            for status in spool.status():
                topic, known = status.topic, self.stored[status.topic]
                found = {one.offset: one.payload for one in spool.records(topic, 0, 0)}
                assert not status.lost, f"{topic}: {status.lost} reported lost"
                assert status.progress >= self.consumed[topic], f"{topic}: a commit is gone"
                assert status.first <= status.progress, f"{topic}: unconsumed messages are gone"
                assert list(found) == list(range(status.first, status.end)), f"{topic}: holes"
                assert all(map(is_made, found.values())), f"{topic}: invented"
                assert len(set(found.values())) == len(found), f"{topic}: stored twice"
                for offset, payload in known.items():
                    assert offset < status.first or found.get(offset) == payload, f"{topic} {offset}: lost"
                known.update(found)
                self.verified += len(found)
            assert not spool.verify()


def child(root: Path, out: int, number: int, options: dict[str, object]) -> NoReturn:
    """Append, consume and expire until killed."""
    spool = Spool(root, **options)

    def produce(topic: str, name: str) -> None:
        for count in range(1_000_000):
            lot = [message(f"{name}-{count}-{one}", random.randrange(300)) for one in range(count % 4 + 1)]
            offsets = spool.append_many(topic, lot).result()
            said = [b"%s %d %s\n" % (topic.encode(), at, one) for at, one in zip(offsets, lot, strict=True)]
            os.write(out, b"".join(said))

    for topic in TOPICS:
        for thread in range(2):
            threading.Thread(target=produce, args=(topic, f"{number}-{topic}-{thread}")).start()
    while True:
        for topic in TOPICS:
            at = spool.progress(topic)
            if spool.wait(topic, 0, at, 0.001):
                at = spool.pull(topic, 0, at, random.randrange(1, 20))[-1].offset + 1
                spool.commit(topic, at)
                os.write(out, b"%s %d \n" % (topic.encode(), at))


def kill_round(root: Path, books: Books, number: int) -> None:
    """Run a child until it has said a random number of lines, kill it, and note what it said."""
    options = {
        "fsync": random.choice(MODES),
        "segment_bytes": random.choice((8192, 32768)),
        "disk_reserve": 0,
    }
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.close(reader)
            random.seed(number)
            child(root, writer, number, options)
        finally:
            os._exit(1)
    os.close(writer)
    said, lines = b"", random.randrange(random.choice((1, 100)))  # none: killed while it starts and recovers
    while said.count(b"\n") < lines and (more := os.read(reader, 1 << 16)):
        said += more
    time.sleep(random.uniform(0, 0.01))
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    said += b"".join(iter(lambda: os.read(reader, 1 << 16), b""))
    os.close(reader)
    assert os.WIFSIGNALED(status), "the child ended by itself: see its traceback above"
    books.note(said)
    if random.random() < 0.7:
        books.check(root, options)


def damage_round(root: Path, number: int) -> None:
    """Zero unsynced pages or flip bits in the image of a crash; read it, and read it again."""
    written = [
        message(f"{number}-{count}", random.randrange(200)) for count in range(random.randrange(1, 400))
    ]
    image = images.crashed(root / "spool", written, segment_bytes=1 << 17, fsync="os")
    path = images.only_segment(image)
    found, scan = segment.load(path)
    data, synced = bytearray(path.read_bytes()), random.randrange(len(written))
    assert scan is not None
    begin = scan.positions[synced]
    if number % 2:
        for page in range(begin, found.end_position, random.choice((512, 4096))):
            if random.random() < 0.3:
                data[page : page + 512] = bytes(min(512, len(data) - page))
    else:
        for _ in range(random.randrange(1, 20)):
            bit = random.randrange(begin * 8, found.end_position * 8)
            data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)
    first = images.read_back(image)
    images.check(first, written, synced=synced)
    assert set(range(synced)) <= set(first.records)
    assert images.read_back(image) == first


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    logging.disable()  # damage is logged, and there will be much of it
    books = Books()
    with tempfile.TemporaryDirectory() as name:
        for number in range(asked.kills):
            random.seed(f"{asked.seed}-{number}")
            kill_round(Path(name) / "killed", books, number)
        books.check(Path(name) / "killed", {"disk_reserve": 0})
        for number in range(asked.images):
            random.seed(f"{asked.seed}-image-{number}")
            damage_round(Path(name), number)
            for part in ("spool", "spool-image"):
                shutil.rmtree(Path(name) / part)
    acknowledged = sum(map(len, books.stored.values()))
    sys.stdout.write(
        f"{asked.kills} kills, {asked.images} damaged images: {acknowledged} messages stored, "
        f"{books.verified} reads compared, none lost or invented\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
