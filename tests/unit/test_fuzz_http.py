"""Whatever comes over HTTP: an answer, never a traceback and never an error of the server's own.

The dashboard is asked by its ASGI application, the probes by real sockets.
"""

import json
import socket
import urllib.parse
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import cqueue
from cqueue.dispatcher.service import health
from cqueue.dispatcher.service.health import Health

starlette = pytest.importorskip("starlette", reason="the dashboard needs the extra `web`")

from starlette.testclient import TestClient  # noqa: E402 - behind the check

from cqueue.web import ANYTHING, Access, Token, application  # noqa: E402 - as above
from cqueue.web.access import Sessions  # noqa: E402 - as above
from tests.properties import examples  # noqa: E402 - as above

FUZZ = settings(max_examples=examples(60), deadline=None)
TEXT = st.text(max_size=30)
LATIN = st.text(st.characters(max_codepoint=255, exclude_characters="\r\n\0"), max_size=40)
TOKEN = Token("ops", "0123456789abcdef", ANYTHING)


@pytest.fixture(scope="module")
def client():
    with cqueue.connect("memory://") as client:
        queue = client.create_queue("mails")
        queue.send(b"x")
        queue.send(b"y")
        with queue.consumer() as consumer:
            consumer.receive(1, wait=timedelta(seconds=60))[0].dead("no")
        client.create_log("orders")
        yield client


@pytest.fixture(scope="module")
def browse(client):
    """A browser whose requests come from own pages; an error of the server is an answer with status 500."""
    app = application(client, access=Access(roles=ANYTHING))
    with TestClient(app, base_url="http://localhost", raise_server_exceptions=False) as browser:
        yield browser


@pytest.fixture(scope="module")
def locked(client):
    app = application(client, access=Access(tokens=(TOKEN,)))
    with TestClient(app, base_url="http://localhost", raise_server_exceptions=False) as browser:
        yield browser


@pytest.fixture(scope="module")
def ids(client):
    queue = client.queue("mails")
    return [str(queue.peek(1)[0].id), str(queue.dead_letters.list()[0].id)]


SEGMENT = st.sampled_from(
    [
        "",
        "queue",
        "mails",
        "mails.dead",
        "dead",
        "message",
        "log",
        "orders",
        "schedules",
        "static",
        "login",
        "..",
    ]
)
PATHS = st.lists(SEGMENT | TEXT, max_size=5).map(
    lambda parts: [urllib.parse.quote(part, safe="") for part in parts]
)
QUERY = st.dictionaries(
    st.sampled_from(["q", "sort", "only", "page", "id", "task", "reason", "told"]) | TEXT,
    TEXT | st.integers(-(10**30), 10**30).map(str) | st.just("9" * 5000) | st.just("²"),
    max_size=4,
)


@FUZZ
@given(PATHS, QUERY)
def test_any_page_and_query(browse, paths, query):
    answer = browse.get("/" + "/".join(paths).lstrip("/"), params=query, follow_redirects=False)
    assert answer.status_code < 500
    assert answer.headers["x-content-type-options"] == "nosniff"


ADDRESSES = st.sampled_from(
    ["/queue/mails", "/queue/mails/dead", "/schedules", "/log/orders", "/login", "/logout", "/queue/none"]
)
FIELDS = st.dictionaries(
    st.sampled_from(
        ["do", "operation", "step", "which", "id", "task", "reason", "queue", "key", "name", "token"]
    ),
    TEXT
    | st.sampled_from(["look", "do", "redrive", "drop", "all", "ticked", "pause", "resume", "run", "mails"]),
    max_size=5,
)


@FUZZ
@given(ADDRESSES, FIELDS, st.booleans())
def test_any_form(browse, ids, address, fields, letter):
    if letter:
        address = f"/queue/mails/message/{ids[0]}" if "id" in fields else f"/queue/mails/dead/{ids[1]}"
    answer = browse.post(
        address, data=fields, headers={"sec-fetch-site": "same-origin"}, follow_redirects=False
    )
    assert answer.status_code < 500


@FUZZ
@given(
    ADDRESSES,
    st.binary(max_size=60),
    st.sampled_from(["application/x-www-form-urlencoded", "application/json", "é;", ""]),
)
def test_any_body_of_a_post(browse, address, body, kind):
    answer = browse.post(
        address, content=body, headers={"sec-fetch-site": "none", "content-type": kind.encode("latin-1")},
        follow_redirects=False,
    )  # fmt: skip
    assert answer.status_code < 500


NAMES = st.sampled_from(
    [
        "host",
        "origin",
        "sec-fetch-site",
        "authorization",
        "cookie",
        "content-type",
        "x-forwarded-for",
        "if-none-match",
    ]
)
VALUES = LATIN | st.sampled_from(
    [
        "http://[",
        "http://[::1",
        "null",
        "bearer \xff",
        "cqueue_web=a.b.c",
        "cqueue_web=é.1.x",
        "[",
        "[::1]:80",
        "bearer",
    ]
)


@FUZZ
@example({"origin": "http://["}, "POST")
@example({"origin": "http://\xbd\xa9.com:80"}, "POST")
@given(st.dictionaries(NAMES, VALUES, max_size=4), st.sampled_from(["GET", "POST", "PUT", "HEAD", "OPTIONS"]))
def test_any_headers(browse, locked, headers, method):
    """Of somebody who is let in, and of somebody who is not: no header opens a door or breaks it."""
    sent = {name: value.encode("latin-1") for name, value in headers.items()}
    assert browse.request(method, "/queue/mails", headers=sent, follow_redirects=False).status_code < 500
    locked.cookies.clear()
    answer = locked.request(method, "/queue/mails", headers=sent, follow_redirects=False)
    assert 400 <= answer.status_code < 500


@FUZZ
@given(
    LATIN | st.from_regex(r"[0-9a-f]{0,8}\.[0-9]{0,12}\.[0-9a-f]{0,64}", fullmatch=True), st.integers(0, 200)
)
def test_any_cookie(cookie, place):
    sessions = Sessions()
    assert sessions.name(cookie) is None
    good = sessions.cookie(TOKEN.person)
    assert sessions.name(good) == "ops"
    at = place % len(good)
    assert sessions.name(good[:at] + ("0" if good[at] != "0" else "1") + good[at + 1 :]) is None


# ── Probes of the daemon ──


@pytest.fixture(scope="module")
def port():
    with health.serving(
        ("127.0.0.1", 0), lambda: Health(alive=True, ready=True, reason=""), lambda: b"x 1\n"
    ) as port:
        yield port


LINES = st.lists(st.binary(max_size=30), max_size=5).map(b"\r\n".join)


@settings(
    max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(LINES | LINES.map(lambda rest: b"GET /livez HTTP/1.1\r\n" + rest) | st.just(b"GET /" + b"a" * 70_000))
def test_any_request_of_a_probe_leaves_the_server_answering(port, capfd, data):
    """What is no request is refused or left; a client that goes away at once leaves no traceback."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as asker:
        asker.sendall(data + b"\r\n\r\n")
        asker.shutdown(socket.SHUT_WR)
    with socket.create_connection(("127.0.0.1", port), timeout=60) as asker:
        asker.sendall(b"GET /livez HTTP/1.0\r\n\r\n")
        answer = b"".join(iter(lambda: asker.recv(4096), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.split()[1] == b"200"
    assert json.loads(body)["alive"]
    assert "Traceback" not in capfd.readouterr().err
