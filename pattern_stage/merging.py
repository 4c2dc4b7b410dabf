"""Makes one row of those that are alike, with aggregates of their values: counts, least and greatest values, and exact
sums. What is merged in steps, in whatever order, is what is merged at once."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from fractions import Fraction
from typing import Literal, NamedTuple

import numpy as np

from pattern_stage.columns import Column, Floats, Ints
from pattern_stage.flow import numbered
from pattern_stage.stretches import spread
from pattern_stage.windows import counts_in, sums_in

Kind = Literal["count", "sum", "min", "max"]
"""How values of a column are merged. NaN is no value. A count is always there."""


class Merged(NamedTuple):
    """Rows that were merged: of each the place of the first one that it is made of, and its values; and for each of the
    rows before the first one that it is in. The first row of several ones for the same has the counts."""

    firsts: Ints
    columns: list[Floats]
    of: Ints


def merged(keys: Sequence[Ints], columns: Sequence[Column], kinds: Sequence[Kind]) -> Merged:
    """Merges the rows that have equal keys.

    A sum may be no double. It is the exact sum of the values of several rows then: of the double that is nearest to it,
    the one that is nearest to the rest, and so on.
    """
    heads, of = numbered(keys)
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
    """Returns doubles whose exact sum is that of the numbers of each range, without NaNs: for each range one in the
    first array, if there is any number, and as few as possible in the others, where NaN is none. No range is empty.

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
    """The same for numbers whose sum is greater than any double."""
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
