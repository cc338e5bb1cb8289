"""``check`` and the options that name a broker: usage, output, exit codes, and no secret in any of them."""

from __future__ import annotations

import json

import click
import pytest
from click.testing import CliRunner

from claimcheck.cli._commands import COMMANDS, broker_options
from tests.unit.cli.rig import CONFIG, ok, run, start

WARNED = "stores: {m: {type: memory}}"
KAFKA = ["--kafka", "127.0.0.1:1", "--topic", "t", "--kafka-config", "client"]


@pytest.fixture
def warned(here):
    (here / "claimcheck.yaml").write_text(WARNED)
    return here


def test_a_finding_has_what_why_and_fix(warned):
    lines = ok("check", "--servers").stdout.splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith("warning  store-memory  stores.m: payloads are"))
    assert lines[first + 1].startswith("         Why: Other processes cannot read these payloads")
    assert lines[first + 2] == "         Fix: Use another type outside of tests."
    assert lines[-1] == "claimcheck.yaml: 1 warning"
    report = json.loads(ok("check", "--servers", "--json").stdout)
    (found,) = [each for each in report["findings"] if each["id"] == "store-memory"]
    assert list(found) == ["id", "severity", "path", "message", "why", "fix"]
    assert found["why"].startswith("Other processes")


def test_warnings_fail_only_if_strict_and_errors_unless_they_are_ignored(warned):
    assert run("check", "--servers", "--strict").exit_code == 1
    ignored = ok("check", "--servers", "--strict", "--ignore", "store-memory").stdout
    assert ignored.splitlines()[-1].endswith("no problems found")
    (warned / "claimcheck.yaml").write_text(CONFIG.replace("create: true", "create: false"))
    result = run("check", "--servers")
    assert result.exit_code == 6
    assert result.stdout.splitlines()[-1] == "claimcheck.yaml: 1 error, 1 warning"
    ok("check", "--servers", "--ignore", "store-failed")


@pytest.mark.parametrize(
    ("text", "paths", "words"),
    [
        (None, ["configuration"], "bad.yaml does not exist"),
        ("a: [", ["configuration"], "is not YAML"),
        ("strategy: hybird\nstores: {a: {type: redis, url: 'h:1'}}", ["strategy", "stores.a.url"], "found 'hybird'"),
    ],
)
def test_every_problem_of_a_configuration_is_a_finding(here, text, paths, words):
    if text:
        (here / "bad.yaml").write_text(text)
    result = run("--config", "bad.yaml", "check")
    assert (result.exit_code, result.stderr) == (3, "")
    assert words in result.stdout
    assert result.stdout.count("error    config-invalid  ") == len(paths)
    assert result.stdout.splitlines()[-1] == f"bad.yaml: {'1 error' if len(paths) == 1 else '2 errors'}"
    report = json.loads(run("--config", "bad.yaml", "check", "--json").stdout)
    assert (report["ok"], len(report["findings"])) == (False, len(paths))
    assert len(paths) == 1 or [each["path"] for each in report["findings"]] == paths


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--ignore", "store-memroy"), "did you mean 'store-memory'?"),
        (("--kafka", "localhost:1"), "name the topics to examine with --topic"),
        (("--topic", "t"), "need --kafka, --pulsar or --admin-url"),
        (("--kafka", "localhost:1", "--pulsar", "pulsar://localhost:2", "--topic", "t"), "--kafka cannot be combined"),
        (("--kafka", "a:1", "--admin-url", "http://b", "--topic", "t"), "--kafka cannot be combined"),
        (("--pulsar", "pulsar://b", "--kafka-config", __file__, "--topic", "t"), "--kafka-config needs --kafka"),
    ],
)
def test_wrong_usage(warned, arguments, words):
    result = run("check", "--servers", *arguments)
    assert result.exit_code == 2
    assert words in result.stderr


# Settings of the brokers' clients --------------------------------------------------------------------------------


@pytest.mark.parametrize("line", ["sasl.password hunter2", "=hunter2", "sasl.password hunter2=", "HUNTER2=="])
def test_a_line_of_the_kafka_settings_that_is_none_is_named_by_its_number_only(warned, line):
    (warned / "client").write_text(f"# comment\n\nacks=all\n{line}\n")
    result = run("check", "--servers", *KAFKA)
    assert (result.exit_code, "client, line 4: " in result.stderr) == (3, True)
    assert "hunter2" not in result.output.lower()


LEAKY = """
store: r
stores:
  r: {type: redis, url: "redis://me:pw-SECRET@127.0.0.1:1/0"}
  q: {type: redis, url: "redis://127.0.0.1:1/0?password=pw-SECRET"}
signing: {key_id: k1, keys: {k1: pw-SECRET-of-16-bytes}}
"""
SASL = "security.protocol=sasl_plaintext\nsasl.mechanism=PLAIN\nsasl.username=me\nsasl.password=pw-SECRET\n"
LEAKY_KAFKA = ["--kafka", "me:/pw-SECRET@127.0.0.1:1", "--kafka-config", "client"]


@pytest.mark.parametrize(
    ("options", "settings", "found"),
    [
        (LEAKY_KAFKA, SASL, "kafka-unreachable"),
        (LEAKY_KAFKA, "security.protocol=ssl\nssl.key.pem=pw-SECRET", "kafka-settings-invalid"),
        (LEAKY_KAFKA, "plugin.library.paths=pw-SECRET", "kafka-settings-invalid"),
        (["--kafka", "me:pw-SECRET@[::1"], "", "kafka-not-examined"),
        (["--pulsar", "pulsar://me:pw-SECRET@127.0.0.1:1"], "", "pulsar-unreachable"),
        (["--pulsar", "pulsar://127.0.0.1:1/pw-SECRET@"], "", "secret-on-command-line"),
        (["--admin-url", "http://me:pw-SECRET@127.0.0.1:1"], "", "pulsar-unreachable"),
        (["--admin-url", "http://127.0.0.1:1"], "", "pulsar-unreachable"),
        (["--admin-url", "http://me:pw-SECRET\u2100@127.0.0.1:1"], "", "pulsar-unreachable"),
    ],
)
def test_no_secret_is_printed(here, monkeypatch, capfd, options, settings, found):
    monkeypatch.setattr("claimcheck._operate.check_topics._SECONDS", 0.3)
    monkeypatch.setenv("CLAIMCHECK_PULSAR_TOKEN", "pw-SECRET\nof a file")
    (here / "claimcheck.yaml").write_text(LEAKY)
    (here / "client").write_text(settings)
    text = run("check", "--servers", *options, "--topic", "t")
    result = run("check", "--servers", *options, "--topic", "t", "--json")
    printed = capfd.readouterr()  # the clients' own
    assert found in text.stdout
    findings = json.loads(result.stdout)["findings"]
    assert found in [each["id"] for each in findings]
    assert "SECRET" not in text.output + result.output + printed.out + printed.err
    if "@" in options[1]:
        assert f"{options[0]} contains a user name or password" in result.stdout
    broker = [each["message"] for each in findings if each["path"].startswith(("pulsar", "kafka", "topic"))]
    assert not any("in the configuration itself" in message for message in broker)


ENVIRON = {
    "CLAIMCHECK_KAFKA_SASL_PASSWORD": "hunter2",
    "CLAIMCHECK_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
    "CLAIMCHECK_KAFKA_SSL_CA_LOCATION": "",
    "CLAIMCHECK_PULSAR_TLS_TRUST_CERTS_FILE_PATH": "ca.pem",
    "CLAIMCHECK_PULSAR_NAMESPACE": "tenant/space",
    "CLAIMCHECK_PULSAR_URL": "pulsar://for-something-else",
    "CLAIMCHECK_KAFKA_TOPIC": "for-something-else",
    "CLAIMCHECK_TEST_KAFKA_JARS": "jars",
    "OTHER": "pass=word",
}


def test_the_environment_names_settings_as_the_clients_do_and_options_take_precedence(here):
    found = []

    @click.command()
    @broker_options
    def command(broker):
        found.append(broker)

    def called(*arguments):
        CliRunner().invoke(command, arguments, env=ENVIRON, catch_exceptions=False)
        return found.pop()

    kafka, pulsar = called("--kafka", "me:hunter2@a:1"), called("--pulsar", "pulsar://me:hunter2@a")
    assert kafka.settings == {"sasl.password": "hunter2", "security.protocol": "SASL_SSL"}
    assert pulsar.settings == {"tls_trust_certs_file_path": "ca.pem", "namespace": "tenant/space"}
    assert (pulsar.topic("t"), pulsar.topic("x/y/t"), kafka.topic("t")) == ("tenant/space/t", "x/y/t", "t")
    assert "hunter2" not in f"{kafka!r} {pulsar!r}"
    (here / "client").write_text("sasl.username = me\nsasl.password=${OTHER}\n")
    settings = called("--kafka", "a:1", "--kafka-config", "client").settings
    assert settings == {"security.protocol": "SASL_SSL", "sasl.username": "me", "sasl.password": "pass=word"}


# Completion ------------------------------------------------------------------------------------------------------


def test_shell_completion_knows_the_commands():
    words = {"COMP_WORDS": "claimcheck ", "COMP_CWORD": "1", "_CLAIMCHECK_COMPLETE": "bash_complete"}
    done = start(environment=words)
    assert {line.partition(",")[2] for line in done.stdout.decode().split()} == set(COMMANDS)


def test_a_function_that_returns_no_settings_for_kafka_is_named(here):
    result = run("check", "--servers", "--kafka", "127.0.0.1:1", "--topic", "t", "--client", "builtins:list")
    assert result.exit_code == 3
    assert "--client: found a list, expected a function that returns a dict" in result.stderr
