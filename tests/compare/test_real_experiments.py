"""The experiments on real brokers: no payload is lost or wrong, and the verdicts are those of the embedded broker."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from tests.benchmarks.compare.broker import BrokerAddress, connect
from tests.benchmarks.compare.model import MODES
from tests.compare.rig import lab_on

VERDICTS = {
    "services": "agrees",
    "seek": "agrees",
    "partitions": "partly",  # chunks stay together, and no key is needed
    "rebalance": "disagrees",  # no chunk is missing
    "rollback": "agrees",
}


@pytest.mark.parametrize("name", VERDICTS)
def test_an_experiment(real_address: BrokerAddress, tmp_path: Path, name: str) -> None:
    with lab_on(connect(real_address), tmp_path, quick=True) as lab:
        result = importlib.import_module(f"tests.benchmarks.compare.{name}").run(lab)

        assert lab.topics == []
    assert result.verdict == VERDICTS[name], result
    assert set(result.measured) == set(MODES)
    assert result.facts is not None
    faults = ("lost", "lost_after_outage", "wrong", "split", "out_of_order")
    assert not {fact: number for fact, number in result.facts.items() if fact.split("/")[0] in faults and number}
