"""Every example runs, as its first lines say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("*.py"))


def run(script: str, *arguments: str) -> str:
    command = [sys.executable, str(ROOT / "examples" / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT / "examples")
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("script", EXAMPLES)
def test_it_runs_on_its_own_folder(script):
    assert "spark_job.py" in run(script)


def test_files_of_all_sizes_come_back(tmp_path):
    (tmp_path / "empty.bin").write_bytes(b"")
    (tmp_path / "large.bin").write_bytes(os.urandom(3 << 20))
    (tmp_path / "lookalike.bin").write_bytes(b"PRF_wdkafcli_header_\x02")
    said = run("files_through_a_broker.py", str(tmp_path))
    assert said.count("bytes  ok\n") == 3
    assert "3 messages" in said
