"""One thing that a check has found."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partialmethod
from typing import Any, Final

_FAILED: Final = re.compile(r"The read failed: (?:[\w.:\[\]]+:\d+: )?")


class Severity(StrEnum):
    """How bad a finding is, the worst first.

    ERROR: messages are lost, stuck or refused, or will be. WARNING: something will go wrong. NOT_CHECKED: the
    check could not be made. INFO: nothing has to be done. OK: looked at, and in order.
    """

    ERROR = "error"
    WARNING = "warning"
    NOT_CHECKED = "not checked"
    INFO = "info"
    OK = "ok"


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding.

    Attributes:
        severity: how bad it is.
        subject: the check: "clocks", "queues" and so on.
        found: what was found, with its figures.
        reason: why it matters, or "".
        remedy: what to do, a command where there is one, or "".
        figures: the numbers by name, for programs; a name ends in its unit.
    """

    severity: Severity
    subject: str
    found: str
    reason: str = ""
    remedy: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)


class Subject(str):
    """The name of a check, with which it says what it has found."""

    __slots__ = ()

    def found(
        self,
        severity: Severity,
        found: str,
        reason: str = "",
        remedy: str = "",
        figures: Mapping[str, Any] | None = None,
    ) -> Finding:
        """Return a finding of this check."""
        return Finding(severity, self, found, reason, remedy, figures or {})

    error: partialmethod[Finding] = partialmethod(found, Severity.ERROR)
    warning: partialmethod[Finding] = partialmethod(found, Severity.WARNING)
    info: partialmethod[Finding] = partialmethod(found, Severity.INFO)
    ok: partialmethod[Finding] = partialmethod(found, Severity.OK)


def not_checked(subject: str, why: str) -> Finding:
    """Return the finding for a check, or a part of one, that could not be made."""
    return Finding(Severity.NOT_CHECKED, subject, brief(why))


def brief(text: str) -> str:
    """Return an error's text without what the finding says already."""
    return _FAILED.sub("", text)
