"""What an m-op is at run time: an operator of many statements at once, each of them one of its rows.

Runs NEXT, FOLD or AGGREGATE within limits: it is told in which epoch which row exceeds one.

An interval is run as a whole if it is certain that no row exceeds a limit in it. Else it is cut in two, down to single
epochs, after each of which what waits is counted: the events of an epoch all come at once, however intervals are cut,
so nothing else depends on these.

Limits of what one statement may take: how much may wait for it, and how many results it may have at one time.

An m-op counts for each of its rows, epoch by epoch, so that nothing depends on how events are cut into intervals. As
soon as it is certain that a row exceeds a limit, the m-op says so, drops what it has for the row, and makes no more: so
the memory is not taken. All statements that the row is of have no results from that epoch on.

How much an operator may make of an interval, before it gives up and is asked for a part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from common.arrays import Ints
from pattern_stage.clauses import Clauses
from pattern_stage.columns import Column, Columns, Flow, Mask, joined_flow
from pattern_stage.lineage import DocumentIds, EventOrigin
from pattern_stage.plan import NO_BOUND

LimitName = Literal["matches", "partial"]
"""What a limit is on: what is found in an epoch, or what waits after one. The first counts if both are exceeded."""


@dataclass(frozen=True, slots=True)
class RowLimits:
    """Limits of a row of an m-op. `partial` bounds what waits for it after an epoch: instances, events, and ways from
    one to the next. `matches` bounds what it finds in an epoch, before HAVING and late negations are asked."""

    partial: int = NO_BOUND
    matches: int = NO_BOUND


NO_LIMITS = RowLimits()
"""Whatever is asked."""


class Excess(NamedTuple):
    """The epoch in which a limit was exceeded, and which one."""

    time: int
    bound: LimitName


class Meter:
    """What an m-op counts with: the limits, and which rows have exceeded one since they were last taken."""

    def __init__(self, limits: RowLimits = NO_LIMITS) -> None:
        self.limits = limits
        self._exceeded: dict[int, Excess] = {}

    def tell(self, rows: Ints, time: int, bound: LimitName) -> None:
        """Says that rows exceed a limit in an epoch. If they do so more than once, the first time counts."""
        for row in rows.tolist():
            self._exceeded[row] = min(self._exceeded.get(row, Excess(time, bound)), Excess(time, bound))

    def taken(self) -> dict[int, Excess]:
        """Returns the rows that have exceeded a limit, and forgets them."""
        found, self._exceeded = self._exceeded, {}
        return found


Renumber = Callable[[Ints], Ints]
"""The rows of today for rows as they were numbered when a state was saved; -1 for one that is gone."""


class RowVectors(Protocol):
    """The rows of an m-op: for each a vector, no two of which are equal.

    Columns may be longer than there are rows, and grow. An m-op with one input has 0 as `right` of every row.
    """

    @property
    def left(self) -> Ints:
        """The rows of the left input, or of the only one."""

    @property
    def right(self) -> Ints:
        """The rows of the right input."""

    @property
    def shape(self) -> Ints:
        """Which of the m-op's definitions each row has."""

    @property
    def within(self) -> Ints:
        """The WITHIN of NEXT and FOLD and the OVER of AGGREGATE in microseconds; NO_BOUND for none. It may grow."""

    @property
    def apart(self) -> Ints:
        """Of AGGREGATE since when each row sees events: those whose first part ends after that."""

    @property
    def parameters(self) -> tuple[Column, ...]:
        """The values of the parameters. A shape that has fewer than the m-op leaves the others NULL."""


class Index(Protocol):
    """Finds which targets an event satisfies. It is a `pattern_stage.index.StaticIndex`."""

    def add(self, targets: Ints, clauses: Clauses, parameters: tuple[Column, ...]) -> None:
        """Adds targets of one shape, with the parameters of each."""

    def settle(self) -> None:
        """Says that all have been added that come before the next events."""

    def remove(self, targets: Ints) -> None:
        """Forgets targets."""

    def hits(self, events: Columns, active: Mask | None = None) -> tuple[Ints, Ints]:
        """Returns places of events and targets that they satisfy, sorted by place, then by target."""

    def used(self) -> Iterable[Ints]:
        """Returns the codes of the texts that it holds."""


class SetNumbering(Protocol):
    """Gives numbers to what events were made of."""

    def together(self, parts: Ints, groups: Ints) -> Ints:
        """Returns a number for each group: that of the set of events that are parts of its rows.

        Rows of `parts` are sorted by group, `groups` counts from 0 without gaps, and equal sets have equal numbers.
        """

    def ends(self, numbers: Ints) -> Ints:
        """Returns the t1 of the events with these numbers."""


class OriginLookup(SetNumbering, Protocol):
    """Knows the events that numbers stand for, too: it is a `pattern_stage.lineage.Lineage`."""

    def ranges(self, members: Ints, begins: Ints, ends: Ints) -> Ints:
        """Returns the numbers of the sets of the members between these places, which are not listed unless somebody
        asks for them. Equal sets may have several numbers."""

    def origins(self, numbers: Ints) -> dict[int, EventOrigin]:
        """Returns what numbers stand for."""

    @property
    def document_ids(self) -> DocumentIds:
        """What documents are called."""


class PatternOp(Protocol):
    """An m-op. Its result is a function of the events, however they are cut into intervals."""

    def run(self, inputs: Sequence[Flow], until: int) -> Flow:
        """Returns the results with t1 before `until`, from all events of its inputs from the last `until` to this one.

        Events of an interval all come at once, or simultaneous ones would be torn apart.
        """

    def add_rows(self, new: Ints) -> None:
        """Takes in rows that were added. What came before this interval is not for them."""

    def remove_rows(self, gone: Ints) -> None:
        """Forgets rows and all that waits for them. Their numbers may then be given to others."""

    def waiting(self) -> Ints:
        """Returns how many instances wait for each row. Rows past the end have none."""

    def codes(self) -> Iterable[Ints]:
        """Returns the codes of all texts that it holds, but for those of its rows, for `Texts.keep`."""

    def parts(self) -> Iterable[Ints]:
        """Returns the numbers of the events that what waits was made of; -1 for none."""

    def state(self) -> pa.Table:
        """Returns what waits. Texts are strings, parts numbers of events, rows as they are numbered now."""

    def restore(self, table: pa.Table, renumber: Renumber) -> None:
        """Takes over a state that was saved, here or in another process, from an m-op of the same definitions."""


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


FOUND = 1 << 22
"""So many results are made at once before it is looked whether a row has too many."""


class Bounded(PatternOp, Protocol):
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

    def _tell(self, rows: Ints, time: int, bound: LimitName) -> None:
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
