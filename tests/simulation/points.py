"""Where the rules of the protocol live: the one table by which the simulator takes them out.

A *point* is a function that keeps a rule. Most stand in `cqueue/protocol/policy.py`, some are public
functions in the module where they belong, and a few are what a store does, or the simulator itself.
Every breakage goes through `replaced`.

A rule must not die silently. An entry whose function is gone, or that another module calls under a name
of its own, fails as this module is imported. Calls of what stands in for a function are counted, and
a run without a rule asks `check_reached` whether there was a call: without one, the run has proven nothing.
"""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any
from unittest.mock import patch

from cqueue.config import QueueConfig
from cqueue.protocol import (
    ack,
    by_id,
    claim,
    claim_draft,
    dead,
    lock,
    policy,
    poll,
    probe,
    registry,
    retire,
    row_memory,
    send,
    unclaimed,
    writing,
)
from cqueue.protocol.lease import SuspectGate
from cqueue.protocol.poll import WorkList
from cqueue.store import cassandra, packs
from cqueue.store.memory import MemoryStore
from tests.simulation.cluster import Cluster
from tests.simulation.world import World

Home = tuple[Any, str]
"""A module or a class, and the name of a function there."""

POINTS: Mapping[str, tuple[Home, ...]] = {
    # decisions, each a function of its own
    "skipped": ((policy, "is_skipped"),),
    "rest of a slot": ((policy, "still_listed"),),
    "read ahead, unlisted": ((policy, "unlisted"),),
    "slots after a claim": ((policy, "slots_after"),),
    "suspect held": ((policy, "is_suspect_held"),),
    "cancel, fenced": ((policy, "cancel_moves_fence"),),
    "reschedule, fenced": ((policy, "reschedule_moves_fence"),),
    "movable": ((policy, "is_movable"),),
    "whole head": ((policy, "is_whole"),),
    "outcome read": ((policy, "outcome_read"),),
    "locked first": ((policy, "locks_first"),),
    "fence stands": ((policy, "fence_stands"),),
    "horizon": ((policy, "horizon"),),
    "age of a read": ((policy, "counts_from_us"),),
    "cursor": ((policy, "cursor_at"),),
    "sweep due": ((policy, "sweep_is_due"),),
    "no cursor": ((policy, "has_no_cursor"),),
    "nothing lands": ((policy, "nothing_lands_from_us"),),
    "retirement begun": ((policy, "retires"),),
    "rows may go": ((policy, "rows_may_go"),),
    "epochs may go": ((policy, "epochs_may_go"),),
    "epochs stay known": ((policy, "epochs_stay_known"),),
    "bodies dropped at": ((policy, "bodies_dropped_at_us"),),
    "probing": ((policy, "probes_on"),),
    "letter id": ((policy, "letter_id"),),
    "time of death": ((policy, "kept_time_of_death"),),
    "fence": ((policy, "next_fence"),),
    # functions in the room where they belong
    "epoch closed": ((registry, "closed_at_us"),),
    "epoch length": ((QueueConfig, "epoch_ms"),),
    "open row": ((registry, "open_row"),),
    "open in time": ((registry, "open_in_time"),),
    "in time": ((writing, "in_time"),),
    "head read": ((lock, "read_whole"),),
    "messages taken": ((unclaimed, "take_unclaimed"),),
    "unanswered": ((lock, "read_outcome"),),
    "work of a slot": ((probe, "can_take"),),
    "suspect taken": ((claim, "take_suspect"),),
    "retirement": ((retire, "try_retire"),),
    "nack": ((ack, "nack"),),
    "release": ((ack, "release"),),
    "suspect extended": ((SuspectGate, "extend"),),
    "letter stored": ((dead, "insert_letter"),),
    "next wide row": ((WorkList, "next"),),
    "seen": ((policy, "seen_upto"),),
    "phantoms": ((retire, "_delete_phantoms"),),
    # what a store makes of rows with several messages
    "deletion": ((packs.Known, "deletion"),),
    "marks": ((packs, "marks_of"),),
    "gone": ((packs, "gone_mask"),),
    "members": ((packs, "_members"),),
    "live ids": ((packs, "live_ids"),),
    "first row": ((packs, "lowest"),),
    "rows of messages": ((packs, "row_ids"),),
    "partial": ((packs, "is_partial"),),
    "wholly gone": ((packs, "wholly_gone"),),
    "end of a range": ((packs, "is_complete"),),
    "reading on": ((packs, "next_start"),),
    # what a store does
    "marking": ((Cluster, "mark"),),
    "mutation": ((MemoryStore, "_mutate"), (Cluster, "mutate")),
    "delete": ((MemoryStore, "_delete_messages"), (Cluster, "_delete_messages")),
    "mutation sent": ((World, "_send"),),
    "conditions": ((Cluster, "conditions_hold"),),
    "node rebuilt": ((Cluster, "rebuild"),),
}

MODULES = (
    ack,
    by_id,
    cassandra,
    claim,
    dead,
    claim_draft,
    unclaimed,
    lock,
    packs,
    poll,
    probe,
    registry,
    retire,
    send,
    row_memory,
    writing,
)
"""Modules of the protocol and of the store that call each other's functions."""

calls: Counter[str] = Counter()
"""How often what stands in for each point was called, since this was cleared."""

_out: list[str] = []


class PointLostError(Exception):
    """A rule's point is gone, or was not reached: that the rule is needed, and kept, is not proven."""


def right(name: str) -> Callable[..., Any]:
    """The function that keeps a rule, as it is."""
    ((owner, attribute),) = POINTS[name]
    function: Callable[..., Any] = getattr(owner, attribute)
    return function


@contextlib.contextmanager
def replaced(name: str, *replacements: Any, tells: bool = False) -> Iterator[None]:
    """Replace a point's function, in each of its homes by one of these.

    tells: a call alone says little, and the replacement says with `reached` that it has made a difference.
    """
    with contextlib.ExitStack() as stack:
        for (owner, attribute), replacement in zip(POINTS[name], replacements, strict=True):
            function = replacement if tells else _counted(name, replacement)
            if isinstance(vars(owner)[attribute], staticmethod):
                function = staticmethod(function)
            stack.enter_context(patch.object(owner, attribute, function))
        _out.append(name)
        stack.callback(_out.remove, name)
        yield


def all_of(*replacements: contextlib.AbstractContextManager[None]) -> contextlib.ExitStack:
    """Replace several points at once."""
    stack = contextlib.ExitStack()
    for each in replacements:
        stack.enter_context(each)
    return stack


def reached(name: str) -> None:
    """Say that a point was replaced to some effect."""
    calls[name] += 1


def out() -> tuple[str, ...]:
    """The points that are replaced at present."""
    return tuple(_out)


def _counted(name: str, replacement: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(replacement)
    def call(*args: Any, **options: Any) -> Any:
        calls[name] += 1
        return replacement(*args, **options)

    return call


def check_reached(counted: Mapping[str, int] = calls) -> None:
    """Fail unless each point that is replaced at present was reached.

    Raises:
        PointLostError: one was not.
    """
    missed = [name for name in _out if not counted.get(name)]
    if missed:
        points = ", ".join(missed)
        raise PointLostError(f"replaced, and not called once: {points}; the run has proven nothing")


def check_homes() -> None:
    """Check that each point is where the table says, and that nobody calls it under another name.

    Raises:
        PointLostError: one is not.
    """
    for name, homes in POINTS.items():
        for owner, attribute in homes:
            where = f"the point {name!r} of tests/simulation/points.py, {owner.__name__}.{attribute},"
            function = vars(owner).get(attribute)
            if function is None:
                raise PointLostError(f"{where} is gone: say there where its rule is kept now")
            if isinstance(owner, ModuleType) and function.__module__ != owner.__name__:
                raise PointLostError(f"{where} stands in {function.__module__}: replace it there")
            for module in MODULES:
                if module is not owner and any(value is function for value in vars(module).values()):
                    raise PointLostError(f"{where} has another name in {module.__name__}")


check_homes()
