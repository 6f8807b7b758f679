"""The schema changes under load: row 17."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from cqueue.schema import Migration, Options, apply, load_migrations
from cqueue.settings import load
from cqueue.store.connection import open_session
from cqueue.testing.events import INVOKE, OK, read

pytestmark = [pytest.mark.cassandra, pytest.mark.fault, pytest.mark.timeout(300)]

ADDED = """
    CREATE TABLE IF NOT EXISTS fault_extra (id int PRIMARY KEY, value text);
    ALTER TABLE messages ADD IF NOT EXISTS fault_extra text;
"""


@pytest.mark.row(17, "one more migration by two bootstraps at once, under load")
def test_two_bootstraps_under_load_surface_no_error(start_run, new_keyspace, row):
    """Neither of the two fails, and no client sees an error."""
    own = new_keyspace()
    settings = load(own.url)
    known = load_migrations()
    more = (*known, Migration(known[-1].number + 1, "pre", "fault_extra", ADDED))
    run = start_run(own.url)
    run.start("consume", batch=50)
    run.start_all(2, "produce", rate=300)
    time.sleep(3)

    def bootstrap(_):
        began = time.monotonic()
        with open_session(settings, use_keyspace=False) as connection:
            apply(connection, settings, Options(), migrations=more)
        return time.monotonic() - began

    with ThreadPoolExecutor(2) as pool:
        took = list(pool.map(bootstrap, range(2)))
    time.sleep(4)
    report = run.finish()
    assert report.clean, str(report)
    assert not report.duplicated, str(report)
    failed = [
        event for event in read(run.histories) if event.phase not in {INVOKE, OK} or _entry_failed(event)
    ]
    assert not failed, failed[:3]
    row(messages=report.sends, errors=len(failed), bootstraps=f"{max(took):.1f} s")


def _entry_failed(event):
    return any("outcome" in one for one in event.messages)
