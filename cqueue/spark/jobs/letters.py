"""Redriving dead letters, where Spark's tasks run: send, and only then delete.

A letter is sent under an id derived from its own, so a task that is run again sends nothing twice; and it is
deleted only when its message is known to be stored, so that it is never in neither queue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from cqueue import ids
from cqueue.errors import CqueueError
from cqueue.message import Message, MessageId, to_datetime
from cqueue.protocol.dead import (
    HEADER_ATTEMPTS,
    HEADER_ID,
    HEADER_LOST,
    HEADER_QUEUE,
    HEADER_REASON,
    HEADER_TRACEBACK,
)
from cqueue.spark import session
from cqueue.store.operations import (
    DeleteBodies,
    DeleteMessages,
    MessageRow,
    ReadBodies,
    ReadMessages,
    WideRow,
)

if TYPE_CHECKING:
    from cqueue.settings import Settings
    from cqueue.spark.session import SparkSide

AT_ONCE = 250
"""Letters that are held in memory at a time; a body has at most 1 MiB."""
COLUMNS = "sent bigint, gone bigint, failed bigint, error string"
_SCHEMA = pa.schema(
    [("sent", pa.int64()), ("gone", pa.int64()), ("failed", pa.int64()), ("error", pa.string())]
)
_DEAD_HEADERS = frozenset({HEADER_ATTEMPTS, HEADER_ID, HEADER_QUEUE, HEADER_REASON, HEADER_TRACEBACK})


class Letter(NamedTuple):
    """A dead letter as it stands."""

    wide_row: WideRow
    row: MessageRow
    body: bytes | None

    @property
    def lacks(self) -> str | None:
        """Why there is no body."""
        if self.body is None:
            return "its body cannot be read"
        return "its body is lost" if HEADER_LOST in (self.row.headers or {}) else None

    @property
    def id(self) -> MessageId:
        """Of the dead letter."""
        return MessageId.of(self.wide_row, self.row.priority, self.row.id)


@dataclass(frozen=True, slots=True)
class Redriver:
    """What a task does with the ids of letters. Goes to other processes, so it holds values only.

    now_us: when the job began, µs since 1970. period_us: half of gc_grace. A message is due at the letter's
    time of death, or so many whole periods later that it lies less than one back: the same in each run
    within that period.
    """

    settings: Settings
    queue: str
    now_us: int
    period_us: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Redrive the letters whose ids stand in the first column; what became of them, by error."""
        side = session.session(self.settings)
        sent = gone = 0
        errors: Counter[str] = Counter()
        for batch in batches:
            wanted = batch.column(0).to_pylist()
            for start in range(0, len(wanted), AT_ONCE):
                chunk = wanted[start : start + AT_ONCE]
                letters = list(_read(side, chunk))
                gone += len(chunk) - len(letters)
                stored = self._send(side, letters, errors)
                sent += _delete(side, stored, errors)
        rows: list[dict[str, int | str | None]] = [{"sent": sent, "gone": gone, "failed": 0, "error": None}]
        rows += [{"sent": 0, "gone": 0, "failed": count, "error": text} for text, count in errors.items()]
        yield pa.RecordBatch.from_pylist(rows, _SCHEMA)

    def _send(self, side: SparkSide, letters: list[Letter], errors: Counter[str]) -> list[Letter]:
        """Those of them that are stored in the queue. Without its body a letter is no longer that message."""
        whole = [letter for letter in letters if not letter.lacks]
        errors.update(f"NotDone: {letter.lacks}" for letter in letters if letter.lacks)
        if not whole:
            return []
        result = side.producer(self.queue).send_many([self.message(letter) for letter in whole])
        failed = dict(result.failed)
        errors.update(_told(error) for error in failed.values())
        return [letter for place, letter in enumerate(whole) if place not in failed]

    def message(self, letter: Letter) -> Message:
        """The message that the letter was: without the headers that burying added."""
        row = letter.row
        headers = {name: text for name, text in (row.headers or {}).items() if name not in _DEAD_HEADERS}
        return Message(
            letter.body or b"",
            due=to_datetime(0) + timedelta(microseconds=self.due_us(ids.time_us(row.id))),
            priority=row.priority,
            headers=headers or None,
            task=row.task,
            key=row.key,
            codec=row.codec,
            trigger=row.trigger,
            source=f"redrive {letter.id}",
        )

    def due_us(self, died_us: int) -> int:
        """When the message of a letter of that time is due, in µs since 1970."""
        return died_us + max(0, self.now_us - died_us) // self.period_us * self.period_us


def _read(side: SparkSide, wanted: Iterable[str]) -> Iterator[Letter]:
    """The letters that are still there."""
    places: dict[tuple[WideRow, int], list[int]] = {}
    for text in wanted:
        wide_row, priority, id_ = MessageId(text).locate()
        places.setdefault((wide_row, priority), []).append(id_)
    for (wide_row, priority), found in places.items():
        rows = side.driver.ask(ReadMessages(wide_row, priority, tuple(sorted(found))))
        sizes = {row.id: row.size for row in rows if row.size is not None}
        read = ReadBodies(wide_row, tuple(sizes), tuple(sizes.values()))
        bodies = side.driver.ask(read) if sizes else {}
        for row in rows:
            yield Letter(wide_row, row, bodies.get(row.id) if row.size is not None else row.body)


def _delete(side: SparkSide, letters: list[Letter], errors: Counter[str]) -> int:
    """Delete letters that were sent; how many. What stays is sent again by the next run, as the same."""
    places: dict[tuple[WideRow, int], list[MessageRow]] = {}
    for letter in letters:
        places.setdefault((letter.wide_row, letter.row.priority), []).append(letter.row)
    deleted = 0
    for (wide_row, priority), rows in places.items():
        large = tuple(row.id for row in rows if row.size is not None)
        try:
            side.driver.ask(DeleteMessages(wide_row, priority, tuple(row.id for row in rows)))
            if large:
                side.driver.ask(DeleteBodies(wide_row, large))
        except CqueueError as exc:
            errors[f"sent, but not yet deleted: {_told(exc)}"] += len(rows)
        else:
            deleted += len(rows)
    return deleted


def _told(error: CqueueError) -> str:
    return f"{type(error).__name__}: {error}"
