"""Pictures of every page of the dashboard, wide and narrow, light and dark: a shop after six hours of work.

    python -m benchmarks.dashboard_pictures FOLDER [docs/images]

They go to FOLDER as PNG; what can be measured of a page's looks is printed. The second folder gets those that
the docs show. The shop is in memory, and its six hours take some seconds.
"""

from __future__ import annotations

import base64
import math
import random
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import cqueue
from cqueue.dispatcher.service.membership import TTL_S, Worker
from cqueue.protocol.dead import HEADER_TRACEBACK
from cqueue.store.control import Heartbeat
from cqueue.testing import MemoryClient
from cqueue.web import ANYTHING, Access, Password, application, hashed
from cqueue.web.access import Person
from cqueue.web.history import History
from cqueue.web.shared import Shared
from tests.web.browser import Browser, serving
from tests.web.browser_flaws import flaws

HOURS = 6
TENANTS = ("acme", "globex", "initech")
BODY = b'{"order":48213,"currency":"EUR","amount":"23.90"}'
ADA, BOB = Person("ada", ANYTHING), Person("bob", ANYTHING)
DOCS = {
    "dashboard-queues.png": ("queues", False, 2000),
    "dashboard-queue.png": ("queue", False, 912),
    "dashboard-dead.png": ("letters", False, 723),
    "dashboard-dark.png": ("queue", True, 912),
}
"""Pictures of the docs: which page, whether in the dark, and how many of its upper pixels."""
TRACEBACK = """Traceback (most recent call last):
  File "/srv/shop/tasks.py", line 41, in post_event
    answer = session.post(partner.url, json=event, timeout=10)
  File "/srv/shop/http.py", line 87, in post
    raise ConnectionError(f"{url.host}: connection refused")
ConnectionError: hooks.partner.example: connection refused
"""


@dataclass(slots=True)
class Work:
    """What arrives in one queue in a minute, and how much of that its workers can do.

    kills: (reason, how many of 10,000 messages die of it). down: minutes in which nobody handles anything.
    """

    queue: str
    tasks: tuple[str, ...]
    arriving: float
    handled: int
    kills: tuple[tuple[str, int], ...] = ()
    down: range = range(0)
    finished: int = 0
    dead: int = 0


TIMEOUT = "TimeoutError: no answer within 10 s from hooks.partner.example, POST /v2/events"
REFUSED = "ConnectionError: hooks.partner.example: connection refused"
SHOP = (
    Work("mails", ("send_receipt", "send_reminder"), 26, 60, (("SMTPError: 550 no such user", 9),)),
    Work("payments", ("charge", "refund"), 14, 40, (("CardExpired: the card has expired", 18),)),
    Work("webhooks", ("post_event",), 18, 34, ((TIMEOUT, 40), (REFUSED, 25)), down=range(225, 270)),
    Work("thumbnails", ("resize",), 9, 9, (("UnidentifiedImageError: not an image", 12),)),
    Work("search-index", ("index", "remove"), 31, 80),
    Work("exports", ("export_orders",), 0.4, 2, down=range(240, HOURS * 60)),
    Work("shop.analytics.events-of-the-mobile-application", ("count",), 5, 20),
    Work("imports", (), 0, 0),
)
CONFIG = cqueue.QueueConfig(time_shard=timedelta(hours=1), max_attempts=5)


def work_six_hours(client: MemoryClient, site: Any, consumers: dict[str, cqueue.Consumer]) -> None:
    """Send, handle and bury messages minute by minute, and let the dashboard count each minute."""
    chance = random.Random(33)
    logs = [client.create_log(name, cqueue.LogConfig(partitions=4)) for name in ("orders", "clicks")]
    for minute in range(HOURS * 60):
        wave = 1 + 0.35 * math.sin(minute / 120 * 2 * math.pi)
        for work in SHOP:
            _send(client.queue(work.queue), work, _about(chance, work.arriving * wave), chance)
        for log, records in zip(logs, (4, 15), strict=True):
            log.append_many(_record(chance) for _ in range(records))
        client.advance(timedelta(minutes=1))
        for work in SHOP:
            if minute not in work.down:
                _handle(consumers[work.queue], work, _about(chance, work.handled), chance)
        _beat(client)
        site.history.count(int(client.now.timestamp()) // 60 * 60)


def _about(chance: random.Random, mean: float) -> int:
    return int(mean * chance.uniform(0.7, 1.3) + chance.random())


def _record(chance: random.Random) -> cqueue.Record:
    topic = chance.choice(("placed", "placed", "paid", "cancelled"))
    return cqueue.Record(topic, b'{"order":48213}', key=f"customer-{chance.randrange(60)}")


def _send(queue: cqueue.Queue, work: Work, count: int, chance: random.Random) -> None:
    def made() -> cqueue.Message:
        later = timedelta(minutes=chance.randrange(5, 300)) if chance.random() < 0.01 else None
        headers = {"tenant": chance.choice(TENANTS), "trace": f"{chance.getrandbits(64):x}"}
        return cqueue.Message(BODY, task=chance.choice(work.tasks), headers=headers, delay=later)

    if work.tasks and count:
        queue.send_many([made() for _ in range(count)])


def _handle(consumer: cqueue.Consumer, work: Work, count: int, chance: random.Random) -> None:
    """Receive and settle up to this many messages."""
    while count > 0 and (taken := consumer.receive(count)):
        for message in taken:
            reason = _death(work, chance.randrange(10_000))
            if reason is not None:
                traceback = {HEADER_TRACEBACK: TRACEBACK} if reason == REFUSED else None
                message.dead(reason, headers=traceback)
                work.dead += 1
        consumer.ack([message for message in taken if message.is_held])
        work.finished += len(taken)
        count -= len(taken)


def _death(work: Work, number: int) -> str | None:
    for reason, share in work.kills:
        if number < share:
            return reason
        number -= share
    return None


def _beat(client: MemoryClient) -> None:
    """Write the heartbeats of two workers, which share the queues."""
    now_s = client.now.timestamp()
    for host, served in (("worker-1", SHOP[:4]), ("worker-2", SHOP[4:])):
        worker = Worker(
            name=host, host=host, pid=4117, app="shop.tasks:app", threads=16, version=cqueue.__version__,
            queues=tuple(work.queue for work in served), started=now_s - 187_000, state="running", seen=now_s,
            running=sum(work.handled > 0 for work in served), unstarted=len(served),
            counters={
                "succeeded": sum(work.finished - work.dead for work in served),
                "retried": sum(work.finished // 40 for work in served),
                "dead": sum(work.dead for work in served),
            },
            finished={work.queue: work.finished for work in served},
        )  # fmt: skip
        client.store.execute(Heartbeat(worker.row(), TTL_S))


def operate(client: MemoryClient, site: Any) -> str:
    """Add schedules, subscriptions, a queue with a history, and what operators have done.

    Return the id of a message whose history is known.
    """
    schedules = client.queue("mails").schedules
    schedules.add("digest/daily", cqueue.Cron("0 7 * * *", "Europe/Berlin"), task="send_digest")
    schedules.add("reminders", cqueue.Repeating(timedelta(minutes=15)), task="send_reminder")
    schedules.add("newsletter", cqueue.Cron("30 9 * * 2"), task="send_newsletter")
    client.queue("exports").schedules.add("month-end", cqueue.Cron("0 4 1 * *"), task="export_orders")
    client.subscribe("orders", name="warehouse", listeners=[_nothing]).pause()
    id_ = _told(client)
    with site.trail.action(BOB, "10.0.0.9", "pause_queue", queue="exports"):
        client.queue("exports").pause()
    client.advance(timedelta(minutes=2))
    settled = {"queue": "webhooks", "letters": 46, "done": 46}
    for who, what, about in (
        (ADA, "redrive_letters", settled),
        (ADA, "show_body", {"queue": "invoices", "message": id_}),
        (BOB, "pause_schedule", {"queue": "mails", "schedule": "newsletter"}),
    ):
        client.advance(timedelta(seconds=20))
        with site.trail.action(who, "10.0.0.7", what, **about):
            pass
    schedules.pause("newsletter")
    return id_


def _nothing(_record: object) -> None:
    """Do nothing with a record."""


def _told(client: MemoryClient) -> str:
    """Let a dispatcher run a task that fails, of a queue that keeps histories."""
    client.create_queue("invoices", cqueue.QueueConfig(history=timedelta(days=1)))
    app = cqueue.App(client, queue="invoices", retry=cqueue.Retry(max_attempts=1))

    @app.task(name="print_invoice")
    def print_invoice(order: int) -> None:
        raise ValueError(f"order {order} has no address")

    id_ = str(print_invoice.enqueue(48213))
    with app.dispatcher() as dispatcher:
        dispatcher.drain(timedelta(seconds=20))
    return id_


@contextmanager
def shop() -> Iterator[tuple[Any, dict[str, str]]]:
    """Make the shop; yield its dashboard, and the addresses of all pages by name."""
    began = datetime.now(UTC) - timedelta(hours=HOURS, minutes=4)
    with ExitStack() as stack:
        client = stack.enter_context(MemoryClient(now=began.replace(second=0, microsecond=0)))
        app = application(client, access=Access(roles=ANYTHING))
        site = app.state.site
        site.close()
        site.shared = Shared(time_s=lambda: client.clock.now_us() / 1e6)
        site.history = History(client, site.shared)
        site.history.stop()  # its minutes are counted here
        queues = [client.create_queue(work.queue, CONFIG) for work in SHOP]
        consumers = {queue.name: stack.enter_context(queue.consumer()) for queue in queues}
        work_six_hours(client, site, consumers)
        told = operate(client, site)
        client.advance(datetime.now(UTC) - client.now - timedelta(seconds=8))
        client.log("orders").append_many(_record(random.Random(n)) for n in range(20))
        client.advance(timedelta(seconds=5))
        billing = stack.enter_context(client.subscribe("orders", name="billing", listeners=[_nothing]))
        while any(lag.count for lag in billing.lag().values()):
            time.sleep(0.05)
        for work in SHOP[:3]:
            _send(client.queue(work.queue), work, 12, random.Random(1))
            client.advance(timedelta(seconds=1))
            consumers[work.queue].receive(4)  # under way while the pictures are taken
        _beat(client)
        message = next(one for one in client.queue("mails").peek(20) if one.headers)
        (letter, *_) = client.queue("webhooks").dead_letters.list(1, reason="refused")
        yield app, {
            "queues": "/", "nothing": "/?q=none",
            "queue": "/queue/webhooks", "rows": "/queue/thumbnails?state=ready&rows=1",
            "hour": "/queue/mails?span=1h", "idle": "/queue/imports",
            "message": f"/queue/mails/message/{message.id}", "history": f"/queue/invoices/message/{told}",
            "letters": "/queue/webhooks/dead", "letter": f"/queue/webhooks/dead/{letter.id}",
            "schedules": "/schedules", "workers": "/workers", "logs": "/logs", "log": "/log/orders",
            "audit": "/audit", "trouble": "/queue/none",
        }  # fmt: skip


def main(folder: Path, docs: Path | None) -> None:
    """Take all pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    guarded = Access(passwords=(Password("ada", hashed("correct horse")),))
    with ExitStack() as stack:
        app, pages = stack.enter_context(shop())
        address = stack.enter_context(serving(app))
        door = stack.enter_context(serving(application(app.state.site.client, access=guarded)))
        profile = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        chromium = stack.enter_context(Browser(profile))
        # First, while the last minute that was counted is still the present.
        for target, (name, dark, most) in DOCS.items() if docs else ():
            page = chromium.open(dark=dark)
            page.go(address + pages[name])
            (docs / target).write_bytes(_picture(page, most))
            page.close()
        for dark in (False, True):
            for width in (1280, 400):
                page = chromium.open(width=width, dark=dark)
                for name, url in {name: address + path for name, path in pages.items()}.items():
                    page.go(url)
                    _keep(page, folder, name, width, dark=dark)
                page.go(f"{door}/")
                _keep(page, folder, "login", width, dark=dark)
                page.go(address + pages["letters"])
                page.click("radio", re.compile("all"))
                page.follow("button", "Drop…")
                _keep(page, folder, "settle", width, dark=dark)
                page.close()


def _keep(page: Any, folder: Path, name: str, width: int, *, dark: bool) -> None:
    path = folder / f"{name}-{width}-{'dark' if dark else 'light'}.png"
    path.write_bytes(_picture(page))
    for flaw in flaws(page):
        print(f"{path.name}: {flaw}")


def _picture(page: Any, most: int = 1 << 14) -> bytes:
    """Return a picture of the whole page, or of its upper pixels, as PNG."""
    height = page.js("Math.ceil(document.documentElement.getBoundingClientRect().height)")
    clip = {"x": 0, "y": 0, "width": page.js("innerWidth"), "height": min(height, most), "scale": 1}
    picture = page.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
    return base64.b64decode(picture["data"])


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if sys.argv[2:] else None)
