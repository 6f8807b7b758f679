"""Suggestions in place of a name that is not known: one form of words for all errors that make them.

Each begins with a space, so that it follows the sentence of the error, or is empty.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

from cqueue.errors import ConfigError

CUTOFF: Final = 0.6
"""Likeness, of 0 to 1, from which a name is near: one or two letters of a short name may differ."""


def nearest(word: str, names: Iterable[str], *, cutoff: float = CUTOFF) -> str | None:
    """Return the name that is most like the word, or None if none is near."""
    return next(iter(difflib.get_close_matches(word, list(names), n=1, cutoff=cutoff)), None)


def did_you_mean(name: str | None, otherwise: str = "") -> str:
    """Return the question with this name; if there is none, another sentence."""
    if name is None:
        return otherwise and f" {otherwise}"
    return f" Did you mean {name!r}?"


def suggest(word: str, names: Iterable[str], otherwise: str = "") -> str:
    """Return the question with the nearest of these names; if none is near, another sentence."""
    return did_you_mean(nearest(word, names), otherwise)


def suggest_or_list(word: str, names: Iterable[str]) -> str:
    """Return the question with the nearest of these names; if none is near, all of them."""
    names = tuple(names)
    return suggest(word, names, f"There are: {', '.join(names)}.")


def check_known(call: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse options that a call does not have. call: as its users write it.

    Raises:
        ConfigError: one is not known; the text suggests the nearest.
    """
    known = tuple(known)
    for name in given:
        if name not in known:
            raise ConfigError(f"{call} has no option {name!r}.{suggest_or_list(name, known)}")
