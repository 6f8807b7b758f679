"""One dashboard: its client, what viewers share, who is let in, and how pages are made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Final
from urllib.parse import quote, urlencode

import jinja2
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from cqueue import audit
from cqueue._version import __version__
from cqueue.client import Client, check_client, inside
from cqueue.errors import BadInput, CqueueError, NotDone, OutcomeUnknown, Unavailable
from cqueue.message import short
from cqueue.web import shown
from cqueue.web.access import Access, Person, Role, Sessions
from cqueue.web.guard import Refusal, address_of, refused
from cqueue.web.history import History
from cqueue.web.shared import Known, Shared

REFRESH_S: Final = 3
"""Seconds between two looks of an open page, which stops looking while nobody sees it."""
TOLD: Final = {
    "paused": "The queue is paused: consumers receive nothing.",
    "resumed": "The queue goes on: consumers receive again.",
    "schedule-paused": "The schedule is paused.",
    "schedule-resumed": "The schedule goes on.",
    "fired": "The schedule has fired: its message is sent.",
    "subscription-paused": "The subscription is paused: its members call no listeners.",
    "subscription-resumed": "The subscription goes on.",
}
"""What a page says after a change, by the word in its address; no other text can be put there."""


@cache
def _templates() -> jinja2.Environment:
    """Return the templates of all dashboards of a process: each is compiled once."""
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("cqueue.web"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {
        "age": shown.age, "ago": shown.ago, "utc": shown.utc, "count": shown.count,
        "setting": shown.duration, "short": short,
    }  # fmt: skip
    templates.globals |= {"version": __version__, "age": shown.age, "number": shown.number}
    return templates


class Site:
    """What the pages of one dashboard share. Thread-safe."""

    def __init__(self, client: Client, access: Access) -> None:
        check_client("a dashboard", client)
        if not isinstance(access, Access):
            raise BadInput(f"access is {access!r}; it takes an Access(…)")
        self.client = client
        self.access = access
        self.sessions = Sessions()
        self.shared = Shared()
        self.trail = audit.Trail(client)
        self.history = History(client, self.shared)

    def start(self) -> None:
        """Begin to keep the history, unless that has begun."""
        self.history.start()

    def close(self) -> None:
        """End what runs beside the pages."""
        self.history.stop()
        self.shared.close()

    def page(
        self,
        request: Request,
        template: str,
        /,
        *,
        knowns: Iterable[Known[Any]] = (),
        tables: Sequence[str] = (),
        status: int = 200,
        **values: Any,
    ) -> Response:
        """Make a page. It says if any of what it shows, `knowns`, is old, or rows of `tables` are damaged."""
        person: Person | None = request.scope.get("cqueue.person")
        old = [known for known in knowns if known.trouble is not None and known.age_s > REFRESH_S]
        base = request.scope.get("root_path", "")
        self.start()  # an application that is mounted in another one has no start of its own
        compiled = _templates().get_template(template)
        return HTMLResponse(
            compiled.render(
                person=person,
                may_operate=person is not None and person.may(Role.OPERATE),
                may_see_bodies=person is not None and person.may(Role.BODIES),
                access=self.access,
                signed_in=self.access.asks and person is not None,
                told=TOLD.get(request.query_params.get("told", "")),
                old=max(old, key=lambda known: (not known.is_kept, known.age_s), default=None),
                damaged=inside(self.client).quarantine.of(*tables),
                url=lambda *parts, **query: url_of(base, *parts, **query),
                again=lambda **changes: _again(request, changes),
                base=base,
                refresh_s=REFRESH_S,
                **values,
            ),
            status,
        )

    def refusal(self, request: Request, refusal: Refusal) -> Response:
        """Make the page that says why there is no page; with a place for the token if that is what lacks."""
        if refusal.status == 401 and self.access.asks:
            return self.page(request, "login.html", status=401, wrong=False, next=_here(request))
        return self._trouble(request, refusal.status, refusal.title, refusal.text)

    def failure(self, request: Request, error: CqueueError) -> Response:
        """Make the page for an error: what is known of its effect, and what to do."""
        if isinstance(error, BadInput):
            missing = type(error).__name__.endswith("NotFound")
            status, title = (404, "Not there (any more)") if missing else (400, "That does not work")
        elif request.method != "POST":
            is_away = isinstance(error, Unavailable | OutcomeUnknown)
            status, title = 503, "Cassandra does not answer" if is_away else "This cannot be shown"
        elif isinstance(error, NotDone):
            status, title = 503, "Not done; it can be tried again"
        else:
            status, title = 503, "It is not known whether that was done"
        return self._trouble(
            request, status, title, str(error), may_pass=status == 503 and request.method == "GET"
        )

    def _trouble(
        self, request: Request, status: int, title: str, text: str, *, may_pass: bool = False
    ) -> Response:
        """Make the page that says why there is no other one. may_pass: it asks for that again."""
        return self.page(request, "trouble.html", status=status, title=title, text=text, may_pass=may_pass)


def site_of(request: Request) -> Site:
    """Return the dashboard that a request is for."""
    site: Site = request.app.state.site
    return site


def person_of(request: Request) -> Person:
    """Return who asks."""
    person: Person = request.scope["cqueue.person"]
    return person


@contextmanager
def audited(request: Request, what: str, **about: Any) -> Iterator[dict[str, Any]]:
    """Write down what the person of a request does, before and after; see `Trail.action`."""
    site = site_of(request)
    with site.trail.action(person_of(request).name, address_of(request), what, **about) as more:
        yield more
    site.shared.forget("actions")


def require(request: Request, role: Role) -> None:
    """Refuse somebody without this role."""
    person = person_of(request)
    if not person.may(role):
        refused(request, person.name, f"no role {role.value}")
        what = "see bodies" if role is Role.BODIES else "change anything"
        raise Refusal(
            403, "Not allowed", f"{person.name} may not {what} here: the role {role.value} is missing."
        )


def field_of(request: Request, name: str) -> str:
    """Return a field of the form that was sent.

    Raises:
        BadInput: it is missing.
    """
    values = fields_of(request, name)
    if not values:
        raise BadInput(f"the form lacks {name!r}")
    return values[0]


def fields_of(request: Request, name: str) -> list[str]:
    """Return all fields of that name."""
    values: list[str] = request.scope["cqueue.form"].get(name, [])
    return values


def go(request: Request, *parts: str, **query: str) -> Response:
    """Go on to another page: after a change to one that shows it, so that a reload changes nothing again."""
    return RedirectResponse(url_of(request.scope.get("root_path", ""), *parts, **query), 303)


def url_of(base: str, *parts: str, **query: Any) -> str:
    """Return an address under the dashboard's prefix; parts may hold any character."""
    path = "/".join(quote(part, safe="") for part in parts)
    given = {name: value for name, value in query.items() if value not in {None, ""}}
    return f"{base}/{path}" + (f"?{urlencode(given)}" if given else "")


def _again(request: Request, changes: dict[str, Any]) -> str:
    """Return the address of this page with some of its parameters changed."""
    query = {**request.query_params, **changes, "told": None}
    return "?" + urlencode({name: value for name, value in query.items() if value not in {None, ""}})


def _here(request: Request) -> str:
    """Return where somebody wanted to go before signing in; `login` goes to no other site."""
    root = request.scope.get("root_path", "")
    return request.scope["path"].removeprefix(root) if request.method == "GET" else "/"
