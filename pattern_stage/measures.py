"""Aggregates: the measures per event from which AGGREGATE computes them, the windows that hold these, and aggregates of
ranges of rows. Simultaneous events that are alike merge into one row with counts, least and greatest values, and exact
sums; merging is associative, so its order does not matter, and aggregates of a range depend on no other rows. Rows of
one class over one input share stored events, whatever their OVER and since."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, NamedTuple, cast

import numpy as np

from common.arrays import Ints, Mask, distinct
from pattern_stage.clauses import numeric
from pattern_stage.columns import NULL_TEXT, Column, ColumnRecord, Floats, mixed, number_distinct, same, spread
from pattern_stage.fan_out import Interned, RowReaders, Slots, grow_array, grow_record
from pattern_stage.plan import Rows
from pattern_stage.values import Pairs, Texts, compile_value
from xscl.algebra.events import Aggregate, Aggregated, AggregateName, Schema, Value, value_kind

MergeKind = Literal["count", "sum", "min", "max"]
"""How values of a column are merged, without NaN. Counts are never NaN."""


_MERGE = {"count": np.add, "min": np.fmin, "max": np.fmax}


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
        found.append(addends(ordered, starts, ends) if kind == "sum" else [_MERGE[kind].reduceat(ordered, starts)])
    firsts, values = [heads], [[parts[0]] for parts in found]
    for step in range(1, max((len(parts) for parts in found), default=1)):
        more = np.logical_or.reduce([~np.isnan(parts[step]) for parts in found if step < len(parts)])
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
            return Measure("sum", numeric(one.args[0])), Measure("known", numeric(one.args[0]))
        case "min" | "max":
            return (Measure(one.name, numeric(one.args[0])),)
        case "count distinct":
            return (Measure("value", one.args[0]),)
        case "argmax":
            return Measure("value", one.args[0]), Measure("value", numeric(one.args[1]))
        case "median" | "percentile":
            return tuple(Measure("value", numeric(argument)) for argument in one.args)


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
    found = tuple(measure.of for measure in measures_of(one))
    return found if one.name == "argmax" else tuple(dict.fromkeys(found))


def computed(
    item: AggregateItem, columns: Sequence[Column], totals: Sequence[Ints], starts: Ints, ends: Ints, texts: Texts
) -> Column:
    """Returns an aggregate of non-empty ranges of rows. `totals` are running sums: events per row, then each count."""
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
    counts = [column if one.what == "known" else column[:0] for column, one in zip(columns, measures, strict=True)]
    return [np.append(0, np.cumsum(count.astype(np.int64))) for count in (weights, *counts)]


class _Groups(Interned):
    left: Ints
    of: Ints


class _Spans(Interned):
    group: Ints
    over: Ints


class WindowGroups:
    """Groups of rows; the rows of a group with equal OVER are a span. `groups` are by input row, `spans` by group, and
    `members`, which are rows, by span. `of_row` has the group of each row, `class_of` the class and `within` the
    greatest OVER of each group, `over` the OVER of each span."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self.groups, self.spans, self.members = RowReaders(), RowReaders(), RowReaders()
        self.of_row, self._span_of_row = np.full(16, -1, np.int64), np.full(16, -1, np.int64)
        self.within = np.zeros(16, np.int64)
        self._groups, self._spans = _Groups(("left", "of")), _Spans(("group", "over"))
        self.class_of, self.over = self._groups.of, self._spans.over

    def add(self, new: Ints, classes: Ints) -> None:
        over = self._rows.within[new]
        groups, fresh, _ = self._groups.intern([self._rows.left[new], classes])
        self.groups.add(fresh, self._groups.left[fresh])
        spans, more, _ = self._spans.intern([groups, over])
        self.spans.add(more, self._spans.group[more])
        self.class_of, self.over = self._groups.of, self._spans.over
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
class WindowRows(ColumnRecord):
    """Stored events: row, t1, number of events, what they count for, and some values."""

    rows: Ints
    times: Ints
    weights: Ints
    sizes: Ints
    columns: tuple[Column, ...]


class WindowStore:
    """The events in windows. An interval scans all marks, and reads the events of its groups."""

    def __init__(self, are_texts: Sequence[bool]) -> None:
        self.counts = np.zeros(16, np.int64)  # what the events of each row count for
        self._slots = Slots()
        none: Ints = np.zeros(0, np.int64)
        self._alive, self._marks = np.zeros(0, np.bool_), none
        columns = tuple([none if is_text else np.zeros(0) for is_text in are_texts])
        self._events = WindowRows(none, none, none, none, columns)

    def all(self) -> WindowRows:
        return self._events.take(np.flatnonzero(self._alive[: self._slots.end]))

    def touched(self, rows: Ints, by: Sequence[Column]) -> WindowRows:
        """Returns the events of these groups, by row and values of BY, and perhaps a few more."""
        marks = _marks(rows, by)
        table = np.zeros(1 << max(10, int(8 * len(marks)).bit_length()), np.bool_)
        table[marks & (len(table) - 1)] = True
        end = self._slots.end
        return self._events.take(np.flatnonzero(table[self._marks[:end] & (len(table) - 1)] & self._alive[:end]))

    def add(self, given: WindowRows, by: int) -> None:
        """Adds events, whose first `by` columns are the values of BY."""
        places, end = self._slots.take(len(given.rows)), self._slots.end
        self._alive, self._marks = grow_array(self._alive, end), grow_array(self._marks, end)
        self._events = grow_record(self._events, end)
        self._events.put(places, given)
        self._alive[places], self._marks[places] = True, _marks(given.rows, given.columns[:by])
        self.counts = grow_array(self.counts, int(given.rows.max(initial=-1)) + 1)
        np.add.at(self.counts, given.rows, given.sizes)

    def expire(self, over: Ints, until: int) -> None:
        """Drops events in no window that ends at `until` or later; `over` is by row."""
        end = self._slots.end
        self._drop(self._events.times[:end] + over[self._events.rows[:end]] <= until)

    def remove_rows(self, gone: Ints) -> None:
        self._drop(np.isin(self._events.rows[: self._slots.end], gone))

    def _drop(self, chosen: Mask) -> None:
        places = np.flatnonzero(chosen & self._alive[: len(chosen)])
        np.subtract.at(self.counts, self._events.rows[places], self._events.sizes[places])
        self._alive[places] = False
        self._slots.give(places)


def _marks(rows: Ints, by: Sequence[Column]) -> Ints:
    return mixed([rows, *(same(column) for column in by)])


# ---------------------------------------------------------------- ranges of rows


def aggregate_ranges(
    name: AggregateName, arguments: Sequence[Column], starts: Ints, ends: Ints, texts: Texts
) -> Column:
    """Returns an aggregate with arguments over non-empty ranges of their rows."""
    all_known = np.logical_and.reduce([known(argument) for argument in arguments])
    if name == "count":
        return counts_in(all_known, starts, ends).astype(np.float64)
    if name in ("sum", "avg"):
        return sums(name, arguments[0], counts_in(all_known, starts, ends), starts, ends)  # type: ignore[arg-type]
    if name == "count distinct":
        return distinct_in(arguments[0], all_known, starts, ends).astype(np.float64)
    if name in ("median", "percentile"):
        shares = arguments[1][starts] / 100 if len(arguments) > 1 else np.full(len(starts), 0.5)
        return quantiles_in(arguments[0], shares, starts, ends)  # type: ignore[arg-type]  # numbers
    # The greatest by a rank that is different for all rows.
    if name == "argmax":
        order = np.lexsort((_falling(arguments[0], texts), arguments[1]))
    else:
        order = np.argsort(arguments[0] if name == "max" else -arguments[0], kind="stable")
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order))
    ranks[~all_known] = -1
    best = greatest_in(ranks, starts, ends)
    found = arguments[0][order[np.maximum(best, 0)]] if len(order) else arguments[0][:0]
    if arguments[0].dtype == np.int64:
        return np.where(best >= 0, found, NULL_TEXT)
    return np.where(best >= 0, found, np.nan) + 0.0


def _falling(column: Column, texts: Texts) -> Column:
    """Returns keys in descending order of values; strings compare by code points."""
    if column.dtype == np.float64:
        return -column
    codes, numbers = np.unique(column, return_inverse=True)
    of = texts.texts(codes.astype(np.int64))
    ranks = np.empty(len(codes), np.int64)
    ranks[sorted(range(len(codes)), key=lambda place: of[place] or "")] = np.arange(len(codes))
    return -ranks[numbers]


def sums(name: AggregateName, numbers: Floats, counts: Ints, starts: Ints, ends: Ints) -> Floats:
    """Returns the sum or avg of the numbers in each range, given their counts."""
    found = sums_in(numbers, starts, ends)
    found[counts == 0] = np.nan
    result: Floats = found / np.maximum(counts, 1) if name == "avg" else found
    result[~np.isfinite(result)] = np.nan
    return result


def known(column: Column) -> Mask:
    """Returns which values are not NULL."""
    return column >= 0 if column.dtype == np.int64 else ~np.isnan(column)


_BITS = 32
_LOW = (1 << _BITS) - 1


def counts_in(known: Mask, starts: Ints, ends: Ints) -> Ints:
    """Returns the number of known rows of each range."""
    totals = np.append(0, np.cumsum(known))
    counts: Ints = totals[ends] - totals[starts]
    return counts


def sums_in(numbers: Floats, starts: Ints, ends: Ints) -> Floats:
    """Returns the sum of each range without NaN: the double nearest to the exact sum, as `math.fsum`. Numbers are split
    into 32-bit limbs with exact integer prefix sums, whose differences are exact, too."""
    fractions, exponents = np.frexp(np.where(np.isnan(numbers), 0.0, numbers))
    mantissas = np.abs(np.ldexp(fractions, 53)).astype(np.uint64)
    some = mantissas > 0
    # Without zeros at their end, so that a limb is only where a number has bits.
    lowest = mantissas & (~mantissas + np.uint64(1))
    zeros = np.where(some, np.frexp(lowest.astype(np.float64))[1] - 1, 0)
    mantissas >>= zeros.astype(np.uint64)
    exponents = exponents - 53 + zeros
    least = int(exponents[some].min(initial=0)) if some.any() else 0
    shifts = np.where(some, exponents - least, 0)
    bits = int((shifts + 53 - zeros)[some].max(initial=1))
    signs = np.sign(fractions).astype(np.int64)
    first, inside = shifts // _BITS, (shifts % _BITS).astype(np.uint64)
    low = (mantissas << inside) & np.uint64(_LOW)
    rest = mantissas >> (np.uint64(_BITS) - inside)  # inside is below 32, so that no bit is lost
    pieces = (low, rest & np.uint64(_LOW), rest >> np.uint64(_BITS))
    limbs: list[Ints] = []
    for limb in range((bits - 1) // _BITS + 1):
        values = np.zeros(len(numbers), np.int64)
        for place, piece in enumerate(pieces):
            values += np.where(first + place == limb, piece.astype(np.int64), 0)
        totals = np.append(0, np.cumsum(values * signs))
        limbs.append(totals[ends] - totals[starts])
    return _nearest(limbs, least)


def _nearest(limbs: Sequence[Ints], scale: int) -> Floats:
    """Returns the doubles nearest to sums of limbs, the first in units of 2 ** scale; NaN beyond the largest double."""
    none: Ints = np.zeros(len(limbs[0]), np.int64)
    padded = [none, none, *limbs, none, none]  # a limb may be as great as two
    negative = _digits(padded)[1] < 0
    digits, _ = _digits([np.where(negative, -limb, limb) for limb in padded])
    # Of each sum the greatest digit that is not 0, the two below it, and whether there is anything below those.
    top = np.full(len(none), 2, np.int64)
    for place in range(3, len(digits)):
        top[digits[place] > 0] = place
    table = np.stack(digits)
    at = np.arange(len(none))
    high, middle, low = (table[top - below, at].astype(np.uint64) for below in range(3))
    lowest = np.argmax(table > 0, axis=0)
    # The 64 bits from the highest set bit down; a double keeps 53 of them.
    length = np.frexp(high.astype(np.float64))[1].astype(np.uint64)
    bits, word = np.uint64(_BITS), np.uint64(2 * _BITS)
    first = (high << (word - np.maximum(length, np.uint64(1)))) | (middle << (bits - length)) | (low >> length)
    more = ((low & ((np.uint64(1) << length) - np.uint64(1))) > 0) | (lowest < top - 2)
    mantissas, rest = first >> np.uint64(11), first & np.uint64(0x7FF)
    half = np.uint64(0x400)
    up = (rest > half) | ((rest == half) & (more | (mantissas & np.uint64(1) > 0)))
    with np.errstate(over="ignore"):
        exponents = scale + _BITS * (top - 4) + length.astype(np.int64) + 11
        sums = np.ldexp((mantissas + up).astype(np.float64), exponents)
    sums[np.isinf(sums)] = np.nan
    sums[negative] *= -1
    return cast(Floats, sums)


def _digits(limbs: Sequence[Ints]) -> tuple[list[Ints], Ints]:
    """Normalises sums of limbs to non-negative 32-bit digits, and a carry."""
    digits, carried = list[Ints](), np.zeros(len(limbs[0]), np.int64)
    for limb in limbs:
        total = limb + carried
        digits.append(total & _LOW)
        carried = total >> _BITS
    return digits, carried


def distinct_in(column: Column, known: Mask, starts: Ints, ends: Ints) -> Ints:
    """Returns the number of distinct known values of each range: those whose last occurrence lies before it."""
    order = np.argsort(values := same(column), kind="stable")
    again = np.flatnonzero(values[order][1:] == values[order][:-1]) + 1
    last = np.zeros(len(order), np.int64)  # one past the place of the last occurrence; 0 without one
    last[order[again]] = order[again - 1] + 1
    last[~known] = len(order) + 1
    found = np.zeros(len(starts), np.int64)
    begins, stops = starts, ends
    for bit, zeros in _bits(last, len(order) + 1):
        low, high = zeros[begins], zeros[stops]
        ones = (starts >> bit) & 1 > 0  # of the bound, which is not past the range
        found += np.where(ones, high - low, 0)
        begins, stops = _side(ones, zeros, begins, stops)
    return found + stops - begins


def quantiles_in(numbers: Floats, shares: Floats, starts: Ints, ends: Ints) -> Floats:
    """Returns what lies at this share of the way from the least to the greatest number of each range, in proportion
    between the two nearest; NaN without numbers."""
    values, ranks = np.unique(numbers, return_inverse=True)  # NaN is the last
    places = np.maximum(counts_in(known(numbers), starts, ends) - 1, 0) * shares
    low, high = np.floor(places), np.ceil(places)
    wanted = np.concatenate([low, high]).astype(np.int64)
    begins, stops = np.tile(starts, 2), np.tile(ends, 2)
    found = np.zeros(len(wanted), np.int64)
    for bit, zeros in _bits(ranks, len(values)):
        count = zeros[stops] - zeros[begins]
        ones = wanted >= count
        wanted, found = wanted - np.where(ones, count, 0), found | (ones.astype(np.int64) << bit)
        begins, stops = _side(ones, zeros, begins, stops)
    one, other = np.split(values[found] if len(values) else found.astype(np.float64), 2)
    result: Floats = one * (1 - (places - low)) + other * (places - low) + 0.0
    return result


def _bits(values: Ints, most: int) -> Iterator[tuple[int, Ints]]:
    """A wavelet matrix of values up to `most`: for each bit, the highest first, yields before each place how many are 0
    there. After each, the values are ordered by it, stably."""
    for bit in range(most.bit_length() - 1, -1, -1):
        is_zero = (values >> bit) & 1 == 0
        yield bit, np.append(0, np.cumsum(is_zero))
        values = np.concatenate([values[is_zero], values[~is_zero]])


def _side(ones: Mask, zeros: Ints, begins: Ints, stops: Ints) -> tuple[Ints, Ints]:
    """Returns where the values of ranges with a 1, or a 0, are at the next bit of `_bits`."""
    low, high = zeros[begins], zeros[stops]
    return np.where(ones, zeros[-1] + begins - low, low), np.where(ones, zeros[-1] + stops - high, high)


def greatest_in(ranks: Ints, starts: Ints, ends: Ints) -> Ints:
    """Returns the greatest rank in each range."""
    levels = np.frexp((ends - starts).astype(np.float64))[1] - 1  # of each the greatest power of two that is no longer
    found = np.empty(len(starts), np.int64)
    table, width = ranks, 1
    for level in range(int(levels.max(initial=-1)) + 1):
        here = np.flatnonzero(levels == level)
        found[here] = np.maximum(table[starts[here]], table[ends[here] - width])
        table = np.maximum(table[:-width], table[width:]) if len(table) > width else table
        width *= 2
    return found
