"""Pages of a queue's messages, and the tokens that say where the next one begins.

A token names a place in the queue's order, and nothing is kept for it anywhere. So it does not expire, any
process may go on with it, and a consumer that takes messages meanwhile does not shift what is still to come.
"""

from __future__ import annotations

import base64
import struct
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from cqueue.errors import InvalidToken
from cqueue.message import MAX_PRIORITY
from cqueue.protocol.inspection import END
from cqueue.runtime.listing import Place
from cqueue.runtime.texts import quoted

if TYPE_CHECKING:
    from cqueue.queue import StoredMessage

MAX_PAGE: Final = 1000
"""Messages of one page, at most: as many as one call reads."""
DEFAULT_PAGE: Final = 100
"""Messages of one page, if the caller gives no limit."""
MAX_ROWS: Final = 100_000
"""Messages that one `exists` reads at most, if the caller does not say."""
_VERSION: Final = 1
_PLACE: Final = struct.Struct(">BqqiB16s")
_CHECKSUM: Final = 4
"""Bytes of a token's checksum: they show damage, and keep nobody from making a token."""


@dataclass(frozen=True, slots=True)
class Page:
    """Some messages of a queue, and where to go on.

    Attributes:
        messages: those that fit, up to the limit of the call and 16 MiB of bodies. There may be none though
            there is a token, because a call reads a bounded number of messages, whether they fit or not.
        token: for the next call; None after the last page.
        rows_read: messages that were read for the page.
    """

    messages: tuple[StoredMessage, ...]
    token: str | None
    rows_read: int


def token_of(queue: str, place: Place) -> str:
    """Return the token of a place. queue: the queue's partition, its name and incarnation."""
    epoch, time_shard, shard, priority, after = place
    told = _PLACE.pack(_VERSION, epoch, time_shard, shard, priority, after.to_bytes(16, "big"))
    told += queue.encode()
    return base64.urlsafe_b64encode(told + _checksum(told)).rstrip(b"=").decode()


def place_of(queue: str, token: str) -> Place:
    """Return the place of a token.

    Raises:
        InvalidToken: the token is damaged, or of another queue, or of one of the same name that was deleted.
    """
    try:
        told = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        _, epoch, time_shard, shard, priority, after = _PLACE.unpack_from(told)
        of = told[_PLACE.size : -_CHECKSUM].decode()
    except (ValueError, TypeError, AttributeError, struct.error) as exc:
        raise InvalidToken(f"{quoted(token)} is not a token of a page; begin without a token") from exc
    place = Place(epoch, time_shard, shard, priority, int.from_bytes(after, "big"))
    if priority > MAX_PRIORITY or place.after > END or token_of(of, place) != token:
        raise InvalidToken(f"{quoted(token)} is not a token of a page, or was damaged; begin without a token")
    if of != queue:
        name, this = of.partition("@")[0], queue.partition("@")[0]
        earlier = "an earlier queue of this name, which was deleted" if name == this else f"queue {name!r}"
        raise InvalidToken(f"the token is of {earlier}, not of {this!r}; begin without a token")
    return place


def _checksum(told: bytes) -> bytes:
    return blake2b(told, digest_size=_CHECKSUM).digest()
