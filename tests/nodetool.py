"""Cassandra's own tool for operators, on nodes that tests have started."""

import socket
import subprocess
from contextlib import ExitStack

from cqueue.dev.jars import ensure_jars
from cqueue.dev.java import find_java
from cqueue.dev.jvm import LOGBACK

LIMIT_S = 300
MODULES = ("java.base/sun.nio.ch", "java.base/jdk.internal.ref")
"""What nodetool needs of the JVM."""


def free_ports(count):
    """Ports of 127.0.0.1, where nodes can listen for nodetool."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def prefixes(ports):
    """What to put before each node's command (`DevCluster`), so that it listens on its port."""
    return [("env", f"JDK_JAVA_OPTIONS=-Dcassandra.jmx.local.port={port}") for port in ports]


def nodetool(directory, port, *arguments, prefix=()):
    """What nodetool prints about the node that listens on `port`.

    Arguments:
        directory: where the tool may write its history.
        port: of 127.0.0.1.
        arguments: as on the command line.
        prefix: of the command, e.g. to run it in a network namespace.
    """
    command = [
        *prefix,
        str(find_java()),
        *(f"--add-exports={module}=ALL-UNNAMED" for module in MODULES),
        "-XX:TieredStopAtLevel=1",
        f"-Duser.home={directory}",
        f"-Dlogback.configurationFile={LOGBACK}",
        f"-Dcassandra.storagedir={directory}",
        "-cp",
        ":".join(map(str, ensure_jars())),
        "org.apache.cassandra.tools.NodeTool",
        "-p",
        str(port),
        *arguments,
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout
