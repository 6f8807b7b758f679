"""Find the error that counts in what Spark reports.

An error of a task reaches the driver as text, inside an error of Java's, with two traces around it. The last
line of it that names an error of ours says which one it was.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from cqueue import errors
from cqueue.errors import BadInput, CqueueError, NotDone, OutcomeUnknown

SPARK_ERRORS = (PySparkException, Py4JJavaError)
_OURS = re.compile(r"cqueue\.errors\.(\w+): ([^\n]*)")
_CAUSE = re.compile(r"^Caused by: [\w.$]+: (.*)$", re.MULTILINE)
_CALL = re.compile(r"^An error occurred while calling \S+\n: [\w.$]+: ")


@contextmanager
def reading(what: str, kind: type[CqueueError] = BadInput) -> Iterator[None]:
    """Translate errors of Spark in a block that writes nothing.

    Raises:
        BadInput, or another `kind`: Spark cannot do this with what it was given.
        CqueueError: as a task raised it.
    """
    try:
        yield
    except SPARK_ERRORS as exc:
        raise (ours(exc) or kind(f"{what}: {gist(exc)}")) from exc


@contextmanager
def writing(what: str, again: str) -> Iterator[None]:
    """Translate errors of Spark in a block that writes; a block that fails may have written a part.

    Raises:
        BadInput, of the kind that a task raised: it refused a row; other rows may be stored.
        OutcomeUnknown: everything else; `again` says what another run does.
    """
    try:
        yield
    except SPARK_ERRORS as exc:
        cause = ours(exc)
        why = str(cause or gist(exc)).rstrip(".")
        text = f"{what} did not end: {why}. Part of it may be stored. {again}"
        raise (type(cause)(text) if isinstance(cause, BadInput) else OutcomeUnknown(text)) from exc


def ours(exc: BaseException) -> CqueueError | None:
    """Return the error of this library that a task raised, if any."""
    found = _OURS.findall(str(exc))
    if not found:
        return None
    name, text = found[-1]
    kind = getattr(errors, name, NotDone)
    return kind(text) if issubclass(kind, CqueueError) else NotDone(text)


def gist(exc: BaseException) -> str:
    """Return Spark's message, without its plan and traces."""
    text = _CALL.sub("", str(exc).strip())
    causes = _CAUSE.findall(text)
    first = text.partition("\n")[0]
    return f"{first} ({causes[-1]})" if causes and causes[-1] not in first else first
