"""Write a file that appears under its name only once it is complete."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cqueue.errors import BadInput


@contextmanager
def atomic_file(file: Path) -> Iterator[Path]:
    """Yield a file beside this one; at the end of the block it takes this one's name.

    Raises:
        BadInput: the file cannot be written.
    """
    part = file.with_name(f".{file.name}.part")
    try:
        if file.exists() and not file.is_file():  # a pipe or a device would be replaced, not written
            raise BadInput(f"{file} is no regular file.")
        yield part
        part.replace(file)
    except (OSError, UnicodeError) as exc:
        raise BadInput(f"{file} cannot be written: {getattr(exc, 'strerror', None) or exc}.") from exc
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)
