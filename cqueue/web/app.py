"""The ASGI application: which address shows which page."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from cqueue.errors import CqueueError
from cqueue.web import letter_pages, login_pages, other_pages, probes, queue_pages
from cqueue.web.access import Access
from cqueue.web.guard import Guard, Refusal
from cqueue.web.site import Site

if TYPE_CHECKING:
    from cqueue.client import Client

STATIC: Final = Path(__file__).with_name("static")


def application(client: Client, *, access: Access) -> Starlette:
    """Make the dashboard of a client's keyspace, to be served by itself or mounted under a prefix.

    The client stays the caller's, who closes it after the application has ended.

    Args:
        client: what the pages read from, and what changes go to.
        access: whom the dashboard lets in. `Access()` is for a server that only this machine reaches.

    Raises:
        BadInput: one of them is none.

    Example:
        Mount("/queues", app=cqueue.web.application(client, access=Access(tokens=(Token("ops", secret),))))
    """
    site = Site(client, access)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        site.start()
        yield
        site.close()

    missing = Refusal(404, "No such page", "The dashboard has no page there.")
    handlers: dict[Any, Any] = {  # Starlette's type wants handlers of any exception
        CqueueError: site.failure,
        Refusal: site.refusal,
        404: lambda request, _: site.refusal(request, missing),
    }
    app = Starlette(
        routes=_routes(),
        # An open page is sent every few seconds: 100 queues are 60 KB, and so 3 KB, in 0.2 ms.
        middleware=[Middleware(GZipMiddleware, compresslevel=1), Middleware(Guard, site=site)],
        exception_handlers=handlers,
        lifespan=lifespan,
    )
    app.state.site = site
    return app


def _routes() -> list[BaseRoute]:
    post = partial(Route, methods=["POST"])
    return [
        Route("/", queue_pages.queues),
        Route("/message", queue_pages.find),
        Route("/queue/{name}", queue_pages.queue),
        post("/queue/{name}", queue_pages.change_queue),
        Route("/queue/{name}/message/{id}", queue_pages.message),
        post("/queue/{name}/message/{id}", queue_pages.message_body),
        Route("/queue/{name}/dead", letter_pages.letters),
        post("/queue/{name}/dead", letter_pages.settle),
        Route("/queue/{name}/dead/{id}", letter_pages.letter),
        post("/queue/{name}/dead/{id}", letter_pages.letter_body),
        Route("/schedules", other_pages.schedules),
        post("/schedules", other_pages.change_schedule),
        Route("/workers", other_pages.workers),
        Route("/audit", other_pages.audit),
        Route("/logs", other_pages.logs),
        Route("/log/{name}", other_pages.log),
        post("/log/{name}", other_pages.change_subscription),
        Route("/login", login_pages.login_page),
        post("/login", login_pages.login),
        post("/logout", login_pages.logout),
        Route("/livez", probes.alive),
        Route("/readyz", probes.ready),
        Mount("/static", app=StaticFiles(directory=STATIC), name="static"),
    ]
