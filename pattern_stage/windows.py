"""Exact aggregates over ranges of rows: independent of the order of rows and of other ranges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from common.arrays import Ints
from pattern_stage.columns import Floats

_BITS = 32
_LOW = (1 << _BITS) - 1


def counts_in(known: np.ndarray[tuple[int], np.dtype[np.bool_]], starts: Ints, ends: Ints) -> Ints:
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
    # The 64 bits from the first one that is set, of which a double has 53.
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


def greatest_in(ranks: Ints, starts: Ints, ends: Ints) -> Ints:
    """Returns the greatest rank in each range."""
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
