"""All libraries in one picture: how fast, and how much memory, by the size of the payload."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.benchmarks.peer_results import Results
from tests.benchmarks.rounds import size_text

_LEAST = 0.5  # payloads; less is not told apart from nothing
_STORES = {"redis": "-", "s3": "--", "file": ":"}
_OURS = {"redis": "#000000", "s3": "#0b4fa0", "obstore": "#007f7a", "file": "#7a4300"}
_MARKERS = "os^DvPX*<>hpd8"


def draw(results: Results, path: Path) -> None:
    """Draw it; a line for each library, the kind of line for what payloads rest in."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, (speed, memory) = pyplot.subplots(1, 2, figsize=(15, 7.5), layout="constrained")
    for number, name in enumerate(results.rounds):
        style = _style(results, name, number, pyplot.get_cmap("tab20"))
        sizes = sorted(results.rounds[name])
        speed.plot(sizes, [size / results.seconds(name, size) / 1e6 for size in sizes], **style)
        memory.plot(sizes, [max(results.extra(name, size) / size, _LEAST) for size in sizes], **style)
    sizes = sorted({size for by_size in results.rounds.values() for size in by_size})
    _axes(speed, "put and get together, MB of payload per second", sizes)
    _axes(memory, "peak extra memory, in payloads; that which comes back is one of them", sizes)
    figure.legend(*memory.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=9, handlelength=4)
    figure.suptitle("The same payloads, put and got: solid to Redis, dashed to S3 (versitygw), dotted to files")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _style(results: Results, name: str, number: int, colours: Any) -> dict[str, Any]:
    ours = _OURS[name.split()[1]] if name.startswith("claimcheck") else None
    look = {"linestyle": _STORES[results.stores[name]], "marker": _MARKERS[number % len(_MARKERS)], "markersize": 6}
    return {**look, "color": ours or colours(number % 20), "linewidth": 2.6 if ours else 1.3,
            "label": results.label(name), "zorder": 3 if ours else 2}  # fmt: skip


def _axes(axes: Any, title: str, sizes: list[int]) -> None:
    from matplotlib.ticker import LogLocator, StrMethodFormatter

    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.set_xticks(sizes, [size_text(size) for size in sizes])
    axes.minorticks_off()
    axes.set_xlabel("payload")
    axes.set_title(title, loc="left", fontsize=11)
    axes.grid(which="major", color="#e5e5e5")
    axes.spines[["top", "right"]].set_visible(False)
