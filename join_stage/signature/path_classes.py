"""Path classes: witnesses whose groups bind the same paths are of one class, and edges join classes."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import count

import numpy as np

from common.distinct import distinct
from join_stage.arrays import Ints
from join_stage.signature.row_index import Path, RowIndex
from templates.catalog import Edge

CLASS_BITS = 24
"""Bits of the number of a set of paths. Two such numbers, or one and a value, are packed into one int64."""


@dataclass(frozen=True, slots=True)
class PathClass:
    """The paths that some witnesses bind: one edge from each group, from the top down.

    `same` says that the only group is bound by a node and itself. `stream` is the stream of the documents.
    """

    groups: tuple[int, ...]
    same: bool
    stream: str


DROPPED = 0
"""The number of the class that no row asks for: that of postings on disk whose own class was dropped."""

_NO_CLASS = PathClass((), False, "")

_OWN_NUMBERS = count(-1, -1)
"""Numbers of groups that stage 1 does not give."""


@dataclass(frozen=True, slots=True)
class KindMeaning:
    """What a pair of sets of paths, left and right, means to the rows.

    `edges` lead from the one set to the other. Of the rows that have some of them, `window` is the largest, in
    microseconds; `ordered` says that all are FOLLOWED BY, `several` that some have several joins; `single` are the
    indices of those with one join.
    """

    edges: tuple[int, ...]
    window: int
    ordered: bool
    several: bool
    single: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _AskedPaths:
    """A set of paths, by number, that rows ask for on one side of documents of a stream."""

    stream: str
    paths: frozenset[int]


class PathClasses:
    """Numbers classes, and looks up what they mean to the rows as they were at the last `renew`."""

    def __init__(self, rows: RowIndex) -> None:
        self._rows = rows
        self._groups: dict[int, frozenset[Edge]] = {}
        self._by_edges: dict[frozenset[Edge], int] = {}
        self._all: list[PathClass] = [_NO_CLASS]
        self._numbers: dict[PathClass, int] = {}
        self.version = rows.version
        """The version of the rows that the look-ups are about."""
        self._chains: dict[tuple[tuple[int, ...], bool], frozenset[Path]] = {}
        self._paths: dict[tuple[tuple[int, ...], bool], frozenset[int]] = {}
        self._asked: list[_AskedPaths] = []
        self._asked_number: dict[_AskedPaths, int] = {}
        self._asked_of = (np.zeros(1, np.int64), np.zeros(1, np.int64))
        self._pairs: dict[tuple[int, int], KindMeaning | None] = {}
        self._edges: dict[int, KindMeaning] = {}
        self._forget()

    def learn(self, groups: Iterable[tuple[int, Iterable[Edge]]]) -> None:
        """Adds groups of edges by number. A number that is known has the same edges again."""
        self._groups.update((number, frozenset(edges)) for number, edges in groups)

    def __len__(self) -> int:
        """The number of known groups."""
        return len(self._groups)

    def only(self, used: Ints, kept: Iterable[int], edges: Collection[Edge]) -> tuple[PathClasses, Ints]:
        """A copy with fewer classes and groups, and for each old class number the new one, -1 if the class is dropped.

        It has the classes in `used`, in their order, their groups, and the groups in `kept`. Groups that have none of
        `edges` are dropped, and so are the classes that consist of them.
        """
        live = {group for group, members in self._groups.items() if any(edge in edges for edge in members)}
        fewer, new = PathClasses(self._rows), np.full(len(self._all), -1)
        for number in used.tolist():
            if number != DROPPED and live.issuperset(self._all[number].groups):
                new[number] = fewer.number(self._all[number])
        needed = {group for path_class in fewer._all for group in path_class.groups}.union(live.intersection(kept))
        fewer.learn((group, self._groups[group]) for group in sorted(needed))
        return fewer, new

    def number_of_edges(self, groups: Iterable[frozenset[Edge]], same: bool, stream: str) -> int:
        """The number of a class whose groups are told by their edges. Groups that no batch has named get numbers of
        their own."""
        if not self._by_edges:
            self._by_edges.update((edges, number) for number, edges in self._groups.items())
        numbers = []
        for edges in groups:
            if (number := self._by_edges.get(edges)) is None:
                number = self._by_edges[edges] = next(_OWN_NUMBERS)
                self._groups[number] = edges
            numbers.append(number)
        return self.number(PathClass(tuple(numbers), same, stream))

    def edges_of(self, number: int) -> tuple[tuple[frozenset[Edge], ...], bool, str]:
        """The groups of a class, told by their edges, and what else it has."""
        found = self._all[number]
        return tuple(self._groups[group] for group in found.groups), found.same, found.stream

    def number(self, path_class: PathClass) -> int:
        number = self._numbers.get(path_class)
        if number is None:
            number = self._numbers[path_class] = len(self._all)
            self._all.append(path_class)
        return number

    def opens(self, groups: tuple[int, ...]) -> bool:
        """Whether a path of some row continues below what the groups bind."""
        return bool(self._open(groups))

    def binds(self, groups: tuple[int, ...], same: bool) -> bool:
        """Whether the groups bind a whole path of some row."""
        return bool(self._bound(groups, same))

    def filters(self, group: int) -> list[int]:
        """The ids of the rows without a join that a group satisfies if a node and itself bind it."""
        variables = sorted({a for a, b in self._groups[group] if a == b})
        return [row for variable in variables for row in self._rows.filters.get(variable, ())]

    def asked(self, classes: Ints, *, left: bool) -> Ints:
        """For each class, the number of the set of its paths that rows ask for on one side; 0 if they ask for none."""
        known = self._asked_of[left]
        if len(known) < len(self._all):
            known = np.append(known, np.full(len(self._all) - len(known), -1))
            self._asked_of = (known, self._asked_of[1]) if not left else (self._asked_of[0], known)
        found = known[classes]
        if (unknown := found < 0).any():
            for number in distinct(classes[unknown]).tolist():
                known[number] = self._ask(self._all[number], left)
            found = known[classes]
        return found

    def _ask(self, path_class: PathClass, left: bool) -> int:
        bound = self._bound(path_class.groups, path_class.same)
        paths = frozenset(path for path in bound if self._rows.partners(path, left=left))
        if not paths:
            return 0
        asked = _AskedPaths(path_class.stream, paths)
        number = self._asked_number.setdefault(asked, len(self._asked))
        if number == len(self._asked):
            assert number < 1 << CLASS_BITS, "more sets of paths than a number has room for"
            self._asked.append(asked)
        return number

    def pair(self, left: int, right: int, streams: frozenset[tuple[str, str]]) -> KindMeaning | None:
        """What two sets of paths mean to the rows; None if no edge joins them, or if `streams` lacks their streams."""
        one, other = self._asked[left], self._asked[right]
        if (one.stream, other.stream) not in streams:
            return None
        key = left, right
        if key not in self._pairs:
            self._pairs[key] = self._pair(one.paths, other.paths)
        return self._pairs[key]

    def _pair(self, left: frozenset[int], right: frozenset[int]) -> KindMeaning | None:
        few, many, from_left = (left, right, True) if len(left) <= len(right) else (right, left, False)
        edges: list[int] = []
        for path in few:
            partners = self._rows.partners(path, left=from_left)
            edges += [partners[other] for other in partners.keys() & many]
        if not edges:
            return None
        return _united([self._edge(edge) for edge in sorted(edges)])

    def _edge(self, edge: int) -> KindMeaning:
        """What a single edge means to the rows."""
        found = self._edges.get(edge)
        if found is None:
            rows, places = self._rows, sorted(self._rows.using(edge))
            single = tuple(place for place in places if len(rows.at(place).edges) == 1)
            window, ordered = int(rows.windows[places].max()), bool(rows.ordered[places].all())
            found = self._edges[edge] = KindMeaning((edge,), window, ordered, len(single) < len(places), single)
        return found

    def _bound(self, groups: tuple[int, ...], same: bool) -> frozenset[int]:
        """The numbers of the paths that the groups bind."""
        key = groups, same
        found = self._paths.get(key)
        if found is None:
            paths = self._rows.paths
            if len(groups) == 1:
                edges = self._groups[groups[0]]
                chains: Iterable[Path] = [*edges, *((a,) for a, b in edges if same and a == b)]
            else:
                chains = self._longer(groups)
            found = self._paths[key] = frozenset(paths[chain] for chain in chains if chain in paths)
        return found

    def _open(self, groups: tuple[int, ...]) -> frozenset[Path]:
        """The chains of variables that the groups bind and that a longer path begins with."""
        key = groups, False
        found = self._chains.get(key)
        if found is None:
            chains = self._groups[groups[0]] if len(groups) == 1 else self._longer(groups)
            found = self._chains[key] = frozenset(chain for chain in chains if chain in self._rows.prefixes)
        return found

    def _longer(self, groups: tuple[int, ...]) -> Iterable[Path]:
        """The open chains of all groups but the last, each continued by an edge of the last group."""
        below: dict[int, list[int]] = {}
        for above, variable in self._groups[groups[-1]]:
            below.setdefault(above, []).append(variable)
        return [(*chain, variable) for chain in self._open(groups[:-1]) for variable in below.get(chain[-1], ())]

    def renew(self) -> None:
        """Brings the look-ups up to date with the rows."""
        if self.version != self._rows.version:
            self.version = self._rows.version
            self._forget()

    def _forget(self) -> None:
        self._chains.clear()
        self._paths.clear()
        self._pairs.clear()
        self._edges.clear()
        self._asked = [_AskedPaths("", frozenset())]
        self._asked_number.clear()
        self._asked_of = (np.zeros(1, np.int64), np.zeros(1, np.int64))


def _united(pairs: list[KindMeaning]) -> KindMeaning:
    return KindMeaning(
        tuple(edge for pair in pairs for edge in pair.edges),
        max(pair.window for pair in pairs),
        all(pair.ordered for pair in pairs),
        any(pair.several for pair in pairs),
        tuple(place for pair in pairs for place in pair.single),
    )
