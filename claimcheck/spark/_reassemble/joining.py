"""The last stage of a stream: references become the bytes that they lead to, in order, and those one payload."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from claimcheck._envelope import Buffer
from claimcheck.config import Config
from claimcheck.errors import ClaimCheckError, ConfigError
from claimcheck.spark._columns import error_value
from claimcheck.spark._fetching import is_bad_message, outcomes
from claimcheck.spark._metrics import Tally
from claimcheck.spark._reassemble.arrow_output import Done, added_columns, count, cut
from claimcheck.spark._reassemble.chunk_heads import contradiction
from claimcheck.spark._reassemble.chunk_storage import unpacked
from claimcheck.spark._reassemble.options import Options, Places
from claimcheck.spark._worker import claim_check, pace

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Joining"]

_NO_ERROR: dict[str, Any] = {"type": None, "message": None, "store": None, "key": None}


@dataclass(slots=True)
class _Payload:
    """One payload on its way."""

    uuid: str
    row: pa.RecordBatch
    waiting: int
    error: dict[str, Any] | None
    declared: str | None
    pieces: list[Buffer] = field(default_factory=list)

    def take(self, outcome: bytes | ClaimCheckError | None, config: Config) -> None:
        self.waiting -= 1
        if isinstance(outcome, ClaimCheckError):
            if not is_bad_message(outcome, config):
                raise outcome
            self.error, self.pieces = self.error or error_value(outcome), []
        elif self.error is None:
            self.pieces.append(outcome or b"")

    def done(self) -> Done:
        if self.error is None and (wrong := contradiction(self.declared, self.pieces)) is not None:
            self.error, self.pieces = error_value(wrong), []
        pieces = None if self.error else self.pieces
        return Done(self.row, 0, False, self.uuid, pieces, self.error, sum(map(len, self.pieces)))


@dataclass(frozen=True, slots=True)
class Joining:
    """Called once per partition, with what the stateful operator says: a value that pickles and opens nothing."""

    options: Options
    places: Places
    names: tuple[str, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read chunks; gives rows as the result has them."""
        kind: pa.DataType | None = None

        def seen() -> Iterator[pa.RecordBatch]:
            nonlocal kind
            for batch in batches:
                kind = batch.schema.field("row").type
                yield batch

        with closing(self._done(seen())) as done:
            for rows in cut(done, max_bytes=self.options.out_batch_bytes):
                yield self._output(rows, kind)

    def _done(self, batches: Iterable[pa.RecordBatch]) -> Generator[Done]:
        ahead: deque[_Payload] = deque()

        def references() -> Iterator[bytes | None]:
            for batch in batches:
                for payload, column, number in self._payloads(batch):
                    ahead.append(payload)
                    if payload.error is not None:
                        yield None
                    for reference in column[number].values or ():
                        yield None if payload.error else reference.as_py()

        config, tally = self.options.config, Tally(self.options.metrics)
        results = outcomes(
            references(),
            claim_check(config),
            pace=pace(config, self.options.concurrency),
            max_inflight_bytes=self.options.max_inflight_bytes,
            waited=tally.close,
        )
        with closing(results):
            for outcome in results:
                ahead[0].take(outcome, config)
                if ahead[0].waiting == 0:
                    done = ahead.popleft().done()
                    count(tally, done, store=config.store)
                    yield done

    def _payloads(self, batch: pa.RecordBatch) -> Iterator[tuple[_Payload, pa.Array, int]]:
        uuids, rows = batch.column("uuid").to_pylist(), batch.column("row")
        kinds, texts = batch.column("error_type").to_pylist(), batch.column("error_message").to_pylist()
        pieces, declared = batch.column("pieces"), batch.column("declared").to_pylist()
        for number, uuid in enumerate(uuids):
            error = None if kinds[number] is None else _NO_ERROR | {"type": kinds[number], "message": texts[number]}
            waiting = 1 if error else len(pieces[number].values)
            row = self._checked(unpacked(rows[number].as_py()))
            yield _Payload(uuid, row, waiting, error, declared[number]), pieces, number

    def _checked(self, row: pa.RecordBatch) -> pa.RecordBatch:
        """A row that waited from before a restart has the columns of that time."""
        expected = [*self.names[: self.places.value], *self.names[self.places.value + 1 : -3]]
        if row.schema.names != expected:
            raise ConfigError(
                f"the checkpoint of this query holds chunks of a DataFrame of {row.num_columns + 1} columns, now "
                f"it has {len(expected) + 1}: reassemble the same columns again, or begin with a new checkpoint",
                path="checkpointLocation",
            )
        return row

    def _output(self, rows: list[Done], kind: pa.DataType) -> pa.RecordBatch:
        import pyarrow as pa

        first = rows[0].batch.schema
        kept = pa.Table.from_batches([_as(row.batch, first) for row in rows]).combine_chunks()
        columns = [column.chunk(0) for column in kept.columns]
        columns.insert(self.places.value, pa.nulls(len(rows), kind))
        return pa.RecordBatch.from_arrays([*columns, *added_columns(rows, kind)], names=list(self.names))


def _as(row: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Times of another session may be written in another zone; they mean the same."""
    import pyarrow as pa

    if row.schema.equals(schema):
        return row
    columns = [column.cast(field.type) for column, field in zip(row.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
