"""The layers are as pyproject.toml declares them, and the modules that CONTRIBUTING.md names exist."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_import_contracts_are_kept():
    linter = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    command = [sys.executable, "-c", linter, "--config", str(ROOT / "pyproject.toml"), "--no-cache"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_path_in_the_architecture_document_exists():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = set(re.findall(r"(?:claimcheck|stores|tests|examples)/[\w/.]*[\w/]", text))
    assert len(named) > 30
    assert sorted(path for path in named if not (ROOT / path).exists()) == []
