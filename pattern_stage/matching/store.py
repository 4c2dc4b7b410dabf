"""The runs of the rows that share them: those of one pattern with one window, or with any where that makes no
difference.

At an epoch each event meets the cells of its key as they were before; then what has been consumed goes, and new runs
enter. Time passes in between: runs that are too old go, and matches that had to wait are told.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Any, NamedTuple

from pattern_stage.matching.arrivals import Arrival, Key
from pattern_stage.matching.cells import Cell
from pattern_stage.matching.nodes import EVERY, Entry, Event, Node, paths
from pattern_stage.matching.program import Edge, Program
from pattern_stage.operators import NO_BOUND

ALWAYS = -NO_BOUND


class Match(NamedTuple):
    """A run that is a match of some rows."""

    known: int
    t0: int
    t1: int
    rows: int
    events: list[Event]
    components: list[int]
    """Of each event, ascending."""
    key: Key
    absent: Sequence[Sequence[tuple[Event, int]]] = ()
    """The negated events that it has to be compared with, for each negation."""
    errors: int = 0


class Part:
    """What waits for events of one key."""

    __slots__ = ("absent", "cells", "pending")

    def __init__(self, states: int, negations: int) -> None:
        self.cells: list[dict[tuple[Any, ...], Cell]] = [{} for _ in range(states)]
        self.pending: dict[tuple[Any, ...], Cell] = {}
        """Matches that a negated event may still kill, in cells."""
        self.absent: list[list[tuple[Event, int]]] = [[] for _ in range(negations)]
        """Events of negated variables that matches have to be compared with, each with its rows, by t1."""

    def is_empty(self) -> bool:
        return not (any(self.cells) or self.pending or any(self.absent))


class Roles(NamedTuple):
    """Where the masks of an arrival are: those of begins, of takes (-1 for none) and of negations."""

    begins: tuple[int, ...]
    takes: tuple[int, ...]
    negations: tuple[int, ...]


class Store:
    """The runs of some rows. `window` is the greatest span of a match."""

    def __init__(self, program: Program, roles: Roles, window: int, *, merged: bool = True) -> None:
        """Without `merged`, each run is apart."""
        self.program, self.roles, self.window, self._merged = program, roles, window, merged
        self.rows = 0
        self.parts: dict[Key, Part] = {}
        self.passed = ALWAYS
        """Up to when time has passed."""
        self.alive = 0
        """How many entries there are that are not too old."""
        self._next = 0
        strategy = program.pattern.strategy
        self._consuming, self._contiguous = strategy == "next", strategy in ("strict", "partition")
        self._strict = strategy == "strict"
        self._by_start: dict[int, list[tuple[Key, Node | Cell | None, int]]] = defaultdict(list)
        self._counts: dict[int, int] = defaultdict(int)
        self._starts: list[int] = []
        groups = program.last + 1
        some = list(enumerate(program.negations))
        self._killing = [[(at, one) for at, one in some if one.early and one.group == of + 1] for of in range(groups)]
        self._leading = [at for at, one in some if one.early and one.group == 0]
        self._late = [at for at, one in some if not one.early]
        self.trailing = bool(self._killing[-1])
        self._remembered = {*self._leading, *self._late}

    # ------------------------------------------------------------ time

    def pass_until(self, time: int, tell: Callable[[Match], None]) -> None:
        """Lets time pass, up to a moment: what can go on then stays."""
        self.passed = time
        while self._starts and self._starts[0] + self.window < time:
            start = heappop(self._starts)
            if self.trailing:
                self._tell_pending(start, tell)
            self._expire(start)

    def _tell_pending(self, start: int, tell: Callable[[Match], None]) -> None:
        """Tells matches that begin at a time: nothing can kill them any more."""
        for key in dict.fromkeys(key for key, _, _ in self._by_start[start]):
            part = self.parts.get(key)
            if part is None:
                continue
            for cell in part.pending.values():
                for one in cell.entries:
                    if one.oldest <= start <= one.start:
                        self._tell(one.node, one.rows, start, start, start + self.window, key, tell)

    def _expire(self, start: int) -> None:
        low = start + 1
        self.alive -= self._counts.pop(start, 0)
        for key, one, state in self._by_start.pop(start, ()):
            if isinstance(one, Node):
                if one.start < low:
                    one.segments = []
                continue
            if one is None:
                self._expire_absent(key, low)
                continue
            if one.entries and one.entries[-1].top >= low:
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

    def _watch(self, start: int, key: Key, one: Node | Cell | None, state: int = 0) -> None:
        if start not in self._by_start:
            heappush(self._starts, start)
        self._by_start[start].append((key, one, state))

    # ------------------------------------------------------------ an epoch

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

    def _cut(self, key: Key, begin: int) -> None:
        """Ends the runs of a key that an event which begins then does not continue."""
        part = self.parts[key]
        for cells in part.cells:
            for name, cell in list(cells.items()):
                stop = cell.before(begin)
                if stop:
                    self._forget(cell.take(stop, EVERY))
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
                    self._forget(cell.without(gone))
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
                    self._forget(cell.take(len(cell.entries), rows if rows != self.rows else EVERY))
                    if not cell.entries:
                        del cells[name]
            if part.is_empty():
                del self.parts[one]

    def adopt(self, key: Key, part: Part, nodes: Sequence[Node], passed: int) -> None:
        """Takes over a part that was saved when time had passed up to some moment: what was too old then is left."""
        self.parts[key] = part
        low = passed - self.window
        for node in nodes:
            if node.start >= low:
                self._watch(node.start, key, node)
            if self.trailing and node.roots and node.event[0] >= low:
                self._watch(node.event[0], key, node)
        for state, cells in [*enumerate(part.cells), (-1, part.pending)]:
            for cell in cells.values():
                for one in cell.entries:
                    if one.top >= low:
                        self._watch(one.top, key, cell, state)
                    if one.start >= low:
                        self._counts[one.start] += 1
                        self.alive += 1
        for some in part.absent:
            for event, _ in some:
                self._watch(event[0] + self._longer(), key, None)
        if part.is_empty():
            del self.parts[key]

    def waiting(self) -> dict[int, int]:
        """Returns sets of rows, and how many entries each has."""
        found: dict[int, int] = defaultdict(int)
        if self.rows & (self.rows - 1) == 0:
            return {self.rows: self.alive} if self.alive else {}
        for part in self.parts.values():
            for cells in [*part.cells, part.pending]:
                for cell in cells.values():
                    for one in cell.entries:
                        found[one.rows] += one.start in self._counts
        return found

    def nodes(self) -> Iterator[tuple[Node, Key]]:
        """Yields all nodes that anything leads to, each once."""
        seen: set[int] = set()
        for key, part in self.parts.items():
            stack = [
                one.node for cells in [*part.cells, part.pending] for cell in cells.values() for one in cell.entries
            ]
            while stack:
                node = stack.pop()
                if id(node) not in seen:
                    seen.add(id(node))
                    yield node, key
                    stack += [
                        entries[at].node for entries, begin, stop, _ in node.segments for at in range(begin, stop)
                    ]

    def _forget(self, entries: Sequence[Entry]) -> None:
        for one in entries:
            if one.start in self._counts:
                self._counts[one.start] -= 1
                self.alive -= 1

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

    def _tell(
        self, node: Node, rows: int, low: int, high: int, known: int, key: Key, tell: Callable[[Match], None]
    ) -> None:
        t1 = node.event[1]
        absent = self.parts[key].absent if self._late else ()
        for path, of in paths(node, rows, low, high, t1):
            tell(
                Match(
                    known,
                    path[-1].event[0],
                    t1,
                    of,
                    [one.event for one in reversed(path)],
                    [one.component for one in reversed(path)],
                    key,
                    absent,
                )
            )
