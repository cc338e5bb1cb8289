"""What is measured in every mode: bytes in the broker, memory, and throughput."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from claimcheck._client import ClaimCheck
from claimcheck._texts import size_text
from tests.benchmarks.compare.broker import Mode, NotMeasuredError, deliver, make
from tests.benchmarks.compare.lab import Lab, Pair
from tests.benchmarks.compare.worker import Report
from tests.benchmarks.rounds import interval

_MEGA = 1e6
PARTITION_BYTES = 10_000_000_000
"""The partition whose filling is calculated."""


@dataclass(frozen=True, slots=True)
class Point:
    """One measured value, the median of all rounds, with its 95 % confidence interval."""

    x: float
    y: float
    low: float
    high: float

    @classmethod
    def of(cls, x: float, values: Sequence[float]) -> Point:
        """Return the median of one value per round, with its interval."""
        return cls(x, statistics.median(values), *interval(values))


Lines = dict[str, tuple[Point, ...]]
"""Points by rising x, for each mode."""


@dataclass(frozen=True, slots=True)
class Series:
    """A plot; labels have their units."""

    name: str
    title: str
    x_label: str
    y_label: str
    points: Lines


@dataclass(frozen=True, slots=True)
class Measure:
    """What was measured: a sentence for each mode, and all figures."""

    name: str
    title: str
    measured: dict[str, str]
    explanation: str
    series: tuple[Series, ...] = ()
    facts: dict[str, float] = field(default_factory=dict)
    """Figures that the recommendation uses, by name."""


# Bytes in the broker ---------------------------------------------------------------------------------------------

_SENT_BYTES = 16 << 20  # at most, unless one payload is larger
_MOST_PAYLOADS = 16


def partition(lab: Lab) -> Measure:
    """Send payloads of each size in each mode to topics of their own, and read the topics' sizes."""
    found: dict[str, list[Point]] = defaultdict(list)
    texts = [f"Measured from {lab.broker.bytes_source}."]
    for mode in lab.modes:
        for size in lab.sizes:
            lab.progress(f"bytes in the broker: {mode}, {size_text(size)}")
            try:
                found[mode].append(Point.of(size, [_bytes_in_topic(lab, mode, size)]))
            except NotMeasuredError as error:  # whole records of this size
                texts.append(f"Without {mode}, {size_text(size)}: {error}.")
    lines = {mode: tuple(points) for mode, points in found.items() if points}
    plot = Series("partition_bytes", "Bytes in the broker per payload", "payload size (bytes)", "bytes", lines)
    said = {mode: _share(points[-1]) for mode, points in lines.items()}
    return Measure("partition", "Bytes in the broker", said, " ".join(texts), (plot,))


def _share(point: Point) -> str:
    of_payload = f"{point.y:,.0f} bytes ({100 * point.y / point.x:.3g} % of the payload)"
    payloads = int(PARTITION_BYTES / max(point.y, 1))
    return f"{size_text(int(point.x))} takes {of_payload}; {payloads:,} payloads fill {PARTITION_BYTES // 10**9} GB"


def _bytes_in_topic(lab: Lab, mode: Mode, size: int) -> float:
    count = max(1, min(_MOST_PAYLOADS, _SENT_BYTES // size))
    with lab.topic(mode, "bytes", size) as topic, ClaimCheck(lab.config(mode)) as cc:
        with closing(lab.broker.producer(mode, topic, cc)) as producer:
            deliver(producer, (make(size, number) for number in range(count)))
        return lab.broker.topic_bytes(topic) / count


# Memory ----------------------------------------------------------------------------------------------------------

_TOGETHER = (1, 4, 8)
_TOGETHER_BYTES = 4 << 20
_REPETITIONS = 3
_PRODUCER, _CONSUMER = 0, 1


def memory(lab: Lab) -> Measure:
    """Measure one payload of each size, then several of one size whose chunks are interleaved."""
    several = max(_TOGETHER_BYTES, 2 * lab.broker.limit_bytes)
    work = [(size, 1) for size in lab.sizes] + [(several, together) for together in _TOGETHER]
    peaks: dict[tuple[str, int, int], list[tuple[float, float]]] = defaultdict(list)
    with lab.pairs("memory", max(*lab.sizes, several)) as pairs:
        for pair in pairs:
            _peaks(pair, several, 1)  # warm-up
        for number in range(1 if lab.quick else _REPETITIONS):
            for pair in lab.rng.sample(pairs, len(pairs)):
                lab.progress(f"{pair.mode}, repetition {number + 1} of {_REPETITIONS}")
                for size, together in dict.fromkeys(work):
                    peaks[pair.mode, size, together].append(_peaks(pair, size, together))
    modes = [pair.mode for pair in pairs]

    def lines(role: int, places: Sequence[tuple[int, int, int]]) -> Lines:
        return {
            mode: tuple(
                Point.of(x, [each[role] for each in peaks[mode, size, together]]) for x, size, together in places
            )
            for mode in modes
        }

    by_size = [(size, size, 1) for size in lab.sizes]
    interleaved = lines(_CONSUMER, [(count, several, count) for count in _TOGETHER])
    held = {mode: _held(points, several) for mode, points in interleaved.items()}
    text = f"Consumer: interleaved payloads of {size_text(several)}"
    return Measure(
        "memory",
        "Memory",
        {
            mode: f"{points[-1].y:,.0f} MB for {_TOGETHER[-1]} payloads at a time"
            for mode, points in interleaved.items()
        },
        f"The consumer's peak, while {_TOGETHER[-1]} payloads of {size_text(several)} arrived with their chunks"
        " interleaved. It includes the payload that is returned and what the client fetches in advance."
        + "".join(f" {mode} held {each:.1f} more for each further payload." for mode, each in held.items()),
        (
            Series("producer_memory", "Producer: memory", "payload in bytes", "MB", lines(_PRODUCER, by_size)),
            Series("consumer_memory", "Consumer: memory", "payload in bytes", "MB", lines(_CONSUMER, by_size)),
            Series("interleaved_memory", text, "number", "MB", interleaved),
        ),
        {f"buffered/{mode}": each for mode, each in held.items()},
    )


def _peaks(pair: Pair, size: int, together: int) -> tuple[float, float]:
    """Send while the consumer waits: what a client fetches in advance counts. Returns MB of producer and consumer.

    The payloads that are sent are not in it, the one that a consumer returns is.
    """
    pair.consumer.start("receive", count=together, peak=True)
    sent = pair.producer.call("produce", size=size, first=1, count=together, interleaved=together > 1, peak=True)
    received: Report = pair.consumer.report()
    pair.check(size, sent, received)
    return sent.peak_bytes / _MEGA, received.peak_bytes / _MEGA


def _held(points: Sequence[Point], size: int) -> float:
    """Return how much of each further payload is in memory, in payloads."""
    first, last = points[0], points[-1]
    return (last.y - first.y) * _MEGA / size / (last.x - first.x)


# Throughput ------------------------------------------------------------------------------------------------------

_ROUND_SECONDS = 0.25
_ROUND_BYTES = 48 << 20
_MOST_PAYLOADS_SENT = 400
_WARM_UP = 2
_NOT_COUNTED = 4  # further payloads of a round of reading, of which the first is not measured
_NOT_COUNTED_SIZE = 10 << 20
_WHY = (
    "Rounds of all modes were interleaved in random order. Throughput counts the payload's bytes until the last"
    " acknowledgement or delivery. Consumers read what is in the topic after a seek; the time that the first payload"
    " takes alone is not counted. Before all that, one size was measured that does not count."
)


@dataclass(slots=True)
class Lane:
    """One mode and size: its processes, and its rounds."""

    pair: Pair
    size: int
    produce: list[Report] = field(default_factory=list)  # of many payloads
    first: list[Report] = field(default_factory=list)  # of one payload after a seek
    consume: list[Report] = field(default_factory=list)  # of many payloads after a seek
    count: int = _WARM_UP
    sent: int = 0
    begin: int | str = 0

    def send(self, count: int) -> Report:
        report = self.pair.producer.call("produce", size=self.size, first=self.sent + 1, count=count)
        self.sent += count
        self.pair.check(self.size, report)
        return report

    def warm_up(self, *, quick: bool) -> None:
        """Connect, fill caches, find out how many payloads a round takes, and verify what is in the topic."""
        self.send(1)
        for _ in range(2):  # few payloads take longer than each of many
            seconds = self.send(self.count).seconds / self.count
            by_time = int(_ROUND_SECONDS / (10 if quick else 1) / max(seconds, 1e-6))
            self.count = max(1, min(by_time, _ROUND_BYTES // self.size, _MOST_PAYLOADS_SENT))
        report = self.pair.consumer.call("receive", count=self.sent)
        self.pair.check(self.size, report)
        self.begin = report.begin

    def produce_round(self) -> None:
        self.produce.append(self.send(self.count))

    def consume_round(self) -> None:
        self.first.append(self._consume(1))
        self.consume.append(self._consume(min(self.count + _NOT_COUNTED, self.sent)))

    def _consume(self, count: int) -> Report:
        """Read the first payloads of the topic again: the seek discards what the client has fetched in advance."""
        seconds = self.pair.consumer.call("seek", position=self.begin).seconds
        report = self.pair.consumer.call("receive", count=count, again=True)
        self.pair.check(self.size, report)
        return replace(report, seconds=seconds + report.seconds)

    def without_first(self) -> list[Report]:
        """Return the reports of receiving without the first payload, for which a consumer waits after a seek.

        The time for the first payload is that of receiving it alone. If a client connects again after a seek, that time
        varies by more than the others take; then the sum of the others' latencies is the better estimate.
        """
        seconds = statistics.median(report.seconds for report in self.first)
        return [
            replace(
                each,
                count=each.count - 1,
                size=each.size - each.size // each.count,
                seconds=max(each.seconds - seconds, sum(each.latencies[1:])),
            )
            for each in self.consume
        ]


def speed(lab: Lab) -> Measure:
    """Measure every size, the smallest first."""
    # A Java broker that was just started compiles its code during the first gigabyte, and is half as fast until then.
    # Strategies that send few bytes through the broker are hardly slower, so the comparison would be wrong.
    if not lab.quick:
        _lanes(lab, min(max(lab.sizes), _NOT_COUNTED_SIZE))
    by_mode: dict[str, list[Lane]] = defaultdict(list)
    for size in lab.sizes:
        for lane in _lanes(lab, size):
            by_mode[lane.pair.mode].append(lane)
        lab.clear_store()
    produced = {mode: tuple(_rate(each.size, each.produce) for each in lanes) for mode, lanes in by_mode.items()}
    consumed = {mode: tuple(_rate(each.size, each.consume) for each in lanes) for mode, lanes in by_mode.items()}
    series = tuple(
        Series(f"{what}_throughput", f"{what.capitalize()}: throughput", "payload in bytes", "MB/s", rates)
        for what, rates in (("produce", produced), ("consume", consumed))
    )
    said = {
        mode: f"{points[-1].y:,.0f} / {consumed[mode][-1].y:,.0f} MB/s ({size_text(int(points[-1].x))})"
        for mode, points in produced.items()
    }
    facts = dict(fact for lanes in by_mode.values() for lane in lanes for fact in _facts(lane))
    return Measure("speed", "Throughput: produce / consume", said, _WHY, series, facts)


def _lanes(lab: Lab, size: int) -> list[Lane]:
    with lab.pairs("speed", size) as pairs:
        lanes = [Lane(pair, size) for pair in pairs]
        for lane in lanes:
            lab.progress(f"{size_text(size)}: warm-up")
            lane.warm_up(quick=lab.quick)
        for what, run in (("produce", Lane.produce_round), ("consume", Lane.consume_round)):
            for number in range(1, lab.rounds + 1):
                lab.progress(f"{size_text(size)}: {what}, round {number} of {lab.rounds}")
                for lane in lab.rng.sample(lanes, len(lanes)):  # in another order each time
                    run(lane)
        for lane in lanes:
            lane.consume = lane.without_first()
        return lanes


def _rate(size: int, reports: Sequence[Report]) -> Point:
    return Point.of(size, [report.size / report.seconds / _MEGA for report in reports])


def _facts(lane: Lane) -> Iterator[tuple[str, float]]:
    """Yield seconds per payload by round, of producing and consuming it."""
    for number, (sent, read) in enumerate(zip(lane.produce, lane.consume, strict=True)):
        seconds = sent.seconds / sent.count + read.seconds / read.count
        yield f"seconds/{lane.pair.mode}/{lane.size}/{number}", seconds


MEASURES: dict[str, Callable[[Lab], Measure]] = {"partition": partition, "memory": memory, "speed": speed}
"""All measurements in their order."""
