"""Web hooks of a shop: told to partners until they answer, and reported if one never does.

An application for `cqueue dispatch hooks:app`. `test_hooks.py` beside it tests it without a server.
"""

import json
from datetime import timedelta
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from tenacity import wait_exponential

import cqueue

SENDING = cqueue.Retry(
    max_attempts=5,
    wait=wait_exponential(multiplier=30, max=3600),  # 30 s, 1 min, 2 min, 4 min
)

app = cqueue.App(queue="hooks")
gone: set[str] = set()
"""Partners that take no hooks any more; in real life a table."""


@app.task(retry=SENDING, timeout=timedelta(seconds=30))
def send_hook(url: str, event: str, order: int) -> cqueue.Cancel | None:
    """Tell a partner. An answer that is an error raises, and is tried again; 410 says that it is over."""
    if url in gone:
        return cqueue.Cancel("the partner takes no hooks any more")
    body = json.dumps({"event": event, "order": order}).encode()
    request = Request(url, body, {"Content-Type": "application/json"})  # noqa: S310 - the shop knows them
    try:
        urlopen(request, timeout=10).close()  # noqa: S310
    except HTTPError as answer:
        if answer.code != 410:
            raise
        gone.add(url)
    return None


@app.periodic("0 3 * * *", timezone="Europe/Berlin")
def ask_again() -> None:
    """Every night, give those that were gone another chance."""
    gone.clear()


def order_paid(order: int, partners: list[str]) -> None:
    _tell(send_hook.options(priority=5), "paid", order, partners)


def order_refunded(order: int, partners: list[str]) -> None:
    """More urgent: it overtakes what waits."""
    _tell(send_hook.options(priority=1), "refunded", order, partners)


def _tell(task: cqueue.Task[[str, str, int], Any], event: str, order: int, partners: list[str]) -> None:
    for url in partners:
        task.enqueue(url, event, order)
