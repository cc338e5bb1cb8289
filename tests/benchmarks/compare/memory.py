"""Memory of producers and consumers by size, and by the number of payloads whose chunks are interleaved."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

from claimcheck._texts import size_text
from tests.benchmarks.compare.lab import Lab, WorkerPair
from tests.benchmarks.compare.model import (
    MODES,
    CompareError,
    Experiment,
    Point,
    Series,
    Tally,
    agreement,
    median_point,
)

_INTERLEAVED = (1, 4, 8)
_INTERLEAVED_BYTES = 4 << 20
_REPETITIONS = 3
_TIMEOUT = 120.0
_PIECE = 0.5  # a payload counts as buffered if more than this part of it is in memory
_MEGA = 1e6

Peaks = Mapping[tuple[str, int, int], Sequence[tuple[float, float]]]
"""MB of producer and consumer in each repetition, by mode, payload size, and how many payloads were interleaved.

The payloads that are sent are not in it, the one that a consumer returns is.
"""


def run(lab: Lab) -> Experiment:
    """Measure one payload of each size, then several of one size whose chunks are interleaved."""
    several = max(_INTERLEAVED_BYTES, 2 * lab.broker.limit_bytes)
    work = [(size, 1) for size in lab.sizes] + [(several, together) for together in _INTERLEAVED]
    peaks: dict[tuple[str, int, int], list[tuple[float, float]]] = defaultdict(list)
    with lab.pairs("memory", max(*lab.sizes, several)) as pairs:
        for pair in pairs:
            _measure(pair, several, 1, 0)  # warm-up
        for number in range(1 if lab.quick else _REPETITIONS):
            for pair in lab.rng.sample(pairs, len(pairs)):
                lab.progress(f"{pair.mode}, repetition {number + 1} of {_REPETITIONS}")
                for size, together in dict.fromkeys(work):
                    peaks[pair.mode, size, together].append(_measure(pair, size, together, number))
    return judge(peaks, sizes=lab.sizes, several=several)


def _measure(pair: WorkerPair, size: int, together: int, number: int) -> tuple[float, float]:
    """Send while the consumer waits: what a client fetches in advance counts."""
    pair.consumer.delivered.clear()
    pair.consumer.send(("receive", {"count": together, "idle": _TIMEOUT / 4, "peak": True}))
    options = {"size": size, "first": number * together, "count": together, "interleaved": together > 1}
    sent = pair.producer.call("produce", timeout=_TIMEOUT, peak=True, **options)
    received = pair.consumer.report(_TIMEOUT)
    wrong = [each for each in pair.consumer.delivered if each.number is None]
    if sent.errors or wrong or received.count != together:
        reason = next(iter([*sent.errors, *(each.error for each in wrong)]), "no payload arrived")
        raise CompareError(f"{pair.mode}: {together} payloads of {size_text(size)} did not arrive: {reason}")
    return sent.peak_bytes / _MEGA, received.peak_bytes / _MEGA


def judge(peaks: Peaks, *, sizes: Sequence[int], several: int) -> Experiment:
    """Return the experiment for all measurements."""
    modes: list[str] = [mode for mode in MODES if any(key[0] == mode for key in peaks)]
    rows = [
        {
            "mode": mode,
            "payload": size_text(size),
            "at a time": str(together),
            "producer MB": round(statistics.median(producer for producer, _ in found), 1),
            "consumer MB": round(statistics.median(consumer for _, consumer in found), 1),
        }
        for (mode, size, together), found in sorted(peaks.items(), key=lambda item: (item[0][1:], item[0][0]))
    ]

    def line(mode: str, role: int, places: Sequence[tuple[int, int, int]]) -> tuple[Point, ...]:
        found = [(x, peaks[mode, size, together]) for x, size, together in places]
        return tuple(median_point(x, [each[role] for each in values]) for x, values in found)

    by_size = [(size, size, 1) for size in sizes]
    by_count = [(together, several, together) for together in _INTERLEAVED]
    interleaved = {mode: line(mode, 1, by_count) for mode in modes}
    buffered = {mode: _buffered(points, several) for mode, points in interleaved.items()}
    text = f"Consumer: interleaved payloads of {size_text(several)}"
    return Tally(rows).experiment(
        "memory",
        {mode: f"{line[-1].y:,.0f} MB for {_INTERLEAVED[-1]} payloads at a time" for mode, line in interleaved.items()},
        agreement(buffered.get("external", 0) < _PIECE, buffered["chunking"] > _PIECE),
        f"The consumer's peak, while {_INTERLEAVED[-1]} payloads of {size_text(several)} arrived with their chunks"
        " interleaved. It includes the payload that is returned and what the client fetches in advance."
        + "".join(f" {mode} held {held:.1f} more for each further payload." for mode, held in buffered.items()),
        series=(
            Series("producer_memory", "Producer: memory", "payload in bytes", "MB",
                   {mode: line(mode, 0, by_size) for mode in modes}),
            Series("consumer_memory", "Consumer: memory", "payload in bytes", "MB",
                   {mode: line(mode, 1, by_size) for mode in modes}),
            Series("interleaved_memory", text, "number", "MB", interleaved),
        ),
        facts={f"buffered/{mode}": held for mode, held in buffered.items()},
    )  # fmt: skip


def _buffered(points: Sequence[Point], size: int) -> float:
    """Return how much of each further payload is in memory, in payloads."""
    first, last = points[0], points[-1]
    return (last.y - first.y) * _MEGA / size / (last.x - first.x)
