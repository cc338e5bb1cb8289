"""The name of the distribution: on PyPI the plain name is another project, which no text may tell anyone to install."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from claimcheck.errors import distribution_name, pip_install

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
COMMAND = re.compile(
    r"(?:pip|uv|pipx|poetry|conda)3?\s(?:[^`\n]*\s)?['\"]?claimcheck(?![\w-])|(?<![\w-])claimcheck\[[a-z$*]"
)
SUFFIXES = {".py", ".md", ".toml", ".yaml", ".yml", ".sh", ".cfg", ".ipynb", ".json", ""}


def _texts():
    for folder in ("claimcheck", "stores", "docs", "examples", "tests", ".ci"):
        for file in sorted((ROOT / folder).rglob("*")):
            if file.is_file() and file.suffix in SUFFIXES and "__pycache__" not in file.parts:
                yield file
    for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "Makefile", "pyproject.toml"):
        yield ROOT / name


def test_no_text_tells_to_install_another_project():
    found = [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()}"
        for file in _texts()
        if file != Path(__file__).resolve()
        for number, line in enumerate(file.read_text(errors="replace").splitlines(), 1)
        if COMMAND.search(line)
    ]
    assert not found


@pytest.mark.parametrize(
    "line", ["pip install claimcheck", "pip install 'claimcheck[redis]'", "uv add claimcheck", "needs claimcheck[s3]"]
)
def test_the_scan_finds_the_plain_name(line):
    assert COMMAND.search(line)
    assert not COMMAND.search(line.replace("claimcheck", "claimcheck-messaging"))


def test_errors_take_the_name_from_the_installed_metadata():
    assert distribution_name() == PROJECT["name"]
    assert pip_install("redis") == f"pip install '{PROJECT['name']}[redis]'"


def test_without_metadata_it_is_the_published_name(tmp_path):
    """As in a zip on a Spark worker."""
    (tmp_path / "claimcheck").symlink_to(ROOT / "claimcheck")
    code = "from claimcheck.errors import distribution_name; print(distribution_name())"
    done = subprocess.run([sys.executable, "-S", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == PROJECT["name"]


def test_the_documented_wheel_is_this_version():
    for page in (ROOT / "docs").rglob("*.md"):
        for version in re.findall(r"claimcheck_messaging-([\d.]+)-py3", page.read_text()):
            assert version == PROJECT["version"], page
