"""``check``, shell completion and ``--json``."""

from __future__ import annotations

import json

import pytest

from claimcheck.cli._commands import COMMANDS
from tests.unit.cli.rig import ok, run, start

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
