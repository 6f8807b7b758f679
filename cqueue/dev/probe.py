"""Ask a node whether it answers CQL, by the protocol itself (version 4) on one short connection.

Not by the log: it says "listening" before and after other things that matter. Not by the driver: it
keeps threads and reconnects, where a poll of ten times a second wants one quick answer.
"""

from __future__ import annotations

import socket
import ssl
import struct
from dataclasses import dataclass
from pathlib import Path

_VERSION = 4
_STARTUP, _READY, _AUTHENTICATE, _OPTIONS, _SUPPORTED, _QUERY, _RESULT = 1, 2, 3, 5, 6, 7, 8
_AUTH_RESPONSE, _AUTH_SUCCESS = 15, 16
_HEADER = struct.Struct(">BBhBi")
# The body of a startup: a map of one name and its value, each text behind its length.
_CQL_VERSION = struct.pack(">HH11sH5s", 1, 11, b"CQL_VERSION", 5, b"3.0.0")
_LOCAL_TIMEOUT_SECONDS = 1.0
_RING_TIMEOUT_SECONDS = 3.0
_ONE = 1

_WHO = "SELECT cluster_name FROM system.local"
# Nobody writes to this table, so the scan crosses the whole ring and returns nothing. The keyspace has
# three replicas by default.
_RING = "SELECT host_id FROM system_distributed.view_build_status"
_RING_REPLICAS = 3

# A table of a few bytes answers in far less; anything longer is no answer to these questions.
_MAX_BODY = 1 << 20


class _NoAnswerError(Exception):
    """The program that listens there does not answer as Cassandra does."""


@dataclass(frozen=True, slots=True)
class Node:
    """Where a node listens, and how it lets a client in.

    tls: files with the certificate to trust, and with this client's. login: user and password.
    """

    address: str
    port: int
    tls: tuple[Path, Path] | None = None
    login: tuple[str, str] | None = None


def answers(node: Node, cluster_name: str) -> bool:
    """True if a node of the cluster of that name answers CQL there; a stranger's does not count."""
    return _query(node, _WHO, consistency=_ONE, expect=cluster_name)


def sees_ring(node: Node, nodes: int) -> bool:
    """True if the node there finds `nodes` nodes alive, as a read from all replicas proves."""
    # ONE, TWO and THREE are the consistency levels 1, 2 and 3.
    return _query(node, _RING, consistency=min(nodes, _RING_REPLICAS), expect="")


def _query(node: Node, text: str, *, consistency: int, expect: str) -> bool:
    timeout = _LOCAL_TIMEOUT_SECONDS if consistency == _ONE else _RING_TIMEOUT_SECONDS
    query = text.encode()
    body = struct.pack(">i", len(query)) + query + struct.pack(">HB", consistency, 0)
    try:
        with (
            socket.create_connection((node.address, node.port), timeout=timeout) as plain,
            _encrypted(plain, node) as connection,
        ):
            _ask(connection, _OPTIONS, b"", _SUPPORTED)
            _log_in(connection, node.login)
            return expect.encode() in _ask(connection, _QUERY, body, _RESULT)
    except (OSError, _NoAnswerError):
        return False


def _encrypted(plain: socket.socket, node: Node) -> socket.socket:
    if node.tls is None:
        return plain
    authority, client = node.tls
    context = ssl.create_default_context(cafile=authority)
    context.load_cert_chain(client)
    return context.wrap_socket(plain, server_hostname=node.address)


def _log_in(connection: socket.socket, login: tuple[str, str] | None) -> None:
    if login is None:
        _ask(connection, _STARTUP, _CQL_VERSION, _READY)
        return
    _ask(connection, _STARTUP, _CQL_VERSION, _AUTHENTICATE)
    token = "\0{}\0{}".format(*login).encode()
    _ask(connection, _AUTH_RESPONSE, struct.pack(">i", len(token)) + token, _AUTH_SUCCESS)


def _ask(connection: socket.socket, opcode: int, body: bytes, expected: int) -> bytes:
    connection.sendall(_HEADER.pack(_VERSION, 0, 0, opcode, len(body)) + body)
    _version, _flags, _stream, answer, length = _HEADER.unpack(_receive(connection, _HEADER.size))
    if answer != expected or not 0 <= length <= _MAX_BODY:
        raise _NoAnswerError
    return _receive(connection, length)


def _receive(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        piece = connection.recv(size - len(received))
        if not piece:
            raise _NoAnswerError
        received += piece
    return received
