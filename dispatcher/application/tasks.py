"""A task: a function that can also be called later, elsewhere, through a message.

The function stays as it was, so that calling and testing it need no queue. A call is checked against the
signature before anything is sent, by the type checker through `ParamSpec` and by `Signature.bind`: a message
with wrong arguments would fail where nobody could correct them.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Coroutine, Iterable, Mapping
from copy import copy
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cached_property, partial, update_wrapper
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypedDict, TypeVar, Unpack, overload

from cqueue.consumer import ReceivedMessage
from cqueue.dispatcher.application.handle import SkippedHandle, TaskHandle
from cqueue.dispatcher.application.payload import (
    DEFAULT_CODEC,
    Arguments,
    decode,
    digest,
    encode,
    encode_value,
)
from cqueue.dispatcher.application.payload import codec as codec_of
from cqueue.dispatcher.execution.actions import LONGEST_DELAY, Action, Retry
from cqueue.dispatcher.execution.context import SHORTEST_TIMEOUT, Binding, Context, run_context
from cqueue.dispatcher.execution.handlers import check_runs, is_async
from cqueue.dispatcher.execution.results import Keeping
from cqueue.dispatcher.execution.retry import DEFAULT_POLICY
from cqueue.errors import BadArguments, BadInput, ConfigError, PayloadMismatch
from cqueue.message import Message, MessageId, check_duration, check_options, check_queue_name
from cqueue.producer import SendResult, SendStatement
from cqueue.runtime.suggestions import check_known, suggest
from cqueue.runtime.texts import check_text
from cqueue.sending.results import listed
from cqueue.unique import Unique

if TYPE_CHECKING:
    from cqueue.dispatcher.application.sender import Sender

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")

MAX_NAME_IN_KEY = 900
"""Characters of a task's name in a unique key, at most, so that the key is within its limit."""
SHORTEST_RESULT = timedelta(seconds=1)
"""Shortest time to live of a result: Cassandra counts whole seconds."""
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class SendOptions(TypedDict, total=False):
    """How a task's messages are sent; see `Message`. None leaves an option unchanged."""

    delay: timedelta | None
    due: datetime | None
    priority: int | None
    headers: Mapping[str, str] | None
    ttl: timedelta | None
    key: str | None
    source: str | bytes | None
    unique: Unique | None


class CronOptions(TypedDict, total=False):
    """Options that may accompany a cron expression; see `App.periodic`."""

    timezone: str | None
    misfire: str | None
    grace: timedelta | None
    jitter: timedelta | None
    auto_commit: bool | None


class TaskOptions(TypedDict, total=False):
    """Options of a task's decorator; see `App.task`. None takes the application's value."""

    queue: str | None
    name: str | None
    retry: Retry | None
    timeout: timedelta | None
    codec: str | None
    log_errors: bool | None
    result_ttl: timedelta | None


class PeriodicOptions(CronOptions, TaskOptions, total=False):
    """Options of a periodic task's decorator; see `App.periodic`."""

    key: str | None


class Task(Generic[P, R_co]):
    """A function with a name and a queue; made by `App.task`. Immutable and thread-safe.

    Args:
        function: a function, or a coroutine function.
        sender: sends the messages.
        name: 1 to 1,000 characters.
        queue: name of the queue.
        retry: policy after a failure.
        timeout: longest run, 1 ms to 10 years, or None.
        codec: `json` or `msgpack`.
        log_errors: whether log lines have the texts of what the function raises.
        result_ttl: how long results are kept, 1 s to 10 years, or None: not at all.

    Attributes:
        function: the decorated function; calling the task calls it.
        name: name in messages, logs and metrics.
        queue: name of the queue.
        retry: policy after a failure.
        timeout: longest run, or None.
        log_errors: whether log lines have the texts of what the function raises.
        result_ttl: how long results are kept, or None.
        is_async: whether the function is a coroutine function.
    """

    def __init__(
        self,
        function: Callable[P, R_co],
        sender: Sender,
        *,
        name: str,
        queue: str,
        retry: Retry,
        timeout: timedelta | None = None,
        codec: str = DEFAULT_CODEC,
        log_errors: bool = False,
        result_ttl: timedelta | None = None,
    ) -> None:
        """Check all values where they are written, not where they are first used."""
        check_runs(function, getattr(function, "__qualname__", type(function).__qualname__))
        if not isinstance(log_errors, bool):
            raise ConfigError(f"log_errors is {log_errors!r}; it takes True or False")
        if timeout is not None:
            check_duration("timeout", timeout, SHORTEST_TIMEOUT, LONGEST_DELAY)
        if result_ttl is not None:
            check_duration("result_ttl", result_ttl, SHORTEST_RESULT, LONGEST_DELAY)
        check_queue_name(queue)
        check_text("a task's name", name)
        self.function = function
        self.name = name
        self.queue = queue
        self.retry = checked_retry(retry)
        self.timeout = timeout
        self.log_errors = log_errors
        self.result_ttl = result_ttl
        self.is_async = is_async(function)
        self._sender = sender
        self._options: dict[str, Any] = {}
        self._codec = codec_of(codec)
        self._signature = inspect.signature(function)
        parameters = self._signature.parameters.values()
        self._positional = tuple(each.name for each in parameters if each.kind in _POSITIONAL)
        update_wrapper(self, function, updated=())

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Call the function here and now; nothing is enqueued."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<task {self.name} queue={self.queue}>"

    # ── Enqueueing ──

    @overload
    def enqueue(
        self: Task[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> TaskHandle[T]: ...

    @overload
    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[R_co]: ...

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[Any]:
        """Have a dispatcher call the function with these arguments; return a handle of the stored message.

        The handle is the message's id, a text, that also tells of the message's state and result.

        Raises:
            BadArguments: the function does not take them, or one cannot be encoded; nothing was sent.
            BadInput: another limit is exceeded, or the queue does not exist; nothing was sent.
            NotDone: the message was not stored; enqueueing again is safe.
            Duplicate: a message of the same unique key is in the way; nothing was sent.
            SendUnknown: the message may be stored; enqueueing again may make a second copy.
        """
        return self.handle(self._sender.send(self.queue, self.message(*args, **kwargs)))

    def handle(self, message_id: str) -> TaskHandle[Any]:
        """Return the handle of a message of this task, such as one of `enqueue_many`, by its stored id.

        Raises:
            InvalidMessageId: the text is no message id.
        """
        MessageId(message_id).locate()
        is_skipped = isinstance(message_id, MessageId) and message_id.skipped
        return (SkippedHandle if is_skipped else TaskHandle)(message_id, self)

    def message(self, /, *args: P.args, **kwargs: P.kwargs) -> Message:
        """Return the message that `enqueue` would send, for `enqueue_many`.

        Raises:
            BadArguments: as `enqueue`.
        """
        try:
            bound = self._bind(args, kwargs)
            body = encode(Arguments(args, dict(kwargs)), self._codec, self._positional)
            options = self._options
            unique: Unique | None = options.get("unique")
            if (
                unique is not None
                and unique.key is None
                and (unique.args is not None or "key" not in options)
            ):
                options = {**options, "unique": self._keyed(unique, bound)}
        except (TypeError, BadArguments) as exc:
            raise BadArguments(f"task {self.name!r}: {exc}") from exc
        return Message(body, task=self.name, codec=self._codec.name, **options)

    def _keyed(self, unique: Unique, bound: inspect.BoundArguments) -> Unique:
        """Return `unique` with a key of the task's name and these arguments, given by position or name."""
        bound.apply_defaults()
        arguments = (
            bound.arguments if unique.args is None else {name: bound.arguments[name] for name in unique.args}
        )
        return replace(unique, key=f"{self.name[:MAX_NAME_IN_KEY]}:{digest(arguments)}", args=None)

    def enqueue_many(self, messages: Iterable[Message]) -> SendResult:
        """Enqueue up to 10,000 calls at once: `send.enqueue_many(send.message(to) for to in users)`.

        Returns:
            The result of each entry: entries fail one by one.

        Raises:
            BadInput: an entry is no message of this task; nothing was sent.
            BatchTooLarge: more than 10,000 entries.
        """
        calls = listed(messages, Message, "enqueue_many")
        for index, call in enumerate(calls):
            if not isinstance(call, Message) or call.task != self.name:
                raise BadInput(f"entry {index} is not a message of task {self.name!r}; use .message()")
        return self._sender.send_many(self.queue, calls)

    def statement(self, /, *args: P.args, **kwargs: P.kwargs) -> SendStatement:
        """Return the INSERT of a call, to commit together with rows of your own; see `Queue.send_statement`.

        Middleware gets the message before, by `before_send`, and no `after_send`. Not in memory, so not with
        `App.testing`.

        Raises:
            BadArguments: as `enqueue`.
            BadInput, NotDone: as `Queue.send_statement`.
        """
        return self._sender.send_statement(self.queue, self.message(*args, **kwargs))

    def options(self, **options: Unpack[SendOptions]) -> Task[P, R_co]:
        """Return this task with other options for its messages; see `Message`. The task itself stays.

        Options that are not given stay as an earlier `options` has set them; delay and due replace each
        other.

        Args:
            options: delay, due, priority, headers, ttl, key, source, unique. A `unique` without a key goes by
                `key`, else by the task's name and its arguments.

        Raises:
            BadInput: there is no such option, a value exceeds a limit, or both delay and due are given.
                Limits that depend on the time of sending are checked there: a due time more than 10 years
                ahead, a source without a due time.
        """
        check_known("Task.options", options, SendOptions.__annotations__)
        changes: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        unique = changes.get("unique")
        if isinstance(unique, Unique):
            if missing := {*(unique.args or ())} - {*self._signature.parameters}:
                raise BadInput(f"task {self.name!r} has no argument {min(missing)!r}, which unique names")
            check_options(Message(b"", **{**changes, "unique": replace(unique, key="k", args=None)}))
        else:
            check_options(Message(b"", **changes))
        whens = {"delay", "due"}
        replaced = whens if whens & changes.keys() else set()
        kept = {name: value for name, value in self._options.items() if name not in replaced}
        other = copy(self)
        other._options = kept | changes  # noqa: SLF001 - the same class
        return other

    # ── Running ──

    @cached_property
    def binding(self) -> Binding:
        """The call for a dispatcher; it decodes the arguments, so that a decoding error fails the run."""
        # Arguments of another version of the code are no failure of the task, so they are retried
        rules: dict[type[BaseException], Action] = {PayloadMismatch: DEFAULT_POLICY, **self.retry.rules}
        keeping: Keeping | None = None
        if self.result_ttl is not None:
            ttl_s = math.ceil(self.result_ttl.total_seconds())
            keeping = Keeping(ttl_s, self._codec.name, partial(encode_value, codec=self._codec))
        return Binding(
            name=self.name,
            call=self._run_async if self.is_async else self._run,
            retry=replace(self.retry, rules=rules),
            is_async=self.is_async,
            timeout=self.timeout,
            log_errors=self.log_errors,
            keeping=keeping,
        )

    def _run(self, message: ReceivedMessage, context: Context) -> Any:
        bound = self._read(message, context)
        with run_context(message, context):
            return self.function(*bound.args, **bound.kwargs)

    async def _run_async(self, message: ReceivedMessage, context: Context) -> Any:
        bound = self._read(message, context)
        with run_context(message, context):
            return await self.function(*bound.args, **bound.kwargs)  # type: ignore[misc]

    def _arguments(self, message: ReceivedMessage, context: Context) -> Arguments:
        """Return the arguments in the message."""
        return decode(message.body, message.codec)

    def _read(self, message: ReceivedMessage, context: Context) -> inspect.BoundArguments:
        """Return the message's arguments, if this version of the function takes them."""
        args, kwargs = self._arguments(message, context)
        try:
            return self._bind(args, kwargs)
        except TypeError as exc:
            raise PayloadMismatch(
                f"task {self.name!r}: was it enqueued for another version of the function? {exc}"
            ) from exc

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
        """Bind the arguments to the function's signature.

        Raises:
            TypeError: the function does not take them. The text names a misspelt argument rather than a
                missing one.
        """
        try:
            return self._signature.bind(*args, **kwargs)
        except TypeError as exc:
            if why := _unexpected(self._signature.parameters.values(), kwargs):
                raise TypeError(why) from exc
            raise


def checked_retry(retry: Retry) -> Retry:
    """Return the policy of a task, or of an application's tasks, unchanged.

    Raises:
        ConfigError: it is none.
    """
    if not isinstance(retry, Retry):
        raise ConfigError(f"retry is {retry!r}; it takes a Retry(...)")
    return retry


def _unexpected(parameters: Iterable[inspect.Parameter], kwargs: Iterable[str]) -> str | None:
    """Return what is wrong with the first argument of an unknown name; None if no name is unknown."""
    kinds = {each.name: each.kind for each in parameters}
    if inspect.Parameter.VAR_KEYWORD in kinds.values():
        return None
    names = [name for name, kind in kinds.items() if kind in _BY_NAME]
    for name in kwargs:
        if name not in kinds:
            is_option = name in SendOptions.__annotations__
            hint = f" Was .options({name}=…) meant?" if is_option else suggest(name, names)
            return f"got an unexpected keyword argument {name!r}{hint and f'.{hint}'}"
    return None
