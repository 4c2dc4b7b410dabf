"""A query made ready to be registered or answered: its text by itself and its normal form, made when it is needed."""

from __future__ import annotations

from functools import cached_property

from join_stage.store.protocol import StoreError
from xscl import Query, Script, XsclErrors, parse_script, to_xscl
from xscl.algebra.normal import Conjunct, Hidden, NormalQuery
from xscl.lower import normalize

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


class Written:
    """A query of a store, by its text, which is parsed when its normal form is first asked for."""

    def __init__(self, text: str, preparation: Preparation) -> None:
        self._text, self._preparation = text, preparation

    @cached_property
    def normal(self) -> NormalQuery:
        """Its normal form. Raises StoreError if the text is no query of this version."""
        return self._preparation.of_text(self._text).normal


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

    def of_text(self, text: str) -> Prepared:
        """The query that a store has as a script of its own, made ready. Raises StoreError if it cannot be read."""
        try:
            script = parse_script(text)
        except XsclErrors as error:
            raise StoreError(f"the store has a query that this version cannot read: {error}") from error
        return self.prepared(script.queries[0], script.namespaces)


def inner_join(normal: NormalQuery, stream: str) -> Hidden:
    """The inner join of a query that makes the hidden stream of a name. Raises StoreError if it has none."""
    waiting: list[Conjunct] = list(normal.conjuncts)
    while waiting:
        for side in waiting.pop().sides():
            if side.hidden is not None:
                if side.stream == stream:
                    return side.hidden
                waiting += side.hidden.conjuncts
    raise StoreError(f"the store has a query that is not made of {stream}, as the store says")
