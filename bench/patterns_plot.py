"""Plots the measurements of `mmqjp bench patterns`: events a second, or how many times as fast as a baseline, with the
axes of the papers' figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from bench.stage2_report import Line

_AXES = {
    "4.13a": ("queries", "statements"),
    "4.13b": ("zipf", "Zipf parameter"),
    "4.13c": ("selectivity", "selectivity of a range"),
    "4.13, equal hits": ("queries", "statements"),
    "4.14": ("queries", "statements"),
    "4.17": ("smoothing", "days averaged"),
    "4.18": ("queries", "statements"),
    "5.8a": ("queries", "statements"),
    "5.8b": ("domain", "values of the constants"),
    "5.8c": ("window", "longest window, seconds"),
    "5.8d": ("zipf", "Zipf parameter"),
    "5.9a": ("queries", "statements, NEXT"),
    "5.9b": ("queries", "statements, FOLD"),
    "5.9c": ("queries", "statements"),
    "5.9d": ("capacity", "streams on the channel"),
    "5.10a": ("queries", "statements"),
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
    "Pseq, onco": ("size", "variables, one after the other"),
    "Pset, onco": ("size", "variables in any order"),
    "Pseq, nyse": ("size", "variables, one after the other"),
    "Pset, nyse": ("size", "variables in any order"),
    "Ponco": ("window", "days of a window"),
    "Pnyse": ("window", "milliseconds of a window"),
    "Pnyse, events": ("events", "events"),
}
"""What varies in a figure, and its label."""

_PARTS = ("drift",)
"""Figures of which part is found, instead of how fast."""

_FACTORS = ("Pseq", "Pset", "Ponco", "Pnyse")
"""What figures begin with that show how many times as fast something is as the baseline."""

_STYLES = {"without merging": "o--", "one at a time": "s:", "one by hand": "^:", "backtracking": "s:"}
"""How ways are drawn that are compared with others."""

_LOG = ("queries", "domain", "window", "events", "at_once", "budget")
_COLOURS = (
    *("tab:green", "tab:blue", "tab:orange", "tab:red", "tab:purple", "tab:brown", "tab:pink", "dimgrey"),
    *("tab:olive", "tab:cyan", "gold", "black", "navy", "darkred", "teal", "lime", "magenta", "tan"),
)


_LETTER = 0.08
"""About how wide a letter of the legend is, in inches."""


def draw(lines: Sequence[Line], prefix: Path) -> None:
    """Writes PREFIX.svg and PREFIX.png: a panel for each figure that was measured."""
    from matplotlib.figure import Figure  # installed only for the benchmarks

    figures = list(dict.fromkeys(str(line.case["figure"]) for line in lines))
    across = min(4, len(figures))
    down = -(-len(figures) // across)
    drawn = {name: _groups(name, [line for line in lines if line.case["figure"] == name]) for name in figures}
    # What has one name has one colour in all panels, as they have one legend.
    names = dict.fromkeys(_named(series, some[0]) for groups in drawn.values() for series, some in groups.items())
    colours = dict(zip(names, cycle(_COLOURS), strict=False))
    ways = {series for groups in drawn.values() for series in groups}
    width = max(6.0, 4.2 * across)
    columns = max(1, min(3, int(width / (0.6 + _LETTER * max(map(len, ways), default=0)))))
    rows = -(-len(ways) // columns)
    figure = Figure(figsize=(width, 3.4 * down + 0.2 * max(3, rows)), layout="constrained")
    panels = figure.subplots(down, across, squeeze=False)
    for axes, name in zip(panels.flat, figures, strict=False):
        _panel(axes, name, drawn[name], colours)
    for axes in panels.flat[len(figures) :]:
        axes.set_axis_off()
    shown: dict[str, Any] = {}
    for axes in panels.flat:
        handles, labels = axes.get_legend_handles_labels()
        shown |= dict(zip(labels, handles, strict=True))
    figure.legend(shown.values(), shown.keys(), loc="outside lower center", ncols=columns, frameon=False)
    for ending in ("svg", "png"):
        figure.savefig(f"{prefix}.{ending}", dpi=150)


def _groups(name: str, lines: Sequence[Line]) -> dict[str, list[Line]]:
    """The lines of a figure: one for each template, with and without channels, and for one statement at a time."""
    groups: dict[str, list[Line]] = {}
    for line in lines:
        if line.baseline is not None or not name.startswith(_FACTORS):
            groups.setdefault(_series(line, lines), []).append(line)
    return groups


def _panel(axes: Any, name: str, groups: Mapping[str, Sequence[Line]], colours: Mapping[str, str]) -> None:
    """One figure."""
    from matplotlib.ticker import LogLocator

    key, label = _AXES[name]
    is_factor = name.startswith(_FACTORS)
    for series, lines in groups.items():
        points = sorted((float(str(line.case[key])), _height(line)) for line in lines)
        style, colour = _STYLES.get(lines[0].plan, "D-"), colours[_named(series, lines[0])]
        axes.plot([x for x, _ in points], [rate for _, rate in points], style, color=colour, label=series)
    axes.set(title=name, xlabel=label)
    if name in _PARTS:
        axes.set(ylabel="recall", xscale="log", ylim=(0, 1.05))
    else:
        axes.set(ylabel="times as fast" if is_factor else "events a second")
        heights = [_height(line) for lines in groups.values() for line in lines]
        if max(heights) < 10 * min(heights):
            axes.set_ylim(bottom=0)  # a logarithmic axis would have hardly a number
        else:
            axes.set(yscale="log")
        if 10 * min(heights) <= max(heights) < 100 * min(heights):  # powers of ten alone are one or two numbers
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter("{x:,g}")
    if key in _LOG:
        axes.set(xscale="log")
    places = sorted({float(str(line.case[key])) for lines in groups.values() for line in lines})
    axes.set_xticks(places, [f"{place:,g}" if place < 1000 else f"{place:,.0f}" for place in places])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _named(series: str, line: Line) -> str:
    """What of a series has a colour: its template, of which each way has a style of its own, or else its name."""
    template = str(line.case.get("template"))
    return template if series.startswith(template) else series


def _series(line: Line, lines: Sequence[Line]) -> str:
    """What a line of a panel is called."""
    parts = [line.plan] if line.plan != "together" else []
    if len({one.case.get("template") for one in lines}) > 1:
        parts.insert(0, str(line.case["template"]))
    if without := line.case.get("without"):
        parts.append(f"without {without}")
    return ", ".join(parts) or "together"


def _height(line: Line) -> float:
    figure = str(line.case["figure"])
    if figure.startswith(_FACTORS):
        found: object = line.speedup
    else:
        found = line.details["recall" if figure in _PARTS else "events_a_second"]
    assert isinstance(found, float)
    return found
