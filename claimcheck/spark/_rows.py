"""Rows on their way through a worker: read from Arrow batches, each with what became of its message, and cut again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from claimcheck._envelope import Buffer
from claimcheck._pointer import Pointer
from claimcheck._validation import fail
from claimcheck.config import Config
from claimcheck.errors import ChunkError, ClaimCheckError, PayloadTooLargeError
from claimcheck.spark._columns import arrow_error_type, error_value, row_source
from claimcheck.spark._fetching import (
    Concurrency,
    Outcome,
    Resolving,
    check_bytes,
    check_choice,
    check_reading,
    is_bad_message,
    outcomes,
    weight,
)
from claimcheck.spark._metrics import Tally, check_metrics, store_of
from claimcheck.spark._worker import pace

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "Columns",
    "DeadLetter",
    "error_array",
    "Faults",
    "Group",
    "grouped",
    "messages_of",
    "OnError",
    "Reading",
    "ResultError",
    "Row",
    "RowByRow",
    "views",
]


def views(column: pa.Array) -> Iterator[memoryview | None]:
    """Go through the values of a ``binary`` or ``large_binary`` column, which each of them keeps alive."""
    import pyarrow as pa

    if not len(column):
        return
    _, offsets, data = column.buffers()  # https://arrow.apache.org/docs/format/Columnar.html
    ends = memoryview(offsets).cast("q" if pa.types.is_large_binary(column.type) else "i")
    whole = memoryview(data or b"").cast("B")
    spans = pairwise(ends[column.offset : column.offset + len(column) + 1])
    there = column.is_valid()
    for number, (start, end) in enumerate(spans):
        yield whole[start:end] if not column.null_count or there[number].as_py() else None


_ROWS_AT_ONCE, _BYTES_AT_ONCE = 256, 1 << 20

OnError = Literal["fail", "null", "dead_letter"]
"""What becomes of a row whose payload cannot be had: the task fails, the row says why, or somebody else gets it."""


class ResultError(ClaimCheckError, TypeError):
    """What a function made of a payload does not fit the columns that were promised."""


class Row(NamedTuple):
    """One row of an Arrow batch, whose columns stand at their places; ``names`` has what people call them."""

    batch: pa.RecordBatch
    number: int
    names: tuple[str, ...] = ()

    def values(self) -> dict[str, Any]:
        """Its columns by their names, as Python has them."""
        return self.values_of(range(self.batch.num_columns))

    def values_of(self, columns: Iterable[int]) -> dict[str, Any]:
        """Some of its columns, by their places."""
        return {self.names[place]: self.batch.column(place)[self.number].as_py() for place in columns}


class Columns:
    """Rows as dictionaries, one after the other: columns become Python's some rows at a time, which is much quicker.

    Args:
        names: Of the columns.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        self._batch: pa.RecordBatch | None = None
        self._start = self._stop = 0
        self._values: list[list[Any]] = []

    def of(self, row: Row) -> dict[str, Any]:
        """One row, all columns."""
        if row.batch is not self._batch or not self._start <= row.number < self._stop:
            self._read(row)
        return dict(zip(self._names, (column[row.number - self._start] for column in self._values), strict=True))

    def _read(self, row: Row) -> None:
        batch, self._start = row.batch, row.number
        some = min(_ROWS_AT_ONCE, max(1, _BYTES_AT_ONCE * len(batch) // max(1, batch.nbytes)))
        self._batch, self._stop = batch, min(len(batch), row.number + some)
        self._values = [column.slice(self._start, some).to_pylist() for column in batch.columns]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A row whose payload could not be had.

    Attributes:
        row: All its columns, the message among them.
        error: Why.
        source: Where the row came from, as far as its columns tell.
    """

    row: dict[str, Any] = field(repr=False)
    error: Exception
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What becomes of rows whose payload cannot be had.

    Attributes:
        on_error: See `OnError`.
        dead_letter: Called in the worker with each such row, which then leaves the DataFrame.

    Raises:
        ConfigError: One without the other.
    """

    on_error: OnError = "fail"
    dead_letter: Callable[[DeadLetter], object] | None = None

    def __post_init__(self) -> None:
        check_choice("on_error", self.on_error, "fail", "null", "dead_letter")
        if (self.on_error == "dead_letter") != callable(self.dead_letter):
            expected = "a function of a DeadLetter, together with on_error='dead_letter'"
            fail("dead_letter", found=repr(self.dead_letter), expected=expected)

    def keeps(self, row: Row, error: Exception, config: Config) -> bool:
        """Whether the row stays, to say what is wrong with it.

        Args:
            row: The row.
            error: Why it has no payload.
            config: Of the job.

        Raises:
            Exception: The error, if it is to fail the task; with a note that says which row it was.
        """
        if self.on_error == "fail" or _affects_all(error, config):
            if source := row_source(row.values()):
                error.add_note(f"Row: {source}")
            raise error
        if self.dead_letter is None:
            return True
        values = row.values()
        self.dead_letter(DeadLetter(row=values, error=error, source=row_source(values)))
        return False


def _affects_all(error: Exception, config: Config) -> bool:
    """Whether an error is not about one row; what the user's function raises or returns always is."""
    if not isinstance(error, ClaimCheckError) or isinstance(error, ResultError):
        return False
    return not is_bad_message(error, config)


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

    def resolve(self, message: Buffer | None, /) -> Buffer | None:
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
