"""A queue whose sends go to a spool first: `client.queue(name, spool=…)`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent import futures
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

from cqueue.errors import CqueueError, NotDone, OutcomeUnknown, SendUnknown, caused
from cqueue.message import Message, MessageId
from cqueue.producer import SendResult
from cqueue.queue import Queue
from cqueue.runtime.waiting import Future
from cqueue.sending.changes import ChangeResult
from cqueue.sending.results import Failed, checked, listed
from cqueue.sending.spans import sent
from cqueue.spool.forward_message import QueueTarget, Spooled, topic_of
from cqueue.spool.forwarder import Forwarded
from cqueue.unique import Unique

if TYPE_CHECKING:
    from cqueue.spool import Spool

R = TypeVar("R")

FORWARDED_S: Final = 1.0
"""Seconds that a change waits until what is spooled now is in Cassandra: ms, unless nodes do not answer."""
MAY_BE_SPOOLED: Final = "the message may still be in the spool; `flush` it, and call again"


class SpooledResult(SendResult):
    """The outcome of one `send_many` to a queue with a spool.

    Attributes:
        ids: the ids that the messages will have in Cassandra, in the order of the entries.
        failed: (index, error) of each entry that is not in the spool (`NotDone`, `BadInput`), or may not be
            (`SendUnknown`). All other entries are durable in the spool, and not yet in Cassandra.
    """

    def __init__(self, ids: list[MessageId | None], failed: Failed) -> None:
        super().__init__(len(ids), [], failed)
        self.__dict__["ids"] = ids

    def __repr__(self) -> str:
        return f"<spooled: messages={self._size} failed={len(self.failed)}>"


class SpooledQueue(Queue, Forwarded):
    """A queue whose sends are durable once they are on this machine's disk; a thread forwards them.

    Everything but sending works as with any other queue, and needs Cassandra. Thread-safe.
    """

    def __init__(self, *parts: Any, spool: Spool, target: QueueTarget, **more: Any) -> None:
        Queue.__init__(self, *parts, **more)
        Forwarded.__init__(self, spool, topic_of(self.name), target.store)
        self._target = target

    def __repr__(self) -> str:
        return f"<queue {self.name} with a spool>"

    # ── send ──

    def send(
        self,
        body: bytes,
        *,
        delay: timedelta | None = None,
        due: datetime | None = None,
        priority: int = 0,
        headers: Mapping[str, str] | None = None,
        ttl: timedelta | None = None,
        key: str | None = None,
        unique: Unique | None = None,
    ) -> MessageId:
        """Spool one message, and return its id once the message is on the disk.

        The message will have that id in Cassandra. Its time to live and its delay run from now.

        Raises:
            BadInput: a limit is passed, the queue is gone, or the message is `unique`; nothing was spooled.
            SpoolFull: the spool takes no more; nothing was spooled.
            SpoolTooOld: an earlier message cannot be forwarded any more; nothing was spooled.
            SendUnknown: the disk has failed, and the message may be in the spool.
        """
        return self.send_async(
            body, delay=delay, due=due, priority=priority, headers=headers, ttl=ttl, key=key, unique=unique
        ).result()

    def send_async(
        self,
        body: bytes,
        *,
        delay: timedelta | None = None,
        due: datetime | None = None,
        priority: int = 0,
        headers: Mapping[str, str] | None = None,
        ttl: timedelta | None = None,
        key: str | None = None,
        unique: Unique | None = None,
    ) -> Future[MessageId]:
        """Spool one message; the future gives its id when the message is on the disk, or the error of `send`.

        Raises:
            BadInput, SpoolFull, SpoolTooOld: as `send`, at once.
        """
        self._check()
        message = Message(body, delay, due, priority, headers, ttl, key=key, unique=unique)
        return sent(self._driver.tracing, "send", self.name, [message], self._spool_one)

    def _spool_one(self, entries: list[Message]) -> Future[MessageId]:
        one = self._target.spooled(entries[0])
        appended = self._spool.append(self._forwarder.topic, one.payload)
        return _then(appended, lambda error: _told(one.id, error))

    def send_many(self, messages: Iterable[Message]) -> SpooledResult:
        """Spool up to 10,000 messages; entries fail one by one, and the result says which."""
        spooled: SpooledResult = self._append(messages).result()
        return spooled

    def send_many_async(self, messages: Iterable[Message]) -> Future[SendResult]:
        """Spool messages; the future gives the result of `send_many` when all are on the disk."""
        return self._append(messages)

    def _append(self, messages: Iterable[Message]) -> Future[Any]:
        self._check()
        entries = listed(messages, Message, "send_many")
        return sent(self._driver.tracing, "send", self.name, entries, self._spool_many)

    def _spool_many(self, entries: list[Message]) -> Future[Any]:
        good, places, failed = checked(entries, self._target.spooled)
        done: Future[Any] = Future()
        if good:
            try:
                done = self._spool.append_many(self._forwarder.topic, [one.payload for one in good])
            except NotDone as exc:
                done.set_exception(exc)
        else:
            done.set_result(None)
        return _then(done, lambda error: _result(len(entries), places, good, failed, error))

    # ── change: what is still in the spool is not there to be changed, and not gone either ──

    def cancel_many(self, message_ids: Iterable[str]) -> ChangeResult:
        """As without a spool; but what may still be in the spool is `NotDone`, and not `missing`."""
        return self._if_forwarded(lambda: super(SpooledQueue, self).cancel_many(message_ids))

    def reschedule_many(self, message_ids: Iterable[str], due: datetime | timedelta) -> ChangeResult:
        """As without a spool; but what may still be in the spool is `NotDone`, and not `missing`."""
        return self._if_forwarded(lambda: super(SpooledQueue, self).reschedule_many(message_ids, due))

    def set_priority_many(self, message_ids: Iterable[str], priority: int) -> ChangeResult:
        """As without a spool; but what may still be in the spool is `NotDone`, and not `missing`."""
        return self._if_forwarded(lambda: super(SpooledQueue, self).set_priority_many(message_ids, priority))

    def delete_by_key(self, key: str) -> ChangeResult:
        """As without a spool; while messages may be in the spool `NotDone`, and nothing is cancelled."""
        self._raise_if_spooled()
        return super().delete_by_key(key)

    def reschedule_by_key(self, key: str, due: datetime | timedelta) -> ChangeResult:
        """As without a spool; while messages may be in the spool `NotDone`, and nothing is changed."""
        self._raise_if_spooled()
        return super().reschedule_by_key(key, due)

    def _is_forwarded(self) -> bool:
        """Wait until what is spooled now, so all that the caller can know of, is in Cassandra."""
        return self.waiting == 0 or self._forwarder.drain(FORWARDED_S)

    def _raise_if_spooled(self) -> None:
        if not self._is_forwarded():
            raise NotDone(MAY_BE_SPOOLED)

    def _if_forwarded(self, change: Callable[[], ChangeResult]) -> ChangeResult:
        is_forwarded = self._is_forwarded()  # first: what is forwarded by then is found
        result = change()
        if is_forwarded:
            return result
        later = NotDone(MAY_BE_SPOOLED)
        return ChangeResult(result.done, (), {**dict.fromkeys(result.missing, later), **result.failed})

    def _check(self) -> None:
        """Raise if the client is closed, or if messages could not be forwarded."""
        self._producer.check_open()
        self._forwarder.check()


def _then(future: Future[Any], make: Callable[[BaseException | None], R]) -> Future[R]:
    """Return a future of what `make` returns when another future has ended, given its error."""
    made: Future[R] = Future()
    made.set_running_or_notify_cancel()

    def tell(ended: futures.Future[Any]) -> None:
        try:
            made.set_result(make(ended.exception()))
        except BaseException as exc:  # noqa: BLE001 - its caller waits for it
            made.set_exception(exc)

    future.add_done_callback(tell)
    return made


def _told(id_: MessageId, error: BaseException | None) -> MessageId:
    if error is not None:
        raise _of(error, id_)
    return id_


def _of(error: BaseException, id_: MessageId) -> BaseException:
    """Return the error of one message: an unknown outcome with its id."""
    if not isinstance(error, OutcomeUnknown):
        return error
    return caused(SendUnknown(f"it is not known whether the message is in the spool: {error}", [id_]), error)


def _result(
    size: int, places: Sequence[int], good: list[Spooled], failed: Failed, error: BaseException | None
) -> SpooledResult:
    """Return the result of all entries, with those that were refused before anything was spooled."""
    ids: list[MessageId | None] = [None] * size
    for place, one in zip(places, good, strict=True):
        if error is None:
            ids[place] = one.id
        elif isinstance(told := _of(error, one.id), CqueueError):
            failed.append((place, told))
        else:
            raise error
    return SpooledResult(ids, failed)
