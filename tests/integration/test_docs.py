"""The pages' Python blocks that need a broker run, on real ones."""

import pytest

from tests.docs_pages import cases, run


@pytest.mark.parametrize(("page", "needs"), cases("kafka"))
def test_kafka(page, needs, kafka_broker, request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    addresses = {"localhost:9092": kafka_broker.bootstrap_servers}
    if "redis" in needs:
        addresses["redis://localhost:6379/0"] = request.getfixturevalue("redis_url")
    run(page, needs, tmp_path, addresses)["cc"].close()


@pytest.mark.parametrize(("page", "needs"), cases("pulsar"))
def test_pulsar(page, needs, pulsar_broker, request, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    addresses = {"pulsar://localhost:6650": pulsar_broker.service_url}
    if "s3" in needs:
        addresses["http://localhost:9000"] = request.getfixturevalue("s3_server").endpoint_url
    run(page, needs, tmp_path, addresses)["cc"].close()


@pytest.mark.parametrize(("page", "needs"), [case for case in cases("spark") if case.values[1] != {"spark"}])
def test_spark(page, needs, spark, request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    addresses = {}
    if "pulsar" in needs:
        addresses["pulsar://localhost:6650"] = request.getfixturevalue("pulsar_broker").service_url
    if "kafka" in needs:
        addresses["localhost:9092"] = request.getfixturevalue("kafka_broker").bootstrap_servers
    run(page, needs, tmp_path, addresses)
