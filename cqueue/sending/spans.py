"""Spans of sends and appends, whose context the messages or records carry in their headers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from cqueue.errors import BadInput
from cqueue.message import check_headers
from cqueue.sending.results import Result

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from cqueue.runtime.tracing import Tracing

R = TypeVar("R")


def sent(
    tracing: Tracing | None, operation: str, name: str, entries: list[Any], store: Callable[[list[Any]], R]
) -> R:
    """Store entries in a span, and return what `store` returns: a result, an id, or a future of one.

    Entries that carry a context keep it. The others carry the span's.

    Args:
        tracing: makes the span; None: no span.
        operation: "send" or "append".
        name: of the queue or log.
        entries: messages or records.
        store: stores them, and is called once.
    """
    if tracing is None or not entries:
        return store(entries)
    span, context = tracing.start(operation, name, entries)
    headers = tracing.headers(context)
    carrying = [entry if tracing.source(entry).is_valid else _carrying(entry, headers) for entry in entries]
    try:
        result = tracing.inside(context, lambda: store(carrying))
    except BaseException as exc:
        tracing.end(span, exc)
        raise
    if isinstance(result, Future):
        result.add_done_callback(lambda done: _end_with(tracing, span, done))
    else:
        _end(tracing, span, result)
    return result


def _carrying(entry: Any, headers: Mapping[str, str]) -> Any:
    """Return an entry that has these headers too; the entry itself if they do not fit."""
    try:
        return replace(entry, headers=check_headers({**check_headers(entry.headers or {}), **headers}))
    except (AttributeError, TypeError, BadInput):  # what is no entry is refused as it is
        return entry


def _end_with(tracing: Tracing, span: Span, done: Future[Any]) -> None:
    error = done.exception()
    if error is not None:
        tracing.end(span, error)
    else:
        _end(tracing, span, done.result())


def _end(tracing: Tracing, span: Span, result: Any) -> None:
    """End the span of a call that returned an id, what has one, the result of several entries, or nothing."""
    error, ids = None, [getattr(result, "id", result)]
    if isinstance(result, Result):
        error, ids = (result.failed[0][1] if result.failed else None), result.ids
    if len(ids) == 1 and ids[0] is not None:
        tracing.end(span, error, message_id=str(ids[0]))
    else:
        tracing.end(span, error)
