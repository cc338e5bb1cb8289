"""The comparison on real brokers, as a user runs it: with credentials and TLS, and with the user's payloads."""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests import servers
from tests.benchmarks.compare.broker import BrokerAddress, TopicSettings, connect
from tests.benchmarks.compare.main import main
from tests.benchmarks.compare.model import MODES

PASSWORD = "hunter2-hunter2"


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def compared(*arguments: str, secret: str = PASSWORD) -> dict[str, Any]:
    """Return the JSON of a comparison that measured every mode."""
    result = CliRunner().invoke(main, ["--quick", "--rounds", "1", *arguments])

    assert result.exit_code == 0, result.output
    assert secret not in result.output
    (file,) = Path("compare-results").glob("*.json")
    values: dict[str, Any] = json.loads(file.read_text())
    assert all(set(each["measured"]) >= set(MODES) for each in values["experiments"])
    return values


# Credentials and TLS -------------------------------------------------------------------------------------------


def test_kafka_with_a_password_and_tls(kafka_jars: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if servers.KAFKA_JARS not in os.environ:
        pytest.skip("no jars to start a broker with TLS")
    with servers.kafka(password=PASSWORD) as broker:
        assert broker.server is not None
        authority = broker.server.location.folder / "ca.crt"
        settings = f"security.protocol=sasl_ssl\nssl.ca.location={authority}\nsasl.mechanism=PLAIN\n"
        (tmp_path / "client").write_text(f"{settings}sasl.username=operator\n")
        arguments = ("--kafka", broker.bootstrap_servers, "--kafka-config", str(tmp_path / "client"))
        monkeypatch.setenv("CLAIMCHECK_KAFKA_SASL_PASSWORD", PASSWORD)
        compared(*arguments, "--only", "partition,speed", "--sizes", "64KiB")  # in this process, and in others

        monkeypatch.setenv("CLAIMCHECK_KAFKA_SASL_PASSWORD", "wrong")
        refused = CliRunner().invoke(main, arguments)
    assert (refused.exit_code, "no Kafka broker answered (_AUTHENTICATION)" in refused.stderr) == (1, True)


def test_pulsar_with_a_token_and_tls(secure_pulsar: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    token = secure_pulsar.token("operator")
    monkeypatch.setenv("CLAIMCHECK_PULSAR_TOKEN", token)
    monkeypatch.setenv("CLAIMCHECK_PULSAR_TLS_TRUST_CERTS_FILE_PATH", str(secure_pulsar.authority))
    arguments = ["--pulsar", secure_pulsar.tls_url, "--admin-url", secure_pulsar.tls_admin_url]
    compared(*arguments, "--only", "partition,speed", "--sizes", "64KiB", secret=token)

    monkeypatch.setenv("CLAIMCHECK_PULSAR_TOKEN", secure_pulsar.token("nobody"))
    refused = CliRunner().invoke(main, arguments)
    assert (refused.exit_code, "the token's permissions" in refused.stderr) == (1, True)


# The user's payloads -------------------------------------------------------------------------------------------


def named(address: BrokerAddress) -> list[str]:
    return [f"--{address.kind}", address.url, *(["--admin-url", address.admin_url] if address.admin_url else [])]


def test_the_sizes_of_an_existing_topic(real_address: BrokerAddress) -> None:
    topic = f"orders-{uuid.uuid4().hex}"
    with contextlib.closing(connect(real_address)) as broker:
        broker.create_topic(topic, TopicSettings())
        try:
            producer = broker.producer("native", topic, None)  # type: ignore[arg-type] # not used
            for size in (1000, 2000, 70_000):
                producer.send(bytes(size))
            producer.flush(30)
            producer.close()
            values = compared(*named(real_address), "--sample-topic", topic, "--only", "partition")
        finally:
            broker.delete_topic(topic)
    assert values["sizes"] == [1000, 2000, 70_000]


def test_the_files_of_a_folder(real_address: BrokerAddress, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    for size in (1000, 70_000):
        (tmp_path / "files" / f"{size}.csv").write_bytes(b"a;b\n" * (size // 4))
    values = compared(*named(real_address), "--payloads", str(tmp_path / "files"), "--only", "partition")
    assert values["sizes"] == [1000, 70_000]
