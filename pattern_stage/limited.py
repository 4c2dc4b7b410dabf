"""Runs NEXT, FOLD or AGGREGATE within limits: it is told in which epoch which row exceeds one.

An interval is run as a whole if it is certain that no row exceeds a limit in it. Else it is cut in two, down to single
epochs, after each of which what waits is counted: the events of an epoch all come at once, however intervals are cut,
so nothing else depends on these.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa

from pattern_stage.columns import Ints
from pattern_stage.flow import Flow, joined_flow
from pattern_stage.limits import Bound, Meter
from pattern_stage.operators import Operator, Renumber
from pattern_stage.room import Crowded, Room, Sees

FOUND = 1 << 22
"""So many results are made at once before it is looked whether a row has too many."""


class Bounded(Operator, Protocol):
    """An operator that can be limited."""

    def attempt(self, inputs: Sequence[Flow], until: int, room: Room) -> Flow:
        """Does what `run` does. Raises Crowded if there is not enough room."""

    def crowded(self, most: int, until: int, sees: Sees) -> Ints:
        """Returns the rows for which more than so many wait that they see, each in its own window, for what ends at
        `until` or later."""

    def leave(self, rows: Ints) -> None:
        """Makes no more for rows that are about to be removed, and forgets what waits for them, where that could
        become more than what comes."""


class Limited:
    """An operator within limits, which `meter` has. It is told there which rows exceed them."""

    def __init__(self, operator: Bounded, meter: Meter, sees: Sees) -> None:
        self._operator, self._meter, self._sees = operator, meter, sees
        self._spare = 0
        """So much more can wait before a row could exceed the limit, at least."""

    def run(self, inputs: Sequence[Flow], until: int) -> Flow:
        """Returns the results."""
        found = list(self._parts(inputs, until))
        flow = found[0] if len(found) == 1 else joined_flow(found, found[0])
        self._tell_crowded(flow)
        return flow

    def _parts(self, inputs: Sequence[Flow], until: int) -> Iterator[Flow]:
        flow = self._attempt(inputs, until)
        if flow is None:  # perhaps less waits than there is known of
            self._spare = self._meter.limits.partial - int(self._operator.waiting().max(initial=0))
            flow = self._attempt(inputs, until)
        if flow is not None:
            yield flow
            return
        times = np.unique(np.concatenate([one.events.t1 for one in inputs]))
        if len(times) == 1:
            yield self._epoch(inputs, int(times[0]))
            self._operator.attempt([_behind(one, until) for one in inputs], until, Room())  # so that instances expire
            return
        cut = int(times[len(times) // 2])
        yield from self._parts([_before(one, cut) for one in inputs], cut)
        yield from self._parts([_behind(one, cut) for one in inputs], until)

    def _attempt(self, inputs: Sequence[Flow], until: int) -> Flow | None:
        room = Room(max(self._spare, 0), FOUND)
        try:
            flow = self._operator.attempt(inputs, until, room)
        except Crowded:
            return None
        self._spare = min(self._spare, room.waiting)
        return flow

    def _epoch(self, inputs: Sequence[Flow], time: int) -> Flow:
        """Runs an epoch, whatever it takes, and looks what waits after it. As long as no row has too many results,
        there is room for more."""
        limits, found = self._meter.limits, FOUND
        while True:
            try:
                flow = self._operator.attempt(
                    inputs, time + 1, Room(found=found, epoch=time, most=limits.matches, sees=self._sees)
                )
                break
            except Crowded as crowded:
                found *= 4
                self._tell(crowded.rows, time, "matches")
        self._tell(self._operator.crowded(limits.partial, time + 1, self._sees), time, "partial")
        self._spare = 0
        return flow

    def _tell(self, rows: Ints, time: int, bound: Bound) -> None:
        if len(rows):
            self._meter.tell(rows, time, bound)
            self._operator.leave(rows)

    def _tell_crowded(self, flow: Flow) -> None:
        """Tells rows that have too many results in an epoch."""
        most = self._meter.limits.matches
        if len(flow.events) <= most:
            return
        times, ranks, at_once = np.unique(flow.events.t1, return_inverse=True, return_counts=True)
        if at_once.max() <= most:
            return
        codes, counts = np.unique(flow.rows * len(times) + ranks[flow.at], return_counts=True)
        for code in codes[counts > most].tolist():
            row, rank = divmod(code, len(times))
            at = flow.at[(flow.rows == row) & (ranks[flow.at] == rank)]
            if np.count_nonzero(self._sees(row, flow.events.parts[at, 0])) > most:
                self._meter.tell(np.array([row]), int(times[rank]), "matches")

    # ------------------------------------------------------------ as any operator

    def add_rows(self, new: Ints) -> None:
        """Takes in rows that were added."""
        self._operator.add_rows(new)

    def remove_rows(self, gone: Ints) -> None:
        """Forgets rows and all that waits for them."""
        self._operator.remove_rows(gone)

    def waiting(self) -> Ints:
        """Returns how many instances wait for each row."""
        return self._operator.waiting()

    def codes(self) -> Iterable[Ints]:
        """Returns the codes of all texts that it holds."""
        return self._operator.codes()

    def parts(self) -> Iterable[Ints]:
        """Returns the numbers of the events that what waits was made of."""
        return self._operator.parts()

    def state(self) -> pa.Table:
        """Returns what waits."""
        return self._operator.state()

    def restore(self, table: pa.Table, renumber: Renumber) -> None:
        """Takes over a state that was saved."""
        self._operator.restore(table, renumber)
        self._spare = 0


def _before(flow: Flow, cut: int) -> Flow:
    """Returns the part of a flow before a time."""
    events = int(np.searchsorted(flow.events.t1, cut))
    pairs = int(np.searchsorted(flow.at, events))
    return Flow(flow.events.take(np.arange(events)), flow.at[:pairs], flow.rows[:pairs])


def _behind(flow: Flow, cut: int) -> Flow:
    """Returns the part of a flow from a time on."""
    events = int(np.searchsorted(flow.events.t1, cut))
    pairs = int(np.searchsorted(flow.at, events))
    return Flow(flow.events.take(np.arange(events, len(flow.events))), flow.at[pairs:] - events, flow.rows[pairs:])
