"""The streaming reader of Pulsar: `Control` on the driver, a `Stretch` of each partition on the executors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    SupportsTriggerAvailableNow,
)

from claimcheck.spark.sources.arrow import arrow_schema, default_limit
from claimcheck.spark.sources.pulsar_control import Control
from claimcheck.spark.sources.pulsar_limits import limited, newer
from claimcheck.spark.sources.pulsar_offsets import NOTHING, Offsets, from_json, to_json
from claimcheck.spark.sources.pulsar_reader import Reading, Stretch
from claimcheck.spark.sources.shares import Budget
from claimcheck.spark.sources.weights import Scale

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["PulsarStreamReader", "StreamPlan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPlan:
    """What a streaming query was told.

    Attributes:
        topics: Their full names.
        subscription: Of this query alone.
        at_end: Whether a query with no checkpoint begins at the topics' end.
        budget: Of a trigger.
        reading: How to read.
        scale: Weighs messages.
    """

    topics: tuple[str, ...]
    subscription: str
    at_end: bool
    budget: Budget
    reading: Reading
    scale: Scale


class PulsarStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Spark makes several of these: one plans the query and stays, others only carry `read` to the executors."""

    def __init__(self, plan: StreamPlan, schema: StructType) -> None:
        self._plan, self._schema = plan, schema
        self._opened: Control | None = None
        self._target: Offsets | None = None
        self._last: Offsets | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Say where a query with no checkpoint begins, and have the broker keep everything from there on."""
        return to_json(self._control.begin(at_end=self._plan.at_end))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Tell Spark what we limit; both limits hold, though it has a word for only one of them."""
        return default_limit(self._plan.budget)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Remember where the topics end now: this run goes no further."""
        self._target = self._control.last()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Say where the next trigger ends; partitions that were added since begin at their beginning."""
        begun = from_json(start)
        self._last = last = newer(begun, self._control.last() if self._target is None else self._target)
        self._check(begun, last)
        budget = Budget() if isinstance(limit, ReadAllAvailable) else self._plan.budget
        ends = limited(self._control.client, begun, last, budget, self._plan.reading, self._plan.scale)
        return to_json(begun | ends)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Tell what there is to read, for the query's progress."""
        return None if self._last is None else to_json(self._last)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Make a task for each partition that has anything new."""
        begun = from_json(start)
        ends = newer(begun, from_json(end))
        self._check(begun, ends)
        return [Stretch(name, begun.get(name, NOTHING), ends[name]) for name in ends]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one stretch, on an executor."""
        assert isinstance(partition, Stretch)
        return self._plan.reading.batches(partition, arrow_schema(self._schema))

    def commit(self, end: dict[str, Any]) -> None:
        """Let the broker forget what Spark has committed."""
        self._control.release(from_json(end))

    def stop(self) -> None:
        """Leave the broker."""
        if self._opened is not None:
            self._opened.close()

    def _check(self, begun: Offsets, ends: Offsets) -> None:
        """Notice what was lost where nothing was read yet; elsewhere the last entry that was read tells."""
        for name in ends:
            if name not in begun and self._control.was_moved(name):
                what = "nothing of it was read yet, but the subscription is not at its beginning any more"
                self._plan.reading.lost(name, what)

    @property
    def _control(self) -> Control:
        if self._opened is None:
            self._opened = Control(self._plan.reading.connection, self._plan.topics, self._plan.subscription)
        return self._opened
