"""What becomes of a message whose task keeps results: the row that is stored before its ack.

A message that is acked always has its result, because the ack waits until the result is stored. A message
that dies has it after its burial, as far as possible; a handle finds the dead letter otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cqueue.errors import BadInput
from cqueue.message import MAX_BODY
from cqueue.runtime.texts import storable
from cqueue.store.control import KeepResult, ResultRow
from cqueue.store.operations import Together

if TYPE_CHECKING:
    from cqueue.dispatcher.execution.delivery import Delivery, Settlement
    from cqueue.protocol.spec import Proto

AT_ONCE: Final = 256
"""Results that are written side by side, at most."""
BYTES_AT_ONCE: Final = 4 << 20
"""Bytes of them, about: a node with a small heap refuses 13 MiB."""
STATES: Final = {"succeeded": "succeeded", "cancelled": "cancelled", "dead": "failed"}
"""The state of a result by the outcome of the settlement; other outcomes have none."""


@dataclass(frozen=True, slots=True)
class Keeping:
    """How a task's results are kept.

    Attributes:
        ttl_s: seconds for which they are kept.
        codec: name of the codec.
        encode: return a value as bytes, or raise `BadInput`.
    """

    ttl_s: int
    codec: str
    encode: Callable[[Any], bytes]


def result_of(
    keeping: Keeping, delivery: Delivery, settlement: Settlement
) -> tuple[KeepResult | None, BadInput | None]:
    """Return what is to be stored about a decided message, if it comes to an end with this decision.

    Returns:
        The operation, and why the value that the task returned cannot be stored: then the operation stores a
        result without a value.
    """
    state = STATES.get(settlement.outcome)
    if state is None:
        return None, None
    codec = value = error = reason = refusal = None
    if state == "succeeded":
        try:
            codec, value = keeping.codec, _fitting(keeping.encode(delivery.answer))
        except BadInput as exc:
            codec, refusal, reason = None, exc, str(exc)
    else:
        error = type(delivery.error).__name__ if delivery.error is not None else None
        reason = storable(settlement.reason)
    at_ms = delivery.poller.driver.clock.guess_us() // 1000  # asks no node: a handler's thread waits
    row = ResultRow(str(delivery.message.id), state, codec, value, error, reason, at_ms)
    return KeepResult(row, keeping.ttl_s), refusal


def _fitting(value: bytes) -> bytes:
    if len(value) > MAX_BODY:
        raise BadInput(f"the result has {len(value):,} bytes; at most {MAX_BODY:,} are kept")
    return value


def keep(results: Sequence[KeepResult]) -> Proto[list[Exception | None]]:
    """Store results. Return for each the error if it may not be stored; it may be stored again."""
    errors: list[Exception | None] = []
    for some in _portions(results):
        outcomes = yield from Together(tuple(some))
        errors += [outcome if isinstance(outcome, Exception) else None for outcome in outcomes]
    return errors


def _portions(results: Sequence[KeepResult]) -> Iterator[list[KeepResult]]:
    some: list[KeepResult] = []
    size = 0
    for result in results:
        some.append(result)
        size += len(result.row.value or b"")
        if len(some) == AT_ONCE or size >= BYTES_AT_ONCE:
            yield some
            some, size = [], 0
    if some:
        yield some
