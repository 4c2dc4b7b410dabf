"""Takes a statement apart: pieces without constants, which many statements have in common, and its constants."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pattern_stage.formula import rewritten, rewritten_condition
from pattern_stage.matching.template import AnyPattern, inputs, template
from xscl.algebra.event_sequences import NearPattern, Pattern, Statement
from xscl.algebra.events import (
    Aggregate,
    Constant,
    Events,
    Filter,
    Fold,
    Next,
    Parameter,
    Select,
    Stream,
    Union,
    Value,
)


@dataclass(frozen=True, slots=True)
class Piece:
    """A source, an operator, or a chain of selections and renamings."""

    template: Statement
    """Over streams that stand for its inputs: `left` and `right`, or, of a PATTERN, `0`, `1`, ... It has parameters for
    its constants, which are numbered from 0, and 0 for its window."""
    inputs: tuple[int, ...]
    """The places of the pieces that it is over."""
    first: int
    """Its first constant, in the order of all."""
    window: int
    """Which window of the statement is its own; -1 for none."""


@dataclass(slots=True)
class Taken:
    """What was taken out of a stream: pieces, inputs first; and its constants and distinct windows, in their order."""

    pieces: list[Piece] = field(default_factory=list)
    constants: list[str | float] = field(default_factory=list)
    windows: list[int] = field(default_factory=list)
    _first: int = 0

    def add(self, stream: Statement) -> int:
        """Takes a stream apart; returns the place of the piece that has its events."""
        if isinstance(stream, Pattern | NearPattern):
            return self._pattern(stream)
        inputs: tuple[int, ...]
        match stream:
            case Events():
                return self._piece(stream, ())
            case Select() | Filter():
                base: Stream = stream
                chain: list[Select | Filter] = []
                while isinstance(base, Select | Filter):
                    chain.append(base)
                    base = base.source
                inputs = (self.add(base),)
                return self._piece(self._chain(_input("left", base), chain), inputs)
            case Union(left, right):
                return self._piece(
                    Union(_input("left", left), _input("right", right)), (self.add(left), self.add(right))
                )
            case Next(left, right, condition, within, names, schema):
                inputs = self.add(left), self.add(right)
                self._first = len(self.constants)
                condition = rewritten_condition(condition, self._leaf)
                bare: Stream = Next(
                    _input("left", left), _input("right", right), condition, _numbered(within), names, schema
                )
                return self._piece(bare, inputs, within)
            case Fold(left, right, chooses, continues, sets, within, names, schema):
                inputs = self.add(left), self.add(right)
                self._first = len(self.constants)
                chooses = rewritten_condition(chooses, self._leaf)
                continues = rewritten_condition(continues, self._leaf)
                sets = tuple((name, rewritten(value, self._leaf)) for name, value in sets)
                start, then = _input("left", left), _input("right", right)
                bare = Fold(start, then, chooses, continues, sets, _numbered(within), names, schema)
                return self._piece(bare, inputs, within)
            case Aggregate(source, items, by, over, schema):
                inputs = (self.add(source),)
                self._first = len(self.constants)
                items = tuple(
                    (name, replace(one, args=tuple(rewritten(arg, self._leaf) for arg in one.args)))
                    for name, one in items
                )
                return self._piece(Aggregate(_input("left", source), items, by, _numbered(over), schema), inputs, over)

    def _pattern(self, pattern: AnyPattern) -> int:
        places = tuple([self.add(Events(name, schema)) for name, schema in inputs(pattern)])
        self._first = len(self.constants)
        return self._piece(template(pattern, self._leaf), places, pattern.within)

    def _chain(self, base: Stream, chain: list[Select | Filter]) -> Stream:
        self._first = len(self.constants)
        for link in reversed(chain):
            if isinstance(link, Filter):
                base = Filter(base, rewritten_condition(link.condition, self._leaf))
            else:
                items = tuple((name, rewritten(value, self._leaf)) for name, value in link.items)
                base = Select(base, items, link.schema)
        return base

    def _piece(self, template: Statement, inputs: tuple[int, ...], window: int | None = None) -> int:
        if window is not None and window not in self.windows:
            self.windows.append(window)
        place = -1 if window is None else self.windows.index(window)
        self.pieces.append(Piece(template, inputs, self._first, place))
        return len(self.pieces) - 1

    def _leaf(self, value: Value) -> Value:
        if not isinstance(value, Constant):
            return value
        constant = value.value if isinstance(value.value, str) else float(value.value)
        self.constants.append(constant)
        return Parameter(len(self.constants) - 1 - self._first, "string" if isinstance(constant, str) else "number")


def _input(name: str, stream: Stream) -> Events:
    return Events(name, stream.schema)


def _numbered(window: int | None) -> int | None:
    return None if window is None else 0
