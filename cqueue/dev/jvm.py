"""The command line that runs one node: the options of the real server, less what only big ones need.

They come from jvm-server.options, jvm17-server.options and cassandra-env.sh of Cassandra 5.0. Left out:
touching the whole heap at the start (seconds, and memory a laptop lacks), 16 MiB regions (32 of them
make no sensible heap of 512 MiB), the remote management port (two nodes would fight for it).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from cqueue.dev.settings import Settings
from cqueue.errors import DevError

MAIN_CLASS = "org.apache.cassandra.service.CassandraDaemon"
LOGBACK = Path(__file__).with_name("logback.xml")

# By this property, followed by the node's directory, a process is recognised as ours.
MARKER = "-Dcqueue.dev.node="

_EXPORTS = (
    "java.base/jdk.internal.misc",
    "java.management.rmi/com.sun.jmx.remote.internal.rmi",
    "java.rmi/sun.rmi.registry",
    "java.rmi/sun.rmi.server",
    "java.sql/java.sql",
    "java.base/java.lang.ref",
    "jdk.unsupported/sun.misc",
    "jdk.compiler/com.sun.tools.javac.file",
    "jdk.attach/sun.tools.attach",
)
_OPENS = (
    "java.base/java.lang.module",
    "java.base/jdk.internal.loader",
    "java.base/jdk.internal.ref",
    "java.base/jdk.internal.reflect",
    "java.base/jdk.internal.math",
    "java.base/jdk.internal.module",
    "java.base/jdk.internal.util.jar",
    "jdk.management/com.sun.management.internal",
    "java.base/sun.nio.ch",
    "java.base/java.io",
    "java.base/java.lang.reflect",
    "jdk.compiler/com.sun.tools.javac",
    "java.base/java.lang",
    "java.base/java.util",
)
_SERVER = (
    "-ea",
    "-da:net.openhft...",
    "-Xss256k",
    "-XX:+UseG1GC",
    "-XX:+ParallelRefProcEnabled",
    "-XX:MaxTenuringThreshold=1",
    "-XX:MaxGCPauseMillis=300",
    "-XX:InitiatingHeapOccupancyPercent=70",
    "-XX:+PerfDisableSharedMem",
    # Half a process corrupts data: better none.
    "-XX:+ExitOnOutOfMemoryError",
    # Without it Cassandra closes its output once it is up, and with it the log.
    "-Dcassandra-foreground=yes",
    "-Djdk.attach.allowAttachSelf=true",
    "-Djava.net.preferIPv4Stack=true",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.useCacheForAllThreads=true",
    "-Dio.netty.allocator.maxOrder=11",
)
# Waits that make sense when strangers join a ring; here all members are known beforehand.
_NO_WAITS = (
    "-Dcassandra.ring_delay_ms=2000",
    "-Dcassandra.skip_wait_for_gossip_to_settle=0",
    "-Dcassandra.shutdown_announce_in_ms=500",
)


def java_command(java: Path, jars: Sequence[Path], home: Path, settings: Settings) -> list[str]:
    """The command of the node that lives in `home`."""
    return [
        str(java),
        MARKER + str(home),
        f"-javaagent:{_jamm(jars)}",
        f"-Xms{settings.heap}",
        f"-Xmx{settings.heap}",
        *_SERVER,
        *(f"--add-exports={module}=ALL-UNNAMED" for module in _EXPORTS),
        *(f"--add-opens={module}=ALL-UNNAMED" for module in _OPENS),
        *_NO_WAITS,
        f"-Dcassandra.config={(home / 'cassandra.yaml').as_uri()}",
        f"-Dcassandra.storagedir={home}",
        f"-Dcassandra.logdir={home}",
        f"-Dlogback.configurationFile={LOGBACK}",
        # Native libraries are unpacked here; a killed node leaves them, and /tmp may forbid execution.
        f"-Djava.io.tmpdir={home / 'tmp'}",
        f"-Djna.tmpdir={home / 'tmp'}",
        f"-XX:ErrorFile={home / 'crash.log'}",
        # The first operator is there at once, instead of after ten seconds.
        *(["-Dcassandra.superuser_setup_delay_ms=0"] if settings.auth else []),
        *settings.jvm_options,
        "-cp",
        ":".join(str(jar) for jar in jars),
        MAIN_CLASS,
    ]


def java_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a node: ours, with glibc's arenas bounded as cassandra-env.sh does it."""
    return {"MALLOC_ARENA_MAX": "4", **environ}


def _jamm(jars: Sequence[Path]) -> Path:
    # Cassandra measures its objects with this agent, and does not start without it.
    for jar in jars:
        if jar.name.startswith("jamm-"):
            return jar
    raise DevError("The jars lack jamm. Run `cqueue dev jars` after deleting the cache directory.")
