"""Payloads as objects in S3, Google Cloud Storage, Azure or a folder, by the engine of the package obstore."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from claimcheck.errors import KeyTakenError, PayloadNotFoundError, StoreError, StoreUnavailableError
from claimcheck.payload import Source
from claimcheck.pointer import Pointer
from claimcheck.reading import PieceReader, Reader
from claimcheck.registry import import_vendor
from claimcheck.store import RangeStore
from claimcheck.validation import Count, Range, Seconds, Size, Timeout, check_arguments, fail

from .filesystem import MAX_NAME_BYTES, make_directory, not_mounted
from .objects import ENDPOINT, in_parts, part_size
from .obstore_client import URL, Place, Timeouts, check_process, connect
from .obstore_errors import kind_of_error, knows_no_conditions, never_arrived, was_sent_again, words_of
from .tls import CaFile, check_ca_file

__all__ = ["ObstoreStore"]

_log = logging.getLogger(__name__)
_PIECE_BYTES = 256 << 10  # of a download: larger ones would only be put together from what comes off the line
_WHOLE_BYTES = 1 << 20  # up to here an object is taken at once
_WRITE_BYTES = 4 << 20
_LATE_SECONDS = 0.1


class ObstoreStore(RangeStore):
    """One object per payload, with the keys that `claimcheck.stores.s3.S3Store` makes: either reads the other's.

    An engine in Rust, many times as fast with small objects. Credentials are found in the environment, by the names
    of each vendor (``AWS_ACCESS_KEY_ID``, ``GOOGLE_SERVICE_ACCOUNT``, ``AZURE_STORAGE_ACCOUNT_NAME``, ...), or as the
    machines of each cloud find theirs. Give the bucket lifecycle rules, as for S3.

    It sends no checksum of ours: the server verifies what it verifies by itself (with TLS, that nothing was changed on
    the way), and our readers verify every byte. ``AWS_CHECKSUM_ALGORITHM=CRC64NVME`` has it compute one of its own
    for S3. Its threads do not survive a fork: a process that was forked from one that used it gets an error.

    Args:
        url: ``s3://bucket/prefix``, ``gs://bucket/prefix``, ``az://container/prefix``, ``file:///folder`` or
            ``memory:///prefix``, which lives as long as the process.
        endpoint_url: Of a server that is not Amazon's, Google's or Microsoft's own. What it sends is never sent
            elsewhere; a server that redirects its readers is followed, without credentials.
        region_name: Of S3, where the environment does not say it.
        ttl_seconds: Written into pointers; a lifecycle rule removes objects.
        part_bytes: Of each part above ``single_put_bytes``; at least 5 MiB.
        single_put_bytes: Up to this size one request does it. Files of this size are read into memory.
        parallel_parts: Parts that are sent at once; one more is in memory.
        parallel_gets: Parts that are fetched at once, where one connection does not fill the line; as many are in
            memory.
        conditional: Have the server refuse to overwrite with a single request; turned off by itself where a server
            does not know how.
        create: Whether a write creates the folder of ``file:///folder``. Where it does not exist reads and writes raise
            `StoreUnavailableError`: its volume may not be mounted. Files have the permissions that the umask leaves.
        tls_ca_file: Certificates of authorities in PEM format, in addition to the system's. The certificate of the
            server is always verified, its host name included.
        timeout_seconds: For one answer of the server, the sending of an object or a part included.
        connect_timeout_seconds: For a new connection.
    """

    def __init__(
        self,
        *,
        url: Annotated[str, URL],
        endpoint_url: Annotated[str, ENDPOINT] | None = None,
        region_name: str | None = None,
        ttl_seconds: Seconds | None = None,
        part_bytes: Annotated[int, Range(5 << 20)] = 16 << 20,
        single_put_bytes: Size = 64 << 20,
        parallel_parts: Count = 4,
        parallel_gets: Count = 1,
        conditional: bool = True,
        create: bool = False,
        tls_ca_file: CaFile | None = None,
        timeout_seconds: Timeout = 60,
        connect_timeout_seconds: Timeout = 5,
    ) -> None:
        check_arguments(ObstoreStore, url=url, endpoint_url=endpoint_url)
        self._place = Place.parse(url)
        if endpoint_url and not self._place.takes_endpoint:
            fail("endpoint_url", found="text", expected=f"nothing: {self._place.scheme}: has no server")
        if create and not self._place.path:
            fail("create", found="true", expected=f"false: {self._place.scheme}: has no folder")
        timeouts = Timeouts(timeout_seconds, connect_timeout_seconds)
        self._connect = partial(connect, self._place, endpoint_url or None, region_name or None, tls_ca_file, timeouts)
        self._may_create = create
        self._tls_ca_file = tls_ca_file
        self._part_bytes = part_bytes
        self._single_put_bytes = single_put_bytes
        self._parallel_parts = parallel_parts
        self._parallel_gets = parallel_gets
        self._conditional = conditional
        self._lock = threading.Lock()
        self._client: tuple[int, Any] | None = None
        self.prefix = self._place.prefix
        self.ttl_seconds = ttl_seconds

    def __repr__(self) -> str:
        return f"<ObstoreStore {self.name!r} at {self._place}>"

    def close(self) -> None:
        """Let go of the connections; the next use makes new ones."""
        with self._lock:
            self._client = None

    def check(self, pointer: Pointer) -> None:
        """Refuse what the base refuses, and keys that the engine cannot have, or would read under another name."""
        super().check(pointer)
        names = pointer.key.split("/")
        if "" in names:
            self._reject(pointer, "scope", "has a key with an empty part")
        if self._place.path and max(len(name.encode()) for name in names) > MAX_NAME_BYTES:
            self._reject(pointer, "scope", f"has a key with a part of more than {MAX_NAME_BYTES} bytes")

    def _reach(self) -> None:
        if self._may_create:
            make_directory(Path(self._place.path), 0o700)
        self._objects()  # in a process that was forked there is nothing to undo

    def _write(self, pointer: Pointer, source: Source) -> None:
        keep = bytes if self._place.scheme == "memory" else _as_it_is  # it would keep the caller's own buffer
        if source.size is not None and source.size <= self._single_put_bytes:
            self._put(pointer, keep(_whole(source)))
            return
        part = part_size(source, self.context.max_payload_bytes, single=0, part=self._part_bytes)
        with self._writing(pointer, part) as write:
            for piece in source.pieces(_WRITE_BYTES):
                write(keep(piece))

    def _put(self, pointer: Pointer, payload: Any) -> None:
        put = partial(_obstore().put, self._objects(), pointer.key, payload, use_multipart=False)
        if not self._conditional:
            put()
            return
        try:
            put(mode="create")
        except Exception as error:
            if kind_of_error(error) is KeyTakenError and was_sent_again(error):
                return  # taken by ourselves: only the first answer was lost
            if not knows_no_conditions(error):
                _wait_if_lost(error)
                raise
            put()
            self._conditional = False

    @contextmanager
    def _writing(self, pointer: Pointer, part_bytes: int) -> Iterator[Callable[[Any], Any]]:
        writer = _obstore().open_writer(
            self._objects(), pointer.key, buffer_size=part_bytes, max_concurrency=self._parallel_parts
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
        get = partial(self._get, pointer)
        return in_parts(get, start, stop, part_bytes=self._part_bytes, parallel=self._parallel_gets)

    def _small(self, pointer: Pointer, size: int) -> bytes:
        """Take all in one call, which tells no size: it asks for a byte more, which an object that grew would have."""
        call = partial(_obstore().get_range, self._objects(), pointer.key, start=0, end=size + 1)
        payload: bytes = self._within(pointer, call).to_bytes()
        self.check_size(pointer, len(payload))
        return payload

    def _get(self, pointer: Pointer, start: int, stop: int | None) -> Reader:
        whole = stop is None or (start == 0 and stop == pointer.size)
        call = partial(_obstore().get, self._objects(), pointer.key)
        found = call() if whole else self._within(pointer, partial(call, options={"range": (start, stop)}))
        self.check_size(pointer, found.meta["size"])
        return PieceReader(_in_this_process(found.stream(min_chunk_size=_PIECE_BYTES)))

    def _within(self, pointer: Pointer, call: Callable[[], Any]) -> Any:
        """Ask for a range, which may not be there: each medium says in its own way that it begins behind the end."""
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

    def _wrote_nothing(self, error: BaseException) -> bool:
        return super()._wrote_nothing(error) or never_arrived(error.__cause__)

    def _translate(self, error: Exception) -> type[StoreError] | None:
        return kind_of_error(error) or super()._translate(error)

    def _words(self, error: Exception) -> str:
        return words_of(error)

    def _objects(self) -> Any:
        """The obstore of this process."""
        if self._place.path and not os.path.isdir(self._place.path):
            raise not_mounted(self._place.path, store=self.name)
        client = self._client
        if client is None or client[0] != os.getpid():
            check_ca_file(self._tls_ca_file, store=self.name)
            with self._lock:
                self._client = client = os.getpid(), self._connect()
        return client[1]


def _obstore() -> Any:
    return import_vendor("obstore", extra="obstore")


def _in_this_process(pieces: Iterable[Any]) -> Iterator[Any]:
    """Pieces that nobody waits for in a process that was forked meanwhile, where they would never come."""
    iterator = iter(pieces)
    while True:
        check_process()
        piece = next(iterator, None)
        if piece is None:
            return
        yield piece


def _as_it_is(piece: memoryview) -> memoryview:
    return piece


def _whole(source: Source) -> memoryview:
    """A payload of known size as one piece, which a file is read into."""
    pieces = list(source.pieces(max(1, source.size or 0)))
    return pieces[0] if pieces else memoryview(b"")


def _wait_if_lost(error: BaseException) -> None:
    """Let the server come to an end with what a broken line has brought: it must not store that after our undoing."""
    if isinstance(error, Exception) and kind_of_error(error) is StoreUnavailableError and not never_arrived(error):
        time.sleep(_LATE_SECONDS)


def _give_up(writer: Any, error: BaseException) -> None:
    """Complete what is there, for the base class to remove: an abort would overtake parts on their way, and they stay.

    Only where that cannot be done is the upload aborted.
    """
    _wait_if_lost(error)
    try:
        writer.close()
        return
    except Exception:
        _log.debug("an upload that failed cannot be completed either", exc_info=True)
    try:
        writer.__exit__(type(error), error, error.__traceback__)
    except Exception as second:
        _log.warning("could not abort an upload: %s", type(second).__name__)
        error.add_note("and parts that were on their way may stay until a lifecycle rule aborts the upload")
