"""Probe undocumented parts of the driver: whether they exist, and whether they behave as expected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

import cassandra

from cqueue.runtime import logs

LOGGER: Final = "cqueue.store"


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """An undocumented part of the driver.

    names: the modules and attributes that must exist, as "module:attribute.attribute".
    works: returns whether the part behaves as expected. It is called only if all names exist, and may raise
        any error instead of returning False.
    instead: the cost of the driver's own code, for the log line.
    """

    name: str
    names: tuple[str, ...]
    works: Callable[[], bool]
    instead: str


def find(name: str) -> Any:
    """Return the attribute of the driver that a name means, or the module if it names no attribute.

    Raises:
        ImportError, AttributeError: there is none.
        DependencyException: the driver was built without it.
    """
    module, _, path = name.partition(":")
    found: Any = import_module(module)
    for attribute in path.split(".") if path else ():
        found = getattr(found, attribute)
    return found


def find_or(name: str, otherwise: Any) -> Any:
    """As `find`, but return `otherwise` if there is nothing of that name. For use at import."""
    try:
        return find(name)
    except (ImportError, AttributeError, cassandra.DependencyException):
        return otherwise


def has(part: Part) -> bool:
    """Return whether the part can be used. If not, log what is missing."""
    missing = _missing(part)
    if missing is not None:
        report(part, missing)
    return missing is None


def report(part: Part, missing: str) -> None:
    """Log that a part is not used, and why."""
    logs.logger(LOGGER).warning(
        "driver_part_missing",
        part=part.name,
        missing=missing,
        instead=part.instead,
        driver=cassandra.__version__,
    )


def _missing(part: Part) -> str | None:
    for name in part.names:
        try:
            find(name)
        except (ImportError, AttributeError, cassandra.DependencyException):
            return name
    try:
        return None if part.works() else "it does something else than in the versions that are known"
    except Exception as exc:  # noqa: BLE001 - whatever it is, the part cannot be used
        return f"it failed: {exc!r}"
