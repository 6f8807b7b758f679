"""The dashboard in a real Chromium: nothing is refused by the policy, and an open page follows the queue."""

import contextlib
import os
import re
import shutil
import subprocess
from threading import Thread

import pytest

pytest.importorskip("starlette", reason="the dashboard needs the extra `web`")

pytestmark = pytest.mark.slow
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture
def address(shop, monkeypatch):
    """A dashboard on a port of this machine, whose answers are old at each look."""
    uvicorn = pytest.importorskip("uvicorn", reason="the dashboard needs the extra `web`")
    from cqueue.web import ANYTHING, Access, application, shared

    monkeypatch.setattr(shared, "FRESH_S", 0.0)
    monkeypatch.setattr(shared, "DUTY", 0)
    page = application(shop.client, access=Access(roles=ANYTHING))
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


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here: apt-get install chromium")
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
