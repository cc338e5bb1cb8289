"""The stateful operator of `reassemble` on a stream: tracks the chunks of payloads in Spark's state.

It is pickled as code, not by name: the process that plans a stateful operator on the driver does not see ``--py-files``
or ``addArtifacts``. Nothing of claimcheck may be imported here except the rules for chunks, which are pickled the
same way. The names of arguments are Spark's: it passes them by keyword.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import astuple, dataclass, field, replace
from typing import TYPE_CHECKING, Any

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
"""One payload: the packed row of its first chunk, references to its pieces in order, or its error."""

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
    behind_ms: int = 0


@dataclass(frozen=True, slots=True)
class _PayloadState:
    done: bool = False
    total: int = 0
    seen: int = 0
    size: int = 0
    lowest: int = _NO_POSITION
    row: bytes | None = None
    timer: int = 0
    declared: str | None = None


@dataclass(slots=True)
class _MicroBatch:
    payload: _PayloadState
    chunks: dict[int, tuple[bytes, bytes | None]] = field(default_factory=dict)
    aborted: bool = False
    now: int = 0
    error: Fault | None = None

    @property
    def is_complete(self) -> bool:
        return self.error is None and 0 < self.payload.total == self.payload.seen


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
        state = self._payload.get()
        payload = _PayloadState(*(state or ()))
        if payload.done:
            return  # late duplicates
        uuid, batch = _uuid(key), _MicroBatch(payload)
        for row in rows:
            batch.now = max(batch.now, int(row.arrived) - self._limits.behind_ms)
            self._add(uuid, row, batch, waited=state is not None)
        if batch.is_complete:
            yield self._complete(uuid, batch, waited=state is not None)
        elif batch.error is not None:
            yield _failed(uuid, batch.payload.row, batch.error)
        elif not batch.aborted:
            self._wait(batch, is_new=state is None)
            return
        if payload.timer:
            self._handle.deleteTimer(payload.timer)
        self._end(batch.now)

    def handleExpiredTimer(  # noqa: N802
        self,
        key: tuple[str],
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
    ) -> Iterator[Row]:
        """Expire an incomplete payload, and later forget it."""
        state = self._payload.get()
        payload = None if state is None else _PayloadState(*state)
        if payload is None or payload.timer != expiredTimerInfo.getExpiryTimeInMs():
            return
        if not payload.done:
            yield self._expired(_uuid(key), payload)
            self._end(self._time(timerValues))
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
            total=payload.total or row.total,
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
            batch.payload = replace(payload, total=row.total, seen=payload.seen + 1, size=size, declared=declared)

    def _complete(self, uuid: str, batch: _MicroBatch, *, waited: bool) -> Row:
        payload = batch.payload
        references = {position: reference for position, (_, reference) in batch.chunks.items()}
        if waited:
            references |= {key[0]: value[1] for key, value in self._chunks.iterator()}
        pieces = [bytes(references[position] or b"") for position in range(payload.total)]
        return _row(uuid=uuid, row=payload.row, pieces=pieces, declared=payload.declared)

    def _wait(self, batch: _MicroBatch, *, is_new: bool) -> None:
        for position, value in batch.chunks.items():
            self._chunks.updateValue((position,), value)
        if is_new and self._limits.expire_ms:
            batch.payload = replace(batch.payload, timer=batch.now + self._limits.expire_ms)
            self._handle.registerTimer(batch.payload.timer)
        self._payload.update(astuple(batch.payload))

    def _expired(self, uuid: str, payload: _PayloadState) -> Row:
        positions = [each for (each,) in self._chunks.keys()]  # noqa: SIM118 - not a dictionary
        why = f"expire_after_seconds ({self._limits.expire_ms / 1000:g}) passed"
        return _failed(uuid, payload.row, incomplete(uuid, positions, payload.total, why))

    def _end(self, now: int) -> None:
        """Drop all state, except that the payload has ended."""
        self._chunks.clear()
        timer = now + self._limits.remember_ms
        self._handle.registerTimer(timer)
        self._payload.update(astuple(_PayloadState(done=True, timer=timer)))


def _uuid(key: tuple[str]) -> str:
    return str(json.loads(key[0])[-1])


def _failed(uuid: str, row: bytes | None, fault: Fault) -> Row:
    return _row(uuid=uuid, row=row, error_type=fault.kind, error_message=fault.text)


def _row(**values: Any) -> Row:
    empty = dict.fromkeys(("uuid", "row", "pieces", "error_type", "error_message", "declared"))
    return Row(**(empty | {"pieces": []} | values))
