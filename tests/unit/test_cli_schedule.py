"""`cqueue schedule`: each command, its JSON, and what it says to mistakes."""

import re
from datetime import UTC, datetime, timedelta

import pytest

from cqueue import Cron, Repeating, RunOnce, connect
from cqueue.cli.values import show_moment
from cqueue.dispatcher.application.payload import decode
from cqueue.dispatcher.service.membership import TTL_S, Worker
from cqueue.store.control import Heartbeat

SOON = timedelta(seconds=60)
FIRES = r"it fires at (\S+ )?\d\d:\d\d:\d\d\."


@pytest.fixture(autouse=True)
def _queue(cli):
    cli("queue", "create", "q")


def added(cli, *options):
    said = cli("--json", "schedule", "add", "q", "k", *options)
    assert said.code == 0, said.err
    return said.json


@pytest.mark.parametrize(
    ("options", "trigger"),
    [
        (("--cron", "*/5 * * * *"), Cron("*/5 * * * *")),
        (
            ("--cron", "0 30 2 ? * MON", "--timezone", "Europe/Berlin", "--count", 3, "--jitter", "1m"),
            Cron("0 30 2 ? * MON", "Europe/Berlin", count=3, jitter=timedelta(minutes=1)),
        ),
        (
            ("--every", "90s", "--misfire", "skip", "--grace", "5s", "--auto-commit"),
            Repeating(
                timedelta(seconds=90), misfire="skip", grace=timedelta(seconds=5), auto_commit=True
            ),
        ),
        (
            ("--every", "1h", "--until", "2096-01-01T00:00Z"),
            Repeating(timedelta(hours=1), until=datetime(2096, 1, 1, tzinfo=UTC)),
        ),
        (("--at", "2030-01-31T08:00+01:00"), RunOnce(at=datetime(2030, 1, 31, 7, tzinfo=UTC))),
        (("--in", "30s"), RunOnce(timedelta(seconds=30))),
    ],
)  # fmt: skip
def test_add_takes_every_trigger(cli, cli_url, options, trigger):
    """Whatever a trigger knows can be given, and arrives."""
    shown = added(cli, *options)
    with connect(cli_url) as client:
        assert client.queue("q").schedules.get("k").trigger == trigger
    assert shown["trigger"]["kind"] == type(trigger).__name__
    assert (shown["key"], shown["state"], shown["fired"]) == ("k", "active", 0)
    assert shown["upcoming"][0] == shown["next"]


def test_list_is_of_one_queue_or_of_all(cli):
    """Without a name it says which queue each is of; a queue without schedules has no line."""
    cli("queue", "create", "p")
    cli("queue", "create", "empty")
    for queue in ("q", "p"):
        cli("schedule", "add", queue, f"of-{queue}", "--every", "1h")
    assert [one["queue"] for one in cli("--json", "schedule", "list").json] == ["p", "q"]
    assert [one["key"] for one in cli("--json", "schedule", "list", "q").json] == ["of-q"]
    header, *lines = cli("schedule", "list").out.splitlines()
    assert header.split()[:2] == ["queue", "key"]
    assert [line.split()[:2] for line in lines] == [["p", "of-p"], ["q", "of-q"]]
    assert cli("schedule", "list", "q").out.split()[0] == "key"
    assert "Did you mean 'empty'?" in cli("schedule", "list", "emty").err


def test_list_of_no_schedule_at_all(cli):
    said = cli("schedule", "list")
    assert (said.code, said.out) == (0, "")
    assert "There is no schedule yet." in said.err
    assert cli("--json", "schedule", "list").json == []


def test_what_is_sent(cli):
    """Body, headers and priority are those of the messages; of a task it is its arguments."""
    added(cli, "--in", "0s", "--body", "hello", "--header", "a=b", "--priority", 3)
    (received,) = cli("--json", "receive", "q", "--wait", "5s").json_lines
    assert (received["body"], received["headers"], received["priority"]) == ("hello", {"a": "b"}, 3)


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        ((), ((), {})),
        (("--args", '["a@b", 3]'), (("a@b", 3), {})),
        (("--args", '{"to": "a@b"}'), ((), {"to": "a@b"})),
    ],
)
def test_a_task_gets_its_arguments(cli, cli_url, options, arguments):
    """Written as `enqueue` writes them."""
    added(cli, "--in", "0s", "--task", "mail", *options)
    with connect(cli_url) as client, client.queue("q").consumer() as consumer:
        (message,) = consumer.receive(1, wait=SOON)
        assert message.task == "mail"
        assert tuple(decode(message.body, message.codec)) == arguments


def test_a_body_comes_from_standard_input(cli):
    assert cli("schedule", "add", "q", "k", "--in", "1h", "--body", "-", stdin=b"hi").code == 0
    assert cli("--json", "schedule", "show", "q", "k").json["body"] == "hi"


def test_show_says_when_it_fires_next(cli):
    added(cli, "--every", "1h", "--body", "x", "--count", 3)
    shown = cli("--json", "schedule", "show", "q", "k").json
    times = [datetime.fromisoformat(time) for time in shown["upcoming"]]
    assert [time - times[0] for time in times] == [n * timedelta(hours=1) for n in range(3)]
    assert (shown["queue"], shown["when"], shown["previous"]) == ("q", "every 1h", None)
    sheet = cli("schedule", "show", "q", "k").out
    assert "every 1h" in sheet
    assert re.search("trigger +kind=Repeating, count=3, interval=1h$", sheet, re.MULTILINE)
    assert "headers" not in sheet


def test_show_and_list_write_a_time_alike(cli):
    """In the zone of this machine, and not one of them in UTC with an offset."""
    at = datetime.now(UTC).replace(microsecond=0) + timedelta(days=30)
    said = [cli("schedule", "add", "q", "k", "--at", at.isoformat())]
    said += [cli("schedule", "show", "q", "k"), cli("schedule", "list", "q")]
    assert [one.out.count(show_moment(at)) for one in said] == [1, 3, 1]


def test_list(cli):
    assert cli("--json", "schedule", "list", "q").json == []
    assert "no schedule yet" in cli("schedule", "list", "q").err
    added(cli, "--cron", "@daily", "--timezone", "Asia/Kolkata", "--task", "report")
    cli("schedule", "add", "q", "another", "--in", "1h")
    assert [schedule["key"] for schedule in cli("--json", "schedule", "list", "q").json] == ["another", "k"]
    lines = cli("schedule", "list", "q").out
    assert "0 0 * * * Asia/Kolkata" in lines
    assert "report" in lines


def test_pause_resume_run_now_remove(cli):
    added(cli, "--every", "1h", "--body", "x")
    assert cli("schedule", "pause", "q", "k", "--json").json["state"] == "paused"
    assert cli("schedule", "resume", "q", "k", "--json").json["state"] == "active"
    id_ = cli("schedule", "run-now", "q", "k").out.strip()
    (received,) = cli("--json", "receive", "q", "--wait", "5s").json_lines
    assert (received["id"], received["body"]) == (id_, "x")
    assert cli("schedule", "remove", "q", "k", "--json").json == {"queue": "q", "removed": "k"}
    assert cli("--json", "schedule", "list", "q").json == []


def test_what_people_see(cli):
    """One line that says what is so now."""
    assert re.search(FIRES, cli("schedule", "add", "q", "k", "--every", "1h").out)
    assert "paused" in cli("schedule", "pause", "q", "k").out
    assert re.search(f"active; {FIRES}", cli("schedule", "resume", "q", "k").out)
    assert "removed" in cli("schedule", "remove", "q", "k").out


def test_adding_again(cli):
    """A script may be run twice, and a changed one replaces what it made."""
    added(cli, "--every", "1h")
    again = cli("schedule", "add", "q", "k", "--every", "1h")
    assert (again.code, "(--replace) puts" in again.err) == (2, True)
    added(cli, "--every", "1h", "--exist-ok")
    assert cli("schedule", "add", "q", "k", "--every", "2h", "--exist-ok").code == 2
    assert added(cli, "--every", "2h", "--replace")["when"] == "every 2h"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("add", "q", "k"), "Say when"),
        (("add", "q", "k", "--in", "1s", "--every", "1s"), "--every, --in"),
        (("add", "q", "k", "--every", "1s", "--timezone", "UTC"), "--timezone"),
        (("add", "q", "k", "--in", "1s", "--count", 2), "--count"),
        (("add", "q", "k", "--cron", "* * *"), "3 field"),
        (("add", "q", "k", "--cron", "* * * * 8"), "wrong weekday, '8'; it takes 0 to 7"),
        (("add", "q", "k", "--cron", "* * * * *", "--timezone", "Europe/Berlni"), "Europe/Berlin"),
        (("add", "q", "k", "--every", "1ms"), "interval"),
        (("add", "q", "k", "--every", "often"), "not a duration"),
        (("add", "q", "k", "--at", "2030-01-31T08:00"), "no time zone"),
        (("add", "q", "k", "--in", "1s", "--misfire", "lates"), "'latest', 'all', 'skip'"),
        (("add", "q", "k", "--in", "1s", "--args", "[]"), "--task"),
        (("add", "q", "k", "--in", "1s", "--task", "t", "--args", "a@b"), "JSON"),
        (("add", "q", "k", "--in", "1s", "--task", "t", "--args", "3"), "JSON"),
        (("add", "q", "k", "--in", "1s", "--task", "t", "--args", "[]", "--body", "x"), "not both"),
        (("show", "q", "reprot"), "Did you mean 'report'"),
        (("remove", "q", "reprot"), "Did you mean 'report'"),
        (("list", "qq"), "Did you mean 'q'"),
    ],
)
def test_mistakes_are_explained(cli, arguments, complaint):
    """Exit code 2, one line that says what is wrong, and nothing is changed."""
    cli("schedule", "add", "q", "report", "--in", "1h")
    said = cli("schedule", *arguments)
    assert said.code == 2
    assert complaint in " ".join(said.err.replace("│", " ").split())
    assert [schedule["key"] for schedule in cli("--json", "schedule", "list", "q").json] == ["report"]


def at_work(cli_url, name, **values):
    worker = Worker(name, "db-7", 4711, "shop:app", ("q",), 8, "1.0", 1_700_000_000.0, **values)
    with connect(cli_url) as client:
        client._driver.ask(Heartbeat(worker.row(), TTL_S))


@pytest.mark.parametrize(
    ("workers", "is_orphan"),
    [
        ([], False),
        ([{"tasks": ("shop:send",)}], True),
        ([{"tasks": ("shop:send",)}, {"tasks": ("shop:nightly",)}], False),
        ([{"tasks": ("shop:send",)}, {"tasks": ("shop:nightly",), "state": "stopping"}], True),
        ([{"tasks": ("shop:send",)}, {"tasks": None}], False),
    ],
)
def test_a_schedule_whose_task_no_worker_knows_is_shown_as_an_orphan(cli, cli_url, workers, is_orphan):
    """Only where somebody serves its queue, and all who do say what they know; it stays as it is."""
    added(cli, "--every", "1d", "--task", "shop:nightly")
    for number, values in enumerate(workers):
        at_work(cli_url, f"worker-{number}", **{"state": "running", **values})
    (row,) = cli("schedule", "list", "q", "--json").json
    assert (row["orphan"], row["state"]) == (is_orphan, "active")
    assert ("orphan" in cli("schedule", "list", "q").out) == is_orphan


def test_a_schedule_whose_time_has_passed_unfired_is_overdue(cli):
    """Also where nobody serves its queue; one that is paused is not."""
    past = (datetime.now(UTC) - timedelta(minutes=20)).isoformat()
    assert added(cli, "--at", past)["overdue"]
    assert "overdue" in cli("schedule", "list", "q").out
    assert not cli("--json", "schedule", "pause", "q", "k").json["overdue"]
    assert "overdue" not in cli("schedule", "list", "q").out
