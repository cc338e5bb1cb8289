"""Payloads as objects in an S3 bucket, of Amazon's or of any server that speaks its language."""

from __future__ import annotations

import os
import ssl
import threading
from collections import deque
from collections.abc import Iterator
from functools import partial
from itertools import chain, islice
from typing import Annotated, Any

from claimcheck._payload import Source
from claimcheck._payload_reader import Reader, differs
from claimcheck._pointer import Pointer
from claimcheck._store import Store
from claimcheck._validation import Check, Count, Range, Seconds, Size, Timeout, check_arguments
from claimcheck.errors import IntegrityError, StoreError, StoreUnavailableError
from claimcheck.stores._objects import ENDPOINT, PREFIX, folder, in_parts, part_size
from claimcheck.stores._tls import CaFile, check_ca_file
from claimcheck.stores.s3._client import connect
from claimcheck.stores.s3._errors import client_error, code_of, kind_of_error, never_arrived
from claimcheck.stores.s3._reader import Extent, ObjectReader, extent_of, range_of
from claimcheck.stores.s3._upload import Creator, Upload, ViewFile

__all__ = ["S3Store"]

_BUCKET = Check(bool, "the name of a bucket")


class S3Store(Store):
    """One object per payload: a single put, or several parts at once above a size.

    Credentials are found by the SDK's own chain. S3 has no life span per object: give the bucket a lifecycle rule on
    ``prefix`` that fits ``ttl_seconds``, and one that aborts incomplete multipart uploads after a day.

    Every byte is sent with a CRC-32, which the server verifies if it is one that does.

    Args:
        bucket: Must exist.
        prefix: What all keys begin with; ``/`` is added where it is missing.
        endpoint_url: Of a server that is not Amazon's.
        region_name: Where the SDK's own configuration does not say it.
        ttl_seconds: Written into pointers; the bucket's lifecycle rule removes objects.
        part_bytes: Of each part above ``single_put_bytes``; at least 5 MiB.
        single_put_bytes: Up to this size one request does it. Files of this size are read into memory.
        parallel_parts: Parts that are sent at once; one more is in memory.
        parallel_gets: Parts that are fetched at once, where one connection does not fill the line; as many are in
            memory.
        conditional: Have the server refuse to overwrite; turned off by itself where a server does not know how.
        tls_ca_file: Certificates of authorities in PEM format, in place of the SDK's own. The certificate of the server
            is always verified, its host name included.
        timeout_seconds: For one answer of the server.
        connect_timeout_seconds: For a new connection.
    """

    def __init__(
        self,
        *,
        bucket: Annotated[str, _BUCKET],
        prefix: Annotated[str, PREFIX] = "",
        endpoint_url: Annotated[str, ENDPOINT] | None = None,
        region_name: str | None = None,
        ttl_seconds: Seconds | None = None,
        part_bytes: Annotated[int, Range(5 << 20)] = 16 << 20,
        single_put_bytes: Size = 64 << 20,
        parallel_parts: Count = 4,
        parallel_gets: Count = 1,
        conditional: bool = True,
        tls_ca_file: CaFile | None = None,
        timeout_seconds: Timeout = 30,
        connect_timeout_seconds: Timeout = 5,
    ) -> None:
        check_arguments(S3Store, bucket=bucket, prefix=prefix, endpoint_url=endpoint_url)
        self._bucket = bucket
        self._place = {"endpoint_url": endpoint_url or None, "region_name": region_name or None, "verify": tls_ca_file}
        self._part_bytes = part_bytes
        self._single_put_bytes = single_put_bytes
        self._parallel_parts = parallel_parts
        self._parallel_gets = parallel_gets
        self._creator = Creator(lambda: self.name, conditional=conditional)
        self._timeouts = {"connect_timeout": connect_timeout_seconds, "read_timeout": timeout_seconds}
        self._lock = threading.Lock()
        self._client: tuple[int, Any] | None = None
        self.prefix = folder(prefix)
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
        source.leave_checksum()
        pieces = source.pieces(
            part_size(source, self.context.max_payload_bytes, single=self._single_put_bytes, part=self._part_bytes)
        )
        head = deque(islice(pieces, 2))
        if len(head) < 2:
            self._put(pointer, source, head.pop() if head else memoryview(b""))
            return
        upload = Upload(self._s3(), self._bucket, pointer.key, parallel_parts=self._parallel_parts)
        upload.run(chain(_emptying(head), pieces), complete=self._creator.create)
        for crc32, size in upload.checksums():
            source.add_checksum(crc32, size)

    def _put(self, pointer: Pointer, source: Source, payload: memoryview) -> None:
        body = ViewFile(payload)
        self._creator.put(partial(self._s3().put_object, Bucket=self._bucket, Key=pointer.key), body)
        source.add_checksum(body.crc32, len(body))

    def _open(self, pointer: Pointer, start: int, stop: int | None) -> Reader:
        get = partial(self._get, pointer)
        return in_parts(get, start, stop, part_bytes=self._part_bytes, parallel=self._parallel_gets)

    def _get(self, pointer: Pointer, start: int, stop: int | None) -> Reader:
        whole = stop is None or (start == 0 and stop == pointer.size)
        response = self._get_object(pointer, {} if stop is None or whole else range_of(start, stop))
        try:
            found = extent_of(response)
            reader = ObjectReader(response["Body"], found.stop - found.start)
            self._check_extent(pointer, found, None if whole else (start, stop), reader)
            return reader
        except BaseException:
            response["Body"].close()
            raise

    def _check_extent(self, pointer: Pointer, found: Extent, asked: Any, reader: Reader) -> None:
        try:
            self.check_size(pointer, found.size)
        except IntegrityError:
            reader.readinto(memoryview(bytearray(1)))  # a line that was cut amid the headers cuts numbers, too
            raise
        if asked is not None and (found.start, found.stop) != asked:
            raise StoreError(f"store {self.name!r}: the server sent another part than it was asked for")

    def _get_object(self, pointer: Pointer, more: dict[str, str]) -> Any:
        try:
            return self._s3().get_object(Bucket=self._bucket, Key=pointer.key, **more)
        except client_error() as error:
            if code_of(error) == "InvalidRange":  # it begins behind the object's end
                differs(pointer, "size", pointer.size or 0, "less", self.name)
            raise

    def _delete(self, pointer: Pointer) -> None:
        self._s3().delete_object(Bucket=self._bucket, Key=pointer.key)

    def _wrote_nothing(self, error: BaseException) -> bool:
        return super()._wrote_nothing(error) or never_arrived(error.__cause__)

    def _translate(self, error: Exception) -> type[StoreError] | None:
        if isinstance(error, ssl.SSLError):
            return StoreUnavailableError
        return kind_of_error(error) or super()._translate(error)

    def _s3(self) -> Any:
        """The client of this process; connections do not survive a fork."""
        with self._lock:
            if self._client is None or self._client[0] != os.getpid():
                check_ca_file(self._place["verify"], store=self.name)
                connections = max(16, 2 * self._parallel_parts, 2 * self._parallel_gets)
                self._client = os.getpid(), connect(self._place, self._timeouts, connections=connections)
            return self._client[1]


def _emptying(pieces: deque[memoryview]) -> Iterator[memoryview]:
    """Give what is there and keep nothing of it."""
    while pieces:
        yield pieces.popleft()
