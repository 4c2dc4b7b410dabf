"""The runs of the rows that share them: those of one pattern with one window, or with any where that makes no
difference.

At an epoch each event meets the cells of its key as they were before; then what has been consumed goes, and new runs
enter. Time passes in between: runs that are too old go, and matches that had to wait are told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pattern_stage.matching.arrivals import Arrival, Key
from pattern_stage.matching.cells import Cell
from pattern_stage.matching.kept_runs import KeptRuns
from pattern_stage.matching.match import ALWAYS, Match, Part
from pattern_stage.matching.nodes import EVERY, Event, Node
from pattern_stage.matching.program import Edge
from pattern_stage.operators import NO_BOUND


class Store(KeptRuns):
    """The runs of some rows, and what an epoch of events does with them."""

    def step(self, time: int, arrivals: Sequence[Arrival], tell: Callable[[Match], None]) -> None:
        """Takes the events of an epoch."""
        self.pass_until(time, tell)
        if len(arrivals) == 1:
            key = arrivals[0].key
            if key is not None:
                self._meet(key, arrivals, tell)
        else:
            by_key: dict[Key, list[Arrival]] = {}
            for one in arrivals:
                if one.key is not None:
                    by_key.setdefault(one.key, []).append(one)
            for key, some in by_key.items():
                self._meet(key, some, tell)
        if self._strict:
            begin = max(one.event[0] for one in arrivals)
            for key in list(self.parts):
                self._cut(key, begin)

    def _meet(self, key: Key, arrivals: Sequence[Arrival], tell: Callable[[Match], None]) -> None:
        program, roles, kleene, last = self.program, self.roles, self.program.kleene, self.program.last
        part = self.parts.get(key)
        nodes: dict[tuple[Any, ...], Node] = {}
        consumed: list[tuple[dict[tuple[Any, ...], Cell], Cell, int, int]] = []
        for arrival in arrivals:
            event, masks = arrival.event, arrival.masks
            if part is not None:
                for state, cells in enumerate(part.cells):
                    if not cells:
                        continue
                    take = masks[roles.takes[state]] & self.rows if kleene[state] else 0
                    begin = masks[roles.begins[state + 1]] & self.rows if state < last else 0
                    if not take and not begin:
                        continue
                    for cell in cells.values():
                        stop = cell.before(event[0])
                        if not stop or cell.entries[stop - 1].top < event[1] - self.window:
                            continue
                        reach = cell.entries[stop - 1].reach
                        if take and (ok := self._held(program.takes[state], cell.registers, event, take & reach)):
                            registers = program.take[state](cell.registers, event)
                            self._link(nodes, state, registers, event, cell, [(0, 0)], stop, ok)
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
                            self._link(nodes, state + 1, registers, event, cell, ranges, stop, ok)
            if first := masks[roles.begins[0]] & self.rows:
                self._root(nodes, key, event, first, part)
        if part is not None:
            self._kill(part, arrivals)
            for cells, cell, begin, ok in consumed:
                if stop := cell.before(begin):
                    self._forget(cell.take(stop, ok if ok != self.rows else EVERY))
                if not cell.entries:
                    cells.pop(cell.name, None)
        if self._contiguous and part is not None and not self._strict:
            self._cut(key, max(one.event[0] for one in arrivals))
        if nodes or self._remembered:
            self._enter(key, nodes, arrivals, tell)
        elif part is not None and part.is_empty():
            self.parts.pop(key, None)

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
        nodes: dict[tuple[Any, ...], Node],
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
        node = None
        for segment in segments:
            entries, begin, end, _ = segment
            top = entries[end - 1].top if begin == 0 else max(entries[at].start for at in range(begin, end))
            if top < event[1] - self.window:
                continue
            if node is None or not self._merged:
                node = self._node(nodes, state, registers, event)
            node.start = max(node.start, top)
            node.oldest = min(node.oldest, entries[begin].oldest if end - begin == 1 else ALWAYS)
            node.segments.append(segment)

    def _node(self, nodes: dict[tuple[Any, ...], Node], state: int, registers: tuple[Any, ...], event: Event) -> Node:
        name = (state, registers, event[2])
        if not self._merged:
            self._next += 1
            name = (state, registers, event[2], self._next)  # type: ignore[assignment]  # one more
        node = nodes.get(name)
        if node is None:
            node = nodes[name] = Node(event, state)
            node.start, node.oldest = ALWAYS, NO_BOUND
        return node

    def _root(self, nodes: dict[tuple[Any, ...], Node], key: Key, event: Event, rows: int, part: Part | None) -> None:
        if event[1] - event[0] > self.window:
            return
        registers = self.program.begin[0]((), event)
        node = self._node(nodes, 0, registers, event)
        node.start, node.oldest = max(node.start, event[0]), min(node.oldest, event[0])
        if self.trailing:
            self._watch(event[0], key, node)
        if not self._leading or part is None:
            node.roots = [(ALWAYS, rows)]
            return
        before = [
            (negated[0] + self.window, of)
            for at in self._leading
            for negated, of in part.absent[at]
            if negated[1] < event[0]
        ]
        roots: list[tuple[int, int]] = []
        for bound, of in sorted(before, reverse=True):
            if of & rows:
                roots.append((bound, of & rows))
                rows &= ~of
        node.roots = roots + ([(ALWAYS, rows)] if rows else [])

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
                    for name, cell in list(cells.items()):
                        if held := self._held(negation.edge, cell.registers, arrival.event, rows):
                            t0, t1 = arrival.event[0], arrival.event[1]
                            stop = cell.before(t0)
                            if stop and is_last:
                                self._forget(cell.take(stop, held if held != self.rows else EVERY))
                                if not cell.entries:
                                    del cells[name]
                            elif stop:
                                cell.kills.append((t1, t0, held))

    def _enter(
        self,
        key: Key,
        nodes: dict[tuple[Any, ...], Node],
        arrivals: Sequence[Arrival],
        tell: Callable[[Match], None],
    ) -> None:
        """Keeps what the events of an epoch have made, and tells matches."""
        last, kleene = self.program.last, self.program.kleene
        part = self.parts.get(key)
        if part is None:
            part = self.parts[key] = Part(last + 1, len(self.program.negations))
        for name, node in nodes.items():
            state, registers = name[0], name[1]
            rows = 0
            for _, of in node.roots:
                rows |= of
            for entries, begin, stop, of in node.segments:
                rows |= of & (entries[begin].rows if stop - begin == 1 else entries[stop - 1].reach)
            rows &= self.rows
            goes_on = state < last or kleene[state]
            if state == last:
                matched = rows & self._held(self.program.completes[last], registers, (), rows)
                if matched and self.trailing:
                    self._keep(key, part.pending, -1, registers, node, matched)
                elif matched:
                    t1 = node.event[1]
                    self._tell(node, matched, t1 - self.window, t1, t1, key, tell)
            if goes_on:
                self._keep(key, part.cells[state], state, registers, node, rows)
        for at in self._remembered:
            for arrival in arrivals:
                if rows := arrival.masks[self.roles.negations[at]] & self.rows:
                    part.absent[at].append((arrival.event, rows))
                    self._watch(arrival.event[0] + self._longer(), key, None)
        if part.is_empty():
            del self.parts[key]

    def _keep(
        self,
        key: Key,
        cells: dict[tuple[Any, ...], Cell],
        state: int,
        registers: tuple[Any, ...],
        node: Node,
        rows: int,
    ) -> None:
        name = registers
        if not self._merged:
            self._next += 1
            name = (*registers, self._next)
        cell = cells.get(name)
        if cell is None:
            cell = cells[name] = Cell(name, registers)
        top = cell.entries[-1].top if cell.entries else ALWAYS
        if cell.crowded():
            cell.drop_before(node.event[1] - self.window)
        entry = cell.append(node, rows)
        self._counts[node.start] += 1
        self.alive += 1
        self._watch(node.start, key, node)
        if entry.top > top:
            self._watch(entry.top, key, cell, state)
