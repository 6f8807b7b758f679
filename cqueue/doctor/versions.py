"""Versions of Python, the driver and Cassandra, and whether the nodes agree on the schema."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import cassandra

from cqueue._version import __version__
from cqueue.doctor.finding import Finding, Severity, Subject
from cqueue.doctor.site import unanswered
from cqueue.runtime.sequences import grouped
from cqueue.store import driver

if TYPE_CHECKING:
    from cqueue.doctor.site import Answer, Site

SUBJECT: Final = Subject("versions")
CASSANDRA: Final = (5, 0)
"""The release that cqueue is tested on."""
PYTHONS: Final = ((3, 11), (3, 13))
"""The first and the last Python that cqueue is tested on."""
DRIVERS: Final = ((3, 30, 1), (3, 31))
"""The first driver that cqueue is tested with, and the first that is too new."""


def check(site: Site) -> Iterator[Finding]:
    """Look at this process, and ask each node for its versions."""
    own = list(of_process(sys.version_info[:2], cassandra.__version__))
    own += missing_parts([part.name for part in driver.PARTS if part not in driver.used().parts])
    yield from own
    if not own:
        text = f"cqueue {__version__}, Python {platform.python_version()}, driver {cassandra.__version__}"
        yield SUBJECT.ok(text)
    answers = site.versions()
    yield from unanswered(SUBJECT, answers)
    yield from of_nodes([answer for answer in answers if answer.error is None])


def of_process(python: tuple[int, int], driver_version: str) -> Iterator[Finding]:
    """Judge the versions of this process."""
    if not PYTHONS[0] <= python <= PYTHONS[1]:
        yield SUBJECT.info(
            f"Python {'.'.join(map(str, python))}; tested: {_named(PYTHONS[0])} to {_named(PYTHONS[1])}",
            reason="Another one may work.",
        )
    if not DRIVERS[0] <= _numbers(driver_version) < DRIVERS[1]:
        yield SUBJECT.warning(
            f"cassandra-driver {driver_version}; tested: {_named(DRIVERS[0])} to below {_named(DRIVERS[1])}",
            reason="cqueue uses parts of the driver that other versions may lack.",
            remedy=f"pip install 'cassandra-driver>={_named(DRIVERS[0])},<{_named(DRIVERS[1])}'",
            figures={"driver": driver_version},
        )


def missing_parts(names: Sequence[str]) -> Iterator[Finding]:
    """Judge the parts of the driver that cqueue cannot use in this process."""
    if names:
        yield SUBJECT.warning(
            f"the driver lacks {', '.join(names)}",
            reason="The driver's own way is taken instead: all is correct, and slower.",
            remedy=f"pip install 'cassandra-driver>={_named(DRIVERS[0])},<{_named(DRIVERS[1])}'",
            figures={"missing": list(names)},
        )


def of_nodes(answers: Sequence[Answer]) -> Iterator[Finding]:
    """Judge the releases of the nodes, and whether all have one schema."""
    told = [(row, answer.node) for answer in answers for row in answer.rows]
    releases = grouped((str(row.release_version), node) for row, node in told)
    schemas = grouped((str(row.schema_version), node) for row, node in told)
    for release, nodes in sorted(releases.items()):
        if _numbers(release)[:2] != CASSANDRA:
            yield SUBJECT.found(
                Severity.ERROR if _numbers(release) < CASSANDRA else Severity.WARNING,
                f"Cassandra {release} on {', '.join(nodes)}; tested: {_named(CASSANDRA)}",
                reason="Older releases lack what cqueue needs."
                if _numbers(release) < CASSANDRA
                else "It may work; nobody has tried.",
                remedy=f"Cassandra {_named(CASSANDRA)} on every node",
                figures={"release": release, "nodes": nodes},
            )
    if len(releases) > 1:
        yield SUBJECT.warning(
            "nodes of several releases: "
            + "; ".join(f"{release} on {', '.join(nodes)}" for release, nodes in sorted(releases.items())),
            reason="Meant for the time of an upgrade: schema changes and repairs have to wait.",
            remedy="Upgrade the others",
            figures={"releases": sorted(releases)},
        )
    if len(schemas) > 1:
        yield SUBJECT.error(
            "nodes disagree about the schema: "
            + "; ".join(
                f"{', '.join(nodes)} have {version[:8]}" for version, nodes in sorted(schemas.items())
            ),
            reason="Reads and writes may fail on some of them. Right after a change it passes in seconds.",
            remedy="nodetool describecluster; restart the node that stays different",
            figures={"schemas": len(schemas)},
        )
    if len(releases) == len(schemas) == 1 and _numbers(next(iter(releases)))[:2] == CASSANDRA:
        count = len(answers)
        nodes_ = "1 node" if count == 1 else f"{count} nodes, one schema"
        yield SUBJECT.ok(f"Cassandra {next(iter(releases))} on {nodes_}")


def _numbers(version: str) -> tuple[int, ...]:
    """Return the numbers at the start of a version."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else (0,)


def _named(version: Sequence[int]) -> str:
    return ".".join(map(str, version))
