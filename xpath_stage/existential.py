"""Comparisons of sets of values: whether one holds between any value of one side and any of the other.

Each side is read once, value by value: the time is linear in the texts, and no more than one long text is in memory.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from hashlib import blake2b
from itertools import chain
from typing import Any

from lxml import etree

from xpath_stage.parse import text_of
from xscl.algebra.expressions import CompareOp
from xscl.algebra.functions import xpath_number
from xscl.algebra.order import ORDER
from xscl.algebra.times import parse_time

Value = list[etree._Element | str] | str | float
"""What lxml gives for an operand: a node set, a string or a number."""

_LONGEST = 64
"""The length of the longest text that is kept as it is. For others their digest stands."""


def compare_values(op: CompareOp, left: Value, right: Value) -> bool:
    """Whether a comparison of texts or numbers holds between two sides, as `functions.compare` says of two values."""
    if op in ("=", "!=") and not isinstance(left, float) and not isinstance(right, float):
        return _any(op, _texts(left), _texts(right))
    return _any(op, _numbers(left), _numbers(right))


def compare_times_of(op: CompareOp, left: Value, right: Value) -> bool:
    """Whether a comparison of times holds between two sides, as `times.compare_times` says of two texts."""
    return _any(op, map(parse_time, _strings(left)), map(parse_time, _strings(right)))


def _any(op: CompareOp, left: Iterator[Any], right: Iterator[Any]) -> bool:
    """Whether a comparison holds between any two values. None is no number or time: only `!=` holds with it."""
    if op == "!=":
        return _differ(left, right)
    lefts, rights = (value for value in left if value is not None), (value for value in right if value is not None)
    if op == "=":
        known = set(lefts)
        return bool(known) and any(value in known for value in rights)
    best, worst = (min, max) if op in ("<", "<=") else (max, min)
    one = best(lefts, default=None)
    if one is None:
        return False
    other = worst(rights, default=None)
    return other is not None and ORDER[op](one, other)


def _differ(left: Iterator[Hashable | None], right: Iterator[Hashable | None]) -> bool:
    """Whether two values differ. If both sides have values, and not all are the same, two of the two sides do."""
    for one in left:
        for other in right:
            return one is None or any(value is None or value != one for value in chain((other,), left, right))
    return False


def _strings(value: Value) -> Iterator[str]:
    """The string value of each node, or of the one value."""
    if not isinstance(value, list):
        yield str(value)
        return
    for node in value:
        yield text_of(node) if isinstance(node, etree._Element) else str(node)


def _numbers(value: Value) -> Iterator[float | None]:
    numbers = iter((value,)) if isinstance(value, float) else map(xpath_number, _strings(value))
    return (number if number == number else None for number in numbers)


def _texts(value: Value) -> Iterator[str | bytes]:
    for text in _strings(value):
        yield text if len(text) <= _LONGEST else blake2b(text.encode(), digest_size=32).digest()
