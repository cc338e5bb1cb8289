"""The stateful operator of a stream: which chunks of a payload have come, and what is said when it is over.

It travels to Spark's processes as code, not by its name: the process that plans a stateful operator on the driver
sees nothing of ``--py-files`` and ``addArtifacts``. So nothing of claimcheck is imported here but `error_texts`, which
travels the same way. The names of the arguments below are Spark's contract: it passes them by keyword.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from claimcheck.spark._reassemble.error_texts import conflicting, incomplete, too_large

__all__ = ["OUTPUT", "PAYLOAD_STATE", "Limits", "Reassembler"]

OUTPUT = "uuid string, row binary, pieces array<binary>, error_type string, error_message string, declared string"
"""One payload: the row of its first chunk, packed; what leads to its pieces, in order; or what is wrong with it."""

PAYLOAD_STATE = "done boolean, count int, seen int, size bigint, lowest int, row binary, timer bigint, declared string"
_CHUNK_STATE = "digest binary, reference binary"
_OVER = 0x7FFFFFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What holds for one payload.

    Attributes:
        max_chunks: It may have.
        max_bytes: It may have.
        expire_ms: How long its first chunk waits for the others; 0 for ever.
        remember_ms: How long it is remembered when it is over.
        behind_ms: How far the time of timers is behind that of arrivals: a watermark is, a clock is not.
    """

    max_chunks: int
    max_bytes: int
    expire_ms: int
    remember_ms: int
    behind_ms: int = 0


@dataclass(frozen=True, slots=True)
class _Known:
    """What the state says of a payload."""

    done: bool = False
    count: int = 0
    seen: int = 0
    size: int = 0
    lowest: int = _OVER
    row: bytes | None = None
    timer: int = 0
    declared: str | None = None

    def values(self) -> tuple[Any, ...]:
        """The same as the state keeps it."""
        return (self.done, self.count, self.seen, self.size, self.lowest, self.row, self.timer, self.declared)


@dataclass(slots=True)
class _News:
    """What one micro-batch brings for a payload."""

    known: _Known
    chunks: dict[int, tuple[bytes, bytes | None]] = field(default_factory=dict)
    aborted: bool = False
    now: int = 0
    error: tuple[str, str] | None = None

    @property
    def is_whole(self) -> bool:
        return self.error is None and 0 < self.known.count == self.known.seen


class Reassembler(StatefulProcessor):
    """Notes the chunks of payloads, keyed by source and uuid.

    Args:
        limits: For one payload.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    def init(self, handle: Any) -> None:
        """Name the state: a few numbers for each payload, and a reference for each chunk that waits for others."""
        self._handle = handle
        self._payload = handle.getValueState("payload", PAYLOAD_STATE)
        self._chunks = handle.getMapState("chunks", "position int", _CHUNK_STATE)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        """Take what one micro-batch brings for one payload; gives its row when it is over."""
        state = self._payload.get()
        known = _Known() if state is None else _known(state)
        if known.done:
            return
        uuid, news = _uuid(key), _News(known)
        for row in rows:
            news.now = max(news.now, int(row.arrived) - self._limits.behind_ms)
            self._take(uuid, row, news, waited=state is not None)
        if news.is_whole:
            yield self._whole(uuid, news, waited=state is not None)
        elif news.error is not None:
            yield _failed(uuid, news.known.row, *news.error)
        elif not news.aborted:
            self._wait(news, is_new=state is None)
            return
        self._finish(known.timer, news.now)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803
        """A payload has waited too long, or was remembered long enough."""
        state = self._payload.get()
        known = None if state is None else _known(state)
        if known is None or known.timer != expiredTimerInfo.getExpiryTimeInMs():
            return
        if known.done:
            self._payload.clear()
            return
        positions = sorted(position for (position,) in self._chunks.keys())  # noqa: SIM118 - no dictionary
        why = f"expire_after_seconds ({self._limits.expire_ms / 1000:g}) passed"
        text = incomplete(_uuid(key), positions, known.count, why)
        yield _failed(_uuid(key), known.row, "IncompletePayloadError", text)
        self._finish(0, _now(timerValues, self._limits))

    def close(self) -> None:
        """Nothing is open."""

    # One micro-batch -------------------------------------------------------------------------------------------

    def _take(self, uuid: str, row: Row, news: _News, *, waited: bool) -> None:
        if row.position < 0:
            news.aborted = True
        elif news.error is None:
            news.error = self._contradiction(uuid, row, news, waited=waited) or self._excess(uuid, row, news)

    def _contradiction(self, uuid: str, row: Row, news: _News, *, waited: bool) -> tuple[str, str] | None:
        """What is wrong with a chunk among the others; a duplicate is left out here, a new one is noted."""
        known, position, digest = news.known, row.position, bytes(row.digest)
        if known.count and row.total != known.count:
            why = f"says {row.total} chunks, an earlier one {known.count}"
            return "ChunkConflictError", conflicting(uuid, position, why)
        earlier = news.chunks.get(position)
        if earlier is None and waited:
            earlier = self._chunks.getValue((position,))
        if earlier is not None:
            same = bytes(earlier[0]) == digest
            why = "came twice with different bytes"
            return None if same else ("ChunkConflictError", conflicting(uuid, position, why))
        news.chunks[position] = (digest, row.reference)
        first = position < known.lowest
        news.known = replace(
            known,
            count=row.total,
            seen=known.seen + 1,
            size=known.size + row.size,
            lowest=position if first else known.lowest,
            row=bytes(row.row) if first else known.row,
            declared=known.declared or row.declared,
        )
        return None

    def _excess(self, uuid: str, row: Row, news: _News) -> tuple[str, str] | None:
        size, count, limits = news.known.size, row.total, self._limits
        if count > limits.max_chunks:
            text = too_large(uuid, count, limits.max_chunks, "chunks (chunking.max_chunks)")
        elif size > limits.max_bytes:
            text = too_large(uuid, size, limits.max_bytes, "bytes or more (chunking.max_payload_bytes)")
        else:
            return None
        return "PayloadTooLargeError", text

    # Endings ---------------------------------------------------------------------------------------------------

    def _whole(self, uuid: str, news: _News, *, waited: bool) -> Row:
        references = {position: reference for position, (_, reference) in news.chunks.items()}
        if waited:
            references |= {key[0]: value[1] for key, value in self._chunks.iterator()}
        pieces = [bytes(references[position] or b"") for position in range(news.known.count)]
        known = news.known
        return Row(
            uuid=uuid, row=known.row, pieces=pieces, error_type=None, error_message=None, declared=known.declared
        )

    def _wait(self, news: _News, *, is_new: bool) -> None:
        for position, value in news.chunks.items():
            self._chunks.updateValue((position,), value)
        if is_new and self._limits.expire_ms:
            news.known = replace(news.known, timer=news.now + self._limits.expire_ms)
            self._handle.registerTimer(news.known.timer)
        self._payload.update(news.known.values())

    def _finish(self, timer: int, now: int) -> None:
        """Forget all but that it is over, and that not for ever."""
        if timer:
            self._handle.deleteTimer(timer)
        self._chunks.clear()
        over = _Known(done=True, timer=now + self._limits.remember_ms)
        self._handle.registerTimer(over.timer)
        self._payload.update(over.values())


def _known(state: Any) -> _Known:
    done, count, seen, size, lowest, row, timer, declared = state
    return _Known(done, count, seen, size, lowest, None if row is None else bytes(row), timer, declared)


def _uuid(key: Any) -> str:
    return str(json.loads(key[0])[-1])


def _now(values: Any, limits: Limits) -> int:
    return int(values.getCurrentWatermarkInMs() if limits.behind_ms else values.getCurrentProcessingTimeInMs())


def _failed(uuid: str, row: bytes | None, kind: str, text: str) -> Row:
    return Row(uuid=uuid, row=row, pieces=[], error_type=kind, error_message=text, declared=None)
