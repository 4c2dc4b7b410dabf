"""Equalities between the two inputs of a join: which there are, and which to write where there is none."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

from xscl.algebra.expressions import Call, Compare, Expr, VarPath
from xscl.algebra.functions import TESTS
from xscl.scope import NameKind, operand_kind

_LINKS = frozenset({"item_url", "channel_url", "feed_url", "guid", "href", "link", "url"})
"""The names of nodes that are addresses of pages, in items and in feeds."""

_ANY = "such as x = y with x bound on the left and y on the right"


def is_value_join(
    literal: Expr, left: dict[str, NameKind], right: dict[str, NameKind], both: dict[str, NameKind]
) -> bool:
    """Whether a literal is an equality between a node of one input and a node of the other."""
    if not isinstance(literal, Compare) or literal.op != "=":
        return False
    a, b = _path(literal.left), _path(literal.right)
    if operand_kind(literal.left, both) == "constant" or operand_kind(literal.right, both) == "constant":
        return False
    if a is None or b is None:
        return False
    return (a.var in left and b.var in right) or (a.var in right and b.var in left)


def has_near_join(
    literals: Sequence[Expr], left: dict[str, NameKind], right: dict[str, NameKind], both: dict[str, NameKind]
) -> bool:
    """Whether a literal says that a node of one input and one of the other are near: documents are found by it."""
    return any(
        isinstance(literal, Call)
        and literal.name == "near"
        and is_value_join(Compare("=", literal.args[0], literal.args[1]), left, right, both)
        for literal in literals
    )


def missing_equality(literals: Sequence[Expr], left: Container[str], text_of: Callable[[Expr], str]) -> str:
    """A hint for a conjunction without an equality. `left` are the names of the left input, and `text_of` returns the
    text of an operand."""
    for literal in literals:
        if isinstance(literal, Call) and literal.name in TESTS:
            where, what = _path(literal.args[0]), _path(literal.args[1])
            if where is not None and what is not None and (where.var in left) != (what.var in left):
                return _instead(literal.name, where, what, text_of(literal.args[1]))
    return f"add one, {_ANY}"


def in_each_arm(hint: str) -> str:
    """The hint for one arm of an `or`."""
    return f"each arm of an or needs one, {_ANY}" if hint.endswith(_ANY) else f"each arm of an or needs one: {hint}"


def _instead(name: str, where: VarPath, what: VarPath, text: str) -> str:
    if what.steps and what.steps[-1].test.local in _LINKS:
        text = text if text.startswith("canonical-url") else f"canonical-url({text})"
        return f"items have a link for each page that they mention: write {where.var}/link/@href = {text}"
    example = f"{what.var}/category = {where.var}/category"
    return f"{name}() alone would try all documents with all others: add an equality, such as {example}"


def _path(operand: Expr) -> VarPath | None:
    """The variable or path that an operand is made of; None for a constant."""
    while isinstance(operand, Call) and operand.args:
        operand = operand.args[0]
    return operand if isinstance(operand, VarPath) else None
