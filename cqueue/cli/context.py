"""The context of every command: its global options, and its two ways of output.

Results go to standard output, for people or as one line of JSON; everything else goes to standard error, so
that a pipe never sees it.
"""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, is_dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from cqueue.settings import Settings
    from cqueue.store.connection import Connection


@dataclass(slots=True)
class CliContext:
    """The global options of one invocation; `typer.Context.obj` of every command.

    Attributes:
        given_url: of the cluster, as `--url` says.
        json: print results as JSON.
        verbose: show tracebacks and what the library logs.
    """

    given_url: str | None = None
    json: bool = False
    verbose: bool = False
    _consoles: dict[bool, Console] = field(default_factory=dict, repr=False)
    _embedded: list[str | None] = field(default_factory=list, repr=False)

    @property
    def url(self) -> str | None:
        """Return the URL: the one given, or that of a running `cqueue dev` server if none is configured.

        None leaves it to the environment and `cqueue.toml`. Only the command line looks for that server. A
        program that calls `cqueue.connect()` must not go to other data because somebody runs a development
        server on its machine.
        """
        if self.given_url:
            return self.given_url
        if not self._embedded:
            self._embedded.append(self._find_embedded())
        return self._embedded[0]

    def _find_embedded(self) -> str | None:
        from cqueue.settings import DEFAULT_URL, is_given  # noqa: PLC0415 - keeps `cqueue --help` quick

        if is_given():
            return None
        from cqueue.dev.running import running_url  # noqa: PLC0415 - as above

        url = running_url()
        if url is not None and url != DEFAULT_URL:
            self.remark(f"Using the server of `cqueue dev`: {url}")
        return url

    @property
    def console(self) -> Console:
        """Return the console for results, on standard output."""
        return self._console(stderr=False)

    @property
    def err_console(self) -> Console:
        """Return the console for progress, remarks and errors, on standard error."""
        return self._console(stderr=True)

    def settings(self) -> Settings:
        """Return where to connect.

        Raises:
            ConfigError: the URL, an environment variable or `cqueue.toml` is wrong.
        """
        from cqueue.settings import load  # noqa: PLC0415 - keeps `cqueue --help` quick

        return load(self.url)

    @contextmanager
    def connection(self, *, use_keyspace: bool = True) -> Iterator[Connection]:
        """Open a session of the driver, closed at the end of the block.

        Raises:
            Unavailable, SchemaMismatch, ConfigError: as `open_session`.
        """
        from cqueue.store.connection import open_session  # noqa: PLC0415 - the driver takes long to import

        with open_session(self.settings(), use_keyspace=use_keyspace) as connection:
            yield connection

    def emit(self, value: Any, human: Any = None) -> None:
        """Print a result.

        Args:
            value: for --json: anything JSON knows, and dataclasses.
            human: otherwise: a text, or a function that makes one or prints for itself; None prints `value`.
        """
        if self.json:
            sys.stdout.write(json_module.dumps(value, default=_plain, ensure_ascii=False) + "\n")
            sys.stdout.flush()
            return
        text = human() if callable(human) else value if human is None else human
        if text is not None:
            self.console.print(text, soft_wrap=True)

    def line(self, text: str, *, style: str | None = None, fold: bool = False) -> None:
        """Print a text as it is, without markup; fold: break it to the width of the terminal."""
        self.console.print(text, style=style, markup=False, highlight=False, soft_wrap=not fold)

    def remark(self, text: str) -> None:
        """Print a remark beside the result, on standard error; not with --json."""
        if not self.json:
            self.err_console.print(text, style="dim", soft_wrap=True, markup=False, highlight=False)

    @contextmanager
    def status(self, text: str) -> Iterator[Callable[[str], None]]:
        """Show a spinner with a text on a terminal; call the function that this yields to change the text."""
        if self.json or not self.err_console.is_terminal:
            yield lambda _: None
            return
        with self.err_console.status(text) as spinner:
            yield spinner.update

    @contextmanager
    def bar(self, text: str) -> Iterator[Callable[[float], None]]:
        """Show a progress bar on a terminal; call what this yields with the part that is done, 0 to 1."""
        if self.json or not self.err_console.is_terminal:
            yield lambda _: None
            return
        from rich.progress import Progress  # noqa: PLC0415 - keeps `cqueue --help` quick

        with Progress(console=self.err_console, transient=True) as bars:
            task = bars.add_task(text, total=1.0)
            yield lambda done: bars.update(task, completed=done)

    def _console(self, *, stderr: bool) -> Console:
        if stderr not in self._consoles:
            from rich.console import Console  # noqa: PLC0415 - as above

            self._consoles[stderr] = Console(stderr=stderr)
        return self._consoles[stderr]


def _plain(value: Any) -> Any:
    """Return a value that JSON knows: a dataclass as an object, anything else as its text."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    return str(value)
