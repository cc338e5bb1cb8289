"""The recommendation follows from the measurements alone; the report is complete, and harmless whatever names are."""

from __future__ import annotations

import importlib.util
import random
import re
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import claimcheck
from tests.benchmarks.compare.model import MODES, Experiment, Recommendation
from tests.benchmarks.compare.recommendation import Setting, recommend
from tests.benchmarks.compare.report import draw, render
from tests.docs_pages import ROOT

KIB, MIB = 1 << 10, 1 << 20
SIZES = (64 * KIB, 256 * KIB, MIB, 10 * MIB)
SETTING = Setting(limit_bytes=1_000_000, store="s")
SLOW_STORE = dict(zip(SIZES, (4.0, 3.0, 2.5, 2.0), strict=True))
"""How many times as long the store takes, by size."""
FAST_STORE = dict(zip(SIZES, (4.0, 2.0, 0.5, 0.2), strict=True))
FASTEST_STORE = dict(zip(SIZES, (2.0, 0.5, 0.3, 0.1), strict=True))
MIDDLE = dict(zip(SIZES, (4.0, 3.0, 2.0, 0.5), strict=True))
TIE = dict.fromkeys(SIZES, 1.0)


def speed(ratios: Mapping[int, float], *, rounds: int = 7, noise: float = 0.0, seed: int = 0) -> list[Experiment]:
    """Return measurements in which the store takes so many times as long as chunks, at 1 GB/s."""
    rng = random.Random(seed)
    facts = {
        f"{role}_seconds/{mode}/{size}/{number}": size / 1e9 * factor * (1 + rng.uniform(-noise, noise))
        for size, ratio in ratios.items()
        for mode, factor in (("external", ratio), ("chunking", 1.0), ("native", 0.8))
        for number in range(rounds)
        for role in ("produce", "consume")
    }
    return [Experiment("speed", "", {}, {}, "agrees", "", facts=facts)]


def found(ratios: Mapping[int, float], setting: Setting = SETTING, **options: Any) -> Recommendation:
    result = recommend(speed(ratios, **options), setting)
    assert result is not None
    return result


@pytest.mark.parametrize(
    ("ratios", "strategy", "threshold", "below"),
    [
        (FAST_STORE, "hybrid", "auto", None),
        (TIE, "hybrid", "auto", None),
        (SLOW_STORE, "chunking", "auto", None),
        (MIDDLE, "hybrid", "auto", MIB),
        (FASTEST_STORE, "hybrid", 64 * KIB, None),
        (dict.fromkeys(SIZES, 1.2), "hybrid", "auto", None),
    ],
    ids=["fast store", "tie", "slow store", "chunks up to 1 MiB", "lower threshold", "within the margin"],
)
def test_the_faster_way_is_recommended_as_a_configuration(ratios, strategy, threshold, below, tmp_path):
    stores = f"stores:\n  s: {{type: filesystem, path: {tmp_path}, create: true}}\n"
    result = found(ratios, Setting(limit_bytes=1_000_000, store="s", stores_yaml=stores))
    raw = yaml.safe_load(result.yaml)

    assert (raw["strategy"], raw["threshold_bytes"]) == (result.strategy, threshold) == (strategy, threshold)
    assert raw.get("hybrid", {}).get("chunk_below_bytes") == below
    with claimcheck.from_dict(raw) as cc:
        assert cc.check().ok


def test_payloads_that_cannot_be_chunked_need_the_store():
    result = found(FAST_STORE, Setting(limit_bytes=1_000_000, store="s", max_chunked_bytes=4 * MIB))

    assert result.strategy == "external"
    assert any("4 MiB" in reason for reason in result.reasons)


def test_without_a_store_there_are_only_chunks_and_without_speed_nothing():
    facts = {name: value for name, value in (speed(TIE)[0].facts or {}).items() if "external" not in name}
    result = recommend([Experiment("speed", "", {}, {}, "agrees", "", facts=facts)], Setting(1_000_000, None))

    assert result is not None
    assert (result.strategy, result.store) == ("chunking", None)
    assert recommend([Experiment("seek", "", {}, {}, "agrees", "", facts={"x": 1.0})], SETTING) is None


@given(st.integers(0, 10**6), st.sampled_from([FAST_STORE, TIE, SLOW_STORE, MIDDLE, FASTEST_STORE]))
def test_noise_does_not_change_the_recommendation(seed, ratios):
    """Rounds that differ by up to 10 % each way."""
    assert found(ratios, noise=0.1, seed=seed).yaml == found(ratios).yaml


def test_what_is_not_clear_stays_at_the_default():
    """Rounds without any order: half of them would lead to chunking, half to the store."""
    results = [found(dict.fromkeys(SIZES, 1.3), noise=0.9, rounds=3, seed=seed) for seed in range(20)]

    assert sum(result.strategy == "hybrid" for result in results) > len(results) / 2
    assert [found(FAST_STORE, rounds=n).confidence.split(":")[0] for n in (7, 3, 1)] == ["high", "medium", "low"]


def test_a_crossover_is_the_size_from_which_a_mode_is_faster():
    assert found(FAST_STORE).crossovers[0] == "external is faster than chunking from 1 MiB on."
    assert found(SLOW_STORE).crossovers[0] == (
        "chunking is faster than external at every measured size (2.0 to 4.0 times as fast)."
    )


# The report ------------------------------------------------------------------------------------------------------

HOSTILE = "<script>alert(1)</script> | ``` \x00\x1b\u202e $x^2$"


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("compare_pictures", ROOT / "docs/pictures/compare.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


RESULTS = script().results()


def test_the_page_shows_the_kept_results():
    page = (ROOT / "docs/performance.md").read_text()
    assert all(f"images/compare-{broker}.png" in page for broker in RESULTS)
    words = {"agrees": "right", "partly": "partly right", "disagrees": "not right"}
    verdicts = [words[each["verdict"]] for each in RESULTS["kafka"]["experiments"] if each["claimed"]]
    assert re.findall(r"^\| .*\. \| ((?:not |partly )?right)\b", page, re.MULTILINE) == verdicts


@pytest.mark.parametrize("broker", ["embedded", "kafka", "pulsar"])
def test_a_report_begins_with_the_recommendation_and_has_every_number(broker):
    run = RESULTS[broker]
    page, advice = render(run, "x.png"), run["recommendation"]

    assert page.index(advice["yaml"].strip()) < page.index("The published comparison")
    assert all(sentence in page for sentence in (*advice["reasons"], *advice["crossovers"], "![Measurements](x.png)"))
    for experiment in run["experiments"]:
        assert f"### {experiment['title']}" in page
        assert page.count("\n") > sum(len(each["rows"]) for each in run["experiments"])


@pytest.mark.slow
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
