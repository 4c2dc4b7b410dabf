"""Which names a part of a query shows to what surrounds it, and what they stand for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from xscl.algebra.expressions import And, Call, Expr, Rel, Step, VarPath
from xscl.syntax import Block, Input, Join, SelectItems, SubQuery

Kind = Literal["element", "attribute", "value", "constant"]
"""What a name stands for: a node, a value derived from a node, or a constant."""


def leaves(source: Input) -> Iterator[Block | SubQuery]:
    """The blocks and parenthesised SELECTs that a source joins, left to right."""
    if isinstance(source, Join):
        yield from leaves(source.left)
        yield from leaves(source.right)
    else:
        yield source


def blocks(source: Input) -> Iterator[Block]:
    """The blocks of a source, those inside parentheses included, left to right."""
    for leaf in leaves(source):
        if isinstance(leaf, SubQuery):
            yield from blocks(leaf.source)
        else:
            yield leaf


def star(source: Input) -> list[tuple[str, Kind]]:
    """What `SELECT *` over the source gives: block roots, and the names of SELECTs in parentheses, left to right.

    An unnamed root is `left` or `right` where the source has two blocks (a single one: `left`), else `b1`, `b2`, ...
    by its position among all blocks, those inside parentheses included.
    """
    defaults = ["left", "right"]
    if (count := sum(1 for _ in blocks(source))) > 2:
        defaults = [f"b{position}" for position in range(1, count + 1)]
    found: list[tuple[str, Kind]] = []
    for leaf in leaves(source):
        if isinstance(leaf, SubQuery):
            found += visible(leaf).items()
            del defaults[: sum(1 for _ in blocks(leaf))]
        else:
            root = leaf.steps[-1]
            found.append((root.var or defaults[0], root.test.kind))
            del defaults[0]
    return found


def star_names(source: Input) -> tuple[str, ...]:
    """The names alone of `star`."""
    return tuple(name for name, _ in star(source))


def visible(source: Input) -> dict[str, Kind]:
    """The names that a predicate, a SELECT or an outer query can use, each with what it stands for."""
    match source:
        case Block():
            return {step.var: step.test.kind for step in _steps_within(source.steps) if step.var is not None}
        case Join():
            return visible(source.left) | visible(source.right)
        case SubQuery():
            if isinstance(source.select, SelectItems):
                inner = visible(source.source)
                return {item.name: operand_kind(item.operand, inner) for item in source.select.items}
            return dict(star(source.source))


def operand_kind(operand: Expr, names: dict[str, Kind]) -> Kind:
    """What an operand over these names stands for."""
    match operand:
        case VarPath(steps=()):
            return names.get(operand.var, "element")
        case VarPath():
            return operand.steps[-1].test.kind
        case Call(args=(argument,)):
            return "constant" if operand_kind(argument, names) == "constant" else "value"
        case _:
            return "constant"


def _steps_within(steps: tuple[Step, ...]) -> Iterator[Step]:
    """The steps of a path and of the paths in its filters that may bind variables."""
    for step in steps:
        yield step
        for condition in step.filters:
            for arm in condition.args if isinstance(condition, And) else (condition,):
                if isinstance(arm, Rel):
                    yield from _steps_within(arm.steps)
