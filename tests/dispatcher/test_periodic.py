"""`@app.periodic`: a schedule that stands in the code, and the task that it calls."""

from datetime import UTC, datetime, timedelta

import pytest

import cqueue
from cqueue import Cron, Repeating, RunOnce
from cqueue.errors import BadInput, ConfigError

SECOND = timedelta(seconds=1)


@pytest.fixture
def app():
    with cqueue.App("memory://") as app:
        yield app


def test_a_periodic_task_is_told_the_time_that_is_fired(app):
    """The schedule passes the time, and the task stays a plain function."""
    seen = []
    at = datetime.now(UTC).replace(microsecond=0)

    @app.periodic(RunOnce(at=at), key="once")
    def tick(fired_at: datetime) -> None:
        seen.append((fired_at, cqueue.current_context().firing))

    with app.testing(now=at) as t:
        (run,) = t.drain(reraise=True)
        ((fired_at, firing),) = seen
        assert (run.task, fired_at, firing.fired_at, firing.key) == (tick.name, at, at, "once")
        assert app.client.queue("default").schedules.get("once").state == "done"
        assert not t.drain()


def test_it_may_take_nothing_and_be_enqueued(app):
    """A call by hand passes the argument itself."""
    seen = []

    @app.periodic("@daily")
    async def nightly() -> None:
        seen.append("nightly")

    @app.periodic("@daily")
    def report(fired_at: datetime) -> None:
        seen.append(fired_at)

    when = datetime(2026, 1, 1, tzinfo=UTC)
    with app.testing() as t:
        report.enqueue(when)
        report.enqueue(fired_at=when)
        nightly.enqueue()
        app.client.queue("default").schedules.run_now(nightly.name)
        t.drain(reraise=True)
    assert sorted(map(str, seen)) == sorted(["nightly", "nightly", str(when), str(when)])


def test_the_schedule_follows_the_code():
    """A start makes it, the same again leaves it alone, a change replaces it, an operator's pause stays."""
    client = cqueue.connect("memory://")

    def start(when, **options):
        app = cqueue.App(client)
        app.periodic(when, name="tick", queue="q", **options)(lambda: None)
        app.setup()
        return client.queue("q").schedules.get("tick")

    first = start("*/5 * * * * *", timezone="Europe/Berlin", misfire="all")
    assert first.trigger == Cron("*/5 * * * * *", "Europe/Berlin", misfire="all")
    assert (first.task, first.codec) == ("tick", "json")
    assert start("*/5 * * * * *", timezone="Europe/Berlin", misfire="all") == first
    client.queue("q").schedules.pause("tick")
    changed = start(Repeating(SECOND))
    assert (changed.trigger, changed.state) == (Repeating(SECOND), "paused")
    client.close()


def test_a_decorator_that_is_gone_is_reported_and_nothing_is_removed(caplog):
    """The process that starts may be the old version of two."""
    client = cqueue.connect("memory://")
    old, new = cqueue.App(client), cqueue.App(client)
    old.periodic("@daily", name="gone")(lambda: None)
    for app in (old, new):
        app.task(name="other")(lambda: None)
    old.setup()
    client.queue("default").schedules.add("by hand", RunOnce(SECOND))
    assert "schedules_undeclared" not in caplog.text
    new.setup()
    assert "schedules_undeclared" in caplog.text
    assert "'gone'" in caplog.text
    assert "by hand" not in caplog.text
    assert client.queue("default").schedules.get("gone").state == "active"
    client.close()


def takes_more(fired_at, other):
    """Not for a schedule."""


@pytest.mark.parametrize(
    ("when", "options", "function", "complaint"),
    [
        ("* * *", {}, print, "3 field"),
        ("0 3 30 2 *", {}, print, "does not fire"),
        (7, {}, print, "cron expression or a trigger"),
        (Repeating(SECOND), {"timezone": "UTC"}, print, "timezone"),
        ("@daily", {"misfire": "lates"}, print, "latest"),
        ("@daily", {"key": ""}, lambda: None, "key"),
        ("@daily", {}, takes_more, "other"),
    ],
)
def test_what_is_wrong_is_said_where_it_is_written(app, when, options, function, complaint):
    with pytest.raises(BadInput, match=complaint):
        app.periodic(when, **options)(function)
    assert not app.tasks


def test_two_of_one_name_are_an_error(app):
    app.periodic("@daily", name="tick")(lambda: None)
    with pytest.raises(ConfigError, match="two tasks"):
        app.periodic("@daily", name="tick")(lambda: None)


def test_two_of_one_key_are_an_error_in_one_queue(app):
    """The second one's schedule took the place of the first one's, and only one task was called."""
    app.periodic("@daily", name="one", key="tick")(lambda: None)
    app.periodic("@daily", name="other", key="tick", queue="other")(lambda: None)
    with pytest.raises(ConfigError, match="'one' and 'two' have one schedule, 'tick'"):
        app.periodic("@hourly", name="two", key="tick")(lambda: None)
