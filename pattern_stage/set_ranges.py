"""Sets of numbered events that are ranges of lists, and are listed only as far as somebody asks for them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from common.distinct import distinct
from pattern_stage.columns import Ints, Mask
from pattern_stage.stretches import spread


@dataclass(frozen=True, slots=True)
class _Ranges:
    """Sets that are numbered from `first` on: of the events in a list from one place to another, the last excluded."""

    first: int
    members: Ints
    begins: Ints
    ends: Ints


class SetRanges:
    """Sets by number."""

    def __init__(self) -> None:
        self._ranges: list[_Ranges] = []
        """The numbers of one come before those of the next."""

    def add(self, first: int, members: Ints, begins: Ints, ends: Ints) -> None:
        """Adds sets, which are numbered from `first` on, past all others: of the members between these places."""
        self._ranges.append(_Ranges(first, members, begins, ends))

    def clear(self) -> None:
        """Forgets all sets."""
        self._ranges = []

    def numbers(self) -> Ints:
        """Returns the numbers of all sets, sorted."""
        every = [np.arange(one.first, one.first + len(one.begins)) for one in self._ranges]
        return np.concatenate([np.zeros(0, np.int64), *every])

    def has(self, numbers: Ints) -> Mask:
        """Returns which numbers are those of sets here."""
        if not self._ranges:
            return np.zeros(len(numbers), np.bool_)
        bounds = np.array([(one.first, one.first + len(one.begins)) for one in self._ranges], np.int64)
        of = np.searchsorted(bounds[:, 0], numbers, "right") - 1
        found: Mask = (of >= 0) & (numbers < bounds[of, 1])
        return found

    def listed(self, numbers: Ints) -> tuple[Ints, Ints]:
        """Returns the members of sets with these sorted numbers, one set after the other, and how many each has."""
        firsts = np.array([one.first for one in self._ranges], np.int64)
        of = np.searchsorted(firsts, numbers, "right") - 1
        members, counts = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for number in distinct(of).tolist():
            one, at = self._ranges[number], numbers[of == number] - firsts[number]
            sizes = one.ends[at] - one.begins[at]
            places, _ = spread(one.begins[at], sizes)
            members.append(one.members[places])
            counts.append(sizes)
        return np.concatenate(members), np.concatenate(counts)
