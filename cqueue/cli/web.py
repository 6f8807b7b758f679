"""`cqueue web`: the dashboard, served from this process."""

from __future__ import annotations

import os
import signal
import socket
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cqueue.cli import log_lines
from cqueue.cli.bodies import standard_input
from cqueue.cli.commands import command
from cqueue.cli.context import CliContext
from cqueue.cli.failures import ExitCode
from cqueue.cli.interrupts import handled_by
from cqueue.cli.log_lines import LogFormat
from cqueue.cli.options import number
from cqueue.errors import BadInput, ConfigError, Unavailable
from cqueue.runtime.logs import logger
from cqueue.runtime.urls import is_loopback

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cqueue.client import Client
    from cqueue.web import Access

app = typer.Typer()

LOOPBACK = "127.0.0.1"
PORT = 8787
TOKEN_VARIABLE = "CQUEUE_WEB_TOKEN"  # nosec B105  # noqa: S105 - the name of one
NEEDED = ("starlette", "jinja2", "uvicorn")
BACKLOG = 256
"""Connections that may wait to be taken."""
GOODBYE_S = 5
"""Seconds that answers under way may take after a signal."""


@command(app)
def web(
    cli: CliContext,
    *,
    host: Annotated[str, "HOST", "Address to listen on; another one asks for a token."] = LOOPBACK,
    port: Annotated[int, number("Port to listen on; 0 takes any free one.", 0, 65535)] = PORT,
    prefix: Annotated[str, "PATH", "Path before all addresses, such as /queues."] = "",
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help=f"A line each: TOKEN, NAME ROLES TOKEN, or NAME ROLES HASH. Also {TOKEN_VARIABLE}.",
        ),
    ] = None,
    proxy_header: Annotated[str | None, "NAME", "Header by which a reverse proxy says who asks."] = None,
    proxy_address: Annotated[
        list[str] | None, "IP", "Address of that proxy; by default this machine. May be repeated."
    ] = None,
    host_name: Annotated[
        list[str] | None, "NAME", "Further name by which browsers may ask. May be repeated."
    ] = None,
    roles: Annotated[str, "A,B", "What people without a role of their own may do."] = "read,operate",
    log: LogFormat = None,
    hash_password: Annotated[bool, "Ask for a password, print its HASH, and serve nothing."] = False,
) -> None:
    """Serve the dashboard: queues, messages, dead letters, schedules, logs and workers.

    Without options only this machine reaches it. Ctrl-C ends it.
    """
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise ConfigError(f"The dashboard needs {', '.join(missing)}: pip install 'cassandra-cqueue[web]'.")
    from cqueue.web import Access  # noqa: PLC0415 - an extra
    from cqueue.web.access import (  # noqa: PLC0415 - as above
        LOOPBACK_NAMES,
        Password,
        Token,
        hashed,
        parse_roles,
        parse_tokens,
    )

    if hash_password:
        typer.echo(hashed(_password()))
        return
    shared = parse_roles(roles)
    lines = _token_lines(token_file)
    people = parse_tokens(lines, shared) if lines else ()
    access = Access(
        tokens=tuple(one for one in people if isinstance(one, Token)),
        passwords=tuple(one for one in people if isinstance(one, Password)),
        proxy_header=proxy_header,
        proxy_addresses=frozenset(proxy_address or LOOPBACK_NAMES),
        roles=shared,
        host_names=frozenset(host_name or ()),
    )
    if not access.asks and proxy_header is None and not is_loopback(host):
        raise BadInput(f"Other machines reach {host}: give --token-file, {TOKEN_VARIABLE} or --proxy-header.")
    path = _checked(prefix)
    log_lines.configure(cli, log)
    with _listening(host, port) as listener, _client(cli.url) as client:
        _serve(client, access, listener, path)


def _password() -> str:
    """Ask for a password twice, or read it from a pipe.

    Raises:
        BadInput: the pipe is closed, or what it holds is no text.
    """
    given = standard_input()
    if not given.isatty():
        try:
            return given.readline().rstrip("\n")
        except UnicodeDecodeError as exc:
            raise BadInput(f"The password is not valid {exc.encoding}.") from exc
    asked: str = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    return asked


def _token_lines(token_file: Path | None) -> list[str]:
    """Return the lines with tokens, from the file or the environment.

    Raises:
        ConfigError: the file can be read by others, or what holds the tokens is no text.
    """
    if token_file is None:
        given = os.environ.get(TOKEN_VARIABLE, "")
        try:
            given.encode()  # else only a sign-in would find out
        except UnicodeEncodeError as exc:
            raise ConfigError(
                f"{TOKEN_VARIABLE} is not valid {exc.encoding}: set it to a token of letters and digits"
            ) from exc
        return given.splitlines()
    if token_file.stat().st_mode & 0o077:
        raise ConfigError(f"{token_file} can be read by others: chmod 600 {token_file}")
    try:
        lines = token_file.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{token_file} is not valid {exc.encoding}.") from exc
    return lines or [""]


def _checked(prefix: str) -> str:
    path = prefix.rstrip("/")
    if path and (not path.startswith("/") or path.startswith("//")):
        raise BadInput(f"--prefix is {prefix!r}; it begins with one slash, such as /queues")
    return path


@contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    """Take the port before anything else is done.

    Raises:
        BadInput: it cannot be had.
    """
    try:
        (family, _, _, _, address), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        with socket.socket(family) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(BACKLOG)  # who asks before the first page is ready waits instead of failing
            yield listener
    except OSError as exc:
        raise BadInput(f"Cannot listen on {host}, port {port}: {exc.strerror or exc}.") from exc


def _shown(listener: socket.socket) -> str:
    """Return host and port as a URL has them, a link-local address with the interface that it belongs to."""
    flags = socket.NI_NUMERICHOST | socket.NI_NUMERICSERV
    host, port = socket.getnameinfo(listener.getsockname(), flags)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@contextmanager
def _client(url: str | None) -> Iterator[Client]:
    """Connect; if Cassandra is away, at the first page that it answers."""
    from cqueue.client import connect  # noqa: PLC0415 - the driver takes long to import
    from cqueue.web.shared import LOGGER  # noqa: PLC0415 - an extra

    try:
        client = connect(url)
    except Unavailable as exc:
        logger(LOGGER).warning("dashboard_not_connected", error=str(exc))
        client = connect(url, lazy=True)
    with client:
        yield client


def _serve(client: Client, access: Access, listener: socket.socket, prefix: str) -> None:
    """Serve until a signal comes; then end the process."""
    import uvicorn  # noqa: PLC0415 - an extra
    from starlette.applications import Starlette  # noqa: PLC0415 - an extra
    from starlette.routing import Mount  # noqa: PLC0415 - an extra

    from cqueue.dispatcher.service.daemon import leave  # noqa: PLC0415 - the driver takes long to import
    from cqueue.web import application  # noqa: PLC0415 - an extra
    from cqueue.web.shared import LOGGER  # noqa: PLC0415 - an extra

    page: Any = application(client, access=access)
    server = uvicorn.Server(
        uvicorn.Config(
            Starlette(routes=[Mount(prefix, app=page)]) if prefix else page,
            log_config=None,
            log_level="warning",
            access_log=False,
            proxy_headers=False,  # the guard judges the address that the request comes from
            server_header=False,
            timeout_graceful_shutdown=GOODBYE_S,
            limit_concurrency=200,  # of connections, also of those that wait for the next request
            timeout_keep_alive=2,  # less than an open page waits before it asks again
            h11_max_incomplete_event_size=32 << 10,
            lifespan="on",
        )
    )
    # uvicorn would send the signal again after its end, which looks like a crash
    server.capture_signals = nullcontext
    # A second signal does not wait for answers under way.
    with handled_by(server.handle_exit, signal.SIGINT, signal.SIGTERM):
        logger(LOGGER).info("dashboard_listening", address=f"http://{_shown(listener)}{prefix}/")
        page.state.site.start()
        server.run(sockets=[listener])
    page.state.site.close()  # the lifespan of a mounted page is not run
    leave(ExitCode.DONE)  # a read that nodes keep waiting would keep the process
