"""The first stage of a stream: every chunk goes into the store, and a small row with a reference goes on.

A task that runs again, or a batch that is replayed after the driver died, writes the same chunks under the same
names, so that nothing is left over. A reference is a message that resolves to the chunk's piece: an envelope with a
pointer, or, for a piece that is no larger than a pointer, a literal.
"""

from __future__ import annotations

import hashlib
import io
import json
import uuid
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from claimcheck._client import ClaimCheck
from claimcheck._envelope import Abort, Chunk, decode, encode_literal
from claimcheck._store import Store
from claimcheck._validation import fail
from claimcheck.spark._fetching import Job, Line
from claimcheck.spark._reassemble.chunk_heads import ABORT
from claimcheck.spark._reassemble.options import Options, Places
from claimcheck.spark._rows import views
from claimcheck.spark._worker import claim_check, pace, query_id

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["STORED", "Storing", "unpacked"]

STORED = (
    "key string, position int, total int, size bigint, digest binary, reference binary, row binary, declared string"
)
"""One chunk: whose it is, its place there, what identifies its content and leads to it, what is said of the whole."""

_NAMES = tuple(field.split()[0] for field in STORED.split(", "))
_INLINE_BYTES = 512
_DIGEST_BYTES = 16
_MAX_ROWS = 1024


class _Part(NamedTuple):
    """A chunk, or the word that there will be no more."""

    key: str
    chunk: Chunk | Abort
    row: bytes
    declared: str | None


@dataclass(frozen=True, slots=True)
class Storing:
    """Called once per partition, with rows of chunks or aborts, and last what headers declare: opens nothing."""

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
        cc, options = claim_check(self.options.config), self.options
        writer = _Writer(options, cc, _store(cc, options), query_id() or "")
        learnt = pace(options.config, options.concurrency, "write")
        line = Line[dict[str, Any]](learnt, options.max_inflight_bytes, measure=lambda row: 0)
        try:
            yield from line.run(writer.job(part) for part in self._parts(batches))
        finally:
            line.close()

    def _parts(self, batches: Iterable[pa.RecordBatch]) -> Iterator[_Part]:
        header = self.options.config.header
        for batch in batches:
            *columns, last = range(batch.num_columns)
            others = [index for index in columns if index != self.places.value]
            kept, values, declared = batch.select(others), batch.column(self.places.value), batch.column(last)
            sources = [batch.column(index).to_pylist() for index in self.places.source]
            for number, value in enumerate(views(values)):
                part = decode(value or b"", header=header)
                if isinstance(part, (Chunk, Abort)):
                    key = _key([column[number] for column in sources], part.uuid)
                    yield _Part(key, part, _packed(kept.slice(number, 1)), declared[number].as_py())


class _Writer:
    """Stores chunks, each under a name that follows from what it is."""

    def __init__(self, options: Options, cc: ClaimCheck, store: Store, query: str) -> None:
        self._options, self._cc, self._store, self._query = options, cc, store, query

    def job(self, part: _Part) -> Job[dict[str, Any]]:
        """The work of storing one chunk; gives its row."""
        chunk = part.chunk
        if not isinstance(chunk, Chunk) or self._is_over(chunk):
            return Job(lambda: _row(part, None), 0, waits=False)
        return Job(lambda: _row(part, self._stored(part.key, chunk)), len(chunk.piece), waits=not _is_small(chunk))

    def _is_over(self, chunk: Chunk) -> bool:
        """Whether its payload is refused anyway, where all chunks are counted."""
        config = self._options.config
        return chunk.count > config.chunks.max_chunks or len(chunk.piece) > self._options.max_payload_bytes

    def _stored(self, key: str, chunk: Chunk) -> tuple[bytes, bytes]:
        """What identifies a chunk and its content, and what leads to it."""
        place = json.dumps([self._query, key, chunk.position, chunk.count]).encode()
        hashed = hashlib.blake2b(b"%d %b" % (len(place), place), digest_size=_DIGEST_BYTES)
        hashed.update(chunk.piece)
        digest = hashed.digest()
        if _is_small(chunk):
            return digest, encode_literal(chunk.piece, header=self._cc.config.header)
        name, identity = f"chunk-{chunk.uuid}", uuid.UUID(bytes=digest)
        return digest, self._cc.seal(self._store.write(chunk.piece, destination=name, identity=identity))


def _is_small(chunk: Chunk) -> bool:
    return len(chunk.piece) <= _INLINE_BYTES


def _store(cc: ClaimCheck, options: Options) -> Store:
    store = cc.store(options.config.store or "")
    if store.ttl_seconds is not None and store.ttl_seconds <= options.expire_after_seconds:
        fail(
            f"stores.{options.config.store}.ttl_seconds",
            found=f"{store.ttl_seconds:g}",
            expected=f"well above expire_after_seconds ({options.expire_after_seconds:g}): chunks rest there meanwhile",
        )
    return store


def _key(source: list[Any], uuid: str) -> str:
    return json.dumps([value.hex() if isinstance(value, bytes) else value for value in source] + [uuid])


def _row(part: _Part, stored: tuple[bytes, bytes] | None) -> dict[str, Any]:
    digest, reference = stored or (b"", None)
    chunk = part.chunk
    position, total, size = ABORT, 0, 0
    if isinstance(chunk, Chunk):
        position, total, size = chunk.position, chunk.count, len(chunk.piece)
    values = (part.key, position, total, size, digest, reference, part.row, part.declared)
    return dict(zip(_NAMES, values, strict=True))


def _batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    import pyarrow as pa

    kinds = (pa.string(), pa.int32(), pa.int32(), pa.int64(), pa.binary(), pa.binary(), pa.binary(), pa.string())
    return pa.RecordBatch.from_pylist(rows, schema=pa.schema(list(zip(_NAMES, kinds, strict=True))))


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
