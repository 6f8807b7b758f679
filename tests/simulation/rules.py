"""The rules of the protocol page that are marked (!), by name, and what proves each of them.

A rule is a flag of the simulator: `python -m tests.simulation --without NAME` runs the protocol without
it, and finds a violation, or says that the run never came to where the rule is kept; `--list-rules`
prints this table. Most rules are proven by default runs, the same seeds that hold with all rules; many
by a small scenario as well, which holds, and fails without the rule. A few can only be told: their runs
would have to be of special lengths or sizes.

`seed` says where the search for a violation begins, to save time; any later seed will do as well.

Not proven here, and why:

- Clients in one data centre, no retry by the driver: the first is checked at connect, the second is a setting
  of the Cassandra store; the simulator has neither. What both protect against is proven by `blind-retry` and
  `conditions-checked-when-sent`.
- The head as one *unpaged* read: that the protocol needs it is proven; that Cassandra does it is not.
- A claim sent before its predecessor's outcome is known: the code does not pipeline claims.
- Metadata only by conditional mutations: the seam has no other operation for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tests.simulation import breakages as broken
from tests.simulation import breakages_control as control
from tests.simulation import breakages_packs as packed
from tests.simulation import breakages_time as early
from tests.simulation import points
from tests.simulation import scenarios as story
from tests.simulation import scenarios_centres as centres
from tests.simulation import scenarios_control as changes
from tests.simulation import scenarios_packs as rows
from tests.simulation import scenarios_time as times
from tests.simulation.breakages import Breakage


class Rule(NamedTuple):
    """A rule, how it is broken, a scenario that needs it, and a seed whose default run needs it."""

    name: str
    says: str
    breakage: Breakage
    scenario: Callable[[], None] | None = None
    seed: int | None = None

    @contextlib.contextmanager
    def taken_out(self) -> Iterator[None]:
        """The protocol without this rule.

        Raises:
            PointLostError: what keeps the rule was not reached, so that nothing was proven.
        """
        points.calls.clear()
        with self.breakage():
            yield
            points.check_reached()


RULES = (
    Rule("messages-before-timeouts", "the head is read first, then messages",
         broken.messages_before_head, story.head_comes_before_messages, 180),
    Rule("head-in-pages", "the head is one read",
         broken.head_read_in_pages, story.head_is_one_read, 440),
    Rule("torn-head-trusted", "a head that shows a mutation in part is read again",
         broken.torn_head_trusted, story.torn_head_is_read_again, None),
    Rule("only-live-timeouts-skipped", "skip what any timeout lists, expired or not",
         broken.only_live_timeouts_skipped, story.expired_is_skipped_by_reads, 40),
    Rule("takeover-without-rev", "a claim overwrites slots IF rev",
         broken.takeover_without_rev, story.takeover_minds_the_revision, 270),
    Rule("nack-without-target-rev", "a nack looks at the revisions of both slots",
         broken.nack_without_target_rev, None, 290),
    Rule("nack-by-reinsert", "nack in place, not by insert",
         broken.nack_by_reinsert, story.stale_nack_fails, 0),
    Rule("claim-without-fence", "a claim is conditional on the fence",
         broken.claim_unconditional_on_fence, None, 30),
    Rule("fence-stands-beside-new-ids", "only a claim that takes nothing leaves the fence as it is",
         broken.fence_stands_beside_new_ids, story.claim_outrun_by_another_fails, 0),
    Rule("conditions-checked-when-sent", "one serial consistency: rounds see each other",
         broken.read_then_write, None, 0),
    Rule("fence-from-one", "the fence never restarts after a drop",
         broken.fence_from_one, times.fence_survives_retirement, 60),
    Rule("claimed-without-a-fence", "where nobody has claimed yet the lock is taken first",
         broken.claimed_without_a_fence, story.first_claim_does_not_outlive_its_wide_row, None),
    Rule("deliver-before-known", "deliver only what is known to be claimed",
         broken.deliver_before_known, None, 0),
    Rule("blind-retry", "a conditional mutation is never sent again",
         broken.blind_retry, story.lost_reply_is_found_out, 10),
    Rule("outcome-by-quorum-read", "an unknown outcome is found out by a serial read",
         broken.outcome_by_quorum_read, None, 160),
    Rule("ack-by-wall-clock", "a delete's timestamp is its insert's and one",
         early.ack_by_wall_clock, None, 0),
    Rule("release-unlists", "released ids stay listed",
         broken.release_unlists, story.released_stays_listed, 0),
    Rule("free-unlists", "the rest of a slot stays listed",
         broken.free_unlists, story.rest_of_a_slot_stays_listed, 0),
    Rule("expired-is-no-work", "an expired timeout is work",
         broken.expired_is_no_work, story.expired_is_taken_over, 0),
    Rule("sweep-is-no-work", "a sweep that is due is work",
         broken.sweep_is_no_work, story.sweep_is_made, None),
    Rule("suspects-together", "suspects have slots of their own",
         broken.suspects_together, story.suspects_come_alone, 2050),
    Rule("suspects-prefetched", "suspects are not prefetched",
         broken.suspects_prefetched, story.suspects_are_not_prefetched, 170),
    Rule("suspect-extended-late", "a suspect that was let go is not held again",
         broken.suspect_extended_late, story.suspect_is_not_held_again, None),
    Rule("remembered-head-is-older", "a head that is not read again lists what the last claim listed",
         broken.remembered_head_is_older, story.remembered_head_lists_the_last_claim, 0),
    Rule("listed-kept-ahead", "of what is read ahead of its claim nothing is kept that a slot lists",
         broken.listed_kept_ahead, story.what_is_claimed_is_not_kept_ahead, None),
    Rule("ahead-as-if-read-now", "what was read ahead counts from when it was read",
         early.ahead_as_if_read_now, story.what_was_read_ahead_is_as_old_as_its_read, None),
    Rule("cursor-without-settle", "the cursor waits for W",
         early.cursor_without_settle, times.cursor_waits_for_settle, 30),
    Rule("cursor-without-skew", "the cursor waits for ε",
         early.cursor_without_skew, times.cursor_waits_for_settle_and_skew, 660),
    Rule("cursor-at-boundary", "the cursor needs a sweep",
         early.cursor_at_boundary, times.cursor_waits_for_settle, 30),
    Rule("late-send-acknowledged", "a send is acknowledged within W",
         early.late_send_acknowledged, times.late_send_is_made_again, 50),
    Rule("retired-at-end", "retirement waits for W + ε",
         early.retired_at_end, times.retirement_waits, 40),
    Rule("retired-without-settle", "retirement waits for W",
         early.retired_without_settle, times.retirement_waits, 1190),
    Rule("retirement-clock-after-read", "the retirement pass begins after that",
         early.retirement_clock_after_read, times.retirement_pass_begins_late_enough, 120),
    Rule("epoch-cached-early", "an epoch is kept, and oldest_epoch moves, only after a read that began late",
         early.epoch_cached_early, times.epoch_read_again_until_closed, 130),
    Rule("oldest-epoch-early", "oldest_epoch moves only after such a read",
         early.epoch_cached_early, times.oldest_epoch_waits_until_closed, 130),
    Rule("open-epoch-without-grace", "an epoch of open wide rows closes after gc_grace",
         early.open_epoch_without_grace, None, 0),
    Rule("open-retired-without-grace", "open wide rows wait for gc_grace",
         early.open_retired_without_grace, times.open_row_retirement_waits, None),
    Rule("open-row-with-cursor", "an open wide row has no cursor",
         early.open_row_with_cursor, times.open_row_takes_what_lands_late, 720),
    Rule("dead-letters-in-normal-rows", "dead letters go to open wide rows",
         early.dead_letters_in_normal_rows, None, 7090),
    Rule("dead-id-not-derived", "the dead letter's id is derived",
         early.dead_id_not_derived, None, 560),
    Rule("time-of-death-not-kept", "the time of death is kept",
         early.died_at_not_kept, None, 560),
    Rule("late-derived-deleted", "derived ids are not deleted as late",
         early.late_derived_deleted, times.late_burial_is_not_deleted, None),
    Rule("late-burial-confirmed", "a burial counts only within gc_grace",
         early.late_burial_confirmed, times.late_burial_does_not_count, None),
    Rule("held-row-first", "wide rows with work take turns, whichever lock is held",
         broken.held_row_first, None, 50),
    Rule("probed-only-when-idle", "each search probes some wide rows, however many have work",
         broken.probed_only_when_idle, None, 50),
    Rule("unrepaired-node", "a node away beyond gc_grace is rebuilt",
         broken.unrepaired_node, rows.node_away_revives_nothing, 110),
    Rule("tombstone-beyond-now", "no partition tombstone beyond now",
         early.tombstone_beyond_now, times.nothing_deleted_beyond_now, None),
    Rule("retired-after-a-switch", "nothing is retired until the old data centre is repaired or given up",
         early.retired_after_a_switch, centres.nothing_is_retired_after_a_switch, None),
    Rule("epoch-given-up-after-a-switch", "nor does oldest_epoch move",
         early.epoch_given_up_after_a_switch, centres.no_epoch_is_given_up_after_a_switch, None),
    Rule("epochs-kept-when-retiring-resumes", "then consumers read all epochs again",
         early.epochs_kept_when_retiring_resumes, centres.epochs_are_read_again_when_retiring_resumes, None),
    Rule("epochs-of-an-hour", "at most 10,000 wide rows in an epoch",
         early.epochs_of_an_hour, times.epoch_stays_small, None),
    Rule("cancelled-without-fence", "a cancel outruns claims that have read the message",
         control.cancelled_without_fence, changes.cancel_outruns_a_claim, 2190),
    Rule("rescheduled-without-fence", "what no slot lists is rescheduled under the next fence",
         control.rescheduled_without_fence, changes.reschedule_outruns_a_claim, 140),
    Rule("held-is-moved", "what somebody holds is not rescheduled",
         control.held_is_moved, changes.what_is_held_is_not_moved, 60),
    Rule("extend-without-rev", "an extension looks at the revision of its slot",
         broken.extended_without_rev, changes.extension_minds_the_revision, 310),
    Rule("row-deleted-for-a-part", "a row with several messages goes with the last of them",
         packed.row_deleted_for_a_part, rows.part_of_a_row_is_deleted, 0),
    Rule("marks-span-gaps", "marks name what was deleted, and nothing between",
         packed.marks_span_gaps, rows.part_of_a_row_is_deleted, 760),
    Rule("marks-overwrite", "marks add up",
         packed.marks_overwrite, rows.halves_add_up, 0),
    Rule("marks-ignored", "a message is live if its row is, and no mark names it",
         packed.marks_ignored, rows.halves_add_up, 0),
    Rule("only-rows-listed", "a read of ids gives each message of a row",
         packed.only_rows_listed, rows.late_row_is_swept_whole, 250),
    Rule("row-begun-is-passed", "a read that begins within a row reads that row",
         packed.row_begun_is_passed, rows.claims_share_a_row, 0),
    Rule("rows-by-message-ids", "a message's row is that of its pack",
         packed.rows_by_message_ids, rows.rest_of_a_row_is_taken_over, 0),
    Rule("partial-is-damaged", "a row without its columns is no message yet, and may become one",
         packed.partial_is_damaged, rows.part_of_an_insert_is_no_message, 8530),
    Rule("reaped-in-part", "a reader deletes a row only if all its messages are gone",
         packed.reaped_in_part, rows.only_empty_rows_are_reaped, 0),
    Rule("one-request-is-a-range", "a range is read to its end, in as many requests as that takes",
         packed.one_request_is_a_range, rows.range_is_read_to_its_end, None),
    Rule("last-row-read-again", "a further request begins behind the last row",
         packed.last_row_read_again, rows.range_gives_nothing_twice, 0),
    Rule("bodies-out-of-place", "a body belongs to a place in its row",
         packed.bodies_out_of_place, rows.part_of_a_row_is_deleted, 0),
    Rule("phantoms-kept", "what is listed and cannot be read is deleted before retirement",
         packed.phantoms_kept, rows.phantoms_do_not_keep_a_wide_row, None),
    Rule("unread-are-phantoms", "only what a read has come to can be found missing",
         packed.unread_are_phantoms, rows.strays_behind_others_are_kept, None),
)  # fmt: skip

BY_NAME = {rule.name: rule for rule in RULES}
TOLD = [rule for rule in RULES if rule.scenario is not None]
SEARCHED = [rule for rule in RULES if rule.seed is not None]
