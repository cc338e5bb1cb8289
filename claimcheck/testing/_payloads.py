"""Test data of the conformance kits: payloads of every size and shape, broken ones, and hostile pointers."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from claimcheck._pointer import Pointer

_MIB = 1 << 20


def content(size: int) -> bytes:
    """Return bytes without repetition; a shorter payload is a prefix of a longer one."""
    return random.Random(4711).randbytes(-(-size // 4) * 4)[:size]


class Unseekable(io.RawIOBase):
    """A file that can be read only once, in smaller pieces than requested, like a pipe."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def readable(self) -> bool:
        """Always true."""
        return True

    def read(self, size: int = -1, /) -> bytes:
        """Return at most 300,000 bytes."""
        data: bytes = self._inner.read(size if size < 0 else min(size, 300_000))
        return data


class Zeros(io.RawIOBase):
    """A seekable file of zeros that uses no memory."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        """Always true."""
        return True

    def seekable(self) -> bool:
        """Always true."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Change the position."""
        self._position = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence] + offset
        return self._position

    def read(self, size: int = -1, /) -> bytes:
        """Return zeros."""
        left = self._size - self._position
        count = left if size < 0 else min(size, left)
        self._position += count
        return bytes(count)


class Breaking(Zeros):
    """A file that raises, or ends, after half of its bytes."""

    def __init__(self, size: int, error: BaseException | None) -> None:
        super().__init__(size)
        self._error = error

    def read(self, size: int = -1, /) -> bytes:
        """Return zeros for the first half."""
        if self._position < self._size // 2:
            return super().read(min(size, self._size // 2 - self._position))
        if self._error is not None:
            raise self._error
        return b""


SIZES: dict[str, Callable[[int], int]] = {
    "empty": lambda segment: 0,
    "one byte": lambda segment: 1,
    "segment-1": lambda segment: segment - 1,
    "segment": lambda segment: segment,
    "segment+1": lambda segment: segment + 1,
    "several MiB": lambda segment: 2 * segment + 7 * _MIB + 17,
}

SHAPES: dict[str, Callable[[bytes], Any]] = {
    "bytes": lambda data: data,
    "bytearray": bytearray,
    "memoryview": memoryview,
    "non-contiguous view": lambda data: memoryview(_spread(data))[::2],
    "file at an offset": lambda data: _at(io.BytesIO(b"before" + data), 6),
    "unseekable file": lambda data: Unseekable(io.BytesIO(data)),
}

BROKEN: dict[str, Callable[[int], Any]] = {
    "raises": lambda size: Breaking(size, OSError("the disk is on fire")),
    "raises its own error": lambda size: Breaking(size, RuntimeError("not an OSError")),
    "shrinks": lambda size: Breaking(size, None),
    "cannot seek and raises": lambda size: Unseekable(Breaking(size, OSError("connection lost"))),
}

REFUSED: dict[str, tuple[Callable[[], Any], type[Exception]]] = {
    "str": (lambda: "text", TypeError),
    "None": (lambda: None, TypeError),
    "int": (lambda: 5, TypeError),
    "list of ints": (lambda: [1, 2], TypeError),
    "generator": (lambda: (piece for piece in [b"a"]), TypeError),
    "text file": (lambda: io.StringIO("text"), TypeError),
    "closed file": (lambda: _closed(io.BytesIO(b"payload")), ValueError),
}

DESTINATIONS = [
    "orders",
    "",
    ".",
    "..",
    "../../etc/passwd",
    "/etc/passwd",
    "persistent://tenant/namespace/orders",
    "a\\b",
    "nul\0nul",
    "line\nbreak",
    "{tag}",
    "übergrößen-注文",
    "%2e%2e",
    "a" * 1000,
]

HARMS: dict[str, Callable[[bytes], bytes]] = {
    "emptied": lambda data: b"",
    "truncated by one": lambda data: data[:-1],
    "truncated by half": lambda data: data[: len(data) // 2],
    "first byte changed": lambda data: bytes([data[0] ^ 1]) + data[1:],
    "last byte changed": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    "longer by one": lambda data: data + b"x",
    "replaced by a longer one": lambda data: data[::-1] + data,
}

HOSTILE: dict[str, Callable[[Pointer], Pointer]] = {
    "another store": lambda good: replace(good, store="other"),
    "no key": lambda good: replace(good, key=""),
    "parent": lambda good: replace(good, key=f"{good.key}/../../secret"),
    "parent first": lambda good: replace(good, key=f"../{good.key}"),
    "parent, backslashes": lambda good: replace(good, key=f"{good.key}\\..\\secret"),
    "absolute path": lambda good: replace(good, key="/etc/passwd"),
    "absolute in the key": lambda good: replace(good, key=f"/{good.key}"),
    "NUL": lambda good: replace(good, key=f"{good.key}\0"),
    "line break": lambda good: replace(good, key=f"{good.key}\r\nDEL x"),
    "endless key": lambda good: replace(good, key=good.key + "x" * 5000),
    "2**31 segments": lambda good: replace(good, segments=2**31, segment_bytes=1, size=2**31),
    "2**31 segments, small": lambda good: replace(good, segments=2**31),
    "2**31 segments, version 1": lambda good: replace(good, segments=2**31 - 1, version=1, size=None, store=None),
    "size of 2**62": lambda good: replace(good, size=2**62),
    "segments that do not add up": lambda good: replace(good, segments=3, segment_bytes=10),
    "version 1, foreign key": lambda good: replace(good, key="another-stores-key", version=1, size=None, store=None),
    "unknown codec": lambda good: replace(good, codec="lz77"),
    "unknown encryption": lambda good: replace(good, encryption="rot13"),
    "unknown checksum": lambda good: replace(good, checksum="sha999:00"),
}


def _spread(data: bytes) -> bytearray:
    spread = bytearray(2 * len(data))
    spread[::2] = data
    return spread


def _at(file: io.BytesIO, position: int) -> io.BytesIO:
    file.seek(position)
    return file


def _closed(file: io.BytesIO) -> io.BytesIO:
    file.close()
    return file
