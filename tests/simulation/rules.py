"""The rules of the protocol page that are marked (!), and what proves each of them.

Each proof names a breakage: the rule taken out of the code. Scenarios must hold with the code as it is
and fail with the breakage; simulated runs of a profile must find a violation with it (and none without,
which `test_simulation` asserts for many more seeds).

Not proven here, and why:

- One serial consistency, clients in one data centre, no retry by the driver: settings of the Cassandra
  store, which neither the memory twin nor the simulator has.
- The head as one *unpaged* read: that the protocol needs it is proven; that Cassandra does it is not.
- A claim sent before its predecessor's outcome is known: the code does not pipeline claims.
- Metadata only by conditional mutations: the seam has no other operation for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tests.simulation import breakages as broken
from tests.simulation import breakages_time as early
from tests.simulation import scenarios as story
from tests.simulation import scenarios_time as times
from tests.simulation.breakages import Breakage
from tests.simulation.sim import Params

LATE_SENDS = Params(
    settle_ms=2000, skew_ms=500, faults=0.05, pauses=0.12, crashes=0, consumers=1, producers=3, batch=1,
    delayed=0.0, gap_s=0.7, priorities=(0,), poll_s=0.1, epoch_widths=1, actions=(1, 0, 0, 0, 0, 0, 0, 0),
    work_s=0.1,
)  # fmt: skip
BURIALS = Params(
    faults=0.1, pauses=0.08, longest_pause_us=3_000_000, gc_grace_s=20, batches=2, crashes=0.3,
    actions=(20, 0, 0, 0, 80, 0, 0, 0),
)  # fmt: skip
NACKS = Params(
    faults=0.02, pauses=0.02, longest_pause_us=300_000, batches=2, batch=6, consumers=3, crashes=0,
    poll_s=0.1, priorities=(0,), work_s=0.1, max_attempts=0, actions=(20, 60, 20, 0, 0, 0, 0, 0),
)  # fmt: skip
STOLEN_LOCKS = Params(
    faults=0.05, pauses=0.06, longest_pause_us=3_000_000, consumers=3, poll_s=0.1, priorities=(0,),
    work_s=0.5, actions=(60, 10, 10, 10, 0, 0, 10, 0),
)  # fmt: skip
PROFILES = {"late": LATE_SENDS, "burials": BURIALS, "nacks": NACKS, "stolen": STOLEN_LOCKS}


class Told(NamedTuple):
    """A rule that a scenario proves."""

    rule: str
    scenario: Callable[[], None]
    breakage: Breakage


class Searched(NamedTuple):
    """A rule whose absence simulated runs find."""

    rule: str
    breakage: Breakage
    profile: Params | None = None  # None: drawn from the seed


TOLD = (
    Told("the fence never restarts after a drop", times.fence_survives_retirement, broken.fence_from_one),
    Told("at most 10,000 wide rows in an epoch", times.epoch_stays_small, early.epochs_of_an_hour),
    Told("an epoch is kept for good only from a read that began after it closed",
         times.epoch_read_again_until_closed, early.epoch_cached_early),
    Told("oldest_epoch moves only after such a read",
         times.oldest_epoch_waits_until_closed, early.epoch_cached_early),
    Told("no partition tombstone beyond now", times.nothing_deleted_beyond_now, early.tombstone_beyond_now),
    Told("no blind retry of a conditional write", story.lost_reply_is_found_out, broken.blind_retry),
    Told("an open wide row has no cursor", times.open_row_takes_what_lands_late, early.open_row_with_cursor),
    Told("derived ids are not deleted as late",
         times.late_burial_is_not_deleted, early.late_derived_deleted),
    Told("a burial counts only within gc_grace",
         times.late_burial_does_not_count, early.late_burial_confirmed),
    Told("a sweep that is due is work", story.sweep_is_made, broken.sweep_is_no_work),
    Told("an expired timeout is work", story.expired_is_taken_over, broken.expired_is_no_work),
    Told("the head is one read", story.head_is_one_read, broken.head_read_in_pages),
    Told("the head first, then messages", story.head_comes_before_messages, broken.messages_before_head),
    Told("skip what any timeout lists, expired or not",
         story.expired_is_skipped_by_reads, broken.only_live_timeouts_skipped),
    Told("a claim overwrites slots IF rev", story.takeover_minds_the_revision, broken.takeover_without_rev),
    Told("nack in place, not by insert", story.stale_nack_fails, broken.nack_by_reinsert),
    Told("suspects have slots of their own", story.suspects_come_alone, broken.suspects_together),
    Told("suspects are not prefetched", story.suspects_are_not_prefetched, broken.suspects_prefetched),
    Told("the cursor waits for ε", times.cursor_waits_for_settle_and_skew, early.cursor_without_skew),
    Told("the cursor waits for W", times.cursor_waits_for_settle, early.cursor_without_settle),
    Told("the cursor needs a sweep", times.cursor_waits_for_settle, early.cursor_at_boundary),
    Told("retirement waits for W + ε", times.retirement_waits, early.retired_at_end),
    Told("retirement waits for W", times.retirement_waits, early.retired_without_settle),
    Told("open wide rows wait for gc_grace",
         times.open_row_retirement_waits, early.open_retired_without_grace),
    Told("the retirement pass begins after that",
         times.retirement_pass_begins_late_enough, early.retirement_clock_after_read),
    Told("a send is acknowledged within W", times.late_send_is_made_again, early.late_send_acknowledged),
    Told("released ids stay listed", story.released_stays_listed, broken.release_unlists),
    Told("the rest of a slot stays listed", story.rest_of_a_slot_stays_listed, broken.free_unlists),
)  # fmt: skip

SEARCHED = (
    Searched("skip what any timeout lists, expired or not", broken.only_live_timeouts_skipped),
    Searched("nack IF rev on both slots", broken.nack_without_target_rev, NACKS),
    Searched("nack in place, not by insert", broken.nack_by_reinsert),
    Searched("the cursor waits for W", early.cursor_without_settle, LATE_SENDS),
    Searched("the cursor needs a sweep", early.cursor_at_boundary),
    Searched("a claim is conditional on the fence", broken.claim_unconditional_on_fence, STOLEN_LOCKS),
    Searched("deliver only what is known to be claimed", broken.deliver_before_known),
    Searched("acks carry the timestamp of the id", early.ack_by_wall_clock),
    Searched("an epoch of open wide rows closes after gc_grace", early.open_epoch_without_grace),
    Searched("an expired timeout is work", broken.expired_is_no_work),
    Searched("released ids stay listed", broken.release_unlists),
    Searched("the rest of a slot stays listed", broken.free_unlists),
    Searched("the time of death is kept", early.died_at_not_kept, BURIALS),
    Searched("the dead letter's id is derived", early.dead_id_not_derived, BURIALS),
    Searched("dead letters go to open wide rows", early.dead_letters_in_normal_rows, BURIALS),
    Searched("a send is acknowledged within W", early.late_send_acknowledged, LATE_SENDS),
)
