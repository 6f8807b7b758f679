"""What the driver raises, or hands over as a cause, though its documentation does not name it."""

from __future__ import annotations

from typing import Any, Final

from cqueue.store.driver.probe import Part, find_or


class NeverRaised(Exception):
    """Stands for an error that this version of the driver does not have."""


ERRORS: Final = Part(
    "errors",
    (
        "cassandra.connection:ConnectionBusy",
        "cassandra.connection:ConnectionException",
        "cassandra.pool:NoConnectionsAvailable",
        "cassandra.protocol:BadCredentials",
        "cassandra.protocol:ConfigurationException",
        "cassandra.protocol:ErrorMessage",
        "cassandra.protocol:InvalidRequestException",
        "cassandra.protocol:IsBootstrappingErrorMessage",
        "cassandra.protocol:OverloadedErrorMessage",
        "cassandra.protocol:PreparedQueryNotFound",
        "cassandra.protocol:RequestValidationException",
        "cassandra.protocol:SyntaxException",
        "cassandra.cluster:ResponseFuture.attempted_hosts",
    ),
    lambda: True,
    "of more writes that fail it is not known whether they were stored",
)

_found: Final[list[Any]] = [find_or(name, NeverRaised) for name in ERRORS.names[:-1]]
(
    ConnectionBusy,
    ConnectionException,
    NoConnectionsAvailable,
    BadCredentials,
    ConfigurationException,
    ErrorMessage,
    InvalidRequestException,
    IsBootstrappingErrorMessage,
    OverloadedErrorMessage,
    PreparedQueryNotFound,
    RequestValidationException,
    SyntaxException,
) = _found


def was_sent(future: Any) -> bool:
    """Whether a request may have left this process."""
    return bool(getattr(future, "attempted_hosts", True))
