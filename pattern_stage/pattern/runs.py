"""PATTERN without SET: the runs of all statements of one shape, each a row. In an epoch, each event meets the cells of
its key from before the epoch; then consumed runs go and new runs enter. Between epochs, runs expire and waiting matches
are reported. Rows of one pattern share runs if they have one window, or any where that makes no difference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any, cast

import numpy as np

from common.arrays import Ints
from common.bounds import BEGINNING, INFINITE, deadline
from pattern_stage.columns import Flow, no_flow
from pattern_stage.operators import Meter, MOpContext
from pattern_stage.pattern.cells import EVERY, Cell, CellTable, Draft, EventTuple, Trail, merge_cell, top_of
from pattern_stage.pattern.found import Bundle, BundleMatches, Conditions, Ending, LateKills, ResultBuilder
from pattern_stage.pattern.host import BundleHost
from pattern_stage.pattern.match import KeyState, MatchCandidate, Roles
from pattern_stage.pattern.program import CompiledEdge, EventSlots, PatternProgram
from pattern_stage.pattern.rows import Arrival, EventRole, KeyValues, MakeIndex
from pattern_stage.pattern.state import PartReader, SavedPart, register_codes
from pattern_stage.pattern.trails import KeptTrails
from pattern_stage.plan import Rows
from pattern_stage.values import Texts
from xscl.algebra.events import Pattern

_Drafts = dict[tuple[Any, ...], Draft]
"""The new runs of a key in an epoch: by state, registers and event; without merging, by a serial number, too."""

Consumed = tuple[CellTable, Cell, int, int]
"""A cell and its table; runs of some rows that end before a time are removed."""


class RunStore(KeptTrails):
    """The runs of some rows, and their step by an epoch."""

    def __init__(
        self, program: PatternProgram, roles: Roles, window: int, meter: Meter, rows: Rows, *, merged: bool = True
    ) -> None:
        """Without `merged`, each run stays separate."""
        super().__init__(window, meter, rows)
        self.program, self.roles, self._merged = program, roles, merged
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
        self._nothing_absent: list[list[tuple[EventTuple, int]]] = [[] for _ in some]
        self._ends_at_once = not program.kleene[program.last] and not self.trailing
        """Whether nothing is kept of what ends with the last variable."""
        edges = [(of, roles.takes[of], program.takes[of]) for of in range(groups) if program.kleene[of]]
        edges += [(of - 1, roles.begins[of], program.begins[of]) for of in range(1, groups)]
        for of, negations in enumerate(self._killing):
            table = -1 if of == program.last else of
            edges += [(table, roles.negations[at], negation.edge) for at, negation in negations]
        self._edges = edges
        """The edges by which an event is compared with runs: the place of their cells, its role, and the tests."""

    # ------------------------------------------------------------ time

    def pass_until(self, time: int) -> list[Bundle]:
        """Advances time. Returns what becomes known before."""
        told: list[Bundle] = []
        for start, some in self.expiring(time):
            if self.trailing:
                for key in dict.fromkeys(key for key, one, _ in some if one == "pending"):
                    self._find_pending(key, start)
                told += self.end_found()
            self.expire(start + 1, some)
        return told

    def _find_pending(self, key: KeyValues, start: int) -> None:
        part = self.parts.get(key)
        if part is None:
            return
        for cell in part.pending.values():
            for one in cell.entries:
                if one.oldest <= start <= one.start:
                    ending = Ending(deadline(start, self.window), start, start, one.t1, key, part.absent)
                    self.find(ending, one.trail, one.place, one.rows)

    def due(self) -> int | None:
        """Returns the time before which no waiting match becomes known; None if none waits."""
        if not self.trailing:
            return None
        waiting = {key for key, part in self.parts.items() if part.pending}
        starts = (
            start
            for start in self._starts
            if any(one == "pending" and key in waiting for key, one, _ in self._by_start[start])
        )
        first = min(starts, default=None)
        return None if first is None else deadline(first, self.window)

    @property
    def longer(self) -> int:
        """As long as matches wait that they may kill."""
        return self.window if self.trailing else 0

    # ------------------------------------------------------------ upkeep

    def _cut(self, key: KeyValues, begin: int) -> None:
        """Ends the runs of a key that are not continued by an event that begins at `begin`."""
        self.change(key, self.parts[key].cells, lambda cell: cell.take(cell.before(begin), EVERY))

    def drop_rows(self, key: KeyValues, rows: int) -> None:
        """Ends all runs of rows with a key; for strict contiguity, with all keys."""
        rows = rows if rows != self.rows else EVERY
        for one in list(self.parts) if self._strict else [key]:
            if one in self.parts:
                self.change(one, self.parts[one].tables, lambda cell: cell.take(len(cell.entries), rows))

    def adopt(self, key: KeyValues, part: KeyState, trails: Sequence[Trail], passed: int) -> None:
        """Adopts a saved part, which may have other rows than the key has already, and its trails, without what had
        expired at `passed`."""
        own = self.parts.setdefault(key, KeyState(self.program.hashed, len(self.program.negations)))
        self.adopt_trails(key, trails, passed)
        if self.trailing:
            for root in (root for trail in trails for root in trail.roots if root.start >= self.low):
                self.watch(root.start, key, "pending")
        places = [*range(len(part.cells)), -1]
        for place, cells, more in zip(places, own.tables, part.tables, strict=True):
            for cell in more.values():
                self.adopt_cell(key, merge_cell(cells, cell), place)
        for at, some in enumerate(part.absent):
            self.add_weight(len(some))
            own.absent[at] = sorted([*own.absent[at], *some], key=lambda one: one[0][1])
            for event, _ in some:
                self.watch(event[0] + self.longer, key, "absent")
        if own.is_empty():
            del self.parts[key]

    # ------------------------------------------------------------ an epoch

    def step(self, time: int, arrivals: Sequence[Arrival]) -> list[Bundle]:
        """Processes the events of an epoch. Returns what became known since the previous one, and in it."""
        told = self.pass_until(time)
        if not (self._strict or self._remembered) and all(map(self._is_idle, arrivals)):
            return told
        by_key: dict[KeyValues, list[Arrival]] = {}
        for one in arrivals:
            if one.key is not None:
                by_key.setdefault(one.key, []).append(one)
        if self._meter.limits.work < INFINITE:
            self._compare(by_key, time)
        for key, some in by_key.items():
            self._meet(key, some)
        if self._strict:
            begin = max(one.event[0] for one in arrivals)
            for key in list(self.parts):
                self._cut(key, begin)
        return told + self.end_epoch(time)

    def _is_idle(self, one: Arrival) -> bool:
        return one.key is None or not (one.key in self.parts or one.masks[self.roles.begins[0]] & self.rows)

    def _compare(self, by_key: dict[KeyValues, list[Arrival]], time: int) -> None:
        """Counts the comparisons of an epoch's events with runs, before any is made: if a row could have too many of
        them; with negations always, since these are counted over a block."""
        parts = [(part, some) for key, some in by_key.items() if (part := self.parts.get(key)) is not None]
        at_most = 2 * sum(len(some) * sum(map(len, part.cells)) for part, some in parts)
        if not self.program.negations and at_most <= self._meter.limits.work:
            return
        for part, some in parts:
            tables = part.tables
            for _, event, masks, _ in some:
                for place, role, edge in self._edges:
                    if rows := masks[role] & self.rows:
                        cells = tables[place].asked([edge.equal], event)
                        for held, count in Counter(self._concerned(one, event, rows) for one in cells).items():
                            self._steps.add(held, count)
                if rows := masks[self.roles.begins[0]] & self.rows:
                    for negated in (one for at in self._leading for one in part.absent[at]):
                        self._steps.add(rows & negated[1])
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
        part = self.parts.get(key)
        drafts: _Drafts = {}
        consumed: list[Consumed] = []
        for arrival in arrivals:
            ends: _Drafts = {} if self._ends_at_once else drafts
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

    def _meet_cells(
        self, part: KeyState, arrival: Arrival, drafts: _Drafts, ends: _Drafts, consumed: list[Consumed]
    ) -> None:
        """Extends the runs of all cells by an event. `ends` gets those of the last variable."""
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

    def _asked(self, cells: CellTable, state: int, event: EventTuple, take: int, begin: int) -> Collection[Cell]:
        edges = [self.program.takes[state].equal] if take else []
        edges += [self.program.begins[state + 1].equal] if begin else []
        return cells.asked(edges, event)

    def _held(self, edge: CompiledEdge, registers: tuple[Any, ...], event: EventTuple, rows: int) -> int:
        if rows and edge.holds is not None and not edge.holds(registers, event):
            return 0
        for test in edge.by_row:
            if not rows:
                break
            rows = test.mask(registers, event, rows)
        return rows

    def _complete(self, cell: Cell, state: int) -> int:
        edge = self.program.completes[state]
        if edge.holds is None and not edge.by_row:
            return EVERY
        return self._held(edge, cell.registers, (), self.rows)

    def _link(
        self,
        drafts: _Drafts,
        state: int,
        registers: tuple[Any, ...],
        event: EventTuple,
        cell: Cell,
        ranges: list[tuple[int, int]],
        stop: int,
        rows: int,
    ) -> None:
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
            draft.oldest = min(draft.oldest, entries[begin].oldest if end - begin == 1 else BEGINNING)
            draft.segments.append(segment)
            self.made += 1

    def name(self, registers: tuple[Any, ...]) -> tuple[Any, ...]:
        """Names a cell: by its registers, and uniquely without merging."""
        if self._merged:
            return registers
        self._next += 1
        return (*registers, self._next)

    def _draft(self, drafts: _Drafts, state: int, registers: tuple[Any, ...], event: EventTuple) -> Draft:
        name = (state, registers, event[2])
        if not self._merged:
            self._next += 1
            name = (state, registers, event[2], self._next)  # type: ignore[assignment]  # one more
        draft = drafts.get(name)
        if draft is None:
            draft = drafts[name] = Draft(event, state)
        return draft

    def _root(self, drafts: _Drafts, event: EventTuple, rows: int, part: KeyState | None) -> None:
        if event[1] - event[0] > self.window:
            return
        draft = self._draft(drafts, 0, self.program.begin[0]((), event), event)
        draft.oldest = min(draft.oldest, event[0])
        if not self._leading or part is None:
            draft.roots = [(BEGINNING, rows)]
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
            draft.roots.append((BEGINNING, rows))

    def _kill(self, part: KeyState, arrivals: Sequence[Arrival]) -> None:
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
                        stop = cell.before(arrival.event[0])
                        if stop and (held := self._held(negation.edge, cell.registers, arrival.event, rows)):
                            if is_last:
                                cell.take(stop, held if held != self.rows else EVERY)
                                if not cell.entries:
                                    del cells[cell.name]
                            else:
                                cell.kill(arrival.event, held)
                                self.add_weight(1)

    # ------------------------------------------------------------ the end of an epoch

    def _enter(self, key: KeyValues, drafts: _Drafts, arrivals: Sequence[Arrival]) -> None:
        last = self.program.last
        part = self.parts.get(key)
        if part is None:
            part = self.parts[key] = KeyState(self.program.hashed, len(self.program.negations))
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
                    self.watch(arrival.event[0] + self.longer, key, "absent")
                    self.add_weight(1)
        if part.is_empty():
            del self.parts[key]

    def _match(self, key: KeyValues, part: KeyState | None, registers: tuple[Any, ...], draft: Draft) -> None:
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
        key: KeyValues,
        cells: dict[tuple[Any, ...], Cell],
        registers: tuple[Any, ...],
        draft: Draft,
        trail: Trail,
        rows: int,
        state: int,
    ) -> None:
        self.keep(key, cells, self.name(registers), registers, draft, trail, rows, state)
        if self.trailing and draft.roots:
            self.watch(draft.event[0], key, "pending")


class RunMatching(BundleHost[RunStore]):
    """A pattern without SET and EARLIEST MAXIMAL. Rows that differ only in constants and windows share runs: a match
    depends on the window only by its span, so runs use the greatest. Where something becomes known at a window's end,
    or depends on earlier events, each window has its own runs."""

    def __init__(self, context: MOpContext) -> None:
        pattern, texts, slots = cast(Pattern, context.definitions[0]), context.texts, EventSlots()
        self._program = program = PatternProgram(pattern, texts, slots)
        super().__init__(context, program.streams, [one.stream for one in program.negations])
        self._merged, self._whole = context.merged, pattern.strategy == "strict"
        roles, self._role_places = _roles(program, self._schemas, texts, context.index)
        conditions = Conditions(pattern, texts, slots)
        self._found = ResultBuilder(pattern, texts, slots, context.lineage)
        self._late = LateKills(program, conditions)
        self._take_roles(roles, slots, all_events=pattern.strategy in ("strict", "partition"))
        self._settles = bool(self._late) or pattern.apart
        self._by_window = self._sees_before or any(one.group > program.last for one in program.negations)
        self._nothing = no_flow(pattern.schema, len(program.kleene))

    # ------------------------------------------------------------ rows

    def _groups(self, rows: Ints) -> Sequence[int]:
        windows: list[int] = self._rows.within[rows].tolist() if self._by_window else [0] * len(rows)
        return windows

    def _new_store(self, window: int) -> RunStore:
        return RunStore(self._program, self._role_places, 0, self._meter, self._rows, merged=self._merged)

    def add_rows(self, new: Ints) -> None:
        super().add_rows(new)
        self._follow()

    def remove_rows(self, gone: Ints) -> None:
        super().remove_rows(gone)
        self._follow()

    def _follow(self) -> None:
        numbers = np.array(sorted(self._numbers), np.int64)
        for edge in self._edges():
            for test in edge.by_row:
                test.follow(self._rows, numbers)

    def _edges(self) -> Iterator[CompiledEdge]:
        program = self._program
        yield from (*program.begins, *program.takes, *program.completes)
        yield from (one.edge for one in program.negations)

    # ------------------------------------------------------------ running

    def _step(self, store: RunStore, time: int, arrivals: Sequence[Arrival]) -> list[Bundle]:
        return store.step(time, arrivals)

    def _checked(self, store: RunStore, found: BundleMatches) -> BundleMatches:
        if self._late and len(found.at):
            time, most = int(found.table.known[0]), self._meter.limits.work
            found, steps = self._late.left(store.window, self._in_window(found), self._rows.parameters, most)
            store.end_steps(time, steps)
        return self._with_having(found) if self._is_apart else found

    def _with_having(self, found: BundleMatches) -> BundleMatches:
        if not self._found.has_having or not len(found.at):
            return found
        return found.only(self._found.having(found.table, found.at, found.rows, self._rows.parameters))

    def _tell(self, store: RunStore, matches: Sequence[MatchCandidate], chosen: Sequence[int]) -> None:
        for one, rows in zip(matches, chosen, strict=True):
            if rows and not store.trailing:
                store.drop_rows(one.key, rows)

    def _flow(self, found: BundleMatches) -> Flow:
        if not self._is_apart:
            found = self._with_having(found)
        return Flow(self._found.events(found.table, found.table.t0, found.table.known), found.at, found.rows)

    # ------------------------------------------------------------ state

    def _codes(self, store: RunStore) -> Iterator[Any]:
        for key, part in store.parts.items():
            yield from key
            for layout, cells in self._cells(part):
                for cell in cells.values():
                    for register, value in zip(layout, cell.registers, strict=True):
                        yield from register_codes(register, value)

    def _cells(self, part: KeyState) -> Iterator[tuple[Any, Any]]:
        yield from zip(self._program.layouts, part.cells, strict=True)
        yield self._program.layouts[-1], part.pending

    def _saved(self, store: RunStore) -> Iterator[tuple[KeyValues, SavedPart]]:
        for key, part in store.parts.items():
            writer = self._writer()
            cells = [writer.cells(some, layout) for layout, some in self._cells(part)]
            absent = [
                [[writer.event(stream, event), writer.mask(of)] for event, of in some]
                for stream, some in zip(self._absent_streams, part.absent, strict=True)
            ]
            yield key, writer.done(cells=cells, absent=absent, passed=store.passed)

    def _restore(self, store: RunStore, key: KeyValues, reader: PartReader) -> None:
        part = KeyState(self._program.hashed, len(self._program.negations))
        for (layout, table), some in zip(self._cells(part), reader.data["cells"], strict=True):
            for cell in reader.cells(some, layout, store.name):
                table[cell.name] = cell
        part.absent = [
            [(reader.event(event), mask) for event, of in some if (mask := reader.mask(of))]
            for some in reader.data["absent"]
        ]
        store.adopt(key, part, reader.trails, reader.data["passed"])


def _roles(
    program: PatternProgram, schemas: Sequence[Any], texts: Texts, index: MakeIndex
) -> tuple[list[EventRole], Roles]:
    roles: list[EventRole] = []

    def role(stream: int, edge: CompiledEdge) -> int:
        roles.append(EventRole(stream, schemas[stream], edge.static, texts, index))
        return len(roles) - 1

    begins = tuple([role(stream, edge) for stream, edge in zip(program.streams, program.begins, strict=True)])
    takes = tuple(
        [
            role(stream, edge) if kleene else -1
            for stream, edge, kleene in zip(program.streams, program.takes, program.kleene, strict=True)
        ]
    )
    negations = tuple([role(one.stream, one.edge) for one in program.negations])
    return roles, Roles(begins, takes, negations)
