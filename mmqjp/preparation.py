"""A query made ready to be registered: its text by itself and its normal form; those of trees met before are kept."""

from __future__ import annotations

from functools import cached_property

from xscl import Query, Script, to_xscl
from xscl.normal import normalize

MAX_PREPARED = 20_000
"""Most queries that are kept; past it they are forgotten."""

Namespaces = tuple[tuple[str, str], ...]
"""Prefixes and what they stand for."""


class Prepared:
    """A query of a script with these namespaces, made ready."""

    def __init__(self, query: Query, namespaces: Namespaces) -> None:
        self._script = Script((query,), namespaces)
        self.normal = normalize(query, dict(namespaces))
        self.publish = query.publish

    @cached_property
    def text(self) -> str:
        """The query as a script of its own."""
        return to_xscl(self._script)


class Preparation:
    """Prepares queries. The parser gives the same tree for the same text, so its parts are known by identity."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, str | None, Namespaces], Prepared] = {}

    def prepared(self, query: Query, namespaces: Namespaces) -> Prepared:
        """A query of a script, made ready."""
        key = (id(query.source), id(query.select), query.publish, namespaces)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= MAX_PREPARED:
                self._known.clear()
            # What is kept holds the parts, whose identity no others can have meanwhile.
            found = self._known[key] = Prepared(query, namespaces)
        return found
