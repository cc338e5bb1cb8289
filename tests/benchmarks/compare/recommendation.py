"""From measurements to a strategy, a store and a threshold. Pure: the same input returns the same recommendation.

Medians are compared, and differences below a margin count as ties. A choice other than the default, ``hybrid`` with
the broker's limit, needs most of the rounds on its side, so that noise does not change the recommendation.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, takewhile

from claimcheck._texts import size_text

MARGIN = 1.25
"""How many times as fast a mode has to be to count as faster."""

_FRAMING_BYTES = 1024  # a payload that is so much below the limit fits into one message
_LIKELY = 0.8
_MANY_ROUNDS = 5
_COMPARED = ("external", "chunking", "native")

Medians = Mapping[tuple[str, int], float]
"""Seconds per payload, produced and consumed, by mode and size."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What is known beside the measurements: the broker's limit, the name of the store, if there is one."""

    limit_bytes: int
    store: str | None
    max_chunked_bytes: int = 256 << 20
    """The largest payload that the configuration sends as chunks."""
    stores_yaml: str = ""
    """The entry ``stores`` to paste; empty if the user's own configuration has it."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What the recommendation decides; a threshold of ``None`` is the broker's limit."""

    strategy: str
    threshold_bytes: int | None = None
    chunk_below_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The choice as a configuration, and why; the most important reason first."""

    strategy: str
    yaml: str
    reasons: tuple[str, ...]
    confidence: str


def recommend(facts: Mapping[str, float], setting: Setting) -> Recommendation | None:
    """Return the recommendation for the facts of measurements; ``None`` if ``speed`` was not measured."""
    times: dict[tuple[str, int], list[float]] = {}
    for name, seconds in facts.items():
        if name.startswith("seconds/"):
            _, mode, size, _ = name.split("/")
            times.setdefault((mode, int(size)), []).append(seconds)
    if not times:
        return None
    medians = {key: statistics.median(values) for key, values in times.items()}
    choice, rounds = _choose(medians, setting), min(map(len, times.values()))
    votes = [_choose({key: values[n] for key, values in times.items()}, setting) for n in range(rounds)]
    agree = votes.count(choice) / rounds
    sure = "high" if agree == 1 and rounds >= _MANY_ROUNDS else "medium" if agree >= _LIKELY and rounds > 1 else "low"
    if agree < _LIKELY:
        choice = _default(_sizes(medians), setting)
    advice = "; repeat with more --rounds on an idle machine" if sure == "low" else ""
    held = facts.get("buffered/chunking", 0)
    return Recommendation(
        choice.strategy,
        _yaml(choice, setting),
        (*_reasons(choice, medians, setting, held), *_crossovers(medians)),
        f"{sure}: {agree:.0%} of {rounds} rounds lead to the same configuration by themselves{advice}",
    )


def _sizes(medians: Medians) -> list[int]:
    return sorted({size for _, size in medians})


def _default(sizes: Sequence[int], setting: Setting, threshold: int | None = None, chunk_below: int = 0) -> Choice:
    if setting.store is None:
        return Choice("chunking")
    if sizes[-1] > setting.max_chunked_bytes:
        return Choice("external", threshold)
    return Choice("hybrid", threshold, chunk_below)


def _choose(medians: Medians, setting: Setting) -> Choice:
    sizes = _sizes(medians)
    if setting.store is None or ("external", sizes[0]) not in medians:
        return Choice("chunking")
    ratios = {size: medians["external", size] / medians["chunking", size] for size in sizes}
    small = [size for size in sizes if size + _FRAMING_BYTES <= setting.limit_bytes]
    large = sizes[len(small) :]
    slower = [size for size in small if ratios[size] > 1 / MARGIN]  # in the store than as whole messages
    threshold = None
    if small and slower[-1:] != small[-1:]:
        threshold = slower[-1] if slower else small[0] // 2
    chunked = list(takewhile(lambda size: ratios[size] > MARGIN, large))
    if large and chunked == large and threshold is None and sizes[-1] <= setting.max_chunked_bytes:
        return Choice("chunking")
    return _default(sizes, setting, threshold, chunked[-1] if chunked else 0)


# Texts -----------------------------------------------------------------------------------------------------------


def _yaml(choice: Choice, setting: Setting) -> str:
    lines = [f"strategy: {choice.strategy}"]
    if choice.threshold_bytes is None:
        lines.append(f"threshold_bytes: auto  # the broker's limit, {setting.limit_bytes:,} bytes")
    else:
        lines.append(f"threshold_bytes: {choice.threshold_bytes}  # {size_text(choice.threshold_bytes)}")
    if choice.chunk_below_bytes:
        lines.append(f"hybrid: {{chunk_below_bytes: {choice.chunk_below_bytes}}}")
    if choice.strategy != "chunking":
        lines += [f"store: {setting.store}", setting.stores_yaml.rstrip() or "# stores: as in your configuration"]
    return "\n".join(lines) + "\n"


def _reasons(choice: Choice, medians: Medians, setting: Setting, held: float) -> Iterator[str]:
    if setting.store is None:
        yield "The configuration has no store, so payloads can only be sent as chunks."
        return
    largest = _sizes(medians)[-1]
    external, chunking = (medians[mode, largest] * 1000 for mode in ("external", "chunking"))
    yield f"{size_text(largest)} take {external:,.3g} ms through the store, and {chunking:,.3g} ms as chunks."
    if choice.threshold_bytes is not None:
        yield f"Above {size_text(choice.threshold_bytes)} the store is faster than whole messages."
    if choice.chunk_below_bytes:
        yield f"Up to {size_text(choice.chunk_below_bytes)}, chunks are at least {MARGIN:g} times as fast as the store."
    if choice.strategy == "hybrid":
        yield "hybrid sends chunks while the store is down; external fails then."
    if choice.strategy == "external" and largest > setting.max_chunked_bytes:
        most = size_text(setting.max_chunked_bytes)
        yield f"Payloads above {most} (chunking.max_payload_bytes) cannot be sent as chunks."
    if held > 1 / 2:
        yield f"A consumer buffers incomplete chunked payloads, {held:.1f} times the size of each further one."


def _crossovers(medians: Medians) -> Iterator[str]:
    """Say from which measured size on which of two modes is faster."""
    sizes = _sizes(medians)
    for pair in combinations(_COMPARED, 2):
        if any((mode, size) not in medians for mode in pair for size in sizes):
            continue
        fastest = [min(pair, key=lambda mode: medians[mode, size]) for size in sizes]
        fast, slow = fastest[-1], next(mode for mode in pair if mode != fastest[-1])
        begin = len(sizes) - len(list(takewhile(fast.__eq__, reversed(fastest))))
        if begin:
            yield f"{fast} is faster than {slow} from {size_text(sizes[begin])} on."
            continue
        times = sorted(medians[slow, size] / medians[fast, size] for size in sizes)
        yield f"{fast} is faster than {slow} at every measured size ({times[0]:.1f} to {times[-1]:.1f} times as fast)."
