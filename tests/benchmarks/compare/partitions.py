"""Experiment ``partitions``: how payloads without a key spread over partitions, and whether their order is kept."""

from __future__ import annotations

from collections import Counter

from claimcheck._client import ClaimCheck
from tests.benchmarks.compare.lab import Lab, Trial, each_mode, numbers_of
from tests.benchmarks.compare.model import Experiment, Row, Tally, agreement

_PARTITIONS = 4
_PAYLOADS = 32
_SECONDS = 30.0
_LATE_SECONDS = 0.2
_FAULTS = ("split", "out of order", "lost", "repeated", "wrong")


def run(lab: Lab) -> Experiment:
    """Send payloads without a key to a topic with several partitions, and receive them, in each mode."""
    return judge(each_mode(lab, "partitions", _spread, partitions=_PARTITIONS))


def _spread(trial: Trial) -> list[Row]:
    with ClaimCheck(trial.config) as cc:
        sent = trial.send(cc, range(_PAYLOADS), together=True)  # without waiting, as an application does
        with trial.consumer(cc, "partitions") as consumer:
            found = trial.receive(
                consumer,
                lambda found: len(set(numbers_of(found))) >= len(sent),
                seconds=_SECONDS,
                late=_LATE_SECONDS,
            )
    messages = [len(trial.lab.broker.positions(trial.topic, partition)) for partition in range(_PARTITIONS)]
    numbers, counts, each = numbers_of(found), Counter(sent), sum(messages) / len(sent)
    late, latest, elsewhere = 0, dict[int, int](), 0
    for delivery in found:
        if delivery.number is not None:
            late += delivery.number < latest.get(delivery.partition, -1)
            latest[delivery.partition] = max(delivery.number, latest.get(delivery.partition, -1))
            elsewhere += sent[delivery.number] != delivery.partition
    row = {
        "mode": trial.mode,
        "payloads without a key": len(sent),
        "in each partition": "/".join(str(sent.count(partition)) for partition in range(_PARTITIONS)),
        "partitions used": len(set(sent)),
        "messages per payload": round(each, 2),
        "split": round(sum(abs(count - each * counts[number]) for number, count in enumerate(messages)) / 2),
        "out of order": late,
        "lost": len(sent) - len(set(numbers)),
        "repeated": len(numbers) - len(set(numbers)),
        "wrong": len(found) - len(numbers) + elsewhere,
    }
    return [row]


def judge(tally: Tally) -> Experiment:
    """Return the result for where the payloads went."""
    spread = {row["mode"]: row["in each partition"] for row in tally.rows}
    line = "{payloads without a key} payloads without a key: %s in 4 partitions; {out of order} out of order"
    chunking = tally["chunking"]
    why = (
        f"All chunks of a payload are in one partition ({chunking['messages per payload']:g} per payload), but the"
        " caller needs no key: claimcheck chooses the partition of each payload, and keeps the order within each."
    )
    if is_bound := chunking["partitions used"] < 2:
        why = "Chunked payloads without a key were all sent to the same partition."
    any_partition = "external" not in tally.modes or tally["external"]["partitions used"] > 1
    lines = {mode: line.replace("%s", spread[mode]) for mode in tally.modes}
    return tally.experiment("partitions", lines, agreement(any_partition, is_bound), why, faults=_FAULTS)
