"""The groups of edges that bind together, numbered for good: how many there are the registered edges bound, whatever
documents come.

What binds at a node is one group where it can be. Two things take it apart. Edges with other filters on values are
never in one group: documents have values of their own, and would each make groups of their own. And edges that were
registered later are apart from those before them, until there are half as many: else each query that comes would make a
group of all edges before it. What is left of variety, that of documents' structure, may make so many groups; past that
an edge is a group alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from templates.catalog import Edge

SHARE = 32
"""In so many groups an edge may be, on average, beside that of its own."""

CROWDED = 10_000
"""So many rows of groups of which nobody knows whether they are still needed are no reason to look for that."""

Filters = tuple[int, ...]
"""The filters on values that a node and those above it must pass for an edge to bind there."""


class _Family:
    """The edges with the same filters on values: how many they are, in runs, and the rows of groups made of them."""

    __slots__ = ("filters", "rows", "runs", "size")

    def __init__(self, filters: Filters) -> None:
        self.filters = filters
        self.size = self.rows = 0
        self.runs: list[_Run] = []

    def take(self, run: _Run) -> None:
        """Takes in a run that is younger than all others. A run is twice as large as the next, at the least."""
        self.size += run.size
        self.runs = [old for old in self.runs if old.size]
        while self.runs and self.runs[-1].size < 2 * run.size:
            younger, run = run, self.runs.pop()
            run.size += younger.size
            younger.merged = run
        self.runs.append(run)


class _Run:
    """Edges of a family that were registered one after the other; they may be `merged` in a run of more."""

    __slots__ = ("family", "merged", "size")

    def __init__(self, family: _Family, size: int) -> None:
        self.family, self.size = family, size
        self.merged: _Run | None = None

    def whole(self) -> _Run:
        """The run that they are part of."""
        run = self
        while run.merged is not None:
            run = run.merged
        return run


class Groups:
    """Numbers of groups; `known` are those of an earlier run."""

    def __init__(self, known: Iterable[tuple[int, frozenset[Edge]]] = ()) -> None:
        self._numbers: dict[frozenset[Edge], int] = {}
        self._next = self._rows = 0
        for number, edges in known:  # a store may have two of the same edges
            self._numbers[edges] = number
            self._next = max(self._next, number + 1)
            self._rows += len(edges)
        self._needed = self._rows
        self._seeds = [edges for edges in self._numbers if len(edges) > 1]
        self._removed = self._refused = False
        self._families: dict[Filters, _Family] = {}
        self._run_of: dict[Edge, _Run] = {}
        self._pending: dict[Edge, Filters] = {}
        self._fresh: list[tuple[int, Edge]] = []
        self._taken: list[tuple[int, Edge]] = []

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def crowded(self) -> bool:
        """Whether there may be many groups by now that nothing needs any more, or some that take others' place."""
        return self._rows > 2 * self._needed + CROWDED or (self._removed and self._refused)

    # ------------------------------------------------------------ registration

    def add(self, edge: Edge, filters: Filters) -> None:
        """Registers an edge that binds under these filters."""
        self._pending[edge] = filters

    def remove(self, edges: Iterable[Edge]) -> None:
        """Takes registered edges away."""
        for edge in edges:
            self._removed = True
            if self._pending.pop(edge, None) is None:
                run = self._run_of.pop(edge).whole()
                run.size -= 1
                run.family.size -= 1
                if not run.family.size:
                    del self._families[run.family.filters]

    def _settle(self) -> None:
        """Sorts in the edges that were registered since the last time."""
        seeds, self._seeds = self._seeds, []
        # Those of an earlier run that were in one group are so again, so that its number stays in use.
        for seed in sorted(seeds, key=len, reverse=True):
            self._sort_in([edge for edge in seed if edge in self._pending])
        self._sort_in(list(self._pending))
        if seeds:
            self._count()

    def _sort_in(self, edges: Sequence[Edge]) -> None:
        by_filters: dict[Filters, list[Edge]] = {}
        for edge in edges:
            by_filters.setdefault(self._pending.pop(edge), []).append(edge)
        for filters, members in by_filters.items():
            family = self._families.setdefault(filters, _Family(filters))
            run = _Run(family, len(members))
            self._run_of.update(dict.fromkeys(members, run))
            family.take(run)

    def _count(self) -> None:
        """Counts the rows of all groups."""
        self._rows = sum(map(len, self._numbers))
        for family in self._families.values():
            family.rows = 0
        for edges in self._numbers:
            run = self._run_of.get(next(iter(edges)))
            if run is not None and len(edges) > 1:
                run.whole().family.rows += len(edges)

    # ------------------------------------------------------------ numbers

    def numbers(self, edges: Collection[Edge]) -> list[int]:
        """The groups that together are these edges, which bind together."""
        if self._pending:
            self._settle()
        if len(edges) == 1:
            return [self.number(frozenset(edges))]
        parts: dict[_Family | None, list[Edge]] = {}
        for edge in edges:
            run = self._run_of.get(edge)
            parts.setdefault(None if run is None else run.whole().family, []).append(edge)
        # Numbers are handed out in an order that does not depend on that of a set.
        return [number for part in sorted(parts.items(), key=_first) for number in self._numbered(*part)]

    def _numbered(self, family: _Family | None, edges: list[Edge]) -> Iterator[int]:
        """The groups of edges of a family, if they are in one."""
        known = self._numbers.get(frozenset(edges))
        if known is not None:
            yield known
            return
        runs: dict[_Run | None, list[Edge]] = {}
        for edge in edges:
            runs.setdefault(self._run_of[edge].whole() if family else None, []).append(edge)
        for _, part in sorted(runs.items(), key=_first):
            key = frozenset(part)
            if len(part) > 1 and key not in self._numbers:
                if family is None or family.rows + len(part) > SHARE * family.size:
                    self._refused = True
                    yield from (self.number(frozenset((edge,))) for edge in sorted(part))
                    continue
                family.rows += len(part)
            yield self.number(key)

    def number(self, edges: frozenset[Edge]) -> int:
        """The number of the one group that is these edges."""
        number = self._numbers.get(edges)
        if number is None:
            number = self._numbers[edges] = self._next
            self._next += 1
            self._rows += len(edges)
            self._fresh += [(number, edge) for edge in sorted(edges)]
        return number

    # ------------------------------------------------------------ batches

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

    def keep(self, numbers: Collection[int]) -> None:
        """Forgets all groups but these and those that are not stored yet. Their numbers are not handed out again."""
        kept = {*numbers, *(number for number, _ in self._fresh)}
        self._numbers = {edges: number for edges, number in self._numbers.items() if number in kept}
        self._count()
        self._needed = self._rows
        self._removed = self._refused = False


def _first(part: tuple[object, list[Edge]]) -> Edge:
    return min(part[1])
