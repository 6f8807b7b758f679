"""Test what the protocol makes of a stored queue and its deployment."""

import pytest

from cqueue.config import QueueConfig
from cqueue.protocol.policy import Disposition, disposition_of
from cqueue.protocol.spec import spec_of
from cqueue.store.memory import DEPLOYMENT
from cqueue.store.operations import PACKS_SINCE, QueueRow, SlotRow, SlotState

CONFIG = QueueConfig(max_attempts=3)


def queue(name: str) -> QueueRow:
    return QueueRow(name, "1", 1, "active", "{}", 3_600_000, 0, -1)


@pytest.mark.parametrize(
    ("name", "goes"),
    [("q", Disposition.BURY), ("q.dead", Disposition.DELIVER)],
    ids=["queue", "dead letters"],
)
def test_a_dead_letter_does_not_die_again(name, goes):
    """It has as many attempts as it takes, whatever the configuration says."""
    spec = spec_of(queue(name), CONFIG, DEPLOYMENT)
    assert disposition_of(SlotRow(0, 0, SlotState.WAITING, (7,), 0, 3, b"x", 7), spec) is goes


def test_packs_are_written_only_where_all_clients_can_read_them():
    """A client of an older format would take a pack for one message."""
    for format_, packs in ((PACKS_SINCE - 1, False), (PACKS_SINCE, True)):
        assert spec_of(queue("q"), CONFIG, DEPLOYMENT._replace(format=format_)).packs is packs
