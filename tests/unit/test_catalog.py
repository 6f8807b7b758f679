"""How fresh what a client knows of its keyspace is, and which calls wait for that."""

import gc
import signal
import threading
import time
from contextlib import suppress
from datetime import timedelta
from types import SimpleNamespace

import pytest

import cqueue
from cqueue import ids, quarantine
from cqueue.client import Client
from cqueue.errors import DamagedRow
from cqueue.history import PREFIX
from cqueue.log import catalog as log_catalog
from cqueue.protocol.inspection import END
from cqueue.runtime import catalog, waiting
from cqueue.store.log_operations import (
    AppendRecords,
    ChangeDefinition,
    ChangeLog,
    CountRecords,
    CreateLog,
    ReadLog,
    ReadSubscription,
    RemoveLog,
    RemoveSubscription,
)
from cqueue.store.memory import MemoryStore
from cqueue.store.operations import (
    BumpDeployment,
    ChangeQueue,
    CreateQueue,
    Head,
    Mutate,
    ReadDeployment,
    ReadHead,
    ReadQueue,
    RemoveQueue,
    UnregisterShard,
)
from tests.faulty_store import FaultyStore
from tests.fix_dispatcher import until
from tests.unit.wanted import Wanted

SOON_S = 20.0


class Guarded(FaultyStore):
    """A store that counts the looks at what all clients agree on, and holds them back on demand."""

    def __init__(self):
        super().__init__(trouble=self._guard)
        self.open = threading.Event()
        self.open.set()
        self.begun = threading.Semaphore(0)
        self.looks = 0

    def _guard(self, operation):
        if isinstance(operation, ReadDeployment):
            self.looks += 1
            self.begun.release()
            assert self.open.wait(SOON_S)

    def hold(self):
        """From now on a look waits."""
        self.open.clear()
        self.begun = threading.Semaphore(0)

    def move_home(self):
        found = self.store._deployment
        self.store._deployment = found._replace(centre_epoch=found.centre_epoch + 1)


@pytest.fixture
def store():
    return Guarded()


@pytest.fixture
def client(store, monkeypatch):
    """A client to which nothing becomes too old while a starved machine looks away."""
    monkeypatch.setattr(catalog, "MAX_AGE_S", 600.0)
    with Client(store) as client:
        client.create_queue("q")
        yield client


def age(client, seconds):
    """Let what the client knows of the keyspace be so old."""
    client._catalog._polled_s = time.monotonic() - seconds


def is_looking():
    return any(thread.name == "cqueue-catalog" for thread in threading.enumerate())


def test_a_call_waits_for_no_look_while_what_is_known_is_young(client, store):
    """A look that takes long goes beside the calls: one of them, however many calls are made meanwhile."""
    queue = client.queue("q")
    store.hold()
    age(client, 1.0)
    looks = store.looks
    try:
        for _ in range(5):
            queue.send(b"x")
        assert store.begun.acquire(timeout=SOON_S)
        assert store.looks == looks + 1
    finally:
        store.open.set()
    until(lambda: not is_looking())
    assert time.monotonic() - client._catalog._polled_s < SOON_S
    age(client, 1.0)
    queue.send(b"x")
    until(lambda: store.looks == looks + 2)


def test_a_call_goes_by_what_another_client_has_changed(client, store):
    queue = client.queue("q")
    assert not queue.paused
    with Client(store) as other:
        other.queue("q").pause()
    age(client, 3600.0)
    assert queue.paused


def test_what_a_look_beside_has_found_holds_for_the_next_call(client, store):
    queue = client.queue("q")
    store.hold()
    age(client, 1.0)
    store.move_home()
    queue.send(b"in time")
    store.open.set()
    until(lambda: not is_looking())
    with pytest.raises(cqueue.WrongDataCentre):
        queue.send(b"late")


def test_a_client_that_stood_still_looks_before_it_does_anything(client, store):
    """Its first call already, be it on two threads at once: neither goes by what was true an hour ago."""
    queue = client.queue("q")
    store.hold()
    age(client, 3600.0)
    store.move_home()
    refused = []

    def send():
        try:
            queue.send(b"late")
        except cqueue.WrongDataCentre as exc:
            refused.append(exc)

    first, second = (threading.Thread(target=send) for _ in range(2))
    polling = Wanted(client._catalog._polling)
    client._catalog._polling = polling
    first.start()
    assert store.begun.acquire(timeout=SOON_S)
    second.start()
    until(lambda: second in polling.by or not second.is_alive())  # one that waited for nobody would send
    store.open.set()
    first.join(SOON_S)
    second.join(SOON_S)
    assert len(refused) == 2
    assert not any(store.store._partitions.values())


def test_calls_that_wait_for_the_look_of_another_one_hold_no_thread(client, store, monkeypatch):
    """An event loop has four for all its clients. Trap: in an outage each call took one for a second."""
    threads = []
    monkeypatch.setattr(waiting, "in_thread", lambda call: (threads.append(call), call())[1])
    polling = client._catalog._polling = Wanted(client._catalog._polling)
    store.hold()
    age(client, 3600.0)
    first, *others = (threading.Thread(target=client._catalog.refresh) for _ in range(4))
    first.start()
    assert store.begun.acquire(timeout=SOON_S)
    for other in others:
        other.start()
    until(lambda: set(polling.by) >= set(others))
    store.open.set()
    for each in (first, *others):
        each.join(SOON_S)
    assert len(threads) == 1


def test_queues_that_were_listed_are_not_read_again_one_by_one():
    """A worker that opens 20,000 queues, or a list of them, would take minutes for that."""
    read = []
    store = FaultyStore(
        trouble=lambda operation: read.append(operation) if isinstance(operation, ReadQueue) else None
    )
    with Client(store) as admin, Client(store) as client:
        for name in ("a", "b", "c"):
            admin.create_queue(name)
        read.clear()
        assert [client.queue(name).config.shards for name in client.queues()] == [4, 1] * 3
        assert not read


@pytest.fixture
def reads():
    """A client, and the names of the queues that it reads one by one."""
    names = []
    store = FaultyStore(
        trouble=lambda operation: names.append(operation.name) if isinstance(operation, ReadQueue) else None
    )
    with Client(store) as client:
        yield client, names


def test_a_client_that_makes_a_queue_reads_no_other_one_again(reads):
    """A crawler makes a queue for each new host, and sends to thousands in between."""
    client, names = reads
    client.create_queue("a").send(b"x")
    names.clear()
    client.create_queue("b")
    client.queue("a").send(b"x")
    assert not names
    client.create_queue("a", exist_ok=True)  # it may have been deleted and made again elsewhere
    names.clear()
    client.queue("a")
    assert names == ["a"]


def test_a_client_remembers_so_many_queues_and_no_more(reads, monkeypatch):
    """A producer that sends to millions would keep a gigabyte for each million."""
    monkeypatch.setattr(catalog, "REMEMBERED", 2)
    client, _ = reads
    for name in ("a", "b", "c", "d", "e"):
        client.create_queue(name)
        assert client.queue(name).config == cqueue.QueueConfig()
        assert len(client._catalog._entries) <= 2
    assert len(client.queues()) == 10
    assert len(client._catalog._entries) <= 2


def test_a_client_forgets_a_queue_that_nothing_of_it_uses(client):
    """A crawler opens a queue for each host: a kilobyte each was a gigabyte within weeks."""
    for name in ("a", "b"):
        client.create_queue(name)
    opened = client.queue("a")
    assert client.queue("a")._producer.wakeups is opened._producer.wakeups
    consumer = client.queue("b").consumer()
    client.queue("b").send(b"x")
    assert [message.body for message in consumer.receive()] == [b"x"]
    gc.collect()
    assert set(client._wakeups) == {"a", "b"}
    consumer.close()
    del opened, consumer
    gc.collect()
    assert not client._wakeups


def test_queues_of_one_configuration_share_it(reads):
    """To parse and keep each queue's own took nine seconds of a list of a hundred thousand."""
    client, _ = reads
    config = cqueue.QueueConfig(visibility=timedelta(seconds=77))
    names = [client.create_queue(name, config).name for name in ("a", "b")]
    one, other = [client._catalog.entry(name).config for name in names]
    assert one is other


def test_an_idle_client_looks_at_nothing(client, store):
    """What is known may grow old while nobody calls: no thread stays behind."""
    age(client, 1.0)
    client.queue("q")
    until(lambda: not is_looking())
    looks = store.looks
    age(client, 1.0)
    assert not is_looking()
    assert store.looks == looks


def test_a_client_that_can_start_no_thread_reads_when_it_must(client, store, monkeypatch):
    """Containers have limits: what is young enough does until it is not."""

    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    queue = client.queue("q")
    monkeypatch.setattr("cqueue.runtime.catalog.Thread.start", refuse)
    looks = store.looks
    for seconds in (1.0, 1.0, 3600.0):
        age(client, seconds)
        queue.send(b"x")
    assert store.looks == looks + 1


def test_a_ctrl_c_as_the_thread_is_started_leaves_the_next_call_another(client, store, monkeypatch):
    """Else each later call would have to look itself once what is known is too old."""
    queue = client.queue("q")
    age(client, 1.0)
    with monkeypatch.context() as patch:
        patch.setattr("cqueue.runtime.catalog.Thread.start", lambda _: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            queue.send(b"x")
    looks = store.looks
    queue.send(b"x")
    until(lambda: store.looks > looks)


# ── Changes ──

CHANGES = [
    lambda client: client.queue("q").pause(),
    lambda client: client.queue("q").alter(max_attempts=3),
    lambda client: client.delete_queue("q"),
]


@pytest.fixture
def bumps(store):
    """The errors that the next bumps of the change counter get, if any; None lets one through."""
    errors = []

    def trouble(operation):
        return errors.pop(0) if isinstance(operation, BumpDeployment) and errors else None

    store.trouble = trouble
    return errors


@pytest.mark.parametrize("change", CHANGES)
def test_who_may_not_tell_all_clients_of_a_change_changes_nothing(client, store, bumps, change):
    """A role with rights on `queues` alone, for example."""
    before = store.execute(ReadQueue("q"))
    bumps.append(cqueue.Refused("no right; GRANT it"))
    with pytest.raises(cqueue.Refused, match="GRANT"):
        change(client)
    assert store.execute(ReadQueue("q")) == before


@pytest.mark.parametrize("error", [cqueue.Unavailable, cqueue.Refused])
def test_a_change_of_which_nobody_could_be_told_is_neither_done_nor_not_done(client, bumps, error):
    """The row is changed; clients go by the former one until the next change. A repeat tells them."""
    queue = client.queue("q")
    bumps += [None, error("away")]
    with pytest.raises(cqueue.OutcomeUnknown, match="repeat the call"):
        queue.pause()
    queue.pause()
    with Client(client._driver.store) as other:
        assert other.queue("q").paused


@pytest.mark.parametrize(
    ("make", "row", "nth"),
    [
        (Client.create_queue, CreateQueue, 1),
        (Client.create_queue, CreateQueue, 2),
        (Client.create_log, CreateLog, 1),
    ],
)
def test_a_creation_without_an_answer_that_stored_nothing_is_unknown(make, row, nth):
    """Of the row of the dead-letter queue, too: a queue must not do without one. The call can be repeated."""
    seen = []

    def trouble(operation):
        if type(operation) is row:
            seen.append(operation)
            return cqueue.OutcomeUnknown("no answer") if len(seen) == nth else None
        return None

    with Client(FaultyStore(trouble=trouble)) as client:
        with pytest.raises(cqueue.OutcomeUnknown):
            make(client, "new", exist_ok=True)
        made = make(client, "new", exist_ok=True)
        assert "new.dead" in client.queues() or made.name in client.logs()


@pytest.mark.parametrize(
    ("make", "row"), [(Client.create_queue, CreateQueue), (Client.create_log, CreateLog)]
)
def test_a_creation_without_an_answer_does_not_count_as_that_of_another_client(make, row):
    """What stands there may have other settings."""
    store, seen = MemoryStore(), []
    with Client(store) as other:

        def lose(operation):
            if type(operation) is row and not seen:
                seen.append(make(other, "new"))
                return cqueue.OutcomeUnknown("no answer")
            return None

        with Client(FaultyStore(store, trouble=lose)) as client:
            with pytest.raises(cqueue.BadInput, match="exists"):
                make(client, "new")
            make(client, "new", exist_ok=True)


def test_a_deletion_finds_out_what_became_of_a_wide_row_it_drops():
    """One answer that is lost, as Cassandra's own timeout of a conditional write, is no failure."""
    lost = []

    def lose(operation, do):
        found = do()
        if isinstance(operation, Mutate) and operation.retire and not lost:
            lost.append(operation)
            raise cqueue.OutcomeUnknown("no answer")
        return found

    store = MemoryStore()
    with Client(FaultyStore(store, around=lose)) as client:
        queue = client.create_queue("q")
        queue.send(b"x")
        with queue.consumer() as consumer:
            assert consumer.receive()
        assert client.delete_queue("q") == 1
    (dropped,) = lost
    assert store.execute(ReadHead(dropped.wide_row)) == Head(lock=dropped.lock)


A_DAY = timedelta(days=1)


class Shared(FaultyStore):
    is_shared = True


def test_what_others_send_until_they_hear_of_a_deletion_goes_as_well(monkeypatch):
    """They know their queues by looks of up to two seconds ago; nobody would find that message any more."""
    store, waits = Shared(), []
    with Client(store) as client, Client(store) as other:
        client.create_queue("q")
        there = other.queue("q")
        there.send(b"before")

        def wait(seconds):
            there.send(b"meanwhile", delay=timedelta(hours=1))
            age(other, seconds)
            waits.append(seconds)

        def send(operation):
            if isinstance(operation, UnregisterShard | RemoveQueue):
                with suppress(cqueue.QueueNotFound):
                    there.send(b"too late")

        monkeypatch.setattr(waiting, "sleep", wait)
        store.trouble = send
        assert client.delete_queue("q") == 2
    assert waits == [4.0]
    assert not any(partition.has_messages() for partition in store.store._partitions.values())


@pytest.mark.parametrize(
    ("ttl", "config", "waits"), [(None, None, True), (A_DAY, None, False), (A_DAY, "{", True)]
)
def test_what_others_append_until_they_hear_of_a_deletion_goes_as_well(monkeypatch, ttl, config, waits):
    """If it might not end by itself: a deletion waits for them only then. `config`: what damages the log."""
    store, waited, shards = Shared(), [], set()
    with Client(store) as client, Client(store) as other:
        client.create_log("trail", cqueue.LogConfig(partitions=1, ttl=ttl))
        there = other.log("trail")
        there.append("topic", b"before")

        def wait(seconds):
            there.append("topic", b"meanwhile")
            other._logs._entries.clear()
            waited.append(seconds)

        def append(operation):
            if isinstance(operation, AppendRecords):
                shards.add(operation.shard)
            if isinstance(operation, RemoveLog):
                with suppress(cqueue.LogNotFound):
                    there.append("topic", b"too late")

        monkeypatch.setattr(waiting, "sleep", wait)
        store.trouble = append
        if config is not None:
            row = store.execute(ReadLog("trail"))
            store.execute(ChangeLog(row._replace(config=config), row.version))
        client.delete_log("trail")
    assert waited == ([7.0] if waits else [])
    left = [store.execute(CountRecords(shard, ids.START, END)).records for shard in shards]
    assert bool(sum(left)) is not waits


def test_what_is_known_of_a_log_is_as_old_as_the_question(monkeypatch):
    """A deletion waits for those who asked before it, however late the answer comes."""
    store, now, asked = FaultyStore(), [0.0], []

    def answer_late(operation):
        if isinstance(operation, ReadLog):
            asked.append(operation)
            now[0] += 6.0

    monkeypatch.setattr(log_catalog, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with Client(store) as client:
        client.create_log("trail")
        client._logs._entries.clear()
        store.trouble = answer_late
        client._logs.entry("trail")
        client._logs.entry("trail")
        assert len(asked) == 2


def test_a_deletion_that_goes_on_tells_all_clients():
    """The call that marked the dead-letter queue broke off before it told them."""
    store, marked = FaultyStore(), []

    def killed(operation):
        if isinstance(operation, BumpDeployment) and marked:
            raise KeyboardInterrupt
        if isinstance(operation, ChangeQueue) and operation.row.name == "q.dead":
            marked.append(operation)
            age(other, 3.0)
            there.send(b"known before it was marked")

    with Client(store) as client, Client(store) as other:
        client.create_queue("q")
        there = other.queue("q.dead")
        store.trouble = killed
        with pytest.raises(KeyboardInterrupt):
            client.delete_queue("q")
        store.trouble = lambda _: None
        client.delete_queue("q")
        age(other, 3.0)
        with pytest.raises(cqueue.QueueNotFound):
            there.send(b"lost")


def test_a_creation_beside_a_deletion_is_not_done():
    """Else the queue would be there without its dead-letter queue."""
    store, looks = MemoryStore(), []
    with Client(store) as one:
        one.create_queue("q")

        def delete_first(operation):
            if type(operation) is ReadQueue and not looks:
                looks.append(operation)
                one.delete_queue("q")

        with Client(FaultyStore(store, trouble=delete_first)) as other:
            with pytest.raises(cqueue.NotDone, match="deleted meanwhile"):
                other.create_queue("q")
            other.create_queue("q")
        assert one.queues() == ["q", "q.dead"]


@pytest.mark.parametrize("nth", range(2, 14))
def test_a_deletion_spares_a_queue_that_was_made_since(nth):
    """Two operators delete a queue, and one of them makes it anew before the other call ends."""
    store, steps, made = MemoryStore(), [], []
    config, history = cqueue.QueueConfig(history=timedelta(days=1)), PREFIX + "q"
    with Client(store) as one:
        one.create_queue("q", config).send(b"old")

        def make_anew(operation):
            if isinstance(operation, ReadQueue | ChangeQueue | RemoveQueue | ReadLog | ChangeLog | RemoveLog):
                steps.append(operation)
                if len(steps) == nth:
                    one.delete_queue("q")
                    one.create_queue("q", config).send(b"new")
                    made.append(store.execute(ReadLog(history)))

        with Client(FaultyStore(store, trouble=make_anew)) as other:
            with suppress(cqueue.QueueNotFound):
                other.delete_queue("q")
            assert len(steps) >= nth
    with Client(store) as one:
        assert one.queues() == ["q", "q.dead"]
        assert [message.body for message in one.queue("q").peek()] == [b"new"]
        assert store.execute(ReadLog(history)) == made[0]


@pytest.mark.parametrize("nth", range(2, 5))
def test_a_deletion_spares_a_log_that_was_made_since(nth):
    store, steps, made = MemoryStore(), [], []
    with Client(store) as one:
        one.create_log("trail")

        def make_anew(operation):
            if isinstance(operation, ReadLog | ChangeLog | RemoveLog):
                steps.append(operation)
                if len(steps) == nth:
                    one.delete_log("trail")
                    one.create_log("trail")
                    made.append(store.execute(ReadLog("trail")))

        with Client(FaultyStore(store, trouble=make_anew)) as other:
            with suppress(cqueue.LogNotFound):
                other.delete_log("trail")
            assert len(steps) >= nth
    assert store.execute(ReadLog("trail")) == made[0]


def test_a_queue_that_is_made_while_one_of_its_name_goes_has_a_dead_letter_queue():
    """The creation found that of the old queue, which was deleted before the new queue's row was written."""
    store = MemoryStore()
    with Client(store) as one:
        one.create_queue("q")

        def delete_first(operation):
            if type(operation) is CreateQueue and operation.row.name == "q" and "q" in one.queues():
                one.delete_queue("q")

        with Client(FaultyStore(store, trouble=delete_first)) as other:
            other.create_queue("q", exist_ok=True)
        assert one.queues() == ["q", "q.dead"]


def beside(store, nth, kind, do):
    """Have a client do something just before the nth operation of a kind on the queue `q`."""
    seen = []

    def trouble(operation):
        if type(operation) is kind:
            seen.append(operation)
            if len(seen) == nth:
                with Client(store.store) as other:
                    do(other)

    store.trouble = trouble


def test_of_two_changes_at_once_none_is_lost(client, store):
    beside(store, 1, ChangeQueue, lambda other: other.queue("q").alter(shards=8))
    config = client.queue("q").alter(max_attempts=3)
    assert (config.shards, config.max_attempts) == (8, 3)


def test_a_change_that_alters_nothing_overtakes_one_that_had_no_answer(client, store):
    """A queue that is resumed after a pause without an answer must not be paused later."""
    late = store.execute(ReadQueue("q"))
    client.queue("q").resume()
    assert not store.execute(ChangeQueue(late._replace(state=catalog.PAUSED), late.version))


def test_of_two_deletions_at_once_one_finds_no_queue(client, store):
    beside(store, 3, ReadQueue, lambda other: other.delete_queue("q"))
    with pytest.raises(cqueue.QueueNotFound):
        client.delete_queue("q")


def test_a_visibility_below_what_clocks_may_differ_by_is_refused(client, store):
    store.store._deployment = client._catalog.deployment()._replace(skew_ms=1000)
    age(client, 3600.0)
    client.queues()
    with pytest.raises(cqueue.ConfigError, match="disagree by 1000 ms"):
        client.create_queue("new", cqueue.QueueConfig(visibility=timedelta(seconds=3)))


@pytest.mark.parametrize("name", [5, ["q"]])
def test_no_queue_has_a_name_that_is_no_text(client, name):
    with pytest.raises(cqueue.InvalidQueueName):
        client.queue(name)


@pytest.mark.parametrize("maker", [0, 1])
def test_who_makes_or_opens_a_queue_anew_sends_to_that_one(maker):
    """Though this client has just used the queue that another process deleted since."""
    store = MemoryStore()
    with Client(store) as client, Client(store) as other:
        other.create_queue("q")
        client.queue("q").send(b"old")
        other.delete_queue("q")
        (client, other)[maker].create_queue("q")
        client.create_queue("q", exist_ok=True).send(b"new")
    with Client(store) as reader:
        assert [message.body for message in reader.queue("q").peek()] == [b"new"]


WRITTEN = [
    (lambda client: client.create_queue("new"), CreateQueue, ReadQueue),
    (lambda client: client.create_log("new"), CreateLog, ReadLog),
    (lambda client: client.queue("q").pause(), ChangeQueue, ReadQueue),
    (lambda client: client.queue("q").alter(max_attempts=3), ChangeQueue, ReadQueue),
    (lambda client: client.log("l").alter(ttl=timedelta(days=2)), ChangeLog, ReadLog),
    (lambda client: subscription(client).pause(), ChangeDefinition, ReadSubscription),
    (lambda client: client.delete_subscription("l", "s"), RemoveSubscription, ReadSubscription),
]


def subscription(client):
    return client.subscribe("l", name="s", listeners=[print])


def make_all(client):
    client.create_queue("q")
    client.create_log("l")
    subscription(client)


@pytest.mark.usefixtures("brief_pauses")
@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize(("change", "written", "read"), WRITTEN)
def test_a_change_without_an_answer_stays_unknown_if_nobody_can_look(change, written, read, stored):
    """It was "not done", as the look at it was not."""
    store, away = FaultyStore(), []

    def around(operation, do):
        if type(operation) is written:
            away.append(operation)
            if stored:
                do()
            raise cqueue.OutcomeUnknown("no answer")
        if away and type(operation) is read:
            raise cqueue.Unavailable("away")
        return do()

    with Client(store) as client:
        make_all(client)
        store.around = around
        with pytest.raises(cqueue.OutcomeUnknown):
            change(client)


@pytest.mark.parametrize(("change", "written", "_"), WRITTEN)
def test_a_change_without_an_answer_is_done_if_it_is_stored(change, written, _):
    store, changes = FaultyStore(), []

    def around(operation, do):
        result = do()
        if type(operation) is written:
            changes.append(operation)
            raise cqueue.OutcomeUnknown("no answer")
        return result

    with Client(store) as client:
        make_all(client)
        store.around = around
        change(client)
    assert changes


@pytest.mark.usefixtures("brief_pauses")
@pytest.mark.parametrize("change", [CHANGES[1], lambda client: client.create_queue("new")])
def test_a_change_that_is_stored_is_not_not_done(client, store, change):
    """Even if the queue cannot be read after it."""
    last = []

    def around(operation, do):
        if last and type(operation) is ReadQueue:
            raise cqueue.Unavailable("away")
        if type(operation) is ChangeQueue or (type(operation) is CreateQueue and operation.row.name == "new"):
            last.append(operation)
        return do()

    store.around = around
    change(client)
    assert last


def test_a_change_is_unknown_if_no_bump_of_the_counter_has_an_answer(client, bumps):
    """No other client learns of the change; the call said "done"."""
    queue = client.queue("q")
    bumps += [None, *(cqueue.OutcomeUnknown("no answer") for _ in range(catalog.TRIES))]
    with pytest.raises(cqueue.OutcomeUnknown, match="repeat the call"):
        queue.pause()
    queue.pause()
    assert queue.paused


def test_a_keyed_queue_that_is_made_while_one_of_its_name_goes_has_its_dead_letters_keyed():
    """The creation finds the old dead-letter queue, and alters it; a deletion takes it meanwhile."""
    store = MemoryStore()
    with Client(store) as one:
        one.create_queue("q")

        def delete_first(operation):
            row = operation.row if type(operation) is ChangeQueue else None
            if row is not None and (row.name, row.state) == ("q.dead", "active") and "q" in one.queues():
                one.delete_queue("q")

        with Client(FaultyStore(store, trouble=delete_first)) as other:
            other.create_queue("q", cqueue.QueueConfig(keyed=True))
        assert one.queue("q.dead").config.keyed


@pytest.mark.parametrize(
    ("column", "spoil"),
    [
        ("oldest_epoch", lambda epoch: epoch + 17),
        ("oldest_epoch", lambda epoch: -1 - epoch),
        ("oldest_open_epoch", lambda epoch: epoch + 17),
        ("oldest_open_epoch", lambda epoch: -1 - epoch),
        ("epoch_ms", lambda _: 1000),
    ],
)
def test_a_queue_whose_epochs_cannot_be_is_damaged(column, spoil):
    """Consumers would look for wide rows where nobody registers any; the other queues are there."""
    store = MemoryStore(lambda: 1_800_000_000_000_000)
    with Client(store) as client:
        for name in ("damaged", "sound"):
            client.create_queue(name)
        row = store._queues["damaged"]
        store._queues["damaged"] = row._replace(**{column: spoil(getattr(row, column))})
    with Client(store) as client:
        with pytest.raises(DamagedRow, match=column):
            client.queue("damaged")
        assert "sound" in client.queues()
        assert "damaged" not in client.queues()


def test_a_queue_whose_epochs_lie_ahead_of_a_clock_that_was_set_back_is_there_again_in_time():
    """What is sent until then nobody would look for. The error says to wait, before it says to delete."""
    now_us = [1_800_000_000_000_000]
    store = MemoryStore(lambda: now_us[0])
    with Client(store) as client:
        client.create_queue("q")
    row = store._queues["q"]
    store._queues["q"] = row._replace(oldest_epoch=row.oldest_epoch + 2 * row.epoch_ms)
    with Client(store) as client:
        with pytest.raises(DamagedRow, match="wait for it if clocks were set back; mend it, or delete"):
            client.queue("q")
        now_us[0] = store._queues["q"].oldest_epoch * 1000
        client.queue("q").send(b"x")


def test_a_row_whose_key_is_no_name_is_left_out():
    """Lists, and all that reads each queue or log of a list, go on with the others."""
    store = MemoryStore(lambda: 1_800_000_000_000_000)
    with Client(store) as client:
        client.create_queue("sound")
        client.create_log("sound")
        ask = client._driver.ask
        assert ask(CreateQueue(ask(ReadQueue("sound"))._replace(name="a b")))
        assert ask(CreateLog(ask(ReadLog("sound"))._replace(name="a b")))
        assert client.queues() == ["sound", "sound.dead"]
        assert client.logs() == ["sound"]
        assert {damage.table for damage in quarantine.look(client)} == {"queues", "logs"}
