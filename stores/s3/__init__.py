"""The S3 store: payloads as objects in a bucket of Amazon S3 or of a compatible server."""

from __future__ import annotations

import http.client
import os
import re
import ssl
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from email.utils import parsedate_to_datetime
from functools import partial
from itertools import chain, islice
from typing import Annotated, Any

from claimcheck._content.source import Source
from claimcheck._registry import made_by
from claimcheck._store.contract import differs
from claimcheck._store.listing import Deletion, StoreEntry
from claimcheck._store.store import Store
from claimcheck._validation import Check, Function, Seconds, Size, Timeout, check_arguments
from claimcheck._wire.buffers import Reader
from claimcheck._wire.pointer import Pointer
from claimcheck.errors import IntegrityError, StoreError, StoreUnavailableError, import_vendor
from claimcheck.stores._common import (
    ENDPOINT,
    PREFIX,
    CaFile,
    bounds,
    check_ca_file,
    folder,
    part_size,
    ranges,
    whole,
)
from claimcheck.stores._parts import CONNECTIONS, SameVersion, TransferPolicy
from claimcheck.stores.s3._client import (
    Bucket,
    Upload,
    ViewFile,
    attach,
    client_error,
    code_of,
    connect,
    create,
    kind_of_error,
    never_arrived,
)

__all__ = ["S3Store"]

_BUCKET = Check(bool, "the name of a bucket")
_CONNECT_SECONDS = 5.0
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


class S3Store(Store):
    """Stores each payload as one object: a single put, or a parallel multipart upload if it is large.

    The SDK finds credentials in its usual way. S3 has no lifetime per object: add a lifecycle rule for ``prefix`` to
    the bucket that deletes objects after ``ttl_seconds`` and aborts incomplete multipart uploads, or run
    ``claimcheck sweep``.

    Every byte is sent with a CRC-32, which the server verifies if it supports that.

    Args:
        bucket: An existing bucket.
        prefix: The beginning of all keys; a trailing ``/`` is added if missing.
        endpoint_url: The address of a server other than Amazon's.
        region_name: The region, if the SDK's own configuration does not set it.
        ttl_seconds: Written into pointers and keys; a lifecycle rule or ``claimcheck sweep`` deletes objects.
        transfer_bytes: Memory for parts of all payloads together, to read as well as to write; 0 for one connection per
            payload. Otherwise payloads from 8 MiB on share 16 connections, unless one is measured to be fast enough.
        tls_ca_file: Certificates of authorities in PEM format, in place of the SDK's own. The server's certificate is
            always verified, including its host name.
        client: ``module:function``, which returns the client of boto3, or a dict of arguments for it.
        timeout_seconds: Timeout for one response of the server.
    """

    def __init__(
        self,
        *,
        bucket: Annotated[str, _BUCKET],
        prefix: Annotated[str, PREFIX] = "",
        endpoint_url: Annotated[str, ENDPOINT] | None = None,
        region_name: str | None = None,
        ttl_seconds: Seconds | None = None,
        transfer_bytes: Size = 64 << 20,
        tls_ca_file: CaFile | None = None,
        client: Function | None = None,
        timeout_seconds: Timeout = 30,
    ) -> None:
        check_arguments(S3Store, bucket=bucket, prefix=prefix, endpoint_url=endpoint_url)
        self.bucket = bucket
        self._place = {"endpoint_url": endpoint_url or None, "region_name": region_name or None, "verify": tls_ca_file}
        self._transfers, self._make = TransferPolicy(transfer_bytes), client
        self._timeouts = {"connect_timeout": _CONNECT_SECONDS, "read_timeout": timeout_seconds}
        self._lock = threading.Lock()
        self._client: tuple[int, Any] | None = None
        self.prefix = folder(prefix)
        self.ttl_seconds = ttl_seconds

    def __repr__(self) -> str:
        return f"<S3Store {self.name!r} at s3://{self.bucket}/{self.prefix}>"

    def uri(self, pointer: Pointer) -> str:
        """Return ``s3://bucket/key``."""
        return f"s3://{self.bucket}/{pointer.key}"

    def close(self) -> None:
        """Close the connections; the next use makes new ones."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client[1].close()

    def _write(self, pointer: Pointer, source: Source) -> None:
        source.leave_checksum()
        with self._transfers.upload(source.size) as single:
            if single:
                self._put(pointer, source, whole(source))
            else:
                self._put_in_parts(pointer, source)

    def _put_in_parts(self, pointer: Pointer, source: Source) -> None:
        transfers = self._transfers
        part = transfers.put_part_bytes(source.size)
        pieces = source.pieces(part_size(source, self.context.max_payload_bytes, part=part))
        head = deque(islice(pieces, 2))
        if len(head) < 2:  # it is as small as one part
            self._put(pointer, source, head.pop() if head else memoryview(b""))
            return
        upload = Upload(self._s3(), self.bucket, pointer.key, slots=transfers.puts, buffered=source.view is None)
        upload.run(chain(_emptying(head), pieces))
        for crc32, size in upload.checksums():
            source.add_checksum(crc32, size)

    def _put(self, pointer: Pointer, source: Source, payload: memoryview) -> None:
        body = ViewFile(payload)
        place = {"Bucket": self.bucket, "Key": pointer.key}
        put = partial(self._s3().put_object, **place, Body=body, ChecksumCRC32=body.checksum)
        create(put, store=self.name) if self._is_exclusive(pointer) else put()
        source.add_checksum(body.crc32, len(body))

    def _open(self, pointer: Pointer, start: int, stop: int | None) -> Reader:
        get = partial(self._get, pointer, SameVersion(self.name, pointer.key))
        return self._transfers.reader(get, start, stop)

    def _get(self, pointer: Pointer, version: SameVersion, start: int, stop: int | None) -> Reader:
        whole = stop is None or (start == 0 and stop == pointer.size)
        requested = None if stop is None or whole else (start, stop)
        response = self._get_object(pointer, requested)
        try:
            version.check(response.get("ETag"))
            first, last, size = _extent(response)
            reader = ObjectReader(response["Body"], last - first)
            try:
                self.check_size(pointer, size)
            except IntegrityError:
                reader.readinto(memoryview(bytearray(1)))  # raises if the size is wrong because the headers were cut
                raise
            if requested is not None and (first, last) != requested:
                raise StoreError(f"store {self.name!r}: the server sent a different part than requested")
            return reader
        except BaseException:
            response["Body"].close()
            raise

    def _get_object(self, pointer: Pointer, requested: tuple[int, int] | None) -> dict[str, Any]:
        header = {"Range": f"bytes={requested[0]}-{requested[1] - 1}"} if requested else {}
        try:
            response: dict[str, Any] = self._s3().get_object(Bucket=self.bucket, Key=pointer.key, **header)
        except client_error() as error:
            if code_of(error) == "InvalidRange":  # it begins after the object's end
                differs(pointer, "size", pointer.size or 0, "less", self.name)
            raise
        return response

    def _delete(self, pointer: Pointer) -> None:
        self._s3().delete_object(Bucket=self.bucket, Key=pointer.key)

    def _scan(self) -> Iterator[StoreEntry]:
        return self._scan_partition("")

    def _scan_partitions(self, count: int) -> list[str]:
        return ranges(self._listing().cuts(count), count)

    def _scan_partition(self, partition: str) -> Iterator[StoreEntry]:
        start, stop = bounds(partition)
        if not start:
            yield from self._leftovers()
        yield from self._payloads(start, stop)

    def _leftovers(self) -> Iterator[StoreEntry]:
        for key, started_ms, upload_id in self._listing().uploads():
            if self._lifetime_of(key) is not None:
                yield StoreEntry(kind="leftover", key=key, created_ms=started_ms, version=upload_id)

    def _payloads(self, after: str, stop: str) -> Iterator[StoreEntry]:
        for found in self._listing().objects(after, stop):
            known = self._lifetime_of(found.key)
            if known is not None:
                yield StoreEntry.of(found.key, known, size=found.size, stored_ms=found.stored_ms)

    def _server_time(self) -> float:
        answer = self._s3().head_bucket(Bucket=self.bucket)
        return parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"]).timestamp()

    def _discard(self, entries: Sequence[StoreEntry]) -> Iterator[Deletion]:
        bucket = self._listing()
        for entry in (entry for entry in entries if entry.kind == "leftover"):
            try:
                was_there = bucket.abort(entry.key, entry.version)
            except Exception as error:
                yield self._failed(entry, error)
            else:
                yield Deletion(entry, "deleted" if was_there else "gone")
        payloads = {entry.key: entry for entry in entries if entry.kind == "payload"}
        for key, failure in bucket.delete(list(payloads)):
            yield Deletion(payloads[key], "deleted") if failure is None else self._failed(payloads[key], failure)

    def _listing(self) -> Bucket:
        return Bucket(self._s3(), self.bucket, self.prefix)

    def _wrote_nothing(self, error: BaseException) -> bool:
        return super()._wrote_nothing(error) or never_arrived(error.__cause__)

    def _translate(self, error: Exception) -> type[StoreError] | None:
        if isinstance(error, ssl.SSLError):
            return StoreUnavailableError
        return kind_of_error(error) or super()._translate(error)

    def _s3(self) -> Any:
        """Return the client of this process; connections do not survive a fork."""
        with self._lock:
            if self._client is None or self._client[0] != os.getpid():
                check_ca_file(self._place["verify"], store=self.name)
                client = made_by(self._make, path=f"stores.{self.name}.client")
                if isinstance(client, Mapping):
                    client = connect(self._place, self._timeouts, client, connections=2 * CONNECTIONS)
                attach(client)
                self._client = os.getpid(), client
            return self._client[1]


def _emptying(pieces: deque[memoryview]) -> Iterator[memoryview]:
    """Yield the pieces without keeping a reference to them."""
    while pieces:
        yield pieces.popleft()


def _extent(response: dict[str, Any]) -> tuple[int, int, int]:
    """Return the first byte of a response, the one after its last, and the size of the object."""
    if "ContentLength" not in response:
        raise ConnectionError("the server's response has no length")
    match = _RANGE.fullmatch(response.get("ContentRange", ""))
    if match is None:  # the whole object, also from servers that do not support ranges
        return 0, response["ContentLength"], response["ContentLength"]
    first, last, size = map(int, match.groups())
    return first, last + 1, size


class ObjectReader:
    """A `Reader` of the body of one response, directly into the caller's memory."""

    def __init__(self, body: Any, size: int) -> None:
        self._body = body
        self._size = self._left = size
        self._direct = _direct(body)

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill the buffer, at most to the end of the body."""
        if not self._left:
            return 0
        count = int((self._direct or self._body).readinto(buffer[: self._left]))
        if not count:
            raise self._incomplete()
        self._left -= count
        return count

    def close(self) -> None:
        """Give the connection back if nothing is left to read; otherwise close it."""
        if not self._left:
            drain = self._body.read if self._direct is None else self._body._raw_stream.drain_conn
            drain()  # lets the SDK notice the end
        self._body.close()

    def _incomplete(self) -> Exception:
        kind = import_vendor("botocore.exceptions", extra="s3").IncompleteReadError
        error: Exception = kind(actual_bytes=self._size - self._left, expected_bytes=self._size)
        return error


def _direct(body: object) -> http.client.HTTPResponse | None:
    """Return the response of the standard library below botocore's and urllib3's."""
    if type(body) is not import_vendor("botocore.response", extra="s3").StreamingBody:
        return None  # one that checks or decodes the body
    raw = getattr(body, "_raw_stream", None)
    response = getattr(raw, "_fp", None)
    return response if isinstance(response, http.client.HTTPResponse) and hasattr(raw, "drain_conn") else None
