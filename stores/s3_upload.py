"""How a large payload gets into S3: parts side by side, in bounded memory, all or nothing."""

from __future__ import annotations

import base64
import io
import logging
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

__all__ = ["Upload", "ViewFile"]

_log = logging.getLogger(__name__)


class ViewFile(io.RawIOBase):
    """A read-only file over bytes in memory that copies nothing and can be read again when the SDK retries."""

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._position = 0

    def __len__(self) -> int:
        return len(self._view)

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
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: len(self._view)}[whence]
        self._position = max(0, base + offset)
        return self._position

    def read(self, size: int | None = -1, /) -> Any:
        """Return up to ``size`` bytes as a view; without a size, which no sender asks for, the rest as ``bytes``."""
        whole = size is None or size < 0
        piece = self._view[self._position : None if whole else self._position + (size or 0)]
        self._position += len(piece)
        return bytes(piece) if whole else piece


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

    def run(self, pieces: Iterable[memoryview], *, complete: Callable[[Callable[..., Any]], None]) -> None:
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

    def _complete(self, **more: Any) -> None:
        parts = sorted(self._parts, key=lambda part: int(part["PartNumber"]))
        self._client.complete_multipart_upload(**self._place, MultipartUpload={"Parts": parts}, **more)

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
        checksum = base64.b64encode(zlib.crc32(piece).to_bytes(4, "big")).decode()
        answer = self._client.upload_part(
            **self._place, PartNumber=number, Body=ViewFile(piece), ChecksumCRC32=checksum
        )
        self._parts.append({"PartNumber": number, "ETag": answer["ETag"], "ChecksumCRC32": checksum})

    def _abort(self, error: BaseException) -> None:
        try:
            self._client.abort_multipart_upload(**self._place)
        except Exception as second:
            _log.warning("could not abort the upload of %r: %s", self._place["Key"], type(second).__name__)
            error.add_note("and its parts could not be removed: they stay until a lifecycle rule aborts the upload")


def _first_landed(flying: set[Future[None]]) -> set[Future[None]]:
    done, flying = wait(flying, return_when=FIRST_COMPLETED)
    for future in done:
        future.result()
    return flying
