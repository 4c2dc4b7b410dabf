"""How much is looked at to count pairs of documents with equal times: bounds that no order or batch changes."""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from mmqjp.answers.quota import NEVER

MOST_PAIRS = 100
"""The pairs with equal times that are looked at for a form and an arriving document. If it has more, none count."""
MOST_STEPS = 10_000
"""The steps that this may take. If it takes more, none of the pairs of the document count."""
MOST_OF_FORM = 10_000
"""When as many were looked at for a form, those of later documents are not. A document with too many counts as
MOST_PAIRS."""


class Looking:
    """What was looked at in a step for a form, by arrival. `before` were looked at before it."""

    def __init__(self, before: int) -> None:
        self._total = self._before = before
        self._looked: dict[int, list[int]] = {}
        self._latest: list[int] = []
        self.cutoff = -1 if before >= MOST_OF_FORM else NEVER
        """The arrival from which on nothing is looked at."""
        self.full: set[int] = set()
        """The arrivals with too many pairs or steps."""
        self.left_out = False
        """Whether there was anything to look at that was not."""

    def may(self, arrival: int) -> bool:
        """Returns whether a pair of an arrival may be looked at."""
        if arrival < self.cutoff and arrival not in self.full:
            return True
        self.left_out = True
        return False

    def add(self, arrival: int, pairs: int, steps: int) -> None:
        """Counts what was looked at. Later counts can only move the cutoff to an earlier arrival."""
        if arrival >= self.cutoff:
            self.left_out = True
            return
        looked = self._looked.get(arrival)
        if looked is None:
            looked = self._looked[arrival] = [0, 0]
            heappush(self._latest, -arrival)
        weight = self._weight(arrival)
        looked[0] += pairs
        looked[1] += steps
        if looked[0] > MOST_PAIRS or looked[1] > MOST_STEPS:
            self.full.add(arrival)
            self.left_out = True
        self._total += self._weight(arrival) - weight
        while self._latest and self._total - self._weight(-self._latest[0]) >= MOST_OF_FORM:
            self.cutoff = -heappop(self._latest)
            self._total -= self._weight(self.cutoff)
            self.left_out = True

    def _weight(self, arrival: int) -> int:
        return MOST_PAIRS if arrival in self.full else self._looked[arrival][0]

    def merge(self, other: Looking) -> None:
        """Counts what was looked at elsewhere in the step."""
        for arrival, (pairs, steps) in other._looked.items():
            self.add(arrival, pairs, steps)
        self.left_out |= other.left_out

    def counts(self, arrival: int) -> bool:
        """Returns whether the pairs of an arrival count, when all was looked at."""
        return arrival < self.cutoff and arrival not in self.full

    @property
    def in_step(self) -> int:
        """What was looked at for the form in this step."""
        return self._total - self._before

    @property
    def is_used(self) -> bool:
        """Whether there was anything to look at in this step."""
        return bool(self._looked) or self.left_out

    @property
    def is_limited(self) -> bool:
        """Whether there is an arrival of which nothing more is looked at."""
        return self.cutoff < NEVER or bool(self.full)

    def spent(self, arrivals: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Returns for which arrivals nothing more is looked at."""
        found: NDArray[np.bool_] = arrivals >= self.cutoff
        return found | np.isin(arrivals, list(self.full)) if self.full else found
