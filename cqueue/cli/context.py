"""The context of every command: its global options, and its two ways of output.

Results go to standard output, for people or as one line of JSON; everything else goes to standard error, so
that a pipe never sees it.
"""

from __future__ import annotations

import errno
import json as json_module
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, is_dataclass
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TextIO

if TYPE_CHECKING:
    from rich.console import Console

    from cqueue.settings import Settings
    from cqueue.store.connection import Connection

AS_IT_IS: Final[Any] = {"markup": False, "emoji": False, "highlight": False, "soft_wrap": True}
"""Options of consoles: names, keys, addresses and bodies may look like Rich's markup."""
_COMMANDS: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Characters that command a terminal, or turn the direction of a text. A tab and a new line do neither."""


def output() -> TextIO:
    """Return standard output, for what must not be lost unseen.

    Raises:
        OSError: it is closed, as by `>&-`.
    """
    if sys.stdout is None:
        raise OSError(errno.EIO, "standard output is closed")
    return sys.stdout


@contextmanager
def on_stderr() -> Iterator[None]:
    """Do without what standard error does not take: a full disk there must not change what a command does."""
    try:
        yield
    except OSError:
        sys.stderr = None  # at its end Python would try again, and change the exit code


@dataclass
class CliContext:
    """The global options of one invocation; `typer.Context.obj` of every command.

    Attributes:
        given_url: of the cluster, as `--url` says.
        json: print results as JSON.
        verbose: show tracebacks and what the library logs.
        is_interrupt_told: what a Ctrl-C has cut off was said.
    """

    given_url: str | None = None
    json: bool = False
    verbose: bool = False
    is_interrupt_told: bool = False

    @cached_property
    def url(self) -> str | None:
        """Return the URL: the one given, or that of a running `cqueue dev` server if none is configured.

        None leaves it to the environment and `cqueue.toml`. Only the command line looks for that server. A
        program that calls `cqueue.connect()` must not go to other data because somebody runs a development
        server on its machine.
        """
        if self.given_url:
            return self.given_url
        from cqueue.settings import DEFAULT_URL, is_given  # noqa: PLC0415 - keeps `cqueue --help` quick

        if is_given():
            return None
        from cqueue.dev.status import known_server  # noqa: PLC0415 - as above

        url, runs = known_server() or (None, True)
        if not runs:  # another server may have the usual address, with other data
            self.remark(
                f"The server of `cqueue dev` does not run, so this command goes to {DEFAULT_URL}; "
                "`cqueue dev start` starts it"
            )
            return None
        if url is not None and url != DEFAULT_URL:
            self.remark(f"Using the server of `cqueue dev`: {url}")
        return url

    @cached_property
    def console(self) -> Console:
        """Return the console for results, on standard output."""
        from rich.console import Console  # noqa: PLC0415 - as above

        return Console(**AS_IT_IS)

    @cached_property
    def err_console(self) -> Console:
        """Return the console for progress, remarks and errors, on standard error."""
        from rich.console import Console  # noqa: PLC0415 - as above

        class ErrConsole(Console):
            def on_broken_pipe(self) -> None:
                raise  # noqa: PLE0704 - for `on_stderr`; Rich would end the process, and standard output

        return ErrConsole(stderr=True, **AS_IT_IS)

    def settings(self) -> Settings:
        """Return where to connect.

        Raises:
            ConfigError: the URL, an environment variable or `cqueue.toml` is wrong.
        """
        from cqueue.settings import load  # noqa: PLC0415 - keeps `cqueue --help` quick

        return load(self.url)

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """Open a session of the driver, without a keyspace, closed at the end of the block.

        Raises:
            Unavailable, SchemaMismatch, ConfigError: as `open_session`.
        """
        from cqueue.store.connection import open_session  # noqa: PLC0415 - the driver takes long to import

        with open_session(self.settings(), use_keyspace=False) as connection:
            yield connection

    def emit(self, value: Any, human: Any = None) -> None:
        """Print a result.

        Args:
            value: for --json: anything JSON knows, and dataclasses.
            human: otherwise: a text, or a function that makes one or prints for itself; None: nothing.
        """
        if self.json:
            output().write(json_line(value))
            output().flush()
            return
        text = human() if callable(human) else human
        if text is not None:
            self.console.print(safe_for_terminal(text) if isinstance(text, str) else text, highlight=True)

    def line(self, text: str, *, style: str | None = None, fold: bool = False) -> None:
        """Print a text; fold: break it to the width of the terminal."""
        self.console.print(safe_for_terminal(text), style=style, soft_wrap=not fold)

    def after_ctrl_c(self) -> None:
        """Begin a new line behind the `^C` that the terminal shows, for what is said of it."""
        self.is_interrupt_told = True
        with on_stderr():
            if self.err_console.is_terminal:
                self.err_console.print()

    def remark(self, text: str) -> None:
        """Print a remark beside the result, on standard error; not with --json."""
        with on_stderr():
            if not self.json:
                self.err_console.print(safe_for_terminal(text), style="dim")

    def warn(self, text: str) -> None:
        """Print a warning beside the result, on standard error; with --json as well."""
        with on_stderr():
            self.err_console.print(safe_for_terminal(text), style="yellow")

    @contextmanager
    def status(self, text: str) -> Iterator[Callable[[str], None]]:
        """Show a spinner with a text on a terminal; call the function that this yields to change the text."""
        if self.json or not self.err_console.is_terminal:
            yield lambda _: None
            return
        from rich.markup import escape  # noqa: PLC0415 - keeps `cqueue --help` quick

        with self.err_console.status(escape(text)) as spinner:
            yield lambda changed: spinner.update(escape(changed))

    @contextmanager
    def bar(self, text: str, total: float | None = 1.0) -> Iterator[Callable[..., None]]:
        """Show a progress bar on a terminal.

        Call what this yields with how much is done, and where they change with the `total` and the `text`.
        """
        if self.json or not self.err_console.is_terminal:
            yield lambda _, **_changed: None
            return
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415 - as above

        columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self.err_console, transient=True) as bars:
            task = bars.add_task(text, total=total)
            yield lambda done, total=None, text=None: bars.update(
                task, completed=done, total=total, description=text
            )


def safe_for_terminal(text: str) -> str:
    """Return the text with control characters shown: a message must not be able to command a terminal."""
    return _COMMANDS.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    code = ord(found.group())
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def json_line(value: Any) -> str:
    """The value as one line of JSON; where standard output is not in UTF-8, in ASCII."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"  # a replaced one may have none
    text = json_module.dumps(value, default=_plain, ensure_ascii=encoding.lower() != "utf-8")
    return _COMMANDS.sub(lambda found: f"\\u{ord(found.group()):04x}", text) + "\n"  # within strings alone


def _plain(value: Any) -> Any:
    """Return a value that JSON knows: a dataclass as an object, a time in ISO 8601, the rest as its text."""
    if isinstance(value, datetime):
        return value.isoformat()
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    return str(value)
