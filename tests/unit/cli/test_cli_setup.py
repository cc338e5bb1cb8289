"""``init``, ``check``, shell completion and ``--json``."""

from __future__ import annotations

import json
import re

import pytest
import yaml

import claimcheck
from claimcheck.cli._commands import COMMANDS
from claimcheck.cli._setup import STORES, STRATEGIES
from tests.unit.cli.rig import CONFIG, is_one_line, ok, put, run, start

# init ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_new_configuration_loads_and_passes_the_check(here, strategy, store):
    ok("init", "--strategy", strategy, "--store", store, "-o", "new.yaml")
    config = claimcheck.load("new.yaml").config
    assert config.strategy == strategy
    assert [each.type for each in config.stores.values()] == [store]
    assert "#" in (here / "new.yaml").read_text()
    ok("--config", "new.yaml", "check")


def test_the_sections_in_comments_are_valid_and_spark_redacts_their_variables(here):
    text = ok("init", "--store", "filesystem", "-o", "-").stdout
    config = claimcheck.from_dict(yaml.safe_load(re.sub(r"(?m)^# (?=  |\w+:$)", "", text))).config
    assert config.destinations
    for section in (config.signing, config.encryption):
        assert "SECRET" in section.keys[section.key_id]


def test_a_new_configuration_stores_payloads_at_once(here):
    (here / "claimcheck.yaml").unlink()
    result = ok("init", "--store", "filesystem", "--strategy", "external")
    assert "claimcheck --config claimcheck.yaml check --servers" in result.stderr
    ok("check", "--servers")
    assert ok("get", "-", stdin=put(b"payload")).stdout_bytes == b"payload"


def test_the_next_command_can_be_pasted_into_a_shell(here):
    assert "claimcheck --config 'my file.yaml' check --servers" in ok("init", "-o", "my file.yaml").stderr


def test_without_a_terminal_there_are_defaults_and_no_questions(here):
    text = ok("init", "-o", "-").stdout
    raw = yaml.safe_load(text)
    assert (raw["strategy"], list(raw["stores"])) == ("external", ["redis"])
    assert "stores" not in yaml.safe_load(ok("init", "--strategy", "chunking", "-o", "-").stdout)


def test_an_existing_configuration_is_not_replaced(here):
    result = run("init")
    assert (result.exit_code, is_one_line(result)) == (1, True)
    assert (here / "claimcheck.yaml").read_text() == CONFIG


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


def test_check_warns_and_fails_only_if_strict(here):
    (here / "claimcheck.yaml").write_text("stores: {m: {type: memory}}")
    result = ok("check")
    assert "warning  store-memory  stores.m: payloads are in this process's memory" in result.stdout
    assert result.stdout.splitlines()[-1] == "claimcheck.yaml: 1 warning"
    assert run("check", "--strict").exit_code == 1
    assert json.loads(ok("check", "--json").stdout)["ok"]


def test_check_opens_the_stores(here):
    assert "wrote, read and deleted" in ok("check", "--servers").stdout
    assert list((here / "claims").iterdir()) == []
    (here / "claims").rmdir()
    (here / "claimcheck.yaml").write_text(CONFIG.replace("create: true", "create: false"))
    assert run("check").exit_code == 0
    result = run("check", "--servers")
    assert result.exit_code == 6
    assert "error    store-failed  stores.disk: " in result.stdout


def test_check_takes_the_configuration_from_the_environment(here, monkeypatch):
    (here / "claimcheck.yaml").rename(here / "mine.yaml")
    monkeypatch.setenv("CLAIMCHECK_CONFIG", "mine.yaml")
    assert ok("check").stdout.splitlines()[-1].startswith("mine.yaml: ")


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
