"""The results on the page "Choosing a strategy" are those that are kept in docs/pictures."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest

from tests.benchmarks.compare.report import render
from tests.docs_pages import ROOT


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


@pytest.mark.parametrize("broker", RESULTS)
def test_kept_results_make_a_report(broker):
    assert RESULTS[broker].broker in render(RESULTS[broker])


def test_the_embedded_broker_has_results():
    assert "embedded" in RESULTS
