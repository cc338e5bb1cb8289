"""What goes over the line to S3: the payload's own memory, with its checksum before or behind it.

The SDK reads files 16 KiB at a time. Here it gets views of the caller's memory, MiB by MiB, through two of its events.

A checksum in the headers has to be known before the first byte is sent: a pass of its own over memory that has long
left the processor's cache. Behind the body it costs next to nothing, because it is computed piece by piece when they
were sent. The SDK itself does so over https, in its own, slower way: ``aws-chunked`` with a trailer.
"""

from __future__ import annotations

import base64
import functools
import io
from collections.abc import Iterator
from typing import Any

from claimcheck import checksum
from claimcheck.interrupt import check_interrupt

__all__ = ["FRAMED_FROM_BYTES", "FramedFile", "NotFramedError", "ViewFile", "attach"]

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
