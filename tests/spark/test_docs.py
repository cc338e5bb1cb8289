"""What the pages, the demo and the README's table of versions promise about Spark, with no server."""

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
from tests.spark_versions import REQUIREMENTS, parse, table

# Pages -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("page", "needs"), [case for case in cases("spark") if case.values[1] == {"spark"}])
def test_python_runs(page, needs, spark, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(page, needs, tmp_path, {})


# make demo ---------------------------------------------------------------------------------------------------------


DEMO = Path(__file__).parents[2] / "examples" / "demo" / "demo.py"


def run_demo(folder: Path, scratch: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    scratch.mkdir()
    known = os.environ | environment | {"TMPDIR": str(scratch)}
    command = [sys.executable, str(DEMO), str(folder)]
    return subprocess.run(command, env=known, cwd=scratch, capture_output=True, text=True, timeout=380, check=False)


def test_every_file_comes_back_with_both_strategies(tmp_path, worker_env):
    root = tmp_path / "input"
    (root / "deep" / "er").mkdir(parents=True)
    (root / "empty").touch()
    (root / "three MiB").write_bytes(random.Random(1).randbytes(3 << 20))
    (root / "lookalike").write_bytes(b"PRF_wdkafcli_header_\x02\x02" + bytes(100))
    (root / "deep" / "er" / "große.txt").write_text("text " * 100)
    (root / "dangling").symlink_to(tmp_path / "nothing")
    with zipfile.ZipFile(root / "deep" / "some.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("one", bytes(10_000))
        archive.writestr("two", random.Random(2).randbytes(1_500_000))

    done = run_demo(root, tmp_path / "scratch", worker_env)

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""  # nothing from Spark
    rows = {title: cells for line in done.stdout.splitlines() for title, *cells in [re.split(r" {2,}", line.strip())]}
    assert rows["files"] == ["5", "5"]
    assert rows["pointers"] == ["2", "0"]
    assert rows["chunks"] == ["0", "6"]
    assert rows["entries in archives"] == ["2"]
    assert rows["lost or changed"] == ["0", "0"]
    assert "skipped 'dangling': a broken link" in done.stdout
    assert done.stdout.endswith("Every one of the 5 files came back unchanged, with both strategies.\n")
    assert os.listdir(tmp_path / "scratch") == []


def test_a_folder_without_files_is_one_line(tmp_path):
    (tmp_path / "void" / "void").mkdir(parents=True)

    done = run_demo(tmp_path / "void", tmp_path / "scratch", {})

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"demo: found no files to send below {tmp_path}/void\n"


# Versions ----------------------------------------------------------------------------------------------------------


README = (Path(__file__).resolve().parents[2] / "docs/guides/spark-jobs.md").read_text()
HERE = pyspark.__version__.rpartition(".")[0]


def said() -> dict[str, dict[str, str]]:
    """Return the table by version and feature; empty if there is no table."""
    try:
        return parse(README, REQUIREMENTS)
    except LookupError:
        return {}


def test_the_readme_speaks_of_what_can_be_tried():
    if not said():
        pytest.skip("the README has no table of versions yet")
    assert list(said()[HERE]) == list(FEATURES)
    assert {answer.split(":")[0] for answers in said().values() for answer in answers.values()} <= {YES, "no"}


def test_a_table_is_read_as_it_was_written():
    found = {version: {"`a`": YES, "b": f"no: {version} | x"} for version in ("3.5", "4.0")}
    text = f"before\n\n{table(found)}\n\nafter"

    assert parse(text.replace("\\|", "/"), ["3.5", "4.0"])["4.0"] == {"`a`": YES, "b": "no: 4.0 / x"}
    with pytest.raises(LookupError):
        parse(text, ["4.0"])
