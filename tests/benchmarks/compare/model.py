"""What is compared, and the results, as plain values that can be written to JSON and read back."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from claimcheck.errors import ClaimCheckError

Mode = Literal["external", "chunking", "hybrid", "native"]
"""How a payload travels through the broker.

``native`` uses no claimcheck: a topic with a raised limit (Kafka, embedded broker), or the client's chunking
(Pulsar).
"""

MODES: tuple[Mode, ...] = ("external", "chunking", "hybrid", "native")


class CompareError(ClaimCheckError):
    """The comparison cannot run: what is missing, and what to do. Everything it had created was removed."""


class NotMeasuredError(CompareError):
    """This broker, or the way in which it is connected, does not permit a measurement; the others go on."""


Verdict = Literal["agrees", "disagrees", "partly", "measured", "not measured"]
"""Whether a measurement agrees with the published table; ``measured`` for rows that the table does not have."""


@dataclass(frozen=True, slots=True)
class Point:
    """One measured value with its 95 % confidence interval.

    Attributes:
        x: The payload's size in bytes, seconds since the start, or whatever `Series.x_label` says.
        y: The median.
        low: The lower end of the interval; equal to ``y`` if the value was measured once.
        high: The upper end.
    """

    x: float
    y: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Series:
    """The points of one plot.

    Attributes:
        name: Identifies the plot, for example ``produce_throughput``.
        title: The plot's title.
        x_label: With its unit.
        y_label: With its unit.
        points: For each line of the plot, usually a `Mode`, its points by rising ``x``.
        x_scale: Of the axis.
        y_scale: Of the axis.
    """

    name: str
    title: str
    x_label: str
    y_label: str
    points: dict[str, tuple[Point, ...]]
    x_scale: Literal["linear", "log"] = "log"
    y_scale: Literal["linear", "log"] = "log"


@dataclass(frozen=True, slots=True)
class Experiment:
    """The result of one experiment: one row of the published table, with numbers.

    Attributes:
        name: Identifies the experiment: ``services``, ``partition``, ``expiry``, ``seek``, ``memory``, ``partitions``,
            ``rebalance``, ``rollback``, ``speed`` or ``cost``.
        title: The row's title in the published table.
        claimed: What the published table says of each strategy, in a few words; empty for rows that it does not have.
        measured: For each mode, the result in one short line with its numbers.
        verdict: Whether ``measured`` agrees with ``claimed``.
        explanation: Why, in one or two sentences; also why something could not be measured.
        columns: The titles of the detailed table.
        rows: The detailed table: texts and numbers.
        series: The plots.
        facts: Numbers by name that other parts use, for example ``bytes_per_payload/external/1048576``.
    """

    name: str
    title: str
    claimed: dict[str, str]
    measured: dict[str, str]
    verdict: Verdict
    explanation: str
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str | float | int | None, ...], ...] = ()
    series: tuple[Series, ...] = ()
    facts: dict[str, float] | None = None


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Which strategy, store and threshold fit, and why.

    Attributes:
        strategy: For the configuration.
        store: Name of the store in the configuration; ``None`` for chunking.
        threshold_bytes: Smaller payloads are sent unchanged.
        yaml: To paste.
        reasons: One sentence each, with the numbers behind it, the most important first.
        crossovers: Sizes at which another mode becomes better, one sentence each, with their intervals.
        confidence: How sure this is: ``high``, ``medium`` or ``low``, and why.
    """

    strategy: str
    store: str | None
    threshold_bytes: int
    yaml: str
    reasons: tuple[str, ...]
    crossovers: tuple[str, ...]
    confidence: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """A complete run.

    Attributes:
        made: When, as ISO 8601 with time zone.
        broker: Name and version of the broker; never an address with credentials.
        store: Name and kind of the store.
        machine: Processor, cores, memory, Python, versions of the clients.
        sizes: The payloads' sizes in bytes, rising.
        rounds: How often each measurement was repeated.
        seconds: How long the run took.
        experiments: In the order of the published table, then ``speed`` and ``cost``.
        recommendation: ``None`` if ``speed`` was not measured.
    """

    made: str
    broker: str
    store: str
    machine: dict[str, str]
    sizes: tuple[int, ...]
    rounds: int
    seconds: float
    experiments: tuple[Experiment, ...]
    recommendation: Recommendation | None


# JSON and texts ------------------------------------------------------------------------------------------------


def as_json(result: Comparison | Experiment) -> dict[str, Any]:
    """Return a result as values for `json.dump`."""
    return dataclasses.asdict(result)


def from_json(kind: type[_Result], values: Mapping[str, Any]) -> _Result:
    """Return the result that `as_json` was called with."""
    try:
        result: _Result = _value(kind, values)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise CompareError(f"this is not a {kind.__name__} of this version: {error}") from error
    return result


_Result = typing.TypeVar("_Result", Comparison, Experiment)


def _value(kind: Any, value: Any) -> Any:
    """Convert a value of JSON to the type of a field."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return kind(**{name: _value(hints[name], part) for name, part in value.items()})  # type: ignore[operator]
    if origin is tuple and arguments[-1] is Ellipsis:
        return tuple(_value(arguments[0], part) for part in value)
    if origin is dict:
        return {key: _value(arguments[1], part) for key, part in value.items()}
    if origin is types.UnionType and value is not None and type(None) in arguments:
        inner = [each for each in arguments if each is not type(None)]
        return _value(inner[0], value) if len(inner) == 1 else value
    if origin is Literal and value not in arguments:
        raise ValueError(f"{value!r} is not one of {', '.join(map(str, arguments))}")
    return value
