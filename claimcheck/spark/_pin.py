"""Copies payloads to a long-lived store: ``pin(df, config=..., store="archive")`` rewrites the pointers of a column.

Each copy has an identity, made of the payload's store and key: all attempts of a task, and all jobs that pin the same
payload, write one object.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from claimcheck._client import ClaimCheck
from claimcheck._listing import destination_of
from claimcheck._pointer import PINNED, Pointer
from claimcheck._store import Store
from claimcheck._validation import fail
from claimcheck.errors import ClaimCheckError
from claimcheck.spark._columns import check_new, error_type, find_column, map_batches, require_arrow, session_of
from claimcheck.spark._fetching import MAX_INFLIGHT_BYTES, OUT_BATCH_BYTES, Concurrency, Job, OrderedExecutor
from claimcheck.spark._metrics import Metrics, Tally
from claimcheck.spark._rows import (
    DeadLetter,
    OnError,
    Reading,
    Row,
    RowGroup,
    error_array,
    grouped,
    messages_of,
)
from claimcheck.spark._worker import (
    AnyConfig,
    adaptive_concurrency,
    as_config,
    check_paths,
    check_reached,
    claim_check,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_COPY_BYTES = 8 << 20  # of a larger payload, no more is in memory

_Pinned = bytes | None | Exception


def pin(
    df: DataFrame,
    column: str = "value",
    *,
    config: AnyConfig,
    store: str = "archive",
    on_error: OnError = "fail",
    error: str = "error",
    dead_letter: Callable[[DeadLetter], object] | None = None,
    concurrency: Concurrency = "auto",
    max_inflight_bytes: int = MAX_INFLIGHT_BYTES,
    metrics: Metrics | None = None,
) -> DataFrame:
    """Copy the payloads of a column of messages to a long-lived store, and return the rows with pointers to the copies.

    Readers of the result need the long-lived store alone. Plain messages, and pointers to that store, pass through
    unchanged. Copies are verified. They stay until the store's ``ttl_seconds``, and a garbage collection does not touch
    them. Signed pointers are signed again, and stay bound to their topics. Nothing is copied before an action; two
    actions write the same objects twice.

    Args:
        df: A batch or a stream.
        column: A binary column of envelopes and plain messages; null stays null.
        config: Path of a YAML file (read here, on the driver), mapping, `Config` or `ClaimCheck`, with both stores.
        store: The name of the long-lived store.
        on_error: As for `claimcheck.spark.resolve`. With ``null`` the message becomes null.
        error: Name of the error column.
        dead_letter: Called in the worker with each bad row.
        concurrency: Concurrent copies per task, 1 to 64, or ``auto``.
        max_inflight_bytes: Bound on the payload bytes in memory; a payload of more than 8 MiB passes through a
            temporary file.
        metrics: Counts what tasks do.

    Raises:
        ConfigError: The configuration, an option or a column is invalid.
        MissingDependencyError: pyspark, pyarrow or pandas is missing.
    """
    require_arrow()
    checked = as_config(config)
    if store not in checked.stores:
        fail("store", found=repr(store), expected=f"one of the stores {', '.join(checked.stores) or '(none)'}")
    check_reached(replace(checked, store=store))
    reading = Reading(
        config=checked,
        concurrency=concurrency,
        max_inflight_bytes=max_inflight_bytes,
        out_batch_bytes=OUT_BATCH_BYTES,
        on_error=on_error,
        dead_letter=dead_letter,
        metrics=metrics,
    )
    check_paths(replace(checked, store=store), session_of(df))
    check_paths(checked, df.sparkSession)
    if on_error == "null":
        check_new(df.columns, error=error)
    added = {error: error_type()} if on_error == "null" else {}
    stage = _PinStage(reading, find_column(df, "column", column), tuple(df.columns), store)
    return map_batches(df, stage, kept=range(len(df.columns)), added=added)


@dataclass(frozen=True, slots=True)
class _PinStage:
    """Pickled and sent to the workers, where it is called once per partition."""

    reading: Reading
    index: int
    names: tuple[str, ...]
    store: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with closing(self._rows(batches)) as rows:
            for group in grouped(rows, max_bytes=self.reading.out_batch_bytes):
                yield self._output(group)

    def _rows(self, batches: Iterable[pa.RecordBatch]) -> Generator[tuple[Row, _Pinned, int]]:
        """Yield every row that stays, its new message or error, and the size of the message."""
        reading, tally, waiting = self.reading, Tally(self.reading.metrics), deque[tuple[Row, int]]()
        copier = _Copier(claim_check(reading.config), self.store)

        def jobs() -> Iterator[Job[_Pinned]]:
            for row, message in messages_of(batches, self.index, self.names):
                job, size = copier.job(message)
                waiting.append((row, size))
                yield job

        concurrency = adaptive_concurrency(reading.config, reading.concurrency, "write")
        executor = OrderedExecutor[_Pinned](concurrency, reading.max_inflight_bytes, measure=lambda pinned: 0)
        try:
            for result in executor.run(jobs()):
                row, size = waiting.popleft()
                if not isinstance(result, Exception):
                    tally.row(size, store=self.store if size else None)
                    yield row, result, len(result or b"")
                    continue
                tally.row(0, error=type(result).__name__)
                if (shown := reading.handle(row, result)) is not None:
                    yield row, shown, 0
        finally:
            executor.close()
            tally.close(executor.waited_seconds)

    def _output(self, group: RowGroup[_Pinned]) -> pa.RecordBatch:
        import pyarrow as pa

        added = [error_array(group.values)] if self.reading.on_error == "null" else []
        batch = group.with_columns(added)
        messages = [None if isinstance(value, Exception) else value for value in group.values]
        columns = list(batch.columns)
        columns[self.index] = pa.array(messages, type=columns[self.index].type)
        return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


class _Copier:
    """Copies the payloads of one task."""

    def __init__(self, cc: ClaimCheck, target: str) -> None:
        self._cc, self._target = cc, target

    def job(self, message: bytes | None) -> tuple[Job[_Pinned], int]:
        """Return the job that returns the new message, and the bytes that it copies."""
        try:
            pointer = None if message is None else self._cc._messages.pointer_from_anywhere(message)
            source = None if pointer is None else self._cc._messages.store_of(pointer)
        except ClaimCheckError as error:
            return Job(partial(_same, error), 0, waits=False), 0
        if pointer is None or source is None or source.name == self._target:
            return Job(partial(_same, message), 0, waits=False), 0
        size = pointer.size or 0
        return Job(partial(self._copy, pointer, source), min(size, _COPY_BYTES), waits=True), size

    def _copy(self, pointer: Pointer, source: Store) -> _Pinned:
        # Not below the name of any topic: a garbage collection does not touch the copy.
        destination = PINNED + destination_of(pointer.key.removeprefix(source.prefix))
        identity = uuid.uuid5(uuid.NAMESPACE_OID, f"{source.name}\n{pointer.key}")
        try:
            target = self._cc.store(self._target)
            copy = source.copy(pointer, to=target, destination=destination, identity=identity)
            return self._cc._reseal(copy, original=pointer)
        except ClaimCheckError as error:
            return error


def _same(result: _Pinned) -> _Pinned:
    return result
