"""The peers' servers: child processes on free loopback ports, with data directories of their own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any, Protocol

from benchmarks.peers.processes import Child, answers, free_port, program
from benchmarks.peers.workload import PeerError

_POSTGRES_USER = "postgres"


class Server(Protocol):
    """The server of a peer."""

    url: str

    def start(self) -> None:
        """Start the server, and wait until it answers."""

    def version(self) -> str:
        """Return name and version."""

    def stop(self) -> None:
        """Stop the server. The directory belongs to the caller."""


class _Programs:
    """The child processes of a server."""

    _signal = signal.SIGTERM

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._port = free_port()
        self._children: list[Child] = []

    def _run(self, name: str, command: list[str], **how: Any) -> Child:
        """Start a program, with its output in a file of that name."""
        self._children.append(Child(command, self._directory / f"{name}.log", **how))
        return self._children[-1]

    def _home(self, name: str) -> Path:
        home = self._directory / name
        home.mkdir()
        return home

    def stop(self) -> None:
        """Stop all of them, the last one first."""
        while self._children:
            self._children.pop().stop(self._signal)


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


class Redis(_Programs):
    """Redis with an append-only file, no snapshots. fsync: `everysec` or `always`."""

    def __init__(self, directory: Path, fsync: str) -> None:
        super().__init__(directory)
        self._fsync = fsync
        self.port = self._port
        self.url = f"redis://127.0.0.1:{self._port}/0"

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        data = self._home("redis")
        command = [program("redis-server"), "--port", str(self._port), "--bind", "127.0.0.1"]
        command += ["--dir", str(data), "--appendonly", "yes", "--appendfsync", self._fsync, "--save", ""]
        self._run("redis", command).wait_until(lambda: answers(self._port))

    def version(self) -> str:
        """Return name and version."""
        words = _output(program("redis-server"), "--version").split()
        return "Redis " + next(word[2:] for word in words if word.startswith("v="))


class Postgres(_Programs):
    """PostgreSQL as its packages configure it: `fsync` and `synchronous_commit` are on."""

    _signal = signal.SIGINT  # its fast shutdown

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        # The server refuses to run as root.
        self._user = _POSTGRES_USER if os.geteuid() == 0 else None
        self.url = f"postgresql://postgres@127.0.0.1:{self._port}/postgres"

    def start(self) -> None:
        """Make a database, start the server, and wait until it answers."""
        home = self._home("postgres")
        if self._user:
            shutil.chown(home, self._user)
        data = home / "data"
        self._initialize(data)
        command = [program("postgres"), "-D", str(data), "-p", str(self._port), "-k", str(home)]
        command += ["-c", "listen_addresses=127.0.0.1", "-c", "fsync=on", "-c", "synchronous_commit=on"]
        self._run("postgres", command, user=self._user, directory=home).wait_until(self._ready)

    def _initialize(self, data: Path) -> None:
        command = [program("initdb"), "-D", str(data), "-U", "postgres", "-A", "trust", "-E", "UTF8"]
        log = self._directory / "initdb.log"
        child = Child([*command, "--locale=C"], log, user=self._user, directory=data.parent)
        try:
            if child.process.wait() != 0:
                raise PeerError(f"initdb failed: {child.tail()}")
        finally:
            child.stop()

    def _ready(self) -> bool:
        command = [program("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self._port)]
        return subprocess.run(command, check=False).returncode == 0

    def version(self) -> str:
        """Return name and version."""
        return "PostgreSQL " + _output(program("postgres"), "--version").split()[2]


class RabbitMQ(_Programs):
    """RabbitMQ, one node. Its port mapper is a child too, since Erlang's own would stay for ever."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._mapper_port = free_port()
        self._version = ""
        self.url = f"amqp://guest:guest@127.0.0.1:{self._port}/%2F?heartbeat=0"

    def start(self) -> None:
        """Start the port mapper and the server, and wait until it answers."""
        home = self._home("rabbitmq")
        environment = self._environment(home)
        mapper = [program("epmd"), "-port", str(self._mapper_port), "-address", "127.0.0.1"]
        self._run("epmd", mapper, env=environment).wait_until(lambda: answers(self._mapper_port))
        # Not the one on PATH: Debian's runs as the user of the installed service.
        server = str(Path("/usr/lib/rabbitmq/bin/rabbitmq-server"))
        command = [server if Path(server).exists() else program("rabbitmq-server")]
        self._run("rabbitmq", command, env=environment, directory=home).wait_until(self._ready)

    def _environment(self, home: Path) -> dict[str, str]:
        (home / "plugins").write_text("[].\n")
        (home / "rabbitmq.conf").write_text(f"listeners.tcp.default = 127.0.0.1:{self._port}\n")
        (home / "env.conf").touch()
        return {
            "HOME": str(home),
            "ERL_EPMD_PORT": str(self._mapper_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_CONF_ENV_FILE": str(home / "env.conf"),
            "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "plugins"),
            "RABBITMQ_NODENAME": f"bench{self._port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self._port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(home / "data"),
            "RABBITMQ_LOG_BASE": str(home / "log"),
            "RABBITMQ_PID_FILE": str(home / "pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        }

    def _ready(self) -> bool:
        import pika  # noqa: PLC0415 - this module serves peers that do without it
        from pika.exceptions import AMQPError  # noqa: PLC0415 - as above

        if not answers(self._port):
            return False
        try:
            connection = pika.BlockingConnection(pika.URLParameters(self.url))
        except (AMQPError, OSError):
            return False
        self._version = str(connection._impl.server_properties.get("version", b""))  # noqa: SLF001
        connection.close()
        return True

    def version(self) -> str:
        """Return name and version, as the server told."""
        return f"RabbitMQ {self._version}"
