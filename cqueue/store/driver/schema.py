"""What the driver keeps of a cluster's schema: how one keyspace is replicated, and nothing more.

Routing a request to a node that stores its partition needs that. The driver would read all tables of all
keyspaces whenever a client connects and whenever its connection for events is lost, and each table that any
application alters.
"""

from __future__ import annotations

import inspect
from typing import Any, Final

from cassandra.metadata import Metadata

from cqueue.store.driver.probe import Part, find

KEYSPACE: Final = "KEYSPACE"
"""What the driver calls a change of a keyspace itself."""
REFRESH: Final = "cassandra.metadata:Metadata.refresh"
ONE_KEYSPACE: Final = Part(
    "one keyspace",
    (REFRESH,),
    lambda: (
        [*inspect.signature(find(REFRESH)).parameters][:4] == ["self", "connection", "timeout", "target_type"]
    ),
    "each connect reads all tables of the cluster, and each table that is altered is read again",
)


class OneKeyspace(Metadata):  # type: ignore[misc]
    """The driver's metadata, with the replication of one keyspace for a schema."""

    def __init__(self, keyspace: str) -> None:
        super().__init__()
        self._keyspace = keyspace

    def refresh(self, connection: Any, timeout: float, target_type: str | None = None, **target: Any) -> None:
        """Read the keyspace again, unless something else has changed. target_type: None for everything."""
        if target_type in {None, KEYSPACE} and target.get("keyspace", self._keyspace) == self._keyspace:
            super().refresh(connection, timeout, KEYSPACE, keyspace=self._keyspace)
