"""Rules of changes by id taken out. See `breakages`."""

# ruff: noqa: ARG005 - a replacement takes the arguments of what it replaces
from __future__ import annotations

from typing import Any

from tests.simulation.points import replaced


def cancelled_without_fence() -> Any:
    """A cancel of what no slot lists deletes it, and that is all."""
    return replaced("cancel, fenced", lambda unlisted: False)


def rescheduled_without_fence() -> Any:
    """A slot lists what no slot did, though a consumer may claim it at that moment."""
    return replaced("reschedule, fenced", lambda unlisted: False)


def held_is_moved() -> Any:
    """What somebody holds is rescheduled like anything else."""
    return replaced("movable", lambda slot: True)
