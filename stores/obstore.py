"""The obstore store: payloads as objects in S3, Google Cloud Storage or Azure, through obstore."""

from __future__ import annotations

import functools
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

from claimcheck._content.source import Source
from claimcheck._registry import made_by
from claimcheck._store.listing import Deletion, StoreEntry
from claimcheck._store.store import Store
from claimcheck._validation import Check, Function, Seconds, Size, Timeout, check_arguments, fail
from claimcheck._wire.buffers import Buffer, PieceReader, Reader
from claimcheck._wire.pointer import Pointer, is_key_prefix
from claimcheck.errors import KeyTakenError, PayloadNotFoundError, StoreError, StoreUnavailableError, import_vendor
from claimcheck.stores._common import (
    ENDPOINT,
    NOT_ADMITTED,
    NOT_KNOWN,
    CaFile,
    check_ca_file,
    folder,
    kind_of_code,
    part_size,
    whole,
)
from claimcheck.stores._parts import SameVersion, TransferPolicy

__all__ = ["ObstoreStore"]

# Error classes by a substring of the name and text of obstore's error, first match wins.
_KINDS: tuple[tuple[str, type[StoreError]], ...] = (
    ("ConditionalRequestConflict", StoreUnavailableError),  # another request was faster, and may have failed
    ("AlreadyExistsError", KeyTakenError),
    ("PermissionDeniedError", StoreError),
    ("UnauthenticatedError", StoreError),
    ("//169.254.", StoreError),  # the metadata service of a cloud: no other credentials were found
    ("HTTP error", StoreUnavailableError),
    ("NoContentRange", StoreUnavailableError),  # for the rest of an object, after a lost connection
)
_GONE = {None, "404", "NoSuchKey", "NotFound", "BlobNotFound"}  # the object, not its bucket or the credentials
_CODE = re.compile(r"<Code>([^<]+)</Code>")
_STATUS = re.compile(r"status code: (\d{3})")
_NEVER_CONNECTED = re.compile(r"\bkind: Connect\b")


def kind_of_error(error: Exception) -> type[StoreError] | None:
    """Return the error class for an error of obstore; ``None`` if there is none."""
    code, text = _code_of(error), f"{type(error).__name__}: {error}"
    if isinstance(error, FileNotFoundError):
        return PayloadNotFoundError if code in _GONE else StoreError
    for mark, kind in _KINDS:
        if mark in text:
            return kind
    status = _STATUS.search(text)
    return kind_of_code(code or "", status[1] if status else "")


def never_arrived(error: BaseException | None) -> bool:
    """Whether a request that failed with this error had no effect."""
    return _code_of(error) in NOT_ADMITTED or _NEVER_CONNECTED.search(str(error)) is not None


def _code_of(error: BaseException | None) -> str | None:
    """Return the service's error code, or the HTTP status; ``None`` without a response."""
    match = _CODE.search(str(error)) or _STATUS.search(str(error))
    return match[1] if match else None


_CLASSES = {"s3": "S3Store", "gs": "GCSStore", "az": "AzureStore", "memory": "MemoryStore"}
_PLACE = re.compile(r"(?P<scheme>s3|gs|az|memory)://(?P<bucket>[^/?#@:\[\]]*)(?P<path>/[^?#]*)?")
# The environment may have an address, too, and the second of these has precedence over the first.
_ENDPOINT_KEYS = {"s3": ("endpoint", "aws_endpoint_url_s3"), "gs": ("base_url",), "az": ("endpoint",)}
# The default of ten retries in three minutes would hide an unreachable server for too long.
_BACKOFF = {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=2), "base": 2}

_PIECE_BYTES = 256 << 10  # of a download: larger pieces would only be joined from what the network delivers
_WHOLE_BYTES = 1 << 20  # objects up to this size are read in one call
_WRITE_BYTES = 4 << 20
_LATE_SECONDS = 0.1
_LIST_KEYS = 1000
_ROUNDED_MS = 999  # services round times down to seconds

_log = logging.getLogger(__name__)
_used_by: int | None = None  # the process in which obstore's threads run

Objects = Any
"""One of obstore's stores, whose types are only known if it is installed."""


@functools.cache
def _memory() -> Objects:
    """Return the memory store that all stores of this process share."""
    return import_vendor("obstore.store", extra="obstore").MemoryStore()


def check_process() -> None:
    """Raise an error after a fork, where obstore would wait forever: its threads do not exist there."""
    global _used_by
    _used_by = _used_by or os.getpid()
    if _used_by != os.getpid():
        raise StoreError(
            "obstore does not work in this process, because it was used before this process was forked: use the store "
            "in the new processes only, or start them with the method 'spawn' or 'forkserver'"
        )


def _parsed(url: str) -> tuple[str, str, str] | None:
    """Return scheme, bucket and prefix; ``None`` if they are not valid."""
    match = _PLACE.fullmatch(url)
    if match is None or bool(match["bucket"]) == (match["scheme"] == "memory"):
        return None
    prefix = folder(match["path"] or "")
    return (match["scheme"], match["bucket"], prefix) if is_key_prefix(prefix) and "//" not in prefix else None


_URL = Check(
    lambda url: _parsed(url) is not None,
    "s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or memory:///prefix",
)


class ObstoreStore(Store):
    """Stores each payload as one object, with the keys of `claimcheck.stores.s3.S3Store`: each can read the other's.

    The engine is written in Rust and is many times as fast with small objects. It finds credentials in the environment,
    under each vendor's names (``AWS_ACCESS_KEY_ID``, ``GOOGLE_SERVICE_ACCOUNT``, ``AZURE_STORAGE_ACCOUNT_NAME``, ...),
    or in the same way as the machines of each cloud. Add lifecycle rules to the bucket, as for S3.

    Writes send no checksum: the server makes its default checks, TLS, if used, protects the bytes in transit, and
    readers verify every byte. ``AWS_CHECKSUM_ALGORITHM=CRC64NVME`` makes the engine compute one for S3. Its threads do
    not survive a
    fork: using the store in a process forked from one that used it raises an error.

    Args:
        url: ``s3://bucket/prefix``, ``gs://bucket/prefix``, ``az://container/prefix``, or
            ``memory:///prefix``, which lives as long as the process.
        endpoint_url: The address of a server other than Amazon's, Google's or Microsoft's. Credentials are sent only to
            this server; redirected reads are sent without them.
        region_name: The S3 region, if the environment does not set it.
        ttl_seconds: Written into pointers and keys; a lifecycle rule or ``claimcheck sweep`` deletes objects.
        transfer_bytes: Memory for parts of all payloads together, to read as well as to write; 0 for one connection per
            payload. Otherwise payloads from 8 MiB on share 16 connections, unless one is measured to be fast enough.
        tls_ca_file: Certificates of authorities in PEM format, in addition to the system's. The server's certificate is
            always verified, including its host name.
        client: ``module:function``, which returns the client of obstore, or a dict of arguments for it.
        timeout_seconds: Timeout for one response of the server, including the sending of an object or a part.
    """

    def __init__(
        self,
        *,
        url: Annotated[str, _URL],
        endpoint_url: Annotated[str, ENDPOINT] | None = None,
        region_name: str | None = None,
        ttl_seconds: Seconds | None = None,
        transfer_bytes: Size = 64 << 20,
        tls_ca_file: CaFile | None = None,
        client: Function | None = None,
        timeout_seconds: Timeout = 60,
    ) -> None:
        check_arguments(ObstoreStore, url=url, endpoint_url=endpoint_url)
        self._scheme, self._bucket, self.prefix = _parsed(url) or ("", "", "")
        if endpoint_url and self._scheme not in _ENDPOINT_KEYS:
            fail("endpoint_url", found="text", expected=f"nothing: {self._scheme}: has no server")
        self._endpoint_url, self._region_name = endpoint_url or None, region_name or None
        self._tls_ca_file, self._timeout = tls_ca_file, timedelta(seconds=timeout_seconds)
        self._transfers, self._make = TransferPolicy(transfer_bytes), client
        self._lock = threading.Lock()
        self._client: tuple[int, Objects] | None = None
        self.ttl_seconds = ttl_seconds

    def __repr__(self) -> str:
        return f"<ObstoreStore {self.name!r} at {self._scheme}://{self._bucket}/{self.prefix}>"

    def close(self) -> None:
        """Close the connections; the next use makes new ones."""
        with self._lock:
            self._client = None

    def uri(self, pointer: Pointer) -> str | None:
        """Return for example ``s3://bucket/key``; ``None`` in memory."""
        return f"{self._scheme}://{self._bucket}/{pointer.key}" if self._bucket else None

    def check(self, pointer: Pointer) -> None:
        """Reject what the base class rejects, and keys that the engine does not support or would normalize."""
        super().check(pointer)
        if "" in pointer.key.split("/"):
            self.reject(pointer, "scope", "has a key with an empty part")

    def _reach(self) -> None:
        self._objects()  # raises in a forked process, where nothing has to be deleted

    def _write(self, pointer: Pointer, source: Source) -> None:
        keep = bytes if self._scheme == "memory" else memoryview  # it would keep the caller's own buffer
        with self._transfers.upload(source.size) as single:
            if single:
                self._put(pointer, keep(whole(source)))
                return
            part = self._transfers.put_part_bytes(source.size)
            part = part_size(source, self.context.max_payload_bytes, part=part)
            with self._writing(pointer, part, self._transfers.engine_parts(part)) as write:
                for piece in source.pieces(_WRITE_BYTES):
                    write(keep(piece))

    def _put(self, pointer: Pointer, payload: Buffer) -> None:
        put = partial(_obstore().put, self._objects(), pointer.key, payload, use_multipart=False)
        is_exclusive = self._is_exclusive(pointer)
        try:
            put(mode="create" if is_exclusive else "overwrite")
        except Exception as error:
            _wait_if_lost(error)
            if not is_exclusive or (_code_of(error) not in NOT_KNOWN and type(error).__name__ != "NotSupportedError"):
                raise
            put()

    @contextmanager
    def _writing(self, pointer: Pointer, part_bytes: int, connections: int) -> Iterator[Callable[[Buffer], object]]:
        writer = _obstore().open_writer(
            self._objects(), pointer.key, buffer_size=part_bytes, max_concurrency=connections
        )
        try:
            yield writer.write
            writer.close()
        except BaseException as error:
            _give_up(writer, error)
            raise

    def _open(self, pointer: Pointer, start: int, stop: int | None) -> Reader:
        if start == 0 and stop == pointer.size and 0 < (stop or 0) <= _WHOLE_BYTES:
            return PieceReader([self._small(pointer, stop or 0)])
        get = partial(self._get, pointer, SameVersion(self.name, pointer.key))
        return self._transfers.reader(get, start, stop)

    def _small(self, pointer: Pointer, size: int) -> bytes:
        """Read all in one call, which returns no size: request a byte more, to notice an object that is too long."""
        call = partial(_obstore().get_range, self._objects(), pointer.key, start=0, end=size + 1)
        payload: bytes = self._within(pointer, call).to_bytes()
        self.check_size(pointer, len(payload))
        return payload

    def _get(self, pointer: Pointer, version: SameVersion, start: int, stop: int | None) -> Reader:
        whole = stop is None or (start == 0 and stop == pointer.size)
        call = partial(_obstore().get, self._objects(), pointer.key)
        result = call() if whole else self._within(pointer, partial(call, options={"range": (start, stop)}))
        version.check(result.meta["e_tag"])
        self.check_size(pointer, result.meta["size"])
        return PieceReader(_in_this_process(result.stream(min_chunk_size=_PIECE_BYTES)))

    def _within(self, pointer: Pointer, call: Callable[[], Any]) -> Any:
        """Request a range, which may be out of bounds: each medium has its own error for that."""
        try:
            return call()
        except Exception as error:
            if kind_of_error(error) is None:
                self.check_size(pointer, _obstore().head(self._objects(), pointer.key)["size"])
            raise

    def _delete(self, pointer: Pointer) -> None:
        try:
            _obstore().delete(self._objects(), pointer.key)
        except FileNotFoundError as error:
            if kind_of_error(error) is not PayloadNotFoundError:
                raise

    def _scan(self) -> Iterator[StoreEntry]:
        pages: Any = _obstore().list(self._objects(), self.prefix.rstrip("/") or None, chunk_size=_LIST_KEYS)
        listed: Iterator[Any] = _in_this_process(pages)
        for page in listed:
            for found in page:
                key, known = found["path"], self._lifetime_of(found["path"])
                if known is not None:
                    stored_ms = int(found["last_modified"].timestamp() * 1000) + _ROUNDED_MS
                    yield StoreEntry.of(key, known, size=found["size"], stored_ms=stored_ms)

    def _discard(self, entries: Sequence[StoreEntry]) -> Iterator[Deletion]:
        try:
            _obstore().delete(self._objects(), [entry.key for entry in entries])
        except Exception:  # of one of them, which is not named
            yield from super()._discard(entries)
            return
        yield from (Deletion(entry, "deleted") for entry in entries)

    def _wrote_nothing(self, error: BaseException) -> bool:
        return super()._wrote_nothing(error) or never_arrived(error.__cause__)

    def _translate(self, error: Exception) -> type[StoreError] | None:
        return kind_of_error(error) or super()._translate(error)

    def _objects(self) -> Objects:
        """Return the obstore of this process."""
        client = self._client
        if client is None or client[0] != os.getpid():
            check_ca_file(self._tls_ca_file, store=self.name)
            with self._lock:
                self._client = client = os.getpid(), self._connect()
        return client[1]

    def _connect(self) -> Objects:
        kind = getattr(import_vendor("obstore.store", extra="obstore"), _CLASSES[self._scheme])
        check_process()
        made = made_by(self._make, path=f"stores.{self.name}.client")
        if not isinstance(made, Mapping):
            return made
        if self._scheme == "memory":
            return _memory()
        config: dict[str, Any] = {}
        if self._scheme == "s3":
            # The checksum covers every byte: a SHA-256 of each body for its signature would take ten times as long.
            config |= {"unsigned_payload": True, "disable_bulk_delete": True}
            config |= {"region": self._region_name} if self._region_name else {}
            config |= {"virtual_hosted_style_request": False} if self._endpoint_url else {}
        if self._endpoint_url:
            config |= dict.fromkeys(_ENDPOINT_KEYS[self._scheme], self._endpoint_url)
        client: dict[str, Any] = {
            "allow_http": True,
            "connect_timeout": timedelta(seconds=5),
            "read_timeout": self._timeout,
            "timeout": timedelta(days=1),  # for a whole request: a reader may be slow
            "user_agent": "claimcheck",
        }
        if self._tls_ca_file:
            client["root_certificate"] = Path(self._tls_ca_file).read_bytes()
        retries = {"max_retries": 2, "retry_timeout": self._timeout, "backoff": _BACKOFF}
        client |= made.get("client_options", {})
        common = {"retry_config": retries, **made, "config": config | made.get("config", {}), "client_options": client}
        return kind(self._bucket, **common)


def _obstore() -> ModuleType:
    return import_vendor("obstore", extra="obstore")


def _in_this_process(pieces: Iterable[Buffer]) -> Iterator[Buffer]:
    """Yield pieces; raises an error in a process that was forked meanwhile, where they would never arrive."""
    iterator = iter(pieces)
    while True:
        check_process()
        piece = next(iterator, None)
        if piece is None:
            return
        yield piece


def _wait_if_lost(error: BaseException) -> None:
    """Wait until the server has processed what a lost connection delivered: it must not store that after a deletion."""
    if isinstance(error, Exception) and kind_of_error(error) is StoreUnavailableError and not never_arrived(error):
        time.sleep(_LATE_SECONDS)


def _give_up(writer: Any, error: BaseException) -> None:
    """Complete an upload, so that the base class can delete it; abort it only if that fails."""
    if "?uploads=" in str(error):  # it never began, and completing it would send a PUT for the bucket itself
        return
    _wait_if_lost(error)
    try:
        writer.close()
        return
    except Exception:
        _log.debug("could not complete a failed upload", exc_info=True)
    try:
        writer.__exit__(type(error), error, error.__traceback__)
    except Exception as second:
        _log.warning("could not abort an upload: %s", type(second).__name__)
        error.add_note("and parts that were in flight may stay until a lifecycle rule aborts the upload")
