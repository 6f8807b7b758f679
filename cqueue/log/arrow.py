"""Records as Arrow record batches, for data frames and files."""

from __future__ import annotations

import pyarrow as pa

from cqueue import ids
from cqueue.protocol.scan import Record

SCHEMA = pa.schema(
    [
        pa.field("partition", pa.int16(), nullable=False),
        pa.field("id", pa.binary(16), nullable=False),
        pa.field("time", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("key", pa.string()),
        pa.field("headers", pa.map_(pa.string(), pa.string())),
        pa.field("body", pa.binary(), nullable=False),
    ]
)
"""id: the 16 bytes of the TimeUUID; time: when it was appended, by the cluster's clock."""


def batch_of(found: list[Record]) -> pa.RecordBatch:
    """The records, in their order."""
    if not found:
        return pa.RecordBatch.from_pylist([], schema=SCHEMA)
    rows, partitions = zip(*found, strict=True)
    ids_, topics, keys, headers, bodies = zip(*rows, strict=True)
    columns = (
        partitions,
        list(map(ids.to_bytes, ids_)),
        list(map(ids.time_us, ids_)),
        topics,
        keys,
        [None if each is None else list(each.items()) for each in headers],
        bodies,
    )
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
