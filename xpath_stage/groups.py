"""The groups of edges that always bind together, numbered for good, and which of the numbers are not stored yet."""

from __future__ import annotations

from collections.abc import Iterable

from templates.catalog import Edge


class Groups:
    """Numbers of groups; `known` are those of an earlier run."""

    def __init__(self, known: Iterable[tuple[int, frozenset[Edge]]] = ()) -> None:
        self._numbers: dict[frozenset[Edge], int] = {}
        self._next = 0
        for number, edges in known:  # a store may have two of the same edges
            self._numbers[edges] = number
            self._next = max(self._next, number + 1)
        self._fresh: list[tuple[int, Edge]] = []
        self._taken: list[tuple[int, Edge]] = []

    def number(self, edges: frozenset[Edge]) -> int:
        """The number of a group."""
        number = self._numbers.get(edges)
        if number is None:
            number = self._numbers[edges] = self._next
            self._next += 1
            self._fresh += [(number, edge) for edge in sorted(edges)]
        return number

    def take(self) -> list[tuple[int, Edge]]:
        """(group, edge) of the groups made since the last call."""
        taken, self._fresh = self._fresh, []
        self._taken += taken
        return taken

    def saved(self, saved: bool) -> None:
        """Tells whether the groups taken since the last call are stored for good; if not they are new again."""
        if not saved:
            self._fresh = self._taken + self._fresh
        self._taken = []
