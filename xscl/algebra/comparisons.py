"""What a comparison compares: texts, numbers or times. It depends on how its operands are written, on no document.

- Times, if a side is `date(...)`, or if the operator is an order and a side is a literal that is a time.
- Texts, if the operator is `=` or `!=` and neither side is a number.
- Numbers otherwise, as in XPath 1.0.
"""

from __future__ import annotations

from xscl.algebra.expressions import Call, Compare, Expr, Number, String
from xscl.algebra.times import parse_time, time_text

ORDERS = ("<", "<=", ">", ">=")
NUMBERS = frozenset({"count", "number", "string-length"})
"""The functions whose value is a number."""


def is_time(expr: Expr) -> bool:
    """Whether the value of an operand is a time."""
    return isinstance(expr, Call) and expr.name == "date"


def is_number(expr: Expr) -> bool:
    """Whether the value of an operand is a number."""
    return isinstance(expr, Number) or (isinstance(expr, Call) and expr.name in NUMBERS)


def is_of_times(compare: Compare) -> bool:
    """Whether a comparison compares times."""
    sides = (compare.left, compare.right)
    if any(map(is_time, sides)):
        return True
    return compare.op in ORDERS and not any(map(is_number, sides)) and any(map(_says_time, sides))


def _says_time(expr: Expr) -> bool:
    return isinstance(expr, String) and parse_time(expr.value) is not None


def canonical(expr: Compare) -> Compare:
    """The comparison of two single values, with what it compares written out.

    Each side of a comparison of times becomes `date(...)` or a literal in UTC. What is equal to a function whose value
    is a number becomes `number(...)`. So equal values have equal texts.
    """
    left, right = expr.left, expr.right
    if is_of_times(expr):
        return Compare(expr.op, _as_time(left), _as_time(right), expr.span)
    literal = isinstance(left, String | Number) or isinstance(right, String | Number)
    if expr.op == "=" and not literal and is_number(left) != is_number(right):
        return Compare(expr.op, _as_number(left), _as_number(right), expr.span)
    return expr


def _as_time(expr: Expr) -> Expr:
    if isinstance(expr, String):
        return String(time_text(expr.value) or expr.value, expr.span)
    return expr if is_time(expr) else Call("date", (expr,), expr.span)


def _as_number(expr: Expr) -> Expr:
    return expr if is_number(expr) else Call("number", (expr,), expr.span)
