"""The driver's connection with larger buffers, writes without the event loop, and three defects mended.

The driver's event loop wakes up four times for each request: to watch the socket, to write, to stop watching,
and to read the answer. With small requests, and client and server on one machine, these thread switches take
as long as the request itself. Here the calling thread writes its request.

Each class is mixed into the driver's own connection class if the probe of its part passes.
"""

from __future__ import annotations

import inspect
import io
import ssl
from collections.abc import Collection
from functools import cache, partial
from typing import Any, Final

from cassandra import AuthenticationFailed
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import Cluster

from cqueue.store.driver.errors import ConnectionException
from cqueue.store.driver.probe import Part, find, find_or, report

AT_ONCE: Final = 64 << 10
"""Bytes read or written in one call. The driver takes 4 KiB. With 64 KiB a slice of 500 messages needs 3
calls instead of 40, each with a turn of the event loop."""

END_S: Final = 5.0
"""Seconds that the event loop has to end with its process. It needs a millisecond; a busy machine may not
let it run at once."""

_LIBEV: Final = "cassandra.io.libevreactor"
_reactor: Any = find_or(f"{_LIBEV}:", None)  # None: the driver was built without libev
_ERROR: Final = find_or(f"{_LIBEV}:libev.EV_ERROR", 0)
_OF_A_CONNECTION: Final = ("deque", "_deque_lock", "_socket", "_socket_writable")
"""Attributes that only an instance has, so that the probe of the class cannot find them."""

_OF_A_LOOP: Final = {"_shutdown", "_thread", "_lock_thread", "_live_conns", "_new_conns"}
"""Attributes that the event loop gets when it is made."""

_FRAME: Final = bytes([0x85, 0, 0, 1, 8, 0, 0, 0, 1]) + b"x"
"""An answer as `SplitHeaders` is probed with: version 5, stream 1, a result, and one byte of body."""

_NONBLOCKING: Final = find_or("cassandra.connection:NONBLOCKING", ())
_Base: Any = object  # the driver's connection
_report = cache(report)  # one log line, however many connections there are


class LoginRefused(ConnectionException):  # type: ignore[misc]
    """The node does not let the role log in."""


class Login(PlainTextAuthProvider):  # type: ignore[misc]
    """A user name and a password, and the outcome of the last login with them.

    Attributes:
        refused: the refusal; None if the last node accepted the login, or did not answer.
    """

    refused: LoginRefused | None = None

    def new_authenticator(self, host: str) -> Any:
        """Return the authenticator of a new connection, linked to this login."""
        authenticator = super().new_authenticator(host)
        authenticator.login = self
        return authenticator


class Logins(_Base):  # type: ignore[misc]
    """Makes a refused login look like any other failed connect.

    The driver never connects again to a node that once refused a login, although an operator may allow it
    later.
    """

    @classmethod
    def factory(cls, *args: Any, **options: Any) -> Any:
        """Open a connection. Note in its `Login` whether the node refused it."""
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


class SplitHeaders(_Base):  # type: ignore[misc]
    """Keeps the beginning of a segment's header until the rest arrives.

    Protocol version 5 sends answers in segments. If what has arrived ends within the six bytes of a header,
    the driver drops these bytes, takes what follows for the header, and closes the connection.
    """

    def _process_segment_buffer(self) -> None:
        buffer = self._io_buffer
        if buffer.readable_io_bytes() < self._segment_codec.header_length_with_crc:
            buffer._segment_consumed = False  # noqa: SLF001 - as the driver does
            buffer.io_buffer.seek(0)  # the driver then keeps what follows
        else:
            super()._process_segment_buffer()


class Buffers:
    """Gives a connection larger buffers."""

    in_buffer_size = out_buffer_size = AT_ONCE


class DirectWrites(_Base):  # type: ignore[misc]
    """Writes a request on the thread that makes it.

    The event loop writes what the socket does not take at once, and all requests made before that is written.
    """

    _known = False
    """Whether the connection has all attributes that direct writes need. Until then the event loop writes."""

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
        """Write queued requests, on the event loop's thread, when the socket takes data again."""
        if not self._known or revents & _ERROR or isinstance(self._socket, ssl.SSLSocket):
            super().handle_write(watcher, revents, errno)
            return
        try:
            while self.deque:  # a part left in it keeps other threads from writing
                sent = self._socket.send(self.deque[0])
                if sent < len(self.deque[0]):
                    self.deque[0] = self.deque[0][sent:]
                else:
                    self.deque.popleft()
            self._socket_writable = True
        except OSError as exc:
            if exc.errno in _NONBLOCKING:
                self._socket_writable = False  # requests are refused until it takes data again
            else:
                self.defunct(exc)


class CleanEnd(_Base):  # type: ignore[misc]
    """Ends the event loop with the process, and lets only the loop's own thread stop watchers.

    The driver stops them on the main thread, while libev works on the same lists without the GIL. That
    corrupts the heap now and then, and aborts a process that has done all its work.
    """

    @classmethod
    def initialize_reactor(cls) -> None:
        """Make the event loop of this process, if there is none."""
        super().initialize_reactor()
        loop = _reactor._global_loop  # noqa: SLF001 - as the driver does
        loop._cleanup = partial(_end, loop)  # noqa: SLF001 - what the driver calls when the process ends


def _end(loop: Any) -> None:
    """Close all connections, and wait until the loop's thread has stopped their watchers and has ended."""
    loop._shutdown = True  # noqa: SLF001 - as the driver does, like all that follows
    if loop._thread is None:  # noqa: SLF001
        return
    for connection in loop._live_conns | loop._new_conns:  # noqa: SLF001
        connection.close()
    loop.notify()
    with loop._lock_thread:  # noqa: SLF001 - it is held while the thread starts
        loop._thread.join(END_S)  # noqa: SLF001


def _keeps_split_headers() -> bool:
    """Let a connection without a socket receive a frame whose segment's header comes in two parts."""
    received = []

    class Connection(SplitHeaders, Cluster.connection_class):  # type: ignore[misc]
        def __init__(self) -> None:
            self._io_buffer = find("cassandra.connection:_ConnectionIOBuffer")(self)
            self._enable_checksumming()

        def process_msg(self, _header: Any, body: bytes) -> None:
            received.append(body)

        def defunct(self, exc: Exception) -> None:
            raise exc

    connection, segment = Connection(), io.BytesIO()
    connection._segment_codec.encode(segment, _FRAME)  # noqa: SLF001 - what is probed
    for part in (segment.getvalue()[:3], segment.getvalue()[3:]):
        connection._io_buffer.io_buffer.write(part)  # noqa: SLF001
        connection.process_io_buffer()
    return received == [_FRAME[-1:]]


def _is_libev() -> bool:
    return Cluster.connection_class is find(f"{_LIBEV}:LibevConnection")


LOGINS: Final = Part(
    "logins",
    ("cassandra.cluster:Cluster.connection_class.factory", "cassandra.connection:ConnectionException"),
    lambda: inspect.ismethod(Cluster.connection_class.factory),
    "a node that refused a login once is not connected to again by this process",
)
SPLIT_HEADERS: Final = Part(
    "split headers",
    (
        "cassandra.cluster:Cluster.connection_class._process_segment_buffer",
        "cassandra.cluster:Cluster.connection_class._enable_checksumming",
        "cassandra.connection:_ConnectionIOBuffer.readable_io_bytes",
        "cassandra.segment:SegmentCodec.header_length_with_crc",
    ),
    _keeps_split_headers,
    "the driver closes a connection if what has arrived ends within the header of a segment",
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
CLEAN_END: Final = Part(
    "clean end",
    (
        f"{_LIBEV}:LibevConnection.initialize_reactor",
        f"{_LIBEV}:LibevLoop._cleanup",
        f"{_LIBEV}:LibevLoop.notify",
        f"{_LIBEV}:_global_loop",
    ),
    lambda: _is_libev() and set(find(f"{_LIBEV}:LibevLoop").__init__.__code__.co_names) >= _OF_A_LOOP,
    "a process that has just closed its connections, or has not, may be aborted as it ends",
)
MIXINS: Final = {
    LOGINS: Logins,
    SPLIT_HEADERS: SplitHeaders,
    BUFFERS: Buffers,
    DIRECT_WRITES: DirectWrites,
    CLEAN_END: CleanEnd,
}


def connection_class(parts: Collection[Part]) -> Any:
    """Return the driver's connection class, with the mixins of these parts."""
    own: Any = Cluster.connection_class
    mixins = [mixin for part, mixin in MIXINS.items() if part in parts]
    return type("Connection", (*mixins, own), {}) if mixins else own
