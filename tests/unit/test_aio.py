"""What only the asyncio API has: many tasks on one thread, cancelled calls, and a loop that goes on.

What it has in common with the synchronous API is tested there, with the same test bodies on both; see
`tests/fix_on_loop.py`.
"""

from __future__ import annotations

import asyncio
import inspect
import secrets
import subprocess
import sys
import threading
from datetime import timedelta

import greenlet
import pytest

import cqueue
from cqueue.aio.bridge import Bridge
from cqueue.runtime import waiting
from cqueue.runtime.clock import ClusterClock

SOON, LONG = timedelta(seconds=10), timedelta(hours=1)


@pytest.fixture(params=["memory", pytest.param("cassandra", marks=pytest.mark.cassandra)])
def url(request):
    """Each back end in turn."""
    return "memory://" if request.param == "memory" else request.getfixturevalue("keyspace").url


@pytest.fixture
def on_queue(url):
    """A function that runs a coroutine function with a client and a queue of its own."""

    def run(story, config=None):
        async def told():
            async with asyncio.timeout(60), cqueue.connect_async(url) as client:
                name = f"q-{secrets.token_hex(4)}"
                return await story(client, await client.create_queue(name, config))

        return asyncio.run(told())

    return run


def twins():
    return [
        (cqueue.Client, cqueue.AsyncClient, {"subscribe"}),
        (cqueue.Queue, cqueue.AsyncQueue, {"send_many_async"}),
        (
            cqueue.Consumer,
            cqueue.AsyncConsumer,
            {"ack_async", "driver", "fetch", "receive_from", "settles_with"},
        ),
        (cqueue.ReceivedMessage, cqueue.AsyncReceivedMessage, set()),
        (cqueue.DeadLetters, cqueue.AsyncDeadLetters, set()),
        (cqueue.Schedules, cqueue.AsyncSchedules, set()),
        (cqueue.Log, cqueue.AsyncLog, set()),
        (cqueue.Scanner, cqueue.AsyncScanner, {"to_arrow"}),
        (cqueue.Follower, cqueue.AsyncFollower, set()),
    ]


@pytest.mark.parametrize(
    ("plain", "twin", "left_out"), twins(), ids=lambda value: getattr(value, "__name__", "")
)
def test_each_name_has_its_twin(plain, twin, left_out):
    """The asyncio API has the names of the synchronous one, but those that are of threads or used inside."""

    def names(kind):
        return {name for name in dir(kind) if not name.startswith("_")}

    assert names(plain) - names(twin) == left_out


@pytest.mark.parametrize(("plain", "twin", "left_out"), twins())
def test_each_twin_takes_the_same_arguments(plain, twin, left_out):
    """With the same defaults, but those that are of threads: what a spool or a prefetch needs."""
    of_threads = {"spool", "prefetch", "wake"}
    for name in dir(plain):
        method, other = getattr(plain, name), getattr(twin, name, None)
        if name.startswith("_") or not inspect.isfunction(method) or name in left_out:
            continue
        expected = {
            each.name: (each.kind, each.default)
            for each in inspect.signature(method).parameters.values()
            if each.name not in of_threads
        }
        taken = inspect.signature(other).parameters.values()
        assert {each.name: (each.kind, each.default) for each in taken} == expected, name


def test_many_tasks_share_one_thread(on_queue):
    """A thousand sends at once start no thread a call, and each message comes once."""

    async def story(_, queue):
        await queue.send(b"first")  # whatever is started once, is started now
        before, most = threading.active_count(), 0

        async def send(number):
            nonlocal most
            await queue.send(b"%d" % number)
            most = max(most, threading.active_count())

        await asyncio.gather(*(send(number) for number in range(1000)))
        bodies = []
        async with queue.consumer() as consumer:
            while len(bodies) < 1001:
                messages = await consumer.receive(500, wait=SOON)
                bodies += [message.body for message in messages]
                await asyncio.gather(*(message.ack() for message in messages))
        assert sorted(bodies) == sorted([b"first", *(b"%d" % number for number in range(1000))])
        assert (await queue.stats(exact=True)).live == 0
        assert most - before <= 8

    on_queue(story)


def test_the_loop_goes_on_while_calls_wait(on_queue):
    """A receive that waits stops no other task; a send of another task ends its wait."""

    async def story(_, queue):
        async with queue.consumer() as consumer:
            receiving = asyncio.create_task(consumer.receive(wait=SOON))
            for _ in range(10):
                await asyncio.sleep(0.05)
            assert not receiving.done()
            await queue.send(b"late")
            (message,) = await receiving
            assert message.body == b"late"
            await message.ack()

    on_queue(story)


def test_calls_that_never_wait_let_other_tasks_run():
    """In memory no call waits; a task that calls all the time keeps no other task out."""

    async def story():
        async with cqueue.connect_async("memory://") as client:
            queue = await client.create_queue("mail")
            ran = asyncio.Event()

            async def set_it():
                ran.set()

            other = asyncio.create_task(set_it())
            for _ in range(10):
                await queue.send(b"x")
            assert ran.is_set()
            await other

    asyncio.run(story())


def test_iteration_gives_one_message_after_the_other(on_queue):
    """It waits for the next message, and ends when the consumer is closed."""

    async def story(_, queue):
        bodies = []
        async with queue.consumer() as consumer:

            async def work():
                async for message in consumer:
                    bodies.append(message.body)
                    await message.ack()

            working = asyncio.create_task(work())
            for number in range(5):
                await queue.send(b"%d" % number)
            while len(bodies) < 5:  # noqa: ASYNC110 - the loop has to go on meanwhile
                await asyncio.sleep(0.01)
            await consumer.close()
            await working
        assert sorted(bodies) == [b"0", b"1", b"2", b"3", b"4"]

    on_queue(story)


def test_a_break_gives_back_what_is_not_settled(on_queue):
    """At the end of the block the message is another consumer's at once."""

    async def story(_, queue):
        await queue.send(b"one")
        async with queue.consumer() as consumer:
            async for _message in consumer:
                break
        async with queue.consumer() as consumer:
            (again,) = await consumer.receive(wait=timedelta(seconds=5))
            assert (again.body, again.attempt) == (b"one", 2)
            await again.ack()

    on_queue(story, cqueue.QueueConfig(visibility=timedelta(hours=1), shards=1))


def test_sends_of_many_tasks_go_together(on_queue):
    """With `linger` they wait for each other, on the loop; each task gets its own result."""

    async def story(client, queue):
        lingering = await client.queue(queue.name, linger=timedelta(milliseconds=20))
        results = await asyncio.gather(
            *(lingering.send(b"%d" % number, priority=number) for number in range(12)), return_exceptions=True
        )
        assert [type(result) for result in results[10:]] == [cqueue.PriorityOutOfRange] * 2
        assert {message.id for message in await queue.peek(100)} == set(results[:10])

    on_queue(story)


# ── cancelled calls ──


def test_a_cancelled_receive_ends_at_once_and_keeps_nothing(on_queue):
    """A message that is sent afterwards is received by the next call, with its first attempt."""

    async def story(_, queue):
        async with queue.consumer() as consumer:
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await consumer.receive(wait=LONG)
            await queue.send(b"one")
            (message,) = await consumer.receive(wait=SOON)
            assert (message.body, message.attempt) == (b"one", 1)
            await message.ack()

    on_queue(story, cqueue.QueueConfig(visibility=timedelta(hours=1), shards=1))


def test_what_a_cancelled_receive_had_claimed_is_given_back(on_queue):
    """Wherever the cancellation comes, the message is received soon, without a used attempt, though its
    visibility is an hour.
    """

    async def story(_, queue):
        for steps in range(12):
            await queue.send(b"%d" % steps)
            async with queue.consumer() as consumer:
                receiving = asyncio.create_task(consumer.receive(wait=SOON))
                for _ in range(steps):
                    await asyncio.sleep(0.001)
                receiving.cancel()
                got = await asyncio.gather(receiving, return_exceptions=True)
                messages = [] if isinstance(got[0], asyncio.CancelledError) else got[0]
                if not messages:
                    messages = await consumer.receive(wait=SOON)
                (message,) = messages
                assert (message.body, message.attempt) == (b"%d" % steps, 1)
                await message.ack()

    on_queue(story, cqueue.QueueConfig(visibility=timedelta(hours=1), shards=1))


def test_a_cancelled_send_is_carried_through_or_was_never_begun(on_queue):
    """Its outcome is unknown to the task, nothing hangs, and the client's end waits for it: the message is
    there wholly, or not at all.
    """

    async def story(client, queue):
        sending = [asyncio.create_task(queue.send(b"x" * 100_000)) for _ in range(20)]
        await asyncio.sleep(0)
        for task in sending:
            task.cancel()
        results = await asyncio.gather(*sending, return_exceptions=True)
        assert all(isinstance(one, asyncio.CancelledError | cqueue.MessageId) for one in results)
        await client._bridge.finish()
        peeked = await queue.peek(100)
        assert len(peeked) == (await queue.stats(exact=True)).live
        assert all(len(message.body) == 100_000 for message in peeked)
        return len(peeked)

    assert on_queue(story) >= 1  # those that were under way


def test_a_program_that_ends_in_the_middle_of_a_call_ends(on_queue):
    """`asyncio.run` cancels what is left, and waits for the rest of the calls, not an hour for a message."""

    async def story(_, queue):
        async with queue.consumer() as consumer:
            tasks = [asyncio.create_task(queue.send(b"x")) for _ in range(50)]
            tasks.append(asyncio.create_task(consumer.receive(wait=LONG)))
            await asyncio.sleep(0.001)
        return tasks

    assert all(task.done() for task in on_queue(story))


def test_a_cancelled_close_waits_for_other_calls_and_closes(monkeypatch):
    """A task that is cancelled at the end of its `async with` leaves no connection open."""
    held, order = waiting.Signal(), []
    close = cqueue.Client.close

    def closed(client):
        order.append("closed")
        close(client)

    monkeypatch.setattr(cqueue.Client, "close", closed)

    async def story():
        async with asyncio.timeout(20), cqueue.connect_async("memory://") as client:

            def call():
                held.wait(5)
                order.append("called")

            tasks = [client._bridge.call(call), client.close(), client.close()]
            for task in map(asyncio.create_task, tasks):
                await asyncio.sleep(0)  # the task begins, and waits
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            assert order == []
            held.set()
            await client._bridge.finish()
            assert order[:2] == ["called", "closed"]

    asyncio.run(story())


def test_a_cancelled_extend_leaves_the_lease_usable(on_queue):
    """The lease's lock is free again: the message can be settled."""

    async def story(_, queue):
        await queue.send(b"one")
        async with queue.consumer() as consumer:
            (message,) = await consumer.receive(wait=SOON)
            extending = [asyncio.create_task(message.extend(timedelta(minutes=n + 1))) for n in range(5)]
            await asyncio.sleep(0.001)
            for task in extending[::2]:
                task.cancel()
            await asyncio.gather(*extending, return_exceptions=True)
            await message.nack()
            (again,) = await consumer.receive(wait=SOON)
            await again.ack()

    on_queue(story)


def test_a_cancelled_redrive_stops(on_queue):
    """By its rate it would take hours. The letters that were not redriven yet stay."""

    async def story(client, queue):
        dead = await client.queue(queue.dead_letter_name)
        await dead.send_many([cqueue.Message(b"%d" % n) for n in range(20)])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await queue.dead_letters.redrive(everything=True, rate=0.001)
        await client._bridge.finish()
        left = len(await queue.dead_letters.list())
        assert left + len(await queue.peek(100)) == 20
        assert left >= 19

    on_queue(story)


# ── locks ──


def test_tasks_that_settle_one_lease_take_turns(on_queue):
    """Changes of one lease wait for each other without blocking the loop that each needs to go on."""

    async def story(_, queue):
        await queue.send_many([cqueue.Message(b"%d" % n) for n in range(50)])
        async with queue.consumer() as consumer:
            held = []
            while len(held) < 50:
                held += await consumer.receive(50, wait=SOON)
            await asyncio.gather(*(message.extend(timedelta(minutes=5)) for message in held))
            await asyncio.gather(*(message.nack() for message in held[:25]), consumer.ack(held[25:]))
            again = []
            while len(again) < 25:
                again += await consumer.receive(50, wait=SOON)
            assert {message.attempt for message in again} == {2}
            await consumer.ack(again)
        assert (await queue.stats(exact=True)).live == 0

    on_queue(story, cqueue.QueueConfig(shards=1))


def test_two_tasks_that_receive_take_turns(on_queue):
    """One consumer, two tasks: each message comes to one of them."""

    async def story(_, queue):
        await queue.send_many([cqueue.Message(b"%d" % n) for n in range(100)])
        bodies = []
        async with queue.consumer() as consumer:

            async def work():
                while len(bodies) < 100:
                    messages = await consumer.receive(7, wait=timedelta(milliseconds=200))
                    bodies.extend(message.body for message in messages)
                    await consumer.ack(messages)

            await asyncio.gather(work(), work())
        assert sorted(bodies) == sorted(b"%d" % n for n in range(100))

    on_queue(story, cqueue.QueueConfig(shards=1))


def test_a_lock_passes_between_tasks_and_threads():
    """A task that wants a lock that a thread holds waits on the loop, and the other way round."""
    order = []

    async def story():
        bridge = Bridge()
        lock = await bridge.call(waiting.rlock)
        taken, release = threading.Event(), threading.Event()

        def hold_in_thread():
            with lock:
                taken.set()
                release.wait(10)
                order.append("thread")

        def hold(name):
            with lock, lock:  # reentrant
                waiting.sleep(0.02)
                order.append(name)

        thread = threading.Thread(target=hold_in_thread)
        thread.start()
        taken.wait(10)
        tasks = [asyncio.create_task(bridge.call(lambda n=n: hold(n))) for n in range(3)]
        await asyncio.sleep(0.05)
        assert order == []
        assert not await bridge.call(lambda: lock.acquire(timeout=0.01))
        release.set()
        await asyncio.gather(*tasks)
        await asyncio.to_thread(hold, "after")
        with pytest.raises(RuntimeError):
            await bridge.call(lock.release)
        thread.join()

    asyncio.run(story())
    assert order[0] == "thread"
    assert sorted(order[1:4]) == [0, 1, 2]
    assert order[4] == "after"


def test_waits_that_end_without_the_lock_leave_nothing_behind():
    """An idle consumer waits for hints again and again, for days."""
    lock = waiting.LoopLock()
    lock.acquire()
    for _ in range(3):
        assert not lock.acquire(timeout=0.001)
    assert not lock._waiting


def test_a_child_process_connects_although_its_parent_has():
    """Threads do not survive a fork, so the child makes its own."""
    script = """
import os, sys
from cqueue.runtime import waiting

waiting._threads().submit(int).result()
child = os.fork()
if not child:
    waiting._threads().submit(int).result()
    os._exit(7)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert subprocess.run([sys.executable, "-c", script], timeout=60, check=False).returncode == 7


# ── use and misuse ──


def test_a_consumer_is_opened_once(on_queue):
    """A second one in its place would leave the messages of the first one to their timeout."""

    async def story(_client, queue):
        await queue.send(b"x")
        async with queue.consumer() as consumer:
            (message,) = await consumer.receive(wait=timedelta(seconds=10))
            with pytest.raises(cqueue.Closed, match="opened before; make another one"):
                async with consumer:
                    pass
            await message.extend(timedelta(minutes=1))
        with pytest.raises(cqueue.Closed, match="opened before"):
            await consumer.__aenter__()
        at_once = queue.consumer()
        opened = await asyncio.gather(*[at_once.__aenter__() for _ in range(2)], return_exceptions=True)
        assert [type(one) for one in opened] == [type(at_once), cqueue.Closed]
        await at_once.close()
        async with queue.consumer() as other:
            (again,) = await other.receive(wait=timedelta(seconds=10))
            await again.ack()

    on_queue(story)


def test_a_dispatcher_refuses_a_queue_of_asyncio(on_queue):
    async def story(_client, queue):
        with pytest.raises(cqueue.ConfigError, match="open it with"):
            cqueue.Dispatcher(queue, lambda _message, _context: None)

    on_queue(story)


def test_a_client_belongs_to_its_loop():
    """Another loop gets a typed error, and nothing is done."""

    async def connect():
        async with cqueue.connect_async("memory://") as client:
            queue = await client.create_queue("mail")

            def elsewhere():
                with pytest.raises(cqueue.Closed, match="another event loop"):
                    asyncio.run(queue.send(b"x"))

            await asyncio.to_thread(elsewhere)
            assert (await queue.stats(exact=True)).live == 0

    asyncio.run(connect())


def test_errors_are_those_of_the_synchronous_api(on_queue):
    """Typed, from the same calls; a consumer outside its block, and a closed client, say so."""

    async def story(client, queue):
        with pytest.raises(cqueue.QueueNotFound):
            await client.queue("nobody")
        with pytest.raises(cqueue.PriorityOutOfRange):
            await queue.send(b"", priority=10)
        with pytest.raises(cqueue.BadInput):
            await queue.consumer(poll_interval=timedelta(0)).__aenter__()
        with pytest.raises(cqueue.Closed, match="async with"):
            await queue.consumer().receive()
        with pytest.raises(cqueue.Closed, match="async with"):
            await anext(aiter(queue.consumer()))
        await client.close()
        with pytest.raises(cqueue.Closed):
            await queue.send(b"")

    on_queue(story)


def test_a_url_that_cannot_be_used_is_refused():
    """As by `connect`."""

    async def connect(url):
        async with cqueue.connect_async(url):
            pass

    with pytest.raises(cqueue.ConfigError):
        asyncio.run(connect("nonsense://"))


def test_a_client_serves_one_block():
    """Outside of one, and in a second one, it says what to do."""

    async def misuse():
        client = cqueue.connect_async("memory://")
        for call in (client.queues, client.close):
            with pytest.raises(cqueue.Closed, match="the client is not open; use it in an `async with`"):
                await call()
        async with client:
            with pytest.raises(cqueue.Closed, match="opened before; make another one"):
                await client.__aenter__()
            assert await client.queues() == []
        with pytest.raises(cqueue.Closed, match="opened before; make another one"):
            await client.__aenter__()

    asyncio.run(misuse())


def test_without_greenlet_the_error_says_what_to_install():
    """A program without the extra gets a typed error; the rest of the package does not need it."""
    program = (
        "import sys; sys.modules['greenlet'] = None\n"
        "import cqueue\n"
        "cqueue.connect('memory://').create_queue('mail').send(b'x')\n"
        "try: cqueue.connect_async('memory://')\n"
        "except cqueue.ConfigError as exc: print(exc)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "pip install 'cassandra-cqueue[aio]'" in done.stdout


def test_tasks_that_need_the_time_at_once_do_not_block_the_loop():
    """One of them asks the cluster for it; the others wait for that one, which goes on by the same loop."""
    program = """
import asyncio, threading
import cqueue
from cqueue import client
from cqueue.runtime import clock
from cqueue.store.memory import MemoryStore

others_ran = threading.Event()
others_ran.set()

class Store(MemoryStore):
    def sample_time_us(self):
        assert others_ran.wait(30)
        return super().sample_time_us()

store = Store(clock.steady_us)
client._clock_of = lambda store: clock.ClusterClock(store.sample_time_us)
client._cassandra_client = lambda settings: client.Client(store)
clock.STALE_US = 0

async def main():
    async with cqueue.connect_async("cassandra://h/k?local_dc=dc") as opened:
        queue = await opened.create_queue("mails")
        others_ran.clear()
        async def go_on():  # begins when each of the others has asked for the time
            others_ran.set()
        print(len(await asyncio.gather(*(queue.send(b"x") for _ in range(20)), go_on())))

asyncio.run(main())
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("21\n", "")


def test_tasks_that_wait_for_the_time_hold_no_thread_that_others_need():
    """Four threads do for all clients of a program, and the first time may take ten seconds."""
    asked, answer = threading.Event(), threading.Event()

    def sample():
        asked.set()
        assert answer.wait(60)
        return [(1_800_000_000_000_000, 1000)]

    async def story():
        bridge = Bridge()
        clock = await bridge.call(lambda: waiting.in_thread(lambda: ClusterClock(sample)))  # as `connect`
        tasks = [asyncio.create_task(bridge.call(clock.sync)) for _ in range(4)]
        await asyncio.to_thread(asked.wait, 60)
        other = bridge.call(lambda: waiting.in_thread(lambda: "free"))
        try:
            assert await asyncio.wait_for(other, 20) == "free"
        finally:
            answer.set()
            await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(story())


def test_threads_without_a_loop_get_no_greenlet(monkeypatch):
    """A thread with one that ends as the program does makes greenlet 3.1 print a warning."""
    threads = set()

    def getcurrent():
        threads.add(threading.get_ident())
        return greenlet.getcurrent()

    def wait_and_lock():
        waiting.Signal().wait(0)
        with waiting.rlock():
            return waiting.caller()

    async def story():
        return await Bridge().call(lambda: waiting.in_thread(wait_and_lock))

    monkeypatch.setattr(cqueue.aio.bridge, "getcurrent", getcurrent)
    assert asyncio.run(story()) != threading.get_ident()
    assert threads == {threading.get_ident()}


# ── letters, schedules, logs ──


def test_dead_letters_come_with_their_bodies(on_queue):
    """Also a large one, which is stored apart: a body is no call that could be awaited."""

    async def story(_, queue):
        bodies = {b"small", b"L" * 200_000}
        for body in bodies:
            await queue.send(body)
        async with queue.consumer() as consumer:
            for _ in bodies:
                (message,) = await consumer.receive(1, wait=SOON)
                await message.dead("why")
        letters = queue.dead_letters
        assert {letter.body for letter in await letters.list()} == bodies
        assert {letter.body async for letter in letters} == bodies
        (first, second) = await letters.list(reason="why")
        assert (await letters.get(first.id)).body == first.body
        assert (await letters.redrive([first.id])).done == (first.id,)
        assert (await letters.drop([second.id])).done == (second.id,)
        assert [message.body for message in await queue.peek()] == [first.body]

    on_queue(story)


def test_schedules(on_queue):
    """Added, listed, paused, run and removed."""

    async def story(_, queue):
        schedules = queue.schedules
        await schedules.add("nightly", cqueue.Cron("0 3 * * *"), body=b"run")
        assert [schedule.key for schedule in await schedules.list()] == ["nightly"]
        await schedules.pause("nightly")
        await schedules.resume("nightly")
        await schedules.run_now("nightly")
        async with queue.consumer() as consumer:
            (message,) = await consumer.receive(wait=SOON)
            assert message.body == b"run"
            await message.ack()
        await schedules.remove("nightly")
        with pytest.raises(cqueue.ScheduleNotFound):
            await schedules.get("nightly")

    on_queue(story)


def test_ids_of_all_messages(on_queue):
    """More than one page of them."""

    async def story(_, queue):
        sent = (await queue.send_many([cqueue.Message(b"") for _ in range(1500)])).ids
        assert {id_ async for id_ in queue.ids()} == set(sent)
        assert await queue.purge() == 1500

    on_queue(story)


@pytest.mark.usefixtures("brief_settling")
def test_a_log(on_queue):
    """Append, follow, scan; a follower that waits ends when it is cancelled, and when it is closed."""

    async def story(client, _):
        log = await client.create_log(f"log-{secrets.token_hex(4)}", cqueue.LogConfig(partitions=2))
        read = []
        async with log.follow("earliest", low_latency=True) as follower:

            async def follow():
                async for record in follower:
                    read.append(record.body)  # noqa: PERF401 - seen meanwhile

            following = asyncio.create_task(follow())
            await log.append("t", b"0")
            result = await log.append_many([cqueue.Record("t", b"%d" % n) for n in range(1, 20)])
            assert result.failed == []
            while len(read) < 20:  # noqa: ASYNC110 - the loop has to go on meanwhile
                await asyncio.sleep(0.01)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await follower.poll(LONG)
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            assert set(await follower.positions()) == {0, 1}
        assert sorted(read, key=int) == [b"%d" % n for n in range(20)]
        scanned = []
        while len(scanned) < 20:  # until they are stable
            async with log.scan() as scanner:
                scanned = [record.body async for record in scanner]
            await asyncio.sleep(0.2)
        assert sorted(scanned, key=int) == sorted(read, key=int)
        assert (await log.config()).partitions == 2
        assert (await log.stats()).partitions == 2

    on_queue(story)


@pytest.mark.usefixtures("brief_settling")
def test_readers_of_a_log_lose_nothing_where_a_loop_or_call_ends():
    """A loop that is left and a call that is cancelled leave the records to the next one."""

    async def next_of(reader):
        async for record in reader:
            return record.body
        return None

    async def cancelled(call):
        task = asyncio.ensure_future(call)
        await asyncio.sleep(0)  # it has read by now, and lets other tasks run
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def story():
        async with asyncio.timeout(60), cqueue.connect_async("memory://") as client:
            log = await client.create_log("events", cqueue.LogConfig(partitions=1))
            bodies = [b"%d" % number for number in range(5)]
            await log.append_many([cqueue.Record("t", body) for body in bodies])
            async with log.follow("earliest", low_latency=True) as follower:
                assert await next_of(follower) == b"0"
                await cancelled(follower.poll(LONG))
                assert await next_of(follower) == b"1"
                assert [record.body for record in await follower.poll(LONG)] == bodies[2:]
            await asyncio.to_thread(lambda: list(zip(range(5), log._inner.follow("earliest"), strict=False)))
            async with log.scan() as scanner:  # all are stable
                assert await next_of(scanner) == b"0"
                await cancelled(anext(scanner.batches()))
                assert await next_of(scanner) == b"1"
                assert [record.body async for record in scanner] == bodies[2:]

    asyncio.run(story())
