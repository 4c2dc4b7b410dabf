"""Conditions, values and operators of event statements in words, with the values that events have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from mmqjp.explain.retrace.event import Plain
from mmqjp.explain.retrace.trial import is_of_right
from mmqjp.explain.retrace.values import SECOND, Scope, evaluated, text_of
from mmqjp.explain.terms import duration_text, window_text
from mmqjp.text import printable_line
from xscl.algebra.events import (
    Aggregate,
    AllOf,
    AnyOf,
    Arithmetic,
    Attribute,
    Comparison,
    Condition,
    Constant,
    Duration,
    Events,
    Filter,
    Fold,
    Function,
    Gap,
    Next,
    NullTest,
    Parameter,
    Select,
    Stream,
    TextTest,
    Union,
    Value,
)

VALUE_WIDTH = 60
"""How many characters of a value are shown."""

_SIGN = {"left": "$1", "latest": "$", "right": "$2"}


@dataclass(frozen=True, slots=True)
class Named:
    """An attribute, DUR or GAP in a condition, with its value. That of DUR and GAP is in seconds."""

    name: str
    value: Plain

    @property
    def text(self) -> str:
        """The value as it is shown."""
        return value_text(self.value, is_time=self.name in ("DUR", "GAP"))


Said = tuple[str | Named, ...]
"""A condition as text in parts, with the values of events where it has attributes."""


def said(condition: Condition, operator: Stream, scope: Scope) -> Said:
    """Returns a condition of an operator with the values that a scope has."""
    return tuple(_joined(_Saying(_common(condition, operator), scope).condition(condition)))


def condition_text(condition: Condition, operator: Stream) -> str:
    """Returns a condition of an operator as text, without values."""
    parts = _Saying(_common(condition, operator), None).condition(condition)
    return "".join(part if isinstance(part, str) else part.name for part in parts)


def _common(condition: Condition, operator: Stream) -> frozenset[str]:
    """Returns the attributes that need a $1 or $2 in a condition, as both sides have them."""
    if not isinstance(operator, Next | Fold) or is_of_right(condition):
        return frozenset()
    return frozenset(dict(operator.left.schema)) & frozenset(dict(operator.right.schema))


def values_text(found: Said) -> str:
    """Returns the values in a condition: `score is 5, project is "tarbox"`."""
    named = dict.fromkeys(part for part in found if isinstance(part, Named))
    return ", ".join(f"{one.name} is {one.text}" for one in named) or "it never holds"


def conjuncts(condition: Condition) -> tuple[Condition, ...]:
    """Returns the conditions that have to hold together."""
    return condition.args if isinstance(condition, AllOf) else (condition,)


def value_text(value: Plain, *, is_time: bool = False) -> str:
    """Returns a value as it is shown: texts in quotes, cut short."""
    if isinstance(value, str):
        line = printable_line(value)
        return f'"{line if len(line) <= VALUE_WIDTH else line[: VALUE_WIDTH - 1] + "…"}"'
    if is_time and value is not None:
        return duration_text(round(value * SECOND))
    return text_of(value) or "NULL"


def stream_text(stream: Stream) -> str:
    """Returns a few words for a stream: `Advisory`, `Advisory NEXT Release`."""
    match stream:
        case Events(stream=name):
            return name
        case Filter(source=source) | Select(source=source):
            return stream_text(source)
        case Aggregate(source=source):
            return f"AGGREGATE of {stream_text(source)}"
        case Next(left=left, right=right):
            return f"{stream_text(left)} NEXT {_right_text(right)}"
        case Fold(left=left, right=right):
            return f"{stream_text(left)} FOLD {_right_text(right)}"
        case Union(left=left, right=right):
            return f"{stream_text(left)} UNION {_right_text(right)}"


def _right_text(stream: Stream) -> str:
    text = stream_text(stream)
    return f"({text})" if isinstance(stream, Next | Fold | Union) else text


class _Saying:
    """Says a condition, in which some names are `common` to both sides; without a scope, attributes have no values."""

    def __init__(self, common: frozenset[str], scope: Scope | None) -> None:
        self._common, self._scope = common, scope

    def condition(self, condition: Condition) -> Iterator[str | Named]:
        match condition:
            case AllOf(args=args) | AnyOf(args=args):
                yield from self._several(condition, args)
            case Comparison(op=op, left=left, right=right):
                times = any(isinstance(side, Duration | Gap) for side in (left, right))
                yield from self._side(left, times)
                yield f" {op} "
                yield from self._side(right, times)
            case TextTest(name=name, args=args, negated=negated):
                yield f"{'NOT ' if negated else ''}{name}("
                yield from self._listed(args)
                yield ")"
            case NullTest(value=value, negated=negated):
                yield from self._value(value)
                yield f" IS {'NOT ' if negated else ''}NULL"

    def _name(self, attribute: Attribute) -> str:
        if attribute.part == "latest" or attribute.name in self._common:
            return f"{_SIGN[attribute.part]}.{attribute.name}"
        return attribute.name

    def _several(self, condition: AllOf | AnyOf, args: Iterable[Condition]) -> Iterator[str | Named]:
        word = " AND " if isinstance(condition, AllOf) else " OR "
        for number, arg in enumerate(args):
            if number:
                yield word
            inner = isinstance(arg, AllOf | AnyOf) and len(arg.args) > 1
            yield from ("(", *self.condition(arg), ")") if inner else self.condition(arg)

    def _side(self, value: Value, is_time: bool) -> Iterator[str | Named]:
        if is_time and isinstance(value, Constant) and isinstance(value.value, float):
            yield window_text(round(value.value * SECOND))
        else:
            yield from self._value(value)

    def _value(self, value: Value) -> Iterator[str | Named]:
        match value:
            case Constant(value=constant):
                yield '"' + constant.replace('"', '""') + '"' if isinstance(constant, str) else text_of(constant) or ""
            case Attribute():
                yield Named(self._name(value), self._value_of(value))
            case Duration():
                yield Named("DUR", self._value_of(value))
            case Gap():
                yield Named("GAP", self._value_of(value))
            case Arithmetic(op=op, left=left, right=right):
                yield from self._operand(left)
                yield f" {op} "
                yield from self._operand(right)
            case Function(name=name, args=args):
                name, _, literal = name.partition(" ")
                yield f"{name}("
                yield from self._listed(args)
                yield f", {literal})" if literal else ")"
            case Parameter():
                raise AssertionError("a statement by itself has no parameters")

    def _operand(self, value: Value) -> Iterator[str | Named]:
        yield from ("(", *self._value(value), ")") if isinstance(value, Arithmetic) else self._value(value)

    def _listed(self, args: Iterable[Value]) -> Iterator[str | Named]:
        for number, arg in enumerate(args):
            if number:
                yield ", "
            yield from self._value(arg)

    def _value_of(self, value: Value) -> Plain:
        return None if self._scope is None else evaluated(value, self._scope)


def _joined(parts: Iterable[str | Named]) -> Iterator[str | Named]:
    """Yields the parts, texts that follow each other as one."""
    text = ""
    for part in parts:
        if isinstance(part, str):
            text += part
            continue
        if text:
            yield text
        text = ""
        yield part
    if text:
        yield text
