"""TLS of a client: which files it uses when, and what it says if a handshake fails."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from cqueue import ConfigError
from cqueue.dev import certificates
from cqueue.runtime import tls
from cqueue.settings import load
from tests.fix_dispatcher import until

HOST = "127.0.0.1"
THIS_YEAR = datetime.now(UTC).year


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    """A folder with an authority, a client's certificate, and one of a node at 127.0.0.1."""
    return make(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    return make(tmp_path_factory.mktemp("other"))


def make(folder):
    certificates.make_authority(folder)
    certificates.issue(folder, folder / "node.pem", "node", (f"IP:{HOST}", "DNS:cassandra.example"))
    return folder


def encrypt(key, to, passphrase):
    """Write the key of a file into another one, with a passphrase."""
    command = ["openssl", "pkcs8", "-topk8", "-in", key, "-out", to, "-passout", f"pass:{passphrase}"]
    subprocess.run(command, check=True, capture_output=True)
    return to


@pytest.fixture
def settings(authority):
    return of(authority)


def of(folder, **changes):
    """Settings of a client with the files of a folder."""
    files = f"tls_ca={folder / 'ca.pem'}&tls_cert={folder / 'client.pem'}"
    return replace(load(f"cassandra://{HOST}/k?connect_timeout=2&{files}", environ={}), **changes)


@contextmanager
def node(folder, *, wants=True, talk=None):
    """A port that speaks TLS with `node.pem`, and notes whose certificate each client has.

    wants: a client's certificate. talk: speak this with a client instead, not TLS.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=folder / "ca.pem")
    context.load_cert_chain(folder / "node.pem")
    context.verify_mode = ssl.CERT_REQUIRED if wants else ssl.CERT_NONE
    seen = []

    def serve(door):
        while True:
            try:
                plain, _ = door.accept()
            except OSError:
                return
            with plain:
                try:
                    if talk is not None:
                        talk(plain)
                        continue
                    with context.wrap_socket(plain, server_side=True) as connection:
                        seen.append((connection.getpeercert() or {}).get("serialNumber"))
                        connection.sendall(connection.recv(9))
                except OSError:
                    continue

    with socket.create_server((HOST, 0)) as door:
        thread = threading.Thread(target=serve, args=(door,), daemon=True)
        thread.start()
        yield door.getsockname()[1], seen
        door.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def said(settings, folder, **options):
    with node(folder, **options) as (port, _):
        return tls.wrong(settings, HOST, port)


# ── What is wrong with a node ──


def test_nothing_is_wrong_with_what_fits(authority, settings):
    assert said(settings, authority) is None
    assert said(replace(settings, tls_name="cassandra.example"), authority) is None


def test_a_node_that_is_not_there_is_not_a_matter_of_tls(settings):
    with socket.create_server((HOST, 0)) as door:
        port = door.getsockname()[1]
    assert tls.wrong(settings, HOST, port) is None


def test_another_authority(authority, other, settings):
    assert f"not signed by an authority of {authority / 'ca.pem'}" in said(settings, other, wants=False)
    assert "not signed by an authority that this system knows; tls_ca names others" in said(
        replace(settings, tls_ca=None), other, wants=False
    )
    assert said(replace(settings, tls_ca=None, tls_verify="none"), authority) is None


@pytest.mark.parametrize("name", ["other.example", "127.0.0.2"])
def test_another_name(authority, settings, name):
    wrong = replace(settings, tls_name=name)
    assert f"does not list {name!r} (tls_name)" in said(wrong, authority)
    assert said(replace(settings, tls_verify="ca"), authority) is None


def test_a_certificate_without_the_address(tmp_path):
    certificates.make_authority(tmp_path)
    certificates.issue(tmp_path, tmp_path / "node.pem", "node", ("DNS:cassandra.example",))
    assert "does not list the address of the node. Set tls_name" in said(of(tmp_path), tmp_path)
    assert said(of(tmp_path, tls_name="cassandra.example"), tmp_path) is None


@pytest.mark.parametrize(("year", "text"), [(2001, "has expired. Renew it"), (2090, "is not valid yet. Set")])
def test_a_certificate_of_another_time(tmp_path, year, text):
    make(tmp_path)
    reissue(tmp_path, year)
    assert text in said(of(tmp_path), tmp_path)


def test_until_when_certificates_are_valid(tmp_path, settings):
    """Of a node that is reached, and the client's own."""
    make(tmp_path)
    own = of(tmp_path)
    reissue(tmp_path, THIS_YEAR, THIS_YEAR + 1)
    with node(tmp_path) as (port, _):
        assert tls.validity(own, HOST, port).until == datetime(THIS_YEAR + 1, 12, 31, tzinfo=UTC)
        assert tls.validity(settings, HOST, port) is None
        assert tls.validity(replace(own, tls_verify="none"), HOST, port) is None
    assert tls.validity(own, HOST, port) is None
    since, until = tls.own_validity(own)
    assert timedelta(days=3600) < until - since < timedelta(days=3700)
    assert tls.own_validity(replace(own, tls_cert=None)) is None


def reissue(folder, year, last=None):
    """Sign the node's key anew, for some years: `openssl req` cannot date certificates, `openssl ca` can."""
    (folder / "index.txt").touch()
    (folder / "ca.cnf").write_text(
        "[a]\ndatabase = index.txt\nnew_certs_dir = .\ndefault_md = sha256\npolicy = p\nrand_serial = yes\n"
        f"x509_extensions = e\n[p]\ncommonName = supplied\n[e]\nsubjectAltName = IP:{HOST}\n"
    )
    request = "req -new -key node.pem -subj /CN=node -out node.csr"
    sign = "ca -batch -notext -config ca.cnf -name a -cert ca.pem -keyfile ca.key -in node.csr -out node.crt"
    for command in (request, f"{sign} -startdate {year}0101000000Z -enddate {last or year}1231000000Z"):
        subprocess.run(["openssl", *command.split()], check=True, capture_output=True, cwd=folder)
    key, found, _ = (folder / "node.pem").read_text().partition("-----BEGIN CERT")
    assert found
    (folder / "node.pem").write_text(key + (folder / "node.crt").read_text())


def test_a_node_that_wants_a_certificate(authority, other, settings):
    """A client without one is told so; one with a certificate of another authority that it is refused."""
    assert "want a certificate of this client" in said(replace(settings, tls_cert=None), authority)
    stranger = replace(settings, tls_cert=other / "client.pem")
    assert "refused this client" in said(stranger, authority)
    assert "Check tls_cert" in said(stranger, authority)


def test_a_node_that_hangs_up_before_it_is_asked_has_said_why(authority, other, settings, monkeypatch):
    def hung_up(*_):
        raise ssl.SSLEOFError(ssl.SSL_ERROR_EOF, "EOF occurred in violation of protocol")

    monkeypatch.setattr(ssl.SSLSocket, "sendall", hung_up)
    assert "certificate required" in said(replace(settings, tls_cert=None), authority)
    assert "unknown ca" in said(replace(settings, tls_cert=other / "client.pem"), authority)


@pytest.mark.parametrize(
    "talk",
    [
        lambda plain: plain.sendall(b"\x85\0\0\0\0\0\0\0\x04\0\0\0\x0a"),
        lambda plain: plain.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
    ],
    ids=["frame", "http"],
)
def test_a_node_that_speaks_no_tls(authority, settings, talk):
    assert "It speaks no TLS" in said(settings, authority, talk=talk)


@pytest.mark.parametrize(
    "talk",
    [
        lambda _: None,
        lambda plain: plain.recv(1),
        lambda plain: plain.recv(1 << 16) and plain.recv(1),
    ],
    ids=["hangs up", "resets", "hangs"],
)
def test_a_node_that_takes_no_connection_more_or_hangs_is_not_a_matter_of_tls(authority, settings, talk):
    """At its limit of connections it hangs up on everybody; nobody is to switch TLS off for that."""
    assert said(settings, authority, talk=talk) is None


def test_a_client_that_speaks_no_tls(authority):
    plain = load(f"cassandra://{HOST}/k?connect_timeout=2", environ={})
    assert "It speaks TLS. Add" in said(plain, authority, wants=False)
    assert said(plain, authority, talk=lambda it: it.recv(1)) is None


# ── Files ──


@pytest.mark.parametrize("name", ["tls_ca", "tls_cert", "tls_key", "tls_passphrase_file"])
def test_a_file_that_cannot_be_read_is_named(tmp_path, settings, name):
    for path, why in (
        (tmp_path / "none", "No such file"),
        (tmp_path, "directory"),
        (tmp_path / "a\0b", "null"),
    ):
        with pytest.raises(ConfigError, match=rf"(?s){name}: .*cannot be read: .*{why}"):
            tls.Context(replace(settings, **{name: path}))


def test_a_file_that_holds_something_else_is_named(tmp_path, authority, settings):
    text = tmp_path / "text.pem"
    text.write_text("certainly not")
    with pytest.raises(ConfigError, match=r"tls_ca: .*text.pem holds no certificates"):
        tls.Context(replace(settings, tls_ca=text))
    with pytest.raises(ConfigError, match=r"tls_cert, tls_key: no certificate in .*, or no key in .*text"):
        tls.Context(replace(settings, tls_key=text))
    for one_file in (text, authority / "ca.pem"):  # named once
        with pytest.raises(ConfigError, match=rf"^tls_cert: {one_file} lacks a certificate or its key, in "):
            tls.Context(replace(settings, tls_cert=one_file))


def test_a_key_of_another_certificate(other, settings):
    with pytest.raises(ConfigError, match="is not the key of the certificate"):
        tls.Context(replace(settings, tls_key=other / "client.pem"))


def test_a_passphrase(tmp_path, authority, settings):
    """From a file or as it is; without one, nobody is asked on the terminal."""
    locked = replace(settings, tls_key=encrypt(authority / "client.pem", tmp_path / "key", "hush é"))
    secret = tmp_path / "secret"
    secret.write_text("hush é\n", encoding="utf-8")
    for given in ({"tls_passphrase": "hush é"}, {"tls_passphrase_file": secret}):
        assert said(replace(locked, **given), authority) is None
    with pytest.raises(ConfigError, match="Give it in the variable CQUEUE_TLS_PASSPHRASE"):
        tls.Context(locked)
    secret.write_text("")
    for given in (
        {"tls_passphrase": "hushhush"},
        {"tls_passphrase": "hush" * 1000},
        {"tls_passphrase_file": secret},
    ):
        with pytest.raises(ConfigError, match="tls_passphrase: it does not open") as raised:
            tls.Context(replace(locked, **given))
        assert "hush" not in str(raised.value)


# ── Renewal ──


def connect(context, port):
    with (
        socket.create_connection((HOST, port), 5) as plain,
        context.wrap_socket(plain, server_hostname=HOST) as connection,
    ):
        connection.sendall(b"123456789")
        return connection.recv(9)


def serial(path):
    text = subprocess.check_output(["openssl", "x509", "-in", path, "-noout", "-serial"], text=True)
    return text.strip().removeprefix("serial=")


def test_a_renewed_certificate_is_used_by_the_next_connection(tmp_path, caplog):
    caplog.set_level("INFO")
    folder, client = make(tmp_path), tmp_path / "client.pem"
    context = tls.Context(of(folder))
    with node(folder) as (port, seen):
        first, good = serial(client), client.read_text()
        connect(context, port)
        connect(context, port)
        client.write_text(good[:100])  # half written
        connect(context, port)
        connect(context, port)
        certificates.issue(folder, client, "renewed")
        connect(context, port)
        until(lambda: len(seen) == 5)
    assert seen == [first] * 4 + [serial(client)]
    assert serial(client) != first
    events = [line.partition("event=")[2].split()[0] for line in caplog.messages if "tls_files" in line]
    assert [event.strip("'") for event in events] == ["tls_files_unusable", "tls_files_renewed"]


def test_an_authority_that_was_taken_out_is_trusted_no_more(tmp_path, other):
    """Reading more authorities into a context of OpenSSL would keep the former ones."""
    folder = make(tmp_path)
    context = tls.Context(of(folder))
    with node(folder) as (port, _):
        connect(context, port)
        (folder / "ca.pem").write_bytes((other / "ca.pem").read_bytes())
        with pytest.raises(ssl.SSLCertVerificationError):
            connect(context, port)
