"""Values of events that are known without an event: constants are folded."""

from __future__ import annotations

import math
from collections.abc import Callable

from xscl.algebra.events import Arithmetic, ArithmeticOp, Attribute, Constant, Function, Kind, Value
from xscl.algebra.functions import MOST_TEXT, derive, number_text, xpath_number


def kind_of(value: Value) -> Kind:
    """Whether a value is a string or a number."""
    match value:
        case Constant(value=constant):
            return "string" if isinstance(constant, str) else "number"
        case Attribute(kind=kind) | Function(kind=kind):
            return kind
    return "number"


def arithmetic(op: ArithmeticOp, left: Value, right: Value) -> Value:
    """An operation. Its value if that is known and not NULL."""
    if isinstance(left, Constant) and isinstance(right, Constant):
        one, two = _as_number(left.value), _as_number(right.value)
        try:
            result = _OPERATIONS[op](one, two)
        except (ZeroDivisionError, OverflowError, ValueError):
            result = math.nan
        if math.isfinite(result):
            return Constant(result)
    return Arithmetic(op, left, right)


_OPERATIONS: dict[ArithmeticOp, Callable[[float, float], float]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "%": math.fmod,  # with the sign of the first, as XPath's mod
}


def function_of(name: str, args: tuple[Value, ...], kind: Kind) -> Value:
    """A function of values. Its value if that is known and not NULL."""
    if name == "number" and kind_of(args[0]) == "number":
        return args[0]
    constants = [arg.value for arg in args if isinstance(arg, Constant)]
    if name == "coalesce" and isinstance(args[0], Constant):
        return args[0]
    if len(constants) < len(args):
        return Function(name, args, kind)
    if name == "concat":
        text = "".join(map(text_of, constants))
        return Constant(text) if len(text) <= MOST_TEXT else Function(name, args, kind)
    if name == "abs":
        number = abs(_as_number(constants[0]))
    elif kind == "number":
        number = xpath_number(derive(name, text_of(constants[0])))
    else:
        return Constant(derive(name, text_of(constants[0])))
    return Constant(number) if math.isfinite(number) else Function(name, args, kind)


def text_of(value: str | float) -> str:
    """The text of a constant."""
    return value if isinstance(value, str) else number_text(value)


def _as_number(value: str | float) -> float:
    return xpath_number(value) if isinstance(value, str) else value
