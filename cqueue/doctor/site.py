"""What the checks look at: the nodes, the keyspace and a client, each read when a check first asks for it."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, TypeVar

from cassandra import ConsistencyLevel
from cassandra.cluster import ExecutionProfile
from cassandra.connection import ConnectionShutdown
from cassandra.policies import FallthroughRetryPolicy, RoundRobinPolicy
from cassandra.query import SimpleStatement

from cqueue.doctor import statements as cql
from cqueue.doctor.finding import Finding, brief, not_checked
from cqueue.doctor.node_values import NodeSettings
from cqueue.errors import CqueueError, Unavailable
from cqueue.runtime.sequences import grouped
from cqueue.schema import Deployment, State, read_state
from cqueue.schema.deployment import read_deployment
from cqueue.store import outcome
from cqueue.store.connection import DRIVER_ERRORS, Connection, no_keyspace, open_session
from cqueue.store.statements import Kind

if TYPE_CHECKING:
    from cassandra.pool import Host

    from cqueue.client import Client
    from cqueue.settings import Settings

T = TypeVar("T")

EACH_NODE: Final = "cqueue-doctor"
"""Execution profile that reaches the nodes of all data centres; the others stay within `local_dc`."""
NODE_SHARE: Final = 0.5
"""Part of a check's time that one node may take to answer: a check may have to ask twice."""
READ_TRIES: Final = 2
"""Nodes through which a read is tried, one after the other: the first may hang."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of one node.

    Attributes:
        node: its address.
        dc: its data centre.
        rows: of the answer; empty if there is an error.
        error: why there is no answer.
        sent_ns, received_ns: when the question left and the answer arrived, in ns of the monotonic clock.
    """

    node: str
    dc: str
    rows: list[Any]
    error: CqueueError | None = None
    sent_ns: int = 0
    received_ns: int = 0


@dataclass(frozen=True, slots=True)
class Replication:
    """Copies of a keyspace by data centre, the class that places them, and whether the commit log is used."""

    strategy: str
    copies: dict[str, int]
    durable: bool = True


class Site:
    """What the checks look at. Thread-safe; what several checks read is read once.

    Args:
        settings: the client's.
        connection: opened without a keyspace, which need not exist.
        make_client: connects a client.
        limit_s: seconds that one check may take.
    """

    def __init__(
        self, settings: Settings, connection: Connection, make_client: Callable[[], Client], *, limit_s: float
    ) -> None:
        self.settings = settings
        self.connection = connection
        self.limit_s = limit_s
        self._make_client = make_client
        self._known: dict[str, Any] = {}
        self._silent: dict[str, Answer] = {}
        self._locks: defaultdict[str, Lock] = defaultdict(Lock)

    @property
    def node_limit_s(self) -> float:
        """Seconds that one node may take to answer."""
        return self.limit_s * NODE_SHARE

    def wall_us(self) -> int:
        """Return this machine's wall clock in µs since 1970."""
        return time.time_ns() // 1000

    def client(self) -> Client:
        """Return the client of all checks; the first call connects it.

        Raises:
            CqueueError: as `connect`.
        """
        return self._once("client", self._make_client)

    def replication(self) -> Replication:
        """Return how the keyspace is replicated.

        Raises:
            SchemaMismatch: there is no such keyspace.
            CqueueError: it cannot be read.
        """
        return self._once("replication", self._read_replication)

    def deployment(self) -> Deployment | None:
        """Return the keyspace's deployment row, or None if there is none.

        Raises:
            CqueueError: it cannot be read.
        """
        session, keyspace = self.connection.session, self.settings.keyspace
        return self._once("deployment", lambda: read_deployment(session, keyspace))

    def state(self) -> State:
        """Return the keyspace as `cqueue schema` sees it.

        Raises:
            CqueueError: it cannot be read.
        """
        return self._once("state", lambda: read_state(self.connection, self.settings.keyspace))

    def node_settings(self) -> tuple[NodeSettings, list[Answer]]:
        """Return the settings of each node that told them, and the answers of the others."""
        return self._once("settings", self._read_settings)

    def versions(self) -> list[Answer]:
        """Return each node's release and version of the schema."""
        return self._once("versions", lambda: self.ask_each(cql.SELECT_VERSIONS))

    def read(self, statement: str, *values: Any) -> list[Any]:
        """Run one read at LOCAL_ONE through a node near by, or through another one. Return its rows.

        Raises:
            CqueueError: it failed.
        """
        question = SimpleStatement(statement, consistency_level=ConsistencyLevel.LOCAL_ONE)
        near = sorted(self.hosts(), key=lambda host: host.datacenter != self.settings.local_dc)
        hosts = [host for host in near if address_of(host) not in self._silent]
        error: Exception = Unavailable("no node answers")
        for host in hosts[:READ_TRIES]:
            try:
                return list(
                    self.connection.session.execute(
                        question,
                        values or None,
                        timeout=self.node_limit_s / READ_TRIES,
                        execution_profile=EACH_NODE,
                        host=host,
                    )
                )
            except DRIVER_ERRORS as exc:
                error = exc
        raise error if isinstance(error, CqueueError) else outcome.error(error, Kind.READ)

    def ask_each(self, statement: str) -> list[Answer]:
        """Ask every node of every data centre at the same time. Return an answer for each, in their order.

        A node that leaves the cluster meanwhile, and does not answer, is left out.
        """
        arrived: SimpleQueue[Answer | Host] = SimpleQueue()
        hosts = {address_of(host): host for host in self.hosts()}
        # A node that was waited for in vain is not waited for again; one that has left is no node any more.
        answers = {node: answer for node, answer in self._silent.items() if node in hosts}
        end_s = time.monotonic() + self.node_limit_s
        for node, host in hosts.items():
            if node not in answers:
                self._send(statement, host, arrived)
        while len(answers) < len(hosts):
            try:
                answer = arrived.get(timeout=max(0.0, end_s - time.monotonic()))
            except Empty:
                break
            if isinstance(answer, Answer):
                answers[answer.node] = answer
            else:
                self._send(statement, answer, arrived, again=False)
        for node, host in hosts.items():
            if node not in answers:
                error = Unavailable(f"no answer within {self.node_limit_s:g} s")
                answers[node] = self._silent[node] = Answer(node, str(host.datacenter), [], error)
        members = {address_of(host) for host in self.hosts()}
        return [answers[node] for node in hosts if answers[node].error is None or node in members]

    def hosts(self) -> list[Host]:
        """Return all nodes of the cluster, in the order of their addresses."""
        return sorted(self.connection.cluster.metadata.all_hosts(), key=address_of)

    def close(self) -> None:
        """Close what was opened; checks that still run fail."""
        client = self._known.get("client")
        if client is not None:
            with suppress(CqueueError):
                client.close()
        self.connection.close()

    def _once(self, name: str, make: Callable[[], T]) -> T:
        with self._locks[name]:
            if name not in self._known:
                self._known[name] = make()
            found: T = self._known[name]
            return found

    def _read_replication(self) -> Replication:
        rows = self.read(cql.SELECT_KEYSPACE, self.settings.keyspace)
        if not rows:
            raise no_keyspace(self.settings)
        copies = dict(rows[0].replication)
        strategy = copies.pop("class").rpartition(".")[2]
        numbers = {dc: int(number.partition("/")[0]) for dc, number in copies.items()}
        return Replication(strategy, numbers, rows[0].durable_writes)

    def _read_settings(self) -> tuple[NodeSettings, list[Answer]]:
        answers = self.ask_each(cql.SELECT_SETTINGS)
        told = {
            answer.node: {row.name: None if row.value in {None, "null"} else row.value for row in answer.rows}
            for answer in answers
            if answer.error is None
        }
        return told, [answer for answer in answers if answer.error is not None]

    def _send(
        self, statement: str, host: Host, arrived: SimpleQueue[Answer | Host], *, again: bool = True
    ) -> None:
        """Ask a node; what arrives is its answer, or the node itself if it is to be asked again."""
        node, dc, sent_ns = address_of(host), str(host.datacenter), time.monotonic_ns()

        def took(rows: Any) -> None:
            arrived.put(Answer(node, dc, list(rows or ()), None, sent_ns, time.monotonic_ns()))

        def failed(exc: Exception) -> None:
            # The driver closes connections of its own as it renews its pools to reach all nodes.
            if again and isinstance(exc, ConnectionShutdown):
                arrived.put(host)
                return
            arrived.put(Answer(node, dc, [], outcome.error(exc, Kind.READ)))

        try:
            future = self.connection.session.execute_async(
                # All rows in one answer: guardrails may forbid pages of the usual size.
                SimpleStatement(statement, fetch_size=None),
                host=host,
                timeout=2 * self.node_limit_s,  # the waiting thread gives up first, and remembers it
                execution_profile=EACH_NODE,
            )
        except DRIVER_ERRORS as exc:
            failed(exc)
            return
        future.add_callbacks(took, failed)


def unanswered(subject: str, answers: Iterable[Answer], what: str = "") -> Iterator[Finding]:
    """Yield a finding for the nodes that did not answer, one for each reason. what: stands before them."""
    failed = [answer for answer in answers if answer.error is not None]
    for why, some in grouped((brief(str(answer.error)), answer.node) for answer in failed).items():
        yield not_checked(subject, f"{what}{', '.join(some)}: {why}")


def address_of(host: Host) -> str:
    """Return a node's address as people know it."""
    return str(host.endpoint.address)


@contextmanager
def open_site(settings: Settings, make_client: Callable[[], Client], *, limit_s: float) -> Iterator[Site]:
    """Connect to the cluster, and to every node of it that can be reached. Close all at the end of the block.

    Raises:
        Unavailable: no node can be reached.
        ConfigError: the settings are no cluster's, or do not fit it; as `open_session`.
    """
    connection = open_session(settings, use_keyspace=False)
    site = Site(settings, connection, make_client, limit_s=limit_s)
    node_limit_s = site.node_limit_s
    profile = ExecutionProfile(
        load_balancing_policy=RoundRobinPolicy(),
        retry_policy=FallthroughRetryPolicy(),
        request_timeout=node_limit_s,
    )
    try:
        with suppress(*DRIVER_ERRORS):  # a node of another data centre that is not reached will not answer
            connection.cluster.add_execution_profile(EACH_NODE, profile, pool_wait_timeout=node_limit_s)
        yield site
    finally:
        site.close()
