"""The real brokers of the tests that run on each of them."""

from __future__ import annotations

import pytest

from tests.benchmarks.compare.broker import BrokerAddress


@pytest.fixture(
    params=[
        pytest.param("kafka", marks=pytest.mark.kafka),
        pytest.param("pulsar", marks=pytest.mark.pulsar),
    ]
)
def real_address(request: pytest.FixtureRequest) -> BrokerAddress:
    """The address of a real Kafka or Pulsar."""
    broker = request.getfixturevalue(f"{request.param}_broker")
    if request.param == "kafka":
        return BrokerAddress("kafka", broker.bootstrap_servers)
    return BrokerAddress("pulsar", broker.service_url, broker.admin_url)
