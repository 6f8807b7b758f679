"""What is known after a request failed: that nothing was done, or nothing at all.

Three answers are possible to "was it stored?": yes, no, and unknown. The driver has dozens of exceptions and
two of the three answers hide in each. The rules, and everything else is *unknown* for a write:

- a read has no effect, so whatever went wrong: not done;
- a request that never left this process: not done;
- refused before execution (syntax, permission, overload, too few replicas): not done;
- timed out, failed on a replica, connection lost, server error: unknown.

Conditional mutations need one more distinction. Paxos (v1, Cassandra's default) counts replicas again when it
commits what was agreed already. "Too few replicas" at that point names the consistency of the commit instead
of the serial one, and the mutation *will* be applied by whoever comes next. The same goes for an overload by
hints, which is checked at the commit only.
"""

from __future__ import annotations

from typing import Any

import cassandra
from cassandra import ConsistencyLevel, protocol
from cassandra.cluster import NoHostAvailable
from cassandra.connection import ConnectionBusy
from cassandra.pool import NoConnectionsAvailable

from cqueue.errors import CqueueError, NotDone, OutcomeUnknown, SchemaMismatch, Unavailable
from cqueue.store.statements import Kind

_SERIAL = {ConsistencyLevel.SERIAL, ConsistencyLevel.LOCAL_SERIAL}
_HINTS = "in flight hints"
_ABSENT = ("does not exist", "undefined column", "unconfigured table", "undefined name")

# Refused while it was checked, before anything was executed.
_REFUSED = (
    cassandra.RequestValidationException,
    cassandra.AuthenticationFailed,
    cassandra.UnsupportedOperation,
    protocol.BadCredentials,
    protocol.RequestValidationException,
)
# No stream was free on any connection to that host.
_NO_CONNECTION = (NoConnectionsAvailable, ConnectionBusy)
# Not even looked at: come back later.
_NOT_STARTED = (protocol.OverloadedErrorMessage, protocol.IsBootstrappingErrorMessage)


def error(exc: BaseException, kind: Kind, *, sent: bool = True) -> CqueueError:
    """The cqueue error for a driver's exception.

    Args:
        exc: what the driver raised.
        kind: of the statement that failed.
        sent: False if it is certain that the request never left this process.
    """
    if _schema_is_missing(exc):
        return SchemaMismatch(f"The keyspace lacks cqueue's schema. Run `cqueue schema apply`. ({exc})")
    if isinstance(exc, _REFUSED) and not isinstance(exc, protocol.PreparedQueryNotFound):
        return NotDone(f"Cassandra refused the statement: {exc}")
    if kind is Kind.READ:
        return Unavailable(f"The read failed: {_text(exc)}")
    if _never_executed(exc, kind, sent=sent):
        return Unavailable(f"Nothing was written: {_text(exc)}")
    return OutcomeUnknown(f"Whether it was written is not known: {_text(exc)}")


def _schema_is_missing(exc: BaseException) -> bool:
    return isinstance(exc, cassandra.InvalidRequest) and any(text in str(exc).lower() for text in _ABSENT)


def _never_executed(exc: BaseException, kind: Kind, *, sent: bool) -> bool:
    if isinstance(exc, NoHostAvailable):
        return not sent or _nobody_took_it(exc)
    if isinstance(exc, cassandra.Unavailable):
        return kind is not Kind.CONDITIONAL or exc.consistency in _SERIAL
    if isinstance(exc, _NOT_STARTED):
        return _HINTS not in str(exc)
    return isinstance(exc, protocol.PreparedQueryNotFound)


def _nobody_took_it(exc: NoHostAvailable) -> bool:
    causes = list((exc.errors or {}).values())
    return bool(causes) and all(isinstance(cause, _NO_CONNECTION) for cause in causes)


def _text(exc: BaseException) -> str:
    errors: Any = getattr(exc, "errors", None)
    if isinstance(exc, NoHostAvailable) and isinstance(errors, dict):
        return "; ".join(f"{host}: {cause}" for host, cause in errors.items()) or "no host is up"
    return str(exc) or type(exc).__name__
