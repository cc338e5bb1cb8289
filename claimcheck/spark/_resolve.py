"""For DataFrames: ``df.transform(resolve("value", config="claimcheck.yaml"))`` adds a column with the payloads.

Works on Arrow batches (``mapInArrow``), batch and streaming, with Spark Connect too. Spark itself never sees the
stores; it sees rows with a column more.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from claimcheck.spark._columns import (
    MAX_COLUMN_BYTES,
    check_new,
    error_type,
    find_column,
    need_arrow,
    over_rows,
)
from claimcheck.spark._fetching import MAX_INFLIGHT_BYTES, OUT_BATCH_BYTES, Concurrency
from claimcheck.spark._metrics import Metrics
from claimcheck.spark._rows import (
    DeadLetter,
    Faults,
    Group,
    OnError,
    Reading,
    Row,
    RowByRow,
    error_array,
    grouped,
    messages_of,
)
from claimcheck.spark._worker import AnyConfig, as_config, check_paths, claim_check

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

__all__ = ["resolve"]


def resolve(
    column: str,
    *,
    config: AnyConfig,
    payload: str = "payload",
    on_error: OnError = "fail",
    error: str = "error",
    dead_letter: Callable[[DeadLetter], object] | None = None,
    concurrency: Concurrency = "auto",
    max_inflight_bytes: int = MAX_INFLIGHT_BYTES,
    metrics: Metrics | None = None,
    out_batch_bytes: int = OUT_BATCH_BYTES,
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
            is well; ``dead_letter`` hands the row to a function and leaves it out. Errors that are
            not about one row always fail the task, so that no outage becomes data: a store that is down, and a driver
            or a variable that the worker lacks for the configuration's ``store`` or one that ``reads_from`` lists.
        error: Name of that column.
        dead_letter: Called in the worker with each bad row; again, when a task is run again. It travels there pickled;
            what it raises fails the task.
        concurrency: Fetches at once per task, 1 to 64, or ``auto``: threads where fetching means waiting.
        max_inflight_bytes: Bound on the payload bytes that a task fetches ahead.
        metrics: Counts what tasks do, where it is wanted.
        out_batch_bytes: Payload bytes per Arrow batch; a larger payload is a batch of its own.

    Returns:
        A function from DataFrame to DataFrame, which checks the columns at once and reads nothing yet.

    Raises:
        ConfigError: The configuration or an option cannot be used; the function raises it for columns.
        MissingDependencyError: pyspark, pyarrow or pandas is missing.
    """
    need_arrow()
    faults = Faults(on_error=on_error, dead_letter=dead_letter)
    reading = Reading(
        config=as_config(config),
        concurrency=concurrency,
        max_inflight_bytes=max_inflight_bytes,
        out_batch_bytes=out_batch_bytes,
        faults=faults,
        metrics=metrics,
    )
    added = {"payload": payload} | ({"error": error} if on_error == "null" else {})

    def transform(df: DataFrame) -> DataFrame:
        from pyspark.sql.types import BinaryType

        check_paths(reading.config, df.sparkSession)
        index = find_column(df, "column", column)
        check_new(df.columns, **added)
        kinds: dict[str, DataType] = dict(zip(added.values(), (BinaryType(), error_type()), strict=False))
        stage = _Stage(reading, index, tuple(df.columns), with_errors=len(added) > 1)
        return over_rows(df, stage, kept=range(len(df.columns)), added=kinds)

    return transform


@dataclass(frozen=True, slots=True)
class _Stage:
    """What `resolve` sends to the workers: a value that pickles and opens nothing; called once per partition."""

    reading: Reading
    index: int
    names: tuple[str, ...]
    with_errors: bool

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with closing(self._rows(batches)) as rows:
            for group in grouped(rows, max_bytes=self.reading.out_batch_bytes):
                yield self._output(group)

    def _rows(self, batches: Iterable[pa.RecordBatch]) -> Generator[tuple[Row, Any, int]]:
        """Every row that stays, its payload or error, and how much the payload weighs."""
        cc = RowByRow(claim_check(self.reading.config), max_bytes=MAX_COLUMN_BYTES)
        with closing(self.reading.rows(messages_of(batches, self.index, self.names), cc)) as rows:
            for row, _, outcome in rows:
                if isinstance(outcome, Exception):
                    if self.reading.keeps(row, outcome):
                        yield row, outcome, 0
                else:
                    yield row, outcome, len(outcome or b"")

    def _output(self, group: Group) -> pa.RecordBatch:
        import pyarrow as pa

        payloads = [None if isinstance(value, Exception) else value for value in group.values]
        kind = group.batch.schema.field(self.index).type  # large_binary where Spark asks for it
        columns = [pa.array(payloads, type=kind)]
        if self.with_errors:
            columns.append(error_array(group.values))
        return group.widened(columns)
