"""Check texts that callers give: keys, topics, names of tasks and codecs, and JSON that people type."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any, Final

from cqueue.errors import BadInput

MAX_TEXT: Final = 1000
"""Characters of a task's name, key, topic, codec, trigger or source, at most."""


SHOWN: Final = 220
"""Characters that an error shows of a text of any length: all of a name that is a bit too long."""


def quoted(value: object) -> str:
    """Return what a caller gave in place of a text, for an error message: its beginning, if it is long."""
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}… ({len(text):,} characters)"


def check_text(name: str, text: str) -> str:
    """Return a text of 1 to 1,000 characters unchanged.

    Half a surrogate pair is refused, as no encoding has one: JSON may hold one, and so does a file name that
    is not in the encoding of its system.

    Arguments:
        name: the argument's name, for the error.
        text: the argument.

    Raises:
        BadInput: it is none.
    """
    if not isinstance(text, str) or not 1 <= len(text) <= MAX_TEXT:
        raise BadInput(f"{name} is {quoted(text)}; it takes 1 to {MAX_TEXT:,} characters")
    try:
        text.encode()
    except UnicodeEncodeError as exc:
        raise BadInput(
            f"{name} is {quoted(text)}, which is not valid text: it has half a surrogate pair"
        ) from exc
    return text


def storable(text: str) -> str:
    """Return a text that anybody may have made with each half of a surrogate pair escaped, to be stored."""
    return text.encode(errors="backslashreplace").decode()


def typed_json(text: str) -> Any:
    """Return what JSON that somebody has typed stands for, without a guess at what was meant.

    Raises:
        ValueError: it is no JSON, a name comes twice in an object, of which all but one value would be lost,
            or a number is none that a float holds.
        RecursionError: it is nested too deeply.
    """
    return json.loads(text, object_pairs_hook=_object, parse_float=_finite, parse_constant=_finite)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        name, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"{json.dumps(name)} comes twice in an object")
    return found


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is no number of JSON" if text[-1].isalpha() else f"{text} is too large")
    return number
