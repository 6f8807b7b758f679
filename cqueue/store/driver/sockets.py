"""The driver's connection, without the detours of its event loop.

The loop's thread wakes up four times for each request: to begin to watch whether the socket takes anything,
to write, to end watching, and to read the answer. Where requests are small, and client and server share a
machine, these switches of threads take as long as the request itself. Here whoever makes a request writes it.

Each class is mixed into the driver's own connection if the driver has what the class needs.
"""

from __future__ import annotations

import inspect
import ssl
from collections.abc import Collection
from functools import cache
from typing import Any, Final

from cassandra import AuthenticationFailed
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import Cluster

from cqueue.store.driver.errors import ConnectionException
from cqueue.store.driver.probe import Part, find, find_or, report

AT_ONCE: Final = 64 << 10
"""Bytes that are read and written at once, where the driver's own connection takes 4 KiB: a slice of 500
messages then takes 3 calls instead of 40, each with a turn of the event loop."""

_LIBEV: Final = "cassandra.io.libevreactor"
_reactor: Any = find_or(f"{_LIBEV}:", None)  # None: the driver was built without libev
_ERROR: Final = find_or(f"{_LIBEV}:libev.EV_ERROR", 0)
_OF_A_CONNECTION: Final = ("deque", "_deque_lock", "_socket", "_socket_writable")
"""What each connection has of its own, so that it shows only there."""

_NONBLOCKING: Final = find_or("cassandra.connection:NONBLOCKING", ())
_Base: Any = object  # the driver's connection
_report = cache(report)  # of many connections one line


class LoginRefused(ConnectionException):  # type: ignore[misc, valid-type]
    """The node does not let the role log in."""


class Login(PlainTextAuthProvider):  # type: ignore[misc]
    """A user name and a password, and what the last node that was asked said to them.

    Attributes:
        refused: why it did not let them in; None if it did, or did not answer.
    """

    refused: LoginRefused | None = None

    def new_authenticator(self, host: str) -> Any:
        """What a connection logs in by."""
        authenticator = super().new_authenticator(host)
        authenticator.login = self
        return authenticator


class Logins(_Base):  # type: ignore[misc]
    """A login that was refused looks like any other failure.

    The driver never connects again to a node that refused one once. A role may be let in again.
    """

    @classmethod
    def factory(cls, *args: Any, **options: Any) -> Any:
        """A connection that is ready."""
        refused: LoginRefused | None = None
        try:
            return super().factory(*args, **options)
        except AuthenticationFailed as exc:
            refused = LoginRefused(str(exc))
            raise refused from exc
        finally:
            login = getattr(options.get("authenticator"), "login", None)
            if login is not None:
                login.refused = refused


class Buffers:
    """Larger buffers."""

    in_buffer_size = out_buffer_size = AT_ONCE


class DirectWrites(_Base):  # type: ignore[misc]
    """Requests are written by whoever makes them.

    The loop writes what the socket does not take at once, and all that comes while something waits for that.
    """

    _known = False
    """To the loop. Until then the loop writes, and a failure is the driver's to notice."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        missing = [name for name in _OF_A_CONNECTION if not hasattr(self, name)]
        self._known = not missing
        if missing:
            _report(DIRECT_WRITES, f"{_LIBEV}:LibevConnection.{missing[0]}")

    def push(self, data: bytes) -> None:
        """Write one request, or as much of it as the socket takes, and leave the rest to the loop."""
        # A socket with TLS may not be written to while the loop reads from it.
        if not self._known or isinstance(self._socket, ssl.SSLSocket):
            super().push(data)
            return
        failure: OSError | None = None
        with self._deque_lock:
            sent = 0
            if not self.deque:
                try:
                    sent = self._socket.send(data)
                except OSError as exc:
                    failure = None if exc.errno in _NONBLOCKING else exc
                if sent == len(data):
                    return
            if failure is None:
                self.deque.extend(data[at : at + AT_ONCE] for at in range(sent, len(data), AT_ONCE))
        if failure is not None:
            self.defunct(failure)
        else:
            _reactor._global_loop.notify()  # noqa: SLF001 - as the driver does

    def handle_write(self, watcher: Any, revents: int, errno: int | None = None) -> None:
        """On the loop's thread: the socket takes something."""
        if not self._known or revents & _ERROR or isinstance(self._socket, ssl.SSLSocket):
            super().handle_write(watcher, revents, errno)
            return
        try:
            while self.deque:  # what is not written whole stays in it, so that nobody else writes meanwhile
                sent = self._socket.send(self.deque[0])
                if sent < len(self.deque[0]):
                    self.deque[0] = self.deque[0][sent:]
                else:
                    self.deque.popleft()
            self._socket_writable = True
        except OSError as exc:
            if exc.errno in _NONBLOCKING:
                self._socket_writable = False  # requests are refused until it takes something again
            else:
                self.defunct(exc)


def _is_libev() -> bool:
    return Cluster.connection_class is find(f"{_LIBEV}:LibevConnection")


LOGINS: Final = Part(
    "logins",
    ("cassandra.cluster:Cluster.connection_class.factory", "cassandra.connection:ConnectionException"),
    lambda: inspect.ismethod(Cluster.connection_class.factory),
    "a node that refused a login once is not connected to again by this process",
)
BUFFERS: Final = Part(
    "buffers",
    (
        "cassandra.cluster:Cluster.connection_class.in_buffer_size",
        "cassandra.cluster:Cluster.connection_class.out_buffer_size",
    ),
    lambda: isinstance(Cluster.connection_class.in_buffer_size, int),
    "4 KiB are read at a time: large messages take longer",
)
DIRECT_WRITES: Final = Part(
    "direct writes",
    (
        f"{_LIBEV}:LibevConnection.push",
        f"{_LIBEV}:LibevConnection.handle_write",
        f"{_LIBEV}:LibevConnection.defunct",
        f"{_LIBEV}:LibevLoop.notify",
        f"{_LIBEV}:_global_loop",
        f"{_LIBEV}:libev.EV_ERROR",
        "cassandra.connection:NONBLOCKING",
    ),
    _is_libev,
    "the driver's event loop writes the requests: each takes longer",
)
MIXINS: Final = {
    LOGINS: Logins,
    BUFFERS: Buffers,
    DIRECT_WRITES: DirectWrites,
}


def connection_class(parts: Collection[Part]) -> Any:
    """The driver's connection with those of these parts that are for it."""
    own: Any = Cluster.connection_class
    mixins = [mixin for part, mixin in MIXINS.items() if part in parts]
    return type("Connection", (*mixins, own), {}) if mixins else own
