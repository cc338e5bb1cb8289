"""The boto3 client of the S3 store, set up to send payloads unchanged, and the mapping of its errors."""

from __future__ import annotations

import functools
import threading
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

from claimcheck._threads import IO_THREADS
from claimcheck.errors import StoreError, StoreUnavailableError, import_vendor
from claimcheck.stores._common import ERROR_CODES, NOT_ADMITTED

_SESSION_LOCK = threading.Lock()  # clients are thread-safe, sessions are not

# Errors of the SDK after which nothing was sent, at least in its last attempt.
_NOT_STARTED = (
    "ConnectTimeoutError",
    "CredentialRetrievalError",
    "EndpointConnectionError",
    "NoCredentialsError",
    "NoRegionError",
    "ParamValidationError",
    "PartialCredentialsError",
    "ProxyConnectionError",
    "SSLError",
)
_NOT_REACHED = ("ConnectionError", "HTTPClientError", "IncompleteReadError", "ResponseStreamingError")


def connect(place: dict[str, str | None], timeouts: dict[str, float], *, connections: int) -> Any:
    """Return a new client."""
    config = import_vendor("botocore.config", extra="s3").Config(
        # The store sends and checks its own checksum; the SDK's would be a second pass in Python over every payload.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"payload_signing_enabled": False},
        retries={"mode": "standard", "total_max_attempts": 3},
        parameter_validation=False,  # all arguments come from the store
        user_agent=_user_agent(),
        max_pool_connections=max(connections, IO_THREADS),  # of the methods for asyncio
        tcp_keepalive=True,
        **timeouts,
    )
    with _SESSION_LOCK:
        return session().client("s3", config=config, **place)


@functools.cache
def session() -> Any:
    """Return the session of this process. Loading its description of S3 takes most of the time to create a client."""
    core = import_vendor("botocore.session", extra="s3").get_session()
    core.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=_timestamp)
    return import_vendor("boto3", extra="s3").session.Session(botocore_session=core)


def _timestamp(value: Any) -> datetime:
    """Parse a time in a response; the SDK's parser takes longer than any other step of a small read."""
    try:
        return datetime.fromisoformat(value) if value[:1].isdigit() else parsedate_to_datetime(value)
    except (TypeError, ValueError):
        parsed: datetime = import_vendor("botocore.utils", extra="s3").parse_timestamp(value)
        return parsed


def _user_agent() -> str:
    """Return a fixed user agent; the SDK would otherwise build one from forty parts for each request."""
    return f"claimcheck Boto3/{import_vendor('boto3', extra='s3').__version__}"


def kind_of_error(error: Exception) -> type[StoreError] | None:
    """Return the error class for an error of the SDK; ``None`` if there is none."""
    if isinstance(error, client_error()):
        return ERROR_CODES.get(code_of(error))
    return StoreUnavailableError if isinstance(error, _sdk_errors(*_NOT_REACHED)) else None


def never_arrived(error: BaseException | None) -> bool:
    """Whether a request that failed with this error had no effect."""
    if isinstance(error, client_error()):
        return code_of(error) in NOT_ADMITTED
    return isinstance(error, _sdk_errors(*_NOT_STARTED))


def client_error() -> type[Exception]:
    """Return the class of errors that the service returned."""
    return _sdk_errors("ClientError")[0]


def code_of(error: Any) -> str:
    """Return the service's code of such an error."""
    return str(error.response.get("Error", {}).get("Code", ""))


def _sdk_errors(*names: str) -> tuple[type[Exception], ...]:
    exceptions = import_vendor("botocore.exceptions", extra="s3")
    return tuple(getattr(exceptions, name) for name in names)
