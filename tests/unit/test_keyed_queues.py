"""Messages by their keys: found, listed and deleted wherever they stand, and healed where a process died."""

import secrets
from datetime import UTC, datetime, timedelta

import pytest

import cqueue
from cqueue.client import Client
from cqueue.errors import ConfigError, NotDone, OutcomeUnknown, SendUnknown, Unavailable
from cqueue.protocol import keys
from cqueue.sending.changes import ChangeResult
from cqueue.spool import Spool
from cqueue.store.keys import DeleteKeys, DropKey, InsertKeys, KeyPlace, KeyRow, KeyWrite, ReadKey, ScanKeys
from cqueue.store.operations import DeleteMessages, InsertMessages
from cqueue.store.quarantine import MESSAGE_KIND, MESSAGES, Damage
from tests.faulty_store import FaultyStore
from tests.unit.holding import held

SOON = timedelta(seconds=10)
HOUR = timedelta(hours=1)
OF_KEYS = InsertKeys | DeleteKeys | ReadKey | ScanKeys | DropKey

pytestmark = pytest.mark.usefixtures("brief_settling", "brief_pauses")


@pytest.fixture
def queue(client):
    return client.create_queue(f"q-{secrets.token_hex(4)}", cqueue.QueueConfig(keyed=True))


@pytest.fixture
def faulty():
    return FaultyStore()


@pytest.fixture
def own(faulty):
    """A keyed queue whose store can be made to fail."""
    with Client(faulty) as client:
        yield client.create_queue("q", cqueue.QueueConfig(keyed=True))


@pytest.fixture
def own_dead(faulty):
    """Its dead-letter queue, as another process sees it."""
    with Client(faulty) as client:
        yield lambda: client.queue("q.dead")


def calls(queue):
    """All calls that take a key, and nothing else."""
    return (
        queue.get_by_key,
        queue.list_by_key,
        queue.delete_by_key,
        lambda key: queue.reschedule_by_key(key, HOUR),
    )


def rows(queue, key="k"):
    """The stored rows of a key, whether they have messages or not, in the queue and its dead-letter queue."""
    names = (queue.name, queue.dead_letter_name)
    partitions = [queue._catalog.entry(name).spec.partition for name in names]
    found = [queue._driver.ask(ReadKey(KeyPlace(one, key), (0, -1), 1000)) for one in partitions]
    return [row for some in found for row in some]


def later(queue, monkeypatch, by):
    """Move the cluster's clock on, as the client sees it."""
    now_us = queue._driver.clock.now_us
    by_us = by // timedelta(microseconds=1)
    monkeypatch.setattr(queue._driver.clock, "now_us", lambda **how: now_us(**how) + by_us)


# ── Where a message stands ──


def test_a_message_is_found_by_its_key_wherever_it_stands(queue):
    """Delayed, ready, held and waiting again; no more once it is acked, and then nothing is left of it."""
    delayed = queue.send(b"later", key="k", delay=HOUR)
    assert queue.get_by_key("k") == queue.find(delayed)
    id_ = queue.send(b"now", key="k")
    assert [one.id for one in queue.list_by_key("k")] == [id_, delayed]
    assert queue.get_by_key("k").state == "ready"
    with queue.consumer() as consumer:
        (message,) = held(consumer)
        assert queue.get_by_key("k").state == "claimed"
        message.nack()
        assert queue.get_by_key("k").state == "waiting"
        (message,) = held(consumer)
        message.ack()
    assert [one.id for one in queue.list_by_key("k")] == [delayed]
    assert queue.cancel(delayed)
    assert (queue.get_by_key("k"), rows(queue)) == (None, [])


def test_a_dead_letter_is_found_by_its_message_s_key(queue):
    """As dead and under its own id; back in the queue after a redrive; after a drop it is gone."""
    queue.send(b"x", key="k")
    with queue.consumer() as consumer:
        for _ in range(2):
            (message,) = held(consumer)
            message.dead("why")
            (dead,) = queue.list_by_key("k")
            assert (dead.state, dead.body) == ("dead", b"x")
            assert queue.dead_letters.get(dead.id).reason == "why"
            assert not queue.dead_letters.redrive(dead.id).failed
            (back,) = queue.list_by_key("k")
            assert (back.state, back.id) == ("ready", queue.peek()[0].id)
            assert len(rows(queue)) == 1
        (message,) = held(consumer)
        message.dead("why")
    assert queue.delete_by_key("k") == ChangeResult(), "a dead letter stays"
    assert queue.dead_letters.drop(everything=True).done
    assert (queue.get_by_key("k"), rows(queue)) == (None, [])


def test_one_of_several_that_were_claimed_together_dies(queue):
    """Its key moves to the dead-letter queue; those of the others stay."""
    queue.send_many([cqueue.Message(b"%d" % n, key="k") for n in range(3)])
    with queue.consumer() as consumer:
        first, *others = held(consumer, 3)
        first.dead("why")
        assert sorted(one.state for one in queue.list_by_key("k")) == ["claimed", "claimed", "dead"]
        assert len(rows(queue)) == 3
        consumer.ack(others)
    assert [one.state for one in queue.list_by_key("k")] == ["dead"]
    assert len(rows(queue)) == 1


def test_an_attempt_too_many_keeps_the_key(client):
    """A burial by the claim that finds no attempt left, not by the handler."""
    queue = client.create_queue(f"q-{secrets.token_hex(4)}", cqueue.QueueConfig(keyed=True, max_attempts=2))
    queue.send(b"x", key="k")
    with queue.consumer() as consumer:
        for _ in range(2):
            held(consumer)[0].nack()
        assert consumer.receive(wait=timedelta(milliseconds=300)) == []
    assert queue.get_by_key("k").state == "dead"
    dead = client.queue(queue.dead_letter_name)
    assert dead.get_by_key("k").state == "ready", "there it is a message like any other"
    assert len(rows(queue)) == 1


def test_a_letter_that_is_redriven_during_a_look_is_found(own, faulty):
    """The queue is read before its letters; a redrive moves the message the other way."""
    own.send(b"x", key="k")
    with own.consumer() as consumer:
        held(consumer)[0].dead("why")

    def redriven(operation, do):
        found = do()
        if isinstance(operation, ReadKey):
            faulty.around = lambda _, do: do()
            own.dead_letters.redrive(everything=True)
        return found

    faulty.around = redriven
    found = own.get_by_key("k")
    assert found is not None
    assert found.state == "ready"


def test_many_messages_of_a_key_come_in_pages(queue):
    """Each once, in order of due time, of all priorities, packed or not, with dead letters last."""
    sent = [cqueue.Message(b"%d" % n, key="k", priority=n % 2) for n in range(250)]
    sent += [cqueue.Message(b"packed", key="k")] * 250
    sent += [cqueue.Message(b"d%d" % n, key="k", delay=timedelta(hours=n)) for n in range(1, 40)]
    ids = set(queue.send_many(sent).ids)
    with queue.consumer() as consumer:
        dead = held(consumer, 30)
        consumer.dead(dead, "why")
    found, last = [], None
    while page := queue.list_by_key("k", limit=77, after=last):
        assert len(page) <= 77
        found, last = found + page, page[-1].id
    assert len(found) == len({one.id for one in found}) == 539
    live = [one for one in found if one.state != "dead"]
    assert {one.id for one in live} == ids - {one.id for one in dead}
    assert [one.due for one in live] == sorted(one.due for one in live)
    assert [one.state for one in found[-30:]] == ["dead"] * 30
    assert queue.list_by_key("k", limit=1000) == found


def test_delete_by_key_deletes_all_messages_with_it_and_no_others(queue):
    """Delayed ones and held ones as well; a held one does not come again."""
    other = queue.send(b"other", key="k2")
    queue.send(b"held", key="k", priority=0)
    with queue.consumer() as consumer:
        while (message := held(consumer)[0]).key != "k":
            message.nack(HOUR)
        queue.send_many([cqueue.Message(b"%d" % n, key="k", delay=n * HOUR) for n in range(200)])
        result = queue.delete_by_key("k")
        assert (len(result.done), result.missing, result.failed) == (201, (), {})
        with pytest.raises(cqueue.LeaseLost, match="cancelled"):
            message.nack()
        assert consumer.receive(wait=timedelta(milliseconds=300)) == []
    assert [one.id for one in queue.peek()] == [other]
    assert (queue.list_by_key("k"), rows(queue)) == ([], [])
    assert queue.delete_by_key("k") == ChangeResult()


def test_reschedule_by_key_moves_all_messages_with_it(queue):
    """Earlier and later, copied or not; each is found by its key afterwards, once; a held one stays."""
    queue.send_many([cqueue.Message(b"%d" % n, key="k", delay=n * HOUR) for n in range(1, 20)])
    queue.send(b"held", key="k")
    other = queue.send(b"other", key="k2", delay=HOUR)
    with queue.consumer() as consumer:
        (message,) = held(consumer)
        result = queue.reschedule_by_key("k", timedelta(hours=9))
        assert (len(result.done), result.missing) == (19, ())
        (error,) = result.failed.values()
        assert list(result.failed) == [message.id]
        assert isinstance(error, cqueue.MessageHeld)
        found = queue.list_by_key("k")
        assert {one.id for one in found} == {*result.done.values(), message.id}
        moved = [one for one in found if one.id != message.id]
        assert all(abs(one.next_at - queue.now - 9 * HOUR) < timedelta(minutes=1) for one in moved)
        message.ack()
        result = queue.reschedule_by_key("k", timedelta())
        assert (len(result.done), result.missing, result.failed) == (19, (), {})
        consumer.ack(held(consumer, 19))
    assert (queue.list_by_key("k"), rows(queue)) == ([], [])
    assert queue.find(other).state == "delayed"


def test_reschedule_by_key_refuses_a_time_beyond_ten_years(queue):
    queue.send(b"x", key="k", delay=HOUR)
    with pytest.raises(cqueue.DelayOutOfRange, match="due is 4000d"):
        queue.reschedule_by_key("k", timedelta(days=4000))
    with pytest.raises(cqueue.BadInput, match="due is 3; it takes an aware datetime, or a timedelta"):
        queue.reschedule_by_key("k", 3)
    assert queue.get_by_key("k").next_at - queue.now < 2 * HOUR


def test_delete_by_key_says_what_is_not_deleted(own, faulty):
    """The others are deleted, and the call can be repeated."""
    own.send_many([cqueue.Message(b"%d" % n, key="k", delay=n * HOUR) for n in range(5)])
    ids = [one.id for one in own.list_by_key("k")]

    def trouble(op):
        if not isinstance(op, DeleteMessages):
            return None
        lost = {ids[1].locate().id: Unavailable("away"), ids[3].locate().id: OutcomeUnknown("no answer")}
        return lost.get(op.ids[0])

    faulty.trouble = trouble
    result = own.delete_by_key("k")
    assert set(result.done) == {ids[0], ids[2], ids[4]}
    assert {id_: str(error) for id_, error in result.failed.items()} == {ids[1]: "away", ids[3]: "no answer"}
    assert [one.id for one in own.list_by_key("k")] == [ids[1], ids[3]]
    faulty.trouble = lambda _: None
    assert set(own.delete_by_key("k").done) == {ids[1], ids[3]}


@pytest.mark.parametrize("letter", ["k", "\U0001f511"])
def test_long_keys_fit_into_batches(queue, letter):
    """Of the longest texts, many at once."""
    sent = [cqueue.Message(b"x", key=letter * 998 + f"{n:02}") for n in range(50)]
    assert not queue.send_many(sent).failed
    assert queue.get_by_key(sent[17].key).key == sent[17].key
    with queue.consumer() as consumer:
        consumer.ack(held(consumer, 50))
    assert not any(rows(queue, one.key) for one in sent)


@pytest.mark.parametrize(
    ("counts", "expected"),
    [([1200], [500, 500, 200]), ([1] * 25, [10, 10, 5]), ([6, 6], [6, 6]), ([3, 11, 3], [11, 6])],
)
def test_a_batch_holds_many_writes_of_one_key_or_a_few_of_several(counts, expected):
    """Cassandra refuses larger ones of several keys."""
    writes = [
        KeyWrite(KeyPlace("q@1", f"k{place}"), KeyRow(number, 0, 0, 0, 0))
        for place, count in enumerate(counts)
        for number in range(count)
    ]
    assert [len(some) for some in keys._batches(writes)] == expected


def test_an_expired_message_is_not_listed(queue, monkeypatch):
    """Nor counted as deleted; its row expires by itself."""
    queue.send(b"x", key="k", ttl=HOUR)
    assert queue.get_by_key("k").body == b"x"
    later(queue, monkeypatch, 2 * HOUR)
    assert queue.get_by_key("k") is None
    assert queue.delete_by_key("k").done == {}


def test_purge_and_deletion_leave_no_rows(client, queue, monkeypatch):
    """A deletion finds rows that have lost their messages, too, whatever their keys."""
    queue.send_many([cqueue.Message(b"x", key=f"k{n % 7}", delay=n * HOUR) for n in range(50)])
    assert queue.purge() == 50
    assert not any(rows(queue, f"k{n}") for n in range(7))
    spec = queue._catalog.entry(queue.name).spec
    with monkeypatch.context() as patch:
        patch.setattr(keys, "delete", lambda _: iter(()))
        queue.send_many([cqueue.Message(b"x", key=f"k{n}") for n in range(300)])
        queue.purge()
    assert rows(queue, "k1")
    assert rows(queue, "k299")
    client.delete_queue(queue.name)
    found = [place for place, _ in client._driver.ask(ScanKeys(-(1 << 63), 10_000))]
    assert not [place for place in found if place.queue == spec.partition]


# ── Turning it on ──


def test_a_queue_becomes_keyed_for_messages_sent_from_then_on(client):
    """Those sent before are not found; its dead-letter queue becomes keyed with it; it stays keyed."""
    queue = client.create_queue(f"q-{secrets.token_hex(4)}")
    queue.send(b"before", key="k", delay=HOUR)
    with pytest.raises(cqueue.NotKeyed, match=r"keyed=True \(--keyed\)"):
        queue.get_by_key("k")
    with pytest.raises(ConfigError):
        queue.alter(keyed=True, shards=0)
    assert not client.queue(queue.dead_letter_name).config.keyed, "refused before anything was done"
    queue.alter(keyed=True)
    assert client.queue(queue.dead_letter_name).config.keyed
    assert queue.get_by_key("k") is None
    after = queue.send(b"after", key="k", delay=2 * HOUR)
    assert [one.id for one in queue.list_by_key("k")] == [after]
    with pytest.raises(ConfigError, match="keyed stays true"):
        queue.alter(keyed=False)


def test_a_queue_that_is_not_keyed_pays_nothing(faulty):
    """No operation concerns keys, and a look-up is refused before it asks for anything."""
    seen = []
    faulty.trouble = lambda op: seen.append(op) if isinstance(op, OF_KEYS) else None
    with Client(faulty) as client:
        queue = client.create_queue("q")
        queue.send_many([cqueue.Message(b"x", key="k"), cqueue.Message(b"x", key="k", ttl=HOUR)])
        queue.send(b"x", key="k")
        with queue.consumer() as consumer:
            first, second, third = held(consumer, 3)
            first.ack()
            second.dead("why")
            third.nack()
        queue.dead_letters.redrive(everything=True)
        queue.purge()
        asked = faulty.asked
        for call in calls(queue):
            with pytest.raises(cqueue.NotKeyed):
                call("k")
        assert faulty.asked == asked
        client.delete_queue("q")
    assert seen == []


@pytest.mark.parametrize("key", ["", "x" * 1001, 7, None])
def test_what_is_no_key_is_refused(own, faulty, key):
    """Before anything is read."""
    asked = faulty.asked
    for call in calls(own):
        with pytest.raises(cqueue.BadInput, match="key"):
            call(key)
    assert faulty.asked == asked


def test_pages_are_asked_for_by_a_limit_and_an_id_of_the_queue(client, queue):
    for limit in (0, 10_001, True, 2.0):
        with pytest.raises(cqueue.BadInput, match=r"limit is .*from 1 to 10,000"):
            queue.list_by_key("k", limit=limit)
    with pytest.raises(cqueue.InvalidMessageId):
        queue.list_by_key("k", after="nonsense")
    other = client.create_queue(f"{queue.name}-other").send(b"x")
    with pytest.raises(cqueue.BadInput, match="not one of queue"):
        queue.list_by_key("k", after=other)


# ── What a process that died leaves ──


def test_a_row_without_a_message_is_deleted_once_no_send_can_be_under_way(own, faulty, monkeypatch):
    """W and ε after it was written, and not before."""
    faulty.trouble = lambda op: Unavailable("away") if isinstance(op, InsertMessages) else None
    with pytest.raises(NotDone):
        own.send(b"x", key="k")
    faulty.trouble = lambda _: None
    assert own.get_by_key("k") is None
    assert len(rows(own)) == 1, "its send might be under way"
    later(own, monkeypatch, timedelta(seconds=2.6))
    assert own.get_by_key("k") is None
    assert rows(own) == []


def test_an_ack_does_not_fail_for_a_row_that_stays(own, faulty):
    """The next look-up of its key deletes it: its message has been acked, whenever it was sent."""
    own.send(b"x", key="k", delay=timedelta(milliseconds=1))
    faulty.trouble = lambda op: Unavailable("away") if isinstance(op, DeleteKeys) else None
    with own.consumer() as consumer:
        held(consumer)[0].ack()
    assert len(rows(own)) == 1
    assert own.get_by_key("k") is None


def test_a_key_that_cannot_be_stored_is_a_message_that_is_not_sent(own, faulty):
    """Whatever became of the key: nothing was written of the message."""
    faulty.trouble = lambda op: OutcomeUnknown("no answer") if isinstance(op, InsertKeys) else None
    with pytest.raises(NotDone, match="key"):
        own.send(b"x", key="k")
    assert own.peek() == []
    own.send(b"without a key")


@pytest.mark.parametrize("fails", [False, True])
def test_a_send_that_was_stopped_between_its_writes_is_found(own, faulty, monkeypatch, fails):
    """A look-up deleted its row meanwhile, so it is written again; if that fails, the send is not
    acknowledged.
    """

    def stopped(operation, do):
        if not isinstance(operation, InsertMessages):
            return do()
        faulty.around = lambda _, do: do()
        later(own, monkeypatch, timedelta(seconds=60))
        assert own.get_by_key("k") is None
        assert rows(own) == []
        if fails:
            faulty.trouble = lambda op: Unavailable("away") if isinstance(op, InsertKeys) else None
        return do()

    faulty.around = stopped
    if fails:
        with pytest.raises(SendUnknown, match="key"):
            own.send(b"x", key="k", delay=HOUR)
        return
    id_ = own.send(b"x", key="k", delay=HOUR)
    assert own.get_by_key("k").id == id_


def test_a_send_that_is_repeated_after_its_row_was_healed_is_found(own, faulty, monkeypatch):
    """A source gives the same id again, as a spool or a redrive does after a kill."""
    own.alter(derived_sends=True)
    message = cqueue.Message(b"x", key="k", due=datetime.now(UTC), source="order-17")
    faulty.trouble = lambda op: Unavailable("away") if isinstance(op, InsertMessages) else None
    assert own.send_many([message]).failed
    faulty.trouble = lambda _: None
    later(own, monkeypatch, timedelta(seconds=60))
    assert own.get_by_key("k") is None
    assert rows(own) == []
    (id_,) = own.send_many([message]).ids
    assert own.get_by_key("k").id == id_


def test_a_burial_that_was_stopped_between_its_writes_is_found(own, own_dead, faulty, monkeypatch):
    """As a send: the letter's row is written again."""
    own.send(b"x", key="k")
    dead = own_dead()

    def stopped(operation, do):
        if not isinstance(operation, InsertMessages):
            return do()
        faulty.around = lambda _, do: do()
        later(own, monkeypatch, timedelta(seconds=20))
        later(dead, monkeypatch, timedelta(seconds=20))
        assert dead.get_by_key("k") is None
        assert len(rows(own)) == 1, "only the message's is left"
        return do()

    with own.consumer() as consumer:
        (message,) = held(consumer)
        faulty.around = stopped
        message.dead("why")
    assert own.get_by_key("k").state == "dead"


def test_a_burial_writes_its_letters_row_once(own, own_dead, faulty):
    """If it is not so slow that a look-up may have healed the row away."""
    own.send(b"x", key="k")
    own_dead()
    writes = []

    def seen(operation, do):
        if isinstance(operation, InsertKeys):
            writes.append(operation)
        return do()

    with own.consumer() as consumer:
        (message,) = held(consumer)
        faulty.around = seen
        message.dead("why")
    assert len(writes) == 1


def test_a_message_that_cannot_be_read_keeps_its_row(own, monkeypatch):
    """It is left out until it is mended."""
    id_ = own.send(b"x", key="k")
    wide_row, priority, number = id_.locate()
    place = (*wide_row, MESSAGE_KIND, priority, number)
    own._driver.report(Damage(MESSAGES, wide_row.queue, place, "for the test"))
    monkeypatch.setattr("cqueue.protocol.key_lookup._messages_of", lambda *_: _nothing())
    later(own, monkeypatch, timedelta(seconds=60))
    assert own.get_by_key("k") is None
    assert len(rows(own)) == 1


def _nothing():
    yield from ()
    return []


@pytest.mark.parametrize(("ttl", "expected"), [(None, 0), (HOUR, 3660)])
def test_a_row_lives_as_long_as_its_message(own, faulty, ttl, expected):
    """And a minute longer."""
    seen = []
    faulty.trouble = lambda op: seen.append(op.writes[0].ttl_s) if isinstance(op, InsertKeys) else None
    own.send(b"x", key="k", ttl=ttl)
    assert seen[0] == pytest.approx(expected, abs=1)


# ── Other ways to send ──


def test_tasks_have_keys(client, queue):
    """`options(key=…)` gives one to a task's messages."""
    app = cqueue.App(client)

    @app.task(queue=queue.name)
    def remind(order):
        """Do nothing."""

    id_ = remind.options(key="order-17").enqueue(17)
    found = queue.get_by_key("order-17")
    assert (found.id, found.task) == (id_, remind.name)


def test_spooled_messages_have_keys(client, queue, tmp_path):
    """They are found once they are forwarded."""
    with Spool(tmp_path) as spool:
        spooled = client.queue(queue.name, spool=spool)
        id_ = spooled.send(b"x", key="k", delay=HOUR)
        assert spooled.flush(SOON)
        assert spooled.get_by_key("k").id == id_
        spooled.close()
