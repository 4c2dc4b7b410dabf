"""Draws as SVG: join graphs (the outlines of both inputs, with a curve for each value join), plans before and after the
rules (inputs on the left), and which rows of R_T and templates queries share. Cuts long texts, counts the rest."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TypeVar

from rich.cells import cell_len

from mmqjp.explain import svg
from mmqjp.explain.plan import Operation, SharedTemplate, Sharing
from mmqjp.explain.svg import COLUMN, LINE, LayerCell, Outline, OutlineLine, OutlineNode, layered, truncate_to_width
from mmqjp.explain.terms import format_window, wrap_in_functions
from mmqjp.process import pluralise
from xscl.algebra.joins import Term, is_system_variable
from xscl.algebra.near import selectivity, word_level
from xscl.algebra.values import (
    PARTS,
    Call,
    Compare,
    Expr,
    Number,
    Rel,
    Step,
    VarPath,
    derivation,
    number_string,
    parts_text,
    with_literal,
)
from xscl.check import disjuncts
from xscl.check_expressions import blocks, paths_of
from xscl.lower import JoinNames, JoinNode, JoinTree, concat_parts, join_tree, tree_blocks
from xscl.parser import parse_script
from xscl.printer import to_xscl
from xscl.syntax import Query

_T = TypeVar("_T")

MOST_FIGURES = 12  # maximum number of figures of a query; the rest is counted


@dataclass(frozen=True, slots=True)
class FigureBlock:
    stream: str
    rows: tuple[OutlineLine, ...]


@dataclass(frozen=True, slots=True)
class FigureSide:
    """An input of a join: a block, or all blocks of a join, numbered from 1, with the rows in use."""

    blocks: tuple[FigureBlock, ...]
    join: int | None


@dataclass(frozen=True, slots=True)
class _Ref:
    """A name's meaning: a path on a variable of a block (None: on its root), with functions applied."""

    block: int
    var: str | None
    steps: tuple[Step, ...] = ()
    functions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Curve:
    """A value join, and the `ends` that it joins. `near` is the function and threshold if near() or similar()
    finds the documents, else None."""

    condition: Expr
    left: _Ref
    right: _Ref
    near: tuple[str, str] | None = None
    ends: tuple[OutlineNode, ...] = ()

    @property
    def level(self) -> str:
        assert self.near is not None, "no equality"
        name, threshold = self.near
        return word_level(name, number_string(threshold))

    @property
    def label(self) -> str:
        """The functions on both sides, and the comparison unless it is "="."""
        named = self.left.functions, self.right.functions
        left, right = (wrap_in_functions(names[1:], names[0]) if names else "" for names in named)
        sign = "=" if self.near is None else " ".join(self.near)
        if left != right:
            return f"{left or 'as it is'} {sign} {right or 'as it is'}"
        return left if left and self.near is None else f"{left} {sign}".strip()


@dataclass(frozen=True, slots=True)
class Figure:
    """A join, or number `disjunct`, from 1, of the `disjuncts` of its predicate. A filter has one input."""

    number: int
    disjunct: int
    disjuncts: int
    op: str
    window: str
    sides: tuple[FigureSide, ...]
    curves: tuple[Curve, ...] = ()
    conditions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JoinFigures:
    """The figures of a query, inner joins first. `left_out` counts those beyond MOST_FIGURES, `joins` the joins; `once`
    is the text of the ONCE clause."""

    figures: tuple[Figure, ...]
    left_out: int
    joins: int
    once: str | None


def join_figures(query: Query, namespaces: Mapping[str, str]) -> JoinFigures:
    """Returns the figures of a query that passed `xscl.check`."""
    reader = _Reader(query, namespaces)
    figures = list(reader.figures()) if reader.joins else [reader.filter()]
    once = None if query.once is None else to_xscl(query.once)
    return JoinFigures(tuple(figures[:MOST_FIGURES]), max(0, len(figures) - MOST_FIGURES), len(reader.joins), once)


def _joins(tree: JoinTree) -> Iterator[JoinNode]:
    """Yields the joins of a tree, inner ones first."""
    if isinstance(tree, JoinNode):
        yield from _joins(tree.left)
        yield from _joins(tree.right)
        yield tree


class _Reader:
    def __init__(self, query: Query, namespaces: Mapping[str, str]) -> None:
        self._blocks = blocks(query.source)
        self._tree, self._located = join_tree(query, namespaces)
        self.joins = list(_joins(self._tree))

    def filter(self) -> Figure:
        return Figure(1, 1, 1, "", "", (self._side(self._tree, {0: Outline(self._blocks[0])}),))

    def figures(self) -> Iterator[Figure]:
        for number, join in enumerate(self.joins, 1):
            arms = disjuncts(join.pred)
            for place, literals in enumerate(arms, 1):
                yield self._figure(join, literals, (number, place, len(arms)))

    def _figure(self, join: JoinNode, literals: tuple[Expr, ...], numbers: tuple[int, int, int]) -> Figure:
        outlines = {number: Outline(self._blocks[number]) for number in tree_blocks(join)}
        joining = [curve for literal in literals if (curve := self._curve(literal, join)) is not None]
        found = [curve for curve in joining if curve.near is None]
        if not found:  # the one that `xscl.check.near_join` chooses
            joining.sort(key=lambda curve: selectivity(curve.level), reverse=True)
            found = joining[:1]
        conditions = [to_xscl(literal) for literal in literals if all(literal is not one.condition for one in found)]
        curves = [
            replace(one, ends=tuple(outlines[ref.block].at(ref.var, ref.steps) for ref in (one.left, one.right)))
            for one in found
        ]
        joined = {node for curve in curves for node in curve.ends}
        sides = tuple(self._side(tree, outlines, joined) for tree in (join.left, join.right))
        return Figure(*numbers, join.op, format_window(join.window), sides, tuple(curves), tuple(conditions))

    def _side(self, tree: JoinTree, outlines: Mapping[int, Outline], ends: Collection[OutlineNode] = ()) -> FigureSide:
        join = next((number for number, one in enumerate(self.joins, 1) if one is tree), None)
        only = None if join is None else ends
        shown = (outlines[number] for number in tree_blocks(tree))
        return FigureSide(tuple(FigureBlock(one.stream, tuple(one.rows(only))) for one in shown), join)

    def _curve(self, condition: Expr, join: JoinNode) -> Curve | None:
        """The curve of a condition; None if it does not join values of both inputs."""
        near: tuple[str, str] | None = None
        match condition:
            case Compare(op="=", left=one, right=other):
                pass
            case Call(name="near" | "similar" as name, args=(one, other, Number(text=threshold))):
                near = name, threshold
            case _:
                return None
        left, right, lefts = self._ref(one, join.scope), self._ref(other, join.scope), set(tree_blocks(join.left))
        if left is None or right is None or (left.block in lefts) == (right.block in lefts):
            return None
        return Curve(condition, *((right, left) if right.block in lefts else (left, right)), near)

    def _ref(self, operand: Expr, scope: JoinNames) -> _Ref | None:
        match operand:
            case VarPath(var=var, steps=steps) if isinstance(term := scope[var], Term):
                block, base, above = self._located(term.var)
                return _Ref(block, None if is_system_variable(base) else base, (*above, *steps), term.functions)
            case Call(name="concat", args=args) if path := next(paths_of(operand), None):
                parts = parts_text(concat_parts(args, lambda path: [to_xscl(Rel(path.steps))]))
                found = self._ref(VarPath(path.var), scope)
                return found and replace(found, functions=(*found.functions, with_literal(PARTS, parts)))
            case Call(args=(arg, *_)) if name := derivation(operand):
                found = self._ref(arg, scope)
                return found and replace(found, functions=(*found.functions, name))
        return None


SIDE, JOIN_GAP, EDGE = 330, 240, 12  # width of an outline, of the space between two, and of the margin
INDENT, JOIN_PAD = 14, 10  # indentation of a row under its parent, and padding of a box
HEAD, LOWER = 66, 20
"""Height of what stands above the curves, and offset of the outlines below, so that curves do not cross it."""

MOST_ROWS, MOST_CONDITIONS, MOST_DESCRIBED = 40, 12, 4_000
"""Maximum number of outline rows and of conditions in a figure (the rest is counted); characters of a description."""
MOST_HEIGHT = 10_000  # height in pixels from which on no figure is begun: larger pictures cannot be looked at

JOIN_WIDTH = 2 * EDGE + 2 * SIDE + JOIN_GAP
_WIDEST = int((JOIN_WIDTH - 2 * EDGE) / COLUMN)

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


def join_graphs(*queries: tuple[str, str]) -> str:
    """Returns the join graphs of queries as an SVG element, one below the other, up to a height. Each has its name, and
    its text as stored. Raises XsclErrors."""
    parts: list[str] = []
    described: list[str] = []
    y, width, rest = float(EDGE), 2 * EDGE + SIDE, len(queries)
    for name, text in queries:
        if y > MOST_HEIGHT:
            break
        rest -= 1
        script = parse_script(text, stored=True)
        shown = join_figures(script.queries[0], dict(script.namespaces))
        if len(queries) > 1:
            parts.append(svg.text_element(EDGE, y + svg.SIZE, truncate_to_width(name, _WIDEST), bold=True))
            y += LINE + 8
        left_out = shown.left_out + len(shown.figures)
        for figure in shown.figures:
            if y > MOST_HEIGHT:
                break
            drawn = _Drawing(figure, y, _heading(figure, shown))
            parts += drawn.parts
            y = drawn.bottom + LINE
            left_out -= 1
        for note in (f"and {left_out:,} more disjuncts" if left_out else "", shown.once or ""):
            if note:
                parts.append(svg.text_element(EDGE, y, truncate_to_width(note, _WIDEST), "quiet"))
                y += LINE
        width = JOIN_WIDTH if shown.joins else width
        described.append((f"{truncate_to_width(name, 80)}: " if len(queries) > 1 else "") + describe_join_graph(shown))
    if rest > 0:
        parts.append(svg.text_element(EDGE, y, f"and {rest:,} more queries", "quiet"))
        y += LINE
    names = ", ".join(dict.fromkeys(truncate_to_width(name, 80) for name, _ in queries[:5]))
    title = f"{'Join graph' if width == JOIN_WIDTH else 'Pattern'} of {names}"
    return svg.picture(width, y - LINE + EDGE, title, " ".join(described)[:MOST_DESCRIBED], parts)


def _heading(figure: Figure, shown: JoinFigures) -> str:
    parts = [f"join {figure.number} of {shown.joins}"] if shown.joins > 1 else []
    parts += [f"disjunct {figure.disjunct} of {figure.disjuncts}"] if figure.disjuncts > 1 else []
    return ", ".join(parts)


class _Drawing:
    def __init__(self, figure: Figure, top: float, heading: str) -> None:
        self._figure = figure
        self.parts: list[str] = []
        if heading:
            self.parts.append(svg.text_element(EDGE, top + svg.SIZE, heading, bold=True))
            top += LINE + 4
        self._head, self._top = top, top + LOWER * (len(figure.sides) - 1)
        self._heights: dict[OutlineNode, float] = {}
        self.bottom = max(self._side(side, EDGE + place * (SIDE + JOIN_GAP)) for place, side in enumerate(figure.sides))
        if len(figure.sides) == 2:
            self._between()
            self._curves()
            self._conditions()

    def _side(self, side: FigureSide, x: float) -> float:
        """Draws an outline. Returns its lower end."""
        joined = {node for curve in self._figure.curves for node in curve.ends}
        y = self._top + LINE
        if side.join is not None:
            self.parts.append(svg.text_element(x + JOIN_PAD, y, f"each match of join {side.join}", "quiet"))
            y += LINE
        for number, block in enumerate(side.blocks):
            if number:
                self.parts.append(svg.line_element(f"M{x:g} {y - 10:g}h{SIDE}"))
                y += 6
            stream = truncate_to_width(f"stream {block.stream}", _room(0))
            self.parts.append(svg.text_element(x + JOIN_PAD, y, stream, "quiet"))
            y += LINE
            for line, row in enumerate(block.rows):
                self._heights[row.node] = y - 4 + min(line, MOST_ROWS) * LINE
            self.parts += _rows(block, joined, x, y)
            y += min(len(block.rows), MOST_ROWS + 1) * LINE
        bottom = y - LINE + JOIN_PAD + 2
        self.parts.append(svg.box(x, self._top, SIDE, bottom - self._top))
        return bottom

    def _between(self) -> None:
        figure, middle = self._figure, EDGE + SIDE + JOIN_GAP / 2
        left, right, y = EDGE + SIDE + 18, EDGE + SIDE + JOIN_GAP - 18, self._head + 40
        arrow = f"M{left:g} {y:g}H{right:g}"
        if figure.op not in _TO_LEFT:
            arrow += "m-7 -4l7 4l-7 4"
        if figure.op not in _TO_RIGHT:
            arrow += f"M{left + 7:g} {y - 4:g}l-7 4l7 4"
        within = "whatever the time" if figure.window == "INF" else f"within {figure.window}"
        self.parts += [
            svg.text_element(middle, self._head + 12, figure.op, anchor="middle", bold=True),
            svg.text_element(middle, self._head + 30, within, anchor="middle"),
            svg.line_element(arrow),
            svg.text_element(middle, self._head + 56, _BELOW[figure.op], "quiet", anchor="middle"),
        ]

    def _curves(self) -> None:
        ends = [([self._heights[node] for node in one.ends], one.label) for one in self._figure.curves]
        middle, label = EDGE + SIDE + JOIN_GAP / 2, self._head + HEAD + 8
        for (start, end), text in sorted(ends, key=lambda one: sum(one[0])):
            label = max(label, (start + end) / 2)
            text = truncate_to_width(text, 28)
            half = (cell_len(text) * COLUMN) / 2 + 5
            near, far = EDGE + SIDE, EDGE + SIDE + JOIN_GAP
            self.parts += [
                svg.curve(near, start, middle - half, label),
                svg.curve(middle + half, label, far, end),
                svg.dot(near, start),
                svg.dot(far, end),
                svg.text_element(middle, label + 4, text, "accent", anchor="middle", bold=text == "="),
            ]
            label += LINE - 2
        self.bottom = max(self.bottom, label - LINE + JOIN_PAD)

    def _conditions(self) -> None:
        every = self._figure.conditions
        conditions = [truncate_to_width(condition, _WIDEST - 5) for condition in every[:MOST_CONDITIONS]]
        if more := len(every) - len(conditions):
            conditions.append(f"{more:,} more conditions")
        for condition in conditions:
            self.bottom += LINE
            self.parts.append(svg.text_element(EDGE + JOIN_PAD, self.bottom, f"and {condition}"))
        self.bottom += 6 if conditions else 0


def _room(depth: int) -> int:
    return int((SIDE - 2 * JOIN_PAD - depth * INDENT) / COLUMN)


def _rows(block: FigureBlock, joined: Collection[OutlineNode], x: float, y: float) -> Iterator[str]:
    for depth, node in block.rows[:MOST_ROWS]:
        depth = min(depth, 12)
        room = _room(depth)
        var = "" if node.var is None else truncate_to_width(node.var, room // 2)
        text = f"where {node.text}" if node.is_condition else node.text
        text = truncate_to_width(text, room - (cell_len(var) + 2 if var else 0))
        if node in joined:
            yield svg.bar(x + 3, y - 14, SIDE - 6, LINE - 2)
        yield svg.text_element(x + JOIN_PAD + depth * INDENT, y, text, "quiet" if node.is_condition else "")
        if var:
            yield svg.text_element(x + SIDE - JOIN_PAD, y, var, "accent", anchor="end", bold=True)
        y += LINE
    if len(block.rows) > MOST_ROWS:
        yield svg.text_element(x + JOIN_PAD, y, f"and {len(block.rows) - MOST_ROWS:,} more", "quiet")


def describe_join_graph(shown: JoinFigures) -> str:
    sentences = []
    for figure in shown.figures:
        heading = _heading(figure, shown)
        sentences.append(f"{heading}:" if heading else "")
        labels = ("Left", "Right") if len(figure.sides) == 2 else ("Pattern",)
        for label, side in zip(labels, figure.sides, strict=True):
            rows = (", ".join(str(row.node) for row in block.rows[:MOST_ROWS]) for block in side.blocks)
            blocks = (f"stream {block.stream}, {text}" for block, text in zip(side.blocks, rows, strict=True))
            matches = "" if side.join is None else f"each match of join {side.join}, "
            sentences.append(f"{label}: {matches}{'; '.join(blocks)}.")
        if len(figure.sides) == 2:
            window = "with no window" if figure.window == "INF" else f"within {figure.window}"
            sentences.append(f"{figure.op} {window}, {_BELOW[figure.op]}.")
        sentences += [f"Joined: {to_xscl(one.condition)}." for one in figure.curves]
        sentences += [f"And {condition}." for condition in figure.conditions]
    if shown.left_out:
        sentences.append(f"And {shown.left_out:,} more disjuncts.")
    if shown.once:
        sentences.append(f"{shown.once}.")
    return " ".join(truncate_to_width(sentence, 400) for sentence in sentences if sentence)


MOST, MOST_IN_COLUMN = 60, 12  # maximum number of operations in a plan and in one column; the rest is counted

PAD, PLAN_BOX_WIDTH, PLAN_GAP, ROOM = 8, 250, 56, 14
HEIGHT = 3 * LINE


def plan_picture(before: Sequence[Operation], after: Sequence[Operation]) -> str:
    parts: list[str] = []
    top, width = float(EDGE), 0.0
    for title, operations in (("before the rules", before), ("after the rules", after)):
        parts.append(svg.text_element(EDGE, top + svg.SIZE, title, bold=True))
        drawn, right, bottom = _plan(operations, top + LINE + 6)
        parts += drawn
        top, width = bottom + LINE, max(width, right)
    old, new = ([one.rows for one in operations if one.rows] for operations in (before, after))
    said = f"Before the rules {len(old):,} operations with {sum(old):,} rows, after them {len(new):,} with "
    said += f"{sum(new):,}. Each operation stands right of those that it reads."
    return svg.picture(width + EDGE, top, "The plan of all queries", said, parts)


def _plan(operations: Sequence[Operation], top: float) -> tuple[list[str], float, float]:
    """Draws a plan below `top`. Returns its elements, right end and lower end."""
    layers = layered({one.key: one.reads for one in operations}, MOST, MOST_IN_COLUMN)
    heights: dict[LayerCell, float] = {}
    lowest = top
    for column in layers.columns:
        y = top
        for place in column:
            heights[place] = y
            y += (0 if place.lane else HEIGHT) + ROOM
            lowest = max(lowest, y - ROOM)
    middles = {place: y + (0 if place.lane else HEIGHT / 2) for place, y in heights.items()}
    parts = [
        svg.curve(_left(start.column) + PLAN_BOX_WIDTH, middles[start], _left(end.column), middles[end])
        for start, end in layers.steps
    ]
    by_key = {one.key: one for one in operations}
    for place, y in heights.items():
        x = _left(place.column)
        parts += [svg.curve(x, y, x + PLAN_BOX_WIDTH, y)] if place.lane else _box(by_key[place.key], x, y)
    for number, count in layers.left_out.items():
        parts.append(svg.text_element(_left(number), lowest + LINE, f"and {count:,} more", "quiet"))
    if more := len(operations[MOST:]):
        parts.append(svg.text_element(EDGE, lowest + 2 * LINE, f"{more:,} more are not drawn", "quiet"))
    right = _left(max(len(layers.columns) - 1, 0)) + PLAN_BOX_WIDTH
    return parts, right, lowest + (2 * LINE if layers.left_out or more else 0) + ROOM


def _left(column: int) -> float:
    return EDGE + column * (PLAN_BOX_WIDTH + PLAN_GAP)


def _box(one: Operation, x: float, y: float) -> list[str]:
    room = int((PLAN_BOX_WIDTH - 2 * PAD) / COLUMN)
    rows = f"{one.rows:,} row{'s' * (one.rows != 1)}" if one.rows else ""
    found = [svg.box(x, y, PLAN_BOX_WIDTH, HEIGHT)]

    def write(line: str, y: float, kind: str, most: int = room) -> None:
        if line:
            found.append(svg.text_element(x + PAD, y, truncate_to_width(line, most), kind))

    if not one.rows:
        write(one.title, y + HEIGHT / 2 + 4, "accent")
        return found
    write(one.title, y + LINE - 4, "accent", room - len(rows) - 2)
    found.append(svg.text_element(x + PLAN_BOX_WIDTH - PAD, y + LINE - 4, rows, "quiet", anchor="end"))
    write("".join(one.shapes[:1]) + " …" * (len(one.shapes) > 1), y + 2 * LINE - 6, "")
    write(", ".join(one.users), y + 3 * LINE - 6, "quiet")
    return found


NAMES, ROWS, TEMPLATES = 10, 10, 8  # maximum number of queries, rows and templates drawn; the rest is counted

SHARING_GAP = 90
_WIDTHS = (250, 230, 310)
_LEFT = (EDGE, EDGE + _WIDTHS[0] + SHARING_GAP, EDGE + _WIDTHS[0] + _WIDTHS[1] + 2 * SHARING_GAP)
SHARING_WIDTH = _LEFT[2] + _WIDTHS[2] + EDGE
STEP = LINE + 8


def sharing_picture(sharing: Sharing) -> str:
    templates = sharing.shown[:TEMPLATES]
    order = [one.template for one in templates]
    rows = _in_turns(([(one.template, row) for row in one.most_shared] for one in templates), ROWS)
    rows.sort(key=lambda found: order.index(found[0]))
    chosen = _in_turns((row.names for _, row in rows), NAMES)
    names = [name for name in dict.fromkeys(name for _, row in rows for name in row.names) if name in chosen]
    columns = (
        [(name, "") for name in names],
        [(f"row {row.row}", pluralise(row.subscribers, "subscriber")) for _, row in rows],
        [(f"template {one.template}", pluralise(one.rows, "row") + _cost(one)) for one in templates],
    )
    totals = (sharing.queries - len(names), sharing.rows - len(rows), sharing.templates - len(templates))
    parts: list[str] = []
    lowest = 0.0
    for place, (title, cells, more) in enumerate(zip(("queries", "rows", "templates"), columns, totals, strict=True)):
        parts.append(svg.text_element(_LEFT[place] + PAD, EDGE + svg.SIZE, title, bold=True))
        for number, (text, about) in enumerate(cells):
            parts += _cell(place, number, text, about)
        if more > 0:
            y = _cell_middle(len(cells)) + 4
            parts.append(svg.text_element(_LEFT[place] + PAD, y, f"and {more:,} more", "quiet"))
        lowest = max(lowest, _cell_middle(len(cells) - (more <= 0)))
    uses = ((place, row, name) for place, (_, row) in enumerate(rows) for name in row.names if name in names)
    parts += [_curve(0, names.index(name), place, row.subscribers) for place, row, name in uses]
    numbers = {one.template: place for place, one in enumerate(templates)}
    parts += [_curve(1, place, numbers[number], row.subscribers) for place, (number, row) in enumerate(rows)]
    title = "What queries share: queries, rows and templates"
    return svg.picture(SHARING_WIDTH, lowest + STEP / 2 + EDGE, title, describe_sharing(sharing), parts)


def describe_sharing(sharing: Sharing) -> str:
    rows, templates = pluralise(sharing.rows, "row"), pluralise(sharing.templates, "template")
    sentences = [f"{pluralise(sharing.queries, 'query', 'queries')} have {rows} of {templates}."]
    for one in sharing.shown[:TEMPLATES]:
        subscribers = pluralise(one.subscribers, "subscriber")
        sentences.append(f"Template {one.template}: {pluralise(one.rows, 'row')} with {subscribers}{_cost(one)}.")
    return " ".join(sentences)


def _cost(one: SharedTemplate) -> str:
    return "" if one.milliseconds is None else f", {one.milliseconds:,.1f} ms"


def _in_turns(several: Iterable[Iterable[_T]], most: int) -> list[_T]:
    """Returns the first of each, then the second of each and so on, without repetitions."""
    return list(dict.fromkeys(one for turn in zip_longest(*several) for one in turn if one is not None))[:most]


def _cell(column: int, number: int, text: str, about: str) -> list[str]:
    x, width, y = _LEFT[column], _WIDTHS[column], _cell_middle(number)
    room = int((width - 2 * PAD) / COLUMN) - cell_len(about) - (2 if about else 0)
    return [
        svg.box(x, y - STEP / 2 + 2, width, STEP - 4),
        svg.text_element(x + PAD, y + 4, truncate_to_width(text, room), "accent"),
        svg.text_element(x + width - PAD, y + 4, about, "quiet", anchor="end"),
    ]


def _curve(column: int, start: int, end: int, subscribers: int) -> str:
    width = round(1.0 + (math.log10(max(1, subscribers)) if column else 0.0), 2)
    x = _LEFT[column] + _WIDTHS[column]
    return svg.curve(x, _cell_middle(start), _LEFT[column + 1], _cell_middle(end), width, 0.55)


def _cell_middle(number: int) -> float:
    return EDGE + LINE + STEP * (number + 0.5)
