"""Records of a scan in a file that data frames read: Arrow's IPC format, or Parquet.

The file appears under its name once it is complete, so that nobody takes a part for the whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cqueue.errors import BadInput

try:
    import pyarrow as pa
    from pyarrow import parquet

    from cqueue.log.arrow import SCHEMA
except ImportError as exc:
    raise BadInput("This needs pyarrow: pip install 'cassandra-cqueue[arrow]'") from exc

if TYPE_CHECKING:
    from cqueue.log.scanner import Scanner


def write_arrow(scanner: Scanner, file: Path) -> int:
    """Write an Arrow IPC file; return the number of its records."""
    with _complete(file) as sink, pa.ipc.new_file(sink, SCHEMA) as writer:
        return _write_all(scanner, writer)


def write_parquet(scanner: Scanner, file: Path) -> int:
    """Write a Parquet file; return the number of its records."""
    with _complete(file) as sink, parquet.ParquetWriter(sink, SCHEMA) as writer:
        return _write_all(scanner, writer)


def _write_all(scanner: Scanner, writer: Any) -> int:
    rows = 0
    for batch in scanner.to_arrow():
        writer.write_batch(batch)
        rows += batch.num_rows
    return rows


@contextmanager
def _complete(file: Path) -> Iterator[str]:
    """Yield the name of a file beside this one; at the end of the block it takes this one's name.

    Raises:
        BadInput: the file cannot be written.
    """
    part = file.with_name(f".{file.name}.part")
    try:
        yield str(part)
        part.replace(file)
    except OSError as exc:
        raise BadInput(f"{file} cannot be written: {exc.strerror or exc}.") from exc
    finally:
        part.unlink(missing_ok=True)
