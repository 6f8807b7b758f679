"""The dashboard in a real Chromium: nothing is refused by the policy, and an open page follows the queue."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import time
from threading import Thread

import pytest

pytest.importorskip("starlette", reason="the dashboard needs the extra `web`")

from starlette.testclient import TestClient

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here: apt-get install chromium"),
]


@pytest.fixture
def page(shop, monkeypatch):
    """A dashboard whose answers are old at each look."""
    from cqueue.web import ANYTHING, Access, application, shared

    monkeypatch.setattr(shared, "FRESH_S", 0.0)
    monkeypatch.setattr(shared, "DUTY", 0)
    made = application(shop.client, access=Access(roles=ANYTHING))
    made.state.site.history.start = lambda: None  # only tests count minutes
    return made


@pytest.fixture
def address(page):
    """The dashboard on a port of this machine."""
    uvicorn = pytest.importorskip("uvicorn", reason="the dashboard needs the extra `web`")
    server = uvicorn.Server(uvicorn.Config(page, port=0, log_level="warning", log_config=None))
    server.capture_signals = contextlib.nullcontext
    thread = Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(30)


def browse(address, directory, *, wait_ms=0, width=1280):
    """The page as it stands after some time of the page's clock, and what the browser complained of."""
    told = subprocess.run(
        [
            CHROMIUM, "--headless=new", "--disable-gpu", "--enable-logging=stderr", "--v=0",
            *(["--no-sandbox"] if os.geteuid() == 0 else []), "--disable-dev-shm-usage",
            f"--user-data-dir={directory}/profile", f"--window-size={width},900",
            f"--virtual-time-budget={wait_ms}", "--dump-dom", address,
        ],
        capture_output=True, text=True, timeout=90, check=True,
    )  # fmt: skip
    return told.stdout, [line for line in told.stderr.splitlines() if "CONSOLE" in line]


def test_an_open_page_follows_the_queue_and_breaks_no_rule_of_its_own(address, shop, tmp_path, monkeypatch):
    """Messages that come meanwhile are shown by its script, without a reload."""
    from cqueue.web import reading

    dom, complaints = browse(f"{address}/", tmp_path, wait_ms=500)
    assert not complaints
    assert "Up to date at" in dom
    assert 'id="tick" data-every="3">' in dom  # the script has run
    sent = shop.client.queue("mails")
    before = sent.stats().ready
    monkeypatch.setattr(reading, "queue_state", _counting_one_more_each_time(reading.queue_state, sent))
    dom, complaints = browse(f"{address}/queue/mails", tmp_path, wait_ms=8000)
    assert not complaints
    shown = int(re.search(r"<dt>Ready</dt><dd>(\d+)", dom)[1])
    assert shown >= before + 2, "the page was read once and did not follow"


def _counting_one_more_each_time(real, queue):
    """Send a message before each count, so that a page which looks twice shows two more."""

    def count(client, name):
        queue.send(b"another")
        return real(client, name)

    return count


def test_the_history_of_an_open_page_is_drawn_and_goes_on(address, page, shop, tmp_path, settled):
    """Four charts by the page's own styles, with no script; a minute counted meanwhile is drawn as well."""
    site, now_s = page.state.site, int(time.time()) // 60 * 60
    for minute in (3, 2):
        shop.client.queue("mails").send(b"one more")
        site.history.count(now_s - 60 * minute)
    settled()
    dom, complaints = browse(f"{address}/queue/mails?span=1h", tmp_path, wait_ms=500, width=400)
    assert not complaints
    assert len(re.findall(r'<path [^>]*d="M[0-9]', dom)) >= 2
    assert len(_times(dom)) == 2
    known, looks = site.history.known, []

    def counting_a_minute(queue, span):
        looks.append(span)
        if len(looks) == 2:
            site.history.count(now_s - 60)
            settled()
        site.shared.forget(("history", queue, span))
        return known(queue, span)

    site.history.known = counting_a_minute
    dom, complaints = browse(f"{address}/queue/mails?span=1h", tmp_path, wait_ms=12_000)
    assert not complaints
    assert len(_times(dom)) == 3


def _times(dom):
    """Times of the table below the charts."""
    return re.findall(r'<th scope="row">[A-Z][a-z]{2} \d\d:\d\d</th>', dom)


def test_an_open_audit_page_follows_what_others_do(address, page, shop, tmp_path, settled):
    """And shows names and reasons as text, whatever stands in them."""
    evil = '<img src="http://127.0.0.1:1/x" onerror="document.title=1">'
    browser = TestClient(page, base_url="http://localhost", headers={"sec-fetch-site": "same-origin"})
    browser.post("/queue/mails", data={"do": "pause"})
    action = {"who": evil, "action": "drop_letters", "outcome": "begun", "ids": [evil]}
    shop.client.log("cqueue.audit").append("x", json.dumps(action).encode())
    settled()
    dom, complaints = browse(f"{address}/audit", tmp_path, wait_ms=500, width=400)
    assert not complaints
    assert dom.count('<th scope="row">') == 2
    assert "&lt;img" in dom
    assert '<img src="http' not in dom
    read, looks = page.state.site.trail.read, []

    def resuming():
        looks.append(1)
        if len(looks) == 2:
            browser.post("/queue/mails", data={"do": "resume"})
            settled()
        return read()

    page.state.site.trail.read = resuming
    dom, complaints = browse(f"{address}/audit", tmp_path, wait_ms=12_000)
    assert not complaints
    assert "resume queue" in dom
