"""Dead letters: looked at, sent back as what they were, dropped. None is lost, and none comes back twice."""

import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from threading import Barrier
from types import SimpleNamespace

import pytest

import cqueue
from cqueue import ids
from cqueue.client import Client
from cqueue.errors import (
    Closed,
    LeaseLost,
    LetterNotFound,
    NotDone,
    OutcomeUnknown,
    SendUnknown,
    Unavailable,
)
from cqueue.message import MessageId
from cqueue.protocol.send import INLINE_BODY
from cqueue.runtime.firing_id import FiringId
from cqueue.runtime.rendezvous import own_name
from cqueue.sending import redriving
from cqueue.store.operations import (
    ChangeQueue,
    DeleteBodies,
    DeleteMessages,
    InsertMessages,
    ReadMessages,
    ReadShards,
    SlotState,
)
from tests.faults.stores import open_client
from tests.faulty_store import FaultyStore
from tests.fix_dispatcher import until
from tests.fix_store import brief_store
from tests.unit.holding import held

SOON = timedelta(seconds=10)
HOUR_US = 3_600_000_000


class Lying(FaultyStore):
    """Fails as `error_of` says of an operation: before it is executed, or with `after`, when it is."""

    def __init__(self, store):
        super().__init__(store)
        self.error_of = lambda _: None
        self.before = lambda _: None
        self.after = False
        self.log = []

    def together(self, operations):
        return [self._one(operation) for operation in operations]

    def _one(self, operation):
        self.log.append(operation)
        self.before(operation)
        error = self.error_of(operation)
        if error is not None and not self.after:
            return error
        (result,) = self.store.together((operation,))
        return error or result

    @contextmanager
    def failing(self, kind, error, *, after=False):
        """Meanwhile operations of this kind fail."""
        self.error_of = lambda operation: error if isinstance(operation, kind) else None
        self.after = after
        yield
        self.error_of = lambda _: None


@pytest.fixture(scope="module")
def cassandra_client(keyspace):
    with open_client(keyspace.url, Lying) as client:
        yield client


@pytest.fixture
def memory_client():
    with Client(Lying(brief_store())) as client:
        yield client


@pytest.fixture
def store(client):
    return client._driver.store


@pytest.fixture
def queue(client):
    return client.create_queue(f"q-{secrets.token_hex(4)}", cqueue.QueueConfig(shards=1))


def received(queue, count):
    """Ack and return `count` messages; fail if fewer or more come."""
    found = []
    with queue.consumer() as consumer:
        while len(found) < count:
            got = consumer.receive(count - len(found), wait=SOON)
            assert got, f"only {len(found)} came"
            found += got
        assert consumer.receive(10) == []
        assert queue.stats(exact=True).live == count
        consumer.ack(found)
    return found


def bury(queue, *messages, reason="Timeout: 30 s", headers=None):
    """Dead letters of these messages; the ids that they had."""
    sent = queue.send_many(list(messages)).ids
    with queue.consumer() as consumer:
        left = len(messages)
        while left:
            for message in consumer.receive(left, wait=SOON):
                message.dead(reason, headers)
                left -= 1
    return sent


def task(number, **options):
    return cqueue.Message(b"%d" % number, task="mail", **options)


# ── look ──


def test_a_letter_says_what_it_was_and_why_it_died(queue):
    """Task, key, codec and headers as sent; reason, attempts, time and traceback of its death."""
    whole = {"task": "mail", "key": "user-7", "codec": "json", "priority": 3, "headers": {"a": "1"}}
    (original,) = bury(
        queue, cqueue.Message(b"[]", **whole), headers={"cqueue-dead-traceback": "Traceback…\nValueError: x"}
    )
    (letter,) = queue.dead_letters
    assert {name: getattr(letter, name) for name in whole} == whole
    assert (letter.reason, letter.attempts, letter.original_id) == ("Timeout: 30 s", 1, original)
    assert (letter.traceback, letter.body, letter.size) == ("Traceback…\nValueError: x", b"[]", 2)
    assert (letter.held, letter.body_lost) == (False, False)
    assert abs(letter.died_at - queue.now) < timedelta(minutes=1)
    assert queue.dead_letters.get(letter.id) == letter == queue.dead_letters.get(original)


def test_a_letter_that_was_sent_by_hand(client, queue):
    """What no burial has written is not known; it is sent to the queue as any other."""
    client.queue(queue.dead_letter_name).send(b"x")
    (letter,) = queue.dead_letters.list()
    assert (letter.original_id, letter.attempts, letter.reason, letter.traceback) == (None, None, "", None)
    (buried,) = bury(queue, task(0))
    assert queue.dead_letters.get(buried).body == b"0"  # its id is looked for among all letters
    assert len(queue.dead_letters.redrive(iter([letter.id, buried])).sent) == 2
    assert sorted(message.body for message in received(queue, 2)) == [b"0", b"x"]


def test_letters_come_oldest_first_and_are_filtered(queue):
    """Whatever their priority; reasons by a part of them, in upper or lower case."""
    for number in range(4):
        bury(queue, task(number, priority=9 - number), reason=f"Error {number}")
    bury(queue, cqueue.Message(b"4", task="other"), reason="no such ADDRESS")
    dead = queue.dead_letters
    found = list(dead)
    assert [letter.died_at for letter in found] == sorted(letter.died_at for letter in found)
    assert {letter.body for letter in found} == {b"0", b"1", b"2", b"3", b"4"}
    assert dead.list(2) == found[:2]
    assert {letter.body for letter in dead.list(reason="error")} == {b"0", b"1", b"2", b"3"}
    assert [letter.body for letter in dead.list(reason="address")] == [b"4"]
    assert [letter.body for letter in dead.list(task="other")] == [b"4"]
    assert dead.list(task="mail", reason="address") == []


def test_more_letters_than_a_page(queue):
    """All of them, each once."""
    count = 250
    bury(queue, *(task(number, priority=number % 2) for number in range(count)))
    found = [letter.body for letter in queue.dead_letters]
    assert sorted(found, key=int) == [b"%d" % number for number in range(count)]
    assert len(queue.dead_letters.redrive(everything=True).done) == count
    assert len(received(queue, count)) == count


def test_a_large_body_is_read_when_it_is_asked_for(client, queue):
    """Listing does not read it; one that cannot be read is not done."""
    bury(queue, task(0), cqueue.Message(bytes(INLINE_BODY + 1)))
    found = queue.dead_letters.list()
    letter = max(found, key=lambda letter: letter.size)
    assert letter.size == INLINE_BODY + 1
    assert letter.body == bytes(INLINE_BODY + 1)
    wide_row, _, key = MessageId(letter.id).locate()
    client._driver.ask(DeleteBodies(wide_row, (key,)))
    with pytest.raises(NotDone, match="cannot be read"):
        letter.body  # noqa: B018


@pytest.mark.parametrize(
    "call",
    [
        lambda dead: dead.list(0),
        lambda dead: dead.list(10_001),
        lambda dead: dead.list("3"),
        lambda dead: dead.list(reason=3),
        lambda dead: dead.redrive(),
        lambda dead: dead.redrive(reason=""),
        lambda dead: dead.redrive(reason="x", kind="x"),
        lambda dead: dead.drop("x", kind=""),
        lambda dead: dead.list(kind=3),
        lambda dead: dead.drop(task=""),
        lambda dead: dead.redrive([], everything=True),
        lambda dead: dead.redrive("x", reason="y"),
        lambda dead: dead.drop(task="x", everything=True),
        lambda dead: dead.drop(),
        lambda dead: dead.get("x"),
        lambda dead: dead.redrive("nonsense"),
    ],
)
def test_what_cannot_be_meant_is_refused(queue, call):
    """Nothing is sent or dropped for a call that does not say which letters, or says it twice."""
    bury(queue, task(0))
    with pytest.raises(cqueue.BadInput):
        call(queue.dead_letters)
    assert len(queue.dead_letters.list()) == 1
    assert queue.stats(exact=True).live == 0


def test_many_ids_are_looked_up_some_at_a_time(queue, monkeypatch):
    """An operator who drops thousands by id asks Cassandra for no more than AT_ONCE rows in a statement."""
    bury(queue, *map(task, range(5)))
    own = [letter.id for letter in queue.dead_letters]
    looked = []

    def look(driver, wanted, look=redriving.look):
        looked.append(len(wanted))
        return look(driver, wanted)

    monkeypatch.setattr(redriving, "AT_ONCE", 2)
    monkeypatch.setattr(redriving, "look", look)
    assert len(queue.dead_letters.drop(own).done) == 5
    assert looked == [2, 2, 1, 2, 2, 1]


def test_an_id_without_a_letter(client, queue):
    """One that was sent back is not there any more; one of another queue never was. Nothing is sent."""
    first, second = bury(queue, task(0), task(1))
    assert len(queue.dead_letters.redrive(first).done) == 1
    alive = queue.send(b"alive")
    for missing in (first, alive):
        with pytest.raises(LetterNotFound):
            queue.dead_letters.redrive([second, missing])
    other = client.create_queue(f"{queue.name}-other").send(b"x")
    with pytest.raises(cqueue.BadInput, match="another queue"):
        queue.dead_letters.drop(other)
    with pytest.raises(cqueue.BadInput, match="is a dead-letter queue"):
        client.queue(queue.dead_letter_name).dead_letters  # noqa: B018
    assert [letter.original_id for letter in queue.dead_letters] == [second]


def test_a_repeat_after_an_unknown_outcome_learns_why_a_letter_is_gone(queue):
    """The call before may have sent it back: the error says so, and what to do with the other letters."""
    (letter,) = bury(queue, task(0))
    queue.dead_letters.redrive(letter)
    with pytest.raises(LetterNotFound, match="unknown outcome may have sent it back or dropped it"):
        queue.dead_letters.redrive(letter)


def test_groups_count_letters_by_task_and_kind_of_reason(queue):
    """A kind is what stands before the first colon, and picks its letters in a redrive."""
    for number in range(3):
        bury(queue, task(number), reason=f"KeyError: 'user-{number}'")
    bury(queue, task(3), reason="the bank is closed")
    bury(queue, cqueue.Message(b"4"), reason="KeyError: 'x'")
    letters = {letter.body: letter for letter in queue.dead_letters}
    groups = queue.dead_letters.groups()
    assert [(group.count, group.task, group.reason) for group in groups] == [
        (3, "mail", "KeyError"), (1, None, "KeyError"), (1, "mail", "the bank is closed"),
    ]  # fmt: skip
    largest = groups[0]
    assert (largest.first, largest.last) == (letters[b"0"].died_at, letters[b"2"].died_at)
    assert largest.redriven == 0
    (example,) = [letter for letter in letters.values() if letter.id == largest.example]
    assert (example.task, example.died_at) == ("mail", largest.last)  # of those of one ms, any
    assert [group.count for group in queue.dead_letters.groups(task="mail", reason="bank")] == [1]
    assert len(queue.dead_letters.redrive(task=largest.task, kind=largest.reason).done) == largest.count
    with queue.consumer() as consumer:
        left = 3
        while left:
            for message in consumer.receive(left, wait=SOON):
                message.dead("KeyError: again")
                left -= 1
    again = queue.dead_letters.groups(task="mail", reason="KeyError")
    assert [(group.count, group.redriven) for group in again] == [(3, 3)]


def test_the_kind_of_a_group_takes_its_letters_and_no_others(queue):
    """Where one group's reason is part of another's, and where it is empty; a dry run counts them."""
    reasons = ("Error: 1", "attempt 5 of 5: Error: 2", "error: 3", "KeyError: 4", "no Error", "", "x" * 300)
    for number, reason in enumerate(reasons):
        bury(queue, task(number), reason=reason)
    letters = queue.dead_letters
    groups = letters.groups()
    assert {group.reason for group in groups} == {"Error", "error", "KeyError", "no Error", "", "x" * 200}
    for group in groups:
        assert len(letters.list(kind=group.reason, task=group.task)) == group.count
        assert len(letters.redrive(kind=group.reason, dry_run=True).done) == group.count
    assert len(letters.drop(kind="Error").done) == 2
    assert len(letters.redrive(kind="").done) == 1
    assert sorted(letter.body for letter in letters) == [b"2", b"3", b"4", b"6"]


# ── who held it ──


def test_a_letter_names_its_holder_and_fence(queue):
    """The process as `cqueue workers` names it, and the fence of the delivery that ended in `dead`."""
    queue.send(b"x")
    with queue.consumer() as consumer:
        (message,) = consumer.receive(wait=SOON)
        message.dead("why")
    (letter,) = queue.dead_letters
    assert (letter.holder, letter.fence, letter.holder_lost) == (own_name(), message.fence, False)
    assert letter.headers == {}


@pytest.mark.parametrize("end", ["given back", "let expire"])
def test_a_letter_says_that_its_last_holder_was_lost(client, end):
    """One that gave it back lives; one that let it expire may have been killed. Neither is named."""
    config = cqueue.QueueConfig(shards=1, visibility=timedelta(seconds=2), max_attempts=2)
    queue = client.create_queue(f"q-{secrets.token_hex(4)}", config)
    queue.send(b"x")
    with queue.consumer() as consumer:
        (message,) = consumer.receive(wait=SOON)
        message.nack()
        (message,) = consumer.receive(wait=SOON)
        if end == "given back":
            message.nack()
        until(lambda: consumer.receive() or queue.dead_letters.list())
    (letter,) = queue.dead_letters
    assert letter.reason == "not acked in 2 attempts"
    assert (letter.holder, letter.fence, letter.holder_lost) == (None, None, end == "let expire")


def test_a_burial_that_was_cut_off_blames_nobody(client, store):
    """The holder called `dead`, and its letter was not stored: the next consumer cannot tell what it did."""
    config = cqueue.QueueConfig(shards=1, visibility=timedelta(seconds=2))
    queue = client.create_queue(f"q-{secrets.token_hex(4)}", config)
    queue.send(b"x")
    with queue.consumer() as consumer:
        (message,) = consumer.receive(wait=SOON)
        with store.failing(InsertMessages, NotDone("no replica")), pytest.raises(NotDone):
            message.dead("why")
        until(lambda: consumer.receive() or queue.dead_letters.list())
    (letter,) = queue.dead_letters
    assert (letter.holder, letter.holder_lost) == (None, False)


# ── redrive ──


def test_what_was_purged_before_its_burial_gets_no_letter(queue):
    """Also a large message, whose body the burial misses first."""
    queue.send(b"x" * 100_000)
    with queue.consumer() as consumer:
        (message,) = held(consumer)
        queue.purge()
        with pytest.raises(LeaseLost):
            message.dead("why")
    assert list(queue.dead_letters) == []


def test_a_letter_comes_back_as_what_it_was(queue):
    """Body, task, codec, key, priority and headers; without those of the burial, and as its first attempt.

    One header is new, the count of its redrives.
    """
    whole = {"task": "mail", "key": "user-7", "codec": "json", "priority": 3, "headers": {"a": "1"}}
    (original,) = bury(
        queue, cqueue.Message(b"[1]", **whole), headers={"cqueue-dead-traceback": "Traceback…"}
    )
    letter = queue.dead_letters.get(original)
    result = queue.dead_letters.redrive(original)
    assert (result.done, result.held, result.failed) == ((letter.id,), (), ())
    assert queue.find(result.sent[0]).body == b"[1]"
    (message,) = received(queue, 1)
    whole["headers"] = {"a": "1", "cqueue-redrives": "1"}
    assert {name: getattr(message, name) for name in whole} == whole
    assert (message.body, message.attempt, message.id) == (b"[1]", 1, result.sent[0])
    assert queue.dead_letters.list() == []


def test_a_firing_says_that_it_was_sent_back(queue):
    """Its schedule may have gone on, and would pass a repeat over."""
    firing_id = FiringId("nightly", 5, 3, 3_000)
    bury(queue, task(0, trigger=firing_id.to_json()))
    bury(queue, task(1, trigger="by hand"))
    queue.dead_letters.redrive(everything=True)
    triggers = {message.body: message.trigger for message in received(queue, 2)}
    assert FiringId.parse(triggers[b"0"]) == replace(firing_id, is_redriven=True)
    assert triggers[b"1"] == "by hand"


def test_a_redrive_of_nothing_alters_nothing(queue):
    """The queue gets `derived_sends` only when something is sent."""
    assert queue.dead_letters.redrive(everything=True).done == ()
    assert not queue.config.derived_sends


def test_a_task_that_is_sent_back_runs(client):
    """The whole way: it fails, is a letter with its traceback, comes back, and is done."""
    app, broken = cqueue.App(client), [True]

    @app.task(queue="shop", name="pay", retry=cqueue.Retry(max_attempts=1))
    def pay(amount, *, currency):
        if broken:
            raise ValueError("the bank is closed")
        paid.append((amount, currency))

    paid = []
    queue = client.create_queue("shop", exist_ok=True)
    id_ = pay.enqueue(5, currency="EUR")
    with app.dispatcher():
        until(queue.dead_letters.list)
    letter = queue.dead_letters.get(id_)
    assert (letter.task, letter.attempts) == ("pay", 1)
    assert "the bank is closed" in letter.traceback
    assert letter.holder == own_name()
    assert [(group.task, group.reason) for group in queue.dead_letters.groups()] == [("pay", "ValueError")]
    broken.clear()
    assert len(queue.dead_letters.redrive(task="pay").done) == 1
    with app.dispatcher():
        until(lambda: paid)
    assert paid == [(5, "EUR")]
    assert queue.dead_letters.list() == []
    client.delete_queue("shop")


@pytest.mark.parametrize("by", ["reason", "task", "letters", "originals", "a text"])
def test_which_letters_are_sent_back(queue, by):
    """By reason, task, the letters' ids or those that the messages had; the others stay."""
    wanted = bury(queue, task(0), task(1), reason="Timeout: 30 s")
    bury(queue, cqueue.Message(b"2", task="other"), reason="no such address")
    dead = queue.dead_letters
    letter_ids = [letter.id for letter in dead.list(task="mail")]
    result = {
        "reason": lambda: dead.redrive(reason="timeout"),
        "task": lambda: dead.redrive(task="mail"),
        "letters": lambda: dead.redrive(letter_ids),
        "originals": lambda: dead.redrive([*wanted, *letter_ids, wanted[0]]),
        "a text": lambda: next(iter([dead.redrive(id_) for id_ in wanted])),
    }[by]()
    assert set(result.done) <= set(letter_ids)
    assert [letter.body for letter in dead] == [b"2"]
    assert sorted(message.body for message in received(queue, 2)) == [b"0", b"1"]


def test_an_application_starts_as_before_after_a_redrive(client):
    """A program that creates the queue at each start, with its configuration, finds the queue as wanted."""
    config = cqueue.QueueConfig(max_attempts=3)
    queue = client.create_queue(f"q-{secrets.token_hex(4)}", config)
    bury(queue, task(0))
    queue.dead_letters.redrive(everything=True)
    assert client.create_queue(queue.name, config, exist_ok=True).config.derived_sends
    with pytest.raises(cqueue.QueueExists):
        client.create_queue(queue.name, cqueue.QueueConfig(max_attempts=4), exist_ok=True)


def test_a_redrive_keeps_its_rate(queue):
    """From the first letter on; all come."""
    bury(queue, *map(task, range(12)))
    began = time.monotonic()
    result = queue.dead_letters.redrive(everything=True, rate=20)
    assert time.monotonic() - began >= 10 / 20  # two at once, every tenth of a second
    assert (len(result.done), result.failed) == (12, ())
    assert len(received(queue, 12)) == 12


@pytest.mark.parametrize(
    ("rate", "sizes", "waits"),
    [
        (None, [250, 50], [0, 0]),
        (0.5, [1] * 300, [0, *[2.0] * 299]),
        (1000, [100] * 3, [0, 0.1, 0.1]),
        (5000, [250, 50], [0, 0.05]),
    ],
)
def test_chunks_of_a_rate(monkeypatch, rate, sizes, waits):
    """A tenth of a second's worth at once, one letter at least, and no more than are held in memory."""
    clock = FakeTime()
    monkeypatch.setattr(redriving, "time", clock)
    monkeypatch.setattr(redriving.waiting, "sleep", clock.sleep)
    assert [len(chunk) for chunk in redriving.chunks(range(300), rate)] == sizes
    assert clock.slept == pytest.approx(waits)


def test_a_rate_catches_nothing_up(monkeypatch):
    """A minute in which Cassandra was away is not followed by a minute's worth at once."""
    clock = FakeTime()
    monkeypatch.setattr(redriving, "time", clock)
    monkeypatch.setattr(redriving.waiting, "sleep", clock.sleep)
    chunks = redriving.chunks(range(30), 100)
    next(chunks)
    clock.now += 60
    next(chunks)
    next(chunks)
    assert clock.slept == pytest.approx([0, 0, 0.1])


class FakeTime:
    def __init__(self):
        self.now, self.slept = 0.0, []

    def monotonic(self):
        return self.now

    def sleep(self, seconds, *, cancellable):
        assert cancellable  # else an asyncio task that is cancelled would go on for hours
        self.now += seconds
        self.slept.append(seconds)


def test_a_limit_of_redrives_is_kept_on_the_message(queue):
    """Across calls: a header counts, the letter says how often, one over the limit stays and is told."""
    queue.send_many([cqueue.Message(b"poison", headers={"a": "1"})])
    for times in range(3):
        with queue.consumer() as consumer:
            (message,) = consumer.receive(wait=SOON)
            assert message.headers == ({"a": "1", "cqueue-redrives": f"{times}"} if times else {"a": "1"})
            message.dead("why")
        (letter,) = queue.dead_letters
        assert (letter.redrives, letter.headers) == (times, {"a": "1"})
        if times < 2:
            assert len(queue.dead_letters.redrive(everything=True, max_redrives=2).sent) == 1
    for dry_run in (True, False):
        result = queue.dead_letters.redrive(everything=True, max_redrives=2, dry_run=dry_run)
        assert (result.done, [(id_, type(error)) for id_, error in result.failed]) == (
            (), [(letter.id, cqueue.RedriveLimit)],
        )  # fmt: skip
    assert [one.id for one in queue.dead_letters] == [letter.id]
    assert len(queue.dead_letters.redrive(everything=True, max_redrives=3).done) == 1
    assert [message.body for message in received(queue, 1)] == [b"poison"]


@pytest.mark.parametrize(
    "headers", [{f"h{n}": "" for n in range(64)}, {"long": "x" * (16 * 1024 - 10)}], ids=["many", "long"]
)
def test_a_message_that_has_no_room_for_the_count(queue, headers):
    """It comes back whole without a limit; with one it stays, or the limit would never hold."""
    bury(queue, cqueue.Message(b"full", headers=headers))
    result = queue.dead_letters.redrive(everything=True, max_redrives=1)
    assert [(type(error), "no room" in str(error)) for _, error in result.failed] == [
        (cqueue.RedriveLimit, True)
    ]
    assert len(queue.dead_letters.redrive(everything=True).done) == 1
    assert [message.headers for message in received(queue, 1)] == [headers]


@pytest.mark.parametrize(
    "limits",
    [{"rate": wrong} for wrong in (0, -1, 0.0001, 1e6, float("nan"), True, "5")]
    + [{"max_redrives": wrong} for wrong in (0, -1, 1.0, True, "5", 10**7)],
)
def test_a_limit_out_of_its_range_sends_nothing(limits):
    with cqueue.connect("memory://") as client:
        queue = client.create_queue("q")
        bury(queue, task(0))
        with pytest.raises(cqueue.BadInput):
            queue.dead_letters.redrive(everything=True, **limits)
        assert len(queue.dead_letters.list()) == 1


@pytest.mark.parametrize("verb", ["redrive", "drop"])
def test_a_dry_run_writes_nothing(queue, store, verb):
    """It says what would be done, and the queue is not even altered."""
    originals = bury(queue, *map(task, range(3)))
    store.log.clear()
    result = getattr(queue.dead_letters, verb)(originals, dry_run=True)
    assert sorted(result.done) == sorted(letter.id for letter in queue.dead_letters)
    assert result.sent == ()
    written = InsertMessages | DeleteMessages | DeleteBodies | ChangeQueue
    assert not [operation for operation in store.log if isinstance(operation, written)]
    assert not queue.config.derived_sends


def test_a_letter_that_is_held_stays(client, queue):
    """Somebody is working on it; one that was given back is free."""
    bury(queue, *map(task, range(3)))
    with client.queue(queue.dead_letter_name).consumer() as consumer:
        first, second = consumer.receive(2, wait=SOON)
        second.nack()
        assert [letter.held for letter in queue.dead_letters].count(True) == 1
        for call in (queue.dead_letters.redrive, queue.dead_letters.drop):
            result = call(first.id)
            assert (result.done, result.held, result.failed) == ((), (first.id,), ())
            assert not queue.config.derived_sends  # nothing is sent, so nothing is altered
        assert queue.dead_letters.redrive(everything=True).held == (first.id,)
        first.ack()
    assert len(received(queue, 2)) == 2
    assert queue.dead_letters.list() == []


@pytest.mark.parametrize("failure", [cqueue.OutcomeUnknown, cqueue.Unavailable, cqueue.Refused])
def test_letters_are_not_sent_where_the_queue_may_not_be_altered(queue, monkeypatch, failure):
    """Nor is their outcome unknown, whatever became of the change, which is not tried again for others."""
    bury(queue, *map(task, range(300)))
    catalog, tries = queue.dead_letters._catalog, []
    alter = catalog.alter

    def fail(*change):
        tries.append(change)
        alter(*change)
        raise failure("no answer")

    monkeypatch.setattr(catalog, "alter", fail)
    failed = queue.dead_letters.redrive(everything=True).failed
    assert len(tries) == 1
    assert len(failed) == 300
    assert all(isinstance(error, cqueue.NotDone) for _, error in failed)
    assert len(queue.dead_letters.list(limit=1000)) == 300


@pytest.mark.parametrize(
    ("state", "left_ms", "is_held"),
    [
        (SlotState.CLAIMED, 1, True),
        (SlotState.CLAIMED, -499, True),
        (SlotState.CLAIMED, -500, False),
        (SlotState.WAITING, 60_000, False),
    ],
)
def test_a_letter_is_held_until_its_visibility_timeout_passes(state, left_ms, is_held):
    """By every clock, so half a second longer; one that waits for its next attempt is held by nobody."""
    found = SimpleNamespace(slot=SimpleNamespace(state=state, due_ms=9_000 + left_ms))
    assert redriving.is_held(found, 9_000_000, 500_000) is is_held


def test_a_letter_without_its_body_stays(client, queue):
    """It is not the message that it was; the others come back."""
    lost, later = (cqueue.Message(bytes(INLINE_BODY + 1), task="large") for _ in range(2))
    (id_,) = queue.send_many([lost]).ids
    wide_row, _, key = MessageId(id_).locate()
    with queue.consumer() as consumer:
        (message,) = consumer.receive(wait=SOON)
        client._driver.ask(DeleteBodies(wide_row, (key,)))
        message.dead("Timeout")
    (second,) = bury(queue, later)
    wide_row, _, key = MessageId(queue.dead_letters.get(second).id).locate()
    client._driver.ask(DeleteBodies(wide_row, (key,)))
    bury(queue, task(0))
    for dry_run in (True, False):
        result = queue.dead_letters.redrive(everything=True, dry_run=dry_run)
        assert len(result.done) == 1
        assert sorted(str(error) for _, error in result.failed) == [
            "its body cannot be read", "its body is lost",
        ]  # fmt: skip
        assert {type(error) for _, error in result.failed} == {NotDone}
    assert queue.dead_letters.get(id_).body_lost
    assert len(queue.dead_letters.list()) == 2


def test_an_unknown_send_is_told_of_each_letter_and_repeated_without_a_copy(queue, store):
    """All messages were stored, and no answer came: the letters stay until a repeat, which makes no copy."""
    originals = bury(queue, *map(task, range(5)))
    with store.failing(InsertMessages, OutcomeUnknown("no answer"), after=True):
        result = queue.dead_letters.redrive(originals)
    assert (result.done, result.sent, len(result.failed)) == ((), (), 5)
    assert {type(error) for _, error in result.failed} == {SendUnknown}
    assert sorted(id_ for id_, _ in result.failed) == sorted(letter.id for letter in queue.dead_letters)
    first = received(queue, 5)  # they are there all the same, and are acked before the repeat
    again = queue.dead_letters.redrive(originals)
    assert set(again.sent) == {message.id for message in first}
    assert received(queue, 0) == []
    assert queue.dead_letters.list() == []


def test_a_letter_that_cannot_be_deleted_is_told_and_repeated_without_a_copy(queue, store):
    """It is in both queues for a while, never in none."""
    bury(queue, *map(task, range(3)))
    with store.failing(DeleteMessages, Unavailable("too few replicas")):
        result = queue.dead_letters.redrive(everything=True)
    assert [str(error) for _, error in result.failed] == [
        "it is sent, but not yet deleted: too few replicas"
    ] * 3
    assert {type(error) for _, error in result.failed} == {OutcomeUnknown}
    assert (result.done, result.sent) == ((), ())
    assert len(queue.dead_letters.list()) == 3
    assert len(queue.dead_letters.redrive(everything=True).done) == 3
    assert len(received(queue, 3)) == 3


@pytest.mark.usefixtures("brief_pauses")
def test_when_cassandra_is_away_nothing_more_is_tried(queue, store, monkeypatch):
    """What was not tried is not done, and is told as well."""
    bury(queue, *map(task, range(5)))
    monkeypatch.setattr(redriving, "AT_ONCE", 2)
    with store.failing(ReadMessages, Unavailable("no node")):
        result = queue.dead_letters.redrive(everything=True)
    assert [type(error) for _, error in result.failed] == [Unavailable] * 2 + [NotDone] * 3
    assert "not tried" in str(result.failed[-1][1])
    with store.failing(ReadShards, Unavailable("no node")), pytest.raises(Unavailable):
        queue.dead_letters.redrive(everything=True)
    assert len(queue.dead_letters.list()) == 5


def test_two_that_redrive_at_once_make_no_copies(queue, store):
    """Both read the letters before either deletes one: they derive the same ids."""
    bury(queue, *map(task, range(20)))
    queue.alter(derived_sends=True)
    both = Barrier(2, timeout=30)
    store.before = lambda operation: both.wait() if isinstance(operation, InsertMessages) else None
    with ThreadPoolExecutor(2) as threads:
        runs = [threads.submit(queue.dead_letters.redrive, everything=True) for _ in range(2)]
        first, second = (run.result() for run in runs)
    store.before = lambda _: None
    assert (first.failed, second.failed) == ((), ())
    assert set(first.sent) == set(second.sent)
    assert len(received(queue, 20)) == 20
    assert queue.dead_letters.list() == []


def test_a_closed_client_is_said():
    """As by every other call."""
    with cqueue.connect("memory://") as client:
        dead = client.create_queue("q").dead_letters
    with pytest.raises(Closed):
        dead.redrive(everything=True)


# ── drop ──


def test_dropped_letters_are_gone(queue):
    """With their bodies; nothing is sent, and the others stay."""
    (large,) = bury(queue, cqueue.Message(bytes(INLINE_BODY + 1)))
    bury(queue, task(0), reason="stays")
    letter = queue.dead_letters.get(large)
    result = queue.dead_letters.drop(reason="timeout")
    assert (result.done, result.sent, result.failed) == ((letter.id,), (), ())
    with pytest.raises(NotDone):
        letter.body  # noqa: B018
    assert [one.reason for one in queue.dead_letters] == ["stays"]
    assert queue.stats(exact=True).live == 0


def test_a_drop_without_an_answer_is_told(queue, store):
    """It may be deleted; the call can be repeated."""
    bury(queue, task(0))
    with store.failing(DeleteMessages, OutcomeUnknown("no answer"), after=True):
        result = queue.dead_letters.drop(everything=True)
    assert [type(error) for _, error in result.failed] == [OutcomeUnknown]
    assert queue.dead_letters.drop(everything=True).done == ()


# ── the derived id ──


@pytest.mark.parametrize("age_h", [0, 1, 11, 12, 13, 100])
def test_the_due_time_stays_within_a_period(age_h):
    """A repeat derives the same id until the period ends, and the time is never too old to be told apart."""
    died_us, period_us = 1_700_000_000_000_000, 12 * HOUR_US
    now_us = died_us + age_h * HOUR_US
    first = redriving.due_us(died_us, now_us, period_us)
    assert now_us - period_us < first <= now_us
    later = redriving.due_us(died_us, now_us + HOUR_US - 1, period_us)
    assert (later == first) == (now_us + HOUR_US - 1 < first + period_us)


def test_a_letter_of_a_clock_that_is_ahead_is_due_when_it_died():
    """As it will be once this clock has come there: a repeat then makes no copy."""
    assert redriving.due_us(1_000_001, 1_000_000, HOUR_US) == redriving.due_us(1_000_001, 1_000_002, HOUR_US)


@pytest.mark.parametrize(("text", "count"), [("7", 7), ("-7", None), ("x", None), ("9" * 10, None)])
def test_a_header_that_is_no_count_counts_as_none(text, count):
    """A sender may have written it."""
    assert redriving.count_in({"n": text}, "n") == count


def test_a_message_is_derived_from_its_letter(client, queue):
    """Of one letter always the same, of two never."""
    bury(queue, *map(task, range(5)))
    found = redriving.look(client._driver, [letter.id for letter in queue.dead_letters])
    made = [redriving.as_message(letter, 17) for letter in redriving.with_bodies(client._driver, found)]
    assert len({message.source for message in made}) == 5
    assert made == [
        redriving.as_message(letter, 17) for letter in redriving.with_bodies(client._driver, found)
    ]
    assert ids.time_us(found[0].row.id) > 0


def test_letters_go_to_no_queue_of_the_name_that_was_deleted(memory_client):
    """Which this client still knows: it reads the new dead-letter queue, and nobody reads the old queue."""
    old = memory_client.create_queue("shop", cqueue.QueueConfig(derived_sends=True))
    old.send(b"old")
    with Client(memory_client._driver.store) as other:
        other.delete_queue("shop")
        new = other.create_queue("shop")
        bury(new, cqueue.Message(b"new"))
        for result in (old.dead_letters.redrive(everything=True), old.dead_letters.redrive(everything=True)):
            assert all(type(error) is NotDone for _, error in result.failed)
        assert [message.body for message in received(new, 1)] == [b"new"]
        assert list(new.dead_letters) == []
