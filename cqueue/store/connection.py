"""Opening a session of the Cassandra driver, with everything that the protocol depends on made explicit.

The driver's defaults suit reads that may be retried. Here a conditional mutation that is sent twice answers
"not applied" although it was, so nothing may be repeated below the protocol: no retries, no speculative
execution. Consistency levels are set in every profile, because the driver's own default is LOCAL_ONE.

The driver logs what it does under `cassandra`. That logger has a null handler, so nothing appears unless the
application asks for it, and it is left alone: what matters of it is in the errors raised here.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Any, Final, Self

from cassandra import ConsistencyLevel, DriverException, InvalidRequest, OperationTimedOut, ProtocolVersion
from cassandra.cluster import (
    EXEC_PROFILE_DEFAULT,
    Cluster,
    ExecutionProfile,
    NoHostAvailable,
    Session,
    UnresolvableContactPoints,
)
from cassandra.policies import (
    DCAwareRoundRobinPolicy,
    FallthroughRetryPolicy,
    NoSpeculativeExecutionPolicy,
    RoundRobinPolicy,
    TokenAwarePolicy,
)

from cqueue.errors import ConfigError, CqueueError, Refused, SchemaMismatch, TlsFailed, Unavailable
from cqueue.runtime import tls
from cqueue.runtime.urls import is_loopback
from cqueue.settings import Consistency, SerialConsistency, Settings
from cqueue.store import driver, outcome
from cqueue.store.driver import Login, LoginRefused, OneKeyspace, Reconnection
from cqueue.store.driver.errors import ConnectionBusy, ConnectionException, ErrorMessage
from cqueue.store.statements import Kind

# Reads at serial consistency: they see every conditional mutation that was ever acknowledged, and finish
# one that was left half done.
SERIAL_READ: Final = "cqueue-serial-read"
# Definitions and their bookkeeping: rare, slow, and agreed on by all data centres.
SCHEMA: Final = "cqueue-schema"

SCHEMA_TIMEOUT_S: Final = 60.0
"""Seconds that a schema statement may take: all nodes have to agree on it."""
RECONNECT_S: Final = (0.5, 5.0)
"""Shortest and longest pause in seconds between two attempts to reconnect to a node; far below the driver's
default of 10 minutes, so that a node is used again soon after it is back."""
HEARTBEAT_S: Final = 10.0
"""Seconds between heartbeats of an idle connection, and until one counts as failed: a silent node is noticed
after 20 s."""

# Everything that the driver raises; its classes have no common base.
DRIVER_ERRORS: Final = (
    DriverException,
    NoHostAvailable,
    ConnectionException,
    ConnectionBusy,
    ErrorMessage,
    OSError,
)


@dataclass(frozen=True, slots=True)
class Connection:
    """A cluster and its session. `close` it, or use it as a context manager."""

    cluster: Cluster
    session: Session

    def close(self) -> None:
        """Close all connections and stop the driver's threads. Calling it again does nothing."""
        self.cluster.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_session(settings: Settings, *, use_keyspace: bool = True) -> Connection:
    """Connect, and prove that the data centre and the keyspace exist.

    Args:
        settings: where to connect.
        use_keyspace: make `settings.keyspace` the session's keyspace; False before it exists.

    Raises:
        Unavailable: no node could be reached; the driver's error is the cause.
        TlsFailed: a connection with TLS fails at every node; the text says why.
        Refused: a guardrail or a missing grant keeps this client from the cluster.
        SchemaMismatch: the keyspace does not exist.
        ConfigError: `local_dc` is missing or no data centre of the cluster; the credentials were refused; or
            a TLS file cannot be read.
    """
    if settings.scheme != "cassandra":
        raise ConfigError(f"{settings.address} is not a Cassandra cluster; this needs a cassandra:// URL.")
    try:
        cluster = make_cluster(settings)
    except UnresolvableContactPoints as exc:
        raise Unavailable(f"No host of {settings.address} has an address: check the names.") from exc
    try:
        return Connection(cluster, _connect(cluster, settings, use_keyspace=use_keyspace))
    except BaseException:
        cluster.shutdown()
        raise


def make_cluster(settings: Settings) -> Cluster:
    """The driver's `Cluster`, not yet connected. Host names are looked up here."""
    used, reconnection = driver.used(), Reconnection(settings, *RECONNECT_S)
    cluster = Cluster(
        contact_points=list(settings.hosts),
        execution_profiles=_profiles(settings),
        protocol_version=ProtocolVersion.V5,  # the newest that is no beta; explicit, so never negotiated down
        auth_provider=_auth(settings),
        ssl_context=tls.Context(settings) if settings.tls else None,
        connection_class=used.connection_class,
        # Without it, small frames wait for the acknowledgement of the one before: 40 ms each.
        sockopts=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],
        connect_timeout=settings.connect_timeout_s,
        control_connection_timeout=settings.connect_timeout_s,
        reconnection_policy=reconnection,
        idle_heartbeat_interval=HEARTBEAT_S,
        idle_heartbeat_timeout=HEARTBEAT_S,
        monitor_reporting_enabled=False,
        application_name="cqueue",
    )
    if used.finds_moved_nodes:
        reconnection.look_up_for(cluster)
    if used.reads_one_keyspace:
        cluster.metadata = OneKeyspace(settings.keyspace)
    return cluster


def _connect(cluster: Cluster, settings: Settings, *, use_keyspace: bool) -> Session:
    try:
        session = cluster.connect()
    except DRIVER_ERRORS as exc:
        raise _explain(cluster, settings, exc) from exc
    if settings.local_dc is None:
        raise ConfigError(_which_dc("local_dc is not set", cluster))
    if use_keyspace:
        _use_keyspace(session, settings)
    return session


def _use_keyspace(session: Session, settings: Settings) -> None:
    """Select the keyspace in a step of its own: within `connect`, its absence looks like a cluster down."""
    try:
        session.set_keyspace(settings.keyspace)
    except InvalidRequest as exc:
        if not outcome.is_absent(exc):
            raise outcome.error(exc, Kind.READ) from exc
        raise no_keyspace(settings) from exc
    except DRIVER_ERRORS as exc:
        said = outcome.server_text(exc)
        raise outcome.refusal(exc) or Unavailable(f"{settings.address} did not answer: {said}.") from exc


def no_keyspace(settings: Settings) -> SchemaMismatch:
    """Return the error that says what to do where the keyspace of these settings is missing."""
    return SchemaMismatch(
        f"There is no keyspace {settings.keyspace!r} ({settings.address}). Correct the URL, or run "
        "`cqueue schema apply`."
    )


def _explain(cluster: Cluster, settings: Settings, exc: Exception) -> CqueueError:
    """Return the error that says what to do; the driver raises the same one in all these cases."""
    reasons = getattr(exc, "errors", None)
    causes = list(reasons.values()) if isinstance(reasons, dict) else []
    for cause in causes:
        # One that the node could not look up is no refusal: it may be let in a moment later.
        if isinstance(cause, LoginRefused) and isinstance(outcome.refusal(cause), Refused):
            return ConfigError(
                f"{settings.address} refused the user name or the password, or wants one. "
                f"({outcome.server_text(cause)})"
            )
    if settings.local_dc is not None and (known := _data_centres(cluster)) and settings.local_dc not in known:
        return ConfigError(_which_dc(f"local_dc={settings.local_dc} does not exist", cluster))
    if (refused := outcome.refusal(exc)) is not None:
        return refused
    if (answer := next((cause for cause in causes if isinstance(cause, ErrorMessage)), None)) is not None:
        return Unavailable(f"{settings.address} has answered by an error: {outcome.server_text(answer)}.")
    # A node that hangs would be waited for once more; one that speaks TLS, or none, hangs up on the other.
    asked = () if causes and all(map(_hangs, causes)) else settings.hosts
    wrong = [said for host, port in asked if (said := tls.wrong(settings, host, port)) is not None]
    if len(wrong) == len(settings.hosts):
        return TlsFailed(f"No node of {settings.address} can be reached. {wrong[0]}")
    detail = f" ({wrong[0] if wrong else _brief(causes[0])})" if causes else ""
    here = all(is_loopback(host) for host, _ in settings.hosts)
    remedy = " `cqueue dev start` starts one for development." if here else ""
    return Unavailable(f"No node of {settings.address} can be reached{detail}. Is Cassandra running?{remedy}")


def _hangs(cause: Exception) -> bool:
    """Return whether a node was waited for in vain."""
    return isinstance(cause, OperationTimedOut) or "timed out" in str(cause)


def _brief(cause: Exception) -> str:
    """Return why a node is not reached, without the words around it that only the driver's authors need."""
    said = getattr(cause, "errors", None) or outcome.server_text(cause)
    return str(said).rpartition("Last error: ")[2]


def _which_dc(problem: str, cluster: Cluster) -> str:
    names = sorted(_data_centres(cluster))
    choice = f"local_dc={names[0]}{', or another one' if len(names) > 1 else ''}"
    return f"{problem}. The cluster has: {', '.join(names)}. The URL needs {choice}."


def _data_centres(cluster: Cluster) -> set[str]:
    return {host.datacenter for host in cluster.metadata.all_hosts() if host.datacenter}


def _profiles(settings: Settings) -> dict[Any, ExecutionProfile]:
    plain, serial = level(settings.consistency), level(settings.serial_consistency)
    near = RoundRobinPolicy() if settings.local_dc is None else DCAwareRoundRobinPolicy(settings.local_dc)
    policy = TokenAwarePolicy(near)

    def profile(consistency: int, serial_consistency: int, timeout_s: float) -> ExecutionProfile:
        return ExecutionProfile(
            load_balancing_policy=policy,
            retry_policy=FallthroughRetryPolicy(),
            speculative_execution_policy=NoSpeculativeExecutionPolicy(),
            consistency_level=consistency,
            serial_consistency_level=serial_consistency,
            request_timeout=timeout_s,
        )

    return {
        EXEC_PROFILE_DEFAULT: profile(plain, serial, settings.request_timeout_s),
        SERIAL_READ: profile(serial, serial, settings.request_timeout_s),
        SCHEMA: profile(ConsistencyLevel.QUORUM, ConsistencyLevel.SERIAL, SCHEMA_TIMEOUT_S),
    }


def level(name: Consistency | SerialConsistency) -> int:
    """Return the driver's number of a consistency level."""
    number: int = ConsistencyLevel.name_to_value[name.upper()]
    return number


def _auth(settings: Settings) -> Login | None:
    if settings.username is None:
        return None
    return Login(settings.username, settings.password)
