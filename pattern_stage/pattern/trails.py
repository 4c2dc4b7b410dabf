"""Trails and runs kept for rows: expiry, limits, and waiting matches. Kept events of trails, and links to them, count
for a row as long as a run that began in the row's window leads there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Any, Literal

import numpy as np

from common.arrays import Ints
from common.bounds import BEGINNING, END, deadline
from pattern_stage.operators import Meter
from pattern_stage.pattern.cells import (
    NOTHING,
    Cell,
    CellTable,
    Draft,
    Trail,
    TrailEntry,
    forget_trails,
    mask_to_rows,
    rows_to_mask,
    top_of,
)
from pattern_stage.pattern.found import AtOnce, Bundle, Ending, RowWindows, bundles
from pattern_stage.pattern.match import KeptRows, KeyState, Tally
from pattern_stage.pattern.rows import KeyValues
from pattern_stage.plan import Rows


class Ages:
    """Counts kept items by set of rows and begin of their latest run."""

    def __init__(self) -> None:
        self._kept: dict[int, dict[int, int]] = {}

    def add(self, rows: int, start: int, weight: int) -> None:
        ages = self._kept.setdefault(rows, {})
        ages[start] = ages.get(start, 0) + weight

    def counts(self, now: int, windows: RowWindows) -> Ints:
        """Returns by row the count that began in its window, which ends at `now`. Rows past the end have none."""
        found = np.zeros(max((rows.bit_length() for rows in self._kept), default=0), np.int64)
        for mask, ages in self._kept.items():
            rows = mask_to_rows(mask)
            starts = np.array(sorted(ages), np.int64)
            younger = np.append(np.cumsum([ages[start] for start in starts[::-1].tolist()])[::-1], 0)
            found[rows] += younger[np.searchsorted(starts, now - windows.of(rows))]
        return found


def weights(trail: Trail) -> Iterator[tuple[int, int]]:
    """Yields weights of a trail by begin of their latest run: one per event, and one per link to it or to the first."""
    before: int = BEGINNING
    for segment in trail.segments:
        top = top_of(segment)
        yield top, 1
        before = max(before, top)
    place = trail.forgotten
    for root in trail.roots:
        if root.place > place:
            yield before, 2 * (root.place - place)
            place = root.place
        before = max(before, root.start)
    yield before, 2 * (trail.last + 1 - place)


_LONG = 64  # number of events from which a trail is long

_SWEEP = 1000  # trails are scanned for unreachable ones when they have doubled and reached this number

ExpiringRun = Trail | tuple[KeyValues, Cell | Literal["absent", "pending"], Any]
"""A trail; or a key, with a cell and its place, or with what of the key to check."""


def pending_keys(some: Iterable[ExpiringRun]) -> dict[KeyValues, None]:
    return dict.fromkeys(one[0] for one in some if not isinstance(one, Trail) and one[1] == "pending")


class KeptTrails(KeptRows):
    """The runs of some rows, by key."""

    trailing = False  # whether complete matches wait for negated events

    def __init__(self, meter: Meter, rows: Rows, new_part: Callable[[], KeyState], *, merged: bool = True) -> None:
        """Without `merged`, each run stays separate."""
        super().__init__(0, meter)
        self.merged, self._next = merged, 0
        self.parts = defaultdict[KeyValues, KeyState](new_part)
        self.windows = RowWindows(rows)
        self._by_start: dict[int, list[ExpiringRun]] = defaultdict(list)  # items by the begin of their latest run
        self._starts: list[int] = []
        self._watched, self._sweep_at = 0, _SWEEP
        self.room = meter.limits.partial  # weight that may be added before a row may exceed the limit
        self._long: dict[int, Trail] = {}  # trails to trim
        self._outgrown: list[list[TrailEntry]] = []  # lists that only trails still have
        self.made, self.most_made = 0, meter.limits.partial
        """Weight created in this epoch, and its bound before a row may exceed the limit."""
        self.found = AtOnce(meter.limits.matches, self.windows)

    def kept_cells(self) -> Iterator[Cell]:
        return (cell for part in self.parts.values() for cells in part.tables for cell in cells.values())

    def pass_until(self, time: int) -> list[Bundle]:
        """Advances time. Returns what becomes known before; what can continue at `time` stays."""
        ended: list[Bundle] = []
        self.passed = time
        while self._starts and deadline(self._starts[0], self.window) < time:
            start = self._starts[0]
            gone = self._by_start[start]
            if self.trailing:
                self.find_pending(start, pending_keys(gone))
                ended += self.end_found()
            self._expire(start + 1, gone)
            heappop(self._starts)
            del self._by_start[start]
            self._watched -= len(gone)
        return ended

    def find_pending(self, start: int, keys: Iterable[KeyValues]) -> None:
        """Finds the waiting matches of keys that begin at `start`: their window has ended."""

    def _expire(self, low: int, some: Sequence[ExpiringRun]) -> None:
        """Drops of these items what began before a time."""
        for expiring in some:
            if isinstance(expiring, Trail):
                expiring.segments = NOTHING
                continue
            key, one, place = expiring
            if (part := self.parts.get(key)) is None:
                continue
            if one == "absent":
                part.absent = [[one for one in some if one[0][0] >= low - self.longer] for some in part.absent]
            elif isinstance(one, Cell) and not (one.entries and one.entries[-1].top >= low):
                cells = part.tables[place]
                if cells.get(one.name) is one:
                    del cells[one.name]
                    one.entries = []
            self.drop_empty(key)

    def add_rows(self, new: int, window: int) -> None:
        super().add_rows(new, window)
        self.windows.follow(mask_to_rows(self.rows))

    def waiting(self) -> Iterator[tuple[int, int]]:
        """Yields the rows of waiting ends of runs; those with equal memory at one event count once."""
        return ((one.rows, 1) for cell in self.kept_cells() for one in cell.entries if one.start >= self.low)

    def change(self, key: KeyValues, tables: Iterable[CellTable[Cell]], change: Callable[[Cell], object]) -> None:
        """Changes cells of a key, and drops what is empty then."""
        for cells in tables:
            for name, cell in list(cells.items()):
                change(cell)
                if not cell.entries:
                    del cells[name]
        self.drop_empty(key)

    def drop_empty(self, key: KeyValues) -> None:
        if key in self.parts and self.parts[key].is_empty():
            del self.parts[key]

    def remove_rows(self, gone: int) -> None:
        super().remove_rows(gone)
        self.windows.follow(mask_to_rows(self.rows))
        for key, part in list(self.parts.items()):
            part.absent = [[(one, of & ~gone) for one, of in some if of & ~gone] for some in part.absent]
            self.change(key, part.tables, lambda cell: cell.without(gone))

    @property
    def longer(self) -> int:
        """How much longer than runs negated events are kept: as long as matches wait that they may kill."""
        return self.window if self.trailing else 0

    @property
    def low(self) -> int:
        """The least begin of a run that can continue."""
        return self.passed - self.window

    def watch(self, start: int, one: ExpiringRun) -> None:
        """Schedules an item for when all runs that begin until a time have expired."""
        if start not in self._by_start:
            heappush(self._starts, start)
        self._by_start[start].append(one)
        self._watched += 1

    def begin(self) -> None:
        """Begins an interval: earlier results are no longer referenced."""
        for trail in self._long.values():
            trail.trim(self.low)
        for entries in self._outgrown:
            forget_trails(entries, self.low)
        self._long, self._outgrown = {}, []

    def trail_of(self, key: KeyValues, draft: Draft, rows: int) -> Trail:
        trail = draft.trail(rows)
        if len(trail.events) >= _LONG:
            self._long[id(trail)] = trail
        if trail.segments and len(trail.events) == 1:
            self.watch(draft.before, trail)
        self.room -= 2 + len(draft.segments)
        return trail

    def name(self, registers: tuple[Any, ...]) -> tuple[Any, ...]:
        """Names a cell: by its registers, and uniquely without merging."""
        if self.merged:
            return registers
        self._next += 1
        return (*registers, self._next)

    def keep(self, key: KeyValues, place: int, registers: Any, draft: Draft, trail: Trail, rows: int) -> None:
        """Stores the runs of a draft, which end a trail, in a cell of the key's table at `place`."""
        cells, name = self.parts[key].tables[place], self.name(registers)
        if (cell := cells.get(name)) is None:
            cell = cells[name] = Cell(name, registers)
        elif len(cell.entries) >= cell.trim_at:
            entries = cell.entries
            cell.drop_before(self.low)
            if cell.entries is not entries:
                self._outgrown.append(entries)
        top = cell.entries[-1].top if cell.entries else BEGINNING
        cell.append(TrailEntry(draft.event[1], trail, trail.last, rows, draft.start, draft.oldest, draft.start, rows))
        if draft.start > top:
            self.watch(draft.start, (key, cell, place))
        if self.trailing and draft.roots:
            self.watch(draft.event[0], (key, "pending", 0))

    def adopt_trails(self, key: KeyValues, trails: Iterable[Trail], passed: int) -> None:
        """Adopts saved trails; `passed` is the time of saving."""
        self.passed = max(self.passed, passed)
        for trail in trails:
            before = max((top_of(segment) for segment in trail.segments), default=BEGINNING)
            if before >= self.low:
                self.watch(before, trail)
            self.room -= 2 * len(trail.events) + len(trail.segments)

    def adopt_cell(self, key: KeyValues, cell: Cell, place: int) -> None:
        """Adopts a saved cell, with runs of rows other than those that the key's cell of its name has."""
        cells = self.parts[key].tables[place]
        if (known := cells.get(cell.name)) is None:
            cells[cell.name] = cell
        else:
            known.absorb(cell)
            cell = known
        self.room -= len(cell.kills)
        for one in cell.entries:
            if one.top >= self.low:
                self.watch(one.top, (key, cell, place))

    def trails(self, *, low: int = BEGINNING) -> Iterator[Trail]:
        """Yields each trail that runs beginning at `low` or later lead to, once."""
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
        """Drops unreachable trails."""
        used = {id(trail) for trail in self.trails()}
        for start, some in self._by_start.items():
            self._by_start[start] = [one for one in some if not isinstance(one, Trail) or id(one) in used]
        self._watched = sum(map(len, self._by_start.values()))
        self._sweep_at = 2 * self._watched + _SWEEP

    def over(self) -> int:
        ages = Ages()
        for trail in self.trails(low=self.low):
            rows = trail.rows & self.rows
            for start, weight in weights(trail):
                if start >= self.low:
                    ages.add(rows, start, weight)
        for cell in self.kept_cells():
            oldest = min((one.t1 for one in cell.entries if one.start >= self.low), default=END)
            for _, t0, rows in cell.kills:
                if t0 > oldest:
                    ages.add(rows & self.rows, t0, 1)
        for part in self.parts.values():
            for some in part.absent:
                for event, rows in some:
                    ages.add(rows & self.rows, event[0] + self.longer, 1)
        counts = ages.counts(self.passed, self.windows)
        most = self._meter.limits.partial
        self.room = most - int(counts[counts <= most].max(initial=0))
        return rows_to_mask(np.flatnonzero(counts > most))

    def find(self, ending: Ending, trail: Trail, place: int, rows: int) -> None:
        for bundle in bundles(ending, trail, place, rows, lambda: self.rows):
            self.exceed(self.found.add(bundle), ending.known, "matches")

    def end_epoch(self, time: int) -> list[Bundle]:
        """Ends an epoch with events. Returns its results."""
        if self.room < 0:
            self.exceed(self.over(), time, "partial")
        self.made, self.most_made = 0, self._meter.limits.partial
        if self._watched >= self._sweep_at:
            self.sweep()
        return self.end_found()

    def end_found(self) -> list[Bundle]:
        if self._gone:
            self.remove_rows(self._gone)
            self._gone = 0
        return self.found.end(self.rows)

    def made_too_much(self, time: int, drafts: Iterable[Draft]) -> int:
        """Returns the rows for which this epoch's drafts and kept state exceed the limit, as they would at its end."""
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
