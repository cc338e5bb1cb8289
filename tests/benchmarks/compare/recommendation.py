"""From measurements to a strategy, a store and a threshold. Pure: the same input returns the same recommendation.

Differences below a margin count as ties, and a choice other than the default needs most of the resampled rounds on its
side, so that noise does not change the recommendation. ``hybrid`` with the broker's limit is the default.
"""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from claimcheck._texts import size_text
from tests.benchmarks.compare.model import Experiment, Recommendation
from tests.benchmarks.compare.stats import percentile

MARGIN = 1.25
"""How many times as fast a mode has to be to count as faster."""

_FRAMING_BYTES = 1024  # a payload that is so much below the limit fits into one message
_RESAMPLES = 200
_SURE, _LIKELY = 0.95, 0.8
_MANY_ROUNDS = 5

Times = Mapping[tuple[str, int], Sequence[float]]
"""Seconds per payload, produced and consumed, of each round by mode and size."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What is known beside the measurements.

    Attributes:
        limit_bytes: The broker's limit.
        store: The store's name; ``None`` if there is none.
        max_chunked_bytes: The largest payload that the configuration sends as chunks.
        stores_yaml: The entry ``stores`` to paste; empty if the user's own configuration has it.
    """

    limit_bytes: int
    store: str | None
    max_chunked_bytes: int = 256 << 20
    stores_yaml: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """What the recommendation decides; a threshold of ``None`` is the broker's limit."""

    strategy: str
    threshold_bytes: int | None = None
    chunk_below_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Votes:
    """Shares of the resampled rounds that lead to the strategy, to a lower threshold, to chunks in spite of a store."""

    strategy: float
    lower_threshold: float
    chunks: float


def recommend(experiments: Sequence[Experiment], setting: Setting) -> Recommendation | None:
    """Return the recommendation; ``None`` if ``speed`` was not measured."""
    facts = {name: value for each in experiments for name, value in (each.facts or {}).items()}
    times = _times(facts)
    sizes = sorted({size for _, size in times})
    if not sizes:
        return None
    choice, votes = _decide(times, sizes, setting)
    lost = {mode: _lost(experiments, mode) for mode in ("external", "chunking")}
    if lost["chunking"] and not lost["external"] and setting.store is not None:
        choice = Choice("external", choice.threshold_bytes)
    rounds = min(len(values) for values in times.values())
    return Recommendation(
        strategy=choice.strategy,
        store=None if choice.strategy == "chunking" else setting.store,
        threshold_bytes=setting.limit_bytes if choice.threshold_bytes is None else choice.threshold_bytes,
        yaml=_yaml(choice, setting),
        reasons=(*_loss_reasons(lost), *_reasons(choice, times, sizes, setting, facts)),
        crossovers=tuple(_crossovers(times, sizes)),
        confidence=_confidence(votes, rounds),
    )


def _lost(experiments: Sequence[Experiment], mode: str) -> dict[str, int]:
    """Return how many payloads of a mode were lost or wrong, by experiment."""
    found = {}
    for each in experiments:
        count = sum(int((each.facts or {}).get(f"{kind}/{mode}", 0)) for kind in ("lost", "wrong"))
        if count:
            found[each.title] = count
    return found


# The decision --------------------------------------------------------------------------------------------------


def _times(facts: Mapping[str, float]) -> dict[tuple[str, int], list[float]]:
    """Add producing and consuming, round by round."""
    found: dict[tuple[str, int], dict[int, float]] = {}
    for name, seconds in facts.items():
        kind, *place = name.split("/")
        if kind == "produce_seconds":
            mode, size, number = place
            consume = facts.get(f"consume_seconds/{mode}/{size}/{number}", 0.0)
            found.setdefault((mode, int(size)), {})[int(number)] = seconds + consume
    return {key: [rounds[number] for number in sorted(rounds)] for key, rounds in found.items()}


def _decide(times: Times, sizes: Sequence[int], setting: Setting) -> tuple[Choice, Votes]:
    """Return the choice, and what the resampled rounds lead to. Each part that is not clear stays at its default."""
    chosen = _choose({key: statistics.median(values) for key, values in times.items()}, sizes, setting)
    votes = [_choose(medians, sizes, setting) for medians in _resampled(times)]
    default = "hybrid" if setting.store is not None else "chunking"
    strategies = Counter(vote.strategy for vote in votes)
    strategy = chosen.strategy if strategies[chosen.strategy] >= _LIKELY * len(votes) else default
    lower = sum(vote.threshold_bytes is not None for vote in votes) / len(votes)
    chunked = sum(vote.strategy == "chunking" or vote.chunk_below_bytes > 0 for vote in votes) / len(votes)
    threshold = chosen.threshold_bytes if lower >= _LIKELY else None
    below = chosen.chunk_below_bytes if strategy == "hybrid" and chunked >= _LIKELY else 0
    return Choice(strategy, threshold, below), Votes(strategies[strategy] / len(votes), lower, chunked)


def _resampled(times: Times) -> Iterator[dict[tuple[str, int], float]]:
    rng = random.Random(0)
    for _ in range(_RESAMPLES):
        yield {key: statistics.median(rng.choices(values, k=len(values))) for key, values in times.items()}


def _choose(medians: Mapping[tuple[str, int], float], sizes: Sequence[int], setting: Setting) -> Choice:
    if setting.store is None or ("external", sizes[0]) not in medians:
        return Choice("chunking")
    ratios = {size: medians["external", size] / medians["chunking", size] for size in sizes}
    small = [size for size in sizes if _fits(size, setting)]
    large = [size for size in sizes if size not in small]
    threshold = _threshold(ratios, small)
    below = _chunk_below(ratios, large)
    if sizes[-1] > setting.max_chunked_bytes:
        return Choice("external", threshold)
    if large and below == large[-1] and threshold is None:
        return Choice("chunking")
    return Choice("hybrid", threshold, below)


def _fits(size: int, setting: Setting) -> bool:
    return size + _FRAMING_BYTES <= setting.limit_bytes


def _threshold(ratios: Mapping[int, float], small: Sequence[int]) -> int | None:
    """Return a threshold below the limit if the store is faster than whole messages; always a measured size."""
    slower = [size for size in small if ratios[size] > 1 / MARGIN]
    if len(slower) == len(small) or slower[-1:] == small[-1:]:
        return None
    return slower[-1] if slower else small[0] // 2


def _chunk_below(ratios: Mapping[int, float], large: Sequence[int]) -> int:
    """Return the largest size up to which chunks are faster than the store; always a measured size."""
    below = 0
    for size in large:
        if ratios[size] <= MARGIN:
            break
        below = size
    return below


def _confidence(votes: Votes, rounds: int) -> str:
    undecided = [
        text
        for share, text in ((votes.lower_threshold, "a lower threshold"), (votes.chunks, "chunks for some sizes"))
        if 1 - _SURE < share < _SURE
    ]
    reason = f"{votes.strategy:.0%} of the resampled rounds lead to this strategy"
    if undecided:
        reason += f"; whether {' and '.join(undecided)} would be faster is not certain"
    if votes.strategy >= _SURE and rounds >= _MANY_ROUNDS:
        return f"{'medium' if undecided else 'high'}: {reason}"
    if votes.strategy >= _LIKELY and rounds > 1:
        return f"medium: {reason}; there were only {rounds} rounds" if rounds < _MANY_ROUNDS else f"medium: {reason}"
    return f"low: {reason}; repeat with more --rounds on an idle machine"


# Texts ---------------------------------------------------------------------------------------------------------


def _yaml(choice: Choice, setting: Setting) -> str:
    lines = [f"strategy: {choice.strategy}"]
    if choice.threshold_bytes is None:
        lines.append(f"threshold_bytes: auto  # the broker's limit, {setting.limit_bytes:,} bytes")
    else:
        lines.append(f"threshold_bytes: {choice.threshold_bytes}  # {size_text(choice.threshold_bytes)}")
    if choice.chunk_below_bytes:
        lines.append(f"hybrid: {{chunk_below_bytes: {choice.chunk_below_bytes}}}")
    if choice.strategy != "chunking":
        lines += [f"store: {setting.store}"]
        lines.append(setting.stores_yaml.rstrip() or "# stores: as in your configuration")
    return "\n".join(lines) + "\n"


def _reasons(
    choice: Choice, times: Times, sizes: Sequence[int], setting: Setting, facts: Mapping[str, float]
) -> Iterator[str]:
    if setting.store is None:
        yield "The configuration has no store, so payloads can only be sent as chunks."
        return
    yield _speed_reason(times, sizes[-1])
    yield from _choice_reasons(choice, sizes[-1], setting)
    yield from _resource_reasons(sizes[-1], facts)


def _loss_reasons(lost: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    for mode, found in lost.items():
        for title, count in found.items():
            yield f"{count} payloads of mode {mode} were lost or wrong in the experiment {title!r}."


def _choice_reasons(choice: Choice, largest: int, setting: Setting) -> Iterator[str]:
    limit = size_text(setting.limit_bytes)
    if _fits(largest, setting):
        yield f"All measured sizes fit into one message of up to {limit}, so nothing has to be offloaded."
    if choice.threshold_bytes is not None:
        small = size_text(choice.threshold_bytes)
        yield f"Above {small} the store is faster than whole messages, although the broker accepts up to {limit}."
    if choice.chunk_below_bytes:
        yield f"Up to {size_text(choice.chunk_below_bytes)}, chunks are at least {MARGIN:g} times as fast as the store."
    if choice.strategy == "hybrid":
        yield "hybrid sends chunks while the store is down; external fails then."
    if choice.strategy == "external" and largest > setting.max_chunked_bytes:
        largest_text = size_text(setting.max_chunked_bytes)
        yield f"Payloads above {largest_text} (chunking.max_payload_bytes) cannot be sent as chunks."


def _speed_reason(times: Times, size: int) -> str:
    external, chunking = (statistics.median(times[mode, size]) for mode in ("external", "chunking"))
    factor = max(external, chunking) / min(external, chunking)
    both = f"{_ms(external)} per payload through the store, {_ms(chunking)} as chunks, produced and consumed"
    if factor < MARGIN:
        return f"At {size_text(size)}, the store and chunks are about equally fast: {both}."
    fast = "the store is" if external < chunking else "chunks are"
    return f"At {size_text(size)}, {fast} {factor:.1f} times as fast: {both}."


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < 0.9995 else f"{seconds:,.3g} s"


def _resource_reasons(size: int, facts: Mapping[str, float]) -> Iterator[str]:
    held = facts.get("buffered/chunking")
    if held is not None and held > 1 / 2:
        yield f"A consumer buffers incomplete chunked payloads, {held:.1f} times the size of each further one."
    small, large = (facts.get(f"bytes_per_payload/{mode}/{size}") for mode in ("external", "chunking"))
    if small is not None and large is not None:
        pair = f"{size_text(small)} as a pointer, {size_text(large)} as chunks"
        yield f"In the broker, a payload of {size_text(size)} takes {pair}."


# Crossovers ----------------------------------------------------------------------------------------------------

_PAIRS = (("external", "chunking"), ("external", "native"), ("chunking", "native"))


def _crossovers(times: Times, sizes: Sequence[int]) -> Iterator[str]:
    for first, second in _PAIRS:
        if all((mode, size) in times for mode in (first, second) for size in sizes):
            yield _crossover_text(times, sizes, first, second)


def _crossover_text(times: Times, sizes: Sequence[int], first: str, second: str) -> str:
    medians = {key: statistics.median(values) for key, values in times.items()}
    found = _crossover(medians, sizes, first, second)
    ratios = [medians[second, size] / medians[first, size] for size in sizes]
    if found is None:
        fast, slow = (first, second) if ratios[-1] >= 1 else (second, first)
        factors = sorted(ratio if ratio >= 1 else 1 / ratio for ratio in ratios)
        between = f"{factors[0]:.1f} to {factors[-1]:.1f} times as fast"
        if min(ratios) * max(ratios) > 0 and (min(ratios) >= 1 or max(ratios) < 1):
            return f"{fast} is faster than {slow} at every measured size ({between})."
        return f"{fast} and {slow} have no single crossover between the measured sizes."
    faster, slower = (first, second) if ratios[-1] >= 1 else (second, first)
    resampled = [_crossover(each, sizes, first, second) for each in _resampled(times)]
    places = [place for place in resampled if place is not None]
    low, high = (percentile(places or [found], fraction) for fraction in (0.025, 0.975))
    about, least, most = (size_text(place, digits=2) for place in (found, low, high))
    text = f"{faster} is faster than {slower} from {about} on (95 %: {least} to {most})"
    missing = 1 - len(places) / len(resampled)
    return f"{text}; {missing:.0%} of the resampled rounds have no single crossover." if missing > 0.05 else f"{text}."


def _crossover(medians: Mapping[tuple[str, int], float], sizes: Sequence[int], first: str, second: str) -> float | None:
    """Return the size at which two modes take the same time; ``None`` if there is not exactly one."""
    logs = [math.log(medians[second, size] / medians[first, size]) for size in sizes]
    changes = [i for i in range(1, len(sizes)) if (logs[i - 1] < 0) != (logs[i] < 0)]
    if len(changes) != 1:
        return None
    i = changes[0]
    share = logs[i - 1] / (logs[i - 1] - logs[i])
    low, high = math.log(sizes[i - 1]), math.log(sizes[i])
    return math.exp(low + share * (high - low))
