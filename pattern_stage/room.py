"""How much an operator may make of an interval, before it gives up and is asked for a part of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pattern_stage.columns import Ints, Mask
from pattern_stage.operators import NO_BOUND

Sees = Callable[[int, Ints], Mask]
"""Which events statements of a row see, given the row and the numbers of the first parts of events."""


def sees_all(row: int, firsts: Ints) -> Mask:
    """Says that all events are seen."""
    return np.ones(len(firsts), np.bool_)


class Crowded(Exception):
    """There was no room for what an operator would have made. It has changed nothing.

    `rows` are those that had too many results already, if the interval was one epoch.
    """

    def __init__(self, rows: Ints | None = None) -> None:
        super().__init__("too much is made of an interval")
        self.rows: Ints = np.zeros(0, np.int64) if rows is None else rows


@dataclass(slots=True)
class Room:
    """What an operator may make of an interval: so many instances that may wait, and so many results.

    `epoch` is the time of all events if it is the same, and `most` how many results a row may then have, of those that
    it sees.
    """

    waiting: int = NO_BOUND
    found: int = NO_BOUND
    epoch: int | None = None
    most: int = NO_BOUND
    sees: Sees = sees_all
