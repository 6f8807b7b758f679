"""Logged batches of an application's rows and their messages, while nodes are killed: row 28."""

from __future__ import annotations

import time
from datetime import timedelta
from itertools import count
from threading import Event, Thread

import pytest
from cassandra import ConsistencyLevel
from cassandra.cluster import NoHostAvailable
from cassandra.policies import FallthroughRetryPolicy
from cassandra.query import BatchStatement

import cqueue
from cqueue.settings import load
from cqueue.store.connection import open_session
from tests.faults.clusters import running_cluster, url_of
from tests.faults.lengths import full
from tests.fix_dispatcher import until

pytestmark = [pytest.mark.cassandra, pytest.mark.fault, pytest.mark.timeout(900)]

SELLERS = 4
KILLS = full(6, 3)
SALES = 50
"""Orders that are stored after each kill, and after each restart, before the next one."""
PATIENCE_S = 180
"""Seconds for Cassandra to replay its batch logs, which it does every ten seconds, and for the messages."""


class Shop:
    """Sells: each order is a row and a message, in one logged batch that is tried once."""

    def __init__(self, session, queue):
        self.sold, self.unknown, self.refused = [], [], 0
        self._session, self._queue = session, queue
        session.execute("CREATE TABLE orders (id text PRIMARY KEY)", timeout=60)
        self._insert = session.prepare("INSERT INTO orders (id) VALUES (?)")
        self._closed = Event()
        self._sellers = [Thread(target=self._sell, args=(number,)) for number in range(SELLERS)]
        for seller in self._sellers:
            seller.start()

    def _sell(self, seller):
        for number in count():
            if self._closed.is_set():
                return
            order = f"{seller}-{number}"
            try:
                send = self._queue.send_statement(cqueue.Message(order.encode()))
            except cqueue.NotDone:
                self.refused += 1
                continue
            batch = BatchStatement(
                retry_policy=FallthroughRetryPolicy(), consistency_level=ConsistencyLevel.LOCAL_QUORUM
            )
            batch.add(self._insert, [order])
            try:
                batch.add(self._session.prepare(send.cql), send.values)
                self._session.execute(batch, timeout=3)
            except Exception:  # noqa: BLE001 - the driver has many
                self.unknown.append(order)
            else:
                self.sold.append(order)
                send.notify()

    def sell(self, some):
        """Wait until that many more orders are stored."""
        goal = len(self.sold) + some
        until(lambda: len(self.sold) >= goal, 60, "too few orders were stored")

    def close(self):
        self._closed.set()
        for seller in self._sellers:
            seller.join()

    def orders(self):
        """The orders that have a row, once no node has batches to replay."""
        for host in self._session.cluster.metadata.all_hosts():
            until(lambda host=host: not self._has_batches(host), PATIENCE_S, f"{host} still has batches")
        return {row[0] for row in self._session.execute("SELECT id FROM orders", timeout=60)}

    def _has_batches(self, host):
        try:
            return (
                self._session.execute("SELECT id FROM system.batches", host=host, timeout=60).one()
                is not None
            )
        except NoHostAvailable:  # the driver has not connected to it again yet
            return True


@pytest.mark.row(28, "kill -9 of nodes in turn, under logged batches of a row and its message")
def test_an_order_and_its_message_are_both_there_or_neither(tmp_path, row):
    """Also where nobody knows: a batch whose coordinator was killed is replayed, or was never written."""
    with running_cluster(tmp_path, nodes=3) as own:
        url = url_of(own, request_timeout=3)
        with cqueue.connect(url) as client, open_session(load(url)) as connection:
            queue = client.create_queue("sold", cqueue.QueueConfig(derived_sends=True))
            shop = Shop(connection.session, queue)
            try:
                for kill in range(KILLS):
                    shop.sell(SALES)
                    own.kill(kill % 3 + 1)
                    shop.sell(SALES)
                    own.start_node(kill % 3 + 1)
            finally:
                shop.close()
            orders, end_s = shop.orders(), time.monotonic() + PATIENCE_S
            bodies = []
            with queue.consumer() as consumer:
                while orders - {*bodies}:
                    assert time.monotonic() < end_s, f"{len(orders - {*bodies})} orders have no message"
                    for message in consumer.receive(500, wait=timedelta(seconds=1)):
                        bodies.append(message.body.decode())
                        message.ack()
    assert {*bodies} == orders
    assert {*shop.sold} <= orders
    stored = len(orders) - len(shop.sold)
    row(
        orders=len(shop.sold),
        unknown=len(shop.unknown),
        unknown_but_stored=stored,
        not_begun=shop.refused,
        duplicates=len(bodies) - len({*bodies}),
    )
