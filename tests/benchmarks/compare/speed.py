"""Throughput, latency and processor time by size and mode: interleaved rounds, in random order."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from claimcheck._texts import size_text
from tests.benchmarks.compare.lab import Lab, WorkerPair
from tests.benchmarks.compare.model import CompareError, Experiment, Mode, Point, Row, Series, Tally, median_point
from tests.benchmarks.compare.worker import Report

_ROUND_SECONDS = 0.25
_ROUND_BYTES = 48 << 20
_MOST_PAYLOADS = 400
_MOST_SINGLE = 20
_WARM_UP = 2
_NOT_COUNTED = 4  # further payloads of a round of reading, of which the first is not measured
_TIMEOUT = 300.0
_NOT_COUNTED_SIZE = 10 << 20
_MEGA, _GIGA = 1e6, 1e9


@dataclass(slots=True)
class Lane:
    """One mode and size: its processes, and its rounds."""

    pair: WorkerPair
    size: int
    produce: list[Report] = field(default_factory=list)  # of many payloads
    single: list[Report] = field(default_factory=list)  # of payloads one by one
    first: list[Report] = field(default_factory=list)  # of one payload after a seek
    consume: list[Report] = field(default_factory=list)  # of many payloads after a seek
    count: int = _WARM_UP
    sent: int = 0
    begin: tuple[int, int | str] = (0, 0)

    @property
    def mode(self) -> Mode:
        return self.pair.mode

    def send(self, count: int) -> Report:
        report = self.pair.producer.call("produce", timeout=_TIMEOUT, size=self.size, first=self.sent, count=count)
        self.sent += count
        if report.errors:
            text = f"{self.mode}: {len(report.errors)} of {count} payloads of {size_text(self.size)} failed"
            raise CompareError(f"{text}; the first error was {report.errors[0]}")
        return report

    def warm_up(self, *, quick: bool) -> None:
        """Connect, fill caches, find out how many payloads a round takes, and verify what is in the topic."""
        self.send(1)
        for _ in range(2):  # few payloads take longer than each of many
            self.count = amount(self.size, self.send(self.count).seconds / self.count, quick=quick)
        self.pair.consumer.call("receive", timeout=_TIMEOUT, count=self.sent, commit="last")
        delivered = self.pair.consumer.delivered
        wrong = [each for each in delivered if each.number is None]
        if wrong or len(delivered) != self.sent:
            reason = next((each.error for each in wrong if each.error), "damaged" if wrong else "missing")
            text = f"{self.mode}: {len(delivered) - len(wrong)} of {self.sent} payloads of {size_text(self.size)}"
            raise CompareError(f"{text} were delivered unchanged ({reason})")
        self.begin = delivered[0].partition, delivered[0].position

    def produce_round(self) -> None:
        """Send many payloads, then some one after the other; one payload is both."""
        report = self.send(self.count)
        self.produce.append(report)
        singles = [self.send(1) for _ in range(min(self.count, _MOST_SINGLE))] if self.count > 1 else [report]
        self.single.append(replace(report, latencies=tuple(each.latencies[0] for each in singles)))

    def consume_round(self) -> None:
        self.first.append(self._consume(1))
        self.consume.append(self._consume(min(self.count + _NOT_COUNTED, self.sent)))

    def _consume(self, count: int) -> Report:
        """Read the first payloads of the topic again: the seek discards what the client has fetched in advance."""
        consumer, (partition, position) = self.pair.consumer, self.begin
        seconds = consumer.call("seek", partition=partition, position=position).seconds
        report = consumer.call("receive", timeout=_TIMEOUT, count=count, commit="none", verify=False)
        if report.count != count or report.size != count * self.size:
            raise CompareError(f"{self.mode}: {report.count} of {count} payloads were read after a seek")
        return replace(report, seconds=seconds + report.seconds)


def amount(size: int, seconds: float, *, quick: bool = False) -> int:
    """Return how many payloads a round takes, after a warm-up took so many seconds for each."""
    by_time = int(_ROUND_SECONDS / (10 if quick else 1) / max(seconds, 1e-6))
    return max(1, min(by_time, _ROUND_BYTES // size, _MOST_PAYLOADS))


def run(lab: Lab) -> Experiment:
    """Measure every size, the smallest first."""
    lanes: list[Lane] = []
    # A Java broker that was just started compiles its code during the first gigabyte, and is half as fast until then.
    # Strategies that send few bytes through the broker are hardly slower, so the comparison would be wrong.
    if not lab.quick:
        _measure(lab, min(max(lab.sizes), _NOT_COUNTED_SIZE))
    for size in lab.sizes:
        lanes.extend(_measure(lab, size))
        lab.space.clear()
    return judge(lanes)


def _measure(lab: Lab, size: int) -> list[Lane]:
    with lab.pairs("speed", size) as pairs:
        lanes = [Lane(pair, size) for pair in pairs]
        lab.progress(f"{size_text(size)}: warm-up")
        for lane in lanes:
            lane.warm_up(quick=lab.quick)
        for number, lane in _rounds(lab, lanes):
            lab.progress(f"{size_text(size)}: produce, round {number} of {lab.rounds}")
            lane.produce_round()
        for number, lane in _rounds(lab, lanes):
            lab.progress(f"{size_text(size)}: consume, round {number} of {lab.rounds}")
            lane.consume_round()
        return lanes


def _rounds(lab: Lab, lanes: Sequence[Lane]) -> Iterator[tuple[int, Lane]]:
    """Yield every lane in every round, in another order each time."""
    for number in range(1, lab.rounds + 1):
        for lane in lab.rng.sample(lanes, len(lanes)):
            yield number, lane


_WHY = (
    "Rounds of all modes were interleaved in random order. Throughput counts the payload's bytes until the last"
    " acknowledgement or delivery; latency is that of one payload at a time. Consumers read what is in the topic after"
    " a seek; the time that the first payload takes alone is not counted. Before all that, one size was"
    " measured that does not count."
)


def judge(lanes: Sequence[Lane]) -> Experiment:
    """Return the experiment for the rounds of all sizes and modes."""
    lanes = sorted(map(_steady, lanes), key=lambda each: each.size)
    by_mode: dict[str, list[Lane]] = {}
    for each in lanes:
        by_mode.setdefault(each.mode, []).append(each)
    series = tuple(
        Series(name, title, "payload in bytes", unit, {mode: tuple(map(of, found)) for mode, found in by_mode.items()})
        for name, title, unit, of in _MEASURES
    )
    lines = {}
    for mode, found in by_mode.items():
        rates = _throughput(found[-1].size, found[-1].produce).y, _throughput(found[-1].size, found[-1].consume).y
        lines[mode] = f"{rates[0]:,.0f} / {rates[1]:,.0f} MB/s ({size_text(found[-1].size)})"
    result = Tally([_row(each) for each in lanes]).experiment("speed", lines, "measured", _WHY, series=series)
    return replace(result, facts={name: value for each in lanes for name, value in _facts(each)})


def _steady(lane: Lane) -> Lane:
    """Return a lane whose reports of receiving leave out the first payload, for which a consumer waits after a seek.

    The time for the first payload is that of receiving it alone. If a client connects again after a seek, that time
    varies by more than the others take; then the sum of the others' latencies is the better estimate.
    """
    seconds = statistics.median(report.seconds for report in lane.first)
    cpu = statistics.median(report.cpu_seconds for report in lane.first)
    return replace(lane, consume=[_without_first(report, seconds, cpu) for report in lane.consume])


def _without_first(report: Report, seconds: float, cpu_seconds: float) -> Report:
    if report.count < 2:
        return report
    return replace(
        report,
        count=report.count - 1,
        size=report.size - report.size // report.count,
        seconds=max(report.seconds - seconds, sum(report.latencies[1:])),
        cpu_seconds=max(report.cpu_seconds - cpu_seconds, 0.0),
        latencies=report.latencies[1:],
    )


def _throughput(size: int, reports: Sequence[Report]) -> Point:
    return median_point(size, [report.size / report.seconds / _MEGA for report in reports])


def _latency(size: int, reports: Sequence[Report]) -> Point:
    return median_point(size, [1000 * statistics.median(report.latencies) for report in reports])


def _cpu(each: Lane) -> Point:
    pairs = zip(each.produce, each.consume, strict=True)
    return median_point(each.size, [_GIGA * (a.cpu_seconds / a.size + b.cpu_seconds / b.size) for a, b in pairs])


_MEASURES: tuple[tuple[str, str, str, Callable[[Lane], Point]], ...] = (
    ("produce_throughput", "Produce: throughput", "MB/s", lambda each: _throughput(each.size, each.produce)),
    ("consume_throughput", "Consume: throughput", "MB/s", lambda each: _throughput(each.size, each.consume)),
    ("produce_latency", "Produce: median latency of one payload at a time", "ms",
     lambda each: _latency(each.size, each.single)),
    ("consume_latency", "Consume: median latency", "ms", lambda each: _latency(each.size, each.consume)),
    ("cpu", "Processor time of producer and consumer", "s per GB", _cpu),
)  # fmt: skip


def _row(each: Lane) -> Row:
    figures = {f"{title} ({unit})": float(f"{of(each).y:.3g}") for _, title, unit, of in _MEASURES}
    return {"mode": each.mode, "size": size_text(each.size), **figures}


def _facts(each: Lane) -> Iterator[tuple[str, float]]:
    """Yield seconds per payload by round."""
    for name, reports in (("produce", each.produce), ("consume", each.consume)):
        for number, report in enumerate(reports):
            yield f"{name}_seconds/{each.mode}/{each.size}/{number}", report.seconds / report.count
