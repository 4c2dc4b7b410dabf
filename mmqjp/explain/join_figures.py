"""What the picture of a query's join graph shows: the two inputs of each join as outlines, and the value joins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from mmqjp.explain.outline import Node, Outline, Row
from mmqjp.explain.terms import applied
from xscl import Query, to_xscl
from xscl.algebra.expressions import Call, Compare, Expr, Number, Step, VarPath
from xscl.algebra.functions import derivation, number_string
from xscl.algebra.near import join_threshold
from xscl.disjuncts import disjuncts
from xscl.syntax import Block, Input, Join, SelectItems, SubQuery

MOST_FIGURES = 12
"""The maximum number of figures of a query. The others are counted."""


@dataclass(frozen=True, slots=True)
class FigureBlock:
    """A query block in a figure: the stream that it reads, and its rows."""

    stream: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class FigureSide:
    """An input of a join: a block, or all blocks of the join of a number (from 1) with the rows that are used."""

    blocks: tuple[FigureBlock, ...]
    join: int | None


@dataclass(frozen=True, slots=True)
class Curve:
    """A value join: its text, and for each side the block and the row, counted from 0, and the functions applied.
    `near` is its threshold if near() finds the documents, else None."""

    text: str
    left: tuple[int, int]
    right: tuple[int, int]
    left_functions: tuple[str, ...]
    right_functions: tuple[str, ...]
    near: str | None = None

    @property
    def label(self) -> str:
        """The functions applied on both sides, and how the values are compared if that is not by "=" alone."""
        left, right = (
            applied(names[1:], names[0]) if names else "" for names in (self.left_functions, self.right_functions)
        )
        sign = "=" if self.near is None else f"near {self.near}"
        if left != right:
            return f"{left or 'as it is'} {sign} {right or 'as it is'}"
        return left if left and self.near is None else f"{left} {sign}".strip()


@dataclass(frozen=True, slots=True)
class Figure:
    """A join, or one of the `disjuncts` of its predicate: number `disjunct` from 1. A filter has one input."""

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
    """The figures of a query, inner joins first. `left_out` counts those beyond MOST_FIGURES, and `joins` the joins.
    `once` says what is told once, as it is written."""

    figures: tuple[Figure, ...]
    left_out: int
    joins: int
    once: str | None


def join_figures(query: Query) -> JoinFigures:
    """Returns the figures of a query that `xscl.check` found no fault with."""
    reader = _Reader()
    tree, _, _ = reader.read(query.source)
    figures = list(reader.figures()) if reader.joins else [reader.filter(tree)]
    once = None if query.once is None else to_xscl(query.once)
    return JoinFigures(tuple(figures[:MOST_FIGURES]), max(0, len(figures) - MOST_FIGURES), len(reader.joins), once)


@dataclass(frozen=True, slots=True)
class _Ref:
    """What a name stands for: a path on a variable of a block (None: on its root), with functions applied to it."""

    block: int
    var: str | None
    steps: tuple[Step, ...] = ()
    functions: tuple[str, ...] = ()


_Scope = Mapping[str, _Ref | None]
"""The names that a predicate can use. Constants are None."""
_Roots = list[tuple[str | None, _Ref | None]]
"""What `SELECT *` selects."""


@dataclass(frozen=True, slots=True)
class _Tree:
    """An input of a join: the numbers of its blocks, from 0, and of its join, from 1."""

    blocks: tuple[int, ...]
    join: int | None = None


@dataclass(frozen=True, slots=True)
class _Join:
    join: Join
    left: _Tree
    right: _Tree
    scope: _Scope


class _Reader:
    """Reads the blocks and the joins of one query."""

    def __init__(self) -> None:
        self._blocks: list[Block] = []
        self.joins: list[_Join] = []

    def read(self, source: Input) -> tuple[_Tree, _Scope, _Roots]:
        """Reads an input. Returns it with the names that can be used outside of it, and what `*` stands for there."""
        match source:
            case Block():
                return self._block(source)
            case Join():
                left, left_scope, left_roots = self.read(source.left)
                right, right_scope, right_roots = self.read(source.right)
                both = {**left_scope, **right_scope}
                self.joins.append(_Join(source, left, right, both))
                return _Tree(left.blocks + right.blocks, len(self.joins)), both, left_roots + right_roots
            case SubQuery():
                tree, scope, roots = self.read(source.source)
                if isinstance(source.select, SelectItems):
                    roots = [(item.name, _ref(item.operand, scope)) for item in source.select.items]
                else:
                    names = ("left", "right") if len(tree.blocks) <= 2 else [f"b{n + 1}" for n in range(len(roots))]
                    roots = [(name or names[place], ref) for place, (name, ref) in enumerate(roots)]
                return tree, {str(name): ref for name, ref in roots}, roots

    def _block(self, block: Block) -> tuple[_Tree, _Scope, _Roots]:
        number = len(self._blocks)
        self._blocks.append(block)
        outline = Outline(block)
        scope: _Scope = {var: _Ref(number, var) for var in outline.variables()}
        return _Tree((number,)), scope, [(block.steps[-1].var, _Ref(number, None))]

    def filter(self, tree: _Tree) -> Figure:
        """Returns the figure of a query without a join."""
        return Figure(1, 1, 1, "", "", (self._side(tree, {number: self._outline(number) for number in tree.blocks}),))

    def _outline(self, number: int) -> Outline:
        return Outline(self._blocks[number])

    def figures(self) -> Iterator[Figure]:
        """Yields the figures of all joins."""
        for number, join in enumerate(self.joins, 1):
            arms = disjuncts(join.join.pred)
            for place, literals in enumerate(arms, 1):
                figure = self._figure(join, literals)
                yield replace(figure, number=number, disjunct=place, disjuncts=len(arms))

    def _figure(self, join: _Join, literals: tuple[Expr, ...]) -> Figure:
        outlines = {number: self._outline(number) for number in (*join.left.blocks, *join.right.blocks)}
        equal = [pair for literal in literals if (pair := _equality(literal, join)) is not None]
        found = equal or _nearest(literals, join)
        conditions = [to_xscl(literal) for literal in literals if all(literal is not pair.literal for pair in found)]
        ends = [tuple(outlines[ref.block].at(ref.var, ref.steps) for ref in (pair.left, pair.right)) for pair in found]
        joined = {id(node) for pair in ends for node in pair}
        places: dict[int, tuple[int, int]] = {}
        sides = tuple(self._side(tree, outlines, joined, places) for tree in (join.left, join.right))
        curves = tuple(
            Curve(
                to_xscl(pair.literal),
                places[id(one)],
                places[id(other)],
                pair.left.functions,
                pair.right.functions,
                pair.near,
            )
            for pair, (one, other) in zip(found, ends, strict=True)
        )
        window = to_xscl(join.join.window)
        return Figure(1, 1, 1, join.join.op, window, sides, curves, tuple(conditions))

    def _side(
        self,
        tree: _Tree,
        outlines: Mapping[int, Outline],
        joined: set[int] | frozenset[int] = frozenset(),
        places: dict[int, tuple[int, int]] | None = None,
    ) -> FigureSide:
        """An input as it is shown. `places` gets the block and row of each node."""
        blocks = []
        for place, number in enumerate(tree.blocks):
            rows: list[tuple[Node, Row]] = list(outlines[number].rows(joined, only_joined=tree.join is not None))
            blocks.append(FigureBlock(outlines[number].stream, tuple(row for _, row in rows)))
            if places is not None:
                places.update((id(node), (place, line)) for line, (node, _) in enumerate(rows))
        return FigureSide(tuple(blocks), tree.join)


@dataclass(frozen=True, slots=True)
class _ValueJoin:
    """A condition by which documents are found: what it compares of the left and of the right input, and how near."""

    literal: Expr
    left: _Ref
    right: _Ref
    near: str | None = None


def _equality(literal: Expr, join: _Join) -> _ValueJoin | None:
    """The value join of an equality between the inputs of a join; None if it is none."""
    if not isinstance(literal, Compare) or literal.op != "=":
        return None
    return _between(literal, literal.left, literal.right, join)


def _nearest(literals: tuple[Expr, ...], join: _Join) -> list[_ValueJoin]:
    """The value join of a disjunct without equalities: that near() with the greatest threshold (`xscl.near_joins`)."""
    found: list[_ValueJoin] = []
    for literal in literals:
        match literal:
            case Call(name="near", args=(one, other, Number(text=text))):
                pair = _between(literal, one, other, join, text)
                found += [] if pair is None else [pair]
    return sorted(found, key=lambda pair: join_threshold(number_string(pair.near or "")), reverse=True)[:1]


def _between(literal: Expr, one: Expr, other: Expr, join: _Join, near: str | None = None) -> _ValueJoin | None:
    """The value join of two operands; None if they are not of both inputs."""
    left, right = _ref(one, join.scope), _ref(other, join.scope)
    if left is None or right is None or (left.block in join.left.blocks) == (right.block in join.left.blocks):
        return None
    if right.block in join.left.blocks:
        left, right = right, left
    return _ValueJoin(literal, left, right, near)


def _ref(operand: Expr, scope: _Scope) -> _Ref | None:
    """What an operand stands for; None for a constant."""
    match operand:
        case VarPath(var=var, steps=steps):
            found = scope[var]
            return found and replace(found, steps=(*found.steps, *steps))
        case Call(args=(arg, *_)) if name := derivation(operand):
            found = _ref(arg, scope)
            return found and replace(found, functions=(*found.functions, name))
    return None
