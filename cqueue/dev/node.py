"""One node: its directory, its configuration, its process."""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cqueue.dev import certificates, probe, processes
from cqueue.dev.jvm import java_command, java_environment
from cqueue.dev.paths import AUTHORITY, CLIENT, NODE, TLS, node_home
from cqueue.dev.record import Record
from cqueue.dev.settings import LOGIN, cassandra_yaml
from cqueue.dev.status import NodeState, NodeStatus

LOG = "node.log"


@dataclass(frozen=True, slots=True)
class Node:
    """Node `number` (from 1) of the cluster in `directory`."""

    directory: Path
    number: int
    record: Record

    @property
    def home(self) -> Path:
        """Everything of this node is below this directory."""
        return node_home(self.directory, self.number)

    @property
    def address(self) -> str:
        """Return the address that the node listens on."""
        return self.record.addresses[self.number - 1]

    def pid(self) -> int | None:
        """Return the id of the node's process, None if it does not run."""
        return processes.find(self.home)

    def answers(self) -> bool:
        """Return whether the node answers CQL."""
        return probe.answers(self._door(), self.record.cluster_name)

    def sees_ring(self) -> bool:
        """Return whether the node finds all nodes of the cluster alive."""
        return probe.sees_ring(self._door(), len(self.record.addresses))

    def status(self) -> NodeStatus:
        """Return the node's state."""
        pid = self.pid()
        running = NodeState.UP if pid and self.answers() else NodeState.STARTING
        return NodeStatus(
            number=self.number,
            address=self.address,
            port=self.record.settings.cql_port,
            pid=pid,
            state=running if pid else NodeState.DOWN,
        )

    def launch(self, java: Path, jars: Sequence[Path]) -> int:
        """Start the node's process, which answers some seconds later; return the process's id."""
        self._prepare()
        log = self.home / LOG
        if log.exists():
            # The log of the run before may tell why that one ended.
            log.replace(self.home / f"{LOG}.1")
        settings = self.record.settings
        prefix = settings.prefixes[self.number - 1] if settings.prefixes else ()
        return processes.spawn(
            [*prefix, *java_command(java, jars, self.home, settings)],
            home=self.home,
            log=log,
            environ=java_environment(os.environ),
        )

    def log_tail(self, lines: int) -> list[str]:
        """Return the last lines of the node's log, none if it has no log."""
        try:
            with (self.home / LOG).open(errors="replace") as log:
                return [line.rstrip("\n") for line in deque(log, maxlen=lines)]
        except FileNotFoundError:
            return []

    def log_size(self) -> int:
        """Return the bytes of the node's log: while a start goes on, it grows."""
        try:
            return (self.home / LOG).stat().st_size
        except FileNotFoundError:
            return 0

    def _door(self) -> probe.Node:
        settings, files = self.record.settings, self.directory / TLS
        tls = (files / AUTHORITY, files / CLIENT) if settings.tls else None
        return probe.Node(self.address, settings.cql_port, tls, LOGIN if settings.auth else None)

    def _prepare(self) -> None:
        shutil.rmtree(self.home / "tmp", ignore_errors=True)  # what a killed run unpacked
        (self.home / "tmp").mkdir(parents=True)
        if self.record.settings.tls:
            files = self.directory / TLS
            certificates.make_authority(files)
            # Anew at each start, since a node may have moved to another address.
            names = (f"IP:{self.address}", "DNS:localhost")
            certificates.issue(files, self.home / NODE, "cqueue dev node", names)
        text = cassandra_yaml(
            self.record.settings,
            cluster_name=self.record.cluster_name,
            addresses=self.record.addresses,
            directory=self.directory,
            index=self.number - 1,
        )
        (self.home / "cassandra.yaml").write_text(text)
