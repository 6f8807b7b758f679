"""Tasks, as an application's type checker sees them. Checked by mypy and pyright, never run.

tests/dispatcher/test_typing.py takes the `type: ignore` of the wrong calls away, and checks that both type
checkers then complain of exactly these lines.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

from tenacity import stop_after_delay, wait_exponential_jitter

import cqueue
from cqueue import testing

SECOND = timedelta(seconds=1)

# ── Applications ──

app = cqueue.App("cassandra://db/shop")
cqueue.App(cqueue.connect("memory://"), middleware=[cqueue.Middleware()], queue="mail", codec="msgpack")
with cqueue.App() as entered:
    assert_type(entered, cqueue.App)
assert_type(app.client, cqueue.Client)
assert_type(app.setup(), list[cqueue.Queue])
assert_type(app.tasks, Mapping[str, cqueue.Task[..., Any]])
assert_type(app.dispatcher(["mail"], threads=8, middleware=[cqueue.Middleware()]), cqueue.Dispatcher)
with app.testing(now=datetime.now(UTC)) as t:
    assert_type(t, testing.Sandbox)
    assert_type(t.drain(reraise=True), testing.Runs)
    assert_type(t.advance(timedelta(hours=1)).dead, list[testing.Run])
    assert_type(t.now, datetime)
cqueue.App(5)  # type: ignore[arg-type]
cqueue.App(middleware=[cqueue.Middleware])  # type: ignore[list-item]

app.dispatcher([b"mail"])  # type: ignore[list-item]

# ── Defining ──


@app.task(
    queue="mail",
    retry=cqueue.Retry(
        max_attempts=20,
        wait=wait_exponential_jitter(1, 600),
        stop=stop_after_delay(60),
        rules={OSError: cqueue.Snooze(SECOND), KeyError: cqueue.Dead("gone")},
    ),
    timeout=timedelta(minutes=1),
)
def send(to: str, subject: str = "hi", *, urgent: bool = False) -> None: ...


@app.task
def bare(number: int) -> int:
    return number


@app.task
async def fetch(url: str) -> cqueue.Retry | None:
    return cqueue.Retry(SECOND) if url else None


@app.task(name="all")
def everything(*numbers: int, **names: str) -> cqueue.Cancel | bool:
    return not numbers or cqueue.Cancel(str(names))


@app.task()
def nothing() -> None: ...


app.task(queue=5)  # type: ignore[call-overload]
app.task(timeout=5)  # type: ignore[call-overload]
app.task(retry=3)  # type: ignore[call-overload]
app.task("mail")  # type: ignore[call-overload]
cqueue.Retry(5)  # type: ignore[arg-type]
cqueue.Retry(wait=5)  # type: ignore[arg-type]
cqueue.Retry(rules={"OSError": cqueue.Dead()})  # type: ignore[dict-item]
cqueue.Snooze()  # type: ignore[call-arg]

# ── Enqueueing: what the function takes, and nothing else ──

assert_type(send.enqueue("a@b"), cqueue.TaskHandle[None])
send.enqueue("a@b", "yo")
send.enqueue(to="a@b", subject="yo", urgent=True)
send.enqueue()  # type: ignore[call-arg]
send.enqueue(5)  # type: ignore[arg-type]
send.enqueue("a@b", sbject="yo")  # type: ignore[call-arg]
send.enqueue("a@b", "yo", True)  # type: ignore[call-arg]
send.enqueue("a@b", urgent="yes")  # type: ignore[arg-type]
bare.enqueue(1)
bare.enqueue("1")  # type: ignore[arg-type]
fetch.enqueue("https://example.org")
fetch.enqueue(b"https://example.org")  # type: ignore[call-overload]
everything.enqueue(1, 2, 3, a="b")
everything.enqueue("1")  # type: ignore[arg-type]
everything.enqueue(a=1)  # type: ignore[arg-type]
nothing.enqueue()
nothing.enqueue(None)  # type: ignore[call-arg]
handle = bare.enqueue(1)
assert_type(handle.result(SECOND), int)
assert_type(fetch.enqueue("https://example.org").result(), cqueue.Retry | None)
assert_type(handle.state(), str)
assert_type(handle.id, cqueue.MessageId)
assert_type(handle.cancel(), bool)
an_id: cqueue.MessageId = handle
handle.result(5)  # type: ignore[arg-type]
app.task(result_ttl=5)  # type: ignore[call-overload]

# ── Calling: still the function ──

send("a@b")
send("a@b", urgent=True)
assert_type(bare(1), int)
assert_type(everything(1), cqueue.Cancel | bool)
send()  # type: ignore[call-arg]
send(5)  # type: ignore[arg-type]
send("a@b", delay=SECOND)  # type: ignore[call-arg]


async def run() -> None:
    """Coroutine functions are awaited."""
    assert_type(await fetch("https://example.org"), cqueue.Retry | None)
    await fetch(5)  # type: ignore[arg-type]


a_function: Callable[[int], int] = bare
another: Callable[[str], int] = bare  # type: ignore[assignment]
a_coroutine_function: Callable[[str], Coroutine[Any, Any, cqueue.Retry | None]] = fetch.function

# ── Options keep the signature ──

later = send.options(
    delay=SECOND, due=datetime.now(UTC), priority=1, headers={"k": "v"}, ttl=SECOND, key="k", source=b"s"
)
assert_type(later.enqueue("a@b"), cqueue.TaskHandle[None])
later.options(priority=2).enqueue("a@b", urgent=True)
later.enqueue(5)  # type: ignore[arg-type]
later.options(priority=2).enqueue()  # type: ignore[call-arg]
send.options(delay=5)  # type: ignore[arg-type]
send.options(priority="high")  # type: ignore[arg-type]
send.options(SECOND)  # type: ignore[call-arg]
send.options(queue="mail")  # type: ignore[call-arg]

# ── Many ──

assert_type(send.message("a@b"), cqueue.Message)
assert_type(send.enqueue_many(send.message(to) for to in ("a", "b")), cqueue.SendResult)
assert_type(send.statement("a"), cqueue.SendStatement)
send.statement(1)  # type: ignore[arg-type]
assert_type(app.send("mail", cqueue.Message(b"{}")), cqueue.MessageId)
assert_type(app.send_many("mail", [cqueue.Message(b"{}")]), cqueue.SendResult)
send.message(5)  # type: ignore[arg-type]
send.enqueue_many(["a@b"])  # type: ignore[list-item]
send.enqueue_many([bare(1)])  # type: ignore[list-item]

# ── Inside ──

context = cqueue.current_context()
assert_type(context, cqueue.Context)
assert_type(context.lost.is_set(), bool)
assert_type(context.firing, cqueue.Firing | None)
assert_type(cqueue.current_message(), cqueue.ReceivedMessage)
assert_type(send.name, str)
assert_type(send.retry, cqueue.Retry)
assert_type(send.timeout, timedelta | None)


class Hooks(cqueue.Middleware):
    """Overrides are checked as well."""

    def before_send(self, queue: str, message: cqueue.Message) -> cqueue.Message:
        return message

    def before_ack(self, messages: Sequence[cqueue.ReceivedMessage]) -> None: ...


class WrongHooks(cqueue.Middleware):
    """This one says bytes."""

    def before_send(self, queue: str, message: bytes) -> bytes:  # type: ignore[override]
        return message


cqueue.Nonsense  # type: ignore[attr-defined]  # noqa: B018
