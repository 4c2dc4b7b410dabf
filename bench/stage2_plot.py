"""Plots the measurements of the benchmarks of stage 2 with matplotlib. The axes are those of the thesis' figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.stage2_report import Line

_STYLES = {
    "sequential": ("dimgrey", "s:"),
    "floor": ("black", "x--"),
    "basic": ("tab:blue", "o-"),
    "views": ("tab:orange", "^-"),
    "signature": ("tab:green", "D-"),
}
_OTHER = ("tab:purple", "v-")

_COLOURS = ("tab:green", "tab:red", "tab:blue", "tab:orange")

_WIDE = 7
"""Inches of a figure that has room for five names side by side."""


@dataclass(frozen=True)
class _Panel:
    """One figure of the thesis: one parameter varies, the others have their defaults."""

    title: str
    schema: str
    key: str
    label: str
    log: bool


_PANELS = (
    _Panel("6.8", "two-level", "queries", "queries", True),
    _Panel("6.9", "two-level", "leaves", "leaves, N", False),
    _Panel("6.10", "two-level", "zipf", "Zipf parameter", False),
    _Panel("6.11", "three-level", "queries", "queries", True),
    _Panel("6.12", "three-level", "max_joins", "most value joins a query, K", False),
    _Panel("6.13", "three-level", "zipf", "Zipf parameter", False),
)


def draw_technical(lines: Sequence[Line], prefix: Path) -> None:
    """Writes PREFIX.svg and PREFIX.png: Figures 6.8 to 6.13, as far as they were measured. Where nothing varies, the
    points of Figures 6.8 and 6.11."""
    measured = [(panel, _of_panel(lines, panel)) for panel in _PANELS]
    drawn = [(panel, of) for panel, of in measured if len({line.case[panel.key] for line in of}) > 1]
    drawn = drawn or [(panel, of) for panel, of in measured if of and panel.key == "queries"]
    figure = _figure(4 * min(3, len(drawn)), 3.4 * (1 + (len(drawn) > 3)))
    columns = min(3, len(drawn))
    panels = figure.subplots(-(-len(drawn) // columns), columns, squeeze=False)
    for axes, (panel, of) in zip(panels.flat, drawn, strict=False):
        for plan, points in _by_plan(of, panel.key).items():
            colour, style = _STYLES.get(plan, _OTHER)
            heights = [line.seconds * 1e3 for _, line in points]
            axes.plot([x for x, _ in points], heights, style, color=colour, label=plan)
        axes.set(title=f"{panel.title}: {panel.schema}", xlabel=panel.label, ylabel="ms", yscale="log")
        if panel.log:
            axes.set(xscale="log")
    for axes in panels.flat[len(drawn) :]:
        axes.set_axis_off()
    _finish(figure, panels.flat[0], prefix)


def _of_panel(lines: Iterable[Line], panel: _Panel) -> list[Line]:
    """The lines of a figure: those where the other parameters have their defaults."""
    default = {"queries": 1000, "zipf": 0.8} | (
        {"leaves": 6, "max_joins": 6} if panel.schema == "two-level" else {"leaves": 16, "max_joins": 4}
    )
    free = {panel.key} | ({"max_joins"} if panel.key == "leaves" else set())
    return [
        line
        for line in lines
        if line.case["schema"] == panel.schema
        and all(line.case[key] == value for key, value in default.items() if key not in free)
    ]


def draw_split(lines: Sequence[Line], prefix: Path) -> None:
    """Writes PREFIX.svg and PREFIX.png: Figures 6.14 and 6.15, stacked."""
    schemas = list(dict.fromkeys(str(line.case["schema"]) for line in lines))
    figure = _figure(4 * len(schemas), 3.6)
    panels = figure.subplots(1, len(schemas), squeeze=False)
    parts = ("r_vj", "r_l", "r_r", "queries")
    for axes, schema, number in zip(panels.flat, schemas, ("6.14", "6.15"), strict=False):
        of = [line for line in lines if line.case["schema"] == schema]
        below = [0.0] * len(of)
        for part in parts:
            heights = [_number(line.details, part) * 1e3 for line in of]
            axes.bar([line.plan for line in of], heights, bottom=below, width=0.5, label=part)
            below = [a + b for a, b in zip(below, heights, strict=True)]
        axes.set(title=f"{number}: {schema}", ylabel="ms")
    _finish(figure, panels.flat[0], prefix)


def _number(details: Mapping[str, object], key: str) -> float:
    found = details.get(key)
    return found if isinstance(found, float) else 0.0


def draw_rates(lines: Sequence[Line], prefix: Path, keys: Sequence[tuple[str, str]]) -> None:
    """Writes PREFIX.svg and PREFIX.png: items a second (Figure 6.16) against each of the keys, and the floor's."""
    panels_of = []
    for key, label in keys:
        groups: dict[tuple[object, ...], list[Line]] = {}
        for line in lines:
            rest = tuple(value for name, value in line.case.items() if name not in (key, "items"))
            groups.setdefault(rest, []).append(line)
        widest = max(groups.values(), key=lambda of: len({line.case[key] for line in of}))
        if len({line.case[key] for line in widest}) > 1:
            panels_of.append((key, label, widest))
    if not panels_of:
        panels_of = [(*keys[0], list(lines))]
    figure = _figure(5 * len(panels_of), 4)
    panels = figure.subplots(1, len(panels_of), squeeze=False)
    for axes, (key, label, of) in zip(panels.flat, panels_of, strict=True):
        for plan, points in _by_plan(of, key).items():
            colour, style = _STYLES.get(plan, _OTHER)
            rates = [_batch(line) / line.seconds for _, line in points]
            axes.plot([x for x, _ in points], rates, style, color=colour, label=plan)
        floors = sorted({(float(str(line.case[key])), _batch(line) / line.floor) for line in of if line.floor})
        colour, style = _STYLES["floor"]
        axes.plot([x for x, _ in floors], [rate for _, rate in floors], style, color=colour, label="floor")
        axes.set(xlabel=label, ylabel="items a second", xscale="log", yscale="log")
        axes.set_xticks([x for x, _ in floors], [f"{x:,.0f}" for x, _ in floors])
        axes.minorticks_off()
    _finish(figure, panels.flat[0], prefix)


def _batch(line: Line) -> float:
    return float(str(line.case["batch"]))


def draw_state(lines: Sequence[Line], prefix: Path) -> None:
    """Writes PREFIX.svg and PREFIX.png: the time of a batch, and memory and disk, by documents that are kept."""
    figure = _figure(8, 3.4)
    times, sizes = figure.subplots(1, 2)
    kept = [float(str(line.case["documents"])) for line in lines]
    times.plot(kept, [line.seconds * 1e3 for line in lines], "D-", label="a batch")
    times.plot(kept, [_number(line.details, "evicted") * 1e3 for line in lines], "s:", label="evicting a thirtieth")
    times.plot(kept, [_number(line.details, "opened") * 1e3 for line in lines], "^:", label="opening the store")
    for name, label in (("resident", "memory"), ("peak", "peak of memory"), ("disk", "disk")):
        sizes.plot(kept, [int(str(line.details[name])) / 1e6 for line in lines], "o-", label=label)
    times.set(xlabel="documents", ylabel="ms", xscale="log", ylim=(0, None))
    sizes.set(xlabel="documents", ylabel="MB", xscale="log", yscale="log")
    sizes.legend(frameon=False)
    _finish(figure, times, prefix)


def draw_cluster(lines: Sequence[Line], prefix: Path) -> None:
    """Writes PREFIX.svg and PREFIX.png: the time of a micro-batch by workers, and the driver's memory, by documents
    that are kept."""
    figure = _figure(8, 3.4)
    times, sizes = figure.subplots(1, 2)
    for workers in sorted({int(str(line.case["workers"])) for line in lines}):
        some = [line for line in lines if line.case["workers"] == workers]
        kept = [float(str(line.case["documents"])) for line in some]
        label = "one worker" if workers == 1 else f"{workers} workers"
        times.plot(kept, [line.seconds for line in some], "D-", label=label)
        for name, shown in (("python", "Python"), ("jvm", "JVM")):
            used = [int(str(line.details[name])) / 1e6 for line in some]
            sizes.plot(kept, used, "o-", label=f"{shown}, {label}")
    times.set(xlabel="documents", ylabel="seconds", xscale="log", ylim=(0, None))
    sizes.set(xlabel="documents", ylabel="MB of the driver at its peak", xscale="log", ylim=(0, None))
    sizes.legend(frameon=False)
    _finish(figure, times, prefix)


def draw_parts(lines: Sequence[Line], parts: Sequence[str], prefix: Path) -> None:
    """Writes PREFIX.svg and PREFIX.png: where the time of the whole path goes, beside that of its floor."""
    figure = _figure(8, 1.6 + 0.6 * len(lines))
    axes = figure.subplots()
    names = [f"{line.plan}, {line.case['queries']:,} queries" for line in lines]
    before = [0.0] * len(lines)
    for part in parts:
        widths = [_number(line.details, part) for line in lines]
        axes.barh(names, widths, left=before, height=0.6, label=part)
        before = [a + b for a, b in zip(before, widths, strict=True)]
    for place, line in enumerate(lines):
        if line.floor:
            axes.plot([line.floor] * 2, [place - 0.4, place + 0.4], color="black")
    axes.set(xlabel="seconds; the black line is lxml alone")
    axes.invert_yaxis()
    _finish(figure, axes, prefix)


def draw_expert(lines: Sequence[Line], prefix: Path) -> None:
    """Writes PREFIX.svg and PREFIX.png: items a second, and milliseconds for one document, by number of queries."""
    figure = _figure(8, 3.4)
    rates, times = figure.subplots(1, 2)
    queries = [float(str(line.case["queries"])) for line in lines]
    items = [float(str(line.case["items"])) for line in lines]
    expert = [_number(line.details, "expert") for line in lines]
    rates.plot(queries, [n / line.seconds for n, line in zip(items, lines, strict=True)], "D-", label="mmqjp")
    rates.plot(queries, [n / seconds for n, seconds in zip(items, expert, strict=True)], "s:", label="by hand")
    times.plot(queries, [_number(line.details, "document_ms") for line in lines], "D-", label="mmqjp")
    times.plot(queries, [_number(line.details, "expert_document_ms") for line in lines], "s:", label="by hand")
    rates.set(xlabel="queries", ylabel="items a second of CPU", xscale="log", yscale="log")
    times.set(xlabel="queries", ylabel="ms of CPU for one document", xscale="log", ylim=(0, None))
    _finish(figure, rates, prefix)


def draw_peers(lines: Sequence[Line], prefix: Path) -> None:
    """Writes PREFIX.svg and PREFIX.png: items a second, seconds to add a query, and memory, by number of queries. Of a
    peer with two forms, the rate of `each` is dotted."""
    figure = _figure(11, 3.6)
    rates, adding, memory = figure.subplots(1, 3)
    for system, colour in zip(dict.fromkeys(line.engine for line in lines), _COLOURS, strict=False):
        of = [line for line in lines if line.engine == system]
        for form, points in _by_plan(of, "queries").items():
            queries, at = [x for x, _ in points], [line for _, line in points]
            style, label = ("o-", system) if form == "joined" else ("o:", f"{system}, each")
            heights = [_number(line.details, "items_a_second") for line in at]
            rates.plot(queries, heights, style, color=colour, label=label)
            if form == "joined":
                adding.plot(queries, [_number(line.details, "added") for line in at], style, color=colour)
                memory.plot(queries, [float(str(line.details["resident_mib"])) for line in at], style, color=colour)
    rates.set(xlabel="queries", ylabel="items a second", xscale="log", yscale="log")
    adding.set(xlabel="queries", ylabel="seconds to add a query", xscale="log", yscale="log")
    memory.set(xlabel="queries", ylabel="memory, MiB", xscale="log", ylim=(0, None))
    _finish(figure, rates, prefix)


def draw_fanout(lines: Sequence[Line], prefix: Path) -> None:
    """Writes PREFIX.svg and PREFIX.png: the time to commit, and the lines written a second, by number of queries."""
    figure = _figure(8, 3.4)
    commits, written = figure.subplots(1, 2)
    for kind in dict.fromkeys(str(line.case["kind"]) for line in lines):
        of = [line for line in lines if line.case["kind"] == kind]
        queries = [float(str(line.case["queries"])) for line in of]
        commits.plot(queries, [line.seconds for line in of], "o-", label=kind)
        written.plot(queries, [_number(line.details, "lines_a_second") for line in of], "o-", label=kind)
    commits.set(xlabel="queries", ylabel="seconds of CPU to commit", xscale="log", yscale="log")
    written.set(xlabel="queries", ylabel="lines a second of CPU", xscale="log", ylim=(0, None))
    _finish(figure, commits, prefix)


def draw_latency(lines: Sequence[Line], prefix: Path) -> None:
    """Writes PREFIX.svg and PREFIX.png: the latency of a service that is idle or at half load, by queries."""
    figure = _figure(8, 3.4)
    panels = figure.subplots(1, 2)
    for axes, load in zip(panels, ("idle", "half"), strict=True):
        of = [line for line in lines if line.case["load"] == load]
        queries = [float(str(line.case["queries"])) for line in of]
        for share in ("p50", "p95", "p99"):
            axes.plot(queries, [_number(line.details, f"{share}_ms") for line in of], "o-", label=share)
        axes.set(title=load, xlabel="queries", ylabel="ms", xscale="log", yscale="log")
    _finish(figure, panels[0], prefix)


def draw_near(lines: Sequence[Line], prefix: Path) -> None:
    """Writes PREFIX.svg and PREFIX.png: headlines a second, and what a headline is compared with, by condition."""
    figure = _figure(8, 3.4)
    rates, found = figure.subplots(1, 2)
    for colour, queries in zip(_COLOURS, dict.fromkeys(line.case["queries"] for line in lines), strict=False):
        label = "one query" if queries == 1 else f"{queries:,} queries"
        for alike in (False, True):
            of = [line for line in lines if line.case["queries"] == queries and ("alike" in line.case) == alike]
            conditions = [str(line.case.get("alike", line.case["condition"])) for line in of]
            heights = [_number(line.details, "headlines_a_second") for line in of]
            style, more = ("s:", ", near ones made equal") if alike else ("D-", "")
            rates.plot(conditions, heights, style, color=colour, label=label + more)
    first = [line for line in lines if line.case["queries"] == lines[0].case["queries"] and "keys" in line.details]
    for name, label in (
        ("sharing_longest", "with a key in common, longest words first"),
        ("sharing", "rarest words first"),
        ("compared", "words compared"),
    ):
        if of := [line for line in first if name in line.details]:
            heights = [_number(line.details, name) for line in of]
            found.plot([str(line.case["condition"]) for line in of], heights, "o-", label=label)
    rates.set(xlabel="condition", ylabel="headlines a second of CPU", ylim=(0, None))
    most = max((_number(line.details, "sharing_longest") for line in first), default=1.0)
    found.set(xlabel="threshold", ylabel="earlier headlines for each", ylim=(0, 1.5 * most))
    if found.lines:
        found.legend(frameon=False, loc="upper right", fontsize="small")
    _finish(figure, rates, prefix)


def draw_absence(lines: Sequence[Line], prefix: Path) -> None:
    """Writes PREFIX.svg and PREFIX.png: documents a second, by channels."""
    figure = _figure(6.5, 3.6)
    axes = figure.subplots()
    for colour, kind in zip(_COLOURS, dict.fromkeys(str(line.case["kind"]) for line in lines), strict=False):
        for queries in dict.fromkeys(line.case["queries"] for line in lines):
            of = [line for line in lines if (line.case["kind"], line.case["queries"]) == (kind, queries)]
            channels = [float(str(line.case["channels"])) for line in of]
            rates = [_number(line.details, "documents_a_second") for line in of]
            style, label = ("D-", kind) if queries == 1 else ("s:", f"{kind}, {queries:,} queries")
            axes.plot(channels, rates, style, color=colour, label=label)
    axes.set(xlabel="channels", ylabel="documents a second of CPU", xscale="log", ylim=(0, None))
    _finish(figure, axes, prefix)


def _by_plan(lines: Iterable[Line], key: str) -> dict[str, list[tuple[float, Line]]]:
    found: dict[str, list[tuple[float, Line]]] = {}
    for line in lines:
        found.setdefault(line.plan, []).append((float(str(line.case[key])), line))
    return {plan: sorted(points, key=lambda point: point[0]) for plan, points in found.items()}


def _figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure  # installed only for the benchmarks

    return Figure(figsize=(width, height), layout="constrained")


def _finish(figure: Any, legend_of: Any, prefix: Path) -> None:
    for axes in figure.axes:
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    if legend_of is not None:
        columns = 3 if figure.get_figwidth() < _WIDE else 5
        figure.legend(*legend_of.get_legend_handles_labels(), loc="outside lower center", ncols=columns, frameon=False)
    for ending in ("svg", "png"):
        figure.savefig(f"{prefix}.{ending}", dpi=150)
