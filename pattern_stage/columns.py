"""Columnar events and flows: NumPy columns per attribute, and pairs of events and rows. A flow is what operators
exchange over an interval: events, and for each the rows that have it, as pairs or as stretches of a list of rows.
Constant columns take no memory. `HashTable` finds numbers by hash in one array, without an object each."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from common.arrays import Ints, Mask, distinct, expand_ranges, group_starts
from common.tools import lazy
from xscl.algebra.events import Schema

Floats = NDArray[np.float64]
Column = NDArray[np.int64] | NDArray[np.float64]
"""The values of an attribute: codes of `pattern_stage.values.Texts`, NULL_TEXT for NULL; or float64, NaN for NULL."""

NO_INTS = np.zeros(0, np.int64)

NULL_TEXT = -1  # the code of NULL in a string attribute


def column_of(values: Sequence[Any], *, are_texts: bool) -> Column:
    return np.array(values, np.int64) if are_texts else np.array(values, np.float64)


class ColumnRecord:
    """Columns of one length, or tuples of such, as the fields of a dataclass."""

    __slots__: tuple[str, ...] = ()

    def take(self, places: Ints | Mask | slice) -> Self:
        return self.mapped(lambda column: column[places])

    def mapped(self, change: Callable[[Any], Any]) -> Self:
        fields = map(partial(getattr, self), self.__slots__)
        return type(self)(
            *(tuple([change(column) for column in one]) if isinstance(one, tuple) else change(one) for one in fields)
        )

    def put(self, places: Ints, values: Self) -> None:
        """Overwrites some places of all columns."""
        for name in self.__slots__:
            mine, other = getattr(self, name), getattr(values, name)
            for column, new in zip(mine, other, strict=True) if isinstance(mine, tuple) else ((mine, other),):
                column[places] = new


R = TypeVar("R", bound=ColumnRecord)


def joined(records: Sequence[R]) -> R:
    """Concatenates records with equal numbers of columns."""
    if len(records) == 1:
        return records[0]
    found: list[Any] = []
    for name in records[0].__slots__:
        parts = [getattr(one, name) for one in records]
        if isinstance(parts[0], tuple):
            found.append(tuple([np.concatenate(columns) for columns in zip(*parts, strict=True)]))
        else:
            found.append(np.concatenate(parts))
    return type(records[0])(*found)


@dataclass(frozen=True, slots=True)
class Columns(ColumnRecord):
    """Events of one schema: times in microseconds, a column per attribute, and parts. `parts` has shape (events,
    places): the numbers (`pattern_stage.lineage`) of the events that each was made of, -1 for none."""

    t0: Ints
    t1: Ints
    values: tuple[Column, ...]
    parts: Ints

    def __len__(self) -> int:
        return len(self.t1)


NO_ROWS: Ints = np.zeros(0, np.int64)


def no_events(schema: Schema, parts: int = 1) -> Columns:
    """Returns no events, with this number of places of parts."""
    values: tuple[Column, ...] = tuple([NO_ROWS if kind == "string" else np.zeros(0) for _, kind in schema])
    return Columns(NO_ROWS, NO_ROWS, values, np.zeros((0, parts), np.int64))


def bare_columns(values: Sequence[Column], count: int) -> Columns:
    """Returns values without times and parts."""
    none = np.zeros(count, np.int64)
    return Columns(none, none, tuple(values), none.reshape(-1, 1))


@dataclass(frozen=True, slots=True)
class Stretches:
    """Pairs of event `at[i]` with `sizes[i]` rows of the list from `starts[i]` on. `at` ascends; sizes are positive.
    Far smaller than all pairs where many events share rows, or a prefix of them."""

    at: Ints
    starts: Ints
    sizes: Ints
    rows: Ints

    def __len__(self) -> int:
        return int(self.sizes.sum())

    def pairs(self) -> tuple[Ints, Ints]:
        """Returns events and rows, pair by pair."""
        places, of = spread(self.starts, self.sizes)
        return self.at[of], self.rows[places]

    def only(self, kept: Mask) -> Stretches:
        return Stretches(self.at[kept], self.starts[kept], self.sizes[kept], self.rows)

    def through(self, places: Ints, rows: Ints) -> Stretches:
        """Returns stretches with each row replaced by others: pairs of a row's place, ascending, and a replacement."""
        counts = np.bincount(places, minlength=len(self.rows))
        ends = np.cumsum(counts)
        starts = ends[self.starts] - counts[self.starts]
        sizes = ends[self.starts + self.sizes - 1] - starts
        found = Stretches(self.at, starts, sizes, rows)
        return found if sizes.all() else found.only(sizes > 0)


def spread(starts: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """Returns the numbers of all ranges, concatenated, and the index of the range of each."""
    return expand_ranges(starts, starts + counts)


MIX = np.uint64(0x9E3779B97F4A7C15)  # an odd multiplier that spreads bits upwards

NULL_NUMBER = int(np.array([np.nan]).view(np.int64)[0])  # the result of `same` for a NULL number


class Flow:
    """The distinct events of an m-op over an interval, and their rows: `events[at[i]]` is of `rows[i]`. Events are
    sorted by t1, `at` ascends, pairs are distinct; events may have no row. Stretches become pairs on demand."""

    def __init__(self, events: Columns, at: Ints, rows: Ints) -> None:
        self.events = events
        self.stretches: Stretches | None = None
        vars(self)["_pairs"] = at, rows

    @classmethod
    def of(cls, events: Columns, stretches: Stretches) -> Flow:
        flow = cls.__new__(cls)
        flow.events, flow.stretches = events, stretches
        return flow

    @lazy
    def _pairs(self) -> tuple[Ints, Ints]:
        assert self.stretches is not None
        return self.stretches.pairs()

    @property
    def at(self) -> Ints:
        return self._pairs[0]

    @property
    def rows(self) -> Ints:
        return self._pairs[1]

    def __len__(self) -> int:
        return len(self.at) if self.stretches is None else len(self.stretches)

    def only(self, kept: Mask | Ints) -> Flow:
        return Flow(self.events, self.at[kept], self.rows[kept])

    def compact(self) -> Flow:
        """Drops events without rows."""
        at = self.at if self.stretches is None else self.stretches.at
        starts = group_starts(at)
        if len(starts) == len(self.events):
            return self
        events, at = self.events.take(at[starts]), np.repeat(np.arange(len(starts)), np.diff(starts, append=len(at)))
        if self.stretches is None:
            return Flow(events, at, self.rows)
        return Flow.of(events, replace(self.stretches, at=at))


def whole(events: Columns) -> Flow:
    """Returns the flow of a source, which has only row 0. Events are sorted by t1."""
    return Flow(events, np.arange(len(events)), np.zeros(len(events), np.int64))


def no_flow(schema: Schema, parts: int) -> Flow:
    return Flow(no_events(schema, parts), NO_ROWS, NO_ROWS)


def sorted_flow(events: Columns, at: Ints, rows: Ints) -> Flow:
    """Returns events in any order as a flow."""
    order = np.argsort(events.t1, kind="stable")
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    at = places[at]
    by_place = np.argsort(at, kind="stable")
    return Flow(events.take(order), at[by_place], rows[by_place])


def same(column: Column) -> Ints:
    """Returns numbers that are equal for equal values; NULL equals NULL."""
    if column.dtype == np.int64:
        return cast(Ints, column)
    numbers = column + np.float64(0)  # -0 is 0
    numbers[np.isnan(numbers)] = np.nan
    return numbers.view(np.int64)


def mixed(keys: Sequence[Ints], seed: int = 0) -> Ints:
    """Returns a hash, by `seed`, of each row of columns; without columns, the seed."""
    result = np.full(len(keys[0]) if keys else 0, seed, np.uint64)
    for key in keys:
        result ^= key.view(np.uint64)
        result *= MIX
        result ^= result >> np.uint64(29)
    return result.view(np.int64)


def number_distinct(keys: Sequence[Ints]) -> tuple[Ints, Ints]:
    """Numbers distinct rows of columns by first occurrence; returns these places, and each row's number."""
    count = len(keys[0])
    if len(keys) == 1:
        ordered = np.argsort(keys[0], kind="stable")
    else:
        hashes = mixed(keys)
        ordered = np.argsort(hashes, kind="stable")
        alike = np.flatnonzero(np.diff(hashes[ordered]) == 0)
        if not all(np.array_equal(key[ordered[alike]], key[ordered[alike + 1]]) for key in keys):
            ordered = np.lexsort(tuple(keys))
    starts = group_starts(*(key[ordered] for key in keys))
    heads = ordered[starts]  # a stable sort leaves the first place of each group at its head
    order = np.argsort(heads, kind="stable")
    numbers, result = np.empty(len(heads), np.int64), np.empty(count, np.int64)
    numbers[order] = np.arange(len(heads))
    result[ordered] = np.repeat(numbers, np.diff(starts, append=count))
    return heads[order], result


def joined_flow(flows: Sequence[Flow], none: Flow) -> Flow:
    """Concatenates parts, in any order, as a flow; `none` without parts. Missing places of `Columns.parts` are -1."""
    if not flows:
        return none
    starts = np.cumsum([0, *(len(flow.events) for flow in flows)])
    at = np.concatenate([flow.at + start for flow, start in zip(flows, starts, strict=False)])
    places = max(flow.events.parts.shape[1] for flow in flows)
    events = joined([padded(flow.events, places) for flow in flows])
    return sorted_flow(events, at, np.concatenate([flow.rows for flow in flows])).compact()


def each_once(flow: Flow) -> Flow:
    """Removes duplicate events and pairs. Events are equal if their attributes, times and parts are."""
    events = flow.events
    if len(events) == 0:
        return flow
    parts, lacking = events.parts, events.parts < 0
    if (lacking[:, :-1] & ~lacking[:, 1:]).any():  # the order of places does not matter: -1 goes behind the others
        parts = np.take_along_axis(parts, np.argsort(lacking, axis=1, kind="stable"), 1)
    keys = [events.t1, events.t0, *(same(column) for column in events.values)]
    heads, numbers = number_distinct([*keys, *(np.ascontiguousarray(place) for place in parts.T)])
    if len(heads) == len(events):
        return flow
    width = int(flow.rows.max(initial=0)) + 1
    pairs = distinct(numbers[flow.at] * width + flow.rows)
    return Flow(events.take(heads), pairs // width, pairs % width)


def sets_of(flow: Flow) -> tuple[Ints, Ints, Ints, Ints]:
    """Returns the events with rows, the number of each one's set of rows, and the sets as pairs of number, ascending,
    and row. Sets are equal if they have the same rows in the same order, or the same places of the list of stretches.
    """
    stretches = flow.stretches
    if stretches is not None and np.all(stretches.at[1:] > stretches.at[:-1]):
        firsts, numbers = number_distinct([stretches.starts * (len(stretches.rows) + 1) + stretches.sizes])
        taken, of = spread(stretches.starts[firsts], stretches.sizes[firsts])
        return stretches.at, numbers, of, stretches.rows[taken]
    starts = group_starts(flow.at)
    if len(starts) == len(flow):
        rows, numbers = np.unique(flow.rows, return_inverse=True)
        return flow.at, numbers, np.arange(len(rows)), rows
    sizes = np.diff(starts, append=len(flow))
    places = np.arange(len(flow)) - np.repeat(starts, sizes)
    firsts, numbers = number_distinct([np.add.reduceat(mixed([flow.rows, places]), starts), sizes])
    if not np.array_equal(flow.rows, flow.rows[np.repeat(starts[firsts][numbers], sizes) + places]):
        firsts = numbers = np.arange(len(starts))  # two sets have one hash
    taken, of = spread(starts[firsts], sizes[firsts])
    return flow.at[starts], numbers, of, flow.rows[taken]


def padded(events: Columns, places: int) -> Columns:
    """Pads parts with -1 to this number of places."""
    lacking = places - events.parts.shape[1]
    if not lacking:
        return events
    return replace(events, parts=np.pad(events.parts, ((0, 0), (0, lacking)), constant_values=-1))


C = TypeVar("C", bound=Column)


def scatter(column: C, places: Ints, values: C, size: int) -> C:
    """Returns the column, grown to at least `size`, with values written to some places. Always use the result: a
    constant column is not writable. Unwritten places have arbitrary values."""
    if not len(column) or not column.flags.writeable:
        first = column[:1] if len(column) else values[:1]
        if len(first) and np.all(same(values) == same(first)):
            return cast(C, np.broadcast_to(first[0].copy(), max(size, len(column))))
    if size > len(column) or not column.flags.writeable:
        longer = np.zeros(room(size, len(column)), values.dtype)
        longer[: len(column)] = column
        column = cast(C, longer)
    column[places] = values
    return column


def room(needed: int, have: int) -> int:
    """Returns the capacity for growth: a quarter more, so that appending takes amortised constant time."""
    return max(needed, have + have // 4, 16)


_EMPTY, _GONE = -1, -2
_HALF = 32
_NUMBER = (1 << _HALF) - 1

_SEED = secrets.randbits(63)  # random per process, so that nobody can choose values with equal hashes

_Equal = Callable[[Ints, Ints], Mask]
"""Whether the sought items at these places are equal to the items with these numbers."""


class HashTable:
    """A set of numbers from 0, found by hash; the caller compares items of equal hash. Open addressing with linear
    probing: an entry has a part of the hash and the number."""

    def __init__(self) -> None:
        self._table: Ints = np.full(16, _EMPTY, np.int64)
        self._count = self._taken = 0

    def __len__(self) -> int:
        return self._count

    def find(self, hashes: Ints, equal: _Equal) -> Ints:
        """Returns the number of each sought item, -1 if absent."""
        found: Ints = np.full(len(hashes), -1, np.int64)
        if not self._count:
            return found
        marks, places = marks_of(hashes), np.arange(len(hashes))
        last = len(self._table) - 1
        at = marks & last
        while len(places):
            entries = self._table[at]
            is_open = entries != _EMPTY
            alike = np.flatnonzero(entries >> _HALF == marks[places])
            if len(alike):
                numbers = entries[alike] & _NUMBER
                held = equal(places[alike], numbers)
                alike = alike[held]
                found[places[alike]] = numbers[held]
                is_open[alike] = False
            places, at = places[is_open], (at[is_open] + 1) & last
        return found

    def add(self, hashes: Ints, numbers: Ints) -> None:
        self._count += len(numbers)
        self._taken += len(numbers)
        if 3 * self._taken > 2 * len(self._table):
            entries = self._table[self._table >= 0]
            self._table = np.full(1 << (2 * self._count).bit_length(), _EMPTY, np.int64)
            self._taken = self._count
            self._put(entries)
        self._put(marks_of(hashes) << _HALF | numbers)

    def remove(self, hashes: Ints, numbers: Ints) -> None:
        entries, last = marks_of(hashes) << _HALF | numbers, len(self._table) - 1
        at = entries >> _HALF & last
        while len(at):
            there = self._table[at] == entries
            self._table[at[there]] = _GONE
            at, entries = (at[~there] + 1) & last, entries[~there]
        self._count -= len(numbers)

    def _put(self, entries: Ints) -> None:
        last = len(self._table) - 1
        at = entries >> _HALF & last
        while len(at):
            free = self._table[at] == _EMPTY
            # Where several want one place, one of them gets it.
            self._table[at[free]] = entries[free]
            lacking = self._table[at] != entries
            at, entries = (at[lacking] + 1) & last, entries[lacking]


def marks_of(hashes: Ints) -> Ints:
    """Returns 31 bits of each hash that depend on all of its bits: round numbers differ only in the upper ones."""
    bits = hashes.view(np.uint64)
    return (((bits ^ (bits >> np.uint64(_HALF))) * MIX) >> np.uint64(_HALF + 1)).view(np.int64)


def hashes_of(keys: Sequence[Ints], parameters: Sequence[Ints] = ()) -> Ints:
    """Returns a process-specific hash of each row of columns. NULL parameters do not change the hash, so a column added
    later, NULL for existing rows, leaves it."""
    hashes = mixed(keys, _SEED)
    for place, key in enumerate(parameters):
        there = np.flatnonzero((key != NULL_TEXT) & (key != NULL_NUMBER))
        if len(there) == len(key):
            hashes = mixed([hashes, key], place)
        else:
            hashes[there] = mixed([hashes[there], key[there]], place)
    return hashes
