"""What stands before every page: who asks, by which name, from which site, and how much they send.

Changes are made by POST only, and a POST of another site's page is refused: by `Sec-Fetch-Site`, which pages
cannot forge, or by `Origin` where a browser does not send that; the cookie is SameSite=Strict besides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cqueue.runtime.logs import logger
from cqueue.web.access import Person
from cqueue.web.rate import RateLimit
from cqueue.web.shared import LOGGER

if TYPE_CHECKING:
    from cqueue.web.site import Site

Form = dict[str, list[str]]

PROBES: Final = ("/livez", "/readyz")
"""Paths that anybody may ask, by any name: what probes a dashboard has no token."""
COOKIE: Final = "cqueue_web"
MOST_FORM: Final = 256 << 10
"""Bytes of a form: the ids of 1,000 letters are some 80 KB."""
FIELDS: Final = 2000
"""Fields of a form."""
REFUSED: Final = "operator_refused"
"""Event of a refused request: it is only logged, so that nobody can fill Cassandra."""
FORM: Final = "application/x-www-form-urlencoded"
REQUESTS: Final = 600
"""Requests of one address at once, at most: some twenty open pages behind one proxy or gateway."""
REQUESTS_S: Final = 50.0
"""Requests of one address a second, on an average."""
SIGN_INS: Final = 10
"""Tries to sign in of one address at once, at most."""
SIGN_INS_S: Final = 1 / 6
"""Tries to sign in of one address a second, on an average: a password of 8 characters holds for ages."""
HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # With `no-referrer` a form's Origin would be `null`.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


class Refusal(Exception):
    """The request is answered by a refusal instead of a page."""

    def __init__(self, status: int, title: str, text: str) -> None:
        super().__init__(text)
        self.status, self.title, self.text = status, title, text


class Guard:
    """ASGI middleware that lets only those through who may pass, and adds headers to every answer.

    What it finds out stands in the scope: `cqueue.person`, and of a POST `cqueue.form`.
    """

    def __init__(self, app: ASGIApp, site: Site) -> None:
        self._app = app
        self._site = site
        self._requests = RateLimit(REQUESTS_S, REQUESTS)
        self._sign_ins = RateLimit(SIGN_INS_S, SIGN_INS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request, then hand it on or answer it by a refusal."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return  # a server closes a web socket that nobody accepts
        request = Request(scope, receive)

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        try:
            await self._check(request)
        except ClientDisconnect:  # in the middle of a form: nobody reads an answer
            return
        except Refusal as refusal:
            await self._refused(request, refusal)(scope, receive, sending)
            return
        await self._app(scope, receive, sending)

    async def _check(self, request: Request) -> None:
        """Find out who asks for what; raise a refusal if that is not allowed."""
        access, scope = self._site.access, request.scope
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if path in PROBES:
            return
        host = request.headers.get("host", "")
        if not access.knows_host(host):
            raise Refusal(
                421,
                "Another name",
                f"This dashboard is not known as {host[:100]!r}; `--host-name` adds names.",
            )
        self._check_rate(request, path)
        scope["cqueue.person"] = person = self._person(request)
        if request.method == "POST":
            self._check_site(request, host)
        elif request.method not in {"GET", "HEAD"}:
            raise Refusal(405, "No such method", "Pages are read by GET and changed by POST.")
        if person is None and path != "/login" and not path.startswith("/static/"):
            raise Refusal(401, "Sign in", self._way_in())
        if request.method == "POST":
            scope["cqueue.form"] = await _form(request)

    def _check_rate(self, request: Request, path: str) -> None:
        address = address_of(request) or ""
        limits = [self._requests]
        if request.method == "POST" and path == "/login":
            limits.append(self._sign_ins)
        if not all(limit.take(address) for limit in limits):
            raise Refusal(429, "Too many requests", "Wait a minute, then try again.")

    def _person(self, request: Request) -> Person | None:
        access = self._site.access
        if access.proxy_header is not None:
            return access.by_proxy(request.headers.get(access.proxy_header), address_of(request))
        if access.anybody is not None:
            return access.anybody
        kind, _, secret = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return access.by_token(secret.strip())
        name = self._site.sessions.name(request.cookies.get(COOKIE, ""))
        return None if name is None else access.by_name(name)

    def _way_in(self) -> str:
        header = self._site.access.proxy_header
        if header is not None:
            return f"The proxy in front of this dashboard has named nobody in {header}."
        return "This dashboard asks who you are."

    def _check_site(self, request: Request, host: str) -> None:
        """Refuse a POST that another site's page has sent."""
        fetch_site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
        if fetch_site is not None:
            allowed = fetch_site in {"same-origin", "none"}
        elif origin is not None:
            allowed = _host_of(origin) == host.lower()
        else:  # no browser; a token in a header is nothing that a page of another site has
            allowed = request.headers.get("authorization", "").lower().startswith("bearer ")
        if not allowed:
            raise Refusal(403, "From another site", "Changes are taken only from this dashboard's own pages.")

    def _refused(self, request: Request, refusal: Refusal) -> Response:
        if refusal.status != 401 or request.method != "GET" or "authorization" in request.headers:
            person = request.scope.get("cqueue.person")
            refused(request, person and person.name, refusal.title)
        response = self._site.refusal(request, refusal)
        if refusal.status == 405:
            response.headers["allow"] = "GET, HEAD, POST"
        return response


def address_of(request: Request) -> str | None:
    """Return the address that the request comes from, which may be a proxy's."""
    return request.client.host if request.client else None


def refused(request: Request, who: str | None, why: str) -> None:
    """Log a request that was refused."""
    address, path = address_of(request), request.url.path[:300]
    logger(LOGGER).warning(REFUSED, who=who, address=address, method=request.method, path=path, why=why)


def _host_of(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:  # no browser sends such an origin
        return None


async def _form(request: Request) -> Form:
    """Read the fields of a form.

    Raises:
        Refusal: it is too large, or no form.
    """
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MOST_FORM:
            raise Refusal(413, "Too large", f"A form has at most {MOST_FORM >> 10} KiB.")
    if not body:
        return {}
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != FORM:
        raise Refusal(415, "No form", f"Changes are sent as {FORM}.")
    try:
        return parse_qs(body.decode(), keep_blank_values=True, strict_parsing=True, max_num_fields=FIELDS)
    except ValueError as exc:
        raise Refusal(400, "No form", "The form cannot be read.") from exc
