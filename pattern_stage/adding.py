"""Brings statements of many forms into a plan at once: m-op by m-op, inputs first, the rows of all of them together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, repeat

import numpy as np

from pattern_stage.columns import Column, Ints
from pattern_stage.definition import Node
from pattern_stage.plan import Bound, Changes, MOp, Plan, is_aggregate, tells_since
from pattern_stage.rows import NO_BOUND, Vectors
from pattern_stage.rules import Placement
from pattern_stage.stretches import spread


@dataclass(frozen=True, slots=True)
class Alike:
    """Statements of one form: of each its constants and windows."""

    bound: Bound
    constants: Sequence[tuple[str | float, ...]]
    windows: Sequence[tuple[int, ...]]

    def __len__(self) -> int:
        return len(self.constants)


def add(plan: Plan, groups: Sequence[Alike], ids: Ints, since: Ints) -> tuple[Ints, Changes]:
    """Adds statements, whose numbers are given one group after the other. Returns the row of each in the last m-op of
    its form, and the new rows of each m-op."""
    adding = _Adding(plan, ids, since)
    first = 0
    for group in groups:
        adding.take(group, first)
        first += len(group)
    return adding.run(), adding.new


@dataclass(frozen=True, slots=True)
class _Part:
    """What a node of a form brings to an m-op: as many rows as there are statements, from `begin` on."""

    group: Alike
    place: int
    first: int
    """The place of the first statement among all."""
    begin: int
    inputs: tuple[int, ...]
    """Where the rows of its inputs begin among those of their m-ops."""

    @property
    def node(self) -> Node:
        return self.group.bound.form.nodes[self.place]

    def columns(self) -> list[Sequence[str | float]]:
        """The parameters of its rows."""
        node, constants = self.node, self.group.constants
        if node.alike:
            rows = [node.sorted_values([row[slot] for slot in node.slots]) for row in constants]
            return list(zip(*rows, strict=True))
        return [[row[slot] for row in constants] for slot in node.slots]


class _Adding:
    def __init__(self, plan: Plan, ids: Ints, since: Ints) -> None:
        self.new: Changes = {}
        self._plan, self._ids, self._since = plan, ids, since
        self._parts: dict[int, list[_Part]] = {}
        self._sizes: dict[int, int] = {}
        self._last: dict[int, list[tuple[int, int, int]]] = {}
        """By last m-op: of each group its first statement, where its rows begin, and how many they are."""
        self._found: dict[int, Ints] = {}

    def take(self, group: Alike, first: int) -> None:
        """Takes in a group."""
        bound, begins, count = group.bound, list[int](), len(group)
        for place, node in enumerate(bound.form.nodes):
            mop = bound.mops[place]
            begin = self._sizes.get(mop.number, 0)
            begins.append(begin)
            if mop.placement is None:
                continue
            self._sizes[mop.number] = begin + count
            inputs = tuple([begins[at] for at in node.inputs])
            self._parts.setdefault(mop.number, []).append(_Part(group, place, first, begin, inputs))
        self._last.setdefault(bound.mops[-1].number, []).append((first, begins[-1], count))
        bound.statements += count

    def run(self) -> Ints:
        """Adds all rows. Returns the row of each statement in its last m-op."""
        for number in sorted(self._parts):
            mop, parts = self._plan.mops[number], self._parts[number]
            self._found[number], made = mop.rows.add(self._vectors(mop, parts))
            if len(made):
                self.new[number] = made
        rows: Ints = np.zeros(len(self._ids), np.int64)
        for number, groups in self._last.items():
            if number in self._found:
                firsts, begins, counts = np.array(groups, np.int64).T
                rows[spread(firsts, counts)[0]] = self._found[number][spread(begins, counts)[0]]
        return rows

    def _vectors(self, mop: MOp, parts: Sequence[_Part]) -> Vectors:
        assert mop.placement is not None
        counts = np.array([len(part.group) for part in parts], np.int64)
        statements, _ = spread(np.array([part.first for part in parts], np.int64), counts)
        zeros = np.zeros(len(statements), np.int64)
        sides = [zeros, zeros]
        for side, number in enumerate(mop.inputs[:2]):
            if number in self._found:
                begins = np.array([part.inputs[side] for part in parts], np.int64)
                sides[side] = self._found[number][spread(begins, counts)[0]]
        shapes = np.repeat(np.array([part.group.bound.shapes[part.place] for part in parts], np.int64), counts)
        within = np.fromiter(chain.from_iterable(map(_windows, parts)), np.int64, len(statements))
        since, ids = self._since[statements], self._ids[statements]
        apart = since if tells_since(mop.placement) else ids if mop.placement.own_rows else zeros
        parameters = self._parameters(mop, parts, len(statements))
        for at, column in enumerate(_apart_columns(mop.placement, sides[0], within, since, ids)):
            for part in parts:
                rows = slice(part.begin, part.begin + len(part.group))
                kinds = len(part.node.slots)
                parameters[part.group.bound.places[part.place][kinds + at]][rows] = column[rows]
        return Vectors(sides[0], sides[1], shapes, within, apart, tuple(parameters))

    def _parameters(self, mop: MOp, parts: Sequence[_Part], count: int) -> list[Column]:
        """The parameters of all parts as columns, with NULL where a shape has none."""
        width = len(mop.rows.parameters)
        columns: list[list[str | float | None]] = [[None] * count for _ in range(width)]
        for part in parts:
            end = part.begin + len(part.group)
            for place, values in zip(part.group.bound.places[part.place], part.columns(), strict=False):
                columns[place][part.begin : end] = values
        return [
            self._plan.column(column, "string" if of.dtype == np.int64 else "number")
            for column, of in zip(columns, mop.rows.parameters, strict=True)
        ]


def _windows(part: _Part) -> Sequence[int] | repeat[int]:
    window = part.node.window
    if window < 0:
        return repeat(NO_BOUND, len(part.group))
    return [windows[window] for windows in part.group.windows]


def _apart_columns(placement: Placement, left: Ints, within: Ints, since: Ints, ids: Ints) -> list[Column]:
    columns = [left] * placement.own_left + [within] * placement.own_window
    if is_aggregate(placement):
        columns += [since] * placement.own_since + [ids] * placement.own_rows
    return [column.astype(np.float64) for column in columns]
