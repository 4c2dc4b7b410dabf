"""Sets of rows as the bits of a whole number: bit `r` is row `r`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pattern_stage.columns import Ints, Mask

_FEW = 8
"""So few bits are set one by one."""


def mask_of(rows: Ints) -> int:
    """Returns the set of rows.

    >>> mask_of(np.array([0, 2]))
    5
    """
    if len(rows) <= _FEW:
        found = 0
        for row in rows.tolist():
            found |= 1 << row
        return found
    flags = np.zeros(int(rows.max()) + 1, np.bool_)
    flags[rows] = True
    return mask_of_flags(flags)


def mask_of_flags(flags: Mask) -> int:
    """Returns the set of the rows whose flags are set."""
    return int.from_bytes(np.packbits(flags, bitorder="little").tobytes(), "little")


def rows_of(mask: int) -> Ints:
    """Returns the rows of a set, ascending.

    >>> rows_of(5).tolist()
    [0, 2]
    """
    if mask & (mask - 1) == 0:
        return np.array([mask.bit_length() - 1] if mask else [], np.int64)
    data = np.frombuffer(mask.to_bytes((mask.bit_length() + 7) // 8, "little"), np.uint8)
    return np.flatnonzero(np.unpackbits(data, bitorder="little"))


def flags_of(mask: int, size: int) -> Mask:
    """Returns a flag for each row up to `size`: whether the set has it. The set EVERY has all.

    >>> flags_of(5, 4).tolist()
    [True, False, True, False]
    """
    if mask < 0:
        return np.ones(size, np.bool_)
    data = np.frombuffer((mask & (1 << size) - 1).to_bytes((size + 7) // 8, "little"), np.uint8)
    return np.unpackbits(data, count=size, bitorder="little").view(np.bool_)


def masks_by_place(places: Ints, rows: Ints, count: int) -> list[int]:
    """Returns of each of so many places the set of its rows, given as pairs sorted by place."""
    found = [0] * count
    if not len(places):
        return found
    heads = np.flatnonzero(np.diff(places, prepend=-1))
    for place, begin, end in zip(
        places[heads].tolist(), heads.tolist(), np.append(heads[1:], len(places)).tolist(), strict=True
    ):
        found[place] = mask_of(rows[begin:end])
    return found


def expanded(masks: Sequence[int]) -> tuple[Ints, Ints]:
    """Returns pairs of the place of a set among these and a row of it, sorted."""
    if all(mask == 1 for mask in masks):
        return np.arange(len(masks)), np.zeros(len(masks), np.int64)
    known: dict[int, Ints] = {}
    rows = []
    for mask in masks:
        found = known.get(mask)
        if found is None:
            found = known[mask] = rows_of(mask)
        rows.append(found)
    sizes = np.fromiter(map(len, rows), np.int64, len(rows))
    return np.repeat(np.arange(len(rows)), sizes), np.concatenate([np.zeros(0, np.int64), *rows])
