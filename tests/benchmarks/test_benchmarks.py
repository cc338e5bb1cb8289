"""The machinery of the benchmarks, on small payloads; no test says how fast anything is."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks.children import Child, ChildError, fresh
from tests.benchmarks.lab import Lab
from tests.benchmarks.rounds import QUICK, Effort, Sample, Series, Variant, compare, times_as_fast
from tests.benchmarks.rows import Findings, Step, report, take

HERE = Path(__file__).resolve().parent


def series(name, seconds, amount=1_000_000_000):
    return Series(name, amount, tuple(Sample(one, one / 2) for one in seconds))


def bench(folder, *options):
    command = [sys.executable, str(HERE / "bench.py"), "--quick", "--only", "file", "--out", str(folder), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_quick_run_measures_and_writes_it_down(tmp_path):
    done = bench(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "file write" in done.stdout
    document = json.loads((tmp_path / "bench.json").read_text())
    assert document["machine"]["congestion_control"]
    [found] = document["rows"]
    assert found["measured"] > 0
    assert [one["name"] for one in found["series"]] == ["open().write", "claimcheck"]


def test_two_versions_take_turns(tmp_path):
    """The second old version lacks a module, and does not get it from this one: it is the one that is measured."""
    old = tmp_path / "old"
    for part in ("claimcheck", "stores"):
        shutil.copytree(HERE.parents[1] / part, old / part)
    (old / "claimcheck" / "_wire" / "checksum.py").unlink()
    for version, words in ((HERE.parents[1], "| claimcheck | "), (old, "cannot import name 'checksum'")):
        done = bench(tmp_path, "--old", str(version))
        assert words in done.stdout + done.stderr, done.stderr
    [change] = json.loads((tmp_path / "versions.json").read_text())["changes"]
    assert change["ratio"] is None


def test_variants_take_turns_and_a_ratio_is_taken_round_by_round():
    ran, cleaned = [], []
    variants = [Variant(name, lambda name=name: ran.append(name) or name, cleaned.append) for name in "abc"]
    found = compare(Effort(seconds=0, least=3, most=9, warm_up=2), 1, *variants)
    assert "".join(ran) == 2 * "abc" + "abc" + "bca" + "cab"  # the first six warm up
    assert cleaned == ran
    assert [(one.name, len(one.samples)) for one in found] == [("a", 3), ("b", 3), ("c", 3)]
    base, ours = series("base", [1.0, 10.0, 1.0]), series("ours", [0.5, 5.0, 2.0])
    assert (base.rate, base.cpu_ms) == (1.0, 500.0)  # per gigabyte
    assert times_as_fast(ours, base) == pytest.approx(2.0)  # one disturbed round changes nothing


def test_a_report_has_a_table_and_the_rounds_and_a_failed_step_costs_its_rows_only():
    def fails(lab):
        raise FileNotFoundError("no redis-server")

    both = (series("base", [1.0]), series("claimcheck", [0.5]))
    found = take(Step(("first", "second"), "MiB", lambda _: Findings((2.0, 123.4), both, "a note")), Lab(QUICK))
    text = "\n".join(report([*found, *take(Step(("third",), "x", fails), Lab(QUICK))]))
    for words in ("| first  | 2.00 MiB |", "second: 123 MiB", "a note", "2.00 GB/s", "| third  | not measured |"):
        assert words in text
    assert "FileNotFoundError: no redis-server" in text


def test_a_child_answers_fails_and_ends():
    with Child(_adding) as child:
        child.send(2)
        assert child.answer() == 3
        child.send("two")
        with pytest.raises(ChildError, match="TypeError"):
            child.answer()
        with pytest.raises(ChildError, match="status 0"):
            child.answer()
    assert fresh(max, 1, 3) == 3


def _adding(pipe):
    while True:
        pipe.send(pipe.recv() + 1)
