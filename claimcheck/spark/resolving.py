"""For DataFrames: ``df.transform(resolve("value", config="claimcheck.yaml"))`` adds a column with the payloads.

Works on Arrow batches (``mapInArrow``), batch and streaming, with Spark Connect too. Spark itself never sees the
stores; it sees rows with a column more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from claimcheck.config import Config
from claimcheck.envelope import Buffer
from claimcheck.errors import ChunkError, ClaimCheckError, PayloadTooLargeError
from claimcheck.pointer import Pointer
from claimcheck.spark.columns import (
    MAX_COLUMN_BYTES,
    arrow_error_type,
    check_new,
    error_type,
    error_value,
    find_column,
    need_arrow,
    with_fields,
)
from claimcheck.spark.core import (
    MAX_INFLIGHT_BYTES,
    Concurrency,
    Outcome,
    Resolving,
    check_bytes,
    check_choice,
    check_reading,
    is_bad_message,
    outcomes,
)
from claimcheck.spark.worker import AnyConfig, as_config, claim_check, pace

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

__all__ = ["resolve"]

_OUT_BATCH_BYTES = 16 << 20


def resolve(
    column: str,
    *,
    config: AnyConfig,
    payload: str = "payload",
    on_error: Literal["fail", "null"] = "fail",
    error: str = "error",
    concurrency: Concurrency = "auto",
    max_inflight_bytes: int = MAX_INFLIGHT_BYTES,
    out_batch_bytes: int = _OUT_BATCH_BYTES,
) -> Callable[[DataFrame], DataFrame]:
    """Make the function that resolves a column of messages, for ``df.transform``.

    All other columns, and the order within a partition, stay as they are. Filter and drop *before* resolving: what
    comes after cannot save a fetch. Two actions on the result resolve twice: persist it, or do both in one.

    Args:
        column: A binary column of envelopes and plain messages; null stays null.
        config: Path of a YAML file (read here, on the driver), mapping, `Config` or `ClaimCheck`.
        payload: Name of the binary column to add.
        on_error: ``fail`` raises the first error, which fails the task; ``null`` leaves the payload null and adds a
            column with the error, a struct of ``type``, ``message``, ``store`` and ``key``, null for every row that
            is well. What would befall all rows (a store that is down, a driver or a variable that is missing on the
            worker) fails the task all the same: Spark tries again, and no outage becomes data.
        error: Name of that column.
        concurrency: Fetches at once per task, 1 to 64, or ``auto``: threads where fetching means waiting.
        max_inflight_bytes: Bound on the payload bytes that a task fetches ahead.
        out_batch_bytes: Payload bytes per Arrow batch; a larger payload is a batch of its own.

    Returns:
        A function from DataFrame to DataFrame, which checks the columns at once and reads nothing yet.

    Raises:
        ConfigError: The configuration or an option cannot be used; the function raises it for columns.
        MissingDependencyError: pyspark, pyarrow or pandas is missing.
    """
    check_choice("on_error", on_error, "fail", "null")
    check_reading(concurrency=concurrency, max_inflight_bytes=max_inflight_bytes)
    check_bytes("out_batch_bytes", out_batch_bytes)
    need_arrow()
    added = (payload,) if on_error == "fail" else (payload, error)
    known = as_config(config)

    def transform(df: DataFrame) -> DataFrame:
        from pyspark.sql.types import BinaryType

        index = find_column(df, "column", column)
        check_new(df.columns, **dict(zip(("payload", "error"), added, strict=False)))
        stage = _Stage(known, index, added, concurrency, max_inflight_bytes, out_batch_bytes)
        kinds = dict(zip(added, (BinaryType(), error_type()), strict=False))
        return df.mapInArrow(stage, with_fields(df.schema.fields, **kinds))

    return transform


@dataclass(frozen=True, slots=True)
class _Stage:
    """What `resolve` sends to the workers: a value that pickles and opens nothing; called once per partition."""

    config: Config
    index: int
    added: tuple[str, ...]
    concurrency: Concurrency
    max_inflight_bytes: int
    out_batch_bytes: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with closing(self._rows(batches)) as rows:
            yield from self._batches(rows)

    def _rows(self, batches: Iterable[pa.RecordBatch]) -> Generator[tuple[pa.RecordBatch, int, Outcome]]:
        """Every row's batch, its number there, and what became of its message; reads batches as far ahead as needed."""
        ahead: deque[tuple[pa.RecordBatch, int]] = deque()

        def messages() -> Iterator[bytes | None]:
            for batch in batches:
                for row, message in enumerate(batch.column(self.index)):
                    ahead.append((batch, row))
                    yield message.as_py()

        cc = _ColumnSized(claim_check(self.config))
        learnt = pace(self.config, self.concurrency)
        with closing(outcomes(messages(), cc, pace=learnt, max_inflight_bytes=self.max_inflight_bytes)) as results:
            for outcome in results:
                yield (*ahead.popleft(), outcome)

    def _batches(self, rows: Iterable[tuple[pa.RecordBatch, int, Outcome]]) -> Iterator[pa.RecordBatch]:
        """Cut by bytes: Spark bounds what goes into a worker, but nothing bounds what comes out of it."""
        current: pa.RecordBatch | None = None
        start, held, done = 0, 0, list[Outcome]()
        for batch, row, outcome in rows:
            if isinstance(outcome, ClaimCheckError) and (len(self.added) == 1 or not is_bad_message(outcome)):
                raise outcome
            size = len(outcome) if isinstance(outcome, bytes) else 0
            if done and (batch is not current or held + size > self.out_batch_bytes):
                yield self._output(current, start, done)
                done, held = [], 0
            if not done:
                current, start = batch, row
            done.append(outcome)
            held += size
        if done:
            yield self._output(current, start, done)

    def _output(self, batch: pa.RecordBatch, start: int, done: list[Outcome]) -> pa.RecordBatch:
        import pyarrow as pa

        kept = batch.slice(start, len(done))
        values = [None if isinstance(outcome, ClaimCheckError) else outcome for outcome in done]
        columns = [pa.array(values, type=batch.schema.field(self.index).type)]  # large_binary where Spark asks for it
        if len(self.added) > 1:
            errors = [error_value(outcome) if isinstance(outcome, ClaimCheckError) else None for outcome in done]
            columns.append(pa.array(errors, type=arrow_error_type()))
        fields = [pa.field(name, values.type) for name, values in zip(self.added, columns, strict=True)]
        return pa.RecordBatch.from_arrays([*kept.columns, *columns], schema=pa.schema([*kept.schema, *fields]))


class _ColumnSized:
    """A `Resolving` that refuses, before any I/O, what no column can hold."""

    def __init__(self, cc: Resolving) -> None:
        self._cc = cc

    def resolve(self, message: Buffer | None, /) -> bytes | None:
        try:
            return self._resolve(message)
        except ChunkError as error:
            raise ChunkError(
                f"a chunk of {error.uuid} is no row of its own: read the messages as an RDD, with "
                'mapPartitions(resolver(..., chunks="reassemble")), where all chunks of a payload are in one partition',
                uuid=error.uuid,
                total=error.total,
            ) from error

    def _resolve(self, message: Buffer | None) -> bytes | None:
        pointer = None if message is None else self._cc.pointer(message)
        if pointer is not None and (pointer.size or 0) > MAX_COLUMN_BYTES:
            raise PayloadTooLargeError(
                f"a payload of {pointer.size} bytes fits no Spark column ({MAX_COLUMN_BYTES} bytes): "
                "use it inside the worker, with rdd.mapPartitions(claimcheck.spark.resolver(...))",
                store=pointer.store,
                key=pointer.key,
                size=pointer.size,
                limit=MAX_COLUMN_BYTES,
            )
        return self._cc.resolve(message)

    def pointer(self, message: Buffer, /) -> Pointer | None:
        return self._cc.pointer(message)
