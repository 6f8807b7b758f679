"""The queues that take part, what each needs, and how to install what is missing."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers.processes import find_program
from benchmarks.peers.workload import Peer, SelfMeasuring

_HERE = Path(__file__).resolve().parent
_DEBIAN = {
    "epmd": "rabbitmq-server",
    "initdb": "postgresql",
    "java": "openjdk-17-jre-headless",
    "postgres": "postgresql",
    "rabbitmq-server": "rabbitmq-server",
    "redis-server": "redis-server",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of the table. The module is imported only if its needs are met.

    factory: `module:class` below benchmarks.peers. options: arguments of the class.
    packages: Python packages. programs: servers' programs. files: made by `make`, with the command.
    slow: it hands out fewer than 10,000 messages a second, and gets a tenth of them.
    """

    key: str
    title: str
    factory: str
    options: Mapping[str, Any] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    slow: bool = False

    def missing(self) -> str:
        """Return the command that installs what is missing; empty if nothing is."""
        debian = {_DEBIAN[name] for name in self.programs if find_program(name) is None}
        wanting = [name for name in self.packages if importlib.util.find_spec(name) is None]
        todo = [f"apt-get install {' '.join(sorted(debian))}"] if debian else []
        if wanting:
            todo.append("benchmarks/peers/.venv/bin/pip install -r benchmarks/peers/requirements.txt")
        todo += [command for path, command in self.files.items() if not (_HERE.parents[1] / path).exists()]
        return " && ".join(todo)

    def make(self, directory: Path) -> Peer | SelfMeasuring:
        """Make a peer, not started."""
        module, name = self.factory.split(":")
        made: Any = getattr(importlib.import_module(f"benchmarks.peers.{module}"), name)
        peer: Peer | SelfMeasuring = made(directory, **self.options)
        return peer


_REDIS = ("redis-server",)
_POSTGRES = ("postgres", "initdb")
_RABBITMQ = ("rabbitmq-server", "epmd")
_JAR = {"benchmarks/peers/dyno/target/dyno-peer.jar": "mvn -q -f benchmarks/peers/dyno/pom.xml package"}
_CQUEUE = {".venv/bin/cqueue": "make setup"}


def _cqueue(key: str, **options: Any) -> Entry:
    return Entry(
        key=key,
        title="cqueue on Cassandra",
        factory="cqueue_embedded:CqueueEmbedded",
        options=options,
        programs=("java",),
        files=_CQUEUE,
    )


def _dyno(key: str, **options: Any) -> Entry:
    return Entry(
        key=key,
        title="dyno-queues on Redis",
        factory="dyno_redis:DynoPeer",
        options=options,
        programs=(*_REDIS, "java"),
        files=_JAR,
    )


def _rabbitmq(kind: str) -> Entry:
    return Entry(
        key=f"rabbitmq-{kind}",
        title="RabbitMQ, pika",
        factory="rabbitmq_pika:RabbitMQPeer",
        options={"kind": kind},
        packages=("pika",),
        programs=_RABBITMQ,
    )


def _on_redis(library: str, title: str, peer: str) -> Entry:
    return Entry(
        key=library,
        title=f"{title} on Redis",
        factory=f"{library}_redis:{peer}",
        slow=True,
        packages=(library, "redis"),
        programs=_REDIS,
    )


ENTRIES = (
    _cqueue("cqueue-batch", commitlog="batch"),
    _cqueue("cqueue-batch-two", commitlog="batch", two=True),
    _cqueue("cqueue-periodic", commitlog="periodic"),
    _dyno("dyno-always", fsync="always"),
    _dyno("dyno-always-two", fsync="always", threads=2),
    _dyno("dyno-everysec", fsync="everysec"),
    _rabbitmq("classic"),
    _rabbitmq("quorum"),
    Entry(
        key="pgqueuer",
        title="PgQueuer on PostgreSQL",
        factory="pgqueuer_postgres:PgQueuerPeer",
        packages=("pgqueuer", "asyncpg", "uvloop"),
        programs=_POSTGRES,
    ),
    Entry(
        key="procrastinate",
        title="Procrastinate on PostgreSQL",
        factory="procrastinate_postgres:ProcrastinatePeer",
        slow=True,
        packages=("procrastinate", "psycopg"),
        programs=_POSTGRES,
    ),
    _on_redis("dramatiq", "Dramatiq", "DramatiqPeer"),
    _on_redis("celery", "Celery", "CeleryPeer"),
    _on_redis("rq", "RQ", "RqPeer"),
)
