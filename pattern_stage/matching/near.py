"""PATTERN with ERRORS: chains of events that lack few letters of a word. Chains with one vector go on together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Any

import numpy as np
import pyarrow as pa

from common.distinct import distinct
from pattern_stage.columns import NULL_TEXT, Columns, Ints
from pattern_stage.flow import Flow, each_once, sorted_flow
from pattern_stage.matching.arrays import events_of
from pattern_stage.matching.arrivals import Arrival, Arrivals, Key, MakeIndex, Role
from pattern_stage.matching.cells import Cell
from pattern_stage.matching.choose import Apart
from pattern_stage.matching.keyed_state import keyed_rows, keyed_table
from pattern_stage.matching.letters import Automaton, Vector
from pattern_stage.matching.masks import expanded, mask_of, rows_of
from pattern_stage.matching.match import ALWAYS, Match
from pattern_stage.matching.nodes import Node, paths
from pattern_stage.matching.order import event_order
from pattern_stage.matching.saved_parts import PartReader, PartWriter, SavedPart
from pattern_stage.matching.slots import FIRST_SLOT, Slots, slots_of
from pattern_stage.matching.template import inputs as inputs_of
from pattern_stage.matching.template import sees_before
from pattern_stage.operators import Origins, Renumber, RowVectors
from pattern_stage.predicates import compile_value, kind_of, single_events
from pattern_stage.values import Texts
from xscl.algebra.event_sequences import ERRORS, EVENTS, NearPattern
from xscl.algebra.events import Attribute, Kind


class _Store:
    """The chains of some rows, by key and vector."""

    def __init__(self) -> None:
        self.window = 0
        self.rows = 0
        self.cells: dict[Key, dict[Vector, Cell]] = {}
        self.starts: list[int] = []
        self.at: dict[int, list[tuple[Key, Node | Vector]]] = defaultdict(list)
        """For each time that chains begin at, nodes and cells whose latest one begins then."""
        self.passed = ALWAYS

    def watch(self, start: int, key: Key, one: Node | Vector) -> None:
        if start not in self.at:
            heappush(self.starts, start)
        self.at[start].append((key, one))

    def pass_until(self, time: int) -> None:
        """Forgets what began too long before a time."""
        self.passed = time
        while self.starts and self.starts[0] + self.window < time:
            start = heappop(self.starts)
            for key, one in self.at.pop(start):
                if isinstance(one, Node):
                    if one.start <= start:
                        one.segments = []
                    continue
                cells = self.cells.get(key, {})
                cell = cells.get(one)
                if cell is not None and cell.entries[-1].top <= start:
                    del cells[one]
                    if not cells:
                        del self.cells[key]

    def keep(self, key: Key, vector: Vector, node: Node, rows: int) -> None:
        cells = self.cells.setdefault(key, {})
        cell = cells.get(vector)
        if cell is None:
            cell = cells[vector] = Cell(vector, vector)
        elif cell.crowded():
            cell.drop_before(node.event[1] - self.window)
        top = cell.entries[-1].top if cell.entries else ALWAYS
        entry = cell.append(node, rows)
        self.watch(node.start, key, node)
        if entry.top > top:
            self.watch(entry.top, key, vector)


class NearMatching:
    """A pattern with ERRORS. It has one shape: rows differ in their windows, and since when they see events."""

    def __init__(
        self, definitions: Sequence[NearPattern], rows: RowVectors, texts: Texts, lineage: Origins, index: MakeIndex
    ) -> None:
        self._pattern = pattern = definitions[0]
        self._rows, self._texts, self._lineage = rows, texts, lineage
        self._schemas = [schema for _, schema in sorted(inputs_of(pattern), key=lambda one: int(one[0]))]
        self._automaton = Automaton(pattern.letters, pattern.errors)
        self._roles = [Role(stream, schema, (), texts, index) for stream, schema in enumerate(self._schemas)]
        self._arrivals = Arrivals(self._schemas, pattern.keys, self._roles, texts, all_events=False)
        returned = dict(pattern.returned or ())
        errors: tuple[tuple[str, Kind], ...] = ((ERRORS, "number"),)
        self._items = {
            name: compile_value(returned.get(name, Attribute("left", ERRORS, "number")), errors, None, texts)
            for name, _ in pattern.schema
            if name != EVENTS
        }
        slots = Slots()
        if EVENTS in dict(pattern.schema):
            for stream, schema in enumerate(self._schemas):
                slots_of(slots, stream, schema)
        self._arrivals.compute(slots.values)
        self._kinds = {stream: [kind_of(one) for one in some] for stream, some in slots.values.items()}
        self._by_window = sees_before(pattern)
        self._stores: dict[int, _Store] = {}
        self._apart: dict[int, Apart] = {}
        self._numbers: set[int] = set()
        self._since: list[tuple[int, int]] = []

    # ------------------------------------------------------------ rows

    def add_rows(self, new: Ints) -> None:
        """Takes in rows that were added."""
        self._numbers.update(new.tolist())
        windows = self._rows.within[new] if self._by_window else np.zeros(len(new), np.int64)
        for window in distinct(windows).tolist():
            mine = new[windows == window]
            store = self._stores.get(window)
            if store is None:
                store = self._stores[window] = _Store()
                if self._pattern.apart:
                    self._apart[window] = Apart(self._order, whole=False)
            store.rows |= mask_of(mine)
            store.window = max(store.window, int(self._rows.within[mine].max()))
        if self._by_window:
            for time in distinct(self._rows.apart[new]).tolist():
                self._since.append((time, mask_of(new[self._rows.apart[new] == time])))

    def remove_rows(self, gone: Ints) -> None:
        """Forgets rows and what waits for them alone."""
        self._numbers.difference_update(gone.tolist())
        mask = mask_of(gone)
        for window, store in list(self._stores.items()):
            store.rows &= ~mask
            if not store.rows:
                del self._stores[window]
                self._apart.pop(window, None)
                continue
            for key, cells in list(store.cells.items()):
                for vector, cell in list(cells.items()):
                    cell.without(mask)
                    if not cell.entries:
                        del cells[vector]
                if not cells:
                    del store.cells[key]
            if window in self._apart:
                self._apart[window].without(mask)
        self._since = [(time, rows & ~mask) for time, rows in self._since if rows & ~mask]

    # ------------------------------------------------------------ running

    def run(self, inputs: Sequence[Flow], until: int) -> Flow:
        """Returns the matches that end before `until`."""
        every = mask_of(np.array(sorted(self._numbers), np.int64))
        epochs = list(self._arrivals.epochs(inputs, every, self._since))
        self._since = [(time, rows) for time, rows in self._since if time >= until]
        told: list[Match] = []
        for window, store in self._stores.items():
            apart = self._apart.get(window)
            for time, arrivals in epochs:
                store.pass_until(time)
                found = self._step(store, arrivals)
                if apart is not None and found:
                    apart.forget_before(time - store.window)
                    found = [match._replace(rows=rows) for match, rows in apart.chosen(found)]
                told += found
            store.pass_until(until)
        return self._results(told)

    def _step(self, store: _Store, arrivals: Sequence[Arrival]) -> list[Match]:
        """Takes the events of an epoch: each meets the chains that were there before."""
        made: list[tuple[Key, Vector, Node, int]] = []
        for one in arrivals:
            rows = one.masks[one.stream] & store.rows
            if one.key is None or not rows:
                continue
            nodes: dict[Vector, Node] = {}
            for vector, cell in store.cells.get(one.key, {}).items():
                stop = cell.before(one.event[0])
                if not stop or cell.entries[stop - 1].top < one.event[1] - store.window:
                    continue
                then = self._automaton.step(vector, one.stream)
                if then:
                    node = self._node(nodes, then, one)
                    node.start = max(node.start, cell.entries[stop - 1].top)
                    node.oldest = ALWAYS
                    node.segments += cell.segments([(0, 0)], stop, rows, shared=True)
            begun = self._automaton.begin(one.stream)
            if begun and one.event[1] - one.event[0] <= store.window:
                node = self._node(nodes, begun, one)
                node.start, node.roots = max(node.start, one.event[0]), [(ALWAYS, rows)]
            made += [(one.key, vector, node, rows) for vector, node in nodes.items()]
        found: list[Match] = []
        for key, vector, node, rows in made:
            errors = self._automaton.lacking(vector)
            if errors is not None:
                found += self._told(store, key, node, rows, errors)
            store.keep(key, vector, node, rows)
        if self._pattern.budget is not None:
            for key in {key for key, _, _, _ in made}:
                self._thin(store, key, self._pattern.budget)
        return found

    def _node(self, nodes: dict[Vector, Node], vector: Vector, one: Arrival) -> Node:
        node = nodes.get(vector)
        if node is None:
            node = nodes[vector] = Node(one.event, one.stream)
            node.start = ALWAYS
        return node

    def _told(self, store: _Store, key: Key, node: Node, rows: int, errors: int) -> Iterator[Match]:
        t1 = node.event[1]
        for path, of in paths(node, rows, t1 - store.window, t1, t1):
            events, streams = [one.event for one in reversed(path)], [one.component for one in reversed(path)]
            yield Match(t1, events[0][0], t1, of, events, streams, key, errors=errors)

    def _thin(self, store: _Store, key: Key, most: int) -> None:
        """Keeps at most so many ends of chains of a key: those that lack least, then the latest ones."""
        cells = store.cells.get(key, {})
        if sum(len(cell.entries) for cell in cells.values()) <= most:
            return
        order = self._order(one.node.event[2] for cell in cells.values() for one in cell.entries)
        ranked = sorted(
            ((min(cost for _, cost in vector), -one.t1, order[one.node.event[2]], vector, one.start), vector, at)
            for vector, cell in cells.items()
            for at, one in enumerate(cell.entries)
        )
        kept: dict[Vector, set[int]] = defaultdict(set)
        for _, vector, at in ranked[:most]:
            kept[vector].add(at)
        for vector, cell in list(cells.items()):
            cell.only(kept[vector])
            if not cell.entries:
                del cells[vector]

    def _results(self, told: Sequence[Match]) -> Flow:
        at, rows = expanded([match.rows for match in told])
        t0 = np.array([match.t0 for match in told], np.int64)
        t1 = np.array([match.t1 for match in told], np.int64)
        if not self._by_window and len(at):
            inside = (t1 - t0)[at] <= self._rows.within[rows]
            at, rows = at[inside], rows[inside]
        errors = np.array([match.errors for match in told], np.float64)
        every = np.arange(len(told))
        pairs = single_events(Columns(t0, t1, (errors,), every.reshape(-1, 1)), every, every, ())
        values = tuple(
            [
                self._items[name](pairs) if name in self._items else events_of(told, self._kinds, self._texts)
                for name, _ in self._pattern.schema
            ]
        )
        numbers = np.array([event[2] for match in told for event in match.events], np.int64)
        groups = np.repeat(every, [len(match.events) for match in told])
        parts = self._lineage.together(numbers.reshape(-1, 1), groups) if len(told) else every
        flow = sorted_flow(Columns(t0, t1, values, parts.reshape(-1, 1)), at, rows).compact()
        return each_once(flow) if len(self._stores) > 1 else flow

    def _order(self, numbers: Iterable[int]) -> dict[int, Any]:
        return event_order(self._lineage, numbers)

    # ------------------------------------------------------------ state

    def _nodes(self, store: _Store) -> Iterator[Node]:
        seen: set[int] = set()
        stack = [one.node for cells in store.cells.values() for cell in cells.values() for one in cell.entries]
        while stack:
            node = stack.pop()
            if id(node) not in seen:
                seen.add(id(node))
                yield node
                stack += [entries[at].node for entries, begin, stop, _ in node.segments for at in range(begin, stop)]

    def waiting(self) -> Ints:
        """Returns how many ends of chains wait for each row."""
        counts = np.zeros(max(self._numbers, default=-1) + 1, np.int64)
        for store in self._stores.values():
            for cells in store.cells.values():
                for cell in cells.values():
                    for one in cell.entries:
                        counts[rows_of(one.rows)] += one.start + store.window >= store.passed
        return counts

    def codes(self) -> Iterable[Ints]:
        """Returns the codes of all texts that it holds: those of keys, and of events."""
        keys = [key for store in self._stores.values() for key in store.cells]
        keys += [key for apart in self._apart.values() for key in apart.ends]
        found = {one for key in keys for one in key if isinstance(one, int) and one >= 0}
        texts = {
            stream: [FIRST_SLOT + place for place, kind in enumerate(kinds) if kind == "string"]
            for stream, kinds in self._kinds.items()
        }
        for node in (node for store in self._stores.values() for node in self._nodes(store)) if texts else ():
            found.update(node.event[slot] for slot in texts.get(node.component, ()))
        yield np.array(sorted(found - {NULL_TEXT}), np.int64)

    def parts(self) -> Iterable[Ints]:
        """Returns the numbers of the events of all chains."""
        yield np.array([node.event[2] for store in self._stores.values() for node in self._nodes(store)], np.int64)

    def state(self) -> pa.Table:
        """Returns what waits."""
        saved: list[tuple[Key, SavedPart]] = []
        for window, store in self._stores.items():
            for key, cells in store.cells.items():
                writer = self._writer()
                some = [[vector, writer.entries(cell.entries)] for vector, cell in cells.items()]
                saved.append((key, writer.done(vectors=some, passed=store.passed)))
            if window in self._apart:
                for key, ends in self._apart[window].ends.items():
                    writer = self._writer()
                    saved.append((key, writer.done(ends=[[end, writer.mask(of)] for end, of in ends])))
        return keyed_table(saved, self._key_kinds(), self._texts)

    def _writer(self) -> PartWriter:
        return PartWriter(self._texts, self._kinds, range(len(self._schemas)))

    def _key_kinds(self) -> list[Kind]:
        return [dict(self._schemas[0])[name] for name in self._pattern.keys]

    def restore(self, table: pa.Table, renumber: Renumber) -> None:
        """Takes over a state that was saved."""
        for key, data, numbers, rows in keyed_rows(table, self._key_kinds(), self._texts, renumber):
            window = int(self._rows.within[next(iter(rows.values()))]) if self._by_window else 0
            reader = PartReader(data, numbers, rows, self._texts, self._kinds, range(len(self._schemas)), ())
            if "ends" in reader.data:
                ends = [(end, reader.mask(of)) for end, of in reader.data["ends"]]
                self._apart[window].ends[key] = [(end, of) for end, of in ends if of]
                continue
            store = self._stores[window]
            store.passed = max(store.passed, reader.data["passed"])
            low = reader.data["passed"] - store.window
            for written, entries in reader.data["vectors"]:
                vector: Vector = tuple((at, cost) for at, cost in written)
                cell = Cell(vector, vector)
                cell.entries = reader.lists[entries]
                cell.without(0)
                if cell.entries and cell.entries[-1].top >= low:
                    store.cells.setdefault(key, {})[vector] = cell
                    for one in cell.entries:
                        if one.top >= low:
                            store.watch(one.top, key, vector)
            for node in reader.nodes:
                if node.start >= low:
                    store.watch(node.start, key, node)
