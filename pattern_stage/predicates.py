"""Conditions and values of event statements as functions over arrays, compiled once a template.

They are exact by the rules of NULL: arithmetic and functions of NULL are NULL, but for `coalesce`, and so are numbers
that are not finite. An atom with a NULL is false, but for IS NULL.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, assert_never

import numpy as np

from pattern_stage.columns import Column, Columns, Floats, Ints, Mask
from pattern_stage.null_rules import ARITHMETIC, NUMBER_COMPARISONS, TEXT_COMPARISONS, finite, is_null, known_text
from pattern_stage.values import FALSE, TRUE, Texts
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
    Kind,
    NullTest,
    Parameter,
    Schema,
    TextTest,
    Value,
)
from xscl.algebra.functions import NUMERIC, xpath_number

MICROSECONDS = 1e6
"""To a second, in which DUR and GAP are."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """What a condition is tested on: events in pairs, or single ones, each with a row of parameters.

    Pair i has the event `left_at[i]` of `left`, and of `latest`, which has FOLD's latest values of the same instances;
    `right_at[i]` of `right`; and the parameters at `rows[i]`. What the condition does not mention may be None.
    """

    left: Columns
    left_at: Ints
    right: Columns | None
    right_at: Ints | None
    latest: Columns | None
    rows: Ints
    parameters: tuple[Column, ...]

    def __len__(self) -> int:
        return len(self.left_at)

    def at(self, places: Ints) -> Pairs:
        """Returns the pairs at these places."""
        right_at = None if self.right_at is None else self.right_at[places]
        rows = self.rows[places]
        return Pairs(self.left, self.left_at[places], self.right, right_at, self.latest, rows, self.parameters)


def single_events(events: Columns, at: Ints, rows: Ints, parameters: tuple[Column, ...]) -> Pairs:
    """Returns events without a partner, as a condition or value of an operator with one input takes them."""
    return Pairs(events, at, None, None, None, rows, parameters)


def kind_of(value: Value) -> Kind:
    """Returns the kind of a value."""
    match value:
        case Constant(value=constant):
            return "string" if isinstance(constant, str) else "number"
        case Parameter(kind=kind) | Attribute(kind=kind) | Function(kind=kind):
            return kind
        case Duration() | Gap() | Arithmetic():
            return "number"
    assert_never(value)


def compile_condition(
    condition: Condition, left: Schema, right: Schema | None, texts: Texts
) -> Callable[[Pairs], Mask]:
    """Returns a function that says for which pairs a condition holds. Atoms that cost little are tested first, and the
    others only where those leave it open."""
    evaluate = _Compiler(left, right, texts).condition(condition)

    def holds(pairs: Pairs) -> Mask:
        with np.errstate(all="ignore"):
            return evaluate(pairs)

    return holds


def compile_value(value: Value, left: Schema, right: Schema | None, texts: Texts) -> Callable[[Pairs], Column]:
    """Returns a function that computes a value of each pair; a string's column is of codes."""
    evaluate = _Compiler(left, right, texts).value(value)
    dtype = np.int64 if kind_of(value) == "string" else np.float64

    def computed(pairs: Pairs) -> Column:
        with np.errstate(all="ignore"):
            found = evaluate(pairs)
        return _whole(found, len(pairs)).astype(dtype, copy=not np.ndim(found))  # type: ignore[no-any-return]  # a column

    return computed


_Evaluate = Callable[[Pairs], Any]
"""An array with a value for each pair, or a single value for all of them."""


class _Compiler:
    """Compiles what is over events of these schemas."""

    def __init__(self, left: Schema, right: Schema | None, texts: Texts) -> None:
        self._left = {name: place for place, (name, _) in enumerate(left)}
        self._right = {name: place for place, (name, _) in enumerate(right or ())}
        self._texts = texts

    # ------------------------------------------------------------ conditions

    def condition(self, condition: Condition) -> Callable[[Pairs], Mask]:
        match condition:
            case AllOf(args=args):
                ordered = sorted(args, key=cost)
                return _all_of([(self.condition(arg), cost(arg) >= COSTLY) for arg in ordered])
            case AnyOf(args=args):
                return _any_of([self.condition(arg) for arg in sorted(args, key=cost)])
            case _:
                atom = self._atom(condition)
                return lambda pairs: _whole(atom(pairs), len(pairs))

    def _atom(self, atom: Atom) -> _Evaluate:
        match atom:
            case Comparison(op=op, left=left, right=right):
                if op in ("=", "!=") and kind_of(left) == kind_of(right) == "string":
                    compare, one, other = TEXT_COMPARISONS[op], self.text(left), self.text(right)
                else:
                    compare, one, other = NUMBER_COMPARISONS[op], self.number(left), self.number(right)
                return lambda pairs: compare(one(pairs), other(pairs))
            case NullTest(value=value, negated=negated):
                of, is_text = self.value(value), kind_of(value) == "string"
                return lambda pairs: is_null(of(pairs), is_text) != negated
            case TextTest(name=name, args=args, negated=negated):
                columns, wanted, texts = list(map(self.text, args)), FALSE if negated else TRUE, self._texts
                return lambda pairs: (
                    texts.tested(name, [_whole(column(pairs), len(pairs)) for column in columns]) == wanted
                )
        assert_never(atom)

    # ------------------------------------------------------------ values

    def value(self, value: Value) -> _Evaluate:
        return self.text(value) if kind_of(value) == "string" else self.number(value)

    def text(self, value: Value) -> _Evaluate:
        """The codes of a value's texts: numbers are written as XPath does."""
        texts = self._texts
        if kind_of(value) == "number":
            number = self.number(value)
            return lambda pairs: texts.written(_whole(number(pairs), len(pairs)))
        match value:
            case Constant(value=constant):
                # Asked for anew each time: the code may have been forgotten.
                return lambda pairs: texts.code(str(constant))
            case Function(name="coalesce", args=args):
                return _first([self.text(arg) for arg in args], known_text)
            case Function(name="concat", args=args):
                parts = list(map(self.text, args))
                return lambda pairs: texts.concatenated([_whole(part(pairs), len(pairs)) for part in parts])
            case Function(name=name, args=(arg,)) if name not in ("coalesce", "concat"):
                of = self.text(arg)
                return lambda pairs: texts.derived(name, _whole(of(pairs), len(pairs)))
        return self._taken(value)

    def number(self, value: Value) -> _Evaluate:
        """The numbers of a value, NaN for NULL."""
        if kind_of(value) == "string":
            return self._number_of_text(value, "number")
        match value:
            case Constant(value=constant):
                number = np.float64(constant if math.isfinite(float(constant)) else math.nan)
                return lambda pairs: number
            case Duration():
                return _duration
            case Gap():
                return _gap
            case Arithmetic(op=op, left=left, right=right):
                apply, one, other = ARITHMETIC[op], self.number(left), self.number(right)
                return lambda pairs: finite(apply(one(pairs), other(pairs)))
            case Function(name="coalesce", args=args):
                return _first([self.number(arg) for arg in args], np.isfinite)
            case Function(name="abs", args=(arg,)):
                of = self.number(arg)
                return lambda pairs: np.abs(of(pairs))
            case Function(name="number", args=(arg,)):
                return self.number(arg)
            case Function(name=name, args=(arg,)) if name in NUMERIC:
                return self._number_of_text(arg, name)
        return self._taken(value)

    def _number_of_text(self, value: Value, name: str) -> _Evaluate:
        if name == "number" and isinstance(value, Constant):
            found = finite(np.float64(xpath_number(str(value.value))))
            return lambda pairs: found
        of, texts = self.text(value), self._texts
        return lambda pairs: texts.derived_numbers(name, _whole(of(pairs), len(pairs)))

    def _taken(self, value: Value) -> _Evaluate:
        """The column of an attribute or parameter."""
        match value:
            case Attribute(part="left", name=name):
                place = self._left[name]
                return lambda pairs: pairs.left.values[place][pairs.left_at]
            case Attribute(part="latest", name=name):
                place = self._left[name]
                return lambda pairs: _given(pairs.latest).values[place][pairs.left_at]
            case Attribute(part="right", name=name):
                place = self._right[name]
                return lambda pairs: _given(pairs.right).values[place][pairs.right_at]
            case Parameter(index=index):
                return lambda pairs: pairs.parameters[index][pairs.rows]
        raise AssertionError(f"no value of events: {value!r}")


# ---------------------------------------------------------------- costs

COSTLY = 10
"""What costs this much is tested only where it matters."""


def cost(condition: Condition | Value) -> int:
    """Returns roughly what it costs to evaluate a condition or value for one pair; a comparison of numbers is 1."""
    match condition:
        case AllOf(args=args) | AnyOf(args=args):
            return sum(map(cost, args))
        case Comparison(left=left, right=right) | Arithmetic(left=left, right=right):
            return 1 + cost(left) + cost(right)
        case TextTest(args=args):
            return 100 + sum(map(cost, args))
        case Function(args=args):
            return COSTLY + sum(map(cost, args))
        case NullTest(value=value):
            return cost(value)
    return 0


# ---------------------------------------------------------------- what functions are made of


def _all_of(parts: list[tuple[Callable[[Pairs], Mask], bool]]) -> Callable[[Pairs], Mask]:
    if len(parts) == 1:
        return parts[0][0]

    def holds(pairs: Pairs) -> Mask:
        mask: Mask = np.ones(len(pairs), np.bool_)
        places, rest = None, pairs  # where all parts held before they were last taken out, and the pairs there
        for evaluate, costly in parts:
            count = np.count_nonzero(mask)
            if count == 0:
                break
            if count < len(mask) and (costly or 2 * count < len(mask)):
                held = np.flatnonzero(mask)
                places, rest = held if places is None else places[held], rest.at(held)
                mask = evaluate(rest)
            else:
                mask = mask & evaluate(rest)
        if places is None:
            return mask
        found = np.zeros(len(pairs), np.bool_)
        found[places] = mask
        return found

    return holds


def _any_of(parts: list[Callable[[Pairs], Mask]]) -> Callable[[Pairs], Mask]:
    def holds(pairs: Pairs) -> Mask:
        mask: Mask = np.zeros(len(pairs), np.bool_)
        for evaluate in parts:
            open_at = np.flatnonzero(~mask)
            if not len(open_at):
                break
            mask[open_at] = evaluate(pairs.at(open_at) if len(open_at) < len(pairs) else pairs)
        return mask

    return holds


def _first(parts: list[_Evaluate], known: Callable[[Any], Any]) -> _Evaluate:
    def found(pairs: Pairs) -> Any:
        value = parts[-1](pairs)
        for part in reversed(parts[:-1]):
            one = part(pairs)
            value = np.where(known(one), one, value)
        return value

    return found


def _whole(values: Any, size: int) -> Any:
    return values if np.ndim(values) else np.broadcast_to(np.asarray(values), size)


def _given(columns: Columns | None) -> Columns:
    assert columns is not None, "the condition mentions events that were not given"
    return columns


def _duration(pairs: Pairs) -> Floats:
    if pairs.right is not None:
        end = pairs.right.t1[pairs.right_at]
    else:
        end = (pairs.left if pairs.latest is None else pairs.latest).t1[pairs.left_at]
    return (end - pairs.left.t0[pairs.left_at]) / MICROSECONDS


def _gap(pairs: Pairs) -> Floats:
    latest = pairs.left if pairs.latest is None else pairs.latest
    return (_given(pairs.right).t0[pairs.right_at] - latest.t1[pairs.left_at]) / MICROSECONDS
