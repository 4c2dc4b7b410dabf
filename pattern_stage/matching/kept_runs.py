"""The runs of some rows as they are kept: what is too old goes, matches that waited are told, rows come and go."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush

from pattern_stage.matching.arrivals import Key
from pattern_stage.matching.cells import Cell
from pattern_stage.matching.match import ALWAYS, Match, Part, Roles
from pattern_stage.matching.nodes import EVERY, Entry, Node, paths
from pattern_stage.matching.program import Program


class KeptRuns:
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

    def due(self) -> int | None:
        """Returns a time: no match that waits becomes known before. None if none waits."""
        if not self.trailing:
            return None
        waiting = {key for key, part in self.parts.items() if part.pending}
        starts = (start for start in self._starts if any(key in waiting for key, _, _ in self._by_start[start]))
        first = min(starts, default=None)
        return None if first is None else first + self.window

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

    # ------------------------------------------------------------ upkeep

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
        self.parts[key], self.passed = part, max(self.passed, passed)
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
