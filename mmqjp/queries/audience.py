"""Audiences: the active queries of a set that is answered together, as columns, kept up to date as they change."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from mmqjp.queries.few import Few
from mmqjp.queries.members import Ints, Members
from mmqjp.queries.model import Subscription

FEW = 32
"""So many changes, or an eighth of the members, are applied to an audience; more make it anew."""

MANY = 1_000
"""Audiences of so many queries are made before a document needs them."""


@dataclass(frozen=True, eq=False)
class Audience:
    """The active queries of a set at one time: `members`, and `queries` in the same order.

    `latest_gap` is the last document of any pause that ended.
    """

    queries: Sequence[Subscription]
    members: Members
    latest_gap: int

    @classmethod
    def of(cls, queries: Collection[Subscription]) -> Audience:
        """Returns the audience of active queries."""
        ordered = sorted(queries, key=_order)
        columns = [np.array([getattr(query, name) for query in ordered], np.int64) for name in _COLUMNS]
        names, identities = [query.name for query in ordered], [query.identity for query in ordered]
        return cls(ordered, Members.active(names, identities, columns), _latest_gap(ordered))

    def changed(self, gone: Collection[Subscription], new: Collection[Subscription]) -> Audience:
        """Returns the audience without some queries and with others: many times faster than making it anew."""
        members, ordered = self.members, sorted(new, key=_order)
        without = sorted(self.place_of(query) for query in gone)
        columns = [np.delete(getattr(members, column), without) for column in _MEMBER_COLUMNS]
        lists: list[list[Any]] = [list(self.queries), list(members.names), list(members.identities)]
        for place in reversed(without):
            for one in lists:
                del one[place]
        places = [bisect_left(lists[0], _order(query), key=_order) for query in ordered]
        for attribute, i in zip(_COLUMNS, range(len(columns)), strict=True):
            columns[i] = np.insert(columns[i], places, [getattr(query, attribute) for query in ordered])
        for shift, (place, query) in enumerate(zip(places, ordered, strict=True)):
            for one, value in zip(lists, (query, query.name, query.identity), strict=True):
                one.insert(place + shift, value)
        queries, names, identities = lists
        latest_gap = max(self.latest_gap, _latest_gap(ordered))
        return Audience(queries, Members.active(names, identities, columns), latest_gap)

    @cached_property
    def windows(self) -> Ints:
        """The windows of the members, in ascending order."""
        return np.sort(self.members.windows)

    @cached_property
    def sinces(self) -> Ints:
        """The last documents that members do not see, in ascending order."""
        return np.sort(self.members.sinces)

    @cached_property
    def narrowest(self) -> int:
        """The narrowest window."""
        return int(self.windows[0])

    @cached_property
    def latest_since(self) -> int:
        """The document after which all members see everything."""
        return int(self.sinces[-1])

    @cached_property
    def latest_begun(self) -> int:
        """The batch at which the last member began."""
        return int(self.members.begun.max())

    @cached_property
    def gapped(self) -> tuple[Subscription, ...]:
        """The members that were paused before."""
        return tuple(query for query in self.queries if query.gaps)

    def place_of(self, query: Subscription) -> int:
        """Returns the place of a member."""
        return bisect_left(self.queries, _order(query), key=_order)

    def since_qid(self, first_qid: int) -> Audience | None:
        """Returns the audience of those with at least a qid; None if there is none."""
        found = [query for query in self.queries if query.qid >= first_qid]
        return Audience.of(found) if found else None


def _latest_gap(queries: Iterable[Subscription]) -> int:
    return max((high for query in queries for _, high in query.gaps if high is not None), default=-1)


def _order(query: Subscription) -> tuple[str, int]:
    return query.name, query.qid


_COLUMNS, _MEMBER_COLUMNS = ("qid", "width", "since", "begun"), ("qids", "windows", "sinces", "begun")
"""Attributes of queries, and the columns of members that have them."""


class QuerySet:
    """Queries that are answered together, and the audience of those that are active. `id` names the set in stores."""

    def __init__(self, id: str) -> None:
        self.id = id
        self._queries: Few[Subscription] = Few()
        # The audience, once it was asked for, the queries in it, and those that have changed since.
        self._audience: Audience | None = None
        self._members: set[Subscription]
        self._changed: set[Subscription]

    def __len__(self) -> int:
        """Returns the number of registered queries."""
        return len(self._queries)

    def __iter__(self) -> Iterator[Subscription]:
        """Iterates over the registered queries."""
        return iter(self._queries)

    def __contains__(self, query: Subscription) -> bool:
        return query in self._queries

    def add(self, query: Subscription) -> None:
        """Adds a query."""
        self._queries.add(query)
        self.note(query)

    def remove(self, query: Subscription) -> None:
        """Removes a query."""
        self._queries.discard(query)
        self.note(query)

    def note(self, query: Subscription) -> None:
        """Notes that a query was added, removed, paused or resumed."""
        if self._audience is not None:
            self._changed.add(query)

    @property
    def audience(self) -> Audience:
        """The active queries. Cached until queries change."""
        if self._audience is None or len(self._changed) > FEW + len(self._members) // 8:
            self._members = {query for query in self._queries if query.active}
            self._audience = Audience.of(self._members)
        elif self._changed:
            gone = self._changed & self._members
            new = {query for query in self._changed if query in self._queries and query.active}
            self._audience = self._audience.changed(gone, new)
            self._members -= gone
            self._members |= new
        self._changed = set()
        return self._audience
