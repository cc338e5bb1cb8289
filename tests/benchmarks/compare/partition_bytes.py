"""What is put into the broker: the bytes of a payload in its partition, in each mode and size."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from claimcheck._texts import size_text
from tests.benchmarks.compare.broker import deliver
from tests.benchmarks.compare.lab import Lab
from tests.benchmarks.compare.model import Experiment, Mode, NotMeasuredError, Point, Series, Tally, Verdict, agreement
from tests.benchmarks.compare.payloads import make

PARTITION_BYTES = 10_000_000_000
"""The partition whose filling is calculated."""

_SENT_BYTES = 16 << 20  # at most, unless one payload is larger
_MOST_PAYLOADS = 16
_POINTER_BYTES = 4096
_JUDGED_FROM = 64 << 10
_WHOLE = (0.95, 1.5)  # chunks carry envelopes, and their broker adds framing

PerPayload = Mapping[tuple[str, int], float]
"""Bytes in the partition for each payload, by mode and payload size."""


def run(lab: Lab) -> Experiment:
    """Send payloads of each size in each mode to topics of their own, and read the topics' sizes."""
    measured: dict[tuple[str, int], float] = {}
    missing: list[str] = []
    for mode in lab.modes:
        for size in lab.sizes:
            lab.progress(f"bytes in the broker: {mode}, {size_text(size)}")
            try:
                measured[mode, size] = _measure(lab, mode, size)
            except NotMeasuredError as error:  # whole records of this size
                missing.append(f"Without {mode}, {size_text(size)}: {error}.")
    return judge(measured, source=lab.broker.bytes_source, missing=missing)


def _measure(lab: Lab, mode: Mode, size: int) -> float:
    settings = lab.settings(mode, size)
    count = max(1, min(_MOST_PAYLOADS, _SENT_BYTES // size))
    with contextlib.ExitStack() as stack:
        topic = stack.enter_context(lab.topic(mode, "bytes", settings))
        cc = stack.enter_context(lab.claimcheck(mode))
        before = sum(lab.broker.topic_bytes(topic))
        producer = lab.broker.producer(mode, topic, cc, max_message_bytes=settings.max_message_bytes)
        stack.callback(producer.close)
        deliver(producer, (make(size, number) for number in range(count)))
        return (sum(lab.broker.topic_bytes(topic)) - before) / count


def judge(measured: PerPayload, *, source: str = "a test", missing: Sequence[str] = ()) -> Experiment:
    """Return the experiment for bytes in the partition that were measured."""
    by_mode: dict[str, dict[int, float]] = {}
    for (mode, size), found in sorted(measured.items(), key=lambda item: item[0][1]):
        by_mode.setdefault(mode, {})[size] = found
    full = f"payloads until a partition of {PARTITION_BYTES // 10**9} GB is full"
    rows = [
        {"mode": mode, "payload": size_text(size), "bytes in the partition": round(found),
         "factor": round(found / size, 6), full: _capacity(found)}
        for mode, sizes in by_mode.items()
        for size, found in sizes.items()
    ]  # fmt: skip

    def line(mode: str) -> str:
        size, found = max(by_mode[mode].items())
        return (
            f"{size_text(size)} takes {found:,.0f} bytes ({100 * found / size:.3g} % of the payload); "
            f"{_capacity(found):,} payloads fill {PARTITION_BYTES // 10**9} GB"
        )

    verdict, why = _judged(by_mode)
    points = {
        mode: tuple(Point(size, each, each, each) for size, each in sizes.items()) for mode, sizes in by_mode.items()
    }
    title = "Bytes in the partition for each payload"
    return Tally(rows).experiment(
        "partition",
        {mode: line(mode) for mode in by_mode},
        verdict,
        " ".join([why, f"Measured from {source}.", *missing]),
        series=(Series("partition_bytes", title, "payload size (bytes)", "bytes in the partition", points),),
        facts={f"bytes_per_payload/{mode}/{size}": found for (mode, size), found in measured.items()},
    )


def _capacity(found: float) -> int:
    return int(PARTITION_BYTES / max(found, 1))


def _judged(by_mode: Mapping[str, Mapping[int, float]]) -> tuple[Verdict, str]:
    """Compare the bytes in the partition with the published table; returns the verdict and one sentence."""
    pointers, factors = (
        [found / (size if mode == "chunking" else 1) for size, found in by_mode.get(mode, {}).items()
         if size >= _JUDGED_FROM]
        for mode in ("external", "chunking")
    )  # fmt: skip
    if not pointers or not factors:
        return "not measured", f"The table is about payloads of at least {size_text(_JUDGED_FROM)}, in both strategies."
    small = 0 < max(pointers) <= _POINTER_BYTES
    whole = _WHOLE[0] <= min(factors) and max(factors) <= _WHOLE[1]
    why = (
        f"A pointer takes at most {max(pointers):,.0f} bytes, whatever its payload's size; chunks take "
        f"{min(factors):.3f} to {max(factors):.3f} times the payload."
    )
    return agreement(small, whole), why
