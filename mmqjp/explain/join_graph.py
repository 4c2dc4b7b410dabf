"""Draws the join graph of a query as SVG: the outlines of both inputs face each other, with curves between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mmqjp.explain import svg
from mmqjp.explain.join_figures import Figure, FigureBlock, FigureSide, JoinFigures, join_figures
from mmqjp.explain.svg import COLUMN, LINE, clipped
from xscl import parse_script

SIDE, GAP, EDGE = 330, 240, 12
"""The width of an outline, of the room between two, and of the margin."""
INDENT = 14
"""How much further right a row stands than its parent."""
PAD = 10
"""The room between the edge of a box and its text."""
HEAD = 66
"""The height of the operator, window and order, above the curves."""
LOWER = 20
"""How much lower than these the outlines begin, so that curves do not cross them."""

MOST_ROWS, MOST_CONDITIONS = 40, 12
"""How many rows of an outline and conditions a figure shows. The others are counted."""
MOST_DESCRIBED = 4_000
"""The maximum length of the description, in characters."""

MOST_QUERIES = 100
"""How many queries one picture shows."""

WIDTH = 2 * EDGE + 2 * SIDE + GAP
_WIDEST = int((WIDTH - 2 * EDGE) / COLUMN)

_BELOW = {
    "FOLLOWED BY": "the left before the right",
    "JOIN": "in any order",
    "JOIN UNORDERED": "each pair once",
    "NOT FOLLOWED BY": "no right after the left",
    "NOT JOIN": "no right before or after",
    "NOT PRECEDED BY": "no right before the left",
}
_TO_RIGHT = {"FOLLOWED BY", "NOT FOLLOWED BY"}
_TO_LEFT = {"NOT PRECEDED BY"}


def join_graph(text: str, name: str) -> str:
    """Returns the join graph of a query as an SVG element. `text` is a script of its own, as stores have it.

    Paths and texts that are too long are cut, and what is too much is counted. Everything is escaped. Raises
    XsclErrors.
    """
    return join_graphs([(name, text)])


def join_graphs(queries: Sequence[tuple[str, str]]) -> str:
    """Returns the join graphs of queries, given as names and texts, one below the other. Raises XsclErrors."""
    parts: list[str] = []
    described: list[str] = []
    y, width, rest = float(EDGE), 2 * EDGE + SIDE, len(queries) - MOST_QUERIES
    for name, text in queries[:MOST_QUERIES]:
        (query,) = parse_script(text, stored=True).queries
        shown = join_figures(query)
        if len(queries) > 1:
            parts.append(svg.text(EDGE, y + svg.SIZE, clipped(name, _WIDEST), bold=True))
            y += LINE + 8
        for figure in shown.figures:
            drawn = _Drawing(figure, y, _heading(figure, shown))
            parts += drawn.parts()
            y = drawn.bottom + LINE
        for note in (f"and {shown.left_out:,} more disjuncts" if shown.left_out else "", shown.once or ""):
            if note:
                parts.append(svg.text(EDGE, y, clipped(note, _WIDEST), "quiet"))
                y += LINE
        width = WIDTH if shown.joins else width
        described.append((f"{clipped(name, 80)}: " if len(queries) > 1 else "") + description(shown))
    if rest > 0:
        parts.append(svg.text(EDGE, y, f"and {rest:,} more queries", "quiet"))
        y += LINE
    names = ", ".join(dict.fromkeys(clipped(name, 80) for name, _ in queries[:5]))
    title = f"{'Join graph' if width == WIDTH else 'Pattern'} of {names}"
    return svg.picture(width, y - LINE + EDGE, title, " ".join(described)[:MOST_DESCRIBED], parts)


def _heading(figure: Figure, shown: JoinFigures) -> str:
    """What stands above a figure, if there are several."""
    parts = [f"join {figure.number} of {shown.joins}"] if shown.joins > 1 else []
    parts += [f"disjunct {figure.disjunct} of {figure.disjuncts}"] if figure.disjuncts > 1 else []
    return ", ".join(parts)


class _Drawing:
    """A figure that is being drawn, from `top` down to `bottom`."""

    def __init__(self, figure: Figure, top: float, heading: str) -> None:
        self._figure = figure
        self._parts: list[str] = []
        if heading:
            self._parts.append(svg.text(EDGE, top + svg.SIZE, heading, bold=True))
            top += LINE + 4
        self._head, self._top = top, top + LOWER * (len(figure.sides) - 1)
        ends = [self._side(side, EDGE + place * (SIDE + GAP)) for place, side in enumerate(figure.sides)]
        self.bottom = max(bottom for _, bottom in ends)
        if len(ends) == 2:
            self._between()
            self._curves(ends[0][0], ends[1][0])
            self._conditions()

    def parts(self) -> list[str]:
        return self._parts

    def _side(self, side: FigureSide, x: float) -> tuple[dict[tuple[int, int], float], float]:
        """Draws an outline. Returns the middles of its rows, by block and row, and where it ends."""
        places: dict[tuple[int, int], float] = {}
        y = self._top + LINE
        if side.join is not None:
            self._parts.append(svg.text(x + PAD, y, f"each match of join {side.join}", "quiet"))
            y += LINE
        for number, block in enumerate(side.blocks):
            if number:
                self._parts.append(svg.line(f"M{x:g} {y - 10:g}h{SIDE}"))
                y += 6
            self._parts.append(svg.text(x + PAD, y, clipped(f"stream {block.stream}", _room(0)), "quiet"))
            y += LINE
            for line in range(len(block.rows)):
                places[number, line] = y - 4 + min(line, MOST_ROWS) * LINE
            self._parts += _rows(block, x, y)
            y += min(len(block.rows), MOST_ROWS + 1) * LINE
        bottom = y - LINE + PAD + 2
        self._parts.append(svg.box(x, self._top, SIDE, bottom - self._top))
        return places, bottom

    def _between(self) -> None:
        """Draws the operator, the window and the order between the outlines."""
        figure, middle = self._figure, EDGE + SIDE + GAP / 2
        left, right, y = EDGE + SIDE + 18, EDGE + SIDE + GAP - 18, self._head + 40
        arrow = f"M{left:g} {y:g}H{right:g}"
        if figure.op not in _TO_LEFT:
            arrow += "m-7 -4l7 4l-7 4"
        if figure.op not in _TO_RIGHT:
            arrow += f"M{left + 7:g} {y - 4:g}l-7 4l7 4"
        within = "whatever the time" if figure.window == "INF" else f"within {figure.window}"
        self._parts += [
            svg.text(middle, self._head + 12, figure.op, anchor="middle", bold=True),
            svg.text(middle, self._head + 30, within, anchor="middle"),
            svg.line(arrow),
            svg.text(middle, self._head + 56, _BELOW[figure.op], "quiet", anchor="middle"),
        ]

    def _curves(self, left: dict[tuple[int, int], float], right: dict[tuple[int, int], float]) -> None:
        """Draws the value joins. Their labels stand below each other, near the middle of their curves."""
        shown = sorted(self._figure.curves, key=lambda one: left[one.left] + right[one.right])
        middle, label = EDGE + SIDE + GAP / 2, self._head + HEAD + 8
        for one in shown:
            start, end = left[one.left], right[one.right]
            label = max(label, (start + end) / 2)
            text = clipped(one.label, 28)
            half = (svg.columns(text) * COLUMN) / 2 + 5
            near, far = EDGE + SIDE, EDGE + SIDE + GAP
            self._parts += [
                svg.curve(near, start, middle - half, label),
                svg.curve(middle + half, label, far, end),
                svg.dot(near, start),
                svg.dot(far, end),
                svg.text(middle, label + 4, text, "accent", anchor="middle", bold=text == "="),
            ]
            label += LINE - 2
        self.bottom = max(self.bottom, label - LINE + PAD)

    def _conditions(self) -> None:
        """Writes what else must hold below the outlines."""
        conditions = [clipped(condition, _WIDEST - 5) for condition in self._figure.conditions[:MOST_CONDITIONS]]
        if more := len(self._figure.conditions) - len(conditions):
            conditions.append(f"{more:,} more conditions")
        for condition in conditions:
            self.bottom += LINE
            self._parts.append(svg.text(EDGE + PAD, self.bottom, f"and {condition}"))
        self.bottom += 6 if conditions else 0


def _room(depth: int) -> int:
    """How many columns a row may take."""
    return int((SIDE - 2 * PAD - depth * INDENT) / COLUMN)


def _rows(block: FigureBlock, x: float, y: float) -> Iterator[str]:
    """Draws the rows of a block, the first one with its base line at `y`."""
    for row in block.rows[:MOST_ROWS]:
        depth = min(row.depth, 12)
        room = _room(depth)
        var = "" if row.var is None else clipped(row.var, room // 2)
        text = clipped(
            f"where {row.text}" if row.is_condition else row.text, room - (svg.columns(var) + 2 if var else 0)
        )
        start = x + PAD + depth * INDENT
        if row.joins:
            yield svg.bar(x + 3, y - 14, SIDE - 6, LINE - 2)
        yield svg.text(start, y, text, "quiet" if row.is_condition else "")
        if var:
            yield svg.text(x + SIDE - PAD, y, var, "accent", anchor="end", bold=True)
        y += LINE
    if len(block.rows) > MOST_ROWS:
        yield svg.text(x + PAD, y, f"and {len(block.rows) - MOST_ROWS:,} more", "quiet")


def description(shown: JoinFigures) -> str:
    """Returns in words what the figures show."""
    sentences = []
    for figure in shown.figures:
        heading = _heading(figure, shown)
        sentences.append(f"{heading}:" if heading else "")
        for label, side in zip(
            ("Left", "Right") if len(figure.sides) == 2 else ("Pattern",), figure.sides, strict=True
        ):
            sentences.append(f"{label}: {_side_in_words(side)}.")
        if len(figure.sides) == 2:
            window = "with no window" if figure.window == "INF" else f"within {figure.window}"
            sentences.append(f"{figure.op} {window}, {_BELOW[figure.op]}.")
        sentences += [f"Joined: {one.text}." for one in figure.curves]
        sentences += [f"And {condition}." for condition in figure.conditions]
    if shown.left_out:
        sentences.append(f"And {shown.left_out:,} more disjuncts.")
    if shown.once:
        sentences.append(f"{shown.once}.")
    return " ".join(clipped(sentence, 400) for sentence in sentences if sentence)


def _side_in_words(side: FigureSide) -> str:
    blocks = [f"stream {block.stream}, {_in_words(block)}" for block in side.blocks]
    matches = "" if side.join is None else f"each match of join {side.join}, "
    return matches + "; ".join(blocks)


def _in_words(block: FigureBlock) -> str:
    rows: Sequence[str] = [f"where {row}" if row.is_condition else str(row) for row in block.rows[:MOST_ROWS]]
    return ", ".join(rows)
