"""The first stage of a stream: every chunk goes into the store, and a small row with a reference goes on.

A task that runs again, or a batch that is replayed after the driver died, writes the same chunks under the same
names, so that nothing is left over. A reference is a message that resolves to the chunk's piece: an envelope with a
pointer, or, for a piece that is no larger than a pointer, a literal.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import io
import json
import uuid
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from claimcheck.envelope import Abort, Buffer, Chunk, decode, encode_literal
from claimcheck.errors import ClaimCheckError
from claimcheck.pointer import Pointer
from claimcheck.spark.core import Pace, outcomes
from claimcheck.spark.reassembly.heads import ABORT
from claimcheck.spark.reassembly.options import Options, Places
from claimcheck.spark.worker import claim_check
from claimcheck.store import Store
from claimcheck.validation import fail
from claimcheck.wiring import ClaimCheck

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["STORED", "Storing", "unpacked"]

STORED = "key string, position int, total int, size bigint, digest binary, reference binary, row binary"
"""One chunk: whose it is and where its place is there, what identifies its content, what leads to its piece."""

_INLINE_BYTES = 512
_DIGEST_BYTES = 16
_MAX_ROWS = 1024


class _Part(NamedTuple):
    """A chunk, or the word that there will be no more."""

    key: str
    chunk: Chunk | Abort
    row: bytes


@dataclass(frozen=True, slots=True)
class Storing:
    """Called once per partition, with rows that are chunks or aborts: a value that pickles and opens nothing."""

    options: Options
    places: Places

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Store chunks; gives rows as `STORED` has them."""
        with closing(self._stored(batches)) as stored:
            rows = list[dict[str, Any]]()
            for row in stored:
                rows.append(row)
                if len(rows) >= _MAX_ROWS:
                    yield _batch(rows)
                    rows = []
        if rows:
            yield _batch(rows)

    def _stored(self, batches: Iterable[pa.RecordBatch]) -> Generator[dict[str, Any]]:
        ahead: deque[_Part] = deque()

        def parts() -> Iterator[_Part | None]:
            for part in self._parts(batches):
                ahead.append(part)
                yield part if self._is_to_be_stored(part) else None

        cc = claim_check(self.options.config)
        writer = cast(Any, _Writer(cc, _store(cc, self.options), _query()))
        pace, most = Pace(self.options.concurrency), self.options.max_inflight_bytes
        with closing(outcomes(cast(Any, parts()), writer, pace=pace, max_inflight_bytes=most)) as results:
            for outcome in results:
                if isinstance(outcome, ClaimCheckError):
                    raise outcome
                yield _row(ahead.popleft(), outcome)

    def _parts(self, batches: Iterable[pa.RecordBatch]) -> Iterator[_Part]:
        header = self.options.config.header
        for batch in batches:
            others = [index for index in range(batch.num_columns) if index != self.places.value]
            kept, values = batch.select(others), batch.column(self.places.value)
            sources = [batch.column(index).to_pylist() for index in self.places.source]
            for number in range(len(batch)):
                part = decode(memoryview(values[number].as_buffer()), header=header)
                if isinstance(part, (Chunk, Abort)):
                    key = _key([column[number] for column in sources], part.uuid)
                    yield _Part(key, part, _packed(kept.slice(number, 1)))

    def _is_to_be_stored(self, part: _Part) -> bool:
        """Not what is refused anyway: the limits say so where all chunks are counted."""
        chunk, limits = part.chunk, self.options
        return (
            isinstance(chunk, Chunk)
            and len(chunk.piece) <= limits.max_payload_bytes
            and chunk.count <= limits.config.chunks.max_chunks
        )


class _Writer:
    """What `claimcheck.spark.core.outcomes` asks for each chunk: how much it weighs, and to do it."""

    def __init__(self, cc: ClaimCheck, store: Store, query: str) -> None:
        self._cc, self._store, self._query = cc, store, query

    def pointer(self, part: _Part) -> Pointer | None:
        """What storing a chunk will cost; small ones cost nothing."""
        piece = cast(Chunk, part.chunk).piece
        return Pointer(key="-", size=len(piece) if len(piece) > _INLINE_BYTES else 0)

    def resolve(self, part: _Part | None) -> bytes | None:
        """Store a chunk; gives its digest and its reference."""
        if part is None:
            return None
        piece = cast(Chunk, part.chunk).piece
        digest = self._digest(part, piece)
        return digest + self._reference(part, piece, digest)

    def _digest(self, part: _Part, piece: Buffer) -> bytes:
        chunk = cast(Chunk, part.chunk)
        place = json.dumps([self._query, part.key, chunk.position, chunk.count])
        digest = hashlib.blake2b(f"{len(place)} {place}".encode(), digest_size=_DIGEST_BYTES)
        digest.update(piece)
        return digest.digest()

    def _reference(self, part: _Part, piece: Buffer, digest: bytes) -> bytes:
        if len(piece) <= _INLINE_BYTES:
            return encode_literal(piece, header=self._cc.config.header)
        name, identity = f"chunk-{part.chunk.uuid}", uuid.UUID(bytes=digest)
        return self._cc.seal(_write(self._store, piece, name, identity))


def _write(store: Store, piece: Buffer, name: str, identity: uuid.UUID) -> Pointer:
    twin = copy.copy(store)  # TODO: Store.write(..., identity=identity)
    twin.context = dataclasses.replace(store.context, new_uuid=lambda: identity)
    return twin.write(piece, destination=name)


def _store(cc: ClaimCheck, options: Options) -> Store:
    store = cc.store(options.config.store or "")
    if store.ttl_seconds is not None and store.ttl_seconds <= options.expire_after_seconds:
        fail(
            f"stores.{options.config.store}.ttl_seconds",
            found=f"{store.ttl_seconds:g}",
            expected=f"well above expire_after_seconds ({options.expire_after_seconds:g}): chunks rest there meanwhile",
        )
    return store


def _query() -> str:
    """The query's own id, the same after every restart from its checkpoint."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return (None if context is None else context.getLocalProperty("sql.streaming.queryId")) or ""


def _key(source: list[Any], uuid: str) -> str:
    return json.dumps([value.hex() if isinstance(value, bytes) else value for value in source] + [uuid])


def _row(part: _Part, stored: bytes | None) -> dict[str, Any]:
    known = (part.key, part.row)
    if isinstance(part.chunk, Abort):
        return _values(known, ABORT, 0, 0, None)
    return _values(known, part.chunk.position, part.chunk.count, len(part.chunk.piece), stored)


def _values(known: tuple[str, bytes], position: int, count: int, size: int, stored: bytes | None) -> dict[str, Any]:
    return {
        "key": known[0],
        "position": position,
        "total": count,
        "size": size,
        "digest": b"" if stored is None else stored[:_DIGEST_BYTES],
        "reference": None if stored is None else stored[_DIGEST_BYTES:],
        "row": known[1],
    }


def _batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    import pyarrow as pa

    kinds = {"string": pa.string(), "int": pa.int32(), "bigint": pa.int64(), "binary": pa.binary()}
    fields = [field.split() for field in STORED.split(", ")]
    return pa.RecordBatch.from_pylist(rows, schema=pa.schema([(name, kinds[kind]) for name, kind in fields]))


def _packed(row: pa.RecordBatch) -> bytes:
    """The other columns of a row, whatever their types, for a state that need not know them."""
    import pyarrow as pa

    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, row.schema) as stream:
        stream.write_batch(row)
    return sink.getvalue()


def unpacked(row: bytes) -> pa.RecordBatch:
    """Undo the packing of a row's other columns."""
    import pyarrow as pa

    return pa.ipc.open_stream(row).read_next_batch()
