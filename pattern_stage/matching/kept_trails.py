"""What is kept for some rows: cells of runs, and the trails that lead there. What is too old goes, and what is left is
counted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from typing import Any, Literal

import numpy as np

from pattern_stage.limits import Bound, Meter
from pattern_stage.matching.ages import Ages, weights
from pattern_stage.matching.arrivals import Key
from pattern_stage.matching.at_once import AtOnce
from pattern_stage.matching.bundles import Bundle, Ending, bundles
from pattern_stage.matching.cells import Cell
from pattern_stage.matching.masks import mask_of, rows_of
from pattern_stage.matching.nodes import ALWAYS, Draft, Trail, top_of
from pattern_stage.matching.row_windows import RowWindows
from pattern_stage.matching.tally import Tally
from pattern_stage.operators import NO_BOUND, RowVectors

_SWEEP = 1000
"""Trails are looked through for those that nothing leads to when there are twice as many, and so many."""

Watched = tuple[Key, Trail | Cell | Literal["absent", "pending"], Any]
"""Whose it is; what it is, or that something of the key is to be looked at; and of a cell where it is kept."""


class KeptTrails(ABC):
    """The runs of some rows. `window` is the greatest span of a match."""

    def __init__(self, window: int, meter: Meter, rows: RowVectors) -> None:
        self.window, self._meter = window, meter
        self.rows = 0
        self.windows = RowWindows(rows)
        self.passed = ALWAYS
        """Up to when time has passed."""
        self._by_start: dict[int, list[Watched]] = defaultdict(list)
        """For each time that runs begin at what has no later ones."""
        self._starts: list[int] = []
        self._watched, self._sweep_at = 0, _SWEEP
        self._room = meter.limits.partial
        """How much may be added before a row may exceed the limit."""
        self._long: dict[int, Trail] = {}
        """Trails to be trimmed."""
        self._gone = 0
        """The rows that have exceeded a limit in this epoch."""
        self.made, self.most_made = 0, meter.limits.partial
        """How much this epoch has made, and how much it may before a row may exceed the limit."""
        self.found = AtOnce(meter.limits.matches, self.windows)

    @abstractmethod
    def kept_cells(self) -> Iterator[Cell]:
        """Yields all cells."""

    @abstractmethod
    def remove_rows(self, gone: int) -> None:
        """Forgets rows, and what is kept for them alone."""

    @abstractmethod
    def kept_beside(self, ages: Ages) -> None:
        """Counts what there is beside cells."""

    # ------------------------------------------------------------ time

    @property
    def low(self) -> int:
        """When a run begins at least that can go on."""
        return self.passed - self.window

    def watch(self, start: int, key: Key, one: Trail | Cell | Literal["absent", "pending"], place: Any = 0) -> None:
        """Has something looked at when all runs are too old that begin until a time."""
        if start not in self._by_start:
            heappush(self._starts, start)
        self._by_start[start].append((key, one, place))
        self._watched += 1

    def expiring(self, time: int) -> Iterator[tuple[int, list[Watched]]]:
        """Lets time pass, up to a moment: what can go on then stays. Yields what no longer can, by its time."""
        self.passed = time
        while self._starts and self._starts[0] + self.window < time:
            start = self._starts[0]
            yield start, self._by_start[start]
            heappop(self._starts)
            gone = self._by_start.pop(start)
            self._watched -= len(gone)
            for _, one, _ in gone:
                if isinstance(one, Trail):
                    one.segments = []

    def begin(self) -> None:
        """Begins an interval: nothing refers to what was found in the one before."""
        for trail in self._long.values():
            trail.trim(self.low)
        self._long = {}

    # ------------------------------------------------------------ keeping

    def trail_of(self, key: Key, draft: Draft, rows: int) -> Trail:
        """Returns the trail that ends with a draft's event."""
        trail = draft.trail(rows)
        if trail.is_long:
            self._long[id(trail)] = trail
        if trail.segments and len(trail.events) == 1:
            self.watch(draft.before, key, trail)
        self.add_weight(2 + len(draft.segments))
        return trail

    def keep(
        self,
        key: Key,
        cells: dict[Any, Cell],
        name: Any,
        registers: Any,
        draft: Draft,
        trail: Trail,
        rows: int,
        place: Any,
    ) -> None:
        """Keeps the runs of a draft, which end a trail, in a cell, which is made if it is not there."""
        cell = cells.get(name)
        if cell is None:
            cell = cells[name] = Cell(name, registers)
        elif cell.crowded():
            cell.drop_before(self.low)
        top = cell.entries[-1].top if cell.entries else ALWAYS
        if cell.append(trail, rows, draft.start, draft.oldest).top > top:
            self.watch(draft.start, key, cell, place)

    def adopt_trails(self, key: Key, trails: Iterable[Trail], passed: int) -> None:
        """Takes over trails that were saved when time had passed up to some moment."""
        self.passed = max(self.passed, passed)
        for trail in trails:
            before = max((top_of(segment) for segment in trail.segments), default=ALWAYS)
            if before >= self.low:
                self.watch(before, key, trail)
            self._room -= 2 * len(trail.events) + len(trail.segments)

    def adopt_cell(self, key: Key, cell: Cell, place: Any) -> None:
        """Takes over a cell that was saved."""
        for one in cell.entries:
            if one.top >= self.low:
                self.watch(one.top, key, cell, place)

    def trails(self, *, low: int = ALWAYS) -> Iterator[Trail]:
        """Yields all trails that anything leads to with runs that begin at a time or later, each once."""
        seen: set[int] = set()
        lists: dict[int, int] = {}
        waiting = [one.trail for cell in self.kept_cells() for one in cell.entries if one.start >= low]
        while waiting:
            trail = waiting.pop()
            if id(trail) in seen:
                continue
            seen.add(id(trail))
            yield trail
            for entries, begin, stop, _ in trail.segments:
                known = lists.get(id(entries), 0)
                waiting += [one.trail for one in entries[max(begin, known) : stop] if one.start >= low]
                if begin <= known < stop:
                    lists[id(entries)] = stop

    def sweep(self) -> None:
        """Lets go of trails that nothing leads to."""
        used = {id(trail) for trail in self.trails()}
        for start, some in self._by_start.items():
            self._by_start[start] = [one for one in some if not isinstance(one[1], Trail) or id(one[1]) in used]
        self._watched = sum(map(len, self._by_start.values()))
        self._sweep_at = 2 * self._watched + _SWEEP

    # ------------------------------------------------------------ counting

    def add_weight(self, amount: int) -> None:
        """Says that so much more is kept."""
        self._room -= amount

    def over(self) -> int:
        """Returns the rows for which more is kept than the limit says."""
        ages = Ages()
        for trail in self.trails(low=self.low):
            rows = trail.rows & self.rows
            for start, weight in weights(trail):
                if start >= self.low:
                    ages.add(rows, start, weight)
        for cell in self.kept_cells():
            oldest = min((one.t1 for one in cell.entries if one.start >= self.low), default=NO_BOUND)
            for _, t0, rows in cell.kills:
                if t0 > oldest:
                    ages.add(rows & self.rows, t0, 1)
        self.kept_beside(ages)
        counts = ages.counts(self.passed, self.windows)
        most = self._meter.limits.partial
        self._room = most - int(counts[counts <= most].max(initial=0))
        return mask_of(np.flatnonzero(counts > most))

    def exceed(self, rows: int, time: int, bound: Bound) -> None:
        """Follows that rows exceed a limit: nothing more is made for them."""
        if rows:
            self._meter.tell(rows_of(rows), time, bound)
            self.rows &= ~rows
            self._gone |= rows

    def find(self, ending: Ending, trail: Trail, place: int, rows: int) -> None:
        """Finds matches that end at a place of a trail."""
        for bundle in bundles(ending, trail, place, rows, lambda: self.rows):
            self.exceed(self.found.add(bundle), ending.known, "matches")

    def end_epoch(self, time: int) -> list[Bundle]:
        """Ends an epoch with events. Returns what was found in it."""
        if self._room < 0:
            self.exceed(self.over(), time, "partial")
        self.made, self.most_made = 0, self._meter.limits.partial
        if self._watched >= self._sweep_at:
            self.sweep()
        return self.end_found()

    def end_found(self) -> list[Bundle]:
        """Returns what was found in an epoch."""
        if self._gone:
            self.remove_rows(self._gone)
            self._gone = 0
        return self.found.end(self.rows)

    def made_too_much(self, time: int, drafts: Iterable[Draft]) -> int:
        """Returns the rows for which an epoch has made more than may be kept: these drafts, and what is kept already.
        They would exceed the limit at the end of the epoch, too."""
        tally = Tally(self._meter.limits.partial)
        for draft in drafts:
            tally.add(draft.rows & self.rows, 1 + len(draft.segments))
        for cell in self.kept_cells():
            for one in reversed(cell.entries):
                if one.t1 < time:
                    break
                ways = len(one.trail.segments) if len(one.trail.events) == 1 else 1
                tally.add(one.rows & self.rows, 1 + ways)
        over = tally.over()
        self.most_made = self.made + tally.room
        return over
