"""What the errors of S3 mean: those of the service, whoever asks it, and those of its SDK on the way there."""

from __future__ import annotations

from typing import Any

from claimcheck._registry import import_vendor
from claimcheck.errors import PayloadNotFoundError, StoreError, StoreUnavailableError

__all__ = ["NOT_ADMITTED", "NOT_KNOWN", "client_error", "code_of", "kind_of_code", "kind_of_error", "never_arrived"]

_UNAVAILABLE = StoreUnavailableError
# The service's code, or the bare HTTP status of an answer without one, to our error; anything else is a StoreError.
_CODES: dict[str, type[StoreError]] = {
    "NoSuchKey": PayloadNotFoundError,
    "NotFound": PayloadNotFoundError,
    "404": PayloadNotFoundError,
    "KeyTooLongError": PayloadNotFoundError,  # and names that some servers do not take: nothing can be stored there
    "InvalidObjectName": PayloadNotFoundError,
    "XMinioInvalidObjectName": PayloadNotFoundError,
    "ConditionalRequestConflict": _UNAVAILABLE,
    "InternalError": _UNAVAILABLE,
    "OperationAborted": _UNAVAILABLE,
    "RequestTimeout": _UNAVAILABLE,
    "ServiceUnavailable": _UNAVAILABLE,
    "SlowDown": _UNAVAILABLE,
    "Throttling": _UNAVAILABLE,
    "ThrottlingException": _UNAVAILABLE,
    "TooManyRequests": _UNAVAILABLE,
    "429": _UNAVAILABLE,
    "500": _UNAVAILABLE,
    "502": _UNAVAILABLE,
    "503": _UNAVAILABLE,
    "504": _UNAVAILABLE,
}
NOT_ADMITTED = {
    "403",
    "AccessDenied",
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidToken",
    "NoSuchBucket",
    "SignatureDoesNotMatch",
}
"""Codes after which there is nothing to undo, and the server could not be asked to anyway."""

NOT_KNOWN = {"NotImplemented", "501"}
"""Codes by which a server says that it does not know what it was asked for."""

# The same of the SDK's own errors, of the last try.
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


def kind_of_code(code: str) -> type[StoreError] | None:
    """Say which of our errors a code stands for."""
    return _CODES.get(code)


def kind_of_error(error: Exception) -> type[StoreError] | None:
    """Say which of our errors one of the SDK's is."""
    if isinstance(error, client_error()):
        return kind_of_code(code_of(error))
    return StoreUnavailableError if isinstance(error, _sdk(*_NOT_REACHED)) else None


def never_arrived(error: BaseException | None) -> bool:
    """Whether nothing can have come of the request that ended so."""
    if isinstance(error, client_error()):
        return code_of(error) in NOT_ADMITTED
    return isinstance(error, _sdk(*_NOT_STARTED))


def client_error() -> Any:
    """Return the class of the errors that are answers of the service."""
    return import_vendor("botocore.exceptions", extra="s3").ClientError


def code_of(error: Any) -> str:
    """Read the service's code from such an error."""
    return str(error.response.get("Error", {}).get("Code", ""))


def _sdk(*names: str) -> tuple[type[Exception], ...]:
    exceptions = import_vendor("botocore.exceptions", extra="s3")
    return tuple(getattr(exceptions, name) for name in names)
