"""The options of brokers, which several commands share."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from claimcheck.cli._commands import broker_options

ENVIRON = {
    "CLAIMCHECK_KAFKA_SASL_PASSWORD": "hunter2",
    "CLAIMCHECK_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
    "CLAIMCHECK_KAFKA_SSL_CA_LOCATION": "",
    "CLAIMCHECK_PULSAR_TLS_TRUST_CERTS_FILE_PATH": "ca.pem",
    "CLAIMCHECK_PULSAR_NAMESPACE": "tenant/space",
    "CLAIMCHECK_PULSAR_URL": "pulsar://for-something-else",
    "CLAIMCHECK_KAFKA_TOPIC": "for-something-else",
    "CLAIMCHECK_TEST_KAFKA_JARS": "jars",
}


@pytest.fixture
def called(tmp_path, monkeypatch):
    """Return a function that calls a command and returns its argument ``broker``, or what was printed."""
    monkeypatch.chdir(tmp_path)
    found = []

    @click.command()
    @broker_options
    def command(broker):
        found.append(broker)

    def call(*arguments, env=ENVIRON):
        result = CliRunner().invoke(command, arguments, env=env)
        return found.pop() if found else result.output

    return call


def test_environment_variables_have_the_names_of_the_clients(called):
    assert called("--kafka", "a:1").settings == {"sasl.password": "hunter2", "security.protocol": "SASL_SSL"}
    settings = called("--pulsar", "pulsar://a").settings
    assert settings == {"tls_trust_certs_file_path": "ca.pem", "namespace": "tenant/space"}


def test_options_take_precedence_over_the_environment(called, tmp_path):
    (tmp_path / "client").write_text("sasl.username = me\nsasl.password=${OTHER}\n")
    environ = {**ENVIRON, "OTHER": "pass=word"}
    settings = called("--kafka", "a:1", "--kafka-config", "client", env=environ).settings
    assert settings == {"security.protocol": "SASL_SSL", "sasl.username": "me", "sasl.password": "pass=word"}


def test_a_namespace_is_that_of_topics_without_one(called):
    pulsar, kafka = called("--pulsar", "pulsar://a"), called("--kafka", "a:1")
    assert (pulsar.topic("t"), pulsar.topic("x/y/t"), kafka.topic("t")) == ("tenant/space/t", "x/y/t", "t")


def test_no_credentials_in_a_repr(called):
    for broker in (called("--kafka", "me:hunter2@a:1"), called("--pulsar", "pulsar://me:hunter2@a")):
        assert "hunter2" not in repr(broker)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--kafka", "a:1", "--pulsar", "pulsar://b"], "--kafka cannot be combined"),
        (["--kafka", "a:1", "--admin-url", "http://b"], "--kafka cannot be combined"),
        (["--pulsar", "pulsar://b", "--kafka-config", __file__], "--kafka-config needs --kafka"),
    ],
)
def test_options_of_another_broker_are_refused(called, arguments, words):
    assert words in called(*arguments)
