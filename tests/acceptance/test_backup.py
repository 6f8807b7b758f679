"""The drill of docs/how-to/backup.md: a snapshot under load, the cluster is lost, another is made of it.

`make backup-drill` prints the figures; with NODES=3, snapshots are of three moments, and repaired afterwards.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from datetime import timedelta

import pytest

import cqueue
from cqueue.cli.main import main
from cqueue.spool import Spool
from tests.acceptance.snapshots import TAG, Site
from tests.fix_dispatcher import until

pytestmark = [
    pytest.mark.cassandra,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not os.environ.get("CQUEUE_DRILL"), reason="takes minutes: make backup-drill"),
]

NODES = int(os.environ.get("CQUEUE_DRILL_NODES", "1"))
VISIBILITY = timedelta(seconds=30)  # longer than three snapshots take, so that what is held stays held
SOON = timedelta(seconds=20)
BACKLOG, ACKED, HELD, NACKED, DEAD, LARGE, LATER, RECORDS, SPOOLED = 4_000, 1_000, 50, 30, 20, 20, 40, 100, 10
TICK = timedelta(seconds=1)
FILLER = b"x" * 40_000  # kept in `bodies`, not in `messages`


class Ledger:
    """When sends and acks of each body began and were answered, in seconds of one clock."""

    def __init__(self):
        self.sent, self.acked = {}, {}

    def send(self, queue, bodies, **options):
        began = time.monotonic()
        result = queue.send_many([cqueue.Message(body, **options) for body in bodies])
        assert not result.failed
        self.sent.update(dict.fromkeys(bodies, (began, time.monotonic())))

    def ack(self, consumer, messages):
        began = time.monotonic()
        consumer.ack(messages)
        self.acked.update({message.body: (began, time.monotonic()) for message in messages})


def fill(client, ledger):
    """Messages in every state: due, acked, nacked, dead, delayed, large; records of a log."""
    config = cqueue.QueueConfig(visibility=VISIBILITY, max_attempts=5)
    mail = client.create_queue("mail", config)
    ledger.send(mail, [b"m%d" % number for number in range(BACKLOG)])
    ledger.send(mail, [b"large%d" % number + FILLER for number in range(LARGE)])
    ledger.send(mail, [b"later%d" % number for number in range(LATER)], delay=timedelta(minutes=1))
    with mail.consumer() as consumer:
        for _ in range(ACKED // 100):
            ledger.ack(consumer, consumer.receive(100, wait=SOON))
        consumer.nack(consumer.receive(NACKED, wait=SOON), timedelta(seconds=30))
        dead = consumer.receive(DEAD, wait=SOON)
        consumer.dead(dead, "no")
    log = client.create_log("events")
    log.append_many([cqueue.Record("orders", b"e%d" % number) for number in range(RECORDS)])
    return mail, {message.body for message in dead}


def load(mail, ledger, over):
    """Send and ack until `over`, in two threads."""

    def produce():
        for number in range(1_000_000):
            if over.wait(0.01):
                return
            ledger.send(mail, [b"live%d" % number])

    def consume():
        with mail.consumer() as consumer:
            while not over.wait(0.02):
                if messages := consumer.receive(5, wait=timedelta(seconds=1)):
                    ledger.ack(consumer, messages)

    threads = [threading.Thread(target=work) for work in (produce, consume)]
    for thread in threads:
        thread.start()
    return threads


def drained(queue):
    """Everything that the queue delivers, until nothing is left in it."""
    bodies = []
    with queue.consumer() as consumer:
        while queue.stats(exact=True).live:
            if messages := consumer.receive(500, wait=timedelta(seconds=2)):
                bodies += [message.body for message in messages]
                consumer.ack(messages)
    return bodies


def test_what_a_restored_snapshot_keeps(tmp_path, capsys):
    """Nothing that was acknowledged before it and not acked until its end is lost. Nothing acked before
    comes again; what was acked later does, once. What was sent later is gone, also what a spool forwarded.
    Schedules fire again what they had fired since.
    """
    ledger, backup, fired, spooled = Ledger(), tmp_path / "backup", [], []

    def tick(_message, context):
        fired.append(context.firing.fired_at)

    with Spool(tmp_path / "spool", disk_reserve=0) as spool:
        site = Site(tmp_path / "lost", NODES)
        try:
            site.cluster.start()
            url = site.url
            assert main(["--url", url, "schema", "apply", "--replication", f"datacenter1={site.copies}"]) == 0
            with cqueue.connect(url) as client:
                mail, dead = fill(client, ledger)
                ticks = client.create_queue("ticks", cqueue.QueueConfig(visibility=VISIBILITY))
                ticks.schedules.add("tick", cqueue.Repeating(TICK, misfire="all"), b"tick")
                client.create_queue("till")
                till = client.queue("till", spool=spool)
                spool_through(till, "before", spooled)
                holder = mail.consumer()
                held = {message.body for message in holder.receive(HELD, wait=SOON)}
                over = threading.Event()
                threads = load(mail, ledger, over)
                with cqueue.Dispatcher(ticks, tick):
                    until(lambda: len(fired) >= 2)
                    began_s = time.monotonic()
                    site.nodetool("snapshot", "-t", TAG, "cqueue")
                    ended_s, ended = time.monotonic(), len(fired)
                    site.copy_snapshots(backup)
                    spool_through(till, "after", spooled)
                    until(lambda: len(fired) >= ended + 3)  # three seconds of sends and acks
                    over.set()
                    for thread in threads:
                        thread.join()
                holder.close()
        finally:
            site.cluster.wipe()  # by SIGKILL
        with cqueue.connect(url, lazy=True) as client:
            spool_through(client.queue("till", spool=spool), "waiting", spooled, arrives=False)
        site = Site(tmp_path / "found", NODES)
        try:
            site.cluster.start()
            site.restore(backup)
            assert main(["--url", site.url, "schema", "verify"]) == 0
            first_run = list(fired)
            with cqueue.connect(site.url) as client:
                assert client.queue("till", spool=spool).flush(SOON)
                mail = client.queue("mail")
                came = drained(mail)
                letters = {letter.body for letter in mail.dead_letters}
                till_came = drained(client.queue("till"))
                with client.log("events").scan() as scanner:
                    records = [record.body for record in scanner]
                with cqueue.Dispatcher(client.queue("ticks"), tick):
                    until(lambda: set(first_run[ended:]) <= set(fired[len(first_run) :]), 150)
            capsys.readouterr()
            assert main(["--url", site.url, "quarantine", "list", "mail"]) == 0
            assert "mail" not in capsys.readouterr().out
        finally:
            site.cluster.wipe()

    before = {body for body, (_, done) in ledger.sent.items() if done < began_s}
    after = {body for body, (began, _) in ledger.sent.items() if began > ended_s}
    acked_before = {body for body, (_, done) in ledger.acked.items() if done < began_s}
    untouched = {body for body in before - dead if ledger.acked.get(body, (ended_s,))[0] >= ended_s}
    again = set(came) & ledger.acked.keys()
    assert untouched - set(came) == set(), "lost"
    assert acked_before & set(came) == set(), "acked before the snapshot began"
    assert after & set(came) == set(), "sent after it ended, and yet here"
    assert set(came) <= ledger.sent.keys(), "never sent"
    assert {body: count for body, count in Counter(came).items() if count > 1} == {}
    assert held <= untouched, "the snapshot took too long for this test"
    assert letters == dead
    assert set(records) == {b"e%d" % number for number in range(RECORDS)}
    assert Counter(till_came) == Counter(each for each in spooled if not each.startswith(b"after"))
    second_run = fired[len(first_run) :]
    assert set(first_run[ended:]) <= set(second_run), "fired since the snapshot, so fired again"
    assert len(set(fired)) == (max(fired) - min(fired)) // TICK + 1, "a time was left out"
    sys.stdout.write(
        f"\n{NODES} node(s); snapshot took {ended_s - began_s:.1f} s; {len(before):,} sent before it, "
        f"{len(untouched):,} not acked until its end, all of these here; {len(again):,} acked later and here "
        f"again; {len(after):,} sent later and gone; {len(set(first_run) & set(second_run))} firings twice\n"
    )


def spool_through(queue, name, spooled, *, arrives=True):
    """Send through a spool, and wait until Cassandra has it, if it answers."""
    bodies = [b"%s%d" % (name.encode(), number) for number in range(SPOOLED)]
    assert not queue.send_many([cqueue.Message(body) for body in bodies]).failed
    assert queue.flush(SOON if arrives else timedelta()) == arrives
    spooled += bodies
