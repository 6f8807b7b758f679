"""What the annotation of a parameter does not allow gets an error of the library, and nothing is written."""

from __future__ import annotations

import collections.abc
import inspect
import sys
import types
import typing
from datetime import UTC, datetime, timedelta

import pytest

import cqueue
from cqueue.client import Client
from cqueue.errors import BadInput
from tests.faulty_store import FaultyStore

options = pytest.importorskip("cqueue.spool.options")
spools = pytest.importorskip("cqueue.spool")

HOUR, SOON = timedelta(hours=1), timedelta(milliseconds=1)
NOW = datetime(2026, 3, 1, tzinfo=UTC)
OTHER = [None, 5, 1.5, True, b"x", "text", [5], {"a": 5}, {5: "a"}, HOUR, NOW, print, object()]
READS = ("Read", "List", "Has")
TEXTS = {"reason": "x", "task": "t"}
MESSAGE = {
    "body": b"x", "delay": HOUR, "due": None, "priority": 0, "headers": {"a": "b"}, "ttl": HOUR, "key": "k",
    "unique": None,
}  # fmt: skip
RECORD = {"topic": "t", "body": b"x", "key": "k", "partition": 0, "headers": {"a": "b"}}
READER = {"partitions": [0], "topics": ["t"], "on_expired": "error"}
PACE = {"poll_interval": SOON, "max_poll_interval": HOUR / 60}


class Shop:
    """One of each object whose methods are called, and what its client writes."""

    def __init__(self, directory):
        self.written = []
        self.client = Client(FaultyStore(around=self._note))
        config = cqueue.QueueConfig(keyed=True, history=HOUR)
        self.queue, self.log = self.client.create_queue("q", config), self.client.create_log("l")
        self.letters, self.schedules = self.queue.dead_letters, self.queue.schedules
        self.id = self.queue.send(b"x", delay=HOUR)
        self.queue.send_many([cqueue.Message(b"x")] * 2)
        self.delayed = cqueue.DelayQueue(self.client, "q")
        self.consumer = self.queue.consumer()
        (self.message,) = self.consumer.receive(1, HOUR)
        self.follower = self.log.follow()
        self.subscription = self.client.subscribe("l", name="s", listeners=[print])
        self.spool = spools.Spool(directory)
        self.spool.append("t", b"x").result()
        self.spooled, self.spooled_log = (
            self.client.queue("q", spool=self.spool),
            self.client.log("l", spool=self.spool),
        )
        self.written.clear()

    def _note(self, operation, do):
        name = type(operation).__name__
        self.written += [] if name.startswith(READS) else [name]
        return do()

    @property
    def everything(self):
        """What is stored, here and on the disk."""
        spooled = [(one.topic, one.end, one.progress) for one in self.spool.status() if one.end]
        return self.written, spooled


def calls(shop):
    """Methods, each with an argument for every parameter. A flag is true or false, as anywhere in Python."""
    one, several = {"message_id": shop.id}, {"message_ids": [shop.id]}
    queue, letters, delayed, spool = shop.queue, shop.letters, shop.delayed, shop.spool
    yield shop.client.queue, {"name": "q", "linger": SOON, "spool": None}
    yield shop.client.queue, {"name": "q", "spool": spool}
    yield shop.client.create_queue, {"name": "new", "config": None}
    yield shop.client.delete_queue, {"name": "gone"}
    yield shop.client.log, {"name": "l", "spool": None}
    yield shop.client.log, {"name": "l", "spool": spool}
    yield shop.client.create_log, {"name": "new", "config": None}
    yield shop.client.delete_log, {"name": "gone"}
    yield shop.client.subscriptions, {"log": "l"}
    yield shop.client.delete_subscription, {"log": "l", "name": "gone"}
    yield (
        shop.client.subscribe,
        {
            **READER, **PACE, "log": "l", "name": "new", "listeners": [print], "start": "earliest",
            "wait": None, "max_attempts": 5, "checkpoint_interval": SOON, "checkpoint_records": 1,
            "buffer": 1, "on_event": print,
        },
    )  # fmt: skip
    yield queue.send, MESSAGE
    yield queue.consumer, {**PACE, "prefetch": 0, "wake": print}
    for method in (queue.find, queue.result, queue.cancel, delayed.ack, delayed.get, delayed.remove):
        yield method, one
    for method in (queue.find_many, queue.cancel_many):
        yield method, several
    yield queue.reschedule, {**one, "due": HOUR}
    yield queue.reschedule_many, {**several, "due": HOUR}
    yield queue.set_priority, {**one, "priority": 1}
    yield queue.set_priority_many, {**several, "priority": 1}
    yield queue.extend, {**one, "duration": HOUR}
    yield queue.extend_many, {**several, "duration": HOUR}
    yield queue.get_by_key, {"key": "k"}
    yield queue.list_by_key, {"key": "k", "limit": 5, "after": None}
    yield queue.delete_by_key, {"key": "k"}
    yield queue.reschedule_by_key, {"key": "k", "due": HOUR}
    yield (
        queue.history,
        {**one, "key": "k", "worker": "w", "schedule": "s", "state": "dead", "since": NOW, "limit": 5},
    )
    yield queue.peek, {"limit": 5}
    yield queue.exists, {"where": None, "max_rows": 5}
    yield queue.list, {"where": None, "limit": 5, "token": None}
    yield letters.list, {**TEXTS, "limit": 5}
    yield letters.groups, TEXTS
    yield letters.get, {"letter_id": shop.id}
    yield letters.redrive, {**TEXTS, "letter_ids": None, "rate": 1.0, "max_redrives": 1}
    for method in (letters.redrive, letters.drop):
        for choice in ({"everything": True}, {"kind": "x"}, {"letter_ids": [shop.id]}):
            yield method, choice
    for method in (shop.schedules.get, shop.schedules.pause, shop.schedules.resume, shop.schedules.remove):
        yield method, {"key": "gone"}
    yield shop.consumer.receive, {"max_messages": 1, "wait": timedelta()}
    yield shop.message.nack, {"delay": HOUR}
    yield shop.message.snooze, {"delay": HOUR}
    yield shop.message.extend, {"duration": HOUR}
    yield shop.message.dead, {"reason": "x", "headers": {"a": "b"}}
    for method in (shop.consumer.ack, shop.consumer.ack_async, shop.consumer.nack):
        yield method, {"messages": [shop.message]}
    yield delayed.push, {"messages": []}
    yield delayed.ensure, {"message": cqueue.Message(b"x", key="k")}
    yield delayed.pop, {"count": 1, "wait": timedelta()}
    yield delayed.peek, {"count": 1}
    yield delayed.set_unack_timeout, {**one, "timeout": HOUR}
    yield delayed.set_timeout, {**one, "timeout": HOUR}
    yield shop.log.append, RECORD
    yield shop.log.scan, {**READER, "start": "earliest", "end": None, "limit": 5}
    yield shop.log.follow, {**READER, "start": "latest", "poll_interval": SOON}
    yield shop.follower.poll, {"wait": timedelta()}
    yield shop.subscription.stop, {"timeout": timedelta()}
    yield shop.subscription.seek, {"start": "earliest", "on_expired": "error"}
    yield spool.append, {"topic": "t", "payload": b"x", "queue_id": 0}
    yield spool.append_many, {"topic": "t", "payloads": [b"x"], "queue_id": 0}
    yield spool.pull, {"topic": "t", "queue_id": 0, "offset": 0, "max_count": 5}
    yield spool.records, {"topic": "t", "queue_id": 0, "offset": 0}
    yield spool.wait, {"topic": "t", "queue_id": 0, "offset": 0, "timeout_s": 0.0}
    yield spool.progress, {"topic": "t", "queue_id": 0}
    yield spool.end, {"topic": "t", "queue_id": 0}
    yield spool.commit, {"topic": "t", "queue_id": 0, "offset": 1}
    yield shop.spooled.send, MESSAGE
    yield shop.spooled.send_async, MESSAGE
    yield shop.spooled.flush, {"wait": HOUR}
    yield shop.spooled_log.append, RECORD
    for values in (options.SpoolOptions, cqueue.QueueConfig, cqueue.LogConfig):
        yield values, {name: getattr(values(), name) for name in inspect.signature(values).parameters}
    yield options.SpoolOptions, {"retention": HOUR, "expire_unconsumed": True}


def allows(hint, value):
    """Whether an annotation allows a value, whatever its range."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in {typing.Union, types.UnionType}:
        return any(allows(one, value) for one in inner)
    if origin is typing.Literal:
        return value in inner
    if origin is collections.abc.Callable or getattr(hint, "__name__", "") == "wait_base":
        return callable(value)
    if origin is not None:
        return allows_several(inner, value)
    exact = {int: {int}, float: {int, float}, bool: {bool}, type(None): {type(None)}}.get(hint)
    return type(value) in exact if exact else hint is typing.Any or isinstance(value, hint)


def allows_several(inner, value):
    """Whether a mapping, or what is iterated over, may be this. inner: what is allowed in it."""
    if isinstance(value, dict) and len(inner) > 1:
        return all(allows(inner[0], name) and allows(inner[1], each) for name, each in value.items())
    return isinstance(value, list | dict) and len(inner) == 1 and all(allows(inner[0], one) for one in value)


def hints_of(method):
    names = {name: getattr(cqueue, name) for name in cqueue.__all__} | vars(sys.modules["tenacity.wait"])
    names |= (
        vars(spools)
        | vars(sys.modules["cqueue.spool.forward_queue"])
        | vars(sys.modules["cqueue.spool.forward_log"])
    )
    if isinstance(method, type):
        method = method.__init__
    return typing.get_type_hints(method, vars(sys.modules[method.__module__]), names)


def test_every_parameter_refuses_what_its_annotation_does_not_allow(tmp_path):
    shop = Shop(tmp_path)
    before, accepted = repr(shop.everything), []
    for method, arguments in calls(shop):
        hints = hints_of(method)
        for name in arguments:
            for wrong in [one for one in OTHER if not allows(hints[name], one)]:
                try:
                    result = method(**{**arguments, name: wrong})
                    if inspect.isgenerator(result):
                        list(result)
                    why = "accepted"
                except BadInput:
                    why = ""
                except Exception as exc:  # noqa: BLE001 - all of them are shown together
                    why = repr(exc)
                if repr(shop.everything) != before:
                    why, before = f"{why} and written", repr(shop.everything)
                if why:
                    accepted.append(f"{method.__qualname__}({name}={wrong!r}): {why}")
    shop.client.close()
    shop.spool.close()
    assert not accepted, "\n".join(accepted)
