"""The client: one connection to a keyspace, and the queues in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from functools import cached_property
from threading import Lock, RLock
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, overload

from cqueue.batcher import calls
from cqueue.bell import Bell
from cqueue.catalog import Catalog
from cqueue.clock import ClusterClock
from cqueue.config import QueueConfig
from cqueue.consumer import Consumer, PollIntervals
from cqueue.doorbell import Address, Doorbell
from cqueue.drive.blocking import BlockingDriver
from cqueue.errors import BadInput
from cqueue.group_commit import MAX_LINGER
from cqueue.log import Log, LogConfig
from cqueue.log.bells import LogBells
from cqueue.log.catalog import LogCatalog
from cqueue.log.delivery import Listener, policy_of
from cqueue.log.pace import pace_of
from cqueue.log.positions import Start
from cqueue.log.protocol.definition import remove
from cqueue.log.subscription import OnEvent, Subscription
from cqueue.message import check_duration
from cqueue.producer import Producer
from cqueue.protocol.lease import SuspectGate
from cqueue.queue import Queue
from cqueue.settings import Settings, load
from cqueue.store.late import LateStore
from cqueue.store.memory import MemoryStore
from cqueue.store.operations import Operation, Store
from cqueue.store.quarantine import Quarantine
from cqueue.store.subscriptions import ListSubscriptions, SubscriptionKey

if TYPE_CHECKING:
    from tenacity.wait import wait_base

    from cqueue.spool import Spool
    from cqueue.spool.forward_client import Spools
    from cqueue.spool.forward_log import SpooledLog
    from cqueue.spool.forward_queue import SpooledQueue
    from cqueue.store.cassandra import CassandraStore
    from cqueue.store.connection import Connection

SENDS, MOST_SENDS = 2, 8
"""Calls of `send_many_async` that run at a time, and that run or wait before the next one has to wait: each
may have 10,000 messages."""
ACKS, MOST_ACKS = 2, 1000
"""Of `ack_async`."""
DOORBELL_S = 2.0
"""What the doorbell may take to read or write who listens."""

_shared_stores: dict[str, MemoryStore] = {}
_shared_mutex = Lock()


def connect(url: str | None = None, *, lazy: bool = False) -> Client:
    """A client for the keyspace that `url` names.

    `cassandra://host:port,host2/keyspace?local_dc=…` is a cluster; `memory://name` a store in this
    process, the same for all who name it so; `memory://` a private one. Without a URL: `CQUEUE_URL`,
    then `cqueue.toml`, then a node on this machine.

    lazy: connect at the first call that needs Cassandra, and again at later ones while it is away; the errors
        below then come from those calls. For a producer with a spool, which starts while Cassandra is away.

    Raises:
        ConfigError: the URL or a setting is wrong.
        Unavailable: no node answers.
        SchemaMismatch: the schema is missing or of another version; run `cqueue schema apply`.
        WrongDataCentre: clients of the keyspace work in another data centre than `local_dc`.
    """
    settings = load(url)
    if settings.scheme == "memory":
        return Client(_memory_store(settings.keyspace), address=settings.address)
    return _late_client(settings) if lazy else _cassandra_client(settings)


def _memory_store(name: str) -> MemoryStore:
    if not name:
        return MemoryStore()
    with _shared_mutex:
        return _shared_stores.setdefault(name, MemoryStore())


def _cassandra_client(settings: Settings) -> Client:
    store, connection = open_cassandra(settings)
    return Client(
        store,
        on_close=connection.close,
        local_dc=settings.local_dc,
        address=settings.address,
        notify=address_of(settings, connection),
    )


def _late_client(settings: Settings) -> Client:
    def opened() -> tuple[Store, Callable[[], None]]:
        store, connection = open_cassandra(settings)
        return store, connection.close

    notify = Address(settings.notify_host, settings.notify_port, settings.hosts) if settings.notify else None
    store = LateStore(opened, settings.request_timeout_s)
    return Client(store, local_dc=settings.local_dc, address=settings.address, notify=notify)


def address_of(settings: Settings, connection: Connection) -> Address | None:
    """Used inside: where other processes may tell this one of messages; None with `notify=off`.

    The nodes as they know themselves show better than contact points by which address others reach this one:
    a contact point may be the near end of a tunnel.
    """
    if not settings.notify:
        return None
    hosts = connection.cluster.metadata.all_hosts()
    known = [(str(host.broadcast_rpc_address or host.address), host.endpoint.port) for host in hosts]
    nodes = [*known, *((str(host.address), host.endpoint.port) for host in hosts)]
    return Address(settings.notify_host, settings.notify_port, (*nodes, *settings.hosts))


def open_cassandra(settings: Settings) -> tuple[CassandraStore, Connection]:
    """Used inside: a store on a connection of its own, which the caller closes; its deployment is checked."""
    # Only here, because importing the driver takes half a second that memory:// need not wait.
    from cqueue.schema import check_deployment  # noqa: PLC0415
    from cqueue.store.cassandra import CassandraStore  # noqa: PLC0415
    from cqueue.store.connection import open_session  # noqa: PLC0415

    connection = open_session(settings)
    try:
        check_deployment(connection.session, settings)
        store = CassandraStore(
            connection.session,
            serial_consistency=settings.serial_consistency,
            consistency=settings.consistency,
        )
    except BaseException:
        connection.close()
        raise
    return store, connection


class Client:
    """Opens queues; made by `connect`. Thread-safe; one for a process is enough. A context manager.

    When the home of its keyspace is moved to another data centre, each call raises `WrongDataCentre` within
    two seconds, and does nothing.
    """

    def __init__(
        self,
        store: Store,
        *,
        on_close: Callable[[], None] | None = None,
        driver: BlockingDriver | None = None,
        local_dc: str | None = None,
        address: str = "a store",
        notify: Address | None = None,
    ) -> None:
        """notify: where other processes may tell this one of messages; None: they do not."""
        self._address = address  # without credentials
        self._on_close = on_close or store.close
        self._driver = driver or BlockingDriver(store, ClusterClock(store.sample_time_us))
        self._catalog = Catalog(self._driver, local_dc)
        self._logs = LogCatalog(self._driver, self._catalog.deployment)
        self._acks = calls("cqueue-ack", at_a_time=ACKS, room=MOST_ACKS)
        self._sends = calls("cqueue-send", at_a_time=SENDS, room=MOST_SENDS)
        self._mutex = Lock()
        self._bells: dict[str, Bell] = {}
        self._doorbell = (
            None if notify is None else Doorbell(self._ask_briefly, notify, self._driver.clock.now_us)
        )
        self._log_bells = LogBells(self._doorbell)
        self._gates: dict[str, SuspectGate] = {}

    def __repr__(self) -> str:
        return f"<client of {self._address}>"

    @overload
    def queue(self, name: str, *, linger: timedelta | None = None, spool: None = None) -> Queue: ...

    @overload
    def queue(self, name: str, *, spool: Spool) -> SpooledQueue: ...

    @overload
    def queue(self, name: str, *, spool: Spool | None) -> Queue: ...

    def queue(self, name: str, *, linger: timedelta | None = None, spool: Spool | None = None) -> Queue:
        """Open a queue.

        linger: `send`s of several threads with this object go one batch at a time: the first one waits so
            long for others (0 to 1 s), and all that come while Cassandra answers go together. None: two go
            at a time, each at once; what comes while they do goes together, two batches at a time. Either way
            each `send` returns once its message is acknowledged, or fails for its own message.
        spool: sends return once they are durable there, and a thread of this client forwards them. The queue
            is altered to have `derived_sends`. One client at a time uses a spool.

        Raises:
            QueueNotFound: there is none of that name.
            Unavailable: Cassandra does not answer; with a spool, only if the queue was never opened with it.
        """
        if spool is None:
            self._catalog.entry(name)
            return self._open(name, linger)
        if linger is not None:
            raise BadInput("give linger or a spool, not both: what goes to a spool is stored together anyhow")
        return self._spools.queue(spool, name, self._open)

    def create_queue(self, name: str, config: QueueConfig | None = None, *, exist_ok: bool = False) -> Queue:
        """Create a queue, with a dead-letter queue called `<name>.dead`, and open it.

        Raises:
            InvalidQueueName: not 1 to 200 of `A-Z a-z 0-9 . _ -`.
            QueueExists: it exists; with `exist_ok`, only if its configuration is another one.
            OutcomeUnknown: it may have been created; with `exist_ok` the call can be repeated.
        """
        self._catalog.create(name, config or QueueConfig(), exist_ok=exist_ok)
        return self._open(name)

    def delete_queue(self, name: str) -> int:
        """Delete a queue, its dead-letter queue, and all their messages; how many those were.

        If it fails in the middle nobody finds the queue any more; called again, it goes on.

        Raises:
            QueueNotFound: there is none of that name.
            BadInput: it is a dead-letter queue, which goes with its queue; `purge` empties it.
        """
        return self._catalog.delete(name)

    def queues(self) -> list[str]:
        """The names of all queues in order, dead-letter queues among them."""
        return [entry.row.name for entry in self._catalog.all()]

    @property
    def _quarantine(self) -> Quarantine:
        """Used inside: the damaged rows that this process has met."""
        return self._driver.store.quarantine

    # ── logs ──

    @overload
    def log(self, name: str, *, spool: None = None) -> Log: ...

    @overload
    def log(self, name: str, *, spool: Spool) -> SpooledLog: ...

    def log(self, name: str, *, spool: Spool | None = None) -> Log | SpooledLog:
        """Open a log.

        spool: for appending only: records are appended there, and forwarded at least once.

        Raises:
            LogNotFound: there is none of that name.
            Unavailable: Cassandra does not answer; with a spool, only if the log was never opened with it.
        """
        if spool is not None:
            return self._spools.log(spool, name)
        self._logs.entry(name)
        return Log(name, self._logs, self._driver, self._log_bells)

    def create_log(self, name: str, config: LogConfig | None = None, *, exist_ok: bool = False) -> Log:
        """Create a log, and open it.

        Raises:
            InvalidQueueName: not 1 to 200 of `A-Z a-z 0-9 . _ -`.
            LogExists: it exists; with `exist_ok`, only if its configuration is another one.
            OutcomeUnknown: it may have been created; with `exist_ok` the call can be repeated.
        """
        self._logs.create(name, config or LogConfig(), exist_ok=exist_ok)
        return Log(name, self._logs, self._driver, self._log_bells)

    def delete_log(self, name: str) -> None:
        """Delete a log with all its records.

        If it fails in the middle nobody finds the log any more; called again, it goes on.

        Raises:
            LogNotFound: there is none of that name.
        """
        self._logs.delete(name)

    def logs(self) -> list[str]:
        """The names of all logs in order."""
        return [entry.row.name for entry in self._logs.all()]

    def subscribe(
        self,
        log: str,
        *,
        name: str,
        listeners: Sequence[Listener],
        start: Start = "earliest",
        partitions: Iterable[int] | None = None,
        topics: Iterable[str] | None = None,
        on_expired: str = "error",
        max_attempts: int = 5,
        wait: wait_base | None = None,
        checkpoint_interval: timedelta = timedelta(seconds=1),
        checkpoint_records: int = 1000,
        poll_interval: timedelta = timedelta(milliseconds=100),
        max_poll_interval: timedelta = timedelta(seconds=2),
        buffer: int = 1000,
        low_latency: bool = False,
        on_event: OnEvent | None = None,
    ) -> Subscription:
        """Become a member of a subscription, which is made if it does not exist; `run` or `start` it.

        All members of one name share the log's partitions: each is read by one member at a time, in order.

        listeners: called in turn with each `LogRecord`; one made by `batched` with lists of them. Only when
        all have returned is the record done. start: where a new subscription begins, as for `Log.scan`;
        one that exists goes on where it was. partitions, topics: read only these. on_expired: "error" or
        "earliest", for a position that the log no longer remembers. max_attempts (0: for ever), wait (a
        `tenacity.wait_*` object): what follows an exception; after the last one the record goes to the log
        `<log>.dead`. checkpoint_interval, checkpoint_records: how often positions are written down; what
        was done since may be done again after a crash. buffer: so many records may wait here before reading
        on. low_latency: hand records out as soon as they can be read, in order only as far as they come in
        order; those of the last 2.5 s may be handed out again by the next member. on_event: told of
        "acquired", "checkpoint", "released" and "lost" with partition and position.

        Raises:
            LogNotFound: there is no such log.
            BadInput, PositionExpired: what cannot be.
        """
        return Subscription(
            self._logs,
            self._driver,
            log,
            name,
            listeners=listeners,
            partitions=partitions,
            topics=topics,
            start=start,
            on_expired=on_expired,
            policy=policy_of(max_attempts, wait),
            options=pace_of(
                poll_interval, max_poll_interval, checkpoint_interval, checkpoint_records, buffer
            ),
            on_event=on_event,
            low_latency=low_latency,
            bells=self._log_bells,
        )

    def subscriptions(self, log: str) -> list[str]:
        """The names of a log's subscriptions in order.

        Raises:
            LogNotFound: there is no such log.
        """
        wanted = self._logs.entry(log).spec.partition
        return sorted(key.name for key in self._driver.ask(ListSubscriptions()) if key.log == wanted)

    def delete_subscription(self, log: str, name: str) -> None:
        """Forget a subscription with all its positions. Members that still run end with `LogNotFound`.

        Raises:
            LogNotFound: there is no such log, or no such subscription of it.
            NotDone: it could not be read, or is being changed by too many at once; it may be called again.
        """
        self._driver.run(remove(SubscriptionKey(self._logs.entry(log).spec.partition, name)))

    @cached_property
    def _spools(self) -> Spools:
        """Used inside: what is forwarded from spools."""
        from cqueue.spool.forward_client import Spools  # noqa: PLC0415 - only where there is one

        return Spools(self._catalog, self._logs, self._driver, self._log_bells, self._producer)

    def _producer(self, name: str) -> Producer:
        with self._mutex:
            bell = self._bell(name)
        return Producer(name, self._catalog, self._driver, bell)

    def _open(self, name: str, linger: timedelta | None = None, make: Callable[..., Queue] = Queue) -> Queue:
        if linger is not None:
            check_duration("linger", linger, timedelta(), MAX_LINGER)
        return make(
            name,
            self._catalog,
            self._driver,
            self._producer(name),
            self._make_consumer,
            sends=self._sends,
            linger=linger,
        )

    def _bell(self, name: str) -> Bell:
        """The bell of a queue. The mutex is held."""
        bell = self._bells.get(name)
        if bell is None:
            bell = self._bells[name] = Bell(self._doorbell)
        return bell

    def _ask_briefly(self, operation: Operation[Any]) -> Any:
        """For the doorbell, which does without what cannot be had soon."""
        with self._driver.limited(DOORBELL_S):
            return self._driver.ask(operation)

    def _make_consumer(
        self, name: str, intervals: PollIntervals, prefetch: int, wake: Callable[[], None] | None = None
    ) -> Consumer:
        with self._mutex:
            bell = self._bell(name)
            gate = self._gates.setdefault(name, SuspectGate(RLock()))
        return Consumer(
            name,
            self._catalog,
            self._driver,
            bell,
            gate=gate,
            executor=self._acks,
            intervals=intervals,
            prefetch=prefetch,
            wake=wake,
        )

    def close(self) -> None:
        """Let go of all connections, after sends and acks under way; close consumers before.

        What is in spools is forwarded first, for up to 5 s; the rest stays there. Whatever is called
        afterwards raises `Closed`.
        """
        if "_spools" in self.__dict__:
            self._spools.close()
        self._sends.close()
        self._acks.close()
        if self._doorbell is not None:
            self._doorbell.close()
        self._driver.close()
        self._on_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
