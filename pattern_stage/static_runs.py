"""Rows of one shape of the static index, sorted so that those which an event may satisfy lie together."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from common.distinct import distinct
from pattern_stage.columns import Floats, Ints, Mask
from pattern_stage.static_shape import Rows

Hashes = NDArray[np.uint64]

_FACTORS = [np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)]
_HALF = np.uint64(32)


Ranges = tuple[Ints, Ints, Ints]
"""Places of events, and for each where its rows begin in a run, and how many there are."""


class Run:
    """Rows that are sorted once. `keys_tested` says whether the rows that it offers for an event have its keys, and
    `bounds_tested` how many of their bounds they keep."""

    keys_tested = False
    bounds_tested = 0

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def candidates(self, keys: list[Ints], numbers: Floats, chosen: Ints) -> Ranges:
        """Returns the rows that the chosen events may satisfy, of events with these keys and values to compare."""
        return chosen, np.zeros(len(chosen), np.int64), np.full(len(chosen), len(self.rows))


class HashedRun(Run):
    """Rows sorted by a hash of their keys, which is distinct for each that is stored."""

    keys_tested = True

    def __init__(self, rows: Rows) -> None:
        seed = 0
        while True:
            hashes = _hashed(list(rows.keys), seed)
            order = np.argsort(hashes, kind="stable")
            hashes, ordered = hashes[order], rows.take(order)
            begins = np.flatnonzero(np.append(True, hashes[1:] != hashes[:-1]))
            same = np.ones(len(hashes), np.bool_)
            same[begins] = False
            if not any((key[1:] != key[:-1])[same[1:]].any() for key in ordered.keys):
                break
            seed += 1  # two keys have one hash
        super().__init__(ordered)
        self._seed = seed
        self._hashes = hashes[begins]
        self._keys = [key[begins] for key in ordered.keys]
        self._begins = np.append(begins, len(hashes))

    def candidates(self, keys: list[Ints], numbers: Floats, chosen: Ints) -> Ranges:
        keys = [key[chosen] for key in keys]
        at = np.searchsorted(self._hashes, _hashed(keys, self._seed))
        at[at == len(self._hashes)] = 0
        found: Mask = np.ones(len(chosen), np.bool_)
        for key, stored in zip(keys, self._keys, strict=True):
            found &= stored[at] == key
        at = at[found]
        begins = self._begins[at]
        return chosen[found], begins, self._begins[at + 1] - begins


class BoundedRun(Run):
    """Rows without keys, sorted by that of their bounds which keeps out the most events of a sample."""

    bounds_tested = 1

    def __init__(self, rows: Rows, sample: Floats) -> None:
        rows = _tightest_first(rows, sample)
        rows = rows.take(np.lexsort((rows.bounds[0], rows.columns[0])))
        super().__init__(rows)
        columns = rows.columns[0]
        begins = np.flatnonzero(np.append(True, columns[1:] != columns[:-1]))
        ends = np.append(begins[1:], len(columns))
        self._parts = list(zip(columns[begins].tolist(), begins.tolist(), ends.tolist(), strict=True))

    def candidates(self, keys: list[Ints], numbers: Floats, chosen: Ints) -> Ranges:
        counts = []
        for column, begin, end in self._parts:
            values = numbers[chosen, column]
            count = np.searchsorted(self.rows.bounds[0][begin:end], values, side="right")
            counts.append(np.where(np.isnan(values), 0, count))
        begins = np.array([begin for _, begin, _ in self._parts], np.int64)
        many = len(self._parts)
        return np.tile(chosen, many), np.repeat(begins, len(chosen)), np.concatenate(counts)


def sorted_run(rows: Rows, sample: Floats) -> Run:
    """Returns the run that serves the shape of these rows. `sample` has values to compare of some events."""
    if rows.keys:
        return HashedRun(rows)
    return BoundedRun(rows, sample) if rows.bounds else Run(rows)


def _hashed(keys: list[Ints], seed: int) -> Hashes:
    one, other = _FACTORS
    found: Hashes = np.full(len(keys[0]), seed, np.uint64)
    for key in keys:
        found = (found + key.view(np.uint64)) * one
        found ^= found >> _HALF
        found *= other
    return found ^ (found >> _HALF)


def _tightest_first(rows: Rows, sample: Floats) -> Rows:
    """The rows with the bound first that the fewest events of a sample keep; without one, of events like the bounds."""
    columns, bounds = np.array(rows.columns), np.array(rows.bounds)
    kept = np.empty(bounds.shape)
    for column in distinct(columns.ravel()).tolist():
        here = columns == column
        values = np.sort(sample[:, column] if column < sample.shape[1] and len(sample) else bounds[here])
        kept[here] = 1 - np.searchsorted(values, bounds[here]) / len(values)
    order = np.argsort(kept, axis=0, kind="stable")
    columns, bounds = np.take_along_axis(columns, order, 0), np.take_along_axis(bounds, order, 0)
    return Rows(rows.entries, rows.keys, tuple(columns), tuple(bounds), rows.parameters)
