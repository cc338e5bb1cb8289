"""Wraps data keys with AWS KMS: a key provider on boto3."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from claimcheck._registry import import_vendor
from claimcheck._validation import Timeout
from claimcheck.errors import ConfigError, IntegrityError, StoreUnavailableError

_EXTRA = "aws-kms"
_SESSION_LOCK = threading.Lock()  # clients are thread-safe, sessions are not
_RETRYABLE = {
    *("DependencyTimeoutException", "InternalFailure", "KMSInternalException", "KeyUnavailableException"),
    *("LimitExceededException", "RequestTimeout", "ServiceUnavailable", "ThrottlingException"),
}
_FORGED = {"IncorrectKeyException", "InvalidCiphertextException"}
_GONE = {"DisabledException", "KMSInvalidStateException", "NotFoundException"}
_NOT_REACHED = ("ConnectionError", "HTTPClientError")


class AwsKms:
    """Wraps data keys with symmetric keys of AWS KMS. Credentials come from the usual chain of the SDK."""

    def __init__(
        self,
        *,
        keys: Mapping[str, str],
        region_name: str | None = None,
        endpoint_url: str | None = None,
        timeout_seconds: Timeout = 10,
    ) -> None:
        self._keys = keys
        self._place = {"region_name": region_name or None, "endpoint_url": endpoint_url or None}
        self._timeout_seconds = timeout_seconds

    def wrap(self, data_key: bytes, *, key_id: str, context: Mapping[str, str]) -> bytes:
        """Encrypt a data key."""
        answer = self._call("encrypt", key_id, Plaintext=data_key, EncryptionContext=dict(context))
        wrapped: bytes = answer["CiphertextBlob"]
        return wrapped

    def unwrap(self, wrapped: bytes, *, key_id: str, context: Mapping[str, str]) -> bytes:
        """Decrypt a data key."""
        answer = self._call("decrypt", key_id, CiphertextBlob=wrapped, EncryptionContext=dict(context))
        key: bytes = answer["Plaintext"]
        return key

    def describe(self) -> Mapping[str, str]:
        """Return region and endpoint if they are configured."""
        return {name: value for name, value in self._place.items() if value}

    @functools.cached_property
    def _client(self) -> Any:
        config = import_vendor("botocore.config", extra=_EXTRA).Config(
            connect_timeout=self._timeout_seconds,
            read_timeout=self._timeout_seconds,
            retries={"mode": "standard", "total_max_attempts": 3},
        )
        with _SESSION_LOCK:
            session = import_vendor("boto3", extra=_EXTRA).session.Session()
            return session.client("kms", config=config, **self._place)

    def _call(self, operation: str, key_id: str, **arguments: object) -> Any:
        errors = import_vendor("botocore.exceptions", extra=_EXTRA)
        try:
            call: Callable[..., Any] = getattr(self._client, operation)
            return call(KeyId=self._keys[key_id], **arguments)
        except errors.ClientError as error:
            _fail(operation, key_id, error)
        except tuple(getattr(errors, name) for name in _NOT_REACHED) as error:
            text = f"encryption.keys.{key_id}: AWS KMS cannot be reached ({type(error).__name__})"
            raise StoreUnavailableError(text) from error
        except errors.BotoCoreError as error:  # no credentials, no region
            raise ConfigError(f"encryption.keys.{key_id}: AWS KMS cannot be used: {error}") from error


def _fail(operation: str, key_id: str, error: Any) -> NoReturn:
    """Raise the error for a response of KMS."""
    code = str(error.response.get("Error", {}).get("Code", ""))
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    path = f"encryption.keys.{key_id}"
    answer = f"AWS KMS answered {code} to {operation!r}"
    if code in _RETRYABLE or status >= 500:
        raise StoreUnavailableError(f"{path}: {answer}") from error
    if operation == "decrypt" and code in _FORGED:
        text = f"the data key was not encrypted with {path}: {answer}. It was changed in the store"
        raise IntegrityError(f"{text}, or the alias has another target now") from error
    if operation == "decrypt" and code in _GONE:
        text = f"the payload cannot be decrypted, because {path} is deleted or disabled: {answer}"
        raise IntegrityError(text) from error
    text = f"{path}: {answer}. Check the key, its policy and the permission kms:{operation.capitalize()}"
    raise ConfigError(text, path=path) from error
