"""Parses event queries that differ only in their constants and PUBLISH names once, as `xscl.skeletons` does for XSCL.

The skeleton of an event query is its text without its literals and its PUBLISH name. A sign in front of a number is an
operator, and so part of the skeleton.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from xscl.algebra.expressions import Span
from xscl.event_depth import too_deep
from xscl.event_syntax import EventQuery
from xscl.problems import Problem
from xscl.recipes import Fill, Recipe

MAX_SKELETONS = 5_000
"""How many skeletons are remembered. When there are more, all are forgotten."""

_LITERAL = re.compile(
    r"""(?<![\w.'"$]) (?: ("(?:[^"\n]|"")*"|'(?:[^'\n]|'')*') | ((?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)) (?!\s*\]) )""",
    re.VERBOSE,
)
_PUBLISHED = re.compile(r"publish\s+([A-Za-z_][A-Za-z0-9_]*)\Z", re.IGNORECASE)
_KEYWORDS = re.compile(
    r"(?:select|from|publish|as|and|or|not|is|null|filter|next|fold|union|aggregate|by|over|within|dur|gap|define|pattern)\Z",
    re.IGNORECASE,
)


@dataclass(frozen=True, eq=False, slots=True)
class EventSkeleton:
    """Makes the trees of the queries of a skeleton. `kinds` says what each literal is, as in a Recipe."""

    tree: Fill
    kinds: tuple[str, ...]
    streams: dict[object, Any] = field(default_factory=dict)
    """What is known of the streams that the queries mean, for `xscl.event_templates`."""


class KnownEventSkeletons:
    """The skeletons of event queries so far."""

    def __init__(self, parse: Callable[[str], EventQuery | None]) -> None:
        """`parse` returns the tree of a query, with its spans in it, or None."""
        self._parse = parse
        self._found: dict[tuple[object, ...], EventSkeleton | None] = {}
        self._unused: dict[tuple[object, ...], str] = {}

    def query(self, text: str) -> tuple[EventQuery, EventSkeleton, list[str]] | None:
        """The tree of a query if its skeleton is known, its skeleton and its literals; None if it has to be parsed. The
        spans in the tree are those in another query."""
        body, name = _unpublished(text)
        parts = _LITERAL.split(body)
        strings, numbers = parts[1::3], parts[2::3]
        literals = [number if string is None else string for string, number in zip(strings, numbers, strict=True)]
        key = (*parts[::3], *[string is None for string in strings])
        if key in self._unused:
            # What makes other trees takes long to find, and most queries may have a skeleton of their own.
            self._found[key] = self._skeleton(self._unused.pop(key))
        elif key not in self._found:
            if len(self._found) + len(self._unused) >= MAX_SKELETONS:
                self._found.clear()
                self._unused.clear()
            self._unused[key] = body
        skeleton = self._found.get(key)
        if skeleton is None:
            return None
        try:
            made: EventQuery = skeleton.tree(literals)
        except Problem:
            return None
        return EventQuery(made.stream, made.select, made.within, name, made.span), skeleton, literals

    def _skeleton(self, text: str) -> EventSkeleton | None:
        query = self._parse(text)
        if query is None or query.publish is not None or too_deep(query):
            return None
        places = [Span(*found.span()) for found in _LITERAL.finditer(text)]
        recipe = Recipe({place.start: (slot, place) for slot, place in enumerate(places)}, text)
        tree = recipe.of(query) or (lambda literals: query)
        # If the lexer found other literals than we did, the tree cannot be used for other queries.
        if recipe.met != set(range(len(places))):
            return None
        return EventSkeleton(tree, tuple(recipe.kinds[slot] for slot in range(len(places))))


def _unpublished(text: str) -> tuple[str, str | None]:
    """A query without its PUBLISH name, and the name; None if there is none."""
    body, *end = text.rsplit(None, 2)
    if len(end) == 2 and (found := _PUBLISHED.match(" ".join(end))) and not _KEYWORDS.match(found[1]):
        return body, found[1]
    return text, None
