"""What an absence says of its left input: what no document had, and until when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from feeds.dates import iso_utc
from mmqjp.answers.absence.times import over_at
from mmqjp.explain.operands import Condition, Operand, in_parts
from mmqjp.explain.terms import window_text
from xscl.algebra.expressions import Compare, Expr
from xscl.algebra.functions import many_valued
from xscl.algebra.normal import Absent, JoinOp, variables_of
from xscl.lower_terms import expression


def lacking(
    op: JoinOp, window: int | None, absent: Sequence[Absent], operands: Mapping[str, Operand], times: tuple[int, int]
) -> Condition:
    """Returns that an absence held. `operands` are the variables of its left input, whose documents begin and end at
    `times`."""
    parts: list[str | Operand] = ["nothing"]
    for number, one in enumerate(absent):
        names: dict[str, str | Operand] = {**_names(one), **operands}
        for place, expr in enumerate(_conditions(one)):
            parts.append(" and " if place else " or" if number else "")
            parts.append("" if place else " with ")
            parts += in_parts(expr, {var: names.get(var, var) for var in variables_of(expr)})
    t0, t1 = times
    within = "" if window is None else f" within {window_text(window)}"
    match op:
        case "NOT FOLLOWED BY":
            parts.append(f" followed{within}{_until(over_at(op, window or 0, t0, t1))}")
        case "NOT PRECEDED BY":
            parts.append(f" preceded it{within}")
        case _:
            parts.append(f" came{within}{_until(over_at(op, window or 0, t0, t1))}")
    return Condition(_merged(parts))


def _until(time: int) -> str:
    """In words, unless the time is after the year 9999."""
    with suppress(OverflowError):
        return f", until {iso_utc(time)}"
    return ""


def _conditions(absent: Absent) -> list[Expr]:
    """What a partner has: equalities with its side first, and other conditions."""
    pairs = [pair for pair in absent.joins if many_valued(pair[0].functions) is None]
    return [*(Compare("=", expression(right), expression(left)) for left, right in pairs), *absent.residual]


def _names(absent: Absent) -> dict[str, str]:
    """The names of the nodes at the ends of paths, and of those of the right input, if that is a document."""
    found: dict[str, str] = {}
    for branch in absent.branches:
        path = branch.var
        for node in branch.path.walk():
            path += f"/{node.test.local}"
            found |= {} if node.var is None else {node.var: path}
    if absent.right.hidden is None:
        found |= {node.var: node.test.local for node in absent.right.pattern.walk() if node.var is not None}
    return found


def _merged(parts: Sequence[str | Operand]) -> tuple[str | Operand, ...]:
    """The parts, in which no two texts stand one after the other."""
    found: list[str | Operand] = []
    for part in parts:
        if isinstance(part, str) and found and isinstance(found[-1], str):
            found[-1] += part
        else:
            found.append(part)
    return tuple(found)
