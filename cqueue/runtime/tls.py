"""TLS of a client: its files, read anew when they change, and what is wrong if a handshake fails.

`ssl` reads files once and names none of them in its errors. A process that runs for months outlives its
certificates, and an operator who reads an error needs to know which file or which setting to mend.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from cqueue.errors import ConfigError
from cqueue.runtime import logs
from cqueue.settings import TLS_FILES, Settings

LOGGER: Final = "cqueue.store"

# OpenSSL's numbers of what is wrong with a certificate (`X509_V_ERR_…`).
_EXPIRED: Final = 10
_NOT_YET: Final = 9
_OTHER_NAME: Final = (62, 64)
_UNTRUSTED: Final = (2, 18, 19, 20, 21)
_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE")
_OPTIONS_REQUEST: Final = bytes((5, 0, 0, 0, 5, 0, 0, 0, 0))
"""Cassandra's first message: version 5, `OPTIONS`, empty. A node answers it, with or without a login."""


class Validity(NamedTuple):
    """The time for which a certificate is valid."""

    since: datetime
    until: datetime


class Context(ssl.SSLContext):
    """Opens each connection with the files as they are at that time.

    If a file that has changed cannot be used, such as a key that is newer than its certificate, the last good
    ones stay in use, and a log line says so once. Connections that are open already stay as they are.

    Raises:
        ConfigError: a file cannot be used now.
    """

    def __new__(cls, _: Settings) -> Self:
        """Make it for a client; `ssl` would take the argument for a version of TLS."""
        return super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._seen = _state(settings)
        self._loaded = _load(settings)
        self.check_hostname = self._loaded.check_hostname  # the driver asks for it
        self.verify_mode = self._loaded.verify_mode

    def wrap_socket(self, *args: Any, **options: Any) -> ssl.SSLSocket:
        """As `ssl.SSLContext.wrap_socket`, with `tls_name` in place of the node's address."""
        if self._settings.tls_name is not None:
            options["server_hostname"] = self._settings.tls_name
        return self._fresh().wrap_socket(*args, **options)

    def _fresh(self) -> ssl.SSLContext:
        # A lock, since the driver opens connections on several threads.
        with self._lock:
            now = _state(self._settings)
            if now != self._seen:
                self._seen = now  # before the files are read: what changes meanwhile is seen next time
                try:
                    self._loaded = _load(self._settings)
                except ConfigError as exc:
                    logs.logger(LOGGER).warning("tls_files_unusable", error=str(exc))
                else:
                    logs.logger(LOGGER).info("tls_files_renewed")
            return self._loaded


def wrong(settings: Settings, host: str, port: int) -> str | None:
    """Return why TLS with a node fails, as a sentence that says what to do; None if it does not.

    Opens a connection of its own, because the driver reports failures as text. The result is also None if the
    node cannot be reached at all, hangs, or hangs up before it has said anything.

    Raises:
        ConfigError: a file of TLS cannot be used.
    """
    context: ssl.SSLContext = Context(settings) if settings.tls else _unverified()
    try:
        plain = socket.create_connection((host, port), settings.connect_timeout_s)
    except OSError:
        return None
    with plain:
        address = plain.getpeername()[0]  # a name in the URL is not what the driver compares
        try:
            connection = context.wrap_socket(plain, server_hostname=address)
        except OSError as exc:
            return _handshake(settings, exc) if settings.tls else None
        with connection:
            if not settings.tls:
                return "It speaks TLS. Add tls=true or tls_ca to the settings."
            return _first_answer(settings, connection)


def validity(settings: Settings, host: str, port: int) -> Validity | None:
    """Return the time for which a node's certificate is valid; None if the node cannot be reached by TLS.

    Nor is it known with `tls_verify=none`: `ssl` then tells nothing of the certificate.

    Raises:
        ConfigError: a file of TLS cannot be used.
    """
    context = Context(settings)
    with (
        suppress(OSError),
        socket.create_connection((host, port), settings.connect_timeout_s) as plain,
        context.wrap_socket(plain, server_hostname=host) as connection,
    ):
        return _validity(connection.getpeercert())
    return None


def own_validity(settings: Settings) -> Validity | None:
    """Return the time for which this client's certificate is valid; None if it has none."""
    if settings.tls_cert is None:
        return None
    return _validity(ssl._ssl._test_decode_cert(settings.tls_cert))  # type: ignore[attr-defined]  # noqa: SLF001 - `ssl` has no other way


def _validity(certificate: Mapping[str, Any] | None) -> Validity | None:
    if not certificate:
        return None
    told = (ssl.cert_time_to_seconds(certificate[name]) for name in ("notBefore", "notAfter"))
    return Validity(*(datetime.fromtimestamp(seconds, UTC) for seconds in told))


def _first_answer(settings: Settings, connection: ssl.SSLSocket) -> str | None:
    """Ask the node something: in TLS 1.3 it refuses a client's certificate only after the handshake."""
    try:
        with suppress(OSError):  # a node that has hung up may have said why, which is still to be read
            connection.sendall(_OPTIONS_REQUEST)
        return None if connection.recv(1) else _refused(settings, "it hung up")
    except TimeoutError:
        return None
    except OSError as exc:
        return _refused(settings, _short(exc))


def _unverified() -> ssl.SSLContext:
    """For a look at whether a node speaks TLS: nothing is told to it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _handshake(settings: Settings, exc: OSError) -> str | None:
    if isinstance(exc, ssl.SSLCertVerificationError):
        return _certificate(settings, exc)
    reason = getattr(exc, "reason", None) or ""
    if "ALERT" in reason:
        return _refused(settings, _short(exc))
    if reason in _NO_TLS:
        return f"It speaks no TLS, or none that this client knows ({_short(exc)}). Without TLS: tls=false."
    if not isinstance(exc, ssl.SSLError) or isinstance(exc, ssl.SSLEOFError):
        return None  # it hangs, or has as many connections as it takes: Cassandra without TLS would answer
    return f"TLS with it fails: {_short(exc)}."


def _refused(settings: Settings, why: str) -> str:
    mend = "Check tls_cert" if settings.tls_cert else "It may want a certificate of this client: tls_cert"
    return f"It refused this client ({why}). {mend}."


def _certificate(settings: Settings, exc: ssl.SSLCertVerificationError) -> str:
    code = exc.verify_code
    if code == _EXPIRED:
        return "A certificate of it has expired. Renew it, or set this machine's clock."
    if code == _NOT_YET:
        return "A certificate of it is not valid yet. Set the clocks of both machines."
    if code in _OTHER_NAME:
        name = f"{settings.tls_name!r} (tls_name)" if settings.tls_name else "the address of the node"
        return f"Its certificate does not list {name}. Set tls_name to a name that it lists, or renew it."
    if code in _UNTRUSTED:
        whose = f"of {settings.tls_ca}" if settings.tls_ca else "that this system knows; tls_ca names others"
        return f"Its certificate is not signed by an authority {whose} ({exc.verify_message})."
    return f"Its certificate does not hold: {exc.verify_message}."


def _short(exc: OSError | ValueError) -> str:
    reason = getattr(exc, "reason", None)
    if reason:
        return str(reason).replace("_", " ").lower()
    return getattr(exc, "strerror", None) or str(exc) or type(exc).__name__


# ── The files ──


def _files(settings: Settings) -> dict[str, Path]:
    return {name: path for name in TLS_FILES if (path := getattr(settings, name)) is not None}


def _state(settings: Settings) -> list[tuple[int, ...] | None]:
    """Return what changes when a file does: its content, its rights, or what a link points to."""
    found: list[tuple[int, ...] | None] = []
    for path in _files(settings).values():
        try:
            stat = path.stat()
        except (OSError, ValueError):
            found.append(None)
        else:
            found.append((stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns))
    return found


def _load(settings: Settings) -> ssl.SSLContext:
    for name, path in _files(settings).items():
        _read(name, path)  # OpenSSL's errors name no file
    try:
        context = ssl.create_default_context(cafile=settings.tls_ca)
    except OSError as exc:  # ssl.SSLError is one
        raise ConfigError(f"tls_ca: {settings.tls_ca} holds no certificates in PEM form.") from exc
    if settings.tls_cert is not None:
        _load_own(context, settings, settings.tls_cert)
    context.check_hostname = settings.tls_verify == "full"
    context.verify_mode = ssl.CERT_NONE if settings.tls_verify == "none" else ssl.CERT_REQUIRED
    return context


def _load_own(context: ssl.SSLContext, settings: Settings, certificate: Path) -> None:
    """Load the client's certificate and its key.

    OpenSSL must be given a function for the passphrase: without one it asks on the terminal, and waits.
    """
    asked = False

    def passphrase() -> bytes:
        nonlocal asked
        asked = True
        return _passphrase(settings)

    try:
        context.load_cert_chain(certificate, settings.tls_key, passphrase)
    except (OSError, ValueError) as exc:  # ValueError: OpenSSL takes 1,024 bytes of a passphrase
        key = settings.tls_key or certificate
        raise ConfigError(_own_wrong(settings, certificate, key, _short(exc), asked=asked)) from exc


def _own_wrong(settings: Settings, certificate: Path, key: Path, reason: str, *, asked: bool) -> str:
    if reason == "key values mismatch":
        return f"tls_key: {key} is not the key of the certificate in {certificate}."
    if asked and settings.tls_passphrase is None and settings.tls_passphrase_file is None:
        return (
            f"tls_key: {key} has a passphrase. Give it in the variable CQUEUE_TLS_PASSPHRASE, or in a file "
            "that tls_passphrase_file names."
        )
    if asked:
        return f"tls_passphrase: it does not open {key} ({reason})."
    if settings.tls_key is None:
        return (
            f"tls_cert: {certificate} lacks a certificate or its key, in PEM form ({reason}). Name the "
            "key's own file by tls_key."
        )
    return f"tls_cert, tls_key: no certificate in {certificate}, or no key in {key}, in PEM form ({reason})."


def _passphrase(settings: Settings) -> bytes:
    path = settings.tls_passphrase_file
    if path is not None:
        return _read("tls_passphrase_file", path).rstrip(b"\r\n")
    return (settings.tls_passphrase or "").encode()


def _read(name: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (OSError, ValueError) as exc:  # ValueError: a name that no file can have
        raise ConfigError(f"{name}: {path} cannot be read: {_short(exc)}.") from exc
