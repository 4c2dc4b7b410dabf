"""Measures: the numbers per event from which AGGREGATE computes its aggregates, and the windows that hold them.
Simultaneous events that are alike merge into one row with counts, least and greatest values, and exact sums; merging is
associative, so its order does not matter. Rows of one class over one input share stored events, whatever their OVER and
since."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, NamedTuple

import numpy as np

from common.arrays import Ints, distinct
from pattern_stage.columns import Column, Floats, mixed, number_distinct, same, spread
from pattern_stage.fan_out import Interned, RowReaders, Slots, grow_array
from pattern_stage.plan import Rows
from pattern_stage.values import Pairs, Texts, aggregate_ranges, compile_value, known, sums
from pattern_stage.windows import counts_in, sums_in
from xscl.algebra.events import Aggregate, Aggregated, AggregateName, Function, Schema, Value, value_kind

MergeKind = Literal["count", "sum", "min", "max"]
"""How values of a column are merged, without NaN. Counts are never NaN."""


class Merged(NamedTuple):
    """Merged rows: for each, the place of its first source row and its values; and for each source row its first merged
    row. Of several merged rows for one key, the first has the counts."""

    firsts: Ints
    columns: list[Floats]
    of: Ints


def merge_rows_by_key(keys: Sequence[Ints], columns: Sequence[Column], kinds: Sequence[MergeKind]) -> Merged:
    """Merges rows with equal keys. A sum that is no double is the exact sum of several rows' values: the nearest
    double, the one nearest to the rest, and so on."""
    heads, of = number_distinct(keys)
    if len(heads) == len(of):
        return Merged(heads, [column.astype(np.float64, copy=False) for column in columns], of)
    order = np.argsort(of, kind="stable")
    starts = np.searchsorted(of[order], np.arange(len(heads)))
    ends = np.append(starts[1:], len(of))
    found: list[list[Floats]] = []
    for kind, column in zip(kinds, columns, strict=True):
        ordered = column[order].astype(np.float64)
        match kind:
            case "count":
                found.append([np.add.reduceat(ordered, starts)])
            case "sum":
                found.append(addends(ordered, starts, ends))
            case "min":
                found.append([np.fmin.reduceat(ordered, starts)])
            case "max":
                found.append([np.fmax.reduceat(ordered, starts)])
    firsts, values = [heads], [[parts[0]] for parts in found]
    for step in range(1, max((len(parts) for parts in found), default=1)):
        more = np.zeros(len(heads), np.bool_)
        for parts in found:
            if step < len(parts):
                more |= ~np.isnan(parts[step])
        firsts.append(heads[more])
        for mine, kind, parts in zip(values, kinds, found, strict=True):
            none = np.full(len(heads), 0.0 if kind == "count" else np.nan)
            mine.append((parts[step] if step < len(parts) else none)[more])
    return Merged(np.concatenate(firsts), [np.concatenate(column) for column in values], of)


def addends(numbers: Floats, starts: Ints, ends: Ints) -> list[Floats]:
    """Returns doubles whose exact sum is that of the numbers of each non-empty range, without NaN.

    The first array has one for each range with any number; the others, as few as possible, are padded with NaN.

    >>> [part.tolist() for part in addends(np.array([1e16, 1.0, 0.5, 0.25]), np.array([0, 2]), np.array([2, 4]))]
    [[1e+16, 0.75], [1.0, nan]]
    """
    known = counts_in(~np.isnan(numbers), starts, ends)
    found = [np.fmax.reduceat(numbers, starts) + 0.0]  # that of a range with one number
    places = np.flatnonzero(known > 1)
    sums = sums_in(numbers, starts[places], ends[places])
    huge = [(place, _huge(numbers[starts[place] : ends[place]])) for place in places[np.isnan(sums)].tolist()]
    places, sums = places[~np.isnan(sums)], sums[~np.isnan(sums)]
    found[0][places] = sums
    rest, of = spread(starts[places], (ends - starts)[places])
    values = numbers[rest]
    while len(places):
        # What was found so far is taken away.
        values, of = np.append(values, -sums), np.append(of, np.arange(len(places)))
        order = np.argsort(of, kind="stable")
        values, of = values[order], of[order]
        begins = np.searchsorted(of, np.arange(len(places)))
        sums = sums_in(values, begins, np.append(begins[1:], len(of)))
        more = sums != 0
        if not more.any():
            break
        kept = more[of]
        values, of = values[kept], (np.cumsum(more) - 1)[of[kept]]
        places, sums = places[more], sums[more]
        found.append(np.full(len(starts), np.nan))
        found[-1][places] = sums
    for place, parts in huge:
        for step, part in enumerate(parts):
            if step == len(found):
                found.append(np.full(len(starts), np.nan))
            found[step][place] = part
    return found


def _huge(numbers: Floats) -> list[float]:
    total = sum(map(Fraction, numbers[~np.isnan(numbers)].tolist()), Fraction(0))
    found: list[float] = []
    while total:
        try:
            nearest = float(total)
        except OverflowError:
            nearest = sys.float_info.max if total > 0 else -sys.float_info.max
        found.append(nearest)
        total -= Fraction(nearest)
    return found


class Measure(NamedTuple):
    """A stored measure of an argument: whether it is `known`, as a number; a merged number; or its `value`."""

    what: Literal["known", "sum", "min", "max", "value"]
    of: Value

    @property
    def is_text(self) -> bool:
        return self.what == "value" and value_kind(self.of) == "string"

    @property
    def kind(self) -> MergeKind:
        """The merge of its column."""
        assert self.what != "value"
        return "count" if self.what == "known" else self.what


class AggregateItem(NamedTuple):
    """An aggregate: its name, and the places of its measures."""

    name: AggregateName
    places: tuple[int, ...]


def measures_of(one: Aggregated) -> tuple[Measure, ...]:
    """Returns the measures of an aggregate; a bare count() has none."""
    match one.name:
        case "count":
            return tuple(Measure("known", argument) for argument in one.args)
        case "sum" | "avg":
            return Measure("sum", _number(one.args[0])), Measure("known", _number(one.args[0]))
        case "min" | "max":
            return (Measure(one.name, _number(one.args[0])),)
        case "argmax":
            return Measure("value", one.args[0]), Measure("value", _number(one.args[1]))


def _number(value: Value) -> Value:
    return Function("number", (value,), "number") if value_kind(value) == "string" else value


def compile_measure(measure: Measure, schema: Schema, texts: Texts) -> Callable[[Pairs], Column]:
    value = compile_value(measure.of, schema, None, texts)
    return lambda pairs: _as_measure(measure, value(pairs))


def _as_measure(measure: Measure, values: Column) -> Column:
    if measure.what == "value":
        return values
    # -0 is 0: which of them is the least does not depend on their order.
    return known(values).astype(np.float64) if measure.what == "known" else values + np.float64(0)


def kept_before(definition: Aggregate) -> list[bool]:
    """Returns which argument columns are texts in states of the older format."""
    return [value_kind(argument) == "string" for _, one in definition.items for argument in _arguments(one)]


def as_measures(definition: Aggregate, columns: Sequence[Column], measures: Sequence[Measure]) -> list[Column]:
    found: dict[Measure, Column] = {}
    arguments = [(one, argument) for _, one in definition.items for argument in _arguments(one)]
    for (one, argument), column in zip(arguments, columns, strict=True):
        for measure in measures_of(one):
            if measure.of == argument:
                found[measure] = _as_measure(measure, column)
    return [found[measure] for measure in measures]


def _arguments(one: Aggregated) -> tuple[Value, ...]:
    if one.name == "argmax":
        return tuple(measure.of for measure in measures_of(one))
    return tuple(dict.fromkeys(measure.of for measure in measures_of(one)))


def computed(
    item: AggregateItem, columns: Sequence[Column], totals: Sequence[Ints], starts: Ints, ends: Ints, texts: Texts
) -> Column:
    """Returns an aggregate of non-empty ranges of rows. `totals` are running sums from 0: of the events per row, then
    of each count column."""
    at = item.places
    if item.name == "count":
        total = totals[at[0] + 1 if at else 0]
        return (total[ends] - total[starts]).astype(np.float64)
    if item.name in ("sum", "avg"):
        total = totals[at[1] + 1]
        numbers: Floats = columns[at[0]]  # type: ignore[assignment]  # a sum's column is of numbers
        return sums(item.name, numbers, total[ends] - total[starts], starts, ends)
    return aggregate_ranges(item.name, [columns[place] for place in at], starts, ends, texts)


def totals_of(weights: Ints, columns: Sequence[Column], measures: Sequence[Measure]) -> list[Ints]:
    """Returns the `totals` of rows; empty for measures that are no counts."""
    none = np.zeros(0, np.int64)
    found = [np.append(0, np.cumsum(weights))]
    for column, measure in zip(columns, measures, strict=True):
        is_count = measure.what == "known"
        found.append(np.append(0, np.cumsum(column.astype(np.int64))) if is_count else none)
    return found


class _Groups(Interned):
    left: Ints
    of: Ints


class _Spans(Interned):
    group: Ints
    over: Ints


class WindowGroups:
    """Groups of rows; the rows of a group with equal OVER are a span."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self.groups = RowReaders()
        """Groups by input row."""
        self.spans = RowReaders()
        """Spans by group."""
        self.members = RowReaders()
        """Rows by span."""
        self.of_row = np.full(16, -1, np.int64)
        """The group of each row."""
        self.within = np.zeros(16, np.int64)
        """The greatest OVER of each group."""
        self._groups, self._spans = _Groups(("left", "of")), _Spans(("group", "over"))
        self._span_of_row = np.full(16, -1, np.int64)

    @property
    def class_of(self) -> Ints:
        """The class of each group."""
        return self._groups.of

    @property
    def over(self) -> Ints:
        """The OVER of each span."""
        return self._spans.over

    def add(self, new: Ints, classes: Ints) -> None:
        over = self._rows.within[new]
        groups, fresh, _ = self._groups.intern([self._rows.left[new], classes])
        self.groups.add(fresh, self._groups.left[fresh])
        spans, more, _ = self._spans.intern([groups, over])
        self.spans.add(more, self._spans.group[more])
        self.members.add(new, spans)
        self.within = grow_array(self.within, self._groups.end)
        self.within[fresh] = 0
        np.maximum.at(self.within, groups, over)
        self.of_row = grow_array(self.of_row, int(new.max(initial=-1)) + 1, -1)
        self._span_of_row = grow_array(self._span_of_row, len(self.of_row), -1)
        self.of_row[new], self._span_of_row[new] = groups, spans

    def remove(self, gone: Ints) -> Ints:
        """Removes rows; returns the groups left empty."""
        self.members.remove(gone)
        emptied, empty = self._spans.release(self._span_of_row[gone]), self._groups.release(self.of_row[gone])
        self.of_row[gone] = self._span_of_row[gone] = -1
        self.spans.remove(emptied)
        self.groups.remove(empty)
        narrowed = distinct(self._spans.group[emptied])
        at, left = self.spans.of(narrowed)
        self.within[narrowed] = 0
        np.maximum.at(self.within, narrowed[at], self._spans.over[left])
        self._spans.free(emptied)
        self._groups.free(empty)
        return empty


@dataclass(frozen=True, slots=True)
class WindowRows:
    """Stored events: row, t1, number of events, what they count for, and some values."""

    rows: Ints
    times: Ints
    weights: Ints
    sizes: Ints
    columns: tuple[Column, ...]


class WindowStore:
    """The events in windows. An interval scans all marks, and reads the events of its groups."""

    def __init__(self, are_texts: Sequence[bool]) -> None:
        self.counts = np.zeros(16, np.int64)
        """What the events of each row count for."""
        self._slots = Slots()
        self._alive = np.zeros(16, np.bool_)
        self._rows, self._times, self._weights, self._sizes, self._marks = (np.zeros(16, np.int64) for _ in range(5))
        self._columns: list[Column] = [np.zeros(16, np.int64) if text else np.zeros(16) for text in are_texts]

    def all(self) -> WindowRows:
        return self._take(np.flatnonzero(self._alive[: self._slots.end]))

    def touched(self, rows: Ints, by: Sequence[Column]) -> WindowRows:
        """Returns the events of these groups, by row and values of BY, and perhaps a few more."""
        marks = _marks(rows, by)
        table = np.zeros(1 << max(10, int(8 * len(marks)).bit_length()), np.bool_)
        table[marks & (len(table) - 1)] = True
        end = self._slots.end
        return self._take(np.flatnonzero(table[self._marks[:end] & (len(table) - 1)] & self._alive[:end]))

    def add(self, given: WindowRows, by: int) -> None:
        """Adds events, whose first `by` columns are the values of BY."""
        rows, columns, places = given.rows, given.columns, self._slots.take(len(given.rows))
        if self._slots.end > len(self._alive):
            self._grow(self._slots.end)
        self._rows[places], self._times[places], self._marks[places] = rows, given.times, _marks(rows, columns[:by])
        self._weights[places], self._sizes[places], self._alive[places] = given.weights, given.sizes, True
        for mine, column in zip(self._columns, columns, strict=True):
            mine[places] = column
        self.counts = grow_array(self.counts, int(rows.max(initial=-1)) + 1)
        np.add.at(self.counts, rows, given.sizes)

    def expire(self, over: Ints, until: int) -> None:
        """Drops events in no window that ends at `until` or later; `over` is by row."""
        end = self._slots.end
        alive = self._alive[:end]
        self._drop(np.flatnonzero((self._times[:end] + over[self._rows[:end]] <= until) & alive))

    def remove_rows(self, gone: Ints) -> None:
        end = self._slots.end
        self._drop(np.flatnonzero(np.isin(self._rows[:end], gone) & self._alive[:end]))

    def _drop(self, places: Ints) -> None:
        np.subtract.at(self.counts, self._rows[places], self._sizes[places])
        self._alive[places] = False
        self._slots.give(places)

    def _take(self, places: Ints) -> WindowRows:
        columns = tuple(column[places] for column in self._columns)
        return WindowRows(self._rows[places], self._times[places], self._weights[places], self._sizes[places], columns)

    def _grow(self, size: int) -> None:
        self._rows, self._times = grow_array(self._rows, size), grow_array(self._times, size)
        self._weights, self._sizes = grow_array(self._weights, size), grow_array(self._sizes, size)
        self._marks = grow_array(self._marks, size)
        more = len(self._rows) - len(self._alive)
        self._alive = np.concatenate([self._alive, np.zeros(more, np.bool_)])
        self._columns = [np.concatenate([column, np.zeros(more, column.dtype)]) for column in self._columns]


def _marks(rows: Ints, by: Sequence[Column]) -> Ints:
    return mixed([rows, *(same(column) for column in by)])
