"""Compresses and decompresses streams with zstd, in bounded memory.

Compression happens before encryption, and the stored stream is one standard frame, so ``zstd`` on a command line can
read it. Frames have no checksum of their own: the caller verifies one of the payload, or the stream is encrypted and
authenticated.

A compressed stream is untrusted: `DecompressingReader` reads no more than the declared size from it, whatever the
stream says about itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import NoReturn

from claimcheck._wire.buffers import Buffer, Reader, as_view
from claimcheck.errors import import_vendor

CODEC = "zstd"

MAX_WINDOW_BYTES = 8 << 20
"""The largest window of a zstd frame that is read: that of level 19, and what every decoder should support."""

_STEP_BYTES = 1 << 20  # of input per call of the library: bounds its output
_INPUT_BYTES = 128 << 10
_SAMPLE_PIECES = 4
_SAMPLE_BYTES = 64 << 10
_WORTHWHILE = 0.9


class Damaged(ValueError):  # noqa: N818 - callers raise an IntegrityError from it
    """A compressed stream that is not the compressed form of a payload of the declared size."""


def compress(pieces: Iterable[Buffer], *, level: int, size: int | None) -> Iterator[bytes]:
    """Yield the compressed form of a payload, which does not depend on how the payload is cut into pieces."""
    known = -1 if size is None else size
    compressor = _zstd().ZstdCompressor(level=level, write_checksum=False).compressobj(size=known)
    for piece in pieces:
        view = as_view(piece)
        for start in range(0, len(view), _STEP_BYTES):
            if data := compressor.compress(view[start : start + _STEP_BYTES]):
                yield data
    yield compressor.flush()


def shrinks(sample: Buffer, *, level: int) -> bool:
    """Return whether compression saves at least a tenth of a sample; see `sample_of`."""
    size = len(as_view(sample))
    return sum(map(len, compress([sample], level=level, size=size))) <= size * _WORTHWHILE


def sample_of(payload: Buffer) -> Buffer:
    """Return up to 64 KiB of a payload: several pieces from its start to its end, because files begin with headers."""
    view = as_view(payload)
    if len(view) <= _SAMPLE_BYTES:
        return view
    piece = _SAMPLE_BYTES // _SAMPLE_PIECES
    starts = ((len(view) - piece) * part // (_SAMPLE_PIECES - 1) for part in range(_SAMPLE_PIECES))
    return b"".join(view[start : start + piece] for start in starts)


class DecompressingReader:
    """A `Reader` of the payload behind a compressed stream."""

    def __init__(self, source: Reader, *, size: int) -> None:
        self._source = source
        self._decoder = _Decoder(source)
        self._size = size
        self._left = size

    def readinto(self, buffer: memoryview, /) -> int:
        if not self._size:
            self._fail("an empty payload is never compressed")
        body = buffer[: max(0, self._left - 1)]
        count = self._decoder.readinto(body) if len(body) else 0
        self._left -= count
        if len(body) and not count:
            self._fail("it ends too early")
        if self._left == 1 and count < len(buffer):
            buffer[count] = self._last_byte()
            return count + 1
        return count

    def close(self) -> None:
        self._source.close()

    def _last_byte(self) -> int:
        """Return the last byte, after checking that the frame and the stream end behind it."""
        probe = memoryview(bytearray(2))
        count = self._decoder.readinto(probe)
        if count != 1:
            self._fail("its payload is longer" if count else "it ends too early")
        if not self._decoder.ended():
            self._fail("its end is damaged")
        self._left = 0
        return probe[0]

    def _fail(self, why: str) -> NoReturn:
        raise Damaged(f"the compressed stream is not that of a payload of {self._size} bytes: {why}")


class _Decoder:
    """`readinto` returns 0 only at the end of the frame, which is the end of the stream if it has `ended`."""

    def __init__(self, source: Reader) -> None:
        zstd = _zstd()
        self._error = zstd.ZstdError
        self._input = _HeldBack(source)
        self._reader = zstd.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES).stream_reader(
            self._input, read_size=_INPUT_BYTES, closefd=False
        )

    def readinto(self, buffer: memoryview, /) -> int:
        try:
            count: int = self._reader.readinto(buffer)
        except self._error as error:
            raise Damaged(f"the compressed stream is damaged: {error}") from None
        return count

    def ended(self) -> bool:
        # With room left in its buffer, the library reads to the end of a frame, and no further.
        return self._input.taken and not self._input.asked_beyond


class _HeldBack:
    """A compressed stream as a file whose last byte is a piece of its own."""

    def __init__(self, source: Reader) -> None:
        self._source = source
        self._buffer = memoryview(bytearray(_INPUT_BYTES))
        self._held: int | None = None
        self.taken = self.asked_beyond = False

    def read(self, _: int, /) -> Buffer:
        """Return the next piece, which is valid until the next call."""
        while not self.taken:
            start = 0 if self._held is None else 1
            self._buffer[:start] = bytes([self._held or 0])[:start]
            count = start + (self._source.readinto(self._buffer[start:]) or 0)
            self.taken = count == start
            if self.taken and start:
                return self._buffer[:1]
            self._held = self._buffer[count - 1] if count else None
            if count > 1:
                return self._buffer[: count - 1]
        self.asked_beyond = True
        return b""


def _zstd() -> ModuleType:
    return import_vendor("zstandard", extra="compression")
