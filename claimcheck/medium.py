"""What a store's author writes, and what a store may refine: keys, errors, and which pointers are followed."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NoReturn

from claimcheck.envelope import Buffer
from claimcheck.errors import (
    ClaimCheckError,
    ConfigError,
    IntegrityError,
    KeyTakenError,
    MissingDependencyError,
    PayloadNotFoundError,
    PayloadTooLargeError,
    PointerRejectedError,
    StoreError,
    StoreUnavailableError,
)
from claimcheck.hooks import Hooks
from claimcheck.keys import is_key, slug
from claimcheck.payload import Source
from claimcheck.pointer import Pointer
from claimcheck.reading import check_size
from claimcheck.validation import without_secrets

__all__ = ["MAX_SEGMENTS", "Medium", "StoreContext"]

MAX_SEGMENTS = 1_000_000
"""The most segments that a payload may have."""


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


class Medium(ABC):
    """The lower half of every `claimcheck.Store`: what is different from one medium to the next.

    Attributes:
        prefix: What every key of this store begins with; pointers to anything else are refused.
        max_key_bytes: The longest key that the medium can have, in UTF-8; longer ones are refused before any I/O.
        segment_bytes: Size of the pieces that a payload is stored in; ``None`` for one piece.
        ttl_seconds: How long a payload lives; ``None`` for ever.
        pointer_version: Of the pointers that `write` returns.
        reads_v1: Whether pointers of version 1, which name no store and no size, are followed.
        context: Name, limits, hooks and clock; set once, before use.
    """

    prefix: str = ""
    max_key_bytes: int = 1024
    segment_bytes: int | None = None
    ttl_seconds: float | None = None
    pointer_version: int = 2
    reads_v1: bool = False
    context: StoreContext = StoreContext()

    # What an author writes -------------------------------------------------------------------------------------

    @abstractmethod
    def _write(self, pointer: Pointer, source: Source) -> str | None:
        """Put the payload under ``pointer.key``, readable when this returns, until ``pointer.expires_ms``.

        Size and checksum are not in the pointer yet; ``source.size`` is there unless a file cannot seek. Whatever is
        raised here is followed by `_delete`, unless `_wrote_nothing` knows better. A key that comes again, by
        ``write(identity=...)``, brings the same payload: it is written over, or refused with a `KeyTakenError`.

        Returns:
            The key that readers need, where the medium has a say in it, such as a log with its positions; else nothing.
        """

    @abstractmethod
    def _read(self, pointer: Pointer) -> Iterable[Buffer]:
        """Give the payload's bytes in order; a piece may be reused once the next one is asked for."""

    @abstractmethod
    def _delete(self, pointer: Pointer) -> None:
        """Remove the payload, whole or in part, and nothing else; what is gone already is no error."""

    def _reach(self) -> None:  # noqa: B027 - most media show soon enough that they are not there
        """Raise if the medium cannot be reached; asked before each write, and not followed by `_delete`.

        For media where undoing a write that never began would only wait once more for a server that is not there.
        """

    def _wrote_nothing(self, error: BaseException) -> bool:
        """Whether an error of `_write`, translated already, leaves nothing to delete. Extend with ``super()``.

        True here for a `KeyTakenError`, because nothing there is ours, a missing driver and a wrong configuration.
        """
        return isinstance(error, (KeyTakenError, MissingDependencyError, ConfigError))

    def _translate(self, error: Exception) -> type[StoreError] | None:
        """Say which of our errors a vendor's error is; ``None`` for no idea. Extend with ``super()``."""
        if isinstance(error, FileNotFoundError):
            return PayloadNotFoundError
        if isinstance(error, (ConnectionError, TimeoutError)):
            return StoreUnavailableError
        return None

    def _words(self, error: Exception) -> str:
        """Say what a vendor's error says, for people."""
        return str(error)

    def close(self) -> None:  # noqa: B027 - most stores hold nothing
        """Release connections. Payloads stay. A closed store may open again at the next use."""

    @property
    def name(self) -> str:
        """Its name in the configuration."""
        return self.context.name

    def check(self, pointer: Pointer) -> None:
        """Refuse what this store must not follow: another store's pointer, a key out of scope, absurd sizes.

        Raises:
            PointerRejectedError: With the reason in one word; also for what is no pointer at all.
        """
        given: Any = pointer
        if not isinstance(given, Pointer):
            expected = "a claimcheck.pointer.Pointer is expected; an envelope is for ClaimCheck.resolve"
            raise PointerRejectedError(f"{type(given).__name__} is no pointer: {expected}", reason="type")
        if pointer.store not in (None, self.name):
            self._reject(pointer, "store", f"names the store {pointer.store!r}")
        if pointer.version == 1 and not self.reads_v1:
            self._reject(pointer, "version", "is of version 1, which this store does not read")
        if not is_key(pointer.key) or not pointer.key.startswith(self._scope(pointer)):
            self._reject(pointer, "scope", "has a key outside this store's prefix")
        if len(pointer.key.encode()) > self.max_key_bytes:
            self._reject(pointer, "scope", f"has a key of more than {self.max_key_bytes} bytes")
        if (pointer.size or 0) > self.context.max_payload_bytes:
            self._reject(
                pointer,
                "size",
                f"declares {pointer.size} bytes, limits.max_payload_bytes is {self.context.max_payload_bytes}",
            )
        if pointer.segments > self._max_segments(pointer.version) or pointer.segments != _segments_of(pointer):
            self._reject(pointer, "size", f"declares {pointer.segments} segments for {pointer.size} bytes")
        if pointer.codec or pointer.encryption or not (pointer.checksum or "crc32:").startswith("crc32:"):
            self._reject(pointer, "feature", "needs a codec, encryption or checksum that this claimcheck does not know")

    # What a store may refine -----------------------------------------------------------------------------------

    def _new_key(self, destination: str, unique: uuid.UUID) -> str:
        return f"{self.prefix}{slug(destination)}-{unique}"

    def _max_segments(self, version: int) -> int:
        """The most segments that a payload may have whose pointer is of this version."""
        return MAX_SEGMENTS

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

    def _translated(self, pointer: Pointer, operation: str) -> _Translated:
        """Around an access to the medium: its errors become ours."""
        return _Translated(self, pointer, operation)

    def _as_ours(self, error: Exception, pointer: Pointer, operation: str) -> StoreError:
        kind = self._translate(error) or StoreError
        if kind is PayloadNotFoundError and operation == "read":
            return self.missing(pointer)
        if kind in (PayloadNotFoundError, PayloadTooLargeError) or (kind is IntegrityError and operation != "read"):
            kind = StoreError
        why = without_secrets(self._words(error))[:300]
        text = f"store {self.name!r}: {operation} of {pointer.key!r} failed: {type(error).__name__}: {why}"
        return kind(text, store=self.name, key=pointer.key)

    def _reject(self, pointer: Pointer, reason: str, why: str) -> NoReturn:
        raise PointerRejectedError(
            f"store {self.name!r} rejected the pointer to {pointer.key[:200]!r}: it {why}",
            reason=reason,
            store=pointer.store,
            key=pointer.key,
        )


class _Translated:
    """A context manager of its own and no generator: small payloads feel the difference."""

    __slots__ = ("_medium", "_operation", "_pointer")

    def __init__(self, medium: Medium, pointer: Pointer, operation: str) -> None:
        self._medium = medium
        self._pointer = pointer
        self._operation = operation

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, StoreError):
            error.store, error.key = error.store or self._medium.name, error.key or self._pointer.key
        elif isinstance(error, Exception) and not isinstance(error, ClaimCheckError):
            raise self._medium._as_ours(error, self._pointer, self._operation) from error


def _segments_of(pointer: Pointer) -> int:
    if pointer.version == 1 and pointer.size is None:
        return pointer.segments
    if not pointer.segment_bytes or not pointer.size:
        return 1
    return -(-pointer.size // pointer.segment_bytes)


def _when(word: str, moment: int | None) -> str:
    if moment is None:
        return f"{word}: unknown"
    try:
        return f"{word} {datetime.fromtimestamp(moment / 1000, UTC).isoformat(timespec='seconds')}"
    except (ValueError, OverflowError, OSError):  # a pointer may claim any year
        return f"{word} {moment} ms"
