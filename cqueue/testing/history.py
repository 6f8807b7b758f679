"""The history checker: judges what clients recorded, without looking into any store.

Each judgement allows the queue every possible excuse and no more. A call of unknown outcome may have
happened, at any moment from its beginning on. A claim takes effect somewhere between the beginning and the
end of its receive. So a finding cannot be explained by any order of events: it is a broken promise.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from cqueue.testing.claims import Claim, claims_of
from cqueue.testing.events import FAIL, NEVER, OK, SKIPPED, UNKNOWN, Call, HistoryLine, Note, calls, read
from cqueue.testing.report import EXPIRED, REMADE, SEND_UNKNOWN, Duplicate, Finding, Report

NS = 1_000_000_000
NS_PER_MS = 1_000_000
LEAVES = frozenset({"ack", "dead"})
"""Operations after which a message is not delivered again."""


def check(*paths: Path) -> Report:
    """Read the histories of all clients of a run, and judge them together.

    Raises:
        HistoryError: a file is damaged, other than by a kill in the middle of its last line.
    """
    return judge(read(paths))


def judge(events: Iterable[HistoryLine]) -> Report:
    """Judge lines in any order."""
    everything = calls(events)
    entries = [entry for call in everything if call.operation == "send" for entry in _entries(call)]
    sent = [entry for entry in entries if entry.outcome != SKIPPED]
    claims = claims_of(everything)
    report = Report(
        sends=len(sent),
        unknown_sends=sum(entry.outcome == UNKNOWN for entry in sent),
        deliveries=len(claims),
        acks=sum(len(call.asked) for call in everything if call.operation == "ack" and call.outcome == OK),
    )
    by_id: dict[str, list[Claim]] = defaultdict(list)
    for claim in claims:
        by_id[claim.id].append(claim)
    left_at = _left_at(everything)
    report.lost = list(_lost(everything, sent, claims))
    report.unexpected = list(_unexpected(sent, claims))
    report.resurrected = list(_resurrected(claims, left_at))
    for repeated in by_id.values():
        _judge_deliveries(sorted(repeated, key=lambda claim: (claim.fence, claim.at_ns)), report)
    report.duplicated += _copies(sent, by_id)
    _judge_order(sent, by_id, report)
    return report


CLOCKS_NS = 1e9
"""ns by which the clocks of a recorder and of the cluster may differ, where messages are sent in a time."""

# ── sends ──


@dataclass(frozen=True, slots=True)
class Sent:
    """A message that a client sent, or tried to send.

    Attributes:
        key: name of the message's body.
        queue, priority: where it was sent.
        began_ns, ended_ns: beginning and end of the call.
        outcome: ok, fail, unknown or skipped.
        ids: known ids, also of a send with an unknown outcome.
        remade: the call may have stored the message under a second id.
        due_ns: earliest time at which the message may be due.
        expires_ns: earliest time at which its time to live may pass.
        unique: its unique key. replaces: whether it ends an earlier message of that key, which was sent
            `within_ns` before.
    """

    key: str
    queue: str
    priority: int
    began_ns: float
    ended_ns: float
    outcome: str
    ids: tuple[str, ...]
    remade: bool
    due_ns: float
    expires_ns: float
    unique: str | None
    replaces: bool
    within_ns: float

    def may_replace(self, other: Sent) -> bool:
        """Return whether this send may have ended a message of the same unique key."""
        if self is other or self.outcome == FAIL:
            return False
        if self.outcome == UNKNOWN:
            return True
        return self.ended_ns > other.began_ns and self.began_ns <= other.ended_ns + self.within_ns


def _entries(call: Call) -> Iterable[Sent]:
    for place, asked in enumerate(call.asked):
        answer: Note = call.answered[place] if place < len(call.answered) else {}
        outcome = answer.get("outcome", call.outcome)
        ttl_ms = asked.get("ttl_ms")
        yield Sent(
            key=asked["key"],
            queue=call.queue,
            priority=asked.get("priority", 0),
            began_ns=call.began_ns,
            ended_ns=call.ended_ns,
            outcome=outcome,
            ids=tuple(answer.get("ids", ())),
            remade=bool(call.note.get("remade")),
            due_ns=call.began_ns + asked.get("delay_ms", 0) * NS_PER_MS,
            # The time to live may have begun at any moment of the call.
            expires_ns=NEVER if ttl_ms is None else call.began_ns + ttl_ms * NS_PER_MS,
            unique=asked.get("unique"),
            replaces=asked.get("replaces", False),
            within_ns=NEVER if (ms := asked.get("within_ms")) is None else ms * NS_PER_MS + CLOCKS_NS,
        )


# ── lost, unexpected, resurrected ──


def _lost(everything: list[Call], sent: list[Sent], claims: list[Claim]) -> Iterable[Finding]:
    """Yield messages whose send was acknowledged, and that no later call accounts for."""
    accounted = {claim.origin for claim in claims if claim.origin}
    for call in everything:
        if call.operation in LEAVES and _may_have_happened(call):
            accounted.update(one["id"] for one in call.asked)
        elif call.operation == "left":
            accounted.update(one.get("origin", one["id"]) for one in call.answered)
    end_ns = max((call.ended_ns for call in everything if call.ended_ns != NEVER), default=0)
    replaced = _replaced(
        sent,
        # One that is lost itself excuses no other: the two may have been sent at once.
        lambda one: one.outcome == UNKNOWN or one.expires_ns <= end_ns or bool(accounted & {*one.ids}),
    )
    for entry in sent:
        if entry.outcome == OK and entry.expires_ns > end_ns and entry not in replaced:
            for id_ in entry.ids:
                if id_ not in accounted:
                    yield Finding(id_, entry.key, "acknowledged, then neither acked, dead, expired nor left")


def _replaced(sent: list[Sent], is_known: Callable[[Sent], bool]) -> set[Sent]:
    """Return the messages that others of their unique key may have ended.

    is_known: return whether it is known what became of a message, apart from its being replaced.
    """
    by_unique: dict[tuple[str, str], list[Sent]] = defaultdict(list)
    for entry in sent:
        if entry.unique is not None:
            by_unique[entry.queue, entry.unique].append(entry)
    replaced: set[Sent] = set()
    for entries in by_unique.values():
        replacing = [one for one in entries if one.replaces and is_known(one)]
        for other in replacing:  # grows: one that was replaced may have replaced others before
            found = {one for one in entries if one not in replaced and other.may_replace(one)}
            replaced |= found
            replacing += [one for one in found if one.replaces and not is_known(one)]
    return replaced


def _may_have_happened(call: Call) -> bool:
    """Return whether the call may have done something.

    The refusal of one message is certain; of several messages the first may be done.
    """
    return call.outcome != FAIL or (call.operation == "dead" and len(call.asked) > 1)


def _unexpected(sent: list[Sent], claims: list[Claim]) -> Iterable[Finding]:
    by_key: dict[str, list[Sent]] = defaultdict(list)
    by_id: dict[str, Sent] = {}
    for entry in sent:
        by_key[entry.key].append(entry)
        by_id.update(dict.fromkeys(entry.ids, entry))
    for claim in claims:
        text = _why_unexpected(claim, by_id.get(claim.id), by_key.get(claim.key, []))
        if text:
            yield Finding(claim.id, claim.key, text)


def _why_unexpected(claim: Claim, entry: Sent | None, same_key: list[Sent]) -> str | None:
    """Return what is wrong with a delivery; None if a send explains it."""
    if entry is not None and entry.key != claim.key:
        return f"delivered with another body than was sent ({entry.key})"
    if not same_key:
        return "delivered, but never sent"
    if all(claim.at_ns < one.began_ns for one in same_key):
        return "delivered before it was sent"
    return None if entry is not None or claim.origin else _why_other_id(same_key)


def _why_other_id(same_key: list[Sent]) -> str | None:
    if any(one.outcome == UNKNOWN or one.remade for one in same_key):
        return None
    if all(one.outcome == FAIL for one in same_key):
        return "delivered, though its send was refused"
    return "delivered under an id that its send did not return"


def _left_at(everything: list[Call]) -> dict[str, float]:
    """Return when each message was first acknowledged to have left the queue."""
    left_at: dict[str, float] = {}
    for call in everything:
        if call.operation in LEAVES and call.outcome == OK:
            for one in call.asked:
                left_at[one["id"]] = min(call.ended_ns, left_at.get(one["id"], NEVER))
    return left_at


def _resurrected(claims: list[Claim], left_at: dict[str, float]) -> Iterable[Finding]:
    for claim in claims:
        since_ns = claim.began_ns - left_at.get(claim.id, NEVER)
        if since_ns > 0:
            text = f"delivered by a receive that began {since_ns / NS:.3f} s after the ack was acknowledged"
            yield Finding(claim.id, claim.key, text)


# ── one message, several deliveries ──


def _judge_deliveries(claims: list[Claim], report: Report) -> None:
    """Judge each delivery against all before it, in the order of their fences."""
    for place, claim in enumerate(claims):
        before = claims[:place]
        for earlier in before:
            if earlier.began_ns > claim.at_ns:
                text = f"fence {claim.fence} was given out before the lower {earlier.fence}"
                report.stale.append(Finding(claim.id, claim.key, text))
            elif not earlier.is_over(claim.at_ns):
                report.overlapping.append(Finding(claim.id, claim.key, _overlap(earlier, claim)))
        if before:
            last = before[-1]
            reason = last.why or EXPIRED
            after_s = (claim.at_ns - last.at_ns) / NS
            report.duplicated.append(Duplicate(claim.id, claim.key, reason, after_s))


def _overlap(earlier: Claim, later: Claim) -> str:
    return (
        f"{'/'.join(later.owner)} got it (attempt {later.attempt}, fence {later.fence}) "
        f"{(earlier.until_ns - later.at_ns) / NS:.3f} s before the timeout of {'/'.join(earlier.owner)} "
        f"(attempt {earlier.attempt}, fence {earlier.fence}) was over"
    )


def _copies(sent: list[Sent], by_id: dict[str, list[Claim]]) -> Iterable[Duplicate]:
    """Yield further messages of one body under other ids, unless they are reported as unexpected."""
    by_key: dict[str, list[Claim]] = defaultdict(list)
    for claims in by_id.values():
        first = min(claims, key=lambda claim: claim.at_ns)
        if not first.origin:
            by_key[first.key].append(first)
    acknowledged = Counter(entry.key for entry in sent if entry.outcome == OK)
    unknown = {entry.key for entry in sent if entry.outcome == UNKNOWN}
    for key, copies in by_key.items():
        copies.sort(key=lambda claim: claim.at_ns)
        for copy in copies[max(1, acknowledged[key]) :]:
            reason = SEND_UNKNOWN if key in unknown else REMADE
            yield Duplicate(copy.id, key, reason, (copy.at_ns - copies[0].at_ns) / NS)


# ── figures: order and punctuality ──


def _judge_order(sent: list[Sent], by_id: dict[str, list[Claim]], report: Report) -> None:
    groups: dict[tuple[str, int], list[tuple[Claim, Sent]]] = defaultdict(list)
    for entry in sent:
        for claims in (by_id[id_] for id_ in entry.ids if id_ in by_id):
            first = min(claims, key=lambda claim: claim.at_ns)
            if entry.due_ns > entry.began_ns:
                report.early_s = max(report.early_s, (entry.due_ns - first.at_ns) / NS)
            else:
                groups[entry.queue, entry.priority].append((first, entry))
            report.late_s = max(report.late_s, (first.at_ns - entry.due_ns) / NS)
    report.inversions = sum(_inversions(group) for group in groups.values())


def _inversions(firsts: list[tuple[Claim, Sent]]) -> int:
    """Count messages that were received wholly after a message that was sent wholly after them."""
    firsts.sort(key=lambda pair: pair[0].began_ns)
    received: list[tuple[float, float]] = []  # (end of the receive, beginning of the send)
    newest_ns, count = 0.0, 0
    for claim, entry in firsts:
        while received and received[0][0] < claim.began_ns:
            newest_ns = max(newest_ns, heapq.heappop(received)[1])
        count += entry.ended_ns < newest_ns
        heapq.heappush(received, (claim.at_ns, entry.began_ns))
    return count
