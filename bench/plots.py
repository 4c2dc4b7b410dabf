"""Draws lines of results with matplotlib, which only the benchmarks need: panels of curves, as SVG and as PNG."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.harness import Line

COLOURS = (
    *("tab:green", "tab:blue", "tab:orange", "tab:red", "tab:purple", "tab:brown", "tab:pink", "dimgrey"),
    *("tab:olive", "tab:cyan", "gold", "black", "navy", "darkred", "teal", "lime", "magenta", "tan"),
)

_LETTER = 0.08  # the width of a letter of the legend, in inches


@dataclass(frozen=True)
class PlotSeries:
    """A figure by key (see `Line.figure`) or function; `style` as in matplotlib ("o-"), by default its next colour."""

    label: str
    y: str | Callable[[Line], float]
    style: str = "o-"
    colour: str | None = None
    lines: Sequence[Line] | None = None  # the lines that it shows; by default all those of the plot

    def height(self, line: Line) -> float:
        return line.number(self.y) if isinstance(self.y, str) else self.y(line)


@dataclass(frozen=True)
class Panel:
    """Curves over the cases' key `x`. `log`: logarithmic axes; others begin at 0. `ticks`: one for every value of x."""

    x: str
    xlabel: str
    ylabel: str
    curves: Sequence[PlotSeries]
    log: str = "x"
    title: str = ""
    ticks: bool = False
    legend: bool = False
    axes: Mapping[str, Any] = field(default_factory=dict)  # further properties of matplotlib's axes


def draw_panels(
    lines: Sequence[Line], prefix: Path, panels: Sequence[Panel], size: tuple[float, float] = (8, 3.4), across: int = 4
) -> None:
    down = -(-len(panels) // across)
    figure = new_figure(*size)
    grid = figure.subplots(down, min(across, len(panels)), squeeze=False)
    for axes, panel in zip(grid.flat, panels, strict=False):
        _draw_panel(axes, panel, lines)
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    save_figure(figure, prefix)


def _draw_panel(axes: Any, panel: Panel, lines: Sequence[Line]) -> None:
    from matplotlib.ticker import LogLocator

    places: set[float] = set()
    heights: list[float] = []
    for curve in panel.curves:
        shown = lines if curve.lines is None else curve.lines
        points = [(line.figure(panel.x), curve.height(line)) for line in shown]
        heights += [y for _, y in points if y > 0]
        if all(isinstance(x, int | float) for x, _ in points):
            points.sort(key=lambda point: float(str(point[0])))
            places.update(float(str(x)) for x, _ in points)
        colour = {"color": curve.colour} if curve.colour else {}
        axes.plot([x for x, _ in points], [y for _, y in points], curve.style, label=curve.label, **colour)
    axes.set(xlabel=panel.xlabel, ylabel=panel.ylabel, title=panel.title)
    axes.set(**{f"{axis}scale": "log" for axis in "xy" if axis in panel.log})
    if "y" not in panel.log:
        axes.set_ylim(bottom=0)
    elif heights and 2 <= max(heights) / min(heights) < 100:  # powers of ten alone are one or two numbers
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:,g}")
    axes.set(**panel.axes)
    if panel.ticks:
        axes.set_xticks(sorted(places), [f"{x:,g}" if x < 1000 else f"{x:,.0f}" for x in sorted(places)])
        axes.minorticks_off()
    if panel.legend and axes.lines:
        axes.legend(frameon=False, fontsize="small")


def new_figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure  # installed only for the benchmarks

    return Figure(figsize=(width, height), layout="constrained")


def stack_bars(
    draw: Callable[..., Any],
    start: str,
    names: Sequence[str],
    lines: Sequence[Line],
    parts: Sequence[str],
    scale: float = 1.0,
    **how: float,
) -> None:
    """Draws a bar of parts for each line, by `bar` or `barh` of axes, whose argument for the beginning is `start`."""
    before = [0.0] * len(lines)
    for part in parts:
        sizes = [line.number(part) * scale for line in lines]
        draw(names, sizes, **{start: before}, label=part, **how)
        before = [a + b for a, b in zip(before, sizes, strict=True)]


def save_figure(figure: Any, prefix: Path) -> None:
    labelled: dict[str, Any] = {}
    for axes in figure.axes:
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        if axes.get_legend() is None:
            handles, labels = axes.get_legend_handles_labels()
            for label, handle in zip(labels, handles, strict=True):
                labelled.setdefault(label, handle)
    if labelled:
        width = 0.6 + _LETTER * max(map(len, labelled))
        count = max(1, min(5, int(figure.get_figwidth() / width)))
        rows = -(-len(labelled) // count)
        figure.set_figheight(figure.get_figheight() + 0.2 * max(0, rows - 2))
        figure.legend(labelled.values(), labelled.keys(), loc="outside lower center", ncols=count, frameon=False)
    for ending in ("svg", "png"):
        figure.savefig(f"{prefix}.{ending}", dpi=150)


def grouped(lines: Iterable[Line], key: Callable[[Line], object]) -> dict[str, list[Line]]:
    found: dict[str, list[Line]] = {}
    for line in lines:
        found.setdefault(str(key(line)), []).append(line)
    return found


def by_plan(lines: Iterable[Line]) -> dict[str, list[Line]]:
    return grouped(lines, lambda line: line.plan)


_AXES = {
    **dict.fromkeys(("4.13a", "4.13, equal hits", "4.14", "4.18", "5.8a", "5.9c", "5.10a"), ("queries", "statements")),
    "4.13b": ("zipf", "Zipf parameter"),
    "4.13c": ("selectivity", "selectivity of a range"),
    "4.17": ("smoothing", "days averaged"),
    "5.8b": ("domain", "values of the constants"),
    "5.8c": ("window", "longest window, seconds"),
    "5.8d": ("zipf", "Zipf parameter"),
    "5.9a": ("queries", "statements, NEXT"),
    "5.9b": ("queries", "statements, FOLD"),
    "5.9d": ("capacity", "streams on the channel"),
    "5.10b": ("sel", "selectivity of the start conditions"),
    "flink": ("queries", "statements, beside Flink"),
    "expert": ("queries", "statements, beside SQL"),
    "E1": ("rises", "chance that a price rises"),
    "E2": ("window", "events of a window"),
    "E4": ("window", "events of a window, NON OVERLAPPING"),
    "errors": ("errors", "missing letters"),
    "budget": ("budget", "BUDGET, one letter missing"),
    "drift": ("budget", "BUDGET, in a stream that drifts"),
    "many": ("queries", "Kleene queries of one template"),
    "aggregates": ("at_once", "events at one time"),
    **dict.fromkeys(("Pseq, onco", "Pseq, nyse"), ("size", "variables, one after the other")),
    **dict.fromkeys(("Pset, onco", "Pset, nyse"), ("size", "variables in any order")),
    "Ponco": ("window", "days of a window"),
    "Pnyse": ("window", "milliseconds of a window"),
    "Pnyse, events": ("events", "events"),
}
"""The parameter that varies in a figure, and its label."""

_RECALLS = ("drift",)  # figures of recall instead of speed

_FACTORS = ("Pseq", "Pset", "Ponco", "Pnyse")  # prefixes of figures that show the speedup over the baseline

_STYLES = {"without merging": "o--", "one at a time": "s:", "one by hand": "^:", "backtracking": "s:"}

_LOG = ("queries", "domain", "window", "events", "at_once", "budget")


def draw_patterns(lines: Sequence[Line], prefix: Path) -> None:
    """Writes PREFIX.svg and PREFIX.png, a panel for each measured figure. Templates differ in colour, ways in style."""
    figures = grouped(lines, lambda line: line.case["figure"])
    groups = {name: _series_of(name, of) for name, of in figures.items()}
    names = dict.fromkeys(_coloured(label, of[0]) for curves in groups.values() for label, of in curves.items())
    colours = dict(zip(names, COLOURS * (1 + len(names) // len(COLOURS)), strict=False))
    panels = []
    for name, curves in groups.items():
        series = []
        for label, of in curves.items():
            style, colour = _STYLES.get(str(of[0].plan), "D-"), colours[_coloured(label, of[0])]
            series.append(PlotSeries(label, _height_key(name), style, colour, of))
        panels.append(_pattern_panel(name, series))
    across = min(4, len(panels))
    size = max(6.0, 4.2 * across), 3.4 * -(-len(panels) // across) + 0.6
    draw_panels(lines, prefix, panels, size)


def _series_of(figure: str, lines: Sequence[Line]) -> dict[str, list[Line]]:
    templates = {line.case.get("template") for line in lines}
    found: dict[str, list[Line]] = {}
    for line in lines:
        if line.baseline is None and figure.startswith(_FACTORS):
            continue
        parts = [str(line.case["template"])] if len(templates) > 1 else []
        parts += [str(line.plan)] if line.plan != "together" else []
        parts += [f"without {line.case['without']}"] if line.case.get("without") else []
        found.setdefault(", ".join(parts) or "together", []).append(line)
    return found


def _coloured(label: str, line: Line) -> str:
    """What a curve shares its colour with: the template, if its name begins with it."""
    template = str(line.case.get("template"))
    return template if label.startswith(template) else label


def _height_key(figure: str) -> str:
    if figure in _RECALLS:
        return "recall"
    return "speedup" if figure.startswith(_FACTORS) else "events_a_second"


def _pattern_panel(figure: str, curves: Sequence[PlotSeries]) -> Panel:
    x, xlabel = _AXES[figure]
    log = "x" if x in _LOG else ""
    heights = [curve.height(line) for curve in curves for line in curve.lines or ()]
    axes: dict[str, object] = {}
    if figure in _RECALLS:
        axes = {"ylim": (0, 1.05)}
    elif max(heights) >= 10 * min(heights):  # else a logarithmic axis would have hardly a number
        log += "y"
    ylabel = {"recall": "recall", "speedup": "times as fast"}.get(_height_key(figure), "events a second")
    return Panel(x, xlabel, ylabel, curves, log, figure, ticks=True, axes=axes)
