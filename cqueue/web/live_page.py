"""The stream of an open page: the same page, made anew for the same person every few seconds.

The page is asked for within the process, through all that stands before a page. So somebody who signs out,
or whose name is taken away, gets nothing more.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import anyio
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from cqueue.errors import BadInput
from cqueue.runtime.logs import describe, logger, trace
from cqueue.web.guard import Refusal
from cqueue.web.shared import LOGGER
from cqueue.web.site import site_of
from cqueue.web.streams import CUT_S

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

PATH: Final = "/live"
EVENTS: Final = "text/event-stream"
KEPT: Final = ("type", "asgi", "http_version", "scheme", "server", "client", "root_path", "headers", "state")
"""What the request of a page has in common with that of its stream."""


async def live(request: Request) -> ASGIApp:
    """Send the live parts of the page `of` whenever they have changed.

    Raises:
        BadInput: that is no address of this dashboard.
        Refusal: there are too many streams; the page then asks every few seconds.
    """
    streams = site_of(request).streams
    if streams.is_full:
        raise Refusal(503, "Too many open pages", "An open page asks every few seconds instead.")
    scope = _scope(request, request.query_params.get("of", ""))
    if request.method == "HEAD":  # a stream without a reader would be held for nothing
        return Response(media_type=EVENTS)
    look = partial(_page, request.app, scope)
    # A proxy must not wait for more.
    answer = StreamingResponse(streams.events(look), media_type=EVENTS, headers={"x-accel-buffering": "no"})

    async def counted(scope: Scope, receive: Receive, send: Send) -> None:
        with streams.opened(), anyio.move_on_after(CUT_S):
            await answer(scope, receive, send)

    return counted


def _scope(request: Request, of: str) -> Scope:
    """Return the request for a page. of: its path and query, as the browser shows them."""
    raw, _, query = of.partition("?")
    path, base = unquote(raw), request.scope.get("root_path", "")
    if not path.startswith(f"{base}/") or path == base + PATH:
        raise BadInput(f"{of[:100]!r} is no page of this dashboard")
    kept: dict[str, Any] = {name: request.scope[name] for name in KEPT if name in request.scope}
    given = {"raw_path": raw.encode(), "query_string": query.encode()}
    return kept | given | {"method": "GET", "path": path}


async def _page(app: ASGIApp, scope: Scope) -> str | None:
    """Return the page; None if the answer is another one than a page, or the page cannot be made."""
    status, body = 0, b""

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status, body
        status = message.get("status", status)
        body += message.get("body", b"")

    try:
        await app(dict(scope), receive, send)  # each look takes the same scope, to which an application adds
    except Exception as exc:  # noqa: BLE001 - the stream ends in order, and the page that asks then says 500
        logger(LOGGER).error("dashboard_read_failed", error=describe(exc), **trace(exc, is_final=True))
        return None
    return body.decode() if status == 200 else None
