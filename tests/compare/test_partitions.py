"""The experiment ``partitions``: what it measures, and that it shows producers and consumers that mix partitions up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from claimcheck import WireLimit
from claimcheck.transports.local import LocalBroker
from tests.benchmarks.compare import partitions
from tests.benchmarks.compare.broker import Received
from tests.benchmarks.compare.model import MODES
from tests.benchmarks.compare.partitions import Spread, judge
from tests.benchmarks.compare.trial import with_small_chunks
from tests.compare import experiment_rig as rig

ZEROS = {"out of order": 0, "missing": 0, "repeated": 0, "wrong": 0, "messages outside of their payload's partition": 0}


def columns(result: Any, mode: str) -> dict[str, Any]:
    return next(dict(zip(result.columns, row, strict=True)) for row in result.rows if row[0] == mode)


def test_payloads_without_a_key_use_all_partitions_in_order(tmp_path: Path) -> None:
    with rig.lab(tmp_path, *MODES) as lab:
        result = partitions.run(lab)

    assert result.verdict == "partly"  # chunks stay together, and no key is needed
    for mode in MODES:
        row = columns(result, mode)
        assert row | ZEROS == row
        assert (row["in each partition"], row["partitions of one key"]) == ("8/8/8/8", 1)
        assert row["messages per payload"] == (9 if mode == "chunking" else 1)


class _Keyed(rig.Proxy):
    """A producer that adds the same key to each payload."""

    def send(self, payload: bytes, *, key: bytes | None = None, done: Any = None) -> None:
        self.inner.send(payload, key=b"constant", done=done)


def test_a_producer_that_uses_one_partition(tmp_path: Path) -> None:
    with rig.lab(tmp_path, "external", "chunking", producer=_Keyed, faulty=("external",)) as lab:
        result = partitions.run(lab)

    assert result.verdict == "disagrees"
    assert sorted(columns(result, "external")["in each partition"].split("/")) == ["0", "0", "0", "32"]


class _Swapping(rig.Proxy):
    """A consumer that delivers the second payload of a partition before the first."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.held: Received | None = None
        self.swapped = False

    def receive(self, timeout: float) -> Any:
        if self.swapped and self.held is not None:
            received, self.held = self.held, None
            return received
        received = self.inner.receive(timeout)
        if received is None or self.swapped:
            return received
        if self.held is None:
            self.held = received
            return self.receive(timeout)
        self.swapped = received.partition == self.held.partition
        return received


def test_a_consumer_that_changes_the_order(tmp_path: Path) -> None:
    with rig.lab(tmp_path, "external", "chunking", consumer=_Swapping) as lab:
        result = partitions.run(lab)

    assert result.facts is not None
    assert (result.verdict, result.facts["out_of_order/external"]) == ("agrees", 0)
    assert result.facts["out_of_order/chunking"] >= 1


def test_a_producer_that_spreads_the_chunks_of_a_payload(tmp_path: Path) -> None:
    with rig.lab(tmp_path, "external", "chunking") as lab:
        inner = lab.broker.inner.producer

        class Spreading:
            """Sends each chunk to the next partition."""

            def __init__(self, topic: str, cc: Any) -> None:
                self.topic, self.cc = topic, cc
                self.broker = LocalBroker(tmp_path / "broker" / f"{topic}.sqlite")

            def send(self, payload: bytes, *, key: bytes | None = None, done: Any) -> None:
                limit = WireLimit(1 << 20, lambda key, headers: 600)
                with self.cc.outbound(payload, destination=self.topic, key=key, limit=limit) as out:
                    for number, each in enumerate(out.envelopes):
                        self.broker.append(
                            self.topic, each.data, key=each.key, headers=each.headers, partition=number % 4
                        )
                done(None, 0)

            def flush(self, timeout: float) -> None: ...

            def close(self) -> None:
                self.broker.close()

        def producer(mode: str, topic: str, cc: Any, **options: Any) -> Any:
            return Spreading(topic, cc) if mode == "chunking" else inner(mode, topic, cc, **options)

        lab.broker.inner.producer = producer
        result = partitions.run(lab)

    row = columns(result, "chunking")
    assert result.verdict == "agrees"  # the published table describes such a producer
    assert row["missing"] == 40
    assert row["messages outside of their payload's partition"] > 40


SPREAD = Spread(
    mode="chunking",
    partitions=2,
    sent=(0, 1, 0),
    keyed=(1,),
    messages=(4, 4),
    received=((0, 0), (1, 1), (0, 2), (1, 3)),
)


@pytest.mark.parametrize(
    ("spread", "name", "count"),
    [
        (SPREAD, "faults", 0),
        (replace(SPREAD, received=((0, 2), (1, 1), (0, 0), (1, 3))), "out_of_order", 1),
        (replace(SPREAD, received=((0, 0), (1, 3))), "missing", 2),
        (replace(SPREAD, received=(*SPREAD.received, (1, 3))), "repeated", 1),
        (replace(SPREAD, received=((0, 0), (0, 1), (0, 2), (1, 3))), "elsewhere", 1),
        (replace(SPREAD, messages=(5, 3)), "split", 1),
        (replace(SPREAD, sent=(0, 0, 0), messages=(6, 2)), "used", 1),
        (replace(SPREAD, keyed=(0, 1)), "key_partitions", 2),
    ],
)
def test_counts(spread: Spread, name: str, count: int) -> None:
    assert getattr(spread, name) == count


def test_a_comparison_without_a_store_judges_chunking_alone() -> None:
    assert judge([SPREAD]).verdict == "partly"


def test_chunks_are_small_enough_for_every_size(tmp_path: Path) -> None:
    with rig.lab(tmp_path, "chunking") as lab:
        config = with_small_chunks(lab.config("chunking"), 1000)
    assert (config.threshold_bytes, config.chunking.max_message_bytes) == (500, 200)
