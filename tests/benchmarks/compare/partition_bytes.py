"""What is put into the broker: the bytes of a payload in its partition, in each mode and size."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from claimcheck._texts import size_text
from tests.benchmarks.compare.lab import Lab
from tests.benchmarks.compare.model import Experiment, Mode, NotMeasuredError, Point, Series, Verdict

CLAIMED = {"external": "small pointers, partitions stay small", "chunking": "whole payloads, large partitions"}

PARTITION_BYTES = 10_000_000_000
"""The partition whose filling is calculated."""

_SENT_BYTES = 16 << 20  # at most, unless one payload is larger
_MOST_PAYLOADS = 16
_FLUSH_SECONDS = 60.0
_POINTER_BYTES = 4096
_JUDGED_FROM = 64 << 10
_WHOLE = (0.95, 1.5)  # chunks carry envelopes, and their broker adds framing

PerPayload = Mapping[tuple[Mode, int], float]
"""Bytes in the partition for each payload, by mode and payload size."""


def run(lab: Lab) -> Experiment:
    """Send payloads of each size in each mode to topics of their own, and read the topics' sizes."""
    measured: dict[tuple[Mode, int], float] = {}
    missing: list[str] = []
    for mode in lab.modes:
        for size in lab.sizes:
            lab.progress(f"bytes in the broker: {mode}, {size_text(size)}")
            try:
                measured[mode, size] = _measure(lab, mode, size)
            except NotMeasuredError as error:  # whole records of this size
                missing.append(f"Without {mode}, {size_text(size)}: {error}.")
    return result(measured, source=lab.broker.bytes_source, missing=missing)


def _measure(lab: Lab, mode: Mode, size: int) -> float:
    settings = lab.settings(mode, size)
    count = max(1, min(_MOST_PAYLOADS, _SENT_BYTES // size))
    with contextlib.ExitStack() as stack:
        topic = lab.topic(mode, "bytes", settings)
        stack.callback(lab.delete_topic, topic)
        cc = stack.enter_context(lab.claimcheck(mode))
        before = sum(lab.broker.topic_bytes(topic))
        producer = lab.broker.producer(mode, topic, cc, max_message_bytes=settings.max_message_bytes)
        stack.callback(producer.close)
        for number in range(count):
            producer.send(lab.payload(size, number))
        producer.flush(_FLUSH_SECONDS)
        return (sum(lab.broker.topic_bytes(topic)) - before) / count


def result(measured: PerPayload, *, source: str, missing: list[str] | None = None) -> Experiment:
    """Return the experiment for bytes in the partition that were measured."""
    verdict, why = judge(measured)
    modes: list[Mode] = list(dict.fromkeys(mode for mode, _ in measured))
    return Experiment(
        name="partition",
        title="What is put into the broker, partition size",
        claimed=CLAIMED,
        measured={mode: _line(mode, measured) for mode in modes},
        verdict=verdict,
        explanation=" ".join([why, f"Measured from {source}.", *(missing or [])]),
        columns=(
            "mode", "payload, bytes", "in the partition, bytes", "factor",
            f"payloads until a partition of {PARTITION_BYTES // 10**9} GB is full",
        ),
        rows=tuple(
            (mode, size, round(found), round(found / size, 6), _capacity(found))
            for (mode, size), found in sorted(measured.items(), key=lambda item: (modes.index(item[0][0]), item[0][1]))
        ),
        series=(_series(measured, modes),),
        facts={f"bytes_per_payload/{mode}/{size}": found for (mode, size), found in measured.items()},
    )  # fmt: skip


def judge(measured: PerPayload) -> tuple[Verdict, str]:
    """Compare the bytes in the partition with the published table; returns the verdict and one sentence."""
    pointers = {size: found for (mode, size), found in measured.items() if mode == "external" and size >= _JUDGED_FROM}
    chunks = {size: found for (mode, size), found in measured.items() if mode == "chunking" and size >= _JUDGED_FROM}
    if not pointers or not chunks:
        return "not measured", f"The table is about payloads of at least {size_text(_JUDGED_FROM)}, in both strategies."
    small = 0 < max(pointers.values()) <= _POINTER_BYTES
    low, high = (pick(found / size for size, found in chunks.items()) for pick in (min, max))
    whole = _WHOLE[0] <= low and high <= _WHOLE[1]
    why = (
        f"A pointer takes at most {max(pointers.values()):,.0f} bytes, whatever its payload's size; chunks take "
        f"{low:.3f} to {high:.3f} times the payload."
    )
    return ("agrees" if small and whole else "partly" if small or whole else "disagrees"), why


def _line(mode: Mode, measured: PerPayload) -> str:
    size = max(size for each, size in measured if each == mode)
    found = measured[mode, size]
    return (
        f"{size_text(size)} takes {found:,.0f} bytes ({100 * found / size:.3g} % of the payload); "
        f"{_capacity(found) or 0:,} payloads fill {PARTITION_BYTES // 10**9} GB"
    )


def _capacity(found: float) -> int | None:
    return int(PARTITION_BYTES / found) if found > 0 else None


def _series(measured: PerPayload, modes: list[Mode]) -> Series:
    points: dict[str, tuple[Point, ...]] = {}
    for mode in modes:
        found = sorted((size, each) for (name, size), each in measured.items() if name == mode)
        points[mode] = tuple(Point(size, each, each, each) for size, each in found)
    return Series(
        name="partition_bytes",
        title="Bytes in the partition for each payload",
        x_label="payload size (bytes)",
        y_label="bytes in the partition",
        points=points,
    )
