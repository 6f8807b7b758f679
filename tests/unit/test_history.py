"""The history checker finds what it is for, and blames nobody without need."""

import json
import os
import secrets
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cqueue
from cqueue.testing import HistoryError, MemoryClient, check, judge, recording
from cqueue.testing.events import FAIL, INVOKE, OK, UNKNOWN, HistoryLine
from tests.properties import examples

S = 1_000_000_000
LEASE_S = 30
ALLOWED = "timeout expired", "nacked", "given back", "unknown send repeated", "remade late"


class Story:
    """Writes a history by hand: times in seconds, a call lasts 10 ms unless told otherwise."""

    def __init__(self):
        self.events = []
        self.calls = 0

    def call(self, operation, at, who="a", *, asked=(), answered=(), outcome=OK, end=None, note=None):
        self.calls += 1
        common = {"operation": operation, "call": self.calls, "process": who, "holder": who, "queue": "q"}
        self.events.append(
            HistoryLine(phase=INVOKE, mono_ns=int(at * S), messages=tuple(asked), note=note or {}, **common)
        )
        if outcome is None:  # killed
            return
        end_ns = int((at + 0.01 if end is None else end) * S)
        remarks = note if operation == "send" and note else {}
        self.events.append(
            HistoryLine(
                phase=outcome,
                mono_ns=end_ns,
                cluster_us=end_ns // 1000,
                messages=tuple(answered),
                note=remarks,
                **common,
            )
        )

    def send(self, at, *ids, outcome=OK, key=None, entry=None, delay_ms=0, ttl_ms=None, **more):
        asked = [{"key": key or id_, "delay_ms": delay_ms, "ttl_ms": ttl_ms} for id_ in ids]
        answered = [{"ids": [id_], **({"outcome": entry} if entry else {})} for id_ in ids]
        if outcome != OK or entry == FAIL:
            answered = [{"outcome": entry}] * len(ids) if entry else []
        self.call("send", at, "producer", asked=asked, answered=answered, outcome=outcome, **more)

    def receive(
        self, at, *ids, who="a", key=None, fence=None, attempt=1, origin=None, lease=LEASE_S, end=None
    ):
        end = at + 0.01 if end is None else end
        answered = [
            {
                "id": id_,
                "key": key or id_,
                "fence": int(end * 1000) if fence is None else fence,
                "attempt": attempt,
                "due_ms": int((end + lease) * 1000),
                **({"origin": origin} if origin else {}),
            }
            for id_ in ids
        ]
        self.call("receive", at, who, answered=answered, end=end)

    def settle(self, operation, at, *ids, who="a", **more):
        self.call(operation, at, who, asked=[{"id": id_} for id_ in ids], **more)

    def ack(self, at, *ids, **more):
        self.settle("ack", at, *ids, **more)

    def left(self, at, *ids):
        self.call("left", at, answered=[{"id": id_, "key": id_} for id_ in ids])

    def judged(self):
        return judge(self.events)


@pytest.fixture
def story():
    return Story()


def verdicts(report):
    return [name for name, _ in report.broken]


# ── nothing wrong ──


def test_sent_received_acked_is_clean(story):
    """The whole way of two messages breaks no promise and duplicates nothing."""
    story.send(1, "m", "n")
    story.receive(2, "m", "n")
    story.ack(3, "m", "n")
    report = story.judged()
    assert report.clean
    assert not report.duplicated
    assert (report.sends, report.deliveries, report.acks) == (2, 2, 2)


# ── lost ──


def test_an_acknowledged_message_that_is_nowhere_is_lost(story):
    """Received and not acked is not enough: it must be left then."""
    story.send(1, "m")
    story.receive(2, "m")
    assert verdicts(story.judged()) == ["lost"]


@pytest.mark.parametrize("outcome", [FAIL, UNKNOWN, None])
def test_a_send_without_acknowledgement_cannot_be_lost(story, outcome):
    """Refused, unknown, or its sender was killed: nobody was promised anything."""
    story.send(1, "m", outcome=outcome)
    assert story.judged().clean


@pytest.mark.parametrize("entry", [FAIL, UNKNOWN])
def test_an_entry_that_failed_alone_cannot_be_lost(story, entry):
    """The call succeeded, this message of it did not."""
    story.send(1, "m", entry=entry)
    assert story.judged().clean


@pytest.mark.parametrize("outcome", [OK, UNKNOWN, None])
@pytest.mark.parametrize("operation", ["ack", "dead"])
def test_a_message_whose_ack_may_be_stored_is_accounted_for(story, operation, outcome):
    """An ack without an answer may have happened."""
    story.send(1, "m")
    story.receive(2, "m")
    story.settle(operation, 3, "m", outcome=outcome)
    assert story.judged().clean


def test_a_refused_ack_must_leave_the_message(story):
    """Not done means that the message still is there; if it is not, it is lost."""
    story.send(1, "m")
    story.receive(2, "m")
    story.ack(3, "m", outcome=FAIL)
    assert verdicts(story.judged()) == ["lost"]


def test_what_is_left_is_not_lost(story):
    """Neither what stands in the queue nor what stands in its dead-letter queue."""
    story.send(1, "m", "n")
    story.call("left", 5, answered=[{"id": "m", "key": "m"}, {"id": "x", "key": "n", "origin": "n"}])
    assert story.judged().clean


def test_an_expired_message_is_not_lost_but_a_fresh_one_is(story):
    """A time to live that was over when the history ended accounts for a message."""
    story.send(1, "m", ttl_ms=2000)
    story.send(1, "n", ttl_ms=90_000)
    story.left(5)
    assert [finding.id for finding in story.judged().lost] == ["n"]


@pytest.mark.parametrize(
    ("replaces", "outcome", "verdict"),
    [(True, OK, []), (True, UNKNOWN, []), (True, FAIL, ["lost"]), (False, OK, ["lost"])],
)
def test_what_a_later_send_may_have_replaced_is_not_lost(story, replaces, outcome, verdict):
    """A later send that was refused replaced nothing; the last message of a key is replaced by none."""
    for at, id_, end in ((1, "m", OK), (2, "n", outcome)):
        asked = [{"key": id_, "unique": "k", "replaces": replaces}]
        answered = [] if end == FAIL else [{"ids": [id_]}]
        story.call("send", at, "producer", asked=asked, answered=answered, outcome=end)
    story.left(9, "n")
    assert verdicts(story.judged()) == verdict
    story.events = [event for event in story.events if event.operation != "left"]
    assert ("n" in {finding.id for finding in story.judged().lost}) == (outcome == OK)


def test_of_two_that_may_have_replaced_each_other_one_stays(story):
    """They were sent by one call, or at once: each may be the earlier one, but not both."""
    asked = [{"key": id_, "unique": "k", "replaces": True} for id_ in ("m", "n")]
    story.call("send", 1, "producer", asked=asked, answered=[{"ids": ["m"]}, {"ids": ["n"]}])
    assert len(story.judged().lost) == 2
    story.left(9, "n")
    assert story.judged().lost == []


@pytest.mark.parametrize(("at", "verdict"), [(4, []), (20, ["lost"])])
def test_what_was_sent_too_long_before_was_not_replaced(story, at, verdict):
    """A later send replaces what was sent `within` a time before it."""
    for when, id_ in ((1, "m"), (at, "n")):
        asked = [{"key": id_, "unique": "k", "replaces": True, "within_ms": 5000}]
        story.call("send", when, "producer", asked=asked, answered=[{"ids": [id_]}])
    story.left(30, "n")
    assert verdicts(story.judged()) == verdict


@pytest.mark.parametrize(("left", "lost"), [("o", set()), (None, {"m", "n", "o"})])
def test_what_was_replaced_itself_had_replaced_others(story, left, lost):
    """So a chain ends with its last message, though that came too late to replace the first one."""
    for when, id_ in ((1, "m"), (9, "n"), (17, "o")):
        asked = [{"key": id_, "unique": "k", "replaces": True, "within_ms": 10_000}]
        story.call("send", when, "producer", asked=asked, answered=[{"ids": [id_]}])
    story.left(30, *filter(None, [left]))
    assert {finding.id for finding in story.judged().lost} == lost


# ── unexpected ──


def test_a_message_that_nobody_sent_is_unexpected(story):
    story.receive(2, "m")
    assert verdicts(story.judged()) == ["unexpected"]


def test_a_body_under_anothers_id_is_unexpected(story):
    story.send(1, "m", "n")
    story.receive(2, "m", key="n")
    story.ack(3, "m", "n")
    assert verdicts(story.judged()) == ["unexpected"]


def test_a_message_delivered_before_its_send_is_unexpected(story):
    story.receive(1, "m")
    story.send(2, "m")
    story.ack(3, "m")
    assert verdicts(story.judged()) == ["unexpected"]


def test_a_message_whose_send_was_refused_is_unexpected(story):
    """Not done means not stored."""
    story.send(1, "m", entry=FAIL)
    story.receive(2, "m")
    story.ack(3, "m")
    assert verdicts(story.judged()) == ["unexpected"]


def test_a_second_copy_of_a_plain_send_is_unexpected(story):
    """A send that was neither unknown nor remade has made one message."""
    story.send(1, "m")
    story.receive(2, "m")
    story.receive(2, "copy", key="m", who="b")
    story.ack(3, "m", "copy")
    assert verdicts(story.judged()) == ["unexpected"]


@pytest.mark.parametrize(
    ("more", "reason"),
    [({"entry": UNKNOWN}, "unknown send repeated"), ({"note": {"remade": 1}}, "remade late")],
)
def test_a_second_copy_has_a_reason(story, more, reason):
    """An unknown send that the application repeats, and one that the library had to make again."""
    story.send(1, "m", **more)
    if "entry" in more:
        story.send(2, "n", key="m")
    story.receive(3, "m", key="m")
    story.receive(4, "n", key="m")
    story.ack(5, "m", "n")
    report = story.judged()
    assert report.clean
    assert report.reasons == {reason: 1}


def test_one_body_sent_twice_is_no_duplicate(story):
    """Both sends were acknowledged: two messages were asked for."""
    story.send(1, "m")
    story.send(1, "n", key="m")
    story.receive(2, "m", "n", key="m")
    story.ack(3, "m", "n")
    report = story.judged()
    assert report.clean
    assert not report.duplicated


def test_a_dead_letter_is_expected_under_its_own_id(story):
    """And accounts for the message that died."""
    story.send(1, "m")
    story.receive(2, "x", key="m", origin="m")
    story.ack(3, "x")
    report = story.judged()
    assert report.clean
    assert not report.duplicated


# ── resurrected ──


@pytest.mark.parametrize("operation", ["ack", "dead"])
def test_a_receive_that_began_after_the_ack_must_not_deliver(story, operation):
    story.send(1, "m")
    story.receive(2, "m")
    story.settle(operation, 3, "m")
    story.receive(40, "m")
    assert verdicts(story.judged()) == ["resurrected"]


def test_a_receive_that_began_before_the_ack_was_acknowledged_may_deliver(story):
    """The first holder's timeout had passed, its ack came late."""
    story.send(1, "m")
    story.receive(2, "m")
    story.receive(34, "m", who="b", end=36)
    story.ack(33, "m", end=35)
    story.ack(37, "m", who="b")
    report = story.judged()
    assert report.clean
    assert report.reasons == {"timeout expired": 1}


# ── overlapping, and duplicates with a reason ──


def test_two_holders_at_one_time_overlap(story):
    story.send(1, "m")
    story.receive(2, "m")
    story.receive(20, "m", who="b")
    story.ack(21, "m")
    report = story.judged()
    assert verdicts(report) == ["overlapping"]
    assert "before the timeout of a/a" in str(report)


def test_a_message_twice_in_one_receive_overlaps(story):
    story.send(1, "m")
    story.receive(2, "m", "m")
    story.ack(21, "m")
    assert verdicts(story.judged()) == ["overlapping"]


def test_two_late_holders_do_not_hide_an_early_one(story):
    """The holder before the last has still time left, whatever became of the last."""
    story.send(1, "m")
    story.receive(2, "m", lease=100)
    story.receive(5, "m", who="b", lease=1)
    story.receive(9, "m", who="c")
    story.ack(10, "m", who="c")
    assert verdicts(story.judged()) == ["overlapping", "overlapping"]


def test_after_the_timeout_another_may_hold(story):
    story.send(1, "m")
    story.receive(2, "m")
    story.receive(33, "m", who="b")
    story.ack(34, "m", who="b")
    report = story.judged()
    assert report.clean
    assert report.reasons == {"timeout expired": 1}
    assert report.duplicated[0].after_s == pytest.approx(31)


@pytest.mark.parametrize("outcome", [OK, UNKNOWN, None])
@pytest.mark.parametrize(
    ("operation", "reason"), [("nack", "nacked"), ("snooze", "nacked"), ("dead", "given back")]
)
def test_after_a_give_back_another_may_hold(story, operation, reason, outcome):
    """Also after one whose outcome is unknown."""
    story.send(1, "m")
    story.receive(2, "m")
    story.settle(operation, 3, "m", outcome=outcome)
    story.receive(3, "m", who="b", end=3.5)
    story.ack(5, "m", who="b")
    report = story.judged()
    assert report.clean
    assert report.reasons == {reason: 1}


def test_a_refused_nack_gives_nothing_back(story):
    story.send(1, "m")
    story.receive(2, "m")
    story.settle("nack", 3, "m", outcome=FAIL)
    story.receive(4, "m", who="b")
    story.ack(5, "m", who="b")
    assert verdicts(story.judged()) == ["overlapping"]


@pytest.mark.parametrize("give_back", [True, False])
def test_a_close_gives_back_what_it_says(story, give_back):
    story.send(1, "m")
    story.receive(2, "m")
    story.call("close", 3, note={"give_back": give_back})
    story.receive(4, "m", who="b")
    story.ack(5, "m", who="b")
    report = story.judged()
    assert verdicts(report) == ([] if give_back else ["overlapping"])


@pytest.mark.parametrize("outcome", [OK, FAIL])
def test_an_extended_lease_lasts_longer(story, outcome):
    """If the extension was acknowledged."""
    story.send(1, "m")
    story.receive(2, "m")
    answered = [{"id": "m", "due_ms": 60_000}] if outcome == OK else []
    story.settle("extend", 20, "m", answered=answered, outcome=outcome)
    story.receive(40, "m", who="b")
    story.ack(41, "m", who="b")
    assert verdicts(story.judged()) == (["overlapping"] if outcome == OK else [])


def test_a_claim_known_after_its_timeout_overlaps_nobody(story):
    """The holder was stopped between its claim and its answer."""
    story.send(1, "m")
    story.receive(2, "m", end=60, fence=1, lease=-20)
    story.receive(45, "m", who="b", fence=2)
    story.ack(61, "m")
    assert story.judged().clean


def test_a_later_claim_has_the_higher_fence(story):
    """Else the fence is no fencing token."""
    story.send(1, "m")
    story.receive(2, "m", fence=10)
    story.receive(33, "m", who="b", fence=9)
    story.ack(34, "m", who="b")
    assert "stale" in verdicts(story.judged())


# ── figures ──


def test_inversions_are_counted_and_allowed(story):
    """Only between messages of which one was sent and received wholly before the other."""
    story.send(1, "m")
    story.send(2, "n", "o")
    story.receive(3, "n")
    story.receive(4, "m", "o")
    story.ack(5, "m", "n", "o")
    report = story.judged()
    assert report.clean
    assert report.inversions == 1


def test_delayed_messages_tell_how_early_and_late_they_came(story):
    story.send(1, "m", "n", delay_ms=10_000)
    story.receive(10.5, "m", end=10.8)
    story.receive(12.5, "n", end=13)
    story.ack(14, "m", "n")
    report = story.judged()
    assert report.early_s == pytest.approx(0.2)
    assert report.late_s == pytest.approx(2)


# ── a property: correct histories are clean, one fault is found ──


@st.composite
def correct_histories(draw):
    """Messages that go a correct way each, and those of them that were received, acked and so on."""
    story = Story()
    fates = draw(
        st.lists(st.sampled_from(["ack", "expire", "nack", "left", "unknown", "extend"]), min_size=1)
    )
    left = []
    for place, fate in enumerate(fates):
        id_, at = f"m{place}", draw(st.floats(1, 50))
        story.send(at, id_, entry=UNKNOWN if fate == "unknown" else None)
        at += draw(st.floats(0.02, 20))
        if fate == "left":
            left.append(id_)
            continue
        story.receive(at, id_, who="a")
        if fate == "expire":
            at += LEASE_S + draw(st.floats(0.1, 20))
            story.receive(at, id_, who="b")
        elif fate == "nack":
            story.settle("nack", at + 1, id_)
            at += 1 + draw(st.floats(0.02, 20))
            story.receive(at, id_, who="b")
        elif fate == "extend":
            story.settle("extend", at + 1, id_, answered=[{"id": id_, "due_ms": int((at + 99) * 1000)}])
        story.ack(at + 2, id_, who="b" if fate in {"expire", "nack"} else "a")
    story.left(1000, *left)
    return story, dict(zip((f"m{place}" for place in range(len(fates))), fates, strict=True))


@given(correct_histories(), st.randoms(use_true_random=False))
@settings(max_examples=examples(200))
def test_a_correct_history_is_clean(history, random):
    """In whatever order the lines are read, and every duplicate has a reason."""
    story, _ = history
    random.shuffle(story.events)
    report = judge(story.events)
    assert report.clean, str(report)
    assert set(report.reasons) <= set(ALLOWED)


def _lose(story, id_):
    story.events = [event for event in story.events if event.operation != "left"]
    story.left(1000)
    asked = [event.call for event in story.events if event.operation == "ack" and event.messages[:1]]
    gone = {
        event.call for event in story.events if event.call in asked and {"id": id_} in list(event.messages)
    }
    story.events = [event for event in story.events if event.call not in gone]


def _invent(story, id_):
    story.receive(990, f"never-{id_}")


def _revive(story, id_):
    story.ack(985, id_)
    story.receive(990, id_, who="c")


def _overlap(story, id_):
    story.receive(400, id_, who="c", lease=100)
    story.receive(450, id_, who="d")
    # The message is acked only afterwards, so that nothing else is wrong.
    story.events = [event for event in story.events if event.operation != "ack"]
    ids = {
        one["key"]
        for event in story.events
        if event.operation == "send"
        for one in event.messages
        if "key" in one
    }
    story.ack(995, *ids)


FAULTS = {"lost": _lose, "unexpected": _invent, "resurrected": _revive, "overlapping": _overlap}


@given(correct_histories(), st.sampled_from(sorted(FAULTS)), st.data())
@settings(max_examples=examples(200))
def test_one_injected_fault_is_found(history, verdict, data):
    """A history with one fault in it gets that verdict, and at the right message."""
    story, fates = history
    candidates = [id_ for id_, fate in fates.items() if fate != "unknown"]
    if not candidates:
        candidates = list(fates)
        verdict = "unexpected"
    id_ = data.draw(st.sampled_from(candidates))
    FAULTS[verdict](story, id_)
    found = [(name, finding.id) for name, finding in story.judged().broken]
    assert (verdict, f"never-{id_}" if verdict == "unexpected" else id_) in found


# ── the recorder ──


@pytest.fixture
def queue():
    with cqueue.connect(f"memory://history-{secrets.token_hex(4)}") as client:
        yield client.create_queue("work")


@pytest.mark.parametrize("on_conflict", ["skip", "replace", "debounce"])
def test_of_a_unique_key_only_one_message_is_expected(queue, tmp_path, on_conflict):
    """Trap: a skipped send returns the id of another body, and one that replaces ends that message."""
    path = tmp_path / "history"
    unique = cqueue.Unique(key="k", on_conflict=on_conflict)
    with recording(queue, path) as recorded, recorded.consumer() as consumer:
        first = recorded.send(cqueue.Message(b"first", unique=unique))
        second = recorded.send(cqueue.Message(b"second", unique=unique))
        assert second.skipped == (on_conflict == "skip") == (second == first)
        consumer.ack(consumer.receive())
        recorded.left()
    report = check(path)
    assert report.clean, str(report)
    assert report.sends == (1 if on_conflict == "skip" else 2)


def test_a_lease_ends_by_the_clock_that_a_test_moves(tmp_path):
    """Trap: a moved clock ends a lease at once, and 30 s before its end on the machine's clock."""
    path = tmp_path / "history"
    with MemoryClient(now=datetime(2031, 5, 1, tzinfo=UTC)) as client:
        queue = client.create_queue("work")
        with recording(queue, path) as recorded, recorded.consumer() as one, recorded.consumer() as other:
            recorded.send(b"x")
            recorded.send(cqueue.Message(b"y", due=client.now + timedelta(seconds=21)))
            assert len(one.receive()) == 1
            client.advance(timedelta(seconds=31))
            while messages := other.receive():
                other.ack(messages)
            recorded.left()
    report = check(path)
    assert report.clean, str(report)
    assert (report.deliveries, report.acks) == (3, 2)
    assert (report.early_s, report.late_s) == (0, pytest.approx(10, abs=5))


def test_a_recorded_queue_works_and_is_clean(queue, tmp_path):
    """Everything that goes through a recorder arrives, and stands in the file."""
    path = tmp_path / "history"
    with recording(queue, path) as recorded, recorded.consumer() as consumer:
        recorded.send(b"alone")
        result = recorded.send_many([cqueue.Message(b"%d" % index) for index in range(20)])
        assert not result.failed
        messages = []
        while len(messages) < 21:
            messages += consumer.receive(30)
        messages[0].nack()
        messages[1].extend(timedelta(minutes=5))
        messages[2].dead("test")
        messages[3].ack()
        consumer.ack_async(messages[4:]).result()
        (again,) = consumer.receive(10)
        again.snooze(timedelta(hours=1))
        recorded.left()
    report = check(path)
    assert report.clean, str(report)
    assert (report.sends, report.deliveries) == (21, 22)
    assert report.reasons == {"nacked": 1}
    operations = {json.loads(line)["operation"] for line in path.read_bytes().splitlines()}
    assert operations == {"send", "receive", "nack", "snooze", "extend", "dead", "ack", "left", "close"}


def test_a_held_message_that_is_given_back_by_close_may_come_again(queue, tmp_path):
    """And what other processes recorded is judged together with it."""
    with recording(queue, tmp_path / "one") as recorded, recorded.consumer() as consumer:
        recorded.send(b"body")
        assert consumer.receive(1)
    with recording(queue, tmp_path / "two") as recorded, recorded.consumer() as consumer:
        consumer.ack(consumer.receive(1))
    report = check(tmp_path / "one", tmp_path / "two")
    assert report.clean
    assert report.reasons == {"given back": 1}


def test_a_single_send_that_fails_is_recorded(queue, tmp_path):
    """As not done: the error reaches the caller as without a recorder."""
    with recording(queue, tmp_path / "one") as recorded, pytest.raises(cqueue.BodyTooLarge):
        recorded.send(bytes(2 << 20))
    report = check(tmp_path / "one")
    assert (report.sends, report.unknown_sends) == (1, 0)


def test_dead_letters_are_found_at_the_end(tmp_path):
    """`left` looks into the dead-letter queue too."""
    with cqueue.connect(f"memory://history-{secrets.token_hex(4)}") as client:
        queue = client.create_queue("work")
        with recording(queue, tmp_path / "one") as recorded:
            with recorded.consumer() as consumer:
                recorded.send(b"body")
                (message,) = consumer.receive(1)
                consumer._consumer.dead(message, "not recorded")
            assert recorded.left(client.queue(queue.dead_letter_name)) == 1
    assert check(tmp_path / "one").clean


def test_a_line_cut_off_by_a_kill_is_left_out(queue, tmp_path):
    """Any other damage is an error that says where."""
    path = tmp_path / "history"
    with recording(queue, path) as recorded:
        recorded.send(b"body")
        recorded.left()
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:50])
    assert check(path).clean
    path.write_bytes(whole[:50] + b"\n" + whole)
    with pytest.raises(HistoryError, match=":1 is not a line"):
        check(path)


def test_an_end_without_a_beginning_is_no_history():
    event = HistoryLine(operation="ack", phase=OK, call=1, process="a", holder="a", queue="q", mono_ns=1)
    with pytest.raises(HistoryError, match="without having begun"):
        judge([event])


CHILD = """
import sys
from pathlib import Path
import cqueue
from cqueue.testing import Recorder
with cqueue.connect("memory://") as client:
    recorded = Recorder(client.create_queue("work"), Path(sys.argv[1]))
    print("ready", flush=True)
    while True:
        recorded.send_many([cqueue.Message(b"%d" % index) for index in range(50)])
"""


def test_a_killed_process_leaves_whole_lines(tmp_path):
    """After SIGKILL in the middle of writing, what was written can be judged."""
    path = tmp_path / "history"
    with subprocess.Popen([sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"ready\n"
        while not path.exists() or path.stat().st_size < 100_000:
            assert child.poll() is None
        os.kill(child.pid, 9)
    report = check(path)
    assert report.sends >= 50
    assert not report.unexpected


@pytest.mark.cassandra
def test_a_benchmark_verifies_itself(keyspace, capsys):
    """`bench burndown --verify` judges its own run, and says so in its result."""
    from cqueue.cli.main import main

    words = ["bench", "burndown", "--messages", "300", "--verify", "--json"]
    assert main(["--url", keyspace.url, *words]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["verified"] is True
    assert (result["verdict"]["deliveries"], result["verdict"]["lost"]) == (300, 0)


@pytest.mark.cassandra
def test_a_benchmark_sends_and_drains_ahead(keyspace, capsys, monkeypatch):
    """`bench burndown --ahead --pipelined`; a history has neither."""
    from cqueue.bench import throughput
    from cqueue.cli.main import main

    ways = []
    for name in ("_send_ahead", "drain_all"):
        real = getattr(throughput, name)
        monkeypatch.setattr(
            throughput, name, lambda *args, _real=real, **how: ways.append(how) or _real(*args, **how)
        )
    words = ["--url", keyspace.url, "bench", "burndown", "--messages", "300", "--ahead"]
    assert main([*words, "--pipelined", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["drained_per_s"] > 0
    assert ways == [{}, {"pipelined": True}]
    assert main([*words, "--verify"]) == 2
    assert "takes no --pipelined and no --ahead" in capsys.readouterr().err


@pytest.mark.cassandra
@pytest.mark.parametrize(
    ("words", "waits"), [(("burndown", "--messages", "300"), 2), (("warm-up", "--seconds", "1"), 0)]
)
def test_what_is_measured_alone_waits_for_a_calm_server_and_what_warms_it_up_does_not(
    keyspace, capsys, monkeypatch, words, waits
):
    """A warm-up that waits is none: it is many short burndowns."""
    from cqueue.bench.setup import Bench
    from cqueue.cli.main import main

    waited = []
    monkeypatch.setattr(Bench, "calm", lambda _: waited.append(1))
    assert main(["--url", keyspace.url, "bench", *words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found.get("messages") == (300 if words[0] == "burndown" else None), (
        "a warm-up has sizes of its own"
    )
    assert len(waited) == waits
