"""The spool: a directory on the local disk that takes messages and gives them back in order."""

from __future__ import annotations

import re
import weakref
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self, Unpack
from urllib.parse import quote, unquote

from cqueue.errors import BadInput, Closed, NotDone
from cqueue.runtime.suggestions import check_known
from cqueue.runtime.waiting import Condition, Future
from cqueue.spool.damage import Finding
from cqueue.spool.disk import Disk
from cqueue.spool.intake import Entry, Intake
from cqueue.spool.level import Level
from cqueue.spool.lock import LOCK, DirectoryLock
from cqueue.spool.options import OptionValues, SpoolOptions
from cqueue.spool.record import HEAD, SpoolRecord
from cqueue.spool.segment import OVERHEAD
from cqueue.spool.stored_queue import QueueStatus, StoredQueue
from cqueue.spool.writer import Writer

_NUMBER: Final = re.compile("0|[1-9][0-9]{0,5}")
_PAGE: Final = 1000
"""Records that an iterator reads at once."""


@dataclass(slots=True)
class Forwarding:
    """What forwarders did with a topic since the spool was opened."""

    forwarded: int = 0  # records
    failures: int = 0  # batches


class Spool:
    """A local, durable buffer of messages, in queues of a topic and a number.

        with Spool("/var/spool/app") as spool:
            offset = spool.append("mail", b"hello").result()
            for record in spool.records("mail"):
                ...
            spool.commit("mail", offset + 1)

    All methods may be called from any thread. One process at a time may open a directory for writing; a
    process that was forked off cannot use it. The options are those of `SpoolOptions`.

    Raises:
        SpoolLocked: another process has it open.
        NotDone: the directory cannot be made, or not all of it can be read.
        BadInput: the path is none, there is no such option, or it is out of its range.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        readonly: bool = False,
        disk: Disk | None = None,
        **options: Unpack[OptionValues],
    ) -> None:
        if not isinstance(path, str | Path) or "\0" in str(path):
            raise BadInput(f"a Spool takes the path of its directory, not {path!r}")
        self.path = root = Path(path)
        check_known("Spool", options, OptionValues.__annotations__)
        self.options = SpoolOptions(**options)
        self._disk = disk or Disk()
        self._opening = Condition()
        self._lock = DirectoryLock(root)
        self._readonly = readonly
        self._intake = Intake(self.options)
        self._writer = Writer(self.options, self._disk, self._intake, self._release)
        self._queues: dict[tuple[str, int], StoredQueue] = {}
        self.forwarding: defaultdict[str, Forwarding] = defaultdict(Forwarding)
        self.forwarders: dict[str, object] = {}  # of each topic the one that runs
        try:
            if not readonly:
                self._disk.make_directory(root.absolute())
                self._lock.take()
            for key in _keys(root):
                self._queue(key)
            if not readonly:
                self._writer.start(list(self._queues.values()))
                _OPENED.add(self)
        except BaseException as exc:
            self._intake.close()  # ends the writer's thread, which a Ctrl-C may leave running
            self._release()
            if isinstance(exc, OSError):
                raise NotDone(f"the spool {root} cannot be opened: {exc}") from exc
            raise

    @classmethod
    def open_readonly(cls, path: str | Path) -> Self:
        """Look at a spool that another process may have open: status, verify, pull, records.

        It shows what was stored when it was opened. Nothing is repaired.
        """
        return cls(path, readonly=True)

    def append(self, topic: str, payload: bytes, *, queue_id: int = 0) -> Future[int]:
        """Store a message; the future gives its offset, once it is as durable as `fsync` asks.

        Raises:
            SpoolFull: nothing was stored: there is no room, and there was none for `block_timeout`.
            Closed: the spool was closed, or this process is a fork of the one that opened it.
            BadInput: the message is larger than a segment, or is not `bytes`.
            NotDone: a signal handler calls this while its own thread is inside the spool.

        The future raises `SpoolFull`, or `SpoolFailed` if it is unknown whether the message is stored.
        """
        return self._submit((topic, queue_id), [payload], is_single=True)

    def append_many(self, topic: str, payloads: Iterable[bytes], *, queue_id: int = 0) -> Future[range]:
        """Store messages together, with offsets that follow each other; raises like `append`."""
        if not isinstance(payloads, Iterable):
            raise BadInput(f"append_many takes payloads, each bytes, not {type(payloads).__name__}")
        return self._submit((topic, queue_id), list(payloads), is_single=False)

    def _submit(self, key: tuple[str, int], payloads: list[bytes], *, is_single: bool) -> Future[Any]:
        self._check_writable()
        if set(map(type, payloads)) != {bytes}:
            raise BadInput("payloads are bytes, and at least one")
        # Every record has at most 7 bytes of padding.
        size = sum(map(len, payloads)) + len(payloads) * (HEAD.size + 7)
        if size > self.options.segment_bytes - OVERHEAD:
            raise BadInput(f"one call takes {self.options.segment_bytes:,} bytes at most, not {size:,}")
        entry = Entry(self._queue(key), payloads, size, Future(), is_single)
        self._intake.admit(entry)
        return entry.future

    def _check_writable(self) -> None:
        if not self.is_open:
            raise Closed(
                f"the spool {self.path} is closed, only open for reading, or was opened by the process "
                "that this one was forked off"
            )

    def _queue(self, key: tuple[str, int]) -> StoredQueue:
        queue = self._known(key)
        if queue is None:
            self._intake.check_free(is_inside=self._opening.is_held())
            # Held while the queue is looked for on the disk, so that two callers do not make it twice.
            with self._opening:
                queue = self._queues.get(key) or self._new_queue(key)
                self._queues[key] = queue
        return queue

    def _known(self, key: tuple[str, int]) -> StoredQueue | None:
        topic, queue_id = key
        if not isinstance(topic, str) or type(queue_id) is not int:
            raise BadInput(f"a topic is text and a queue number whole, not {topic!r} and {queue_id!r}")
        return self._queues.get(key)

    def _new_queue(self, key: tuple[str, int]) -> StoredQueue:
        if not _is_key(key):
            raise BadInput("a topic has 1 to 220 characters, and a queue number is 0 to 999,999")
        check = self.path.stat if self._readonly else self._lock.check
        return StoredQueue(_directory(self.path, key), key, self._disk, check, readonly=self._readonly)

    def pull(self, topic: str, queue_id: int, offset: int, max_count: int) -> list[SpoolRecord]:
        """Return up to `max_count` records from the offset on, in order; lost offsets are left out.

        Of large records it returns fewer, about 16 MiB, but at least one.

        Raises:
            OSError: the disk cannot read a file. Nothing is skipped; a later call may succeed.
            BadInput: an argument has a wrong type.
        """
        _check_whole(offset=offset, max_count=max_count)
        queue = self._known((topic, queue_id))
        return queue.pull(offset, max_count) if queue else []

    def records(self, topic: str, queue_id: int = 0, offset: int | None = None) -> Iterator[SpoolRecord]:
        """Yield the records in order, from the offset or from the first that is not consumed.

        Raises:
            OSError, BadInput: as `pull`.
        """
        at = self.progress(topic, queue_id) if offset is None else offset
        while page := self.pull(topic, queue_id, at, _PAGE):
            yield from page
            at = page[-1].offset + 1

    def wait(self, topic: str, queue_id: int, offset: int, timeout_s: float) -> bool:
        """Return whether a record of that offset or a later one is there, after at most `timeout_s`.

        Raises:
            Closed: as `append`.
            BadInput: an argument has a wrong type.
        """
        _check_whole(offset=offset)
        if type(timeout_s) is bool or not isinstance(timeout_s, int | float):
            raise BadInput(f"timeout_s is {timeout_s!r}; it takes seconds")
        if not self._readonly:
            self._check_writable()  # else a child of fork could wait for a lock that no thread of it holds
        return self._queue((topic, queue_id)).wait(offset, timeout_s)

    def progress(self, topic: str, queue_id: int = 0) -> int:
        """Return the first offset that is not consumed."""
        queue = self._known((topic, queue_id))
        return queue.progress.offset if queue else 0

    def end(self, topic: str, queue_id: int = 0) -> int:
        """Return the offset behind the last record. Reads no file, unlike `status`."""
        queue = self._known((topic, queue_id))
        return queue.end if queue else 0

    def commit(self, topic: str, offset: int, *, queue_id: int = 0) -> None:
        """Write down that everything before the offset is consumed; durable when it returns.

        An offset that was committed already changes nothing.

        Raises:
            Closed: as `append`.
            BadInput: the offset lies behind the end, or an argument has a wrong type.
            SpoolFailed: it is unknown whether the offset is committed.
        """
        _check_whole(offset=offset)
        self._check_writable()
        queue = self._queue((topic, queue_id))
        queue.commit(offset)
        self._intake.settle(queue)

    def set_aside(self, topic: str, record: SpoolRecord, why: str) -> None:
        """Used inside: keep a record in `lost/` that no consumer can use, so that they may pass over it.

        Raises:
            OSError: the disk does not take it.
        """
        queue = self._queue((topic, 0))
        offsets = range(record.offset, record.offset + 1)
        queue.lost.set_aside(Finding(queue.directory, why, offsets), record.payload)

    def queues(self) -> list[tuple[str, int]]:
        """Return topic and number of all queues."""
        return sorted(self._queues)

    def status(self) -> list[QueueStatus]:
        """Return where each queue stands."""
        return [self._queues[key].status() for key in self.queues()]

    @property
    def is_open(self) -> bool:
        """Whether this process may append and commit."""
        return self._lock.is_held

    def check_held(self) -> None:
        """Raise `FileNotFoundError` if the directory, or its lock, was deleted or moved."""
        self._lock.check()

    def is_full(self) -> bool:
        """Whether appends wait or are refused until more is consumed."""
        return self._intake.is_full

    def used(self) -> Level:
        """Return how much is appended and not consumed, in all queues."""
        return self._intake.used()

    def verify(self) -> list[Finding]:
        """Read every byte of every queue, and return what is wrong."""
        return [finding for key in self.queues() for finding in self._queues[key].verify()]

    def close(self) -> None:
        """Store what was admitted, seal all segments, and let another process open the spool.

        If a Ctrl-C ends the call, the writer's thread does the rest.

        Raises:
            SpoolFailed: with `fsync="interval:…"` or `"os"`, messages that were acknowledged may be lost.
            NotDone: a signal handler calls this while its own thread is inside the spool.
        """
        if not self.is_open:
            return
        self._intake.check_free(is_inside=any(queue.is_committing() for queue in list(self._queues.values())))
        self._intake.close()
        self._writer.join()

    def _release(self) -> None:
        for queue in list(self._queues.values()):
            queue.close()
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_OPENED: weakref.WeakSet[Spool] = weakref.WeakSet()


def open_spools() -> list[Spool]:
    """Return the spools to which this process may append."""
    return [spool for spool in list(_OPENED) if spool.is_open]


def check_spool(spool: object) -> None:
    """Raise `BadInput` unless it is a spool."""
    if not isinstance(spool, Spool):
        raise BadInput(f"spool is {spool!r}; it takes a Spool: Spool('/var/spool/app')")


def _check_whole(**numbers: object) -> None:
    """Raise `BadInput` unless each is a whole number."""
    for name, number in numbers.items():
        if type(number) is not int:
            raise BadInput(f"{name} is {number!r}; it takes a whole number")


def is_spool(root: Path) -> bool:
    """Return whether a directory was opened as a spool, or holds the queues of one."""
    return (root / LOCK).exists() or any(root.glob("*/*/*.seg")) or any(root.glob("*/*/progress"))


def _directory(root: Path, key: tuple[str, int]) -> Path:
    topic = quote(key[0], safe="")
    return root / (f"%2E{topic[1:]}" if topic.startswith(".") else topic) / str(key[1])


def _is_key(key: tuple[str, int]) -> bool:
    topic, queue_id = key
    return bool(topic) and len(quote(topic, safe="")) <= 220 and 0 <= queue_id < 1_000_000


def _keys(root: Path) -> Iterator[tuple[str, int]]:
    """Yield the queues on the disk. Other files and directories may lie there as well.

    Listed and not globbed: a glob passes over a directory that this user may not read, as if it were empty.
    """
    for topic in root.iterdir():
        name = unquote(topic.name)
        if _directory(root, (name, 0)).parent != topic or not topic.is_dir():
            continue
        for path in topic.iterdir():
            key = name, int(path.name) if _NUMBER.fullmatch(path.name) else -1
            if _is_key(key) and path.is_dir():
                yield key
