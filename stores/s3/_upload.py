"""Uploads to S3: request bodies that are not copied, conditional puts, and parallel multipart uploads."""

from __future__ import annotations

import base64
import functools
import io
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from http import HTTPStatus
from operator import itemgetter
from typing import Any

import claimcheck._wire.checksum as checksum
from claimcheck._threads import check_interrupt
from claimcheck.errors import KeyTakenError
from claimcheck.stores._common import NOT_KNOWN
from claimcheck.stores._parts import CONNECTIONS, Slots
from claimcheck.stores.s3._client import client_error, code_of

_ASK_FROM_BYTES = 1 << 20  # smaller bodies are sent before a server could refuse them
_ASK_AGAIN_BYTES = 16 << 20  # the same, if the server accepted a body before: to ask takes a round trip
_SEND_BYTES = 4 << 20  # per send, which must end within the socket's timeout
_LATE_ABORTS = 2
_LATE_SECONDS = 0.1

_log = logging.getLogger(__name__)

_Response = Mapping[str, Any]


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
