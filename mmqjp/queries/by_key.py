"""An index from keys to queries, of which most keys have one."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import cast

from mmqjp.queries.model import Subscription

_Several = dict[Subscription, None]


class ByKey:
    """Queries by key, in the order in which they were added. One alone under its key takes no container."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: dict[Hashable, Subscription | _Several] = {}

    def get(self, key: Hashable) -> Collection[Subscription]:
        """Returns the queries of a key."""
        found = self._found.get(key)
        if found is None:
            return ()
        return (found,) if isinstance(found, Subscription) else found

    def add(self, key: Hashable, query: Subscription) -> None:
        """Adds a query."""
        found = self._found.setdefault(key, query)
        if isinstance(found, dict):
            found[query] = None
        elif found is not query:
            self._found[key] = {found: None, query: None}

    def remove(self, key: Hashable, query: Subscription) -> None:
        """Removes a query. Raises KeyError if it is not there."""
        found = self._found[key]
        if found is query:
            del self._found[key]
            return
        several = cast(_Several, found)
        del several[query]
        if not several:
            del self._found[key]
