"""The boto3 client of the S3 store: its errors, what is stored below a prefix of a bucket, and uploads."""

from __future__ import annotations

import base64
import functools
import io
import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import partial
from http import HTTPStatus
from operator import itemgetter
from typing import Any, NamedTuple

import claimcheck._wire.checksum as checksum
from claimcheck._threads import IO_THREADS, check_interrupt
from claimcheck.errors import KeyTakenError, StoreError, StoreUnavailableError, import_vendor
from claimcheck.stores._common import NOT_ADMITTED, NOT_KNOWN, kind_of_code
from claimcheck.stores._parts import CONNECTIONS, Slots

_log = logging.getLogger(__name__)

_ROUNDED_MS = 999  # times are rounded down to seconds
_MOST_GROUPS = 1000
_DAY = re.compile(r"(.*-\d{8}T)\d{6}Z-(?:\d+s|never)\.[^/]*")
_UUID = re.compile(r"(.*[-_])[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_GONE = {"NoSuchKey", "NotFound", "404", "NoSuchUpload"}
_SESSION_LOCK = threading.Lock()  # clients are thread-safe, sessions are not
_ASK_FROM_BYTES = 1 << 20  # smaller bodies are sent before a server could refuse them
_ASK_AGAIN_BYTES = 16 << 20  # the same, if the server accepted a body before: to ask takes a round trip
_SEND_BYTES = 4 << 20  # per send, which must end within the socket's timeout
_LATE_ABORTS = 2
_LATE_SECONDS = 0.1

_Response = Mapping[str, Any]

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


def connect(
    place: dict[str, str | None], timeouts: dict[str, float], more: Mapping[str, Any], *, connections: int
) -> Any:
    config = import_vendor("botocore.config", extra="s3").Config(
        # The store sends and checks its own checksum; the SDK's would be a second pass in Python over every payload.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"payload_signing_enabled": False},
        retries={"mode": "standard", "total_max_attempts": 3},
        parameter_validation=False,  # all arguments come from the store
        # The SDK would otherwise build one from forty parts for each request.
        user_agent=f"claimcheck Boto3/{import_vendor('boto3', extra='s3').__version__}",
        max_pool_connections=max(connections, IO_THREADS),  # of the methods for asyncio
        tcp_keepalive=True,
        **timeouts,
    )
    with _SESSION_LOCK:
        return session().client("s3", **{**place, **more, "config": config.merge(more.get("config", config))})


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


def kind_of_error(error: Any) -> type[StoreError] | None:
    if isinstance(error, client_error()):
        return kind_of_code(code_of(error), str(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")))
    return StoreUnavailableError if isinstance(error, _sdk_errors(*_NOT_REACHED)) else None


def never_arrived(error: BaseException | None) -> bool:
    """Whether a request that failed with this error had no effect."""
    if isinstance(error, client_error()):
        return code_of(error) in NOT_ADMITTED
    return isinstance(error, _sdk_errors(*_NOT_STARTED))


def client_error() -> Any:
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


# Uploads ----------------------------------------------------------------------------------------------------------


class ViewFile(io.RawIOBase):
    """A read-only file over bytes in memory that copies nothing; the SDK can read it again for a retry."""

    def __init__(self, view: memoryview) -> None:
        self.view = view
        self._position = 0

    def __len__(self) -> int:
        return len(self.view)

    @functools.cached_property
    def crc32(self) -> int:
        return checksum.crc32(self.view)

    @property
    def checksum(self) -> str:
        """The checksum of all bytes, formatted as S3 does."""
        return base64.b64encode(self.crc32.to_bytes(4, "big")).decode()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: len(self)}[whence]
        self._position = max(0, base + offset)
        return self._position

    def read(self, size: int | None = -1, /) -> Any:  # a view is not the bytes of the base class
        """Return up to ``size`` bytes as a view; without a size the rest as ``bytes``."""
        whole = size is None or size < 0
        piece = self.view[self._position : None if whole else self._position + (size or 0)]
        self._position += len(piece)
        return bytes(piece) if whole else piece

    def readinto(self, buffer: Any, /) -> int:  # a caller's client may sign every byte
        piece = self.read(len(buffer))
        buffer[: len(piece)] = piece
        return len(piece)

    def pieces(self) -> Iterator[memoryview | bytes]:
        for start in range(0, len(self.view), _SEND_BYTES):
            check_interrupt()
            yield self.view[start : start + _SEND_BYTES]


class _Pieces:
    """An iterable body: the HTTP client would read a file in steps of 16 KiB, but takes larger pieces from this."""

    def __init__(self, file: ViewFile) -> None:
        self._file = file

    def __iter__(self) -> Iterator[memoryview | bytes]:
        return self._file.pieces()

    def seek(self, offset: int) -> int:
        """Return to the start, for a retry of the SDK."""
        return self._file.seek(offset)


def attach(client: Any) -> None:
    """Make a boto3 client send `ViewFile` bodies as intended."""
    accepted = threading.Event()
    client.meta.events.register_last("before-call.s3", partial(_announce, accepted))
    client.meta.events.register_last("before-send", _widen)
    client.meta.events.register_last("after-call.s3.PutObject", partial(_note, accepted))


def _note(accepted: threading.Event, http_response: Any, **_: object) -> None:
    if http_response.status_code == HTTPStatus.OK:
        accepted.set()


def _announce(accepted: threading.Event, params: dict[str, Any], model: Any, **_: object) -> None:
    body = params.get("body")
    ask_from = _ASK_AGAIN_BYTES if accepted.is_set() else _ASK_FROM_BYTES
    if isinstance(body, ViewFile) and (len(body) < ask_from or model.name == "UploadPart"):
        params["headers"].pop("Expect", None)  # only a round trip: the server accepted an upload before


def _widen(request: Any, **_: object) -> None:
    if isinstance(request.body, ViewFile):
        request.body = _Pieces(request.body)


def create(put: Callable[..., _Response], *, store: str) -> None:
    """Put an object if there is none with its key, as far as the server supports that; raises a `KeyTakenError`."""
    try:
        put(IfNoneMatch="*")
    except client_error() as error:
        if code_of(error) in ("PreconditionFailed", "412"):
            raise KeyTakenError(f"store {store!r}: the key is already in use", store=store) from error
        if code_of(error) not in NOT_KNOWN:
            raise
        _log.warning("store %r: the server does not support If-None-Match; writing without it", store)
        put()


class Upload:
    """One multipart upload, completed or aborted when `run` returns."""

    def __init__(self, client: Any, bucket: str, key: str, *, slots: Slots, buffered: bool) -> None:
        self._client = client
        self._place = {"Bucket": bucket, "Key": key}
        self._slots = slots
        self._buffered = buffered
        self._parts: list[dict[str, Any]] = []
        self._checksums: list[tuple[int, int, int]] = []
        self._lost = False  # whether a part may still arrive

    def run(self, pieces: Iterable[memoryview]) -> None:
        response = self._client.create_multipart_upload(**self._place, ChecksumAlgorithm="CRC32")
        self._place["UploadId"] = response["UploadId"]
        try:
            self._send(pieces)
            parts = sorted(self._parts, key=itemgetter("PartNumber"))
            self._client.complete_multipart_upload(**self._place, MultipartUpload={"Parts": parts})
        except BaseException as error:
            self._abort(error)
            raise

    def checksums(self) -> list[tuple[int, int]]:
        return [(crc32, size) for _, crc32, size in sorted(self._checksums)]

    def _send(self, pieces: Iterable[memoryview]) -> None:
        """Send all parts, and wait for all of them: a part in flight during an abort would stay."""
        in_flight: set[Future[None]] = set()
        slots = self._slots
        with ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="claimcheck-s3") as threads:
            try:
                for number, piece in enumerate(pieces, 1):
                    memory = len(piece) if self._buffered else 0
                    while not slots.take(memory, spare=memory, always=not in_flight):  # the next one is read meanwhile
                        in_flight = _wait_for_one(in_flight)
                    in_flight.add(threads.submit(self._send_part, number, piece))
                    del piece  # otherwise it would stay in memory while the next one is read
                while in_flight:
                    in_flight = _wait_for_one(in_flight)
            except BaseException:
                threads.shutdown(cancel_futures=True)
                for _ in filter(Future.cancelled, in_flight):
                    slots.leave()
                raise

    def _send_part(self, number: int, piece: memoryview) -> None:
        body = ViewFile(piece)
        try:
            answer = self._client.upload_part(**self._place, PartNumber=number, Body=body, ChecksumCRC32=body.checksum)
        except BaseException:
            self._lost = True
            raise
        finally:
            self._slots.leave()
        self._parts.append({"PartNumber": number, "ETag": answer["ETag"], "ChecksumCRC32": body.checksum})
        self._checksums.append((number, body.crc32, len(body)))

    def _abort(self, error: BaseException) -> None:
        """Abort the upload, again if a connection was lost: its part may arrive after an abort, and would stay."""
        second = self._try_abort()
        for _ in range(_LATE_ABORTS if self._lost else 0):
            if second is None or isinstance(second, client_error()):  # an unreachable server is tried only once
                time.sleep(_LATE_SECONDS)
                second = self._try_abort()
        if second is not None:
            _log.warning("could not abort the upload of %r: %s", self._place["Key"], type(second).__name__)
            error.add_note("and its parts could not be deleted: they stay until a lifecycle rule aborts the upload")

    def _try_abort(self) -> Exception | None:
        try:
            self._client.abort_multipart_upload(**self._place)
        except client_error() as error:
            return None if code_of(error) in ("NoSuchUpload", "404") else error
        except Exception as error:
            return error
        return None


def _wait_for_one(in_flight: set[Future[None]]) -> set[Future[None]]:
    done, in_flight = wait(in_flight, return_when=FIRST_COMPLETED)
    for future in done:
        future.result()
    return in_flight
