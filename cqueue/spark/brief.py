"""Errors of cqueue without a traceback, where Spark plans a query.

Spark shows what a data source raised with its traceback, a dozen lines and more above the one that says what
to do. A mistyped option needs that line only. Errors of tasks and errors of other kinds keep theirs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import wraps
from typing import Final, ParamSpec, TypeVar

from cqueue.errors import CqueueError

Given = ParamSpec("Given")
Made = TypeVar("Made")

HIDE: Final = "SPARK_HIDE_TRACEBACK"
"""Spark's workers look for this variable when they report an error."""


def brief(planning: Callable[Given, Made]) -> Callable[Given, Made]:
    """Let Spark show errors of cqueue that this method raises as one line."""

    @wraps(planning)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> Made:
        try:
            return planning(*args, **kwargs)
        except CqueueError:
            if _is_worker():
                os.environ[HIDE] = "1"  # of this error only: a worker that reports one ends
            raise

    return call


def _is_worker() -> bool:
    """Return whether Spark started this process for Python code."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")
