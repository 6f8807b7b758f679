"""Receive datagrams: one socket and one thread for a client, however many names it waits for."""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from errno import EADDRINUSE, EADDRNOTAVAIL
from threading import Thread
from typing import Any, Final

from cqueue.doorbell.datagram import LONGEST, HintCounts, Ring, decode
from cqueue.doorbell.limiter import Limiter
from cqueue.doorbell.sender import sockaddr
from cqueue.runtime.logs import describe, logger
from cqueue.runtime.urls import is_loopback
from cqueue.store.decode import KEY_BYTES

MAX_WAIT_S: Final = 0.1
"""Seconds that a ring waits for its due time at most: if clocks differ by more, one of them is wrong."""
LATEST_US: Final = 1 << 62
"""A time after every due time: without a clock, no ring waits."""
STOP_CHECK_S: Final = 5.0
"""Seconds after which the thread checks whether it is to end, in case the datagram that wakes it is lost."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where this process receives datagrams.

    Attributes:
        host: an address of this machine, or one that is forwarded to it; None for the address by which this
            machine reaches `servers`.
        ports: the first and the last port that may be used; the first free one is taken. 0 for any port.
        servers: (host, port) of Cassandra nodes, the most likely one first.
    """

    host: str | None = None
    ports: tuple[int, int] = (0, 0)
    servers: tuple[tuple[str, int], ...] = ()

    def own(self) -> str:
        """Return the address that other processes send to.

        Raises:
            OSError: no route leads to any server.
        """
        if self.host is not None:
            return _text(socket.getaddrinfo(self.host, None, type=socket.SOCK_DGRAM)[0][4])
        routes = [route for server in self.servers if (route := _route_to(server)) is not None]
        far = [route for route in routes if not is_loopback(route)]
        if not routes:
            raise OSError("no route leads to a node of Cassandra")
        return (far or routes)[0]


def _route_to(server: tuple[str, int]) -> str | None:
    """Return the local address by which this machine reaches a server. Nothing is sent."""
    with suppress(OSError):
        family, kind, _, _, address = socket.getaddrinfo(*server, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            return _text(probe.getsockname())
    return None


def _text(address: Any) -> str:
    """Return the host of a socket's address. In the address itself, the scope is a number of this machine."""
    return socket.getnameinfo(address, socket.NI_NUMERICHOST | socket.NI_NUMERICSERV)[0]


class Listener:
    """Receives datagrams, drops those with a wrong tag, and reports the others.

    Args:
        on_ring: called with each ring on the listener's thread; it must return at once.
        counts: the client's counts.
        now_us: the cluster's time as far as it is known; asks nobody. A sender's clock may be some
            milliseconds ahead, and a poll finds no message before the message is due by this clock.

    Raises:
        OSError: the address does not exist, or the port is taken.
    """

    def __init__(
        self,
        address: Address,
        on_ring: Callable[[Ring], None],
        counts: HintCounts,
        now_us: Callable[[], int] = lambda: LATEST_US,
    ) -> None:
        self.host = address.own()
        self.key = secrets.token_bytes(KEY_BYTES)
        self._on_ring = on_ring
        self._counts = counts
        self._now_us = now_us
        self._socket = _bound(self.host, address.ports)
        self.port: int = self._socket.getsockname()[1]
        self._limiter = Limiter()
        self._closed = False
        self._thread = Thread(target=self._run, name="cqueue-listener", daemon=True)
        try:
            self._thread.start()
        except BaseException:  # there are too many threads
            self._socket.close()
            raise

    def close(self) -> None:
        """Stop receiving."""
        self._closed = True
        with suppress(OSError):
            self._socket.sendto(b"", self._socket.getsockname())  # wakes the thread
        self._thread.join(1.0)
        self._socket.close()

    def _run(self) -> None:
        while not self._closed:
            rest_s = self._limiter.rest_s(time.monotonic())
            try:
                self._socket.settimeout(STOP_CHECK_S if rest_s is None else max(rest_s, 0.0005))
                self._take(self._socket.recv(LONGEST + 1))
            except TimeoutError:
                pass
            except OSError:
                time.sleep(0.1)  # the error of an earlier datagram, reported only now
            for ring in self._limiter.due(time.monotonic()):
                self._tell(ring)

    def _take(self, data: bytes) -> None:
        if self._closed:
            return
        ring = decode(data, self.key)
        if ring is None:
            self._counts.forged += 1
            return
        self._counts.received += 1
        now_s = time.monotonic()
        if self._limiter.offer(ring, now_s, now_s + self._wait_s(ring)):
            self._tell(ring)
        else:
            self._counts.deferred += 1

    def _wait_s(self, ring: Ring) -> float:
        """Return the seconds that a ring waits, so that its messages are due by this clock."""
        if not ring.due_us:
            return 0.0
        return min(MAX_WAIT_S, max(0.0, (ring.due_us - self._now_us()) / 1e6))

    def _tell(self, ring: Ring) -> None:
        try:
            self._on_ring(ring)
        except Exception as exc:  # noqa: BLE001 - a thread that ends would be missed by nobody
            logger("cqueue.doorbell").error("doorbell_failed", error=describe(exc))


def _bound(host: str, ports: tuple[int, int]) -> socket.socket:
    """Return a socket at an address, on the first free port.

    If the address is forwarded to this machine, the socket is bound to all of the machine's addresses.
    """
    made = socket.socket(sockaddr(host, 0)[0], socket.SOCK_DGRAM)
    first, last = ports
    try:
        for port in range(first, last + 1):
            try:
                _bind(made, host, port)
            except OSError as exc:
                if exc.errno != EADDRINUSE or port == last:
                    raise
            else:
                break
    except BaseException:
        made.close()
        raise
    return made


def _bind(made: socket.socket, host: str, port: int) -> None:
    try:
        made.bind(sockaddr(host, port)[1])
    except OSError as exc:
        if exc.errno != EADDRNOTAVAIL:
            raise
        made.bind(("", port))
