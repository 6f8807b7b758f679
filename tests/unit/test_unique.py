"""Unique messages: when another one of the key is in the way, what follows, and that no key stays taken."""

import secrets
import threading
import time
from contextlib import suppress
from datetime import timedelta
from itertools import pairwise

import pytest

import cqueue
from cqueue import (
    BadInput,
    Closed,
    Duplicate,
    Message,
    NotDone,
    OutcomeUnknown,
    SendUnknown,
    Unique,
    WrongDataCentre,
)
from cqueue.client import Client, open_cassandra
from cqueue.errors import TooManyTombstones
from cqueue.protocol.unique import KEPT_US
from cqueue.runtime.clock import LocalClock
from cqueue.settings import load
from cqueue.store.keys import (
    ALL_TOKENS,
    ListReservations,
    ReadReservation,
    RemoveReservation,
    WriteReservation,
)
from cqueue.store.memory import MemoryStore
from cqueue.store.operations import DeleteMessages, InsertMessages
from tests.faulty_store import FaultyStore
from tests.fix_dispatcher import until
from tests.unit import holding

SOON = timedelta(seconds=10)
HOUR = timedelta(hours=1)
WHILE = ("pending", "running", "ever")
SLOWLY_ON_CASSANDRA = pytest.mark.parametrize(
    "clock",
    ["memory", pytest.param("cassandra", marks=[pytest.mark.cassandra, pytest.mark.acceptance])],
    indirect=True,
)
"""Marks tests whose many cases wait for W there, which is for `make test-all`."""
IN_VIRTUAL_TIME = pytest.mark.parametrize("clock", ["memory"], indirect=True)
"""Marks tests that jump over minutes or days."""


@pytest.fixture(scope="module")
def brief_cassandra(new_keyspace):
    """A Cassandra store in a keyspace with a small W and ε: a dead sender's key is free after 1.6 s."""
    store, connection = open_cassandra(load(new_keyspace(settle_ms=1500, skew_ms=200).url))
    yield store
    connection.close()


class VirtualClock:
    """A clock that stands still between pauses, and jumps over them."""

    def __init__(self):
        self.now_us = time.time_ns() // 1000
        self._mutex = threading.Lock()

    def __call__(self):
        with self._mutex:
            self.now_us += 1  # two events are never at once
            return self.now_us

    def sleep(self, seconds):
        with self._mutex:
            self.now_us += int(seconds * 1e6)


@pytest.fixture(params=["memory", pytest.param("cassandra", marks=pytest.mark.cassandra)])
def clock(request):
    """The time of a store in memory is virtual; on Cassandra everybody waits."""
    return VirtualClock() if request.param == "memory" else time


@pytest.fixture
def faults(request, clock):
    """A store on both back ends that makes operations fail when a test says so."""
    if isinstance(clock, VirtualClock):
        return FaultyStore(MemoryStore(clock))
    return FaultyStore(request.getfixturevalue("brief_cassandra"))


@pytest.fixture
def client(faults, clock, monkeypatch):
    if isinstance(clock, VirtualClock):
        monkeypatch.setattr("cqueue.client._clock_of", lambda _: LocalClock(clock))
    with Client(faults, on_close=lambda: None) as client:
        if isinstance(clock, VirtualClock):
            monkeypatch.setattr(client._driver, "_pause", clock.sleep)
        yield client


@pytest.fixture
def pauses(client, monkeypatch):
    """The seconds of each pause that a send makes."""
    made, pause = [], client._driver._pause
    monkeypatch.setattr(client._driver, "_pause", lambda seconds: (made.append(seconds), pause(seconds)))
    return made


@pytest.fixture
def queue(client):
    return client.create_queue(f"q-{secrets.token_hex(4)}", cqueue.QueueConfig(max_attempts=5))


def held(queue):
    """Receive a message of a consumer that is left open."""
    return holding.held(queue.consumer())


def bodies(queue):
    return sorted(message.body for message in queue.peek())


def reservation(client, queue, key="k"):
    spec = client._catalog.entry(queue.name).spec
    return client._driver.ask(ReadReservation(spec.partition, key))


# ── What is in the way ──


def ready(queue, unique):
    queue.send(b"1", unique=unique)


def delayed(queue, unique):
    queue.send(b"1", unique=unique, delay=HOUR)


def claimed(queue, unique):
    ready(queue, unique)
    held(queue)


def nacked(queue, unique):
    ready(queue, unique)
    held(queue)[0].nack(HOUR)


def acked(queue, unique):
    ready(queue, unique)
    held(queue)[0].ack()


def buried(queue, unique):
    ready(queue, unique)
    held(queue)[0].dead("why")


def cancelled(queue, unique):
    queue.cancel(queue.send(b"1", unique=unique))


def purged(queue, unique):
    ready(queue, unique)
    queue.purge()


def expired(queue, unique):
    queue.send(b"1", unique=unique, ttl=timedelta(milliseconds=1))


IN_THE_WAY = {
    ready: WHILE, delayed: WHILE, nacked: WHILE, claimed: ("running", "ever"), acked: ("ever",),
    buried: ("ever",), cancelled: ("ever",), purged: ("ever",), expired: ("ever",),
}  # fmt: skip


@pytest.mark.parametrize("while_", WHILE)
@pytest.mark.parametrize("how", IN_THE_WAY, ids=lambda how: how.__name__)
def test_a_message_is_in_the_way_while_its_state_says_so(queue, clock, pauses, how, while_):
    """A key is free as soon as its message is gone: no way to end leaves it taken, or makes anybody wait."""
    unique = Unique(key="k", while_=while_)
    how(queue, unique)
    clock.sleep(0.01)
    if while_ in IN_THE_WAY[how]:
        with pytest.raises(Duplicate) as raised:
            queue.send(b"2", unique=unique)
        assert b"2" not in bodies(queue)
        if found := queue.find(raised.value.id):
            assert found.body == b"1"
    else:
        pauses.clear()
        assert not queue.send(b"2", unique=unique).skipped
        assert pauses == [], "it waited for a sender that is long through"
        assert b"2" in bodies(queue)


def test_other_keys_and_other_queues_are_not_in_the_way(client, queue):
    """Nor a message without `unique`."""
    other = client.create_queue(f"{queue.name}-2")
    queue.send_many([Message(b"0", key="k")])
    for each, key in ((queue, "k"), (queue, "l"), (other, "k")):
        each.send(b"1", unique=Unique(key=key))


def test_the_key_of_the_message_is_the_unique_key_by_default(queue):
    result = queue.send_many([Message(b"1", key="k", unique=Unique()), Message(b"2", unique=Unique(key="k"))])
    ((place, error),) = result.failed
    assert (place, error.id) == (1, result.ids[0])
    assert isinstance(error, Duplicate)
    assert isinstance(error, NotDone)


@pytest.mark.parametrize("while_", WHILE)
def test_within_ends_what_is_in_the_way(queue, clock, while_):
    """The message stays, and the next one comes beside it."""
    unique = Unique(key="k", while_=while_, within=timedelta(seconds=1))
    queue.send(b"1", unique=unique)
    with pytest.raises(Duplicate):
        queue.send(b"2", unique=unique)
    clock.sleep(1.01)
    queue.send(b"3", unique=unique)
    assert bodies(queue) == [b"1", b"3"]


# ── What follows ──


def test_skip_tells_the_message_in_the_way(queue):
    """By its id; in the result of many, with its place."""
    unique = Unique(key="k", on_conflict="skip")
    first = queue.send(b"1", unique=unique)
    second = queue.send(b"2", unique=unique)
    assert (first.skipped, second.skipped, second) == (False, True, first)
    many = queue.send_many([Message(b"3"), Message(b"4", unique=unique), Message(b"5")])
    assert (many.skipped, many.failed, many.ids[1]) == ([1], [], first)
    assert bodies(queue) == [b"1", b"3", b"5"]


def test_replace_sends_the_new_message_and_deletes_the_old_one(queue):
    """Large bodies, too; and one that a consumer holds does not come again, as its holder is told."""
    unique = Unique(key="k", on_conflict="replace")
    old = queue.send(bytes(20_000), unique=unique)
    new = queue.send(b"2" * 20_000, unique=unique, delay=HOUR)
    assert queue.find(old) is None
    assert queue.find(new).body == b"2" * 20_000
    queue.send(b"3", unique=unique)
    (message,) = held(queue)
    queue.send(b"4", unique=unique, delay=HOUR)
    with pytest.raises(cqueue.LeaseLost):
        message.nack()
    assert bodies(queue) == [b"4"]


def test_debounce_begins_the_delay_anew(queue, clock):
    """The last of several sends counts; one that a consumer has begun with stays."""
    unique = Unique(key="k", on_conflict="debounce")
    first = queue.find(queue.send(b"1", unique=unique, delay=HOUR))
    clock.sleep(0.01)
    last = queue.find(queue.send(b"2", unique=unique, delay=HOUR))
    assert last.due > first.due
    assert bodies(queue) == [b"2"]
    queue.send(b"3", unique=unique)
    held(queue)
    queue.send(b"4", unique=unique, delay=HOUR)
    assert bodies(queue) == [b"3", b"4"]


@IN_VIRTUAL_TIME
@pytest.mark.parametrize("on_conflict", ["skip", "debounce"])
def test_a_message_whose_timeout_has_passed_counts_as_held(queue, clock, on_conflict):
    """Its consumer may be slow: what led to the next send is handled by a run that begins after it."""
    unique = Unique(key="k", while_="pending", on_conflict=on_conflict)
    queue.send(b"1", unique=unique)
    (message,) = held(queue)
    clock.sleep(3600)
    assert not queue.send(b"2", unique=unique).skipped
    message.ack()
    assert bodies(queue) == [b"2"]


def test_throttle_lets_one_message_through_in_a_time(queue, clock):
    """However quickly they are handled; the others are skipped, and told so."""
    unique = Unique(key="k", on_conflict="throttle", within=timedelta(seconds=1))
    assert not queue.send(b"1", unique=unique).skipped
    held(queue)[0].ack()
    assert queue.send(b"2", unique=unique).skipped
    clock.sleep(1.01)
    assert not queue.send(b"3", unique=unique).skipped
    assert bodies(queue) == [b"3"]


@pytest.mark.parametrize(
    "options",
    [
        {"key": ""}, {"key": "k" * 1001}, {"key": 7}, {"while_": "always"}, {"on_conflict": "drop"},
        {"within": timedelta(0)}, {"within": 5}, {"on_conflict": "throttle"}, {"args": ["a"]},
        {"on_conflict": "debounce", "while_": "ever"}, {"key": "k", "args": ("a",)},
    ],
)  # fmt: skip
def test_a_senseless_unique_is_refused(options):
    with pytest.raises(BadInput):
        Unique(**options)


@pytest.mark.parametrize(
    "message",
    [
        Message(b"", unique=Unique()),
        Message(b"", unique="k"),
        Message(b"", unique=Unique(key="k"), priority=10),
    ],
)
def test_a_senseless_message_reserves_nothing(client, queue, message):
    ((_, error),) = queue.send_many([message]).failed
    assert isinstance(error, BadInput)
    assert reservation(client, queue) is None


def test_a_unique_message_has_no_source(client, queue):
    queue.alter(derived_sends=True)
    message = Message(b"", due=queue.now, source="s", unique=Unique(key="k"))
    ((_, error),) = queue.send_many([message]).failed
    assert "source or unique" in str(error)
    assert reservation(client, queue) is None


def test_a_message_without_unique_touches_no_reservation(faults, queue):
    """It costs the operations that it costs without this feature, whatever stands beside it."""
    asked = []
    faults.trouble = lambda operation: asked.append(type(operation).__name__)
    queue.send(b"1")
    queue.send_many([Message(b"2")] * 10)
    assert not [name for name in asked if "Reservation" in name]


# ── Races ──


@pytest.mark.parametrize("while_", WHILE)
def test_of_fifty_racing_threads_one_sends(faults, queue, clock, while_, monkeypatch):
    """In memory no time passes: a sender that pauses waits for the first one, whose time a jump of the clock
    would take. On Cassandra a starved sender may be too late, and asks again.
    """
    confirmed = threading.Event()

    def around(operation, do):
        result = do()
        if is_confirmation(operation):
            confirmed.set()
        return result

    if isinstance(clock, VirtualClock):
        faults.around = around
        monkeypatch.setattr(queue._driver, "_pause", lambda _: confirmed.wait(60))
    unique = Unique(key="k", while_=while_)
    go, outcomes, late = threading.Barrier(50), [], []

    def outcome():
        try:
            return "sent", queue.send(b"x", unique=unique)
        except Duplicate as exc:
            return "duplicate", exc.id
        except (NotDone, OutcomeUnknown) as exc:
            late.append(exc)
            return None

    def send():
        go.wait()
        outcomes.append(until(outcome))

    threads = [threading.Thread(target=send) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 50
    sent = [kind for kind, _ in outcomes].count("sent")
    assert sent == 1 or (sent == 0 and any(isinstance(exc, OutcomeUnknown) for exc in late))
    assert not late or clock is time
    assert len({id_ for _, id_ in outcomes}) == 1
    assert bodies(queue) == [b"x"]


def test_of_many_that_replace_one_another_one_stays(queue):
    """Each but the last is deleted. One that the others made late does not know, and the next one decides."""
    unique = Unique(key="k", on_conflict="replace")
    sent, errors = [], []

    def send(number):
        try:
            sent.append(queue.send(b"%d" % number, unique=unique, delay=HOUR))
        except (NotDone, OutcomeUnknown) as exc:
            errors.append(exc)

    threads = [threading.Thread(target=send, args=(number,)) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sent
    assert len(sent) + len(errors) == 10
    last = queue.send(b"last", unique=unique, delay=HOUR)
    assert [message.id for message in queue.peek()] == [last]


# ── Senders that die, are slow, or do not know ──


def is_confirmation(operation):
    return isinstance(operation, WriteReservation) and operation.row.sent


def lose(faults, is_point, *, executed, error=OutcomeUnknown):
    """From now on such operations fail, after or before they are executed."""

    def around(operation, do):
        if not is_point(operation):
            return do()
        if executed:
            do()
        raise error("no answer")

    faults.around = around


def heal(faults):
    faults.around = lambda _, do: do()


def is_insert(operation):
    return isinstance(operation, InsertMessages)


@pytest.mark.parametrize("while_", WHILE)
def test_a_sender_that_dies_before_its_insert_leaves_the_key_free(faults, queue, while_):
    """After W + ε, in which it might still be alive. Nobody takes the key for used."""
    unique = Unique(key="k", while_=while_)
    lose(faults, is_insert, executed=False, error=NotDone)
    with pytest.raises(NotDone):
        queue.send(b"1", unique=unique)
    heal(faults)
    assert not queue.send(b"2", unique=unique).skipped
    assert bodies(queue) == [b"2"]
    with pytest.raises(Duplicate):
        queue.send(b"3", unique=unique)


@pytest.mark.parametrize("while_", WHILE)
@pytest.mark.parametrize("is_handled", [False, True])
def test_a_sender_that_dies_after_its_insert_has_sent(faults, client, queue, while_, is_handled):
    """Its message is in the way while it lives, and with "ever" also when it was handled before anybody
    looked.
    """
    unique = Unique(key="k", while_=while_)
    lose(faults, is_confirmation, executed=False)
    queue.send(b"1", unique=unique)
    heal(faults)
    assert not reservation(client, queue).sent
    if is_handled:
        held(queue)[0].ack()
    if is_handled and while_ != "ever":
        queue.send(b"2", unique=unique)
        assert bodies(queue) == [b"2"]
    else:
        for _ in range(2):
            with pytest.raises(Duplicate):
                queue.send(b"2", unique=unique)
        assert bodies(queue) == ([] if is_handled else [b"1"])


@pytest.mark.parametrize(
    "unique",
    [
        Unique(key="k", while_="ever", on_conflict="skip"),
        Unique(key="k", on_conflict="throttle", within=HOUR),
    ],
)
def test_a_message_that_expires_before_its_send_is_noted_has_used_its_key(
    faults, client, queue, clock, unique
):
    """Its row still lies there, which is not taken for the expired one that a successor inserts."""
    lose(faults, is_confirmation, executed=False)
    assert not queue.send(b"1", unique=unique, ttl=timedelta(seconds=1)).skipped
    heal(faults)
    clock.sleep(2)  # longer than W + ε on Cassandra
    assert not reservation(client, queue).sent
    for _ in range(2):
        assert queue.send(b"2", unique=unique).skipped
    assert reservation(client, queue).sent
    assert b"2" not in bodies(queue)


@pytest.mark.parametrize("while_", WHILE)
@pytest.mark.parametrize("executed", [False, True])
def test_an_unknown_insert_is_told_and_does_not_take_the_key(faults, queue, while_, executed):
    """If the message is there, it is in the way; if not, the next sender sends."""
    unique = Unique(key="k", while_=while_)
    lose(faults, is_insert, executed=executed)
    with pytest.raises(SendUnknown) as raised:
        queue.send(b"1", unique=unique)
    heal(faults)
    if executed:
        with pytest.raises(Duplicate) as duplicate:
            queue.send(b"2", unique=unique)
        assert raised.value.ids == (duplicate.value.id,)
    else:
        queue.send(b"2", unique=unique)
    assert bodies(queue) == ([b"1"] if executed else [b"2"])


@pytest.mark.parametrize("while_", WHILE)
def test_an_insert_that_arrives_after_the_key_was_taken_over_is_dead(faults, queue, while_):
    """The sender was slow, not dead: it is told that it may be too late, and its message does not turn up."""
    unique, late = Unique(key="k", while_=while_), []

    def around(operation, do):
        if is_insert(operation):
            late.append(operation)
            raise OutcomeUnknown("still under way")
        return do()

    faults.around = around
    with pytest.raises(SendUnknown):
        queue.send(b"1", unique=unique)
    heal(faults)
    queue.send(b"2", unique=unique)
    faults.execute(late[0])
    assert bodies(queue) == [b"2"]


def is_write(operation):
    return isinstance(operation, WriteReservation | InsertMessages | DeleteMessages)


def leave_reserved(faults, queue, unique):
    """A sender dies after it has reserved the key: nothing is sent."""
    lose(faults, is_insert, executed=False, error=NotDone)
    with pytest.raises(NotDone):
        queue.send(b"dead", unique=unique)
    heal(faults)


@SLOWLY_ON_CASSANDRA
@pytest.mark.parametrize("while_", ["running", "ever"])
@pytest.mark.parametrize("executed", [False, True])
@pytest.mark.parametrize("after", range(7))
def test_a_successor_that_dies_at_any_write_leaves_the_key_free(faults, queue, while_, executed, after):
    """It takes over from a dead sender, and dies too: the next one finds out again that nothing was sent."""
    unique, writes = Unique(key="k", while_=while_), []
    leave_reserved(faults, queue, unique)

    def is_point(operation):
        if is_write(operation):
            writes.append(operation)
        return len(writes) > after

    lose(faults, is_point, executed=executed)
    outcome = None
    try:
        queue.send(b"1", unique=unique)
    except (NotDone, SendUnknown) as exc:
        outcome = exc
    heal(faults)
    assert len(writes) > after or outcome is None
    try:
        queue.send(b"2", unique=unique)
    except Duplicate as exc:
        in_the_way = queue.find(exc.id)
    else:
        in_the_way = None
    assert in_the_way is None or in_the_way.body == b"1"
    assert bodies(queue) in ([[b"2"]] if isinstance(outcome, NotDone) else [[b"1"], [b"2"]])
    with pytest.raises(Duplicate):
        queue.send(b"3", unique=unique)


@SLOWLY_ON_CASSANDRA
@pytest.mark.parametrize("while_", WHILE)
@pytest.mark.parametrize("executed", [False, True])
def test_nothing_is_deleted_unless_the_reservation_is_void(faults, queue, while_, executed):
    """Not even if it may be: the answer of the conditional write is needed."""
    unique, deleted = Unique(key="k", while_=while_), []
    leave_reserved(faults, queue, unique)
    faults.trouble = lambda op: deleted.append(op) if isinstance(op, DeleteMessages) else None
    lose(faults, lambda op: isinstance(op, WriteReservation) and op.row.message.is_void, executed=executed)
    with pytest.raises(NotDone):
        queue.send(b"1", unique=unique)
    assert deleted == []
    heal(faults)
    queue.send(b"2", unique=unique)
    assert deleted
    assert bodies(queue) == [b"2"]


@pytest.mark.parametrize("while_", ["running", "ever"])
def test_a_message_that_comes_late_and_is_claimed_is_in_the_way(faults, queue, while_):
    """Its sender is over W + ε late, and a consumer was quicker than the successor's delete."""
    unique, late, got = Unique(key="k", while_=while_), [], []
    lose(faults, lambda op: is_insert(op) and not late.append(op), executed=False)
    with pytest.raises(SendUnknown):
        queue.send(b"late", unique=unique)

    def claim():
        faults.store.execute(late[0])
        got.extend(held(queue))

    def around(operation, do):
        judges = is_insert(operation) or (
            isinstance(operation, WriteReservation) and operation.row.message.is_void
        )
        if judges and not got:
            claimer = threading.Thread(target=claim)
            claimer.start()
            claimer.join()
        return do()

    faults.around = around
    with pytest.raises(Duplicate) as raised:
        queue.send(b"2", unique=unique)
    heal(faults)
    assert [message.id for message in got] == [raised.value.id]
    got[0].ack()
    if while_ == "ever":
        with pytest.raises(Duplicate):
            queue.send(b"3", unique=unique)
    else:
        queue.send(b"3", unique=unique)
        assert bodies(queue) == [b"3"]


@pytest.mark.parametrize("dies", [False, True])
def test_of_two_successors_the_later_one_believes_the_first(faults, queue, dies):
    """Its own insert is hidden by the other's delete, which is not taken for that of a handled message."""
    unique, first = Unique(key="k", while_="ever"), []
    leave_reserved(faults, queue, unique)

    def send():
        with suppress(SendUnknown, NotDone):
            queue.send(b"first", unique=unique)

    def around(operation, do):
        if is_insert(operation) and not first:  # the later one's, to see whether there is a delete
            first.append(threading.Thread(target=send))
            first[0].start()
            first[0].join()
        if dies and threading.current_thread() in first and is_insert(operation) and operation.rows[0].body:
            raise NotDone("it dies before it writes its message")
        return do()

    faults.around = around
    if dies:
        queue.send(b"later", unique=unique)
    else:
        with pytest.raises(Duplicate) as raised:
            queue.send(b"later", unique=unique)
        assert queue.find(raised.value.id).body == b"first"
    assert bodies(queue) == [b"later" if dies else b"first"]


def test_a_replaced_message_is_deleted_only_when_its_successor_is_known_to_be_sent(faults, client, queue):
    """The sender that finds the new message notes it first, so that no other one deletes that, too."""
    replace = Unique(key="k", on_conflict="replace")
    queue.send(b"old", unique=replace)
    lose(faults, lambda operation: isinstance(operation, DeleteMessages), executed=False)
    with pytest.raises(SendUnknown):
        queue.send(b"new", unique=replace)
    lose(faults, is_confirmation, executed=False)
    with pytest.raises(NotDone):
        queue.send(b"3", unique=Unique(key="k"))
    assert bodies(queue) == [b"new", b"old"]
    heal(faults)
    with pytest.raises(Duplicate):
        queue.send(b"3", unique=Unique(key="k"))
    assert reservation(client, queue).sent
    assert bodies(queue) == [b"new"]


def test_a_sender_that_is_held_up_before_its_insert_does_not_write(faults, queue):
    """Another one may have taken its key: it reserves again, and meets what is in the way now."""
    unique, stopped, go = Unique(key="k"), threading.Event(), threading.Event()
    errors = []

    def around(operation, do):
        done = do()
        if isinstance(operation, WriteReservation) and threading.current_thread().name == "slow":
            stopped.set()
            go.wait(10)
        return done

    def send():
        try:
            queue.send(b"slow", unique=unique)
        except Duplicate as exc:
            errors.append(exc)

    faults.around = around
    slow = threading.Thread(target=send, name="slow")
    slow.start()
    assert stopped.wait(10)
    sent = queue.send(b"quick", unique=unique)
    go.set()
    slow.join()
    assert [error.id for error in errors] == [sent]
    assert bodies(queue) == [b"quick"]


@pytest.mark.parametrize("applied", [False, True])
def test_an_unknown_reservation_is_looked_up(faults, queue, pauses, applied):
    """The id that stands decides; nobody waits."""
    lost = []

    def around(operation, do):
        if isinstance(operation, WriteReservation) and not lost:
            lost.append(operation)
            if applied:
                do()
            raise OutcomeUnknown("no answer")
        return do()

    faults.around = around
    queue.send(b"1", unique=Unique(key="k"))
    assert pauses == []
    assert lost
    assert bodies(queue) == [b"1"]


def test_a_reservation_that_is_applied_unnoticed_later_is_taken_over(faults, client, queue):
    """A request that was given up may still arrive; no message goes with it."""
    spec, kept = client._catalog.entry(queue.name).spec, []
    faults.trouble = lambda operation: (
        kept.append(operation) if isinstance(operation, WriteReservation) else None
    )
    queue.send(b"1", unique=Unique(key="other"))
    faults.trouble = lambda _: None
    ghost = kept[0].row._replace(key="k", made_us=client._driver.clock.now_us())
    faults.execute(
        WriteReservation(ghost._replace(message=ghost.message._replace(id=ghost.message.id + 7)), 60)
    )
    assert spec.partition == ghost.queue
    queue.send(b"2", unique=Unique(key="k"))
    assert bodies(queue) == [b"1", b"2"]


def test_a_replayed_reservation_counts(faults, queue, pauses):
    """Sent twice by whatever lies between, the second answer is "not applied" though it was."""

    def around(operation, do):
        return do() and do() if isinstance(operation, WriteReservation) else do()

    faults.around = around
    queue.send(b"1", unique=Unique(key="k"))
    assert pauses == []
    assert bodies(queue) == [b"1"]


def test_a_reservation_that_cannot_be_written_sends_nothing(faults, queue):
    lose(faults, lambda operation: isinstance(operation, WriteReservation | ReadReservation), executed=False)
    with pytest.raises(NotDone):
        queue.send(b"1", unique=Unique(key="k"))
    assert bodies(queue) == []


@pytest.mark.parametrize("error", [NotDone, OutcomeUnknown])
def test_a_replacement_that_is_not_stored_leaves_the_old_message(faults, queue, error):
    """No acknowledged message is lost. It is in the way again once the sender's time is over."""
    unique = Unique(key="k")
    old = queue.send(b"old", unique=unique)
    lose(faults, is_insert, executed=False, error=error)
    with pytest.raises(error):
        queue.send(b"new", unique=Unique(key="k", on_conflict="replace"))
    heal(faults)
    with pytest.raises(Duplicate) as raised:
        queue.send(b"3", unique=unique)
    assert raised.value.id == old
    assert bodies(queue) == [b"old"]
    queue.send(b"4", unique=Unique(key="k", on_conflict="replace"))
    assert bodies(queue) == [b"4"]


def test_a_replacement_whose_delete_fails_says_so_and_the_next_sender_deletes(faults, queue):
    unique = Unique(key="k")
    queue.send(b"old", unique=unique)
    lose(faults, lambda operation: isinstance(operation, DeleteMessages), executed=False)
    with pytest.raises(SendUnknown) as raised:
        queue.send(b"new", unique=Unique(key="k", on_conflict="replace"))
    heal(faults)
    assert bodies(queue) == [b"new", b"old"]
    with pytest.raises(Duplicate) as duplicate:
        queue.send(b"3", unique=unique)
    assert raised.value.ids == (duplicate.value.id,)
    assert bodies(queue) == [b"new"]


@IN_VIRTUAL_TIME
def test_a_replacement_that_is_not_stored_keeps_the_key_for_the_old_message(faults, queue, clock):
    """However short its own ttl, and however much later the old message is due."""
    unique = Unique(key="k", on_conflict="replace")
    old = queue.send(b"old", unique=unique, delay=timedelta(days=40))
    lose(faults, is_insert, executed=False, error=NotDone)
    with pytest.raises(NotDone):
        queue.send(b"new", unique=unique, ttl=timedelta(seconds=1))
    heal(faults)
    clock.sleep(timedelta(days=35).total_seconds())
    queue.send(b"newer", unique=unique, delay=HOUR)
    assert queue.find(old) is None


@IN_VIRTUAL_TIME
def test_a_message_that_is_held_beyond_its_ttl_is_in_the_way(queue, clock):
    """Its ttl is for as long as nobody has received it; with "running" it is in the way while it is held."""
    unique = Unique(key="k", while_="running")
    queue.send(b"1", unique=unique, ttl=SOON)
    (message,) = held(queue)
    message.extend(HOUR)
    clock.sleep(120)
    with pytest.raises(Duplicate):
        queue.send(b"2", unique=unique)
    message.ack()
    queue.send(b"2", unique=unique)


# ── Many ──


def closed(client):
    client._driver.close()


def moved(client):
    client._catalog._refusal = "the home was moved"


@pytest.mark.parametrize("refusal", [(closed, Closed), (moved, WrongDataCentre)])
@pytest.mark.parametrize("stored", [1, 2, 3])
def test_a_client_that_is_refused_in_the_middle_tells_what_is_stored(faults, client, queue, refusal, stored):
    """Of entries with a unique key, which go one by one, and of the others, which go last."""
    (refuse, error), inserts = refusal, []

    def around(operation, do):
        done = do()
        if is_insert(operation):
            inserts.append(operation)
            if len(inserts) == stored:
                refuse(client)
        return done

    faults.around = around
    messages = [
        Message(b"plain"),
        *(Message(b"%d" % place, unique=Unique(key=f"{place}")) for place in range(3)),
    ]
    result = queue.send_many(messages)
    assert [id_ is not None for id_ in result.ids] == [False, *(place < stored for place in range(3))]
    assert [index for index, _ in result.failed] == [0, *range(stored + 1, 4)]
    assert {type(why) for _, why in result.failed} == {error}
    with pytest.raises(error):  # nothing is stored
        queue.send_many(messages)


# ── Space ──


def test_a_deleted_queue_leaves_no_reservation(client, queue):
    """Made again, it knows nothing of the old keys."""
    unique = Unique(key="k", while_="ever")
    queue.send(b"1", unique=unique)
    partition = client._catalog.entry(queue.name).spec.partition
    assert client._driver.ask(ListReservations(frozenset({partition}))) == [(partition, "k")]
    client.delete_queue(queue.name)
    assert client._driver.ask(ListReservations(frozenset({partition}))) == []
    client.create_queue(queue.name).send(b"2", unique=unique)


def test_a_deleted_queue_frees_its_keys_side_by_side(monkeypatch):
    """Each takes a conditional mutation: one after the other, 10,000 of them would take a minute."""
    store, rounds = FaultyStore(), []
    with Client(store) as client:
        queue = client.create_queue("q")
        queue.send_many(Message(b"1", unique=Unique(key=f"k{number}")) for number in range(40))
        together = store.together

        def noting(operations):
            rounds.append(sum(isinstance(each, RemoveReservation) for each in operations))
            return together(operations)

        monkeypatch.setattr(store, "together", noting)
        client.delete_queue("q")
    assert sum(rounds) == 40
    assert max(rounds) == 32


def test_a_queue_can_be_deleted_though_many_keys_have_expired_lately():
    """Cassandra refuses a read across 100,000 tombstones: those of 25,000 keys of any queue."""
    asked = []

    def trouble(operation):
        if isinstance(operation, ListReservations):
            asked.append(operation)
            first, last = operation.tokens
            return TooManyTombstones("tombstone_failure_threshold") if last - first > 1 << 62 else None
        return None

    store = FaultyStore(trouble=trouble)
    with Client(store) as client:
        for name in ("a", "a.dead", "b"):
            queue = client.queue(name) if name.endswith(".dead") else client.create_queue(name)
            queue.send(b"1", unique=Unique(key=name, while_="ever"))
        specs = [client._catalog.entry(name).spec.partition for name in ("a", "a.dead", "b")]
        assert client.delete_queue("a") == 2
        parts = sorted(op.tokens for op in asked if op.tokens[1] - op.tokens[0] <= 1 << 62)
        assert (parts[0][0], parts[-1][1]) == ALL_TOKENS
        assert all(one[1] == other[0] for one, other in pairwise(parts))
        assert len(asked) == len(parts) + 3  # one look for both queues
        store.trouble = lambda _: None
        assert client._driver.ask(ListReservations(frozenset(specs))) == [(specs[2], "b")]


def test_a_key_that_is_reserved_while_its_queue_is_deleted_goes_as_well():
    """Another client has not heard of the deletion yet; nobody else would ever remove the key."""
    late = []

    def trouble(operation):
        if isinstance(operation, DeleteMessages) and not late:
            late.append(operation)
            there.send(b"2", unique=Unique(key="late", while_="ever"))

    store = FaultyStore(trouble=trouble)
    with Client(store) as client, Client(store) as other:
        client.create_queue("q").send(b"1")
        there = other.queue("q")
        there.send(b"1")
        partition = client._catalog.entry("q").spec.partition
        client.delete_queue("q")
        assert late
        assert client._driver.ask(ListReservations(frozenset({partition}))) == []


@pytest.mark.parametrize(
    ("unique", "options", "kept"),
    [
        (Unique(key="k"), {}, timedelta(microseconds=KEPT_US)),
        (Unique(key="k"), {"delay": HOUR}, timedelta(microseconds=KEPT_US) + HOUR),
        (Unique(key="k"), {"ttl": HOUR}, timedelta(microseconds=KEPT_US)),
        (Unique(key="k", within=HOUR), {}, HOUR),
        (Unique(key="k", while_="ever", within=HOUR), {}, HOUR),
    ],
)
def test_a_reservation_is_kept_for_as_long_as_it_is_used(faults, queue, unique, options, kept):
    """And a minute; all of its columns alike, so that none outlives the others."""
    seconds = []

    def note(operation):
        if isinstance(operation, WriteReservation):
            seconds.append(operation.ttl_s)

    faults.trouble = note
    queue.send(b"1", unique=unique, **options)
    assert len(seconds) == 2
    assert all(abs(each - kept.total_seconds() - 60) <= 2 for each in seconds)


def test_a_reservation_for_ever_is_kept_for_ever(faults, queue):
    seconds = []
    faults.trouble = lambda operation: (
        seconds.append(operation.ttl_s) if isinstance(operation, WriteReservation) else None
    )
    queue.send(b"1", unique=Unique(key="k", while_="ever"))
    assert seconds == [0, 0]
