"""The report: complete, self-contained, escaped, and legible in both color schemes and at both widths."""

from __future__ import annotations

import base64
import hashlib
import itertools
import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from claimcheck._texts import number_text, printable
from tests.benchmarks.compare import plots
from tests.benchmarks.compare.model import MODES, Point, Series
from tests.benchmarks.compare.report import _summary, render
from tests.compare.comparisons import HOSTILE, comparison, hostile

SCHEMES = ("light", "dark")


@pytest.fixture(scope="module")
def page():
    return render(comparison())


@pytest.fixture(scope="module")
def tree(page):
    return ElementTree.fromstring(page)


def text_of(element):
    return "".join(element.itertext())


def section(tree, name):
    return next(each for each in tree.iter("section") if each.get("id") == name)


# Structure -----------------------------------------------------------------------------------------------------


def test_the_recommendation_comes_first_and_can_be_copied(tree):
    first = next(tree.iter("section"))
    assert first.get("id") == "recommendation"
    advice = comparison().recommendation
    for text in (*advice.reasons, *advice.crossovers, advice.confidence):
        assert text in text_of(first)
    button = next(first.iter("button"))
    code = next(each for each in first.iter("code") if each.get("id") == button.get("data-copy"))
    assert code.text == advice.yaml


def test_each_series_is_a_plot_with_the_names_of_its_lines(tree):
    figures = {text_of(next(each.iter("strong"))): each for each in section(tree, "plots").iter("figure")}
    series = [each for experiment in comparison().experiments for each in experiment.series]
    assert sorted(figures) == sorted(each.title for each in series)
    for each in series:
        labels = {text.text for text in figures[each.title].iter("text")}
        assert set(each.points) <= labels, each.title
        titles = [title.text for title in figures[each.title].iter("title")]
        assert len(titles) == sum(map(len, each.points.values()))


def test_captions_name_both_axes(tree):
    captions = {text_of(each) for each in section(tree, "plots").iter("figcaption")}
    assert "Produce: throughputMB/s, by payload size" in captions
    assert "Consumer: memory for interleaved payloads of 4 MiBMB, by payloads at a time" in captions


def test_a_point_shows_its_value_and_interval(tree):
    titles = [title.text for title in section(tree, "plots").iter("title")]
    speed = next(each for each in comparison().experiments if each.name == "speed")
    point = speed.series[0].points["external"][3]
    interval = f"({number_text(point.low)} to {number_text(point.high)})"
    assert f"external, 100 MiB: {number_text(point.y)} {interval} MB/s" in titles


def test_each_row_has_the_published_claim_the_numbers_and_the_verdict(tree):
    rows = section(tree, "published").findall(".//tbody/tr")
    expected = [each for each in comparison().experiments if each.claimed]
    assert len(rows) == len(expected) == 8
    for row, each in zip(rows, expected, strict=True):
        assert each.title in text_of(row)
        assert text_of(row.find(".//span[@class]")) == each.verdict
        cells = {cell.get("data-mode"): text_of(cell) for cell in row.iter("td")}
        for mode in MODES:
            assert cells[mode] == each.claimed.get(mode, "") + each.measured.get(mode, "")
    assert _summary(expected) in text_of(section(tree, "published"))


def test_the_verdicts_are_counted():
    one = comparison().experiments[0]
    verdicts = ["agrees"] * 5 + ["partly", "disagrees", "disagrees"]
    counted = "Of its 8 rows, 5 agree with the measurement, 1 agrees in part, 2 disagree."
    assert _summary([replace(one, verdict=each) for each in verdicts]) == counted


def test_the_details_have_every_experiment_with_its_table(tree):
    found = section(tree, "details").findall(".//details")
    assert [each.find("summary").text for each in found] == [each.title for each in comparison().experiments]
    for element, each in zip(found, comparison().experiments, strict=True):
        assert len(element.findall(".//tbody/tr")) == len(each.rows)
    for name, value in comparison().machine.items():
        assert name in text_of(section(tree, "details"))
        assert value in text_of(section(tree, "details"))


def test_a_part_of_the_experiments_makes_a_report():
    one = next(each for each in comparison().experiments if each.name == "seek")
    tree = ElementTree.fromstring(render(replace(comparison(), experiments=(one,), recommendation=None)))
    assert "needs the experiment speed" in text_of(section(tree, "recommendation"))
    assert not list(tree.iter("figure"))
    assert len(section(tree, "published").findall(".//tbody/tr")) == 1


def test_ids_are_unique_and_references_lead_to_them():
    page = render(replace(comparison(), experiments=comparison().experiments * 2))
    tree = ElementTree.fromstring(page)
    ids = [each.get("id") for each in tree.iter() if each.get("id")]
    assert len(ids) == len(set(ids))
    assert set(re.findall(r"(?:url\(|href=\")#([\w-]+)", page)) <= set(ids)


# Safety --------------------------------------------------------------------------------------------------------


def test_nothing_is_loaded_from_elsewhere(page, tree):
    assert "://" not in page
    assert "@import" not in page
    for element in tree.iter():
        assert element.tag not in ("link", "img", "iframe", "object", "embed", "base")
        assert not {"src", "srcset", "action"} & set(element.attrib)
        assert element.get("href", "#").startswith("#")
    assert set(re.findall(r"url\((.)", page)) <= {"#"}


def test_only_the_script_of_the_page_may_run(page, tree):
    policy = next(each.get("content") for each in tree.iter("meta") if each.get("http-equiv"))
    (script,) = tree.iter("script")
    digest = base64.b64encode(hashlib.sha256(script.text.encode()).digest()).decode()
    assert "default-src 'none'" in policy
    assert f"script-src 'sha256-{digest}'" in policy


def test_hostile_names_are_text():
    tree = ElementTree.fromstring(render(hostile()))
    assert len(list(tree.iter("script"))) == 1
    assert not list(tree.iter("img"))
    assert not [each for each in tree.iter() if any(name.startswith("on") for name in each.attrib)]
    shown = printable(HOSTILE)
    assert "\x00" not in shown
    assert "\u202e" not in shown
    for where in ("recommendation", "plots", "published", "details"):
        assert shown in text_of(section(tree, where)), where
    assert shown in text_of(next(tree.iter("header")))
    assert shown in text_of(next(tree.iter("title")))


# Plots ---------------------------------------------------------------------------------------------------------

NAN, INFINITE = float("nan"), float("inf")
ODD = {
    "no lines": {},
    "no points": {"external": ()},
    "one point": {"external": (Point(1, 5, 4, 6),)},
    "one value": {"external": (Point(1, 5, 5, 5), Point(2, 5, 5, 5))},
    "zero": {"external": (Point(0, 0, 0, 0), Point(1, 5, 0, 6))},
    "negative": {"external": (Point(-1, -5, -6, -4), Point(1, 5, 0, 6))},
    "not finite": {"external": (Point(1, NAN, 1, 1), Point(2, 5, 4, INFINITE), Point(3, 5, 4, 6))},
    "far apart": {"external": (Point(1, 1e-9, 1e-9, 1e-9), Point(1e12, 1e12, 1e12, 1e12))},
    "many points": {"external": tuple(Point(n, n, n, n) for n in range(1, 400))},
    "many lines": {f"line {n}": (Point(1, n, n, n), Point(2, n, n, n)) for n in range(1, 13)},
}


@pytest.mark.parametrize("points", ODD.values(), ids=ODD)
@pytest.mark.parametrize("scale", ["log", "linear"])
def test_odd_values_are_drawn_or_left_out(points, scale):
    series = Series("odd", "Odd", "payload in bytes", "bytes", points, x_scale=scale, y_scale=scale)
    drawn = ElementTree.fromstring(plots.svg(series, "plot"))
    assert drawn.tag == "svg"
    numbers = [float(each.get(name)) for each in drawn.iter("use") for name in ("x", "y")]
    assert all(-1 <= number <= 401 for number in numbers)
    assert "nan" not in ElementTree.tostring(drawn, encoding="unicode")


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8).map(sorted))
def test_names_of_lines_keep_their_order_and_distance(wanted):
    found = plots._spread(wanted, 0.1)
    assert all(upper - lower >= 0.1 - 1e-9 for lower, upper in itertools.pairwise(found))
    assert sum(found) == pytest.approx(sum(wanted))  # around the ends of their lines
    if all(upper - lower >= 0.1 for lower, upper in itertools.pairwise(wanted)):
        assert found == pytest.approx(wanted)


def test_the_same_results_make_the_same_page(page):
    assert render(comparison()) == page
