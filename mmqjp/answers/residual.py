"""Residual predicates: evaluates comparisons that are not value joins on one joint binding."""

from __future__ import annotations

from collections.abc import Callable

from xscl.algebra.expressions import Call, Compare, Expr, Number, String, VarPath
from xscl.algebra.functions import (
    DERIVED,
    compare,
    contains,
    derive,
    ends_with,
    matches,
    number_string,
    starts_with,
)
from xscl.algebra.regex.search import PatternLimit
from xscl.algebra.regex.syntax import PatternError

_TESTS = {"contains": contains, "starts-with": starts_with, "ends-with": ends_with, "matches": matches}


def holds(expr: Expr, text_of: Callable[[str], str]) -> bool:
    """Returns whether a residual predicate is true. `text_of` returns the string value of a variable.

    A regular expression that takes too long does not match.
    """
    match expr:
        case Compare(op=op, left=left, right=right):
            return compare(op, _value(left, text_of), _value(right, text_of))
        case Call(name=name, args=(first, second)):
            try:
                return _TESTS[name](text_of_operand(first, text_of), text_of_operand(second, text_of))
            except (PatternError, PatternLimit):
                return False
    raise AssertionError(f"not a residual predicate: {expr!r}")


def _value(expr: Expr, text_of: Callable[[str], str]) -> str | float:
    return float(expr.text) if isinstance(expr, Number) else text_of_operand(expr, text_of)


def text_of_operand(expr: Expr, text_of: Callable[[str], str]) -> str:
    """Returns the value of an operand as a string."""
    match expr:
        case VarPath(var=var):
            return text_of(var)
        case String(value=value):
            return value
        case Number(text=text):
            return number_string(text)
        case Call(name=name, args=(arg,)) if name in DERIVED:
            return derive(name, text_of_operand(arg, text_of))
    raise AssertionError(f"not an operand: {expr!r}")
