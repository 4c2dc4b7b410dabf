"""The names that a part of a query makes visible outside of it, and what they stand for."""

from __future__ import annotations

from typing import Literal

from common.remembered import Remembered
from xscl.algebra.comparisons import is_number, is_time
from xscl.algebra.expressions import And, Call, Compare, Expr, Rel, Span, Step, String, VarPath
from xscl.algebra.normal import NEGATED
from xscl.syntax import Block, Input, Join, Query, SelectItems, SubQuery

MOST_PLAIN = 10
"""How many steps a plain filter may have."""

NameKind = Literal["element", "attribute", "value", "number", "time", "constant"]
"""What a name stands for: a node of either kind, a text, number or time derived from a node, or a constant."""


def name_span(query: Query) -> Span:
    """Where the name stands that a query PUBLISHes: at its end, or where its ONCE PER begins."""
    assert query.publish is not None
    start = query.span.end - len(query.publish) if query.once is None else query.once.span.start
    return Span(start, start + len(query.publish))


def leaves(source: Input) -> list[Block | SubQuery]:
    """The blocks and SELECTs in parentheses that a source joins, left to right."""
    found: list[Block | SubQuery] = []
    waiting = [source]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Join):
            waiting += one.right, one.left
        else:
            found.append(one)
    return found


def blocks(source: Input) -> list[Block]:
    """The blocks of a source, those inside parentheses included, left to right."""
    found: list[Block] = []
    for leaf in leaves(source):
        if isinstance(leaf, SubQuery):
            found += blocks(leaf.source)
        else:
            found.append(leaf)
    return found


def _shown(source: Input) -> list[Block | SubQuery]:
    """The leaves of a source that `SELECT *` selects: all but those of what did not come."""
    if isinstance(source, Join):
        return _shown(source.left) + ([] if source.op in NEGATED else _shown(source.right))
    return [source]


def _count_shown(source: Input) -> int:
    """How many blocks of a source are in its outputs, those inside parentheses included."""
    return sum(_count_shown(one.source) if isinstance(one, SubQuery) else 1 for one in _shown(source))


def star_items(source: Input) -> list[tuple[str, NameKind]]:
    """What `SELECT *` over the source selects, left to right: block roots, and the items of SELECTs in parentheses.

    Unnamed roots are called `left` and `right` if the source has no more than two blocks, those in parentheses
    included, and else `b1`, `b2`, ... by their position among these. What did not come does not count.
    """
    defaults = ["left", "right"]
    if (count := _count_shown(source)) > 2:
        defaults = [f"b{position}" for position in range(1, count + 1)]
    found: list[tuple[str, NameKind]] = []
    for leaf in _shown(source):
        if isinstance(leaf, SubQuery):
            found += visible_names(leaf).items()
            del defaults[: _count_shown(leaf.source)]
        else:
            root = leaf.steps[-1]
            found.append((root.var or defaults[0], root.test.kind))
            del defaults[0]
    return found


def visible_names(source: Input) -> dict[str, NameKind]:
    """The names of a source that predicates, SELECTs and outer queries can use, with what they stand for."""
    match source:
        case Block():
            return dict(_bound_by(source.steps))
        case Join():
            left = visible_names(source.left)
            return left if source.op in NEGATED else left | visible_names(source.right)
        case SubQuery():
            if isinstance(source.select, SelectItems):
                inner = visible_names(source.source)
                return {item.name: operand_kind(item.operand, inner) for item in source.select.items}
            return dict(star_items(source.source))


def operand_kind(operand: Expr, names: dict[str, NameKind]) -> NameKind:
    """What an operand stands for. `names` are those that it can use."""
    match operand:
        case VarPath(steps=()):
            return names.get(operand.var, "element")
        case VarPath():
            return operand.steps[-1].test.kind
        case Call(args=(argument, *_)):
            if operand_kind(argument, names) == "constant":
                return "constant"
            return "time" if is_time(operand) else "number" if is_number(operand) else "value"
        case _:
            return "constant"


def _bound_by(steps: tuple[Step, ...]) -> list[tuple[str, NameKind]]:
    """The variables that a path binds, itself and in its filters, and what they stand for."""
    found: list[tuple[str, NameKind]] = []
    for step in steps:
        if step.var is not None:
            found.append((step.var, step.test.kind))
        for condition in step.filters:
            found += _bound_in(condition)
    return found


def _of_filter(condition: Expr) -> list[tuple[str, NameKind]]:
    arms = condition.args if isinstance(condition, And) else (condition,)
    return [name for arm in arms if isinstance(arm, Rel) for name in _bound_by(arm.steps)]


_bound_in = Remembered(_of_filter)  # the parser gives equal filters one tree


def _plain(condition: Expr) -> tuple[str, ...] | None:
    """The variables that a filter of an element binds; None if it is more than a path, or a path and what its value
    is, with which nothing can be wrong by themselves."""
    match condition:
        case Rel():
            steps = condition.steps
        case Compare(op="=", left=Rel() as path, right=String()) if not any(step.var for step in path.steps):
            steps = path.steps
        case _:
            return None
    names = [step.var for step in steps if step.var is not None]
    is_plain = len(set(names)) == len(names) and len(steps) <= MOST_PLAIN
    is_plain = is_plain and not any(step.filters or step.test.prefix for step in steps)
    return tuple(names) if is_plain and all(step.test.kind == "element" for step in steps[:-1]) else None


variables_of_plain = Remembered(_plain)  # the parser gives equal filters one tree
