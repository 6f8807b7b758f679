"""The connection that the requesting thread itself writes to, against a server that only listens."""

import errno
import random
import socket
import struct
import threading
from contextlib import closing, contextmanager

import pytest
from cassandra.connection import DefaultEndPoint

from cqueue.store import driver
from cqueue.store.driver import sockets
from tests.fix_dispatcher import until

pytestmark = pytest.mark.skipif(
    sockets.DIRECT_WRITES not in driver.used().parts, reason="the driver has no libev"
)
Direct = driver.used().connection_class

HEADER = struct.Struct(">4sIII")  # a mark, who wrote it, which one it is of theirs, and how long it is
MARK = b"\xca\xfe\xba\xbe"
SOON_S = 30.0
"""Less than the minute after which libev looks by itself, though nobody has woken it."""


class Listener:
    """A server that reads nothing until it is told to, and then everything."""

    def __init__(self):
        self._server = socket.create_server(("127.0.0.1", 0))
        self._server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 << 10)
        self.endpoint = DefaultEndPoint(*self._server.getsockname())
        self.peer = None

    def accept(self):
        self.peer, _ = self._server.accept()

    def read(self, until):
        """Everything up to this end."""
        self.peer.settimeout(SOON_S)
        found = bytearray()
        while not found.endswith(until):
            part = self.peer.recv(1 << 20)
            assert part, "the connection was closed"
            found += part
        return bytes(found)

    def close(self):
        self._server.close()
        self.peer.close()


@contextmanager
def connected():
    Direct.initialize_reactor()
    with closing(Listener()) as listener:
        connection = Direct(listener.endpoint, connect_timeout=60)
        listener.accept()
        listener.peer.recv(1 << 10)  # the driver's own first request
        until(lambda: is_at_rest(connection), SOON_S)
        try:
            yield connection, listener
        finally:
            connection.close()


def is_at_rest(connection):
    """Whether the loop knows the connection, and has nothing to write to it."""
    known = connection not in sockets._reactor._global_loop._new_conns
    return known and not (connection.deque or connection._write_watcher_is_active)


class Through:
    """A socket, or a watcher of libev, with some methods replaced."""

    def __init__(self, own, **instead):
        self._own = own
        vars(self).update(instead)

    def __getattr__(self, name):
        return getattr(self._own, name)


def frame(writer, number, size):
    return HEADER.pack(MARK, writer, number, size) + bytes([writer]) * size


def frames(stream):
    """The (writer, number) of each frame, in order of arrival; fails if a frame is torn."""
    found, at = [], 0
    while at < len(stream):
        mark, writer, number, size = HEADER.unpack_from(stream, at)
        at += HEADER.size
        assert mark == MARK, f"torn before byte {at:,}, after {len(found)} whole ones"
        assert stream[at : at + size] == bytes([writer]) * size
        at += size
        found.append((writer, number))
    return found


def test_a_request_is_written_by_the_thread_that_makes_it(monkeypatch):
    """The loop is not even woken."""
    with connected() as (connection, listener):
        woken = []
        loop = sockets._reactor._global_loop
        monkeypatch.setattr(loop, "notify", lambda: woken.append("woken"))

        connection.push(frame(1, 1, 100))

        assert frames(listener.read(b"\x01" * 100)) == [(1, 1)]
        assert woken == []


def test_a_connection_without_what_is_needed_of_it_is_written_to_by_the_loop(monkeypatch, caplog):
    """That shows only once it is made; of all such connections one line is logged."""
    monkeypatch.setattr(sockets, "_OF_A_CONNECTION", (*sockets._OF_A_CONNECTION, "no_such_thing"))
    sockets._report.cache_clear()
    Direct.initialize_reactor()  # this test may be the first one of its process
    loop, woken = sockets._reactor._global_loop, []
    for _ in range(2):
        with connected() as (connection, listener):
            notify = loop.notify
            with monkeypatch.context() as patch:
                patch.setattr(loop, "notify", lambda notify=notify: (woken.append("woken"), notify()))
                connection.push(frame(1, 1, 20 << 10))
                assert frames(listener.read(b"\x01" * (20 << 10))) == [(1, 1)]
    assert len(woken) >= 2
    assert [message.count("no_such_thing") for message in caplog.messages] == [1]


def test_what_the_socket_does_not_take_at_once_is_written_by_the_loop():
    with connected() as (connection, listener):
        connection.push(frame(1, 1, 20 << 20))
        connection.push(frame(2, 2, 10))
        assert connection.deque, "nothing was left for the loop: this shows nothing"

        assert frames(listener.read(b"\x02" * 10)) == [(1, 1), (2, 2)]
        assert not connection.deque


def test_a_request_that_finds_the_socket_full_is_written_by_the_loop():
    """It breaks no connection: the socket takes data again once the server has read some."""
    with connected() as (connection, listener):
        own, full = connection._socket, [BlockingIOError(errno.EAGAIN, "the buffer is full")]

        def send(data):
            if full:
                raise full.pop()
            return own.send(data)

        connection._socket = Through(own, send=send)
        connection.push(frame(1, 1, 10))

        assert frames(listener.read(b"\x01" * 10)) == [(1, 1)]
        assert not connection.is_closed


def test_nobody_writes_while_the_loop_is_in_the_middle_of_a_request():
    """Another request is made as the socket has taken half of one."""
    with connected() as (connection, listener):
        own, others = connection._socket, []

        def half(data):
            """Takes half of what the loop writes, and then another request is made."""
            if threading.current_thread().name != "event_loop" or others:
                return own.send(data)
            sent = own.send(data[: len(data) // 2])
            others.append(threading.Thread(target=connection.push, args=(frame(2, 2, 10),)))
            others[0].start()
            others[0].join()
            return sent

        connection._socket = Through(own, send=half)
        connection.deque.append(frame(1, 1, 1000))
        sockets._reactor._global_loop.notify()

        assert frames(listener.read(b"\x02" * 10)) == [(1, 1), (2, 2)]
        assert others, "the loop wrote nothing: this shows nothing"


def test_requests_of_many_threads_do_not_get_into_each_other():
    """While the loop writes too, as the server reads slowly."""
    writers, each = 8, 60

    def write(connection, writer):
        sizes = random.Random(writer)
        for number in range(each):
            connection.push(frame(writer, number, sizes.choice((20, 3_000, 70_000, 400_000))))

    with connected() as (connection, listener):
        threads = [threading.Thread(target=write, args=(connection, writer)) for writer in range(writers)]
        for thread in threads:
            thread.start()
        reader = []
        end = frame(99, 0, 7)
        reading = threading.Thread(target=lambda: reader.append(listener.read(end)))
        reading.start()
        for thread in threads:
            thread.join()
        connection.push(end)
        reading.join()

    arrived = frames(reader[0])
    for writer in range(writers):
        assert [number for who, number in arrived if who == writer] == list(range(each))


def test_a_connection_that_breaks_tells_those_that_wait_for_an_answer():
    """Be it that only writing shows it."""
    with connected() as (connection, _):
        answers = []
        connection._requests[7] = (answers.append, None, None)

        def broken(_data):
            raise BrokenPipeError(errno.EPIPE, "nobody reads")

        connection._socket = Through(connection._socket, send=broken)
        connection.push(frame(1, 1, 10))

        assert isinstance(connection.last_error, BrokenPipeError)
        assert len(answers) == 1
        assert connection.is_closed


def test_a_connection_that_breaks_as_it_is_made_leaves_nothing_behind(monkeypatch):
    """Its first request is written before the loop knows of it: the loop is to find out."""
    Direct.initialize_reactor()
    connect = Direct._connect_socket

    def connect_in_vain(connection):
        connect(connection)
        connection._socket = Through(connection._socket, send=fail)

    def fail(_data):
        raise ConnectionResetError(errno.ECONNRESET, "the peer has gone")

    with closing(Listener()) as listener:
        monkeypatch.setattr(Direct, "_connect_socket", connect_in_vain)
        connection = Direct(listener.endpoint, connect_timeout=60)
        listener.accept()
        assert connection.connected_event.wait(SOON_S)
        assert connection.is_defunct
        assert connection not in sockets._reactor._global_loop._live_conns


def test_the_event_loop_stops_its_watchers_itself_when_the_process_ends(monkeypatch):
    """Libev's lists have no lock: another thread that changes them corrupts the heap."""
    monkeypatch.setattr(sockets._reactor, "_global_loop", None)
    monkeypatch.setattr(sockets, "END_S", 120)
    with connected() as (connection, listener):
        loop, stopped_by = sockets._reactor._global_loop, []
        reading, woken = threading.Event(), threading.Event()

        def stopping(own):
            return Through(own, stop=lambda: (stopped_by.append(threading.current_thread()), own.stop()))

        connection._read_watcher = stopping(connection._read_watcher)
        connection._write_watcher = stopping(connection._write_watcher)
        # The loop is busy until it is woken, after all that the ending thread does with the connections.
        connection.process_io_buffer = lambda: (reading.set(), woken.wait(SOON_S))
        monkeypatch.setattr(loop, "notify", lambda notify=loop.notify: (woken.set(), notify()))
        listener.peer.send(b"x")
        assert reading.wait(SOON_S)

        sockets._reactor._cleanup(loop)  # as at exit

        assert connection.is_closed
        assert stopped_by == [loop._thread] * 2
        assert not loop._thread.is_alive()
