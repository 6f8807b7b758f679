"""What a log says of records that have ended, against a model: one record a second, each with the ttl of its
time.
"""

from itertools import accumulate, pairwise

from hypothesis import given
from hypothesis import strategies as st

from cqueue import ids
from cqueue.log.protocol.spec import EXPIRES_EARLY_US, MARGIN_US, EarlierTtl, LogSpec
from tests.simulation.hand import NOON_US, SECOND_US, SETTLE_US, SKEW_US

STRETCHES = st.lists(
    st.tuples(st.integers(1, 5000), st.sampled_from([0, 60, 300, 3600])), min_size=1, max_size=4
)
"""For how long (s) a ttl (s, 0: for ever) held, one after the other."""
EARLY_S = -(-(EXPIRES_EARLY_US + SKEW_US) // SECOND_US)


class Model:
    """Records at 0, 1, 2 … s, with the ttl that held then; now: s."""

    def __init__(self, stretches):
        ends = [*accumulate((length for length, _ in stretches), initial=0)]
        self.now = ends[-1]
        self.held = [(a, b, ttl) for (a, b), (_, ttl) in zip(pairwise(ends), stretches, strict=True)]
        ttls = [EarlierTtl(ms(a), ms(b), ttl) for a, b, ttl in self.held]
        self.spec = LogSpec(
            "events", "1", 1, 60_000, ttls[-1].ttl_s, ms(0), SETTLE_US, SKEW_US, tuple(ttls[:-1])
        )

    def has_lost(self, position, now):
        """Return whether a record from this second on is over."""
        return any(ttl and max(a, position) < min(b, now - ttl) for a, b, ttl in self.held)

    def first_left(self, since=0):
        """Return the second of the earliest record from `since` on that is left; None if none is."""
        begins = [(max(a, since, self.now - ttl if ttl else a), b) for a, b, ttl in self.held]
        return min((first for first, end in begins if first < end), default=None)


def ms(second):
    return us(second) // 1000


def us(second):
    return NOON_US + second * SECOND_US


def before(second):
    """Return the position of a reader that is yet to read what is of this second."""
    return ids.lowest_at(us(second)) - 1


@given(STRETCHES, st.floats(-0.01, 1))
def test_a_position_is_forgotten_if_and_only_if_records_behind_it_are_over(stretches, at):
    """But for the second and ε by which a record may end too early. Going on skips nothing that is left."""
    model = Model(stretches)
    position = int(at * model.now)
    forgotten = model.spec.has_forgotten(before(position), us(model.now))
    assert forgotten >= model.has_lost(position, model.now)
    assert forgotten <= model.has_lost(position, model.now + EARLY_S)
    left = model.first_left()
    going_on = model.spec.going_on(before(position), us(model.now))
    assert left is None or going_on <= max(before(position), before(left))


@given(STRETCHES)
def test_who_goes_on_from_the_earliest_record_is_not_told_that_it_is_too_late(stretches):
    """Not for a tenth of a ttl. A lenient reader reads all, but for what is older than the ttl."""
    model = Model(stretches)
    beginning = model.spec.beginning(us(model.now))
    soon_us = min(MARGIN_US, model.spec.shortest_ttl_s(us(model.now)) * SECOND_US // 10)
    soon_us -= EXPIRES_EARLY_US + SKEW_US
    assert not model.spec.has_forgotten(beginning, us(model.now) + soon_us)
    lenient = model.spec.beginning(us(model.now), lenient=True)
    left = model.first_left(model.now - model.spec.ttl_s if model.spec.ttl_s else 0)
    assert left is None or lenient <= before(left)
    assert lenient <= beginning
