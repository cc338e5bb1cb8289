"""Reading for a pointer: a store that this process cannot use is an error of the message that names it.

Whoever sends a pointer chooses which of the configured stores is opened. Where a driver or a variable of that store is
missing, the error has to name the message, because the process may have no other use for the store.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, BinaryIO, TypeVar, cast

from claimcheck._pointer import Pointer
from claimcheck.errors import ClaimCheckError, ConfigError, MissingDependencyError, PointerRejectedError

__all__ = ["UNUSABLE", "FollowedFile", "unusable"]

T = TypeVar("T")

UNUSABLE = (ConfigError, MissingDependencyError)
"""What stores raise where this process lacks something that they need."""

_BUFFER_BYTES = 1 << 17


def unusable(store: str, pointer: Pointer, error: ClaimCheckError) -> PointerRejectedError:
    """Return the error for a pointer to a store that this process cannot use."""
    text = f"the pointer to {pointer.key[:200]!r} names the store {store!r}, which this process cannot use: {error}"
    return PointerRejectedError(text, reason="store", store=store, key=pointer.key)


class FollowedFile(io.RawIOBase):
    """The file of a payload, with such errors translated: drivers are imported when the first byte is read.

    Args:
        raw: Below the file that `claimcheck.Store.open` returned.
        store: Its store's name.
        pointer: The pointer that was followed.
    """

    def __init__(self, raw: io.RawIOBase, store: str, pointer: Pointer) -> None:
        self._raw, self._store, self._pointer = raw, store, pointer

    @classmethod
    def opened(cls, file: io.BufferedReader, store: str, pointer: Pointer) -> BinaryIO:
        """Return it as a buffered file."""
        return cast(BinaryIO, io.BufferedReader(cls(file.detach(), store, pointer), buffer_size=_BUFFER_BYTES))

    def readable(self) -> bool:
        """Always true."""
        return True

    def seekable(self) -> bool:
        """Whether the store can read from any position."""
        return self._raw.seekable()

    def tell(self) -> int:
        """Bytes from the start."""
        return self._raw.tell()

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Change the position."""
        return self._raw.seek(offset, whence)

    def readinto(self, buffer: Any, /) -> int:
        """Fill a part of the buffer; 0 only at the end of a verified payload."""
        return self._translated(lambda: self._raw.readinto(buffer)) or 0

    def readall(self) -> bytes:
        """Return the rest of the payload."""
        return self._translated(self._raw.readall)

    def close(self) -> None:
        """Stop reading."""
        self._raw.close()
        super().close()

    def _translated(self, read: Callable[[], T]) -> T:
        try:
            return read()
        except UNUSABLE as error:
            raise unusable(self._store, self._pointer, error) from error
