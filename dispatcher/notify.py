"""Telling systemd how the service is: `sd_notify` over its datagram socket.

The protocol is one datagram of `NAME=value` lines, so no library is needed for it. Outside systemd
there is no socket, and nothing is sent. A notice that cannot be sent is dropped: systemd then acts as
if it had not come, which is the right thing for a watchdog.
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Final, Self

SOCKET: Final = "NOTIFY_SOCKET"
WATCHDOG_US: Final = "WATCHDOG_USEC"
WATCHDOG_PID: Final = "WATCHDOG_PID"
MAX_STATUS = 500


class Notifier:
    """The service's line to systemd; does nothing without an address.

    Args:
        address: a path, or an abstract name that begins with `@`; None for nobody.
        watchdog_s: after so many seconds without `alive` systemd kills the service; None for never.
    """

    def __init__(self, address: str | None = None, watchdog_s: float | None = None) -> None:
        self._address = None if address is None else _decoded(address)
        self._watchdog_s = watchdog_s
        self._told: dict[str, str] = {}

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str] = os.environ) -> Self:
        """As systemd says; its variables are removed, so that no child speaks in our name."""
        address = environment.pop(SOCKET, "")
        watchdog_us = environment.pop(WATCHDOG_US, "")
        pid = environment.pop(WATCHDOG_PID, "")
        ours = not pid or pid == str(os.getpid())
        known = address[:1] in {"/", "@"}
        watched = ours and watchdog_us.isdigit() and int(watchdog_us) > 0
        return cls(address if known else None, int(watchdog_us) / 1e6 if watched else None)

    @property
    def alive_every_s(self) -> float | None:
        """How often to call `alive`: half of what systemd waits; None if nobody waits."""
        return None if self._watchdog_s is None or self._address is None else self._watchdog_s / 2

    def ready(self) -> None:
        """Messages are received now; told once."""
        self._send("READY", "1")

    def stopping(self) -> None:
        """The drain has begun; told once."""
        self._send("STOPPING", "1")

    def alive(self) -> None:
        """Feed the watchdog."""
        self._told.pop("WATCHDOG", None)
        self._send("WATCHDOG", "1")

    def status(self, text: str) -> None:
        """What `systemctl status` shows; sent only when it has changed."""
        self._send("STATUS", " ".join(text.split())[:MAX_STATUS])

    def _send(self, name: str, value: str) -> None:
        """Send a notice, unless it says what was said last."""
        if self._address is None or self._told.get(name) == value:
            return
        self._told[name] = value
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.setblocking(False)  # a full queue must not hold up the service
            out.sendto(f"{name}={value}".encode(), self._address)


def _decoded(address: str) -> str | bytes:
    """`@name` stands for an abstract socket, whose name begins with a zero byte."""
    return b"\0" + address[1:].encode() if address.startswith("@") else address
