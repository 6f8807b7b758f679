"""Send datagrams on sockets that never block, and count errors."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from threading import Lock
from typing import Any

from cqueue.doorbell.datagram import HintCounts, Ring, encode
from cqueue.store.control import ListenerRow


def sockaddr(host: str, port: int) -> tuple[socket.AddressFamily, Any]:
    """Return an IP address as sockets take it, and its family.

    Sockets of Python leave out the scope in a text such as `fe80::1%eth0`, so it is looked up here.

    Raises:
        OSError: this machine has no such interface.
    """
    if "%" in host:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM, flags=socket.AI_NUMERICHOST)[0]
        return found[0], found[4]
    return socket.AF_INET6 if ":" in host else socket.AF_INET, (host, port)


class Sender:
    """Sends datagrams. Thread-safe. log_once: logs the first failure of a kind."""

    def __init__(self, counts: HintCounts, log_once: Callable[[str, Exception], None]) -> None:
        self._counts = counts
        self._log_once = log_once
        self._mutex = Lock()
        self._sockets: dict[socket.AddressFamily, socket.socket] = {}
        self._closed = False

    def send(self, ring: Ring, rows: Iterable[ListenerRow]) -> None:
        """Send a ring to these listeners. A datagram that the network does not take at once is dropped."""
        for row in rows:
            try:
                family, address = sockaddr(row.address, row.port)
                self._socket(family).sendto(encode(ring, row.key), address)
            except OSError as exc:
                self._counts.unsent += 1
                if not self._closed:
                    self._log_once("doorbell_unsent", exc)
            else:
                self._counts.sent += 1

    def _socket(self, family: socket.AddressFamily) -> socket.socket:
        with self._mutex:  # two threads could each make a socket, and one would stay open
            if self._closed:
                raise OSError("the client has been closed")
            if family not in self._sockets:
                self._sockets[family] = socket.socket(family, socket.SOCK_DGRAM)
                self._sockets[family].setblocking(False)
            return self._sockets[family]

    def close(self) -> None:
        """Stop sending."""
        with self._mutex:
            self._closed = True
            for each in self._sockets.values():
                each.close()
