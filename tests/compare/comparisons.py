"""Results as the engine makes them, written by hand: for the tests of the report."""

from __future__ import annotations

import math
from dataclasses import replace

from claimcheck._compare import _cost
from claimcheck._compare._model import MODES, Comparison, Experiment, Mode, Point, Recommendation, Series

SIZES = (64 << 10, 1 << 20, 10 << 20, 100 << 20)
HOSTILE = (
    "<script>alert(1)</script>\"'><img src=http://evil.example/x onerror=alert(2)>${HOME}&amp;$x^2$ \x00\x1b\u202e"
)
"""A name that would run a script, request a picture, be read as mathematics, or control a terminal."""

Lines = dict[str, tuple[Point, ...]]

# What payloads cost beyond their bytes, and bytes per second, of each mode.
_RATES: dict[Mode, tuple[float, float]] = {
    "external": (0.0022, 1.15e9),
    "chunking": (0.0009, 0.62e9),
    "hybrid": (0.0023, 1.13e9),
    "native": (0.0007, 0.31e9),
}


def comparison() -> Comparison:
    """Return a complete result, like that of a run on Kafka with S3."""
    partition = _partition()
    cost = _cost.estimate(_cost.load_prices(), partition.facts, SIZES)
    experiments = (*_first_rows(partition), _memory(), *_last_rows(), _speed(), cost)
    return Comparison(
        made="2026-11-22T12:00:00+00:00",
        broker="Kafka 4.2.1, 1 broker",
        store="payloads (s3)",
        machine={
            "processor": "Example CPU, 2 cores",
            "memory": "24 GiB",
            "Python": "3.11.7 on Linux",
            "clients": "confluent-kafka 2.14.0, boto3 1.42.1",
        },
        sizes=SIZES,
        rounds=7,
        seconds=118.4,
        experiments=experiments,
        recommendation=_recommendation(),
    )


def hostile() -> Comparison:
    """Return a result in which every text of users and servers is `HOSTILE`."""
    found = comparison()
    bad = Experiment(
        name=HOSTILE,
        title=HOSTILE,
        claimed={"external": HOSTILE, "chunking": HOSTILE},
        measured=dict.fromkeys(MODES, HOSTILE),
        verdict="disagrees",
        explanation=HOSTILE,
        columns=(HOSTILE, "n"),
        rows=((HOSTILE, 1), (None, 2.5)),
        series=(Series(HOSTILE, HOSTILE, HOSTILE, HOSTILE, {HOSTILE: (Point(1, 1, 1, 1), Point(2, 2, 2, 2))}),),
    )
    recommendation = Recommendation(HOSTILE, HOSTILE, 1, HOSTILE, (HOSTILE,), (HOSTILE,), HOSTILE)
    return replace(
        found,
        made=HOSTILE,
        broker=HOSTILE,
        store=HOSTILE,
        machine={HOSTILE: HOSTILE},
        experiments=(bad, *found.experiments),
        recommendation=recommendation,
    )


def _first_rows(partition: Experiment) -> tuple[Experiment, ...]:
    services = Experiment(
        "services",
        "Additional services",
        {"external": "a store is needed", "chunking": "none"},
        {
            "external": "store down: 0 of 20 sent, 20 errors",
            "chunking": "store down: 20 of 20 sent and read",
            "hybrid": "store down: 20 of 20 sent as chunks and read",
            "native": "store down: 20 of 20 sent and read",
        },
        "agrees",
        "External needs the store for every payload. Hybrid needs it for pointers only and sends chunks without it.",
        ("mode", "sent", "refused", "read"),
        (("external", 0, 20, 0), ("chunking", 20, 0, 20), ("hybrid", 20, 0, 20), ("native", 20, 0, 20)),
    )
    expiry = Experiment(
        "expiry",
        "Expiry",
        {
            "external": "payload expiry must be maintained separately from topic retention",
            "chunking": "expires with the topic's retention",
        },
        {
            "external": "lifetime 4 s, retention 10 s: 12 pointers outlived their payload",
            "chunking": "unreadable after 10.8 s, with the topic",
            "hybrid": "as external",
            "native": "unreadable after 10.8 s, with the topic",
        },
        "agrees",
        "A pointer outlives its payload if the topic's retention is longer than the store's lifetime.",
        ("mode", "readable for (s)", "lost first"),
        (("external", 4.1, "payload"), ("chunking", 10.8, "message")),
        (_expiry_series(),),
    )
    seek = Experiment(
        "seek",
        "Offset moved explicitly",
        {"external": "unproblematic, each message is whole", "chunking": "a jump into a payload loses it"},
        {
            "external": "60 of 60 delivered, 0 wrong",
            "chunking": "57 of 60 delivered, 3 skipped, 0 wrong",
            "hybrid": "60 of 60 delivered, 0 wrong",
            "native": "60 of 60 delivered, 0 wrong",
        },
        "partly",
        "A seek into the middle of a payload skips this payload and no other; seeking to its first chunk reads it.",
        ("mode", "delivered", "skipped", "wrong"),
        (("external", 60, 0, 0), ("chunking", 57, 3, 0), ("hybrid", 60, 0, 0), ("native", 60, 0, 0)),
    )
    return services, partition, expiry, seek


def _last_rows() -> tuple[Experiment, ...]:
    partitions = Experiment(
        "partitions",
        "Partitions",
        {"external": "any partition, no key needed", "chunking": "all chunks in one partition: a key is needed"},
        {
            "external": "100 payloads over 4 of 4 partitions, order kept",
            "chunking": "100 payloads over 4 of 4 partitions, order kept",
            "hybrid": "100 payloads over 4 of 4 partitions, order kept",
            "native": "100 payloads over 4 of 4 partitions, order kept",
        },
        "disagrees",
        "The wrappers generate a key for the chunks of a payload without one, so the caller needs none.",
        ("mode", "partition 0", "partition 1", "partition 2", "partition 3"),
        (("external", 26, 24, 25, 25), ("chunking", 22, 27, 28, 23)),
    )
    rebalance = Experiment(
        "rebalance",
        "Group switch in the middle",
        {"external": "unproblematic", "chunking": "chunks that the old consumer has read are missing for the new one"},
        {
            "external": "20 of 20 delivered once, 0 lost",
            "chunking": "20 of 20 delivered once, 0 lost",
            "hybrid": "20 of 20 delivered once, 0 lost",
            "native": "20 of 20 delivered once, 0 lost",
        },
        "disagrees",
        "Commits never pass an incomplete payload, so the new consumer reads its chunks from the first one.",
        ("mode", "kills", "once", "twice", "lost"),
        (("external", 20, 20, 0, 0), ("chunking", 20, 20, 0, 0)),
    )
    rollback = Experiment(
        "rollback",
        "Rollback",
        {
            "external": "the payload must be deleted if the send fails",
            "chunking": "incomplete chunks stay in the topic until retention",
        },
        {
            "external": "8 failures: 0 bytes in the topic, 0 objects left",
            "chunking": "8 failures: 14.7 MB in the topic until retention",
            "hybrid": "8 failures: 0 bytes in the topic, 0 objects left",
            "native": "",
        },
        "agrees",
        "The library deletes the payload of a send that definitely failed. Native records cannot break off.",
    )
    return partitions, rebalance, rollback


def _partition() -> Experiment:
    sent = {"external": 412.0, "chunking": None, "hybrid": 415.0, "native": None}
    facts = {
        f"bytes_per_payload/{mode}/{size}": fixed or size * (1.0009 if mode == "chunking" else 1.0001)
        for mode, fixed in sent.items()
        for size in SIZES
    }
    lines: Lines = {
        mode: tuple(_once(size, facts[f"bytes_per_payload/{mode}/{size}"]) for size in SIZES) for mode in MODES
    }
    return Experiment(
        "partition",
        "What is put into the broker",
        {"external": "small pointers, partitions stay small", "chunking": "whole payloads, large partitions"},
        {
            "external": "412 bytes per payload",
            "chunking": "1.001 times the payload",
            "hybrid": "415 bytes per payload",
            "native": "1.000 times the payload",
        },
        "agrees",
        "A partition of 100 GB holds 243 million pointers, or 954 payloads of 100 MiB.",
        ("payload", *MODES),
        tuple((size, *(round(facts[f"bytes_per_payload/{mode}/{size}"]) for mode in MODES)) for size in SIZES),
        (
            Series(
                "broker_bytes",
                "Bytes in the broker per payload",
                "payload size (bytes)",
                "bytes per payload, one replica",
                lines,
            ),
        ),
        facts,
    )


def _memory() -> Experiment:
    copies = {"external": 0.06, "chunking": 1.08, "hybrid": 0.07, "native": 2.05}
    by_size = {mode: tuple(_once(size, 0.4 + each * size / 2**20) for size in SIZES) for mode, each in copies.items()}
    pending = {
        "external": tuple(_once(count, 1.1) for count in (1, 2, 4, 8, 16)),
        "chunking": tuple(_once(count, 1.4 + 10.2 * count) for count in (1, 2, 4, 8, 16)),
    }
    return Experiment(
        "memory",
        "Memory",
        {"external": "one payload at a time", "chunking": "incomplete payloads are buffered"},
        {
            "external": "100 MiB: 6.4 MiB beyond the payload",
            "chunking": "100 MiB: 108 MiB; 16 interleaved payloads: 165 MiB",
            "hybrid": "100 MiB: 7.4 MiB beyond the payload",
            "native": "100 MiB: 205 MiB",
        },
        "agrees",
        "The buffer of incomplete payloads grows with their number, up to chunking.max_pending_bytes.",
        series=(
            Series("consumer_memory", "Consumer memory", "payload size (bytes)", "peak, MiB", by_size),
            Series(
                "pending_memory",
                "Consumer memory by interleaved payloads",
                "interleaved payloads of 10 MiB",
                "peak, MiB",
                pending,
                x_scale="linear",
                y_scale="linear",
            ),
        ),
    )


def _speed() -> Experiment:
    rates: Lines = {mode: tuple(_rate(mode, size, 1.0) for size in SIZES) for mode in MODES}
    reads: Lines = {mode: tuple(_rate(mode, size, 1.6) for size in SIZES) for mode in MODES}
    latency: Lines = {mode: tuple(_latency(mode, size, 1.0) for size in SIZES) for mode in MODES}
    tail: Lines = {mode: tuple(_latency(mode, size, 1.9) for size in SIZES) for mode in MODES}
    x, rate, time = "payload size (bytes)", "MB per second", "milliseconds"
    return Experiment(
        "speed",
        "Throughput and latency",
        {},
        {mode: f"{rates[mode][1].y:.0f} MB/s at 1 MiB, {rates[mode][3].y:.0f} MB/s at 100 MiB" for mode in MODES},
        "measured",
        "Medians of 7 interleaved rounds with 95 % confidence intervals.",
        ("payload", "mode", "produce (MB/s)", "consume (MB/s)", "p50 (ms)"),
        tuple(
            (size, mode, rates[mode][i].y, reads[mode][i].y, latency[mode][i].y)
            for i, size in enumerate(SIZES)
            for mode in MODES
        ),
        (
            Series("produce_throughput", "Produce throughput", x, rate, rates),
            Series("consume_throughput", "Consume throughput", x, rate, reads),
            Series("produce_latency_p50", "Produce latency, median", x, time, latency),
            Series("produce_latency_p99", "Produce latency, 99th percentile", x, time, tail),
        ),
    )


def _recommendation() -> Recommendation:
    return Recommendation(
        strategy="hybrid",
        store="payloads",
        threshold_bytes=900_000,
        yaml=(
            "strategy: hybrid\nthreshold_bytes: 900000\nstore: payloads\nstores:\n"
            "  payloads: {type: s3, bucket: claims-bucket, ttl_seconds: 604800}\n"
        ),
        reasons=(
            "Pointers are 1.9 times as fast as chunks at 100 MiB (1.8 to 2.0) and need 0.06 payloads of memory.",
            "Hybrid costs 3 % of the throughput of external and sends chunks while the store is down.",
            "The broker holds 412 bytes per payload instead of all of it.",
        ),
        crossovers=("From 1.2 MiB (0.9 to 1.6 MiB) on, external sends faster than chunking.",),
        confidence="high: 7 rounds, and no interval overlaps above 4 MiB",
    )


def _once(x: float, y: float) -> Point:
    return Point(x, y, y, y)


def _rate(mode: Mode, size: int, factor: float) -> Point:
    fixed, per_second = _RATES[mode]
    rate = factor * size / (fixed + size / per_second) / 1e6
    return Point(size, rate, rate * 0.88, rate * 1.09)


def _latency(mode: Mode, size: int, factor: float) -> Point:
    fixed, per_second = _RATES[mode]
    time = factor * 1000 * (fixed + size / per_second)
    return Point(size, time, time * 0.93, time * 1.15)


def _expiry_series() -> Series:
    def readable(until: float) -> tuple[Point, ...]:
        return tuple(_once(second, 100.0 / (1 + math.exp(12 * (second - until)))) for second in range(13))

    lines = {"payload readable": readable(4.1), "message readable": readable(10.8)}
    return Series(
        "readable", "What is readable over time", "seconds", "percent", lines, x_scale="linear", y_scale="linear"
    )
