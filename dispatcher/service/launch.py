"""Makes a dispatcher of what `module:name` names: an application, a dispatcher, a factory or a handler."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cqueue import client as clients
from cqueue.dispatcher.application.app import App
from cqueue.dispatcher.application.import_string import TargetError, failed
from cqueue.dispatcher.application.tasks import Task
from cqueue.dispatcher.execution.dispatcher import Dispatcher
from cqueue.dispatcher.execution.middleware import Middleware
from cqueue.errors import ConfigError, CqueueError, QueueNotFound
from cqueue.runtime.suggestions import suggest_or_list

if TYPE_CHECKING:
    from cqueue.dispatcher.service.daemon import DaemonSettings


@dataclass(frozen=True, slots=True)
class Launched:
    """A dispatcher to be started, and the call that closes what it runs on."""

    dispatcher: Dispatcher
    close: Callable[[], None]


def made_by(found: Any, settings: DaemonSettings) -> Any:
    """Return what a function makes that is to make an application; of anything else the object itself.

    Raises:
        TargetError: the function failed, with its traceback.
        CqueueError: as the function raises it: the call can be repeated where Cassandra did not answer.
    """
    if isinstance(found, App | Dispatcher | Task) or settings.queues or not _takes_nothing(found):
        return found
    try:
        made = found()
    except CqueueError:
        raise
    except (Exception, SystemExit) as exc:
        raise TargetError(failed(f"Calling {settings.target}", exc)) from exc
    return made if isinstance(made, App | Dispatcher) else found


def launch(found: Any, settings: DaemonSettings, hooks: Sequence[Middleware]) -> Launched:
    """Return a dispatcher for the loaded object or what it made, with the daemon's own middleware.

    Raises:
        TargetError: the object cannot be run, or not without `--queues`.
        ConfigError, QueueNotFound, SchemaMismatch: as the application raises them.
        NotDone, OutcomeUnknown: Cassandra did not answer; the call can be repeated.
    """
    if isinstance(found, App):
        return _launch_app(found, settings, hooks)
    if isinstance(found, Dispatcher):
        return _launch_dispatcher(found, settings)
    if isinstance(found, Task):  # it can be called, and would run here and now
        raise TargetError(f"{settings.target} is a task; name the application that it is a task of.")
    if callable(found) and settings.queues:
        return _launch_handler(found, settings, hooks)
    raise TargetError(_unsuitable(found, settings))


def _launch_app(app: App, settings: DaemonSettings, hooks: Sequence[Middleware]) -> Launched:
    known = list(dict.fromkeys(task.queue for task in app.tasks.values()))
    for name in settings.queues:
        if name not in known:
            raise QueueNotFound(
                f"No task of {settings.target} has the queue {name!r}.{suggest_or_list(name, known)}"
            )
    if not known:
        raise TargetError(f"{settings.target} has no tasks; are the modules that define them imported?")
    app.send_directly()
    dispatcher = app.dispatcher(settings.queues or None, middleware=hooks, **settings.options)
    return Launched(dispatcher, app.close)


def _launch_dispatcher(dispatcher: Dispatcher, settings: DaemonSettings) -> Launched:
    """Take a dispatcher as it was made: handlers are not timed or recorded, but counters are shown."""
    if settings.queues or settings.options:
        raise ConfigError(f"{settings.target} is a dispatcher, which has its queues and options already.")
    dispatcher.look_up()  # here, where a signal ends the wait for nodes that hang
    return Launched(dispatcher, lambda: None)


def _launch_handler(handler: Any, settings: DaemonSettings, hooks: Sequence[Middleware]) -> Launched:
    client = clients.connect()
    try:
        queues = [client.queue(name) for name in settings.queues]
        options: dict[str, Any] = dict(settings.options)
        dispatcher = Dispatcher(queues, handler, middleware=hooks, **options)
    except BaseException:
        client.close()
        raise
    return Launched(dispatcher, client.close)


def _takes_nothing(found: Any) -> bool:
    """Return whether the object can be called without arguments, as a factory of an application can."""
    try:
        inspect.signature(found).bind()
    except (TypeError, ValueError):
        return False
    return True


def _unsuitable(found: Any, settings: DaemonSettings) -> str:
    if callable(found):
        return f"{settings.target} is a handler function; say with --queues what it is to handle."
    return (
        f"{settings.target} is {type(found).__name__}; it takes a cqueue.App, a Dispatcher, a function that "
        "makes one, or a handler function with --queues."
    )
