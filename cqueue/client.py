"""The client: one connection to a keyspace, and the queues and logs in it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from threading import Lock, RLock
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar, overload
from weakref import WeakValueDictionary

from cqueue.config import QueueConfig
from cqueue.doorbell import Address, Doorbell
from cqueue.errors import BadInput
from cqueue.history import QueueHistory
from cqueue.log import Log, LogConfig
from cqueue.log.catalog import LogCatalog
from cqueue.log.listeners import Listener, policy_of
from cqueue.log.member_options import member_options_of
from cqueue.log.notifier import AppendNotifier
from cqueue.log.positions import Start
from cqueue.log.protocol.subscription_definition import remove
from cqueue.log.subscription import ExistingSubscription, OnEvent, Subscription
from cqueue.message import check_duration, check_queue_name
from cqueue.producer import Producer
from cqueue.protocol.lease import SuspectGate
from cqueue.queue import Queue
from cqueue.runtime.batcher import calls
from cqueue.runtime.catalog import Catalog
from cqueue.runtime.clock import ClusterClock, LocalClock, steady_us
from cqueue.runtime.driver import BlockingDriver
from cqueue.runtime.wakeups import Wakeups
from cqueue.sending.group_commit import MAX_LINGER
from cqueue.settings import Settings, load
from cqueue.store.late import LateStore
from cqueue.store.log_operations import ListSubscriptions, SubscriptionKey
from cqueue.store.memory import MemoryStore
from cqueue.store.operations import Operation, Store
from cqueue.store.quarantine import Quarantine

if TYPE_CHECKING:
    from tenacity.wait import wait_base

    from cqueue.runtime.call_metrics import CallMetrics
    from cqueue.spool import Spool
    from cqueue.spool.forward_client import Spools
    from cqueue.spool.forward_log import SpooledLog
    from cqueue.spool.forward_queue import SpooledQueue
    from cqueue.store.cassandra import CassandraStore
    from cqueue.store.connection import Connection

T = TypeVar("T")

SENDS, MOST_SENDS = 2, 8
"""Calls of `send_many_async` that run side by side, and running and queued calls at which the next one
blocks. Few, because each call may hold 10,000 messages."""
ACKS, MOST_ACKS = 2, 1000
"""The same bounds for `ack_async`, whose calls hold only ids."""
DOORBELL_S = 2.0
"""Seconds that the doorbell may take to read or write the table of listeners; it does without a late
answer."""

_shared_stores: dict[str, MemoryStore] = {}


def connect(url: str | None = None, *, lazy: bool = False) -> Client:
    """Connect to the keyspace that `url` names. Return a client.

    `cassandra://host:port,host2/keyspace?local_dc=…` is a cluster. `memory://name` is a store in this
    process, shared by all clients that give this name; `memory://` is a private one. Without a URL the client
    uses `CQUEUE_URL`, then `cqueue.toml`, then a node on this machine.

    lazy: connect at the first call that needs Cassandra, and at later ones while Cassandra is away; those
        calls then raise the errors below. For a producer with a spool, which has to start while Cassandra is
        away.

    Raises:
        ConfigError: the URL or a setting is wrong.
        Unavailable: no node answers.
        SchemaMismatch: the schema is missing or of another version; run `cqueue schema apply`.
        WrongDataCentre: clients of the keyspace work in another data centre than `local_dc`.

    Example:
        with connect("cassandra://db1,db2/shop?local_dc=dc1") as client:
            client.queue("mails").send(b"hello")
    """
    settings = load(url)
    if settings.scheme == "memory":
        return Client(_memory_store(settings.keyspace), address=settings.address)
    return _late_client(settings) if lazy else _cassandra_client(settings)


def _memory_store(name: str) -> MemoryStore:
    if not name:
        return MemoryStore(steady_us)
    return _shared_stores.setdefault(name, MemoryStore(steady_us))


def _clock_of(store: Store) -> ClusterClock:
    if isinstance(store, MemoryStore):
        return LocalClock(lambda: store.sample_time_us()[0][0])
    return ClusterClock(store.sample_time_us)


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
    """Used inside: return where this process takes datagrams from others; None with `notify=off`.

    The address is that of the interface that reaches Cassandra. The nodes' own addresses are tried before the
    contact points, because a contact point may be the near end of a tunnel.
    """
    if not settings.notify:
        return None
    hosts = connection.cluster.metadata.all_hosts()
    known = [(str(host.broadcast_rpc_address or host.address), host.endpoint.port) for host in hosts]
    nodes = [*known, *((str(host.address), host.endpoint.port) for host in hosts)]
    return Address(settings.notify_host, settings.notify_port, (*nodes, *settings.hosts))


def open_cassandra(settings: Settings) -> tuple[CassandraStore, Connection]:
    """Used inside: open a store and its connection, which the caller closes. Checks the deployment."""
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
    """Opens queues and logs. Made by `connect`. Thread-safe; one for a process is enough. A context manager.

    After the home of the keyspace was moved to another data centre, each call raises `WrongDataCentre` within
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
        """notify: where this process takes datagrams about messages from other processes; None: nowhere."""
        self._address = address  # without credentials
        self._on_close = on_close or store.close
        self._driver = driver or BlockingDriver(store, _clock_of(store))
        self._catalog = Catalog(self._driver, local_dc)
        self._logs = LogCatalog(self._driver, self._catalog.deployment)
        self._acks = calls("cqueue-ack", at_a_time=ACKS, room=MOST_ACKS)
        self._sends = calls("cqueue-send", at_a_time=SENDS, room=MOST_SENDS)
        # `setdefault` is atomic: threads get one object.
        self._made: dict[str, Any] = {}
        # By queue, for all its consumers here. Weak: queues may come and go for weeks.
        self._wakeups = WeakValueDictionary[str, Wakeups]()
        self._gates = WeakValueDictionary[str, SuspectGate]()  # a held suspect keeps that of its queue
        self._opening = Lock()  # held while one is made, so that threads get one object
        self._doorbell = (
            None if notify is None else Doorbell(self._ask_briefly, notify, self._driver.clock.guess_us)
        )
        self._append_notifier = AppendNotifier(self._doorbell)

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

        linger: how long (0 to 1 s) a `send` waits for `send`s of other threads with this object, to go in one
            batch; batches go one at a time. None: two threads send at once, each its own message; `send`s
            that come meanwhile go in batches, two at a time. Either way each `send` returns once its message
            is acknowledged, or raises the error of its own message.
        spool: a send returns once its message is durable in the spool; a thread of this client forwards it.
            The queue is altered to have `derived_sends`. One client at a time may use a spool.

        Raises:
            QueueNotFound: there is no such queue.
            Unavailable: Cassandra does not answer; with a spool, only if the queue was never opened with it.
            BadInput: both linger and a spool are given.
        """
        if spool is None:
            self._catalog.entry(name)
            return self._open(name, linger)
        if linger is not None:
            raise BadInput("give linger or a spool, not both: what goes to a spool is stored together anyhow")
        return self._spools.queue(spool, name, self._open)

    def create_queue(self, name: str, config: QueueConfig | None = None, *, exist_ok: bool = False) -> Queue:
        """Create a queue, with a dead-letter queue called `<name>.dead`, and open it.

        With `exist_ok` a queue that exists is opened, if it has the settings of `config` that are not the
        defaults. Whatever else an operator has altered stays.

        Example:
            client.create_queue("mails", QueueConfig(visibility=timedelta(minutes=2)), exist_ok=True)

        Raises:
            InvalidQueueName: not 1 to 200 of `A-Z a-z 0-9 . _ -`, or `.` or `..`.
            QueueExists: it exists; with `exist_ok`, only if it has another value of such a setting.
            OutcomeUnknown: it may have been created, with or without its history; with `exist_ok` the call
                can be repeated.
        """
        history = self._history(name)
        ttl = config.history if isinstance(config, QueueConfig) else None  # the catalog refuses all else
        history.check(ttl)
        history.keep(self._catalog.create(name, config, exist_ok=exist_ok).config.history)
        return self._open(name)

    def delete_queue(self, name: str) -> int:
        """Delete a queue, its dead-letter queue, all their messages, and its history. Return the number of
        messages.

        The call waits until no other process sends to the queue: 2 s and W, so about 4 s. After a failure in
        the middle the queue cannot be opened any more; call again to finish the deletion.

        Raises:
            QueueNotFound: there is no such queue.
            BadInput: it is a dead-letter queue, which goes with its queue; `purge` empties it.
            NotDone: nothing is deleted.
            OutcomeUnknown: it is, or may be, deleted in part.
        """
        return self._catalog.delete(name, find_more=self._history(name).find)

    def queues(self) -> list[str]:
        """List the names of all queues in order, including dead-letter queues."""
        return [entry.row.name for entry in self._catalog.all()]

    @property
    def metrics(self) -> CallMetrics:
        """A Prometheus collector of this client's calls: `REGISTRY.register(client.metrics)`.

        Counting begins when this is first read; a client that nobody asks is no slower for it. The metrics of
        two clients have the same names, so one registry takes one client.
        """
        from cqueue.runtime.call_metrics import CallMetrics  # noqa: PLC0415 - only where somebody asks

        if "metrics" not in self._made:  # later the driver may have another meter, a daemon's
            every = Wakeups(self._doorbell)  # counts the datagrams of all queues
            self._driver.meter = self._once("metrics", lambda: CallMetrics(lambda: every.counts))
        kept: CallMetrics = self._made["metrics"]
        return kept

    # ── logs ──

    @overload
    def log(self, name: str, *, spool: None = None) -> Log: ...

    @overload
    def log(self, name: str, *, spool: Spool) -> SpooledLog: ...

    def log(self, name: str, *, spool: Spool | None = None) -> Log | SpooledLog:
        """Open a log.

        spool: appends return once the records are durable in the spool, which forwards them at least once.
            The log can then only be appended to.

        Raises:
            LogNotFound: there is no such log.
            Unavailable: Cassandra does not answer; with a spool, only if the log was never opened with it.
        """
        if spool is not None:
            return self._spools.log(spool, name)
        self._logs.entry(name)
        return Log(name, self._logs, self._driver, self._append_notifier)

    def create_log(self, name: str, config: LogConfig | None = None, *, exist_ok: bool = False) -> Log:
        """Create a log, and open it.

        With `exist_ok` a log that exists is opened, if it has the settings of `config` that are not the
        defaults. Whatever else an operator has altered stays.

        Raises:
            InvalidQueueName: not 1 to 200 of `A-Z a-z 0-9 . _ -`, or `.` or `..`.
            LogExists: it exists; with `exist_ok`, only if it has another value of such a setting.
            OutcomeUnknown: it may have been created; with `exist_ok` the call can be repeated.
        """
        self._logs.create(name, config, exist_ok=exist_ok)
        return Log(name, self._logs, self._driver, self._append_notifier)

    def delete_log(self, name: str) -> None:
        """Delete a log with all its records.

        Where records are kept for ever, the call waits until no other process appends: 5 s and W, so about
        7 s. After a failure in the middle the log cannot be opened any more; call again to finish the
        deletion.

        Raises:
            LogNotFound: there is no such log.
        """
        self._logs.delete(name)

    def logs(self) -> list[str]:
        """List the names of all logs in order."""
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
        """Become a member of a subscription; then `run` or `start` it. A new name makes a new subscription.

        All members of one name share the log's partitions: one member at a time reads a partition, in order.

        Args:
            log: the log's name.
            name: the subscription's name.
            listeners: called in turn with each `LogRecord`; a listener made by `batched` gets lists of
                records. A record is done when all listeners have returned.
            start: where a new subscription begins, as for `Log.scan`. An existing one goes on where it was.
            partitions: read only these. None: all.
            topics: read only records of these topics. None: all.
            on_expired: "error" or "earliest", for a position that the log no longer remembers.
            max_attempts: tries of a record whose listener raises, 0 for ever. After the last one the record
                goes to the log `<log>.dead`.
            wait: the pause between tries, a `tenacity.wait_*` object.
            checkpoint_interval: how often positions are stored. After a crash, records done since the last
                checkpoint are handed out again.
            checkpoint_records: number of records after which positions are stored sooner.
            poll_interval: the first pause after a read that found nothing; each further pause is doubled.
            max_poll_interval: the longest such pause.
            buffer: records that may wait for listeners before the partitions that they are in are read no
                further. Others are: a listener that fails holds up its own partition only.
            low_latency: hand records out as soon as they can be read. Records that become readable out of
                order are then handed out out of order, and the next member may hand out those of the last 2.5
                s again.
            on_event: called at "acquired", "checkpoint", "released" and "lost", with partition and position.

        Raises:
            LogNotFound: there is no such log.
            BadInput: an argument is out of range, or names a partition that does not exist.
            InvalidQueueName: the log's name has over 195 characters, which leaves no room for `<log>.dead`.
            PositionExpired: `start` lies before the oldest record that the log remembers.
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
            options=member_options_of(
                poll_interval, max_poll_interval, checkpoint_interval, checkpoint_records, buffer
            ),
            on_event=on_event,
            low_latency=low_latency,
            notifier=self._append_notifier,
        )

    def subscriptions(self, log: str) -> list[str]:
        """List the names of a log's subscriptions in order.

        Raises:
            LogNotFound: there is no such log.
        """
        wanted = self._logs.entry(log).spec.partition
        return sorted(key.name for key in self._driver.ask(ListSubscriptions()) if key.log == wanted)

    def delete_subscription(self, log: str, name: str) -> None:
        """Delete a subscription with all its positions. Members that still run end with `LogNotFound`.

        Raises:
            LogNotFound: there is no such log, or no such subscription of it.
            NotDone: it could not be read, or is being changed by too many at once; call again.
            OutcomeUnknown: it may be deleted; call again.
        """
        key = SubscriptionKey(self._logs.entry(log).spec.partition, check_queue_name(name, "subscription"))
        self._driver.run(remove(key))

    @property
    def _spools(self) -> Spools:
        """Used inside: the spools that this client forwards."""
        from cqueue.spool.forward_client import Spools  # noqa: PLC0415 - only where there is one

        own = self._catalog, self._logs, self._driver, self._append_notifier, self._producer
        return self._once("spools", lambda: Spools(*own))

    def _once(self, name: str, make: Callable[[], T]) -> T:
        """Return the object of this name; the first call makes it."""
        made: T = self._made.get(name) or self._made.setdefault(name, make())
        return made

    def _history(self, name: str) -> QueueHistory:
        return QueueHistory(name, self._logs, self._driver, self._append_notifier)

    def _producer(self, name: str) -> Producer:
        with self._opening:
            wakeups = self._wakeups.get(name)
            if wakeups is None:
                gate = self._gates.setdefault(name, SuspectGate(RLock()))
                wakeups = self._wakeups[name] = Wakeups(self._doorbell, gate)
        return Producer(name, self._catalog, self._driver, wakeups)

    def _open(self, name: str, linger: timedelta | None = None, make: Callable[..., Queue] = Queue) -> Queue:
        if linger is not None:
            check_duration("linger", linger, timedelta(), MAX_LINGER)
        return make(
            name,
            self._catalog,
            self._driver,
            self._producer(name),
            acks=self._acks,
            sends=self._sends,
            history=self._history(name),
            linger=linger,
        )

    def _ask_briefly(self, operation: Operation[Any]) -> Any:
        """Run an operation for the doorbell, within `DOORBELL_S`."""
        with self._driver.limited(DOORBELL_S):
            return self._driver.ask(operation)

    def close(self) -> None:
        """Finish sends and acks under way, then close all connections. Close consumers before.

        Spooled messages are forwarded first, for up to 5 s; the rest stays in the spools. Acks of `ack_async`
        that are not begun after 9 s are given up: their futures raise `Closed`, and their messages come
        again. So are calls of `send_many_async`, of which nothing is sent, but only once Cassandra has
        answered nothing for 9 s. Later calls raise `Closed`. In a fork of the process that made the client,
        this does nothing.
        """
        if self._driver.is_forked:
            return
        if "spools" in self._made:
            self._spools.close()
        # Less than a call takes while Cassandra is away: the next ones would begin just before.
        limit_s = 0.9 * self._driver.deadline_s

        def is_slow() -> bool:
            return time.monotonic() - self._driver.answered_s < limit_s

        self._sends.close(drop_after_s=limit_s, go_on=is_slow)  # slow is not away
        self._acks.close(drop_after_s=limit_s)  # of up to a thousand
        if self._doorbell is not None:
            self._doorbell.close()
        self._driver.close()
        self._on_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_client(taker: str, client: object) -> None:
    """Raise `BadInput` unless this is a client. taker: what takes it, for the error."""
    if not isinstance(client, Client):
        raise BadInput(f"{taker} takes a Client, as connect returns it, not {type(client).__name__}")


class Inside(NamedTuple):
    """What a client runs on."""

    driver: BlockingDriver
    catalog: Catalog
    logs: LogCatalog

    @property
    def quarantine(self) -> Quarantine:
        """The damaged rows that this process has met; a lazy client has another one once it is connected."""
        return self.driver.store.quarantine

    def is_alone(self) -> None:
        """Say that nobody else writes into its queues and logs, as in a benchmark: no deletion waits."""
        self.driver.is_shared = False

    def subscription(self, log: str, name: str) -> ExistingSubscription:
        """Return a subscription to look at and to change; `Client.subscribe` would make one.

        Raises:
            LogNotFound: there is no such log.
        """
        return ExistingSubscription(self.logs, self.driver, log, name)


def inside(client: Client) -> Inside:
    """Used inside: return what the library's own tools ask, beside the calls that a client offers."""
    return Inside(client._driver, client._catalog, client._logs)  # noqa: SLF001 - here for all of them
