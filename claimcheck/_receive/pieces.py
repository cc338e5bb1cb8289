"""The pieces of one payload in chunks, joined as they arrive."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from claimcheck._content.reader import FreshBytes
from claimcheck._wire.checksum import crc32


class Pieces:
    """The pieces of one payload."""

    __slots__ = ("_declared", "_ends", "_fresh", "_separate", "_trusted", "crc32s", "size")

    def __init__(self, declared: int = 0, *, trusted: int = 0) -> None:
        self.size = 0
        self.crc32s = array("I")
        self._declared = declared
        self._trusted = trusted
        self._fresh: FreshBytes | None = None
        self._ends = array("Q")  # of the joined pieces
        self._separate: dict[int, memoryview] = {}

    def add(self, position: int, piece: memoryview) -> None:
        """Add a piece, uncopied if it is a view of ``bytes``."""
        self._separate[position] = piece if isinstance(piece.obj, bytes) else memoryview(bytes(piece))
        self.size += len(piece)
        if self._fresh is None and self.size <= self._declared <= max(2 * self.size, self._trusted):
            self._fresh = FreshBytes(self._declared)
        if self._fresh is not None:
            self._join(self._fresh.view)

    def content(self) -> bytes:
        """Return the whole payload; call it once, when all pieces were added."""
        if self._fresh is not None and not self._separate and self.size == self._declared:
            self._fresh.view.release()
            return self._fresh.payload
        pieces = [piece for _, piece in sorted(self)]
        for piece in pieces[len(self.crc32s) :]:
            self._checksum(piece)
        return b"".join(pieces)

    def _join(self, whole: memoryview) -> None:
        start = self._ends[-1] if self._ends else 0
        while (piece := self._separate.get(len(self._ends))) is not None and start + len(piece) <= len(whole):
            del self._separate[len(self._ends)]
            self._checksum(piece)
            whole[start : (start := start + len(piece))] = piece
            self._ends.append(start)

    def _checksum(self, piece: memoryview) -> None:
        self.crc32s.append(crc32(piece, self.crc32s[-1] if self.crc32s else 0))

    def __contains__(self, position: int) -> bool:
        return position < len(self._ends) or position in self._separate

    def __getitem__(self, position: int) -> memoryview:
        if self._fresh is None or position >= len(self._ends):
            return self._separate[position]
        return self._fresh.view[self._ends[position - 1] if position else 0 : self._ends[position]]

    def __iter__(self) -> Iterator[tuple[int, memoryview]]:
        return ((position, self[position]) for position in (*range(len(self._ends)), *self._separate))
