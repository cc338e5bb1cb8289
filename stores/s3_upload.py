"""How a large payload gets into S3: parts side by side, in bounded memory, all or nothing."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from operator import itemgetter
from typing import Any

from .s3_body import ViewFile
from .s3_errors import client_error, code_of

__all__ = ["Upload"]

_log = logging.getLogger(__name__)
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
