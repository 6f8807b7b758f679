"""A TCP proxy that can cut, stall and resume what passes through it."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

CHUNK = 1 << 16


class Proxy:
    """Listens on `address:port` of its own and passes everything on to a node's address."""

    def __init__(self, target, listen):
        self._target = target
        self._open = threading.Event()
        self._open.set()
        self._accepting = True
        self._closed = False
        self._mutex = threading.Lock()
        self._sockets = set()
        self._server = socket.create_server(listen)
        self.address = self._server.getsockname()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def stall(self):
        """Let nothing pass, and keep all connections open."""
        self._open.clear()

    def cut(self):
        """Break all connections, and refuse new ones."""
        self._accepting = False
        with self._mutex:
            sockets, self._sockets = self._sockets, set()
        for one in sockets:
            _break(one)
        self._open.set()

    def resume(self):
        """Let everything pass again."""
        self._accepting = True
        self._open.set()

    def close(self):
        self._closed = True
        self.cut()
        _break(self._server)

    def _accept(self):
        while not self._closed:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            if not self._accepting:
                _break(client)
                continue
            try:
                node = socket.create_connection(self._target, timeout=5)
            except OSError:
                _break(client)
                continue
            node.settimeout(None)
            with self._mutex:
                self._sockets |= {client, node}
            for source, sink in ((client, node), (node, client)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source, sink):
        with suppress(OSError):
            while data := source.recv(CHUNK):
                self._open.wait()
                sink.sendall(data)
        for one in (source, sink):
            _break(one)
        with self._mutex:
            self._sockets -= {source, sink}


def _break(one):
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    with suppress(OSError):
        one.close()
