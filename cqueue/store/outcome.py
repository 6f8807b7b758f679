"""Translate the driver's exceptions into `NotDone` or `OutcomeUnknown`.

"Was it stored?" has three answers: yes, no, and unknown. The driver has dozens of exceptions, and most of
them may mean no or unknown. These are the rules; any other failure of a write is *unknown*:

- a read has no effect, so any failure of it: not done;
- a request that never left this process: not done;
- refused before execution (syntax, permission, guardrail, overload, too few replicas): not done;
- timed out, failed on a replica, connection lost, server error: unknown.

Conditional mutations need one more distinction. Paxos (v1, Cassandra's default) counts replicas again when it
commits what was agreed already. "Too few replicas" at that point names the consistency of the commit instead
of the serial one, and the next Paxos round *will* apply the mutation. The same holds for an overload by
hints, which Cassandra checks only at the commit. Cassandra checks grants and guardrails before it proposes
anything.

A refusal for a lasting reason becomes `Refused`, whose text says what an operator has to do. Cassandra also
says "unauthorized" when it could not read its own tables of roles; that error passes by itself.
"""

from __future__ import annotations

import re
from typing import Any, Final

import cassandra
from cassandra import ConsistencyLevel
from cassandra.cluster import NoHostAvailable

from cqueue.errors import (
    CqueueError,
    OutcomeUnknown,
    Refused,
    SchemaMismatch,
    TooManyTombstones,
    Unavailable,
)
from cqueue.store.driver import LoginRefused, errors
from cqueue.store.statements import Kind

_SERIAL = {ConsistencyLevel.SERIAL, ConsistencyLevel.LOCAL_SERIAL}
_HINTS = "in flight hints"
# In the server's words, of Cassandra 5.0.
_TEXT: Final = re.compile(r'message="(.*)"', re.DOTALL)
_ABSENT: Final = re.compile(
    r"(keyspace|table|column family) \S+ does not exist|unconfigured table|undefined (column )?name",
    re.IGNORECASE,
)
_NO_GRANT: Final = re.compile(r"User (?P<role>.+) has no (?P<right>\w+) permission on <(?P<on>[^>]+)>")
_GUARDRAIL: Final = re.compile(r"Guardrail (?P<name>\w+) violated: (?P<what>.*)", re.DOTALL)
_ROLES_AWAY: Final = "Unable to perform auth"  # …orization, …entication: the tables of roles did not answer

# Of a replica, in the native protocol from version 5 on.
_UNKNOWN: Final = 0x00
_READ_TOO_MANY_TOMBSTONES: Final = 0x01
_READ_SIZE: Final = 0x04

# Refused while it was checked, before anything was executed.
_REFUSED = (
    cassandra.RequestValidationException,
    cassandra.AuthenticationFailed,
    LoginRefused,
    cassandra.UnsupportedOperation,
    errors.BadCredentials,
    errors.RequestValidationException,
)
# No stream was free on any connection to that host.
_NO_CONNECTION = (errors.NoConnectionsAvailable, errors.ConnectionBusy)
# Not even looked at: come back later.
_NOT_STARTED = (errors.OverloadedErrorMessage, errors.IsBootstrappingErrorMessage)


def error(
    exc: BaseException, kind: Kind, *, sent: bool = True, login: Exception | None = None
) -> CqueueError:
    """Return the cqueue error for a driver's exception.

    Args:
        exc: the driver's exception.
        kind: the kind of the statement that failed.
        sent: False if the request certainly never left this process.
        login: the refusal of the client's login, if the last node that was asked refused it.
    """
    if not sent and login is not None:
        return _refused(login)
    if is_absent(exc):
        return SchemaMismatch(
            "Cassandra lacks a keyspace, table or column that this version of cqueue needs. Have an operator "
            f"run `cqueue schema apply`. ({server_text(exc)})"
        )
    if (refused := refusal(exc)) is not None:
        return refused
    if kind is Kind.READ:
        return _of_read(exc)
    if _never_executed(exc, kind, sent=sent):
        return Unavailable(f"Nothing was written: {server_text(exc)}")
    return OutcomeUnknown(f"Whether it was written is not known: {server_text(exc)}")


def is_absent(exc: BaseException) -> bool:
    """Return whether the statement names a keyspace, table or column that does not exist."""
    if not isinstance(exc, cassandra.InvalidRequest | errors.InvalidRequestException):
        return False
    return not is_guardrail(exc) and _ABSENT.search(server_text(exc)) is not None


def is_guardrail(exc: BaseException) -> bool:
    """Return whether a guardrail refuses the statement."""
    return _GUARDRAIL.match(server_text(exc)) is not None


def refusal(exc: BaseException) -> Refused | Unavailable | None:
    """Return the error for a request that Cassandra refused before it did anything, else None.

    `Unavailable`: the refusal is temporary. `Refused`: it stays until an operator does what the text says.
    """
    if isinstance(exc, NoHostAvailable):
        found = [refusal(cause) for cause in _causes(exc)]
        return found[0] if found and None not in found else None
    if not isinstance(exc, _REFUSED) or isinstance(exc, errors.PreparedQueryNotFound):
        return None
    return _refused(exc)


def _refused(exc: BaseException) -> Refused | Unavailable:
    said = server_text(exc)
    if _ROLES_AWAY in said:
        return Unavailable(f"Nothing was done, as Cassandra could not look up the role's rights: {said}")
    return Refused(_remedy(exc, said))


def _in_cql(name: str) -> str:
    """Return a name as CQL writes it: in quotes, unless it is plain and in lower case."""
    is_plain = re.fullmatch(r"[a-z][a-z0-9_]*", name)
    return name if is_plain else '"' + name.replace('"', '""') + '"'


def _remedy(exc: BaseException, said: str) -> str:
    if (grant := _NO_GRANT.search(said)) is not None:
        role, right, on = grant["role"], grant["right"], grant["on"]
        return (
            f"Cassandra refuses this to the role {role}. "
            f"Have an operator run: GRANT {right} ON {on} TO {_in_cql(role)}. ({said})"
        )
    if (guardrail := _GUARDRAIL.match(said)) is not None:
        return (
            f"The guardrail {guardrail['name']} of Cassandra refuses this: {guardrail['what']}. "
            "Have an operator raise it or lift it, on every node."
        )
    if isinstance(exc, cassandra.AuthenticationFailed | LoginRefused | errors.BadCredentials):
        return (
            "Cassandra refuses the user name or the password. Have an operator let the role log in, or "
            f"restart this process with the password that the role has now. ({said})"
        )
    return f"Cassandra refuses the statement, and will refuse it again: {said}"


def _of_read(exc: BaseException) -> Unavailable | Refused:
    """Return the error for a read that failed. A replica's guardrails refuse it only as it runs."""
    codes = (exc.error_code_map if isinstance(exc, cassandra.ReadFailure) else None) or {}
    reasons = set(codes.values())
    if _READ_TOO_MANY_TOMBSTONES in reasons:
        return TooManyTombstones(f"The read failed: {server_text(exc)}")
    if _READ_SIZE in reasons:
        return Refused(
            f"A guardrail of Cassandra refuses to read as much at once: {server_text(exc)}. "
            "Have an operator raise it or lift it, on every node."
        )
    nodes = ", ".join(sorted(str(node) for node, code in codes.items() if code == _UNKNOWN))
    why = f". The log of {nodes} says why; if its disk cannot be read, stop it" if nodes else ""
    return Unavailable(f"The read failed: {server_text(exc)}{why}")


def _never_executed(exc: BaseException, kind: Kind, *, sent: bool) -> bool:
    if isinstance(exc, NoHostAvailable):
        return not sent or _nobody_took_it(exc)
    if isinstance(exc, cassandra.Unavailable):
        return kind is not Kind.CONDITIONAL or exc.consistency in _SERIAL
    if isinstance(exc, _NOT_STARTED):
        return _HINTS not in str(exc)
    return isinstance(exc, errors.PreparedQueryNotFound)


def _nobody_took_it(exc: NoHostAvailable) -> bool:
    causes = _causes(exc)
    return bool(causes) and all(isinstance(cause, _NO_CONNECTION) for cause in causes)


def _causes(exc: NoHostAvailable) -> list[Any]:
    causes: Any = exc.errors
    return list(causes.values()) if isinstance(causes, dict) else []


def server_text(exc: BaseException) -> str:
    """Return the server's own message, without the driver's text around it; of too few replicas, how many."""
    causes: Any = getattr(exc, "errors", None)
    if isinstance(exc, NoHostAvailable) and isinstance(causes, dict):
        told = (f"{host}: {server_text(cause)}" for host, cause in causes.items())
        return "; ".join(told) or "no host is up"
    if isinstance(exc, cassandra.OperationTimedOut) and isinstance(causes, dict) and causes:
        others = (
            f"; {host}: {server_text(why)}" for host, why in causes.items() if isinstance(why, Exception)
        )
        return f"no answer in time from {exc.last_host}{''.join(others)}"
    if isinstance(exc, cassandra.OperationTimedOut) and not causes:
        return "no answer in time"
    if isinstance(exc, cassandra.Unavailable):
        return f"too few replicas are alive: {exc.alive_replicas}, and it takes {exc.required_replicas}"
    found = _TEXT.search(str(exc))
    return found[1].rstrip(". ") if found else str(exc) or type(exc).__name__
