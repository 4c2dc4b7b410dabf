"""Statements that differ only in their constants are parsed once: the tree of the first serves for the others.

A statement's skeleton is its text without its string and number literals. The lexer cuts statements of one skeleton
into the same tokens, the grammar does not look into literals, and the builder keeps them as they are, except for
windows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from xscl.algebra.expressions import ElementConstructor, Number, Span, String
from xscl.builder import unquoted, window_us
from xscl.problems import Problem
from xscl.syntax import Query, Window

MAX_SKELETONS = 5_000
"""Most skeletons that are remembered; past it they are forgotten."""

# A quote behind a name is a prime or, behind a keyword, the start of a string that is left where it is.
_LITERAL = re.compile(
    r"""(?<![\w.\-'"]) (?: ("(?:[^"\n]|"")*"|'(?:[^'\n]|'')*') | (-?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)) )""", re.VERBOSE
)
_UNIT = re.compile(r"\s*([^\W\d][\w.\-]*)")

_Fill = Callable[[Sequence[str]], Any]
"""Makes a part of a tree from a statement's literals."""

_Skeleton = tuple[object, ...]


class KnownSkeletons:
    """The trees of statements met so far, by skeleton."""

    def __init__(self) -> None:
        self._fills: dict[_Skeleton, _Fill | None] = {}

    def query(self, text: str) -> Query | None:
        """The tree of a statement if one of its skeleton is known, without places; None if it has to be parsed."""
        skeleton, literals = _lift(text)
        fill = self._fills.get(skeleton)
        if fill is None:
            return None
        try:
            query: Query = fill(literals)
        except Problem:
            return None
        return query

    def add(self, text: str, start: int, query: Query) -> None:
        """Remembers the tree of a statement with the text `text`, which begins at `start` in its script."""
        skeleton, _ = _lift(text)
        if skeleton in self._fills or isinstance(query.select, ElementConstructor):
            return
        if len(self._fills) >= MAX_SKELETONS:
            self._fills.clear()
        places = [Span(start + found.start(), start + found.end()) for found in _LITERAL.finditer(text)]
        plan = _Plan({place.start: (slot, place) for slot, place in enumerate(places)}, text, start)
        fill = plan.of(query)
        # If the lexer saw a literal elsewhere than we do, the skeleton says nothing about others.
        self._fills[skeleton] = fill if plan.met == set(range(len(places))) else None


def _lift(text: str) -> tuple[_Skeleton, list[str]]:
    parts = _LITERAL.split(text)
    strings, numbers = parts[1::3], parts[2::3]
    literals = [number if string is None else string for string, number in zip(strings, numbers, strict=True)]
    return (*parts[::3], *[string is None for string in strings]), literals


class _Plan:
    """How a tree is made again with other literals; `met` are the slots that were found in it."""

    def __init__(self, slots: dict[int, tuple[int, Span]], text: str, start: int) -> None:
        self._slots, self._text, self._start = slots, text, start
        self.met: set[int] = set()

    def of(self, node: Any) -> _Fill | None:
        """None for a part that holds no literal."""
        match node:
            case String(span=span) if self._is_slot(span):
                return self._string(span)
            case Number(span=span) if self._is_slot(span):
                return self._number(span)
            case Window(us=us, span=span) if us is not None and span.start in self._slots:
                return self._window(span)
            case tuple():
                return _made(lambda *parts: parts, node, list(map(self.of, node)))
        if is_dataclass(node) and not isinstance(node, Span | type):
            parts = [getattr(node, field.name) for field in fields(node)]
            return _made(type(node), parts, list(map(self.of, parts)))
        return None

    def _is_slot(self, span: Span) -> bool:
        return span.start in self._slots and self._slots[span.start][1] == span

    def _slot(self, span: Span) -> int:
        slot = self._slots[span.start][0]
        self.met.add(slot)
        return slot

    def _string(self, span: Span) -> _Fill:
        slot = self._slot(span)
        return lambda literals: String(unquoted(literals[slot]))

    def _number(self, span: Span) -> _Fill:
        slot = self._slot(span)
        return lambda literals: Number(literals[slot])

    def _window(self, span: Span) -> _Fill:
        slot = self._slot(span)
        found = _UNIT.match(self._text, self._slots[span.start][1].end - self._start, span.end - self._start)
        unit = found[1] if found else "s"
        return lambda literals: Window(window_us(literals[slot], unit, span))


def _made(make: Callable[..., Any], parts: Sequence[Any], fills: Sequence[_Fill | None]) -> _Fill | None:
    """Makes of some parts what `make` makes, those with literals anew."""
    changing = [(place, fill) for place, fill in enumerate(fills) if fill is not None]
    if not changing:
        return None

    def fill_in(literals: Sequence[str]) -> Any:
        values = list(parts)
        for place, fill in changing:
            values[place] = fill(literals)
        return make(*values)

    return fill_in
