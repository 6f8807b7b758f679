"""Workers of dispatchers: those whose heartbeat is late, and those of another version."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from cqueue._version import __version__
from cqueue.dispatcher.service.membership import STOPPING, Worker, listed
from cqueue.doctor.finding import Finding, Subject

if TYPE_CHECKING:
    from cqueue.doctor.site import Site

SUBJECT: Final = Subject("workers")


def check(site: Site) -> Iterator[Finding]:
    """Read the heartbeats."""
    yield from judged(*listed(site.client()))


def judged(workers: Sequence[Worker], now_s: float) -> Iterator[Finding]:
    """Judge the heartbeats. now_s: the cluster's time in seconds since 1970."""
    late = [worker for worker in workers if worker.is_late(now_s)]
    for worker in late:
        age_s = now_s - worker.seen
        yield SUBJECT.warning(
            f"{worker.name}: the last heartbeat is {age_s:.0f} s old; {worker.running} messages run there",
            reason=f"One comes every {worker.every_s:.0f} s. The process was killed, hangs, or does not "
            f"reach Cassandra; after {worker.ttl_s} s it is forgotten, and its messages come again after "
            "their timeout.",
            remedy=f"On {worker.host or 'its machine'}: look at process {worker.pid} and its log",
            figures={"worker": worker.name, "age_s": round(age_s, 1), "running": worker.running},
        )
    others = sorted({worker.version for worker in workers if worker.version not in {__version__, ""}})
    if others:
        yield SUBJECT.info(
            f"workers run cqueue {', '.join(others)}; this is {__version__}",
            reason="Versions side by side are meant for the time of an upgrade.",
            figures={"versions": others, "own": __version__},
        )
    if not workers:
        yield SUBJECT.info(
            "no dispatcher runs",
            reason="Tasks and schedules need one; consumers of your own do not.",
            remedy="cqueue dispatch MODULE:APP",
        )
    elif not late:
        stopping = sum(worker.state == STOPPING for worker in workers)
        named = f"{len(workers)} with heartbeats" + (f", {stopping} of them stopping" if stopping else "")
        yield SUBJECT.ok(named, figures={"workers": len(workers), "stopping": stopping})
