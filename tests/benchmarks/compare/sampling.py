"""The payload sizes of messages that are already in a topic, whatever strategy their writers used."""

from __future__ import annotations

from claimcheck._wire import headers as hints
from claimcheck._wire import pointer as pointers
from claimcheck._wire.envelope import Abort, Chunk, Literal, PointerData, decode
from claimcheck.errors import EnvelopeError

_MAX_DIGITS = 12


class PayloadSizes:
    """Collects payload sizes: an envelope counts with its payload, the chunks of a payload count once.

    Messages without a payload are not counted: tombstones, abort envelopes, damaged envelopes, and pointers that do
    not say a size.
    """

    def __init__(self) -> None:
        self._sizes: list[int] = []
        self._chunks: dict[str, tuple[int, int]] = {}  # by uuid: where in `_sizes`, and the bytes of its largest piece

    @property
    def sizes(self) -> list[int]:
        """The sizes so far, in the order of the payloads' first messages."""
        return list(self._sizes)

    def add(self, value: bytes | None, headers: object) -> None:
        """Count one message."""
        if value is None:
            return
        try:
            message = decode(value)
            declared = _declared(headers)
            if isinstance(message, Chunk):
                self._add_chunk(message, declared)
            elif isinstance(message, PointerData):
                size = pointers.decode(message.data).size
                self._append(declared if size is None else size)
            elif not isinstance(message, Abort):
                self._append(len(message.payload) if isinstance(message, Literal) else len(value))
        except EnvelopeError:
            return

    def _append(self, size: int | None) -> None:
        if size is not None:
            self._sizes.append(size)

    def _add_chunk(self, chunk: Chunk, declared: int | None) -> None:
        """Without a declared size, a payload is as large as its number of chunks times the largest one seen."""
        index, largest = self._chunks.get(chunk.uuid, (len(self._sizes), 0))
        largest = max(largest, len(chunk.piece))
        size = chunk.count * largest if declared is None else declared
        if chunk.uuid in self._chunks:
            self._sizes[index] = size
        else:
            self._sizes.append(size)
        self._chunks[chunk.uuid] = (index, largest)


def _declared(headers: object) -> int | None:
    text = hints.get(headers, hints.SIZE, limit=_MAX_DIGITS + 1) if hints.is_ours(headers) else None
    is_size = text is not None and text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS
    return int(text) if text is not None and is_size else None
