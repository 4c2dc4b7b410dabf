"""Classes of paths: witnesses that bind the same paths, as stage 1's groups have it, and the edges between them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from join_stage.signature.rows import Path, Rows
from templates.catalog import Edge


@dataclass(frozen=True, slots=True)
class PathClass:
    """The paths that some witnesses bind: an edge of each of the groups, from the top down.

    `same` tells that the one group is bound by a node and itself; `stream` is the documents'.
    """

    groups: tuple[int, ...]
    same: bool
    stream: str


@dataclass(frozen=True, slots=True)
class Pair:
    """What a pair of classes, left and right, means to the rows: the edges between them, the largest window and whether
    all are FOLLOWED BY; whether rows of several edges are among those that have them, and which rows have one only."""

    edges: tuple[int, ...]
    window: int
    ordered: bool
    several: bool
    single: tuple[int, ...]


class Classes:
    """Numbers classes, and tells what they mean to the rows as they are now."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._groups: dict[int, frozenset[Edge]] = {}
        self._all: list[PathClass] = []
        self._numbers: dict[PathClass, int] = {}
        self._version = rows.version
        self._chains: dict[tuple[tuple[int, ...], bool], frozenset[Path]] = {}
        self._paths: dict[tuple[tuple[int, ...], bool], frozenset[int]] = {}
        self._pairs: dict[tuple[int, int], Pair | None] = {}

    def learn(self, groups: Iterable[tuple[int, Iterable[Edge]]]) -> None:
        """Takes in groups of edges; one that is known is the same again."""
        self._groups.update((number, frozenset(edges)) for number, edges in groups)

    def number(self, path_class: PathClass) -> int:
        number = self._numbers.get(path_class)
        if number is None:
            number = self._numbers[path_class] = len(self._all)
            self._all.append(path_class)
        return number

    def __getitem__(self, number: int) -> PathClass:
        return self._all[number]

    def opens(self, groups: tuple[int, ...]) -> bool:
        """Whether a path goes on below what the groups bind."""
        return bool(self._open(groups))

    def binds(self, groups: tuple[int, ...], same: bool) -> bool:
        """Whether the groups bind a whole path."""
        return bool(self._bound(groups, same))

    def filters(self, group: int) -> list[int]:
        """The ids of the rows without a join that a group, bound by a node and itself, satisfies."""
        variables = sorted({a for a, b in self._groups[group] if a == b})
        return [row for variable in variables for row in self._rows.filters.get(variable, ())]

    def pair(self, left: int, right: int) -> Pair | None:
        """What a pair of classes means to the rows; None if nothing. The streams are not asked for."""
        self._renew()
        key = left, right
        if key not in self._pairs:
            self._pairs[key] = self._pair(self._all[left], self._all[right])
        return self._pairs[key]

    def _pair(self, left: PathClass, right: PathClass) -> Pair | None:
        rows = self._rows
        edges = rows.edges_between(self._bound(left.groups, left.same), self._bound(right.groups, right.same))
        if not edges:
            return None
        places = list(rows.using(edges))
        single = [place for place in places if len(rows.edges_at(place)) == 1]
        window, ordered = int(rows.windows[places].max()), bool(rows.ordered[places].all())
        return Pair(tuple(sorted(edges)), window, ordered, len(single) < len(places), tuple(sorted(single)))

    def _bound(self, groups: tuple[int, ...], same: bool) -> frozenset[int]:
        """The paths, by number, that the groups bind."""
        self._renew()
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
        """The chains that the groups bind and that some path begins with."""
        self._renew()
        key = groups, False
        found = self._chains.get(key)
        if found is None:
            chains = self._groups[groups[0]] if len(groups) == 1 else self._longer(groups)
            found = self._chains[key] = frozenset(chain for chain in chains if chain in self._rows.openings)
        return found

    def _longer(self, groups: tuple[int, ...]) -> Iterable[Path]:
        """The chains that go on from open ones by an edge of the last group."""
        below: dict[int, list[int]] = {}
        for above, variable in self._groups[groups[-1]]:
            below.setdefault(above, []).append(variable)
        return [(*chain, variable) for chain in self._open(groups[:-1]) for variable in below.get(chain[-1], ())]

    def _renew(self) -> None:
        if self._version != self._rows.version:
            self._version = self._rows.version
            self._chains.clear()
            self._paths.clear()
            self._pairs.clear()
