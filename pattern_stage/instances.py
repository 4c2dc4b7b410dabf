"""The instances of NEXT and FOLD that wait: left events, or runs so far, each with a class of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pattern_stage.columns import Ints, Mask
from pattern_stage.fan_out import grown
from pattern_stage.members import Members
from pattern_stage.slots import KeptEvents, Slots


@dataclass(frozen=True, slots=True)
class Batch:
    """Instances as columns."""

    events: Ints
    """Places in `Instances.kept`."""
    origins: Ints
    """A number for each left event that an instance began with."""
    classes: Ints
    members: Ints
    """Codes of `Instances.members`."""
    keys: Ints
    """What the equality that is hashed demands; 0 without one."""
    marks: Ints
    """Hashes of all that an event must have to touch an instance."""

    def __len__(self) -> int:
        return len(self.events)

    def take(self, places: Ints | Mask | slice) -> Batch:
        """Returns the instances at these places."""
        return Batch(*(getattr(self, name)[places] for name in Batch.__slots__))


def joined_batches(batches: Sequence[Batch]) -> Batch:
    """Returns the instances of all of these, one after the other."""
    some = [batch for batch in batches if len(batch)] or batches[:1]
    if len(some) == 1:
        return some[0]
    return Batch(*(np.concatenate([getattr(batch, name) for batch in some]) for name in Batch.__slots__))


class Instances:
    """What waits, in columns. The cost of an interval is that of the instances touched, and of a look at the marks."""

    def __init__(self, sides: int) -> None:
        self.kept = KeptEvents(sides)
        self.members = Members()
        self.by_class = np.zeros(16, np.int64)
        """How many instances there are of each class."""
        self._slots = Slots()
        self._alive = np.zeros(16, np.bool_)
        self._ends = np.zeros(16, np.int64)
        self._batch = Batch(*(np.zeros(16, np.int64) for _ in range(6)))

    def __len__(self) -> int:
        return len(self._slots)

    def all(self) -> tuple[Ints, Batch]:
        """Returns all instances, with their places."""
        places = np.flatnonzero(self._alive[: self._slots.end])
        return places, self._batch.take(places)

    def counts(self) -> Ints:
        """Returns how many instances wait for each row. Rows past the end have none."""
        _, batch = self.all()
        codes, uses = np.unique(batch.members, return_counts=True)
        places, rows = self.members.rows(codes)
        return np.bincount(rows, uses[places]).astype(np.int64)

    def touched(self, marks: Ints) -> tuple[Ints, Batch]:
        """Returns, with their places, the instances with these marks, and perhaps a few more."""
        bits = max(10, int(8 * len(marks)).bit_length())
        table = np.zeros(1 << bits, np.bool_)
        table[marks & (len(table) - 1)] = True
        end = self._slots.end
        places = np.flatnonzero(table[self._batch.marks[:end] & (len(table) - 1)] & self._alive[:end])
        return places, self._batch.take(places)

    def add(self, batch: Batch, ends: Ints) -> None:
        """Keeps instances until the horizon passes `ends`."""
        places = self._slots.take(len(batch))
        size = self._slots.end
        if size > len(self._alive):
            self._batch = Batch(*(grown(getattr(self._batch, name), size) for name in Batch.__slots__))
            self._ends = grown(self._ends, size)
            self._alive = np.concatenate([self._alive, np.zeros(len(self._ends) - len(self._alive), np.bool_)])
        for name in Batch.__slots__:
            getattr(self._batch, name)[places] = getattr(batch, name)
        self._ends[places], self._alive[places] = ends, True
        self.kept.use(batch.events)
        self.members.use(batch.members)
        self.by_class = grown(self.by_class, int(batch.classes.max(initial=-1)) + 1)
        np.add.at(self.by_class, batch.classes, 1)

    def drop(self, places: Ints) -> Batch:
        """Forgets instances, and returns them. Their events and sets stay until they are swept."""
        batch = self._batch.take(places)
        self._forget(places, batch)
        return batch

    def sweep(self, events: Ints, members: Ints) -> None:
        """Forgets these events and sets, but for those that an instance that waits has."""
        self.kept.sweep(events)
        self.members.sweep(members)

    def expire(self, until: int) -> Batch:
        """Forgets all that could not end before this horizon, and returns it, as `drop` does."""
        end = self._slots.end
        return self.drop(np.flatnonzero((self._ends[:end] < until) & self._alive[:end]))

    def remove_rows(self, gone: Ints) -> None:
        """Forgets rows, and the instances that are of no others."""
        places, batch = self.all()
        self.members.remove(gone)
        empty = self.members.empty(batch.members, gone)
        lonely = batch.take(empty)
        self._forget(places[empty], lonely)
        self.sweep(lonely.events, lonely.members)

    def _forget(self, places: Ints, batch: Batch) -> None:
        self._alive[places] = False
        self._slots.give(places)
        np.subtract.at(self.by_class, batch.classes, 1)
        self.kept.leave(batch.events)
        self.members.leave(batch.members)
