"""Test pushing records by HTTP: done after a 2xx, sent again later, or buried in the dead-letter log."""

import threading
import traceback
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

import pytest

import cqueue
from cqueue.errors import BadInput, NotDone, OutcomeUnknown, RecordRejected
from tests.subscriptions.subscribing import Member, fill, made_log


class Receiver:
    """An HTTP server that gives the answers it is told to, and keeps what was posted."""

    def __init__(self):
        self.answers = []
        self.got = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.got.append((dict(self.headers), body))
                code = receiver.answers.pop(0) if receiver.answers else 204
                self.send_response(code)
                if code == 302:
                    self.send_header("Location", receiver.url)
                self.end_headers()

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/events"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def receiver():
    receiver = Receiver()
    yield receiver
    receiver.close()


@pytest.fixture
def log(client):
    return made_log(client, partitions=1)


def numbers(receiver):
    return [int(body) for _, body in receiver.got]


def test_a_record_is_posted_whole(client, log, store, receiver):
    """The body arrives unchanged, with metadata in headers that survive any text."""
    id_ = log.append("größe", b"\x00\xff", key="k%1\r\nX: y", headers={"Ä b": "é"})
    store.pass_time(seconds=5)
    Member(client, cqueue.HttpPush(receiver.url, headers={"Authorization": "Bearer x"})).live()
    ((headers, body),) = receiver.got
    assert body == b"\x00\xff"
    assert headers["Cqueue-Id"] == id_
    assert unquote(headers["Cqueue-Topic"]) == "größe"
    assert unquote(headers["Cqueue-Key"]) == "k%1\r\nX: y"
    assert headers["Cqueue-Partition"] == "0"
    assert headers["Authorization"] == "Bearer x"
    assert headers["Cqueue-Time"].startswith("2027-01-15T")
    assert unquote(headers["Cqueue-Header-%C3%84%20B"]) == "é"


@pytest.mark.parametrize("name", ["Content-Type", "content-type"])
def test_a_push_says_what_its_bodies_are(log, store, receiver, name):
    fill(log, store, 1)
    (record,) = log.scan()
    cqueue.HttpPush(receiver.url)(record)
    cqueue.HttpPush(receiver.url, headers={name: "application/json"})(record)
    kinds = [headers["Content-Type"] for headers, _ in receiver.got]
    assert kinds == ["application/octet-stream", "application/json"]


@pytest.mark.parametrize("answer", [500, 503, 408, 429, 302])
def test_an_answer_that_may_change_is_asked_for_again(client, log, store, receiver, answer):
    fill(log, store, 3)
    receiver.answers = [204, answer, answer, 200]
    Member(client, cqueue.HttpPush(receiver.url)).live(20)
    assert numbers(receiver) == [0, 1, 1, 1, 2]
    assert client.logs() == ["events"]


@pytest.mark.parametrize("answer", [400, 404, 410])
def test_an_answer_that_will_not_change_sends_the_record_to_the_dead(client, log, store, receiver, answer):
    fill(log, store, 3)
    receiver.answers = [200, answer, 200]
    Member(client, cqueue.HttpPush(receiver.url)).live(20)
    assert numbers(receiver) == [0, 1, 2]
    (letter,) = client.log("events.dead").scan()
    assert letter.body == b"1"
    assert str(answer) in letter.headers["cqueue-dead-reason"]


def test_what_is_known_of_a_push(log, store, receiver):
    """Each answer means rejected, not done, or unknown."""
    fill(log, store, 1)
    (record,) = log.scan()
    push = cqueue.HttpPush(receiver.url, timeout=timedelta(seconds=5))
    receiver.answers = [404, 500]
    with pytest.raises(RecordRejected):
        push(record)
    with pytest.raises(NotDone):
        push(record)
    push(record)
    receiver.close()
    with pytest.raises(OutcomeUnknown):
        push(record)


def test_no_error_tells_a_secret_of_the_address(log, store, receiver):
    """Errors go to log events and to the dead-letter log, and many a hook has its secret in its address."""
    fill(log, store, 1)
    (record,) = log.scan()
    receiver.answers = [404, 500]
    for url, told in (
        (f"{receiver.url}/s3cret?token=s3cret", "127.0.0.1 answered 404"),
        (f"{receiver.url}/s3cret?token=s3cret", "127.0.0.1 answered 500"),
        ("http://127.0.0.1:1/s3cret", "127.0.0.1 gave no answer: .*refused"),
        ("http://127.0.0.1/s3cret here", "127.0.0.1 gave no answer: InvalidURL"),
        ("http://bob:s3cret@127.0.0.1/", "127.0.0.1 gave no answer: InvalidURL"),
    ):
        with pytest.raises((RecordRejected, NotDone, OutcomeUnknown), match=told) as caught:
            cqueue.HttpPush(url)(record)
        assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    "headers", [{"Authorization": "Bearer s3cret\n"}, {"X": "s3cret →"}, {"s3cret:": "x"}, {"": "s3cret"}]
)
def test_headers_that_http_cannot_carry_are_refused_at_once(headers):
    """Else each record would fail to the end, and its dead letter quote them."""
    with pytest.raises(BadInput, match="line break") as caught:
        cqueue.HttpPush("http://127.0.0.1/", headers=headers)
    assert "s3cret" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("url", ["file:///etc/passwd", "example.org", 7])
def test_what_is_no_address_is_refused(url):
    with pytest.raises(BadInput, match="url"):
        cqueue.HttpPush(url)
