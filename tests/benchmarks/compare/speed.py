"""Throughput, latency and processor time by size and mode: interleaved rounds, in random order."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from claimcheck._texts import size_text
from tests.benchmarks.compare.lab import Lab, WorkerPair
from tests.benchmarks.compare.model import CompareError, Experiment, Mode, Point, Row, Series, Tally, median_point
from tests.benchmarks.compare.worker import Report
from tests.benchmarks.rounds import percentile

_ROUND_SECONDS = 0.25
_ROUND_BYTES = 48 << 20
_MOST_PAYLOADS = 400
_MOST_SINGLE = 20
_WARM_UP = 2
_NOT_COUNTED = 4  # further payloads of a round of reading, of which the first is not measured
_TIMEOUT = 300.0
_STEADY_ROUNDS = 4
_STEADY_RATIO = 0.9
_WARM_UP_SIZE = 10 << 20
_WARM_UP_BYTES = 2 << 30
_WARM_UP_SECONDS = 20.0
_PERCENTILES = (0.5, 0.95, 0.99)
_MEGA, _GIGA = 1e6, 1e9


@dataclass(slots=True)
class Samples:
    """The rounds of one mode and size: many payloads and single ones sent, one and many received after a seek."""

    mode: Mode
    size: int
    produce: list[Report] = field(default_factory=list)
    single: list[Report] = field(default_factory=list)
    first: list[Report] = field(default_factory=list)
    consume: list[Report] = field(default_factory=list)


def run(lab: Lab) -> Experiment:
    """Measure every size, the smallest first."""
    samples: list[Samples] = []
    if not lab.quick:
        warm_up(lab, min(max(lab.sizes), _WARM_UP_SIZE))
    for size in lab.sizes:
        samples.extend(_measure(lab, size))
        lab.clear_store()
    return judge(samples)


def amount(size: int, seconds: float, *, quick: bool = False) -> int:
    """Return how many payloads a round takes, after a warm-up took so many seconds for each."""
    by_time = int(_ROUND_SECONDS / (10 if quick else 1) / max(seconds, 1e-6))
    return max(1, min(by_time, _ROUND_BYTES // size, _MOST_PAYLOADS))


def is_steady(seconds: Sequence[float]) -> bool:
    """Return whether the last of these equal rounds were hardly faster than the rounds before them."""
    before, last = seconds[-2 * _STEADY_ROUNDS : -_STEADY_ROUNDS], seconds[-_STEADY_ROUNDS:]
    return len(before) == _STEADY_ROUNDS and statistics.median(last) >= _STEADY_RATIO * statistics.median(before)


# Measuring -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Lane:
    """The processes of one mode, and what they measured."""

    pair: WorkerPair
    samples: Samples
    count: int = 0
    reads: int = 0
    next_number: int = 0
    begin: tuple[int, int | str] = (0, 0)

    def send(self, count: int, *, one_by_one: bool = False) -> Report:
        size, first = self.samples.size, self.next_number
        report = self.pair.producer.send(size, first, count, one_by_one=one_by_one, timeout=_TIMEOUT)
        self.next_number += count
        if report.errors:
            text = f"{self.samples.mode}: {len(report.errors)} of {count} payloads of {size_text(size)} failed"
            raise CompareError(f"{text}; the first error was {report.errors[0]}")
        return report


def warm_up(lab: Lab, size: int) -> None:
    """Send chunks until that becomes no faster, and read them.

    A Java broker that was just started compiles its code during the first gigabyte, and is half as fast until then.
    Strategies that send few bytes through the broker are hardly slower, so the comparison would be wrong.
    """
    lab.progress("warm-up of the broker")
    with lab.pairs("warmup", size, modes=("chunking",)) as [pair]:
        lane = _Lane(pair, Samples(pair.mode, size))
        _warm_up(lane, quick=False)
        seconds: list[float] = []
        most = _WARM_UP_BYTES // (size * lane.count)
        while len(seconds) < most and sum(seconds) < _WARM_UP_SECONDS and not is_steady(seconds):
            seconds.append(lane.send(lane.count).seconds)
        lane.pair.consumer.receive(len(seconds) * lane.count, timeout=_TIMEOUT, commit="none", verify=False)


def _measure(lab: Lab, size: int) -> list[Samples]:
    with lab.pairs("speed", size) as pairs:
        lanes = [_Lane(pair, Samples(pair.mode, size)) for pair in pairs]
        lab.progress(f"{size_text(size)}: warm-up")
        for lane in lanes:
            _warm_up(lane, quick=lab.quick)
        for number, lane in _rounds(lab, lanes):
            lab.progress(f"{size_text(size)}: produce, round {number} of {lab.rounds}")
            _produce(lane)
        for lane in lanes:
            _verify(lane)
        for number, lane in _rounds(lab, lanes):
            lab.progress(f"{size_text(size)}: consume, round {number} of {lab.rounds}")
            lane.samples.first.append(_consume(lane, 1))
            lane.samples.consume.append(_consume(lane, lane.reads))
        return [lane.samples for lane in lanes]


def _warm_up(lane: _Lane, *, quick: bool) -> None:
    """Connect, fill caches, find out how many payloads a round takes, and where the first one is."""
    lane.send(1)
    lane.count = _WARM_UP
    for _ in range(2):  # few payloads take longer than each of many
        lane.count = amount(lane.samples.size, lane.send(lane.count).seconds / lane.count, quick=quick)
    lane.pair.consumer.receive(lane.next_number, timeout=_TIMEOUT, commit="last")
    _check_delivered(lane, lane.next_number)
    first = lane.pair.consumer.delivered[0]
    lane.begin = first.partition, first.position


def _rounds(lab: Lab, lanes: Sequence[_Lane]) -> Iterator[tuple[int, _Lane]]:
    """Yield every lane in every round, in another order each time."""
    for number in range(1, lab.rounds + 1):
        for lane in lab.rng.sample(lanes, len(lanes)):
            yield number, lane


def _produce(lane: _Lane) -> None:
    """Send many payloads, then some one after the other; one payload is both."""
    report = lane.send(lane.count)
    lane.samples.produce.append(report)
    single = lane.send(min(lane.count, _MOST_SINGLE), one_by_one=True) if lane.count > 1 else report
    lane.samples.single.append(single)


def _verify(lane: _Lane) -> None:
    """Read what the rounds will read once, and verify every byte."""
    lane.reads = min(lane.count + _NOT_COUNTED, lane.next_number)
    lane.pair.consumer.delivered.clear()
    lane.pair.consumer.seek(*lane.begin)
    lane.pair.consumer.receive(lane.reads, timeout=_TIMEOUT, commit="none")
    _check_delivered(lane, lane.reads)


def _consume(lane: _Lane, count: int) -> Report:
    """Read the first payloads of the topic again: the seek discards what the client has fetched in advance."""
    seconds = lane.pair.consumer.seek(*lane.begin).seconds
    report = lane.pair.consumer.receive(count, timeout=_TIMEOUT, commit="none", verify=False)
    if report.count != count or report.size != count * lane.samples.size:
        raise CompareError(f"{lane.samples.mode}: {report.count} of {count} payloads were read after a seek")
    return replace(report, seconds=seconds + report.seconds)


def _check_delivered(lane: _Lane, count: int) -> None:
    delivered = lane.pair.consumer.delivered
    wrong = [each for each in delivered if not each.correct]
    if wrong or len(delivered) != count:
        reason = next((each.error for each in wrong if each.error), "damaged" if wrong else "missing")
        text = (
            f"{lane.samples.mode}: {len(delivered) - len(wrong)} of {count} payloads of {size_text(lane.samples.size)}"
        )
        raise CompareError(f"{text} were delivered unchanged ({reason})")


# The result ----------------------------------------------------------------------------------------------------

_TITLES = {
    "produce_throughput": ("Produce: throughput", "MB/s"),
    "consume_throughput": ("Consume: throughput", "MB/s"),
    "produce_latency": ("Produce: median latency of one payload at a time", "ms"),
    "consume_latency": ("Consume: median latency", "ms"),
    "cpu": ("Processor time of producer and consumer", "s per GB"),
}
_WHY = (
    "Rounds of all modes were interleaved in random order. Throughput counts the payload's bytes until the last"
    " acknowledgement or delivery; latency is that of one payload at a time. Consumers read what is in the topic after"
    " a seek; the time that the first payload takes alone is not counted. Before the first round, chunks were sent"
    " until the broker became no faster."
)


def judge(samples: Sequence[Samples]) -> Experiment:
    """Return the experiment for the rounds of all sizes and modes."""
    samples = sorted(map(_steady, samples), key=lambda each: each.size)
    by_mode: dict[str, list[Samples]] = {}
    for each in samples:
        by_mode.setdefault(each.mode, []).append(each)
    series = tuple(
        Series(name, title, "payload in bytes", unit,
               {mode: tuple(map(_MEASURES[name], found)) for mode, found in by_mode.items()})
        for name, (title, unit) in _TITLES.items()
    )  # fmt: skip

    def line(mode: str) -> str:
        largest = by_mode[mode][-1]
        rates = [_MEASURES[name](largest).y for name in ("produce_throughput", "consume_throughput")]
        return f"{rates[0]:,.0f} / {rates[1]:,.0f} MB/s ({size_text(largest.size)})"

    facts: dict[str, float] = {}
    for each in samples:
        facts |= _facts(each)
    result = Tally([_row(each) for each in samples]).experiment(
        "speed", {mode: line(mode) for mode in by_mode}, "measured", _WHY, series=series
    )
    return replace(result, facts=facts)


def _steady(samples: Samples) -> Samples:
    """Return samples whose reports of receiving leave out the first payload, for which a consumer waits after a seek.

    The time for the first payload is that of receiving it alone. If a client connects again after a seek, that time
    varies by more than the others take; then the sum of the others' latencies is the better estimate.
    """
    if not samples.first:
        return samples
    seconds, cpu = (
        statistics.median(getattr(report, name) for report in samples.first) for name in ("seconds", "cpu_seconds")
    )
    return replace(samples, consume=[_without_first(report, seconds, cpu) for report in samples.consume])


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


def _latency(size: int, reports: Sequence[Report], fraction: float = 0.5) -> Point:
    return median_point(size, [1000 * percentile(report.latencies, fraction) for report in reports])


def _cpu(each: Samples) -> Point:
    pairs = zip(each.produce, each.consume, strict=True)
    return median_point(each.size, [_GIGA * (a.cpu_seconds / a.size + b.cpu_seconds / b.size) for a, b in pairs])


_MEASURES: dict[str, Callable[[Samples], Point]] = {
    "produce_throughput": lambda each: _throughput(each.size, each.produce),
    "consume_throughput": lambda each: _throughput(each.size, each.consume),
    "produce_latency": lambda each: _latency(each.size, each.single),
    "consume_latency": lambda each: _latency(each.size, each.consume),
    "cpu": _cpu,
}


def _row(each: Samples) -> Row:
    row: Row = {"mode": each.mode, "size": size_text(each.size)}
    for what, many, single in (("produce", each.produce, each.single), ("consume", each.consume, each.consume)):
        row[f"{what} MB/s"] = _throughput(each.size, many).y
        for fraction in _PERCENTILES:
            row[f"{what} ms p{fraction * 100:g}"] = _latency(each.size, single, fraction).y
    row["CPU s/GB"] = _cpu(each).y
    return {name: float(f"{value:.3g}") if isinstance(value, float) else value for name, value in row.items()}


def _facts(each: Samples) -> dict[str, float]:
    """Return seconds per payload by round."""
    return {
        f"{name}_seconds/{each.mode}/{each.size}/{number}": report.seconds / report.count
        for name, reports in (("produce", each.produce), ("consume", each.consume))
        for number, report in enumerate(reports)
    }
