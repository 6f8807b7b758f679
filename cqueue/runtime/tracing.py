"""Spans of messages by OpenTelemetry's messaging conventions; made only where somebody traces.

A driver without tracing pays one look at an attribute for a call. What OpenTelemetry raises is logged once,
and changes no call. No span holds a body, an argument, a header, or the text of an application's error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.propagate import extract, inject
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, TracerProvider

from cqueue._version import __version__
from cqueue.runtime import logs

R = TypeVar("R")

SCHEMA: Final = "https://opentelemetry.io/schemas/1.44.0"
"""The version of the conventions: the newest when the spans were written."""
_SEND, _SETTLE = ("send", SpanKind.PRODUCER), ("settle", SpanKind.CLIENT)
OPERATIONS: Final = {
    "send": _SEND,
    "append": _SEND,
    "receive": ("receive", SpanKind.CLIENT),
    "process": ("process", SpanKind.CONSUMER),
    **dict.fromkeys(("ack", "nack", "snooze", "dead"), _SETTLE),
}
"""Type and kind of each operation, as the conventions have them."""


class Tracing:
    """Makes spans. Thread-safe.

    Args:
        provider: of tracers; None: the global one.
        links_only: runs of handlers begin traces of their own, with a link to the send.
    """

    def __init__(self, provider: TracerProvider | None = None, *, links_only: bool = False) -> None:
        self._tracer = trace.get_tracer("cqueue", __version__, provider, SCHEMA)
        self._links_only = links_only
        self._told = False

    def source(self, message: Any) -> SpanContext:
        """Return the context that a message or record carries; an invalid one if it carries none."""
        headers = getattr(message, "headers", None)
        if not headers or not isinstance(headers, Mapping):
            return trace.INVALID_SPAN_CONTEXT
        try:
            return trace.get_current_span(extract(headers, Context())).get_span_context()
        except Exception as exc:  # noqa: BLE001 - a propagator is the application's
            self._tell(exc)
            return trace.INVALID_SPAN_CONTEXT

    def start(
        self,
        operation: str,
        name: str | None,
        messages: Sequence[Any],
        *,
        since_ns: int | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> tuple[Span, Context]:
        """Start a span. Return it, and the context in which its operation runs.

        Args:
            operation: a key of `OPERATIONS`.
            name: of the queue or log; None if the messages are of several.
            messages: have `headers`, and perhaps `id`; messages to send, received ones, or records.
            since_ns: when the operation began, in ns since 1970; None: now.
            more: further attributes.
        """
        context = parent = get_current()
        try:
            type_, kind = OPERATIONS[operation]
            sources = [self.source(message) for message in messages]
            if type_ == "send" and all(source.is_valid for source in sources):
                kind = SpanKind.CLIENT  # no message is to carry the span's context
            if type_ == "process" and len(messages) == 1:
                context = extract(messages[0].headers, Context())
                parent = Context() if self._links_only else context
            attributes = {
                "messaging.system": "cqueue",
                "messaging.operation.name": operation,
                "messaging.operation.type": type_,
                **(more or {}),
            }
            if name is not None:
                attributes["messaging.destination.name"] = name
            ids = [_id_of(message) for message in messages]
            if len(messages) == 1:
                attributes |= ids[0]
            elif messages:
                attributes["messaging.batch.message_count"] = len(messages)
            span = self._tracer.start_span(
                operation if name is None else f"{operation} {name}",
                parent,
                kind,
                attributes,
                [Link(source, id_) for source, id_ in zip(sources, ids, strict=True) if source.is_valid],
                since_ns,
            )
        except Exception as exc:  # noqa: BLE001 - samplers and processors are the application's
            self._tell(exc)
            span = trace.INVALID_SPAN
        return span, trace.set_span_in_context(span, context)

    def end(
        self, span: Span, error: BaseException | None = None, said: str | None = None, **attributes: Any
    ) -> None:
        """End a span.

        Args:
            span: the span.
            error: how the operation failed.
            said: the error in one line, as logs may say it; None: with its text if cqueue has written it.
            attributes: set before the end, with `_` for `.` in their names.
        """
        try:
            for name, value in attributes.items():
                span.set_attribute(f"messaging.{name.replace('_', '.')}", value)
            if error is not None:
                said = logs.describe(error, texts=logs.is_ours(error)) if said is None else said
                span.set_attribute("error.type", _class_of(error))
                span.set_status(Status(StatusCode.ERROR, said.partition(": ")[2] or None))
            span.end()
        except Exception as exc:  # noqa: BLE001 - as above
            self._tell(exc)

    def inside(self, context: Context, call: Callable[[], R]) -> R:
        """Call in a context."""
        token = None
        try:
            token = attach(context)
            return call()
        finally:
            if token is not None:
                detach(token)

    def around(
        self,
        operation: str,
        name: str | None,
        messages: Sequence[Any],
        call: Callable[[], R],
        more: Mapping[str, Any] | None = None,
    ) -> R:
        """Call in a new span, which ends with the call; arguments as of `start`."""
        span, context = self.start(operation, name, messages, more=more)
        try:
            result = self.inside(context, call)
        except BaseException as exc:
            self.end(span, exc)
            raise
        self.end(span)
        return result

    def run(
        self, name: str, message: Any, call: Callable[[], Any], more: Mapping[str, Any], *, is_async: bool
    ) -> tuple[Callable[..., None], Callable[[], Any]]:
        """Start the span of a handler's run; return what ends it, and the handler's call in its context."""
        span, context = self.start("process", name, [message], more=more)

        async def inside() -> Any:
            token = attach(context)
            try:
                return await call()
            finally:
                detach(token)

        return partial(self.end, span), inside if is_async else partial(self.inside, context, call)

    def headers(self, context: Context) -> dict[str, str]:
        """Return the headers that carry a context."""
        carrier: dict[str, str] = {}
        try:
            inject(carrier, context)
        except Exception as exc:  # noqa: BLE001 - as above
            self._tell(exc)
        return carrier

    def _tell(self, error: Exception) -> None:
        if not self._told:
            self._told = True
            logs.logger("cqueue.tracing").error(
                "tracing_failed", error=logs.describe(error), **logs.trace(error, is_final=True)
            )


def _id_of(message: Any) -> dict[str, str]:
    """Return the attribute with a message's id; none for a message that is to be sent."""
    id_ = getattr(message, "id", None)
    return {} if id_ is None else {"messaging.message.id": str(id_)}


def _class_of(error: BaseException) -> str:
    cls = type(error)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
