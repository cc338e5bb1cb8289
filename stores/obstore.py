"""Payloads as objects in S3, Google Cloud Storage, Azure or a folder, by the engine of the package obstore."""

from __future__ import annotations

import functools
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from urllib.parse import unquote, urlsplit

from claimcheck._payload import Source
from claimcheck._payload_reader import PieceReader, Reader
from claimcheck._pointer import Pointer, is_key_prefix
from claimcheck._registry import import_vendor
from claimcheck._store import Store
from claimcheck._validation import Check, Count, Range, Seconds, Size, Timeout, check_arguments, fail
from claimcheck.errors import KeyTakenError, PayloadNotFoundError, StoreError, StoreUnavailableError
from claimcheck.stores._objects import ENDPOINT, folder, in_parts, part_size
from claimcheck.stores._tls import CaFile, check_ca_file
from claimcheck.stores.filesystem import MAX_NAME_BYTES, make_directory, not_mounted
from claimcheck.stores.s3._errors import NOT_ADMITTED, NOT_KNOWN, kind_of_code

__all__ = ["ObstoreStore"]

# Names of classes, or what stands in the text, to our error; the first that is found decides.
_KINDS: tuple[tuple[str, type[StoreError]], ...] = (
    ("AlreadyExistsError", KeyTakenError),
    ("PermissionDeniedError", StoreError),
    ("UnauthenticatedError", StoreError),
    ("//169.254.", StoreError),  # where machines of a cloud find their credentials: there are none anywhere else
    ("HTTP error", StoreUnavailableError),
    ("NoContentRange", StoreUnavailableError),  # of the rest, after the line was cut
)
_GONE = {None, "404", "NoSuchKey", "NotFound", "BlobNotFound"}  # and not a bucket, or whoever asks
_CODE = re.compile(r"<Code>([^<]+)</Code>")
_XML = re.compile(r"<\?xml|<Error")
_MESSAGE = re.compile(r"<Message>([^<]+)</Message>")
_STATUS = re.compile(r"status code: (\d{3})")
_NEVER_CONNECTED = re.compile(r"\bkind: Connect\b")
_RETRIES = re.compile(r"after ([1-9]\d*) retries")


def kind_of_error(error: Exception) -> type[StoreError] | None:
    """Say which of our errors one of obstore's is; ``None`` for no idea."""
    code, text = _code_of(error), f"{type(error).__name__}: {error}"
    if isinstance(error, FileNotFoundError):
        return PayloadNotFoundError if code in _GONE else StoreError
    for mark, kind in _KINDS:
        if mark in text:
            return kind
    return kind_of_code(code or "")


def words_of(error: Exception) -> str:
    """What one of obstore's errors says, without the XML and the inner life of its libraries around it."""
    text = str(error)
    code, message = _CODE.search(text), _MESSAGE.search(text)
    if code is not None:
        head = _XML.split(text)[0].strip(" :")
        return ": ".join(filter(None, (head, code[1], message and message[1])))
    if "//169.254." in text:
        return "there are no credentials in the environment, nor a service of a cloud that has some"
    return text.partition("\n")[0]


def never_arrived(error: BaseException | None) -> bool:
    """Whether nothing can have come of the request that ended so."""
    return _code_of(error) in NOT_ADMITTED or _NEVER_CONNECTED.search(str(error)) is not None


def knows_no_conditions(error: Exception) -> bool:
    """Whether a server says that it does not know the condition that a request came with."""
    return _code_of(error) in NOT_KNOWN or type(error).__name__ == "NotSupportedError"


def was_sent_again(error: Exception) -> bool:
    """Whether a request was repeated before it ended so: the first one may have been heard."""
    return _RETRIES.search(str(error)) is not None


def _code_of(error: BaseException | None) -> str | None:
    """The service's own word, else the HTTP status, if there was an answer at all."""
    found = _CODE.search(str(error)) or _STATUS.search(str(error))
    return found[1] if found else None


_CLASSES = {
    "s3": "S3Store",
    "gs": "GCSStore",
    "az": "AzureStore",
    "file": "LocalStore",
    "memory": "MemoryStore",
}
# The environment may name an address, too, and the second of these would win over the first.
_ENDPOINT_KEYS = {"s3": ("endpoint", "aws_endpoint_url_s3"), "gs": ("base_url",), "az": ("endpoint",)}
_MAX_RETRIES = 2

_used_by: int | None = None  # the process in which obstore's threads run


class Timeouts(NamedTuple):
    """In seconds."""

    answer: float
    connect: float


class Place(NamedTuple):
    """Where objects are.

    Attributes:
        scheme: Of the URL.
        bucket: Or container; empty where there is none.
        prefix: What keys begin with.
        path: Of the folder, for ``file``.
    """

    scheme: str
    bucket: str = ""
    prefix: str = ""
    path: str = ""

    @classmethod
    def parse(cls, url: str) -> Place:
        """Read a URL.

        Raises:
            ValueError: It is none of those that are known.
        """
        parts = urlsplit(url)
        plain = not (parts.query or parts.fragment or "@" in parts.netloc or ":" in parts.netloc)
        if not plain or parts.scheme not in _CLASSES or bool(parts.netloc) == (parts.scheme in ("file", "memory")):
            raise ValueError("not a place of objects")
        if parts.scheme == "file":
            if not parts.path.startswith("/"):
                raise ValueError("not an absolute path")
            return cls("file", path=unquote(parts.path))
        prefix = folder(parts.path)
        if not is_key_prefix(prefix) or "//" in prefix:
            raise ValueError("not the beginning of a key")
        return cls(parts.scheme, parts.netloc, prefix)

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.path.lstrip('/') or self.prefix}"

    @property
    def takes_endpoint(self) -> bool:
        """Whether it is reached through a server that may have another address."""
        return self.scheme in _ENDPOINT_KEYS


def connect(
    place: Place, endpoint_url: str | None, region_name: str | None, tls_ca_file: str | None, timeouts: Timeouts
) -> Any:
    """Make one of obstore's stores for this process.

    Raises:
        StoreError: The process was forked from one that had used obstore.
    """
    kind = getattr(import_vendor("obstore.store", extra="obstore"), _CLASSES[place.scheme])
    check_process()
    if place.scheme == "memory":
        return _memory()
    if place.scheme == "file":
        return kind(place.path)
    config = _config(place, endpoint_url, region_name)
    return kind(
        place.bucket, config=config, client_options=_client(timeouts, tls_ca_file), retry_config=_retries(timeouts)
    )


@functools.cache
def _memory() -> Any:
    """One for the process, so that all of its stores see the same."""
    return import_vendor("obstore.store", extra="obstore").MemoryStore()


def _config(place: Place, endpoint_url: str | None, region_name: str | None) -> dict[str, Any]:
    config: dict[str, Any] = {}
    if place.scheme == "s3":
        # Our checksum covers every byte: a SHA-256 of each body for its signature would take ten times as long.
        config |= {"unsigned_payload": True, "disable_bulk_delete": True}
        config |= {"region": region_name} if region_name else {}
    if endpoint_url:
        config |= dict.fromkeys(_ENDPOINT_KEYS[place.scheme], endpoint_url)
        config |= {"virtual_hosted_style_request": False} if place.scheme == "s3" else {}
    return config


def _client(timeouts: Timeouts, tls_ca_file: str | None) -> dict[str, Any]:
    authorities = {"root_certificate": Path(tls_ca_file).read_bytes()} if tls_ca_file else {}
    return {
        **authorities,
        "allow_http": True,
        "connect_timeout": timedelta(seconds=timeouts.connect),
        "read_timeout": timedelta(seconds=timeouts.answer),
        "timeout": timedelta(days=1),  # of a whole request: a reader may take its time
        "user_agent": "claimcheck",
    }


def _retries(timeouts: Timeouts) -> dict[str, Any]:
    """Its own ten retries in three minutes would hide for long that a server is gone."""
    backoff = {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=2), "base": 2}
    return {"max_retries": _MAX_RETRIES, "retry_timeout": timedelta(seconds=timeouts.answer), "backoff": backoff}


def check_process() -> None:
    """Refuse to wait for ever: obstore's threads, of which a process has one set, are not there after a fork."""
    global _used_by
    _used_by = _used_by or os.getpid()
    if _used_by != os.getpid():
        raise StoreError(
            "obstore was used by the process that this one was forked from, and does not work any more: use the store "
            "in the new processes only, or start them with the method 'spawn' or 'forkserver'"
        )


def _is_url(url: str) -> bool:
    try:
        Place.parse(url)
    except ValueError:
        return False
    return True


URL = Check(
    _is_url, "s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, file:///folder or memory:///prefix"
)
"""For an option that names a place of objects."""


_log = logging.getLogger(__name__)
_PIECE_BYTES = 256 << 10  # of a download: larger ones would only be put together from what comes off the line
_WHOLE_BYTES = 1 << 20  # up to here an object is taken at once
_WRITE_BYTES = 4 << 20
_LATE_SECONDS = 0.1


class ObstoreStore(Store):
    """One object per payload, with the keys that `claimcheck.stores.s3._store.S3Store` makes: either reads the other's.

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
