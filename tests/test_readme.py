"""Everything in the README runs: its YAML loads, its Python runs from top to bottom, its commands exist."""

from __future__ import annotations

import dataclasses
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from sybil import Sybil
from sybil.document import Document
from sybil.parsers.markdown import PythonCodeBlockParser

import claimcheck
from claimcheck import hooks

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


@pytest.fixture
def in_folder(tmp_path, monkeypatch):
    """A folder with the README's YAML files in it."""
    monkeypatch.chdir(tmp_path)
    for name, text in re.findall(r"```yaml\n# (\S+)\n(.*?)```", README, re.DOTALL):
        (tmp_path / name).write_text(text)
    return tmp_path


def test_its_yaml_loads(in_folder):
    files = sorted(path.name for path in in_folder.glob("*.yaml"))
    assert files == ["all.yaml", "claimcheck.yaml"]
    for name in files:
        claimcheck.load(name)


def test_all_defaults_are_as_shown(in_folder):
    shown, real = claimcheck.load("all.yaml").config, claimcheck.load("claimcheck.yaml").config
    for section in ("strategy", "threshold_bytes", "chunking", "hybrid", "limits", "envelope"):
        assert getattr(shown, section) == getattr(real, section)


@pytest.mark.parametrize("text", [README, (ROOT / "SECURITY.md").read_text()])
def test_variables_of_its_secrets_have_names_that_spark_redacts(text):
    redacted = re.compile("(?i)secret|password|token|access[.]?key")  # the default of spark.redaction.regex
    credentials = r"keys: \{\w+: \"\$\{(\w+)|k\d: \"\$\{(\w+)|://[^@/\s]*:\$\{(\w+)[^}]*\}@"
    names = {name for found in re.findall(credentials, text) for name in found if name}
    assert "CLAIMCHECK_SIGNING_SECRET" in names
    assert not [name for name in names if not redacted.search(name)]


def test_the_yaml_of_the_security_notes_loads(monkeypatch):
    [text] = re.findall(r"```yaml\n(.*?)```", (ROOT / "SECURITY.md").read_text(), re.DOTALL)
    for name in re.findall(r"\$\{(\w+)\}", text):
        monkeypatch.setenv(name, name)
    cc = claimcheck.from_dict(yaml.safe_load(text) | {"stores": {"hot": {"type": "memory"}}})
    assert cc.resolve(cc.seal(cc.store("hot").write(b"payload"))) == b"payload"
    assert (cc.config.signing.require, cc.config.reads_from) == (True, ("hot",))


def test_its_python_runs_from_top_to_bottom(in_folder, capsys):
    document = Sybil(parsers=[PythonCodeBlockParser()], path=str(ROOT)).parse(ROOT / "README.md")
    assert isinstance(document, Document)
    examples = list(document.examples())
    assert len(examples) >= 7
    for example in examples:
        example.evaluate()
    said = capsys.readouterr().out
    assert "did you mean 'space'?" in said
    assert "write completed m 7" in said


def test_its_hook_is_good_for_every_event(capsys):
    (code,) = re.findall(r"```python\n((?:(?!```).)*\ndef hook.*?)\n\n\n\w+ = ", README, re.DOTALL)
    exec(code, names := {})
    for kind in hooks.Event.__subclasses__():
        names["hook"](kind(**dict.fromkeys((field.name for field in dataclasses.fields(kind)), "something")))
        assert "something" in capsys.readouterr().out, kind


def test_its_commands_exist():
    commands = re.findall(r"^    claimcheck (\w+) ", README, re.MULTILINE)
    assert commands == ["put", "inspect", "get"]
    for command in commands:
        run = [sys.executable, "-m", "claimcheck", *shlex.split(command), "--help"]
        assert subprocess.run(run, capture_output=True, check=False).returncode == 0
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {"demo", "test", "lint"} <= set(targets)


def test_the_files_that_it_names_are_there():
    for name in re.findall(r"`((?:examples|tests)/[\w./]+)`", README):
        assert (ROOT / name).exists(), name
