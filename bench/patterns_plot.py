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

_OTHERS = ("one at a time", "one by hand", "backtracking")
"""Ways that are drawn with dots."""

_LOG = ("queries", "domain", "window", "events", "at_once", "budget")
_COLOURS = (
    *("tab:green", "tab:blue", "tab:orange", "tab:red", "tab:purple", "tab:brown", "tab:pink", "dimgrey"),
    *("tab:olive", "tab:cyan", "gold", "black", "navy", "darkred", "teal"),
)


def draw(lines: Sequence[Line], prefix: Path) -> None:
    """Writes PREFIX.svg and PREFIX.png: a panel for each figure that was measured."""
    from matplotlib.figure import Figure  # installed only for the benchmarks

    figures = list(dict.fromkeys(str(line.case["figure"]) for line in lines))
    across = min(4, len(figures))
    down = -(-len(figures) // across)
    figure = Figure(figsize=(max(6.0, 4.2 * across), 3.4 * down + 0.6), layout="constrained")
    panels = figure.subplots(down, across, squeeze=False)
    # Where all panels have the same ways, each has one colour.
    colours = dict(zip(dict.fromkeys(line.plan for line in lines if line.baseline), _COLOURS, strict=False))
    for axes, name in zip(panels.flat, figures, strict=False):
        _panel(axes, name, [line for line in lines if line.case["figure"] == name], colours)
    for axes in panels.flat[len(figures) :]:
        axes.set_axis_off()
    shown: dict[str, Any] = {}
    for axes in panels.flat:
        handles, labels = axes.get_legend_handles_labels()
        shown |= dict(zip(labels, handles, strict=True))
    figure.legend(shown.values(), shown.keys(), loc="outside lower center", ncols=3, frameon=False)
    for ending in ("svg", "png"):
        figure.savefig(f"{prefix}.{ending}", dpi=150)


def _panel(axes: Any, name: str, lines: Sequence[Line], colours: Mapping[str, str]) -> None:
    """One figure: a line for each template, with and without channels, and for one statement at a time."""
    from matplotlib.ticker import LogLocator

    key, label = _AXES[name]
    groups: dict[str, list[Line]] = {}
    is_factor = name.startswith(_FACTORS)
    for line in lines:
        if is_factor and line.baseline is None:
            continue
        groups.setdefault(_series(line, lines), []).append(line)
    for series, colour in zip(groups, cycle(_COLOURS), strict=False):
        points = sorted((float(str(line.case[key])), _height(line)) for line in groups[series])
        style = "s:" if any(plan in series for plan in _OTHERS) else "D-"
        drawn = colours[series] if is_factor else colour
        axes.plot([x for x, _ in points], [rate for _, rate in points], style, color=drawn, label=series)
    axes.set(title=name, xlabel=label)
    if name in _PARTS:
        axes.set(ylabel="recall", xscale="log", ylim=(0, 1.05))
    else:
        axes.set(ylabel="times as fast" if is_factor else "events a second", yscale="log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:,g}")
    if key in _LOG:
        axes.set(xscale="log")
    places = sorted({float(str(line.case[key])) for line in lines})
    axes.set_xticks(places, [f"{place:,g}" if place < 1000 else f"{place:,.0f}" for place in places])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


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
