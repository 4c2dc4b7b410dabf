"""Finds what event queries of one skeleton mean once: the stream of the first is filled in for the others.

What a query means may depend on its constants: some are folded, windows bound each other, and equal conditions are one.
So the streams of two queries of the skeleton with constants of our own are found first. There is a template if each
constant stands in them as it is, and what is made of the first is the second. It serves the queries whose constants are
as far apart as ours where equal ones would be merged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from fractions import Fraction
from typing import Any

from xscl.algebra.comparisons import ORDERS
from xscl.algebra.event_sequences import OfItems, Pattern, Statement
from xscl.algebra.events import Aggregate, AllOf, AnyOf, Comparison, Constant, Schema, TextTest
from xscl.algebra.expressions import NOWHERE
from xscl.algebra.functions import xpath_number
from xscl.builder import unquoted
from xscl.event_constants import kind_of
from xscl.event_known import MOST_KNOWN, remember, resolve
from xscl.event_resolve import Schemas
from xscl.event_skeletons import EventSkeleton
from xscl.event_syntax import EventQuery, names_read
from xscl.event_values import MOST_DIGITS
from xscl.problems import Problem
from xscl.windows import UNITS, window_us

Literal = str | float | int
Make = Callable[[Sequence[Literal]], Any]
"""Makes a part of a stream of the values of literals."""

MOST_SCHEMAS = 8
"""For how many schemas of what it reads a skeleton is kept."""

_made: dict[int, tuple[EventQuery, EventSkeleton, list[str]]] = {}
"""The queries that were made of a skeleton, with their literals, by their identity."""


def made_of(query: EventQuery, skeleton: EventSkeleton, literals: list[str]) -> None:
    """Remembers that a query was made of a skeleton with these literals."""
    if len(_made) >= MOST_KNOWN:
        _made.clear()
    _made[id(query)] = query, skeleton, literals


def resolve_known(
    query: EventQuery, schemas: Schemas, documents: Sequence[str] = ()
) -> tuple[Statement | None, list[Problem]]:
    """What `xscl.event_resolve.resolve` returns. If a query was made of a skeleton, the places of problems are those in
    another one."""
    made = _made.pop(id(query), None)
    if made is not None and (stream := _stream(*made, schemas)) is not None:
        remember(query, schemas, stream)
        return stream, []
    return resolve(query, schemas, documents)


def _stream(query: EventQuery, skeleton: EventSkeleton, literals: list[str], schemas: Schemas) -> Statement | None:
    read: dict[str, Schema] = {}
    for name in names_read(query.stream):
        schema = schemas.get(name.name)
        if schema is None:
            return None
        read[name.name] = schema
    key = tuple(read.items())
    if key not in skeleton.streams:
        if len(skeleton.streams) >= MOST_SCHEMAS:
            skeleton.streams.clear()
        skeleton.streams[key] = _template(skeleton, read)
    template: _Template | None = skeleton.streams[key]
    return None if template is None else template.stream(literals)


@dataclass(frozen=True, eq=False, slots=True)
class _Template:
    """Makes the streams of queries. Values of `numeric` strings must be numbers, and in each group of `apart` no two
    may be equal."""

    make: Make
    kinds: tuple[str, ...]
    numeric: frozenset[int]
    apart: tuple[tuple[Make, ...], ...]

    def stream(self, literals: Sequence[str]) -> Statement | None:
        """The stream of a query with these literals; None if the template does not say what it means."""
        values: list[Literal] = []
        for slot, (kind, text) in enumerate(zip(self.kinds, literals, strict=True)):
            value = _value(kind, text)
            if value is None or (slot in self.numeric and math.isnan(xpath_number(str(value)))):
                return None
            values.append(value)
        for group in self.apart:
            if len({make(values) for make in group}) < len(group):
                return None
        stream: Statement = self.make(values)
        return stream


def _value(kind: str, text: str) -> Literal | None:
    """The value of a literal; None if it may be refused, or is one of a kind."""
    if kind == "string":
        return unquoted(text)
    if kind in UNITS:
        return window_us(text, kind, NOWHERE) or None
    number = float(text) if len(text) < MOST_DIGITS else math.inf
    if not math.isfinite(number):
        return None
    return float(Fraction(text.rstrip(".")) / 100) if kind == "percentage" else number


# ---------------------------------------------------------------- how a template is found


def _template(skeleton: EventSkeleton, schemas: Mapping[str, Schema]) -> _Template | None:
    kinds = skeleton.kinds
    if any(kind not in ("string", "number", "percentage", *UNITS) for kind in kinds):
        return None
    ours = [_marks(kinds, falling) for falling in (False, True)]
    streams = [resolve(skeleton.tree(marks), schemas)[0] for marks in ours]
    first, second = streams
    if first is None or second is None:
        return None
    maker = _Maker(kinds, [_value(kind, mark) for kind, mark in zip(kinds, ours[0], strict=True)])
    make = maker.of(first) or (lambda values: first)
    if maker.met != set(range(len(kinds))) or maker.depends:
        return None
    template = _Template(make, kinds, frozenset(maker.numeric), tuple(maker.apart))
    return template if template.stream(ours[1]) == second else None


def _marks(kinds: Sequence[str], falling: bool) -> list[str]:
    """Literals no two of which have one value, all of them numbers, those of windows in rising or falling order."""
    marks = []
    for slot, kind in enumerate(kinds):
        place = len(kinds) - slot if falling else slot + 3
        if kind in UNITS:
            marks.append(f"{place * UNITS['w'] // UNITS[kind]}")
        else:
            number = f"{700_001 + 2 * place}"
            marks.append(f'"{number}"' if kind == "string" else number)
    return marks


class _Maker:
    """Says how the stream of our own literals is made again with others. `met` are the literals found in it, and
    `depends` is whether there is a part that may be another one for other literals."""

    def __init__(self, kinds: Sequence[str], marks: Sequence[Literal | None]) -> None:
        self.met: set[int] = set()
        self.numeric: set[int] = set()
        self.apart: list[tuple[Make, ...]] = []
        self.depends = False
        self._constants: dict[Literal, tuple[int, Make]] = {}
        self._windows: dict[int, int] = {}
        for slot, (kind, mark) in enumerate(zip(kinds, marks, strict=True)):
            assert mark is not None
            if kind in UNITS:
                self._windows[int(mark)] = slot
                self._constants[int(mark) / 1e6] = slot, _seconds(slot)
                continue
            self._constants[mark] = slot, _as_it_is(slot)
            if kind != "string":
                self._constants[0.0 - float(mark)] = slot, _negated(slot)

    def of(self, node: Any) -> Make | None:
        """What makes a part with other literals; None if it holds none."""
        match node:
            case Constant(value=value):
                return self._constant(value)
            case int() if node in self._windows and not isinstance(node, bool):
                slot = self._windows[node]
                self.met.add(slot)
                return lambda values: values[slot]
            case TextTest(name="matches"):
                self.depends = self.depends or self._holds(node.args[1:])  # they may be no regular expressions
            case Comparison(op=op, left=left, right=right):
                for one, other in ((left, right), (right, left)):
                    is_read = op in ORDERS or kind_of(other) == "number"
                    if is_read and isinstance(one, Constant) and isinstance(one.value, str):
                        self._is_number(one.value)
            case AllOf(args=args) | AnyOf(args=args):
                self._keep_apart(args)
            case Aggregate(items=items):
                self.depends = self.depends or self._holds(items)  # equal ones are one
            case OfItems(aggregated=aggregated):
                self.depends = self.depends or self._holds(aggregated)  # the same
            case Pattern(conjuncts=conjuncts, kills=kills):
                self._keep_apart(conjuncts)
                self._keep_apart(kills)
        if isinstance(node, tuple):
            return _made_anew(lambda *parts: parts, node, list(map(self.of, node)))
        if is_dataclass(node) and not isinstance(node, type):
            parts = [getattr(node, one.name) for one in fields(node)]
            return _made_anew(type(node), parts, list(map(self.of, parts)))
        return None

    def _constant(self, value: str | float) -> Make | None:
        if value not in self._constants:
            return None
        slot, of = self._constants[value]
        self.met.add(slot)
        return lambda values: Constant(of(values))

    def _is_number(self, mark: str) -> None:
        if mark in self._constants:
            self.numeric.add(self._constants[mark][0])

    def _holds(self, node: Any) -> bool:
        return any(value in self._constants for value in _constants(node))

    def _keep_apart(self, args: tuple[Any, ...]) -> None:
        """Finds the conditions that differ in constants only: equal ones would be one."""
        groups: dict[str, list[Make]] = {}
        for arg in args:
            makes = [self._value_of(value) for value in _constants(arg)]
            groups.setdefault(repr(_without(arg)), []).append(_all_of(makes))
        self.apart += [tuple(group) for group in groups.values() if len(group) > 1]

    def _value_of(self, value: Literal) -> Make:
        found = self._constants.get(value)
        return (lambda values: value) if found is None else found[1]


def _as_it_is(slot: int) -> Make:
    return lambda values: values[slot]


def _negated(slot: int) -> Make:
    return lambda values: 0.0 - float(values[slot])


def _seconds(slot: int) -> Make:
    return lambda values: int(values[slot]) / 1e6


def _all_of(makes: Sequence[Make]) -> Make:
    return lambda values: tuple(make(values) for make in makes)


def _constants(node: Any) -> list[Literal]:
    """The values of the constants in a part, from left to right."""
    if isinstance(node, Constant):
        return [node.value]
    if isinstance(node, tuple):
        return [value for one in node for value in _constants(one)]
    if is_dataclass(node) and not isinstance(node, type):
        return [value for one in fields(node) for value in _constants(getattr(node, one.name))]
    return []


def _without(node: Any) -> Any:
    """A part as a tuple in which all constants are alike."""
    if isinstance(node, Constant):
        return Constant
    if isinstance(node, tuple):
        return tuple(map(_without, node))
    if is_dataclass(node) and not isinstance(node, type):
        return type(node), *(_without(getattr(node, one.name)) for one in fields(node))
    return node


def _made_anew(make: Callable[..., Any], parts: Sequence[Any], makes: Sequence[Make | None]) -> Make | None:
    changing = [(place, one) for place, one in enumerate(makes) if one is not None]
    if not changing:
        return None

    def anew(values: Sequence[Literal]) -> Any:
        made = list(parts)
        for place, one in changing:
            made[place] = one(values)
        return make(*made)

    return anew
