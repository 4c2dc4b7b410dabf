"""PATTERN without SET: the runs of all statements of one shape, each a row. In an epoch, each event meets the cells of
its key from before the epoch; then consumed runs go and new runs enter. Between epochs, runs expire and waiting matches
are reported. Rows of one pattern share runs if they have one window, or any where that makes no difference."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, compress, product
from typing import Any, cast

import numpy as np

from common.bounds import BEGINNING, INFINITE, deadline
from pattern_stage.columns import Flow, no_flow
from pattern_stage.operators import Meter, MOpContext
from pattern_stage.pattern.cells import EVERY, Cell, CellTable, Draft, EventTuple, Segment, Trail, top_of
from pattern_stage.pattern.found import Bundle, BundleMatches, Conditions, Ending, Kills, ResultBuilder
from pattern_stage.pattern.host import BundleHost, PartReader, SavedPart, map_register_texts
from pattern_stage.pattern.match import KeyState, MatchCandidate
from pattern_stage.pattern.program import CompiledEdge, EventSlots, PatternProgram
from pattern_stage.pattern.rows import Arrival, KeyValues, arrivals_by_key
from pattern_stage.pattern.trails import KeptTrails, pending_keys
from pattern_stage.plan import Rows
from xscl.algebra.events import Pattern

_Drafts = dict[tuple[int, tuple[Any, ...], tuple[int, ...]], Draft]
"""The new runs of a key in an epoch: by state, registers and event; without merging, by a serial number, too."""

Consumed = tuple[CellTable[Cell], Cell, int, int]
"""A cell and its table; runs of some rows that end before a time are removed."""


class RunStore(KeptTrails):
    def __init__(self, program: PatternProgram, meter: Meter, rows: Rows, *, merged: bool) -> None:
        super().__init__(meter, rows, lambda: KeyState(program.hashed, len(program.negations)), merged=merged)
        self.program = program
        strategy = program.pattern.strategy
        self._consuming, self._contiguous = strategy == "next", strategy in ("strict", "partition")
        self._strict, self._shared = strategy == "strict", strategy == "any"
        groups = range(program.last + 1)
        self._killing = [[one.edge for one in program.negations if one.early and one.group == of + 1] for of in groups]
        """By state, the edges of negated events that end its runs."""
        self._leading = [at for at, one in enumerate(program.negations) if one.early and one.group == 0]
        self.trailing = bool(self._killing[-1])
        self._remembered = [at for at, one in enumerate(program.negations) if not one.early or one.group == 0]
        self._ends_at_once = not program.kleene[program.last] and not self.trailing
        """Whether nothing is kept of what ends with the last variable."""
        self._edges = [(of, program.takes[of]) for of in groups if program.kleene[of]]
        """The edges by which an event is compared with runs, and the place of these runs' cells."""
        self._edges += [(of - 1, program.begins[of]) for of in groups[1:]]
        self._edges += [(of if of < program.last else -1, edge) for of in groups for edge in self._killing[of]]

    def find_pending(self, start: int, keys: Iterable[KeyValues]) -> None:
        for key in filter(self.parts.__contains__, keys):
            part = self.parts[key]
            for one in chain.from_iterable(cell.entries for cell in part.tables[-1].values()):
                if one.oldest <= start <= one.start:
                    ending = Ending(deadline(start, self.window), start, start, one.t1, key, part.absent)
                    self.find(ending, one.trail, one.place, one.rows)

    def due(self) -> int | None:
        """Returns the time before which no waiting match becomes known; None if none waits."""
        waiting = {key for key, part in self.parts.items() if part.tables[-1]}
        starts = (
            start
            for start in (self._starts if waiting else ())
            if not waiting.isdisjoint(pending_keys(self._by_start[start]))
        )
        return min((deadline(start, self.window) for start in starts), default=None)

    def _cut(self, keys: Iterable[KeyValues], arrivals: Sequence[Arrival]) -> None:
        """Ends the runs of keys that the events of an epoch do not continue."""
        begin = max(one.event[0] for one in arrivals)
        for key in keys:
            self.change(key, self.parts[key].tables[:-1], lambda cell: cell.take(cell.before(begin), EVERY))

    def drop_rows(self, key: KeyValues, rows: int) -> None:
        """Ends all runs of rows with a key; for strict contiguity, with all keys."""
        rows = rows if rows != self.rows else EVERY
        for one in list(self.parts) if self._strict else [key]:
            if one in self.parts:
                self.change(one, self.parts[one].tables, lambda cell: cell.take(len(cell.entries), rows))

    def adopt(
        self,
        key: KeyValues,
        trails: Sequence[Trail],
        passed: int,
        cells: Iterable[tuple[int, Cell]],
        absent: Sequence[list[tuple[EventTuple, int]]],
    ) -> None:
        """Adopts what was saved of a key, which may have other rows than the key has already, without what had expired
        at `passed`. Each cell comes with its place."""
        own = self.parts[key]
        self.adopt_trails(key, trails, passed)
        if self.trailing:
            for root in (root for trail in trails for root in trail.roots if root.start >= self.low):
                self.watch(root.start, (key, "pending", 0))
        for place, cell in cells:
            self.adopt_cell(key, cell, place)
        for at, some in enumerate(absent):
            self.room -= len(some)
            own.absent[at] = sorted([*own.absent[at], *some], key=lambda one: one[0][1])
            for event, _ in some:
                self.watch(event[0] + self.longer, (key, "absent", 0))
        self.drop_empty(key)

    def step(self, time: int, arrivals: Sequence[Arrival]) -> list[Bundle]:
        ended = self.pass_until(time)
        if not (self._strict or self._remembered) and all(map(self._is_idle, arrivals)):
            return ended
        by_key = arrivals_by_key(arrivals)
        if self._meter.limits.work < INFINITE:
            self._compare(by_key, time)
        for key, some in by_key.items():
            if self._remembered or not all(map(self._is_idle, some)):
                self._meet(key, some)
        if self._strict:
            self._cut(list(self.parts), arrivals)
        return ended + self.end_epoch(time)

    def _is_idle(self, one: Arrival) -> bool:
        return one.key is None or not (one.key in self.parts or one.masks[self.program.begins[0].role] & self.rows)

    def _compare(self, by_key: dict[KeyValues, list[Arrival]], time: int) -> None:
        """Counts the comparisons of an epoch's events with runs, before any is made: if a row could have too many of
        them; with negations always, since these are counted over a block."""
        parts = [(part, some) for key, some in by_key.items() if (part := self.parts.get(key)) is not None]
        at_most = 2 * sum(len(some) * sum(map(len, part.tables[:-1])) for part, some in parts)
        if not self.program.negations and at_most <= self._meter.limits.work:
            return
        for part, some in parts:
            for _, event, masks, _ in some:
                for place, edge in self._edges:
                    if rows := masks[edge.role] & self.rows:
                        cells = part.tables[place].asked([edge.equal], event)
                        for held, count in Counter(self._concerned(one, event, rows) for one in cells).items():
                            self._steps.add(held, count)
                if rows := masks[self.program.begins[0].role] & self.rows:
                    for _, of in chain.from_iterable(part.absent[at] for at in self._leading):
                        self._steps.add(rows & of)
                self.exceed(self._steps.over(), time, "work")
        if self.program.negations:
            self.end_steps(time)
        self._steps.clear()

    def _concerned(self, cell: Cell, event: EventTuple, rows: int) -> int:
        """Returns the rows with a run in a cell that may go on with an event."""
        found, low = 0, event[1] - self.window
        for at in range(cell.before(event[0]) - 1, -1, -1):
            one = cell.entries[at]
            if one.top < low or not rows & one.reach & ~found:
                break
            if one.start >= low:
                found |= rows & one.rows & self.windows.fitting(event[1] - one.start)
        return found

    def _meet(self, key: KeyValues, arrivals: Sequence[Arrival]) -> None:
        part = self.parts[key]
        drafts: _Drafts = {}
        consumed: list[Consumed] = []
        for arrival in arrivals:
            ends: _Drafts = {} if self._ends_at_once else drafts
            self._meet_cells(part, arrival, drafts, ends, consumed)
            if rows := arrival.masks[self.program.begins[0].role] & self.rows:
                self._root(ends if self.program.last == 0 else drafts, arrival.event, rows, part)
            if ends is not drafts:
                for name, draft in ends.items():
                    self._match(key, part, name[1], draft)
            if self.made > self.most_made:
                self.exceed(self.made_too_much(arrival.event[1], drafts.values()), arrival.event[1], "partial")
        self._kill(part, arrivals)
        for cells, cell, begin, ok in consumed:
            self._take(cells, cell, cell.before(begin), ok)
        if self._contiguous and not self._strict:
            self._cut([key], arrivals)
        if drafts or self._remembered:
            self._enter(key, drafts, arrivals)
        self.drop_empty(key)

    def _meet_cells(
        self, part: KeyState, arrival: Arrival, drafts: _Drafts, ends: _Drafts, consumed: list[Consumed]
    ) -> None:
        """Extends the runs of all cells by an event. `ends` gets those of the last variable."""
        program, kleene, last = self.program, self.program.kleene, self.program.last
        event, masks = arrival.event, arrival.masks
        for state, cells in enumerate(part.tables[:-1]):
            if not cells:
                continue
            take = masks[program.takes[state].role] & self.rows if kleene[state] else 0
            begin = masks[program.begins[state + 1].role] & self.rows if state < last else 0
            if not take and not begin:
                continue
            into = ends if state + 1 == last else drafts
            edges = [program.takes[state].equal] if take else []
            edges += [program.begins[state + 1].equal] if begin else []
            for cell in cells.asked(edges, event) if program.hashed[state] else cells.values():
                stop = cell.before(event[0])
                if not stop or cell.entries[stop - 1].top < event[1] - self.window:
                    continue
                reach = cell.entries[stop - 1].reach
                if take and (ok := self._held(program.takes[state], cell.registers, event, take & reach)):
                    registers = program.take[state](cell.registers, event)
                    self._link(drafts, state, registers, event, cell.segments(stop, ok, shared=self._shared))
                    if self._consuming:
                        consumed.append((cells, cell, event[0], ok))
                if begin and (ok := self._held(program.completes[state], cell.registers, (), begin & reach)):
                    if not (ok := self._held(program.begins[state + 1], cell.registers, event, ok)):
                        continue
                    if self._consuming and not kleene[state]:
                        consumed.append((cells, cell, event[0], ok))
                    registers = program.begin[state + 1](cell.registers, event)
                    segments = cell.segments(stop, ok, event[0], shared=self._shared)
                    self._link(into, state + 1, registers, event, segments)

    def _held(self, edge: CompiledEdge, registers: tuple[Any, ...], event: EventTuple, rows: int) -> int:
        if rows and edge.holds is not None and not edge.holds(registers, event):
            return 0
        for test in edge.by_row:
            if not rows:
                break
            rows = test.mask(registers, event, rows)
        return rows

    def _link(
        self, drafts: _Drafts, state: int, registers: tuple[Any, ...], event: EventTuple, segments: list[Segment]
    ) -> None:
        if not self.merged:
            segments = [(entries, at, at + 1, of) for entries, begin, end, of in segments for at in range(begin, end)]
        draft = None
        for segment in segments:
            top = top_of(segment)
            if top < event[1] - self.window:
                continue
            if draft is None or not self.merged:
                draft = self._draft(drafts, state, registers, event)
            entries, begin, end, _ = segment
            draft.before = max(draft.before, top)
            draft.oldest = min(draft.oldest, entries[begin].oldest if end - begin == 1 else BEGINNING)
            draft.segments.append(segment)
            self.made += 1

    def _draft(self, drafts: _Drafts, state: int, registers: tuple[Any, ...], event: EventTuple) -> Draft:
        name = (state, registers, self.name((event[2],)))
        return drafts.get(name) or drafts.setdefault(name, Draft(event, state))

    def _root(self, drafts: _Drafts, event: EventTuple, rows: int, part: KeyState) -> None:
        if event[1] - event[0] > self.window:
            return
        draft = self._draft(drafts, 0, self.program.begin[0]((), event), event)
        draft.oldest = min(draft.oldest, event[0])
        negated = chain.from_iterable(part.absent[at] for at in self._leading)
        before = [(one[0] + self.window, of) for one, of in negated if one[1] < event[0]]
        for bound, of in sorted(before, reverse=True):
            if of & rows:
                draft.roots.append((bound, of & rows))
                rows &= ~of
        if rows:
            draft.roots.append((BEGINNING, rows))

    def _kill(self, part: KeyState, arrivals: Sequence[Arrival]) -> None:
        for state, edges in enumerate(self._killing):
            is_last = state == self.program.last
            cells = part.tables[-1 if is_last else state]
            for edge, arrival in product(edges, arrivals):
                if not (rows := arrival.masks[edge.role] & self.rows):
                    continue
                for cell in list(cells.asked([edge.equal], arrival.event)):
                    stop = cell.before(arrival.event[0])
                    if stop and (held := self._held(edge, cell.registers, arrival.event, rows)):
                        if is_last:
                            self._take(cells, cell, stop, held)
                        else:
                            cell.kill(arrival.event, held)
                            self.room -= 1

    def _take(self, cells: CellTable[Cell], cell: Cell, stop: int, rows: int) -> None:
        """Removes the runs of rows that are the first entries of a cell."""
        cell.take(stop, rows if rows != self.rows else EVERY)
        if not cell.entries and cell.name in cells:
            del cells[cell.name]

    # ------------------------------------------------------------ the end of an epoch

    def _enter(self, key: KeyValues, drafts: _Drafts, arrivals: Sequence[Arrival]) -> None:
        last = self.program.last
        part = self.parts[key]
        for (state, registers, _), draft in drafts.items():
            if state == last:
                self._match(key, part, registers, draft)
            elif rows := draft.rows & self.rows:
                self.keep(key, state, registers, draft, self.trail_of(key, draft, rows), rows)
        for at in self._remembered:
            for arrival in arrivals:
                if rows := arrival.masks[self.program.negations[at].edge.role] & self.rows:
                    part.absent[at].append((arrival.event, rows))
                    self.watch(arrival.event[0] + self.longer, (key, "absent", 0))
                    self.room -= 1

    def _match(self, key: KeyValues, part: KeyState, registers: tuple[Any, ...], draft: Draft) -> None:
        last, t1 = self.program.last, draft.event[1]
        rows = draft.rows & self.rows
        if not rows:
            return
        goes_on = self.program.kleene[last]
        matched = rows & self._held(self.program.completes[last], registers, (), rows)
        waits = matched and self.trailing
        if goes_on or waits:
            trail = self.trail_of(key, draft, rows)
            if goes_on:
                self.keep(key, last, registers, draft, trail, rows)
            if waits:
                self.keep(key, -1, registers, draft, trail, matched)
        else:
            trail = draft.trail(rows)
        if matched and not waits:
            self.find(Ending(t1, t1 - self.window, t1, t1, key, part.absent), trail, trail.last, matched)


class RunMatching(BundleHost[RunStore]):
    """A pattern without SET and EARLIEST MAXIMAL. Rows that differ only in constants and windows share runs: a match
    depends on the window only by its span, so runs use the greatest. Where something becomes known at a window's end,
    or depends on earlier events, each window has its own runs."""

    def __init__(self, context: MOpContext) -> None:
        pattern, texts, slots = cast(Pattern, context.definitions[0]), context.texts, EventSlots()
        self._program = program = PatternProgram(pattern, texts, slots)
        super().__init__(context, program.streams, [one.stream for one in program.negations])
        self._merged, self._whole = context.merged, pattern.strategy == "strict"
        edges = [*zip(program.streams, program.begins, strict=True)]
        edges += compress(zip(program.streams, program.takes, strict=True), program.kleene)
        edges += [(one.stream, one.edge) for one in program.negations]
        for role, (_, edge) in enumerate(edges):
            edge.role = role
        self._row_tests = [test for edge in (*program.completes, *(edge for _, edge in edges)) for test in edge.by_row]
        self._found = ResultBuilder(pattern, texts, slots, context.lineage)
        conditions = Conditions(pattern, texts, slots)
        late = [(at, one.variable) for at, one in enumerate(program.negations) if not one.early]
        self._late = [(at, Kills(pattern, conditions, variable)) for at, variable in late]
        """The negations that need the complete match."""
        roles = [(stream, edge.static) for stream, edge in edges]
        self._take_roles(roles, slots, all_events=pattern.strategy in ("strict", "partition"))
        self._layouts = [*program.layouts, program.layouts[-1]]  # the layout of the registers of each table of cells
        self._settles = bool(self._late) or pattern.apart
        self._by_window = self._sees_before or any(one.group > program.last for one in program.negations)
        self._nothing = no_flow(pattern.schema, len(program.kleene))

    def _new_store(self, window: int) -> RunStore:
        return RunStore(self._program, self._meter, self._rows, merged=self._merged)

    def _step(self, store: RunStore, time: int, arrivals: Sequence[Arrival]) -> list[Bundle]:
        return store.step(time, arrivals)

    def _checked(self, store: RunStore, found: BundleMatches) -> BundleMatches:
        if self._late and len(found.at):
            time, most, found = int(found.table.known[0]), self._meter.limits.work, self._in_window(found)
            steps = np.zeros(int(found.rows.max(initial=-1)) + 1, np.int64)
            bundles = defaultdict[int, list[int]](list)
            for number, bundle in enumerate(found.table.bundles):
                bundles[id(bundle.ending.absent)].append(number)
            for at, kills in self._late:
                table, of, rows = found.table, found.table.of[found.at], (found.rows, self._rows.parameters)
                absent = [
                    (table.bundles[some[0]].ending.absent[at], np.flatnonzero(np.isin(of, some)))
                    for some in bundles.values()
                ]
                found = found.only(~kills.killed(table, found.at, rows, absent, store.window, steps, most))
            store.end_steps(time, steps)
        return self._with_having(found) if self._is_apart else found

    def _with_having(self, found: BundleMatches) -> BundleMatches:
        if self._found.having is None or not len(found.at):
            return found
        return found.only(self._found.having(found.table, found.at, (found.rows, self._rows.parameters), (), None))

    def _tell(self, store: RunStore, matches: Sequence[MatchCandidate], chosen: Sequence[int]) -> None:
        for one, rows in zip(matches, chosen, strict=True):
            if rows and not store.trailing:
                store.drop_rows(one.key, rows)

    def _flow(self, found: BundleMatches) -> Flow:
        if not self._is_apart:
            found = self._with_having(found)
        return Flow(self._found.events(found.table, found.table.t0, found.table.known), found.at, found.rows)

    def _codes(self, store: RunStore) -> list[Any]:
        found = [value for key in store.parts for value in key]
        for part in store.parts.values():
            for layout, cells in zip(self._layouts, part.tables, strict=True):
                for cell in cells.values():
                    map_register_texts(layout, cell.registers, found.append)
        return found

    def _saved(self, store: RunStore) -> Iterator[tuple[KeyValues, SavedPart]]:
        for key, part in store.parts.items():
            writer = self._writer(store)
            cells = [writer.cells(some, layout) for layout, some in zip(self._layouts, part.tables, strict=True)]
            absent = [
                [[writer.event(stream, event), writer.mask(of)] for event, of in some]
                for stream, some in zip(self._absent_streams, part.absent, strict=True)
            ]
            yield key, writer.done(cells=cells, absent=absent, passed=store.passed)

    def _restore(self, store: RunStore, key: KeyValues, reader: PartReader) -> None:
        cells = (
            (place, cell)
            for place, (layout, some) in enumerate(zip(self._layouts, reader.data["cells"], strict=True))
            for cell in reader.cells(some, layout, store.name)
        )
        absent = [
            [(reader.event(event), mask) for event, of in some if (mask := reader.mask(of))]
            for some in reader.data["absent"]
        ]
        store.adopt(key, reader.trails, reader.data["passed"], cells, absent)
