"""Plain English: no misspellings, and no phrases that a native speaker would stumble over."""

import subprocess
import sys

import pytest

from tests.words import ROOT, files, hits

PROSE = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs", "examples", "claimcheck", "stores"]
SPELLED = [*PROSE, "tests", "Makefile", "pyproject.toml", "mkdocs.yml", "docker-compose.yml"]
SAMPLES = {"A stranger's store": 1, "it gives bytes": 1, "a payload rests in a store": 1, "what it says": 0}


@pytest.mark.parametrize("path", files(PROSE), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_stumbling_blocks(path):
    assert not hits(path)


def test_spelling():
    command = [sys.executable, "-m", "codespell_lib", *SPELLED]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("text", SAMPLES)
def test_the_check_can_fail(tmp_path, monkeypatch, text):
    monkeypatch.setattr("tests.words.ROOT", tmp_path)
    (tmp_path / "page.md").write_text(text)
    (tmp_path / "module.py").write_text(f'x = 1  # {text}\ndef f():\n    """{text}"""\n    raise E("{text}")\n')
    found = [len(hits(tmp_path / name)) for name in ("page.md", "module.py")]
    assert found == [SAMPLES[text], 3 * SAMPLES[text]]
