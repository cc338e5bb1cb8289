"""Imports only fall: the contract stands in pyproject.toml, and this runs it on the files of this checkout."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_imports_only_fall():
    linter = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    options = ["--config", str(ROOT / "pyproject.toml"), "--no-cache"]

    result = subprocess.run(
        [sys.executable, "-c", linter, *options], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert result.returncode == 0, result.stdout + result.stderr
