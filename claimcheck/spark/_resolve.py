"""For DataFrames: ``df.transform(resolve("value", config="claimcheck.yaml"))`` adds a column with the payloads.

Works on Arrow batches (``mapInArrow``): batch and streaming, also with Spark Connect. Only the workers access stores.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from claimcheck._envelope import Buffer
from claimcheck.spark._columns import (
    check_new,
    error_type,
    find_column,
    map_batches,
    require_arrow,
    session_of,
)
from claimcheck.spark._fetching import MAX_INFLIGHT_BYTES, OUT_BATCH_BYTES, Concurrency, Outcome, payload_size
from claimcheck.spark._metrics import Metrics
from claimcheck.spark._origin import Origin
from claimcheck.spark._rows import (
    DeadLetter,
    OnError,
    Reading,
    Row,
    RowGroup,
    binary_array,
    error_array,
    grouped,
    messages_of,
)
from claimcheck.spark._worker import AnyConfig, as_config, check_paths

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType


def resolve(
    column: str,
    *,
    config: AnyConfig,
    payload: str = "payload",
    destination: str | None = None,
    on_error: OnError = "fail",
    error: str = "error",
    dead_letter: Callable[[DeadLetter], object] | None = None,
    concurrency: Concurrency = "auto",
    max_inflight_bytes: int = MAX_INFLIGHT_BYTES,
    metrics: Metrics | None = None,
    out_batch_bytes: int = OUT_BATCH_BYTES,
) -> Callable[[DataFrame], DataFrame]:
    """Return a function that resolves a column of messages, for ``df.transform``.

    Keeps all other columns, and the order within a partition. Filter and drop *before* resolving: later filters save
    no fetches. Two actions on the result resolve twice: persist it, or do both in one action.

    Args:
        column: A binary column of envelopes and plain messages; null stays null.
        config: Path of a YAML file (read here, on the driver), mapping, `Config` or `ClaimCheck`.
        payload: Name of the binary column to add.
        destination: The topic that all messages were read from, for the check of signatures. ``None`` uses the column
            ``topic`` of each row.
        on_error: ``fail`` raises the first error, which fails the task. ``null`` leaves the payload null and adds a
            column with the error, a struct of ``type``, ``message``, ``store`` and ``key`` that is null for every row
            without an error. ``dead_letter`` passes the row to a function and drops it. Errors that are not specific
            to one row always fail the task, so that an outage never becomes data: a store that is down, a driver or
            variable that the worker lacks for the configuration's ``store`` or one listed in ``reads_from``, or a key
            that it lacks.
        error: Name of the error column.
        dead_letter: Called in the worker with each bad row, and again if Spark reruns the task. It is pickled; its
            exceptions fail the task.
        concurrency: Concurrent fetches per task, 1 to 64, or ``auto``: threads where fetching means waiting.
        max_inflight_bytes: Bound on the payload bytes that a task fetches ahead.
        metrics: Counts what tasks do.
        out_batch_bytes: Payload bytes per Arrow batch; a larger payload is a batch of its own.

    Returns:
        A function from DataFrame to DataFrame, which checks the columns when called and reads nothing yet.

    Raises:
        ConfigError: The configuration or an option is invalid; the function raises it for columns.
        MissingDependencyError: pyspark, pyarrow or pandas is missing.
    """
    require_arrow()
    reading = Reading(
        config=as_config(config),
        concurrency=concurrency,
        max_inflight_bytes=max_inflight_bytes,
        out_batch_bytes=out_batch_bytes,
        on_error=on_error,
        dead_letter=dead_letter,
        metrics=metrics,
    )
    added = {"payload": payload} | ({"error": error} if on_error == "null" else {})

    def transform(df: DataFrame) -> DataFrame:
        from pyspark.sql.types import BinaryType

        check_paths(reading.config, session_of(df))
        index = find_column(df, "column", column)
        placed = replace(reading, origin=Origin.find(df, reading.config, destination))
        check_new(df.columns, **added)
        types: dict[str, DataType] = dict(zip(added.values(), (BinaryType(), error_type()), strict=False))
        stage = ResolveStage(placed, index, tuple(df.columns))
        return map_batches(df, stage, kept=range(len(df.columns)), added=types)

    return transform


@dataclass(frozen=True, slots=True)
class ResolveStage:
    """Pickled and sent to the workers, where it is called once per partition."""

    reading: Reading
    index: int
    names: tuple[str, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with closing(self._rows(batches)) as rows:
            # not a loop, whose variable would keep the payloads alive while Spark writes the batch
            yield from map(self._output, grouped(rows, max_bytes=self.reading.out_batch_bytes))

    def _rows(self, batches: Iterable[pa.RecordBatch]) -> Generator[tuple[Row, Outcome | Exception, int]]:
        """Yield every row that stays, its payload or error, and the size of the payload."""
        with closing(self.reading.rows(messages_of(batches, self.index, self.names))) as rows:
            for row, _, outcome in rows:
                if not isinstance(outcome, Exception):
                    yield row, outcome, payload_size(outcome)
                elif (error := self.reading.handle(row, outcome)) is not None:
                    yield row, error, 0
                del outcome

    def _output(self, group: RowGroup[Outcome | Exception]) -> pa.RecordBatch:
        errors = [error_array(group.values)] if self.reading.on_error == "null" else []
        payloads: list[Buffer | None] = [value if isinstance(value, bytes) else None for value in group.values]
        group.values.clear()  # the only references to the payloads are in the list that is emptied now
        kind = group.batch.schema.field(self.index).type  # large_binary where Spark uses it
        return group.with_columns([binary_array(payloads, kind), *errors])
