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
from tests.compare.browser import browser, program
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


# Colors --------------------------------------------------------------------------------------------------------


def colors(page, scheme):
    """The variables of a scheme."""
    roots = re.findall(r":root \{(.*?)\}", page, re.DOTALL)
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", roots[SCHEMES.index(scheme)]))


def linear(color):
    channels = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in channels]


def contrast(one, other):
    light, dark = sorted(
        (0.2126 * red + 0.7152 * green + 0.0722 * blue for red, green, blue in map(linear, (one, other))), reverse=True
    )
    return (light + 0.05) / (dark + 0.05)


def test_both_schemes_define_every_color(page):
    light, dark = (colors(page, scheme) for scheme in SCHEMES)
    assert set(light) == set(dark) >= set(re.findall(r"var\(--([\w-]+)\)", page))
    assert {f"c-{name}" for name in plots.PALETTE} == {name for name in light if name.startswith("c-")}
    assert "prefers-color-scheme: dark" in page


@pytest.mark.parametrize("scheme", SCHEMES)
def test_text_has_enough_contrast(page, scheme):
    found = colors(page, scheme)
    pairs = [("good", "good-back"), ("part", "part-back"), ("bad", "bad-back"), ("none", "none-back")]
    pairs += [(name, "card") for name in found if name.startswith("c-") and name not in ("c-grid", "c-paper")]
    pairs += [(name, back) for name in ("text", "muted", "accent") for back in ("card", "page", "code")]
    weak = {pair: contrast(found[pair[0]], found[pair[1]]) for pair in pairs}
    assert not {pair: each for pair, each in weak.items() if each < 4.5}


# Machado, Oliveira and Fernandes (2009), severity 1, in linear RGB.
VISIONS = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.3039)),
}


def seen(color, vision):
    """The color in Oklab, as a person with this vision sees it."""
    red, green, blue = (sum(a * b for a, b in zip(row, linear(color), strict=True)) for row in VISIONS[vision])
    cones = (
        0.4122214708 * red + 0.5363325363 * green + 0.0514459929 * blue,
        0.2119034982 * red + 0.6806995451 * green + 0.1073969566 * blue,
        0.0883024619 * red + 0.2817188376 * green + 0.6299787005 * blue,
    )
    long, medium, short = (max(each, 0) ** (1 / 3) for each in cones)
    return (
        0.2104542553 * long + 0.7936177850 * medium - 0.0040720468 * short,
        1.9779984951 * long - 2.4285922050 * medium + 0.4505937099 * short,
        0.0259040371 * long + 0.7827717662 * medium - 0.8086757660 * short,
    )


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_modes_can_be_told_apart_with_any_color_vision(page, scheme, vision):
    found = {mode: seen(colors(page, scheme)[f"c-{mode}"], vision) for mode in MODES}
    distances = {
        (one, other): sum((a - b) ** 2 for a, b in zip(found[one], found[other], strict=True)) ** 0.5
        for one, other in itertools.combinations(MODES, 2)
    }
    assert not {pair: round(each, 3) for pair, each in distances.items() if each < 0.1}


# In a browser --------------------------------------------------------------------------------------------------

WIDE = """
[...document.querySelectorAll("body *")].filter((each) => !each.closest(".scroll, svg"))
  .filter((each) => each.getBoundingClientRect().right > innerWidth + 1).map((each) => each.outerHTML.slice(0, 90))
"""
# Texts of a plot that overlap each other or lie outside its card.
CROWDED = """
[...document.querySelectorAll("figure")].flatMap((figure) => {
  const card = figure.getBoundingClientRect();
  const texts = [...figure.querySelectorAll("text")].map((each) => [each.textContent, each.getBoundingClientRect()]);
  return texts.flatMap(([text, box], index) => [
    ...(box.left < card.left || box.right > card.right ? [text + " is cut off"] : []),
    ...texts.slice(index + 1).filter(([, other]) => box.left < other.right - 1 && other.left < box.right - 1
      && box.top < other.bottom - 3 && other.top < box.bottom - 3).map(([other]) => text + " overlaps " + other)]);
})
"""
COPY = """
new Promise((resolve) => {
  const button = document.querySelector("button[data-copy]");
  const shown = !button.hidden;
  button.click();
  setTimeout(() => resolve([shown, button.textContent]), 200);
})
"""


@pytest.fixture(scope="module")
def tab():
    if program() is None:
        pytest.skip("no chromium on PATH; CLAIMCHECK_TEST_CHROMIUM names another one")
    with browser() as page:
        yield page


@pytest.mark.slow
@pytest.mark.parametrize("result", [comparison, hostile])
@pytest.mark.parametrize("width", [390, 820, 1366])
def test_the_page_fits_and_needs_no_network(tab, tmp_path, result, width):
    path = tmp_path / "report.html"
    path.write_text(render(result()))
    tab.open(path, width=width)
    assert tab.evaluate(WIDE) == []
    assert tab.evaluate(CROWDED) == []
    assert tab.evaluate(COPY) == [True, "Copied"]
    assert tab.requests() == [path.as_uri()]
    assert tab.complaints() == []


@pytest.mark.slow
def test_the_scheme_follows_the_system(tab, tmp_path, page):
    path = tmp_path / "report.html"
    path.write_text(page)
    for scheme in SCHEMES:
        tab.open(path, width=1366, dark=scheme == "dark")
        red, green, blue = (int(colors(page, scheme)["page"][at : at + 2], 16) for at in (1, 3, 5))
        assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == f"rgb({red}, {green}, {blue})"
