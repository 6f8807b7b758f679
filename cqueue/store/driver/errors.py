"""Exceptions that the driver raises, or passes on as causes, without documenting them."""

from __future__ import annotations

from typing import Any, Final

from cqueue.store.driver.probe import Part, find_or

_names: Final = ["cassandra.cluster:ResponseFuture.attempted_hosts"]


class NeverRaised(Exception):
    """Placeholder for an exception that this version of the driver lacks."""


def _error(module: str, name: str) -> Any:
    _names.append(f"cassandra.{module}:{name}")
    return find_or(_names[-1], NeverRaised)


ConnectionBusy = _error("connection", "ConnectionBusy")
ConnectionException = _error("connection", "ConnectionException")
NoConnectionsAvailable = _error("pool", "NoConnectionsAvailable")
BadCredentials = _error("protocol", "BadCredentials")
ConfigurationException = _error("protocol", "ConfigurationException")
ErrorMessage = _error("protocol", "ErrorMessage")
InvalidRequestException = _error("protocol", "InvalidRequestException")
IsBootstrappingErrorMessage = _error("protocol", "IsBootstrappingErrorMessage")
OverloadedErrorMessage = _error("protocol", "OverloadedErrorMessage")
PreparedQueryNotFound = _error("protocol", "PreparedQueryNotFound")
RequestValidationException = _error("protocol", "RequestValidationException")
SyntaxException = _error("protocol", "SyntaxException")

ERRORS: Final = Part(
    "errors",
    tuple(_names),
    lambda: True,
    "of more writes that fail it is not known whether they were stored",
)


def was_sent(future: Any) -> bool:
    """Return whether a request may have left this process."""
    return bool(getattr(future, "attempted_hosts", True))
