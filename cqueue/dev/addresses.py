"""Choose loopback addresses that nobody listens on.

Every node needs an address of its own, since Cassandra tells nodes apart by address, not by port.
Between choosing and listening lie seconds, in which another start on this machine could choose the
same; so a chosen address is held in the kernel's table of abstract sockets meanwhile, which the
kernel clears when the holder dies.
"""

from __future__ import annotations

import errno
import hashlib
import os
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from ipaddress import IPv4Address
from pathlib import Path

from cqueue.errors import DevError

FIRST_ADDRESS = "127.0.0.1"

# More candidates would help nobody: somebody who listens on all addresses takes them all.
_CANDIDATES = 200


def own_network(directory: Path) -> str:
    """A loopback address from which on hardly any other directory's cluster looks for its own."""
    second, third = hashlib.sha256(os.fsencode(directory)).digest()[:2]
    return f"127.{second % 254 + 1}.{third}.1"


class Reservation(ExitStack):
    """Addresses held against other starts on this machine, until the `with` block ends."""

    def __init__(self, ports: Sequence[int]) -> None:
        super().__init__()
        self._ports = ports

    def take(self, address: str) -> bool:
        """Hold `address`; False if somebody listens there on one of the ports, or is about to."""
        if not all(_can_bind(address, port) for port in self._ports):
            return False
        with ExitStack() as guards:
            for port in self._ports:
                guard = guards.enter_context(socket.socket(socket.AF_UNIX))
                try:
                    guard.bind(f"\0cqueue-dev-{address}:{port}")
                except OSError:
                    return False
            self.enter_context(guards.pop_all())
        return True

    def take_from(self, first: str, count: int) -> list[str]:
        """Hold the first `count` free addresses from `first` on.

        Raises:
            DevError: there are not enough.
        """
        taken: list[str] = []
        for offset in range(_CANDIDATES):
            address = str(IPv4Address(first) + offset)
            if len(taken) < count and self.take(address):
                taken.append(address)
        if len(taken) < count:
            ports = " and ".join(str(port) for port in self._ports)
            raise DevError(
                f"Ports {ports} are taken on all loopback addresses from {first} on. "
                "Stop what listens there, or choose others with --cql-port and --storage-port."
            )
        return taken


def _can_bind(address: str, port: int) -> bool:
    with socket.socket() as probe:
        # As Cassandra does it: connections that linger after a restart do not count as taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as exc:
            if exc.errno in {errno.EADDRINUSE, errno.EADDRNOTAVAIL}:
                return False
            raise DevError(f"Cannot listen on {address}:{port}: {exc}. Choose a port above 1023.") from exc
    return True
