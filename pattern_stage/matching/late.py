"""Negated events that can be told to kill a match only when it is complete, as they are compared with later events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from pattern_stage.columns import Column, Ints
from pattern_stage.matching.bundle_table import BundleTable, Told
from pattern_stage.matching.found import Conditions
from pattern_stage.matching.masks import expanded
from pattern_stage.matching.nodes import Event
from pattern_stage.matching.program import Program
from pattern_stage.stretches import spread

_BLOCK = 100_000
"""About how many pairs of a match and a negated event are compared at a time."""


class LateKills:
    """The negations of a pattern that are not early."""

    def __init__(self, program: Program, conditions: Conditions) -> None:
        self._negations = []
        for at, one in enumerate(program.negations):
            if not one.early:
                tests = [test for test in program.pattern.kills if test.variable == one.variable]
                made = [conditions.condition(test.condition, test.names, one.variable) for test in tests]
                self._negations.append((at, one.group, made))

    def __bool__(self) -> bool:
        return bool(self._negations)

    def left(self, window: int, found: Told, parameters: tuple[Column, ...]) -> Told:
        """Returns matches with the rows for which nothing kills them."""
        for at, group, tests in self._negations:
            table = found.table
            killed = np.zeros(len(found.at), np.bool_)
            begin, end = _gaps(table, window, group)
            for pairs, others, events in self._blocks(found, at, begin, end):
                held = np.ones(len(pairs), np.bool_)
                for test in tests:
                    left = np.flatnonzero(held)
                    matches, rows = found.at[pairs[left]], found.rows[pairs[left]]
                    held[left] = test(table, matches, (rows, parameters), events, others[left])
                killed[pairs[held]] = True
            found = found.only(~killed)
        return found

    def _blocks(self, found: Told, at: int, begin: Ints, end: Ints) -> Iterator[tuple[Ints, Ints, Sequence[Event]]]:
        """Yields pairs of a match and a row, by their places, and the places of negated events that lie between the
        begin and the end of the match's gap and that the row has; and these events."""
        absent: dict[int, _Absent] = {}
        for number, ending in enumerate(bundle.ending for bundle in found.table.bundles):
            one = absent.setdefault(id(ending.absent), _Absent([], []))
            if not one.of:
                one.events.extend(ending.absent[at])
            one.of.append(number)
        for one in absent.values():
            if not one.events:
                continue
            events = [event for event, _ in one.events]
            t0, t1 = (np.array(column, np.int64) for column in zip(*(event[:2] for event in events), strict=True))
            event_at, event_rows = expanded([rows for _, rows in one.events])
            mine = np.flatnonzero(np.isin(found.table.of[found.at], one.of))
            step = max(1, _BLOCK // len(event_at))
            for some in (mine[first : first + step] for first in range(0, len(mine), step)):
                pair_at, where = spread(np.zeros(len(some), np.int64), np.full(len(some), len(event_at)))
                pairs, others = some[where], event_at[pair_at]
                matches = found.at[pairs]
                lies = (t0[others] > begin[matches]) & (t1[others] < end[matches])
                lies &= event_rows[pair_at] == found.rows[pairs]
                yield pairs[lies], others[lies], events


class _Absent(NamedTuple):
    """Negated events with their rows, and the bundles whose matches they may kill."""

    events: list[tuple[Event, int]]
    of: list[int]


def _gaps(table: BundleTable, window: int, group: int) -> tuple[Ints, Ints]:
    """Returns for each match between which times, both excluded, a negated event before a group lies."""
    end = table.times(group, last=False)
    if group == 0:
        return table.t1 - window - 1, end
    return table.times(group - 1, last=True), end
