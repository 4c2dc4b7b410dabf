"""Aggregates of ranges of rows, by name: those of AGGREGATE, and of the events of a Kleene variable."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pattern_stage.columns import NULL_TEXT, Column, Floats, Ints
from pattern_stage.values import Texts
from pattern_stage.windows import counts_in, greatest_in, sums_in
from xscl.algebra.events import AggregateName


def aggregated(name: AggregateName, arguments: Sequence[Column], starts: Ints, ends: Ints, texts: Texts) -> Column:
    """Returns an aggregate, which has arguments, of each of these ranges of their rows; none of them is empty."""
    all_known = np.logical_and.reduce([known(argument) for argument in arguments])
    if name == "count":
        return counts_in(all_known, starts, ends).astype(np.float64)
    if name in ("sum", "avg"):
        return sums(name, arguments[0], counts_in(all_known, starts, ends), starts, ends)  # type: ignore[arg-type]
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
    """Returns keys that are the greater, the less a value is: strings go by code points."""
    if column.dtype == np.float64:
        return -column
    codes, numbers = np.unique(column, return_inverse=True)
    of = texts.texts(codes.astype(np.int64))
    ranks = np.empty(len(codes), np.int64)
    ranks[sorted(range(len(codes)), key=lambda place: of[place] or "")] = np.arange(len(codes))
    return -ranks[numbers]


def sums(name: AggregateName, numbers: Floats, counts: Ints, starts: Ints, ends: Ints) -> Floats:
    """Returns the sum, or avg, of the numbers in each range, of which there were so many."""
    found = sums_in(numbers, starts, ends)
    found[counts == 0] = np.nan
    result: Floats = found / np.maximum(counts, 1) if name == "avg" else found
    result[~np.isfinite(result)] = np.nan
    return result


def known(column: Column) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Returns which values are not NULL."""
    return column >= 0 if column.dtype == np.int64 else ~np.isnan(column)
