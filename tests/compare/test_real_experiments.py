"""The experiments on real brokers: no payload is lost or wrong, and the verdicts are those of the embedded broker."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from claimcheck._compare import _kafka, _pulsar
from claimcheck._compare._broker import BrokerAddress
from claimcheck._compare._lab import Lab
from claimcheck._compare._model import MODES
from tests import servers
from tests.compare.rig import lab_on

VERDICTS = {
    "services": "agrees",
    "seek": "agrees",
    "partitions": "partly",  # chunks stay together, and no key is needed
    "rebalance": "disagrees",  # no chunk is missing
    "rollback": "agrees",
}


@pytest.fixture
def kafka_lab(kafka_broker: servers.KafkaBroker, tmp_path: Path) -> Iterator[Lab]:
    broker = _kafka.connect(BrokerAddress("kafka", kafka_broker.bootstrap_servers))
    with lab_on(broker, tmp_path, quick=True) as lab:
        yield lab


@pytest.fixture
def pulsar_lab(pulsar_broker: servers.PulsarBroker, tmp_path: Path) -> Iterator[Lab]:
    broker = _pulsar.connect(BrokerAddress("pulsar", pulsar_broker.service_url, pulsar_broker.admin_url))
    with lab_on(broker, tmp_path, quick=True) as lab:
        yield lab


def check(lab: Lab, name: str) -> None:
    result = importlib.import_module(f"claimcheck._compare._{name}").run(lab)

    assert lab.journal.topics == []
    assert result.verdict == VERDICTS[name], result
    assert set(result.measured) == set(MODES)
    assert result.facts is not None
    faults = ("lost", "lost_after_outage", "wrong", "split", "out_of_order")
    assert not {fact: number for fact, number in result.facts.items() if fact.split("/")[0] in faults and number}


@pytest.mark.parametrize("name", VERDICTS)
def test_on_kafka(kafka_lab: Lab, name: str) -> None:
    check(kafka_lab, name)


@pytest.mark.parametrize("name", VERDICTS)
def test_on_pulsar(pulsar_lab: Lab, name: str) -> None:
    check(pulsar_lab, name)
