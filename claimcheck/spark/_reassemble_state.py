"""The stateful operator of `reassemble` on a stream: tracks the chunks of payloads in Spark's state.

It is pickled as code, not by name: the process that plans a stateful operator on the driver does not see ``--py-files``
or ``addArtifacts``. Nothing of claimcheck may be imported here except the rules for chunks, which are pickled the
same way. The names of arguments are Spark's: it passes them by keyword.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from zlib import crc32

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from claimcheck._receive.chunk_rules import Fault, fault_of, incomplete

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import (
        ExpiredTimerInfo,
        MapState,
        StatefulProcessorHandle,
        TimerValues,
        ValueState,
    )

OUTPUT = "uuid string, row binary, pieces array<binary>, error_type string, error_message string, declared string"
"""One payload: the packed row of its first chunk, references to its pieces in order, or its error.

A row without a uuid has references to chunks that are no longer needed.
"""

_PAYLOAD_STATE = "done boolean, count int, seen int, size bigint, lowest int, row binary, timer bigint, declared string"
_CHUNK_STATE = "digest binary, reference binary"
_NO_POSITION = 0x7FFFFFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits on one payload; 0 for ``expire_ms`` means never, and for ``behind_ms`` that the clock counts."""

    max_chunks: int
    max_bytes: int
    expire_ms: int
    remember_ms: int
    inline: bytes
    behind_ms: int = 0


@dataclass(frozen=True, slots=True)
class _PayloadState:
    done: bool = False
    count: int = 0
    seen: int = 0
    size: int = 0
    lowest: int = _NO_POSITION
    row: bytes | None = None
    timer: int = 0
    declared: str | None = None

    @classmethod
    def load(cls, values: Sequence[Any]) -> _PayloadState:
        done, count, seen, size, lowest, row, timer, declared = values
        return cls(done, count, seen, size, lowest, None if row is None else bytes(row), timer, declared)

    def values(self) -> tuple[object, ...]:
        return (self.done, self.count, self.seen, self.size, self.lowest, self.row, self.timer, self.declared)


@dataclass(slots=True)
class _MicroBatch:
    payload: _PayloadState
    chunks: dict[int, tuple[bytes, bytes | None]] = field(default_factory=dict)
    stored: list[bytes] = field(default_factory=list)
    aborted: bool = False
    now: int = 0
    error: Fault | None = None

    @property
    def is_complete(self) -> bool:
        return self.error is None and 0 < self.payload.count == self.payload.seen


class Reassembler(StatefulProcessor):
    """Tracks the chunks of payloads, keyed by source and uuid."""

    _handle: StatefulProcessorHandle
    _payload: ValueState
    _chunks: MapState

    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state: numbers per payload, and references to chunks of incomplete ones, also to duplicates."""
        self._handle = handle
        self._payload = handle.getValueState("payload", _PAYLOAD_STATE)
        self._chunks = handle.getMapState("chunks", "position int", _CHUNK_STATE)

    def handleInputRows(  # noqa: N802
        self,
        key: tuple[str],
        rows: Iterator[Row],
        timerValues: TimerValues,  # noqa: N803
    ) -> Iterator[Row]:
        """Add the chunks of one micro-batch to one payload; yields its row when it ends."""
        state, now = self._payload.get(), self._time(timerValues)
        payload = _PayloadState() if state is None else _PayloadState.load(state)
        if payload.done:
            yield from self._drop(payload, rows, now)
            return
        uuid, batch = _uuid(key), _MicroBatch(payload)
        for row in rows:
            batch.now = max(batch.now, int(row.arrived) - self._limits.behind_ms)
            batch.stored += self._stored(row.reference)
            self._add(uuid, row, batch, waited=state is not None)
        if batch.is_complete:
            yield self._complete(uuid, batch, waited=state is not None)
        elif batch.error is not None:
            yield _failed(uuid, batch.payload.row, batch.error)
        elif not batch.aborted:
            self._wait(batch, is_new=state is None)
            return
        self._finish(payload.timer, batch.now, now, batch.stored, waited=state is not None)

    def handleExpiredTimer(  # noqa: N802
        self,
        key: tuple[str],
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
    ) -> Iterator[Row]:
        """Expire an incomplete payload; release the references of a finished one, and later forget it."""
        state, now = self._payload.get(), self._time(timerValues)
        payload = None if state is None else _PayloadState.load(state)
        if payload is None or payload.timer != expiredTimerInfo.getExpiryTimeInMs():
            return
        if not payload.done:
            yield self._expired(_uuid(key), payload)
            self._finish(0, now, now, [], waited=True)
        elif payload.row:
            yield _row(pieces=_unpack(payload.row))
            self._end(now + self._limits.remember_ms)
        else:
            self._payload.clear()

    def close(self) -> None:
        """Do nothing: Spark requires this method."""

    def _time(self, values: TimerValues) -> int:
        """Return the time of timers in this micro-batch; it is the same when the micro-batch is replayed."""
        by_data = self._limits.behind_ms
        return int(values.getCurrentWatermarkInMs() if by_data else values.getCurrentProcessingTimeInMs())

    def _add(self, uuid: str, row: Row, batch: _MicroBatch, *, waited: bool) -> None:
        """Add a chunk, unless it is a duplicate, or does not fit to those before it."""
        if row.position < 0:
            batch.aborted = True
        if row.position < 0 or batch.error is not None:
            return
        payload, position, digest = batch.payload, row.position, bytes(row.digest)
        earlier = batch.chunks.get(position)
        if earlier is None and waited:
            earlier = self._chunks.getValue((position,))
        is_new = earlier is None
        size = payload.size + (row.size if is_new else 0)
        batch.error = fault_of(
            uuid,
            position,
            row.total,
            total=payload.count or row.total,
            seen=payload.seen,
            size=size,
            same=None if earlier is None else bytes(earlier[0]) == digest,
            max_chunks=self._limits.max_chunks,
            max_bytes=self._limits.max_bytes,
        )
        if payload.row is None or (is_new and batch.error is None and position < payload.lowest):
            batch.payload = payload = replace(payload, lowest=position, row=bytes(row.row))
        if is_new and batch.error is None:
            batch.chunks[position] = (digest, row.reference)
            declared = payload.declared or row.declared
            batch.payload = replace(payload, count=row.total, seen=payload.seen + 1, size=size, declared=declared)

    def _complete(self, uuid: str, batch: _MicroBatch, *, waited: bool) -> Row:
        payload = batch.payload
        references = {position: reference for position, (_, reference) in batch.chunks.items()}
        if waited:
            references |= {key[0]: value[1] for key, value in self._chunks.iterator()}
        pieces = [bytes(references[position] or b"") for position in range(payload.count)]
        return _row(uuid=uuid, row=payload.row, pieces=pieces, declared=payload.declared)

    def _wait(self, batch: _MicroBatch, *, is_new: bool) -> None:
        kept = {bytes(reference or b"") for _, reference in batch.chunks.values()}
        duplicates = {-1 - (crc32(each) >> 1): (b"", each) for each in batch.stored if each not in kept}  # to delete
        for position, value in (batch.chunks | duplicates).items():
            self._chunks.updateValue((position,), value)
        if is_new and self._limits.expire_ms:
            batch.payload = replace(batch.payload, timer=batch.now + self._limits.expire_ms)
            self._handle.registerTimer(batch.payload.timer)
        self._payload.update(batch.payload.values())

    def _expired(self, uuid: str, payload: _PayloadState) -> Row:
        positions = [each for (each,) in self._chunks.keys() if each >= 0]  # noqa: SIM118 - not a dictionary
        why = f"expire_after_seconds ({self._limits.expire_ms / 1000:g}) passed"
        return _failed(uuid, payload.row, incomplete(uuid, positions, payload.count, why))

    # Payloads that have ended --------------------------------------------------------------------------------------

    def _finish(self, timer: int, arrived: int, now: int, stored: list[bytes], *, waited: bool) -> None:
        """Drop all state except that the payload has ended, and the references to its stored chunks."""
        if timer:
            self._handle.deleteTimer(timer)
        if waited:
            for _, (_, reference) in self._chunks.iterator():
                stored += self._stored(reference)
            self._chunks.clear()
        self._end(now + 1 if stored else arrived + self._limits.remember_ms, stored)

    def _end(self, timer: int, stored: Collection[bytes] = ()) -> None:
        self._handle.registerTimer(timer)
        self._payload.update(_PayloadState(done=True, timer=timer, row=_pack(stored) if stored else None).values())

    def _drop(self, payload: _PayloadState, rows: Iterator[Row], now: int) -> Iterator[Row]:
        """Drop late chunks of a payload that has ended: they were stored again, and are released again."""
        late = [reference for row in rows for reference in self._stored(row.reference)]
        if not late:
            return
        self._handle.deleteTimer(payload.timer)
        earlier = _unpack(payload.row)
        if earlier and payload.timer <= now:  # it was set by an earlier micro-batch
            yield _row(pieces=earlier)
            earlier = []
        self._end(now + 1, [*earlier, *late])

    def _stored(self, reference: bytes | None) -> list[bytes]:
        """Return the reference to a chunk in a list, unless it is the chunk itself."""
        is_inline = reference is None or bytes(reference).startswith(self._limits.inline)
        return [] if reference is None or is_inline else [bytes(reference)]


def _uuid(key: tuple[str]) -> str:
    return str(json.loads(key[0])[-1])


def _failed(uuid: str, row: bytes | None, fault: Fault) -> Row:
    return _row(uuid=uuid, row=row, error_type=fault.kind, error_message=fault.text)


def _row(**values: Any) -> Row:
    empty = dict.fromkeys(("uuid", "row", "pieces", "error_type", "error_message", "declared"))
    return Row(**(empty | {"pieces": []} | values))


def _pack(references: Iterable[bytes]) -> bytes:
    """Join references, each after its length: arrays in state do not work in all versions of Spark."""
    return b"".join(len(reference).to_bytes(4, "big") + reference for reference in references)


def _unpack(packed: bytes | None) -> list[bytes]:
    references, rest = list[bytes](), memoryview(packed or b"")
    while rest:
        end = 4 + int.from_bytes(rest[:4], "big")
        references.append(bytes(rest[4:end]))
        rest = rest[end:]
    return references
