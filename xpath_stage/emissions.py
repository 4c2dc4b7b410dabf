"""What a node contributes to the witness relations, as numbers, and those of many nodes as columns.

The automaton gives a node one number, its emission: the groups that bind there, each with the depth of the ancestor
that it binds, and the values wanted of it. The columns are computed for many documents at once, without a Python object
a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

MAX_EMISSIONS = 200_000
"""Most emissions that are kept numbered; past it the numbers start anew."""


class BoundGroup(NamedTuple):
    """A group of edges that bind at a node: `depth` is that of the ancestor node1 (elements from 0);
    `derived1` and `derived2` are the bits that derived values add to the ids of the two nodes, 0 for the nodes
    themselves."""

    group: int
    depth: int
    derived1: int
    derived2: int


class Emissions:
    """The emissions that are known, numbered."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, tuple[BoundGroup, ...], tuple[tuple[str, ...], ...]], int] = {}
        self.values: list[tuple[tuple[str, ...], ...]] = []
        """For each emission the values wanted of its node, as the functions that derive them, () for its own."""
        self._depths: list[int] = []
        self._starts: list[int] = [0]
        self._rows: list[BoundGroup] = []
        self._columns: tuple[Ints, Ints, Ints] | None = None

    def __len__(self) -> int:
        return len(self.values)

    def number(self, depth: int, rows: tuple[BoundGroup, ...], values: tuple[tuple[str, ...], ...]) -> int:
        """The number of an emission of nodes at `depth`."""
        key = (depth, rows, values)
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self.values)
            self.values.append(values)
            self._depths.append(depth)
            self._rows += rows
            self._starts.append(len(self._rows))
            self._columns = None
        return found

    def columns(self) -> tuple[Ints, Ints, Ints]:
        """(depth of each emission, start of its rows and one more, the rows: group, depth, derived1, derived2)."""
        if self._columns is None:
            rows = np.array(self._rows, np.int64).reshape(-1, len(BoundGroup._fields))
            self._columns = np.array(self._depths, np.int64), np.array(self._starts, np.int64), rows
        return self._columns


@dataclass(slots=True, eq=False)
class Walk:
    """What was found on a walk over a document's tree: an emission for each element in document order.

    `attributes` holds (emission, owner, place from 1) of the attributes that have one.
    """

    elements: Sequence[int]
    attributes: Sequence[tuple[int, int, int]]


@dataclass(frozen=True, slots=True)
class WitnessRows:
    """Rows (walk, group, node1, node2), ordered by walk."""

    walk: Ints
    group: Ints
    node1: Ints
    node2: Ints


def witness_rows(emissions: Emissions, walks: Sequence[Walk], attribute_shift: int) -> WitnessRows:
    """The rows of R_bin that the walks stand for; an attribute's place is shifted into its node id."""
    depth_of, start_of, bound = emissions.columns()
    lengths = np.array([len(walk.elements) for walk in walks], np.int64)
    first = np.concatenate([[0], np.cumsum(lengths)])
    emission = np.fromiter((e for walk in walks for e in walk.elements), np.int64, int(first[-1]))
    owner = np.arange(len(emission))
    extra = np.zeros(len(emission), np.int64)
    walk_of = np.repeat(np.arange(len(walks)), lengths)
    depth = depth_of[emission]
    levels = _Levels(depth)
    attributes = np.array([(i, *found) for i, walk in enumerate(walks) for found in walk.attributes], np.int64).reshape(
        -1, 4
    )
    if len(attributes):
        walk_of = np.concatenate([walk_of, attributes[:, 0]])
        emission = np.concatenate([emission, attributes[:, 1]])
        owner = np.concatenate([owner, attributes[:, 2] + first[attributes[:, 0]]])
        extra = np.concatenate([extra, attributes[:, 3] << attribute_shift])
        order = np.argsort(walk_of, kind="stable")
        walk_of, emission, owner, extra = walk_of[order], emission[order], owner[order], extra[order]
        depth = depth_of[emission]
    counts = start_of[emission + 1] - start_of[emission]
    bearing = np.flatnonzero(counts)
    counts = counts[bearing]
    node = np.repeat(bearing, counts)
    row = bound[ranges(start_of[emission[bearing]], counts)]
    # At the node's own depth it is the node itself that binds, elsewhere the last element before it at that depth.
    above = levels.last(owner[node], row[:, 1])
    start = first[walk_of[node]]
    itself = row[:, 1] == depth[node]
    node1 = np.where(itself, owner[node], above) - start | np.where(itself, extra[node], 0) | row[:, 2]
    node2 = owner[node] - start | extra[node] | row[:, 3]
    return WitnessRows(walk_of[node], row[:, 0], node1, node2)


def ranges(starts: Ints, counts: Ints) -> Ints:
    """The numbers start, start + 1, ... of so many for each start, one after the other."""
    ends = np.cumsum(counts)
    return np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts - starts, counts)


class _Levels:
    """The elements at each depth, in document order."""

    def __init__(self, depth: Ints) -> None:
        self._order = np.argsort(depth.astype(np.int16), kind="stable")
        self._size = max(len(depth), 1)
        self._keys = depth[self._order] * self._size + self._order

    def last(self, node: Ints, depth: Ints) -> Ints:
        """For each node the last one at that depth that is not after it: with its own depth or less, its ancestor."""
        return self._order[np.searchsorted(self._keys, depth * self._size + node, side="right") - 1]
