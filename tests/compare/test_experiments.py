"""Each experiment runs on a broker, loses nothing, and what the report says of it follows from its numbers."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from claimcheck._config_file import from_dict
from tests.benchmarks.compare.broker import BrokerAddress, connect
from tests.benchmarks.compare.lab import Lab
from tests.benchmarks.compare.model import MODES, STRATEGIES, Experiment
from tests.benchmarks.compare.report import table
from tests.benchmarks.compare.runner import NOT_EMBEDDED, PLANS
from tests.benchmarks.compare.store_space import StoreSpace

KIB, MIB = 1 << 10, 1 << 20

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
CASES = [("local", name) for name in VERDICTS if name not in NOT_EMBEDDED] + [
    pytest.param(kind, name, marks=getattr(pytest.mark, kind)) for kind in ("kafka", "pulsar") for name in IN_GROUPS
]
FAULTS = ("lost", "wrong", "split", "out of order")


def address_of(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> BrokerAddress:
    if kind == "local":
        return BrokerAddress("local", str(tmp_path))
    broker = request.getfixturevalue(f"{kind}_broker")
    if kind == "kafka":
        return BrokerAddress("kafka", broker.bootstrap_servers)
    return BrokerAddress("pulsar", broker.service_url, broker.admin_url)


@contextlib.contextmanager
def lab_on(address: BrokerAddress, folder: Path) -> Iterator[Lab]:
    """Open a lab on a broker, with a store of files; what it created is removed."""
    store = {"type": "filesystem", "path": str(folder / "store"), "create": True}
    run = secrets.token_hex(4)
    space = StoreSpace.of(from_dict({"strategy": "external", "stores": {"s": store}}), f"claimcheck-compare-{run}")
    with contextlib.closing(connect(address)) as broker:
        lab = Lab(broker=broker, space=space, run=run, sizes=(64 * KIB, 2 * MIB), rounds=2, quick=True)
        yield lab
        lab.space.clear()


def checked(name: str, result: Experiment) -> None:
    assert result.verdict == VERDICTS[name], result
    modes = MODES if name in ("partition", "memory", "speed") else STRATEGIES
    assert set(result.measured) == set(modes) - ({"chunking"} if name == "expiry" else set())
    assert result.facts is not None
    assert not {fact: number for fact, number in result.facts.items() if fact.split("/")[0] in FAULTS and number}
    for row in result.rows:
        assert len(row) == len(result.columns)
    lines = list(table({"experiments": [asdict(result)]}))
    assert len(lines) == (4 if result.claimed else 2)


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_an_experiment_loses_nothing(kind: str, name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    with lab_on(address_of(kind, request, tmp_path), tmp_path) as lab:
        result = PLANS[name](lab)
    assert not list(tmp_path.glob("*.sqlite")), "an experiment deletes its topics"
    checked(name, result)
