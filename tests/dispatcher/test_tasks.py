"""Tasks: functions that stay functions, and messages that are checked before they are written."""

import asyncio
import functools
import importlib.util
import inspect
import json
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

import cqueue
from cqueue.dispatcher.application.registry import TaskRegistry, task_name

MINUTE = timedelta(minutes=1)


@pytest.fixture
def app():
    with cqueue.App("memory://") as app:
        yield app


@pytest.fixture
def sent(app):
    """Sends to a queue `mail`; what stands in it."""
    app.client.create_queue("mail", cqueue.QueueConfig(derived_sends=True))

    def look():
        with app.client.queue("mail").consumer() as consumer:
            found = consumer.receive(100, wait=timedelta(seconds=5))
            while more := consumer.receive(100):
                found += more
            return found

    return look


def send(to: str, subject: str = "hi") -> str:
    """Send a mail."""
    return f"{subject}, {to}"


# ── It stays the function ──


def test_calling_a_task_calls_the_function(app):
    """Here and now; nothing is sent, and no queue is needed."""
    task = app.task(send)
    assert task("a@b") == "hi, a@b"
    assert task("a@b", subject="yo") == "yo, a@b"
    assert task.function is send


def test_calling_a_coroutine_task_gives_its_coroutine(app):
    @app.task
    async def later(number: int) -> int:
        await asyncio.sleep(0)
        return number + 1

    assert later.is_async
    assert asyncio.run(later(1)) == 2


class Adder:
    """A task may be an object."""

    def __init__(self, step):
        self.step = step

    async def __call__(self, number: int) -> int:
        return number + self.step


def test_a_callable_object_may_be_a_task(app, sent):
    """The object's `__call__` has the signature, and may be a coroutine function."""
    task = app.task(queue="mail")(Adder(2))
    assert task.is_async
    assert task.name == f"{__name__}:Adder"
    assert asyncio.run(task(1)) == 3
    task.enqueue(number=1)
    with pytest.raises(cqueue.BadArguments):
        task.enqueue("1", 2)
    assert len(sent()) == 1


def test_a_partial_function_may_be_a_task(app):
    """With the arguments that are left."""
    task = app.task(name="welcome")(functools.partial(send, subject="welcome"))
    assert task("a@b") == "welcome, a@b"
    assert json.loads(task.message("a@b").body) == {"args": ["a@b"], "kwargs": {}}


def test_a_task_looks_like_its_function(app):
    """To `help`, documentation tools and `inspect`."""
    task = app.task(queue="mail")(send)
    assert (task.__name__, task.__doc__, task.__module__) == ("send", "Send a mail.", __name__)
    assert inspect.signature(task) == inspect.signature(send)
    assert repr(task) == f"<task {__name__}:send queue=mail>"


# ── What is enqueued ──


def test_a_message_says_which_task_with_what(app, sent):
    """The arguments as they were given, the task's name and the codec in columns of their own."""
    task = app.task(queue="mail", name="send")(send)
    id_ = task.enqueue("a@b", subject="yo")
    (message,) = sent()
    assert (message.id, message.task, message.codec) == (id_, "send", "json")
    assert json.loads(message.body) == {"args": ["a@b"], "kwargs": {"subject": "yo"}}


def test_options_are_those_of_a_message(app):
    """All of them."""
    task = app.task(send)
    due = datetime(2031, 1, 1, tzinfo=UTC)
    message = task.options(due=due, priority=3, headers={"k": "v"}, ttl=MINUTE, key="k", source="s").message(
        "a@b"
    )
    plain = task.message("a@b")
    assert message == cqueue.Message(
        plain.body,
        due=due,
        priority=3,
        headers={"k": "v"},
        ttl=MINUTE,
        key="k",
        source="s",
        task=task.name,
        codec="json",
    )
    assert task.options(delay=MINUTE).message("a").delay == MINUTE


def test_options_change_nothing_but_their_result(app):
    """Else one caller's delay would be everybody's."""
    task = app.task(send)
    later = task.options(delay=MINUTE, priority=3)
    assert later.options(priority=1).message("a").priority == 1
    assert later.options(priority=1).message("a").delay == MINUTE
    assert (later.message("a").priority, task.message("a").priority) == (3, 0)
    assert task.message("a").delay is None
    assert app.tasks[task.name] is task


def test_delay_and_due_replace_each_other(app):
    """A later `options` is about the same thing."""
    task = app.task(send).options(delay=MINUTE)
    due = datetime(2031, 1, 1, tzinfo=UTC)
    assert task.options(due=due).message("a").delay is None
    assert task.options(due=due).options(delay=MINUTE).message("a").due is None


def test_a_unique_task_goes_by_its_arguments(app, sent):
    """However they are given, and whatever the order of sets and dictionaries; other arguments are another
    call, and other tasks another key.
    """

    @app.task(queue="mail")
    def one(a: object, b: object = 2, *, tags: frozenset[str] = frozenset(), **more: object) -> None: ...

    @app.task(queue="mail")
    def other(a: object, b: object = 2) -> None: ...

    unique = one.options(unique=cqueue.Unique(on_conflict="skip"))
    letters = "abcdefghij"
    alike = [
        [((1,), {}), ((1, 2), {}), ((), {"a": 1, "b": 2})],
        [((1,), {"tags": frozenset(letters)}), ((1,), {"tags": frozenset(reversed(letters))})],
        [((1,), {"x": 1, "y": {"p": 1, "q": 2}}), ((1,), {"y": {"q": 2, "p": 1}, "x": 1})],
        [((3,), {})],
        [(((1, 2),), {})],
        [(([1, 2],), {})],
    ]
    for calls in alike:
        ids = [unique.enqueue(*args, **kwargs) for args, kwargs in calls]
        assert [id_.skipped for id_ in ids] == [False] + [True] * (len(calls) - 1)
    assert not other.options(unique=cqueue.Unique(on_conflict="skip")).enqueue(1).skipped
    assert len(sent()) == len(alike) + 1


@pytest.mark.usefixtures("sent")
def test_a_unique_task_goes_by_some_arguments_or_by_a_key(app):
    """Those that `args` names; else by the key of the message, if it has one."""

    @app.task(queue="mail")
    def one(a: int, b: int = 2) -> None: ...

    by_b = one.options(unique=cqueue.Unique(args=("b",)))
    by_b.enqueue(1)
    with pytest.raises(cqueue.Duplicate):
        by_b.enqueue(5, b=2)
    by_b.enqueue(1, b=3)
    by_key = one.options(key="k", unique=cqueue.Unique())
    by_key.enqueue(1)
    with pytest.raises(cqueue.Duplicate):
        by_key.enqueue(7)
    with pytest.raises(cqueue.BadInput, match="no argument 'c'"):
        one.options(unique=cqueue.Unique(args=("c",)))
    with pytest.raises(cqueue.BadInput, match="Unique"):
        one.options(unique="k")


@pytest.mark.usefixtures("sent")
def test_a_skipped_call_is_not_told_to_middleware_as_sent(app):
    """Nothing was sent for it; its id is an earlier one's."""
    told = []

    class Telling(cqueue.Middleware):
        def after_send(self, queue, message, message_id):
            told.append(message_id)

    with cqueue.App(app.client, middleware=[Telling()]) as telling:
        unique = telling.task(queue="mail")(send).options(unique=cqueue.Unique(on_conflict="skip"))
        first = unique.enqueue("a")
        assert unique.enqueue("a") == first
    assert told == [first]


@pytest.mark.usefixtures("sent")
def test_both_delay_and_due_at_once_are_refused(app):
    task = app.task(queue="mail")(send)
    with pytest.raises(cqueue.BadInput, match="delay or due"):
        task.options(delay=MINUTE, due=datetime(2031, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"priority": 99}, cqueue.PriorityOutOfRange),
        ({"priority": "high"}, cqueue.PriorityOutOfRange),
        ({"delay": timedelta(seconds=-1)}, cqueue.DelayOutOfRange),
        ({"delay": 5}, cqueue.BadInput),
        ({"due": datetime(2031, 1, 1)}, cqueue.BadInput),  # noqa: DTZ001 - that is what is wrong
        ({"ttl": timedelta()}, cqueue.BadInput),
        ({"headers": {"k": 1}}, cqueue.BadInput),
        ({"headers": {"k": "v" * (16 << 10)}}, cqueue.HeadersTooLarge),
        ({"key": ""}, cqueue.BadInput),
        ({"source": "x" * 1001}, cqueue.BadInput),
        ({"dealy": timedelta(minutes=5)}, cqueue.ConfigError),
    ],
)
def test_wrong_options_are_refused_where_they_are_given(app, options, error):
    """Not at the first call of the task, which may stand in another module, and come much later."""
    task = app.task(queue="mail")(send)
    with pytest.raises(error) as caught:
        task.options(**options)
    assert type(caught.value) is error


def test_options_may_be_given_one_after_the_other(app):
    """A source needs a due time, which another `options` may give; how far ahead it may be, sending says."""
    task = app.task(queue="mail")(send)
    due = datetime(2099, 1, 1, tzinfo=UTC)
    message = task.options(source="order-17").options(due=due).message("a")
    assert (message.source, message.due) == ("order-17", due)


def test_a_source_makes_enqueueing_idempotent(app, sent):
    """The same source and due time are one message."""
    task = app.task(queue="mail")(send).options(source="order-17", due=datetime.now(UTC))
    assert task.enqueue("a@b") == task.enqueue("a@b")
    assert len(sent()) == 1


def test_many_at_once_fail_one_by_one(app, sent):
    """Entries fail one by one, as with `send_many`."""
    task = app.task(queue="mail")(send)
    urgent, bad = task.options(priority=1), replace(task.message("b"), priority=99)
    result = task.enqueue_many([task.message("a"), bad, urgent.message("c")])
    assert [id_ is not None for id_ in result.ids] == [True, False, True]
    ((index, error),) = result.failed
    assert (index, type(error)) == (1, cqueue.PriorityOutOfRange)
    assert sorted(json.loads(message.body)["args"][0] for message in sent()) == ["a", "c"]


@pytest.mark.usefixtures("sent")
def test_many_are_all_of_the_task(app):
    """A message of another task would land in the wrong queue."""
    task, other = app.task(queue="mail")(send), app.task(name="other")(send)
    with pytest.raises(cqueue.BadInput, match="entry 1 is not a message of task"):
        task.enqueue_many([task.message("a"), other.message("b")])
    with pytest.raises(cqueue.BadInput, match="entry 0"):
        task.enqueue_many(["a@b"])
    assert app.client.queue("mail").stats(exact=True).live == 0


# ── What is refused ──


@pytest.mark.usefixtures("sent")
@pytest.mark.parametrize(
    ("args", "kwargs", "why"),
    [
        ((), {}, "missing a required argument: 'to'"),
        (("a", "b", "c"), {}, "too many positional arguments"),
        (("a",), {"to": "b"}, "multiple values for argument 'to'"),
        (("a",), {"sbject": "b"}, "unexpected keyword argument 'sbject'. Did you mean 'subject'?"),
        ((), {"too": "a"}, "unexpected keyword argument 'too'. Did you mean 'to'?"),
        (("a",), {"zzz": "b"}, "unexpected keyword argument 'zzz'"),
        (("a",), {"delay": timedelta(1)}, "keyword argument 'delay'. Was .options(delay=…) meant?"),
        ((object(),), {}, "to is a builtins.object"),
        ((), {"to": "a", "subject": [1, {"k": object()}]}, "subject[1]['k'] is a"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_sent(app, args, kwargs, why):
    """With the task's name and the argument's: nobody could correct them afterwards."""
    task = app.task(queue="mail", name="send")(send)
    with pytest.raises(cqueue.BadArguments) as caught:
        task.enqueue(*args, **kwargs)
    assert str(caught.value).startswith("task 'send': ")
    assert why in str(caught.value)
    assert app.client.queue("mail").stats(exact=True).live == 0


def test_a_queue_that_is_missing_is_said(app):
    task = app.task(queue="mail")(send)
    with pytest.raises(cqueue.QueueNotFound):
        task.enqueue("a@b")


def test_an_argument_may_be_called_self(app):
    """An argument may have any name: this library's own parameters do not interfere."""

    @app.task
    def odd(self: str, args: str, kwargs: str) -> None: ...

    assert json.loads(odd.message(self="a", args="b", kwargs="c").body)["kwargs"]["self"] == "a"


def _generator():
    yield


async def _async_generator():
    yield


class _Generator:
    def __call__(self):
        yield


@pytest.mark.parametrize("wrong", [_generator, _async_generator, _Generator(), "send"])
def test_what_would_run_nothing_is_no_task(app, wrong):
    with pytest.raises(cqueue.ConfigError):
        app.task(name="x")(wrong)
    assert not app.tasks


def test_a_decorator_says_which_option_was_meant(app):
    """A queue's name where the function belongs, and a misspelt option."""
    with pytest.raises(cqueue.ConfigError, match="queue="):
        app.task("mail")
    with pytest.raises(cqueue.ConfigError, match=r"App\.task has no option .retries.* mean .retry."):
        app.task(retries=5)
    with pytest.raises(cqueue.ConfigError, match=r"App\.periodic has no option .timezon.* mean .timezone."):
        app.periodic("@daily", timezon="UTC")


@pytest.mark.parametrize(
    "options",
    [
        {"queue": "no such name"},
        {"name": ""},
        {"name": "x" * 1001},
        {"retry": 5},
        {"timeout": 5},
        {"timeout": timedelta()},
        {"codec": "pickle"},
        {"retries": 5},
    ],
)
def test_wrong_settings_are_found_where_they_stand(app, options):
    """The decorator raises, not the first message."""
    with pytest.raises(cqueue.BadInput):
        app.task(**options)(send)


# ── Names ──


def test_the_default_name_is_module_and_qualified_name(app):
    def inner() -> None: ...

    assert app.task(send).name == f"{__name__}:send"
    assert app.task(inner).name.endswith("test_the_default_name_is_module_and_qualified_name.<locals>.inner")


PROGRAM = """
import cqueue
app = cqueue.App("memory://")
@app.task
def send(to: str) -> None: ...
print(send.name)
"""


@pytest.mark.parametrize("arguments", [["shop.py"], ["-m", "shop"]])
def test_the_name_does_not_depend_on_how_the_program_is_started(tmp_path, arguments):
    """Run by its path or by `-m`, messages must find the task of those who import it."""
    (tmp_path / "shop.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "shop:send"


def test_a_module_without_a_file_keeps_its_name(monkeypatch):
    """An interactive session is such a module."""
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    monkeypatch.setattr(send, "__module__", "__main__")
    assert task_name(send) == "__main__:send"


def test_two_tasks_of_one_name_are_refused(app):
    """With the places of both."""
    app.task(name="send")(send)
    with pytest.raises(cqueue.ConfigError, match=r"two tasks 'send': .*test_tasks.py:\d+ and .*test_tasks"):
        app.task(name="send")(send)


@pytest.mark.parametrize(
    ("known", "name", "hint"),
    [
        (["shop:send", "shop:refund"], "shop:snd", "Did you mean 'shop:send'?"),
        (["shop:send", "shop:refund"], "tick", "There are: shop:send, shop:refund."),
        ([], "shop:send", "are its modules imported?"),
        (["shop:send"], None, "names no task"),
    ],
)
def test_an_unknown_name_says_which_are_known(app, known, name, hint):
    for each in known:
        app.task(name=each)(send)
    with pytest.raises(cqueue.UnknownTask) as caught:
        app._registry.named(name)
    assert hint in str(caught.value)


def test_tasks_are_a_mapping_in_order(app):
    for name in ("b", "a"):
        app.task(name=name)(send)
    assert list(app.tasks) == ["b", "a"]
    assert len(app.tasks) == 2
    assert "b" in repr(app.tasks)
    with pytest.raises(TypeError):
        app.tasks["c"] = app.tasks["a"]
    assert list(TaskRegistry()) == []


# ── The other codec ──


@pytest.mark.skipif(
    importlib.util.find_spec("msgpack") is None, reason="the extra `msgpack` is not installed"
)
@pytest.mark.usefixtures("sent")
def test_a_task_may_use_msgpack(app):
    """The task's messages name the codec, and are read with it."""
    got = []

    @app.task(queue="mail", codec="msgpack")
    def keep(data: bytes) -> None:
        got.append(data)

    with app.testing() as t:
        keep.enqueue(b"\xff\0")
        t.drain(reraise=True)
    assert got == [b"\xff\0"]
    assert keep.message(b"").codec == "msgpack"
