"""What may handle messages, and which of it handles this one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

from cqueue.consumer import ReceivedMessage
from cqueue.dispatcher.context import Binding, Context
from cqueue.dispatcher.retry import DEFAULT_POLICY
from cqueue.errors import ConfigError, UnknownTask


@runtime_checkable
class Resolver(Protocol):
    """Knows what to call for a message, by any rule of its own. Called from many threads."""

    def resolve(self, message: ReceivedMessage) -> Binding:
        """What to call.

        Raises:
            UnknownTask: nothing is known for it.
        """
        ...


class ByTask:
    """Handlers by task name; under None that of messages that name none.

    rest: what handles every other message, if anything does.
    """

    def __init__(self, tasks: Mapping[str | None, Binding], rest: Binding | None = None) -> None:
        self.tasks = tasks
        self.rest = rest

    def resolve(self, message: ReceivedMessage) -> Binding:
        """The one of the message's task."""
        found = self.tasks.get(message.task, self.rest)
        if found is not None:
            return found
        what = "messages that name no task" if message.task is None else f"task {message.task!r}"
        names = ", ".join(sorted(name for name in self.tasks if name is not None)) or "none"
        raise UnknownTask(
            f"no handler for {what} is known to this process; it knows {names}. Deploy it, or stop sending it"
        )


def known_tasks(resolver: Resolver) -> tuple[str | None, ...] | None:
    """The tasks that a resolver has, None for messages that name none; None: any, or it does not say."""
    if isinstance(resolver, ByTask) and resolver.rest is not None:
        return None
    tasks = getattr(resolver, "tasks", None)
    return tuple(tasks) if isinstance(tasks, Mapping) else None


def resolver_of(handler: Any) -> Resolver:
    """A resolver of whatever a dispatcher is given as its handler.

    Raises:
        ConfigError: it is no handler, or an empty mapping.
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
    """A function, coroutine function, callable object, or class as a `Binding` with the default policy.

    Raises:
        ConfigError: it is none of these, or a generator function.
    """
    if isinstance(handler, Binding):
        return handler
    if not callable(handler):
        raise ConfigError(f"{handler!r} is not a handler; give a function (message, context), or a class")
    name = name or str(getattr(handler, "__name__", type(handler).__name__))
    if inspect.isclass(handler):
        return _bind_class(handler, name)
    check_runs(handler, name)
    return Binding(name, handler, DEFAULT_POLICY, is_async=is_async(handler))


def _bind_class(cls: Any, name: str) -> Binding:
    """A new instance for each message, and its `handle`, or else the instance itself, called."""
    method = getattr(cls, "handle", None) or cls.__dict__.get("__call__") or _inherited_call(cls)
    if method is None:
        raise ConfigError(
            f"{cls!r} has neither `handle` nor `__call__`; one of them takes (message, context)"
        )
    check_runs(method, name)
    return Binding(name, _instance_call(cls), DEFAULT_POLICY, is_async=is_async(method))


def _instance_call(cls: Any) -> Callable[[ReceivedMessage, Context], Any]:
    handled = hasattr(cls, "handle")

    def call(message: ReceivedMessage, context: Context) -> Any:
        instance = cls()
        return (instance.handle if handled else instance)(message, context)

    return call


def _inherited_call(cls: Any) -> Any:
    return next((base.__dict__["__call__"] for base in cls.__mro__ if "__call__" in base.__dict__), None)


def check_runs(function: Any, name: str) -> None:
    """See whether calling it runs it: a generator function would only make a generator.

    Raises:
        ConfigError: it is a generator function.
    """
    is_generator = (inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    if any(is_one(each) for is_one in is_generator for each in (function, _call_of(function))):
        raise ConfigError(
            f"{name} is a generator function: calling it runs nothing. Take the yield out of it"
        )


def is_async(function: Any) -> bool:
    """Whether calling it gives a coroutine; an object may have a coroutine function as its `__call__`."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(_call_of(function))


def _call_of(function: Any) -> Any:
    return getattr(function, "__call__", None)  # noqa: B004 - the method itself is looked at
