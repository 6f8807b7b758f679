"""`cqueue history` and results in `cqueue find`: what became of messages, for people and as JSON."""

from datetime import timedelta

import pytest

import cqueue
from cqueue.message import short
from tests.fix_dispatcher import until

SOON = timedelta(seconds=20)


@pytest.fixture
def app(cli_url):
    with cqueue.App(cli_url, queue="mail", retry=cqueue.Retry(max_attempts=1)) as app:
        app.client.create_queue("mail", cqueue.QueueConfig(history=timedelta(days=1)))
        yield app


@pytest.mark.usefixtures("brief_settling")
def test_a_history_and_results_are_shown(app, cli):
    """By queue, message (whole and short id), key and time; a result by the whole id."""

    @app.task(name="square", result_ttl=timedelta(hours=1))
    def square(number: int) -> int:
        if number > 5:
            raise ValueError("too large")
        return number * number

    with app.dispatcher() as dispatcher:
        first, second = square.options(key="k4").enqueue(4), square.enqueue(6)
        dispatcher.drain(SOON)
    until(lambda: len(app.client.queue("mail").history()) == 2)
    events = cli("history", "mail", "--json").json_lines
    assert {event["id"]: event["state"] for event in events} == {first: "succeeded", second: "dead"}
    shown = cli("history", "mail").out
    assert short(first) in shown
    assert "too large" in shown
    for args in ([first], [short(first)], ["--key", "k4"]):
        (event,) = cli("history", "mail", *args, "--json").json_lines
        assert event["id"] == first
    (event,) = cli("history", "mail", "--state", "retried", "--state", "dead", "--json").json_lines
    assert event["id"] == second
    assert cli("history", "mail", short(first), "--state", "dead", "--json").json_lines == []
    assert len(cli("history", "mail", "--since", "1h", "--json").json_lines) == 2
    assert len(cli("history", "mail", "--limit", "1", "--json").json_lines) == 1
    found = cli("find", first, "--json").json
    assert (found["state"], found["result"], found["error"]) == ("succeeded", "16", None)
    assert "16" in cli("find", first).out
    assert cli("find", second, "--json").json["state"] == "dead"  # the letter says more
    app.client.queue("mail").dead_letters.drop(everything=True)
    assert cli("find", second, "--json").json["error"] == "ValueError"


def test_a_queue_without_a_history_says_how_to_keep_one(cli):
    cli("queue", "create", "orders")
    said = cli("history", "orders")
    assert said.code == 0
    assert "cqueue queue alter orders --history 7d" in said.err


@pytest.mark.parametrize(
    "wrong",
    [
        ["--since", "latest"],
        ["--since", "earliest"],
        ["--since", "10x"],
        ["--limit", "0"],
        ["no id"],
        ["--state", "failed"],
    ],
)
def test_wrong_questions_are_refused(cli, wrong):
    cli("queue", "create", "orders")
    assert cli("history", "orders", *wrong).code == 2


def test_find_says_that_a_message_of_a_queue_made_again_is_gone(app, cli):
    """Its queue's new incarnation has no result of it."""
    id_ = app.client.queue("mail").send(b"x")
    app.client.delete_queue("mail")
    app.client.create_queue("mail")
    assert cli("find", id_).code == 1
