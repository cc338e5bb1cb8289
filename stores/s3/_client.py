"""The boto3 client of the S3 store, its errors, and what is stored below a prefix of a bucket."""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Iterator, Sequence
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

from claimcheck._threads import IO_THREADS
from claimcheck.errors import StoreError, StoreUnavailableError, import_vendor
from claimcheck.stores._common import ERROR_CODES, NOT_ADMITTED, NOT_KNOWN

_ROUNDED_MS = 999  # times are rounded down to seconds
_MOST_GROUPS = 1000
_DAY = re.compile(r"(.*-\d{8}T)\d{6}Z-(?:\d+s|never)\.[^/]*")
_UUID = re.compile(r"(.*[-_])[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_GONE = {"NoSuchKey", "NotFound", "404", "NoSuchUpload"}
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
    return str(error.response.get("Error", {}).get("Code", ""))


def _sdk_errors(*names: str) -> tuple[type[Exception], ...]:
    exceptions = import_vendor("botocore.exceptions", extra="s3")
    return tuple(getattr(exceptions, name) for name in names)


class StoredObject(NamedTuple):
    key: str
    size: int
    stored_ms: int


class Bucket:
    """The part of a bucket below a prefix."""

    def __init__(self, client: Any, name: str, prefix: str) -> None:
        self._client = client
        self._name = name
        self._prefix = prefix

    def objects(self, after: str | None, stop: str = "") -> Iterator[StoredObject]:
        """Yield the objects with keys greater than ``after``, up to ``stop``, in the order of their keys."""
        options = {"StartAfter": after} if after else {}
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._name, Prefix=self._prefix, **options
        )
        for page in pages:
            for found in page.get("Contents", ()):
                if stop and found["Key"] > stop:
                    return
                stored_ms = _milliseconds(found["LastModified"]) + _ROUNDED_MS
                yield StoredObject(found["Key"], found["Size"], stored_ms)

    def cuts(self, count: int) -> list[str]:
        """Return about ``count`` names between which similar numbers of keys may lie, sorted."""
        groups = list(self._groups(max(count, _MOST_GROUPS)))
        each = -(-count // max(1, len(groups)))
        return [name for group in groups for name in _divided(group, each)]

    def _groups(self, most: int) -> Iterator[str]:
        """Yield what the keys of each group begin with; one request for each."""
        after = ""
        for _ in range(most):
            page = self._client.list_objects_v2(Bucket=self._name, Prefix=self._prefix, StartAfter=after, MaxKeys=1)
            if not page.get("Contents"):
                return
            key: str = page["Contents"][0]["Key"]
            match = _DAY.match(key) or _UUID.fullmatch(key)
            if match is not None:
                yield match[1]
            after = key if match is None else f"{match[1]}~"  # after all digits and letters

    def uploads(self) -> Iterator[tuple[str, int, str]]:
        """Yield each incomplete upload: its key, when its last part arrived, and its id."""
        pages = self._client.get_paginator("list_multipart_uploads").paginate(Bucket=self._name, Prefix=self._prefix)
        try:
            found = [upload for page in pages for upload in page.get("Uploads", ())]
        except client_error() as error:
            if code_of(error) in NOT_KNOWN:
                return
            raise
        for upload in found:
            last = self._last_part(upload["Key"], upload["UploadId"])
            if last is not None:
                yield upload["Key"], max(last, _milliseconds(upload["Initiated"])), upload["UploadId"]

    def _last_part(self, key: str, upload_id: str) -> int | None:
        """Return when the last part of an upload arrived, 0 if none has; ``None`` if the upload is gone."""
        last = 0
        try:
            for page in self._client.get_paginator("list_parts").paginate(
                Bucket=self._name, Key=key, UploadId=upload_id
            ):
                for part in page.get("Parts", ()):
                    last = max(last, _milliseconds(part["LastModified"]))
        except client_error() as error:
            if code_of(error) in _GONE:
                return None
            raise
        return last

    def abort(self, key: str, upload_id: str) -> bool:
        """Abort an upload; return whether it was there."""
        try:
            self._client.abort_multipart_upload(Bucket=self._name, Key=key, UploadId=upload_id)
        except client_error() as error:
            if code_of(error) in _GONE:
                return False
            raise
        return True

    def delete(self, keys: Sequence[str]) -> Iterator[tuple[str, Exception | None]]:
        """Delete up to 1,000 objects in one request; yield each key, and an error if it could not be deleted."""
        if not keys:
            return
        objects = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
        try:
            answer = self._client.delete_objects(Bucket=self._name, Delete=objects)
        except client_error() as error:
            if code_of(error) not in NOT_KNOWN:
                raise
            yield from self._delete_singly(keys)
            return
        errors = {each["Key"]: each for each in answer.get("Errors", ()) if each.get("Code") not in _GONE}
        for key in keys:
            yield key, client_error()({"Error": errors[key]}, "DeleteObjects") if key in errors else None

    def _delete_singly(self, keys: Sequence[str]) -> Iterator[tuple[str, Exception | None]]:
        """For servers without that request."""
        for key in keys:
            try:
                self._client.delete_object(Bucket=self._name, Key=key)
            except client_error() as error:
                yield key, error
            else:
                yield key, None


def _divided(group: str, count: int) -> list[str]:
    """Return where to divide a group into ``count`` parts: at hours, or at the first two digits of uuids."""
    if group.endswith("T"):
        return sorted({f"{group}{24 * i // count:02d}" for i in range(count)})
    return sorted({f"{group}{256 * i // count:02x}" for i in range(count)})


def _milliseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
