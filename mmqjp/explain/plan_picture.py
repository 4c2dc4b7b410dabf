"""Draws the plan of all queries as SVG, before the rules and after them: operations in columns, what they read on their
left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mmqjp.explain import svg
from mmqjp.explain.layers import Place, layered
from mmqjp.explain.svg import COLUMN, LINE, clipped
from mmqjp.explain.whole_plan import Operation

MOST, MOST_IN_COLUMN = 60, 12
"""How many operations of a plan are drawn, and how many of one column. The others are counted."""

EDGE, PAD, WIDTH, GAP, ROOM = 12, 8, 250, 56, 14
HEIGHT = 3 * LINE


def plan_picture(before: Sequence[Operation], after: Sequence[Operation]) -> str:
    """Returns the picture as an SVG element. What is too long is cut. Everything is escaped."""
    parts: list[str] = []
    top, width = float(EDGE), 0.0
    for title, operations in (("before the rules", before), ("after the rules", after)):
        parts.append(svg.text(EDGE, top + svg.SIZE, title, bold=True))
        drawn, right, bottom = _plan(operations, top + LINE + 6)
        parts += drawn
        top, width = bottom + LINE, max(width, right)
    counts = tuple(sum(1 for one in operations if one.rows) for operations in (before, after))
    rows = tuple(sum(one.rows for one in operations) for operations in (before, after))
    said = (
        f"Before the rules {counts[0]:,} operations with {rows[0]:,} rows, after them {counts[1]:,} with {rows[1]:,}. "
        "Each operation stands right of those that it reads."
    )
    return svg.picture(width + EDGE, top, "The plan of all queries", said, parts)


def _plan(operations: Sequence[Operation], top: float) -> tuple[list[str], float, float]:
    """Returns a plan that begins at a height, and where it ends on the right and below."""
    layers = layered({one.key: one.reads for one in operations}, MOST, MOST_IN_COLUMN)
    heights: dict[Place, float] = {}
    lowest = top
    for column in layers.columns:
        y = top
        for place in column:
            heights[place] = y
            y += (0 if place.lane else HEIGHT) + ROOM
            lowest = max(lowest, y - ROOM)
    parts = [
        svg.curve(_left(start) + WIDTH, _middle(start, heights), _left(end), _middle(end, heights))
        for start, end in layers.steps
    ]
    by_key = {one.key: one for one in operations}
    for place, y in heights.items():
        if place.lane:
            parts.append(svg.curve(_left(place), y, _left(place) + WIDTH, y))
        else:
            parts += _box(by_key[place.key], _left(place), y)
    for number, count in layers.left_out.items():
        parts.append(svg.text(_column(number), lowest + LINE, f"and {count:,} more", "quiet"))
    if len(operations) > MOST:
        parts.append(svg.text(EDGE, lowest + 2 * LINE, f"{len(operations) - MOST:,} more are not drawn", "quiet"))
    right = _column(max(len(layers.columns) - 1, 0)) + WIDTH
    return parts, right, lowest + (2 * LINE if layers.left_out or len(operations) > MOST else 0) + ROOM


def _column(number: int) -> float:
    return EDGE + number * (WIDTH + GAP)


def _left(place: Place) -> float:
    return _column(place.column)


def _middle(place: Place, heights: Mapping[Place, float]) -> float:
    return heights[place] + (0 if place.lane else HEIGHT / 2)


def _box(one: Operation, x: float, y: float) -> list[str]:
    room = int((WIDTH - 2 * PAD) / COLUMN)
    rows = f"{one.rows:,} row{'s' * (one.rows != 1)}" if one.rows else ""
    lines = [one.shapes[0] + (" …" if len(one.shapes) > 1 else "") if one.shapes else "", ", ".join(one.users)]
    middle = y + HEIGHT / 2 + 4
    if not one.rows:
        return [svg.box(x, y, WIDTH, HEIGHT), svg.text(x + PAD, middle, clipped(one.title, room), "accent")]
    found = [
        svg.box(x, y, WIDTH, HEIGHT),
        svg.text(x + PAD, y + LINE - 4, clipped(one.title, room - len(rows) - 2), "accent"),
        svg.text(x + WIDTH - PAD, y + LINE - 4, rows, "quiet", anchor="end"),
    ]
    for number, line in enumerate(lines, 2):
        if line:
            found.append(svg.text(x + PAD, y + number * LINE - 6, clipped(line, room), "quiet" * (number > 2)))
    return found
