"""Aggregates over ranges of rows: exact, so that they depend neither on the order of the rows nor on other ranges."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pattern_stage.columns import Floats, Ints

_BITS = 32
_LOW = (1 << _BITS) - 1


def counts_in(known: np.ndarray[tuple[int], np.dtype[np.bool_]], starts: Ints, ends: Ints) -> Ints:
    """Returns how many rows of each range are known."""
    totals = np.append(0, np.cumsum(known))
    counts: Ints = totals[ends] - totals[starts]
    return counts


def sums_in(numbers: Floats, starts: Ints, ends: Ints) -> Floats:
    """Returns the sum of the numbers of each range, without NaNs: the double nearest to the exact sum, as `math.fsum`.

    Numbers are cut into limbs of 32 bits, each with a running sum of integers, which is exact; so is a difference of
    two of those.
    """
    fractions, exponents = np.frexp(np.where(np.isnan(numbers), 0.0, numbers))
    mantissas = np.abs(np.ldexp(fractions, 53)).astype(np.uint64)
    some = mantissas > 0
    least = int(exponents[some].min(initial=0)) if some.any() else 0
    shifts = np.where(some, exponents - least, 0)
    signs = np.sign(fractions).astype(np.int64)
    first, inside = shifts // _BITS, (shifts % _BITS).astype(np.uint64)
    low = (mantissas << inside) & np.uint64(_LOW)
    rest = mantissas >> (np.uint64(_BITS) - inside)  # inside is below 32, so that no bit is lost
    pieces = (low, rest & np.uint64(_LOW), rest >> np.uint64(_BITS))
    limbs: list[list[float]] = []
    exact: list[tuple[Ints, int]] = []
    for limb in range(int(first.max(initial=0)) + 3):
        values = np.zeros(len(numbers), np.int64)
        for place, piece in enumerate(pieces):
            values += np.where(first + place == limb, piece.astype(np.int64), 0)
        if not values.any():
            continue
        totals = np.append(0, np.cumsum(values * signs))
        found = totals[ends] - totals[starts]
        scale = least - 53 + limb * _BITS
        exact.append((found, scale))
        # Each half has few enough bits for a double.
        with np.errstate(over="ignore"):
            limbs.append(np.ldexp((found >> _BITS).astype(np.float64), scale + _BITS).tolist())
            limbs.append(np.ldexp((found & _LOW).astype(np.float64), scale).tolist())
    if not limbs:
        return np.zeros(len(starts))
    sums = np.array(list(map(_sum, zip(*limbs, strict=True))))
    for place in np.flatnonzero(np.isnan(sums)).tolist():
        sums[place] = _exact_sum([(int(found[place]), scale) for found, scale in exact])
    return sums


def _sum(limbs: Sequence[float]) -> float:
    try:
        found = math.fsum(limbs)
    except (OverflowError, ValueError):
        return math.nan
    return found if math.isfinite(found) else math.nan


def _exact_sum(limbs: Sequence[tuple[int, int]]) -> float:
    """Returns the sum of integers times powers of two, by integers; NaN if no double is as great. A limb may be too
    great for a double where the sum is not."""
    least = min(scale for _, scale in limbs)
    total = sum(limb << (scale - least) for limb, scale in limbs)
    try:
        return total / (1 << -least) if least < 0 else float(total << least)
    except OverflowError:
        return math.nan


def greatest_in(ranks: Ints, starts: Ints, ends: Ints) -> Ints:
    """Returns the greatest rank of each range; none of them is empty."""
    lengths = ends - starts
    levels = np.frexp(lengths.astype(np.float64))[1] - 1  # of each the greatest power of two that is no longer
    found = np.empty(len(starts), np.int64)
    table, width = ranks, 1
    for level in range(int(levels.max(initial=-1)) + 1):
        here = np.flatnonzero(levels == level)
        found[here] = np.maximum(table[starts[here]], table[ends[here] - width])
        table = np.maximum(table[:-width], table[width:]) if len(table) > width else table
        width *= 2
    return found
