"""Imports only fall: the contract stands in pyproject.toml, and this runs it on the files of this checkout."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_imports_only_fall(tmp_path):
    # Put together as it is installed: the linter must see stores/ where it is imported from.
    sources_only = shutil.ignore_patterns("__pycache__", "stores")
    shutil.copytree(ROOT / "claimcheck", tmp_path / "claimcheck", ignore=sources_only)
    shutil.copytree(ROOT / "stores", tmp_path / "claimcheck" / "stores", ignore=sources_only)
    linter = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    options = ["--config", str(ROOT / "pyproject.toml"), "--no-cache"]

    result = subprocess.run(
        [sys.executable, "-c", linter, *options], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert result.returncode == 0, result.stdout + result.stderr
