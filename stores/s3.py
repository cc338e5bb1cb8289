"""Payloads as objects in an S3 bucket, of Amazon's or of any server that speaks its language."""

from __future__ import annotations

import base64
import functools
import logging
import os
import threading
from collections.abc import Callable, Iterable
from contextlib import closing
from itertools import chain, islice
from typing import Annotated, Any
from urllib.parse import urlsplit

from claimcheck.envelope import Buffer
from claimcheck.errors import KeyTakenError, PayloadNotFoundError, StoreError, StoreUnavailableError
from claimcheck.keys import KEY_PREFIX, is_key_prefix
from claimcheck.payload import Source
from claimcheck.pointer import Pointer
from claimcheck.registry import import_vendor
from claimcheck.store import Store
from claimcheck.validation import Check, Count, Range, Seconds, Size, Timeout, check_arguments

from .s3_upload import Upload, ViewFile

__all__ = ["S3Store"]

_log = logging.getLogger(__name__)
_BUFFER_BYTES = 1 << 20
_MAX_PARTS = 10_000

_SESSION_LOCK = threading.Lock()  # clients may be used by several threads, sessions may not

_UNAVAILABLE = StoreUnavailableError
# The service's code, or the bare HTTP status of an answer without one, to our error; anything else is a StoreError.
_CODES: dict[str, type[StoreError]] = {
    "NoSuchKey": PayloadNotFoundError,
    "NotFound": PayloadNotFoundError,
    "404": PayloadNotFoundError,
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
# After these, of the last try, there is nothing to undo, and the server could not be asked to anyway.
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
_NOT_ADMITTED = {
    "403",
    "AccessDenied",
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidToken",
    "NoSuchBucket",
    "SignatureDoesNotMatch",
}
_NOT_REACHED = ("ConnectionError", "HTTPClientError", "IncompleteReadError", "ResponseStreamingError")


def _folder(prefix: str) -> str:
    return f"{prefix.strip('/')}/" if prefix.strip("/") else ""


def _is_endpoint(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return not url or (parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0)
    except ValueError:
        return False


_BUCKET = Check(bool, "the name of a bucket")
_PREFIX = Check(lambda prefix: is_key_prefix(_folder(prefix)), KEY_PREFIX.expected)
_ENDPOINT = Check(_is_endpoint, "http://host[:port] or https://host[:port]")


class S3Store(Store):
    """One object per payload: a single put, or several parts at once above a size.

    Credentials are found by the SDK's own chain. S3 has no life span per object: give the bucket a lifecycle rule on
    ``prefix`` that fits ``ttl_seconds``, and one that aborts incomplete multipart uploads after a day.

    Args:
        bucket: Must exist.
        prefix: What all keys begin with; ``/`` is added where it is missing.
        endpoint_url: Of a server that is not Amazon's.
        region_name: Where the SDK's own configuration does not say it.
        ttl_seconds: Written into pointers; the bucket's lifecycle rule removes objects.
        part_bytes: Of each part above ``single_put_bytes``; at least 5 MiB.
        single_put_bytes: Up to this size one request does it. Files of this size are read into memory.
        parallel_parts: Parts that are sent at once; one more is in memory.
        conditional: Have the server refuse to overwrite; turned off by itself where a server does not know how.
        timeout_seconds: For one answer of the server.
        connect_timeout_seconds: For a new connection.
    """

    def __init__(
        self,
        *,
        bucket: Annotated[str, _BUCKET],
        prefix: Annotated[str, _PREFIX] = "",
        endpoint_url: Annotated[str, _ENDPOINT] | None = None,
        region_name: str | None = None,
        ttl_seconds: Seconds | None = None,
        part_bytes: Annotated[int, Range(5 << 20)] = 16 << 20,
        single_put_bytes: Size = 64 << 20,
        parallel_parts: Count = 4,
        conditional: bool = True,
        timeout_seconds: Timeout = 60,
        connect_timeout_seconds: Timeout = 5,
    ) -> None:
        check_arguments(S3Store, bucket=bucket, prefix=prefix, endpoint_url=endpoint_url)
        self._bucket = bucket
        self._place = {"endpoint_url": endpoint_url or None, "region_name": region_name or None}
        self._part_bytes = part_bytes
        self._single_put_bytes = single_put_bytes
        self._parallel_parts = parallel_parts
        self._conditional = conditional
        self._timeouts = {"connect_timeout": connect_timeout_seconds, "read_timeout": timeout_seconds}
        self._lock = threading.Lock()
        self._client: tuple[int, Any] | None = None
        self.prefix = _folder(prefix)
        self.ttl_seconds = ttl_seconds

    def __repr__(self) -> str:
        return f"<S3Store {self.name!r} at s3://{self._bucket}/{self.prefix}>"

    def close(self) -> None:
        """Close the connections; the next use makes new ones."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client[1].close()

    def _write(self, pointer: Pointer, source: Source) -> None:
        pieces = source.pieces(self._piece_bytes(source))
        head = list(islice(pieces, 2))
        if len(head) < 2:
            self._put(pointer, head[0] if head else memoryview(b""), source.crc32)
            return
        upload = Upload(self._s3(), self._bucket, pointer.key, parallel_parts=self._parallel_parts)
        upload.run(chain(head, pieces), complete=self._create)

    def _put(self, pointer: Pointer, payload: memoryview, crc32: int) -> None:
        checksum = base64.b64encode(crc32.to_bytes(4, "big")).decode()
        place = {"Bucket": self._bucket, "Key": pointer.key, "ChecksumCRC32": checksum}
        self._create(lambda **condition: self._s3().put_object(Body=ViewFile(payload), **place, **condition))

    def _read(self, pointer: Pointer) -> Iterable[Buffer]:
        response = self._s3().get_object(Bucket=self._bucket, Key=pointer.key)
        with closing(response["Body"]) as body:
            self.check_size(pointer, response["ContentLength"])
            buffer = memoryview(bytearray(_BUFFER_BYTES))
            while count := body.readinto(buffer):
                yield buffer[:count]

    def _delete(self, pointer: Pointer) -> None:
        self._s3().delete_object(Bucket=self._bucket, Key=pointer.key)

    def _wrote_nothing(self, error: BaseException) -> bool:
        if super()._wrote_nothing(error):
            return True
        cause, exceptions = error.__cause__, import_vendor("botocore.exceptions", extra="s3")
        if isinstance(cause, exceptions.ClientError):
            return _code(cause) in _NOT_ADMITTED
        return isinstance(cause, tuple(getattr(exceptions, name) for name in _NOT_STARTED))

    def _translate(self, error: Exception) -> type[StoreError] | None:
        exceptions = import_vendor("botocore.exceptions", extra="s3")
        if isinstance(error, exceptions.ClientError):
            return _CODES.get(_code(error))
        if isinstance(error, tuple(getattr(exceptions, name) for name in _NOT_REACHED)):
            return StoreUnavailableError
        return super()._translate(error)

    def _piece_bytes(self, source: Source) -> int:
        """The whole payload for a single put, else a part; larger than asked for where 10,000 would not be enough."""
        if source.size is not None and source.size <= self._single_put_bytes:
            return max(1, source.size)
        largest = self.context.max_payload_bytes if source.size is None else source.size
        return max(self._part_bytes, -(-largest // _MAX_PARTS))

    def _create(self, call: Callable[..., Any]) -> None:
        """Make an object on the condition that there is none, as far as the server knows conditions."""
        exceptions = import_vendor("botocore.exceptions", extra="s3")
        if not self._conditional:
            call()
            return
        try:
            call(IfNoneMatch="*")
        except exceptions.ClientError as error:
            if _code(error) in ("PreconditionFailed", "412"):
                self._check_own(error)
            elif _code(error) in ("NotImplemented", "501"):
                _log.warning("store %r: the server knows no If-None-Match; writing without", self.name)
                self._conditional = False
                call()
            else:
                raise

    def _check_own(self, error: Any) -> None:
        """The SDK sent a request again whose answer was lost: what stands in the way is what we wrote ourselves."""
        if not error.response.get("ResponseMetadata", {}).get("RetryAttempts"):
            raise KeyTakenError(f"store {self.name!r}: the new key is in use already", store=self.name) from error

    def _s3(self) -> Any:
        """The client of this process; connections do not survive a fork."""
        with self._lock:
            if self._client is None or self._client[0] != os.getpid():
                self._client = os.getpid(), self._connect()
            return self._client[1]

    def _connect(self) -> Any:
        config = import_vendor("botocore.config", extra="s3").Config(
            # We bring our own checksum, or check one; the SDK's would be a second pass in Python over every payload.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={"payload_signing_enabled": False},
            retries={"mode": "standard", "max_attempts": 3},
            max_pool_connections=max(16, 2 * self._parallel_parts),
            tcp_keepalive=True,
            **self._timeouts,
        )
        with _SESSION_LOCK:
            return _session().client("s3", config=config, **self._place)


@functools.cache
def _session() -> Any:
    """One for the process: it reads a long description of S3, which is most of the time that a client takes to make."""
    return import_vendor("boto3", extra="s3").session.Session()


def _code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))
