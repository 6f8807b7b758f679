"""Copies of the keyspace against the consistency that clients ask for, and where its home is."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from cqueue.doctor.finding import Finding, Subject, not_checked
from cqueue.errors import CqueueError
from cqueue.schema.migrations import map_literal

if TYPE_CHECKING:
    from cqueue.doctor.site import Replication, Site
    from cqueue.schema import Deployment
    from cqueue.settings import Settings

SUBJECT: Final = Subject("consistency")
NETWORK: Final = "NetworkTopologyStrategy"
WANTED_COPIES: Final = 3
"""Copies in a data centre, so that one node can be away."""


def check(site: Site) -> Iterator[Finding]:
    """Read the keyspace's replication and its deployment row."""
    nodes = Counter(str(host.datacenter) for host in site.hosts())
    replication = site.replication()
    found = list(judged(replication, nodes, site.settings))
    yield from found
    try:
        deployment = site.deployment()
    except CqueueError as exc:
        yield not_checked(SUBJECT, f"the deployment row: {exc}")
        return
    if deployment is not None:
        found += (of_row := list(home(deployment, replication, site.settings)))
        yield from of_row
    if not found:
        copies = ", ".join(f"{dc} {count}" for dc, count in sorted(replication.copies.items()))
        levels = f"{site.settings.consistency} and {site.settings.serial_consistency}"
        yield SUBJECT.ok(f"{levels}, copies: {copies}", figures=dict(replication.copies))


def judged(replication: Replication, nodes: Mapping[str, int], settings: Settings) -> Iterator[Finding]:
    """Judge the copies of each data centre. nodes: numbers of nodes by data centre."""
    local, held = str(settings.local_dc), replication.copies
    wanted = {local: max(1, min(WANTED_COPIES, nodes.get(local, 0)))}
    if replication.strategy != NETWORK:
        yield SUBJECT.warning(
            f"keyspace {settings.keyspace} has {replication.strategy}",
            reason="It places copies without regard to data centres, and LOCAL_QUORUM may find none here.",
            remedy=_apply(wanted),
        )
    elif local not in held:
        yield SUBJECT.error(
            f"local_dc {settings.local_dc} has no copies; {_listed(held)} have",
            reason="No quorum can be had there: every call fails.",
            remedy=f"Another local_dc in the URL. For copies in {local}, with that URL: "
            + _apply({**held, **wanted}),
            figures=dict(held),
        )
    else:
        yield from _copies(held, nodes, settings)
        yield from _two_equal(held, settings)
    if not replication.durable:
        yield SUBJECT.error(
            f"keyspace {settings.keyspace} has durable_writes = false",
            reason="Nothing is written to the commit log: a node that stops loses what it acknowledged.",
            remedy=f"ALTER KEYSPACE {settings.keyspace} WITH durable_writes = true",
        )


def _copies(held: Mapping[str, int], nodes: Mapping[str, int], settings: Settings) -> Iterator[Finding]:
    """Judge the copies of each data centre, and those that vote: of the local one, or of all with `serial`.

    held: copies by data centre. nodes: numbers of nodes by data centre.
    """
    local = str(settings.local_dc)
    voting = sorted(held) if settings.serial_consistency == "serial" else [local]
    where, total = ", ".join(voting), sum(held[dc] for dc in voting)
    there, quorum = sum(nodes.get(dc, 0) for dc in voting), total // 2 + 1
    figures = {"dc": where, "copies": total, "nodes": there, "quorum": quorum}
    stored = {dc: min(count, nodes.get(dc, 0)) for dc, count in sorted(held.items())}
    # As many copies as nodes lie where more of them lie. `schema apply` would need a quorum to say so.
    fewer = map_literal({"class": NETWORK, **{dc: count for dc, count in stored.items() if count}})
    fewer = f", or ALTER KEYSPACE {settings.keyspace} WITH replication = {fewer}" if stored[local] else ""
    holding = sum(stored[dc] for dc in voting)
    if holding < quorum:
        short = ", ".join(dc for dc in voting if stored[dc] < held[dc])
        yield SUBJECT.error(
            f"{where}: {total} copies on {_nodes(holding)}; a quorum is {quorum}",
            reason="Nothing can be stored or delivered.",
            remedy=f"Add nodes to {short}{fewer}",
            figures={**figures, "nodes": holding},
        )
    elif total == there == 1 == sum(held.values()):
        yield SUBJECT.info(
            f"{where}: one node with the only copy",
            reason="A crash of the node is an outage, and its disk holds all there is. Good for development.",
            figures=figures,
        )
    elif total < WANTED_COPIES:
        disk = "has the only copy" if total == sum(held.values()) else "may have what no other centre has yet"
        reason = (
            f"A crash of one node is an outage for its part of the messages, and its disk {disk}."
            if total == 1
            else "A quorum of two is both: a crash of one node stops its part of the messages."
        )
        yield SUBJECT.warning(
            f"{where}: {total} {'copy' if total == 1 else 'copies'} on {_nodes(there)}",
            reason=reason,
            remedy=("" if nodes.get(local, 0) >= WANTED_COPIES else f"Add nodes to {local}, then ")
            + _apply({**held, local: WANTED_COPIES}),
            figures=figures,
        )
    told = voting if holding < quorum else ()
    for dc in (dc for dc, count in stored.items() if count < held[dc] and dc not in told):
        yield SUBJECT.warning(
            f"{dc}: {held[dc]} copies on {_nodes(stored[dc])}",
            reason="The missing copies count as nodes that are away.",
            remedy=f"Add nodes to {dc}{fewer}",
            figures={"dc": dc, "copies": held[dc], "nodes": stored[dc]},
        )


def _two_equal(copies: Mapping[str, int], settings: Settings) -> Iterator[Finding]:
    total = sum(copies.values())
    if settings.serial_consistency == "serial" and len(copies) > 1 and 2 * max(copies.values()) >= total:
        large = max(copies, key=lambda dc: copies[dc])
        yield SUBJECT.warning(
            f"serial over {_listed(copies)}: without {large} there is no majority of {total} copies",
            reason="With serial the data centres vote together. When that one fails, the others stand still.",
            remedy="A further data centre, if only with one copy",
            figures=dict(copies),
        )


def home(row: Deployment, replication: Replication, settings: Settings) -> Iterator[Finding]:
    """Judge the deployment row against the URL."""
    if row.serial_consistency != settings.serial_consistency:
        yield SUBJECT.error(
            f"the keyspace has serial_consistency={row.serial_consistency}, the URL "
            f"{settings.serial_consistency}",
            reason="Conditional mutations of both kinds do not see each other; the client is refused.",
            remedy=f"serial_consistency={row.serial_consistency} in the URL",
        )
    if row.home_dc is not None and row.home_dc != settings.local_dc:
        yield SUBJECT.error(
            f"clients work in {row.home_dc}, the URL says local_dc={settings.local_dc}",
            reason="Claims of two data centres do not see each other; the client is refused.",
            remedy=f"local_dc={row.home_dc} in the URL, or `cqueue dc switch {settings.local_dc}`",
        )
    by_centre = replication.strategy == NETWORK
    if by_centre and row.home_dc is not None and row.home_dc not in replication.copies:
        yield SUBJECT.error(
            f"clients work in {row.home_dc}, which has no copies",
            reason="No quorum can be had there: every call fails.",
            remedy="cqueue dc switch to a data centre that has copies",
        )
    if not row.retiring:
        yield SUBJECT.warning(
            f"partitions are all kept since the home was moved to {row.home_dc}",
            reason="Disk use grows, and what consumers look at. Not longer than gc_grace: then the return of "
            "the old home brings acked messages back.",
            remedy="cqueue dc resume-retiring --repaired, after a repair of every node",
            figures={"epoch": row.centre_epoch},
        )


def _apply(copies: Mapping[str, int]) -> str:
    """Return what leads to these copies; it prints one step after the other."""
    wanted = shlex.quote(",".join(f"{dc}={count}" for dc, count in sorted(copies.items())))
    return f"cqueue schema apply --replication {wanted}, and what it prints, until it finds no difference"


def _listed(copies: Mapping[str, int]) -> str:
    return ", ".join(f"{dc} ({count})" for dc, count in sorted(copies.items())) or "no data centre"


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"
