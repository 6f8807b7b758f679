"""A task's arguments as people type them, in the form in which `enqueue` would store them."""

from __future__ import annotations

import json
from typing import Any

from cqueue.errors import BadInput


def encoded(args: str | None, kwargs: str | None = None) -> tuple[bytes, str]:
    """A message's body and codec. args: a JSON array, or an object of arguments by name; kwargs: an object.

    Raises:
        BadInput: one of them is no such JSON.
    """
    from cqueue.dispatcher.application.payload import Arguments, codec, encode  # noqa: PLC0415 - not for --help

    positional: Any = [] if args is None else _json("--args", args)
    named: Any = {} if kwargs is None else _json("--kwargs", kwargs)
    if not isinstance(positional, list | dict):
        raise BadInput("--args takes a JSON array, or a JSON object of arguments by name.")
    if not isinstance(named, dict):
        raise BadInput("--kwargs takes a JSON object of arguments by name.")
    if isinstance(positional, dict):
        if kwargs is not None:
            raise BadInput("Give arguments by name in --args or in --kwargs, not in both.")
        positional, named = [], positional
    return encode(Arguments(tuple(positional), named), codec("json")), "json"


def _json(option: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise BadInput(f'{option} takes JSON such as \'["a@b", 3]\' or \'{{"to": "a@b"}}\': {exc}') from exc
