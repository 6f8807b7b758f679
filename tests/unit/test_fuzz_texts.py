"""Whatever text stands in an id, a URL, a definition or an option: a value, or the error that is promised.

No other exception may come: it would end a thread, or be a traceback in place of an answer.
"""

import json
import string
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
import typer
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import cqueue
from cqueue import errors
from cqueue import settings as settings_of
from cqueue.cli import bodies, log_read, values
from cqueue.config import QueueConfig
from cqueue.dead_letters import DeadLetter
from cqueue.dispatcher.application import import_string
from cqueue.dispatcher.schedules import cron, triggers
from cqueue.dispatcher.schedules.definition import FiringId, ScheduleDefinition
from cqueue.dispatcher.service import membership
from cqueue.log.config import LogConfig
from cqueue.log.http_push import HttpPush
from cqueue.log.protocol.subscription_definition import Origin
from cqueue.log.records import LogId
from cqueue.message import MessageId
from cqueue.runtime.urls import parse_url
from cqueue.schema import options as schema_options
from cqueue.store.control import WorkerRow
from cqueue.store.decode import is_object
from cqueue.store.operations import WideRow
from cqueue.store.quarantine import parse_address
from cqueue.testing import events
from tests.fix_dispatcher import until
from tests.properties import examples

FUZZ = settings(max_examples=examples(60), deadline=None)
TEXT = st.text(max_size=40)
NESTED = ["[" * 30_000, '{"a":' * 15_000, "9" * 5000, '{"schedule":' + "[" * 30_000]
"""Texts at which `json.loads` raises what few expect."""
NUMBERS = st.integers(-(2**70), 2**70) | st.floats(allow_nan=True, allow_infinity=True)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT | st.just(10**400),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(TEXT, inside, max_size=3),
    max_leaves=8,
)


def damaged(good):
    """Texts: any, any JSON, and a good JSON object with a value that is gone or another."""
    known = json.loads(good)
    keys = st.sampled_from(sorted(known))
    changed = st.dictionaries(keys, JSON, min_size=1, max_size=2).map(lambda more: json.dumps(known | more))
    fewer = keys.map(lambda gone: json.dumps({key: value for key, value in known.items() if key != gone}))
    return st.sampled_from(NESTED) | TEXT | JSON.map(json.dumps) | changed | fewer


# Of rows, the store checks that a text is a JSON object, and reports others as damaged: `is_object`.


def accepts(allowed, call, *args):
    """Call; an error of these classes is an answer too."""
    try:
        return call(*args)
    except allowed:
        return None


# ── Ids ──

ID = st.text(string.ascii_letters + string.digits + "-_", max_size=80)


@FUZZ
@given(TEXT | ID)
def test_any_text_as_an_id(text):
    for kind, error in ((MessageId, errors.InvalidMessageId), (LogId, errors.InvalidLogId)):
        found = accepts(error, kind(text).locate)
        assert found is None or kind.of(*found) == text


@FUZZ
@given(st.integers(-(2**63), 2**63 - 1), st.integers(-1, 999), st.integers(0, 9), st.integers(0, 2**124 - 1))
def test_a_real_id_with_one_character_changed(time_shard, shard, priority, id_):
    text = MessageId.of(WideRow("a@b", time_shard, shard), priority, id_)
    for place in range(0, len(text), 7):
        other = text[:place] + ("A" if text[place] != "A" else "B") + text[place + 1 :]
        accepts(errors.InvalidMessageId, MessageId(other).locate)


@FUZZ
@given(TEXT | st.lists(TEXT, min_size=1, max_size=6).map(lambda parts: "/".join(["messages", *parts])))
def test_any_text_as_the_address_of_a_row(text):
    accepts(errors.BadInput, parse_address, text)


# ── URLs and settings ──

PARTS = st.text(string.ascii_lowercase + string.digits + ":@/?#[],%&=._- é", max_size=30)


@FUZZ
@given(st.sampled_from(["", "cassandra://", "memory://", "http://", "cassandra://h/"]), PARTS | TEXT)
def test_any_url(scheme, rest):
    accepts(errors.ConfigError, parse_url, scheme + rest, settings_of.URL_KEYS)
    accepts(errors.ConfigError, lambda: settings_of.load(scheme + rest, environ={}))


def test_a_port_of_thousands_of_digits():
    with pytest.raises(errors.ConfigError, match="port"):
        parse_url(f"cassandra://h:{'9' * 5000}/a", ())


@FUZZ
@given(st.sampled_from(settings_of.FILE_KEYS), TEXT | NUMBERS.map(str))
def test_any_value_of_any_setting(key, value):
    name = settings_of.ENV_PREFIX + key.upper()
    accepts(errors.ConfigError, lambda: settings_of.load(environ={name: value}))


@FUZZ
@given(st.text(string.ascii_letters + string.digits, min_size=6, max_size=20), PARTS, PARTS)
def test_no_error_quotes_a_password(secret, before, after):
    """As far as the URL has the form that marks the password as one."""
    secret = f"hush{secret}"
    for url in (f"cassandra://me:{secret}@{after}", f"cassandra://{before}:{secret}@h/{after}"):
        try:
            settings_of.load(url, environ={})
        except errors.ConfigError as exc:
            said = str(exc)
        else:
            said = ""
        assert secret not in said


@FUZZ
@given(TEXT | st.sampled_from(["http://[", "https://[::1", "http://a]/", "http://℀.com"]))
def test_any_address_to_push_to(url):
    push = accepts(errors.BadInput, HttpPush, url)
    assert push is None or repr(push)


# ── Times, durations, cron ──

FIELD = st.text(string.digits + "*/,-LW#?MONJANhr ", max_size=8) | TEXT


@FUZZ
@given(st.lists(FIELD, min_size=4, max_size=7).map(" ".join) | TEXT)
def test_any_cron_expression(expression):
    usual = accepts(errors.ConfigError, cron.check_expression, expression)
    if usual is not None:
        zone, after = cron.check_zone("Europe/Berlin"), datetime(2026, 3, 28, 23, tzinfo=UTC)
        found = cron.next_instant(usual, zone, after)
        assert found is None or found > after


@settings(max_examples=15, deadline=None)  # each wrong name is compared with 600 right ones
@given(TEXT | st.sampled_from(["../../etc/passwd", "/etc/passwd", "a\0b", "Europe", "x" * 5000]))
def test_any_time_zone(name):
    accepts(errors.ConfigError, cron.check_zone, name)


@FUZZ
@given(
    TEXT
    | st.from_regex(r"[0-9]{1,400}(\.[0-9]+)?(ms|[smhd])?", fullmatch=True)
    | st.integers(0, 10**8).map("{}d".format)
    | st.datetimes().map(str)
)
def test_any_duration_time_and_position(text):
    for parse in (values.parse_duration, values.parse_moment, log_read.parse_position):
        accepts(typer.BadParameter, parse, text)
    accepts(typer.BadParameter, values.parse_pairs, [text])


@pytest.mark.parametrize("text", NESTED)
def test_arguments_on_the_command_line_that_are_no_json(text):
    accepts(errors.BadInput, bodies.encoded, text)


# ── What stands in rows and messages as JSON ──

GOOD_DEFINITION = ScheduleDefinition(
    trigger=triggers.Cron("0 7 * * *", timezone="Europe/Berlin"), body=b"x", start_ms=1_800_000_000_000
)


@FUZZ
@given(damaged(GOOD_DEFINITION.to_json()).filter(is_object))
def test_any_definition_of_a_schedule(text):
    accepts(errors.ConfigError, ScheduleDefinition.from_json, text)


@FUZZ
@given(
    st.sampled_from(
        [
            triggers.RunOnce(delay=timedelta(hours=1)),
            triggers.Repeating(timedelta(hours=1)),
            GOOD_DEFINITION.trigger,
        ]
    ),
    st.data(),
)
def test_any_trigger_of_a_definition(trigger, data):
    good = json.loads(replace(GOOD_DEFINITION, trigger=trigger).to_json())
    text = data.draw(damaged(json.dumps(good["trigger"])))
    with_it = json.dumps(good)[:-1] + f', "trigger": {text}}}'
    assume(is_object(with_it))
    accepts(errors.ConfigError, ScheduleDefinition.from_json, with_it)


@FUZZ
@given(
    damaged(FiringId("a", 1, 2, 3, 4).to_json())
    | (st.lists(NUMBERS | TEXT, min_size=4, max_size=4) | JSON).map(
        lambda values: json.dumps({"schedule": "a", "firing": values})
    )
)
def test_any_trigger_of_a_message(text):
    """A message that only looks like a firing is none, and its handler runs."""
    found = FiringId.parse(text)
    assert found is None or isinstance(found.time_ms, int)


@FUZZ
@given(damaged(QueueConfig().to_json()), damaged(LogConfig().to_json()))
def test_any_configuration(queue, log):
    accepts(errors.DamagedRow, QueueConfig.from_json, queue)
    accepts(errors.DamagedRow, LogConfig.from_json, log)


@FUZZ
@given(damaged(Origin(3, 5, {1: 2}).to_json()).filter(is_object))
def test_any_origin_of_a_subscription(text):
    accepts((ValueError, KeyError, TypeError, AttributeError, OverflowError), Origin.from_json, text)


WORKER = membership.Worker(
    name="a", host="h", pid=1, app="x", queues=("q",), tasks=("t",), threads=1, version="1", started=1.0,
    state="running", running=1, unstarted=2, counters={"acked": 1}, seen=2.0,
)  # fmt: skip


@FUZZ
@given(damaged(WORKER.row().info).filter(is_object))
def test_any_heartbeat(text):
    """Another version may write anything; a thread that cannot read it would share no work any more."""
    worker = membership.parse(WorkerRow("a", text, 1))
    assert worker.polls("q") in {True, False}
    assert membership.is_orphan("t", "q", [worker]) in {True, False}
    assert json.loads(worker.row().info)


@FUZZ
@given(damaged(json.dumps({"operation": "send", "messages": [{}], "wall_ns": 1})))
def test_any_line_of_a_history(text):
    accepts(events.HistoryError, events._parse, text.encode(errors="surrogatepass"), "here")


@FUZZ
@given(
    TEXT
    | damaged('{"class": "LeveledCompactionStrategy", "min_threshold": 4}')
    | st.from_regex(r"dc=[0-9]{1,5000}", fullmatch=True)
)
@example("dc=" + "9" * 5000)
@example('{"class": "x", "n": ' + "9" * 5000 + "}")
def test_any_option_of_a_schema(text):
    for name in ("compaction", "replication"):
        value = accepts(errors.ConfigError, getattr(schema_options, f"parse_{name}"), text)
        accepts(errors.ConfigError, partial(schema_options.Options, **{name: value}))


@FUZZ
@given(TEXT, TEXT)
def test_any_target_of_the_daemon(module, name):
    accepts(import_string.TargetError, import_string.load, f"{module}:{name}")


# ── What anybody may send ──

DEAD_HEADERS = st.sampled_from(
    [
        "cqueue-dead-reason",
        "cqueue-dead-queue",
        "cqueue-dead-attempts",
        "cqueue-dead-id",
        "cqueue-dead-body-lost",
    ]
)


@settings(max_examples=examples(30), deadline=None)
@given(st.dictionaries(DEAD_HEADERS | TEXT, TEXT | NUMBERS.map(str) | st.just("9" * 5000), max_size=5))
def test_any_headers_of_what_stands_in_a_dead_letter_queue(headers):
    """Letters that somebody has sent there by hand are listed, redriven and dropped like others."""
    with cqueue.connect("memory://") as client:
        queue = client.create_queue("mail")
        if accepts(errors.BadInput, lambda: client.queue("mail.dead").send(b"x", headers=headers)) is None:
            return
        (letter,) = queue.dead_letters.list()
        assert isinstance(letter, DeadLetter)
        assert repr(letter)
        result = queue.dead_letters.redrive(everything=True)
        assert len(result.done) + len(result.failed) == 1


ENTRIES = st.builds(
    lambda texts, firing: cqueue.Message(
        b"{}", trigger=json.dumps({"schedule": "a", "firing": firing}), **texts
    ),
    st.dictionaries(st.sampled_from(["task", "key", "codec"]), st.text(min_size=1, max_size=30)),
    st.lists(NUMBERS | TEXT, min_size=4, max_size=4) | JSON,
)


@settings(max_examples=5, deadline=None)
@given(st.lists(ENTRIES, min_size=10, max_size=10))
def test_any_task_key_codec_and_trigger(entries):
    """What a message says of itself runs, waits or dies; the dispatcher goes on with the next one."""
    ran = []
    with cqueue.connect("memory://") as client:
        queue = client.create_queue("mail", QueueConfig(max_attempts=2))
        queue.send_many([*entries, cqueue.Message(b"next")])
        with cqueue.Dispatcher(
            queue, lambda message, _: ran.append(message.body), threads=1, consumers=1
        ) as one:
            until(lambda: b"next" in ran)
            assert one.drain(timedelta(seconds=20))
            assert not one.dead_threads()
        assert queue.stats().claimed == 0
