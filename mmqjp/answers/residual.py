"""Residual predicates: evaluates comparisons that are not value joins on one joint binding."""

from __future__ import annotations

from collections.abc import Callable

from xscl.algebra.comparisons import is_of_times
from xscl.algebra.expressions import Call, Compare, Expr, Number, String, VarPath
from xscl.algebra.functions import NUMERIC, TESTS, compare, derivation, derive, number_string
from xscl.algebra.regex.search import PatternLimit
from xscl.algebra.regex.syntax import PatternError
from xscl.algebra.times import compare_times


def holds(expr: Expr, text_of: Callable[[str], str]) -> bool:
    """Returns whether a residual predicate is true. `text_of` returns the string value of a variable.

    A regular expression that takes too long does not match.
    """
    match expr:
        case Compare(op=op, left=left, right=right) if is_of_times(expr):
            return compare_times(op, text_of_operand(left, text_of), text_of_operand(right, text_of))
        case Compare(op=op, left=left, right=right):
            return compare(op, _value(left, text_of), _value(right, text_of))
        case Call(name=name, args=args) if name in TESTS:
            try:
                return TESTS[name](*[text_of_operand(arg, text_of) for arg in args])
            except (PatternError, PatternLimit):
                return False
    raise AssertionError(f"not a residual predicate: {expr!r}")


def _value(expr: Expr, text_of: Callable[[str], str]) -> str | float:
    match expr:
        case Number(text=text):
            return float(text)
        case Call(name=name, args=(arg,)) if name in NUMERIC:
            return NUMERIC[name](text_of_operand(arg, text_of))
    return text_of_operand(expr, text_of)


def text_of_operand(expr: Expr, text_of: Callable[[str], str]) -> str:
    """Returns the value of an operand as a string."""
    match expr:
        case VarPath(var=var):
            return text_of(var)
        case String(value=value):
            return value
        case Number(text=text):
            return number_string(text)
        case Call(args=(arg, *_)) if name := derivation(expr):
            return derive(name, text_of_operand(arg, text_of))
    raise AssertionError(f"not an operand: {expr!r}")
