"""All errors that cqueue raises, in one tree.

The second level says what is known about the effect of the call, so it is the level for callers to act on.

    CqueueError
    ├── NotDone                 nothing was stored; calling again is safe
    │   ├── Duplicate           a message of the same unique key is in the way; `id` names it
    │   ├── Unavailable         too few replicas, no connection, overloaded
    │   │   └── TooManyTombstones  a read crossed more tombstones than the nodes allow
    │   ├── Refused             Cassandra will refuse it again until somebody changes something
    │   │   ├── SchemaMismatch  the keyspace's schema is missing, older or newer than this code
    │   │   ├── TlsFailed       client and node do not agree on a connection with TLS
    │   │   └── SpoolTooOld     the spooled messages cannot be forwarded any more without a risk of copies
    │   ├── RedriveLimit        the dead letter was redriven as often as the call allows; it stays
    │   ├── DamagedRow          a stored row cannot be read; it has to be mended or dropped first
    │   ├── MessageHeld         a consumer holds the message; ask again when it was given back
    │   ├── Closed              the client, producer or consumer has been closed
    │   ├── UnknownTask         this process has no task of the message's name; another version may
    │   ├── PayloadMismatch     the message's arguments do not fit this version of the task
    │   ├── ResultTimeout       the task has no result yet
    │   ├── NoResult            the task has no result, and will have none
    │   ├── SpoolFull           the spool's backlog is at its limit, or its disk is full
    │   ├── SpoolLocked         another process has the spool open, or another client forwards from it
    │   └── DevError            the embedded Cassandra could not do what was asked
    ├── OutcomeUnknown          the call may or may not have taken effect
    │   ├── SendUnknown         the messages may be stored; `ids` names them
    │   ├── AppendUnknown       the records may be stored; `ids` names them
    │   ├── AckUnknown          the ack may be stored; the messages may come again
    │   └── SpoolFailed         the spool's disk failed; `offsets` may be stored
    ├── TaskFailed              the call worked, but the task whose result was asked for had failed
    ├── OwnershipLost           the caller's message belongs to another consumer now
    │   └── LeaseLost           the visibility timeout passed, or the message was cancelled
    └── BadInput                the arguments are wrong; nothing was sent
        ├── BadArguments        a task does not take the arguments, or they cannot be encoded
        ├── ConfigError         a queue's or client's configuration
        ├── InvalidQueueName
        ├── InvalidMessageId
        ├── InvalidToken        a page's token is damaged, or of another queue
        ├── LetterNotFound
        ├── InvalidLogId
        ├── LogNotFound
        ├── LogExists
        ├── PartitionOutOfRange
        ├── PositionExpired     a reader's start lies before what the log remembers
        ├── RecordRejected      a listener will never take this record
        ├── BodyTooLarge
        ├── HeadersTooLarge
        ├── DelayOutOfRange
        ├── PriorityOutOfRange
        ├── BatchTooLarge
        ├── QueueNotFound
        ├── QueueExists
        ├── NotKeyed            the queue keeps no keys to look messages up by
        ├── ScheduleNotFound
        ├── ScheduleExists
        ├── WrongDataCentre     clients of the keyspace work in another data centre than this client
        └── SchemaMismatch      as above: it belongs to both families

The driver's own error, where there is one, is the `__cause__`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, TypeVar

E = TypeVar("E", bound=BaseException)


class CqueueError(Exception):
    """Base of all errors of this library."""


class NotDone(CqueueError):
    """The operation had no effect. Calling again is safe."""


class Unavailable(NotDone):
    """Cassandra refused before doing anything: too few replicas, no connection, or overloaded."""


class TooManyTombstones(Unavailable):
    """Cassandra gave a read up that crossed more tombstones than its `tombstone_failure_threshold`.

    Consumers read in shorter pieces after it, so it passes by itself.
    """


class Refused(NotDone):
    """Cassandra refuses it for good: a missing grant, a guardrail, a column that the schema lacks.

    Nothing was stored. Calling again fails again until an operator changes what the message names.
    """


class TlsFailed(Refused):
    """Client and nodes do not agree on a connection with TLS; the text says on what, and what to do.

    An authority that is not trusted, a certificate that has expired or lists other names, a node that wants a
    client's certificate, or one side alone that encrypts. A file of this client that cannot be used is a
    `ConfigError`.
    """


class SpoolTooOld(Refused):
    """A message was spooled longer ago than gc_grace. It stays in the spool, with all messages behind it.

    The message may have been sent and acked before, and Cassandra may have forgotten the ack. So nothing was
    done. An operator decides: `cqueue spool forward --again`.
    """


class Duplicate(NotDone):
    """Nothing was sent, because a message of the same unique key is in the way.

    Attributes:
        id: the id of that message, as a string.
    """

    def __init__(self, text: str, id: str = "") -> None:  # noqa: A002 - the attribute's name
        super().__init__(text)
        self.id = id


class DamagedRow(NotDone):
    """A stored row cannot be read, so nothing was done with it.

    Calling again fails again until the row is mended or dropped; see `cqueue quarantine`.
    """


class MessageHeld(NotDone):
    """A consumer holds the message, so the message cannot be moved. `cancel` and `extend` work on it."""


class RedriveLimit(NotDone):
    """The dead letter was redriven as often as the call's `max_redrives` allows. It stays a dead letter."""


class Closed(NotDone):
    """The object was closed before the call."""


class UnknownTask(NotDone):
    """This process has no task of that name, so nothing was run. Another version of the program may have
    it.
    """


class PayloadMismatch(NotDone):
    """The message's arguments cannot be read, or do not fit the task's signature. The task was not called."""


class ResultTimeout(NotDone):
    """The time is over, and the task has no result yet. Asking again is safe."""


class NoResult(NotDone):
    """The task has no result, and will have none: its message was cancelled, or is gone without a result.

    A result is gone when its `result_ttl` is over. A message without one has expired, was deleted, was
    settled by something else than a dispatcher, or its task returned what cannot be encoded; the text says
    so where it is known.
    """


class SpoolFull(NotDone):
    """The spool's backlog is at its limit, or its disk is full. Nothing was stored."""


class SpoolLocked(NotDone):
    """Another process has the spool open, or another client forwards this topic of it; one at a time may."""


class DevError(NotDone):
    """The embedded Cassandra could not do what was asked; the message gives the remedy."""


class OutcomeUnknown(CqueueError):
    """The operation may or may not have taken effect. Assume neither."""


class SendUnknown(OutcomeUnknown):
    """The messages may be stored, now or a little later.

    Attributes:
        ids: the ids under which the message was written, as strings, the first one first; several if it was
            written again. Sending again makes new ids and may store a second copy.
    """

    def __init__(self, text: str, ids: Sequence[str] = ()) -> None:
        super().__init__(text)
        self.ids = tuple(ids)


class AppendUnknown(OutcomeUnknown):
    """The records may be stored, now or a little later.

    Attributes:
        ids: the ids under which the record was written, as strings, the first one first; several if it was
            written again. Appending again makes new ids and may store a second copy.
    """

    def __init__(self, text: str, ids: Sequence[str] = ()) -> None:
        super().__init__(text)
        self.ids = tuple(ids)


class AckUnknown(OutcomeUnknown):
    """The ack may be stored. If it is not, the messages come again when their timeout passes."""


class SpoolFailed(OutcomeUnknown):
    """The spool's disk failed while it stored these offsets. They may be there at the next open.

    Attributes:
        offsets: the offsets in their queue that are in doubt.
    """

    def __init__(self, text: str, offsets: range = range(0)) -> None:
        super().__init__(text)
        self.offsets = offsets


class TaskFailed(CqueueError):
    """The task failed for good, and its message is a dead letter.

    Attributes:
        error: name of the exception's class, or None if it is not known.
        reason: why the message died, as in its dead letter.
    """

    def __init__(self, text: str, *, error: str | None = None, reason: str = "") -> None:
        super().__init__(text)
        self.error = error
        self.reason = reason


class OwnershipLost(CqueueError):
    """The caller no longer owns the message or partition that the call was about."""


class LeaseLost(OwnershipLost):
    """The caller holds the message no more: its visibility timeout passed, or somebody cancelled it."""


class BadInput(CqueueError, ValueError):
    """An argument is wrong. Nothing was sent."""


class BadArguments(BadInput):
    """The task does not take these arguments, or they cannot be encoded into a message."""


class NotKeyed(BadInput):
    """The queue is not `keyed`, so its messages cannot be looked up by their keys. Nothing was done."""


class ConfigError(BadInput):
    """A configuration value is out of its range, or does not fit another one."""


class InvalidQueueName(BadInput):
    """A queue name has 1 to 200 characters out of `A-Z a-z 0-9 . _ -`, and is neither `.` nor `..`."""


class InvalidToken(BadInput):
    """The text is no token of a page of this queue: it is damaged, or of another queue or an earlier one."""


class InvalidMessageId(BadInput):
    """The text is no message id of this library."""


class LetterNotFound(BadInput):
    """The queue has no dead letter of that id."""


class InvalidLogId(BadInput):
    """The text is no record id of this library."""


class LogNotFound(BadInput):
    """There is no log of that name."""


class LogExists(BadInput):
    """A log of that name exists already, with other settings or without `exist_ok`."""


class PartitionOutOfRange(BadInput):
    """The log has no partition of that number."""


class PositionExpired(BadInput):
    """Records behind the position may be forgotten already: their time to live is over."""


class RecordRejected(BadInput):
    """Raised by a listener that will never take this record: it goes to the dead-letter log at once."""


class BodyTooLarge(BadInput):
    """A body has at most 1 MiB."""


class HeadersTooLarge(BadInput):
    """At most 64 headers and 16 KiB of them together."""


class DelayOutOfRange(BadInput):
    """A delay lies between 0 and 10 years."""


class PriorityOutOfRange(BadInput):
    """A priority is a whole number from 0 (most urgent) to 9."""


class BatchTooLarge(BadInput):
    """More entries than one call takes."""


class QueueNotFound(BadInput):
    """There is no queue of that name."""


class QueueExists(BadInput):
    """A queue of that name exists already, with other settings or without `exist_ok`."""


class ScheduleNotFound(BadInput):
    """The queue has no schedule of that key."""


class ScheduleExists(BadInput):
    """The queue has a schedule of that key already, with another definition or without `exist_ok`."""


class WrongDataCentre(BadInput):
    """Clients of the keyspace work in another data centre, its home; nothing was done.

    After a switch of the home, each call of a client that was connected before raises this error, for good.
    Connect again, in the new home.
    """


class SchemaMismatch(Refused, BadInput):
    """The keyspace lacks cqueue's schema, or has one that this version cannot work with."""


LASTING: Final = (Refused, DamagedRow, WrongDataCentre)
"""Errors that a repetition meets again, until an operator has mended something."""


# ── an outcome stays unknown where what follows is not done: neither error may hide the other ──


def caused(error: E, cause: BaseException | None) -> E:
    """Return an error that is handed on as a value, with its cause."""
    error.__cause__ = cause
    return error


@contextmanager
def looking_again(unknown: OutcomeUnknown | None) -> Iterator[None]:
    """Look whether a change without an answer is stored. If that fails, it stays unknown."""
    try:
        yield
    except NotDone as exc:
        if unknown is None:
            raise
        raise unknown from exc


@contextmanager
def unknown_if_not_done(what: str) -> Iterator[None]:
    """Raise a `NotDone` as `OutcomeUnknown`: `what` was done before."""
    try:
        yield
    except NotDone as exc:
        raise OutcomeUnknown(f"{what}: repeat the call ({exc})") from exc
