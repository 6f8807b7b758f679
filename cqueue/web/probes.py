"""What an orchestrator asks of a dashboard: whether it lives, and whether it has something to show.

Both are answered without a login and under any name, since probes have neither. They tell nothing else.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cqueue.errors import CqueueError
from cqueue.web import reading
from cqueue.web.site import site_of


async def alive(_: Request) -> Response:
    """Answer, as long as the process does; on no thread, as pages that wait may hold all of them."""
    return JSONResponse({"alive": True})


def ready(request: Request) -> Response:
    """Tell whether queues were ever read. While Cassandra is away, pages go on showing what was known."""
    site = site_of(request)
    try:
        site.shared.get("queues", lambda: reading.names(site.client))
    except CqueueError:
        return JSONResponse({"ready": False, "reason": "Cassandra has not answered yet"}, 503)
    return JSONResponse({"ready": True})
