"""The dead letters of a queue: list them, group them, redrive them, drop them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from itertools import islice

from cqueue import ids
from cqueue.errors import BadInput, Closed, CqueueError, LetterNotFound, NotDone, OutcomeUnknown, Unavailable
from cqueue.message import MessageId, check_limit, to_datetime
from cqueue.producer import Producer
from cqueue.protocol.bodies import HEADER_LOST
from cqueue.protocol.dead import (
    HEADER_ABANDONED,
    HEADER_ATTEMPTS,
    HEADER_FENCE,
    HEADER_HOLDER,
    HEADER_ID,
    HEADER_REASON,
    HEADER_REDRIVES,
    HEADER_TRACEBACK,
)
from cqueue.protocol.inspection import Found
from cqueue.protocol.spec import DEAD_SUFFIX
from cqueue.runtime import listing
from cqueue.runtime.catalog import Catalog, QueueEntry
from cqueue.runtime.driver import BlockingDriver
from cqueue.runtime.sequences import parts
from cqueue.sending import redriving

Step = Callable[[Sequence[Found]], Sequence[redriving.LetterOutcome]]
CASSANDRA_FAILED = (Unavailable, Closed, OutcomeUnknown)
"""Errors that Cassandra's state causes, not a letter: with these a redrive or drop gives up on the rest."""
MAX_LIST = 10_000
"""Letters that one `list` returns, at most; all of them are held in memory."""
DEFAULT_LIST = 100
"""Letters that one `list` returns, if the caller gives no limit."""
MAX_KIND = 200
"""Characters of a group's reason: a class of errors, or a short sentence."""
_ATTEMPT = re.compile(r"\Aattempt \d+[^:]*: ")
"""What a dispatcher writes before the class of the error."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that is not tried any more, with the reason.

    Attributes:
        id: the letter's own id.
        original_id: the id that the message had in its queue; None for a message sent to the dead-letter
            queue by hand.
        task, key, codec, priority, headers: as the message was sent.
        reason: why the message was buried.
        attempts: the message's deliveries; None for a message sent to the dead-letter queue by hand.
        died_at: time of the burial, in UTC.
        traceback: the traceback of the last failure, if the dispatcher knew one.
        size: bytes of the body.
        body_lost: True if no replica had the body at the burial. The letter's body is empty then.
        redrives: how often the message was redriven before it died this time.
        holder: name of the process that buried the message, as `cqueue workers` shows it; None unless it held
            the message then, and called `dead`.
        fence: the message's fence in that process.
        holder_lost: True if the last holder neither settled nor extended the message: it was killed, it hung,
            or it lost its connection. Nobody knows its name then.
        held: True if a consumer of the dead-letter queue holds the letter.
    """

    id: MessageId
    original_id: MessageId | None
    task: str | None
    key: str | None
    codec: str | None
    priority: int
    headers: Mapping[str, str] = field(repr=False)
    reason: str = field(repr=False)
    attempts: int | None
    died_at: datetime
    traceback: str | None = field(repr=False)
    size: int
    body_lost: bool
    redrives: int
    holder: str | None
    fence: int | None
    holder_lost: bool
    held: bool
    _load: Callable[[], bytes] = field(repr=False, compare=False)

    @property
    def body(self) -> bytes:
        """The message's body. A body above 16 KiB is read from Cassandra at each access.

        Raises:
            NotDone: the body cannot be read, or the letter is gone.
        """
        return self._load()


@dataclass(frozen=True, slots=True)
class LetterGroup:
    """The dead letters of one task that died of the same kind of reason.

    Attributes:
        task: the letters' task; None for messages without one.
        reason: what their reasons have in common: the part before the first `: `, such as the class of an
            error, 200 characters at most. A dispatcher's `attempt 5 of 5: ` is left out. It may be empty.
            `redrive(task=…, kind=…)` takes both as they are. With the task None it takes letters of any task.
        count: number of letters.
        first, last: times of the first and the last death, in UTC.
        example: id of the letter that died last.
        redriven: how many of the letters were redriven before.
    """

    task: str | None
    reason: str = field(repr=False)
    count: int
    first: datetime
    last: datetime
    example: MessageId
    redriven: int


@dataclass(frozen=True, slots=True)
class LettersResult:
    """The result of a redrive or a drop of letters.

    Attributes:
        done: letters that were sent back or dropped; in a dry run, those that would be.
        sent: ids of the redriven messages, in the order of `done`; empty for a drop or a dry run.
        held: letters that a consumer of the dead-letter queue holds; they stay.
        failed: (letter, error) of the other letters. `NotDone`: the letter stays. `OutcomeUnknown`: the
            letter may have been sent or dropped. Repeat the call in both cases; if it named ids, only with
            those that still have a letter. `RedriveLimit`: the letter stays, as it was redriven
            `max_redrives` times.
    """

    done: tuple[MessageId, ...]
    sent: tuple[MessageId, ...]
    held: tuple[MessageId, ...]
    failed: tuple[tuple[MessageId, CqueueError], ...]


class DeadLetters:
    """The dead letters of one queue. Iteration gives all letters, the oldest first. Thread-safe.

    A method that takes an id accepts the letter's own id, and the id that its message had in the queue.

    Example:
        letters = client.queue("mails").dead_letters
        letters.redrive(reason="ConnectionRefused")
    """

    def __init__(self, queue: str, catalog: Catalog, driver: BlockingDriver, producer: Producer) -> None:
        self.queue = queue
        self._catalog = catalog
        self._driver = driver
        self._producer = producer

    def __repr__(self) -> str:
        return f"<dead letters of {self.queue}>"

    # ── look ──

    def __iter__(self) -> Iterator[DeadLetter]:
        return map(self._letter, listing.messages(self._driver, self._dead.spec))

    def groups(self, *, reason: str | None = None, task: str | None = None) -> list[LetterGroup]:
        """Count the letters by task and kind of reason, the largest group first. Reads all letters.

        reason, task: only letters as of `list`.

        Raises:
            BadInput: an argument is an empty text, or none.
            NotDone: the letters cannot be read.

        Example:
            for group in letters.groups():
                print(group.count, group.task, group.reason)
        """
        found: dict[tuple[str | None, str], LetterGroup] = {}
        for letter in self._matching(reason, task):
            key, died = (letter.task, kind_of(letter.reason)), letter.died_at
            group = found.get(key) or LetterGroup(*key, 0, died, died, letter.id, 0)
            if died >= group.last:
                group = replace(group, last=died, example=letter.id)
            found[key] = replace(
                group,
                count=group.count + 1,
                first=min(group.first, died),
                redriven=group.redriven + bool(letter.redrives),
            )
        return sorted(found.values(), key=lambda group: (-group.count, group.task or "", group.reason))

    def list(
        self,
        limit: int = DEFAULT_LIST,
        *,
        reason: str | None = None,
        task: str | None = None,
        kind: str | None = None,
    ) -> list[DeadLetter]:
        """Return the oldest letters, up to `limit` (1 to 10,000).

        reason: only letters whose reason contains this text, in upper or lower case.
        task: only letters of this task.
        kind: only letters whose reason is of exactly this kind, the `reason` of a `LetterGroup`; not with
            `reason`.

        Raises:
            BadInput: an argument is out of range, or both `reason` and `kind` are given.
        """
        check_limit(limit, MAX_LIST)
        return list(islice(self._matching(reason, task, kind), limit))

    def get(self, letter_id: str) -> DeadLetter:
        """Return one letter.

        Raises:
            LetterNotFound: the queue has no dead letter with this id.
            DamagedRow: the letter cannot be read.
            InvalidMessageId: the text is no message id.
            BadInput: the id is that of another queue's message.
        """
        return self._letter(self._found([letter_id])[0])

    # ── change ──

    def redrive(
        self,
        letter_ids: str | Iterable[str] | None = None,
        *,
        reason: str | None = None,
        task: str | None = None,
        kind: str | None = None,
        everything: bool = False,
        rate: float | None = None,
        max_redrives: int | None = None,
        dry_run: bool = False,
    ) -> LettersResult:
        """Send letters back to the queue, as the messages that they were, due at once.

        Choose letters by ids; or by reason or kind, task, or both, as in `list`; or with everything=True. A
        letter is deleted only when its message is known to be stored. A call that broke off can be repeated
        without making copies. The exception: time since the burial is cut into periods of half of gc_grace
        (12 h by default), and if a period ends between the two calls, a message may be sent twice. The queue
        is altered to have `derived_sends` before a letter is sent.

        rate: letters a second at most, 0.001 to 100,000; None: as fast as Cassandra takes them. The call
            then lasts as long as that takes. Letters that stay count as well, and after a delay nothing is
            caught up.
        max_redrives: leave letters that were redriven this often already, 1 to 1,000,000; None: no limit.
            The header `cqueue-redrives` of a message counts. Where its other headers leave no room for the
            count, a limit leaves the letter.
        dry_run: write nothing; the result says at once what would be done.

        Raises:
            LetterNotFound: one of the ids has no letter; nothing was sent.
            BadInput: letters are chosen in no way, or in two ways, or an argument is out of range; nothing
                was sent.
            NotDone: the letters cannot be read; nothing was sent.

        Example:
            letters.redrive(task="shop:pay", rate=50, max_redrives=3)
        """
        redriving.check_limits(rate, max_redrives)
        chosen = self._chosen(letter_ids, reason, task, kind, everything=everything)
        if dry_run or not chosen:
            return self._each(chosen, partial(self._would_send, max_redrives))
        return self._redrive_those_left(chosen, rate=rate, max_redrives=max_redrives)

    def drop(
        self,
        letter_ids: str | Iterable[str] | None = None,
        *,
        reason: str | None = None,
        task: str | None = None,
        kind: str | None = None,
        everything: bool = False,
        dry_run: bool = False,
    ) -> LettersResult:
        """Delete letters for good. Arguments, result and errors are as for `redrive`."""
        chosen = self._chosen(letter_ids, reason, task, kind, everything=everything)
        return self._each(chosen, _would_drop if dry_run else self._drop)

    def _redrive_those_left(
        self, letter_ids: Sequence[MessageId], *, rate: float | None, max_redrives: int | None
    ) -> LettersResult:
        """Send back those of these letters that still exist. The result leaves out the others."""
        return self._each(letter_ids, self._sending(max_redrives), rate)

    def _drop_those_left(self, letter_ids: Sequence[MessageId]) -> LettersResult:
        """Delete those of these letters that still exist. The result leaves out the others."""
        return self._each(letter_ids, self._drop)

    # ── which ──

    @property
    def _dead(self) -> QueueEntry:
        return self._catalog.entry(self.queue + DEAD_SUFFIX)

    def _matching(
        self, reason: str | None, task: str | None, kind: str | None = None
    ) -> Iterator[DeadLetter]:
        for name, text in (("reason", reason), ("task", task)):
            if text is not None and (not isinstance(text, str) or not text):
                raise BadInput(f"{name} is {text!r}; it takes a text that is not empty")
        if kind is not None and (reason is not None or not isinstance(kind, str)):
            raise BadInput(f"kind is {kind!r}; it takes a text as a group has it, and no reason beside it")
        part = None if reason is None else reason.casefold()
        return (
            letter
            for letter in self
            if (part is None or part in letter.reason.casefold())
            and (kind is None or kind_of(letter.reason) == kind)
            and (task is None or letter.task == task)
        )

    def _chosen(
        self,
        letter_ids: str | Iterable[str] | None,
        reason: str | None,
        task: str | None,
        kind: str | None,
        *,
        everything: bool,
    ) -> Sequence[MessageId]:
        if not isinstance(everything, bool):  # "no" would mean all of them
            raise BadInput(f"everything is {everything!r}; it takes true or false")
        filtered = (reason, task, kind) != (None, None, None)
        if (letter_ids is not None) + filtered + everything != 1:
            raise BadInput(
                "say which letters: ids, or a reason, kind or task, or everything=True; one of these"
            )
        if letter_ids is None:
            return [letter.id for letter in self._matching(reason, task, kind)]
        if not isinstance(letter_ids, Iterable):
            raise BadInput(f"letter_ids is {letter_ids!r}; it takes an id, or several")
        wanted = [letter_ids] if isinstance(letter_ids, str) else list(letter_ids)
        return [redriving.id_of(found) for found in self._found(wanted)]

    def _found(self, wanted: Sequence[str]) -> Sequence[Found]:
        """Return the letter of each id, each letter once. Raises LetterNotFound if one is missing."""
        originals = self._originals(wanted)
        own = [text for text in wanted if text not in originals]
        by_id: dict[str, Found] = {
            redriving.id_of(found): found
            for some in parts(own, redriving.AT_ONCE)
            for found in redriving.look(self._driver, some)
        }
        if originals:
            for found in listing.messages(self._driver, self._dead.spec):
                original = (found.row.headers or {}).get(HEADER_ID)
                if original in originals:
                    by_id[original] = found
        missing = next((text for text in wanted if text not in by_id), None)
        if missing is not None:
            self._driver.store.quarantine.check_message(*MessageId(missing).locate())
            raise LetterNotFound(
                f"queue {self.queue!r} has no dead letter of the id {missing}. A call before that ended in "
                "an unknown outcome may have sent it back or dropped it: leave out the ids of letters that "
                "are gone."
            )
        return list({redriving.id_of(by_id[text]): by_id[text] for text in wanted}.values())

    def _originals(self, wanted: Sequence[str]) -> set[str]:
        """Return the ids that messages had in the queue; all other ids are letters' own."""
        queue, dead = self._catalog.entry(self.queue).spec.partition, self._dead.spec.partition
        partitions = {text: MessageId(text).locate().wide_row.queue for text in wanted}
        stranger = next((text for text in wanted if partitions[text] not in {queue, dead}), None)
        if stranger is not None:
            raise BadInput(f"{stranger} is the id of a message of another queue than {self.queue!r}")
        return {text for text in wanted if partitions[text] == queue}

    # ── each ──

    def _each(self, chosen: Sequence[MessageId], step: Step, rate: float | None = None) -> LettersResult:
        """Apply `step` to all letters that still exist and that no consumer holds, 250 at a time at most.

        If Cassandra fails for all letters of a chunk, the later chunks are not tried.
        """
        held: list[MessageId] = []
        outcomes: list[redriving.LetterOutcome] = []
        done = 0
        for chunk in redriving.chunks(chosen, rate):
            done += len(chunk)
            try:
                kept, now = self._step(chunk, step)
            except CqueueError as exc:
                kept, now = [], [redriving.LetterOutcome(id_, None, exc) for id_ in chunk]
            held += kept
            outcomes += now
            if now and all(isinstance(one.error, CASSANDRA_FAILED) for one in now):
                outcomes += _untried(chosen[done:], now[0].error)
                break
        return LettersResult(
            done=tuple(one.letter_id for one in outcomes if one.error is None),
            sent=tuple(
                one.message_id for one in outcomes if one.error is None and one.message_id is not None
            ),
            held=tuple(held),
            failed=tuple((one.letter_id, one.error) for one in outcomes if one.error is not None),
        )

    def _step(
        self, chunk: Sequence[MessageId], step: Step
    ) -> tuple[Sequence[MessageId], Sequence[redriving.LetterOutcome]]:
        """Apply `step` to one chunk. Return the letters that are held, and the outcomes of the others."""
        found = redriving.look(self._driver, chunk)
        held = {redriving.id_of(one) for one in found if self._is_held(one)}
        free = [one for one in found if redriving.id_of(one) not in held]
        return sorted(held), step(free)

    def _is_held(self, found: Found) -> bool:
        return redriving.is_held(found, self._driver.clock.now_us(), self._dead.spec.skew_us)

    def _sending(self, max_redrives: int | None) -> Step:
        """Return the step that sends letters back. Before the first, it alters the queue: `derived_sends`."""
        entry = self._catalog.entry(self.queue)
        failure: CqueueError | None = None  # of the alteration, which is tried once

        def step(some: Sequence[Found]) -> Sequence[redriving.LetterOutcome]:
            nonlocal failure
            now = self._catalog.entry(self.queue)
            dead = self._catalog.dead_of(now.spec)
            if dead is None or any(one.wide_row.queue != dead.partition for one in some):
                raise NotDone(f"queue {self.queue!r} was deleted and made again; this letter is not its own")
            if failure is None and some and not now.config.derived_sends:  # what sends nothing alters nothing
                try:
                    self._catalog.alter(self.queue, {"derived_sends": True})
                except OutcomeUnknown as exc:
                    failure = Unavailable(f"it is not sent, as the queue may not be altered yet: {exc}")
                except CqueueError as exc:
                    failure = exc
            if failure is not None:
                raise failure
            return redriving.send_back(
                self._driver,
                self._producer,
                some,
                dead=dead,
                now_us=self._driver.clock.now_us(),  # at each step: with a rate the call may last for days
                period_us=entry.spec.gc_grace_us // 2,
                max_redrives=max_redrives,
            )

        return step

    def _would_send(
        self, max_redrives: int | None, some: Sequence[Found]
    ) -> Sequence[redriving.LetterOutcome]:
        good, stay = redriving.sendable(self._driver, some, max_redrives)
        return [*stay, *(redriving.LetterOutcome(one.id, None, None) for one in good)]

    def _drop(self, some: Sequence[Found]) -> Sequence[redriving.LetterOutcome]:
        failed = redriving.delete(self._driver, self._dead.spec, some)
        ids_ = [redriving.id_of(one) for one in some]
        return [redriving.LetterOutcome(id_, None, failed.get(id_)) for id_ in ids_]

    # ── as values ──

    def _letter(self, found: Found) -> DeadLetter:
        row, headers = found.row, found.row.headers or {}
        original = headers.get(HEADER_ID)
        return DeadLetter(
            id=redriving.id_of(found),
            original_id=None if original is None else MessageId(original),
            task=row.task,
            key=row.key,
            codec=row.codec,
            priority=row.priority,
            headers=redriving.own_headers(row),
            reason=headers.get(HEADER_REASON, ""),
            attempts=redriving.count_in(headers, HEADER_ATTEMPTS),
            died_at=to_datetime(ids.time_us(row.id) // 1000),
            traceback=headers.get(HEADER_TRACEBACK),
            size=len(row.body or b"") if row.size is None else row.size,
            body_lost=HEADER_LOST in headers,
            redrives=redriving.count_in(headers, HEADER_REDRIVES) or 0,
            holder=headers.get(HEADER_HOLDER),
            fence=redriving.count_in(headers, HEADER_FENCE, digits=18),
            holder_lost=HEADER_ABANDONED in headers,
            held=self._is_held(found),
            _load=partial(_body, self._driver, found),
        )


def _body(driver: BlockingDriver, found: Found) -> bytes:
    (letter,) = redriving.with_bodies(driver, [found])
    if letter.body is None:
        raise NotDone("the letter's body cannot be read, or the letter is gone")
    return letter.body


def kind_of(reason: str) -> str:
    """Return what reasons of the same kind have in common: the part before a colon, whatever the attempt."""
    return _ATTEMPT.sub("", reason).partition(": ")[0][:MAX_KIND]


def _would_drop(some: Sequence[Found]) -> Sequence[redriving.LetterOutcome]:
    return [redriving.LetterOutcome(redriving.id_of(one), None, None) for one in some]


def _untried(rest: Sequence[MessageId], error: CqueueError | None) -> list[redriving.LetterOutcome]:
    untried = NotDone(f"not tried, as those before failed: {error}")
    return [redriving.LetterOutcome(id_, None, untried) for id_ in rest]
