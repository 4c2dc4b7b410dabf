"""Reuses parsed trees: statements that differ only in their constants and PUBLISH names share a skeleton.

A skeleton is the text without string and number literals and PUBLISH name. It is parsed once, when it first recurs, and
its tree is filled in for others. This is sound because the lexer produces the same tokens for them, the grammar ignores
the contents of literals, and the builder changes only windows."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, NamedTuple

from common.tools import ClearedCache
from xscl.algebra.values import ElementConstructor, Number, Span, String
from xscl.builder import unquoted
from xscl.event_forms import RESERVED
from xscl.syntax import EventQuery, Join, Percentage, Query, Window
from xscl.text import KEYWORDS, Problem, window_us

MAX_SKELETONS = 5_000  # maximum number of cached skeletons

MAX_TREES = 20_000  # maximum number of trees cached by the text before PUBLISH

_PUBLISHED = re.compile(
    r"[ \t\r\n]+publish[ \t\r\n]+"
    rf"(?!(?:{'|'.join(sorted(RESERVED.union(KEYWORDS)))})[ \t\r\n]*\Z)"
    r"([a-z_][a-z_0-9]*)[ \t\r\n]*\Z",
    re.ASCII | re.IGNORECASE,
)
"""Matches the end of a statement with a simple name that is not a keyword."""

Fill = Callable[[Sequence[Any]], Any]  # builds a part of a tree from a statement's literals, or from their values


@dataclass(frozen=True, eq=False, slots=True)
class Skeleton:
    """Builds the trees of a skeleton's statements. `kinds` are the kinds of its literals, as in a TreeRecipe. `slot` is
    the literal of a join's window, and `window` builds the window."""

    fill: Fill
    kinds: tuple[str, ...]
    slot: int | None = None
    window: Fill | None = None
    streams: ClearedCache[object, Any] = field(default_factory=lambda: ClearedCache(8))
    """Cached templates of the statements' event streams, by the schemas of their inputs."""


class KnownTree(NamedTuple):
    """A statement's tree without its PUBLISH name, with another statement's spans; the name; and what built it."""

    tree: Query | EventQuery
    name: str | None
    skeleton: Skeleton
    literals: list[str]


class KnownTrees:
    """The trees of statements whose skeletons are known."""

    def __init__(self, literal: re.Pattern[str], parse: Callable[[str], Query | EventQuery | None]) -> None:
        """`literal` finds strings, its first group, and numbers, its second. `parse` returns a statement's tree."""
        self._literal, self._parse = literal, parse
        self._skeletons = ClearedCache[tuple[object, ...], Skeleton | str | None](MAX_SKELETONS)  # at first texts
        self._trees = ClearedCache[Any, tuple[Query | EventQuery, Skeleton, list[str]]](MAX_TREES)

    def query(self, text: str) -> KnownTree | None:
        """Returns a statement's tree, if its skeleton is cached. Statements that differ only in their PUBLISH names
        share all other parts; joins that also differ in their windows share inputs, predicate and SELECT."""
        body, *_ = text.rsplit(None, 2) or [""]
        published = _PUBLISHED.match(text, len(body))
        text, name = (body, published[1]) if published else (text, None)
        if (found := self._trees.get(text)) is None:
            skeleton, literals = self._skeleton_of(text)
            if skeleton is None:
                return None
            try:
                found = self._tree(skeleton, literals), skeleton, literals
            except Problem:
                return None
            self._trees[text] = found
        return KnownTree(found[0], name, *found[1:])

    def _skeleton_of(self, text: str) -> tuple[Skeleton | None, list[str]]:
        """Returns the skeleton of a text, if it is cached and applies to other texts, and the literals."""
        parts = self._literal.split(text)
        strings, numbers = parts[1::3], parts[2::3]
        literals = [number if string is None else string for string, number in zip(strings, numbers, strict=True)]
        key = (*parts[::3], *[string is None for string in strings])
        if key not in self._skeletons:
            self._skeletons[key] = text
            return None, literals
        known = self._skeletons[key]
        if isinstance(known, str):
            # Finding how to rebuild a tree is slow, and most skeletons may have one statement only.
            known = self._skeletons[key] = self._skeleton(known)
        return known, literals

    def _skeleton(self, text: str) -> Skeleton | None:
        tree = self._parse(text)
        # A constructor's holes contain their own texts.
        if tree is None or isinstance(tree.select, ElementConstructor):
            return None
        places = [Span(*found.span()) for found in self._literal.finditer(text)]
        recipe = TreeRecipe({place.start: (slot, place) for slot, place in enumerate(places)}, text)
        fill = recipe.of(tree) or (lambda literals: tree)
        if recipe.kinds.keys() != set(range(len(places))):
            return None  # the lexer found different literals
        kinds = tuple(recipe.kinds[slot] for slot in range(len(places)))
        source = tree.source if isinstance(tree, Query) else None
        if not isinstance(source, Join) or source.window.us is None:
            return Skeleton(fill, kinds)
        return Skeleton(fill, kinds, recipe.slots[source.window.span.start][0], recipe.of(source.window))

    def _tree(self, skeleton: Skeleton, literals: list[str]) -> Query | EventQuery:
        if skeleton.slot is None or skeleton.window is None:
            tree: Query | EventQuery = skeleton.fill(literals)
            return tree
        # By all literals but the window.
        key = skeleton, *literals[: skeleton.slot], *literals[skeleton.slot + 1 :]
        if (found := self._trees.get(key)) is None:
            found = self._trees[key] = skeleton.fill(literals), skeleton, literals
            return found[0]
        query: Any = found[0]
        join = query.source
        other = Join(join.op, join.left, join.right, join.pred, skeleton.window(literals), join.span)
        return Query(other, query.select, query.publish, query.span, query.once, query.hidden)


_UNIT = re.compile(r"\s*([^\W\d][\w.\-]*)")


class TreeRecipe:
    """Rebuilds a tree with other literals. `slots` has the index of each literal by its start. `kinds` are the kinds of
    those that it found: "string", "number", "percentage", or the unit of a window."""

    def __init__(self, slots: dict[int, tuple[int, Span]], text: str) -> None:
        self.slots, self._text = slots, text
        self.kinds: dict[int, str] = {}

    def of(self, node: Any) -> Fill | None:
        """Returns a builder of the node with other literals; None if the node has none."""
        match node:
            case String(span=span):
                return self._filled(span, "string", lambda text: String(unquoted(text)))
            case Number(span=span):
                return self._filled(span, "number", Number)
            case Percentage(span=Span(start, end)):
                return self._filled(Span(start, end - 1), "percentage", Percentage)
            case Window(us=us, span=span) if us is not None and span.start in self.slots:
                number, place = self.slots[span.start]
                found = _UNIT.match(self._text, place.end, span.end)
                unit = self.kinds[number] = found[1] if found else "s"
                return lambda literals: Window(window_us(literals[number], unit, span))
        return rebuilt(node, self.of)

    def _filled(self, span: Span, kind: str, make: Callable[[str], Any]) -> Fill | None:
        """Returns a builder that applies `make` to the literal at a place; None if there is none."""
        slot, place = self.slots.get(span.start, (0, None))
        if place != span:
            return None
        self.kinds[slot] = kind
        return lambda literals: make(literals[slot])


def rebuilt(node: Any, fill_of: Callable[[Any], Fill | None]) -> Fill | None:
    """Returns a builder of a tuple or dataclass with other parts; None if no part has a builder."""
    make: Callable[..., Any]
    if isinstance(node, tuple):
        make, parts = (lambda *made: made), list(node)
    elif is_dataclass(node) and not isinstance(node, Span | type):
        make, parts = type(node), [getattr(node, field.name) for field in fields(node)]
    else:
        return None
    changing = [(place, fill) for place, part in enumerate(parts) if (fill := fill_of(part)) is not None]
    if not changing:
        return None

    def fill_in(literals: Sequence[Any]) -> Any:
        values = list(parts)
        for place, fill in changing:
            values[place] = fill(literals)
        return make(*values)

    return fill_in
