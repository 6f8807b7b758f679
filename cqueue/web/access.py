"""People and what they may do: roles, tokens, and the cookie of somebody who has signed in.

Three ways to know somebody, one for each dashboard: by a token or a password; by a header that a reverse
proxy sets; or not at all, which is for a dashboard that only this machine reaches.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable, Collection, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import Enum
from threading import Lock
from typing import Final

from cqueue.errors import ConfigError

LEAST_TOKEN: Final = 16
"""Characters of a token, at least: too many to be guessed, so that no count of failed tries is needed."""
LEAST_PASSWORD: Final = 8
"""Characters of a password, at least: tries to sign in are limited, and each takes 50 ms."""
_SCRYPT: Final = "scrypt:"
_HASHED: Final = re.compile(r"scrypt:[0-9a-f]{32}:[0-9a-f]{64}")
SESSION_S: Final = 12 * 3600
"""Seconds for which somebody stays signed in: a shift."""
LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})
"""Names and addresses of this machine that no other machine reaches."""


class Role(Enum):
    """What somebody may do. Everybody who is let in may read."""

    READ = "read"
    OPERATE = "operate"
    BODIES = "bodies"


LOOK_AND_OPERATE: Final = frozenset({Role.READ, Role.OPERATE})
"""All but seeing the bodies of messages."""
ANYTHING: Final = frozenset(Role)
"""All roles."""


def _check_roles(roles: object) -> None:
    if not isinstance(roles, AbstractSet) or not all(isinstance(role, Role) for role in roles):
        raise ConfigError(f"roles is {roles!r}; it takes a set of Role.READ, Role.OPERATE and Role.BODIES")


def _check_person(name: object, roles: object) -> None:
    if not isinstance(name, str) or not name:
        raise ConfigError(f"the name of a token or password is {name!r}; it takes a text")
    _check_roles(roles)


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody who is let in. name: as the log of operator actions gives it."""

    name: str
    roles: frozenset[Role]

    def may(self, role: Role) -> bool:
        """Return whether the person has this role."""
        return role in self.roles


@dataclass(frozen=True, slots=True)
class Token:
    """A secret of at least 16 characters that lets somebody in, under this name and with these roles.

    Raises:
        ConfigError: the name is no text or empty, the secret is no text or too short, or a role is none.
    """

    name: str
    secret: str = field(repr=False)
    roles: frozenset[Role] = LOOK_AND_OPERATE

    def __post_init__(self) -> None:
        """Check the lengths."""
        _check_person(self.name, self.roles)
        if not isinstance(self.secret, str) or len(self.secret) < LEAST_TOKEN:
            raise ConfigError(
                f"the token of {self.name!r} is too short, or no text; it takes {LEAST_TOKEN} characters"
            )

    @property
    def person(self) -> Person:
        """The person whom the token lets in."""
        return Person(self.name, self.roles)


@dataclass(frozen=True, slots=True)
class Password:
    """Somebody's password, of which only a hash is kept; `hashed` makes it.

    Raises:
        ConfigError: the name is no text or empty, the hash has another form, or a role is none.
    """

    name: str
    hashed: str = field(repr=False)
    roles: frozenset[Role] = LOOK_AND_OPERATE

    def __post_init__(self) -> None:
        """Check the hash."""
        _check_person(self.name, self.roles)
        if not isinstance(self.hashed, str) or not _HASHED.fullmatch(self.hashed):
            raise ConfigError(f"the hash of {self.name!r}'s password is not of `cqueue web --hash-password`")

    @property
    def person(self) -> Person:
        """The person whom the password lets in."""
        return Person(self.name, self.roles)

    def fits(self, password: str) -> bool:
        """Return whether this is the password. Takes some 50 ms, so that guessing takes long."""
        salt = self.hashed.split(":")[1]
        return hmac.compare_digest(_scrypt(password, salt), self.hashed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Whom the dashboard lets in. Without all of these: everybody who reaches it by a name of this machine.

    Args:
        tokens: one of these has to be given.
        passwords: or the name and password of one of these.
        proxy_header: header with the name of a person whom a reverse proxy has let in, such as
            `X-Remote-User`.
        proxy_addresses: addresses whose header is believed; by default those of this machine.
        roles: what people whom no token names may do. By default all but seeing bodies.
        host_names: further names by which browsers may ask for the dashboard, for example that of the proxy.
            Any name will do where tokens are asked for.

    Raises:
        ConfigError: a header is given and tokens or passwords are, or two of these have one name; or a single
            value is given where several are taken, or something else than tokens, passwords or roles.
    """

    tokens: tuple[Token, ...] = ()
    passwords: tuple[Password, ...] = ()
    proxy_header: str | None = None
    proxy_addresses: Collection[str] = LOOPBACK_NAMES
    roles: frozenset[Role] = LOOK_AND_OPERATE
    host_names: Collection[str] = frozenset()

    def __post_init__(self) -> None:
        """Check that there is one way to know somebody."""
        for name in ("tokens", "passwords", "proxy_addresses", "roles", "host_names"):
            given = getattr(self, name)
            if isinstance(given, str) or not isinstance(given, Collection):  # a part of a text is in it, too
                raise ConfigError(f"{name} takes several, not one {type(given).__name__}")
        _check_roles(self.roles)
        for name, kind in (("tokens", Token), ("passwords", Password)):
            if not all(isinstance(one, kind) for one in getattr(self, name)):
                raise ConfigError(f"{name} takes nothing but {kind.__name__}(…)")
        if self.asks and self.proxy_header is not None:
            raise ConfigError("give tokens or a proxy's header, not both: a dashboard has one way in")
        names = [one.name for one in self._people]
        if len(set(names)) != len(names):
            raise ConfigError("two tokens have the same name, so the log could not tell who did what")

    @property
    def _people(self) -> list[Token | Password]:
        return [*self.tokens, *self.passwords]

    @property
    def asks(self) -> bool:
        """Whether people sign in here."""
        return bool(self.tokens or self.passwords)

    def knows_host(self, host: str) -> bool:
        """Return whether a browser may have meant this dashboard by this `Host`.

        A page of another site can give its own name the address of this machine, and would then count as the
        same site. With tokens that gains it nothing, as the cookie belongs to the other name.
        """
        return self.asks or _bare(host) in {*LOOPBACK_NAMES, *map(str.lower, self.host_names)}

    def by_token(self, secret: str) -> Person | None:
        """Return whom this token lets in. Compares with all tokens, each in constant time."""
        given = _digest(secret)
        found = [one.person for one in self.tokens if hmac.compare_digest(_digest(one.secret), given)]
        return found[-1] if found else None

    def by_password(self, name: str, password: str) -> Person | None:
        """Return whom name and password let in. An unknown name takes as long as a wrong password."""
        found = next((one for one in self.passwords if one.name == name), _NOBODY)
        return found.person if found.fits(password) and found is not _NOBODY else None

    def by_name(self, name: str) -> Person | None:
        """Return the person of the token or password that has this name."""
        return next((one.person for one in self._people if one.name == name), None)

    def by_proxy(self, name: str | None, address: str | None) -> Person | None:
        """Return whom the proxy names, if the request comes from an address that is believed."""
        if not name or address not in self.proxy_addresses:
            return None
        return Person(name[:200], self.roles)

    @property
    def anybody(self) -> Person | None:
        """Return whom a dashboard without tokens and header takes everybody for; None if it has either."""
        known = self.asks or self.proxy_header is not None
        return None if known else Person("local", self.roles)


class Sessions:
    """Knows the people who are signed in, by random cookies that only this process knows. Thread-safe.

    A signed cookie would need no memory, but nobody could end it: a copy would outlive the sign-out.
    """

    def __init__(self, time_s: Callable[[], float] = time.monotonic) -> None:
        self._time_s = time_s
        self._mutex = Lock()
        self._open: dict[bytes, tuple[str, float]] = {}  # by the cookie's digest: the name, and until when

    def cookie(self, person: Person) -> str:
        """Begin a session, and return its cookie."""
        cookie, now_s = secrets.token_urlsafe(32), self._time_s()
        with self._mutex:
            for digest in [one for one, (_, until_s) in self._open.items() if until_s <= now_s]:
                del self._open[digest]
            self._open[_digest(cookie)] = person.name, now_s + SESSION_S
        return cookie

    def name(self, cookie: str) -> str | None:
        """Return whose cookie it is; None if there is no such session (any more)."""
        with self._mutex:
            name, until_s = self._open.get(_digest(cookie), (None, 0.0))
        return name if self._time_s() < until_s else None

    def end(self, cookie: str) -> None:
        """End the session of a cookie, wherever copies of it are."""
        with self._mutex:
            self._open.pop(_digest(cookie), None)


def parse_roles(text: str) -> frozenset[Role]:
    """Parse `read,operate,bodies`, or some of them; `read` goes without saying.

    Raises:
        ConfigError: one is no role.
    """
    names = [name.strip() for name in text.replace("+", ",").split(",") if name.strip()]
    unknown = sorted(set(names) - {role.value for role in Role})
    if unknown or not names:
        raise ConfigError(f"{text!r} names no roles; there are read, operate and bodies, separated by commas")
    return frozenset({Role.READ, *map(Role, names)})


def parse_tokens(lines: Iterable[str], roles: frozenset[Role]) -> tuple[Token | Password, ...]:
    """Parse a file of tokens: `TOKEN`, `NAME ROLES TOKEN` or `NAME ROLES HASH`; lines with # are comments.

    roles: of a token that stands alone, whose name is `token`.

    Raises:
        ConfigError: a line has another form, or none has a token. The line is not quoted.
    """
    found: list[Token | Password] = []
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) == 1:
            found.append(Token("token", words[0], roles))
        elif len(words) == 3:
            kind = Password if words[2].startswith(_SCRYPT) else Token
            found.append(kind(words[0], words[2], parse_roles(words[1])))
        else:
            raise ConfigError(f"line {number} of the tokens is neither TOKEN nor NAME ROLES TOKEN")
    if not found:
        raise ConfigError("there is no token: give a line with TOKEN, NAME ROLES TOKEN or NAME ROLES HASH")
    return tuple(found)


def hashed(password: str) -> str:
    """Return what a file of tokens holds in place of a password.

    Raises:
        ConfigError: it has fewer than 8 characters.
    """
    if len(password) < LEAST_PASSWORD:
        raise ConfigError(f"the password is too short; it takes {LEAST_PASSWORD} characters or more")
    return _scrypt(password, secrets.token_hex(16))


def _scrypt(password: str, salt: str) -> str:
    made = hashlib.scrypt(password.encode(), salt=bytes.fromhex(salt), n=1 << 14, r=8, p=1, dklen=32)
    return f"{_SCRYPT}{salt}:{made.hex()}"


_NOBODY: Final = Password("nobody", f"{_SCRYPT}{'0' * 32}:{'0' * 64}")
"""Whose password is compared where there is no such name."""


def _digest(secret: str) -> bytes:
    """Return a digest, so that not even the length of a token shows in the time that a comparison takes."""
    return hashlib.sha256(secret.encode()).digest()


def _bare(host: str) -> str:
    """Return the name or address of a `Host` header, without port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()
