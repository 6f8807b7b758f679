"""What operators do is written down before and after, in a log beside the queues."""

import json

import pytest

from cqueue.errors import AppendUnknown, OutcomeUnknown, Unavailable

pytest.importorskip("starlette", reason="the dashboard needs the extra `web`")


@pytest.fixture
def web(browse):
    return browse()


def records(client, settled):
    settled()
    with client.log("cqueue.audit").scan() as found:
        return [json.loads(record.body) for record in found]


def test_an_action_is_written_down_before_and_after(web, shop, settled):
    assert web.post("/queue/mails", data={"do": "pause"}).status_code == 200
    before, after = records(shop.client, settled)
    told = {"who": "local", "address": "testclient", "action": "pause_queue", "queue": "mails"}
    assert before == told | {"outcome": "begun"}
    assert after == told | {"outcome": "done"}


def test_an_action_that_cannot_be_written_down_is_not_done(web, shop, monkeypatch):
    from cqueue import audit

    for error in (
        Unavailable("no host answers"),
        AppendUnknown("timed out", ()),
        OutcomeUnknown("timed out"),
    ):
        monkeypatch.setattr(audit, "own_log", Raising(error))
        answer = web.post("/queue/mails", data={"do": "pause"})
        assert answer.status_code == 503
        assert "Not done" in answer.text
        assert not shop.client.queue("mails").paused


class Raising:
    """A log that takes nothing; opening it fails."""

    def __init__(self, error):
        self.error = error

    def __call__(self, *_):
        raise self.error


def test_an_action_whose_outcome_cannot_be_written_down_is_done(web, shop, monkeypatch):
    from cqueue import audit

    real, calls = audit.own_log, []

    def once(*args):
        calls.append(args)
        if len(calls) > 1:
            raise Unavailable("no host answers")
        return real(*args)

    monkeypatch.setattr(audit, "own_log", once)
    assert web.post("/queue/mails", data={"do": "pause"}).status_code == 200
    assert shop.client.queue("mails").paused


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(OutcomeUnknown("?"), "unknown"), (Unavailable("!"), "not_done"), (KeyError(), "failed")],
)
def test_the_outcome_says_what_is_known(shop, settled, error, outcome):
    from cqueue.audit import Trail

    with (
        pytest.raises(type(error)),
        Trail(shop.client).action("ada", None, "pause_queue"),
    ):
        raise error
    assert [one["outcome"] for one in records(shop.client, settled)] == ["begun", outcome]


def test_the_page_shows_each_action_once_with_its_outcome(web, shop, settled):
    web.post("/queue/mails", data={"do": "pause"})
    web.post(f"/queue/mails/message/{shop.message}")
    log = shop.client.log("cqueue.audit")
    log.append("x", b"nonsense")
    log.append("y", b'{"who":"<b>eve</b>","action":"drop_letters","outcome":"begun","ids":["a","b"]}')
    settled()
    web.app.state.site.shared.forget("actions")
    page = web.get("/audit").text
    assert page.count("<tr>") == 1 + 3
    assert page.index("drop letters") < page.index("show body") < page.index("pause queue")
    assert "&lt;b&gt;eve" in page
    assert "4111" not in page


def test_a_dashboard_by_which_nothing_was_changed(web):
    assert "Nobody has changed anything" in web.get("/audit").text


def test_the_log_survives_the_dashboard(browse, settled):
    browse().post("/queue/mails", data={"do": "pause"})
    settled()
    assert "pause queue" in browse().get("/audit").text
