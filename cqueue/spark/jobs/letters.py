"""Redriving dead letters, where Spark's tasks run: each is sent, and only then deleted.

A letter is sent under an id derived from its own, so a task that is run again sends nothing twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from cqueue.protocol.spec import DEAD_SUFFIX
from cqueue.sending import redriving
from cqueue.spark import session

if TYPE_CHECKING:
    from cqueue.settings import Settings
    from cqueue.spark.session import SparkSide

COLUMNS = "sent bigint, gone bigint, failed bigint, error string"
_SCHEMA = pa.schema(
    [("sent", pa.int64()), ("gone", pa.int64()), ("failed", pa.int64()), ("error", pa.string())]
)


@dataclass(frozen=True, slots=True)
class Redriver:
    """Redrives letters by their ids, in a task. Goes to other processes, so it holds values only.

    now_us: when the job began, µs since 1970. period_us: half of gc_grace; see `redriving.due_us`. rate:
        letters a second in this task. max_redrives: see `DeadLetters.redrive`.
    """

    settings: Settings
    queue: str
    now_us: int
    period_us: int
    rate: float | None = None
    max_redrives: int | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Redrive the letters whose ids stand in the first column; count the outcomes, by error."""
        side = session.session(self.settings)
        sent = gone = 0
        errors: Counter[str] = Counter()
        for batch in batches:
            wanted = batch.column(0).to_pylist()
            for chunk in redriving.chunks(wanted, self.rate):
                outcomes = self.redrive(side, chunk)
                gone += len(chunk) - len(outcomes)
                failed = [one.error for one in outcomes if one.error is not None]
                sent += len(outcomes) - len(failed)
                errors.update(f"{type(error).__name__}: {error}" for error in failed)
        rows: list[dict[str, int | str | None]] = [{"sent": sent, "gone": gone, "failed": 0, "error": None}]
        rows += [{"sent": 0, "gone": 0, "failed": count, "error": text} for text, count in errors.items()]
        yield pa.RecordBatch.from_pylist(rows, _SCHEMA)

    def redrive(self, side: SparkSide, wanted: Sequence[str]) -> list[redriving.LetterOutcome]:
        """Redrive those letters that are still there; return their outcomes."""
        found = redriving.look(side.driver, wanted)
        return redriving.send_back(
            side.driver,
            side.producer(self.queue),
            found,
            dead=side.queues.entry(self.queue + DEAD_SUFFIX).spec,
            now_us=self.now_us,
            period_us=self.period_us,
            max_redrives=self.max_redrives,
        )
