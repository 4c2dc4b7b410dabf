"""The rows of R_T as sets of edges, and which rows are within a set of edges.

A path is the chain of variables from the top of a row's side down to a leaf; an edge is the two paths of a value join.
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
"""The most joins of a row: what XSCL allows."""


@dataclass(frozen=True, slots=True)
class JoinRow:
    """A row of a template with joins, and its edge for each of them, in the template's order."""

    row: Row
    shape: Shape
    edges: tuple[int, ...]


class RowIndex:
    """The rows of R_T. One with joins has a place, by which `joins`, `ids`, `windows` and `ordered` tell what it is."""

    def __init__(self) -> None:
        self.version = 0
        """Changes whenever the rows do."""
        self.joins: list[JoinRow | None] = []
        self.ids: NDArray[np.int64] = np.zeros(1024, np.int64)
        self.windows: NDArray[np.int64] = np.zeros(1024, np.int64)
        self.ordered: NDArray[np.bool_] = np.zeros(1024, np.bool_)
        self.filters: dict[int, dict[int, Row]] = defaultdict(dict)
        """Rows of templates without a join, by their variable and id."""
        self.paths: dict[Path, int] = {}
        """The paths of all edges, numbered."""
        self.openings: Counter[Path] = Counter()
        """The beginnings, of two variables or more, of paths of three or more."""
        self._path_uses: Counter[Path] = Counter()
        self._numbered = self.edge_count = 0
        self.edge_table: NDArray[np.int64] = np.full((1024, MOST_JOINS), -1)
        """For each place the edges of a row of several joins, -1 after them; of no other."""
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
        """Adds a row; one with a known id replaces it."""
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
        self.edge_table[place] = -1
        if len(edges) > 1:
            self.edge_table[place, : len(edges)] = edges
        for edge in set(edges):
            self._using[edge].add(place)
        # Rows are looked for by one of their edges: by the one that finds the fewest others.
        finder = min(set(edges), key=lambda edge: (len(self._found_by[edge]), edge))
        self._found_by[finder].add(place)
        self._finder[place] = finder

    def drop(self, row_id: int) -> None:
        """Takes out a row, if there is one of that id."""
        self.version += 1
        if (variable := self._filtered.pop(row_id, None)) is not None:
            del self.filters[variable][row_id]
        if (place := self._place.pop(row_id, None)) is None:
            return
        gone = self.joins[place]
        assert gone is not None, "a place that is taken has a row"
        self.joins[place] = None
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
                    self.openings.update(path[:end] for end in range(2, len(path)))
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
                self.openings.subtract(path[:end] for end in range(2, len(path)))
                self.openings = +self.openings

    # ------------------------------------------------------------ look-up

    def partners(self, path: int, *, left: bool) -> dict[int, int]:
        """The paths that one on the left, or on the right, is joined with, and by which edges."""
        return (self._rights if left else self._lefts).get(path, {})

    def using(self, edge: int) -> set[int]:
        """The places of the rows that have an edge."""
        return self._using[edge]

    def at(self, place: int) -> JoinRow:
        """The row at a place."""
        row = self.joins[place]
        assert row is not None, "a place that is asked for has a row"
        return row

    def within(self, edges: Collection[int]) -> list[int]:
        """The places, in order, of the rows all of whose edges are among some: takes time in the number of rows that
        are looked for by one of them."""
        return sorted(
            place
            for edge in edges
            for place in self._found_by[edge]
            if (row := self.joins[place]) is not None and all(other in edges for other in row.edges)
        )


def _path(shape: Shape, row: Row, leaf: int) -> Path:
    """The variables from the top of the leaf's side down to it."""
    chain = []
    node: int | None = leaf
    while node is not None:
        chain.append(row.variables[node])
        node = shape.parents[node]
    return tuple(reversed(chain))
