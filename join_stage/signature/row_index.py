"""The rows of R_T as sets of edges, and a look-up of the rows whose edges are all in a given set.

A path is the chain of variables from the top of a side of a row down to a leaf. An edge is the pair of paths of a value
join.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from templates.catalog import Row
from templates.template import Shape

Path = tuple[int, ...]

MOST_JOINS = 16
"""The largest number of joins of a row, which XSCL limits."""


@dataclass(frozen=True, slots=True)
class JoinRow:
    """A row of a template with joins. `edges` has the edge of each join, in the order of the template."""

    row: Row
    shape: Shape
    edges: tuple[int, ...]


class RowIndex:
    """The rows of R_T. A row with joins has an index, called its place, into `joins`, `ids`, `windows`, `ordered` and
    `edge_table`. Windows are in microseconds."""

    def __init__(self) -> None:
        self.version = 0
        """Changes with every change of the rows."""
        self.joins: list[JoinRow | None] = []
        self.ids: NDArray[np.int64] = np.zeros(1024, np.int64)
        self.windows: NDArray[np.int64] = np.zeros(1024, np.int64)
        self.ordered: NDArray[np.bool_] = np.zeros(1024, np.bool_)
        self.unordered = 0
        """The number of rows with joins that are not FOLLOWED BY."""
        self.filters: dict[int, dict[int, Row]] = defaultdict(dict)
        """The rows of templates without a join, by variable and id."""
        self.paths: dict[Path, int] = {}
        """The numbers of the paths of all edges, from 1."""
        self.prefixes: Counter[Path] = Counter()
        """The proper prefixes, of two variables or more, of all paths, counted."""
        self._path_uses: Counter[Path] = Counter()
        self._numbered = self.edge_count = 0
        self.edge_table: NDArray[np.int64] = np.full((1024, MOST_JOINS), -1)
        """Shape (places, MOST_JOINS). A row of several joins has its edges first and then -1; all others have -1."""
        self._edges: dict[tuple[Path, Path], int] = {}
        self._free_edges: list[int] = []
        self._edge_paths: dict[int, tuple[Path, Path]] = {}
        self._rights: dict[int, dict[int, int]] = {}
        self._lefts: dict[int, dict[int, int]] = {}
        self._using: dict[int, set[int]] = {}
        self._found_by: dict[int, set[int]] = {}
        self._finder: dict[int, int] = {}
        self._place: dict[int, int] = {}
        self._filtered: dict[int, int] = {}
        self._free: list[int] = []

    # ------------------------------------------------------------ registration

    def put(self, shape: Shape, row: Row) -> None:
        """Adds a row, or replaces the row with its id."""
        self.drop(row.id)
        if not shape.joins:
            self._filtered[row.id] = row.variables[0]
            self.filters[row.variables[0]][row.id] = row
            return
        place = self._free.pop() if self._free else self._new_place()
        edges = tuple(self._edge(_path(shape, row, left), _path(shape, row, right)) for left, right in shape.joins)
        self.joins[place] = JoinRow(row, shape, edges)
        self.ids[place], self.windows[place], self.ordered[place] = row.id, row.window, row.ordered
        self._place[row.id] = place
        self.unordered += not row.ordered
        self.edge_table[place] = -1
        if len(edges) > 1:
            self.edge_table[place, : len(edges)] = edges
        for edge in set(edges):
            self._using[edge].add(place)
        # A row is indexed by one of its edges: the one under which the fewest others are.
        finder = min(set(edges), key=lambda edge: (len(self._found_by[edge]), edge))
        self._found_by[finder].add(place)
        self._finder[place] = finder

    def drop(self, row_id: int) -> None:
        """Removes the row with an id, if there is one."""
        self.version += 1
        if (variable := self._filtered.pop(row_id, None)) is not None:
            del self.filters[variable][row_id]
        if (place := self._place.pop(row_id, None)) is None:
            return
        gone = self.joins[place]
        assert gone is not None, "a place that is taken has a row"
        self.joins[place] = None
        self.unordered -= not gone.row.ordered
        self.edge_table[place] = -1
        self._free.append(place)
        self._found_by[self._finder.pop(place)].discard(place)
        for edge in set(gone.edges):
            self._using[edge].discard(place)
            if not self._using[edge]:
                self._drop_edge(edge)

    def _new_place(self) -> int:
        place = len(self.joins)
        self.joins.append(None)
        if place == len(self.windows):
            for name in ("ids", "windows", "ordered", "edge_table"):
                column = getattr(self, name)
                setattr(self, name, np.concatenate([column, np.full_like(column, -1)]))
        return place

    def _edge(self, left: Path, right: Path) -> int:
        edge = self._edges.get((left, right))
        if edge is None:
            edge = self._free_edges.pop() if self._free_edges else self.edge_count
            self.edge_count = max(self.edge_count, edge + 1)
            self._edges[left, right] = edge
            self._edge_paths[edge] = left, right
            self._using[edge], self._found_by[edge] = set(), set()
            for path in (left, right):
                if path not in self.paths:
                    self._numbered += 1
                    self.paths[path] = self._numbered
                    self.prefixes.update(path[:end] for end in range(2, len(path)))
                self._path_uses[path] += 1
            one, other = self.paths[left], self.paths[right]
            self._rights.setdefault(one, {})[other] = self._lefts.setdefault(other, {})[one] = edge
        return edge

    def _drop_edge(self, edge: int) -> None:
        left, right = self._edge_paths.pop(edge)
        del self._edges[left, right], self._using[edge], self._found_by[edge]
        self._free_edges.append(edge)
        one, other = self.paths[left], self.paths[right]
        del self._rights[one][other], self._lefts[other][one]
        for path in (left, right):
            self._path_uses[path] -= 1
            if not self._path_uses[path]:
                del self._path_uses[path]
                number = self.paths.pop(path)
                self._rights.pop(number, None)
                self._lefts.pop(number, None)
                self.prefixes.subtract(path[:end] for end in range(2, len(path)))
                self.prefixes = +self.prefixes

    # ------------------------------------------------------------ look-up

    def partners(self, path: int, *, left: bool) -> dict[int, int]:
        """The paths that a path on the left, or on the right, is joined with, and the edge for each."""
        return (self._rights if left else self._lefts).get(path, {})

    def using(self, edge: int) -> set[int]:
        """The places of the rows with an edge."""
        return self._using[edge]

    def at(self, place: int) -> JoinRow:
        """The row at a place."""
        row = self.joins[place]
        assert row is not None, "a place that is asked for has a row"
        return row

    def covered_by(self, edges: Collection[int]) -> list[int]:
        """The places, sorted, of the rows whose edges are all among `edges`. Takes time in the number of rows that are
        indexed by one of these."""
        return sorted(
            place
            for edge in edges
            for place in self._found_by[edge]
            if (row := self.joins[place]) is not None and all(other in edges for other in row.edges)
        )


def _path(shape: Shape, row: Row, leaf: int) -> Path:
    """The variables from the top of a side down to its leaf."""
    chain = []
    node: int | None = leaf
    while node is not None:
        chain.append(row.variables[node])
        node = shape.parents[node]
    return tuple(reversed(chain))
