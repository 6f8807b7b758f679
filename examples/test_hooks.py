"""Tests of `hooks.py`, with the fixtures of cqueue's plugin for pytest: no server, no Cassandra, no sleep.

Run them with `pytest -o cqueue_app=hooks:app` in this directory.
"""

from datetime import timedelta
from urllib.error import HTTPError

import hooks
import pytest

A, B = "https://a.example/hooks", "https://b.example/hooks"


class Partner:
    """Answers with these codes, then with 200; `told` holds what it was told."""

    def __init__(self):
        self.codes = []
        self.told = []

    def urlopen(self, request, timeout):
        self.told.append((request.full_url, request.data))
        code = self.codes.pop(0) if self.codes else 200
        if code != 200:
            raise HTTPError(request.full_url, code, "no", None, None)
        return self

    def close(self):
        pass


@pytest.fixture
def partner(monkeypatch):
    partner = Partner()
    monkeypatch.setattr(hooks, "urlopen", partner.urlopen)
    return partner


def test_each_partner_is_told(cqueue_sandbox, partner):
    hooks.order_paid(17, [A, B])
    assert [job.args["url"] for job in cqueue_sandbox.enqueued(hooks.send_hook, order=17)] == [A, B]
    assert len(cqueue_sandbox.drain().succeeded) == 2
    assert partner.told[0] == (A, b'{"event": "paid", "order": 17}')


def test_500_then_200(cqueue_sandbox, partner):
    partner.codes = [500]
    hooks.order_paid(17, [A])
    assert [run.outcome for run in cqueue_sandbox.drain()] == ["retried"]
    assert [run.outcome for run in cqueue_sandbox.advance(timedelta(seconds=30))] == ["succeeded"]
    assert len(partner.told) == 2


def test_a_refund_overtakes_what_waits(cqueue_sandbox, partner):
    hooks.order_paid(17, [A])
    hooks.order_refunded(18, [A])
    cqueue_sandbox.drain(reraise=True)
    assert [b"refunded" in body for _, body in partner.told] == [True, False]


def test_a_partner_that_never_answers_is_a_dead_letter(cqueue_sandbox, partner):
    partner.codes = [503] * 5
    hooks.order_paid(17, [A])
    runs = cqueue_sandbox.advance(timedelta(minutes=10)).of(hooks.send_hook)
    assert [run.delay.total_seconds() for run in runs] == [30, 60, 120, 240, 0]
    (letter,) = cqueue_sandbox.dead(hooks.send_hook, url=A)
    assert letter.reason.startswith("attempt 5 of 5")
    assert "HTTP Error 503" in letter.traceback


def test_a_partner_that_is_gone_is_told_nothing_until_the_night(cqueue_sandbox, partner):
    partner.codes = [410]
    for order in (17, 18):
        hooks.order_paid(order, [A])
    assert [run.outcome for run in cqueue_sandbox.drain()] == ["succeeded", "cancelled"]
    cqueue_sandbox.fire(hooks.ask_again)
    hooks.order_paid(19, [A])
    assert [run.outcome for run in cqueue_sandbox.drain()] == ["succeeded"]
    assert len(partner.told) == 2
