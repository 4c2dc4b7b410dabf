"""Expressions and conditions with the values inside them changed."""

from __future__ import annotations

from collections.abc import Callable

from xscl.algebra.events import AllOf, AnyOf, Arithmetic, Comparison, Condition, Function, NullTest, TextTest, Value


def with_arguments(value: Value, change: Callable[[Value], Value]) -> Value:
    """Returns a value with its arguments changed."""
    match value:
        case Arithmetic(op, left, right):
            return Arithmetic(op, change(left), change(right))
        case Function(name, args, kind):
            return Function(name, tuple(map(change, args)), kind)
    return value


def with_values(condition: Condition, change: Callable[[Value], Value]) -> Condition:
    """Returns a condition with the values that its atoms compare changed."""
    match condition:
        case Comparison(op, left, right):
            return Comparison(op, change(left), change(right))
        case TextTest(name, args, negated):
            return TextTest(name, tuple(map(change, args)), negated)
        case NullTest(value, negated):
            return NullTest(change(value), negated)
        case AllOf(args):
            return AllOf(tuple(with_values(arg, change) for arg in args))
        case AnyOf(args):
            return AnyOf(tuple(with_values(arg, change) for arg in args))
