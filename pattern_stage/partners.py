"""The first events for which waiting instances hold, with all ties: for all instances of an interval at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pattern_stage.columns import Ints, Mask
from pattern_stage.operators import NO_BOUND
from pattern_stage.stretches import spread

_PAIRS = 1 << 20
"""How many pairs are tested at once, at most about."""

Test = Callable[[Ints, Ints], Mask]
"""Whether instances hold for events, given the places of both."""


class Candidates:
    """Events that instances may hold for, in groups: of each group those of an instance, in order of t1."""

    def __init__(self, times: Ints, groups: Ints, events: Ints) -> None:
        """`times` is the t1 of all events, sorted. Pair i says that event `events[i]` is in `groups[i]`."""
        self._times, ranks = np.unique(times, return_inverse=True)
        self._step = len(self._times) + 1
        codes = groups * self._step + ranks[events]
        if np.all(codes[1:] >= codes[:-1]):
            self._codes, self.events = codes, events
        else:
            order = np.argsort(codes, kind="stable")
            self._codes, self.events = codes[order], events[order]

    def ranges(self, groups: Ints, after: Ints, until: Ints) -> tuple[Ints, Ints]:
        """Returns the first place, and the one past the last, of the events of a group with `after < t1 <= until`."""
        first = np.searchsorted(self._codes, groups * self._step + np.searchsorted(self._times, after, "right"))
        last = np.searchsorted(self._codes, groups * self._step + np.searchsorted(self._times, until, "right"))
        return first, last

    def first(self, start: Ints, end: Ints, test: Test | None, most: int = NO_BOUND) -> tuple[Ints, Ints]:
        """Returns pairs of an instance and an event: of each the first for which it holds, and all ties for which it
        does. Sorted by instance.

        `start` and `end` are those of `ranges`. Without a test all hold. It ends when it has more than `most` pairs.
        """
        found: list[tuple[Ints, Ints]] = []
        count = 0
        active = np.flatnonzero(start < end)
        at, end = start[active], end[active]
        size = 1
        while len(active) and count <= most:
            # What is tested at once becomes longer, so that the rounds are few, and little is tested in vain. It ends
            # with an epoch, so that ties are not torn apart.
            reach = np.minimum(at + size, end)
            stop = np.minimum(np.searchsorted(self._codes, self._codes[reach - 1], "right"), end)
            part = self._share(stop - at)
            places, whose = spread(at[:part], (stop - at)[:part])
            if test is not None:
                held = test(active[whose], self.events[places])
                places, whose = places[held], whose[held]
            codes = self._codes[places]
            heads = np.ones(len(whose), np.bool_)
            np.not_equal(whose[1:], whose[:-1], out=heads[1:])
            best = codes[heads][np.cumsum(heads) - 1]
            ties = codes == best
            found.append((active[whose[ties]], self.events[places[ties]]))
            count += len(found[-1][0])
            open_ = np.ones(len(active), np.bool_)
            open_[whose] = False
            at[:part] = stop[:part]
            open_ &= at < end
            active, at, end = active[open_], at[open_], end[open_]
            if part == len(stop):
                size *= 4
        if not found:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        instances, events = (np.concatenate(column) for column in zip(*found, strict=True))
        if len(found) > 1:
            order = np.argsort(instances, kind="stable")
            instances, events = instances[order], events[order]
        return instances, events

    def share(self, count: int) -> int:
        """Returns how many of so many instances have few enough ties to be looked at together."""
        if count * len(self.events) <= _PAIRS:
            return count
        bounds = np.flatnonzero(np.diff(self._codes, prepend=-1, append=-1))
        return min(count, max(1, _PAIRS // int(np.diff(bounds).max(initial=1))))

    def _share(self, sizes: Ints) -> int:
        """How many of these are taken at once."""
        return max(1, int(np.searchsorted(np.cumsum(sizes), _PAIRS, "right")))
