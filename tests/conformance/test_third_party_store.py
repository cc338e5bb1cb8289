"""The example of a third-party store: its own conformance test passes, and its YAML opens it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import claimcheck.config
from claimcheck._registry import build_store, check_store

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "third_party_store"


@pytest.mark.slow
def test_its_conformance_file_passes_in_its_own_folder(tmp_path):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull]
    command += ["--rootdir", str(FOLDER), f"--basetemp={tmp_path / 'its'}", str(FOLDER)]

    result = subprocess.run(command, cwd=FOLDER, env=_environment(), capture_output=True, text=True, check=False)

    assert result.returncode == 0, result.stdout + result.stderr
    assert " passed" in result.stdout
    assert "failed" not in result.stdout


def test_its_yaml_opens_it(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setenv("PAYLOADS", str(tmp_path / "payloads.sqlite"))
    config = claimcheck.load(FOLDER / "claimcheck.yaml").config.stores["ours"]

    check_store(config, path="stores.ours")
    store = build_store(config, path="stores.ours")

    assert store.read(store.write(b"payload", destination="orders")) == b"payload"
    assert (tmp_path / "payloads.sqlite").exists()


def test_it_is_as_short_as_promised():
    assert len((FOLDER / "sqlite_store.py").read_text().splitlines()) < 60
    assert len((FOLDER / "test_sqlite_store.py").read_text().splitlines()) < 40


def _environment():
    """Return an environment in which the example imports the library under test, and nothing else of this project."""
    return {**os.environ, "PYTHONPATH": str(Path(claimcheck.__file__).parents[1])}
