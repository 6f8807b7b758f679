"""Short forms of message ids, for people: eight characters that the id's digest begins with.

The beginnings of the ids themselves are all alike, as they say where messages stand, and so are their ends,
which name the queue. A short form is looked for among all ids that there are; a whole one needs no search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from cqueue.cli.opening import find_queue
from cqueue.errors import BadInput, CqueueError, InvalidMessageId, LetterNotFound, QueueNotFound
from cqueue.message import SHORT_ID, MessageId, queue_of, short
from cqueue.protocol.spec import DEAD_SUFFIX
from cqueue.runtime import sequences

if TYPE_CHECKING:
    from cqueue.client import Client
    from cqueue.dead_letters import DeadLetters
    from cqueue.queue import Queue

SHOWN = 3
"""Ids with the same short form that an error names."""
GROUPS = 5
"""Reasons that are printed, and ids that are named for each; --json has all."""


def is_short(text: str) -> bool:
    """Return whether the text is a short form, or at least its first four characters."""
    return SHORT_ID.fullmatch(text) is not None


def check(text: str) -> str:
    """Return the text if it may be an id.

    Raises:
        InvalidMessageId: it is neither an id nor a short form.
    """
    if not is_short(text):
        try:
            MessageId(text).locate()
        except InvalidMessageId as exc:
            raise InvalidMessageId(
                f"{exc}. Give a whole one, or the short form that tables show: 4 to 8 of a-z and 2-7."
            ) from exc
    return text


def letter_ids(dead: DeadLetters, texts: Sequence[str]) -> list[str]:
    """Return whole ids for these texts, of letters or of the messages that the letters were.

    Raises:
        InvalidMessageId: one is neither an id nor a short form.
        LetterNotFound: no letter has one of the short forms.
        BadInput: several letters have it.
    """
    wanted = {text for text in map(check, texts) if is_short(text)}
    found = _matches(wanted, _names(dead) if wanted else ())
    missing = next((text for text in texts if text in wanted and text not in found), None)
    if missing is not None:
        raise LetterNotFound(
            f"Queue {dead.queue} has no dead letter {missing}; `cqueue dead list {dead.queue}` shows all. "
            "A command before that ended in an unknown outcome may have sent it back or dropped it."
        )
    return [_only(text, found[text]) if text in wanted else text for text in texts]


def message_ids(client: Client, texts: Iterable[str], queue: str | None) -> dict[str, MessageId | None]:
    """Find the whole ids of messages in one queue or in all, by text; None where there can be no message.

    There can be none if no message has the short form, or if the whole id's queue was deleted and made again.
    For a dead message, return the id of its letter. Ids are read once for all short forms; if some are no
    message's, dead letters are read as well. A queue that is deleted meanwhile is left out.

    Raises:
        InvalidMessageId: a text is neither an id nor a short form.
        BadInput: several messages have it, or it is a whole id of another queue than the one named.
        QueueNotFound: the whole id's queue, or the one named, does not exist.
    """
    texts = list(map(check, texts))
    shorts = {text for text in texts if is_short(text)}
    names = list(client.queues() if queue is None else [queue, queue + DEAD_SUFFIX]) if shorts else []
    gone = () if queue is not None else (QueueNotFound,)  # what ends the search of one queue among all
    found = _matches(shorts, _each(client, names, lambda opened: ((id_, id_) for id_ in opened.ids()), gone))
    left = shorts - found.keys()
    if left:
        own = [name for name in names if not name.endswith(DEAD_SUFFIX)]
        found |= _matches(left, _each(client, own, lambda opened: _names(opened.dead_letters), gone))
    return {text: _one(client, text, found, queue) for text in texts}


def _each(
    client: Client,
    names: Iterable[str],
    read: Callable[[Queue], Iterable[tuple[str, str]]],
    gone: tuple[type[CqueueError], ...],
) -> Iterator[tuple[str, str]]:
    """Yield what is read of each queue, up to its end or to one of the errors `gone`."""
    for name in names:
        with suppress(*gone):
            yield from read(client.queue(name))


def _matches(shorts: set[str], names: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return by short form the ids that have it. names: the id that is matched, and the one that is meant."""
    found: dict[str, list[str]] = {}
    for id_, meant in names:
        form = short(id_)
        for text in {form[:length] for length in range(4, len(form) + 1)} & shorts:
            found.setdefault(text, []).append(meant)
    return found


def _one(
    client: Client, text: str, found: Mapping[str, Iterable[str]], queue: str | None
) -> MessageId | None:
    if not is_short(text):
        return _whole_id(client, MessageId(text), queue)
    return MessageId(_only(text, found[text])) if text in found else None


def _whole_id(client: Client, id_: MessageId, queue: str | None) -> MessageId | None:
    from cqueue.client import inside  # noqa: PLC0415 - the driver takes long to import

    name = queue_of(id_)
    own = name.removesuffix(DEAD_SUFFIX)
    if queue is not None and queue != own:
        raise BadInput(f"{id_} is the id of a message of queue {own!r}, not {queue!r}; leave out --queue.")
    find_queue(client, own)
    partition, named = inside(client).catalog.entry(name).spec.partition, id_.locate().wide_row.queue
    if len(named) < len(partition):
        raise InvalidMessageId(f"{id_} is not a whole message id; its end is missing.")
    return id_ if named == partition else None


def _names(dead: DeadLetters) -> Iterator[tuple[str, str]]:
    """Yield each id by which a letter is known, with the letter's own id."""
    for letter in dead:
        for id_ in (letter.id, letter.original_id):
            if id_ is not None:
                yield id_, letter.id


def _only(text: str, found: Iterable[str]) -> str:
    ids = sorted(set(found))
    if len(ids) > 1:
        some = ", ".join(f"{short(id_)} ({id_})" for id_ in ids[:SHOWN])
        raise BadInput(f"{text} stands for {len(ids):,} ids: {some}. Write more of it, or the whole id.")
    return ids[0]


def grouped(reasons: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield a line for each reason, with its ids: many often have the same reason. reasons: by id."""
    by_reason = sequences.grouped((reason, id_) for id_, reason in reasons)
    for number, (reason, ids) in enumerate(by_reason.items()):
        if number == GROUPS:
            yield f"… and {len(by_reason) - GROUPS:,} more errors; --json names all."
            return
        more = f" and {len(ids) - GROUPS:,} more" if len(ids) > GROUPS else ""
        yield f"{', '.join(map(short, ids[:GROUPS]))}{more}: {reason}"
