"""TLS with a real Cassandra that wants it, and a client's certificate, and a password."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from cassandra.cluster import NoHostAvailable

import cqueue
from cqueue.dev import certificates
from cqueue.settings import load
from cqueue.store.connection import open_session
from tests.faults.guarded import OPERATOR

pytestmark = [pytest.mark.cassandra, pytest.mark.acceptance, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def keyspace(guarded):
    return guarded.keyspace()


@pytest.fixture(scope="module")
def folder(guarded):
    """Where the authority of the node is, and a client's certificate."""
    return guarded.directory / "node1/tls"


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """An authority that the node does not know."""
    folder = tmp_path_factory.mktemp("other")
    certificates.make_authority(folder)
    return folder


@pytest.fixture
def url_of(guarded, keyspace):
    """A function: the URL, with these options."""
    return lambda **options: guarded.url(OPERATOR, keyspace, **options)


def refused(url, text):
    with pytest.raises(cqueue.TlsFailed, match=text) as raised, cqueue.connect(url):
        pass
    assert isinstance(raised.value, cqueue.NotDone)


def test_an_authority_that_is_not_the_nodes(url_of, other):
    refused(url_of(tls_ca=other / "ca.pem"), "not signed by an authority of .*ca.pem")
    refused(url_of(tls_ca=None), "not signed by an authority that this system knows")


def test_the_name_that_the_certificate_lists(url_of):
    refused(url_of(tls_name="cassandra.example"), "does not list 'cassandra.example'")
    with cqueue.connect(url_of(tls_name="localhost")) as client:
        client.create_queue("named").send(b"x")


def test_a_client_without_a_certificate_or_with_a_strange_one(url_of, other):
    refused(url_of(tls_cert=None), "refused this client.*may want a certificate")
    refused(url_of(tls_cert=other / "client.pem"), "refused this client.*Check tls_cert")


def test_one_side_alone_that_encrypts(url_of, cassandra_url):
    refused(url_of(tls_cert=None, tls_ca=None, allow_plaintext_credentials="true"), "It speaks TLS. Add")
    refused(f"{cassandra_url}&tls=true", "It speaks no TLS")


def test_the_command_line_says_it_in_one_line(url_of, other):
    done = subprocess.run(
        [sys.executable, "-m", "cqueue", "stats"],
        env={**os.environ, "CQUEUE_URL": url_of(tls_ca=other / "ca.pem")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert "not signed by an authority" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_key_with_a_passphrase(url_of, folder, tmp_path, monkeypatch):
    """It comes from the environment or a file, never from a URL."""
    key = tmp_path / "client.key"
    subprocess.run(
        ["openssl", "pkcs8", "-topk8", "-in", folder / "client.pem", "-out", key, "-passout", "pass:hush"],
        check=True,
        capture_output=True,
    )
    url = url_of(tls_key=key)
    with pytest.raises(cqueue.ConfigError, match="CQUEUE_TLS_PASSPHRASE"), cqueue.connect(url):
        pass
    monkeypatch.setenv("CQUEUE_TLS_PASSPHRASE", "wrong")
    with pytest.raises(cqueue.ConfigError, match="it does not open"), cqueue.connect(url):
        pass
    monkeypatch.setenv("CQUEUE_TLS_PASSPHRASE", "hush")
    with cqueue.connect(url) as client:
        client.create_queue("locked").send(b"x")
    with pytest.raises(cqueue.ConfigError, match="unknown option"):
        load(f"{url}&tls_passphrase=hush")


def test_new_connections_use_renewed_files(url_of, folder, other, tmp_path):
    """Open connections go on; nothing is restarted."""
    own = tmp_path / "client.pem"
    own.write_bytes((folder / "client.pem").read_bytes())
    with open_session(load(url_of(tls_cert=own))) as connection:
        statement = "SELECT * FROM queues LIMIT 1"
        own.write_bytes((other / "client.pem").read_bytes())
        with pytest.raises(NoHostAvailable):
            connection.cluster.connect()
        connection.session.execute(statement)
        own.write_text("half")
        with pytest.raises(NoHostAvailable):
            connection.cluster.connect()
        certificates.issue(folder, own, "renewed")
        renewed = connection.cluster.connect(connection.session.keyspace)
        renewed.execute(statement)
