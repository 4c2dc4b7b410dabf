"""The shape cache: documents of one shape bind alike, so the walk over one of them serves for all.

A shape is the tree of tags, the attributes' names where attributes matter, and which of the literals that some query
asks for its values equal. It is kept when it is met the second time. Documents whose conditions are in XPath, and large
ones, are not cached; nor are any while too few have a shape that was met before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from xpath_stage.automaton import Automaton
from xpath_stage.columns import Columns
from xpath_stage.emissions import Ints, WitnessRows
from xpath_stage.string_values import StringValues

MAX_ELEMENTS = 500
"""Elements of the largest document that is cached."""

MAX_SIZE = 1 << 15
"""Bytes of the largest document that is cached."""

TRIAL, PAUSE = 256, 2048
"""At every TRIAL-th miss the cache is left alone for PAUSE documents if since the last fewer than one in three hit."""


class ShapeFindings:
    """What a walk over documents of one shape finds, the rows of one of them, and the values that it wants.

    `size` counts the elements; `nodes` are the ids of the nodes of the values. If the values are those of two elements
    or more, and no others, `take` gets them from the column of texts.
    """

    __slots__ = ("nodes", "rows", "size", "stream", "take", "values")

    def __init__(self, stream: str, size: int, rows: WitnessRows, values: StringValues, nodes: Ints) -> None:
        self.stream, self.size, self.rows, self.values, self.nodes = stream, size, rows, values, nodes
        elements, others = values.elements, values.attributes or values.derived
        self.take = itemgetter(*elements) if len(elements) > 1 and not others else None


@dataclass(slots=True)
class _Tested:
    """What else has to be looked at in documents with one tree of tags: the literals that values may equal, for some
    elements by number; and the attributes."""

    attributes: bool
    values: list[tuple[int, dict[str, int]]]
    found: dict[object, ShapeFindings] = field(default_factory=dict)

    def outcome(self, columns: Columns) -> object:
        """What tells the document apart from others with its tree of tags."""
        texts = columns.texts
        if columns.unread:
            columns.string_values([number for number, _ in self.values])
        return *columns.owners, *columns.names, *[literals.get(texts[i] or "") for i, literals in self.values]


class ShapeCache:
    """Walks by shape; `walk` makes those that are not known."""

    def __init__(self, automaton: Automaton, walk: Callable[[str, Columns], ShapeFindings], limit: int) -> None:
        self._automaton, self._walk, self._limit = automaton, walk, limit
        self._shapes: dict[object, ShapeFindings | _Tested | None] = {}
        self._size = 0
        self._met: set[int] = set()
        self._last: ShapeFindings | None = None
        self._last_tags: list[str] = []
        self._last_counts: list[int] = []
        self._hits_before = self._misses_before = 0
        self.resting = 0
        """For how many more documents the cache is to be left alone: it does not hit."""
        self.hits = self.misses = self.flushes = 0

    def forget(self) -> None:
        """Forgets all shapes: for what is registered has changed, or what the walks' numbers mean."""
        self._shapes.clear()
        self._met.clear()
        self._last = None
        self._size = 0

    def found(self, stream: str, columns: Columns) -> ShapeFindings | None:
        """What a walk over the one document in the columns finds; None if it has to be walked over with others."""
        last, tags, counts = self._last, columns.tags, columns.counts
        # Often a document is of the shape of the one before it: that is seen sooner than a key is hashed.
        if last is not None and tags == self._last_tags and counts == self._last_counts and stream == last.stream:
            self.hits += 1
            return last
        key: object = (stream, " ".join(tags), tuple(counts))  # no name has a blank
        shape = self._shapes.get(key, self)
        if shape.__class__ is ShapeFindings:
            self.hits += 1
            self._last, self._last_tags, self._last_counts = shape, tags, counts
            return shape
        if shape is self:
            if len(tags) > MAX_ELEMENTS:
                return None
            shape = self._tested(tags)
            if isinstance(shape, _Tested) and not (shape.attributes or shape.values):
                return self._missed(self._shapes, key, stream, columns)
            self._make_room()
            self._shapes[key] = shape
        if not isinstance(shape, _Tested):
            return None
        outcome = shape.outcome(columns)
        found = shape.found.get(outcome)
        if found is None:
            return self._missed(shape.found, outcome, stream, columns)
        self.hits += 1
        return found

    def _missed(self, known: dict[object, Any], key: object, stream: str, columns: Columns) -> ShapeFindings | None:
        """A shape is worth a walk of its own when it is met the second time."""
        self.misses += 1
        if self.misses - self._misses_before == TRIAL:
            if (self.hits - self._hits_before) * 2 < TRIAL:
                self.resting = PAUSE
                self.forget()
            self._hits_before, self._misses_before = self.hits, self.misses
        mark = hash((id(known), key))
        if mark not in self._met:
            if len(self._met) >= self._limit:
                self._met.clear()
            self._met.add(mark)
            return None
        self._make_room()
        found = known[key] = self._walk(stream, columns)
        return found

    def _make_room(self) -> None:
        if self._size >= self._limit:
            self.forget()
            self.flushes += 1
        self._size += 1

    def _tested(self, tags: Sequence[str]) -> _Tested | None:
        """None if the shape depends on conditions in XPath or on attributes' values."""
        attributes, values = False, []
        for i, tag in enumerate(tags):
            looked_at = self._automaton.looks_at(tag)
            if looked_at.elsewhere:
                return None
            attributes |= looked_at.attributes
            if looked_at.literals:
                values.append((i, looked_at.literals))
        return _Tested(attributes, values)
