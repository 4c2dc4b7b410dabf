"""The shape cache: documents of one shape bind alike, so the walk over one of them is valid for all.

A shape is the tree of tags, the names of the attributes that matter, and the literals of queries that values equal. It
is cached when it is met for the second time. Large documents, and those with conditions in XPath, are not cached. The
cache rests while too few documents have a known shape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from xpath_stage.automaton import Automaton
from xpath_stage.columns import Columns
from xpath_stage.emissions import Ints, WitnessRows
from xpath_stage.outlines import outline_key
from xpath_stage.string_values import StringValues

MAX_ELEMENTS = 500
"""The largest number of elements of a document that is cached."""

MAX_SIZE = 1 << 15
"""The largest size in bytes of a document that is cached."""

TRIAL, PAUSE = 256, 2048
"""At every TRIAL-th miss, the cache rests for PAUSE documents if fewer than a third were hits since the last time."""


class ShapeFindings:
    """The result of a walk over documents of one shape: the rows of one of them, and the values that it needs.

    `size` is the number of elements, and `nodes` are the ids of the nodes of the values. If the values are those of
    elements and nothing else, `take` gets them from the column of texts.
    """

    __slots__ = ("nodes", "rows", "size", "stream", "take", "values")

    def __init__(self, stream: str, size: int, rows: WitnessRows, values: StringValues, nodes: Ints) -> None:
        self.stream, self.size, self.rows, self.values, self.nodes = stream, size, rows, values, nodes
        elements, others = values.elements, values.attributes or values.derived
        one_or_more = elements if len(elements) > 1 else [slice(number, number + 1) for number in elements]
        self.take = itemgetter(*one_or_more) if one_or_more and not others else None


@dataclass(slots=True)
class _Tested:
    """What else distinguishes documents with one tree of tags: whether `attributes` matter, the literals that the
    values of some elements may equal, by number, and the results that were `found` so far."""

    attributes: bool
    values: list[tuple[int, dict[str, int]]]
    found: dict[object, ShapeFindings] = field(default_factory=dict)

    def outcome(self, columns: Columns) -> object:
        """What distinguishes the document from others with its tree of tags."""
        texts = columns.texts
        if columns.unread:
            columns.string_values([number for number, _ in self.values])
        return *columns.owners, *columns.names, *[literals.get(texts[i] or "") for i, literals in self.values]


class ShapeCache:
    """Results by shape. `walk` makes those that are not cached; `limit` bounds their number."""

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
        """The number of documents for which the cache still rests."""
        self.hits = self.misses = self.flushes = 0

    def forget(self) -> None:
        """Drops all shapes, because the registered patterns or the emissions have changed."""
        self._shapes.clear()
        self._met.clear()
        self._last = None
        self._size = 0

    def found(self, stream: str, columns: Columns) -> ShapeFindings | None:
        """The result for the one document in the columns; None if it must be walked with others."""
        last, tags, counts = self._last, columns.tags, columns.counts
        # Often a document has the shape of the one before it. Comparing is faster than hashing a key.
        if last is not None and tags == self._last_tags and counts == self._last_counts and stream == last.stream:
            self.hits += 1
            return last
        outline = columns.outline
        tree = outline_key(tags, counts) if outline is None else outline.key
        key: object = (stream, tree)
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
        """Counts a miss. When a shape is met for the second time, its result is made and cached."""
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
        """What else distinguishes documents with these tags; None if that is conditions in XPath or values of
        attributes."""
        attributes, values = False, []
        for i, tag in enumerate(tags):
            looked_at = self._automaton.looks_at(tag)
            if looked_at.elsewhere:
                return None
            attributes |= looked_at.attributes
            if looked_at.literals:
                values.append((i, looked_at.literals))
        return _Tested(attributes, values)
