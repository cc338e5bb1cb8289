"""What the pages, the demo and the table of versions promise about Spark, with no server."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pyspark
import pytest

from tests.docs_pages import cases, run
from tests.spark.shipping_smoke import FEATURES, YES
from tests.spark_versions import REQUIREMENTS, parse

# Pages -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("page", "needs"), [case for case in cases("spark") if case.values[1] == {"spark"}])
def test_python_runs(page, needs, spark, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(page, needs, tmp_path, {})


# make demo ---------------------------------------------------------------------------------------------------------

DEMO = Path(__file__).parents[2] / "examples" / "demo" / "demo.py"


def test_every_file_comes_back_with_both_strategies(tmp_path, worker_env):
    root, rng = tmp_path / "input", random.Random(1)
    (root / "deep" / "er").mkdir(parents=True)
    (root / "empty").touch()
    (root / "three MiB").write_bytes(rng.randbytes(3 << 20))
    (root / "lookalike").write_bytes(b"PRF_wdkafcli_header_\x02\x02" + bytes(100))
    (root / "deep" / "er" / "große.txt").write_text("text " * 100)
    (root / "dangling").symlink_to(tmp_path / "nothing")
    with zipfile.ZipFile(root / "deep" / "some.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("one", bytes(10_000))
        archive.writestr("two", rng.randbytes(1_500_000))

    scratch = tmp_path / "scratch"
    scratch.mkdir()
    env = os.environ | worker_env | {"TMPDIR": str(scratch)}
    command = [sys.executable, str(DEMO), str(root)]

    done = subprocess.run(command, env=env, cwd=scratch, capture_output=True, text=True, timeout=380, check=False)

    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr  # nothing from Spark
    rows = {title: cells for line in done.stdout.splitlines() for title, *cells in [re.split(r" {2,}", line.strip())]}
    assert (rows["files"], rows["lost or changed"]) == (["5", "5"], ["0", "0"])
    assert (rows["pointers"], rows["chunks"], rows["entries in archives"]) == (["2", "0"], ["0", "6"], ["2"])
    assert "skipped 'dangling': a broken link" in done.stdout
    assert done.stdout.endswith("Every one of the 5 files came back unchanged, with both strategies.\n")
    assert os.listdir(scratch) == []


# Versions ----------------------------------------------------------------------------------------------------------


PAGE = (Path(__file__).resolve().parents[2] / "docs/guides/platforms.md").read_text()
HERE = pyspark.__version__.rpartition(".")[0]


def test_the_table_of_versions_has_what_can_be_tried():
    said = parse(PAGE, REQUIREMENTS)

    assert list(said[HERE]) == list(FEATURES)
    assert {answer.split(":")[0] for answers in said.values() for answer in answers.values()} <= {YES, "no"}
