"""Chains of selections and renamings as one selection and one renaming of its results."""

from __future__ import annotations

from collections.abc import Callable

from pattern_stage.formula import rewritten, rewritten_condition, size
from xscl.algebra.events import AllOf, Attribute, Condition, Filter, Select, Stream, Value

MOST = 400
"""A chain of selections is made one as long as its expressions have at most so many leaves."""


def chain(stream: Stream) -> tuple[Stream, Condition, tuple[tuple[str, Value], ...] | None]:
    """Takes a chain apart: what it is over, the condition there, and the items, None for all as they are."""
    match stream:
        case Select(source, items):
            base, condition, inner = chain(source)
            if inner is None:
                return base, condition, items
            over = _over(inner)
            composed = tuple((name, rewritten(value, over)) for name, value in items)
            if sum(size(value) for _, value in composed) > MOST:
                return source, AllOf(), items
            return base, condition, composed
        case Filter(source, condition):
            base, below, inner = chain(source)
            if inner is not None:
                condition = rewritten_condition(condition, _over(inner))
            if size(condition) > MOST:
                return source, stream.condition, None
            return base, AllOf((below, condition)), inner
        case _:
            return stream, AllOf(), None


def _over(items: tuple[tuple[str, Value], ...]) -> Callable[[Value], Value]:
    values = dict(items)
    return lambda leaf: values[leaf.name] if isinstance(leaf, Attribute) else leaf
