"""Which rows of AGGREGATE keep their events together: those of one class over one input, whatever OVER and since."""

from __future__ import annotations

import numpy as np

from common.distinct import distinct
from pattern_stage.columns import Ints
from pattern_stage.fan_out import FanOut, grown
from pattern_stage.operators import RowVectors
from pattern_stage.slots import Slots


class WindowGroups:
    """Groups of rows. The rows of a group that have one OVER are a span."""

    def __init__(self, rows: RowVectors) -> None:
        self._rows = rows
        self.groups = FanOut()
        """The groups that read a row of the input."""
        self.spans = FanOut()
        """The spans of a group."""
        self.members = FanOut()
        """The rows of a span."""
        self.of_row = np.full(16, -1, np.int64)
        """The group of each row."""
        self.within = np.zeros(16, np.int64)
        """The greatest OVER of each group."""
        self.class_of = np.zeros(16, np.int64)
        self.over = np.zeros(16, np.int64)
        """The OVER of each span."""
        self._numbers: dict[tuple[int, int], int] = {}
        self._keys: dict[int, tuple[int, int]] = {}
        self._spans: dict[int, dict[int, int]] = {}
        self._sizes = np.zeros(16, np.int64)
        self._group_slots, self._span_slots = Slots(), Slots()
        self._span_of_row = np.full(16, -1, np.int64)

    def add(self, new: Ints, classes: Ints) -> None:
        """Takes in rows, with their classes."""
        rows = self._rows
        self.of_row = grown(self.of_row, int(new.max(initial=-1)) + 1, -1)
        self._span_of_row = grown(self._span_of_row, len(self.of_row), -1)
        for row, left, of, over in zip(
            new.tolist(), rows.left[new].tolist(), classes.tolist(), rows.within[new].tolist(), strict=True
        ):
            group = self._group(left, of)
            span = self._span(group, over)
            self.of_row[row], self._span_of_row[row] = group, span
            self._sizes[span] += 1
        self.members.add(new, self._span_of_row[new])

    def remove(self, gone: Ints) -> Ints:
        """Forgets rows; returns the groups that have none left."""
        self.members.remove(gone)
        spans = self._span_of_row[gone]
        np.subtract.at(self._sizes, spans, 1)
        emptied = distinct(spans[self._sizes[spans] == 0])
        group_of = dict(zip(spans.tolist(), self.of_row[gone].tolist(), strict=True))
        self.of_row[gone] = self._span_of_row[gone] = -1
        empty: list[int] = []
        for span in emptied.tolist():
            group = group_of[span]
            mine = self._spans[group]
            del mine[int(self.over[span])]
            self.within[group] = max(mine, default=0)
            if not mine:
                empty.append(group)
                del self._spans[group], self._numbers[self._keys.pop(group)]
        self.spans.remove(emptied)
        self._span_slots.give(emptied)
        groups = np.array(empty, np.int64)
        self.groups.remove(groups)
        self._group_slots.give(groups)
        return groups

    def _group(self, left: int, of: int) -> int:
        found = self._numbers.get((left, of))
        if found is None:
            taken = self._group_slots.take(1)
            found = int(taken[0])
            self.within, self.class_of = grown(self.within, found + 1), grown(self.class_of, found + 1)
            self.within[found], self.class_of[found] = 0, of
            self._numbers[left, of], self._keys[found], self._spans[found] = found, (left, of), {}
            self.groups.add(taken, np.array([left]))
        return found

    def _span(self, group: int, over: int) -> int:
        found = self._spans[group].get(over)
        if found is None:
            taken = self._span_slots.take(1)
            found = self._spans[group][over] = int(taken[0])
            self.over, self._sizes = grown(self.over, found + 1), grown(self._sizes, found + 1)
            self.over[found], self._sizes[found] = over, 0
            self.within[group] = max(int(self.within[group]), over)
            self.spans.add(taken, np.array([group]))
        return found
