"""Bundles of matches as columns: each match is told apart from the others of its bundle, but its events are not listed
unless somebody asks for them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from common.distinct import distinct
from pattern_stage.columns import Column, Ints, Mask, column_of
from pattern_stage.matching.bundles import Bundle, Later
from pattern_stage.matching.choose import Candidate
from pattern_stage.matching.masks import expanded, flags_of, masks_by_place
from pattern_stage.matching.nodes import Event
from pattern_stage.matching.root_columns import RootColumns
from pattern_stage.matching.tables import Items
from pattern_stage.operators import Origins
from pattern_stage.stretches import spread
from xscl.algebra.events import Kind

_FEW = 16
"""So few roots are read one by one."""


class BundleTable:
    """The matches of bundles. Match i is of bundle `of[i]`; it begins at a place of its trail, at the time `t0[i]`."""

    def __init__(self, bundles: Sequence[Bundle], of: Ints, places: Ints, t0: Ints, *, distinct: bool) -> None:
        """`distinct`: equal sets of events of different bundles have to have equal numbers."""
        self.bundles, self.of, self._places, self.t0, self._distinct = bundles, of, places, t0, distinct
        self.count = len(t0)
        endings = [bundle.ending for bundle in bundles]
        self.known = np.array([one.known for one in endings], np.int64)[of]
        self.t1 = np.array([one.t1 for one in endings], np.int64)[of]
        self.errors = np.array([one.errors for one in endings], np.int64)[of]
        self._items: dict[int, Items] = {}

    def take(self, matches: Ints) -> BundleTable:
        """Returns these matches."""
        return BundleTable(
            self.bundles, self.of[matches], self._places[matches], self.t0[matches], distinct=self._distinct
        )

    # ------------------------------------------------------------ reading

    def sizes(self, variable: int) -> Ints:
        """See Table."""
        found = np.array([sum(map(_length, _pieces(one, variable))) for one in self.bundles], np.int64)[self.of]
        if variable:
            return found
        return found + np.array([bundle.place + 1 for bundle in self.bundles], np.int64)[self.of] - self._places

    def lengths(self) -> Ints:
        """Returns how many events each match has."""
        behind = [bundle.place + 1 + (bundle.later.length if bundle.later else 0) for bundle in self.bundles]
        return np.array(behind, np.int64)[self.of] - self._places

    def ids(self, match: int) -> list[int]:
        """Returns the numbers of the events of a match, one variable after the other."""
        bundle = self.bundles[int(self.of[match])]
        return [event[2] for event in bundle.events(int(self._places[match]))]

    def ends(self, variable: int, slot: int, kind: Kind, *, last: bool) -> Column:
        """See Table."""
        if variable == 0 and not last:
            bundles = self.bundles
            events = [
                bundles[of].trail.event(place)
                for of, place in zip(self.of.tolist(), self._places.tolist(), strict=True)
            ]
            return column_of([event[slot] for event in events], are_texts=kind == "string")
        values = []
        for bundle in self.bundles:
            pieces = _pieces(bundle, variable)
            if not pieces:
                values.append(bundle.trail.event(bundle.place)[slot])
            elif last:
                values.append(pieces[-1].trail.event(pieces[-1].place)[slot])
            else:
                values.append(pieces[0].trail.events[0][slot])
        return column_of(values, are_texts=kind == "string")[self.of]

    def times(self, variable: int, *, last: bool) -> Ints:
        """Returns the t1 of the last event of a variable of each match, or the t0 of its first one."""
        return self.ends(variable, 1 if last else 0, "string", last=last).astype(np.int64)

    def events(self, variable: int) -> Items:
        """See Table."""
        found = self._items.get(variable)
        if found is None:
            found = self._items[variable] = self._listed(variable)
        return found

    def _listed(self, variable: int) -> Items:
        events: list[Event] = []
        firsts: list[int] = []
        for bundle in self.bundles:
            begin = len(events)
            if variable == 0:
                begin -= bundle.trail.forgotten
                events += bundle.trail.until(bundle.place)
            for piece in _pieces(bundle, variable):
                events += piece.trail.until(piece.place)
            firsts.append(begin)
        starts = np.array(firsts, np.int64)[self.of]
        return Items(events, starts + self._places if variable == 0 else starts)

    def parts(self, variable: int, lineage: Origins) -> Ints:
        """See Table."""
        if self._distinct:
            return self._sets(variable, lineage)
        starts: list[int] = []
        ends: list[int] = []
        members: list[Ints] = []
        end = 0
        known: dict[int, tuple[int, int]] = {}
        for bundle, least in zip(self.bundles, self._least().tolist(), strict=True):
            if variable == 0:
                some = [bundle.trail.numbers(least, bundle.place), *map(_members, _pieces(bundle, 0))]
                start = end - least
            elif id(bundle.later) in known:  # bundles that end alike have the same
                start, stop = known[id(bundle.later)]
                starts.append(start)
                ends.append(stop)
                continue
            else:
                some, start = list(map(_members, _pieces(bundle, variable))), end
            members += some
            end += sum(map(len, some))
            known[id(bundle.later)] = start, end
            starts.append(start)
            ends.append(end)
        begins = np.array(starts, np.int64)[self.of] + (self._places if variable == 0 else 0)
        return lineage.ranges(np.concatenate(members), begins, np.array(ends, np.int64)[self.of])

    def _least(self) -> Ints:
        """Returns the least place of each bundle that a match begins at; of one without any, the last."""
        found = np.array([bundle.place for bundle in self.bundles], np.int64)
        np.minimum.at(found, self.of, self._places)
        return found

    def _sets(self, variable: int, lineage: Origins) -> Ints:
        items = self.events(variable)
        places, at = spread(items.starts, self.sizes(variable))
        numbers = np.fromiter((items.events[place][2] for place in places.tolist()), np.int64, len(places))
        return lineage.together(numbers.reshape(-1, 1), at) if len(at) > self.count else numbers


def _pieces(bundle: Bundle, variable: int) -> Sequence[Later]:
    return () if bundle.later is None else bundle.later.by_variable().get(variable, ())


def _length(piece: Later) -> int:
    return piece.place + 1 - piece.trail.forgotten


def _members(piece: Later) -> Ints:
    return piece.trail.numbers(piece.trail.forgotten, piece.place)


# ---------------------------------------------------------------- which matches there are


class Told(NamedTuple):
    """Matches, and pairs: a match, and a row that has it, by match."""

    table: BundleTable
    at: Ints
    rows: Ints

    def only(self, kept: Mask) -> Told:
        """Returns these pairs, and the matches that are left."""
        at, rows = self.at[kept], self.rows[kept]
        left = distinct(at)
        if len(left) == self.table.count:
            return Told(self.table, at, rows)
        return Told(self.table.take(left), np.searchsorted(left, at), rows)

    def candidates(self) -> list[Candidate]:
        """Returns the matches as NON OVERLAPPING compares them."""
        table = self.table
        columns = (table.of, table.known, table.t0, table.t1, table.errors, table.lengths())
        masks = masks_by_place(self.at, self.rows, table.count)
        return [
            Candidate(known, t0, t1, rows, errors, length, table.bundles[of].ending.key, partial(table.ids, match))
            for match, (rows, (of, known, t0, t1, errors, length)) in enumerate(
                zip(masks, zip(*(column.tolist() for column in columns), strict=True), strict=True)
            )
        ]

    def with_rows(self, masks: Sequence[int]) -> Told:
        """Returns the matches with these rows."""
        at, rows = expanded(masks)
        return Told(self.table, at, rows).only(np.ones(len(at), np.bool_))


def told(bundles: Sequence[Bundle], *, distinct: bool) -> Told:
    """Returns the matches of bundles. `distinct`: see BundleTable."""
    of: list[int] = []
    places: list[int] = []
    starts: list[int] = []
    masks: list[int] = []
    many: list[tuple[int, _Picked]] = []
    columns: dict[int, RootColumns] = {}
    for number, bundle in enumerate(bundles):
        if bundle.stop - bundle.first <= _FEW:
            for root in bundle.roots():
                of.append(number)
                places.append(root.place)
                starts.append(root.start)
                masks.append(root.rows)
            continue
        roots = columns.setdefault(id(bundle.trail), RootColumns())
        roots.follow(bundle.trail.roots)
        many.append((number, _picked(bundle, roots)))
    at, rows = expanded(masks)
    found: list[Ints] = [np.array(column, np.int64) for column in (of, places, starts)]
    if many:
        sizes = np.array([len(one.places) for _, one in many], np.int64)
        firsts = len(of) + np.cumsum(sizes) - sizes
        more = [
            np.repeat([number for number, _ in many], sizes),
            np.concatenate([one.places for _, one in many]),
            np.concatenate([one.starts for _, one in many]),
        ]
        found = [np.append(one, other) for one, other in zip(found, more, strict=True)]
        at = np.concatenate([at, *(one.at + first for (_, one), first in zip(many, firsts.tolist(), strict=True))])
        rows = np.concatenate([rows, *(one.rows for _, one in many)])
    return Told(BundleTable(bundles, *found, distinct=distinct), at, rows)


class _Picked(NamedTuple):
    """Where matches begin, and pairs of one of them and a row."""

    places: Ints
    starts: Ints
    at: Ints
    rows: Ints


def _picked(bundle: Bundle, roots: RootColumns) -> _Picked:
    """Returns the matches of a bundle."""
    ending, first, stop = bundle.ending, bundle.first, bundle.stop
    starts = roots.starts[first:stop]
    held = (starts >= ending.low) & (starts <= ending.high) & (roots.bounds[first:stop] < ending.t1)
    pairs = slice(int(roots.firsts[first]), int(roots.firsts[stop]))
    rows, of = roots.rows[pairs], roots.of[pairs] - first
    flags = flags_of(bundle.rows, int(rows.max(initial=0)) + 1)
    kept = flags[rows] & held[of]
    rows, of = rows[kept], of[kept]
    numbers = np.zeros(stop - first, np.int64)
    numbers[of] = 1
    chosen = np.flatnonzero(numbers)
    numbers[chosen] = np.arange(len(chosen))
    return _Picked(roots.places[first:stop][chosen], starts[chosen], numbers[of], rows)
