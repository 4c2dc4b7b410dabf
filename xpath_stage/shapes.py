"""The shape cache: documents of one shape bind alike, so the walk over one of them serves for all.

A shape is the tree of tags, the attributes' names where attributes matter, and which of the literals that some query
asks for its values equal. Documents whose conditions are in XPath, and large ones, are not cached; nor are any while
next to no document has a shape that was met before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from xpath_stage.automaton import Automaton
from xpath_stage.emissions import Walk
from xpath_stage.parse import ParsedDocument, text_of

MAX_SHAPES = 10_000
"""Most shapes that are remembered; past it the cache starts anew."""

MAX_ELEMENTS = 500
"""Elements of the largest document that is cached."""

TRIAL, PAUSE = 256, 2048
"""At every TRIAL-th miss the cache is left alone for PAUSE documents if since the last fewer than one in eight hit."""


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
    batch: int = -1
    number: int = 0
    """The walk's place among those of the batch with the number `batch`."""


@dataclass(slots=True)
class _Tested:
    """What has to be looked at in documents with one tree of tags: attributes' names, and values that are tested."""

    owners: list[int]
    values: list[tuple[int, dict[str, int]]]
    found: dict[object, Found] = field(default_factory=dict)

    def outcome(self, document: ParsedDocument) -> object:
        """What tells the document apart from others with its tree of tags."""
        elements = document.elements
        return (
            tuple([tuple(elements[i].keys()) for i in self.owners]),
            tuple([literals.get(text_of(elements[i]), 0) for i, literals in self.values]),
        )


class ShapeCache:
    """Walks by shape; `walk` makes those that are not known."""

    def __init__(self, automaton: Automaton, walk: Callable[[str, ParsedDocument], Found], limit: int) -> None:
        self._automaton, self._walk, self._limit = automaton, walk, limit
        self._shapes: dict[object, Found | _Tested | None] = {}
        self._size = 0
        self._hits_before = self._misses_before = self._paused = 0
        self.hits = self.misses = self.flushes = 0

    def forget(self) -> None:
        """Forgets all shapes: for what is registered has changed, or what the walks' numbers mean."""
        self._shapes.clear()
        self._size = 0

    def found(self, stream: str, document: ParsedDocument) -> Found:
        """What a walk over the document finds."""
        if len(document.tags) > MAX_ELEMENTS:
            return self._walk(stream, document)
        key = (stream, document.tags, document.counts)
        shape = self._shapes.get(key, self)
        if shape.__class__ is Found:
            self.hits += 1
            return shape
        if self._paused or not self._limit:
            self._paused -= self._paused > 0
            return self._walk(stream, document)
        if shape is self:
            shape = self._tested(document)
            if isinstance(shape, _Tested) and not (shape.owners or shape.values):
                return self._missed(self._shapes, key, stream, document)
            self._make_room()
            self._shapes[key] = shape
        if not isinstance(shape, _Tested):
            return self._walk(stream, document)
        outcome = shape.outcome(document)
        found = shape.found.get(outcome)
        if found is None:
            return self._missed(shape.found, outcome, stream, document)
        self.hits += 1
        return found

    def _missed(self, known: dict[object, Any], key: object, stream: str, document: ParsedDocument) -> Found:
        self.misses += 1
        self._make_room()
        found = known[key] = self._walk(stream, document)
        if self.misses - self._misses_before == TRIAL:
            if (self.hits - self._hits_before) * 7 < TRIAL:
                self._paused = PAUSE
                self.forget()
            self._hits_before, self._misses_before = self.hits, self.misses
        return found

    def _make_room(self) -> None:
        if self._size >= self._limit:
            self.forget()
            self.flushes += 1
        self._size += 1

    def _tested(self, document: ParsedDocument) -> _Tested | None:
        """None if the shape depends on conditions in XPath or on attributes' values."""
        owners, values = [], []
        for i, tag in enumerate(document.tags):
            looked_at = self._automaton.looks_at(tag)
            if looked_at.elsewhere:
                return None
            if looked_at.attributes:
                owners.append(i)
            if looked_at.literals:
                values.append((i, looked_at.literals))
        return _Tested(owners, values)
