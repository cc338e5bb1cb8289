"""Memory of producers and consumers by size, and by the number of payloads whose chunks are interleaved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from claimcheck._texts import size_text
from tests.benchmarks.compare.lab import Lab, WorkerPair
from tests.benchmarks.compare.model import (
    MODES,
    CompareError,
    Experiment,
    Mode,
    Point,
    Series,
    Verdict,
)
from tests.benchmarks.compare.stats import median_point

_CLAIMED = {
    "external": "one payload at a time",
    "chunking": "incomplete payloads are buffered",
}
_INTERLEAVED = (1, 4, 8)
_INTERLEAVED_BYTES = 4 << 20
_REPETITIONS = 3
_TIMEOUT = 120.0
_PIECE = 0.5  # a payload counts as buffered if more than this part of it is in memory
_MEGA = 1e6


@dataclass(frozen=True, slots=True)
class Peak:
    """One measurement.

    Attributes:
        mode: The mode.
        size: Of each payload.
        together: How many payloads were interleaved.
        producer: Bytes of memory beyond the payloads themselves.
        consumer: Bytes of memory, with the payload that is returned.
    """

    mode: Mode
    size: int
    together: int
    producer: float
    consumer: float


def run(lab: Lab) -> Experiment:
    """Measure one payload of each size, then several of one size whose chunks are interleaved."""
    several = max(_INTERLEAVED_BYTES, 2 * lab.broker.limit_bytes)
    peaks: list[Peak] = []
    with lab.pairs("memory", max(*lab.sizes, several)) as pairs:
        for pair in pairs:
            _measure(pair, several, 1, 0)  # warm-up
        for number in range(1 if lab.quick else _REPETITIONS):
            for pair in lab.rng.sample(pairs, len(pairs)):
                lab.progress(f"{pair.mode}, repetition {number + 1} of {_REPETITIONS}")
                peaks += [_measure(pair, size, 1, number) for size in lab.sizes]
                peaks += [_measure(pair, several, together, number) for together in _INTERLEAVED]
            if lab.is_late:
                break
    return judge(peaks, sizes=lab.sizes, several=several)


def _measure(pair: WorkerPair, size: int, together: int, number: int) -> Peak:
    """Send while the consumer waits: what a client fetches in advance counts."""
    pair.consumer.delivered.clear()
    pair.consumer.start("receive", count=together, idle=_TIMEOUT / 4, commit="each", verify=True, peak=True)
    interleaved = together > 1
    sent = pair.producer.send(size, number * together, together, interleaved=interleaved, peak=True, timeout=_TIMEOUT)
    received = pair.consumer.report(_TIMEOUT)
    wrong = [each for each in pair.consumer.delivered if not each.correct]
    if sent.errors or wrong or received.count != together:
        reason = next(iter([*sent.errors, *(each.error for each in wrong)]), "no payload arrived")
        raise CompareError(f"{pair.mode}: {together} payloads of {size_text(size)} did not arrive: {reason}")
    return Peak(pair.mode, size, together, sent.peak_bytes, received.peak_bytes)


# The result ----------------------------------------------------------------------------------------------------


def judge(peaks: Sequence[Peak], *, sizes: Sequence[int], several: int) -> Experiment:
    """Return the experiment for all measurements. Pure."""
    modes: list[str] = [mode for mode in MODES if any(peak.mode == mode for peak in peaks)]
    by_size = {
        role: {mode: tuple(_point(peaks, mode, size, 1, role, x=size) for size in sizes) for mode in modes}
        for role in ("producer", "consumer")
    }
    counts = sorted({peak.together for peak in peaks if peak.size == several})
    by_count = {mode: tuple(_point(peaks, mode, several, n, "consumer", x=n) for n in counts) for mode in modes}
    buffered = {mode: _buffered(points, several) for mode, points in by_count.items()}
    texts = {mode: f"{points[-1].y:,.0f} MB for {counts[-1]} payloads at a time" for mode, points in by_count.items()}
    return Experiment(
        name="memory",
        title="Memory",
        claimed=dict(_CLAIMED),
        measured=texts,
        verdict=_verdict(buffered),
        explanation=(
            f"The consumer's peak, while {counts[-1]} payloads of {size_text(several)} arrived with their chunks"
            " interleaved. It includes the payload that is returned and what the client fetches in advance."
            + "".join(f" {mode} held {held:.1f} more for each further payload." for mode, held in buffered.items())
        ),
        columns=("payload", "at a time", "mode", "producer MB", "consumer MB"),
        rows=_rows(peaks),
        series=(
            Series("producer_memory", "Producer: memory", "payload in bytes", "MB", by_size["producer"]),
            Series("consumer_memory", "Consumer: memory", "payload in bytes", "MB", by_size["consumer"]),
            Series(
                "interleaved_memory",
                f"Consumer: memory for interleaved payloads of {size_text(several)}",
                "payloads at a time",
                "MB",
                by_count,
                x_scale="linear",
                y_scale="linear",
            ),
        ),
        facts=_facts(by_size, by_count, buffered),
    )


def _point(peaks: Sequence[Peak], mode: str, size: int, together: int, role: str, *, x: float) -> Point:
    found = [peak for peak in peaks if (peak.mode, peak.size, peak.together) == (mode, size, together)]
    return median_point(x, [getattr(peak, role) / _MEGA for peak in found])


def _buffered(points: Sequence[Point], size: int) -> float:
    """Return how much of each further payload is in memory, in payloads."""
    first, last = points[0], points[-1]
    return (last.y - first.y) * _MEGA / size / (last.x - first.x) if last.x > first.x else 0.0


def _verdict(buffered: dict[str, float]) -> Verdict:
    """The table says: external holds one payload, chunking all incomplete ones."""
    if "chunking" not in buffered:
        return "not measured"
    right = [buffered["chunking"] > _PIECE]
    if "external" in buffered:
        right.append(buffered["external"] < _PIECE)
    return "agrees" if all(right) else "partly" if any(right) else "disagrees"


def _rows(peaks: Sequence[Peak]) -> tuple[tuple[str | float | int | None, ...], ...]:
    keys = sorted({(peak.size, peak.together) for peak in peaks})
    modes: list[str] = [mode for mode in MODES if any(peak.mode == mode for peak in peaks)]
    return tuple(
        (size_text(size), together, mode, *(_rounded(peaks, mode, size, together, role) for role in _ROLES))
        for size, together in keys
        for mode in modes
    )


_ROLES = ("producer", "consumer")


def _rounded(peaks: Sequence[Peak], mode: str, size: int, together: int, role: str) -> float:
    return round(_point(peaks, mode, size, together, role, x=0).y, 1)


def _facts(
    by_size: dict[str, dict[str, tuple[Point, ...]]],
    by_count: dict[str, tuple[Point, ...]],
    buffered: dict[str, float],
) -> dict[str, float]:
    facts = {
        f"{role}_bytes/{mode}/{point.x:.0f}": point.y * _MEGA
        for role, lines in by_size.items()
        for mode, points in lines.items()
        for point in points
    }
    facts |= {
        f"interleaved_bytes/{mode}/{point.x:.0f}": point.y * _MEGA for mode, each in by_count.items() for point in each
    }
    return facts | {f"buffered/{mode}": held for mode, held in buffered.items()}
