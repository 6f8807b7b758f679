"""Push records to an HTTP address. The push is a listener, so the subscription does retries and positions."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from http.client import HTTPConnection, HTTPException
from typing import Any, Final
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPRedirectHandler, OpenerDirector, Request, build_opener

from cqueue.errors import BadInput, NotDone, OutcomeUnknown, RecordRejected
from cqueue.log.records import LogRecord
from cqueue.message import check_duration, check_headers

DEFAULT_TIMEOUT: Final = timedelta(seconds=10)
"""Time that one request may take by default: long for an endpoint, short beside a retry's wait of 30 s."""
AGAIN: Final = frozenset({408, 429})
"""4xx statuses that ask for a retry; the others reject the record."""
_SAFE = " !#$&'()*+,-./:;<=>?@[]^_`{|}~"


class HttpPush:
    """A listener that sends each record by HTTP POST; a 2xx answer means that the record is done.

    The request's body is the record's. Its position and metadata are headers: `Cqueue-Id`, `Cqueue-Topic`,
    `Cqueue-Partition`, `Cqueue-Time`, `Cqueue-Key`, and `Cqueue-Header-<name>` for the record's own headers.
    Characters that are not ASCII are percent-encoded; header names ignore case. A record may be sent more
    than once, always with the same id.

    url: http or https. headers: sent with every request; `Content-Type` is `application/octet-stream`
    if they do not name another one. timeout: 1 ms to 10 min.
    """

    def __init__(
        self, url: str, *, headers: Mapping[str, str] | None = None, timeout: timedelta = DEFAULT_TIMEOUT
    ) -> None:
        if not _is_address(url):
            raise BadInput("url takes an http or https address")
        self.url = url
        self._host = urlsplit(url).hostname  # errors and logs name no more of it: the rest may hold secrets
        self._headers = {"Content-Type": "application/octet-stream", **_sendable(headers or {})}
        low, high = timedelta(milliseconds=1), timedelta(minutes=10)
        self._timeout_s = check_duration("timeout", timeout, low, high)
        self._opener: OpenerDirector = build_opener(_NoRedirects)

    def __repr__(self) -> str:
        return f"<http push to {self._host}>"

    def __call__(self, record: LogRecord) -> None:
        """Send one record.

        Raises:
            RecordRejected: the status is 4xx, but neither 408 nor 429.
            NotDone: the status is another one than 2xx; the record is sent again.
            OutcomeUnknown: there was no answer; the record is sent again.
        """
        request = Request(self.url, record.body, {**self._headers, **metadata(record)}, method="POST")  # noqa: S310 - checked above
        try:
            self._opener.open(request, timeout=self._timeout_s).close()
        except HTTPError as exc:
            exc.close()
            if 400 <= exc.code < 500 and exc.code not in AGAIN:
                raise RecordRejected(f"{self._host} answered {exc.code} {exc.reason}") from exc
            raise NotDone(f"{self._host} answered {exc.code} {exc.reason}") from exc
        except (OSError, HTTPException) as exc:
            why = exc if isinstance(exc, OSError) else type(exc).__name__  # `InvalidURL` quotes the address
            raise OutcomeUnknown(f"{self._host} gave no answer: {why}") from exc


def _is_address(url: Any) -> bool:
    try:
        return isinstance(url, str) and urlsplit(url).scheme in {"http", "https"}
    except ValueError:  # brackets without an address in them, for example
        return False


def _sendable(headers: Mapping[str, str]) -> Mapping[str, str]:
    request = HTTPConnection("localhost")  # nothing is sent
    request.putrequest("POST", "/")
    try:
        for name, value in check_headers(headers).items():
            request.putheader(name, value)
    except ValueError:  # it quotes the header, which may be a secret
        raise BadInput("headers takes names in ASCII, and values in Latin-1 without a line break") from None
    return headers


class _NoRedirects(HTTPRedirectHandler):
    """Treats a redirect as a failure: a redirected POST would become a GET without the record."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def metadata(record: LogRecord) -> dict[str, str]:
    """Return the HTTP headers that identify and describe a record."""
    found = {
        "Cqueue-Id": str(record.id),
        "Cqueue-Topic": record.topic,
        "Cqueue-Partition": str(record.partition),
        "Cqueue-Time": record.time.isoformat(),
    }
    if record.key is not None:
        found["Cqueue-Key"] = record.key
    own = {f"Cqueue-Header-{quote(name, safe='-_.')}": value for name, value in record.headers.items()}
    return {name: quote(value, safe=_SAFE) for name, value in {**own, **found}.items()}
