"""Records as Arrow record batches, for data frames and files."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from cqueue import ids
from cqueue.log.batches import Batch
from cqueue.store.record_columns import pairs, uuids

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


def batch_of(found: Batch) -> pa.RecordBatch:
    """The records, in their order."""
    numbers, topics, keys, headers, bodies = found.columns.columns
    arrays = (
        found.partitions,
        _ids(numbers),
        list(map(ids.time_us, numbers)),
        _texts(topics),
        _texts(keys),
        [None if each is None else list(pairs(each)) for each in headers]
        if any(headers)
        else _nulls(headers),
        bodies,
    )
    return pa.RecordBatch.from_arrays(
        [
            array if isinstance(array, pa.Array) else pa.array(array, field.type)
            for array, field in zip(arrays, SCHEMA, strict=True)
        ],
        schema=SCHEMA,
    )


def _ids(numbers: list[int]) -> pa.Array:
    return pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(16), len(numbers), [None, pa.py_buffer(uuids(numbers))]
    )


def _texts(cells: Sequence[bytes | None]) -> pa.Array:
    """Texts from their bytes, which Cassandra has checked already."""
    return pa.array(cells, pa.binary()).view(pa.string())


def _nulls(cells: Sequence[bytes | None]) -> pa.Array:
    return pa.nulls(len(cells), SCHEMA.field("headers").type)
