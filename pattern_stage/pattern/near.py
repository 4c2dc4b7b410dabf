"""PATTERN with ERRORS: chains of events that lack a limited number of letters of a word. Chains with one vector are
merged. A store has the chains of some rows by key and vector. A BUDGET thins the chains of a key by what `history` has
learnt, which is saved with them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from common.arrays import Ints, distinct
from common.bounds import BEGINNING
from pattern_stage.columns import Column, Columns, Flow, each_once, joined_flow, no_flow, spread
from pattern_stage.definition import inputs as inputs_of
from pattern_stage.definition import sees_before
from pattern_stage.operators import Meter, OriginLookup, Renumber, RowVectors
from pattern_stage.pattern.cells import Cell, merge_cell
from pattern_stage.pattern.found import Bundle, BundleMatches, BundleTable, Ending, batch_bundles, expand_bundles
from pattern_stage.pattern.history import Extension, NearHistory, PartialCandidate, PartialName, Predecessors
from pattern_stage.pattern.masks import Draft, EventTuple, mask_to_rows, rows_to_mask
from pattern_stage.pattern.match import Apart, event_order
from pattern_stage.pattern.program import FIRST_SLOT, EventSlots, LetterAutomaton, Vector, slots_of
from pattern_stage.pattern.rows import Arrival, EventRole, KeyValues, MakeIndex, RoleEvents
from pattern_stage.pattern.state import PartReader, PartWriter, SavedPart, keyed_rows, keyed_table
from pattern_stage.pattern.trails import Ages, KeptTrails
from pattern_stage.values import Texts, as_json, compile_value, joined_arrays, single_events
from xscl.algebra.events import ERRORS, EVENTS, Attribute, Kind, NearPattern, value_kind


class NearStore(KeptTrails):
    def __init__(self, meter: Meter, rows: RowVectors) -> None:
        super().__init__(0, meter, rows)
        self.cells: dict[KeyValues, dict[Vector, Cell]] = {}
        self.history: NearHistory | None = None
        """Learnt for a BUDGET."""

    def kept_cells(self) -> Iterator[Cell]:
        for cells in self.cells.values():
            yield from cells.values()

    def pass_until(self, time: int) -> None:
        """Drops chains that began too long before a time."""
        if self.history is not None:
            self.history.pass_until(time)
        for start, some in self.expiring(time):
            for key, one, vector in some:
                cells = self.cells.get(key, {})
                if isinstance(one, Cell) and cells.get(vector) is one and one.entries[-1].top <= start:
                    del cells[vector]
                    if not cells:
                        del self.cells[key]

    def remove_rows(self, gone: int) -> None:
        """Removes rows, and state for them alone."""
        self.rows &= ~gone
        for key, cells in list(self.cells.items()):
            for vector, cell in list(cells.items()):
                cell.without(gone)
                if not cell.entries:
                    del cells[vector]
            if not cells:
                del self.cells[key]

    def kept_beside(self, ages: Ages) -> None: ...


def thin(
    store: NearStore,
    history: NearHistory,
    key: KeyValues,
    most: int,
    time: int,
    order_of: Callable[[Iterable[int]], dict[int, Any]],
) -> None:
    """Keeps at most `most` ends of chains of a key: those with the greatest learnt gain, then the fewest missing
    letters, then the latest."""
    cells = store.cells.get(key, {})
    for vector, cell in list(cells.items()):
        cell.drop_before(store.low)
        if not cell.entries:
            del cells[vector]
    if sum(len(cell.entries) for cell in cells.values()) > most:
        kept = _of_vectors(history.chosen(time, key, _candidates(cells, order_of), most))
        for vector, cell in list(cells.items()):
            numbers = kept.get(vector, ())
            cell.only({at for at, one in enumerate(cell.entries) if one.trail.event(one.place)[2] in numbers})
            if not cell.entries:
                del cells[vector]
        history.keep(key, kept)
    history.age(time, key)


def _candidates(
    cells: Mapping[Vector, Cell], order_of: Callable[[Iterable[int]], dict[int, Any]]
) -> list[PartialCandidate]:
    ends = [
        (cost, vector, one.trail.event(one.place)[2], one)
        for vector, cell in cells.items()
        for cost in [min(cost for _, cost in vector)]
        for one in cell.entries
    ]
    first: dict[tuple[int, int], int] = {}
    is_tied = any(first.setdefault((cost, one.t1), number) != number for cost, _, number, one in ends)
    order = order_of(number for _, _, number, _ in ends) if is_tied else None
    return [
        PartialCandidate(
            (vector, number), one.start, one.t1, (cost, -one.t1, order and order[number], vector, one.start)
        )
        for cost, vector, number, one in ends
    ]


def _of_vectors(names: Iterable[PartialName]) -> dict[Vector, set[int]]:
    found: dict[Vector, set[int]] = {}
    for vector, number in names:
        found.setdefault(vector, set()).add(number)
    return found


def saved_history(
    store: NearStore, history: NearHistory, writer_of: Callable[[], PartWriter]
) -> Iterator[tuple[KeyValues, SavedPart]]:
    """Yields the learnt state by key; the empty key has the global state."""
    for key in {**history.nodes, **history.told}:
        writer = writer_of()
        nodes = [
            [
                vector,
                writer.entries(cell.entries),
                [history.saved_node(key, (vector, one.trail.event(one.place)[2])) for one in cell.entries],
            ]
            for vector, cell in store.cells.get(key, {}).items()
        ]
        rows = writer.mask(store.rows)
        yield key, writer.done(learnt=nodes, told=history.told.get(key), of=rows)
    writer = writer_of()
    rows = writer.mask(store.rows)
    yield (), writer.done(history=history.remembered(), of=rows)


def restore_history(history: NearHistory, key: KeyValues, reader: PartReader) -> None:
    """Restores the learnt state, global or of a key."""
    if "history" in reader.data:
        history.remember(reader.data["history"])
        return
    if reader.data["told"] is not None:
        time, bundle = reader.data["told"]
        history.told[key] = time, bundle
    for written, entries, nodes in reader.data["learnt"]:
        vector: Vector = tuple((at, cost) for at, cost in written)
        for one, node in zip(reader.lists[entries], nodes, strict=True):
            if node is not None:
                event = one.trail.event(one.place)
                history.adopt(key, (vector, event[2]), one.start, one.t1, node)


_Group = tuple[int, int]
"""Rows that share a store: their window, and since."""


class NearMatching:
    """A pattern with ERRORS. It has one shape; rows differ in window and since."""

    def __init__(
        self,
        definitions: Sequence[NearPattern],
        rows: RowVectors,
        texts: Texts,
        lineage: OriginLookup,
        index: MakeIndex,
        meter: Meter,
    ) -> None:
        self._pattern = pattern = definitions[0]
        self._rows, self._texts, self._lineage, self._meter = rows, texts, lineage, meter
        self._schemas = [schema for _, schema in sorted(inputs_of(pattern), key=lambda one: int(one[0]))]
        self._automaton = LetterAutomaton(pattern.letters, pattern.errors)
        self._roles = [EventRole(stream, schema, (), texts, index) for stream, schema in enumerate(self._schemas)]
        self._arrivals = RoleEvents(self._schemas, pattern.keys, self._roles, texts, all_events=False)
        returned = dict(pattern.returned or ())
        errors: tuple[tuple[str, Kind], ...] = ((ERRORS, "number"),)
        self._items = {
            name: compile_value(returned.get(name, Attribute("left", ERRORS, "number")), errors, None, texts)
            for name, _ in pattern.schema
            if name != EVENTS
        }
        self._has_events = EVENTS in dict(pattern.schema)
        """Whether events are kept with their values, as one text."""
        slots = EventSlots()
        if self._has_events:
            for stream, schema in enumerate(self._schemas):
                slots_of(slots, stream, schema)
        self._arrivals.compute(slots.values)
        self._read = {stream: [value_kind(one) for one in some] for stream, some in slots.values.items()}
        self._kinds: dict[int, list[Kind]] = {0: ["string"]} if self._has_events else {}
        self._by_window = sees_before(pattern)
        self._stores: dict[_Group, NearStore] = {}
        self._apart: dict[_Group, Apart] = {}
        self._numbers: set[int] = set()
        self._since: list[tuple[int, int]] = []

    # ------------------------------------------------------------ rows

    def add_rows(self, new: Ints) -> None:
        self._numbers.update(new.tolist())
        grouped: dict[_Group, list[int]] = defaultdict(list)
        for row in new.tolist():
            grouped[self._group(row)].append(row)
        for group, some in grouped.items():
            mine = np.array(some, np.int64)
            store = self._stores.get(group)
            if store is None:
                store = self._stores[group] = NearStore(self._meter, self._rows)
                if self._pattern.apart:
                    self._apart[group] = Apart(self._order, whole=False)
            store.rows |= rows_to_mask(mine)
            store.window = max(store.window, int(self._rows.within[mine].max()))
            store.windows.follow(mask_to_rows(store.rows))
            if self._pattern.budget is not None and store.history is None:
                store.history = NearHistory(store.window, self._key_texts)
        if self._by_window:
            for time in distinct(self._rows.apart[new]).tolist():
                self._since.append((time, rows_to_mask(new[self._rows.apart[new] == time])))

    def _group(self, row: int) -> _Group:
        """Returns the store of a row; with a BUDGET, only rows that have seen the same events share one."""
        if not self._by_window:
            return 0, 0
        return int(self._rows.within[row]), 0 if self._pattern.budget is None else int(self._rows.apart[row])

    def _key_texts(self, key: KeyValues) -> list[Any]:
        kinds = self._key_kinds()
        return [self._texts.text(one) if kind == "string" else one for one, kind in zip(key, kinds, strict=True)]

    def remove_rows(self, gone: Ints) -> None:
        self._numbers.difference_update(gone.tolist())
        mask = rows_to_mask(gone)
        for group, store in list(self._stores.items()):
            store.remove_rows(mask)
            if not store.rows:
                del self._stores[group]
                self._apart.pop(group, None)
                continue
            store.windows.follow(mask_to_rows(store.rows))
            if group in self._apart:
                self._apart[group].without(mask)
        self._since = [(time, rows & ~mask) for time, rows in self._since if rows & ~mask]

    # ------------------------------------------------------------ running

    def run(self, inputs: Sequence[Flow], until: int) -> Flow:
        every = rows_to_mask(np.array(sorted(self._numbers), np.int64))
        epochs = list(self._arrivals.epochs(inputs, every, self._since))
        self._since = [(time, rows) for time, rows in self._since if time >= until]
        found: list[BundleMatches] = []
        for group, store in self._stores.items():
            apart = self._apart.get(group)
            store.begin()
            bundles: list[Bundle] = []
            for time, arrivals in epochs:
                store.pass_until(time)
                bundles += self._step(store, time, arrivals)
                if apart is not None and bundles:
                    apart.forget_before(time - store.window)
                    all_found = expand_bundles(bundles, distinct=self._distinct)
                    found.append(all_found.with_rows(apart.chosen(all_found.candidates())))
                    bundles = []
            store.pass_until(until)
            found += [expand_bundles(some, distinct=self._distinct) for some in batch_bundles(bundles)]
        return self._results(found)

    @property
    def _distinct(self) -> bool:
        return len(self._stores) > 1

    def _step(self, store: NearStore, time: int, arrivals: Sequence[Arrival]) -> list[Bundle]:
        made: list[tuple[KeyValues, Vector, Draft]] = []
        learnt: list[tuple[KeyValues, Extension]] = []
        for one in arrivals:
            if one.key is None:
                continue
            drafts, before = self._drafts(store, one)
            made += [(one.key, vector, draft) for vector, draft in drafts.items()]
            if store.history is not None:
                for vector, draft in drafts.items():
                    is_match = self._automaton.lacking(vector) is not None
                    name = vector, draft.event[2]
                    learnt.append((one.key, Extension(name, draft.start, before.get(vector, ()), is_match)))
            if store.made > store.most_made:
                store.exceed(store.made_too_much(time, (draft for _, _, draft in made)), time, "partial")
        for key, vector, draft in made:
            if rows := draft.rows & store.rows:
                trail = store.trail_of(key, draft, rows)
                store.keep(key, store.cells.setdefault(key, {}), vector, vector, draft, trail, rows, vector)
                errors = self._automaton.lacking(vector)
                if errors is not None:
                    ending = Ending(time, time - store.window, time, time, key, errors=errors)
                    store.find(ending, trail, trail.last, rows)
        if store.history is not None and self._pattern.budget is not None:
            store.history.learn(time, learnt)
            for key in sorted({key for key, _, _ in made}, key=self._key_texts):
                thin(store, store.history, key, self._pattern.budget, time, self._order)
            store.history.tidy(time)
        return store.end_epoch(time)

    def _drafts(self, store: NearStore, one: Arrival) -> tuple[dict[Vector, Draft], dict[Vector, Predecessors]]:
        before: dict[Vector, Predecessors] = {}
        rows = one.masks[one.stream] & store.rows
        drafts: dict[Vector, Draft] = {}
        if not rows:
            return drafts, before
        event = self._kept(one)
        for vector, cell in store.cells.get(one.key, {}).items():
            stop = cell.before(event[0])
            if not stop or cell.entries[stop - 1].top < event[1] - store.window:
                continue
            then = self._automaton.step(vector, one.stream)
            if then:
                draft = drafts.get(then) or drafts.setdefault(then, Draft(event, 0))
                draft.before, draft.oldest = max(draft.before, cell.entries[stop - 1].top), BEGINNING
                draft.segments += cell.segments([(0, 0)], stop, rows, shared=True)
                store.made += 1
                if store.history is not None:
                    low = event[1] - store.window
                    ends = [one.trail.event(one.place)[2] for one in cell.entries[:stop] if one.start >= low]
                    before[then] = [*before.get(then, ()), (vector, ends)]
        begun = self._automaton.begin(one.stream)
        if begun and event[1] - event[0] <= store.window:
            draft = drafts.get(begun) or drafts.setdefault(begun, Draft(event, 0))
            draft.roots, draft.oldest = [(BEGINNING, rows)], min(draft.oldest, event[0])
        return drafts, before

    def _kept(self, one: Arrival) -> EventTuple:
        if not self._has_events:
            return one.event
        values = as_json(one.event[FIRST_SLOT:], self._read[one.stream], self._texts)
        return *one.event[:FIRST_SLOT], self._texts.code(values)

    def _results(self, all_found: Sequence[BundleMatches]) -> Flow:
        flow = joined_flow([self._flow(found) for found in all_found], no_flow(self._pattern.schema, 1))
        return each_once(flow) if self._distinct else flow

    def _flow(self, found: BundleMatches) -> Flow:
        if not self._by_window:
            spans = found.table.t1 - found.table.t0
            found = found.only(spans[found.at] <= self._rows.within[found.rows])
        table = found.table
        errors, every = table.errors.astype(np.float64), np.arange(table.count)
        pairs = single_events(Columns(table.t0, table.t1, (errors,), every.reshape(-1, 1)), every, every, ())
        values = tuple(
            [
                self._items[name](pairs) if name in self._items else self._events(table)
                for name, _ in self._pattern.schema
            ]
        )
        parts = table.parts(0, self._lineage)
        return Flow(Columns(table.t0, table.t1, values, parts.reshape(-1, 1)), found.at, found.rows)

    def _events(self, table: BundleTable) -> Column:
        items, sizes = table.events(0), table.sizes(0)
        places, _ = spread(items.starts, sizes)
        texts = self._texts.texts(items.column(FIRST_SLOT, places, "string").astype(np.int64))
        return self._texts.codes(joined_arrays(texts, np.cumsum(sizes).tolist()))

    def _order(self, numbers: Iterable[int]) -> dict[int, Any]:
        return event_order(self._lineage, numbers)

    # ------------------------------------------------------------ state

    def waiting(self) -> Ints:
        counts = np.zeros(max(self._numbers, default=-1) + 1, np.int64)
        for store in self._stores.values():
            for cell in store.kept_cells():
                for one in cell.entries:
                    counts[mask_to_rows(one.rows)] += one.start >= store.low
        return counts

    def codes(self) -> Iterable[Ints]:
        keys = [key for store in self._stores.values() for key in store.cells]
        keys += [key for apart in self._apart.values() for key in apart.ends]
        keys += [key for store in self._stores.values() if store.history is not None for key in store.history.told]
        found = {one for key in keys for one in key if isinstance(one, int) and one >= 0}
        if self._has_events:
            trails = [trail for store in self._stores.values() for trail in store.trails()]
            found.update(event[FIRST_SLOT] for trail in trails for event in trail.events)
        yield np.array(sorted(found), np.int64)

    def parts(self) -> Iterable[Ints]:
        trails = [trail for store in self._stores.values() for trail in store.trails()]
        yield np.array([event[2] for trail in trails for event in trail.events], np.int64)

    def state(self) -> pa.Table:
        saved: list[tuple[KeyValues, SavedPart]] = []
        for group, store in self._stores.items():
            for key, cells in store.cells.items():
                writer = self._writer()
                some = [[vector, writer.entries(cell.entries)] for vector, cell in cells.items()]
                saved.append((key, writer.done(vectors=some, passed=store.passed)))
            if store.history is not None:
                saved += saved_history(store, store.history, self._writer)
            if group in self._apart:
                for key, ends in self._apart[group].ends.items():
                    writer = self._writer()
                    saved.append((key, writer.done(ends=[[end, writer.mask(of)] for end, of in ends])))
        return keyed_table(saved, self._key_kinds(), self._texts)

    def _writer(self) -> PartWriter:
        return PartWriter(self._texts, self._kinds, (0,))

    def _key_kinds(self) -> list[Kind]:
        return [dict(self._schemas[0])[name] for name in self._pattern.keys]

    def restore(self, table: pa.Table, renumber: Renumber) -> None:
        for key, data, numbers, rows in keyed_rows(table, self._key_kinds(), self._texts, renumber):
            group = self._group(next(iter(rows.values())))
            reader = PartReader(data, numbers, rows, self._texts, self._kinds, (0,), ())
            if "ends" in reader.data:
                self._apart[group].adopt(key, [(end, reader.mask(of)) for end, of in reader.data["ends"]])
                continue
            store = self._stores[group]
            if store.history is not None and ("history" in reader.data or "learnt" in reader.data):
                restore_history(store.history, key, reader)
                continue
            store.adopt_trails(key, reader.trails, reader.data["passed"])
            for written, entries in reader.data["vectors"]:
                vector: Vector = tuple((at, cost) for at, cost in written)
                cell = Cell(vector, vector)
                cell.entries = reader.lists[entries]
                cell.without(0)
                if cell.entries and cell.entries[-1].top >= store.low:
                    store.adopt_cell(key, merge_cell(store.cells.setdefault(key, {}), cell), vector)
