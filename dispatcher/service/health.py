"""Answers probes: must this process be restarted, does it handle messages, and what are its metrics?

`/livez` fails only for what a restart can cure: threads that have died, or that have not moved for a minute.
An outage of Cassandra is no such thing: restarting every worker would only add to its load when it comes
back. So `/livez` stays 200, and `/readyz` answers 503 until a poll has succeeded again. `/readyz` answers 503
at once if the last poll of every queue has failed. If only the polls of one queue keep failing, for want of a
grant for example, it does so after some seconds, so that an operator learns of the queue's waiting messages.
And it does so where nothing is polled any more, because what was handled cannot be settled.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from prometheus_client.exposition import CONTENT_TYPE_LATEST

from cqueue.dispatcher.service import logs
from cqueue.errors import ConfigError

if TYPE_CHECKING:
    from cqueue.dispatcher.execution.dispatcher import Dispatcher

STALLED_AFTER_S: Final = 60.0
"""Seconds after which a poll will not end any more: every call in a poll has a time limit well below. A
blocked event loop gets as long."""
REQUEST_TIMEOUT_S: Final = 5
"""Seconds that a client may take to send its request."""
NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
NAMED: Final = 3
"""Queues that a reason names: it stays readable."""


@dataclass(frozen=True, slots=True)
class Health:
    """The answer to probes.

    Attributes:
        alive: no restart is needed.
        ready: messages are handled.
        reason: why not, or the state.
    """

    alive: bool
    ready: bool
    reason: str = ""


def of(dispatcher: Dispatcher) -> Health:
    """Return the health of a dispatcher.

    Only what should never wait is checked. A handler may take hours, and an ack may wait for Cassandra. But a
    thread that has ended, or a poll that does not return although every call in it has a time limit, needs a
    new process. So does an event loop that is blocked past the time limit of a handler.

    Nothing is counted: a daemon asks once a second, perhaps of 20,000 queues.
    """
    state, engine = dispatcher.state, dispatcher.engine
    failing = set(engine.fetchers.trouble.subjects)
    return judge(
        state,
        dead_threads=dispatcher.dead_threads() if state == "running" else (),
        stalled_s=engine.poll_schedule.stalled_s(),
        blocked_s=engine.loop.overdue_s(time.monotonic()) if state == "running" else 0.0,
        failing=all(poller.name in failing for poller in engine.poll_schedule.pollers),
        stuck=engine.fetchers.trouble.stuck,
        unsettled=engine.settlement_writer.stuck if engine.is_full else NOTHING,
    )


def judge(
    state: str,
    *,
    dead_threads: Sequence[str] = (),
    stalled_s: float = 0.0,
    blocked_s: float = 0.0,
    failing: bool = False,
    stuck: Mapping[str, str] = NOTHING,
    unsettled: Mapping[str, str] = NOTHING,
) -> Health:
    """Return the health that follows from a dispatcher's state.

    Args:
        state: new, running, stopping or stopped.
        dead_threads: names of threads that have ended though they should not.
        stalled_s: for how many seconds the slowest poll has been under way.
        blocked_s: for how many seconds what may not go on has blocked the event loop.
        failing: the last poll of every queue has failed.
        stuck: queues whose polls have all failed for some seconds, with the last error.
        unsettled: verbs that could not be stored for some seconds, with the last error, if nothing is
            received before they are.
    """
    if why := _fault(dead_threads, stalled_s, blocked_s):
        return Health(alive=False, ready=False, reason=why)
    if stuck:
        return Health(alive=True, ready=False, reason=_named(stuck))
    if unsettled:
        why = "; ".join(f"{verb}: {error}" for verb, error in unsettled.items())
        return Health(
            alive=True, ready=False, reason=f"nothing is received, as nothing can be settled: {why}"
        )
    if failing:
        return Health(alive=True, ready=False, reason="Cassandra does not answer")
    return Health(alive=True, ready=state == "running", reason=state)


def _fault(dead_threads: Sequence[str], stalled_s: float, blocked_s: float) -> str:
    """Return what only a new process cures; nothing if there is no such fault."""
    if dead_threads:
        return f"ended: {', '.join(dead_threads)}"
    if stalled_s > STALLED_AFTER_S:
        return f"a poll has not ended for {stalled_s:.0f} s"
    if blocked_s > STALLED_AFTER_S:
        return f"the event loop has been blocked for {blocked_s:.0f} s"
    return ""


def _named(stuck: Mapping[str, str]) -> str:
    """Return the reason for queues that cannot be received from; it names the first few."""
    told = [f"queue {name} cannot be received from: {why}" for name, why in sorted(stuck.items())[:NAMED]]
    more = len(stuck) - len(told)
    return "; ".join([*told, f"and {more:,} more queues"] if more else told)


def together(parts: Mapping[str, Health]) -> Health:
    """Return the health of several processes: ready if one is, because it handles messages of all queues.

    Alive in any case: the parent replaces a child that is not.
    """
    ready = any(part.ready for part in parts.values())
    reason = "; ".join(f"child {name}: {part.reason}" for name, part in parts.items())
    return Health(alive=True, ready=ready, reason=reason or "no process")


# ── Over HTTP ──


@contextmanager
def serving(
    address: tuple[str, int] | None,
    health: Callable[[], Health],
    metrics: Callable[[], bytes],
    *,
    life: Callable[[], Health] | None = None,
) -> Iterator[int | None]:
    """Serve probes and metrics during the block, on threads that share nothing with the dispatcher's.

    Args:
        address: host and port; port 0 takes any free one. None: no server.
        health: return the health now.
        metrics: return the text for Prometheus.
        life: return the health for `/livez`, if `health` may wait for Cassandra.

    Returns:
        The port; None without a server.

    Raises:
        ConfigError: the port is taken, or the host is none of this machine's.
    """
    if address is None:
        yield None
        return
    host, port = address
    answers = {"health": health, "metrics": metrics, "life": life or health}
    handler = type("Handler", (_Handler,), {name: staticmethod(answer) for name, answer in answers.items()})
    try:
        server = _Server(address, handler)
    except OSError as exc:
        raise ConfigError(f"Nothing can listen on {host}:{port}: {exc.strerror or exc}.") from exc
    with server:
        Thread(target=server.serve_forever, name="cqueue-health", daemon=True).start()
        logs.logger().info(logs.DaemonEvent.HEALTH, host=host, port=server.server_port)
        try:
            yield server.server_port
        finally:
            server.shutdown()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a slow client must not delay the exit

    def __init__(self, address: tuple[str, int], handler: type[_Handler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that has gone away: a traceback between lines of JSON helps nobody."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    health: Callable[[], Health]
    life: Callable[[], Health]
    metrics: Callable[[], bytes]
    timeout = REQUEST_TIMEOUT_S
    server_version = "cqueue"

    def do_GET(self) -> None:
        """Answer one of three paths."""
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._answer(HTTPStatus.OK, CONTENT_TYPE_LATEST, self.metrics())
        elif path == "/livez":
            self._tell(health := self.life(), ok=health.alive)
        elif path == "/readyz":
            self._tell(health := self.health(), ok=health.ready)
        else:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"/livez, /readyz or /metrics\n")

    def _tell(self, health: Health, *, ok: bool) -> None:
        status = HTTPStatus.OK if ok else HTTPStatus.SERVICE_UNAVAILABLE
        self._answer(status, "application/json", json.dumps(asdict(health)).encode() + b"\n")

    def _answer(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Log nothing: a probe comes every few seconds."""
