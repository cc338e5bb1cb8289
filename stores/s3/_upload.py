"""How a large payload gets into S3: parts side by side, in bounded memory, all or nothing."""

from __future__ import annotations

import base64
import functools
import io
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from operator import itemgetter
from typing import Any

from claimcheck import _checksum as checksum
from claimcheck._threads import check_interrupt
from claimcheck.errors import KeyTakenError
from claimcheck.stores.s3._errors import NOT_KNOWN, client_error, code_of, kind_of_code

__all__ = [
    "attach",
    "Creator",
    "FRAMED_FROM_BYTES",
    "FramedFile",
    "NotFramedError",
    "Upload",
    "ViewFile",
]

FRAMED_FROM_BYTES = 4 << 20
"""Below this a checksum of its own pass costs little: the bytes are in the cache still when they are sent."""

_ASK_FROM_BYTES = 1 << 20  # smaller bodies are sent before a server could say that it does not want them
_SEND_BYTES = 4 << 20  # at a time: each send must end within the socket's timeout
_STEP_BYTES = 256 << 10  # the same where it is checksummed: still in the processor's cache when it was sent
_FRAME_BYTES = 8 << 20
_TRAILER = "x-amz-checksum-crc32"
_FRAMED = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"


class NotFramedError(Exception):
    """The SDK did not sign a body as one with a trailer: it is not the SDK that this was written for."""


class ViewFile(io.RawIOBase):
    """A read-only file over bytes in memory that copies nothing and can be read again when the SDK retries."""

    def __init__(self, view: memoryview) -> None:
        self.view = view
        self._position = 0

    def __len__(self) -> int:
        return len(self.view)

    @functools.cached_property
    def crc32(self) -> int:
        """Of the whole."""
        return checksum.crc32(self.view)

    @property
    def checksum(self) -> str:
        """Of the whole, as S3 writes it."""
        return base64.b64encode(self.crc32.to_bytes(4, "big")).decode()

    def readable(self) -> bool:
        """Always true."""
        return True

    def seekable(self) -> bool:
        """Always true."""
        return True

    def tell(self) -> int:
        """Bytes from the start."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Go to a place, as files do."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: len(self)}[whence]
        self._position = max(0, base + offset)
        return self._position

    def read(self, size: int | None = -1, /) -> Any:
        """Return up to ``size`` bytes as a view; without a size, which no sender asks for, the rest as ``bytes``."""
        whole = size is None or size < 0
        piece = self.view[self._position : None if whole else self._position + (size or 0)]
        self._position += len(piece)
        return bytes(piece) if whole else piece

    def pieces(self) -> Iterator[memoryview | bytes]:
        """Give all that goes over the line, from the start."""
        for start in range(0, len(self.view), _SEND_BYTES):
            check_interrupt()
            yield self.view[start : start + _SEND_BYTES]


class FramedFile(ViewFile):
    """The same bytes in frames that tell their lengths, and their checksum behind them.

    Args:
        file: What is in the frames; it is told its checksum.
    """

    def __init__(self, file: ViewFile) -> None:
        super().__init__(file.view)
        self._file = file
        self.seek(0)

    def __len__(self) -> int:
        frames, rest = divmod(len(self.view), _FRAME_BYTES)
        sizes = [_FRAME_BYTES] * frames + [rest] * (rest > 0)
        return sum(len(_head(size)) + size + 2 for size in sizes) + len(_tail("12345678"))

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Begin again; there is no other place to go to."""
        if offset or whence != io.SEEK_SET:
            raise io.UnsupportedOperation("a framed body can only begin again")
        self._pieces, self._rest = self.pieces(), memoryview(b"")
        return 0

    def read(self, size: int | None = -1, /) -> Any:
        """Return up to ``size`` bytes: for whoever stands in for the line, which takes `pieces`."""
        if size is None or size < 0:
            return b"".join([self._rest, *self._pieces])
        if not len(self._rest):
            self._rest = memoryview(next(self._pieces, b""))
        piece, self._rest = self._rest[:size], self._rest[size:]
        return piece

    def pieces(self) -> Iterator[memoryview | bytes]:
        """Give frames and trailer, from the start."""
        crc32, before = 0, b""
        for start in range(0, len(self.view), _FRAME_BYTES):
            frame = self.view[start : start + _FRAME_BYTES]
            yield before + _head(len(frame))
            for place in range(0, len(frame), _STEP_BYTES):
                check_interrupt()
                step = frame[place : place + _STEP_BYTES]
                yield step
                crc32 = checksum.crc32(step, crc32)
            before = b"\r\n"
        self._file.crc32 = crc32
        yield before + _tail(self._file.checksum)


class _Line:
    """A body for the HTTP client, which would ask a file for 16 KiB at a time, but takes any piece from an iterable."""

    def __init__(self, file: ViewFile) -> None:
        self._file = file

    def __iter__(self) -> Iterator[memoryview | bytes]:
        return self._file.pieces()

    def seek(self, offset: int) -> int:
        """Begin again, when the SDK does."""
        return self._file.seek(offset)


def attach(client: Any) -> None:
    """Have a boto3 client send files of ours as they are meant."""
    client.meta.events.register_last("before-call.s3", _announce)
    client.meta.events.register_last("before-send", _widen)


def _announce(params: dict[str, Any], model: Any, **_: Any) -> None:
    body, headers = params.get("body"), params["headers"]
    if isinstance(body, ViewFile) and (len(body) < _ASK_FROM_BYTES or model.name == "UploadPart"):
        headers.pop("Expect", None)  # would only be one more round trip; to an upload the server has said yes already
    if isinstance(body, FramedFile):
        size = str(len(body.view))
        headers |= {"Content-Encoding": "aws-chunked", "X-Amz-Trailer": _TRAILER, "X-Amz-Decoded-Content-Length": size}
        # As the SDK notes it when it is to make the frames. It finds the header there, and leaves the body as it is.
        algorithm = {"algorithm": "crc32", "in": "trailer", "name": "X-Amz-Trailer"}
        params["context"].setdefault("checksum", {})["request_algorithm"] = algorithm


def _widen(request: Any, **_: Any) -> None:
    body = request.body
    if not isinstance(body, ViewFile):
        return
    if isinstance(body, FramedFile) and _text(request.headers.get("X-Amz-Content-SHA256")) != _FRAMED:
        raise NotFramedError("this version of botocore signs bodies with trailers in some other way")
    request.body = _Line(body)


def _text(value: str | bytes | None) -> str | None:
    return value.decode() if isinstance(value, bytes) else value


def _head(size: int) -> bytes:
    return b"%x\r\n" % size


def _tail(checksum_text: str) -> bytes:
    return f"0\r\n{_TRAILER}:{checksum_text}\r\n\r\n".encode()


_log = logging.getLogger(__name__)


class Creator:
    """Makes objects, and remembers what the server proved to understand.

    Args:
        name: Gives the store's name, for errors.
        conditional: Have the server refuse to overwrite; turned off by itself where a server does not know how.
    """

    def __init__(self, name: Callable[[], str], *, conditional: bool) -> None:
        self._name = name
        self._conditional = conditional
        self._takes_frames: bool | None = None  # not known yet

    def put(self, put_object: Callable[..., Any], body: ViewFile) -> None:
        """Send a body, with its checksum.

        Args:
            put_object: Of the SDK, place and key given.
            body: Knows its checksum afterwards in any case.

        Raises:
            KeyTakenError: There is such an object already, which was left alone.
        """
        framed = self._takes_frames is not False and len(body) >= FRAMED_FROM_BYTES
        if framed and self._put_framed(put_object, body):
            return
        self.create(lambda **condition: put_object(Body=body, ChecksumCRC32=body.checksum, **condition))
        if framed:  # so that was what it refused
            self._forgo_frames()

    def create(self, call: Callable[..., Any]) -> Any:
        """Call what makes an object, on the condition that there is none, as far as the server knows conditions.

        Returns:
            The server's answer; ``None`` where it was lost, though it was heard.
        """
        if not self._conditional:
            return call()
        try:
            return call(IfNoneMatch="*")
        except client_error() as error:
            if code_of(error) in ("PreconditionFailed", "412"):
                return self._check_own(error)
            if code_of(error) not in NOT_KNOWN:
                raise
        answer = call()
        _log.warning("store %r: the server knows no If-None-Match; writing without", self._name())
        self._conditional = False
        return answer

    def _put_framed(self, put_object: Callable[..., Any], body: ViewFile) -> bool:
        """Send the checksum behind the body; whether the object is there then, one way or the other."""
        frames = FramedFile(body)
        try:
            answer = self.create(lambda **more: put_object(Body=frames, ChecksumAlgorithm="CRC32", **more))
        except (client_error(), NotFramedError) as error:
            if self._takes_frames or not _may_mean_frames(error):
                raise
            return False
        if self._takes_frames is None and (answer or {}).get("ChecksumCRC32") == body.checksum:
            self._takes_frames = True
        if not self._takes_frames:  # it may have stored the frames themselves, as an object that is ours to overwrite
            put_object(Body=body, ChecksumCRC32=body.checksum)
            self._forgo_frames()
        return True

    def _forgo_frames(self) -> None:
        _log.info("store %r: the server confirms no checksum that follows a body; it comes before now", self._name())
        self._takes_frames = False

    def _check_own(self, error: Any) -> None:
        """The SDK sent a request again whose answer was lost: what stands in the way is what we wrote ourselves."""
        if not error.response.get("ResponseMetadata", {}).get("RetryAttempts"):
            name = self._name()
            raise KeyTakenError(f"store {name!r}: the new key is in use already", store=name) from error


def _may_mean_frames(error: Any) -> bool:
    return isinstance(error, NotFramedError) or (
        kind_of_code(code_of(error)) is None and code_of(error) != "NoSuchBucket"
    )


_LATE_ABORTS = 2
_LATE_SECONDS = 0.1


class Upload:
    """One multipart upload, finished or aborted when `run` returns.

    Args:
        client: A boto3 client for S3; it is used from several threads.
        bucket: Where to.
        key: Of the object to be.
        parallel_parts: Parts that are sent at once.
    """

    def __init__(self, client: Any, bucket: str, key: str, *, parallel_parts: int) -> None:
        self._client = client
        self._place = {"Bucket": bucket, "Key": key}
        self._parallel_parts = parallel_parts
        self._parts: list[dict[str, Any]] = []
        self._checksums: list[tuple[int, int, int]] = []
        self._lost = False  # whether a part may be on its way still

    def run(self, pieces: Iterable[memoryview], *, complete: Callable[[Callable[..., Any]], Any]) -> None:
        """Send all pieces as parts.

        Args:
            pieces: Each but the last at least 5 MiB; up to ``parallel_parts + 1`` are held at a time.
            complete: Calls the function that it is given, with further arguments of its own, to finish the object.

        Raises:
            Exception: As it came from the pieces or the SDK, after the upload was aborted: no part is left behind.
        """
        answer = self._client.create_multipart_upload(**self._place, ChecksumAlgorithm="CRC32")
        self._place["UploadId"] = answer["UploadId"]
        try:
            self._send(pieces)
            complete(self._complete)
        except BaseException as error:
            self._abort(error)
            raise

    def checksums(self) -> list[tuple[int, int]]:
        """Give the checksum and the size of each part, in order."""
        return [(crc32, size) for _, crc32, size in sorted(self._checksums)]

    def _complete(self, **more: Any) -> Any:
        parts = sorted(self._parts, key=itemgetter("PartNumber"))
        return self._client.complete_multipart_upload(**self._place, MultipartUpload={"Parts": parts}, **more)

    def _send(self, pieces: Iterable[memoryview]) -> None:
        """A part that is still in flight when an abort comes would stay, so leaving waits for all of them."""
        flying: set[Future[None]] = set()
        with ThreadPoolExecutor(self._parallel_parts, thread_name_prefix="claimcheck-s3") as threads:
            try:
                for number, piece in enumerate(pieces, 1):
                    flying.add(threads.submit(self._send_part, number, piece))
                    del piece  # else it would stay in memory while the next one is read
                    if len(flying) >= self._parallel_parts:
                        flying = _first_landed(flying)
                while flying:
                    flying = _first_landed(flying)
            except BaseException:
                threads.shutdown(cancel_futures=True)
                raise

    def _send_part(self, number: int, piece: memoryview) -> None:
        body = ViewFile(piece)
        try:
            answer = self._client.upload_part(**self._place, PartNumber=number, Body=body, ChecksumCRC32=body.checksum)
        except BaseException:
            self._lost = True
            raise
        self._parts.append({"PartNumber": number, "ETag": answer["ETag"], "ChecksumCRC32": body.checksum})
        self._checksums.append((number, body.crc32, len(body)))

    def _abort(self, error: BaseException) -> None:
        """A part whose connection was lost may arrive after an abort, and stay until the next one."""
        second = self._try_abort()
        for _ in range(_LATE_ABORTS if self._lost else 0):
            if second is None or isinstance(second, client_error()):  # a server that is not there is asked once
                time.sleep(_LATE_SECONDS)
                second = self._try_abort()
        if second is not None:
            _log.warning("could not abort the upload of %r: %s", self._place["Key"], type(second).__name__)
            error.add_note("and its parts could not be removed: they stay until a lifecycle rule aborts the upload")

    def _try_abort(self) -> Exception | None:
        try:
            self._client.abort_multipart_upload(**self._place)
        except client_error() as error:
            return None if code_of(error) in ("NoSuchUpload", "404") else error
        except Exception as error:
            return error
        return None


def _first_landed(flying: set[Future[None]]) -> set[Future[None]]:
    done, flying = wait(flying, return_when=FIRST_COMPLETED)
    for future in done:
        future.result()
    return flying
