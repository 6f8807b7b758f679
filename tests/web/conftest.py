"""A dashboard in this process, on a store in memory that has something on every page."""

from __future__ import annotations

from concurrent.futures import wait
from dataclasses import dataclass
from datetime import timedelta

import pytest

import cqueue
from cqueue.dispatcher.schedules.triggers import Cron
from cqueue.dispatcher.service.membership import TTL_S, Worker
from cqueue.store.control import Heartbeat

SECRET = b'{"card":"4111"}'


@dataclass(frozen=True)
class Shop:
    """The client, and what was put there."""

    client: cqueue.Client
    message: str
    letters: tuple[str, ...]

    def beat(self, **said):
        """Send the heartbeat of a worker with 8 threads."""
        now_s = self.client._driver.clock.now_us() / 1e6
        worker = Worker(
            "w", "host-a", 7, "shop:app", ("mails",), 8, "1", now_s, "running", seen=now_s, **said
        )
        self.client._driver.ask(Heartbeat(worker.row(), TTL_S))


@pytest.fixture
def patient(monkeypatch):
    """Pages wait for each read until it ends: a starved machine takes longer than the three seconds."""
    monkeypatch.setattr("cqueue.web.shared.wait", lambda reads, timeout: wait(reads))  # noqa: ARG005


@pytest.fixture
def shop(patient):  # noqa: ARG001 - of the dashboard
    """Queues `mails` (messages, five dead letters, a schedule) and `idle`; a log with a subscription."""
    with cqueue.connect("memory://") as client:
        mails = client.create_queue("mails")
        client.create_queue("idle")
        mails.send_many(cqueue.Message(b"%d" % n, task="send" if n else "ping") for n in range(5))
        with mails.consumer() as consumer:
            for number, message in enumerate(consumer.receive(5)):
                message.dead(
                    "ConnectionRefused: no route" if number else "Timeout: <script>alert(1)</script>"
                )
        ready = [cqueue.Message(SECRET, headers={"tenant": "acme"}), cqueue.Message(b"\xff\xfe")]
        ids = mails.send_many(ready).ids  # in one wide row, so that one claim can take both
        mails.send(b"later", delay=timedelta(hours=1))
        mails.schedules.add("digest/daily", Cron("0 7 * * *"), b"[]", task="digest")
        log = client.create_log("orders")
        with client.subscribe("orders", name="billing", listeners=[lambda _: None]):
            pass
        log.append("orders", b"1")
        letters = tuple(str(letter.id) for letter in mails.dead_letters)
        yield Shop(client, str(ids[0]), letters)


@pytest.fixture
def browse(shop):
    """Make a browser: `browse(access)` gives a test client; its POSTs come from own pages."""
    from starlette.testclient import TestClient

    from cqueue.web import ANYTHING, Access, application

    opened = []

    def browser(access=None, *, app=None, host="localhost", **headers):
        made = app or application(shop.client, access=access or Access(roles=ANYTHING))
        test_client = TestClient(
            made, base_url=f"http://{host}", headers={"sec-fetch-site": "same-origin", **headers}
        )
        opened.append(test_client)
        return test_client

    yield browser
    for one in opened:
        one.close()
        if (site := getattr(one.app.state, "site", None)) is not None:
            site.close()


@pytest.fixture
def log_lines(monkeypatch):
    """What is logged by the dashboard: `log_lines("operator_action")` gives the fields of such lines."""
    from structlog.testing import CapturingLogger

    from cqueue import audit
    from cqueue.web import guard

    logger = CapturingLogger()
    for module in (audit, guard):
        monkeypatch.setattr(module, "logger", lambda _name: logger)
    return lambda event: [call.kwargs for call in logger.calls if call.args == (event,)]


@pytest.fixture
def settled(shop):
    """Let seconds pass for the client: after three, what a log has taken so far can be read."""
    clock, passed_us = shop.client._driver.clock, [0]
    local_us, wall_us = clock._local_us, clock._wall_us
    clock._local_us = lambda: local_us() + passed_us[0]
    clock._wall_us = lambda: wall_us() + passed_us[0]

    def settled(seconds=3):
        passed_us[0] += seconds * 1_000_000

    return settled


@pytest.fixture
def told(shop, settled):
    """The id of a message that is gone, and whose history is kept."""
    queue = shop.client.create_queue("told", cqueue.QueueConfig(history=timedelta(hours=1)))
    app = cqueue.App(shop.client, queue="told", retry=cqueue.Retry(max_attempts=1))

    @app.task(name="pay")
    def pay(amount: int) -> cqueue.Cancel:
        return cqueue.Cancel(f"{amount} <is> too much")

    id_ = pay.enqueue(5)
    with app.dispatcher() as dispatcher:
        dispatcher.drain(timedelta(seconds=20))
    settled()
    assert queue.history(id_)
    return id_
