"""Loads the object that `module:name` on the command line names, and says what to do if there is none.

Mistakes of the application are shown as Python shows them. A mistyped name is no mistake of the application,
and gets a sentence and a suggestion instead of a traceback.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import shlex
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from cqueue.dispatcher.application.registry import place_of
from cqueue.errors import BadInput
from cqueue.runtime.logs import own_frames
from cqueue.runtime.suggestions import did_you_mean, nearest, suggest

DEFAULT_NAME = "app"
"""Name of the object if the command line gives only a module."""


class TargetError(BadInput):
    """`module:name` cannot be loaded; the message says why, and suggests a name."""


def load(target: str, app_dir: Path | None = None, *, default: str | None = DEFAULT_NAME) -> Any:
    """Return the object that `module:name` names. The name may have dots.

    Args:
        target: `module:name`, or `module`.
        default: the name of the object if the target has none; None: it must have one.
        app_dir: folder to put first on the path; None: the current folder. With None the module must have the
            same name from every folder, because tasks are named after it.

    Raises:
        TargetError: there is no such module or name, or importing the module failed.
    """
    module_name, colon, name = target.partition(":")
    parts = [*module_name.split("."), *(name.split(".") if colon else ())]
    if "" in parts or ":" in name or "/" in module_name:
        raise TargetError(_malformed(target))
    if app_dir is None:
        _check_place(module_name, name)
    folder = str(app_dir or Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module = _module(module_name, folder)
    if not (wanted := name or default):
        raise TargetError(f"{target!r} is a module: write {target}:NAME, with the name of what it has.")
    return _attribute(module, wanted)


# ── Folders ──


def _check_place(module: str, name: str) -> None:
    """Refuse a module that would have another name if the command ran in another folder."""
    file = _file_of(module)
    folder, real_name = place_of(file) if file is not None else (Path.cwd(), module)
    if file is None or real_name == module:
        return
    raise TargetError(
        f"The tasks of {file.name} would be called {module}:… when loaded from here, and {real_name}:… when "
        f"loaded from {_shown(folder)!r}. Did you mean {_command(folder, real_name, name)}? "
        f"To name them {module}:… everywhere, write --app-dir . {module}:{name or DEFAULT_NAME}"
    )


def _file_of(module: str) -> Path | None:
    """Return the module's file, if it lies below the current folder."""
    path = Path.cwd().joinpath(*module.split("."))
    candidates = (path / "__init__.py", path.parent / f"{path.name}.py")
    return next((file for file in candidates if file.is_file()), None)


def _command(folder: Path, module: str, name: str) -> str:
    """Return what to write on the command line for a module in this folder."""
    option = "" if folder == Path.cwd() else f"--app-dir {shlex.quote(_shown(folder))} "
    return f"{option}{module}:{name or DEFAULT_NAME}"


def _shown(folder: Path) -> str:
    return os.path.relpath(folder)


# ── Modules ──


def _malformed(target: str) -> str:
    text = f"{target!r} is not module:name, such as shop.tasks:app."
    path, _, name = target.partition(":")
    file = Path.cwd() / f"{path.rstrip('/').removesuffix('.py')}.py"
    if ("/" not in path and not path.endswith(".py")) or not file.is_file():
        return text
    folder, module = place_of(file)
    return f"{text} Did you mean {_command(folder, module, name)}?"


def _module(name: str, folder: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as exc:
        if not _is_part(exc.name, name):
            raise TargetError(failed(f"Importing {name}", exc)) from exc
        raise TargetError(_no_module(name, exc.name or name, folder)) from exc
    except (Exception, SystemExit) as exc:
        raise TargetError(failed(f"Importing {name}", exc)) from exc


def _is_part(missing: str | None, name: str) -> bool:
    """Return whether the missing module is the one asked for, or a package that contains it."""
    return missing is not None and (name + ".").startswith(missing + ".")


def _no_module(name: str, missing: str, folder: str) -> str:
    if missing.endswith(".py") or name.endswith(".py"):
        return _malformed(name)
    parent, _, last = missing.rpartition(".")
    holder = sys.modules.get(parent)
    if holder is not None and not hasattr(holder, "__path__"):
        return f"{parent!r} is a module, and holds no other.{_colon(holder, last) or _apps_in(holder)}"
    hint = suggest(missing, _modules_in(parent, folder))
    if hasattr(holder, last):
        hint = _colon(holder, last)
    where = f"the package {parent}" if parent else f"{folder} or on the Python path"
    return f"There is no module {missing!r} in {where}.{hint}"


def _colon(module: ModuleType | None, name: str) -> str:
    """Return a hint for a user who wrote a dot where a colon belongs."""
    near = name if hasattr(module, name) else nearest(name, _names_in(module))
    return did_you_mean(f"{module.__name__}:{near}") if module is not None and near else ""


def _modules_in(parent: str, folder: str) -> list[str]:
    paths = list(sys.modules[parent].__path__) if parent else [folder]
    names = [module.name for module in pkgutil.iter_modules(paths)]
    return [f"{parent}.{one}" for one in names] if parent else names


def _attribute(module: ModuleType, name: str) -> Any:
    found: Any = module
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as exc:
            hint = suggest(part, _names_in(found)) or _apps_in(module)
            raise TargetError(f"The module {module.__name__} has no {name!r}.{hint}") from exc
    return found


def _names_in(found: Any) -> list[str]:
    return [name for name in getattr(found, "__dict__", {}) if not name.startswith("_")]


def _apps_in(module: ModuleType) -> str:
    """Return a hint that names the applications and dispatchers of a module."""
    kinds = {"App", "Dispatcher"}
    names = sorted(name for name, value in vars(module).items() if type(value).__name__ in kinds)
    return f" It has {', '.join(names)}." if names else ""


def failed(what: str, exc: BaseException) -> str:
    """Return that something failed, with the traceback from the application's own code; how that was imported
    or called does not matter.
    """
    trace = own_frames(exc)
    while trace is not None and "importlib" in trace.tb_frame.f_code.co_filename:
        trace = trace.tb_next
    lines = traceback.format_exception(type(exc), exc, trace)
    return f"{what} failed:\n\n" + "".join(lines).rstrip()
