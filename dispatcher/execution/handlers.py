"""What may handle messages, and which handler handles a message."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from cqueue.consumer import ReceivedMessage
from cqueue.dispatcher.execution.context import Binding, Context
from cqueue.dispatcher.execution.retry import DEFAULT_POLICY
from cqueue.errors import ConfigError, UnknownTask


@runtime_checkable
class Resolver(Protocol):
    """Finds the handler of a message, by any rule. Called from many threads."""

    def resolve(self, message: ReceivedMessage) -> Binding:
        """Return the handler of a message.

        Raises:
            UnknownTask: there is no handler for it.
        """
        ...


class ByTask:
    """Handlers by task name; under None the handler of messages that name no task.

    Args:
        tasks: handlers by task name.
        rest: handler of every other message, or None.
    """

    def __init__(self, tasks: Mapping[str | None, Binding], rest: Binding | None = None) -> None:
        self.tasks = tasks
        self.rest = rest

    def resolve(self, message: ReceivedMessage) -> Binding:
        """Return the handler of the message's task.

        Raises:
            UnknownTask: there is none; the text lists the known tasks.
        """
        found = self.tasks.get(message.task, self.rest)
        if found is not None:
            return found
        what = "messages that name no task" if message.task is None else f"task {message.task!r}"
        names = ", ".join(sorted(name for name in self.tasks if name is not None)) or "none"
        raise UnknownTask(
            f"no handler for {what} is known to this process; it knows {names}. Deploy it, or stop sending it"
        )


def known_tasks(resolver: Resolver) -> tuple[str | None, ...] | None:
    """Return the resolver's tasks, with None for messages that name no task. None: it takes any, or does not
    say.
    """
    if isinstance(resolver, ByTask) and resolver.rest is not None:
        return None
    tasks = getattr(resolver, "tasks", None)
    return tuple(tasks) if isinstance(tasks, Mapping) else None


def resolver_of(handler: Any) -> Resolver:
    """Return a resolver for whatever a dispatcher is given as its handler.

    Raises:
        ConfigError: the object is no handler, or an empty mapping.
    """
    if isinstance(handler, Mapping):
        if not handler:
            raise ConfigError("the mapping of handlers is empty")
        for name in handler:
            if name is not None and not isinstance(name, str):
                raise ConfigError(f"{name!r} is not a task name; the keys of handlers are text, or None")
        return ByTask({name: bind(one, name) for name, one in handler.items()})
    if isinstance(handler, Resolver) and not inspect.isclass(handler):
        return handler
    return ByTask({}, bind(handler))


def bind(handler: Any, name: str | None = None) -> Binding:
    """Return a function, coroutine function, callable object, or class as a `Binding` with default policy.

    Raises:
        ConfigError: the object is none of these, a generator function, or a task.
    """
    if isinstance(handler, Binding):
        return handler
    if isinstance(getattr(handler, "binding", None), Binding):  # its function takes arguments, no message
        raise ConfigError(
            f"{handler!r} is a task of an application; give the App in its place, which decodes the arguments"
        )
    if not callable(handler):
        raise ConfigError(f"{handler!r} is not a handler; give a function (message, context), or a class")
    name = name or str(getattr(handler, "__name__", type(handler).__name__))
    if inspect.isclass(handler):
        return _bind_class(handler, name)
    check_runs(handler, name)
    _check_takes(handler, name, 2)
    return Binding(name, handler, DEFAULT_POLICY, is_async=is_async(handler))


def _bind_class(cls: Any, name: str) -> Binding:
    """Bind a class: each message gets a new instance, and its `handle` or `__call__` is called."""
    handle = getattr(cls, "handle", None)
    # `cls.__call__` would be the call that makes an instance
    calls = (base.__dict__["__call__"] for base in cls.__mro__ if "__call__" in base.__dict__)
    method = handle or next(calls, None)
    if method is None:
        raise ConfigError(
            f"{cls!r} has neither `handle` nor `__call__`; one of them takes (message, context)"
        )
    check_runs(method, name)
    if handle is not None:
        is_bound = isinstance(inspect.getattr_static(cls, "handle"), staticmethod | classmethod)
        _check_takes(handle, f"{name}.handle", 2 if is_bound else 3)
    else:
        _check_takes(method, f"{name}.__call__", 3)

    def call(message: ReceivedMessage, context: Context) -> Any:
        instance = cls()
        return (instance.handle if handle else instance)(message, context)

    return Binding(name, call, DEFAULT_POLICY, is_async=is_async(method))


def check_runs(function: Any, name: str) -> None:
    """Check that calling the function runs it: a generator function would only make a generator.

    Raises:
        ConfigError: it is a generator function.
    """
    is_generator = (inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    if any(is_one(each) for is_one in is_generator for each in (function, _call_of(function))):
        raise ConfigError(
            f"{name} is a generator function: calling it runs nothing. Take the yield out of it"
        )


def _check_takes(function: Any, name: str, count: int) -> None:
    """Check that a handler can be called with message and context; count: with `self` before them, 3.

    Raises:
        ConfigError: it takes other arguments. Each message would use up its attempts, and die.
    """
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):  # of some functions written in C nobody knows it
        return
    try:
        signature.bind(*[None] * count)
    except TypeError as exc:
        raise ConfigError(f"{name}{signature} cannot be called as {name}(message, context): {exc}") from exc


def is_async(function: Any) -> bool:
    """Return whether a call gives a coroutine; the `__call__` of an object may be a coroutine function."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(_call_of(function))


def _call_of(function: Any) -> Any:
    return getattr(function, "__call__", None)  # noqa: B004 - the method itself is examined
