"""`list` and `exists` of a queue: predicates, bounded pages, and tokens that are refused if damaged."""

import base64
import secrets
from datetime import timedelta
from types import SimpleNamespace

import pytest

import cqueue
from cqueue import InvalidToken, Message, Where
from cqueue.errors import BadInput, NotDone
from cqueue.protocol.send import INLINE_BODY
from cqueue.runtime import listing
from cqueue.store.operations import ReadHead, ReadShards, ReadSlice
from tests.faults.stores import open_client
from tests.faulty_store import FaultyStore
from tests.fix_dispatcher import ManualClock
from tests.fix_store import brief_store

SOON = timedelta(seconds=10)
HOUR = timedelta(hours=1)


class Counting(FaultyStore):
    """Counts the reads of messages, heads and the registry."""

    def __init__(self, store):
        super().__init__(store)
        self.reads = 0

    def together(self, operations):
        self.reads += sum(isinstance(one, ReadHead | ReadShards | ReadSlice) for one in operations)
        return self.store.together(operations)


@pytest.fixture(scope="module")
def cassandra_client(keyspace):
    with open_client(keyspace.url, Counting) as client:
        yield client


@pytest.fixture
def memory_client():
    with cqueue.client.Client(Counting(brief_store())) as client:
        yield client


@pytest.fixture
def queue(client):
    return client.create_queue(f"q-{secrets.token_hex(4)}")


def pages(queue, where=None, **options):
    """All pages, to the last one."""
    found = [queue.list(where, **options)]
    while found[-1].token is not None:
        found.append(queue.list(where, token=found[-1].token, **options))
    return found


def bodies(queue, where=None, **options):
    return sorted(message.body for page in pages(queue, where, **options) for message in page.messages)


# ── predicates ──


def test_each_predicate_picks_what_it_says(queue):
    """Headers with their values, tasks and priorities, one or several; all that is given has to be true."""
    queue.send_many(
        [
            Message(b"0", headers={"tenant": "7", "kind": "a"}, task="pay"),
            Message(b"1", headers={"tenant": "7"}, task="mail", priority=3),
            Message(b"2", headers={"tenant": "8"}, task="pay", priority=9),
            Message(b"3"),
        ]
    )
    picked = {
        "all": bodies(queue),
        "header": bodies(queue, Where(headers={"tenant": "7"})),
        "headers": bodies(queue, Where(headers={"tenant": "7", "kind": "a"})),
        "task": bodies(queue, {"task": "pay"}),
        "priority": bodies(queue, Where(priority=9)),
        "priorities": bodies(queue, Where(priority=(0, 3))),
        "both": bodies(queue, Where(task="pay", headers={"tenant": "8"})),
        "none": bodies(queue, Where(task="pay", priority=3)),
    }
    assert picked == {
        "all": [b"0", b"1", b"2", b"3"],
        "header": [b"0", b"1"],
        "headers": [b"0"],
        "task": [b"0", b"2"],
        "priority": [b"2"],
        "priorities": [b"0", b"1", b"3"],
        "both": [b"2"],
        "none": [],
    }


def test_states_are_those_of_find(queue):
    """Ready, claimed, waiting and delayed; several at once."""
    queue.send_many([Message(b"claimed"), Message(b"waiting")])
    with queue.consumer() as consumer:
        held = {}
        while len(held) < 2:
            held |= {message.body: message for message in consumer.receive(2, wait=SOON)}
        held[b"waiting"].nack(HOUR)
        queue.send_many([Message(b"ready"), Message(b"delayed", delay=HOUR)])
        for state in ("ready", "claimed", "waiting", "delayed"):
            (found,) = [one for page in pages(queue, Where(state=state)) for one in page.messages]
            assert (found.body, found.state) == (state.encode(), state)
            assert queue.find(found.id) == found
        assert bodies(queue, Where(state=("claimed", "delayed"))) == [b"claimed", b"delayed"]
        held[b"claimed"].ack()
    assert bodies(queue, Where(state="claimed")) == []


def test_age_is_the_time_since_the_send(client, queue, monkeypatch):
    """Whatever the due time is."""
    clock = ManualClock()
    monkeypatch.setattr(client._driver, "clock", clock)
    queue.send(b"old", delay=HOUR)
    clock.advance(2)
    queue.send(b"new")
    second = timedelta(seconds=1)
    assert bodies(queue, Where(older_than=second)) == [b"old"]
    assert bodies(queue, Where(younger_than=second)) == [b"new"]
    assert bodies(queue, Where(older_than=timedelta(), younger_than=HOUR)) == [b"new", b"old"]


def test_large_bodies_come_whole(queue):
    queue.send(bytes(INLINE_BODY + 1), headers={"large": "yes"})
    assert bodies(queue, Where(headers={"large": "yes"})) == [bytes(INLINE_BODY + 1)]


def test_letters_are_listed_like_other_messages(client, queue):
    """A dead-letter queue is a queue, and its messages stand in open wide rows."""
    queue.send_many([Message(b"%d" % number, task="pay") for number in range(3)])
    with queue.consumer() as consumer:
        left = 3
        while left:
            for message in consumer.receive(3, wait=SOON):
                message.dead("why")
                left -= 1
    dead = client.queue(queue.dead_letter_name)
    assert bodies(dead, Where(task="pay", headers={"cqueue-dead-reason": "why"}), limit=1) == [
        b"0",
        b"1",
        b"2",
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        {"state": "asleep"},
        {"state": 3},
        {"state": ()},
        {"priority": 10},
        {"priority": "1"},
        {"priority": (1, None)},
        {"priority": True},
        {"task": ""},
        {"task": 7},
        {"headers": {"a": 1}},
        {"headers": "a=1"},
        {"older_than": 5},
        {"older_than": timedelta(seconds=-1)},
        {"younger_than": timedelta(days=4000)},
        {"colour": "red"},
        "task=pay",
        7,
    ],
)
def test_what_means_nothing_is_bad_input(wrong):
    with cqueue.connect("memory://") as client:
        queue = client.create_queue("q")
        for call in (queue.list, queue.exists):
            with pytest.raises(BadInput):
                call(wrong)


@pytest.mark.parametrize("limit", [0, 1001, True, "3", None])
def test_a_limit_out_of_range_is_bad_input(limit):
    with cqueue.connect("memory://") as client, pytest.raises(BadInput):
        client.create_queue("q").list(limit=limit)


# ── pages ──


def test_each_message_comes_on_one_page(queue):
    """In wide rows of the past, the present and of open ones, in all priorities, in packs or alone."""
    queue.alter(derived_sends=True)
    sent = [Message(b"%d" % number, priority=number % 3) for number in range(230)]
    sent += [Message(b"later %d" % n, delay=n * timedelta(minutes=90), priority=n % 2) for n in range(1, 20)]
    sent += [Message(b"derived %d" % n, due=queue.now, source=f"{n}") for n in range(20)]
    assert not queue.send_many(sent).failed
    for limit in (1, 7, 1000):
        found = pages(queue, limit=limit)
        assert sorted(one.body for page in found for one in page.messages) == sorted(one.body for one in sent)
        assert len({one.id for page in found for one in page.messages}) == len(sent)
        assert all(len(page.messages) <= limit for page in found)


def test_a_page_reads_a_bounded_number_and_says_how_many(queue, monkeypatch):
    """Whether they fit or not: a page may be empty, and have a token. The rare one is found all the same."""
    monkeypatch.setattr(listing, "MAX_ROWS", 300)
    count = 1000
    for start in range(0, count, 500):
        queue.send_many([Message(b"%d" % number) for number in range(start, start + 500)])
    queue.send_many([Message(b"rare", task="rare", priority=9)])
    found = pages(queue, Where(task="rare"))
    assert [one.body for page in found for one in page.messages] == [b"rare"]
    assert any(page.token and not page.messages for page in found)
    assert all(page.rows_read <= 300 + listing.ROWS_A_PAGE for page in found)
    assert sum(page.rows_read for page in found) == count + 1


@pytest.mark.parametrize(
    ("slow", "seconds"), [(ReadSlice, 4), (ReadHead, 4), (ReadShards, 4), (ReadShards, 12)]
)
def test_a_page_ends_in_bounded_time_and_gets_on(monkeypatch, slow, seconds):
    """On a starved node each of its reads takes seconds; the next page goes on behind this one's last."""
    now, store, found, pages = [0.0], FaultyStore(), [], 0

    def read(operation):
        now[0] += seconds if isinstance(operation, slow) else 0

    monkeypatch.setattr(listing, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with cqueue.client.Client(store) as client:
        queue = client.create_queue("q")
        queue.send_many(Message(b"%d" % number, delay=number * 25 * HOUR) for number in range(30))
        store.trouble, token = read, None
        while token is not None or not pages:
            now[0], pages = 0.0, pages + 1
            page = queue.list(token=token)
            found, token = [*found, *page.messages], page.token
            assert now[0] <= listing.MAX_S + 3 * seconds  # the index of epochs, and what was under way
    assert 5 < pages < 40 * 30
    assert sorted(int(one.body) for one in found) == [*range(30)]


@pytest.mark.parametrize("reads", [19, 20, 21])
def test_a_page_makes_a_bounded_number_of_reads(queue, client, monkeypatch, reads):
    """Also where messages lie thin, each in a wide row and an epoch of its own."""
    monkeypatch.setattr(listing, "MAX_READS", reads)
    count = 30
    queue.send_many([Message(b"%d" % number, delay=number * 25 * HOUR) for number in range(1, count + 1)])
    store, token, found, most = client._driver.store, None, [], 0
    while True:
        before = store.reads
        page = queue.list(token=token)
        most = max(most, store.reads - before)
        found += page.messages
        token = page.token
        if token is None:
            break
    assert most <= reads + 5  # the index of epochs, and what was under way
    assert sorted(int(one.body) for one in found) == [*range(1, count + 1)]


def test_a_page_ends_at_16_mib_of_bodies(queue, monkeypatch):
    monkeypatch.setattr(listing, "MAX_BYTES", 50_000)
    queue.send_many([Message(bytes(20_000)) for _ in range(7)])
    assert [len(page.messages) for page in pages(queue)] == [3, 3, 1]


def test_messages_that_are_taken_between_two_pages_do_not_shift_the_others(queue):
    queue.send_many([Message(b"%02d" % number) for number in range(20)])
    first = queue.list(limit=5)
    for message in first.messages:
        queue.cancel(message.id)
    rest = []
    token = first.token
    while token is not None:
        page = queue.list(limit=5, token=token)
        rest += page.messages
        token = page.token
    assert sorted(one.body for one in (*first.messages, *rest)) == [b"%02d" % number for number in range(20)]


# ── tokens ──


def test_a_token_of_another_queue_is_an_error(client, queue):
    """And so is one of a queue of the same name that was deleted."""
    queue.send_many([Message(b"a"), Message(b"b")])
    token = queue.list(limit=1).token
    other = client.create_queue(f"{queue.name}-other")
    with pytest.raises(InvalidToken, match=f"of queue '{queue.name}'"):
        other.list(token=token)
    client.delete_queue(queue.name)
    again = client.create_queue(queue.name)
    with pytest.raises(InvalidToken, match="an earlier queue of this name"):
        again.list(token=token)


def test_a_damaged_token_is_an_error():
    """Each character counts; nothing else is taken for a token."""
    with cqueue.connect("memory://") as client:
        queue = client.create_queue("q")
        queue.send_many([Message(b"a"), Message(b"b")])
        token = queue.list(limit=1).token
        damaged = [
            token[:place] + ("A" if token[place] != "A" else "B") + token[place + 1 :]
            for place in range(len(token))
        ]
        damaged += [
            token[:-1],
            token + "A",
            token + "=",
            "",
            "x",
            "ä",
            b"x",
            7,
            base64.b64encode(bytes(60)).decode(),
        ]
        for wrong in damaged:
            with pytest.raises(InvalidToken):
                queue.list(token=wrong)
        assert [one.body for one in queue.list(token=token).messages] == [b"b"]


# ── exists ──


def test_exists_says_whether_one_fits(queue):
    assert not queue.exists()
    queue.send_many([Message(b"a", task="pay", delay=HOUR)])
    assert queue.exists()
    assert queue.exists(Where(task="pay", state="delayed"))
    assert not queue.exists({"task": "mail"})


def test_exists_takes_not_known_for_neither(queue, monkeypatch):
    """A queue that is longer than what may be read is an error, unless one was found before."""
    monkeypatch.setattr(listing, "MAX_ROWS", 100)
    queue.send_many([Message(b"%d" % number) for number in range(450)])
    queue.send_many([Message(b"last", task="pay", priority=9)])
    with pytest.raises(NotDone, match="there are more"):
        queue.exists(Where(task="pay"), max_rows=200)
    assert queue.exists(max_rows=200)
    assert queue.exists(Where(task="pay"), max_rows=500)
    for wrong in (0, True, 1.5, None):
        with pytest.raises(BadInput):
            queue.exists(max_rows=wrong)
