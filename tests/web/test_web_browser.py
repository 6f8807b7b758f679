"""The dashboard in a real Chromium: every page, every action, with mouse and keyboard, wide and narrow.

Nothing may be refused by the policy of the pages, and an open page has to follow what others do.
"""

import json
import re
import time
from contextlib import ExitStack
from datetime import timedelta

import pytest

pytest.importorskip("starlette", reason="the dashboard needs the extra `web`")
pytest.importorskip("uvicorn", reason="the dashboard needs the extra `web`")

import cqueue
from cqueue.errors import Unavailable
from cqueue.message import short
from tests.web.browser import CHROMIUM, Browser, serving
from tests.web.browser_flaws import flaws

pytestmark = [
    pytest.mark.slow,
    pytest.mark.acceptance,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here: apt-get install chromium"),
]
PASSWORD = "correct horse battery"
ROWS = "[...document.querySelectorAll('main table.list tbody th')].map((one) => one.innerText)"


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture
def site(shop, monkeypatch):
    """Make a dashboard whose answers are old at each look: `site(access)` gives its application."""
    from cqueue.web import ANYTHING, Access, application, shared

    monkeypatch.setattr(shared, "FRESH_S", 0.0)
    monkeypatch.setattr(shared, "DUTY", 0)

    def site(access=None):
        app = application(shop.client, access=access or Access(roles=ANYTHING))
        app.state.site.history.start = lambda: None  # only tests count minutes
        return app

    return site


@pytest.fixture
def look(chromium, site):
    """Open a page of a dashboard; at the end no page may have complained of anything."""
    with ExitStack() as servers:
        pages, addresses = [], {}

        def look(path="/", *, app=None, **how):
            key = id(app)
            if key not in addresses:
                addresses[key] = servers.enter_context(serving(app or site()))
            page = chromium.open(**how)
            page.address = addresses[key]
            pages.append(page)
            page.go(page.address + path)
            return page

        look.stop = servers.close
        yield look
        for page in pages:
            page.close()
    assert [complaint for page in pages for complaint in page.complaints] == []


@pytest.fixture
def quick(monkeypatch):
    """Open pages look five times a second."""
    from cqueue.web import site

    monkeypatch.setattr(site, "REFRESH_S", 0.2)


# ── Every page ──


@pytest.fixture
def everything(shop, site, settled, told):
    """A dashboard that has something on every page, and the addresses of all pages by name."""
    from cqueue.dispatcher.service.membership import TTL_S, Worker
    from cqueue.store.control import Heartbeat

    app = site()
    now_s = shop.client._driver.clock.now_us() / 1e6
    served = ("mails", "idle", "told", f"shop.{'analytics_events_of_the_mobile_application' * 2}")
    host = "orders-dispatcher-7c9d8b6f5-x2x9k.shop.svc.cluster.local"
    task = "reports.monthly.render_the_statement_of_one_customer"
    queue = shop.client.queue("mails")
    queue.send_many([cqueue.Message(b"x", task=task)])
    with queue.consumer() as consumer:
        for message in consumer.receive(10, wait=timedelta(seconds=10)):
            if message.task == task:
                message.dead("TemplateNotFound: " + "a long reason " * 20)
    worker = Worker("w", host, 7, "shop:app", served, 8, "1", now_s, "running", seen=now_s)
    shop.client._driver.ask(Heartbeat(worker.row(), TTL_S))
    for minute in (3, 2):
        app.state.site.history.count(int(time.time()) // 60 * 60 - 60 * minute)
    with app.state.site.trail.action("ada", "::1", "pause_queue"):
        pass
    settled()
    return app, {
        "queues": "/", "queue": "/queue/mails?span=1h", "empty queue": "/queue/idle",
        "some messages": "/queue/mails?state=delayed", "wide rows": "/queue/mails?rows=1",
        "message": f"/queue/mails/message/{shop.message}", "history": f"/queue/told/message/{told}",
        "letters": "/queue/mails/dead", "letter": f"/queue/mails/dead/{shop.letters[0]}",
        "schedules": "/schedules", "workers": "/workers", "logs": "/logs", "log": "/log/orders",
        "audit": "/audit", "trouble": "/queue/none",
    }  # fmt: skip


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 320])
def test_every_page_can_be_read_fits_the_window_and_names_its_controls(look, everything, width, dark):
    app, pages = everything
    page = look(app=app, width=width, dark=dark)
    found = {}
    for name, path in pages.items():
        page.go(page.address + path)
        found[name] = flaws(page)
    assert page.forgive("status of 404") <= 1  # of the page that says so
    page.go(page.address + pages["message"])
    page.follow("button", "Show the body")
    found["body"] = flaws(page)
    page.go(page.address + pages["letters"])
    page.click("checkbox", re.compile("Letter"))
    page.follow("button", re.compile("Redrive"))
    found["what would be done"] = flaws(page)
    page.follow("button", "Redrive 1 letter")
    found["what was done"] = flaws(page)
    assert {name: some for name, some in found.items() if some} == {}


def test_flaws_are_found(look):
    """The checks of the test above are none that cannot fail."""
    page = look("/queue/mails")
    page.js("""
        document.querySelector("h1").style.color = "#ccc";
        document.querySelector("main").append(document.createElement("button"));
        document.querySelector("h2").style.marginLeft = "5000px";
        document.querySelector("#find").style = "width: 3em; flex: none";
        document.querySelector("main .below").style = "width: 1em; overflow-wrap: anywhere";
    """)
    said = " | ".join(flaws(page))
    assert "a button has no" in said
    for part in (
        "has a contrast of 1.",
        "pixels wide, on 1280",
        "outside the window",
        "is broken into",
        "cut off",
    ):
        assert part in said


def test_pages_work_without_scripts(look, shop):
    """Only that they follow the queue takes one."""
    page = look("/queue/mails", scripts=False)
    page.follow("button", "Pause")
    assert shop.client.queue("mails").paused
    page.follow("button", "Resume")
    assert not shop.client.queue("mails").paused


# ── Every action ──


def test_signing_in_and_out(look, site):
    """Somebody gets to the page that was asked for, and no further than to the door without a password."""
    from cqueue.web import Access
    from cqueue.web.access import Password, hashed

    page = look("/queue/mails", app=site(Access(passwords=(Password("ada", hashed(PASSWORD)),))), width=400)
    assert "mails" not in page.text
    page.fill("textbox", "Name", "ada")
    page.fill("textbox", "Password", "wrong horse")
    page.follow("button", "Sign in")
    assert "That is not" in page.text
    page.fill("textbox", "Name", "ada")
    page.fill("textbox", "Password", PASSWORD)
    page.follow("button", "Sign in")
    assert page.js("location.pathname") == "/queue/mails"
    assert page.js("document.cookie") == ""  # no script reads it
    assert flaws(page) == []  # its head has a field and a button more than without a password
    assert "ada" in page.js("document.querySelector('.who').textContent")
    page.follow("button", "Sign out")
    assert "Password" in page.text
    page.go(page.address + "/queue/mails")
    assert "ConnectionRefused" not in page.text
    page.forgive("status of 401")


def test_queues_are_searched_sorted_chosen_and_leafed_through(look, shop):
    for number in range(100):
        shop.client.create_queue(f"jobs-{number:02}")
    page = look("/")
    assert page.js(ROWS)[0] == "idle"
    page.follow("link", "Next")
    assert page.js(ROWS) == ["jobs-99", "mails"]
    page.follow("link", "Depth")
    assert page.js(ROWS)[0] == "mails"
    page.fill("searchbox", "Name contains", "MAI")
    with page.new_page():
        page.press("Enter")
    assert page.js(ROWS) == ["mails"]
    page.focus("combobox", re.compile("Show"))
    page.press("p")
    page.follow("button", "Show")
    assert "No queue fits" in page.text
    page.follow("link", "Show all")
    assert len(page.js(ROWS)) == 100


def test_a_queue_is_paused_and_goes_on(look, shop):
    page = look("/")
    page.follow("link", "mails")
    page.follow("button", "Pause")
    assert shop.client.queue("mails").paused
    assert "The queue is paused" in page.text
    page.follow("button", "Resume")
    assert not shop.client.queue("mails").paused


def test_messages_are_listed_by_state_and_wide_rows_on_demand(look, shop):
    page = look("/queue/mails")
    assert short(shop.message) in page.js(ROWS)
    page.follow("link", "delayed")
    delayed = {
        short(message.id) for message in shop.client.queue("mails").peek(10) if message.state == "delayed"
    }
    assert delayed
    assert {row for row in page.js(ROWS) if row in delayed} == delayed
    assert short(shop.message) not in page.js(ROWS)
    page.follow("link", "show the oldest")
    assert "Last claim" in page.text


def test_a_message_is_found_and_its_body_shown(look, shop):
    page = look("/queue/mails")
    page.follow("link", short(shop.message))
    assert "acme" in page.text
    assert "4111" not in page.text
    page.follow("button", "Show the body")
    assert "4111" in page.text
    page.fill("searchbox", "Find a message by its id", shop.letters[0])
    with page.new_page():
        page.press("Enter")
    assert page.js("location.pathname") == f"/queue/mails/dead/{shop.letters[0]}"


def test_letters_are_filtered_grouped_and_sent_back(look, shop):
    page = look("/queue/mails/dead")
    page.fill("searchbox", "Reason contains", "timeout")
    with page.new_page():
        page.press("Enter")
    assert len(_ticks(page)) == 1
    page.follow("link", "Show all")
    page.follow("link", re.compile("ConnectionRefused"))
    assert len(_ticks(page)) == 4
    page.click("checkbox", _ticks(page)[1])
    page.follow("button", re.compile("Redrive"))
    assert "1 letter would be sent back" in page.text
    assert len(list(shop.client.queue("mails").dead_letters)) == 5
    page.follow("link", re.compile("Back"))
    assert len(_ticks(page)) == 4
    page.click("radio", re.compile("all 4"))
    page.follow("button", re.compile("Redrive"))
    page.follow("button", "Redrive 4 letters")
    assert "4 letters sent back" in page.text
    assert [letter.task for letter in shop.client.queue("mails").dead_letters] == ["ping"]


def test_all_letters_are_ticked_and_dropped(look, shop):
    page = look("/queue/mails/dead")
    page.click("checkbox", re.compile("(?i)tick all"))
    page.follow("button", re.compile("Drop"))
    assert "5 letters of mails would be deleted" in page.text
    page.follow("button", "Drop 5 letters")
    assert "5 letters dropped" in page.text
    assert not list(shop.client.queue("mails").dead_letters)


def _ticks(page):
    return [name for name in page.names("checkbox") if name.startswith("Letter ")]


def test_a_letter_is_read_and_sent_back(look, shop):
    page = look("/queue/mails/dead")
    page.follow("link", short(shop.letters[0]))
    assert re.search("no route|<script>alert", page.text)
    page.follow("button", "Show the body")
    page.follow("button", re.compile("Redrive"))
    page.follow("button", "Redrive 1 letter")
    assert shop.letters[0] not in {str(letter.id) for letter in shop.client.queue("mails").dead_letters}
    page.follow("link", "To mails")
    assert page.js("location.pathname") == "/queue/mails"


def test_a_schedule_is_paused_resumed_and_fired(look, shop):
    schedules = shop.client.queue("mails").schedules
    page = look("/schedules")
    page.follow("button", "Pause")
    assert schedules.get("digest/daily").state == "paused"
    page.follow("button", "Resume")
    assert schedules.get("digest/daily").state == "active"
    before = shop.client.queue("mails").stats(exact=True).live
    page.follow("button", "Run now")
    assert "The schedule has fired" in page.text
    assert shop.client.queue("mails").stats(exact=True).live == before + 1


def test_a_subscription_is_paused_and_goes_on(look):
    page = look("/logs")
    page.follow("link", "orders")
    page.follow("button", "Pause")
    assert "billing paused" in page.text
    page.follow("button", "Resume")
    assert "billing active" in page.text


def test_what_was_done_stands_on_the_audit_page(look, settled):
    page = look("/queue/mails")
    page.follow("button", "Pause")
    settled()
    page.follow("link", "Audit")
    assert re.search(r"pause queue local 127\.0\.0\.1 .* done queue mails", page.text)


def test_a_page_that_is_not_there_says_so(look):
    page = look("/queue/none")
    assert "Not there (any more)" in page.text
    page.follow("link", "To the queues")
    assert "mails" in page.js(ROWS)
    page.forgive("status of 404")


# ── The keyboard alone ──


def test_the_keyboard_reaches_everything_and_shows_where_it_is(look, shop):
    """The first Tab offers to skip the navigation; a queue is opened and paused without a mouse."""
    page = look("/")
    page.press("Tab")
    assert _focused(page).startswith("Skip to the content")
    page.press("Enter")
    _tab_to(page, "mails")
    with page.new_page():
        page.press("Enter")
    assert page.js("location.pathname") == "/queue/mails"
    _tab_to(page, "Pause")
    with page.new_page():
        page.press("Space")
    assert shop.client.queue("mails").paused


def _tab_to(page, text, most=30):
    """Press Tab until the element with this text has the focus; each one on the way is seen to have it."""
    for _ in range(most):
        page.press("Tab")
        if (seen := _focused(page)) == text:
            return
    raise AssertionError(f"{most} times Tab, and no {text}, but {seen}")


def _focused(page):
    """The text of what has the focus, which stands inside the window and has an outline."""
    text, shown, outline = page.js("""(() => {
        const one = document.activeElement, box = one.getBoundingClientRect(), style = getComputedStyle(one);
        const inside = box.left >= 0 && box.right <= innerWidth && box.top >= 0 && box.bottom <= innerHeight;
        return [one.innerText.trim(), inside, style.outlineStyle];
    })()""")
    assert shown, f"{text!r} has the focus outside the window"
    assert outline != "none", f"{text!r} has the focus, and does not show it"
    return text


# ── Open pages ──


@pytest.mark.usefixtures("quick")
def test_an_open_page_shows_messages_as_they_come(look, shop):
    page = look("/queue/mails")
    page.js("window.same = true")
    queue = shop.client.queue("mails")
    for _ in range(2):
        queue.send(b"another")
        page.until(f"Ready {queue.stats().ready} ")
    assert page.js("window.same"), "it was loaded anew"


@pytest.mark.usefixtures("quick")
def test_an_open_page_shows_the_first_queue_message_and_letter_as_they_come(look):
    """Also what it had no place for when it was opened."""
    from cqueue.web import Access, application

    with cqueue.connect("memory://") as client:
        app = application(client, access=Access())
        app.state.site.history.start = lambda: None
        empty, inside = look("/", app=app), look("/schedules", app=app)
        queue = client.create_queue("first")
        empty.until("first")
        queue.schedules.add("tick", cqueue.Repeating(timedelta(hours=1)), task="tick")
        inside.until("tick")
        page = look("/queue/first", app=app)
        queue.send_many([cqueue.Message(b"1", task="pay")])
        page.until(" pay ")
        with queue.consumer() as consumer:
            (message,) = consumer.receive(1, wait=timedelta(seconds=10))
            message.dead("Overdrawn: 5")
        page.until("Overdrawn")


@pytest.mark.usefixtures("quick")
def test_an_open_page_shows_that_somebody_else_has_paused_the_queue(look, shop):
    page = look("/queue/mails")
    shop.client.queue("mails").pause()
    page.until("mails paused")
    page.follow("button", "Resume")
    assert not shop.client.queue("mails").paused


@pytest.mark.usefixtures("quick")
def test_what_was_done_just_now_is_not_said_for_ever(look, shop):
    """Somebody else may undo it, and a page stays open for hours; nor does a reload say it again."""
    page = look("/queue/mails")
    page.follow("button", "Pause")
    assert page.js("location.search") == ""
    page.js("""new Promise((done) => {
        const told = document.getElementById("told");
        const look = () => getComputedStyle(told).visibility === "hidden" && done(true);
        new MutationObserver(look).observe(document, { subtree: true, attributes: true });
        look();
    })""")
    shop.client.queue("mails").resume()
    page.until("mails active")
    assert "The queue is paused" not in page.text


@pytest.mark.usefixtures("quick")
def test_updates_leave_alone_what_somebody_has_opened(look, shop, settled):
    settled()
    page = look("/log/orders")
    assert "1 record behind" in page.text
    page.js("document.querySelector('details').open = true")
    for number in (2, 3):
        shop.client.log("orders").append("orders", b"1")
        settled()
        page.until(f"{number} records behind")
    assert page.js("document.querySelector('details').open")


@pytest.mark.usefixtures("quick")
def test_updates_can_be_held(look, shop):
    page = look("/queue/mails")
    page.click("button", "Pause updates")
    queue = shop.client.queue("mails")
    before = queue.stats().ready
    queue.send(b"another")
    page.js("new Promise((done) => setTimeout(done, 1000))")  # five times as long as between two looks
    assert f"Ready {before} " in page.text
    page.click("button", "Go on with updates")
    page.until(f"Ready {before + 1} ")


@pytest.mark.usefixtures("quick")
def test_a_page_that_nobody_sees_asks_nothing(look, shop):
    """Once somebody sees it again, it shows at once what is so now."""
    page = look("/queue/mails")
    page.js("""
        Object.defineProperty(document, "hidden", { get: () => window.isCovered, configurable: true });
        window.cover = (is) => {
            window.isCovered = is;
            document.dispatchEvent(new Event("visibilitychange"));
        };
        cover(true);
        const ask = window.fetch;
        window.asked = 0;
        window.fetch = (...given) => { window.asked += 1; return ask(...given); };
        new Promise((done) => setTimeout(done, 1000));  // five times as long as between two looks
    """)
    assert page.js("asked") == 0
    shop.client.queue("mails").pause()
    page.js("cover(false)")
    page.until("mails paused")
    assert page.js("asked") > 0


@pytest.mark.usefixtures("quick")
def test_an_open_page_says_that_the_dashboard_is_away(look):
    page = look("/queue/mails")
    look.stop()
    page.until("Not up to date")
    assert "mails" in page.text
    assert page.forgive("ERR_") > 0


@pytest.mark.usefixtures("quick")
def test_an_open_page_says_that_its_queue_was_deleted(look, shop):
    page = look("/queue/idle")
    shop.client.delete_queue("idle")
    page.until("there is no queue 'idle'")
    assert "Not up to date" in page.text
    assert page.forgive("status of 404") > 0


@pytest.mark.usefixtures("quick")
def test_an_open_page_says_that_its_viewer_is_signed_out_and_asks_no_more(look):
    page = look("/queue/mails")
    page.js("""
        window.asked = 0;
        window.fetch = async () => { window.asked += 1; return new Response("", { status: 401 }); };
        true
    """)
    page.until("You are signed out")
    page.js("new Promise((done) => setTimeout(done, 1000))")  # five times as long as between two looks
    assert page.js("asked") == 1


@pytest.mark.usefixtures("quick")
def test_a_late_answer_replaces_no_newer_one(look, shop):
    """Somebody looked away and back meanwhile, so the page asked again."""
    page = look("/queue/mails")
    page.js("""
        const ask = window.fetch;
        window.late = [];
        window.fetch = async (...given) => {
            if (window.late.length) return ask(...given);
            const answer = await ask(...given);
            return new Promise((done, fail) => {
                given[1].signal.addEventListener("abort", () => fail(given[1].signal.reason));
                window.late.push(() => done(answer));
            });
        };
        new Promise((done) => {
            const look = () => (window.late.length ? done(true) : setTimeout(look, 20));
            look();
        });
    """)
    shop.client.queue("mails").pause()
    page.js("document.dispatchEvent(new Event('visibilitychange')); true")
    page.until("mails paused")
    page.js("late[0](); new Promise((done) => setTimeout(done, 100))")
    assert "paused" in page.text


@pytest.mark.usefixtures("quick")
def test_a_page_that_could_not_be_shown_comes_once_cassandra_answers(look, monkeypatch):
    real, away = cqueue.Client.queues, [1]

    def queues(client):
        if away:
            raise Unavailable("no node answers")
        return real(client)

    monkeypatch.setattr(cqueue.Client, "queues", queues)
    page = look("/?sort=depth")
    page.until("Tries again")
    assert "no node answers" in page.text
    with page.new_page():
        away.clear()
    assert page.js(ROWS) == ["mails", "idle"]
    assert page.forgive("status of 503") > 0


@pytest.mark.usefixtures("quick")
def test_the_history_of_an_open_page_is_drawn_and_goes_on(look, site, shop, settled):
    """Charts by the page's own styles, with no script; a minute counted meanwhile is drawn as well."""
    app, now_s = site(), int(time.time()) // 60 * 60
    history, shared = app.state.site.history, app.state.site.shared
    for minute in (3, 2):
        shop.client.queue("mails").send(b"one more")
        history.count(now_s - 60 * minute)
    settled()
    page = look("/queue/mails?span=1h", app=app)
    assert page.js("[...document.querySelectorAll('path.line')].some((one) => one.getBBox().width > 0)")
    page.js("document.querySelector('details.values').open = true")
    assert len(_times(page.text)) == 2
    history.count(now_s - 60)
    settled()
    shared.forget(("history", "mails", "1h"))
    page.until(time.strftime("%a %H:%M", time.gmtime(now_s - 60)))
    assert len(_times(page.text)) == 3


def _times(text):
    """Times of the table below the charts."""
    return re.findall(r"[A-Z][a-z]{2} \d\d:\d\d", text)


@pytest.mark.usefixtures("quick")
def test_an_open_audit_page_follows_what_others_do(look, site, shop, settled):
    """And shows names and reasons as text, whatever stands in them."""
    evil = '<img src="http://127.0.0.1:1/x" onerror="document.title=1">'
    action = {"who": evil, "action": "drop_letters", "outcome": "begun", "ids": [evil]}
    app = site()
    log = app.state.site.trail
    with log.action("ada", "::1", "pause_queue", queue="mails"):
        pass
    shop.client.log("cqueue.audit").append("x", json.dumps(action).encode())
    settled()
    page = look("/audit", app=app)
    assert len(page.js(ROWS)) == 2
    assert page.text.count(evil) == 2
    assert page.js("document.querySelectorAll('main img').length") == 0
    with log.action("ada", "::1", "resume_queue", queue="mails"):
        pass
    settled()
    page.until("resume queue")
