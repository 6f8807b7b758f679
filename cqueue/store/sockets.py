"""The driver's connection, without the detours of its event loop.

The loop's thread wakes up five times for each request: to learn of its timeout, to begin to watch whether
the socket takes anything, to write, to end watching, and to read the answer. Where requests are small, and
client and server share a machine, these switches of threads take as long as the request itself. Here whoever
makes a request writes it, and the loop is not woken for each timeout.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any, ClassVar, Final

from cassandra import AuthenticationFailed, DependencyException
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import DefaultConnection
from cassandra.connection import NONBLOCKING, ConnectionException

try:
    from cassandra.io import libevreactor
except DependencyException:  # the driver was built without libev
    libevreactor = None

from cqueue.store.timeouts import Timeout, Timeouts

AT_ONCE: Final = 64 << 10
"""Bytes that are read and written at once, where the driver's own connection takes 4 KiB: a slice of 500
messages then takes 3 calls instead of 40, each with a turn of the event loop."""


class LoginRefused(ConnectionException):  # type: ignore[misc]
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


class Buffered(DefaultConnection):  # type: ignore[misc]
    """The driver's own connection with larger buffers."""

    in_buffer_size = out_buffer_size = AT_ONCE

    @classmethod
    def factory(cls, *args: Any, **options: Any) -> Any:
        """A connection that is ready.

        The driver never connects again to a node that refused a login once. A role may be let in again, so
        that refusal looks like any other failure to it.
        """
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


class Direct(Buffered):
    """One that is written to by whoever makes a request; on the event loop of libev.

    The loop writes what the socket does not take at once, and all that comes while something waits for that.
    """

    _known = False
    """To the loop. Until then it must not be closed: the driver would not notice."""
    _timeouts: ClassVar[Timeouts | None] = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._known = True

    def push(self, data: bytes) -> None:
        """Write one request, or as much of it as the socket takes, and leave the rest to the loop."""
        failure: OSError | None = None
        with self._deque_lock:
            sent = 0
            # A socket with TLS may not be written to while the loop reads from it.
            if self._known and not self.deque and not isinstance(self._socket, ssl.SSLSocket):
                try:
                    sent = self._socket.send(data)
                except OSError as exc:
                    failure = None if exc.errno in NONBLOCKING else exc
                if sent == len(data):
                    return
            if failure is None:
                self.deque.extend(data[at : at + AT_ONCE] for at in range(sent, len(data), AT_ONCE))
        if failure is not None:
            self.defunct(failure)
        else:
            libevreactor._global_loop.notify()  # noqa: SLF001 - as the driver does

    def handle_write(self, watcher: Any, revents: int, errno: int | None = None) -> None:
        """On the loop's thread: the socket takes something."""
        if revents & libevreactor.libev.EV_ERROR or isinstance(self._socket, ssl.SSLSocket):
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
            if exc.errno in NONBLOCKING:
                self._socket_writable = False  # requests are refused until it takes something again
            else:
                self.defunct(exc)

    @classmethod
    def create_timer(cls, timeout: float, callback: Callable[[], None]) -> Timeout:
        """Call back after so many seconds, on the loop's thread."""
        loop, timeouts = libevreactor._global_loop, cls._timeouts  # noqa: SLF001 - as the driver does
        if timeouts is None or timeouts.loop is not loop:
            timeouts = cls._timeouts = Timeouts(loop)
        return timeouts.add(timeout, callback)


def connection_class() -> type[Buffered]:
    """What to connect with: where the driver's event loop is another one, its own connection."""
    is_libev = libevreactor is not None and DefaultConnection is libevreactor.LibevConnection
    return Direct if is_libev else Buffered
