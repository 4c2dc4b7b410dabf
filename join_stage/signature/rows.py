"""The rows of R_T as sets of edges between path classes, and the look-up of rows whose edges are all in a given set. A
path is the chain of variables from the top of a side of a row down to a leaf; an edge is the pair of paths of a value
join. Witnesses whose groups bind the same paths are of one class. The rows of several joins that a set of kinds
satisfies are looked up once per distinct set."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import count

import numpy as np
from numpy.typing import NDArray

from common.arrays import Ints, distinct
from common.tools import Memo
from templates.catalog import StepEdge, TemplateRow
from templates.graph import Shape

VariablePath = tuple[int, ...]

MOST_JOINS = 16
"""Maximum number of joins of a row; XSCL enforces it."""


@dataclass(frozen=True, slots=True)
class JoinRow:
    """A row of a template with joins. `edges` has the edge of each join, in template order."""

    row: TemplateRow
    shape: Shape
    edges: tuple[int, ...]


class RowIndex:
    """The rows of R_T. A row with joins has a place, an index into `joins` and arrays; `windows` in microseconds."""

    def __init__(self) -> None:
        self.version = 0
        """Changes with every change of the rows."""
        self.joins: list[JoinRow | None] = []
        self.ids: NDArray[np.int64] = np.zeros(1024, np.int64)
        self.windows: NDArray[np.int64] = np.zeros(1024, np.int64)
        self.ordered: NDArray[np.bool_] = np.zeros(1024, np.bool_)
        self.unordered = 0
        """Number of rows with joins that are not FOLLOWED BY."""
        self.filters: dict[int, dict[int, TemplateRow]] = defaultdict(dict)
        """Rows of templates without a join, by variable and id."""
        self.paths: dict[VariablePath, int] = {}
        """The numbers of the paths of all edges, from 1."""
        self.prefixes: Counter[VariablePath] = Counter()
        """Counts of the proper prefixes, of at least two variables, of all paths."""
        self._path_uses: Counter[VariablePath] = Counter()
        self._numbered = self.edge_count = 0
        self.edge_table: NDArray[np.int64] = np.full((1024, MOST_JOINS), -1)
        """Shape (places, MOST_JOINS): the edges of rows of several joins, padded with -1; else -1."""
        self._edges: dict[tuple[VariablePath, VariablePath], int] = {}
        self._free_edges: list[int] = []
        self._edge_paths: dict[int, tuple[VariablePath, VariablePath]] = {}
        self._rights: dict[int, dict[int, int]] = {}
        self._lefts: dict[int, dict[int, int]] = {}
        self.using: dict[int, set[int]] = {}
        """The places of the rows with each edge."""
        self._found_by: dict[int, set[int]] = {}
        self._finder: dict[int, int] = {}
        self._place: dict[int, int] = {}
        self._filtered: dict[int, int] = {}
        self._free: list[int] = []

    # ------------------------------------------------------------ registration

    def put(self, shape: Shape, row: TemplateRow) -> None:
        """Adds a row, replacing the one with its id."""
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
            self.using[edge].add(place)
        # A row is indexed by one of its edges: the one under which the fewest others are.
        finder = min(set(edges), key=lambda edge: (len(self._found_by[edge]), edge))
        self._found_by[finder].add(place)
        self._finder[place] = finder

    def drop(self, row_id: int) -> None:
        """Removes a row; unknown ids are ignored."""
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
            self.using[edge].discard(place)
            if not self.using[edge]:
                self._drop_edge(edge)

    def _new_place(self) -> int:
        place = len(self.joins)
        self.joins.append(None)
        if place == len(self.windows):
            for name in ("ids", "windows", "ordered", "edge_table"):
                column = getattr(self, name)
                setattr(self, name, np.concatenate([column, np.full_like(column, -1)]))
        return place

    def _edge(self, left: VariablePath, right: VariablePath) -> int:
        edge = self._edges.get((left, right))
        if edge is None:
            edge = self._free_edges.pop() if self._free_edges else self.edge_count
            self.edge_count = max(self.edge_count, edge + 1)
            self._edges[left, right] = edge
            self._edge_paths[edge] = left, right
            self.using[edge], self._found_by[edge] = set(), set()
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
        del self._edges[left, right], self.using[edge], self._found_by[edge]
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
        """The paths joined with a path on the left or right, and the edge for each."""
        return (self._rights if left else self._lefts).get(path, {})

    def at(self, place: int) -> JoinRow:
        row = self.joins[place]
        assert row is not None, "a place that is asked for has a row"
        return row

    def covered_by(self, edges: Collection[int]) -> list[int]:
        """The sorted places of the rows whose edges are all among `edges`, in time linear in the rows of these."""
        return sorted(
            place
            for edge in edges
            for place in self._found_by[edge]
            if (row := self.joins[place]) is not None and all(other in edges for other in row.edges)
        )


def path_to(shape: Shape, leaf: int) -> list[int]:
    """The nodes from the top down to a leaf."""
    path = []
    node: int | None = leaf
    while node is not None:
        path.append(node)
        node = shape.parents[node]
    return path[::-1]


def _path(shape: Shape, row: TemplateRow, leaf: int) -> VariablePath:
    return tuple([row.variables[node] for node in path_to(shape, leaf)])


CLASS_BITS = 24
"""Bits of the number of a set of paths; two, or one and a value, are packed into one int64."""


@dataclass(frozen=True, slots=True)
class PathClass:
    """The paths that some witnesses bind: one edge from each group, from the top down. `same`: a node and itself bind
    the only group. `stream` is that of the documents."""

    groups: tuple[int, ...]
    same: bool
    stream: str


@dataclass(frozen=True, slots=True)
class EdgeClass:
    """A path class by the edges of its groups; group numbers are valid only within one process."""

    groups: tuple[frozenset[StepEdge], ...]
    same: bool
    stream: str


DROPPED = 0
"""The class of postings on disk whose own class was dropped; no row uses it."""

_NO_CLASS = PathClass((), False, "")

_OWN_NUMBERS = count(-1, -1)
"""Numbers of groups that stage 1 does not number."""


@dataclass(frozen=True, slots=True)
class KindMeaning:
    """The meaning to the rows of a pair of sets of paths, left and right. `edges` lead from one set to the other. Of
    the rows with some of them, `window` is the largest, in microseconds; `ordered`: all are FOLLOWED BY; `several`:
    some have several joins; `single` are the indices of those with one join."""

    edges: tuple[int, ...]
    window: int
    ordered: bool
    several: bool
    single: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _AskedPaths:
    stream: str
    paths: frozenset[int]


PairKind = tuple[int, int]
"""The kind of a pair of postings: the numbers of their sets of used paths, left and right."""

Streams = frozenset[tuple[str, str]]

MOST_SETS = 100_000
"""Maximum number of sets whose rows are cached."""


@dataclass(frozen=True, slots=True, eq=False)
class SatisfiedRows:
    """Rows that a set of kinds satisfies: `places`, and by row and join in `choices` the kinds that satisfy it."""

    places: Ints
    choices: list[list[list[PairKind]]]


class PathClasses:
    """Numbers path classes and caches their meaning to the rows as of the last `renew`."""

    def __init__(self, rows: RowIndex) -> None:
        self._rows = rows
        self._groups: dict[int, frozenset[StepEdge]] = {}
        self._by_edges: dict[frozenset[StepEdge], int] = {}
        self._all: list[PathClass] = [_NO_CLASS]
        self._numbers: dict[PathClass, int] = {}
        self._forget()

    def learn(self, groups: Iterable[tuple[int, Iterable[StepEdge]]]) -> None:
        """Adds groups of edges by number. A known number always has the same edges."""
        self._groups.update((number, frozenset(edges)) for number, edges in groups)

    def __len__(self) -> int:
        """The number of known groups."""
        return len(self._groups)

    def only(self, used: Ints, kept: Iterable[int], edges: Collection[StepEdge]) -> tuple[PathClasses, Ints]:
        """A copy with fewer classes and groups, and for each old class the new number, -1 if dropped. It has the
        classes in `used`, in order, their groups, and those in `kept`; without groups that have none of `edges`."""
        live = {group for group, members in self._groups.items() if any(edge in edges for edge in members)}
        fewer, new = PathClasses(self._rows), np.full(len(self._all), -1)
        for number in used.tolist():
            if number != DROPPED and live.issuperset(self._all[number].groups):
                new[number] = fewer.number(self._all[number])
        needed = {group for path_class in fewer._all for group in path_class.groups}.union(live.intersection(kept))
        fewer.learn((group, self._groups[group]) for group in sorted(needed))
        return fewer, new

    def numbers(self, classes: Iterable[EdgeClass]) -> Ints:
        """The numbers of classes. Groups that no batch has named get new numbers."""
        if not self._by_edges:
            self._by_edges.update((edges, number) for number, edges in self._groups.items())
        found = []
        for one in classes:
            groups = []
            for edges in one.groups:
                if (number := self._by_edges.get(edges)) is None:
                    number = self._by_edges[edges] = next(_OWN_NUMBERS)
                    self._groups[number] = edges
                groups.append(number)
            found.append(self.number(PathClass(tuple(groups), one.same, one.stream)))
        return np.array(found, np.int64)

    def edges_of(self, number: int) -> EdgeClass:
        found = self._all[number]
        return EdgeClass(tuple(self._groups[group] for group in found.groups), found.same, found.stream)

    def number(self, path_class: PathClass) -> int:
        number = self._numbers.get(path_class)
        if number is None:
            number = self._numbers[path_class] = len(self._all)
            self._all.append(path_class)
        return number

    def filters(self, group: int) -> list[int]:
        """The ids of the rows without a join that a group satisfies if a node and itself bind it."""
        variables = sorted({a for a, b in self._groups[group] if a == b})
        return [row for variable in variables for row in self._rows.filters.get(variable, ())]

    def asked(self, classes: Ints, *, left: bool) -> Ints:
        """For each class, the number of the set of its paths that rows use on one side; 0 if none."""
        known = self._asked_of[left]
        if len(known) < len(self._all):
            known = self._asked_of[left] = np.append(known, np.full(len(self._all) - len(known), -1))
        found = known[classes]
        if (unknown := found < 0).any():
            for number in distinct(classes[unknown]).tolist():
                known[number] = self._ask(self._all[number], left)
            found = known[classes]
        return found

    def _ask(self, path_class: PathClass, left: bool) -> int:
        bound = self.bound[path_class.groups, path_class.same]
        paths = frozenset(path for path in bound if self._rows.partners(path, left=left))
        if not paths:
            return 0
        asked = _AskedPaths(path_class.stream, paths)
        number = self._asked_number.setdefault(asked, len(self._asked))
        if number == len(self._asked):
            assert number < 1 << CLASS_BITS, "more sets of paths than a number has room for"
            self._asked.append(asked)
        return number

    def pair(self, left: int, right: int, streams: Streams) -> KindMeaning | None:
        """The meaning of two sets of paths; None if no edge joins them or `streams` lacks their streams."""
        one, other = self._asked[left], self._asked[right]
        return self._pairs[left, right] if (one.stream, other.stream) in streams else None

    def within(self, kinds: frozenset[PairKind], streams: Streams) -> SatisfiedRows:
        """The rows of several joins that a set of kinds satisfies, for these pairs of streams, whatever the times."""
        found = self._within.get((streams, kinds))
        if found is None:
            if len(self._within) >= MOST_SETS:
                self._within.clear()
            having: dict[int, list[PairKind]] = {}
            for kind in sorted(kinds):
                pair = self.pair(*kind, streams)
                for edge in pair.edges if pair else ():
                    having.setdefault(edge, []).append(kind)
            places = [place for place in self._rows.covered_by(having) if len(self._rows.at(place).edges) > 1]
            choices = [[having[edge] for edge in self._rows.at(place).edges] for place in places]
            found = self._within[streams, kinds] = SatisfiedRows(np.array(places, np.int64), choices)
        return found

    def _pair(self, asked: tuple[int, int]) -> KindMeaning | None:
        left, right = (self._asked[number].paths for number in asked)
        few, many, from_left = (left, right, True) if len(left) <= len(right) else (right, left, False)
        edges: list[int] = []
        for path in few:
            partners = self._rows.partners(path, left=from_left)
            edges += [partners[other] for other in partners.keys() & many]
        if not edges:
            return None
        pairs = [self._edges[edge] for edge in sorted(edges)]
        return KindMeaning(
            tuple(edge for pair in pairs for edge in pair.edges),
            max(pair.window for pair in pairs),
            all(pair.ordered for pair in pairs),
            any(pair.several for pair in pairs),
            tuple(place for pair in pairs for place in pair.single),
        )

    def _edge(self, edge: int) -> KindMeaning:
        rows, places = self._rows, sorted(self._rows.using[edge])
        single = tuple(place for place in places if len(rows.at(place).edges) == 1)
        window, ordered = int(rows.windows[places].max()), bool(rows.ordered[places].all())
        return KindMeaning((edge,), window, ordered, len(single) < len(places), single)

    def _binding(self, key: tuple[tuple[int, ...], bool]) -> frozenset[int]:
        """The whole paths of rows that groups bind, by number."""
        (groups, same), paths = key, self._rows.paths
        if len(groups) == 1:
            edges = self._groups[groups[0]]
            chains: Iterable[VariablePath] = [*edges, *((a,) for a, b in edges if same and a == b)]
        else:
            chains = self._longer(groups)
        return frozenset(paths[chain] for chain in chains if chain in paths)

    def _opening(self, groups: tuple[int, ...]) -> frozenset[VariablePath]:
        """The proper prefixes of paths of rows that groups bind."""
        chains = self._groups[groups[0]] if len(groups) == 1 else self._longer(groups)
        return frozenset(chain for chain in chains if chain in self._rows.prefixes)

    def _longer(self, groups: tuple[int, ...]) -> Iterable[VariablePath]:
        below: dict[int, list[int]] = {}
        for above, variable in self._groups[groups[-1]]:
            below.setdefault(above, []).append(variable)
        return [(*chain, variable) for chain in self.open[groups[:-1]] for variable in below.get(chain[-1], ())]

    def renew(self) -> None:
        """Updates the cache after changes of the rows."""
        if self._version != self._rows.version:
            self._forget()

    def _forget(self) -> None:
        self._version = self._rows.version
        self.open, self.bound = Memo(self._opening), Memo(self._binding)
        self._pairs, self._edges = Memo(self._pair), Memo(self._edge)
        self._within: dict[tuple[Streams, frozenset[PairKind]], SatisfiedRows] = {}
        self._asked = [_AskedPaths("", frozenset())]
        self._asked_number: dict[_AskedPaths, int] = {}
        self._asked_of: list[Ints] = [np.zeros(1, np.int64), np.zeros(1, np.int64)]
