"""Nodes that do not answer, and what is without a quorum because of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from cqueue.doctor import statements as cql
from cqueue.doctor.finding import Finding, Subject, brief, not_checked
from cqueue.doctor.site import Answer, address_of, unanswered
from cqueue.runtime import tls

if TYPE_CHECKING:
    from cqueue.doctor.site import Site
    from cqueue.settings import Settings

SUBJECT: Final = Subject("nodes")
RENEW_BEFORE: Final = timedelta(days=14)
"""Time before the end of a certificate from which on it counts as overdue. What renews certificates by itself
does so a month before the end, or in the last third of their time."""
RENEW_PART: Final = 4
"""A certificate for a short time is overdue in the last quarter of that."""


def check(site: Site) -> Iterator[Finding]:
    """Ask every node, and compare the token ring with the nodes that answered."""
    answers = site.versions()
    away = {answer.node for answer in answers if answer.error is not None}
    yield from judged(answers)
    if away:
        yield from _quorums(site, away)
    yield from hints(site.ask_each(cql.SELECT_HINTS), away)
    if site.settings.tls:
        yield from certificates(_validities(site, away), datetime.now(UTC))


def _validities(site: Site, away: set[str]) -> Iterator[tuple[str, tls.Validity]]:
    """Yield when the certificates of this client and of each node that answers are valid."""
    settings = site.settings
    if (valid := tls.own_validity(settings)) is not None:
        yield f"this client's certificate, {settings.tls_cert},", valid
    for host in site.hosts():
        node = address_of(host)
        if node not in away and (valid := tls.validity(settings, node, host.endpoint.port)) is not None:
            yield f"the certificate of {node}", valid


def certificates(found: Iterable[tuple[str, tls.Validity]], now: datetime) -> Iterator[Finding]:
    """Judge until when certificates are valid. found: whose they are, and when they are."""
    for whose, (since, until) in found:
        left = until - now
        if left < min(RENEW_BEFORE, (until - since) / RENEW_PART):
            yield SUBJECT.warning(
                f"{whose} is valid until {until:%Y-%m-%d %H:%M} UTC",
                reason="From then on no connection can be opened. Open ones stay, so it may show only when a "
                "node or a process is restarted.",
                remedy="Renew it. Clients read their own files anew for each connection",
                figures={"left_days": round(left / timedelta(days=1), 1)},
            )


def judged(answers: Sequence[Answer]) -> Iterator[Finding]:
    """Judge which nodes answer."""
    totals = Counter(answer.dc for answer in answers)
    away = [answer for answer in answers if answer.error is not None]
    for answer in away:
        others = sum(one.dc == answer.dc for one in away)
        yield SUBJECT.warning(
            f"{answer.node} does not answer; away in {answer.dc}: {others} of {totals[answer.dc]} nodes",
            reason=f"The driver says: {brief(str(answer.error))}.",
            remedy=f"On {answer.node}: nodetool status; start Cassandra there, or mend the network to it",
            figures={"node": answer.node, "dc": answer.dc, "away": others, "nodes": totals[answer.dc]},
        )
    if not away:
        named = ", ".join(f"{count} in {dc}" for dc, count in sorted(totals.items()))
        yield SUBJECT.ok(f"all answer: {named}", figures={"nodes": len(answers)})


def _quorums(site: Site, away: set[str]) -> Iterator[Finding]:
    metadata: Any = site.connection.cluster.metadata
    if metadata.token_map is None or site.settings.keyspace not in metadata.keyspaces:
        yield not_checked(SUBJECT, "whether all messages have a quorum: the driver does not know the ring")
        return
    ring = [
        {address_of(host): str(host.datacenter) for host in replicas}
        for token in metadata.token_map.ring
        if (replicas := metadata.token_map.get_replicas(site.settings.keyspace, token))
    ]
    yield from quorums(ring, away, site.settings)


def quorums(ring: Iterable[Mapping[str, str]], away: set[str], settings: Settings) -> Iterator[Finding]:
    """Judge whether each token range has a quorum.

    ring: for each range, the data centre of each replica by its address.
    """
    ranges = [_that_count(replicas, settings) for replicas in ring]
    short = sum(len(nodes - away) <= len(nodes) // 2 for nodes in ranges if nodes)
    if short:
        yield SUBJECT.error(
            f"{short:,} of {len(ranges):,} token ranges have no quorum",
            reason="Messages in those ranges are neither stored nor delivered until enough nodes are back.",
            remedy="Start the nodes that are away; `cqueue dc switch` where a whole data centre is lost",
            figures={"short": short, "ranges": len(ranges)},
        )
    elif ranges:
        yield SUBJECT.ok(
            f"every one of {len(ranges):,} token ranges has a quorum without them",
            figures={"short": 0, "ranges": len(ranges)},
        )


def _that_count(replicas: Mapping[str, str], settings: Settings) -> set[str]:
    """Return the replicas that vote: those of the local data centre, or all of them with `serial`."""
    everywhere = settings.serial_consistency == "serial"
    return {node for node, dc in replicas.items() if everywhere or dc == settings.local_dc}


def hints(answers: Iterable[Answer], away: set[str]) -> Iterator[Finding]:
    """Judge the hints that nodes keep for others. away: nodes that are reported as such already."""
    answers = list(answers)
    yield from unanswered(SUBJECT, (answer for answer in answers if answer.node not in away), "hints of ")
    for answer in answers:
        for row in answer.rows:
            old = f", the oldest of {row.oldest:%Y-%m-%d %H:%M:%S} UTC" if row.oldest else ""
            yield SUBJECT.info(
                f"{answer.node} keeps hints for {row.address}, files: {row.files:,}{old}",
                reason="They are delivered when that node is back, if that is within gc_grace.",
                figures={"node": answer.node, "for": str(row.address), "files": row.files},
            )
