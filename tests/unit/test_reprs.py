"""What a debugger, a log or a failed assertion shows: names instead of addresses, no secrets; durations."""

from __future__ import annotations

from datetime import timedelta

import pytest

import cqueue
from cqueue.runtime.durations import show_duration

MADE_BY_USERS = {"Middleware"}
"""Base classes whose instances are an application's own."""


def test_no_public_class_shows_a_bare_address():
    for name in set(cqueue.__all__) - MADE_BY_USERS:
        public = getattr(cqueue, name)
        if isinstance(public, type):
            assert public.__repr__ is not object.__repr__, name


def test_reprs_name_what_they_are_of():
    client = cqueue.connect("memory://reprs")
    queue, log = client.create_queue("mail"), client.create_log("events")
    app = cqueue.App(client, queue="mail")
    app.task(lambda: None, name="send")
    with client, queue.consumer() as consumer, log.scan() as scanner:
        shown = {
            repr(one) for one in (client, queue, queue.dead_letters, queue.schedules, log, consumer, app)
        }
        assert shown == {
            "<client of memory://reprs>",
            "<queue mail>",
            "<dead letters of mail>",
            "<schedules of mail>",
            "<log events>",
            "<consumer of mail>",
            "<app tasks=1 queues=mail>",
        }
        assert repr(scanner) == "<scanner of log events>"
        assert repr(queue.send_many([cqueue.Message(b"x")])) == "<sent: messages=1 failed=0>"
        assert repr(cqueue.Dispatcher(queue, print)) == "<dispatcher of mail: new>"


def test_reprs_tell_no_secret():
    push = cqueue.HttpPush("https://bob:s3cret@example.org/hook?token=s3cret", headers={"X-Key": "s3cret"})
    assert repr(push) == "<http push to example.org>"
    assert "s3cret" not in repr(cqueue.App("cassandra://bob:s3cret@db/shop"))


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (timedelta(), "0s"),
        (timedelta(microseconds=10_000), "10ms"),
        (timedelta(microseconds=1500), "1ms500µs"),
        (timedelta(hours=1, minutes=30), "1h30m"),
        (timedelta(days=3650), "3650d"),
        (timedelta(seconds=-5), "-5s"),
    ],
)
def test_durations_are_shown_as_people_write_them(duration, text):
    assert show_duration(duration) == text


def test_errors_show_durations_as_people_write_them():
    """Not `datetime.timedelta(microseconds=10000)`."""
    with cqueue.connect("memory://") as client:
        queue = client.create_queue("q")
        with pytest.raises(cqueue.BadInput, match=r"poll_interval is 10µs; .* from 1ms to 1m"):
            queue.consumer(poll_interval=timedelta(microseconds=10))
        with pytest.raises(cqueue.ConfigError, match="visibility is 10ms; it takes 2 seconds to 12 hours"):
            cqueue.QueueConfig(visibility=timedelta(milliseconds=10))
        with pytest.raises(cqueue.BadInput, match="ttl is 0s; it goes from 1 ms to 10 years"):
            queue.send(b"x", ttl=timedelta())
        with pytest.raises(cqueue.BadInput, match="ttl is 5, not a timedelta"):
            queue.send(b"x", ttl=5)
        with pytest.raises(cqueue.ConfigError, match=r"poll_interval is 2h; .* from .*ms to"):
            cqueue.Dispatcher(queue, print, poll_interval=timedelta(hours=2))
        with pytest.raises(cqueue.ConfigError, match=r"ttl is 1s; it takes 1 minute .* \(forever on"):
            cqueue.LogConfig(ttl=timedelta(seconds=1))


def test_errors_name_the_type_only_where_it_is_wrong():
    """On the command line nobody writes a `timedelta`."""
    with cqueue.connect("memory://") as client:
        queue = client.create_queue("q")
        with pytest.raises(cqueue.BadInput, match=r"^wait is 2d; it goes from 0s to 1d$"):
            queue.consumer().receive(wait=timedelta(days=2))
        with pytest.raises(cqueue.BadInput, match=r"^wait is 5, not a timedelta; it goes from 0s to 1d$"):
            queue.consumer().receive(wait=5)
        with pytest.raises(cqueue.BadInput, match=r"^delay is 5, not a timedelta$"):
            queue.send(b"x", delay=5)
        with pytest.raises(cqueue.ConfigError, match=r"^visibility is 5, not a timedelta$"):
            cqueue.QueueConfig(visibility=5)
