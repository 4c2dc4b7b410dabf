"""Checks comparisons: refuses those that could never hold, or that would not compare what a person means."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

from xscl.algebra.comparisons import ORDERS, is_number, is_time
from xscl.algebra.expressions import And, Compare, Expr, Not, Number, Or, String, VarPath
from xscl.algebra.functions import xpath_number
from xscl.algebra.times import parse_time
from xscl.problems import Problem
from xscl.scope import NameKind

_A_TIME = 'write an ISO date or time, such as "2026-07-16" or "2026-07-16T08:30:00Z"'


def check_constant(operand: Expr, kind: NameKind) -> Iterator[Problem]:
    """The problem of an item of a SELECT that is the time or the number of a constant."""
    if kind == "constant" and (is_time(operand) or (is_number(operand) and not isinstance(operand, Number))):
        yield Problem("a function of a constant", operand.span, "write its value, as a string or a number")


def check_comparisons(
    expr: Expr, names: Mapping[str, NameKind], path: str, text_of: Callable[[Expr], str]
) -> Iterator[Problem]:
    """The problems of the comparisons in a condition, whose operands are right by themselves.

    `names` are those that it can use, `path` is one to a time, for examples, and `text_of` returns the text of an
    operand.
    """
    match expr:
        case And() | Or():
            for arg in expr.args:
                yield from check_comparisons(arg, names, path, text_of)
        case Not():
            yield from check_comparisons(expr.arg, names, path, text_of)
        case Compare():
            problem = _of_time(expr, names, text_of) or _of_number(expr, names) or _of_order(expr, path)
            if problem is not None:
                yield problem


def _of_time(expr: Compare, names: Mapping[str, NameKind], text_of: Callable[[Expr], str]) -> Problem | None:
    """What is wrong with the other side of a time."""
    for side, other in ((expr.left, expr.right), (expr.right, expr.left)):
        if _kind(side, names) != "time":
            continue
        match other, _kind(other, names):
            case String(value=value), _:
                return (
                    None
                    if parse_time(value) is not None
                    else Problem(f"{_shown(value)} is no time", other.span, _A_TIME)
                )
            case Number(), _:
                return Problem("a time is compared with a number", other.span, _A_TIME)
            case _, "number":
                return Problem("a time is compared with a number", other.span, "compare it with a time: date(...)")
            case _, "time" | "constant":
                return None
            case _:
                return Problem("a time is compared with a text", other.span, f"write date({text_of(other)})")
    return None


def _of_number(expr: Compare, names: Mapping[str, NameKind]) -> Problem | None:
    """What is wrong with a literal beside a number."""
    for side, other in ((expr.left, expr.right), (expr.right, expr.left)):
        if _kind(side, names) == "number" and isinstance(other, String) and not _is_numeral(other.value):
            return Problem(
                f"a number is compared with {_shown(other.value)}, which is none", other.span, "write a number"
            )
    return None


def _of_order(expr: Compare, path: str) -> Problem | None:
    """What is wrong with literals that are put in order: they have to be numbers, or times."""
    literals = [side for side in (expr.left, expr.right) if isinstance(side, String)]
    if expr.op not in ORDERS or all(_is_numeral(literal.value) for literal in literals):
        return None
    for literal in literals:
        if parse_time(literal.value) is None:
            message = f"{expr.op} compares numbers or times, and {_shown(literal.value)} is neither"
            hint = f'write a number, or a time, as in date({path}) {expr.op} "2026-07-16"'
            return Problem(message, literal.span, hint)
    return None


def _kind(expr: Expr, names: Mapping[str, NameKind]) -> NameKind:
    if isinstance(expr, VarPath) and not expr.steps:
        return names.get(expr.var, "element")
    return "time" if is_time(expr) else "number" if is_number(expr) else "value"


def _is_numeral(text: str) -> bool:
    return not math.isnan(xpath_number(text))


def _shown(text: str) -> str:
    return f'"{text}"' if len(text) <= 40 else f'"{text[:40]}..."'
