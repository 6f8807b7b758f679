"""Commands as plain functions of a `CliContext` and their own arguments and options.

`command` makes the signature that Typer wants. It hands over the `CliContext` in place of typer's, adds the
`--json` of all commands, and takes options that several commands share as one parameter, a dataclass.

A parameter says its type and its help: `Annotated[bool, "Do not ask."]`. A text between the two says how it
is written, where the names of parameter and type do not: `Annotated[str | None, "--from POSITION", "…"]`.
A function before the texts reads what is written.
Parameters behind `*` are options. What Typer alone can say stands as `typer.Option(…)` instead.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, TypeVar, get_args, get_type_hints

import typer

from cqueue.cli.context import CliContext
from cqueue.cli.values import parse_duration, parse_moment

Function = TypeVar("Function", bound=Callable[..., None])

_OPTION: Final = inspect.Parameter.KEYWORD_ONLY
_OF_TYPES: Final[dict[Any, dict[str, Any]]] = {
    str: {"metavar": "TEXT"},
    list[int]: {"metavar": "N"},
    int: {"metavar": "N"},
    float: {"metavar": "N"},
    timedelta: {"metavar": "DURATION", "parser": parse_duration},
    datetime: {"metavar": "TIME", "parser": parse_moment},
}
"""How values of a type are written and read."""


def command(app: typer.Typer, name: str | None = None) -> Callable[[Function], Function]:
    """Add a function to `app` as a command; its first parameter is the `CliContext`.

    Args:
        app: of the command's module.
        name: by default that of the function.
    """

    def add(function: Function) -> Function:
        app.command(name)(_called_by_typer(function))
        return function

    return add


def print_json(ctx: typer.Context, wanted: bool) -> bool:  # noqa: FBT001 - called by typer
    """Set `CliContext.json` when `--json` is read: what is found wrong after that is JSON too."""
    if wanted:
        ctx.ensure_object(CliContext).json = True
    return wanted


_Json = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print results as JSON, as `cqueue --json` does.",
        callback=print_json,
        is_eager=True,  # read before the values of other options
    ),
]
"""`--json` behind the command as well, where people write it."""


def _called_by_typer(function: Callable[..., None]) -> Callable[..., None]:
    """Wrap a command's function in one whose signature typer understands."""
    _cli, *own = inspect.signature(function, eval_str=True).parameters.values()
    groups: dict[str, Any] = {each.name: each.annotation for each in own if is_dataclass(each.annotation)}

    def call(ctx: typer.Context, **given: Any) -> None:
        del given["_json"]  # its callback has done all
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        function(ctx.ensure_object(CliContext), **given)

    parameters = [inspect.Parameter("ctx", _OPTION, annotation=typer.Context)]
    for each in own:
        parameters += _options(each) if each.name in groups else [_for_typer(each)]
    parameters.append(inspect.Parameter("_json", _OPTION, annotation=_Json, default=False))
    call.__name__, call.__doc__ = function.__name__, _unbroken(function.__doc__ or "")
    call.__annotations__ = {each.name: each.annotation for each in parameters}
    call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [each.replace(kind=_OPTION) for each in parameters]
    )
    return call


def _unbroken(docstring: str) -> str:
    """Put each paragraph on one line: the terminal breaks it to its own width."""
    return re.sub(r"(?<=\S)\n(?=\S)", " ", inspect.cleandoc(docstring))


def _options(group: inspect.Parameter) -> Iterable[inspect.Parameter]:
    """Each field of a group as an option; the parameter's default, if it has one, says theirs."""
    hints = get_type_hints(group.annotation, include_extras=True)
    for field in fields(group.annotation):
        default = field.default if group.default is group.empty else getattr(group.default, field.name)
        own = inspect.Parameter(field.name, _OPTION, annotation=hints[field.name], default=default)
        yield _for_typer(own)


def _for_typer(parameter: inspect.Parameter) -> inspect.Parameter:
    """Put what typer understands in place of the texts of a parameter's annotation."""
    kind, *told = get_args(parameter.annotation)
    if not isinstance(told[-1], str):
        return parameter
    *written, text = [each for each in told if isinstance(each, str)]
    words = written[0].split() if written else []
    names = [word for word in words if word.startswith("-")]
    plain = next((one for one in get_args(kind) if one is not type(None)), kind)
    how: dict[str, Any] = {"help": text, **_OF_TYPES.get(plain, {})}
    if callable(told[0]):
        how["parser"] = told[0]
    if metavar := " ".join(word for word in words if word not in names):
        how["metavar"] = metavar
    if parameter.kind is not _OPTION:
        return parameter.replace(annotation=Annotated[kind, typer.Argument(**how)])
    own_name = "--" + parameter.name.strip("_").replace("_", "-")
    return parameter.replace(annotation=Annotated[kind, typer.Option(*(names or [own_name]), **how)])
