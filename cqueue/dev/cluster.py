"""`DevCluster`: start, look at, break and remove a real Cassandra on this machine."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

from cqueue.dev import processes, record, startup
from cqueue.dev.addresses import FIRST_ADDRESS, Reservation
from cqueue.dev.jars import Progress, ensure_jars, silent
from cqueue.dev.java import find_java
from cqueue.dev.node import Node
from cqueue.dev.paths import command, default_directory
from cqueue.dev.record import Record
from cqueue.dev.settings import MAX_NODES, Settings, default_heap
from cqueue.dev.status import ClusterState, Status, cluster_url, summarize
from cqueue.errors import ConfigError, DevError

START_LIMIT = timedelta(seconds=180)
LOCK_LIMIT = timedelta(seconds=240)  # longer than most starts take, so that a second one waits for the first
STOP_GRACE = timedelta(seconds=30)  # three nodes on two busy cores took 11 s


class DevCluster:
    """The cluster that lives in one directory. Nothing runs until `start`.

    Options that are None keep what the directory's cluster was made with; a new one gets one node,
    a commit log that is synced before every answer, and 512 MiB of heap (640 MiB each for several).

    Arguments:
        directory: everything of the cluster is below it; by default `$XDG_DATA_HOME/cqueue/dev`.
        nodes: 1 to 9; cannot be changed later.
        commitlog_sync: "batch", or "periodic": quicker, and loses acknowledged writes by kill -9.
        heap: of each node, as for -Xmx.
        first_address: where the search for free loopback addresses begins; `own_network(directory)`
            keeps clusters of tests apart, so that none takes the address of a node that another killed.
        auth: ask for a password and check grants; the operator is `cassandra`, with the password
            `cassandra`, and has to remain so: this class logs in with it.
        tls: refuse clients that do not encrypt. The authority and a client's certificate lie in `node1/tls`
            below the directory.
        client_certificates: refuse clients that have no certificate of that authority.
        cql_port, storage_port: the same on all nodes; 9042 and 7000 by default.
        yaml: settings of cassandra.yaml that override ours.
        jvm_options: further options of the JVM.
        addresses: one a node, instead of free loopback addresses; they are taken as they are.
        prefixes: what to put before each node's command, e.g. `("ip", "netns", "exec", "name")` for a
            network namespace, or `("env", "NAME=value")`. It must become the command, as `exec` does.

    Example:
        cluster = DevCluster(Path("/tmp/one"))
        print(cluster.start().url)
        cluster.stop()
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        nodes: int | None = None,
        commitlog_sync: str | None = None,
        heap: str | None = None,
        first_address: str = FIRST_ADDRESS,
        cql_port: int | None = None,
        storage_port: int | None = None,
        auth: bool | None = None,
        tls: bool | None = None,
        client_certificates: bool | None = None,
        yaml: Mapping[str, Any] | None = None,
        jvm_options: Sequence[str] | None = None,
        addresses: Sequence[str] | None = None,
        prefixes: Sequence[Sequence[str]] | None = None,
    ) -> None:
        # One spelling, since processes are recognised by it.
        self.directory = (directory or default_directory()).expanduser().resolve()
        self._first_address = first_address
        given: dict[str, Any] = {
            "nodes": nodes,
            "commitlog_sync": commitlog_sync,
            "heap": heap,
            "cql_port": cql_port,
            "storage_port": storage_port,
            "auth": auth,
            "tls": tls,
            "client_certificates": client_certificates,
            "yaml": yaml,
            "jvm_options": jvm_options,
            "addresses": addresses,
            "prefixes": prefixes,
        }
        self._given = {name: value for name, value in given.items() if value is not None}
        self._settings(None)  # wrong options fail here, not at the start

    def start(self, progress: Progress = silent, limit: timedelta = START_LIMIT) -> Status:
        """Start the nodes that do not run, and wait until all answer CQL and see each other.

        If this fails or is interrupted, the nodes it started are gone again, and the options are not kept.

        Arguments:
            progress: called with a line whenever there is something new to show.
            limit: how long the nodes' logs may stand still; the nodes may take five times as long.

        Raises:
            DevError: it did not work; the message says what to do.
        """
        with record.locked(self.directory, LOCK_LIMIT):
            known = record.load(self.directory)
            # A test that ended early may have left a node stopped; it would never answer.
            running = processes.signal_all(self._homes(), signal.SIGCONT)
            if known is not None and running:
                wanted = self._same_settings(known)
            else:
                if known is None:
                    self._refuse_foreign()
                elif not known.formed:
                    # A first start that did not come to its end leaves nodes that may know half of the ring.
                    # Nobody has been told of them, so there is nothing to lose.
                    self._kill_and_delete()
                    known = None
                wanted = self._settings(known)
            with Reservation(_ports(wanted)) as reservation:
                present = self._placed(known, wanted, reservation)
                record.save(self.directory, present)
                nodes = self._nodes(present)
                try:
                    self._launch(_missing(nodes), nodes, limit, progress)
                except BaseException:
                    if known is not None:  # or a heap that is too small would fail the next start as well
                        record.save(self.directory, known)
                    raise
        return self.status()

    def start_node(self, number: int, progress: Progress = silent, limit: timedelta = START_LIMIT) -> None:
        """Start one node of a cluster made before, and wait until it answers CQL.

        Others may be down. Nothing happens if it runs already.

        Raises:
            DevError: it did not work.
        """
        with record.locked(self.directory, LOCK_LIMIT):
            node = self._node(number)
            settings, missing = node.record.settings, _missing([node])
            with Reservation(_ports(settings)) as reservation:
                if missing and not settings.addresses and not reservation.take(node.address):
                    raise DevError(
                        f"Something else listens on {node.address}, where node {node.number} belongs. Stop "
                        f"that, or run {command('start', self.directory)}, which moves the node."
                    )
                self._launch(missing, [node], limit, progress)

    def status(self) -> Status:
        """Return the state of the nodes, each asked by CQL."""
        known = record.load(self.directory)
        if known is None:
            return Status(ClusterState.STOPPED, (), None)
        nodes = tuple(node.status() for node in self._nodes(known))
        return Status(summarize(nodes), nodes, cluster_url(self.directory, known))

    def stop(self, grace: timedelta = STOP_GRACE) -> None:
        """Stop all nodes; those that take longer than `grace` are killed. The data stays."""
        if self.directory.exists():  # which the lock would make
            with record.locked(self.directory, LOCK_LIMIT):
                processes.terminate(self._homes(), grace)

    def wipe(self) -> None:
        """Kill all nodes and delete their data. Other files in the directory stay, and so does a directory
        without a record: `start` writes it before it makes the first node.
        """
        if self.directory.exists():  # as above
            with record.locked(self.directory, LOCK_LIMIT):
                self._kill_and_delete()

    def kill(self, number: int, sig: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to node `number`; after SIGKILL wait until it is gone.

        Raises:
            DevError: it does not run.
        """
        home = self._node(number).home
        # Waiting lets the caller start it again at once: its ports are free then.
        hit = processes.kill([home]) if sig is signal.SIGKILL else processes.send_signal(home, sig)
        if not hit:
            raise DevError(f"Node {number} does not run. {command('start', self.directory)} starts it.")

    def logs(self, number: int = 1, lines: int = 50) -> list[str]:
        """The last lines that node `number` wrote in its present or last run."""
        return self._node(number).log_tail(lines)

    def _settings(self, known: Record | None) -> Settings:
        """Return the settings: those asked for, else those stored, else the defaults."""
        if known is None:
            nodes = self._given.get("nodes", 1)
            return Settings(**{"heap": default_heap(nodes), **self._given})
        wanted = replace(known.settings, **self._given)
        if wanted.nodes != known.settings.nodes:
            raise DevError(
                f"The cluster in {self.directory} was made with --nodes {known.settings.nodes}, "
                f"not {wanted.nodes}, which cannot be changed. {command('wipe', self.directory)} deletes it; "
                "--dir makes another."
            )
        return wanted

    def _same_settings(self, known: Record) -> Settings:
        wanted = self._settings(known)
        pairs = {name: (getattr(known.settings, name), getattr(wanted, name)) for name in Settings.__slots__}
        difference = [
            f"{name} {old!r} instead of {new!r}" for name, (old, new) in pairs.items() if old != new
        ]
        if difference:
            raise DevError(
                f"The cluster in {self.directory} runs with {', '.join(difference)}. "
                f"Run {command('stop', self.directory)} first."
            )
        return wanted

    def _placed(self, known: Record | None, wanted: Settings, reservation: Reservation) -> Record:
        """The record to start with: a node moves only if somebody else listens on its address."""
        if wanted.addresses:  # elsewhere, where this process may not be able to listen
            addresses = list(wanted.addresses)
        elif known is None:
            addresses = reservation.take_from(self._first_address, wanted.nodes)
        else:
            addresses = list(known.addresses)
            taken = [node for node in _missing(self._nodes(known)) if not reservation.take(node.address)]
            # Never to the address of another node of ours: Cassandra takes that for a second node there.
            # Those are held by now, or listened on.
            for node in taken:
                (addresses[node.number - 1],) = reservation.take_from(self._first_address, 1)
        name = f"cqueue-dev-{uuid4().hex[:12]}" if known is None else known.cluster_name
        return Record(name, tuple(addresses), wanted, formed=known is not None and known.formed)

    def _launch(
        self, missing: Sequence[Node], nodes: Sequence[Node], limit: timedelta, progress: Progress
    ) -> None:
        """Start `missing` and wait for `nodes`; leave no process behind if that does not work."""
        try:
            launched = {}
            if missing:
                java, jars = find_java(), ensure_jars(progress)
                launched = {node.number: node.launch(java, jars) for node in missing}
            startup.await_answers(nodes, launched, limit, progress)
            if len(nodes) == len(nodes[0].record.addresses):
                startup.await_ring(nodes, launched, limit)
                record.save(self.directory, replace(nodes[0].record, formed=True))
        except BaseException:  # Ctrl-C as well: a node that nobody waits for must not run on
            processes.kill([node.home for node in missing])
            raise

    def _node(self, number: int) -> Node:
        known = record.load(self.directory)
        if known is None:
            raise DevError(
                f"There is no cluster in {self.directory}. {command('start', self.directory)} makes one."
            )
        if not 1 <= number <= len(known.addresses):
            raise ConfigError(f"There is no node {number}; the cluster has 1 to {len(known.addresses)}.")
        return Node(self.directory, number, known)

    def _nodes(self, known: Record) -> list[Node]:
        return [Node(self.directory, number + 1, known) for number in range(len(known.addresses))]

    def _homes(self) -> list[Path]:
        # Without the record, which may be damaged.
        return [home for home in sorted(self.directory.glob(f"node[1-{MAX_NODES}]")) if home.is_dir()]

    def _refuse_foreign(self) -> None:
        """Refuse a directory without a record in which somebody else keeps things where nodes would lie."""
        foreign = [home for home in self._homes() if not home.is_mount() and any(home.iterdir())]
        if foreign:
            raise DevError(
                f"{foreign[0]} was not made by `cqueue dev`, or its {record.RECORD} was deleted. "
                "Choose another place with --dir, or delete it yourself."
            )

    def _kill_and_delete(self) -> None:
        homes, path = self._homes(), self.directory / record.RECORD
        processes.kill(homes)
        if path.exists():
            # What is interrupted here goes on at the next start, instead of starting with half of the data.
            with suppress(DevError, OSError):  # the record may be damaged, or the disk full
                if (known := record.load(self.directory)) is not None:
                    record.save(self.directory, replace(known, formed=False))
            for home in homes:
                _delete(home)
            path.unlink()


def _delete(home: Path) -> None:
    """Delete a node's directory; one that is a file system of its own is emptied."""
    if not home.is_mount():
        shutil.rmtree(home)
        return
    for entry in home.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _missing(nodes: Sequence[Node]) -> list[Node]:
    return [node for node in nodes if node.pid() is None]


def _ports(settings: Settings) -> tuple[int, int]:
    return settings.cql_port, settings.storage_port
