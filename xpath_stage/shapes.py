"""The shape cache: documents of one shape bind alike, so the walk over one of them serves for all.

A shape is the tree of tags, the attributes' names where attributes matter, and which of the literals that some query
asks for its values equal. Documents whose conditions are in XPath, and large ones, are not cached; nor are any while
next to no document has a shape that was met before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from xpath_stage.automaton import Automaton
from xpath_stage.emissions import Walk
from xpath_stage.parse import ParsedDocument, text_of

MAX_SHAPES = 10_000
"""Most shapes that are remembered; past it the cache starts anew."""

MAX_ELEMENTS = 500
"""Elements of the largest document that is cached."""

TRIAL, PAUSE = 256, 2048
"""The cache is left alone for PAUSE documents after TRIAL documents of which fewer than one in eight was a hit."""


@dataclass(slots=True, eq=False)
class Found:
    """A walk, and where the values are that it wants: those of `elements`, of which none has children if `leaves`, and
    of `others` (element, place of the attribute or 0, functions); `nodes` are their nodes' ids, in this order.
    """

    walk: Walk
    elements: list[int]
    leaves: bool
    others: list[tuple[int, int, tuple[str, ...]]]
    nodes: list[int]
    batch: object = None
    number: int = 0
    """The walk's place among those of `batch`."""


@dataclass(slots=True)
class _Shape:
    """What has to be looked at in documents with one tree of tags: attributes' names, and values that are tested."""

    owners: list[int]
    tested: list[tuple[int, dict[str, int]]]
    found: dict[object, Found] = field(default_factory=dict)


class ShapeCache:
    """Walks by shape; `walk` makes those that are not known."""

    def __init__(self, automaton: Automaton, walk: Callable[[str, ParsedDocument], Found], limit: int) -> None:
        self._automaton, self._walk, self._limit = automaton, walk, limit
        self._shapes: dict[object, _Shape | None] = {}
        self._size = 0
        self._version = -1
        self._tried = self._hits_before = self._paused = 0
        self.hits = self.misses = self.flushes = 0

    def found(self, stream: str, document: ParsedDocument) -> Found:
        """What a walk over the document finds."""
        if self._version != self._automaton.version:
            self._clear()
            self._version = self._automaton.version
        if self._paused or len(document.tags) > MAX_ELEMENTS or not self._limit:
            self._paused -= self._paused > 0
            return self._walk(stream, document)
        key = (stream, document.tags, document.counts)
        shape = self._shapes.get(key, self)
        if shape is self:
            shape = self._automaton_shape(document)
            self._make_room()
            self._shapes[key] = shape
        assert not isinstance(shape, ShapeCache)
        if shape is None:
            return self._walk(stream, document)
        rest: object = None
        if shape.owners or shape.tested:
            elements = document.elements
            rest = (
                tuple([tuple(elements[i].keys()) for i in shape.owners]),
                tuple([literals.get(text_of(elements[i]), 0) for i, literals in shape.tested]),
            )
        found = shape.found.get(rest)
        if found is None:
            self.misses += 1
            self._make_room()
            found = shape.found[rest] = self._walk(stream, document)
        else:
            self.hits += 1
        self._judge()
        return found

    def _automaton_shape(self, document: ParsedDocument) -> _Shape | None:
        """None if the shape depends on conditions in XPath or on attributes' values."""
        owners, tested = [], []
        for i, tag in enumerate(document.tags):
            looked_at = self._automaton.looks_at(tag)
            if looked_at.elsewhere:
                return None
            if looked_at.attributes:
                owners.append(i)
            if looked_at.literals:
                tested.append((i, looked_at.literals))
        return _Shape(owners, tested)

    def _judge(self) -> None:
        self._tried += 1
        if self._tried == TRIAL:
            if (self.hits - self._hits_before) * 8 < TRIAL:
                self._paused = PAUSE
                self._clear()
            self._tried, self._hits_before = 0, self.hits

    def _make_room(self) -> None:
        if self._size >= self._limit:
            self._clear()
            self.flushes += 1
        self._size += 1

    def _clear(self) -> None:
        self._shapes.clear()
        self._size = 0
