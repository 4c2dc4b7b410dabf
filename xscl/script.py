"""Scripts: what a text says, as a whole."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from common.quick import quick
from xscl.algebra.events import Schema
from xscl.event_syntax import EventDefinition, EventQuery
from xscl.syntax import Query

StatementKind = Literal["query", "definition", "event query"]


@quick
@dataclass(frozen=True, slots=True)
class Script:
    """The queries of a text, and the namespaces that it declares, as pairs of prefix and URI.

    Beside queries of XSCL, a script may have event statements: definitions of events, and event queries. Then `order`
    has the kind of each statement.
    """

    queries: tuple[Query, ...]
    namespaces: tuple[tuple[str, str], ...] = ()
    definitions: tuple[EventDefinition, ...] = ()
    event_queries: tuple[EventQuery, ...] = ()
    order: tuple[StatementKind, ...] = ()

    @property
    def has_events(self) -> bool:
        """Whether there are event statements."""
        return bool(self.definitions or self.event_queries)

    @property
    def statements(self) -> tuple[Query | EventDefinition | EventQuery, ...]:
        """All statements in the order of the text."""
        if not self.has_events:
            return self.queries
        waiting: dict[StatementKind, Iterator[Query | EventDefinition | EventQuery]] = {
            "query": iter(self.queries),
            "definition": iter(self.definitions),
            "event query": iter(self.event_queries),
        }
        return tuple(next(waiting[kind]) for kind in self.order)

    @property
    def all_queries(self) -> tuple[Query | EventQuery, ...]:
        """The queries of both kinds, in the order of the text."""
        if not self.event_queries:
            return self.queries
        return tuple(one for one in self.statements if not isinstance(one, EventDefinition))

    def names(self) -> tuple[str, ...]:
        """The name of each of `all_queries`: the one it PUBLISHes, else `q` and its position, from 1, or, if a query of
        the script has that name, the next number that is free."""
        taken = self.published()
        names: list[str] = []
        number = 0
        for position, query in enumerate(self.all_queries, 1):
            if query.publish is None:
                number = free_number(max(position, number + 1), taken)
            names.append(query.publish or f"q{number}")
        return tuple(names)

    def published(self) -> frozenset[str]:
        """The names that its queries PUBLISH."""
        return frozenset(query.publish for query in self.all_queries if query.publish is not None)


@dataclass(frozen=True, slots=True)
class EventStreams:
    """Event streams with their attributes: those that are defined, and those that event queries PUBLISH."""

    defined: Mapping[str, Schema] = field(default_factory=dict)
    published: Mapping[str, Schema] = field(default_factory=dict)

    def __contains__(self, name: object) -> bool:
        return name in self.defined or name in self.published

    def __len__(self) -> int:
        return len(self.defined) + len(self.published)


NO_EVENTS = EventStreams()


def free_number(first: int, taken: Container[str]) -> int:
    """The least number from `first` on that names a query without PUBLISH: `q` and the number are not `taken`."""
    while f"q{first}" in taken:
        first += 1
    return first
