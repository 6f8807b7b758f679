"""Signing in with a token or a password, and out again."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from cqueue.web.access import SESSION_S
from cqueue.web.guard import COOKIE, refused
from cqueue.web.site import field_of, fields_of, go, site_of


def login_page(request: Request) -> Response:
    """Ask for a token, or for name and password."""
    site = site_of(request)
    if not site.access.asks:
        return go(request, "")
    return site.page(request, "login.html", wrong=False, next="/")


def login(request: Request) -> Response:
    """Take what was given; answer by a cookie that no script reads and no other site's page sends."""
    site = site_of(request)
    secret, name = field_of(request, "token"), "".join(fields_of(request, "name"))
    person = site.access.by_password(name, secret) if name else site.access.by_token(secret)
    wanted = field_of(request, "next")
    to = wanted if wanted.startswith("/") and not wanted.startswith(("//", "/\\")) else "/"
    if person is None:
        refused(request, None, "wrong password" if name else "wrong token")
        return site.page(request, "login.html", status=401, wrong=True, next=to)
    base = request.scope.get("root_path", "")
    answer = RedirectResponse(base + to, 303)
    answer.set_cookie(
        COOKIE,
        site.sessions.cookie(person),
        max_age=SESSION_S,
        path=base or "/",
        secure=_is_secure(request),
        httponly=True,
        samesite="strict",
    )
    return answer


def logout(request: Request) -> Response:
    """End the session, and let the browser forget its cookie."""
    site_of(request).sessions.end(request.cookies.get(COOKIE, ""))
    answer = go(request, "")
    path = request.scope.get("root_path", "") or "/"
    answer.delete_cookie(COOKIE, path, secure=_is_secure(request), httponly=True, samesite="strict")
    return answer


def _is_secure(request: Request) -> bool:
    """Return whether the browser asks by HTTPS. Behind a proxy that decrypts, only Origin says so."""
    return "https" in {request.url.scheme, request.headers.get("origin", "").partition("://")[0]}
