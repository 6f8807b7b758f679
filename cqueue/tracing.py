"""Switch tracing by OpenTelemetry on and off; needs the extra `otel`.

Which spans are made, and what stands in them: docs/how-to/tracing.md.
"""

from __future__ import annotations

from typing import Any

from cqueue.client import Client, inside
from cqueue.errors import ConfigError
from cqueue.runtime.driver import BlockingDriver

try:
    from opentelemetry.trace import TracerProvider

    from cqueue.runtime.tracing import Tracing
except ModuleNotFoundError as exc:
    raise ConfigError("Tracing needs OpenTelemetry: pip install 'cassandra-cqueue[otel]'") from exc


def instrument(
    client: Client | None = None,
    *,
    tracer_provider: TracerProvider | None = None,
    links_only: bool = False,
) -> None:
    """Trace what a client sends, receives, runs and settles.

    Args:
        client: the client; None: all clients of this process, also those that are connected later.
        tracer_provider: None: the global one of `opentelemetry.trace`.
        links_only: each run of a handler begins a trace of its own, with a link to the send. By default a run
            is a child of the send, and has the link too.
    """
    _target(client).tracing = Tracing(tracer_provider, links_only=links_only)


def uninstrument(client: Client | None = None) -> None:
    """Trace a client no more, even if all others are. None: all that were not named to `instrument`."""
    _target(client).tracing = None


class CqueueInstrumentor:
    """What `opentelemetry-instrument` finds: `instrument` and `uninstrument`, for all clients."""

    def instrument(self, tracer_provider: TracerProvider | None = None, **_: Any) -> None:
        """Trace all clients of this process."""
        instrument(tracer_provider=tracer_provider)

    def uninstrument(self, **_: Any) -> None:
        """Trace no client any more that was not named to `instrument`."""
        uninstrument()


def _target(client: Client | None) -> BlockingDriver | type[BlockingDriver]:
    return BlockingDriver if client is None else inside(client).driver
