"""A local, durable buffer, so that a producer neither loses a message nor waits while Cassandra is away.

It needs the extra `spool`: `pip install cassandra-cqueue[spool]`. How it stores messages, and what can go
wrong at each step: docs/explanation/spool.md.
"""

from importlib.util import find_spec

from cqueue.errors import ConfigError

if find_spec("google_crc32c") is None:
    raise ConfigError("A spool needs google-crc32c: pip install 'cassandra-cqueue[spool]'")

from cqueue.spool.damage import Finding
from cqueue.spool.metrics import SpoolCollector
from cqueue.spool.record import SpoolRecord
from cqueue.spool.spool import Spool
from cqueue.spool.stored_queue import QueueStatus

__all__ = ["Finding", "QueueStatus", "Spool", "SpoolCollector", "SpoolRecord"]
