"""An application: its tasks, its middleware, and the client that it connects at first need.

Command lines, tests and workers that fork import the module of an application. So neither making an `App` nor
defining a task opens a connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from threading import Lock
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar, Unpack, overload

from cqueue import client as clients
from cqueue.client import Client
from cqueue.config import QueueConfig
from cqueue.consumer import ReceivedMessage
from cqueue.dispatcher.application.payload import DEFAULT_CODEC
from cqueue.dispatcher.application.payload import codec as codec_of
from cqueue.dispatcher.application.periodic import Declared, PeriodicTask, declare, trigger_of
from cqueue.dispatcher.application.registry import TaskRegistry, task_name
from cqueue.dispatcher.application.sender import Sender
from cqueue.dispatcher.application.tasks import CronOptions, PeriodicOptions, Task, TaskOptions, checked_retry
from cqueue.dispatcher.execution.actions import LONGEST_DELAY, Retry
from cqueue.dispatcher.execution.context import Binding
from cqueue.dispatcher.execution.middleware import Middleware, checked_middleware
from cqueue.dispatcher.execution.retry import DEFAULT_POLICY, UNKNOWN_TASK_WAIT, attempts_wanted
from cqueue.dispatcher.schedules.triggers import Trigger
from cqueue.errors import BadInput, Closed, ConfigError, QueueExists, QueueNotFound
from cqueue.message import Message, MessageId, check_duration, check_queue_name
from cqueue.producer import SendResult
from cqueue.queue import Queue
from cqueue.runtime.suggestions import check_known

if TYPE_CHECKING:
    from cqueue.dispatcher.execution.dispatcher import Dispatcher
    from cqueue.spool import Spool
    from cqueue.testing.sandbox import Sandbox

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_QUEUE = "default"
"""Queue of tasks that name none, in an application that names none."""


@dataclass(slots=True)
class _Link:
    """The client that an application sends through, and the queues opened with it.

    Attributes:
        client: None until the client is connected.
        is_ours: the application has connected the client, and closes it.
        is_lent: a test has lent the client for a while; missing queues of tasks are created.
        is_closed: the application has been closed.
        queues: the queues that have been sent to, by name.
    """

    client: Client | None
    is_ours: bool
    is_lent: bool = False
    is_closed: bool = False
    queues: dict[str, Queue] = field(default_factory=dict)


class App:
    """The tasks of one application. Thread-safe; a context manager that closes what the application has
    connected.

    ```python
    app = cqueue.App("cassandra://db1,db2/shop?local_dc=dc1")

    @app.task(queue="mail", timeout=timedelta(minutes=1))
    def send(to: str, subject: str = "hi") -> None: ...

    send.enqueue("a@b")
    ```

    Args:
        target: a URL as `connect` takes it, or None for `CQUEUE_URL` or `cqueue.toml`; the application
            connects at first need. Or a `Client`, which the caller closes.
        middleware: hooks around every enqueue and every run, in this order.
        queue: queue of tasks that name none.
        retry: policy of tasks that have none. By default waits of 1 s to 10 min, and as many attempts as the
            queue allows.
        codec: codec of tasks that name none: `json` or `msgpack`.
        spool: messages go to this spool first, and the spool forwards them, as with `Client.queue`. The
            application can then start while Cassandra is away, if its queues were opened with this spool
            before. A function is called at the first enqueue, and `close` closes the spool that it returned.
        unknown_task_wait: how long a message waits, without using an attempt, for a version of the
            application that has its task or takes its arguments; 0 to 10 years, by default an hour.

    Raises:
        BadInput: `target` is neither a URL nor a `Client`, or another argument is out of range or of the
            wrong kind. The parts of a URL are checked at first need.
    """

    def __init__(
        self,
        target: str | Client | None = None,
        *,
        middleware: Sequence[Middleware] = (),
        queue: str = DEFAULT_QUEUE,
        retry: Retry = DEFAULT_POLICY,
        codec: str = DEFAULT_CODEC,
        spool: Spool | Callable[[], Spool] | None = None,
        unknown_task_wait: timedelta = UNKNOWN_TASK_WAIT,
    ) -> None:
        if target is not None and not isinstance(target, str | Client):
            raise BadInput(f"an App takes a URL or a Client, not {type(target).__name__}")
        if isinstance(target, str) and target and "://" not in target:  # not quoted: it may hold a password
            raise ConfigError(
                "an App takes a URL such as cassandra://db1/shop?local_dc=dc1; did you mean queue=…?"
            )
        self._url = target if isinstance(target, str) else None
        client = target if isinstance(target, Client) else None
        self._link = _Link(client, is_ours=client is None)
        if spool is not None and not callable(spool):
            from cqueue.spool.spool import check_spool  # noqa: PLC0415 - only where there is one

            check_spool(spool)
        self._spool = spool
        self._opened_spool: Spool | None = None  # `close` closes it
        self._mutex = Lock()
        self._registry = TaskRegistry()
        self._declared: list[Declared] = []
        self.middleware = checked_middleware(middleware)
        self._sender = Sender(self._queue, self.middleware)
        self._defaults: dict[str, Any] = {
            "queue": check_queue_name(queue),
            "retry": checked_retry(retry),
            "codec": codec_of(codec).name,
        }
        check_duration("unknown_task_wait", unknown_task_wait, timedelta(), LONGEST_DELAY)
        self.unknown_task_wait = unknown_task_wait

    def __repr__(self) -> str:
        return f"<app tasks={len(self._registry)} queues={','.join(self._registry.queues())}>"

    # ── Tasks ──

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...

    @overload
    def task(self, /, **options: Unpack[TaskOptions]) -> Callable[[Callable[P, R]], Task[P, R]]: ...

    def task(self, function: Callable[..., Any] | None = None, /, **options: Unpack[TaskOptions]) -> Any:
        """Make a function, or a coroutine function, a task: `@app.task` or `@app.task(...)`.

        Args:
            function: the function.
            options: `queue` of the task's messages; `name` in the messages, by default `module:qualname`, so
                give a name to a function that may move; `retry`, the policy after a failure; `timeout`, the
                longest run, 1 ms to 10 years; `codec` of the arguments, `json` or `msgpack`; `log_errors`,
                True if log lines may have the texts of what the function raises. By default they have its
                class and frames only, because a text may quote the arguments; `result_ttl`, how long what the
                function returns is kept for `TaskHandle.result`, 1 s to 10 years. With it, False is a result
                as any other, and does not leave the message to its timeout.

        Raises:
            ConfigError: another task has the name, a value is wrong, or there is no such option.
        """
        check_known("App.task", options, TaskOptions.__annotations__)

        def decorate(function: Callable[..., Any]) -> Task[..., Any]:
            task = Task(function, self._sender, **self._completed(function, options))
            self._registry.add(task)
            return task

        return decorate if function is None else decorate(function)

    def periodic(
        self, when: str | Trigger, /, **options: Unpack[PeriodicOptions]
    ) -> Callable[[Callable[P, R]], PeriodicTask[P, R]]:
        """Make a function a task that a schedule calls: `@app.periodic("*/5 * * * *", timezone=…)`.

        The function takes no parameter, or `fired_at`: the time that is fired, in UTC. `setup`, which every
        start of a dispatcher calls, creates the schedule, or replaces one that differs. A schedule whose
        decorator is gone is logged, and stays until an operator removes it.

        Args:
            when: a cron expression; or a trigger, which has the first five options in itself.
            options: `timezone`, a name of the tz database, by default UTC; `misfire`, which missed times
                fire: the "latest" (by default), "all", or none ("skip"); `grace`, the greatest lateness that
                still fires; `jitter`, the greatest random delay of a firing; `auto_commit`, send the next
                firing before this one runs; `key` of the schedule, by default the task's name; and the
                options of `task`: `queue`, `name`, `retry`, `timeout`, `codec`, `log_errors` and
                `result_ttl`.

        Raises:
            ConfigError: another task has the name, or another schedule of the queue the key; the function
                takes other parameters, a value is wrong, or there is no such option.
        """
        check_known("App.periodic", options, PeriodicOptions.__annotations__)
        given: dict[str, Any] = {**options}
        key = given.pop("key", None)
        trigger = trigger_of(when, {name: given.pop(name, None) for name in CronOptions.__annotations__})

        def decorate(function: Callable[P, R]) -> PeriodicTask[P, R]:
            task = PeriodicTask(function, self._sender, **self._completed(function, given))
            declared = Declared(task.name if key is None else key, trigger, task)
            self._registry.add(task)
            place = (declared.key, task.queue)
            if taken := [one.task.name for one in self._declared if (one.key, one.task.queue) == place]:
                raise ConfigError(
                    f"the tasks {taken[0]!r} and {task.name!r} have one schedule, {declared.key!r}: only one "
                    "of them would be called; give each a key="
                )
            self._declared.append(declared)
            return task

        return decorate

    def _completed(self, function: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
        """Return a task's options: from the decorator, and what it leaves out from the application.

        Raises:
            ConfigError: the function is none.
        """
        if not callable(function):
            raise ConfigError(f"a task is a function, not {function!r}; name a queue with queue=…")
        given = {name: value for name, value in options.items() if value is not None}
        if "name" not in given:
            given["name"] = task_name(function)
        return self._defaults | given

    @property
    def tasks(self) -> Mapping[str, Task[..., Any]]:
        """All tasks by name, in the order of their definition."""
        return MappingProxyType(self._registry)

    def resolve(self, message: ReceivedMessage) -> Binding:
        """Return the binding of the task that a message names.

        Raises:
            UnknownTask: the application has no task of that name; another version may have it.
        """
        return self._registry.named(message.task).binding

    # ── Sending ──

    def send(self, queue: str, message: Message) -> MessageId:
        """Store any message, through the middleware; as `Queue.send`."""
        return self._sender.send(queue, message)

    def send_many(self, queue: str, messages: Iterable[Message]) -> SendResult:
        """Store up to 10,000 messages, through the middleware; as `Queue.send_many`."""
        return self._sender.send_many(queue, messages)

    # ── Running ──

    def setup(self) -> list[Queue]:
        """Create the missing queues of the tasks, then create or change the schedules of periodic tasks.

        A new queue allows as many attempts as its tasks may use.

        Returns:
            The queues of the tasks, opened.

        Raises:
            ConfigError: an existing queue allows fewer attempts than a task may use; the text says how to
                alter the queue.
        """
        queues = provision(self.client, self._registry.queues())
        declare(queues, self._declared)
        return queues

    def dispatcher(
        self, queues: Iterable[str] | None = None, *, middleware: Sequence[Middleware] = (), **options: Any
    ) -> Dispatcher:
        """Set up the queues, and return a dispatcher for the tasks, not started.

        Args:
            queues: names of the queues to receive from; by default all queues of tasks.
            middleware: hooks that run after those of the application.
            options: as `Dispatcher` takes them.

        Raises:
            ConfigError: as `setup`; or an option is wrong, or there are no queues.
            QueueNotFound: `queues` names a queue of no task, and the queue does not exist.
        """
        from cqueue.dispatcher.execution.dispatcher import (  # noqa: PLC0415 - enqueueing needs no threads
            Dispatcher,
            check_once,
            checked_options,
        )

        options.setdefault("unknown_task_wait", self.unknown_task_wait)
        checked_options(**options)
        hooks = (*self.middleware, *checked_middleware(middleware))
        own = self._registry.queues()
        if queues is not None and not isinstance(queues, Iterable):
            raise ConfigError(f"queues is {queues!r}; it takes names of queues")
        asked = [queues] if isinstance(queues, str) else own if queues is None else queues
        names = [check_queue_name(name) for name in asked]
        others = {name: self.client.queue(name) for name in names if name not in own}
        check_once(names)
        opened = others | {queue.name: queue for queue in self.setup()}
        return Dispatcher([opened[name] for name in names], self, middleware=hooks, **options)

    # ── Testing ──

    def testing(self, *, now: datetime | None = None) -> Sandbox:
        """Return a block in which the application works in memory, with a clock that the test moves.

        ```python
        with app.testing() as t:
            sign_up("a@b")
            assert t.enqueued(send, to="a@b")
            t.drain()
        ```

        Messages that the program enqueues inside go to a store of the block's own; nothing connects to
        Cassandra. After the block the application is as before. See `cqueue.testing.Sandbox`.

        Args:
            now: the time at which the block's clock begins, with a time zone; by default the current second.

        Raises:
            BadInput: `now` has no time zone, or lies before 1971 or after the year 2999; or, as the block
                begins, the application is in another testing block.
        """
        from cqueue.testing.sandbox import Sandbox  # noqa: PLC0415 - only tests need it

        return Sandbox(self, now=now)

    def schedule_of(self, task: Task[..., Any]) -> str | None:
        """Return the key of the schedule that `periodic` has declared for a task; None if there is none."""
        return next((each.key for each in self._declared if each.task.name == task.name), None)

    @contextmanager
    def using(self, client: Client) -> Iterator[None]:
        """Send and run through another client until the block ends. Used inside the library.

        Raises:
            BadInput: the application is in such a block already.
        """
        with self._mutex:
            own = self._link
            if own.is_lent:
                raise BadInput("the application is in a testing block already; leave that one first")
            self._link = _Link(client, is_ours=False, is_lent=True)
        try:
            yield
        finally:
            with self._mutex:
                self._link = own

    # ── The client ──

    @property
    def client(self) -> Client:
        """The client, connected at the first use.

        Raises:
            Closed: the application has been closed.
            NotDone, BadInput: as `connect`.
        """
        return self._connected(self._link)

    def _connected(self, link: _Link) -> Client:
        with self._mutex:
            if link.is_closed:
                raise Closed("the application has been closed; make another App")
            if link.client is None:
                link.client = clients.connect(self._url, lazy=self._spool is not None)
            return link.client

    def _queue(self, name: str) -> Queue:
        """Return the queue of this name, opened at the first use."""
        link = self._link
        found = link.queues.get(check_queue_name(name))
        return found or link.queues.setdefault(name, self._opened(link, name))

    def _opened(self, link: _Link, name: str) -> Queue:
        client = self._connected(link)
        try:
            return client.queue(name, spool=None if link.is_lent else self._spool_to_use())
        except QueueNotFound as exc:
            if name not in self._registry.queues():
                raise
            if not link.is_lent:
                raise QueueNotFound(
                    f"there is no queue {name!r} yet; app.setup() makes the queues of the application's "
                    "tasks, and so does `cqueue dispatch`"
                ) from exc
            self.setup()  # the task was defined in the testing block
            return client.queue(name)

    def _spool_to_use(self) -> Spool | None:
        with self._mutex:
            if callable(self._spool):
                self._spool = self._opened_spool = self._spool()
            return self._spool

    def send_directly(self) -> None:
        """Use no spool from now on: the processes of `cqueue dispatch` cannot all open one spool."""
        with self._mutex:
            self._spool = None

    def close(self) -> None:
        """Close the client if this application has connected it. Stop dispatchers before.

        In a testing block `close` does nothing: the block runs the program's messages after the program has
        ended.
        """
        with self._mutex:
            link = self._link
            if link.is_lent:
                return
            link.is_closed = True
            link.queues = {}
        if link.client is not None and link.is_ours:
            link.client.close()
        if self._opened_spool is not None:
            self._opened_spool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


Tasks = Sequence[Task[..., Any]]


def provision(client: Client, tasks_by_queue: Mapping[str, Tasks]) -> list[Queue]:
    """Create missing queues, check the others, and return all of them, opened.

    Raises:
        ConfigError: a queue allows fewer attempts than one of its tasks may use; the text says how to alter
            the queue.
    """
    queues = [_opened(client, name, tasks) for name, tasks in tasks_by_queue.items()]
    complaints = [_complaint(queue, tasks_by_queue[queue.name]) for queue in queues]
    if found := [complaint for complaint in complaints if complaint]:
        raise ConfigError("\n".join(found))
    return queues


def _opened(client: Client, name: str, tasks: Tasks) -> Queue:
    try:
        return client.queue(name)
    except QueueNotFound:
        try:
            return client.create_queue(name, _config(tasks))
        except QueueExists:  # another process was quicker
            return client.queue(name)


def _config(tasks: Tasks) -> QueueConfig:
    """Return a configuration with as many attempts as any task wants, and no fewer than the default."""
    default = QueueConfig()
    wanted = max((attempts_wanted(task.retry) for task in tasks), default=0)
    return default.altered({"max_attempts": max(default.max_attempts, wanted)})


def _complaint(queue: Queue, tasks: Tasks) -> str | None:
    allowed = queue.config.max_attempts
    wanted, name = max(((attempts_wanted(task.retry), task.name) for task in tasks), default=(0, ""))
    if not allowed or wanted <= allowed:
        return None
    return (
        f"queue {queue.name!r} allows {allowed} attempts, and task {name!r} may use {wanted}; "
        f"raise it: cqueue queue alter {queue.name} --max-attempts {wanted}"
    )
