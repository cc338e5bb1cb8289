"""Experiment ``partitions``: how payloads without a key spread over partitions, and whether their order is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from claimcheck._client import ClaimCheck
from tests.benchmarks.compare.lab import Lab
from tests.benchmarks.compare.model import Experiment, Mode, NotMeasuredError, Verdict
from tests.benchmarks.compare.trial import Delivery, Trial

CLAIMED = {
    "external": "any partition, no key needed",
    "chunking": "all chunks must be sent to one partition, so a key is needed",
}
_PARTITIONS = 4
_KEYLESS = 32
_KEYED = 8
_KEY = b"order"
_SECONDS = 30.0
_FLUSH_SECONDS = 60.0
_LATE_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Spread:
    """Where the payloads of one mode went.

    Attributes:
        mode: How payloads were sent.
        partitions: Of the topic.
        sent: The partition of each payload without a key, as the producer reported it, in the order of sending.
        keyed: The same for payloads with one and the same key, which were sent afterwards.
        messages: How many messages each partition has.
        received: Partition and number of each payload, in the order of receiving.
        wrong: How often the consumer received bytes that no one sent, or an error.
    """

    mode: Mode
    partitions: int
    sent: tuple[int, ...]
    keyed: tuple[int, ...]
    messages: tuple[int, ...]
    received: tuple[tuple[int, int], ...]
    wrong: int = 0

    @property
    def per_partition(self) -> list[int]:
        """How many payloads without a key each partition has."""
        counts = Counter(self.sent)
        return [counts[partition] for partition in range(self.partitions)]

    @property
    def used(self) -> int:
        """Partitions with at least one of them."""
        return len(set(self.sent))

    @property
    def key_partitions(self) -> int:
        """Partitions to which payloads with the same key were sent; 1 keeps their order."""
        return len(set(self.keyed))

    @property
    def out_of_order(self) -> int:
        """Payloads that were received after a later payload of their partition."""
        latest: dict[int, int] = {}
        late = 0
        for partition, number in self.received:
            late += number < latest.get(partition, -1)
            latest[partition] = max(number, latest.get(partition, -1))
        return late

    @property
    def missing(self) -> int:
        """Payloads that were not received."""
        return len(self.sent) + len(self.keyed) - len({number for _, number in self.received})

    @property
    def repeated(self) -> int:
        """Payloads that were received again."""
        return len(self.received) - len({number for _, number in self.received})

    @property
    def elsewhere(self) -> int:
        """Payloads that were received from another partition than the producer reported."""
        reported = (*self.sent, *self.keyed)
        return sum(reported[number] != partition for partition, number in self.received)

    @property
    def messages_per_payload(self) -> float:
        """Messages for each payload, on average."""
        return sum(self.messages) / (len(self.sent) + len(self.keyed))

    @property
    def split(self) -> int:
        """Messages that are not in the partition of their payload."""
        counts = Counter((*self.sent, *self.keyed))
        each = self.messages_per_payload
        return round(sum(abs(count - each * counts[number]) for number, count in enumerate(self.messages)) / 2)

    @property
    def faults(self) -> int:
        """Everything that should be 0."""
        return self.out_of_order + self.missing + self.repeated + self.elsewhere + self.split + self.wrong


def run(lab: Lab) -> Experiment:
    """Send payloads without a key to a topic with several partitions, and receive them, in each mode."""
    spreads = []
    for mode in lab.modes:
        lab.progress(f"{mode}, payloads without a key")
        try:
            with Trial.of(lab, mode, "partitions", partitions=_PARTITIONS) as trial:
                spreads.append(_spread(trial))
        except NotMeasuredError as error:
            return Experiment("partitions", "Partitions", CLAIMED, {}, "not measured", f"Not measured: {error}.")
    return judge(spreads)


def _spread(trial: Trial) -> Spread:
    with ClaimCheck(trial.config) as cc:
        sent = _send(trial, cc, range(_KEYLESS), None)
        keyed = _send(trial, cc, range(_KEYLESS, _KEYLESS + _KEYED), _KEY)
        with trial.consumer(cc, group="partitions") as consumer:
            found = trial.receive(consumer, _is_complete, seconds=_SECONDS)
            found += trial.receive(consumer, lambda found: False, seconds=_LATE_SECONDS)
    messages = [len(trial.lab.broker.positions(trial.topic, partition)) for partition in range(_PARTITIONS)]
    received = tuple((each.received.partition, each.number) for each in found if each.number is not None)
    wrong = sum(each.number is None for each in found)
    return Spread(trial.mode, _PARTITIONS, sent, keyed, tuple(messages), received, wrong)


def _send(trial: Trial, cc: ClaimCheck, numbers: Iterable[int], key: bytes | None) -> tuple[int, ...]:
    """Send without waiting for each payload, as an application does; return the partitions."""
    reports: dict[int, int] = {}
    errors: list[Exception] = []
    with trial.producer(cc) as producer:
        for number in numbers:

            def done(error: Exception | None, partition: int | None, number: int = number) -> None:
                if error is not None:
                    errors.append(error)
                reports[number] = -1 if partition is None else partition

            producer.send(trial.payload(number), key=key, done=done)
        producer.flush(_FLUSH_SECONDS)
    if errors:
        raise errors[0]
    return tuple(reports[number] for number in sorted(reports))


def _is_complete(found: list[Delivery]) -> bool:
    return len({each.number for each in found if each.number is not None}) >= _KEYLESS + _KEYED


# The result ----------------------------------------------------------------------------------------------------


def judge(spreads: Sequence[Spread]) -> Experiment:
    """Return the result for where the payloads went."""
    by_mode = {each.mode: each for each in spreads}
    return Experiment(
        name="partitions",
        title="Partitions",
        claimed=CLAIMED,
        measured={each.mode: _line(each) for each in spreads},
        verdict=_verdict(by_mode),
        explanation=_explanation(by_mode),
        columns=(
            "mode", "payloads without a key", "in each partition", "messages per payload",
            "messages outside of their payload's partition", "out of order", "missing", "repeated", "wrong",
            "partitions of one key",
        ),
        rows=tuple(map(_row, spreads)),
        facts={name: value for each in spreads for name, value in _facts(each).items()},
    )  # fmt: skip


def _line(each: Spread) -> str:
    spread = "/".join(map(str, each.per_partition))
    line = f"{len(each.sent)} payloads without a key: {spread} in {each.partitions} partitions"
    if each.split:
        line += f", {each.split} messages in another partition than their payload"
    if each.missing or each.repeated or each.wrong:
        line += f", {each.missing} missing, {each.repeated} repeated, {each.wrong} wrong"
    return f"{line}; {each.out_of_order} out of order"


def _verdict(by_mode: dict[Mode, Spread]) -> Verdict:
    external, chunking = by_mode.get("external"), by_mode["chunking"]
    if external is not None and (external.faults or external.used < 2):
        return "disagrees"
    if chunking.faults or chunking.used < 2:
        return "agrees"
    return "partly"


def _explanation(by_mode: dict[Mode, Spread]) -> str:
    faulty = [mode for mode, each in by_mode.items() if each.faults]
    if faulty:
        return f"Payloads were split, out of order, missing or wrong ({', '.join(faulty)})."
    chunking = by_mode["chunking"]
    if chunking.used < 2:
        return "Chunked payloads without a key were all sent to the same partition."
    return (
        f"All chunks of a payload are in one partition ({chunking.messages_per_payload:g} per payload), but the caller"
        " needs no key: claimcheck chooses the partition of each payload. The order within each partition is kept."
    )


def _row(each: Spread) -> tuple[str | float | int | None, ...]:
    return (
        each.mode, len(each.sent), "/".join(map(str, each.per_partition)), round(each.messages_per_payload, 2),
        each.split, each.out_of_order, each.missing, each.repeated, each.wrong + each.elsewhere, each.key_partitions,
    )  # fmt: skip


def _facts(each: Spread) -> dict[str, float]:
    mean = len(each.sent) / each.partitions
    return {
        f"partitions_used/{each.mode}": each.used,
        f"largest_share/{each.mode}": max(each.per_partition) / mean,
        f"out_of_order/{each.mode}": each.out_of_order,
        f"split/{each.mode}": each.split,
    }
