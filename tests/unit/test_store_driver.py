"""What the driver does not promise is looked at before it is used, and left if it is gone."""

import ast
import io
import logging
import re
import socket
import struct
import threading
import types
from itertools import islice
from pathlib import Path
from unittest.mock import Mock

import cassandra
import pytest
from cassandra import cluster, connection, metadata, protocol, segment

import cqueue
from cqueue.settings import load
from cqueue.store import connection as connections
from cqueue.store import driver
from cqueue.store.driver import errors, probe, reconnection, schema, sockets, wire
from tests.unit import markdown_pages as markdown

HERE = Path(cqueue.__file__).parent
LIBEV = {sockets.DIRECT_WRITES, sockets.CLEAN_END}
"""Those that need libev."""


def looked(caplog):
    """The driver as it is found now; the lines that were logged of it."""
    caplog.clear()
    with caplog.at_level(logging.WARNING, probe.LOGGER):
        found = driver.look()
    return found, [message for message in caplog.messages if "driver_part_missing" in message]


def test_the_pinned_driver_has_all_parts(caplog):
    """Nothing is slower than it need be, and nothing is logged."""
    found, lines = looked(caplog)
    assert set(driver.PARTS) - LIBEV <= found.parts
    assert sockets.DIRECT_WRITES not in found.parts or (set(driver.PARTS) == found.parts and not lines)


@pytest.mark.parametrize("part", driver.PARTS, ids=lambda part: part.name)
def test_whatever_is_missing_the_part_is_left_and_named(part, monkeypatch, caplog):
    """Each name in turn: no other part goes with it unless it needs that name too, and one line names it."""
    if part not in driver.used().parts:
        pytest.skip("the driver does not have it here")
    for name in part.names:
        find = probe.find

        def without(asked, name=name, find=find):
            if asked == name:
                raise AttributeError(name)
            return find(asked)

        with monkeypatch.context() as patch:
            patch.setattr(probe, "find", without)
            found, lines = looked(caplog)
        lost = [other for other in driver.PARTS if name in other.names]
        assert driver.used().parts - found.parts == set(lost)
        assert len(lines) == len(lost)
        assert all(name in line for line in lines)


class Other(cluster.Cluster.connection_class):
    """A connection on some other event loop, which reads as much as it likes."""

    in_buffer_size = None
    factory = None
    process_io_buffer = None


def reordered(write):
    """As a newer driver might write it: with something before it."""

    def send_body(message, stream, version):
        stream.write(b"?")
        write(message, stream, version)

    return send_body


def shifted(read):
    """As a newer driver might read it: with something before it."""

    def recv_results_metadata(result, stream, user_types):
        stream.read(1)
        read(result, stream, user_types)

    return recv_results_metadata


CHANGES = {
    sockets.LOGINS: (cluster.Cluster, "connection_class", Other),
    sockets.SPLIT_HEADERS: (cluster.Cluster, "connection_class", Other),
    sockets.BUFFERS: (cluster.Cluster, "connection_class", Other),
    sockets.DIRECT_WRITES: (cluster.Cluster, "connection_class", Other),
    sockets.CLEAN_END: (cluster.Cluster, "connection_class", Other),
    wire.RESULTS: (
        protocol.ResultMessage,
        "recv_results_metadata",
        shifted(protocol.ResultMessage.recv_results_metadata),
    ),
    schema.ONE_KEYSPACE: (metadata.Metadata, "refresh", lambda _: None),
    reconnection.MOVED_NODES: (cluster.Cluster, "add_host", lambda _, host: host),
    wire.KNOWN_COLUMNS: (protocol.ExecuteMessage, "send_body", reordered(protocol.ExecuteMessage.send_body)),
    wire.ENCODED_BATCHES: (protocol.BatchMessage, "send_body", reordered(protocol.BatchMessage.send_body)),
    driver.PREPARE_TIME: (cluster.Session, "default_timeout", property(lambda _: 10.0)),
}


@pytest.mark.parametrize("part", CHANGES, ids=lambda part: part.name)
def test_what_does_something_else_is_left(part, monkeypatch, caplog):
    """Names that stand for something else than they did are found out by trying them."""
    monkeypatch.setattr(*CHANGES[part])
    found, lines = looked(caplog)
    assert part not in found.parts
    assert sum(f"part='{part.name}'" in line for line in lines) == 1


def test_each_part_is_tried():
    """A part that is only looked for has nothing that could be tried."""
    assert {*CHANGES, errors.ERRORS} == set(driver.PARTS)


def test_an_error_that_the_driver_does_not_have_is_never_raised():
    """What handles it goes on to be correct: nothing matches it."""
    assert probe.find_or("cassandra.protocol:NoSuchError", errors.NeverRaised) is errors.NeverRaised
    assert len(errors.ERRORS.names) > 10


PROMISED = {
    "cassandra",
    "cassandra.auth",
    "cassandra.cluster",
    "cassandra.connection",  # ConnectionShutdown
    "cassandra.policies",
    "cassandra.pool",  # Host
    "cassandra.query",
    "cassandra.util",
}
OWN = {"_asdict", "_fields", "_make", "_replace"}


def test_nobody_else_uses_what_the_driver_does_not_promise():
    """No module that its documentation does not name, and no private name of anything it makes."""
    users = set()
    for path in set(HERE.rglob("*.py")) - set((HERE / "store" / "driver").rglob("*.py")):
        if "cassandra" not in (text := path.read_text(encoding="utf-8")):
            continue
        tree = ast.parse(text)
        nodes = list(ast.walk(tree))
        imports = [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
        imports += [each.name for node in nodes if isinstance(node, ast.Import) for each in node.names]
        used = {name for name in imports if name.split(".")[0] == "cassandra"}
        assert used <= PROMISED, path
        assert not (used and _foreign(tree)), path
        users |= {path} if used else set()
    assert users


def _foreign(tree):
    """Private attributes that are taken of anything but this module's own objects and classes."""
    made = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    made |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
        and not (isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"})
        and node.attr not in made | OWN
    }


PAGE = markdown.ROOT / "docs" / "explanation" / "driver.md"


def test_the_page_tells_of_each_part():
    """What is lost without it, in the words of the log."""
    text = PAGE.read_text(encoding="utf-8")
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line[:3] == "| `"
    ]
    assert {row[0].strip("`"): row[2] for row in rows} == {part.name: part.instead for part in driver.PARTS}


def patched():
    """The driver's sources with the page's patch, by their names."""
    text = "".join(block.text for block in markdown.blocks(PAGE, "diff"))
    sources = {}
    for file in re.split(r"^--- .*\n", text, flags=re.MULTILINE)[1:]:
        name, rest = re.match(r"\+\+\+ b/(\S+)\n(.*)", file, re.DOTALL).groups()
        source = (Path(cassandra.__file__).parents[1] / name).read_text(encoding="utf-8")
        for hunk in re.split(r"^@@ .*\n", rest, flags=re.MULTILINE)[1:]:
            lines = hunk.splitlines(keepends=True)
            old, new = (
                "".join(line[1:] or "\n" for line in lines if line[0] in kept) for kept in (" -\n", " +\n")
            )
            assert source.count(old) == 1, f"the patch of {name} does not fit:\n{hunk}"
            source = source.replace(old, new)
        sources[name] = source
    return sources


def patched_module(name):
    """A module of the driver with the page's patch."""
    module = types.ModuleType(f"cassandra.patched_{name}")
    exec(compile(patched()[f"cassandra/{name}.py"], f"{name}.py", "exec"), module.__dict__)  # noqa: S102
    return module


def test_the_patch_fits_the_driver_and_does_what_cqueue_does():
    """A patched driver writes the bytes that this library makes of what the driver writes now."""
    compile(patched()["cassandra/cluster.py"], "cluster.py", "exec")
    theirs = patched_module("protocol")

    def encode(module, handler, version, skip):
        message = module.ExecuteMessage(
            b"name", [b"x"], 1, 9, 500, None, 77, skip_meta=skip, result_metadata_id=b"columns"
        )
        return handler.encode_message(message, 3, version, None, False)

    ours, stock = driver.used().protocol_handler, protocol.ProtocolHandler
    assert encode(protocol, ours, 5, skip=True) != encode(protocol, stock, 5, skip=True)
    for version, skip in ((5, True), (5, False), (4, True)):
        assert encode(theirs, theirs.ProtocolHandler, version, skip) == encode(protocol, ours, version, skip)


def receiver(base):
    """A connection without a socket. `arrive` hands it bytes and returns the bodies of the answers so far."""

    class Receiver(base):
        def __init__(self):
            self._io_buffer = connection._ConnectionIOBuffer(self)
            self._enable_checksumming()
            self.bodies = []

        def process_msg(self, _header, body):
            self.bodies.append(body)

        def defunct(self, exc):
            raise exc

        def arrive(self, part):
            self._io_buffer.io_buffer.write(part)
            self.process_io_buffer()
            return self.bodies

    return Receiver()


def segments(bodies, most):
    """Answers as Cassandra sends them, in segments of that many bytes at most."""
    frames = b"".join(struct.pack(">BBHBi", 0x85, 0, 1, 8, len(body)) + body for body in bodies)
    sent = io.BytesIO()
    for at in range(0, len(frames), most):
        segment.SegmentCodec().encode(sent, frames[at : at + most])
    return sent.getvalue()


BODIES = [b"one", b"", bytes(60), b"four"]


@pytest.mark.parametrize("most", [5, 9, 40, 1000])
def test_answers_are_received_wherever_they_are_cut(most):
    """Also within the header of a segment, where the driver loses it; and the page's patch mends that too."""
    sent = segments(BODIES, most)
    ours, mended = driver.used().connection_class, patched_module("connection").Connection
    for cut in range(1, len(sent)):
        for base in (ours, mended):
            one = receiver(base)
            one.arrive(sent[:cut])
            assert one.arrive(sent[cut:]) == BODIES, f"cut at {cut}"
    assert receiver(ours).arrive(sent) == BODIES


def test_the_driver_itself_loses_a_header_that_is_cut():
    """If this fails, the driver has been mended, and `split headers` can go."""
    sent = segments(BODIES, 1000)
    one = receiver(cluster.Cluster.connection_class)
    one.arrive(sent[:3])
    with pytest.raises(connection.CrcMismatchException):
        one.arrive(sent[3:])


def test_nobody_gives_up_a_node():
    """The driver's own policy ends after 64 attempts: an outage of five minutes would be for good."""
    policy = driver.Reconnection(load("cassandra://127.0.0.1/k?local_dc=dc"), *connections.RECONNECT_S)
    pauses = list(islice(policy.new_schedule(), 2000))
    assert len(pauses) == 2000
    assert max(pauses) <= connections.RECONNECT_S[1]


@pytest.mark.parametrize(
    ("here", "elsewhere", "looks"),
    [(True, False, False), (False, False, True), (False, True, True), (None, None, True)],
)
def test_names_are_looked_up_while_no_node_of_the_data_centre_is_up(monkeypatch, here, elsewhere, looks):
    """Nodes of another data centre are not asked, so it does not help that they are there."""
    found = {"moved": ["dead", "known", "127.0.0.1"]}

    def look_up(host, port, **_):
        if host not in found:
            raise socket.gaierror
        return [(None, None, None, "", (address, port)) for address in found[host]]

    class Clustered:
        asked, added, is_shutdown, connect_timeout = (), (), False, 1.0
        metadata = Mock(
            all_hosts=lambda: [Mock(is_up=here, datacenter="dc"), Mock(is_up=elsewhere, datacenter="other")],
            get_host=lambda endpoint: endpoint.address == "known" or None,
        )

        def connection_factory(self, endpoint):
            self.asked += (endpoint.address,)
            if endpoint.address == "dead":
                raise OSError
            return Mock(wait_for_response=lambda *_, **__: Mock(parsed_rows=[("dc", "rack")]))

        def add_host(self, endpoint, datacenter, rack, *, refresh_nodes):
            self.added += ((endpoint.address, endpoint.port, datacenter, rack),)

    policy = driver.Reconnection(load("cassandra://gone,moved:9/k?local_dc=dc"), 0.1, 1.0)
    one = Clustered()
    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    policy.look_up_for(one)

    def look():
        assert next(policy.new_schedule()) > 0
        with policy._looking_up:  # the thread has ended, if there was one
            return one.asked, one.added

    assert look() == ((("dead", "127.0.0.1"), (("127.0.0.1", 9, "dc", "rack"),)) if looks else ((), ()))
    one.is_shutdown, one.asked, one.added = True, (), ()
    assert look() == ((), ())


def test_a_look_up_that_hangs_keeps_nobody(monkeypatch):
    """Neither the driver's threads, which a client that closes waits for, nor another look-up."""
    begun, goes_on = threading.Event(), threading.Event()

    def hang(*_, **__):
        begun.set()
        goes_on.wait(60)
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    policy = driver.Reconnection(load("cassandra://slow/k?local_dc=dc"), 0.1, 1.0)

    class Clustered:
        metadata, is_shutdown = Mock(all_hosts=list), False

    one = Clustered()
    policy.look_up_for(one)
    schedule = policy.new_schedule()
    next(schedule)
    assert begun.wait(60)
    next(schedule)
    goes_on.set()
    with policy._looking_up:
        pass
