"""Checks the import contracts of pyproject.toml on the files of this checkout."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_import_contracts_are_kept():
    linter = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    options = ["--config", str(ROOT / "pyproject.toml"), "--no-cache"]

    result = subprocess.run(
        [sys.executable, "-c", linter, *options], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert result.returncode == 0, result.stdout + result.stderr
