"""Open pages are sent what has changed: what a stream sends, when it ends, and who gets one."""

import asyncio
import json
from contextlib import asynccontextmanager
from urllib.parse import urlencode

import anyio
import pytest

pytest.importorskip("starlette", reason="the dashboard needs the extra `web`")

from structlog.testing import CapturingLogger

from cqueue.web import ANYTHING, Access, Token, application, live_page, streams
from cqueue.web.guard import COOKIE
from cqueue.web.site import Site
from cqueue.web.streams import BEAT_S, CUT_S, LIFE_S, Streams
from tests.web.markup import live_parts

SECRET = "ada-0123456789abcdef"
PART = '<div id="a" data-live>{}</div><div id="b" data-live><div>{}</div></div>'


# ── What is sent, on a clock that the test moves ──


class World:
    """A clock, and a page that the test changes. `told`: what was sent, and when."""

    def __init__(self):
        self.now_s, self.page, self.looks = 100.0, PART.format("1", "2"), 0
        self.streams = Streams(3, sleep=self._sleep, time_s=lambda: self.now_s)
        self.changes, self.told = {}, []

    async def _sleep(self, seconds):
        self.now_s += seconds

    async def _look(self):
        self.looks += 1
        self.page = self.changes.get(self.now_s - 100, self.page)
        return self.page

    def run(self):
        """Read the stream until it ends."""

        async def read():
            async for event in self.streams.events(self._look):
                assert event.startswith("data: ")
                assert event.endswith("\n\n")
                assert event.count("\n") == 2
                self.told.append((self.now_s - 100, json.loads(event.removeprefix("data: "))))

        asyncio.run(read())
        return self.told


@pytest.fixture
def world():
    return World()


def test_only_parts_that_have_changed_are_sent(world):
    world.changes = {6: PART.format("1", "two\nlines"), 9: PART.format("3", "two\nlines"), 12: None}
    assert world.run() == [
        (0, {"a": "1", "b": "<div>2</div>"}),
        (6, {"b": "<div>two\nlines</div>"}),
        (9, {"a": "3"}),
    ]


def test_a_stream_of_which_nothing_changes_says_so_and_ends_after_a_minute(world):
    told = world.run()
    assert told == [(0, {"a": "1", "b": "<div>2</div>"}), *((at, {}) for at in (15, 30, 45))]
    assert BEAT_S == 15
    assert world.looks == LIFE_S / 3


def test_a_part_that_comes_back_as_it_was_is_sent_again(world):
    world.changes = {3: PART.format("2", "2"), 6: PART.format("1", "2"), 9: None}
    assert world.run()[1:] == [(3, {"a": "2"}), (6, {"a": "1"})]


def test_a_dashboard_that_ends_waits_for_no_stream(world):
    world.changes = {6: PART.format("stop", "2")}
    sleep = world.streams._sleep

    async def stopping(seconds):
        if "stop" in world.page:
            world.streams.stop()
        await sleep(seconds)

    world.streams._sleep = stopping
    world.run()
    assert world.now_s - 100 <= 6 + 2 * streams.STEP_S


# ── Over HTTP ──


class Viewer:
    """A browser's stream, without a network: `events` come, `leave()` ends the connection."""

    def __init__(self, app, of, cookie="", path="/live", method="GET"):
        self._app, self._gone, self.status, self.events = app, asyncio.Event(), None, asyncio.Queue()
        self._scope = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1",
            "method": method, "scheme": "http", "path": path, "raw_path": path.encode(),
            "query_string": urlencode({"of": of}).encode(), "root_path": "", "client": ("127.0.0.1", 5),
            "server": ("localhost", 80), "headers": [(b"host", b"localhost"), (b"cookie", cookie.encode())],
        }  # fmt: skip

    async def run(self):
        await self._app(self._scope, self._receive, self._send)

    async def _receive(self):
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message):
        self.status = message.get("status", self.status)
        self.is_whole = message["type"] == "http.response.body" and not message.get("more_body", False)
        if body := message.get("body"):
            await self.events.put(body.decode())

    def leave(self):
        self._gone.set()

    async def told(self):
        """The parts of the next event."""
        return json.loads((await asyncio.wait_for(self.events.get(), 20)).removeprefix("data: "))


class Waits:
    """In place of a sleep: streams wait until the test lets them go on."""

    def __init__(self):
        self._go_on = asyncio.Event()

    async def __call__(self, _seconds):
        await self._go_on.wait()
        await asyncio.sleep(0)  # lets others run, as any sleep does; without it a stream would keep the loop

    def let_go(self):
        self._go_on.set()


@asynccontextmanager
async def watching(app, *viewers):
    """Let viewers' streams run; they have ended at the end of the block."""
    app.state.site.streams._sleep = waits = Waits()
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        for viewer in viewers:
            tasks.create_task(viewer.run())
        yield waits
        waits.let_go()


@pytest.fixture
def made(shop, browse):
    """The dashboard as an application, which the fixture `browse` closes."""

    def made(access=None):
        app = application(shop.client, access=access or Access(roles=ANYTHING))
        browse(app=app)
        return app

    return made


def test_a_viewer_gets_the_parts_of_the_page_and_leaves_no_stream_behind(made, browse):
    app = made()
    page = browse(app=app).get("/queue/mails?span=1h")

    async def watch():
        viewer = Viewer(app, "/queue/mails?span=1h")
        async with watching(app, viewer):
            told = await viewer.told()
            assert viewer.status == 200
            assert app.state.site.streams._open == 1
            viewer.leave()
        assert app.state.site.streams._open == 0
        return told

    told = asyncio.run(watch())
    assert told.keys() == live_parts(page.text).keys()
    assert "The last hour" in told["live-history"]


def test_a_pause_by_somebody_else_comes(made, browse):
    app = made()
    web = browse(app=app)

    async def watch():
        viewer = Viewer(app, "/queue/mails")
        async with watching(app, viewer) as waits:
            first = await viewer.told()
            await asyncio.to_thread(web.post, "/queue/mails", data={"do": "pause"})
            waits.let_go()
            second = await viewer.told()
            while "live-state" not in second:
                second = await viewer.told()
            viewer.leave()
        return first["live-state"], second["live-state"]

    before, after = asyncio.run(watch())
    assert (">Pause<" in before, ">Resume<" in after) == (True, True)


def test_who_signs_out_gets_nothing_more(made, browse):
    app = made(Access(tokens=(Token("ada", SECRET),)))
    web = browse(app=app)
    web.post("/login", data={"token": SECRET, "next": "/"})

    async def watch():
        viewer = Viewer(app, "/", f"{COOKIE}={web.cookies[COOKIE]}")
        stranger = Viewer(app, "/", f"{COOKIE}=x")
        async with watching(app, viewer, stranger):
            await viewer.told()
            await asyncio.to_thread(web.post, "/logout")
        assert "mails" not in await stranger.events.get()
        return stranger.status, [await viewer.events.get() for _ in range(viewer.events.qsize())]

    assert asyncio.run(watch()) == (401, [])


def test_waiting_streams_hold_no_thread_and_have_a_bound(made, monkeypatch):
    monkeypatch.setattr(streams, "MOST", 9)
    app = made()

    async def watch():
        viewers = [Viewer(app, "/") for _ in range(9)]
        async with watching(app, *viewers):
            for viewer in viewers:
                await viewer.told()
            assert anyio.to_thread.current_default_thread_limiter().borrowed_tokens == 0
            late = Viewer(app, "/")
            await late.run()
            for viewer in viewers:
                viewer.leave()
        again = Viewer(app, "/")
        async with watching(app, again):
            await again.told()
            again.leave()
        return late.status, again.status

    assert asyncio.run(watch()) == (503, 200)


@pytest.mark.parametrize("of", ["", "/live", "/live?of=/", "https://evil.example/", "queue/mails", "/%6Cive"])
def test_only_a_page_of_the_dashboard_is_streamed(made, browse, of):
    assert browse(app=made()).get("/live", params={"of": of}).status_code == 400


def test_a_stream_works_under_a_prefix(made):
    from starlette.applications import Starlette
    from starlette.routing import Mount

    inner = made()
    outer = Starlette(routes=[Mount("/ops", app=inner)])
    outer.state.site = inner.state.site

    async def watch():
        viewer = Viewer(outer, "/ops/queue/mails", path="/ops/live")
        outside = Viewer(outer, "/queue/mails", path="/ops/live")
        async with watching(outer, viewer, outside):
            told = await viewer.told()
            viewer.leave()
        return told, outside.status

    told, refused = asyncio.run(watch())
    assert 'action="/ops/queue/mails"' in told["live-state"]
    assert refused == 400


class StalledViewer(Viewer):
    """A browser that keeps its connection and takes nothing: a minute passes as soon as something is sent."""

    async def _send(self, message):
        self.status = message.get("status", self.status)
        if message.get("body"):
            loop = asyncio.get_running_loop()
            time_s = loop.time
            loop.time = lambda: time_s() + CUT_S + 1
            await self._gone.wait()


def test_a_reader_that_takes_nothing_holds_no_stream(made):
    app = made()

    async def watch():
        viewer = StalledViewer(app, "/queue/mails")
        async with asyncio.timeout(CUT_S + 20):
            await viewer.run()
        return viewer.status, app.state.site.streams._open

    assert asyncio.run(watch()) == (200, 0)


def test_who_asks_for_the_head_of_a_stream_holds_none(made):
    app = made()

    async def watch():
        viewer = Viewer(app, "/queue/mails", method="HEAD")
        async with watching(app, viewer):
            pass  # nobody leaves: the answer ends by itself
        return viewer.status, viewer.events.qsize()

    assert asyncio.run(watch()) == (200, 0)


def test_a_page_that_cannot_be_made_ends_its_stream_in_order_and_is_logged(made, monkeypatch):
    app, lines = made(), CapturingLogger()
    monkeypatch.setattr(live_page, "logger", lambda _name: lines)

    async def watch():
        viewer = Viewer(app, "/queue/mails")
        async with watching(app, viewer) as waits:
            await viewer.told()
            monkeypatch.setattr(Site, "page", lambda *_, **__: 1 // 0)
            waits.let_go()
        return viewer.is_whole

    assert asyncio.run(watch())
    (line,) = lines.calls
    assert line.args == ("dashboard_read_failed",)
    assert line.kwargs["error"] == "ZeroDivisionError"


def test_a_page_that_is_gone_ends_its_stream(made):
    app = made()

    async def watch():
        viewer = Viewer(app, "/queue/none")
        async with watching(app, viewer):
            pass
        return viewer.status, viewer.events.qsize()

    assert asyncio.run(watch()) == (200, 0)
