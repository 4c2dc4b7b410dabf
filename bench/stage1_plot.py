"""Draws what the benchmark of stage 1 measured: ratio to the floor against number of patterns, with matplotlib."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench.stage1 import Measurement

_TITLE = "Stage 1: time over that of parsing and visiting the same documents"
_COLOURS = ("tab:blue", "tab:orange", "tab:green")


@dataclass(frozen=True)
class _Way:
    """How one ratio of a measurement is drawn. Without a colour of its own, it has that of the mix of patterns."""

    column: str
    name: str
    style: str
    colour: str | None = None


_STAGE1 = (_Way("cached", "stage 1", "o-"), _Way("uncached", "stage 1, no shape cache", "o--"))
_OTHERS = (
    _Way("lxml_xpath", "lxml, one XPath a path", "s:", "dimgrey"),
    _Way("saxon", "Saxon, the same XPaths", "^:", "tab:purple"),
)


def missing() -> str | None:
    """What the user must do before anything can be drawn, if anything."""
    return None if find_spec("matplotlib") else "the plot needs matplotlib: pip install matplotlib"


def draw(measured: Sequence[Measurement], prefix: Path) -> None:
    """Writes PREFIX.svg and PREFIX.png: a column for each kind of documents, all ways above, stage 1 alone below."""
    from matplotlib.figure import Figure  # installed only for the benchmark

    kinds = list(dict.fromkeys(m.kind for m in measured))
    sizes = sorted({m.patterns for m in measured})
    figure = Figure(figsize=(max(7.5, 2.5 * len(kinds) + 0.8), 7), layout="constrained")
    figure.suptitle(_TITLE)
    panels = figure.subplots(2, len(kinds), sharex=True, sharey="row", squeeze=False)
    for kind, (above, below) in zip(kinds, panels.T, strict=True):
        mixes = _by_mix(m for m in measured if m.kind == kind)
        _lines(above, mixes, (*_OTHERS, *_STAGE1))
        _lines(below, mixes, _STAGE1)
        above.set(title=kind, yscale="log", ylim=(1, None))
        above.yaxis.set_major_formatter("{x:,.0f}")
        below.set(xlabel="patterns")
    below.set(xscale="log", xticks=sizes, xticklabels=[_short(size) for size in sizes], ylim=(0, None))
    below.minorticks_off()
    panels[0, 0].set_ylabel("ratio, all ways")
    panels[1, 0].set_ylabel("ratio, stage 1 alone")
    for axes in panels.flat:
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.align_ylabels()
    figure.legend(handles=_legend(measured), loc="outside lower center", ncols=3, frameon=False)
    for ending in ("svg", "png"):
        figure.savefig(f"{prefix}.{ending}", dpi=150)


def _by_mix(measured: Iterable[Measurement]) -> list[list[Measurement]]:
    mixes: dict[tuple[float, float], list[Measurement]] = {}
    for m in measured:
        mixes.setdefault((m.filters, m.values), []).append(m)
    return list(mixes.values())


def _lines(axes: Any, mixes: Iterable[Sequence[Measurement]], ways: Sequence[_Way]) -> None:
    """A line for each way and mix of patterns."""
    for of_mix, colour in zip(mixes, _COLOURS, strict=False):
        for way in ways:
            known = [m for m in of_mix if getattr(m, way.column) is not None]
            ratios = [getattr(m, way.column) for m in known]
            axes.plot([m.patterns for m in known], ratios, way.style, color=way.colour or colour, markersize=4)


def _legend(measured: Sequence[Measurement]) -> list[Any]:
    """What the colours and the styles mean, column by column."""
    from matplotlib.lines import Line2D

    colours = [
        Line2D([], [], color=colour, linewidth=5, label=_mix(of_mix[0]))
        for of_mix, colour in zip(_by_mix(measured), _COLOURS, strict=False)
    ]
    styles = [
        Line2D([], [], color=way.colour or "black", marker=way.style[0], linestyle=way.style[1:], label=way.name)
        for way in (*_STAGE1, *_OTHERS)
        if any(getattr(m, way.column) is not None for m in measured)
    ]
    return colours + styles


def _mix(measured: Measurement) -> str:
    parts = [f"{measured.filters:.0%} filters" if measured.filters else "no filters"]
    if measured.values:
        parts.append(f"{measured.values:.0%} values or attributes")
    return "patterns: " + ", ".join(parts)


def _short(size: int) -> str:
    return f"{size // 1000}k" if size >= 1000 and not size % 1000 else str(size)
