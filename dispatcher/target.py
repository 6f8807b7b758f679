"""What `module:name` on the command line stands for, and what to say when it stands for nothing.

The application's own mistakes are shown as Python shows them; a mistyped name is not a mistake of the
application, and gets a sentence and a suggestion instead of a traceback.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from cqueue.errors import BadInput

DEFAULT_NAME = "app"


class TargetError(BadInput):
    """`module:name` cannot be loaded; the message says why, and what may have been meant."""


def load(target: str) -> Any:
    """The object that `module:name` names; the name may have dots, and is `app` if it is left out.

    The current directory comes first on the path, as for `python -m`.

    Raises:
        TargetError: there is no such module or name, or importing the module failed.
    """
    module_name, colon, name = target.partition(":")
    if not module_name or (colon and not name) or ":" in name or "/" in module_name:
        raise TargetError(_malformed(target))
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    return _attribute(_module(module_name), name or DEFAULT_NAME)


def _malformed(target: str) -> str:
    text = f"{target!r} is not module:name, such as shop.tasks:app."
    path, _, name = target.partition(":")
    if "/" not in path and not path.endswith(".py"):
        return text
    module = path.removeprefix("./").removesuffix(".py").strip("/").replace("/", ".")
    return f"{text} Did you mean {module}:{name or DEFAULT_NAME}?"


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as exc:
        if not _is_part(exc.name, name):
            raise TargetError(_failed(name, exc)) from exc
        raise TargetError(_no_module(name, exc.name or name)) from exc
    except (Exception, SystemExit) as exc:
        raise TargetError(_failed(name, exc)) from exc


def _is_part(missing: str | None, name: str) -> bool:
    """Whether the module that is missing is the one asked for, or a package that it lies in."""
    return missing is not None and (name + ".").startswith(missing + ".")


def _no_module(name: str, missing: str) -> str:
    if missing.endswith(".py") or name.endswith(".py"):
        return _malformed(name)
    parent, _, last = missing.rpartition(".")
    hint = _meant([f"{parent}.{one}" if parent else one for one in _modules_in(parent)], missing)
    where = f"the package {parent}" if parent else f"{Path.cwd()} or on the Python path"
    return f"There is no module {missing!r} in {where}.{hint or ''}" if last else _malformed(name)


def _modules_in(parent: str) -> list[str]:
    paths = list(sys.modules[parent].__path__) if parent in sys.modules else [str(Path.cwd())]
    return [module.name for module in pkgutil.iter_modules(paths)]


def _attribute(module: ModuleType, name: str) -> Any:
    found: Any = module
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as exc:
            names = (
                [one for one in vars(found) if not one.startswith("_")] if hasattr(found, "__dict__") else []
            )
            hint = _meant(names, part) or _apps_in(module)
            raise TargetError(f"The module {module.__name__} has no {name!r}.{hint}") from exc
    return found


def _meant(names: Iterable[str], given: str) -> str:
    near = difflib.get_close_matches(given, list(names), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def _apps_in(module: ModuleType) -> str:
    """The names of applications and dispatchers in a module, for somebody who guessed."""
    kinds = {"App", "Dispatcher"}
    names = sorted(name for name, value in vars(module).items() if type(value).__name__ in kinds)
    return f" It has {', '.join(names)}." if names else ""


def _failed(name: str, exc: BaseException) -> str:
    """The traceback from the application's own code on: how it was imported is of no interest."""
    trace = exc.__traceback__
    while trace is not None and _is_importing(trace):
        trace = trace.tb_next
    lines = traceback.format_exception(type(exc), exc, trace)
    return f"Importing {name} failed:\n\n" + "".join(lines).rstrip()


def _is_importing(trace: TracebackType) -> bool:
    file = trace.tb_frame.f_code.co_filename
    return file == __file__ or "importlib" in file
