"""Limits of what one statement may take: how much may wait for it, and how many results it may have at one time.

An m-op counts for each of its rows, epoch by epoch, so that nothing depends on how events are cut into intervals. As
soon as it is certain that a row exceeds a limit, the m-op says so, drops what it has for the row, and makes no more: so
the memory is not taken. All statements that the row is of have no results from that epoch on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from pattern_stage.columns import Ints
from pattern_stage.operators import NO_BOUND

Bound = Literal["matches", "partial"]
"""What a limit is on: what is found in an epoch, or what waits after one. The first counts if both are exceeded."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a row of an m-op. `partial` bounds what waits for it after an epoch: instances, events, and ways from
    one to the next. `matches` bounds what it finds in an epoch, before HAVING and late negations are asked."""

    partial: int = NO_BOUND
    matches: int = NO_BOUND


NO_LIMITS = Limits()
"""Whatever is asked."""


class Excess(NamedTuple):
    """The epoch in which a limit was exceeded, and which one."""

    time: int
    bound: Bound


class Meter:
    """What an m-op counts with: the limits, and which rows have exceeded one since they were last taken."""

    def __init__(self, limits: Limits = NO_LIMITS) -> None:
        self.limits = limits
        self._exceeded: dict[int, Excess] = {}

    def tell(self, rows: Ints, time: int, bound: Bound) -> None:
        """Says that rows exceed a limit in an epoch. If they do so more than once, the first time counts."""
        for row in rows.tolist():
            self._exceeded[row] = min(self._exceeded.get(row, Excess(time, bound)), Excess(time, bound))

    def taken(self) -> dict[int, Excess]:
        """Returns the rows that have exceeded a limit, and forgets them."""
        found, self._exceeded = self._exceeded, {}
        return found
