"""Parse `cassandra://` and `memory://` URLs.

`urllib.parse` allows one host in a URL, but there are several contact points. And a URL may hold a password:
this parser refuses a text in which a password could be mistaken for another part, *before* it quotes any
part.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, unquote

from cqueue.errors import ConfigError
from cqueue.runtime.suggestions import nearest, suggest_or_list

DEFAULT_PORT: Final = 9042
SCHEMES: Final = ("cassandra", "memory")
FORM: Final = "cassandra://[user:password@]host[:port][,host2[:port]]/keyspace[?key=value&…] or memory://name"


@dataclass(frozen=True, slots=True)
class ParsedUrl:
    """The parts of a URL. options: its query, and `username` and `password` if the URL has them."""

    scheme: str
    hosts: tuple[tuple[str, int], ...]
    keyspace: str
    options: Mapping[str, str] = field(repr=False)


def parse_url(url: str, known: Iterable[str]) -> ParsedUrl:
    """Parse a URL.

    Args:
        url: the text.
        known: option names that its query may hold.

    Raises:
        ConfigError: the URL is malformed, or its query has an unknown name. No credentials are quoted.
    """
    if not isinstance(url, str):
        raise ConfigError(f"A URL is text, not {type(url).__name__}.")
    scheme, rest = _scheme(url.strip())
    rest, _, query = rest.partition("?")
    authority, _, path = rest.partition("/")
    credentials, _, hosts = authority.rpartition("@")
    options = {**_credentials(credentials), **_query(query, tuple(known), has_secret="@" in authority)}
    if scheme == "memory":
        return ParsedUrl(scheme, (), hosts or path.strip("/"), options)
    return ParsedUrl(scheme, _hosts(hosts), path.strip("/"), options)


def _scheme(url: str) -> tuple[str, str]:
    scheme, found, rest = url.partition("://")
    if not found or scheme not in SCHEMES:
        raise ConfigError(f"A cluster's URL has the form {FORM}.")
    has_late_at = re.search("[/?].*@", rest, re.DOTALL)
    if has_late_at or "#" in rest or (scheme == "cassandra" and rest.startswith(("/", "?"))):
        raise ConfigError(
            "The URL cannot be read. In a user name or password, write / as %2F, ? as %3F, # as %23 "
            f"and @ as %40. Its form is {FORM}."
        )
    return scheme, rest


def _credentials(text: str) -> dict[str, str]:
    username, _, password = text.partition(":")
    pair = {"username": unquote(username), "password": unquote(password)}
    return {key: value for key, value in pair.items() if value}


def _hosts(text: str) -> tuple[tuple[str, int], ...]:
    return tuple(_host(part.strip()) for part in text.split(",") if part.strip())


def _host(text: str) -> tuple[str, int]:
    """Parse `host`, `host:port`, `[v6]` or `[v6]:port`."""
    if text.startswith("["):
        name, closed, port = text[1:].partition("]")
        valid = bool(closed) and (not port or port.startswith(":"))
        port = port.removeprefix(":")
    else:
        name, _, port = text.partition(":")
        valid = ":" not in port
    is_number = port.isascii() and port.isdigit() and len(port) <= 5
    number = int(port) if is_number else DEFAULT_PORT if not port else 0
    if not valid or not _is_name(name) or not 1 <= number <= 65535:
        # Without the host, `user:password` stands in its place: the part is not quoted.
        raise ConfigError(
            "A part of the URL is not a host[:port]. The port is 1 to 65535; put an IPv6 address in "
            f"brackets. A user name and a password stand before the hosts, and end in @. The form is {FORM}."
        )
    return name, number


def _is_name(text: str) -> bool:
    """Return whether a host may have this name: no part between its dots is empty or too long."""
    with suppress(UnicodeError):
        return bool(text.encode("idna"))
    return False


def _query(text: str, known: tuple[str, ...], *, has_secret: bool) -> dict[str, str]:
    """Read the options. An unknown name may be the rest of a password with an & in it, and is not quoted
    then.
    """
    options: dict[str, str] = {}
    for key, value in parse_qsl(text, keep_blank_values=True):
        if key not in known:
            is_typo = not has_secret and nearest(key, known) is not None
            what = f"an unknown option {key!r}" if is_typo else "an unknown option"
            raise ConfigError(f"The URL has {what}.{suggest_or_list(key, known)}")
        if key in options:
            raise ConfigError(f"The URL has the option {key} twice.")
        if value:
            options[key] = value
    return options


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine's loopback: an address, or `localhost`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
