"""Pairs of an event and a row, many at once: an event beside a stretch of a list of rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pattern_stage.columns import Ints, Mask


@dataclass(frozen=True, slots=True)
class Stretches:
    """Event `at[i]` is beside `sizes[i]` rows of the list from place `starts[i]` on. `at` ascends, sizes are positive.

    Where many events are beside the same rows, or the first few of them, that is far less than all pairs.
    """

    at: Ints
    starts: Ints
    sizes: Ints
    rows: Ints
    """The list."""

    def __len__(self) -> int:
        """How many pairs there are."""
        return int(self.sizes.sum())

    def pairs(self) -> tuple[Ints, Ints]:
        """Returns events and rows, pair by pair."""
        places, of = spread(self.starts, self.sizes)
        return self.at[of], self.rows[places]

    def only(self, kept: Mask) -> Stretches:
        """Returns some of these stretches."""
        return Stretches(self.at[kept], self.starts[kept], self.sizes[kept], self.rows)

    def moved(self, at: Ints) -> Stretches:
        """Returns the same beside other events, which ascend too."""
        return Stretches(at, self.starts, self.sizes, self.rows)

    def through(self, places: Ints, rows: Ints) -> Stretches:
        """Returns stretches of a list in which each row has given way to some others, or to none: they are pairs of the
        place of a row, ascending, and what stands for it."""
        counts = np.bincount(places, minlength=len(self.rows))
        ends = np.cumsum(counts)
        starts = ends[self.starts] - counts[self.starts]
        sizes = ends[self.starts + self.sizes - 1] - starts
        found = Stretches(self.at, starts, sizes, rows)
        return found if sizes.all() else found.only(sizes > 0)


def spread(starts: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """Returns the numbers of ranges, one after the other, and of each the place of its range."""
    place = np.repeat(np.arange(len(counts)), counts)
    ends = np.cumsum(counts)
    return np.arange(len(place)) + np.repeat(starts - ends + counts, counts), place
