"""Rows on their way through a worker: read from Arrow batches, each with what became of its message, and cut again."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from claimcheck.config import Config
from claimcheck.envelope import Buffer
from claimcheck.errors import ChunkError, PayloadTooLargeError
from claimcheck.pointer import Pointer
from claimcheck.spark.columns import arrow_error_type, error_value
from claimcheck.spark.core import (
    Concurrency,
    Outcome,
    Resolving,
    check_bytes,
    check_reading,
    outcomes,
    weight,
)
from claimcheck.spark.metrics import Tally, check_metrics, store_of
from claimcheck.spark.row import Faults, Row
from claimcheck.spark.values import views
from claimcheck.spark.worker import pace

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Group", "Reading", "RowByRow", "error_array", "grouped", "messages_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How a stage reads payloads: a value that pickles and opens nothing.

    Attributes:
        config: Of the stores.
        concurrency: Fetches at once.
        max_inflight_bytes: Payload bytes that are fetched ahead.
        out_batch_bytes: Payload bytes per Arrow batch.
        faults: What becomes of bad rows.
        metrics: What counts, if anything does.

    Raises:
        ConfigError: A number that cannot be meant.
    """

    config: Config
    concurrency: Concurrency
    max_inflight_bytes: int
    out_batch_bytes: int
    faults: Faults
    metrics: Any = None

    def __post_init__(self) -> None:
        check_metrics(self.metrics)
        check_reading(concurrency=self.concurrency, max_inflight_bytes=self.max_inflight_bytes)
        check_bytes("out_batch_bytes", self.out_batch_bytes)

    def keeps(self, row: Row, error: Exception) -> bool:
        """Whether a row whose payload could not be read stays; raises what fails the task, see `Faults.keeps`."""
        return self.faults.keeps(row, error, self.config)

    def rows(
        self, messages: Iterable[tuple[Row, bytes | None]], cc: Resolving
    ) -> Generator[tuple[Row, bytes | None, Outcome]]:
        """Every row, its message and what became of it; reads rows as far ahead as payloads are fetched."""
        ahead: deque[tuple[Row, bytes | None]] = deque()

        def taken() -> Iterator[bytes | None]:
            for each in messages:
                ahead.append(each)
                yield each[1]

        tally, learnt = Tally(self.metrics), pace(self.config, self.concurrency)
        results = outcomes(taken(), cc, pace=learnt, max_inflight_bytes=self.max_inflight_bytes, waited=tally.close)
        with closing(results):
            for outcome in results:
                row, message = ahead.popleft()
                if tally:
                    _count(tally, cc, message, outcome)
                yield row, message, outcome


def _count(tally: Tally, cc: Resolving, message: bytes | None, outcome: Outcome) -> None:
    if isinstance(outcome, Exception):
        tally.row(0, error=type(outcome).__name__)
    else:
        tally.row(weight(outcome), store=store_of(None if message is None else cc.pointer(message)))


def messages_of(
    batches: Iterable[pa.RecordBatch], index: int, names: tuple[str, ...]
) -> Iterator[tuple[Row, bytes | None]]:
    """Every row with the value of one column."""
    for batch in batches:
        for number, message in enumerate(views(batch.column(index))):
            yield Row(batch, number, names), None if message is None else bytes(message)


class RowByRow:
    """A `Resolving` for rows that stand for themselves; refuses, before any I/O, what no column can hold.

    Args:
        cc: Resolves.
        max_bytes: Of one payload; ``None`` where it goes into no column.
    """

    def __init__(self, cc: Resolving, *, max_bytes: int | None = None) -> None:
        self._cc, self._max_bytes = cc, max_bytes

    def resolve(self, message: Buffer | None, /) -> bytes | None:
        """Return the payload of one message."""
        try:
            return self._cc.resolve(message)
        except ChunkError as error:
            raise ChunkError(
                f"a chunk of {error.uuid} is no row of its own: put them together with df.transform(reassemble(...)), "
                "or, where all chunks of a payload are in one partition of an RDD, with "
                'mapPartitions(resolver(..., chunks="reassemble"))',
                uuid=error.uuid,
                total=error.total,
            ) from error

    def pointer(self, message: Buffer, /) -> Pointer | None:
        """Return the pointer that a message carries, if it carries one."""
        return self._cc.pointer(message)

    def read(self, pointer: Pointer, /) -> bytes:
        """Return the payload that a pointer names, if a column can hold it."""
        if self._max_bytes is not None and (pointer.size or 0) > self._max_bytes:
            raise PayloadTooLargeError(
                f"a payload of {pointer.size} bytes fits no Spark column ({self._max_bytes} bytes): "
                "use it inside the worker, with map_payloads(..., as_file=True), up to limits.max_payload_bytes",
                store=pointer.store,
                key=pointer.key,
                size=pointer.size,
                limit=self._max_bytes,
            )
        return self._cc.read(pointer)


class Group(NamedTuple):
    """Rows of one batch that leave together, and a value for each."""

    batch: pa.RecordBatch
    numbers: list[int]
    values: list[Any]

    def widened(self, added: Sequence[pa.Array]) -> pa.RecordBatch:
        """The rows with more columns; all are called by their places, ``c0`` and ``a0``: Spark asks for no names."""
        import pyarrow as pa

        first, count = self.numbers[0], len(self.numbers)
        in_a_row = self.numbers == list(range(first, first + count))  # none left out, none several times
        kept = self.batch.slice(first, count) if in_a_row else self.batch.take(pa.array(self.numbers))
        names = [f"c{place}" for place in range(kept.num_columns)] + [f"a{place}" for place in range(len(added))]
        return pa.RecordBatch.from_arrays([*kept.columns, *added], names=names)


def grouped(rows: Iterable[tuple[Row, Any, int]], *, max_bytes: int, max_rows: int = 1 << 14) -> Iterator[Group]:
    """Cut by bytes: Spark bounds what goes into a worker, but nothing bounds what comes out of it.

    Args:
        rows: Each with a value and its bytes.
        max_bytes: Per group; a value that alone is larger is a group of its own.
        max_rows: Per group.
    """
    group, held = Group(None, [], []), 0
    for row, value, size in rows:
        full = held + size > max_bytes or len(group.numbers) >= max_rows
        if group.numbers and (row.batch is not group.batch or full):
            yield group
            group, held = Group(None, [], []), 0
        if not group.numbers:
            group = Group(row.batch, [], [])
        group.numbers.append(row.number)
        group.values.append(value)
        held += size
    if group.numbers:
        yield group


def error_array(values: Iterable[Any]) -> pa.Array:
    """The error column for values that are errors, or are not."""
    import pyarrow as pa

    errors = [error_value(value) if isinstance(value, Exception) else None for value in values]
    return pa.array(errors, type=arrow_error_type())
