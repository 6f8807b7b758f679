"""Notes of when a batch of a streaming query was tried first, and marks of the records that it left behind.

Spark repeats a batch that was not committed, in another process and perhaps days later, and says nothing of
what the first try stored. So each task notes its beginning before it stores anything. The note stands in a
partition of the log table that no reader looks into: plain inserts with a time to live, the earliest counts.
A queue's message then gets an id that is derived from that time, the same at each try. A log's record cannot:
readers may have passed its place. A record carries a mark in its headers instead, and a repeated task looks
which marks are there.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from pyspark import TaskContext

from cqueue import ids
from cqueue.errors import OwnershipLost
from cqueue.log.protocol.spec import LogSpec
from cqueue.protocol.inspection import END
from cqueue.spark.records import existing, pages, within
from cqueue.spark.session import SparkSide, patient
from cqueue.store.cells import pairs
from cqueue.store.log_operations import AppendRecords, LogShard, RecordRow
from cqueue.store.record_page import ReadRecordPage, RecordPage

MARK: Final = "cqueue-source"
"""The header that tells copies of a record."""
HIDDEN: Final = -1
"""The number of a partition that no log has."""
REMEMBERED_S: Final = 30 * 86_400


@dataclass(frozen=True, slots=True)
class FirstTry:
    """When work was tried first (µs since 1970), and whether another run tried it."""

    at_us: int
    repeated: bool


def first_try(side: SparkSide, target: str, work: str, run: str) -> FirstTry:
    """Note that `work` on a queue or log begins. target: its name in partition keys.

    run: the name of one run of this work, the same in all its tasks. Notes are kept for 30 days.

    Raises:
        NotDone, OutcomeUnknown: the note may not be stored; the task must store nothing.
    """
    shard = hidden(target, f"{target} {work}")
    known = _earliest(side, shard)
    if known is None:
        mine = note(side, shard, run, REMEMBERED_S)
        known = _earliest(side, shard) or mine  # of tasks that begin together one is the first
    return FirstTry(ids.time_us(known.id), repeated=known.topic != run)


def due_us(side: SparkSide, target: str, work: str, task: str, run: str) -> int:
    """Return when `work` was tried first (µs since 1970): what earlier attempts of this task took for it.

    Tasks begin together. One may take its note for the first, and an earlier one is stored a moment later. So
    each task notes what it took, before it stores anything by that. Two attempts that begin in the same
    milliseconds may still take different times, where the earlier note of the two is stored last.

    Raises:
        NotDone, OutcomeUnknown: as `first_try`.
    """
    shard = hidden(target, f"{target} {task} due")
    taken = _earliest(side, shard)
    if taken is not None:
        return int(taken.topic)
    begun = first_try(side, target, work, run)
    mine = note(side, shard, str(begun.at_us), REMEMBERED_S)
    return int((_earliest(side, shard) or mine).topic)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of a task, noted so that it can tell others of the same task. repeated: one was before it.

    Two are under way where two drivers have one checkpoint, where Spark speculates, or where it has given up
    an executor that lives on.
    """

    side: SparkSide
    shard: LogShard
    noted: int
    repeated: bool

    def check(self) -> None:
        """Look whether no other attempt has begun since: it knows only what was stored before it began.

        Raises:
            OwnershipLost: one has, so this one must store nothing more.
            NotDone: Cassandra does not answer.
        """
        if patient(self.side.driver.ask)(ReadRecordPage(self.shard, self.noted, END, 1)):
            raise OwnershipLost(
                "another run with this checkpoint, or another attempt of this task, has begun since and "
                "stores these rows; let one run at a time have the checkpoint"
            )


def begin(side: SparkSide, target: str, task: str, run: str, context: TaskContext) -> Attempt:
    """Note that a task begins. target: its name in partition keys.

    Spark's number of the attempt does not tell whether there was another: it begins anew when Spark runs a
    whole stage again.

    Raises:
        NotDone, OutcomeUnknown: the note may not be stored; the task must store nothing.
    """
    shard = hidden(target, f"{target} {task}")
    mine = note(side, shard, f"{run} {context.taskAttemptId()}", REMEMBERED_S)
    first = _earliest(side, shard) or mine
    return Attempt(side, shard, mine.id, repeated=first.topic != mine.topic)


def hidden(target: str, text: str) -> LogShard:
    """Return the place of the notes on `text`: a partition that no log has."""
    digest = blake2b(text.encode(), digest_size=8).digest()
    return LogShard(target, HIDDEN, int.from_bytes(digest, "big", signed=True))


def note(side: SparkSide, shard: LogShard, name: str, kept_s: int) -> RecordRow:
    """Store a note of now, with a name.

    Raises:
        NotDone, OutcomeUnknown: the note may not be stored.
    """
    id_ = ids.from_ticks(side.driver.clock.now_us() * 10, secrets.randbits(62))
    row = RecordRow(id_, name, None, None, b"")
    patient(side.driver.ask)(AppendRecords(shard, (row,), kept_s))  # the same row, as the earliest one counts
    return row


def _earliest(side: SparkSide, shard: LogShard) -> RecordRow | None:
    found = patient(side.driver.ask)(ReadRecordPage(shard, ids.START, END, 1))
    return next(found.rows(), None)


def settle(side: SparkSide, spec: LogSpec, since_us: int) -> int:
    """Wait until all that a process sent before `since_us` has arrived, or never counts; return that time."""
    end_us = since_us + spec.settle_us + spec.skew_us
    while (left_us := end_us - side.driver.clock.now_us()) > 0:
        time.sleep(left_us / 1e6)
    return end_us


def marks(side: SparkSide, spec: LogSpec, since_us: int, until_us: int, prefix: str) -> set[bytes]:
    """Return digests of the marks with this prefix, of all records between two times."""
    found: set[bytes] = set()
    since_us = max(since_us, spec.left_us(side.driver.clock.now_us()))
    after, upto = ids.lowest_at(since_us) - 1, ids.highest_at(until_us)
    shards = existing(side, spec, since_us, until_us)
    for stretch in pages(side, [piece for shard in shards for piece in within(spec, shard, after, upto)]):
        for headers in _headers(stretch.page):
            mark = dict(pairs(headers)).get(MARK, "") if MARK.encode() in headers else ""
            if mark and mark.startswith(prefix):
                found.add(digest_of(mark))
    return found


def digest_of(mark: str) -> bytes:
    """Return the digest of a mark: millions have to fit into a task's memory."""
    return blake2b(mark.encode(), digest_size=12).digest()


def _headers(page: RecordPage) -> Iterator[bytes]:
    for place in page.bodies:
        _, headers = page.texts_at(place)
        if headers is not None:
            yield headers
