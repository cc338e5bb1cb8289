"""``doctor``: usage, output and exit codes."""

from __future__ import annotations

import json
import os
import pty
import subprocess

import pytest

from tests.unit.cli.rig import CONFIG, command, ok, run

WARNED = "stores: {m: {type: memory}}"


@pytest.fixture
def warned(here):
    (here / "claimcheck.yaml").write_text(WARNED)
    return here


def findings(*arguments):
    return {each["id"]: each for each in json.loads(run("doctor", "--json", *arguments).stdout)["findings"]}


def test_a_finding_has_what_why_and_fix(warned):
    result = ok("doctor")
    lines = result.stdout.splitlines()
    first = next(
        n for n, line in enumerate(lines) if line.startswith("warning  store-memory  stores.m: payloads are in")
    )
    assert lines[first + 1].startswith("         Why: Every message that points at")
    assert lines[first + 2] == "         Fix: Use another type outside of tests."
    assert lines[-1] == "claimcheck.yaml: 1 warning"
    found = findings()["store-memory"]
    assert list(found) == ["id", "severity", "path", "message", "why", "fix"]
    assert found["why"].startswith("Every message")


def test_nothing_is_left_in_the_stores(here):
    ok("doctor")
    assert list((here / "claims").iterdir()) == []


def test_warnings_fail_only_if_strict_and_not_if_ignored(warned):
    assert run("doctor", "--strict").exit_code == 1
    assert ok("doctor", "--strict", "--ignore", "store-memory").stdout.splitlines()[-1].endswith("no problems found")
    assert "store-memory" not in findings("--ignore", "store-memory")


def test_errors_have_the_exit_code_of_the_first_one_and_can_be_ignored(here):
    (here / "claimcheck.yaml").write_text(CONFIG.replace("create: true", "create: false"))
    result = run("doctor")
    assert result.exit_code == 6
    assert result.stdout.splitlines()[-1].startswith("claimcheck.yaml: 2 errors, ")
    assert run("doctor", "--ignore", "store-failed").exit_code == 0


def test_an_invalid_configuration_is_a_report(here):
    (here / "claimcheck.yaml").write_text("strategy: hybird")
    result = run("doctor", "--json")
    assert result.exit_code == 3
    assert findings()["config-invalid"]["why"].startswith("The configuration cannot be loaded")


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
    result = run("doctor", *arguments)
    assert result.exit_code == 2
    assert words in result.stderr


def test_settings_of_the_kafka_client_come_from_a_file_and_the_environment(warned, monkeypatch):
    monkeypatch.setenv("KAFKA_PASSWORD", "hunter2=x")
    lines = "# comment\n\nsecurity.protocol = sasl_plaintext\nsasl.mechanism=PLAIN\nsasl.username=me\n"
    (warned / "client").write_text(
        f"{lines}sasl.password=${{KAFKA_PASSWORD}}\nsocket.connection.setup.timeout.ms=1000\n"
    )
    arguments = ("--kafka", "127.0.0.1:1", "--topic", "t", "--kafka-config", "client")
    result = run("doctor", *arguments)
    assert "error    kafka-unreachable  kafka: " in result.stdout
    assert result.stderr == ""  # the client's own log is a finding
    assert "hunter2" not in result.output
    (warned / "client").write_text("sasl.passwort=hunter2\n")
    result = run("doctor", *arguments)
    assert 'No such configuration property: "sasl.passwort"' in result.stdout
    assert "hunter2" not in result.output
    monkeypatch.delenv("KAFKA_PASSWORD")
    (warned / "client").write_text("sasl.password=${KAFKA_PASSWORD}\n")
    result = run("doctor", *arguments)
    assert (result.exit_code, "KAFKA_PASSWORD" in result.stderr) == (3, True)


def test_a_terminal_gets_a_table(warned):
    master, slave = pty.openpty()
    with subprocess.Popen(**command("doctor", TERM="xterm", COLUMNS="100"), stdout=slave) as process:
        os.close(slave)
        process.wait(30)
    shown = os.read(master, 65536).decode()
    os.close(master)
    assert "store-memory" in shown
    assert "Fix: " in shown
