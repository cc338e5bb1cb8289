"""Copies payloads to a long-lived store: ``pin(df, config=..., store="archive")`` rewrites the pointers of a column.

Each copy has an identity, made of the payload's store and key: all attempts of a task, and all jobs that pin the same
payload, write one object.
"""

from __future__ import annotations

import uuid
from collections.abc import Generator, Iterable
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from claimcheck._client import ClaimCheck
from claimcheck._store.listing import destination_of
from claimcheck._store.store import Store
from claimcheck._validation import fail
from claimcheck._wire.pointer import PINNED, Pointer
from claimcheck.errors import ClaimCheckError
from claimcheck.spark._columns import check_new, error_type, find_column, map_batches, require_arrow, session_of
from claimcheck.spark._fetching import MAX_INFLIGHT_BYTES, Concurrency, Job, same
from claimcheck.spark._metrics import Metrics, Tally
from claimcheck.spark._reading import OnError, Reading, Row, RowGroup, Stage, error_array, messages_of
from claimcheck.spark._worker import AnyConfig, as_config, check_paths, check_reached, claim_check

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
        on_error=on_error,
        metrics=metrics,
    )
    for each in (replace(checked, store=store), checked):
        check_paths(each, session_of(df))
    added = {"error": error_type()} if on_error == "null" else {}
    check_new(df.columns, **dict(zip(added, added, strict=True)))
    stage = _PinStage(reading, find_column(df, "column", column), tuple(df.columns), store)
    return map_batches(df, stage, kept=range(len(df.columns)), added=added)


@dataclass(frozen=True, slots=True)
class _PinStage(Stage[_Pinned]):
    """Replaces messages by those of the copies."""

    reading: Reading
    index: int
    names: tuple[str, ...]
    store: str

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Generator[tuple[Row, _Pinned, int]]:
        """Yield every row that stays, its new message or error, and the size of the message."""
        tally, copier = Tally(self.reading.metrics), _Copier(claim_check(self.reading.config), self.store)
        jobs = (copier.job(*each) for each in messages_of(batches, self.index, self.names))
        with closing(self.reading.written(jobs, tally)) as written:
            for (row, size), result in written:
                if not isinstance(result, Exception):
                    tally.row(size, store=self.store if size else None)
                    yield row, result, len(result or b"")
                    continue
                tally.row(0, error=type(result).__name__)
                if (shown := self.reading.handle(row, result)) is not None:
                    yield row, shown, 0

    def output(self, group: RowGroup[_Pinned]) -> pa.RecordBatch:
        import pyarrow as pa

        batch = group.with_columns([error_array(group.values)] if self.reading.on_error == "null" else [])
        messages = [None if isinstance(value, Exception) else value for value in group.values]
        kind = batch.schema.field(self.index)
        return batch.set_column(self.index, kind, pa.array(messages, type=kind.type))


class _Copier:
    def __init__(self, cc: ClaimCheck, target: str) -> None:
        self._cc, self._target = cc, target

    def job(self, row: Row, message: bytes | None) -> Job[tuple[Row, int], _Pinned]:
        """Return the job that returns the new message, for a row and the bytes that it copies."""
        try:
            pointer = None if message is None else self._cc.opened.messages.pointer_from_anywhere(message)
            source = None if pointer is None else self._cc.opened.messages.store_of(pointer)
        except ClaimCheckError as error:
            return Job((row, 0), partial(same, error))
        if pointer is None or source is None or source.name == self._target:
            return Job((row, 0), partial(same, message))
        size = pointer.size or 0
        return Job((row, size), partial(self._copy, pointer, source), min(size, _COPY_BYTES), waits=True)

    def _copy(self, pointer: Pointer, source: Store) -> _Pinned:
        # Not below the name of any topic: a garbage collection does not touch the copy.
        destination = PINNED + destination_of(pointer.key.removeprefix(source.prefix))
        identity = uuid.uuid5(uuid.NAMESPACE_OID, f"{source.name}\n{pointer.key}")
        try:
            target = self._cc.store(self._target)
            copy = source.copy(pointer, to=target, destination=destination, identity=identity)
            return self._cc.opened.reseal(copy, original=pointer)
        except ClaimCheckError as error:
            return error
