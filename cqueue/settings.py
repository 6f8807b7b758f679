"""Connection settings: where the cluster is, and how to talk to it.

Four sources are merged key by key: an explicit URL, the environment, `cqueue.toml`, and defaults. The URL is
one key among the others. The most explicit URL replaces the others whole, so that the password in the URL of
one cluster is never sent to another cluster.

A URL may hold a password. No error and no repr of this module quotes a part of a URL that could be a
password.
"""

from __future__ import annotations

import ipaddress
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, cast

from cqueue.errors import ConfigError
from cqueue.runtime.suggestions import suggest_or_list
from cqueue.runtime.urls import ParsedUrl, is_loopback, parse_url

DEFAULT_URL: Final = "cassandra://127.0.0.1:9042/cqueue?local_dc=datacenter1"
DEFAULT_KEYSPACE: Final = "cqueue"
DEFAULT_REQUEST_TIMEOUT_S: Final = 10.0
DEFAULT_CONNECT_TIMEOUT_S: Final = 5.0
MAX_TIMEOUT_S: Final = 3600.0
"""Upper bound of both timeouts in seconds. A larger number is most likely a mistake of units."""
MAX_PORT: Final = 65_535
CONFIG_FILE: Final = "cqueue.toml"
ENV_PREFIX: Final = "CQUEUE_"

Scheme = Literal["cassandra", "memory"]
Consistency = Literal["local_quorum", "quorum"]
SerialConsistency = Literal["local_serial", "serial"]
TlsVerify = Literal["full", "ca", "none"]

# The level of plain reads and writes that sees what a conditional mutation of that kind has stored.
CONSISTENCY_OF: Final[Mapping[SerialConsistency, Consistency]] = {
    "local_serial": "local_quorum",
    "serial": "quorum",
}

URL_KEYS: Final = (
    "local_dc",
    "consistency",
    "serial_consistency",
    "request_timeout",
    "connect_timeout",
    "tls",
    "tls_ca",
    "tls_cert",
    "tls_key",
    "tls_passphrase_file",
    "tls_name",
    "tls_verify",
    "allow_plaintext_credentials",
    "notify",
    "notify_host",
    "notify_port",
)
FILE_KEYS: Final = ("url", "username", "password", "tls_passphrase", *URL_KEYS)
ORIGINS: Final = ("", "CQUEUE_URL: ", "url of cqueue.toml or CQUEUE_CONFIG: ", "")
"""What an error says before it is about the URL of each layer: nobody has just typed the second and third."""
TLS_FILES: Final = ("tls_ca", "tls_cert", "tls_key", "tls_passphrase_file")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of a connection. `load` makes them; they are valid as a whole.

    Attributes:
        scheme: `cassandra`, or `memory` for the in-memory twin, which uses only `keyspace`, as its name.
        hosts: contact points as (host, port).
        keyspace: the keyspace, or the name of the in-memory store ("" is a private one).
        username: user name; None to connect without a login.
        password: password of that user.
        local_dc: data centre that this client works in.
        consistency: level of plain reads and writes; follows from `serial_consistency`.
        serial_consistency: level of conditional mutations; the same for a whole deployment.
        request_timeout_s: seconds that one request may take.
        connect_timeout_s: seconds that opening one connection may take.
        tls: whether connections are encrypted.
        tls_ca: file with the certificates to trust; the system's when None.
        tls_cert: file with this client's certificate, if the cluster asks for one.
        tls_key: file with its key, if `tls_cert` does not hold it.
        tls_passphrase: passphrase of that key. A URL cannot hold it, because URLs are logged.
        tls_passphrase_file: or the file that holds it, in its first line.
        tls_name: the name that each node's certificate must list, instead of the node's address.
        tls_verify: `full` checks the certificate and that it names `tls_name` or the node's address; `ca`
            only that it is signed by a trusted authority; `none` nothing. The driver connects to addresses,
            also where the URL gives names: for `full` without `tls_name`, the certificates must list IP
            addresses.
        allow_plaintext_credentials: send the password unencrypted to hosts other than this machine.
        notify: whether processes tell each other of messages by datagrams (see `cqueue.doorbell`).
        notify_host: where others reach this process; the address by which it reaches Cassandra when None.
        notify_port: the first and the last UDP port that it may listen on; 0 for any.
    """

    scheme: Scheme = "cassandra"
    hosts: tuple[tuple[str, int], ...] = ()
    keyspace: str = DEFAULT_KEYSPACE
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    local_dc: str | None = None
    consistency: Consistency = "local_quorum"
    serial_consistency: SerialConsistency = "local_serial"
    request_timeout_s: float = DEFAULT_REQUEST_TIMEOUT_S
    connect_timeout_s: float = DEFAULT_CONNECT_TIMEOUT_S
    tls: bool = False
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_passphrase: str | None = field(default=None, repr=False)
    tls_passphrase_file: Path | None = None
    tls_name: str | None = None
    tls_verify: TlsVerify = "full"
    allow_plaintext_credentials: bool = False
    notify: bool = True
    notify_host: str | None = None
    notify_port: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        if self.consistency != CONSISTENCY_OF[self.serial_consistency]:
            raise ConfigError(
                f"consistency={self.consistency} does not go with "
                f"serial_consistency={self.serial_consistency}: reads would miss what conditional mutations "
                "have stored. Use local_quorum with local_serial, or quorum with serial."
            )
        if (self.username is None) != (self.password is None):
            raise ConfigError(
                "A user name needs a password and a password a user name: one of them is missing."
            )
        self._check_tls()
        self._check_plaintext()

    def _check_tls(self) -> None:
        for name in ("tls_key", "tls_passphrase", "tls_passphrase_file"):
            if getattr(self, name) is not None and self.tls_cert is None:
                raise ConfigError(f"{name} needs tls_cert, the certificate that it belongs to.")
        if self.tls_passphrase is not None and self.tls_passphrase_file is not None:
            raise ConfigError("Give tls_passphrase or tls_passphrase_file, not both.")
        if self.tls_name is not None and self.tls_verify != "full":
            raise ConfigError(f"tls_name is not looked at with tls_verify={self.tls_verify}: leave one out.")

    def _check_plaintext(self) -> None:
        """Refuse to send a password over a network unencrypted. The nodes of a loopback address are trusted,
        although the driver may learn of other nodes from them.
        """
        if self.username is None or self.tls or self.allow_plaintext_credentials:
            return
        if not all(is_loopback(host) for host, _ in self.hosts):
            raise ConfigError(
                f"The password would travel to {self.address} unencrypted. Add tls=true (and tls_ca) to the "
                "URL; or allow_plaintext_credentials=true, if nobody can listen on that network."
            )

    @property
    def address(self) -> str:
        """The cluster and keyspace as text for messages, without credentials and options."""
        hosts = ",".join(f"[{h}]:{p}" if ":" in h else f"{h}:{p}" for h, p in self.hosts)
        return f"{self.scheme}://{hosts}/{self.keyspace}" if hosts else f"{self.scheme}://{self.keyspace}"


def load(
    url: str | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> Settings:
    """Load settings from `url`, the environment and `cqueue.toml`, in this order of precedence.

    Args:
        url: an explicit URL; with None or "" the other sources decide.
        environ: environment variables, instead of `os.environ`. Empty variables count as unset.
        directory: directory of `cqueue.toml`; None is the working directory.

    Raises:
        ConfigError: a value is malformed, unknown, or does not fit another one.

    Example:
        >>> load("cassandra://db1,db2:9043/shop?local_dc=dc1", environ={}).hosts
        (('db1', 9042), ('db2', 9043))
    """
    return _build(*_merge(*_layers(url, environ, directory), {"url": DEFAULT_URL}))


def named_url(url: str | None = None) -> str | None:
    """Return the URL that `load` would take, or None if nothing names one. Raises as `load`."""
    load(url)  # complains about whatever is wrong
    return next((layer["url"] for layer in _layers(url) if "url" in layer), None)


def _layers(
    url: str | None, environ: Mapping[str, str] | None = None, directory: Path | None = None
) -> Iterator[dict[str, str]]:
    """Yield what is given explicitly, by the environment and by a file. Arguments as of `load`."""
    env = {k: v for k, v in (os.environ if environ is None else environ).items() if v}
    yield {"url": url} if url else {}
    yield {key: env[name] for key in FILE_KEYS if (name := ENV_PREFIX + key.upper()) in env}
    yield _read_file(env, directory or Path())


def is_given(*, environ: Mapping[str, str] | None = None, directory: Path | None = None) -> bool:
    """Return whether the environment or a file gives any setting."""
    env = os.environ if environ is None else environ
    names = (ENV_PREFIX + key.upper() for key in (*FILE_KEYS, "config"))
    return any(map(env.get, names)) or ((directory or Path()) / CONFIG_FILE).exists()


def _merge(*layers: Mapping[str, str]) -> tuple[ParsedUrl, dict[str, str]]:
    """Return the first URL among the layers, and for each key the value of the first layer that has it.

    The options in a URL rank below the other keys of the URL's layer, and above all later layers.
    """
    source = next(layer for layer in layers if "url" in layer)
    try:
        address = parse_url(source["url"], known=URL_KEYS)
        _check_address(address)
    except ConfigError as exc:
        raise ConfigError(f"{ORIGINS[layers.index(source)]}{exc}") from exc
    merged: dict[str, str] = {}
    for layer in layers:
        merged = {**(address.options if layer is source else {}), **layer, **merged}
    return address, merged


def _build(address: ParsedUrl, values: Mapping[str, str]) -> Settings:
    if address.scheme == "memory":
        return Settings(scheme="memory", keyspace=address.keyspace)
    serial, plain = _consistencies(values)
    tls_files: dict[str, Any] = {key: Path(values[key]) for key in TLS_FILES if key in values}
    tls_name = _host_name("tls_name", values, "the name that the certificate of each node lists")
    return Settings(
        hosts=address.hosts,
        keyspace=address.keyspace or DEFAULT_KEYSPACE,
        username=values.get("username"),
        password=values.get("password"),
        local_dc=values.get("local_dc"),
        consistency=plain,
        serial_consistency=serial,
        request_timeout_s=_seconds("request_timeout", values, DEFAULT_REQUEST_TIMEOUT_S),
        connect_timeout_s=_seconds("connect_timeout", values, DEFAULT_CONNECT_TIMEOUT_S),
        tls=_flag("tls", values, default=bool(tls_files or tls_name)),
        tls_passphrase=values.get("tls_passphrase"),
        tls_name=tls_name,
        tls_verify=_tls_verify(values),
        allow_plaintext_credentials=_flag("allow_plaintext_credentials", values, default=False),
        notify=_flag("notify", values, default=True),
        notify_host=_host_name(
            "notify_host", values, "the address or name at which others reach this process, without a port"
        ),
        notify_port=_ports("notify_port", values),
        **tls_files,
    )


def _consistencies(values: Mapping[str, str]) -> tuple[SerialConsistency, Consistency]:
    """Return both consistency levels. A level that is not given follows from the other one."""
    plain = _choice("consistency", values, tuple(CONSISTENCY_OF.values()))
    serial = _choice("serial_consistency", values, tuple(CONSISTENCY_OF))
    if serial is None:
        serial = "serial" if plain == "quorum" else "local_serial"
    serial_level = cast("SerialConsistency", serial)
    return serial_level, cast("Consistency", plain or CONSISTENCY_OF[serial_level])


def _choice(key: str, values: Mapping[str, str], allowed: tuple[str, ...]) -> str | None:
    value = values.get(key)
    if value is None or value.lower() in allowed:
        return value.lower() if value else None
    raise ConfigError(f"{key}={value!r}: use one of {', '.join(allowed)}.")


def _seconds(key: str, values: Mapping[str, str], default: float) -> float:
    text = values.get(key)
    if text is None:
        return default
    try:
        seconds = float(text)
    except ValueError as exc:
        raise ConfigError(f"{key}={text!r}: seconds, as a number such as 10 or 2.5.") from exc
    if not 0 < seconds <= MAX_TIMEOUT_S:
        raise ConfigError(f"{key}={text}: more than 0 and at most {MAX_TIMEOUT_S:.0f} seconds.")
    return seconds


def _flag(key: str, values: Mapping[str, str], *, default: bool) -> bool:
    text = values.get(key)
    if text is None:
        return default
    if text.lower() in {"true", "1", "yes", "on"}:
        return True
    if text.lower() in {"false", "0", "no", "off"}:
        return False
    words = "on or off" if key == "notify" else "true or false"
    raise ConfigError(f"{key}={text!r}: use {words}" + (", or ca." if key == "tls_verify" else "."))


def _tls_verify(values: Mapping[str, str]) -> TlsVerify:
    if values.get("tls_verify", "").lower() in {"ca", "full", "none"}:
        return cast("TlsVerify", values["tls_verify"].lower())
    return "full" if _flag("tls_verify", values, default=True) else "none"


def _host_name(key: str, values: Mapping[str, str], what: str) -> str | None:
    """Parse an address or a name of one machine."""
    host = values.get(key)
    if host is None:
        return None
    try:
        is_one = not ipaddress.ip_address(host).is_unspecified  # others cannot reach 0.0.0.0
    except ValueError:
        is_one = bool(re.fullmatch(r"[\w.-]{1,253}", host))
    if is_one:
        return host
    raise ConfigError(f"{key}={host!r}: {what}.")


def _ports(key: str, values: Mapping[str, str]) -> tuple[int, int]:
    """Parse `notify_port`: one port, or the first and the last of a range."""
    text = values.get(key, "0")
    found = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", text, re.ASCII)
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
    if first <= last <= MAX_PORT and (first or not last):
        return first, last
    raise ConfigError(f"{key}={text!r}: a port from 1 to {MAX_PORT}, several as 7400-7415, or 0 for any.")


def _check_address(address: ParsedUrl) -> None:
    if address.scheme == "memory":
        return
    if not address.hosts:
        raise ConfigError("The URL names no host. Write cassandra://host:9042/keyspace.")
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,47}", address.keyspace or DEFAULT_KEYSPACE):
        raise ConfigError(
            # Behind a host that was left out, the rest of a password may stand here: it is not quoted.
            "That is not a keyspace name for cqueue: up to 48 of a-z, 0-9 and _, first a letter. "
            "Upper case would need quotes everywhere."
        )


def _read_file(env: Mapping[str, str], directory: Path) -> dict[str, str]:
    """Read the `[cqueue]` table of `$CQUEUE_CONFIG`, which must exist, or of `cqueue.toml`, which need
    not.
    """
    named = env.get(ENV_PREFIX + "CONFIG")
    path = Path(named) if named else directory / CONFIG_FILE
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as exc:
        if named is None:
            return {}
        raise ConfigError(f"CQUEUE_CONFIG names {path}, which does not exist.") from exc
    except (OSError, ValueError) as exc:
        raise ConfigError(f"{path} cannot be read as TOML: {getattr(exc, 'strerror', None) or exc}.") from exc
    if tables and ("cqueue" not in tables or tables.keys() & set(FILE_KEYS)):
        raise ConfigError(f"{path}: settings belong into the table [cqueue]; write that line above them.")
    table = tables.get("cqueue", {})
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: [cqueue] must be a table.")
    return {key: _scalar(path, key, value) for key, value in table.items() if value != ""}


def _scalar(path: Path, key: str, value: Any) -> str:
    if key not in FILE_KEYS:
        raise ConfigError(f"{path}: [cqueue] has no key {key!r}.{suggest_or_list(key, FILE_KEYS)}")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise ConfigError(f"{path}: [cqueue] {key} must be text, a number or true/false.")
