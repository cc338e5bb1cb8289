"""hiredis is optional: redis-py packs commands and parses replies differently without it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import claimcheck

ROOT = Path(__file__).resolve().parents[2]


def test_the_store_kit_passes_without_hiredis(redis_url, tmp_path):
    file = Path(__file__).with_name("test_redis_real.py")
    library = Path(claimcheck.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": f"{library}{os.pathsep}{ROOT}", "CLAIMCHECK_TEST_REDIS_URL": redis_url}
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "tests.conformance.without_hiredis"]
    command += ["-p", "no:cacheprovider", f"--basetemp={tmp_path / 'its'}", "--rootdir", str(ROOT), str(file)]

    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "hiredis: False, parser: <class 'redis._parsers.resp" in done.stdout
    assert int(re.findall(r"(\d+) passed", done.stdout)[0]) > 150
    assert "failed" not in done.stdout
