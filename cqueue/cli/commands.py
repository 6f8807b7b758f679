"""Commands as plain functions of a `CliContext` and their own options.

Typer wants every option in the signature of the function that it calls. `command` makes that signature: it
hands over the `CliContext` in place of typer's, adds the `--json` of nearly all commands, and takes groups of
options that several commands share as one parameter, a dataclass.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, get_type_hints

import typer

from cqueue.cli.context import CliContext
from cqueue.cli.options import Json

Function = TypeVar("Function", bound=Callable[..., None])


def command(
    app: typer.Typer, name: str | None = None, *, json: bool = True
) -> Callable[[Function], Function]:
    """Add a function to `app` as a command; its first parameter is the `CliContext`.

    Args:
        app: of the command's module.
        name: by default that of the function.
        json: whether `--json` may stand behind the command as well as before it.
    """

    def add(function: Function) -> Function:
        app.command(name)(_called_by_typer(function, json=json))
        return function

    return add


def _called_by_typer(function: Callable[..., None], *, json: bool) -> Callable[..., None]:
    """Wrap a command's function in one whose signature typer understands."""
    _cli, *own = inspect.signature(function, eval_str=True).parameters.values()
    groups: dict[str, Any] = {each.name: each.annotation for each in own if is_dataclass(each.annotation)}
    options = [option for each in own for option in (_options(each) if each.name in groups else [each])]

    def call(ctx: typer.Context, **given: Any) -> None:
        given.pop("_json", None)  # its callback has done all
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        function(ctx.ensure_object(CliContext), **given)

    parameters = [_parameter("ctx", typer.Context), *options]
    if json:
        parameters.append(_parameter("_json", Json, default=False))
    call.__name__, call.__doc__ = function.__name__, function.__doc__
    call.__annotations__ = {each.name: each.annotation for each in parameters}
    call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    )
    return call


def _options(group: inspect.Parameter) -> Iterable[inspect.Parameter]:
    """Each field of a group as an option; the parameter's default, if it has one, says theirs."""
    hints = get_type_hints(group.annotation, include_extras=True)
    for field in fields(group.annotation):
        given = group.default is not group.empty
        yield _parameter(
            field.name,
            hints[field.name],
            default=getattr(group.default, field.name) if given else field.default,
        )


def _parameter(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
