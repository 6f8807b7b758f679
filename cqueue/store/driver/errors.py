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


ConnectionBusy: Any = _error("connection", "ConnectionBusy")
ConnectionException: Any = _error("connection", "ConnectionException")
NoConnectionsAvailable: Any = _error("pool", "NoConnectionsAvailable")
BadCredentials: Any = _error("protocol", "BadCredentials")
ConfigurationException: Any = _error("protocol", "ConfigurationException")
ErrorMessage: Any = _error("protocol", "ErrorMessage")
InvalidRequestException: Any = _error("protocol", "InvalidRequestException")
IsBootstrappingErrorMessage: Any = _error("protocol", "IsBootstrappingErrorMessage")
OverloadedErrorMessage: Any = _error("protocol", "OverloadedErrorMessage")
PreparedQueryNotFound: Any = _error("protocol", "PreparedQueryNotFound")
RequestValidationException: Any = _error("protocol", "RequestValidationException")
SyntaxException: Any = _error("protocol", "SyntaxException")

ERRORS: Final = Part(
    "errors",
    tuple(_names),
    lambda: True,
    "of more writes that fail it is not known whether they were stored",
)


def was_sent(future: Any) -> bool:
    """Return whether a request may have left this process."""
    return bool(getattr(future, "attempted_hosts", True))
