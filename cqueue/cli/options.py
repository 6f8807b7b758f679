"""Arguments and options that several commands share."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

QueueName = Annotated[str, "QUEUE", "The queue's name."]
LogName = Annotated[str, "LOG", "The log's name."]
MessageIds = Annotated[list[str], "ID", "Of messages, whole or short."]
SomeMessage = Annotated[str | None, "ID", "The message's id, whole or short."]
SomeMessages = Annotated[list[str] | None, "ID", "Of messages, whole or short."]
OfKey = Annotated[str | None, "All messages with this key, in a keyed queue; needs --queue."]
InQueue = Annotated[str | None, "--queue QUEUE", "Where to look for a short id; by default everywhere."]
Headers = Annotated[list[str] | None, "--header NAME=VALUE", "A header; may be repeated."]
Priority = Annotated[int, "0 (most urgent, the default) to 9."]
TaskArgs = Annotated[str | None, "JSON", "The task's arguments: an array, or an object of them by name."]
BodyFile = Annotated[Path | None, "--file FILE", "The body is a file."]
Rate = Annotated[float | None, "Letters a second, at most."]
MaxRedrives = Annotated[int | None, "Leave those that were sent back this often already."]
ExistOk = Annotated[bool, "Succeed if it exists with the settings given here."]


def number(text: str, least: float, most: float | None = None, *names: str) -> Any:
    """Make an option that takes a number of this range; text: its help."""
    return typer.Option(*names, metavar="N", min=least, max=most, help=text)


def directory(text: str, *names: str) -> Any:
    """Make an option that takes a directory that exists; text: its help."""
    return typer.Option(*names, metavar="DIR", exists=True, file_okay=False, resolve_path=True, help=text)


def new_file(text: str) -> Any:
    """Make an option that takes a file to write; text: its help."""
    return typer.Option(metavar="FILE", dir_okay=False, help=text)


AppDir = Annotated[Path | None, directory("Look for MODULE there; by default in the current directory.")]


def each_once(names: Iterable[str] | None) -> list[str]:
    """Return the names of an argument that takes several, each once, in their order."""
    return list(dict.fromkeys(names or ()))


def given(**options: Any) -> dict[str, Any]:
    """Return the options that were given, which are not None."""
    return {name: value for name, value in options.items() if value is not None}
