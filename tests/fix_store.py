"""Stores for tests: `store` runs a test on the memory twin and on Cassandra alike.

Tests share one keyspace; each works in a wide row, or under a queue name, of its own.
"""

import random
import time
import uuid
from collections.abc import Callable, Iterator

import pytest

from cqueue import ids
from cqueue.runtime import waiting
from cqueue.runtime.driver import BlockingDriver
from cqueue.store import memory
from cqueue.store.cassandra import CassandraStore
from cqueue.store.connection import Connection, open_session
from cqueue.store.memory import MemoryStore
from cqueue.store.operations import LockRow, LockState, MessageRow, Store, WideRow
from tests.fix_cassandra import keyspaces
from tests.fix_dispatcher import until

BRIEF = memory.DEPLOYMENT._replace(settle_ms=100, skew_ms=50)
"""A deployment with a small W and ε: failing sends end, and records are stable, after 0.15 s and not 2.5 s.
What a starved machine writes later than W is written again, by the protocol."""


def brief_store() -> MemoryStore:
    """A store in memory with a small W and ε."""
    made = MemoryStore()
    made._deployment = BRIEF
    return made


@pytest.fixture
def brief_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    """All stores in memory that the test makes have a small W and ε."""
    monkeypatch.setattr(memory, "DEPLOYMENT", BRIEF)


@pytest.fixture
def brief_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protocols pause, and operations that failed are repeated, as often as ever, each time for a tenth."""
    defaults = BlockingDriver.__init__.__kwdefaults__
    monkeypatch.setitem(defaults, "pause", lambda seconds: waiting.sleep(seconds / 10))


class MovableClock:
    """The time of a store in memory: this machine's, and what a test adds."""

    added_us = 0

    def __call__(self) -> int:
        return now_us() + self.added_us


@pytest.fixture(params=["memory", pytest.param("cassandra", marks=pytest.mark.cassandra)])
def store(request: pytest.FixtureRequest) -> Store:
    """Each back end of the storage seam in turn."""
    if request.param == "memory":
        return MemoryStore(MovableClock())
    return request.getfixturevalue("cassandra_store")


@pytest.fixture
def eventually(store: Store) -> Callable[[Callable[[], bool]], None]:
    """Wait until something holds of the store; in memory its clock goes forward instead."""

    def wait(holds: Callable[[], bool]) -> None:
        if not isinstance(store, MemoryStore):  # only Cassandra's own clock ends a time to live
            until(holds, 30)
            return
        while not holds():
            assert store._clock_us.added_us < 30_000_000
            store._clock_us.added_us += 100_000

    return wait


@pytest.fixture(scope="session")
def store_connection(cassandra_url: str, connection: Connection) -> Iterator[Connection]:
    """A connection to a fresh keyspace with the schema in it."""
    with keyspaces(cassandra_url, connection) as make, open_session(make().settings) as opened:
        yield opened


@pytest.fixture(scope="session")
def cassandra_store(store_connection: Connection) -> CassandraStore:
    """The Cassandra store on that keyspace."""
    return CassandraStore(store_connection.session)


@pytest.fixture
def wide_row() -> WideRow:
    """A wide row that nobody else uses."""
    return WideRow(f"q-{uuid.uuid4().hex}", time.time_ns() // 3_600_000_000_000 * 3_600_000, 0)


def now_us() -> int:
    return time.time_ns() // 1000


def new_id(at_us: int | None = None) -> int:
    """A random id at that time (now when None)."""
    return ids.from_ticks((now_us() if at_us is None else at_us) * 10, random.getrandbits(62))


def new_ids(count: int) -> list[int]:
    """Ids of the last moments, one a µs, in order."""
    start_us = now_us() - count
    return [new_id(start_us + i) for i in range(count)]


def message(id_: int, body: bytes | None = b"body", *, priority: int = 0, **columns: object) -> MessageRow:
    """A message with as few columns as there may be."""
    row = MessageRow(
        priority=priority,
        id=id_,
        body=body,
        size=None,
        headers=None,
        codec=None,
        task=None,
        key=None,
        trigger=None,
        sent_at=1_700_000_000_000,
        expires=None,
        format=0,
    )
    return row._replace(**columns)


def lock(fence: int, state: LockState = LockState.LOCKED, owner: bytes = b"me") -> LockRow:
    """A lock row with that fence."""
    return LockRow(state, owner, 1_700_000_005_000, fence)
