"""Data keys: each encrypts payloads, and is itself stored encrypted ("wrapped") with a key of the configuration.

A `KeyProvider` wraps and unwraps data keys: `LocalKeys` in this process, `AwsKms` in AWS KMS. `DataKeys` makes a new
data key for each payload, and keeps unwrapped ones in memory for a few minutes.
"""

from __future__ import annotations

import functools
import json
import math
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NoReturn, Protocol, TypeVar, cast, runtime_checkable

from claimcheck._content.encryption import DataKey
from claimcheck._registry import KEY_PROVIDERS, check_unresolved, load_class, resolved_options
from claimcheck._validation import Option, Problems, Timeout, fail, options_of
from claimcheck.config import ENCRYPTION_KEY_BYTES, EncryptionConfig, encryption_key, expand
from claimcheck.errors import ClaimCheckError, ConfigError, IntegrityError, StoreUnavailableError, import_vendor

V = TypeVar("V")

_PATH = "encryption"
_GROUP = "claimcheck.key_providers"
_KEPT_KEYS = 1000
_KEPT_SECONDS = 300.0
_REFUSED_SECONDS = 10.0
_NONCE_BYTES = 12
_MAX_WRAPPED_BYTES = 16 << 10  # readers refuse a longer header of a payload
_BYTES = (bytes, bytearray, memoryview)

_KMS = "aws-kms"
_SESSION_LOCK = threading.Lock()  # clients are thread-safe, sessions are not
_RETRYABLE = {
    *("DependencyTimeoutException", "InternalFailure", "KMSInternalException", "KeyUnavailableException"),
    *("LimitExceededException", "RequestTimeout", "ServiceUnavailable", "ThrottlingException"),
}
_FORGED = {"IncorrectKeyException", "InvalidCiphertextException"}
_GONE = {"DisabledException", "KMSInvalidStateException", "NotFoundException"}
_NOT_REACHED = ("ConnectionError", "HTTPClientError")


@runtime_checkable
class KeyProvider(Protocol):
    """Encrypts and decrypts data keys with keys of a service. Used from several threads.

    A class for ``encryption.provider`` is called with the keyword argument ``keys``, which is the mapping
    ``encryption.keys``, and with the options of ``encryption.options`` as further keyword arguments. Type hints of
    these arguments are checked. Placeholders are resolved.

    `wrap` and `unwrap` raise a `claimcheck.StoreUnavailableError`, `ConnectionError` or `TimeoutError` if the same call
    may succeed later. For a data key that can never be unwrapped, `unwrap` raises a `claimcheck.IntegrityError` or any
    other exception.
    """

    def wrap(self, data_key: bytes, *, key_id: str, context: Mapping[str, str]) -> bytes:
        """Encrypt a data key of 32 bytes; returns at most 16 KiB.

        Args:
            data_key: The key to encrypt.
            key_id: An id of ``keys``.
            context: Authenticated and not stored; `unwrap` is called with the same one.
        """

    def unwrap(self, wrapped: bytes, *, key_id: str, context: Mapping[str, str]) -> bytes:
        """Decrypt a data key. ``wrapped`` comes from a store and may be forged; ``key_id`` is an id of ``keys``."""


class LocalKeys:
    """Wraps data keys in this process: AES-256-GCM with a random nonce, in the format of Tink's ``AES256_GCM_RAW``."""

    def __init__(self, *, keys: Mapping[str, str]) -> None:
        self._keys = keys

    def wrap(self, data_key: bytes, *, key_id: str, context: Mapping[str, str]) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        sealed: bytes = self._cipher(key_id).encrypt(nonce, data_key, _associated_data(key_id, context))
        return nonce + sealed

    def unwrap(self, wrapped: bytes, *, key_id: str, context: Mapping[str, str]) -> bytes:
        cipher, invalid_tag = self._cipher(key_id), _vendor("cryptography.exceptions").InvalidTag
        nonce, sealed = wrapped[:_NONCE_BYTES], wrapped[_NONCE_BYTES:]
        try:
            key: bytes = cipher.decrypt(nonce, sealed, _associated_data(key_id, context))
        except (invalid_tag, ValueError):
            text = f"the data key was not encrypted with {_PATH}.keys.{key_id}: it was changed in the store"
            raise IntegrityError(f"{text}, or the configuration has another key of that name") from None
        return key

    def _cipher(self, key_id: str) -> Any:
        key = encryption_key(self._keys[key_id], path=f"{_PATH}.keys.{key_id}")
        return _vendor("cryptography.hazmat.primitives.ciphers.aead").AESGCM(key)


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
        answer = self._call("encrypt", key_id, Plaintext=data_key, EncryptionContext=dict(context))
        wrapped: bytes = answer["CiphertextBlob"]
        return wrapped

    def unwrap(self, wrapped: bytes, *, key_id: str, context: Mapping[str, str]) -> bytes:
        answer = self._call("decrypt", key_id, CiphertextBlob=wrapped, EncryptionContext=dict(context))
        key: bytes = answer["Plaintext"]
        return key

    @functools.cached_property
    def _client(self) -> Any:
        config = import_vendor("botocore.config", extra=_KMS).Config(
            connect_timeout=self._timeout_seconds,
            read_timeout=self._timeout_seconds,
            retries={"mode": "standard", "total_max_attempts": 3},
        )
        with _SESSION_LOCK:
            session = import_vendor("boto3", extra=_KMS).session.Session()
            return session.client("kms", config=config, **self._place)

    def _call(self, operation: str, key_id: str, **arguments: object) -> Any:
        errors = import_vendor("botocore.exceptions", extra=_KMS)
        try:
            call: Callable[..., Any] = getattr(self._client, operation)
            return call(KeyId=self._keys[key_id], **arguments)
        except errors.ClientError as error:
            _refuse(operation, key_id, error)
        except tuple(getattr(errors, name) for name in _NOT_REACHED) as error:
            text = f"encryption.keys.{key_id}: AWS KMS cannot be reached ({type(error).__name__})"
            raise StoreUnavailableError(text) from error
        except errors.BotoCoreError as error:  # no credentials, no region
            raise ConfigError(f"encryption.keys.{key_id}: AWS KMS cannot be used: {error}") from error


def _refuse(operation: str, key_id: str, error: Any) -> NoReturn:
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


def _vendor(module: str) -> Any:
    return import_vendor(module, extra="encryption")


def _associated_data(key_id: str, context: Mapping[str, str]) -> bytes:
    identity = {"context": dict(context), "key_id": key_id}
    return json.dumps(identity, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


class DataKeys:
    """Makes and unwraps data keys. Thread-safe; the provider is created at first use."""

    def __init__(self, config: EncryptionConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._provider: KeyProvider | None = None
        self._clock = clock
        self._opened = OrderedDict[Hashable, tuple[float, bytes]]()  # with the time until which it is kept
        self._refused = OrderedDict[Hashable, tuple[float, str]]()  # a forged message calls the service only once

    def __repr__(self) -> str:
        return f"<DataKeys of {self._config.provider!r}, key_id {self._config.key_id!r}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("data keys cannot be pickled: they are secret. Pickle the configuration")

    @property
    def key_id(self) -> str | None:
        """The key that wraps new data keys; ``None`` in processes that only read."""
        return self._config.key_id

    def check(self) -> None:
        """Check the provider and its options as far as this needs no environment variable."""
        _, known = self._provider_class()
        check_unresolved(known, self._config.options, f"{_PATH}.options")

    def check_keys(self, problems: Problems) -> None:
        """Add a problem for each key whose variable is not set or that has a wrong length; then create the provider."""
        _vendor("cryptography")
        resolve = encryption_key if self._config.provider == "local" else expand
        for name, text in self._config.keys.items():
            with problems:
                resolve(text, path=f"{_PATH}.keys.{name}")
        if not any(problems):
            self._opened_provider()

    def new(self, context: Mapping[str, str]) -> DataKey:
        key_id, key = self._config.key_id, os.urandom(ENCRYPTION_KEY_BYTES)
        if key_id is None:
            fail(f"{_PATH}.key_id", found="nothing", expected="the id of the key that encrypts new payloads")
        wrapped = self._call("wrap", key, key_id, context, (1, _MAX_WRAPPED_BYTES), ConfigError)
        return DataKey(key, key_id, wrapped)

    def open(self, key_id: str, wrapped: bytes, context: Mapping[str, str]) -> bytes:
        """Return the data key of a stored payload. All arguments are untrusted."""
        entry = (key_id, wrapped, *context.items())
        key, refusal = self._recent(self._opened, entry), self._recent(self._refused, entry)
        if refusal is not None:
            raise IntegrityError(refusal)
        if key is None:
            try:
                key = self._unwrapped(key_id, wrapped, context)
            except IntegrityError as error:
                self._keep(self._refused, entry, str(error), _REFUSED_SECONDS)
                raise
            self._keep(self._opened, entry, key, _KEPT_SECONDS)
        return key

    def _recent(self, kept: OrderedDict[Hashable, tuple[float, V]], entry: Hashable) -> V | None:
        with self._lock:
            until, value = kept.get(entry, (-math.inf, None))
        return value if until > self._clock() else None

    def _keep(self, kept: OrderedDict[Hashable, tuple[float, V]], entry: Hashable, value: V, seconds: float) -> None:
        now = self._clock()
        with self._lock:
            kept.pop(entry, None)
            kept[entry] = now + seconds, value
            while len(kept) > _KEPT_KEYS or next(iter(kept.values()))[0] <= now:
                kept.popitem(last=False)

    def _unwrapped(self, key_id: str, wrapped: bytes, context: Mapping[str, str]) -> bytes:
        if key_id not in self._config.keys:
            text = f"the payload was encrypted with the key {key_id[:100]!r}, which is not configured here"
            raise IntegrityError(f"{text}. If that key still exists, add it to {_PATH}.keys")
        sizes = (ENCRYPTION_KEY_BYTES, ENCRYPTION_KEY_BYTES)
        return self._call("unwrap", wrapped, key_id, context, sizes, IntegrityError)

    def _call(
        self,
        method: str,
        data: bytes,
        key_id: str,
        context: Mapping[str, str],
        sizes: tuple[int, int],
        other: type[ClaimCheckError],
    ) -> bytes:
        """Call the provider; translates its exceptions, and refuses what is not bytes of these sizes."""
        text = f"{_PATH}.keys.{key_id}: the provider {self._config.provider!r}"
        try:
            answer: object = getattr(self._opened_provider(), method)(data, key_id=key_id, context=context)
        except ClaimCheckError:
            raise
        except Exception as error:
            kind = StoreUnavailableError if isinstance(error, (ConnectionError, TimeoutError)) else other
            raise kind(f"{text} could not {method} a data key: {type(error).__name__}") from error
        if isinstance(answer, _BYTES) and sizes[0] <= len(answer) <= sizes[1]:
            return bytes(answer)
        found = f"{len(answer)} bytes" if isinstance(answer, _BYTES) else f"an object of type {type(answer).__name__}"
        raise other(f"{text} returned {found} from {method}, expected {sizes[0]} to {sizes[1]} bytes")

    def _opened_provider(self) -> KeyProvider:
        with self._lock:
            if self._provider is None:
                self._provider = self._new_provider()
            return self._provider

    def _new_provider(self) -> KeyProvider:
        cls, known = self._provider_class()
        options = resolved_options(known, self._config.options, f"{_PATH}.options")
        try:
            return cast("Callable[..., KeyProvider]", cls)(keys=self._keys(), **options)
        except ClaimCheckError:
            raise
        except Exception as error:
            text = f"{_PATH}.provider: {self._config.provider!r} cannot be created: {type(error).__name__}"
            raise ConfigError(text, path=f"{_PATH}.provider") from error

    def _keys(self) -> Mapping[str, str]:
        """Local keys are resolved one by one, so that a key that is not set here does not affect the others."""
        keys = self._config.keys
        if self._config.provider == "local":
            return keys
        return {name: expand(text, path=f"{_PATH}.keys.{name}") for name, text in keys.items()}

    def _provider_class(self) -> tuple[type[object], Mapping[str, Option]]:
        """Return the provider's class and its options, without ``keys``."""
        path, name = f"{_PATH}.provider", self._config.provider
        cls = load_class(name, KEY_PROVIDERS, group=_GROUP, path=path)
        missing = [method for method in ("wrap", "unwrap") if not callable(getattr(cls, method, None))]
        if missing:
            found = f"{name!r}, which has no {' and no '.join(missing)}"
            fail(path, found=found, expected="a class with the methods of claimcheck.KeyProvider")
        options = options_of(cls)
        return cls, {option: options[option] for option in options if option != "keys"}
