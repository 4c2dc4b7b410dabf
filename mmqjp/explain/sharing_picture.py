"""Draws what the queries of a store share as SVG: queries, the rows of R_T that they have, and their templates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import zip_longest

from mmqjp.explain import svg
from mmqjp.explain.sharing import SharedRowUse, SharedTemplate, Sharing
from mmqjp.explain.svg import COLUMN, LINE, clipped

NAMES, ROWS, TEMPLATES = 10, 10, 8
"""How many queries, rows and templates are drawn. The others are counted."""

EDGE, GAP, PAD = 12, 90, 8
_WIDTHS = (250, 230, 310)
_LEFT = (EDGE, EDGE + _WIDTHS[0] + GAP, EDGE + _WIDTHS[0] + _WIDTHS[1] + 2 * GAP)
WIDTH = _LEFT[2] + _WIDTHS[2] + EDGE
STEP = LINE + 8


def sharing_picture(sharing: Sharing) -> str:
    """Returns the picture as an SVG element. Names that are too long are cut. Everything is escaped."""
    templates = sharing.shown[:TEMPLATES]
    rows = _chosen_rows(templates)
    names = _chosen_names([row for _, row in rows])
    columns = (
        [(name, "") for name in names],
        [(f"row {row.row}", _counted(row.subscribers, "subscriber")) for _, row in rows],
        [(f"template {one.template}", _of_template(one)) for one in templates],
    )
    totals = (sharing.queries - len(names), sharing.rows - len(rows), sharing.templates - len(templates))
    parts: list[str] = []
    lowest = 0.0
    for place, (title, cells, more) in enumerate(zip(("queries", "rows", "templates"), columns, totals, strict=True)):
        parts.append(svg.text(_LEFT[place] + PAD, EDGE + svg.SIZE, title, bold=True))
        for number, (text, about) in enumerate(cells):
            parts += _cell(place, number, text, about)
        if more > 0:
            y = _middle(len(cells)) + 4
            parts.append(svg.text(_LEFT[place] + PAD, y, f"and {more:,} more", "quiet"))
        lowest = max(lowest, _middle(len(cells) - (more <= 0)))
    parts += [
        _curve(0, names.index(name), place, row.subscribers)
        for place, (_, row) in enumerate(rows)
        for name in row.names
        if name in names
    ]
    numbers = {one.template: place for place, one in enumerate(templates)}
    parts += [_curve(1, place, numbers[number], row.subscribers) for place, (number, row) in enumerate(rows)]
    title = "What queries share: queries, rows and templates"
    return svg.picture(WIDTH, lowest + STEP / 2 + EDGE, title, description(sharing), parts)


def description(sharing: Sharing) -> str:
    """Returns in words what the picture shows."""
    counts = (
        _counted(sharing.queries, "query", "queries"),
        _counted(sharing.rows, "row"),
        _counted(sharing.templates, "template"),
    )
    sentences = [f"{counts[0]} have {counts[1]} of {counts[2]}."]
    sentences += [
        f"Template {one.template}: {_counted(one.rows, 'row')} with {_counted(one.subscribers, 'subscriber')}"
        + ("." if one.milliseconds is None else f", {one.milliseconds:,.1f} ms.")
        for one in sharing.shown[:TEMPLATES]
    ]
    return " ".join(sentences)


def _chosen_rows(templates: Sequence[SharedTemplate]) -> list[tuple[int, SharedRowUse]]:
    """The rows that are drawn, with their templates and in the order of these: of each template the most shared."""
    turns = zip_longest(*([(one.template, row) for row in one.most_shared] for one in templates))
    chosen = [found for turn in turns for found in turn if found is not None][:ROWS]
    order = [one.template for one in templates]
    return sorted(chosen, key=lambda found: order.index(found[0]))


def _chosen_names(rows: Sequence[SharedRowUse]) -> list[str]:
    """The names that are drawn, in the order of the rows: of each row the first ones."""
    turns = zip_longest(*(row.names for row in rows))
    chosen = list(dict.fromkeys(name for turn in turns for name in turn if name is not None))[:NAMES]
    in_order = dict.fromkeys(name for row in rows for name in row.names)
    return [name for name in in_order if name in chosen]


def _of_template(one: SharedTemplate) -> str:
    cost = "" if one.milliseconds is None else f", {one.milliseconds:,.1f} ms"
    return f"{_counted(one.rows, 'row')}{cost}"


def _cell(column: int, number: int, text: str, about: str) -> list[str]:
    x, width, y = _LEFT[column], _WIDTHS[column], _middle(number)
    room = int((width - 2 * PAD) / COLUMN) - svg.columns(about) - (2 if about else 0)
    return [
        svg.box(x, y - STEP / 2 + 2, width, STEP - 4),
        svg.text(x + PAD, y + 4, clipped(text, room), "accent"),
        svg.text(x + width - PAD, y + 4, about, "quiet", anchor="end"),
    ]


def _curve(column: int, start: int, end: int, subscribers: int) -> str:
    """A curve from a cell of a column to one of the next. Rows with more subscribers have thicker ones."""
    width = 1.0 + (math.log10(max(1, subscribers)) if column else 0.0)
    return svg.curve(
        _LEFT[column] + _WIDTHS[column], _middle(start), _LEFT[column + 1], _middle(end), round(width, 2), 0.55
    )


def _middle(number: int) -> float:
    """The middle of a cell."""
    return EDGE + LINE + STEP * (number + 0.5)


def _counted(number: int, noun: str, several: str | None = None) -> str:
    return f"{number:,} {noun if number == 1 else several or noun + 's'}"
