"""`cqueue list`: what it shows, its JSON, its tokens, and what it says to mistakes."""

import pytest

from cqueue import connect
from cqueue.message import short
from cqueue.runtime import listing

TASK = ("--task", "shop:send")


@pytest.fixture(autouse=True)
def _queue(cli):
    cli("queue", "create", "q")


def send(cli, *options):
    return cli("send", "q", *options).out.strip()


def bodies(cli, *options):
    return [message["body"] for message in cli("--json", "list", "q", *options).json["messages"]]


def test_it_shows_what_peek_shows_of_those_that_fit(cli):
    """A table, and nothing is said where the queue ends."""
    id_ = send(cli, *TASK, "--header", "tenant=7")
    send(cli, "other")
    said = cli("list", "q", "--header", "tenant=7")
    header, line = said.out.splitlines()
    assert header.split() == ["id", "state", "next", "attempts", "task", "body"]
    assert line.startswith(f"{short(id_)}  ready")
    assert said.err == ""


def test_json_has_a_fixed_shape(cli):
    id_ = send(cli, *TASK)
    told = cli("list", "q", "--json").json
    assert (set(told), told["token"], told["rows_read"]) == ({"messages", "token", "rows_read"}, None, 1)
    (message,) = told["messages"]
    assert message == cli("--json", "peek", "q").json
    assert message["id"] == id_


def test_each_option_picks(cli):
    send(cli, "a", "--priority", 3, "--header", "x=1")
    send(cli, "b", "--delay", "1h", "--header", "x=1", "--header", "y=2")
    assert bodies(cli) == ["a", "b"]
    assert bodies(cli, "--header", "x=1", "--header", "y=2") == ["b"]
    assert bodies(cli, "--state", "ready", "--state", "delayed") == ["a", "b"]
    assert bodies(cli, "--state", "delayed") == ["b"]
    assert bodies(cli, "--priority", 3) == ["a"]
    assert bodies(cli, "--older-than", "0s") == ["a", "b"]
    assert bodies(cli, "--older-than", "1h") == []
    assert bodies(cli, "--younger-than", "1h", "--task", "none") == []


def test_a_token_goes_on(cli, monkeypatch):
    """Given where there may be more, whether something was found or not; empty pages are read over."""
    for number in range(60):
        send(cli, str(number))
    told = cli("--json", "list", "q", "--limit", 10).json
    rest = cli("--json", "list", "q", "--limit", 100, "--token", told["token"]).json
    assert (len(told["messages"]), rest["token"]) == (10, None)
    assert sorted(int(one["body"]) for one in told["messages"] + rest["messages"]) == [*range(60)]
    monkeypatch.setattr(listing, "MAX_ROWS", 10)
    monkeypatch.setattr(listing, "ROWS_A_PAGE", 5)
    none = ("list", "q", "--task", "none")
    told = cli("--json", *none, "--max-rows", 15).json
    assert (told["messages"], 15 <= told["rows_read"] < 60) == ([], True)
    rest = cli("--json", *none, "--token", told["token"]).json
    assert (rest["token"], told["rows_read"] + rest["rows_read"]) == (None, 60)
    said = cli(*none, "--max-rows", 15)
    assert (said.code, said.out) == (0, "")
    assert f"none of {told['rows_read']} messages read fits" in said.err
    assert f"--token {told['token']}" in said.err
    assert "none of 60 messages" in cli("list", "q", "--task", "none").err


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        (("--state", "asleep"), "it takes ready"),
        (("--priority", 12), "from 0 to 9"),
        (("--header", "x"), "NAME=VALUE"),
        (("--older-than", "soon"), "not a duration"),
        (("--older-than", "1h", "--younger-than", "1h"), "older_than"),
        (("--limit", 0), "from 1 to 1,000"),
        (("--token", "x"), "begin without a token"),
    ],
)
def test_a_mistake_is_2(cli, options, hint):
    said = cli("list", "q", *options)
    assert (said.code, said.out) == (2, "")
    assert hint in said.err


def test_a_misspelt_queue_and_a_token_of_another(cli, cli_url):
    assert "Did you mean 'q'?" in cli("list", "qq").err
    for body in "ab":
        send(cli, body)
    with connect(cli_url) as client:
        token = client.queue("q").list(limit=1).token
    cli("queue", "create", "other")
    said = cli("list", "other", "--token", token)
    assert (said.code, "of queue 'q'" in said.err) == (2, True)
