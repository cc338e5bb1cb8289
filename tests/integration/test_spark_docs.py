"""The pages' Python blocks about Spark with a broker run, on real brokers."""

import pytest

from tests.docs_pages import cases, run


@pytest.mark.parametrize(("page", "needs"), [case for case in cases("spark") if case.values[1] != {"spark"}])
def test_python_runs(page, needs, spark, request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    addresses = {}
    if "pulsar" in needs:
        addresses["pulsar://localhost:6650"] = request.getfixturevalue("pulsar_broker").service_url
    if "kafka" in needs:
        addresses["localhost:9092"] = request.getfixturevalue("kafka_broker").bootstrap_servers
    run(page, needs, tmp_path, addresses)
