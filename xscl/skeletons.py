"""Parses statements that differ only in their constants and PUBLISH names once: the tree of the first is filled in for
the others.

A statement's skeleton is its text without its string and number literals and its PUBLISH name. The lexer splits
statements with the same skeleton into the same tokens, the grammar ignores what literals say, and the builder changes
none but windows.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from xscl.algebra.expressions import ElementConstructor, Span
from xscl.problems import Problem
from xscl.recipes import Fill, Recipe
from xscl.syntax import Join, Query

MAX_SKELETONS = 5_000
"""How many skeletons are remembered. When there are more, all are forgotten."""

MAX_TREES = 20_000
"""How many trees are remembered by the text before PUBLISH. When there are more, all are forgotten."""

# A quote behind a name is a prime. Behind a keyword it opens a string, which stays part of the skeleton.
_LITERAL = re.compile(
    r"""(?<![\w.\-'"]) (?: ("(?:[^"\n]|"")*"|'(?:[^'\n]|'')*') | (-?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)) )""", re.VERBOSE
)
_PUBLISHED = re.compile(
    r"[ \t\r\n]+publish[ \t\r\n]+"
    r"(?!(?:select|from|followed|by|join|publish|as|and|or|not|declare|namespace)[ \t\r\n]*\Z)"
    r"([a-z_][a-z_0-9]*)[ \t\r\n]*\Z",
    re.ASCII | re.IGNORECASE,
)
"""The end of a statement with a simple name, which is no keyword."""


@dataclass(frozen=True, eq=False, slots=True)
class _Filled:
    """Makes the trees of statements with one skeleton. If they are joins with a window, `slot` is the place of its
    number among the literals, and `window` makes it."""

    fill: Fill
    slot: int | None = None
    window: Fill | None = None


_Skeleton = tuple[object, ...]


class KnownSkeletons:
    """The trees of statements so far, by skeleton."""

    def __init__(self, parse: Callable[[str], Query | None]) -> None:
        """`parse` returns the tree of a statement, with its spans in it, or None."""
        self._parse = parse
        self._fills: dict[_Skeleton, _Filled | None] = {}
        self._unused: dict[_Skeleton, str] = {}
        self._trees: dict[object, Query] = {}

    def query(self, text: str) -> Query | None:
        """The tree of a statement if its skeleton is known, without spans; None if it has to be parsed.

        Statements that differ only in their PUBLISH names get the same source and the same SELECT. If they differ in
        the window of a join, too, they get the same inputs, predicate and SELECT.
        """
        text, name = _unpublished(text)
        tree = self._trees.get(text)
        if tree is None:
            skeleton, literals = _split(text)
            if skeleton in self._unused:
                first = self._unused.pop(skeleton)
                query = self._parse(first)
                # The holes of a constructor have texts of their own.
                is_filled = query is not None and not isinstance(query.select, ElementConstructor)
                self._fills[skeleton] = _fill(first, cast(Query, query)) if is_filled else None
            elif skeleton not in self._fills:
                self._add(skeleton, text)
            fill = self._fills.get(skeleton)
            if fill is None:
                return None
            try:
                tree = self._filled(fill, literals)
            except Problem:
                return None
            self._keep(text, tree)
        return tree if name is None else Query(tree.source, tree.select, name, tree.span, tree.once)

    def _filled(self, filled: _Filled, literals: list[str]) -> Query:
        if filled.slot is None or filled.window is None:
            return cast(Query, filled.fill(literals))
        # By the literals but the window.
        key = filled, *literals[: filled.slot], *literals[filled.slot + 1 :]
        tree = self._trees.get(key)
        if tree is None:
            tree = cast(Query, filled.fill(literals))
            self._keep(key, tree)
            return tree
        join = cast(Join, tree.source)
        other = Join(join.op, join.left, join.right, join.pred, filled.window(literals), join.span)
        return Query(other, tree.select, tree.publish, tree.span, tree.once)

    def _keep(self, key: object, tree: Query) -> None:
        if len(self._trees) >= MAX_TREES:
            self._trees.clear()
        self._trees[key] = tree

    def _add(self, skeleton: _Skeleton, text: str) -> None:
        if len(self._fills) + len(self._unused) >= MAX_SKELETONS:
            self._fills.clear()
            self._unused.clear()
        # What makes other trees of it takes long to find, and most statements may have a skeleton of their own.
        self._unused[skeleton] = text


def _fill(text: str, query: Query) -> _Filled | None:
    """What makes the trees of statements with the skeleton of this one."""
    places = [Span(*found.span()) for found in _LITERAL.finditer(text)]
    recipe = Recipe({place.start: (slot, place) for slot, place in enumerate(places)}, text)
    fill = recipe.of(query) or (lambda literals: query)
    # If the lexer found other literals than we did, the tree cannot be used for other statements.
    if recipe.met != set(range(len(places))):
        return None
    source = query.source
    if not isinstance(source, Join) or source.window.us is None:
        return _Filled(fill)
    slot = next(slot for slot, place in enumerate(places) if place.start == source.window.span.start)
    return _Filled(fill, slot, recipe.of(source.window))


def _unpublished(text: str) -> tuple[str, str | None]:
    """A statement without its PUBLISH name, and the name; None if there is none, or one that is not simple."""
    query, *_ = text.rsplit(None, 2) or [""]
    found = _PUBLISHED.match(text, len(query))
    return (text, None) if found is None else (query, found[1])


def _split(text: str) -> tuple[_Skeleton, list[str]]:
    parts = _LITERAL.split(text)
    strings, numbers = parts[1::3], parts[2::3]
    literals = [number if string is None else string for string, number in zip(strings, numbers, strict=True)]
    return (*parts[::3], *[string is None for string in strings]), literals
