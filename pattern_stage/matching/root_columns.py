"""The roots of a trail as columns: so many are read at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pattern_stage.fan_out import grown
from pattern_stage.matching.masks import expanded
from pattern_stage.matching.nodes import Root

_NONE = np.zeros(0, np.int64)


class RootColumns:
    """The first roots of a list that only grows. Its columns may be longer than the list."""

    def __init__(self) -> None:
        self.count = 0
        self.places, self.starts, self.bounds = _NONE, _NONE, _NONE
        self.firsts = np.zeros(1, np.int64)
        """Of each root where its rows begin, and where those of the last one end."""
        self.rows, self.of = _NONE, _NONE
        """Pairs: a row, and the root that has it."""

    def follow(self, roots: Sequence[Root]) -> None:
        """Takes in roots that were added."""
        new, count = roots[self.count :], len(roots)
        if not new:
            return
        places, starts, bounds, masks = zip(*new, strict=True)
        here = slice(self.count, count)
        self.places, self.starts, self.bounds = (grown(one, count) for one in (self.places, self.starts, self.bounds))
        self.places[here], self.starts[here], self.bounds[here] = places, starts, bounds
        at, rows = expanded(masks)
        begin = int(self.firsts[self.count])
        self.rows, self.of = grown(self.rows, begin + len(rows)), grown(self.of, begin + len(rows))
        self.rows[begin : begin + len(rows)], self.of[begin : begin + len(rows)] = rows, at + self.count
        self.firsts = grown(self.firsts, count + 1)
        self.firsts[self.count + 1 : count + 1] = begin + np.cumsum(np.bincount(at, minlength=len(new)))
        self.count = count
