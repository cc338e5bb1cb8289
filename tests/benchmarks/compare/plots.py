"""Series as plots: lines with confidence bands and their names at the ends, as SVG inside a page.

Colors are CSS variables, so that one picture serves the page's light and dark scheme. matplotlib writes the hexadecimal
codes of `PALETTE`, and `svg` replaces them.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from claimcheck._texts import number_text, printable, size_text
from tests.benchmarks.compare.model import MODES, Point, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# In the light scheme. Distinguishable with any color vision, and dark enough for text.
PALETTE = {
    "external": "#2f6fde",
    "chunking": "#b85a00",
    "hybrid": "#00502f",
    "native": "#6b7280",
    "other-1": "#8a4fb5",
    "other-2": "#a8326e",
    "other-3": "#7a6200",
    "other-4": "#00727d",
    "ink": "#3c434d",
    "grid": "#e2e5e9",
    "paper": "#fefefe",
}
_MARKERS: dict[str, str] = dict(zip(MODES, "osDv", strict=True))
# The line of hybrid is often that of external.
_DASHES: dict[str, Any] = {**dict.fromkeys(MODES, "solid"), "hybrid": (0, (4, 2))}
_WIDTH, _HEIGHT = 400, 240  # points; the page scales it
_FONT, _NAME_FONT = 11.5, 10.8
_AREA = {"left": 0.14, "right": 0.735, "bottom": 0.135, "top": 0.955}
_NAME_LENGTH = 16  # of a line, in the space at the right
_NAME_HEIGHT = 13
_STYLE: dict[Any, Any] = {"svg.fonttype": "none", "font.size": _FONT, "text.parse_math": False, "path.simplify": False}


def svg(series: Series, prefix: str) -> str:
    """Return a plot as an ``svg`` element for an HTML page that defines ``--c-NAME`` for each color of `PALETTE`."""
    import matplotlib as mpl

    with mpl.rc_context({**_STYLE, "svg.hashsalt": prefix}):
        text = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        _figure(series).savefig(text, format="svg", transparent=True, metadata=nothing)
    root = ElementTree.fromstring(text.getvalue())
    _strip(root, prefix)
    _name_points(root, prefix, series)
    root.attrib = {"viewBox": root.attrib["viewBox"], "role": "img", "aria-label": printable(series.title)}
    return ElementTree.tostring(root, encoding="unicode")


def draw(axes: Axes, series: Series) -> None:
    """Draw a plot; its title and the name of its vertical axis are left to the caller."""
    lines = _lines(series)
    _scale(axes, series, [point for points in lines.values() for point in points])
    for number, (name, points) in enumerate(lines.items()):
        _line(axes, number, name, points)
    _name_lines(axes, lines)


def _figure(series: Series) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH / 72, _HEIGHT / 72))
    figure.subplots_adjust(**_AREA)
    draw(figure.add_subplot(), series)
    return figure


def _lines(series: Series) -> dict[str, tuple[Point, ...]]:
    """The lines that have points, without values that cannot be drawn."""
    finite = {
        name: tuple(each for each in points if all(map(math.isfinite, (each.x, each.y, each.low, each.high))))
        for name, points in series.points.items()
    }
    return {name: points for name, points in finite.items() if points}


def _color(number: int, name: str) -> str:
    """That of the mode with which a name begins, else another one."""
    mode = next((mode for mode in MODES if name.startswith(mode)), None)
    return PALETTE[mode or f"other-{number % 4 + 1}"]


def _line(axes: Axes, number: int, name: str, points: Sequence[Point]) -> None:
    color, marker = _color(number, name), _MARKERS.get(name, "o")
    dashes = _DASHES.get(name, (0, (1.5, 1.5)))
    x, y = [each.x for each in points], [each.y for each in points]
    low, high = [each.low for each in points], [each.high for each in points]
    if len(points) > 1:
        axes.fill_between(x, low, high, color=color, alpha=0.16, linewidth=0)
        axes.plot(x, y, color=color, linewidth=1.8, linestyle=dashes, solid_capstyle="round")
    else:
        axes.vlines(x, low, high, color=color, linewidth=1.8)
    size = 5.0 if len(points) <= 8 else 3.0
    for index, point in enumerate(points):
        axes.plot(
            [point.x], [point.y], marker, color=color, markersize=size, markeredgecolor=PALETTE["paper"],
            markeredgewidth=0.8, gid=f"point-{number}-{index}", clip_on=False,
        )  # fmt: skip


# Axes ----------------------------------------------------------------------------------------------------------


def _scale(axes: Axes, series: Series, points: Sequence[Point]) -> None:
    x, y = [each.x for each in points], [value for each in points for value in (each.low, each.y, each.high)]
    logs = {
        "x": series.x_scale == "log" and min(x, default=1) > 0,
        "y": series.y_scale == "log" and min(y, default=1) > 0,
    }
    axes.set_xscale("log" if logs["x"] else "linear")
    axes.set_yscale("log" if logs["y"] else "linear")
    if points:
        axes.set_xlim(*_padded(min(x), max(x), 0.07, log=logs["x"]))
        axes.set_ylim(*(_padded(min(y), max(y), 0.06, log=True) if logs["y"] else _from_zero(y)))
        _x_ticks(axes, series, sorted(set(x)), log=logs["x"])
        _y_ticks(axes, in_bytes=series.y_label.startswith("bytes"), log=logs["y"])
    axes.minorticks_off()
    axes.grid(axis="y", color=PALETTE["grid"], linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, pad=5, labelcolor=PALETTE["ink"])
    axes.tick_params(axis="x", pad=8)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(PALETTE["grid"])


def _padded(low: float, high: float, share: float, *, log: bool) -> tuple[float, float]:
    """Limits with some space around the values; a logarithmic axis covers at least a factor of four."""
    if not log:
        space = (high - low) * share or 1.0
        return low - space, high + space
    space = max((high / low) ** share, math.sqrt(max(1.0, 4 * low / high)))
    return low / space, high * space


def _from_zero(values: Iterable[float]) -> tuple[float, float]:
    values = list(values)
    low, high = min(0.0, *values), max(0.0, *values)
    return low, high + ((high - low) * 0.06 or 1.0)


def _x_ticks(axes: Axes, series: Series, values: Sequence[float], *, log: bool) -> None:
    """The measured values themselves, unless they are many."""
    if len(values) > 8:
        axes.xaxis.set_major_formatter(lambda value, _: number_text(value))
        return
    place = math.log if log else float
    span = place(values[-1]) - place(values[0])
    shown = [values[-1]]
    for value in reversed(values[1:-1]):
        if all(abs(place(value) - place(other)) > 0.2 * span for other in (shown[-1], values[0])):
            shown.append(value)
    shown = sorted({values[0], *shown})
    as_text = size_text if re.search(r"\bbytes\b|\bsize\b", series.x_label) else number_text
    axes.set_xticks(shown, [as_text(value) for value in shown])


def _y_ticks(axes: Axes, *, in_bytes: bool, log: bool) -> None:
    from matplotlib.ticker import LogLocator, MaxNLocator

    if not log:
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    else:
        low, high = axes.get_ylim()
        decades = math.log10(high / low)
        if in_bytes:
            locator = LogLocator(base=2 if decades < 1.5 else 4 if decades < 3 else 32, numticks=9)
        else:
            locator = LogLocator(subs=(1, 2, 5) if decades < 2.2 else (1, 3) if decades < 3.2 else (1,), numticks=9)
        axes.yaxis.set_major_locator(locator)
    axes.yaxis.set_major_formatter(lambda value, _: size_text(value) if in_bytes else number_text(value))


# Names at the ends of lines ------------------------------------------------------------------------------------


def _name_lines(axes: Axes, lines: Mapping[str, Sequence[Point]]) -> None:
    to_area = axes.transData + axes.transAxes.inverted()
    ends = {name: float(to_area.transform((points[-1].x, points[-1].y))[1]) for name, points in lines.items()}
    numbers = {name: number for number, name in enumerate(lines)}
    names = sorted(ends, key=lambda name: (ends[name], -numbers[name]))
    height = axes.get_window_extent().height * 72 / axes.figure.dpi
    gap = _NAME_HEIGHT / height
    spread = enumerate(_spread([ends[name] for name in names], gap))
    places = [max(place, index * gap) for index, place in spread]  # above the labels of the horizontal axis
    for name, y in zip(names, places, strict=True):
        text = printable(name)
        short = text if len(text) <= _NAME_LENGTH else text[: _NAME_LENGTH - 1] + "\N{HORIZONTAL ELLIPSIS}"
        color, weight = _color(numbers[name], name), "bold" if name in MODES else "normal"
        axes.text(1.03, y, short, transform=axes.transAxes, va="center", color=color, weight=weight, size=_NAME_FONT)


def _spread(wanted: Sequence[float], gap: float) -> list[float]:
    """Return rising positions at least ``gap`` apart with the least sum of squared distances to the wanted ones."""
    groups: list[list[float]] = []
    for index, position in enumerate(wanted):
        groups.append([position - index * gap])
        while len(groups) > 1 and _mean(groups[-2]) > _mean(groups[-1]):
            groups[-2:] = [groups[-2] + groups[-1]]
    flat = [_mean(group) for group in groups for _ in group]
    return [position + index * gap for index, position in enumerate(flat)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


# From matplotlib's SVG to the page's ---------------------------------------------------------------------------


def _strip(root: ElementTree.Element, prefix: str) -> None:
    """Remove what a page cannot have twice: metadata, styles for the whole page, and ids that other plots also have."""
    text = ElementTree.tostring(root, encoding="unicode")
    used = set(re.findall(r"#([\w-]+)", text))
    colors = {code: f"var(--c-{name})" for name, code in PALETTE.items()}
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        element.attrib = dict(_attributes(element.attrib, used, prefix, colors))
        element.text, element.tail = (element.text or "").strip() or None, None
    for parent in list(root.iter()):
        for child in [each for each in parent if each.tag in ("metadata", "style")]:
            parent.remove(child)


def _attributes(
    attributes: Mapping[str, str], used: set[str], prefix: str, colors: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    for name, value in attributes.items():
        plain = name.rpartition("}")[2]
        if plain == "id":
            if value in used or value.startswith("point-"):
                yield plain, f"{prefix}-{value}"
        elif plain in ("style", "fill", "stroke"):
            named = re.sub(r"#[0-9a-f]{6}\b", lambda match: colors.get(match[0], match[0]), value)
            yield plain, re.sub(r"font-family: [^;]*(; )?", "", named)
        else:
            yield plain, re.sub(r"#(?=\w)", f"#{prefix}-", value)


def _name_points(root: ElementTree.Element, prefix: str, series: Series) -> None:
    """Add a title to each point, which browsers show under the pointer."""
    in_bytes = re.search(r"\bbytes\b|\bsize\b", series.x_label)
    found: dict[str, Any] = {element.attrib.get("id", ""): element for element in root.iter("g")}
    for number, (name, points) in enumerate(_lines(series).items()):
        for index, each in enumerate(points):
            element = found[f"{prefix}-point-{number}-{index}"]
            del element.attrib["id"]
            x = size_text(each.x) if in_bytes else number_text(each.x)
            interval = f" ({number_text(each.low)} to {number_text(each.high)})" if each.low < each.high else ""
            title = ElementTree.Element("title")
            title.text = printable(f"{name}, {x}: {number_text(each.y)}{interval} {series.y_label}")
            element.insert(0, title)
