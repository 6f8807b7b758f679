"""From what `module:name` names to a dispatcher: applications, dispatchers, factories, handlers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cqueue import client as clients
from cqueue.dispatcher.app import App
from cqueue.dispatcher.dispatcher import Dispatcher
from cqueue.dispatcher.middleware import Middleware
from cqueue.dispatcher.target import TargetError
from cqueue.errors import ConfigError, QueueNotFound
from cqueue.urls import suggest

if TYPE_CHECKING:
    from cqueue.client import Client
    from cqueue.dispatcher.daemon import Settings

MakeHooks = Callable[[Callable[[], int]], Sequence[Middleware]]
"""The daemon's own middleware, given the cluster's time in µs."""


@dataclass(frozen=True, slots=True)
class Launched:
    """A dispatcher to be started, and how to let go of what it runs on."""

    dispatcher: Dispatcher
    close: Callable[[], None]


def launch(found: Any, settings: Settings, make_hooks: MakeHooks) -> Launched:
    """A dispatcher of what was found.

    Raises:
        TargetError: it is nothing that could be run, or not without `--queues`.
        ConfigError, QueueNotFound, SchemaMismatch: as the application says.
        NotDone, OutcomeUnknown: Cassandra did not answer; it can be tried again.
    """
    if isinstance(found, App):
        return _launch_app(found, settings, make_hooks)
    if isinstance(found, Dispatcher):
        return _launch_dispatcher(found, settings)
    if callable(found) and settings.queues:
        return _launch_handler(found, settings, make_hooks)
    if callable(found) and not _needs_arguments(found):
        made = found()
        if isinstance(made, App | Dispatcher):
            return launch(made, settings, make_hooks)
    raise TargetError(_unsuitable(found, settings))


def _launch_app(app: App, settings: Settings, make_hooks: MakeHooks) -> Launched:
    known = list(dict.fromkeys(task.queue for task in app.tasks.values()))
    for name in settings.queues:
        if name not in known:
            raise QueueNotFound(f"No task of {settings.target} has the queue {name!r}.{suggest(name, known)}")
    if not known:
        raise TargetError(f"{settings.target} has no tasks; are the modules that define them imported?")
    hooks = make_hooks(_clock_of(app.client))
    dispatcher = app.dispatcher(settings.queues or None, middleware=hooks, **settings.options)
    return Launched(dispatcher, app.close)


def _launch_dispatcher(dispatcher: Dispatcher, settings: Settings) -> Launched:
    """As it was made: nothing times its handlers or writes down what runs, but its counters are shown."""
    if settings.queues or settings.options:
        raise ConfigError(f"{settings.target} is a dispatcher, which has its queues and options already.")
    return Launched(dispatcher, lambda: None)


def _launch_handler(handler: Any, settings: Settings, make_hooks: MakeHooks) -> Launched:
    client = clients.connect()
    try:
        queues = [client.queue(name) for name in settings.queues]
        options: dict[str, Any] = dict(settings.options)
        dispatcher = Dispatcher(queues, handler, middleware=make_hooks(_clock_of(client)), **options)
    except BaseException:
        client.close()
        raise
    return Launched(dispatcher, client.close)


def _clock_of(client: Client) -> Callable[[], int]:
    return client._driver.clock.now_us  # noqa: SLF001 - the library's own


def _needs_arguments(function: Callable[..., Any]) -> bool:
    try:
        parameters: Sequence[inspect.Parameter] = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return True
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return any(one.default is one.empty and one.kind not in kinds for one in parameters)


def _unsuitable(found: Any, settings: Settings) -> str:
    if callable(found):
        return f"{settings.target} is a handler function; say with --queues what it is to handle."
    return (
        f"{settings.target} is {type(found).__name__}; it takes a cqueue.App, a Dispatcher, a function that "
        "makes one, or a handler function with --queues."
    )
