"""Who takes part, what each needs, and how to install what is missing."""

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
    options: Mapping[str, str] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    slow: bool = False

    def missing(self) -> str:
        """What to do before this one can be measured; empty if nothing."""
        debian = {_DEBIAN[name] for name in self.programs if find_program(name) is None}
        wanting = [name for name in self.packages if importlib.util.find_spec(name) is None]
        todo = [f"apt-get install {' '.join(sorted(debian))}"] if debian else []
        if wanting:
            todo.append("benchmarks/peers/.venv/bin/pip install -r benchmarks/peers/requirements.txt")
        todo += [command for path, command in self.files.items() if not (_HERE.parents[1] / path).exists()]
        return " && ".join(todo)

    def make(self, directory: Path) -> Peer | SelfMeasuring:
        """An instance, not started."""
        module, name = self.factory.split(":")
        made: Any = getattr(importlib.import_module(f"benchmarks.peers.{module}"), name)
        peer: Peer | SelfMeasuring = made(directory, **self.options)
        return peer


_REDIS = ("redis-server",)
_POSTGRES = ("postgres", "initdb")
_RABBITMQ = ("rabbitmq-server", "epmd")
_JAR = {"benchmarks/peers/dyno/target/dyno-peer.jar": "mvn -q -f benchmarks/peers/dyno/pom.xml package"}
_CQUEUE = {".venv/bin/cqueue": "make setup"}

ENTRIES = (
    Entry(
        key="cqueue-batch",
        title="cqueue on Cassandra",
        factory="cqueue_embedded:CqueueEmbedded",
        options={"commitlog": "batch"},
        programs=("java",),
        files=_CQUEUE,
    ),
    Entry(
        key="cqueue-batch-two",
        title="cqueue on Cassandra",
        factory="cqueue_embedded:CqueueEmbedded",
        options={"commitlog": "batch", "two": True},
        programs=("java",),
        files=_CQUEUE,
    ),
    Entry(
        key="cqueue-periodic",
        title="cqueue on Cassandra",
        factory="cqueue_embedded:CqueueEmbedded",
        options={"commitlog": "periodic"},
        programs=("java",),
        files=_CQUEUE,
    ),
    Entry(
        key="dyno-always",
        title="dyno-queues on Redis",
        factory="dyno_redis:DynoPeer",
        options={"fsync": "always"},
        programs=(*_REDIS, "java"),
        files=_JAR,
    ),
    Entry(
        key="dyno-always-two",
        title="dyno-queues on Redis",
        factory="dyno_redis:DynoPeer",
        options={"fsync": "always", "threads": 2},
        programs=(*_REDIS, "java"),
        files=_JAR,
    ),
    Entry(
        key="dyno-everysec",
        title="dyno-queues on Redis",
        factory="dyno_redis:DynoPeer",
        options={"fsync": "everysec"},
        programs=(*_REDIS, "java"),
        files=_JAR,
    ),
    Entry(
        key="rabbitmq-classic",
        title="RabbitMQ, pika",
        factory="rabbitmq_pika:RabbitMQPeer",
        options={"kind": "classic"},
        packages=("pika",),
        programs=_RABBITMQ,
    ),
    Entry(
        key="rabbitmq-quorum",
        title="RabbitMQ, pika",
        factory="rabbitmq_pika:RabbitMQPeer",
        options={"kind": "quorum"},
        packages=("pika",),
        programs=_RABBITMQ,
    ),
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
    Entry(
        key="dramatiq",
        title="Dramatiq on Redis",
        factory="dramatiq_redis:DramatiqPeer",
        slow=True,
        packages=("dramatiq", "redis"),
        programs=_REDIS,
    ),
    Entry(
        key="celery",
        title="Celery on Redis",
        factory="celery_redis:CeleryPeer",
        slow=True,
        packages=("celery", "redis"),
        programs=_REDIS,
    ),
    Entry(
        key="rq",
        title="RQ on Redis",
        factory="rq_redis:RqPeer",
        slow=True,
        packages=("rq", "redis"),
        programs=_REDIS,
    ),
)
