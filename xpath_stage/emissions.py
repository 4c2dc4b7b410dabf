"""What a node contributes to the witness relations, as numbers, and those of many nodes as columns.

The automaton gives a node one number, its emission: the groups that bind there, each with the depth of the ancestor
that it binds, and the values wanted of it. The columns are computed for many documents at once, without a Python object
a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from templates.witness import ATTRIBUTE_SHIFT

Ints = NDArray[np.int64]

OWN: tuple[tuple[str, ...], ...] = ((),)
"""The one value wanted is the node's own."""

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


MAX_TABLE = 1 << 22
"""Entries of a table of all depths and elements, of 8 bytes each; ancestors in trees past it are searched for."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Of each emission its depth, and where its rows start and how many there are; the rows' attributes."""

    own_depth: Ints
    start: Ints
    count: Ints
    group: Ints
    depth: Ints
    derived1: Ints
    derived2: Ints


class Emissions:
    """The emissions that are known, numbered."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, tuple[BoundGroup, ...], tuple[tuple[str, ...], ...]], int] = {}
        self.values: list[tuple[tuple[str, ...], ...]] = []
        """For each emission the values wanted of its node, as the functions that derive them, () for its own."""
        self._depths: list[int] = []
        self._starts: list[int] = [0]
        self._rows: list[BoundGroup] = []
        self._columns: Columns | None = None

    def __len__(self) -> int:
        return len(self.values)

    def number(self, depth: int, rows: tuple[BoundGroup, ...], values: tuple[tuple[str, ...], ...]) -> int:
        """The number of an emission of nodes at `depth`."""
        key = (depth, rows, values)
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self.values)
            self.values.append(OWN if values == OWN else values)
            self._depths.append(depth)
            self._rows += rows
            self._starts.append(len(self._rows))
            self._columns = None
        return found

    def columns(self) -> Columns:
        """The emissions as columns."""
        if self._columns is None:
            rows = np.array(self._rows, np.int64).reshape(-1, len(BoundGroup._fields))
            starts = np.array(self._starts, np.int64)
            self._columns = Columns(
                np.array(self._depths, np.int64), starts[:-1], np.diff(starts), *map(np.ascontiguousarray, rows.T)
            )
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


def witness_rows(emissions: Emissions, walks: Sequence[Walk]) -> WitnessRows:
    """The rows of R_bin that the walks stand for."""
    columns = emissions.columns()
    lengths = np.array([len(walk.elements) for walk in walks], np.int64)
    first = np.concatenate([[0], np.cumsum(lengths)])
    emission = np.fromiter(chain.from_iterable(walk.elements for walk in walks), np.int64, int(first[-1]))
    levels = _Levels(columns.own_depth[emission])
    owner = np.arange(len(emission))
    walk_of = np.repeat(np.arange(len(walks)), lengths)
    attribute: Ints | None = None
    found = [(i, *three) for i, walk in enumerate(walks) if walk.attributes for three in walk.attributes]
    if found:
        of_walk, its_emission, its_owner, place = np.array(found, np.int64).T
        walk_of = np.concatenate([walk_of, of_walk])
        order = np.argsort(walk_of, kind="stable")
        walk_of = walk_of[order]
        emission = np.concatenate([emission, its_emission])[order]
        owner = np.concatenate([owner, its_owner + first[of_walk]])[order]
        attribute = np.concatenate([np.zeros(len(owner) - len(place), np.int64), place << ATTRIBUTE_SHIFT])[order]
    counts = columns.count[emission]
    node = np.repeat(np.arange(len(emission)), counts)
    row = ranges(columns.start[emission], counts)
    group, depth = columns.group[row], columns.depth[row]
    node2 = owner[node]
    # An element's own depth leads to itself, one above it to its ancestor.
    node1 = levels.last(node2, depth)
    walk = walk_of[node]
    if len(walks) > 1:
        start = first[walk]
        node1, node2 = node1 - start, node2 - start
    if attribute is not None:
        extra = attribute[node]
        # At an attribute's own depth it is the attribute itself that binds, not its owner.
        own = extra * (depth == columns.own_depth[emission[node]])
        node1, node2 = np.where(own, node2, node1) | own, node2 | extra
    if columns.derived2.any():
        node1, node2 = node1 | columns.derived1[row], node2 | columns.derived2[row]
    return WitnessRows(walk, group, node1, node2)


def ranges(starts: Ints, counts: Ints) -> Ints:
    """The numbers start, start + 1, ... of so many for each start, one after the other."""
    ends = np.cumsum(counts)
    return np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts - starts, counts)


class _Levels:
    """The elements at each depth, in document order."""

    def __init__(self, depth: Ints) -> None:
        self._depth = depth

    def last(self, node: Ints, depth: Ints) -> Ints:
        """For each node the last one at that depth that is not after it: with its own depth or less, its ancestor."""
        size, deepest = len(self._depth), int(depth.max(initial=0))
        if (deepest + 1) * size <= MAX_TABLE:
            table = np.empty((deepest + 1, size), np.int64)
            numbers = np.arange(size)
            for level in range(deepest + 1):
                np.maximum.accumulate(np.where(self._depth == level, numbers, 0), out=table[level])
            found: Ints = table.ravel()[depth * size + node]
            return found
        order = np.argsort(self._depth.astype(np.int16), kind="stable")
        keys = self._depth[order] * size + order
        return order[np.searchsorted(keys, depth * size + node, side="right") - 1]
