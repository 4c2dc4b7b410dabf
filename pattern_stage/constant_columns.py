"""Columns that take no memory as long as all their values are equal."""

from __future__ import annotations

from typing import TypeVar, cast

import numpy as np

from pattern_stage.columns import Column, Ints
from pattern_stage.flow import same

C = TypeVar("C", bound=Column)


def written(column: C, places: Ints, values: C, size: int) -> C:
    """Returns a column of this size, at least, with values at some places; elsewhere it is as it was.

    One that has a single value cannot be written to, so it is always what is returned that counts. A place that has
    not been written has any value.
    """
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
    """Returns how many places an array of `have` is given when more are needed: so many that growing costs the same
    for each, however many there are."""
    return max(needed, have + have // 4, 16)
