"""Where payloads rest: the contract of a store, and everything that all stores have in common.

A store author subclasses `Store` and writes three methods::

    class TapeStore(Store):
        def __init__(self, *, drive: int) -> None: ...             # the options, as they stand in YAML
        def _write(self, pointer, source): ...                      # for piece in source: ...
        def _read(self, pointer): ...                               # yield the pieces, in order
        def _delete(self, pointer): ...                             # gone already is fine

The base class makes the keys, counts, checks, verifies, undoes failed writes, maps errors and tells the hooks.
``claimcheck.testing.StoreConformance`` shows whether a new store keeps the promises.
"""

from __future__ import annotations

import io
import logging
import re
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import NoReturn

from claimcheck.envelope import Buffer
from claimcheck.errors import (
    ClaimCheckError,
    IntegrityError,
    PayloadNotFoundError,
    PayloadTooLargeError,
    PointerRejectedError,
    StoreError,
    StoreUnavailableError,
)
from claimcheck.hooks import Hooks
from claimcheck.payload import Payload, Source
from claimcheck.pointer import Pointer
from claimcheck.reading import PayloadReader, check_size, collect, verified

__all__ = ["KeyTakenError", "Store", "StoreContext", "slug"]

_log = logging.getLogger(__name__)
_MAX_KEY = 1024
_MAX_SEGMENTS = 1_000_000
_SECRET = re.compile(r"//[^/\s@]*@")


@dataclass(frozen=True, slots=True)
class StoreContext:
    """What a store is told by whoever opens it.

    Attributes:
        name: Its name in the configuration.
        max_payload_bytes: Larger payloads are neither written nor read.
        hooks: Who hears of operations.
        clock: Seconds since 1970.
        new_uuid: Makes keys unique.
    """

    name: str = "store"
    max_payload_bytes: int = 5 << 30
    hooks: Hooks = field(default_factory=Hooks)
    clock: Callable[[], float] = time.time
    new_uuid: Callable[[], uuid.UUID] = uuid.uuid4


class KeyTakenError(StoreError):
    """A write found its key in use. Nothing was written, and what is stored there was left alone."""


class Store(ABC):
    """Base of all stores. Safe under threads; one instance serves one process.

    Attributes:
        prefix: What every key of this store begins with; pointers to anything else are refused.
        segment_bytes: Size of the pieces that a payload is stored in; ``None`` for one piece.
        ttl_seconds: How long a payload lives; ``None`` for ever.
        pointer_version: Of the pointers that `write` returns.
        reads_v1: Whether pointers of version 1, which name no store and no size, are followed.
        context: Name, limits, hooks and clock; set once, before use.
    """

    prefix: str = ""
    segment_bytes: int | None = None
    ttl_seconds: float | None = None
    pointer_version: int = 2
    reads_v1: bool = False
    context: StoreContext = StoreContext()

    # What an author writes -------------------------------------------------------------------------------------

    @abstractmethod
    def _write(self, pointer: Pointer, source: Source) -> None:
        """Put the payload under ``pointer.key``, readable when this returns, until ``pointer.expires_ms``.

        Size and checksum are not in the pointer yet; ``source.size`` is there unless a file cannot seek. Whatever is
        raised here is followed by `_delete`; only a `KeyTakenError` is not, because nothing there is ours.
        """

    @abstractmethod
    def _read(self, pointer: Pointer) -> Iterable[Buffer]:
        """Give the payload's bytes in order; a piece may be reused once the next one is asked for."""

    @abstractmethod
    def _delete(self, pointer: Pointer) -> None:
        """Remove the payload, whole or in part, and nothing else; what is gone already is no error."""

    def _translate(self, error: Exception) -> type[StoreError] | None:
        """Say which of our errors a vendor's error is; ``None`` for no idea. Extend with ``super()``."""
        if isinstance(error, FileNotFoundError):
            return PayloadNotFoundError
        if isinstance(error, (ConnectionError, TimeoutError)):
            return StoreUnavailableError
        return None

    def close(self) -> None:  # noqa: B027 - most stores hold nothing
        """Release connections. Payloads stay. A closed store may open again at the next use."""

    # What callers use ------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Its name in the configuration."""
        return self.context.name

    def write(self, payload: Payload, *, destination: str = "") -> Pointer:
        """Put one payload to rest and return the pointer that finds it again.

        Args:
            payload: Bytes-like, or a readable binary file, which is read from where it stands in bounded memory.
            destination: Topic or queue; a readable part of the key, nothing more.

        Returns:
            A pointer with the payload's size and checksum, readable at once by any reader.

        Raises:
            PayloadTypeError: Not bytes-like and no binary file; nothing was written.
            PayloadTooLargeError: Over ``limits.max_payload_bytes``; nothing is left.
            PayloadError: The file failed or shrank; nothing is left.
            StoreUnavailableError: Not reached; what was written was removed where possible, else it expires.
            StoreError: Anything else that the store refused, a full disk for example; the same.
        """
        source = self._source(payload)
        draft = self._draft(destination)
        with self.context.hooks.operation("write", store=self.name, key=draft.key, size=source.size):
            try:
                with self._translated(draft, "write"):
                    self._write(draft, source)
                    self._check_drained(source)
            except KeyTakenError:
                raise
            except BaseException as error:
                self._undo(self._finish(draft, source), error, nothing=source.taken == 0 and source.size != 0)
                raise
        return self._finish(draft, source)

    def read(self, pointer: Pointer) -> bytes:
        """Return the payload, whole and verified.

        Raises:
            PointerRejectedError: Not a pointer of this store; no I/O was done.
            PayloadNotFoundError: Gone, or a part of it is.
            IntegrityError: Size or checksum differ from the pointer's.
            StoreUnavailableError: Not reached; the same call may succeed later.
        """
        with self.context.hooks.operation("read", store=self.name, key=pointer.key, size=pointer.size):
            return collect(self._pieces(pointer), pointer.size)

    def open(self, pointer: Pointer) -> io.BufferedReader:
        """Return the payload as a binary file, read piece by piece and verified before its last byte is handed out.

        Raises:
            PointerRejectedError: Not a pointer of this store; no I/O was done. Reading raises as `read` does.
        """
        self.check(pointer)
        return io.BufferedReader(PayloadReader(self._observed(pointer), size=pointer.size), buffer_size=1 << 20)

    def rollback(self, pointer: Pointer) -> None:
        """Undo exactly one write; doing it twice is harmless.

        Raises:
            PointerRejectedError: Not a pointer of this store; nothing was removed.
            StoreUnavailableError: Not reached; the payload stays until it expires.
        """
        self.check(pointer)
        operation = self.context.hooks.operation("rollback", store=self.name, key=pointer.key, size=pointer.size)
        with operation, self._translated(pointer, "rollback"):
            self._delete(pointer)

    def check(self, pointer: Pointer) -> None:
        """Refuse what this store must not follow: another store's pointer, a key out of scope, absurd sizes.

        Raises:
            PointerRejectedError: With the reason in one word.
        """
        if pointer.store not in (None, self.name):
            self._reject(pointer, "store", f"names the store {pointer.store!r}")
        if pointer.version == 1 and not self.reads_v1:
            self._reject(pointer, "version", "is of version 1, which this store does not read")
        if not _is_sane(pointer.key) or not pointer.key.startswith(self._scope(pointer)):
            self._reject(pointer, "scope", "has a key outside this store's prefix")
        if (pointer.size or 0) > self.context.max_payload_bytes:
            self._reject(
                pointer,
                "size",
                f"declares {pointer.size} bytes, limits.max_payload_bytes is {self.context.max_payload_bytes}",
            )
        if pointer.segments > _MAX_SEGMENTS or pointer.segments != _segments(pointer):
            self._reject(pointer, "size", f"declares {pointer.segments} segments for {pointer.size} bytes")
        if pointer.codec or pointer.encryption or not (pointer.checksum or "crc32:").startswith("crc32:"):
            self._reject(pointer, "feature", "needs a codec, encryption or checksum that this claimcheck does not know")

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    # What a store may refine -----------------------------------------------------------------------------------

    def _new_key(self, destination: str) -> str:
        return f"{self.prefix}{slug(destination)}-{self.context.new_uuid()}"

    def _scope(self, pointer: Pointer) -> str:
        return self.prefix

    def missing(self, pointer: Pointer, what: str = "the payload") -> PayloadNotFoundError:
        """Make the error for a payload, or a part of one, that is gone."""
        written, ends = _when("written", pointer.created_ms), _when("expires or expired", pointer.expires_ms)
        return PayloadNotFoundError(
            f"store {self.name!r}: {what} of {pointer.key!r} is gone ({written}; {ends}): "
            "it expired, was evicted, was rolled back or was deleted",
            store=self.name,
            key=pointer.key,
            created_ms=pointer.created_ms,
            expires_ms=pointer.expires_ms,
        )

    def check_size(self, pointer: Pointer, actual: int) -> None:
        """Compare what is stored with ``pointer.size`` before it is read; for media that know sizes.

        Raises:
            IntegrityError: They differ.
        """
        check_size(pointer, actual, store=self.name)

    # Within ----------------------------------------------------------------------------------------------------

    def _source(self, payload: Payload) -> Source:
        """A payload of more segments than `check` lets pass could be written, but never be read again."""
        limit = self.context.max_payload_bytes
        if self.segment_bytes is not None and self.segment_bytes * _MAX_SEGMENTS < limit:
            what = f"{_MAX_SEGMENTS} segments of {self.segment_bytes} bytes"
            return Source(payload, limit=self.segment_bytes * _MAX_SEGMENTS, limit_name=what)
        return Source(payload, limit=limit)

    def _draft(self, destination: str) -> Pointer:
        created = int(self.context.clock() * 1000)
        expires = None if self.ttl_seconds is None else created + int(self.ttl_seconds * 1000)
        key, version = self._new_key(destination), self.pointer_version
        return Pointer(key=key, store=self.name, version=version, created_ms=created, expires_ms=expires)

    def _finish(self, draft: Pointer, source: Source) -> Pointer:
        piece = self.segment_bytes if self.segment_bytes and source.taken > self.segment_bytes else None
        done = replace(draft, size=source.taken, segment_bytes=piece, checksum=source.checksum)
        return replace(done, segments=_segments(done))

    def _check_drained(self, source: Source) -> None:
        if not source.drained:
            raise StoreError(
                f"store {self.name!r} took {source.taken} of {source.size} bytes: "
                f"{type(self).__name__}._write is broken"
            )

    def _undo(self, pointer: Pointer, error: BaseException, *, nothing: bool) -> None:
        if nothing:
            return
        try:
            self._delete(pointer)
        except Exception as second:
            _log.warning(
                "store %r: could not remove the failed write of %r: %s", self.name, pointer.key, type(second).__name__
            )
            error.add_note(
                f"and what may have been written could not be removed ({type(second).__name__}): "
                "it stays until it expires"
            )

    def _pieces(self, pointer: Pointer) -> Iterator[Buffer]:
        self.check(pointer)
        with self._translated(pointer, "read"):
            yield from verified(self._read(pointer), pointer, store=self.name, limit=self.context.max_payload_bytes)

    def _observed(self, pointer: Pointer) -> Iterator[Buffer]:
        with self.context.hooks.operation("read", store=self.name, key=pointer.key, size=pointer.size):
            yield from self._pieces(pointer)

    @contextmanager
    def _translated(self, pointer: Pointer, operation: str) -> Iterator[None]:
        try:
            yield
        except StoreError as error:
            error.store, error.key = error.store or self.name, error.key or pointer.key
            raise
        except ClaimCheckError:
            raise
        except Exception as error:
            kind = self._translate(error) or StoreError
            if kind is PayloadNotFoundError and operation == "read":
                raise self.missing(pointer) from error
            if kind is PayloadNotFoundError or kind is PayloadTooLargeError or kind is IntegrityError:
                kind = StoreError
            text = (
                f"store {self.name!r}: {operation} of {pointer.key!r} failed: {type(error).__name__}: {_clean(error)}"
            )
            raise kind(text, store=self.name, key=pointer.key) from error

    def _reject(self, pointer: Pointer, reason: str, why: str) -> NoReturn:
        raise PointerRejectedError(
            f"store {self.name!r} will not follow the pointer to {pointer.key[:200]!r}: it {why}",
            reason=reason,
            store=pointer.store,
            key=pointer.key,
        )


def slug(destination: str) -> str:
    """Make a destination fit for a key: 1 to 64 of ``A-Z a-z 0-9 . _ -``, never ``.`` or ``..``."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", destination).strip(".")[:64] or "_"


def _segments(pointer: Pointer) -> int:
    if pointer.version == 1 and pointer.size is None:
        return pointer.segments
    if not pointer.segment_bytes or not pointer.size:
        return 1
    return -(-pointer.size // pointer.segment_bytes)


def _is_sane(key: str) -> bool:
    parts = key.replace("\\", "/").split("/")
    printable = all(ch.isprintable() for ch in key)
    return 0 < len(key) <= _MAX_KEY and printable and parts[0] != "" and not {"..", "."} & set(parts)


def _when(word: str, moment: int | None) -> str:
    if moment is None:
        return f"{word}: unknown"
    try:
        return f"{word} {datetime.fromtimestamp(moment / 1000, UTC).isoformat(timespec='seconds')}"
    except (ValueError, OverflowError, OSError):  # a pointer may claim any year
        return f"{word} {moment} ms"


def _clean(error: Exception) -> str:
    return _SECRET.sub("//***@", str(error))[:300]
