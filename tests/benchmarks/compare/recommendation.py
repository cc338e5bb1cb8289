"""From measurements to a strategy, a store and a threshold. Pure: the same input returns the same recommendation.

Medians are compared, and differences below a margin count as ties. A choice other than the default, ``hybrid`` with
the broker's limit, needs most of the rounds on its side, so that noise does not change the recommendation.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from claimcheck._texts import size_text
from tests.benchmarks.compare.model import Experiment, Recommendation

MARGIN = 1.25
"""How many times as fast a mode has to be to count as faster."""

_FRAMING_BYTES = 1024  # a payload that is so much below the limit fits into one message
_LIKELY = 0.8
_MANY_ROUNDS = 5
_PAIRS = (("external", "chunking"), ("external", "native"), ("chunking", "native"))

Times = Mapping[tuple[str, int], Sequence[float]]
"""Seconds per payload, produced and consumed, of each round by mode and size."""
Medians = Mapping[tuple[str, int], float]


@dataclass(frozen=True, slots=True)
class Setting:
    """What is known beside the measurements."""

    limit_bytes: int
    """Of the broker."""
    store: str | None
    """Its name, if there is one."""
    max_chunked_bytes: int = 256 << 20
    """The largest payload that the configuration sends as chunks."""
    stores_yaml: str = ""
    """The entry ``stores`` to paste; empty if the user's own configuration has it."""

    def fits(self, size: int) -> bool:
        return size + _FRAMING_BYTES <= self.limit_bytes


@dataclass(frozen=True, slots=True)
class Choice:
    """What the recommendation decides; a threshold of ``None`` is the broker's limit."""

    strategy: str
    threshold_bytes: int | None = None
    chunk_below_bytes: int = 0


def recommend(experiments: Sequence[Experiment], setting: Setting) -> Recommendation | None:
    """Return the recommendation; ``None`` if ``speed`` was not measured."""
    facts = {name: value for each in experiments for name, value in (each.facts or {}).items()}
    times = _times(facts)
    sizes = sorted({size for _, size in times})
    if not sizes:
        return None
    choice, confidence = _decide(times, sizes, setting)
    medians = {key: statistics.median(values) for key, values in times.items()}
    return Recommendation(
        strategy=choice.strategy,
        store=None if choice.strategy == "chunking" else setting.store,
        threshold_bytes=setting.limit_bytes if choice.threshold_bytes is None else choice.threshold_bytes,
        yaml=_yaml(choice, setting),
        reasons=tuple(_reasons(choice, medians, sizes, setting, facts)),
        crossovers=tuple(_crossovers(medians, sizes)),
        confidence=confidence,
    )


def _times(facts: Mapping[str, float]) -> dict[tuple[str, int], list[float]]:
    """Add producing and consuming, round by round."""
    found: dict[tuple[str, int], list[float]] = {}
    for name, seconds in facts.items():
        kind, *place = name.split("/")
        if kind == "produce_seconds":
            mode, size, number = place
            consume = facts.get(f"consume_seconds/{mode}/{size}/{number}", 0.0)
            found.setdefault((mode, int(size)), []).append(seconds + consume)
    return found


# The decision ----------------------------------------------------------------------------------------------------


def _decide(times: Times, sizes: Sequence[int], setting: Setting) -> tuple[Choice, str]:
    """Return the choice of the medians, if most rounds lead to it by themselves, and how sure it is."""
    chosen = _choose({key: statistics.median(values) for key, values in times.items()}, sizes, setting)
    rounds = min(map(len, times.values()))
    votes = [_choose({key: values[n] for key, values in times.items()}, sizes, setting) for n in range(rounds)]
    agree = votes.count(chosen) / rounds
    sure = "high" if agree == 1 and rounds >= _MANY_ROUNDS else "medium" if agree >= _LIKELY and rounds > 1 else "low"
    if agree < _LIKELY:
        chosen = _default(sizes, setting)
    advice = "; repeat with more --rounds on an idle machine" if sure == "low" else ""
    return chosen, f"{sure}: {agree:.0%} of {rounds} rounds lead to the same configuration by themselves{advice}"


def _default(sizes: Sequence[int], setting: Setting, threshold: int | None = None, chunk_below: int = 0) -> Choice:
    if setting.store is None:
        return Choice("chunking")
    if sizes[-1] > setting.max_chunked_bytes:
        return Choice("external", threshold)
    return Choice("hybrid", threshold, chunk_below)


def _choose(medians: Medians, sizes: Sequence[int], setting: Setting) -> Choice:
    if setting.store is None or ("external", sizes[0]) not in medians:
        return Choice("chunking")
    ratios = {size: medians["external", size] / medians["chunking", size] for size in sizes}
    small = [size for size in sizes if setting.fits(size)]
    large = sizes[len(small) :]
    slower = [size for size in small if ratios[size] > 1 / MARGIN]  # in the store than as whole messages
    threshold = None
    if small and slower[-1:] != small[-1:]:
        threshold = slower[-1] if slower else small[0] // 2
    chunked = [size for n, size in enumerate(large) if all(ratios[each] > MARGIN for each in large[: n + 1])]
    if large and chunked == [*large] and threshold is None and sizes[-1] <= setting.max_chunked_bytes:
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


def _reasons(
    choice: Choice, medians: Medians, sizes: Sequence[int], setting: Setting, facts: Mapping[str, float]
) -> Iterator[str]:
    if setting.store is None:
        yield "The configuration has no store, so payloads can only be sent as chunks."
        return
    largest, limit, most = sizes[-1], size_text(setting.limit_bytes), size_text(setting.max_chunked_bytes)
    external, chunking = (medians[mode, largest] for mode in ("external", "chunking"))
    factor = max(external, chunking) / min(external, chunking)
    who = f"{'the store is' if external < chunking else 'chunks are'} {factor:.1f} times as fast"
    what = f"{external * 1000:,.3g} ms per payload through the store, {chunking * 1000:,.3g} ms as chunks"
    yield f"At {size_text(largest)}, {who if factor >= MARGIN else 'both are about equally fast'}: {what}."
    if setting.fits(largest):
        yield f"All measured sizes fit into one message of up to {limit}, so nothing has to be offloaded."
    if choice.threshold_bytes is not None:
        yield f"Above {size_text(choice.threshold_bytes)} the store is faster than whole messages."
    if choice.chunk_below_bytes:
        yield f"Up to {size_text(choice.chunk_below_bytes)}, chunks are at least {MARGIN:g} times as fast as the store."
    if choice.strategy == "hybrid":
        yield "hybrid sends chunks while the store is down; external fails then."
    if choice.strategy == "external" and largest > setting.max_chunked_bytes:
        yield f"Payloads above {most} (chunking.max_payload_bytes) cannot be sent as chunks."
    if (held := facts.get("buffered/chunking", 0)) > 1 / 2:
        yield f"A consumer buffers incomplete chunked payloads, {held:.1f} times the size of each further one."


def _crossovers(medians: Medians, sizes: Sequence[int]) -> Iterator[str]:
    """Say from which measured size on which of two modes is faster."""
    for pair in _PAIRS:
        if any((mode, size) not in medians for mode in pair for size in sizes):
            continue
        fastest = [min(pair, key=lambda mode: medians[mode, size]) for size in sizes]
        fast, slow = fastest[-1], next(mode for mode in pair if mode != fastest[-1])
        begin = len(sizes) - next((n for n, mode in enumerate(reversed(fastest)) if mode != fast), len(sizes))
        if begin:
            yield f"{fast} is faster than {slow} from {size_text(sizes[begin])} on."
            continue
        times = sorted(medians[slow, size] / medians[fast, size] for size in sizes)
        yield f"{fast} is faster than {slow} at every measured size ({times[0]:.1f} to {times[-1]:.1f} times as fast)."
