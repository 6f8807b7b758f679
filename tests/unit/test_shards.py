"""Arithmetic of time shards, epochs and open wide rows, on all times and widths."""

from dataclasses import replace
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from cqueue.config import HOUR_MS, QueueConfig
from cqueue.protocol import registry
from tests.simulation.hand import Table

SPEC = Table().spec
WIDTHS = st.sampled_from((1000, 2000, 30_000, 60_000, 900_000, HOUR_MS, 5 * HOUR_MS, 720 * HOUR_MS))
TIMES = st.integers(0, 1 << 52)  # µs, to the year 2112


@st.composite
def specs(draw):
    config = QueueConfig(
        time_shard=timedelta(milliseconds=draw(WIDTHS)), max_shards=draw(st.sampled_from((4, 64, 1000)))
    )
    return replace(
        SPEC,
        width_ms=config.time_shard_ms,
        epoch_ms=config.epoch_ms(),
        open_shards=draw(st.integers(1, 64)),
    )


@given(specs(), TIMES, st.integers(0, 999))
def test_a_message_lies_inside_its_time_shard(spec, due_us, shard):
    """A due time is never before its time shard's start nor at or after its end."""
    row = registry.normal_row(spec, due_us, shard)
    assert row.time_shard * 1000 <= due_us < registry.end_us(spec, row)
    assert not registry.is_open(row)


@given(specs(), TIMES, st.binary(max_size=40))
def test_an_open_row_is_the_same_for_every_repeat_and_never_a_normal_one(spec, time_us, source):
    """A derived id's place hangs on its time and its source only, and has a shard below zero."""
    row = registry.open_row(spec, time_us, source)
    assert row == registry.open_row(spec, time_us, source)
    assert -spec.open_shards <= row.shard < 0
    assert row.time_shard * 1000 <= time_us < registry.end_us(spec, row)


@given(specs(), TIMES, st.integers(-1, 0))
def test_a_wide_row_is_registered_in_the_epoch_of_its_start(spec, time_us, shard):
    """An epoch covers the starts of its time shards, and the next one begins where it ends."""
    row = registry.open_row(spec, time_us, b"x") if shard < 0 else registry.normal_row(spec, time_us, shard)
    epoch = registry.epoch_of(spec, row)
    assert (epoch < 0) is registry.is_open(row)
    start_ms = registry.epoch_start_ms(epoch)
    assert start_ms <= row.time_shard < registry.epoch_start_ms(registry.next_epoch(spec, epoch))


def test_epochs_begin_in_1970():
    """The first one of normal wide rows, and the first one of open wide rows."""
    for open_ in (False, True):
        assert registry.epoch_start_ms(registry.epoch_at(SPEC, 0, open_=open_)) == 0
    assert registry.read_epoch(SPEC, 0).grid == (0, SPEC.epoch_ms, SPEC.width_ms)
    assert registry.read_epoch(SPEC, -1).grid == (0, registry.DAY_MS, SPEC.width_ms * registry.OPEN_WIDTHS)


@given(specs(), TIMES, st.booleans())
def test_an_epoch_closes_after_the_last_acknowledgement_in_it(spec, time_us, open_):
    """No send to a wide row of the epoch can be acknowledged at or after the time it closes."""
    row = registry.open_row(spec, time_us, b"x") if open_ else registry.normal_row(spec, time_us, 0)
    grace_us = spec.gc_grace_us if open_ else 0
    last_us = registry.end_us(spec, row) + spec.settle_us + spec.skew_us + grace_us
    assert registry.closed_at_us(spec, registry.epoch_of(spec, row)) >= last_us


@given(specs(), TIMES)
def test_registration_names_row_and_epoch(spec, time_us):
    """A wide row is registered in its epoch, and its epoch in the index of epochs."""
    row = registry.normal_row(spec, time_us, 3)
    mine, index = registry.registration(spec, row, 7)
    assert (mine.epoch, mine.time_shard, mine.shard) == (registry.epoch_of(spec, row), row.time_shard, 3)
    assert mine.priorities == {7}
    assert (index.epoch, index.time_shard) == (registry.EPOCH_INDEX, registry.epoch_start_ms(mine.epoch))
