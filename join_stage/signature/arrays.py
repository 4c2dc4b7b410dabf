"""Small operations on arrays of whole numbers, which both halves of the plan are made of."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def encoded(values: Ints) -> tuple[Ints, Ints]:
    """For each value its place among the distinct ones, and these, in the order in which they were met."""
    found = pa.array(values).dictionary_encode()
    return found.indices.to_numpy().astype(np.int64), found.dictionary.to_numpy()


def expanded(start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """All numbers of some ranges, and for each the place of its range."""
    counts = end - start
    place = np.repeat(np.arange(len(counts)), counts)
    return np.arange(len(place)) + np.repeat(start - np.cumsum(counts) + counts, counts), place


def matching(values: Ints, ordered: Ints) -> tuple[Ints, Ints]:
    """For each value the range of the places where it stands among ordered ones."""
    return np.searchsorted(ordered, values, "left"), np.searchsorted(ordered, values, "right")


def starts_of(*ordered: Ints) -> Ints:
    """Where a run of equal tuples starts in columns that are ordered together."""
    if not len(ordered[0]):
        return np.zeros(0, np.int64)
    changed = np.zeros(len(ordered[0]), np.bool_)
    changed[0] = True
    for column in ordered:
        changed[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(changed)


def bisected(ordered: Ints, start: Ints, end: Ints, values: Ints) -> Ints:
    """For each value the first place, within its range of a column that is ordered there, that is not less."""
    start, end = start.copy(), end.copy()
    while (open_ := start < end).any():
        middle = (start + end) >> 1
        less = open_ & (ordered[np.minimum(middle, len(ordered) - 1)] < values)
        start = np.where(less, middle + 1, start)
        end = np.where(open_ & ~less, middle, end)
    return start
