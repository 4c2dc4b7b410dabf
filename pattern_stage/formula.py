"""Expressions and conditions as text: for people, for an order among them, and to take them apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from xscl.algebra.events import (
    AllOf,
    AnyOf,
    Arithmetic,
    Atom,
    Attribute,
    Comparison,
    Condition,
    Constant,
    Duration,
    Function,
    Gap,
    NullTest,
    Parameter,
    TextTest,
    Value,
)

Replace = Callable[[Value], Value]

_PART = {"left": "$1", "latest": "$", "right": "$2"}


def value_text(value: Value, parameter: Callable[[Parameter], str], bare: bool = False) -> str:
    """Returns a value as it is written in a statement. `bare`: attributes are written without `$1.`."""
    match value:
        case Constant(number_or_text):
            return constant_text(number_or_text)
        case Parameter():
            return parameter(value)
        case Attribute(part, name):
            return name if bare else f"{_PART[part]}.{name}"
        case Duration():
            return "DUR"
        case Gap():
            return "GAP"
        case Arithmetic(op, left, right):
            return f"({value_text(left, parameter, bare)} {op} {value_text(right, parameter, bare)})"
        case Function(name, args):
            return f"{name}({', '.join(value_text(arg, parameter, bare) for arg in args)})"


def constant_text(value: str | float) -> str:
    """Returns a constant as it is written in a statement."""
    if isinstance(value, str):
        return '"' + value.replace('"', '""') + '"'
    return f"{value:.15g}"


def condition_text(condition: Condition, parameter: Callable[[Parameter], str], bare: bool = False) -> str:
    """Returns a condition as it is written in a statement. `bare` as in `value_text`."""

    def text(value: Value) -> str:
        return value_text(value, parameter, bare)

    match condition:
        case Comparison(op, left, right):
            return f"{text(left)} {op} {text(right)}"
        case TextTest(name, args, negated):
            return f"{'NOT ' if negated else ''}{name}({', '.join(map(text, args))})"
        case NullTest(value, negated):
            return f"{text(value)} IS {'NOT ' if negated else ''}NULL"
        case AllOf(()):
            return "TRUE"
        case AllOf(args):
            return " AND ".join(_inner(arg, parameter, bare) for arg in args)
        case AnyOf(()):
            return "FALSE"
        case AnyOf(args):
            return " OR ".join(condition_text(arg, parameter, bare) for arg in args)


def _inner(condition: Condition, parameter: Callable[[Parameter], str], bare: bool) -> str:
    written = condition_text(condition, parameter, bare)
    return f"({written})" if isinstance(condition, AnyOf) and len(condition.args) > 1 else written


def shape(item: Value | Condition) -> str:
    """Returns the text of a value or a condition in which all parameters of a kind look the same."""

    def parameter(one: Parameter) -> str:
        return f"?{one.kind}"

    if isinstance(item, Comparison | TextTest | NullTest | AllOf | AnyOf):
        return condition_text(item, parameter)
    # A text and a number of one name are different attributes.
    kind = item.kind if isinstance(item, Attribute) else ""
    return value_text(item, parameter) + kind


def rewritten(value: Value, replace: Replace) -> Value:
    """Returns a value with each attribute, parameter, constant, DUR and GAP in it replaced."""
    match value:
        case Arithmetic(op, left, right):
            return Arithmetic(op, rewritten(left, replace), rewritten(right, replace))
        case Function(name, args, kind):
            return Function(name, tuple(rewritten(arg, replace) for arg in args), kind)
        case _:
            return replace(value)


def rewritten_condition(condition: Condition, replace: Replace) -> Condition:
    """Returns a condition with the leaves of its values replaced."""
    match condition:
        case Comparison(op, left, right):
            return Comparison(op, rewritten(left, replace), rewritten(right, replace))
        case TextTest(name, args, negated):
            return TextTest(name, tuple(rewritten(arg, replace) for arg in args), negated)
        case NullTest(value, negated):
            return NullTest(rewritten(value, replace), negated)
        case AllOf(args):
            return AllOf(tuple(rewritten_condition(arg, replace) for arg in args))
        case AnyOf(args):
            return AnyOf(tuple(rewritten_condition(arg, replace) for arg in args))


def leaves(value: Value) -> Iterator[Value]:
    """Yields the attributes, parameters, constants, DUR and GAP of a value, from left to right."""
    match value:
        case Arithmetic(_, left, right):
            yield from leaves(left)
            yield from leaves(right)
        case Function(_, args):
            for arg in args:
                yield from leaves(arg)
        case _:
            yield value


def values_of(condition: Condition) -> Iterator[Value]:
    """Yields the values that the atoms of a condition compare, from left to right."""
    match condition:
        case Comparison(_, left, right):
            yield left
            yield right
        case TextTest(_, args):
            yield from args
        case NullTest(value):
            yield value
        case AllOf(args) | AnyOf(args):
            for arg in args:
                yield from values_of(arg)


def atoms_of(condition: Condition) -> Iterator[Atom]:
    """Yields the atoms of a condition, from left to right."""
    if isinstance(condition, AllOf | AnyOf):
        for arg in condition.args:
            yield from atoms_of(arg)
    else:
        yield condition


def size(item: Value | Condition) -> int:
    """Returns how many leaves a value or a condition has."""
    if isinstance(item, Comparison | TextTest | NullTest | AllOf | AnyOf):
        return sum(size(value) for value in values_of(item))
    return sum(1 for _ in leaves(item))


def has_parameters(condition: Condition) -> bool:
    """Returns whether a condition has a parameter."""
    return any(isinstance(leaf, Parameter) for value in values_of(condition) for leaf in leaves(value))
