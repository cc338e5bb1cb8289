"""The report: complete, and harmless whatever the names of users and servers are; the documentation shows kept ones."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest

from tests.benchmarks.compare.model import MODES
from tests.benchmarks.compare.report import draw, render
from tests.docs_pages import ROOT

HOSTILE = "<script>alert(1)</script> | ``` \x00\x1b\u202e $x^2$"


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("compare_pictures", ROOT / "docs/pictures/compare.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


RESULTS = script().results()


@pytest.mark.parametrize("broker", RESULTS)
def test_the_page_shows_the_kept_results(broker):
    page = (ROOT / "docs/guides/strategies.md").read_text()
    made, result = script(), RESULTS[broker]
    for part in ("\n".join(made.table(result)), made.differences(result), f"images/compare-{broker}.png"):
        assert part in page, "run docs/pictures/compare.py"


@pytest.mark.parametrize("broker", ["embedded", "kafka", "pulsar"])
def test_a_report_begins_with_the_recommendation_and_has_every_number(broker, tmp_path):
    run = RESULTS[broker]
    page, advice = render(run, "x.png"), run["recommendation"]

    assert page.index(advice["yaml"].strip()) < page.index("The published comparison")
    assert all(sentence in page for sentence in (*advice["reasons"], *advice["crossovers"], "![Measurements](x.png)"))
    for experiment in run["experiments"]:
        assert f"### {experiment['title']}" in page
        assert page.count("\n") > sum(len(each["rows"]) for each in run["experiments"])


def test_a_picture_shows_every_series(tmp_path):
    pytest.importorskip("matplotlib", reason="only the extra `bench` has matplotlib")
    draw(RESULTS["embedded"], tmp_path / "all.png")
    assert (tmp_path / "all.png").read_bytes().startswith(b"\x89PNG")


def test_hostile_names_stay_text():
    bad = {
        "name": HOSTILE, "title": HOSTILE, "claimed": {"external": HOSTILE, "chunking": HOSTILE},
        "measured": dict.fromkeys(MODES, HOSTILE), "verdict": "disagrees", "explanation": HOSTILE,
        "columns": [HOSTILE, "n"], "rows": [[HOSTILE, 1], [None, 2.5]], "series": [], "facts": {},
    }  # fmt: skip
    run = {**RESULTS["kafka"], "broker": HOSTILE, "store": HOSTILE, "machine": {HOSTILE: HOSTILE}, "made": HOSTILE}
    page = render({**run, "experiments": [bad], "recommendation": None}, "x.png")

    assert "None: the recommendation needs" in page
    assert not any(each in page for each in ("<script", "\x1b", "\u202e"))
    assert all(line.count("|") - line.count("\\|") == 5 for line in page.splitlines() if line.startswith("| *"))
