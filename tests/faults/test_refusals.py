"""What Cassandra refuses for good, on real nodes: grants, guardrails, columns that are gone.

Each is told at once, as `Refused`, with what an operator has to do; nothing is stored; and what was running
goes on by itself once that is done.
"""

import json
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from contextlib import contextmanager
from datetime import timedelta
from unittest import mock

import pytest
from cassandra.cluster import Session
from cassandra.query import BatchStatement, BoundStatement

import cqueue
from cqueue.store.operations import CreateQueue, QueueRow, ReadQueue
from tests.acceptance.daemons import Site
from tests.faults.guarded import OPERATOR, guarded_node
from tests.fix_dispatcher import until

pytestmark = [
    pytest.mark.cassandra,
    pytest.mark.fault,
    pytest.mark.timeout(300),
]

MESSAGE = 3  # `kind` of a message's row
MOST = 3
"""How many statements of one text a call has refused at most, each for another row: a send registers its wide
row and its epoch, a receive reads each wide row. Repeats would be five of each."""


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    with guarded_node(tmp_path_factory.mktemp("guarded")) as node:
        yield node


@pytest.fixture
def keyspace(node):
    return node.keyspace()


@pytest.fixture
def operator(node, keyspace):
    with cqueue.connect(node.url(OPERATOR, keyspace)) as client:
        yield client


def refused(call, *said, error=cqueue.Refused):
    """Calls, and checks that it is refused at once with these words: nothing is asked again in vain."""
    with failures() as failed, pytest.raises(cqueue.Refused) as caught:
        call()
    unprepared, sent = failed()
    assert [each for each, count in Counter(sent).items() if count > 1] == []
    counts = Counter([*unprepared, *(text for text, _ in sent)])
    assert 1 <= max(counts.values()) <= MOST, counts
    assert type(caught.value) is error
    for words in said:
        assert words in str(caught.value)


@contextmanager
def failures():
    """Gives a function that tells what has failed of this thread: texts to prepare, texts with values."""
    prepare, execute_async, own = Session.prepare, Session.execute_async, threading.get_ident()
    unprepared, sent = [], []

    def noted_prepare(session, query, *args, **options):
        try:
            return prepare(session, query, *args, **options)
        except Exception:
            if threading.get_ident() == own:  # and not on the doorbell's thread
                unprepared.append(query)
            raise

    def noted_execute(session, statement, *args, **options):
        future = execute_async(session, statement, *args, **options)
        if threading.get_ident() == own:
            sent.append((text_and_values(statement), future))
        return future

    with (
        mock.patch.object(Session, "prepare", noted_prepare),
        mock.patch.object(Session, "execute_async", noted_execute),
    ):
        yield lambda: (unprepared, [asked for asked, future in sent if has_failed(future)])


def has_failed(future):
    try:
        future.result()
    except Exception:  # noqa: BLE001 - whatever the driver makes of it
        return True
    return False


def text_and_values(statement):
    if isinstance(statement, BoundStatement):
        return statement.prepared_statement.query_string, tuple(statement.values)
    if isinstance(statement, BatchStatement):
        return "batch", tuple(map(str, statement._statements_and_parameters))
    return str(statement), ()


# ── Grants ──


@pytest.mark.quick
def test_a_missing_grant_is_refused_with_what_to_grant(node, keyspace, operator):
    """Nothing was stored or changed by any call, and after the grant the same objects work."""
    queue = operator.create_queue("mail")
    role = node.role(keyspace, "SELECT", "MODIFY")
    with cqueue.connect(node.url(f"{role}:secret", keyspace)) as client:
        theirs = client.queue("mail")
        first, second = theirs.send(b"first"), theirs.send(b"second")
        consumer = theirs.consumer()
        held = consumer.receive(1, wait=seconds(10))
        node.run(f"REVOKE MODIFY ON KEYSPACE {keyspace} FROM {role}")
        grant = f"GRANT MODIFY ON table {keyspace}.messages TO {role}"
        refused(lambda: theirs.send(b"third"), grant)
        refused(lambda: consumer.receive(1, wait=seconds(3600)), grant)
        refused(held[0].ack, grant)
        refused(held[0].nack, grant)
        refused(lambda: client.create_queue("other"), f"GRANT MODIFY ON table {keyspace}.queues TO {role}")
        assert queue.stats(exact=True).live == 2
        assert {queue.find(first) is None, queue.find(second) is None} == {False}
        node.run(f"GRANT MODIFY ON KEYSPACE {keyspace} TO {role}")
        held[0].ack()
        (other,) = consumer.receive(1, wait=seconds(10))
        other.ack()
        consumer.close()
    assert queue.stats(exact=True).live == 0


def test_who_may_not_read_is_told_so_and_not_that_the_schema_is_missing(node, keyspace, operator):
    """At connect and later; a role that is dropped under an open connection is refused as well."""
    operator.create_queue("mail")
    role = node.role(keyspace)
    url = node.url(f"{role}:secret", keyspace)
    select = f"GRANT SELECT ON table {keyspace}."
    refused(lambda: cqueue.connect(url), select)
    node.run(
        f"GRANT SELECT ON KEYSPACE {keyspace} TO {role}", f"GRANT MODIFY ON KEYSPACE {keyspace} TO {role}"
    )
    with cqueue.connect(url) as client:
        client.queue("mail").send(b"x")
        consumer = client.queue("mail").consumer()
        node.run(f"REVOKE SELECT ON KEYSPACE {keyspace} FROM {role}")  # noqa: S608 - no query at all
        refused(lambda: consumer.receive(1, wait=seconds(3600)), select)
        node.run(f"DROP ROLE {role}")
        refused(lambda: client.queue("mail").send(b"y"), f"to the role {role}")
        consumer.close()


@pytest.mark.quick
def test_a_revoked_grant_makes_a_daemon_unready_and_it_recovers_by_itself(node, keyspace, tmp_path):
    """One queue that cannot be claimed from is enough, and others are served meanwhile.

    The daemon logs it once, as an error with what to do; it stays alive, and needs no restart.
    """
    role = node.role(keyspace, "SELECT", "MODIFY")
    site = Site(tmp_path, node.url(OPERATOR, keyspace))
    try:
        daemon = site.start("--health-port", 0, url=node.url(f"{role}:secret", keyspace))
        port = daemon.until("health_listening")["port"]
        daemon.until("daemon_ready")
        site.wait(lambda: probe(port, "readyz")[0] == 200)
        node.run(f"REVOKE MODIFY ON KEYSPACE {keyspace} FROM {role}")
        site.send("quick", 3)
        _, said = site.wait(lambda: (found := probe(port, "readyz"))[0] == 503 and found, 60)
        assert "queue quick cannot be received from: Refused: " in said["reason"]
        assert f"GRANT MODIFY ON table {keyspace}.messages TO {role}" in said["reason"]
        assert "slow" not in said["reason"]  # nothing is due there, so there is nothing that could be refused
        assert (probe(port, "livez")[0], said["alive"]) == (200, True)
        polls_s = time.monotonic() + 8
        site.wait(lambda: time.monotonic() > polls_s)  # several polls, none of which is told of again
        told = [line for line in daemon.lines("receive_failed") if line["queue"] == "quick"]
        assert [(line["level"], line["error"].partition(":")[0]) for line in told] == [("error", "Refused")]
        node.run(f"GRANT MODIFY ON KEYSPACE {keyspace} TO {role}")
        site.wait(lambda: site.numbers("quick") == {0, 1, 2}, 60)
        site.wait(lambda: probe(port, "readyz")[0] == 200)
        site.wait(lambda: site.live("quick") == 0)
        daemon.signal()
        assert daemon.end() == 0
    finally:
        site.close()


def test_a_daemon_without_grants_waits_for_them(node, keyspace, tmp_path):
    """It is told once, as an error, and starts its work when it may."""
    role = node.role(keyspace)
    site = Site(tmp_path, node.url(OPERATOR, keyspace))
    try:
        daemon = site.start("--health-port", 0, url=node.url(f"{role}:secret", keyspace))
        port = daemon.until("health_listening")["port"]
        site.send("quick", 1)
        line = daemon.until("daemon_not_connected")
        assert line["level"] == "error"
        assert f"GRANT SELECT ON table {keyspace}.deployment TO {role}" in line["error"]
        status, said = probe(port, "readyz")
        assert (status, said["reason"].startswith("starting: Refused: ")) == (503, True)
        assert probe(port, "livez")[0] == 200
        node.run(
            f"GRANT SELECT ON KEYSPACE {keyspace} TO {role}", f"GRANT MODIFY ON KEYSPACE {keyspace} TO {role}"
        )
        site.wait(lambda: site.numbers("quick") == {0}, 60)
        assert len(daemon.lines("daemon_not_connected")) == 1
        daemon.signal()
        assert daemon.end() == 0
    finally:
        site.close()


def test_a_role_that_may_not_log_in_any_more_is_told_so_and_is_let_in_again(node, keyspace, operator):
    """Connections that stand go on; those that are made anew are refused, until the role may log in again."""
    operator.create_queue("mail")
    role = node.role(keyspace, "SELECT", "MODIFY")
    with cqueue.connect(node.url(f"{role}:secret", keyspace)) as client:
        queue = client.queue("mail")
        queue.send(b"before")
        node.run(f"ALTER ROLE {role} WITH LOGIN = false")
        node.start()
        until(lambda: error_of(lambda: queue.send(b"x")) is cqueue.Refused, 60)
        refused(lambda: queue.send(b"x"), "let the role log in", role)
        node.run(f"ALTER ROLE {role} WITH LOGIN = true")
        until(lambda: error_of(lambda: queue.send(b"after")) is None, 60)


def error_of(call):
    """The class of what the call raises."""
    try:
        call()
    except cqueue.CqueueError as exc:
        return type(exc)
    return None


# ── Guardrails ──


def test_a_guardrail_is_named_and_nothing_is_stored(node, keyspace, operator):
    """Whichever kind of statement it refuses: a read at connect, a write, a conditional mutation."""
    queue = operator.create_queue("mail")
    role = node.role(keyspace, "SELECT", "MODIFY")
    url = node.url(f"{role}:secret", keyspace)
    node.start(column_value_size_fail_threshold="32KiB", column_value_size_warn_threshold="16KiB")
    with cqueue.connect(url) as client:
        name, size = "The guardrail column_value_size", "exceeds the failure threshold of 32768"
        refused(lambda: client.queue("mail").send(b"x" * 40_000), name, size)
        assert client.queue("mail").send(b"small")
        row = QueueRow("wide", "1", 1, "active", "x" * 40_000, 3_600_000, 0, 0)
        refused(lambda: client._driver.ask(CreateQueue(row)), name, size)
        assert client._driver.ask(ReadQueue("wide")) is None
    node.start(page_size_fail_threshold=10, page_size_warn_threshold=5)
    refused(lambda: cqueue.connect(url), "The guardrail page_size", "exceeds fail threshold of 10")
    with cqueue.connect(node.url(OPERATOR, keyspace)) as client:
        assert client.queue("mail").stats(exact=True).live == 1
    node.start()
    with cqueue.connect(url) as client:
        assert client.queue(queue.name).send(b"x" * 40_000)


# ── Columns ──


@pytest.mark.quick
def test_a_column_that_is_gone_is_a_missing_schema_for_everybody(new_keyspace, connection):
    """A client that runs already is told as well, at once, and nothing is stored."""
    own = new_keyspace()
    with cqueue.connect(own.url) as client, cqueue.connect(own.url) as other:
        queue = client.create_queue("mail")
        queue.send(b"before")
        consumer = other.queue("mail").consumer()  # of a process that has not heard of the message
        connection.session.execute(f"ALTER TABLE {own.name}.messages DROP body", timeout=60)
        calls = (
            lambda: queue.send(b"after"),
            lambda: queue.send(b"after", delay=seconds(60)),
            lambda: consumer.receive(1, wait=seconds(3600)),
        )
        for call in calls:
            refused(call, "schema apply", "body", error=cqueue.SchemaMismatch)
        rows = connection.session.execute(f"SELECT kind FROM {own.name}.messages", timeout=60)  # noqa: S608
        assert [row.kind for row in rows].count(MESSAGE) == 1
        consumer.close()


def seconds(count):
    return timedelta(seconds=count)


def probe(port, path):
    """Status and body of a probe; (0, None) while nobody answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code, json.load(exc)
    except OSError:
        return 0, None
