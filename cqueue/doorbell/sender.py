"""Send datagrams on sockets that never block, and count errors."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from threading import Lock

from cqueue.doorbell.datagram import HintCounts, Ring, encode
from cqueue.store.control import ListenerRow


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
                self._socket(row.address).sendto(encode(ring, row.key), (row.address, row.port))
            except OSError as exc:
                self._counts.unsent += 1
                if not self._closed:
                    self._log_once("doorbell_unsent", exc)
            else:
                self._counts.sent += 1

    def _socket(self, address: str) -> socket.socket:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
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
