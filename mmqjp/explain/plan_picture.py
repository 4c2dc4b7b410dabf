"""Draws the plan of all queries as SVG, before the rules and after them: operations in columns, what they read on their
left."""

from __future__ import annotations

from collections.abc import Sequence

from mmqjp.explain import svg
from mmqjp.explain.svg import COLUMN, LINE, clipped
from mmqjp.explain.whole_plan import Operation

MOST, MOST_IN_COLUMN = 60, 12
"""How many operations of a plan are drawn, and how many of one column. The others are counted."""

EDGE, PAD, WIDTH, GAP, ROOM = 12, 8, 250, 56, 14
HEIGHT = 3 * LINE
STEP = HEIGHT + ROOM


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
    depths: dict[str, int] = {}
    for one in operations:
        depths[one.key] = 1 + max((depths.get(key, -1) for key in one.reads), default=-1)
    columns: dict[int, list[Operation]] = {}
    left_out: dict[int, int] = {}
    for one in operations[:MOST]:
        column = columns.setdefault(depths[one.key], [])
        if len(column) < MOST_IN_COLUMN:
            column.append(one)
        else:
            left_out[depths[one.key]] = left_out.get(depths[one.key], 0) + 1
    places = {
        one.key: (EDGE + depth * (WIDTH + GAP), top + number * STEP)
        for depth, column in columns.items()
        for number, one in enumerate(column)
    }
    parts = [
        svg.curve(places[key][0] + WIDTH, places[key][1] + HEIGHT / 2, x, y + HEIGHT / 2)
        for one in operations
        if one.key in places
        for x, y in [places[one.key]]
        for key in one.reads
        if key in places and places[key][0] < x
    ]
    for column in columns.values():
        for one in column:
            parts += _box(one, *places[one.key])
    lowest = max((y + HEIGHT for _, y in places.values()), default=top)
    for depth, count in left_out.items():
        parts.append(svg.text(EDGE + depth * (WIDTH + GAP), lowest + LINE, f"and {count:,} more", "quiet"))
    if len(operations) > MOST:
        parts.append(svg.text(EDGE, lowest + 2 * LINE, f"{len(operations) - MOST:,} more are not drawn", "quiet"))
    right = max((x + WIDTH for x, _ in places.values()), default=float(WIDTH))
    return parts, right, lowest + (2 * LINE if left_out or len(operations) > MOST else 0) + ROOM


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
