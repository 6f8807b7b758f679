"""The tasks of an application, by the names in its messages.

A name outlives the process that wrote it, so it must not depend on how that process was started. No two tasks
may share a name: the order of imports would decide which of them runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cqueue.errors import ConfigError, UnknownTask
from cqueue.runtime.sequences import grouped
from cqueue.runtime.suggestions import suggest_or_list

if TYPE_CHECKING:
    from cqueue.dispatcher.application.tasks import Task


def task_name(function: Callable[..., Any]) -> str:
    """Return `module:qualified.name`, the same whether the module is run or imported."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{_module_name(function.__module__)}:{name}"


def _module_name(module: str) -> str:
    if module != "__main__":
        return module
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:  # python -m package.module
        return str(spec.name)
    return place_of(Path(file).absolute())[1] if file else module


def place_of(file: Path) -> tuple[Path, str]:
    """Return the folder where a module's name begins, and that name: the same wherever the file is loaded
    from.

    The name begins at the outermost package. A folder without an `__init__.py` is no package.
    """
    folder, names = file.parent, [] if file.stem == "__init__" else [file.stem]
    while (folder / "__init__.py").is_file():
        folder, names = folder.parent, [folder.name, *names]
    return folder, ".".join(names)


class TaskRegistry(dict[str, "Task[..., Any]"]):
    """Tasks by name, in the order of their definition. Filled during imports, then only read."""

    def add(self, task: Task[..., Any]) -> None:
        """Add a task.

        Raises:
            ConfigError: another task has the name.
        """
        if (other := self.setdefault(task.name, task)) is not task:
            raise ConfigError(
                f"there are two tasks {task.name!r}: {_where(other)} and {_where(task)}; name one with name="
            )

    def named(self, name: str | None) -> Task[..., Any]:
        """Return the task of a message's task name.

        Raises:
            UnknownTask: there is no task of that name; the text suggests one.
        """
        if name is None:
            raise UnknownTask("the message names no task: it was not enqueued by one")
        if name not in self:
            hint = suggest_or_list(name, self) if self else " It has none; are its modules imported?"
            raise UnknownTask(f"this application has no task {name!r}.{hint}")
        return self[name]

    def queues(self) -> dict[str, list[Task[..., Any]]]:
        """Return the tasks by queue."""
        return grouped((task.queue, task) for task in self.values())

    def __repr__(self) -> str:
        return f"<tasks {', '.join(self)}>"


def _where(task: Task[..., Any]) -> str:
    code = getattr(task.function, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(task.function)
