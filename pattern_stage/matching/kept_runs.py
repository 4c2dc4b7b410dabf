"""The runs of some rows as they are kept: what is too old goes, matches that waited are told, rows come and go."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from pattern_stage.limits import Meter
from pattern_stage.matching.ages import Ages
from pattern_stage.matching.arrivals import Key
from pattern_stage.matching.bundles import Bundle, Ending
from pattern_stage.matching.cells import Cell
from pattern_stage.matching.kept_trails import KeptTrails, Watched
from pattern_stage.matching.match import Part, Roles
from pattern_stage.matching.nodes import EVERY, Event, Trail
from pattern_stage.matching.program import Program
from pattern_stage.operators import RowVectors


class KeptRuns(KeptTrails):
    """The runs of some rows."""

    def __init__(
        self, program: Program, roles: Roles, window: int, meter: Meter, rows: RowVectors, *, merged: bool = True
    ) -> None:
        """Without `merged`, each run is apart."""
        super().__init__(window, meter, rows)
        self.program, self.roles, self._merged = program, roles, merged
        self.parts: dict[Key, Part] = {}
        self._next = 0
        strategy = program.pattern.strategy
        self._consuming, self._contiguous = strategy == "next", strategy in ("strict", "partition")
        self._strict = strategy == "strict"
        groups = program.last + 1
        some = list(enumerate(program.negations))
        self._killing = [[(at, one) for at, one in some if one.early and one.group == of + 1] for of in range(groups)]
        self._leading = [at for at, one in some if one.early and one.group == 0]
        self.trailing = bool(self._killing[-1])
        self._remembered = {*self._leading, *(at for at, one in some if not one.early)}
        self._nothing_absent: list[list[tuple[Event, int]]] = [[] for _ in some]
        self._ends_at_once = not program.kleene[program.last] and not self.trailing
        """Whether nothing is kept of what ends with the last variable."""

    def kept_cells(self) -> Iterator[Cell]:
        """See KeptTrails."""
        for part in self.parts.values():
            for cells in (*part.cells, part.pending):
                yield from cells.values()

    def kept_beside(self, ages: Ages) -> None:
        """Counts the negated events."""
        for part in self.parts.values():
            for some in part.absent:
                for event, rows in some:
                    ages.add(rows & self.rows, event[0] + self._longer(), 1)

    # ------------------------------------------------------------ time

    def pass_until(self, time: int) -> list[Bundle]:
        """Lets time pass, up to a moment. Returns what becomes known before."""
        told: list[Bundle] = []
        for start, some in self.expiring(time):
            if self.trailing:
                for key in dict.fromkeys(key for key, one, _ in some if one == "pending"):
                    self._find_pending(key, start)
                told += self.end_found()
            self._expire(start + 1, some)
        return told

    def _find_pending(self, key: Key, start: int) -> None:
        """Finds matches that begin at a time: nothing can kill them any more."""
        part = self.parts.get(key)
        if part is None:
            return
        for cell in part.pending.values():
            for one in cell.entries:
                if one.oldest <= start <= one.start:
                    ending = Ending(start + self.window, start, start, one.t1, key, part.absent)
                    self.find(ending, one.trail, one.place, one.rows)

    def due(self) -> int | None:
        """Returns a time: no match that waits becomes known before. None if none waits."""
        if not self.trailing:
            return None
        waiting = {key for key, part in self.parts.items() if part.pending}
        starts = (
            start
            for start in self._starts
            if any(one == "pending" and key in waiting for key, one, _ in self._by_start[start])
        )
        first = min(starts, default=None)
        return None if first is None else first + self.window

    def _expire(self, low: int, some: list[Watched]) -> None:
        for key, one, state in some:
            if one == "absent":
                self._expire_absent(key, low)
            if not isinstance(one, Cell) or (one.entries and one.entries[-1].top >= low):
                continue
            part = self.parts.get(key)
            if part is not None:
                cells = part.pending if state < 0 else part.cells[state]
                if cells.get(one.name) is one:
                    del cells[one.name]
                    one.entries = []
                if part.is_empty():
                    del self.parts[key]

    def _expire_absent(self, key: Key, low: int) -> None:
        part = self.parts.get(key)
        if part is not None:
            low -= self._longer()
            part.absent = [[one for one in some if one[0][0] >= low] for some in part.absent]
            if part.is_empty():
                del self.parts[key]

    def _longer(self) -> int:
        """How much longer than runs negated events are kept: as long as matches wait that they may kill."""
        return self.window if self.trailing else 0

    # ------------------------------------------------------------ upkeep

    def _cut(self, key: Key, begin: int) -> None:
        """Ends the runs of a key that an event which begins then does not continue."""
        part = self.parts[key]
        for cells in part.cells:
            for name, cell in list(cells.items()):
                if stop := cell.before(begin):
                    cell.take(stop, EVERY)
                    if not cell.entries:
                        del cells[name]
        if part.is_empty():
            del self.parts[key]

    def remove_rows(self, gone: int) -> None:
        """Forgets rows: what is left of a pattern that goes on."""
        self.rows &= ~gone
        for key, part in list(self.parts.items()):
            for cells in [*part.cells, part.pending]:
                for name, cell in list(cells.items()):
                    cell.without(gone)
                    if not cell.entries:
                        del cells[name]
            part.absent = [[(one, of & ~gone) for one, of in some if of & ~gone] for some in part.absent]
            if part.is_empty():
                del self.parts[key]

    def drop_rows(self, key: Key, rows: int) -> None:
        """Ends all runs of rows with a key: with all keys, for strict contiguity."""
        for one in list(self.parts) if self._strict else [key]:
            part = self.parts.get(one)
            if part is None:
                continue
            for cells in [*part.cells, part.pending]:
                for name, cell in list(cells.items()):
                    cell.take(len(cell.entries), rows if rows != self.rows else EVERY)
                    if not cell.entries:
                        del cells[name]
            if part.is_empty():
                del self.parts[one]

    def adopt(self, key: Key, part: Part, trails: Sequence[Trail], passed: int) -> None:
        """Takes over a part that was saved when time had passed up to some moment, and the trails in it. What was too
        old then is left."""
        self.parts[key] = part
        self.adopt_trails(key, trails, passed)
        if self.trailing:
            for root in (root for trail in trails for root in trail.roots if root.start >= self.low):
                self.watch(root.start, key, "pending")
        for state, cells in [*enumerate(part.cells), (-1, part.pending)]:
            for cell in cells.values():
                self.adopt_cell(key, cell, state)
        for some in part.absent:
            for event, _ in some:
                self.watch(event[0] + self._longer(), key, "absent")
        if part.is_empty():
            del self.parts[key]

    def waiting(self) -> dict[int, int]:
        """Returns sets of rows, and how many entries each has."""
        found: dict[int, int] = defaultdict(int)
        for cell in self.kept_cells():
            for one in cell.entries:
                if one.start >= self.low:
                    found[one.rows] += 1
        return found
