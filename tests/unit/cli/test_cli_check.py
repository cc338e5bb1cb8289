"""``check`` of servers and topics: usage, output and exit codes."""

from __future__ import annotations

import json
import os
import pty
import subprocess

import click
import pytest
from click.testing import CliRunner

from claimcheck.cli._commands import COMMANDS, broker_options
from tests.unit.cli.rig import CONFIG, command, ok, run, start

WARNED = "stores: {m: {type: memory}}"


@pytest.fixture
def warned(here):
    (here / "claimcheck.yaml").write_text(WARNED)
    return here


def findings(*arguments):
    return {each["id"]: each for each in json.loads(run("check", "--servers", "--json", *arguments).stdout)["findings"]}


def test_a_finding_has_what_why_and_fix(warned):
    result = ok("check", "--servers")
    lines = result.stdout.splitlines()
    first = next(
        n for n, line in enumerate(lines) if line.startswith("warning  store-memory  stores.m: payloads are in")
    )
    assert lines[first + 1].startswith("         Why: Other processes cannot read these payloads")
    assert lines[first + 2] == "         Fix: Use another type outside of tests."
    assert lines[-1] == "claimcheck.yaml: 1 warning"
    found = findings()["store-memory"]
    assert list(found) == ["id", "severity", "path", "message", "why", "fix"]
    assert found["why"].startswith("Other processes")


def test_warnings_fail_only_if_strict_and_not_if_ignored(warned):
    assert run("check", "--servers", "--strict").exit_code == 1
    assert (
        ok("check", "--servers", "--strict", "--ignore", "store-memory")
        .stdout.splitlines()[-1]
        .endswith("no problems found")
    )
    assert "store-memory" not in findings("--ignore", "store-memory")


def test_errors_have_the_exit_code_of_the_first_one_and_can_be_ignored(here):
    (here / "claimcheck.yaml").write_text(CONFIG.replace("create: true", "create: false"))
    result = run("check", "--servers")
    assert result.exit_code == 6
    assert result.stdout.splitlines()[-1].startswith("claimcheck.yaml: 2 errors, ")
    assert run("check", "--servers", "--ignore", "store-failed").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--ignore", "store-memroy"), "did you mean 'store-memory'?"),
        (("--kafka", "localhost:1"), "name the topics to examine with --topic"),
        (("--admin-url", "http://localhost:1"), "name the topics to examine with --topic"),
        (("--topic", "t"), "need --kafka, --pulsar or --admin-url"),
        (("--group", "g"), "need --kafka, --pulsar or --admin-url"),
        (("--kafka", "localhost:1", "--pulsar", "pulsar://localhost:2", "--topic", "t"), "cannot be combined"),
    ],
)
def test_wrong_usage(warned, arguments, words):
    result = run("check", "--servers", *arguments)
    assert result.exit_code == 2
    assert words in result.stderr


@pytest.mark.slow
def test_settings_of_the_kafka_client_come_from_a_file_and_the_environment(warned, monkeypatch):
    monkeypatch.setenv("KAFKA_PASSWORD", "hunter2=x")
    lines = "# comment\n\nsecurity.protocol = sasl_plaintext\nsasl.mechanism=PLAIN\nsasl.username=me\n"
    (warned / "client").write_text(
        f"{lines}sasl.password=${{KAFKA_PASSWORD}}\nsocket.connection.setup.timeout.ms=1000\n"
    )
    arguments = ("--kafka", "127.0.0.1:1", "--topic", "t", "--kafka-config", "client")
    result = run("check", "--servers", *arguments)
    assert "error    kafka-unreachable  kafka: " in result.stdout
    assert result.stderr == ""  # the client's own log is a finding
    assert "hunter2" not in result.output
    monkeypatch.delenv("KAFKA_PASSWORD")
    (warned / "client").write_text("sasl.password=${KAFKA_PASSWORD}\n")
    result = run("check", "--servers", *arguments)
    assert (result.exit_code, "KAFKA_PASSWORD" in result.stderr) == (3, True)


@pytest.mark.parametrize(
    ("setting", "name"),
    [
        ("sasl.passwort=hunter2", "sasl.passwort"),
        ("nosuch.setting=hunter2", "nosuch.setting"),
        ("acks=hunter2", "acks"),
        ("security.protocol=hunter2", "security.protocol"),
        ("security.protocol=sasl_plaintext\nsasl.mechanism=hunter2", "SASL mechanism"),
        ("stats_cb=hunter2", "stats_cb"),
    ],
)
def test_a_setting_that_the_kafka_client_refuses_is_a_configuration_error(warned, setting, name):
    (warned / "client").write_text(setting)
    result = run("check", "--servers", "--kafka", "127.0.0.1:1", "--topic", "t", "--kafka-config", "client")
    (line,) = [line for line in result.stdout.splitlines() if "kafka-settings-invalid" in line]
    assert (result.exit_code, name in line) == (3, True)
    assert "hunter2" not in result.output
    assert "kafka-unreachable" not in result.output


@pytest.mark.parametrize(
    "line", ["sasl.password hunter2", "hunter2", "=hunter2", "sasl.password hunter2=", "HUNTER2=="]
)
def test_a_line_of_the_kafka_settings_that_is_none_is_named_by_its_number_only(warned, line):
    (warned / "client").write_text(f"# comment\n\nacks=all\n{line}\n")
    result = run("check", "--servers", "--kafka", "127.0.0.1:1", "--topic", "t", "--kafka-config", "client")
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


KAFKA = ["--kafka", "me:/pw-SECRET@127.0.0.1:1", "--kafka-config", "client"]


@pytest.mark.parametrize(
    ("options", "settings", "found"),
    [
        (KAFKA, SASL, "kafka-unreachable"),
        (KAFKA, "security.protocol=ssl\nssl.key.pem=pw-SECRET", "kafka-settings-invalid"),
        (KAFKA, "debug=pw-SECRET", "kafka-settings-invalid"),
        (KAFKA, "plugin.library.paths=pw-SECRET", "kafka-settings-invalid"),
        (["--pulsar", "pulsar://me:pw-SECRET@127.0.0.1:1"], "", "pulsar-unreachable"),
        (["--pulsar", "pulsar://127.0.0.1:1"], "", "pulsar-unreachable"),
        (["--pulsar", "pulsar://127.0.0.1:1/pw-SECRET@"], "", "secret-on-command-line"),
        (["--admin-url", "http://me:pw-SECRET@127.0.0.1:1"], "", "pulsar-unreachable"),
        (["--admin-url", "http://127.0.0.1:1"], "", "pulsar-unreachable"),
        (["--admin-url", "http://me:pw-SECRET\u2100@127.0.0.1:1"], "", "pulsar-unreachable"),
        (["--kafka", "me:pw-SECRET@[::1"], "", "kafka-not-examined"),
    ],
)
@pytest.mark.parametrize("output", [[], ["--json"]])
def test_no_secret_is_printed(here, monkeypatch, capfd, options, settings, found, output):
    monkeypatch.setattr("claimcheck._operate.check_topics._SECONDS", 0.5)
    monkeypatch.setattr("claimcheck._operate.check_topics._SECONDS", 1)
    monkeypatch.setenv("CLAIMCHECK_PULSAR_TOKEN", "pw-SECRET\nof a file")
    (here / "claimcheck.yaml").write_text(LEAKY)
    (here / "client").write_text(settings)
    result = run("check", "--servers", *options, "--topic", "t", *output)
    printed = capfd.readouterr()  # the clients' own
    assert found in result.stdout
    assert "SECRET" not in result.output + printed.out + printed.err
    if "@" in options[1]:
        assert f"{options[0]} contains a user name or password" in result.stdout
        assert "in the configuration itself" not in "".join(
            line for line in result.stdout.splitlines() if "pulsar" in line or "kafka" in line
        )


def test_a_terminal_gets_a_table(warned):
    master, slave = pty.openpty()
    with subprocess.Popen(**command("check", "--servers", TERM="xterm", COLUMNS="100"), stdout=slave) as process:
        os.close(slave)
        process.wait(30)
    shown = os.read(master, 65536).decode()
    os.close(master)
    assert "store-memory" in shown
    assert "Fix: " in shown


# check -----------------------------------------------------------------------------------------------------------


def test_check_names_every_problem(here):
    (here / "bad.yaml").write_text("strategy: hybird\nstores: {a: {type: redis, url: 'localhost:6379'}}")
    result = run("--config", "bad.yaml", "check")
    assert (result.exit_code, result.stderr) == (3, "")
    assert "error    config-invalid  strategy: found 'hybird'" in result.stdout
    assert "stores.a.url: found text, expected" in result.stdout
    assert result.stdout.splitlines()[-1] == "bad.yaml: 2 errors"
    report = json.loads(run("--config", "bad.yaml", "check", "--json").stdout)
    assert not report["ok"]
    assert [each["path"] for each in report["findings"]] == ["strategy", "stores.a.url"]
    assert set(report["findings"][0]) == {"id", "severity", "path", "message", "why", "fix"}


@pytest.mark.parametrize(
    ("text", "words"), [(None, "nothing.yaml does not exist"), ("a: [", "is not YAML"), ("[1]", "expected a mapping")]
)
def test_check_of_what_is_no_configuration(here, text, words):
    if text:
        (here / "nothing.yaml").write_text(text)
    result = run("--config", "nothing.yaml", "check")
    assert result.exit_code == 3
    assert words in result.stdout


# completion ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shell_completion_works_as_the_help_says(shell):
    assert f"_CLAIMCHECK_COMPLETE={shell}_source claimcheck" in ok("--help").stdout
    done = start(environment={"_CLAIMCHECK_COMPLETE": f"{shell}_source"})
    assert done.returncode == 0
    assert b"claimcheck" in done.stdout


def test_shell_completion_knows_the_commands():
    words = {"COMP_WORDS": "claimcheck ", "COMP_CWORD": "1", "_CLAIMCHECK_COMPLETE": "bash_complete"}
    done = start(environment=words)
    assert {line.partition(",")[2] for line in done.stdout.decode().split()} == set(COMMANDS)


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
