"""The pages' Python blocks about Kafka run, on a real broker."""

import pytest

from tests.docs_pages import cases, run


@pytest.mark.parametrize(("page", "needs"), cases("kafka"))
def test_python_runs(page, needs, kafka_broker, request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    addresses = {"localhost:9092": kafka_broker.bootstrap_servers}
    if "redis" in needs:
        addresses["redis://localhost:6379/0"] = request.getfixturevalue("redis_url")
    run(page, needs, tmp_path, addresses)["cc"].close()
