"""Whether the driver has a part that it does not promise, and whether that part does what is relied on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

import cassandra

from cqueue import logs

LOGGER: Final = "cqueue.store"


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the driver that it does not promise.

    names: what must exist, as "module:attribute.attribute".
    works: whether the driver does what is relied on; called only if all of these exist. It may raise
    whatever error shows that it does not.
    instead: what the driver's stock path costs.
    """

    name: str
    names: tuple[str, ...]
    works: Callable[[], bool]
    instead: str


def find(name: str) -> Any:
    """What stands under a name of the driver; a module under one without attributes.

    Raises:
        ImportError, AttributeError: nothing does.
        DependencyException: the driver was built without it.
    """
    module, _, path = name.partition(":")
    found: Any = import_module(module)
    for attribute in path.split(".") if path else ():
        found = getattr(found, attribute)
    return found


def find_or(name: str, otherwise: Any) -> Any:
    """What stands under a name, or something else where nothing does; for what is needed at import."""
    try:
        return find(name)
    except (ImportError, AttributeError, cassandra.DependencyException):
        return otherwise


def has(part: Part) -> bool:
    """Whether the part can be used. If not, one line of the log says what is missing."""
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
