"""What a job did with payloads: counted in the workers (`Metrics`), or by Spark from the columns (`measures`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from claimcheck._pointer import Pointer
from claimcheck._validation import fail
from claimcheck.errors import ClaimCheckError, ConfigError

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

__all__ = ["Counts", "Metrics", "Tally", "check_metrics", "measures", "store_of"]

_ROWS, _BYTES, _WAITING = "rows", "payload_bytes", "waiting_seconds"
_ERRORS, _STORES = "errors.", "store_bytes."


class Counts(Protocol):
    """Where a task's counts go when it ends."""

    def add(self, counts: Mapping[str, float], /) -> object:
        """Add them to those of other tasks."""


class Metrics:
    """Counts of all tasks that were given it; grows on the driver as tasks end.

    Spark counts what a task did when it ends well. What failed attempts did, and tasks that were stopped early by a
    ``limit``, is not in here, and what is computed twice counts twice: for display, not for accounts.

    Args:
        spark: The session; not one of Spark Connect, which has no accumulators: see `measures`.

    Raises:
        ConfigError: It is one of Spark Connect, or none.
    """

    def __init__(self, spark: SparkSession) -> None:
        if not hasattr(spark, "sparkContext") and type(spark).__module__.split(".")[0] != "pyspark":
            fail("spark", found=f"a {type(spark).__name__}", expected="a SparkSession")
        if not hasattr(spark, "_jsparkSession"):
            raise ConfigError(
                "metrics: Spark Connect has no accumulators: use df.observe(name, *measures(...)) there",
                path="metrics",
                found="a session of Spark Connect",
                expected="a session with a SparkContext",
            )
        self.context = spark.sparkContext
        self._counts: Any = self.context.accumulator({}, _Sum())  # type: ignore[arg-type]  # duck-typed, to import nothing

    @property
    def rows(self) -> int:
        """Rows, bad ones included."""
        return int(self._counts.value.get(_ROWS, 0))

    @property
    def payload_bytes(self) -> int:
        """Bytes of the payloads that were had, or written."""
        return int(self._counts.value.get(_BYTES, 0))

    @property
    def waiting_seconds(self) -> float:
        """How long tasks, taken together, stood still until a store had answered."""
        return float(self._counts.value.get(_WAITING, 0.0))

    @property
    def errors(self) -> dict[str, int]:
        """Rows whose payload could not be had, by the type of their error."""
        return self._by(_ERRORS)

    @property
    def store_bytes(self) -> dict[str, int]:
        """Payload bytes by the name of the store that they came from, or went to."""
        return self._by(_STORES)

    def __reduce__(self) -> tuple[Any, ...]:
        return _as_counts, (self._counts,)  # all that a worker needs of it

    def __repr__(self) -> str:
        return f"<Metrics {self.rows} rows, {self.payload_bytes} bytes, {sum(self.errors.values())} errors>"

    def _by(self, prefix: str) -> dict[str, int]:
        counts: Mapping[str, float] = self._counts.value
        return {name[len(prefix) :]: int(count) for name, count in counts.items() if name.startswith(prefix)}


class Tally:
    """What one task counts.

    Args:
        counts: Where it goes in the end; ``None`` for nowhere, and nothing is counted.
    """

    def __init__(self, counts: Counts | None) -> None:
        self._counts = counts
        self._sums: Counter[str] = Counter()

    def __bool__(self) -> bool:
        return self._counts is not None

    def row(self, size: int, *, store: str | None = None, error: str | None = None) -> None:
        """Count a row: its payload's bytes, where they rest, and the type of what was wrong with it."""
        self._sums[_ROWS] += 1
        self._sums[_BYTES] += size
        if store is not None:
            self._sums[_STORES + store] += size
        if error is not None:
            self._sums[_ERRORS + error] += 1

    def close(self, waited_seconds: float = 0.0) -> None:
        """Hand over what was counted."""
        if self._counts is not None:
            self._counts.add({**self._sums, _WAITING: waited_seconds})


def measures(
    *, payload: str = "payload", error: str | None = None, types: Iterable[type[ClaimCheckError]] = ()
) -> list[Column]:
    """Make the columns of an observation, ``df.observe("claims", *measures())``, of what `resolve` has added.

    Spark counts them as the rows pass, exactly once for each row of the result, with Spark Connect, too, and in streams
    for each micro-batch.

    Args:
        payload: The column of payloads.
        error: The column of errors, where there is one.
        types: Errors to count one by one; by default those that a message can have.

    Returns:
        ``rows``, ``payload_bytes`` and, with ``error``, ``errors`` and one of the name of each type.

    Raises:
        ConfigError: A name that is no text.
    """
    for option, name in (("payload", payload), ("error", error)):
        if not isinstance(name, str | None):
            fail(option, found=f"a {type(name).__name__}", expected="the name of a column, as text")
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    from claimcheck.spark._fetching import OF_ONE_MESSAGE

    found = [F.count(F.lit(1)).alias(_ROWS), F.coalesce(F.sum(F.length(payload)), F.lit(0)).alias(_BYTES)]
    if error is not None:
        kind = F.col(f"{error}.type")
        found.append(F.count(kind).alias("errors"))
        names = sorted(each.__name__ for each in types or _leaves(OF_ONE_MESSAGE))
        found += [F.count(F.when(kind == name, 1)).alias(name) for name in names]
    return found


def check_metrics(metrics: object) -> None:
    """Refuse what counts nothing.

    Raises:
        ConfigError: It is no `Metrics`.
    """
    if metrics is not None and not isinstance(metrics, Metrics):
        fail("metrics", found=f"a {type(metrics).__name__}", expected="a claimcheck.spark.Metrics")


def store_of(pointer: Pointer | None) -> str | None:
    """The store that a payload rests in."""
    return None if pointer is None else pointer.store or "pointer of version 1"


def _leaves(kinds: Iterable[type[ClaimCheckError]]) -> set[type[ClaimCheckError]]:
    """The errors and all that derive from them."""
    found = set(kinds)
    for kind in kinds:
        found |= _leaves(kind.__subclasses__())
    return found


class _Sum:
    """Adds counts by their names, as Spark's accumulators want it."""

    def zero(self, value: Mapping[str, float]) -> dict[str, float]:
        return {}

    def addInPlace(self, one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:  # noqa: N802
        return dict(Counter(one) + Counter(other))


def _as_counts(counts: Counts) -> Counts:
    return counts
