"""Tells systemd the state of the service: `sd_notify` over its datagram socket.

The protocol is one datagram of `NAME=value` lines, so it needs no library. Outside systemd there is no
socket, and nothing is sent. A notice that cannot be sent is dropped: systemd then acts as if it had not come,
which is right for a watchdog. Every other notice counts as sent only once it is, and its caller repeats it.
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import MutableMapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from cqueue.dispatcher.service.health import Health

MAX_STATUS: Final = 500
"""Characters of a status: one line of `systemctl status`, far below a datagram's limit."""


class Notifier:
    """Sends the service's state to systemd; without an address it does nothing.

    Args:
        address: a path, or an abstract name that begins with `@`; None sends nothing.
        watchdog_s: seconds without food after which systemd kills the service; None: never.

    Attributes:
        alive_every_s: longest time between two calls of `tell`: half the watchdog's limit, or endless.
    """

    def __init__(self, address: str | None = None, watchdog_s: float | None = None) -> None:
        self._address = None if address is None else _decoded(address)
        self.alive_every_s = math.inf if watchdog_s is None or address is None else watchdog_s / 2
        self._told: dict[str, str] = {}

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str] = os.environ) -> Self:
        """Read systemd's variables and remove them, so that no child notifies in this process's name."""
        address = environment.pop("NOTIFY_SOCKET", "")
        watchdog_us = environment.pop("WATCHDOG_USEC", "")
        pid = environment.pop("WATCHDOG_PID", "")
        ours = not pid or pid == str(os.getpid())
        known = address[:1] in {"/", "@"}
        watched = ours and watchdog_us.isdigit() and int(watchdog_us) > 0
        return cls(address if known else None, int(watchdog_us) / 1e6 if watched else None)

    def tell(self, health: Health, *, stopping: bool) -> None:
        """Say once that messages are received, or that the drain has begun. Feed the watchdog if the process
        is alive. Set the text that `systemctl status` shows, if it has changed.
        """
        if stopping:
            self._send("STOPPING", "1")
        elif health.ready:
            self._send("READY", "1")
        if health.alive:
            self._told.pop("WATCHDOG", None)
            self._send("WATCHDOG", "1")
        self._send("STATUS", " ".join(health.reason.split())[:MAX_STATUS])

    def _send(self, name: str, value: str) -> None:
        """Send a notice, unless it repeats the last one of its name."""
        if self._address is None or self._told.get(name) == value:
            return
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.setblocking(False)  # a full queue must not hold up the service
            out.sendto(f"{name}={value}".encode(), self._address)
            self._told[name] = value


def _decoded(address: str) -> str | bytes:
    """Return the address for the socket: `@name` is an abstract one, which begins with a zero byte."""
    return b"\0" + address[1:].encode() if address.startswith("@") else address
