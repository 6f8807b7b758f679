"""Dramatiq on Redis."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from benchmarks.peers import tally
from benchmarks.peers.worker_peer import SERVER, RedisPeer

_QUEUE = "bench"


def handle(body: str) -> None:
    """Handle a message: note it in the tally."""
    tally.handled(body)


def make_actor(url: str) -> Any:
    """Make the handler an actor of a broker at this URL."""
    broker: Any = RedisBroker
    dramatiq.set_broker(broker(url=url))
    return dramatiq.actor(actor_name="handle", queue_name=_QUEUE)(handle)


if SERVER in os.environ:  # imported by a worker
    make_actor(os.environ[SERVER])


class DramatiqPeer(RedisPeer):
    """One `send` a message: a group of Dramatiq's is sent one by one too."""

    client = "one call a message; 2 processes of 8 threads"
    library = "dramatiq"

    _actor: Any = None

    def connect(self) -> None:
        """Make a broker for the sender."""
        self._actor = make_actor(self.server.url)

    def disconnect(self) -> None:
        """Close the broker."""
        if self._actor is not None:
            self._actor.broker.close()
            self._actor = None

    def send(self, bodies: Sequence[str]) -> None:
        """Send messages one by one."""
        for body in bodies:
            self._actor.send(body)

    def worker_command(self) -> list[str]:
        """Return Dramatiq's command, with its default of 8 threads."""
        command = [sys.executable, "-m", "dramatiq", "benchmarks.peers.dramatiq_redis"]
        return [*command, "--processes", "2", "--threads", "8"]

    def left(self) -> int:
        """Count the bodies that Redis still holds: an acknowledgement deletes one."""
        return int(self._actor.broker.client.hlen(f"dramatiq:{_QUEUE}.msgs"))
