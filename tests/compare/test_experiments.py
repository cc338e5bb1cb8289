"""Each experiment runs on a broker, loses nothing, and what the report says of it follows from its numbers."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from tests.benchmarks.compare.broker import BrokerAddress, connect
from tests.benchmarks.compare.cost import estimate, load_prices
from tests.benchmarks.compare.model import MODES, Experiment
from tests.benchmarks.compare.report import table
from tests.benchmarks.compare.runner import PLANS
from tests.compare.rig import KIB, MIB, embedded, lab_on

VERDICTS = {
    "services": "agrees",
    "partition": "agrees",
    "expiry": "partly",  # the embedded broker has no retention
    "seek": "agrees",
    "memory": "agrees",
    "partitions": "partly",  # chunks stay together, and no key is needed
    "rebalance": "disagrees",  # no chunk is missing
    "rollback": "agrees",
    "speed": "measured",
}
IN_GROUPS = ("services", "seek", "partitions", "rebalance", "rollback")
FAULTS = ("lost", "wrong", "split", "out of order")


def checked(name: str, result: Experiment) -> None:
    assert result.verdict == VERDICTS[name], result
    assert set(result.measured) == set(MODES) - ({"chunking", "native"} if name == "expiry" else set())
    assert result.facts is not None
    assert not {fact: number for fact, number in result.facts.items() if fact.split("/")[0] in FAULTS and number}
    for row in result.rows:
        assert len(row) == len(result.columns)
    lines = list(table({"experiments": [asdict(result)]}))
    assert len(lines) == (4 if result.claimed else 2)


@pytest.mark.parametrize("name", VERDICTS)
def test_on_the_embedded_broker(name: str, tmp_path: Path) -> None:
    with lab_on(embedded(tmp_path), tmp_path, quick=True, sizes=(64 * KIB, 2 * MIB), rounds=2) as lab:
        result = PLANS[name](lab)
        assert lab.topics == [], "an experiment deletes its topics"
    checked(name, result)


@pytest.mark.parametrize("name", IN_GROUPS)
def test_on_a_real_broker(real_address: BrokerAddress, name: str, tmp_path: Path) -> None:
    with lab_on(connect(real_address), tmp_path, quick=True) as lab:
        result = PLANS[name](lab)
        assert lab.topics == []
    checked(name, result)


def test_the_cost_of_a_payload_follows_from_its_bytes_in_the_broker() -> None:
    found = {f"bytes_per_payload/{mode}/{MIB}": size for mode, size in (("external", 400.0), ("chunking", float(MIB)))}
    result = estimate(load_prices(), found, [MIB])
    lines = result.series[0].points

    # 1,000 GB: 3 replicas for 7 days at 0.08, and 0.02 for 0.667 of what is written or read and for 2 further copies
    assert lines["chunking"][0].y == pytest.approx(
        1000 * (3 * 0.08 * 7 / (365 / 12) + 0.02 * (2 * 0.667 + 2)), rel=0.01
    )
    assert lines["external"][0].y < lines["chunking"][0].y < lines["external, Redis"][0].y
