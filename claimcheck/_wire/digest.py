"""Content digests: the checksum that a pointer or a header has of a payload, computed while its bytes pass.

``crc32`` finds damage. ``sha256`` also finds a payload that was replaced, if the pointer is signed; for encrypted
payloads the keyed one of `claimcheck._content.coder` does. ``xxh3-128`` has 128 bits and takes hardly longer than a
CRC-32, but does not resist forgery.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from claimcheck._wire import checksum
from claimcheck.errors import import_vendor

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

    from typing_extensions import Buffer

ALGORITHMS = ("crc32", "sha256", "xxh3-128")

CRYPTOGRAPHIC = frozenset({"sha256"})
"""Algorithms for which no one can find other bytes with the same digest."""

_BACKGROUND_FROM_BYTES = 4 << 20  # a thread takes about as long to start as a few hundred KiB to hash
_BATCH_BYTES = 512 << 10
_BATCHES = 2  # that a thread may lie behind


def algorithm_of(text: str) -> str | None:
    """Return the algorithm of a checksum as pointers and headers carry it; ``None`` for an unknown one."""
    name = text.partition(":")[0]
    return name if name in ALGORITHMS else None


def begin(algorithm: str, *, size: int | None = 0) -> Digest:
    """Return the digest of no bytes."""
    if algorithm == "crc32":
        return Crc32()
    if algorithm == "sha256":
        hashed = hashlib.sha256()
        background = size is None or size >= _BACKGROUND_FROM_BYTES
        return _Background("sha256", hashed) if background else _Hash("sha256", hashed)
    return _Hash("xxh3-128", import_vendor("xxhash", extra="fast").xxh3_128())


def digest_of(*pieces: Buffer, algorithm: str = "crc32") -> str:
    """Return the digest of a payload in pieces, as pointers and headers carry it."""
    digest = begin(algorithm)
    for piece in pieces:
        digest.update(piece)
    return digest.text()


class Crc32:
    """CRC-32, which can be combined from those of consecutive parts."""

    in_background = False

    def __init__(self, value: int = 0) -> None:
        self._value = value

    def update(self, piece: Buffer, *, stable: bool = True) -> None:
        """Add bytes. ``stable`` bytes do not change before the next call of `text` or `close`; others are copied."""
        self._value = checksum.crc32(piece, self._value)

    def append(self, crc32: int, size: int) -> None:
        self._value = checksum.crc32_combine(self._value, crc32, size)

    def text(self) -> str:
        """Return the digest as pointers and headers carry it, ``algorithm:hex``. More bytes may follow."""
        return f"crc32:{self._value:08x}"

    def close(self) -> None:
        """Stop; no piece is in use afterwards."""


class _Hash:
    in_background = False

    def __init__(self, algorithm: str, hashed: Any) -> None:
        self._algorithm = algorithm
        self._hashed = hashed

    def update(self, piece: Buffer, *, stable: bool = True) -> None:
        self._hashed.update(piece)

    def text(self) -> str:
        return f"{self._algorithm}:{self._hashed.hexdigest()}"

    def close(self) -> None:
        pass


Digest: TypeAlias = Crc32 | _Hash
"""A digest of the bytes that passed so far."""


class _Background(_Hash):
    """Hashes in a thread of its own, which starts when there is enough to hash and ends with this object."""

    in_background = True

    def __init__(self, algorithm: str, hashed: Any) -> None:
        super().__init__(algorithm, hashed)
        self._batch: list[Buffer] = []
        self._batch_bytes = 0
        self._thread: ThreadPoolExecutor | None = None
        self._error: BaseException | None = None
        self._running: deque[Future[None]] = deque()

    def update(self, piece: Buffer, *, stable: bool = True) -> None:
        self._batch.append(piece if stable else bytes(piece))
        self._batch_bytes += memoryview(piece).nbytes
        if self._batch_bytes >= _BATCH_BYTES:
            self._hand_over()

    def text(self) -> str:
        while self._running:
            self._await_oldest()
        self._end()
        if self._error is not None:
            raise self._error
        _hash(self._hashed.update, self._taken())
        return super().text()

    def close(self) -> None:
        self._taken()
        self._end()

    def _hand_over(self) -> None:
        from concurrent.futures import ThreadPoolExecutor  # as slow to import as asyncio

        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="claimcheck-digest")
        elif len(self._running) == _BATCHES:
            self._await_oldest()
        batch = self._taken()
        try:
            self._running.append(self._thread.submit(_hash, self._hashed.update, batch))
        except RuntimeError:  # too many threads, or the interpreter is shutting down
            self.text()
            _hash(self._hashed.update, batch)

    def _await_oldest(self) -> None:
        self._error = self._running.popleft().exception() or self._error

    def _taken(self) -> list[Buffer]:
        batch, self._batch, self._batch_bytes = self._batch, [], 0
        return batch

    def _end(self) -> None:
        """Wait for the batch that is being hashed; no piece is referenced afterwards."""
        thread, self._thread = self._thread, None
        self._running.clear()
        if thread is not None:
            thread.shutdown(cancel_futures=True)


def _hash(update: Callable[[Buffer], object], batch: list[Buffer]) -> None:
    try:
        for piece in batch:
            update(piece)
    finally:
        batch.clear()
