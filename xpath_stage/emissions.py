"""Emissions: a node's contribution to the witness relations, as a number; and the rows of many nodes, as columns.

An emission has the groups that bind at a node, each with the depth of the ancestor that it binds, and the needed values
of the node. Columns are computed for many documents at once, without a Python object per row."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache, partial
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.arrays import Ints, distinct, expand_ranges
from common.tools import ItemsAt, items_at, lazy
from templates.catalog import Functions
from templates.witness import ATTRIBUTE_SHIFT, node_id
from xpath_stage.documents import ElementColumns
from xpath_stage.filters import derived_text
from xscl.algebra.values import derive, derive_all, reads_tree, split_values

Derivation = tuple[int, Functions]  # the number of a chain of functions, and the functions; (0, ()) for the plain value

_OWN: tuple[Derivation, ...] = ((0, ()),)  # only the node's plain value is needed

NOTHING, ITS_OWN, OTHERS = range(3)
"""The values that an emission needs of its node: none, the plain one, or others and perhaps the plain one."""


class BoundGroup(NamedTuple):
    """A group that binds at a node: `depth` of its node1, from 0, and the bits that derived values add to ids."""

    group: int
    depth: int
    derived1: int
    derived2: int


MAX_TABLE = 1 << 22
"""Maximum entries, of 8 bytes, of a table of ancestors by depth and element. In larger trees they are searched for."""


@dataclass(frozen=True, slots=True)
class EmissionTable:
    """Emissions as columns. `wants`, `own_depth`, `start` and `end` have an entry per emission: NOTHING, ITS_OWN or
    OTHERS, the depth of its nodes, and the range of its rows. The others have one per row, see `BoundGroup`."""

    derives: bool
    wants: NDArray[np.int8]
    own_depth: Ints
    start: Ints
    end: Ints
    group: Ints
    depth: Ints
    derived1: Ints
    derived2: Ints


class Emissions:
    """The cached emissions, by number. Emission 0 is empty."""

    def __init__(self, failures: dict[str, Exception] | None = None) -> None:
        self.failures = failures  # functions that raised, if that counts as an empty text
        self._numbers: dict[tuple[int, tuple[BoundGroup, ...], tuple[Derivation, ...]], int] = {}
        self.values: list[tuple[Derivation, ...]] = []
        self._wants = array("b")
        self._depths = array("q")
        self._starts = array("q", [0])
        self._rows = array("q")
        self._table: EmissionTable | None = None
        self.number(0, (), ())

    def __len__(self) -> int:
        return len(self.values)

    def number(self, depth: int, rows: tuple[BoundGroup, ...], values: tuple[Derivation, ...]) -> int:
        key = (depth, rows, values)
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self.values)
            self.values.append(values)
            self._wants.append(NOTHING if not values else ITS_OWN if values == _OWN else OTHERS)
            self._depths.append(depth)
            self._rows.extend(chain.from_iterable(rows))
            self._starts.append(self._starts[-1] + len(rows))
            self._table = None
        return found

    def table(self) -> EmissionTable:
        if self._table is None:
            rows = np.array(self._rows, np.int64).reshape(-1, len(BoundGroup._fields))
            starts = np.array(self._starts, np.int64)
            self._table = EmissionTable(
                bool(rows[:, 2:].any()),
                np.array(self._wants, np.int8),
                np.array(self._depths, np.int64),
                starts[:-1],
                starts[1:],
                *map(np.ascontiguousarray, rows.T),
            )
        return self._table


@dataclass(frozen=True, slots=True, eq=False)
class Walk:
    """The result of a walk over documents.

    `elements` has an entry per element: its emission times two, plus one if it has children. `attributes`, `owners` and
    `places` have one per attribute: its emission, its element, and its position there from 1. Nodes may have more
    emissions: `more_elements` has (element, emission), `more_attributes` (attribute, emission)."""

    elements: Sequence[int]
    attributes: Sequence[int]
    owners: Sequence[int]
    places: Sequence[int]
    more_elements: Sequence[tuple[int, int]] = ()
    more_attributes: Sequence[tuple[int, int]] = ()

    def of_elements(self) -> tuple[Ints, Ints]:
        """Elements and their emissions, of equal length: first one per element, in order, then the others."""
        return _with_more(np.array(self.elements, np.int64) >> 1, self.more_elements)

    def of_attributes(self) -> tuple[Ints, Ints]:
        """Attributes and their emissions, of equal length: first one per attribute, in order, then the others."""
        return _with_more(np.array(self.attributes, np.int64), self.more_attributes)


def _with_more(emission: Ints, more: Sequence[tuple[int, int]]) -> tuple[Ints, Ints]:
    nodes = np.arange(len(emission))
    if not more:
        return nodes, emission
    further = np.array(more, np.int64)
    return np.append(nodes, further[:, 0]), np.append(emission, further[:, 1])


@dataclass(frozen=True, slots=True)
class WitnessRows:
    """Rows (document, group, node1, node2) as four columns. Documents are numbered in the order of the walk."""

    document: Ints
    group: Ints
    node1: Ints
    node2: Ints

    @staticmethod
    def concatenated(parts: Sequence[WitnessRows]) -> WitnessRows:
        columns = ([getattr(part, field.name) for part in parts] for field in fields(WitnessRows))
        return WitnessRows(*map(np.concatenate, columns))


def witness_rows(emissions: Emissions, walk: Walk, first: Ints) -> WitnessRows:
    """The rows of R_bin, with elements numbered across all documents. `first` has each document's first element, and at
    the end the number of all elements."""
    table = emissions.table()
    element, emission = walk.of_elements()
    depths = table.own_depth[emission[: len(walk.elements)]]
    rows = _rows(table, depths, first, emission, element, None)
    if not walk.attributes:
        return rows
    attribute, emission = walk.of_attributes()
    owner, place = np.array(walk.owners, np.int64)[attribute], np.array(walk.places, np.int64)[attribute]
    of_attributes = _rows(table, depths, first, emission, owner, place << ATTRIBUTE_SHIFT)
    return WitnessRows.concatenated([rows, of_attributes])


def _rows(
    table: EmissionTable, depths: Ints, first: Ints, emission: Ints, owner: Ints, attribute: Ints | None
) -> WitnessRows:
    row, place = expand_ranges(table.start[emission], table.end[emission])
    node2 = owner[place]
    depth = table.depth[row]
    # At its own depth an element finds itself, and at a lower depth its ancestor.
    node1 = _ancestors(depths, node2, depth)
    document = np.repeat(np.arange(len(first) - 1), np.diff(first))[node2]
    if attribute is not None:
        node2 = node2 | attribute[place]
        # At its own depth an attribute binds itself, not its owner.
        node1 = np.where(depth == table.own_depth[emission][place], node2, node1)
    if table.derives:
        node1, node2 = node1 | table.derived1[row], node2 | table.derived2[row]
    return WitnessRows(document, table.group[row], node1, node2)


def _ancestors(depths: Ints, node: Ints, depth: Ints) -> Ints:
    """For each node, the last element at a depth up to it: its ancestor, if above. `depths` in document order."""
    size, deepest = len(depths), int(depth.max(initial=0))
    if (deepest + 1) * size <= MAX_TABLE:
        table = np.empty((deepest + 1, size), np.int64)
        numbers = np.arange(size)
        for level in range(deepest + 1):
            np.maximum.accumulate(np.where(depths == level, numbers, 0), out=table[level])
        found: Ints = table.ravel()[depth * size + node]
        return found
    order = np.argsort(depths.astype(np.int16), kind="stable")
    keys = depths[order] * size + order
    return order[np.searchsorted(keys, depth * size + node, side="right") - 1]


@dataclass(frozen=True)
class StringValues:
    """The nodes whose values are needed: `elements` and `attributes` for plain values, by number in the columns;
    `derived` has element or owner, attribute or None, and derivation."""

    elements: list[int]
    attributes: list[int]
    derived: list[tuple[int, int | None, Derivation]]
    failures: dict[str, Exception] | None = None

    def nodes(self, columns: ElementColumns) -> tuple[Ints, Ints]:
        """The node ids, with elements numbered across all documents, and their elements, an entry per value."""
        owners = [columns.owners[number] for number in self.attributes]
        ids = [node_id(owner, columns.places[k]) for owner, k in zip(owners, self.attributes, strict=True)]
        ids += [node_id(owner, 0 if k is None else columns.places[k], chain) for owner, k, (chain, _) in self.derived]
        owners += [owner for owner, _, _ in self.derived]
        return np.array(self.elements + ids, np.int64), np.array(self.elements + owners, np.int64)

    def read(self, columns: ElementColumns) -> list[str | None]:
        """The values in the order of `nodes`. None may stand for ''."""
        if columns.unread:
            own = [element for element, attribute, how in self.derived if attribute is None and not reads_tree(how[1])]
            columns.read_values(chain(self.elements, own))
        texts, of_attributes = columns.texts, columns.values
        values = [*self._of_elements(texts), *self._of_attributes(of_attributes)]
        for element, attribute, (_, functions) in self.derived:
            of_tree, names, several = _split(functions)
            value = (texts[element] or "") if attribute is None else of_attributes[attribute]
            if of_tree is not None:
                tree = partial(columns.element, element) if attribute is None else None
                value = self._guarded(of_tree, derived_text, lambda text=value: text, tree, (of_tree,))
            for name in names:
                value = self._guarded(name, derive, name, value)
            if several is not None:
                value = self._guarded(several[0], derive_all, several[1], value)
            values.append(value)
        return values

    @lazy
    def _of_elements(self) -> ItemsAt[str | None]:
        return items_at(self.elements)

    @lazy
    def _of_attributes(self) -> ItemsAt[str]:
        return items_at(self.attributes)

    def _guarded(self, name: str, of: Callable[..., str], *args: object) -> str:
        try:
            return of(*args)
        except Exception as error:
            if self.failures is None:
                raise
            self.failures.setdefault(name, error)
            return ""


@lru_cache(10_000)
def _split(functions: Functions) -> tuple[str | None, Functions, tuple[str, Functions] | None]:
    """A chain's concat() of a tree, if it has one; then functions to apply one by one, or those to apply together, with
    the one that has several values."""
    of_tree, rest = (functions[0], functions[1:]) if reads_tree(functions) else (None, functions)
    split = split_values(rest)
    return (of_tree, rest, None) if split is None else (of_tree, (), (split[1][0], rest))


def string_values(emissions: Emissions, walk: Walk) -> StringValues:
    elements, of_elements = _asked(emissions, *walk.of_elements(), len(walk.elements))
    attributes, of_attributes = _asked(emissions, *walk.of_attributes(), len(walk.attributes))
    derived: list[tuple[int, int | None, Derivation]] = [(element, None, how) for element, how in of_elements]
    derived += [(walk.owners[attribute], attribute, how) for attribute, how in of_attributes]
    return StringValues(elements, attributes, derived, emissions.failures)


def _asked(
    emissions: Emissions, nodes: Ints, emission: Ints, once: int
) -> tuple[list[int], list[tuple[int, Derivation]]]:
    """The distinct nodes of plain values, and pairs of node and derivation. Nodes may repeat from index `once` on."""
    wants = emissions.table().wants[emission]
    own = nodes[wants == ITS_OWN]
    asked = [
        (nodes[place].item(), how)
        for place in np.flatnonzero(wants == OTHERS).tolist()
        for how in emissions.values[emission[place]]
    ]
    if asked:
        own = np.append(own, np.array([node for node, (chain, _) in asked if not chain], np.int64))
    if asked or len(nodes) > once:
        own = distinct(own)
    return own.tolist(), list(dict.fromkeys((node, how) for node, how in asked if how[0]))
