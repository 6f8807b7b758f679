"""Every page with data: its HTML suits a screen reader, a narrow screen and the security policy."""

import re

import pytest

import cqueue
from tests.web.markup import Markup

pytest.importorskip("starlette", reason="the dashboard needs the extra `web`")

from cqueue.web import ANYTHING, Access, Password, Token, application, hashed

SECRET = "ada-0123456789abcdef"
TOKENS = (Token("ada", SECRET, ANYTHING),)
PEOPLE = Access(tokens=TOKENS, passwords=(Password("bob", hashed("correct horse")),))
NOT_PAGES = {"/livez", "/readyz"}


@pytest.fixture
def visit(browse, shop, told, settled):
    """Yield the pages: `visit()` gives pairs of an address and the page there, all with data."""
    shop.beat()
    web = browse()
    counts = web.app.state.site.history
    counts.count(60 * (counts_now(shop) - 2))
    counts.count(60 * (counts_now(shop) - 1))
    web.post("/queue/mails", data={"do": "pause"})
    settled()
    web.app.state.site.shared.forget("actions")
    message, letter = f"/queue/mails/message/{shop.message}", f"/queue/mails/dead/{shop.letters[0]}"
    gets = [
        "/", "/?q=nothing", "/queue/mails", "/queue/idle", "/queue/mails?state=all&rows=1",
        "/queue/mails?state=expired", "/queue/mails?state=nonsense", "/queue/idle?rows=1", message,
        f"/queue/told/message/{told}",
        "/queue/mails/dead", "/queue/mails/dead?reason=refused", "/queue/idle/dead", letter, "/schedules",
        "/workers", "/audit", "/logs", "/log/orders", "/none", "/queue/none",
        f"/message?id={shop.message}",
    ]  # fmt: skip
    look = {"operation": "drop", "step": "look", "which": "all"}
    posts = [
        (message, {}), (letter, {}), ("/queue/mails/dead", look), ("/queue/mails", {"do": "burn"}),
        ("/queue/mails/dead", look | {"step": "do", "id": shop.letters[-1]}),
    ]  # fmt: skip
    strangers = [browse(PEOPLE), browse(Access(tokens=TOKENS))]

    def visit():
        for path in gets:
            yield path, web.get(path)
        for path, form in posts:
            yield f"POST {path}", web.post(path, data=form)
        for stranger in strangers:
            yield "/login", stranger.get("/login")
            yield "/login", stranger.post("/login", data={"token": "wrong", "next": "/"})
        strangers[0].post("/login", data={"token": SECRET, "next": "/"})
        yield "/", strangers[0].get("/")
        reader = browse(Access(roles=frozenset()))
        for path in gets:
            yield f"{path} of a reader", reader.get(path)

    with cqueue.connect("memory://") as nothing:
        empty = browse(app=application(nothing, access=Access()))
        yield lambda: [
            *visit(),
            *((path, empty.get(path)) for path in ("/", "/schedules", "/workers", "/audit", "/logs")),
        ]


def counts_now(shop):
    """The cluster's minute."""
    return int(shop.client._driver.clock.now_us() / 60e6)


def test_every_page_suits_screen_readers_narrow_screens_and_the_policy(visit, browse):
    pages = visit()
    found = {path: Markup(page.text).complaints for path, page in pages}
    assert not {path: said for path, said in found.items() if said}
    _are_all(pages, browse().app)


def _are_all(pages, app):
    """A page that is added has to be visited as well."""
    patterns = {
        route.path: route.path_regex
        for route in app.routes
        if "GET" in (getattr(route, "methods", None) or ()) and route.path not in NOT_PAGES
    }
    visited = [path.partition("?")[0] for path, _ in pages]
    assert not [path for path, fits in patterns.items() if not any(map(fits.match, visited))]


GOOD = """<!doctype html><html lang="en"><head><title>Queues</title></head><body><h1>Queues</h1>
<form method="post" action="/queue/x"><input type="hidden" name="do" value="x"><button>Pause</button></form>
<label>Name <input name="q"></label><label for="id">Id</label><input id="id">
<input type="checkbox" aria-label="Tick all">
<table class="list"><caption>Queues</caption><tr><th scope="col">Name</th></tr>
<tr><td data-label="Name">x</td></tr></table></body></html>"""


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("<button>", '<button onclick="x()">', "an event handler: onclick"),
        ("<h1>", "<h1 oNmouseover = x>", "an event handler: onmouseover"),
        ("<h1>", "<script>x()</script><h1>", "an inline script"),
        ("<h1>", '<script src="https://x/"></script><h1>', "an inline script"),
        ("<h1>", '<a href=" JavaScript:x()">x</a><h1>', "a script in href"),
        ("<h1>", "<style>p {}</style><h1>", "an inline style"),
        ("<h1>", '<h1 style="color: red">', "an inline style"),
        ("<h1>Queues</h1>", "", "0 main headings"),
        ("<h1>", "<h1>x</h1><h1>", "2 main headings"),
        ("<title>Queues", "<title> · cqueue", "no title"),
        (' lang="en"', "", "no language"),
        ('action="/queue/x"', 'action="https://evil.example/"', "a form that is sent to https"),
        ('action="/queue/x"', 'action="//evil.example/"', "a form that is sent to //"),
        ("<label>Name <input", "Name <input", "a field without a label"),
        ('for="id"', 'for="other"', "a field without a label"),
        (' aria-label="Tick all"', "", "a field without a label"),
        (' scope="col"', "", "a head without a scope"),
        (' data-label="Name"', "", "a cell without a label"),
        ("<caption>Queues</caption>", "", "a table without a caption"),
        ("<h1>", '<p id="id">x</p><h1>', "two elements with the id id"),
        ("</h1>", "", "</body> closes h1"),
    ],
)
def test_what_is_wrong_is_found(old, new, complaint):
    assert not Markup(GOOD).complaints
    assert re.search(re.escape(complaint), str(Markup(GOOD.replace(old, new, 1)).complaints))
