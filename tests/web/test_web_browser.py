"""The dashboard in a real Chromium: nothing is refused by the policy, and an open page follows the queue."""

import contextlib
import os
import shutil
import subprocess
from threading import Thread

import pytest

pytestmark = pytest.mark.slow
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture
def address(shop):
    """A dashboard on a port of this machine."""
    uvicorn = pytest.importorskip("uvicorn", reason="the dashboard needs the extra `web`")
    from cqueue.web import ANYTHING, Access, application

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
def test_an_open_page_follows_the_queue_and_breaks_no_rule_of_its_own(address, shop, tmp_path):
    """The page of a queue that is paused meanwhile says so, by its script, without a reload."""
    dom, complaints = browse(f"{address}/", tmp_path, wait_ms=500)
    assert not complaints
    assert "Up to date at" in dom
    assert 'id="tick" data-every="3">' in dom  # the script has run
    from cqueue.web import reading

    real = reading.queue_state
    states = []

    def paused_at_the_second_look(client, name):
        if states:
            shop.client.queue("mails").send(b"another")
        states.append(name)
        return real(client, name)

    reading.queue_state, before = paused_at_the_second_look, shop.client.queue("mails").stats().ready
    try:
        dom, complaints = browse(f"{address}/queue/mails", tmp_path, wait_ms=8000)
    finally:
        reading.queue_state = real
    assert not complaints
    assert f"<dt>Ready</dt><dd>{before}</dd>" not in dom
