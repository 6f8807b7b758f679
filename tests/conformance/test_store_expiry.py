"""Rows that have expired."""

from cqueue.store.memory_rows import SWEPT_FROM, Expiring


def test_a_store_in_memory_forgets_what_has_expired():
    """A program that keeps results for a minute holds those of some minutes, however long it runs."""
    now_s = 0
    rows = Expiring[int, None](lambda: now_s * 1_000_000)
    rows.put(-1, None, 0)
    for now_s in range(100 * SWEPT_FROM):
        rows.put(now_s, None, 60)
    assert len(rows._rows) <= 2 * SWEPT_FROM
    assert set(rows.alive()) == {-1, *range(now_s - 59, now_s + 1)}
