"""One payload of a batch: its chunks come one after another, lowest position first, and its bytes are held once."""

from __future__ import annotations

from claimcheck.config import Config
from claimcheck.envelope import Abort, Buffer, Chunk, decode
from claimcheck.errors import (
    ChunkConflictError,
    ClaimCheckError,
    IncompletePayloadError,
    PayloadTooLargeError,
)
from claimcheck.spark.reassembly import words
from claimcheck.spark.reassembly.heads import contradiction

__all__ = ["Group"]


class Group:
    """The chunks of one payload.

    What is held is bounded by the payload's limits, whatever the chunks declare; of a payload that cannot become whole
    nothing is held but the numbers of its chunks.

    Args:
        uuid: The payload's.
        config: Its limits on payloads in chunks hold.
        max_bytes: The payload may have.
    """

    def __init__(self, uuid: str, config: Config, *, max_bytes: int) -> None:
        self._uuid = uuid
        self._header, self._max_chunks, self._max_bytes = config.header, config.chunks.max_chunks, max_bytes
        self._positions: list[int] = []
        self._count = 0
        self._last: memoryview | None = None
        self._aborted = False
        self._declared: str | None = None
        self.pieces: list[Buffer] = []
        self.size = 0
        self.error: ClaimCheckError | None = None

    @property
    def given_up(self) -> bool:
        """Whether its writer gave it up before it was whole: it is no payload, and nothing is missed."""
        return self._aborted and self.error is None and len(self._positions) < max(self._count, 1)

    def add(self, message: memoryview, declared: str | None = None) -> bool:
        """Take the next message, and the checksum that its headers declare; gives whether it was a chunk."""
        try:
            envelope = decode(message, header=self._header)
        except ClaimCheckError as error:
            self._fail(error)
            return True
        if isinstance(envelope, Abort):
            self._aborted = True
        elif isinstance(envelope, Chunk) and self.error is None:
            self._declared = self._declared or declared
            self._add(envelope)
        return not isinstance(envelope, Abort)

    def finish(self) -> None:
        """Say that there are no more: what is missing now is an error."""
        if self.error is None and len(self._positions) < self._count:
            text = words.incomplete(
                self._uuid, self._positions, self._count, "the others are not in this DataFrame, or were never sent"
            )
            seen = len(self._positions)
            self._fail(IncompletePayloadError(text, uuid=self._uuid, seen=seen, total=self._count))
        elif self.error is None and (wrong := contradiction(self._declared, self.pieces)) is not None:
            self._fail(wrong)

    def _add(self, chunk: Chunk) -> None:
        self._count = self._count or chunk.count
        if chunk.count != self._count:
            self._conflict(chunk, f"says {chunk.count} chunks, an earlier one {self._count}")
        elif chunk.count > self._max_chunks:
            self._too_large(chunk.count, self._max_chunks, "chunks (chunking.max_chunks)")
        elif self._positions and self._positions[-1] == chunk.position:
            if self._last is None or bytes(self._last) != bytes(chunk.piece):  # of views, comparing is ten times slower
                self._conflict(chunk, "came twice with different bytes")
        else:
            self._keep(chunk)

    def _keep(self, chunk: Chunk) -> None:
        self._positions.append(chunk.position)
        self._last = chunk.piece
        self.size += len(chunk.piece)
        if self.size > self._max_bytes:
            self._too_large(self.size, self._max_bytes, "bytes or more (chunking.max_payload_bytes)")
        elif chunk.position == len(self._positions) - 1:
            self.pieces.append(chunk.piece)
        else:  # one is missing: it cannot become whole
            self.pieces = []

    def _conflict(self, chunk: Chunk, why: str) -> None:
        text = words.conflicting(self._uuid, chunk.position, why)
        seen = len(self._positions)
        self._fail(ChunkConflictError(text, uuid=self._uuid, position=chunk.position, seen=seen, total=self._count))

    def _too_large(self, size: int, limit: int, what: str) -> None:
        self._fail(PayloadTooLargeError(words.too_large(self._uuid, size, limit, what), size=size, limit=limit))

    def _fail(self, error: ClaimCheckError) -> None:
        self.error, self.pieces, self._last = error, [], None
