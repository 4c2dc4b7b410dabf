"""The runs of the rows that share them: those of one pattern with one window, or with any where that makes no
difference.

At an epoch each event meets the cells of its key as they were before; then what has been consumed goes, and new runs
enter. Time passes in between: runs that are too old go, and matches that had to wait are told.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from pattern_stage.matching.arrivals import Arrival, Key
from pattern_stage.matching.bundles import Bundle, Ending
from pattern_stage.matching.cell_table import CellTable
from pattern_stage.matching.cells import Cell
from pattern_stage.matching.kept_runs import KeptRuns
from pattern_stage.matching.match import Part
from pattern_stage.matching.nodes import ALWAYS, EVERY, Draft, Event, Trail, top_of
from pattern_stage.matching.program import Edge

Drafts = dict[tuple[Any, ...], Draft]
"""What an epoch makes of the runs of a key: by state, registers and event; without merging, each by a number more."""

Consumed = tuple[CellTable, Cell, int, int]
"""A cell, and where it is; runs that end before a time go, for some rows."""


class Store(KeptRuns):
    """The runs of some rows, and what an epoch of events does with them."""

    def step(self, time: int, arrivals: Sequence[Arrival]) -> list[Bundle]:
        """Takes the events of an epoch. Returns what has become known since the one before, and in it."""
        told = self.pass_until(time)
        if not (self._strict or self._remembered) and all(map(self._is_idle, arrivals)):
            return told
        if len(arrivals) == 1:
            key = arrivals[0].key
            if key is not None:
                self._meet(key, arrivals)
        else:
            by_key: dict[Key, list[Arrival]] = {}
            for one in arrivals:
                if one.key is not None:
                    by_key.setdefault(one.key, []).append(one)
            for key, some in by_key.items():
                self._meet(key, some)
        if self._strict:
            begin = max(one.event[0] for one in arrivals)
            for key in list(self.parts):
                self._cut(key, begin)
        return told + self.end_epoch(time)

    def _is_idle(self, one: Arrival) -> bool:
        """Returns whether an event changes nothing: it begins no run, and there is none that it may end or lead on."""
        return one.key is None or not (one.key in self.parts or one.masks[self.roles.begins[0]] & self.rows)

    def _meet(self, key: Key, arrivals: Sequence[Arrival]) -> None:
        part = self.parts.get(key)
        drafts: Drafts = {}
        consumed: list[Consumed] = []
        for arrival in arrivals:
            ends: Drafts = {} if self._ends_at_once else drafts
            if part is not None:
                self._meet_cells(part, arrival, drafts, ends, consumed)
            if rows := arrival.masks[self.roles.begins[0]] & self.rows:
                self._root(ends if self.program.last == 0 else drafts, arrival.event, rows, part)
            if ends is not drafts:
                for name, draft in ends.items():
                    self._match(key, part, name[1], draft)
            if self.made > self.most_made:
                self.exceed(self.made_too_much(arrival.event[1], drafts.values()), arrival.event[1], "partial")
        if part is not None:
            if self.program.negations:
                self._kill(part, arrivals)
            for cells, cell, begin, ok in consumed:
                if stop := cell.before(begin):
                    cell.take(stop, ok if ok != self.rows else EVERY)
                if not cell.entries and cell.name in cells:
                    del cells[cell.name]
        if self._contiguous and part is not None and not self._strict:
            self._cut(key, max(one.event[0] for one in arrivals))
        if drafts or self._remembered:
            self._enter(key, drafts, arrivals)
        elif part is not None and part.is_empty():
            self.parts.pop(key, None)

    def _meet_cells(self, part: Part, arrival: Arrival, drafts: Drafts, ends: Drafts, consumed: list[Consumed]) -> None:
        """Leads the runs of all cells to an event that they go on with. `ends` takes those of the last variable."""
        program, roles, kleene, last = self.program, self.roles, self.program.kleene, self.program.last
        event, masks = arrival.event, arrival.masks
        for state, cells in enumerate(part.cells):
            if not cells:
                continue
            take = masks[roles.takes[state]] & self.rows if kleene[state] else 0
            begin = masks[roles.begins[state + 1]] & self.rows if state < last else 0
            if not take and not begin:
                continue
            into = ends if state + 1 == last else drafts
            for cell in self._asked(cells, state, event, take, begin) if program.hashed[state] else cells.values():
                stop = cell.before(event[0])
                if not stop or cell.entries[stop - 1].top < event[1] - self.window:
                    continue
                reach = cell.entries[stop - 1].reach
                if take and (ok := self._held(program.takes[state], cell.registers, event, take & reach)):
                    registers = program.take[state](cell.registers, event)
                    self._link(drafts, state, registers, event, cell, [(0, 0)], stop, ok)
                    if self._consuming:
                        consumed.append((cells, cell, event[0], ok))
                if begin and (ok := begin & reach & self._complete(cell, state)):
                    ok = self._held(program.begins[state + 1], cell.registers, event, ok)
                    if not ok:
                        continue
                    if self._consuming and not kleene[state]:
                        consumed.append((cells, cell, event[0], ok))
                    ranges = cell.killed(event[0], stop) if cell.kills else [(0, 0)]
                    registers = program.begin[state + 1](cell.registers, event)
                    self._link(into, state + 1, registers, event, cell, ranges, stop, ok)

    def _asked(self, cells: CellTable, state: int, event: Event, take: int, begin: int) -> Collection[Cell]:
        """Returns the cells of a state that may go on with an event."""
        edges = [self.program.takes[state].equal] if take else []
        edges += [self.program.begins[state + 1].equal] if begin else []
        return cells.asked(edges, event)

    def _held(self, edge: Edge, registers: tuple[Any, ...], event: Event, rows: int) -> int:
        """Returns for which of these rows an edge may be taken."""
        if rows and edge.holds is not None and not edge.holds(registers, event):
            return 0
        for test in edge.by_row:
            if not rows:
                break
            rows = test.mask(registers, event, rows)
        return rows

    def _complete(self, cell: Cell, state: int) -> int:
        """Returns for which rows the last variable of the runs of a cell may be complete."""
        edge = self.program.completes[state]
        if edge.holds is None and not edge.by_row:
            return EVERY
        return self._held(edge, cell.registers, (), self.rows)

    def _link(
        self,
        drafts: Drafts,
        state: int,
        registers: tuple[Any, ...],
        event: Event,
        cell: Cell,
        ranges: list[tuple[int, int]],
        stop: int,
        rows: int,
    ) -> None:
        """Leads runs of a cell to an event."""
        shared = not (self._consuming or self._contiguous)
        segments = cell.segments(ranges, stop, rows, shared=shared)
        if not self._merged:
            segments = [(entries, at, at + 1, of) for entries, begin, end, of in segments for at in range(begin, end)]
        draft = None
        for segment in segments:
            top = top_of(segment)
            if top < event[1] - self.window:
                continue
            if draft is None or not self._merged:
                draft = self._draft(drafts, state, registers, event)
            entries, begin, end, _ = segment
            draft.before = max(draft.before, top)
            draft.oldest = min(draft.oldest, entries[begin].oldest if end - begin == 1 else ALWAYS)
            draft.segments.append(segment)
            self.made += 1

    def _draft(self, drafts: Drafts, state: int, registers: tuple[Any, ...], event: Event) -> Draft:
        name = (state, registers, event[2])
        if not self._merged:
            self._next += 1
            name = (state, registers, event[2], self._next)  # type: ignore[assignment]  # one more
        draft = drafts.get(name)
        if draft is None:
            draft = drafts[name] = Draft(event, state)
        return draft

    def _root(self, drafts: Drafts, event: Event, rows: int, part: Part | None) -> None:
        """Begins runs with an event."""
        if event[1] - event[0] > self.window:
            return
        draft = self._draft(drafts, 0, self.program.begin[0]((), event), event)
        draft.oldest = min(draft.oldest, event[0])
        if not self._leading or part is None:
            draft.roots = [(ALWAYS, rows)]
            return
        before = [
            (negated[0] + self.window, of)
            for at in self._leading
            for negated, of in part.absent[at]
            if negated[1] < event[0]
        ]
        for bound, of in sorted(before, reverse=True):
            if of & rows:
                draft.roots.append((bound, of & rows))
                rows &= ~of
        if rows:
            draft.roots.append((ALWAYS, rows))

    def _kill(self, part: Part, arrivals: Sequence[Arrival]) -> None:
        """Tells cells of negated events that were there before this epoch's runs."""
        for state, negations in enumerate(self._killing):
            if not negations:
                continue
            is_last = state == self.program.last
            cells = part.pending if is_last else part.cells[state]
            for at, negation in negations:
                for arrival in arrivals:
                    rows = arrival.masks[self.roles.negations[at]] & self.rows
                    if not rows:
                        continue
                    for cell in list(cells.asked([negation.edge.equal], arrival.event)):
                        if held := self._held(negation.edge, cell.registers, arrival.event, rows):
                            stop = cell.before(arrival.event[0])
                            if stop and is_last:
                                cell.take(stop, held if held != self.rows else EVERY)
                                if not cell.entries:
                                    del cells[cell.name]
                            elif stop:
                                cell.kill(arrival.event, held)
                                self.add_weight(1)

    # ------------------------------------------------------------ the end of an epoch

    def _enter(self, key: Key, drafts: Drafts, arrivals: Sequence[Arrival]) -> None:
        """Keeps what the events of an epoch have made, and finds matches."""
        last = self.program.last
        part = self.parts.get(key)
        if part is None:
            part = self.parts[key] = Part(self.program.hashed, len(self.program.negations))
        for name, draft in drafts.items():
            state, registers = name[0], name[1]
            if state == last:
                self._match(key, part, registers, draft)
            elif rows := draft.rows & self.rows:
                trail = self.trail_of(key, draft, rows)
                self._keep(key, part.cells[state], registers, draft, trail, rows, state)
        for at in self._remembered:
            for arrival in arrivals:
                if rows := arrival.masks[self.roles.negations[at]] & self.rows:
                    part.absent[at].append((arrival.event, rows))
                    self.watch(arrival.event[0] + self._longer(), key, "absent")
                    self.add_weight(1)
        if part.is_empty():
            del self.parts[key]

    def _match(self, key: Key, part: Part | None, registers: tuple[Any, ...], draft: Draft) -> None:
        """Finds the matches that end with a draft of the last variable, and keeps what goes on or has to wait."""
        last, t1 = self.program.last, draft.event[1]
        rows = draft.rows & self.rows
        if not rows:
            return
        goes_on = self.program.kleene[last]
        matched = rows & self._held(self.program.completes[last], registers, (), rows)
        waits = matched and self.trailing
        if goes_on or waits:
            assert part is not None
            trail = self.trail_of(key, draft, rows)
            if goes_on:
                self._keep(key, part.cells[last], registers, draft, trail, rows, last)
            if waits:
                self._keep(key, part.pending, registers, draft, trail, matched, -1)
        else:
            trail = draft.trail(rows)
        if matched and not waits:
            absent = part.absent if part is not None else self._nothing_absent
            self.find(Ending(t1, t1 - self.window, t1, t1, key, absent), trail, trail.last, matched)

    def _keep(
        self,
        key: Key,
        cells: dict[tuple[Any, ...], Cell],
        registers: tuple[Any, ...],
        draft: Draft,
        trail: Trail,
        rows: int,
        state: int,
    ) -> None:
        name = registers
        if not self._merged:
            self._next += 1
            name = (*registers, self._next)
        self.keep(key, cells, name, registers, draft, trail, rows, state)
        if self.trailing and draft.roots:
            self.watch(draft.event[0], key, "pending")
