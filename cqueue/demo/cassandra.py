"""Find Cassandra for the demo: the one that is named, or the embedded one, started if need be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path

from cqueue.settings import load

Say = Callable[[str], None]
Status = Callable[[str], AbstractContextManager[Say]]
"""Shows that something goes on while it lasts; what it yields changes the text."""
Step = Callable[[], AbstractContextManager[None]]
"""Holds interrupts back while it lasts."""


PATIENCE = timedelta(seconds=5)
"""How long to wait for a demo that looks, for a moment, whether another one has started Cassandra."""


@contextmanager
def embedded(directory: Path | None, status: Status, remark: Say, step: Step, *, keep: bool) -> Iterator[str]:
    """The URL of the embedded Cassandra. One that was started for this is stopped, unless `keep`.

    remark: told that it has to be started.

    Raises:
        DevError: it does not start, or another demo has started it, and would stop it under this one.
    """
    from cqueue.dev import ClusterState, DevCluster, record  # noqa: PLC0415 - only where it is needed

    cluster, alone = DevCluster(directory), ExitStack()
    alone.enter_context(record.locked(cluster.directory / "demo", PATIENCE))
    ours = False
    try:
        ours = cluster.status().state is ClusterState.STOPPED
        if not ours:
            alone.close()
        else:
            remark("Starting the embedded Cassandra, which takes a while the first time.")
        with status("Starting Cassandra") as say:
            url = cluster.start(say).url
        if keep:
            alone.close()
        yield str(url)
    finally:
        if ours and not keep:
            with step(), status("Stopping Cassandra"):
                cluster.stop()
        alone.close()


def apply_schema(url: str | None, say: Say) -> None:
    """Make the keyspace ready; nothing happens if it is. A store in memory needs none."""
    settings = load(url)
    if settings.scheme == "memory":
        return
    from cqueue.schema import Options, apply  # noqa: PLC0415 - the driver takes long to import
    from cqueue.store.connection import open_session  # noqa: PLC0415 - as above

    with open_session(settings, use_keyspace=False) as connection:
        apply(connection, settings, Options(), report=lambda progress: say(progress.text))
