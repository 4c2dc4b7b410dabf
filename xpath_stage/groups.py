"""Groups of edges that bind together, with permanent numbers. Registered edges bound their number, not documents.

The edges that bind at a node are one group if possible. Two rules split them. Edges with different value filters are
never in one group, because documents differ in their values, and each would make its own groups. Edges that were
registered later are apart from earlier ones until there are half as many, because otherwise each new query would make a
group of all earlier edges. The variety that is left is that of the structure of documents. It is bounded by SHARE, past
which each edge is a group of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from templates.catalog import Edge

SHARE = 32
"""The largest average number of groups that an edge is in, beside its own."""

CROWDED = 10_000
"""The number of rows of possibly unneeded groups that are tolerated."""

Filters = tuple[int, ...]
"""The value filters that a node and its ancestors must pass for an edge to bind there."""


class _Family:
    """The edges with the same value filters: their number (`size`), their runs, and the rows of groups of them."""

    __slots__ = ("filters", "rows", "runs", "size")

    def __init__(self, filters: Filters) -> None:
        self.filters = filters
        self.size = self.rows = 0
        self.runs: list[_Run] = []

    def take(self, run: _Run) -> None:
        """Adds the newest run. Runs are merged so that each is at least twice as large as the next."""
        self.size += run.size
        self.runs = [old for old in self.runs if old.size]
        while self.runs and self.runs[-1].size < 2 * run.size:
            younger, run = run, self.runs.pop()
            run.size += younger.size
            younger.merged = run
        self.runs.append(run)


class _Run:
    """Edges of a family that were registered one after the other. The run may be `merged` into a larger one."""

    __slots__ = ("family", "merged", "size")

    def __init__(self, family: _Family, size: int) -> None:
        self.family, self.size = family, size
        self.merged: _Run | None = None

    def whole(self) -> _Run:
        """The unmerged run that these edges are in."""
        run = self
        while run.merged is not None:
            run = run.merged
        return run


class Groups:
    """Numbers groups. `known` are the groups of an earlier run."""

    def __init__(self, known: Iterable[tuple[int, frozenset[Edge]]] = ()) -> None:
        self._numbers: dict[frozenset[Edge], int] = {}
        self._edges: dict[int, frozenset[Edge]] = {}
        self._next = self._rows = 0
        for number, edges in known:  # a store may have two groups with the same edges
            self._numbers[edges] = number
            self._edges[number] = edges
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
        """Whether there may be many groups that nothing needs any more, or some that leave no room for others."""
        return self._rows > 2 * self._needed + CROWDED or (self._removed and self._refused)

    # ------------------------------------------------------------ registration

    def add(self, edge: Edge, filters: Filters) -> None:
        """Registers an edge with its value filters."""
        self._pending[edge] = filters

    def remove(self, edges: Iterable[Edge]) -> None:
        """Unregisters edges."""
        for edge in edges:
            self._removed = True
            if self._pending.pop(edge, None) is None:
                run = self._run_of.pop(edge).whole()
                run.size -= 1
                run.family.size -= 1
                if not run.family.size:
                    del self._families[run.family.filters]

    def _settle(self) -> None:
        """Puts the edges that were registered since the last time into families and runs."""
        seeds, self._seeds = self._seeds, []
        # Edges that were in one group in an earlier run are in one group again, so that its number stays in use.
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
        """Recounts the rows of all groups."""
        self._rows = sum(map(len, self._numbers))
        for family in self._families.values():
            family.rows = 0
        for edges in self._numbers:
            run = self._run_of.get(next(iter(edges)))
            if run is not None and len(edges) > 1:
                run.whole().family.rows += len(edges)

    # ------------------------------------------------------------ numbers

    def numbers(self, edges: Collection[Edge]) -> list[int]:
        """The numbers of the groups that together have these edges, which bind together."""
        if self._pending:
            self._settle()
        if len(edges) == 1:
            return [self.number(frozenset(edges))]
        parts: dict[_Family | None, list[Edge]] = {}
        for edge in edges:
            run = self._run_of.get(edge)
            parts.setdefault(None if run is None else run.whole().family, []).append(edge)
        # The order of new numbers must not depend on the order of a set.
        return [number for part in sorted(parts.items(), key=_first) for number in self._numbered(*part)]

    def _numbered(self, family: _Family | None, edges: list[Edge]) -> Iterator[int]:
        """The numbers of the groups of edges of one family, or of edges that are not registered (None)."""
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
        """The number of the one group with these edges."""
        number = self._numbers.get(edges)
        if number is None:
            number = self._numbers[edges] = self._next
            self._edges[number] = edges
            self._next += 1
            self._rows += len(edges)
            self._fresh += [(number, edge) for edge in sorted(edges)]
        return number

    def edges_of(self, numbers: Iterable[int]) -> dict[int, frozenset[Edge]]:
        """The edges of groups, by their numbers."""
        return {number: self._edges[number] for number in numbers}

    # ------------------------------------------------------------ batches

    def take(self) -> list[tuple[int, Edge]]:
        """The pairs (group, edge) of the groups made since the last call."""
        taken, self._fresh = self._fresh, []
        self._taken += taken
        return taken

    def saved(self, saved: bool) -> None:
        """Is told whether the groups taken since the last call are stored. If not, they are new again."""
        if not saved:
            self._fresh = self._taken + self._fresh
        self._taken = []

    def keep(self, numbers: Collection[int]) -> None:
        """Drops all groups but these and those that are not stored yet. Numbers are never reused."""
        kept = {*numbers, *(number for number, _ in self._fresh)}
        self._numbers = {edges: number for edges, number in self._numbers.items() if number in kept}
        self._edges = {number: edges for edges, number in self._numbers.items()}
        self._count()
        self._needed = self._rows
        self._removed = self._refused = False


def _first(part: tuple[object, list[Edge]]) -> Edge:
    return min(part[1])
