"""Reservations of unique keys: what every store promises."""

import uuid
from itertools import pairwise

import pytest

from cqueue.store.keys import (
    ALL_TOKENS,
    ListReservations,
    Place,
    ReadReservation,
    RemoveReservation,
    ReservationRow,
    WriteReservation,
)
from tests.fix_store import new_id, now_us


@pytest.fixture
def queue():
    return f"queue-{uuid.uuid4().hex}@1"


def place():
    return Place(1_700_000_000_000, -3, 9, new_id())


def reservation(queue, key="k", **changes):
    return ReservationRow(queue, key, place(), None, now_us(), sent=False)._replace(**changes)


def test_the_first_reservation_of_a_key_stands(store, queue):
    row = reservation(queue)
    assert store.execute(ReadReservation(queue, "k")) is None
    assert store.execute(WriteReservation(row, 0)) is True
    assert store.execute(WriteReservation(reservation(queue), 0)) is False
    assert store.execute(ReadReservation(queue, "k")) == row
    assert store.execute(WriteReservation(reservation(queue, "other"), 0)) is True


def test_a_reservation_changes_only_from_the_message_seen(store, queue):
    row = reservation(queue)
    assert store.execute(WriteReservation(row, 60, place())) is False, "there is none"
    store.execute(WriteReservation(row, 60))
    taken = reservation(queue, replaces=row.message, sent=True)
    assert store.execute(WriteReservation(taken, 60, place())) is False
    assert store.execute(ReadReservation(queue, "k")) == row
    assert store.execute(WriteReservation(taken, 60, row.message)) is True
    assert store.execute(ReadReservation(queue, "k")) == taken


def test_a_reservation_is_decided_once(store, queue):
    """It is void or sent: each expects the place as it was, and a void one names another place."""
    row = reservation(queue)
    void = row._replace(message=row.message.voided())
    sent = row._replace(sent=True)
    assert (void.message.is_void, row.message.is_void) == (True, False)
    assert void.message.voided() == row.message
    store.execute(WriteReservation(row, 60))
    assert store.execute(WriteReservation(void, 60, row.message)) is True
    assert store.execute(WriteReservation(sent, 60, row.message)) is False
    assert store.execute(ReadReservation(queue, "k")) == void
    assert store.execute(WriteReservation(row, 60, void.message)) is True


def test_reservations_of_a_queue_are_listed_and_removed(store, queue):
    for key in ("a", "b"):
        store.execute(WriteReservation(reservation(queue, key), 60))
    store.execute(WriteReservation(reservation(f"{queue}2"), 60))
    listing = ListReservations(frozenset({queue, "none"}))
    assert sorted(store.execute(listing)) == [(queue, "a"), (queue, "b")]
    assert store.execute(RemoveReservation(queue, "a")) is True
    assert store.execute(RemoveReservation(queue, "a")) is False
    assert store.execute(listing) == [(queue, "b")]
    both = ListReservations(frozenset({queue, f"{queue}2"}))
    assert sorted(store.execute(both)) == [(queue, "b"), (f"{queue}2", "k")]


@pytest.mark.cassandra
def test_each_reservation_is_listed_under_one_part_of_all_tokens(cassandra_store, queue):
    """So a listing that crosses too many tombstones is made in parts."""
    for key in "abcdefgh":
        cassandra_store.execute(WriteReservation(reservation(queue, key), 60))
    bounds = [ALL_TOKENS[0], -(1 << 62), 0, 1 << 62, ALL_TOKENS[1]]
    parts = [cassandra_store.execute(ListReservations(frozenset({queue}), part)) for part in pairwise(bounds)]
    assert sorted(place for part in parts for place in part) == [(queue, key) for key in "abcdefgh"]
    assert max(map(len, parts)) < 8


def test_a_reservation_expires_whole(store, queue, eventually):
    """So that the key can be reserved again, also where it was changed once."""
    row = reservation(queue)
    store.execute(WriteReservation(row, 1))
    store.execute(WriteReservation(row._replace(sent=True), 1, row.message))
    eventually(lambda: store.execute(ReadReservation(queue, "k")) is None)
    assert store.execute(WriteReservation(reservation(queue), 60)) is True
