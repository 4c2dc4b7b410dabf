"""PATTERN with ERRORS: chains of events that lack a limited number of letters of a word. Chains with one vector are
merged. A store has the chains of some rows by key and vector. A BUDGET thins the chains of a key by what `history` has
learnt, which is saved with them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import numpy as np

from common.bounds import BEGINNING
from pattern_stage.columns import Column, Columns, Flow, bare_columns, no_flow, spread
from pattern_stage.operators import MOpContext
from pattern_stage.pattern.cells import Cell, CellTable, Draft
from pattern_stage.pattern.found import Bundle, BundleMatches, BundleTable, Ending
from pattern_stage.pattern.history import Extension, NearHistory, PartialCandidate, PartialName, lists_to_tuples
from pattern_stage.pattern.host import BundleHost, PartReader, SavedPart
from pattern_stage.pattern.match import KeyState
from pattern_stage.pattern.program import FIRST_SLOT, EventSlots, LetterAutomaton, Vector
from pattern_stage.pattern.rows import Arrival, KeyValues
from pattern_stage.pattern.trails import KeptTrails
from pattern_stage.values import compile_value, every_event, json_arrays, to_json
from xscl.algebra.events import ERRORS, EVENTS, Attribute, Kind, NearPattern


class NearStore(KeptTrails):
    """Chains; the cells of a key are by vector."""

    history: NearHistory | None = None  # learnt for a BUDGET

    def cells(self, key: KeyValues) -> CellTable[Cell]:
        return self.parts[key].tables[0]

    def pass_until(self, time: int) -> list[Bundle]:
        if self.history is not None:
            self.history.pass_until(time)
        return super().pass_until(time)


_MadeChain = tuple[Vector, Draft, Sequence[PartialName]]
"""A chain that an event ends, by vector; for a BUDGET, with those that it extends."""


class NearMatching(BundleHost[NearStore]):
    """A pattern with ERRORS. Rows differ in window and since."""

    def __init__(self, context: MOpContext) -> None:
        super().__init__(context, (0,))
        self._pattern = pattern = cast(NearPattern, context.definitions[0])
        texts = context.texts
        self._automaton = LetterAutomaton(pattern.letters, pattern.errors)
        returned = dict(pattern.returned or ())
        errors: tuple[tuple[str, Kind], ...] = ((ERRORS, "number"),)
        self._items = {
            name: compile_value(returned.get(name, Attribute("left", ERRORS, "number")), errors, None, texts)
            for name, _ in pattern.schema
            if name != EVENTS
        }
        self._has_events = EVENTS in dict(pattern.schema)  # whether events are kept with their values, as one text
        slots = EventSlots()
        if self._has_events:
            for stream, schema in enumerate(self._schemas):
                slots.of_schema(stream, schema)
        self._take_roles([(stream, ()) for stream, _ in enumerate(self._schemas)], slots)
        self._read, self._kinds = self._kinds, {0: ["string"]} if self._has_events else {}
        self._settles, self._by_window = pattern.apart, self._sees_before
        self._by_since = pattern.budget is not None
        self._nothing = no_flow(pattern.schema, 1)

    def _new_store(self, window: int) -> NearStore:
        store = NearStore(self._meter, self._rows, lambda: KeyState([()], 0))
        if self._pattern.budget is not None:
            store.history = NearHistory(window, self._key_texts)
        return store

    def _key_texts(self, key: KeyValues) -> list[Any]:
        kinds = self._key_kinds
        return [self._texts.text(one) if kind == "string" else one for one, kind in zip(key, kinds, strict=True)]

    def _step(self, store: NearStore, time: int, arrivals: Sequence[Arrival]) -> list[Bundle]:
        store.pass_until(time)
        lacking, made = self._automaton.lacking, list[tuple[KeyValues, _MadeChain]]()
        for one in arrivals:
            if one.key is not None:
                made += [(one.key, chain) for chain in self._made(store, one)]
            if store.made > store.most_made:
                store.exceed(store.made_too_much(time, (draft for _, (_, draft, _) in made)), time, "partial")
        for key, (vector, draft, _) in made:
            if rows := draft.rows & store.rows:
                trail = store.trail_of(key, draft, rows)
                store.keep(key, 0, vector, draft, trail, rows)
                if (errors := lacking(vector)) is not None:
                    ending = Ending(time, time - store.window, time, time, key, errors=errors)
                    store.find(ending, trail, trail.last, rows)
        if store.history is not None:
            extensions = [
                (key, Extension((vector, draft.event[2]), draft.start, before, lacking(vector) is not None))
                for key, (vector, draft, before) in made
            ]
            store.history.learn(time, extensions)
            for key in sorted({key for key, _ in made}, key=self._key_texts):
                self._thin(store, store.history, key, time)
            store.history.tidy(time)
        return store.end_epoch(time)

    def _thin(self, store: NearStore, history: NearHistory, key: KeyValues, time: int) -> None:
        """Keeps the ends of chains of a key that the BUDGET allows: those with the greatest learnt gain, then the
        fewest missing letters, then the latest."""
        cells, most = store.cells(key), cast(int, self._pattern.budget)
        store.change(key, [cells], lambda cell: cell.drop_before(store.low))
        if sum(len(cell.entries) for cell in cells.values()) > most:
            ends = [
                (min(cost for _, cost in vector), vector, one.number, one)
                for vector, cell in cells.items()
                for one in cell.entries
            ]
            first: dict[tuple[int, int], int] = {}
            is_tied = any(first.setdefault((cost, one.t1), number) != number for cost, _, number, one in ends)
            order = self._order(number for _, _, number, _ in ends) if is_tied else defaultdict(int)
            candidates = [
                PartialCandidate((vector, number), one.start, one.t1, (cost, -one.t1, order[number], vector, one.start))
                for cost, vector, number, one in ends
            ]
            kept = history.chosen(time, key, candidates, most)
            store.change(key, [cells], lambda cell: cell.only(lambda one: (cell.name, one.number) in kept))
            history.keep(key, kept)
        history.age(time, key)

    def _made(self, store: NearStore, one: Arrival) -> list[_MadeChain]:
        if not (rows := one.masks[one.stream] & store.rows):
            return []
        before = defaultdict[Vector, list[PartialName]](list)
        drafts: dict[Vector, Draft] = {}
        event = one.event
        if self._has_events:
            values = [
                self._texts.text(value) if kind == "string" else None if value != value else value
                for value, kind in zip(event[FIRST_SLOT:], self._read[one.stream], strict=True)
            ]
            event = *event[:FIRST_SLOT], self._texts.code(to_json(values))
        for vector, cell in store.cells(one.key).items() if one.key in store.parts else ():
            stop = cell.before(event[0])
            if not stop or cell.entries[stop - 1].top < event[1] - store.window:
                continue
            if then := self._automaton.step(vector, one.stream):
                draft = drafts.get(then) or drafts.setdefault(then, Draft(event, 0))
                draft.before, draft.oldest = max(draft.before, cell.entries[stop - 1].top), BEGINNING
                draft.segments += cell.segments(stop, rows, shared=True)
                store.made += 1
                if store.history is not None:
                    low = event[1] - store.window
                    before[then] += [(vector, one.number) for one in cell.entries[:stop] if one.start >= low]
        begun = self._automaton.begin(one.stream)
        if begun and event[1] - event[0] <= store.window:
            draft = drafts.get(begun) or drafts.setdefault(begun, Draft(event, 0))
            draft.roots, draft.oldest = [(BEGINNING, rows)], min(draft.oldest, event[0])
        return [(vector, draft, before.get(vector, ())) for vector, draft in drafts.items()]

    def _flow(self, found: BundleMatches) -> Flow:
        table = found.table
        pairs = every_event(bare_columns((table.errors.astype(np.float64),), table.count))
        values = [
            self._items[name](pairs) if name in self._items else self._event_texts(table)
            for name, _ in self._pattern.schema
        ]
        parts = table.parts(0, self._lineage).reshape(-1, 1)
        return Flow(Columns(table.t0, table.t1, tuple(values), parts), found.at, found.rows)

    def _event_texts(self, table: BundleTable) -> Column:
        items, sizes = table.events(0), table.sizes(0)
        places, _ = spread(items.starts, sizes)
        texts = self._texts.texts(items.column(FIRST_SLOT, places, "string").astype(np.int64))
        return self._texts.codes(json_arrays(texts, np.cumsum(sizes).tolist(), lambda some: f"[{', '.join(some)}]"))

    def _codes(self, store: NearStore) -> Iterable[Any]:
        reported = store.history.reported if store.history is not None else {}
        return (value for key in (*store.parts, *reported) for value in key)

    def _saved(self, store: NearStore) -> Iterator[tuple[KeyValues, SavedPart]]:
        for key in store.parts:
            writer = self._writer(store)
            some = [[vector, writer.entries(cell.entries)] for vector, cell in store.cells(key).items()]
            yield key, writer.done(vectors=some, passed=store.passed)
        if (history := store.history) is None:
            return
        for key in {**history.nodes, **history.reported}:
            writer = self._writer(store)
            learnt = [
                [
                    vector,
                    writer.entries(cell.entries),
                    [history.saved_node(key, (vector, one.number)) for one in cell.entries],
                ]
                for vector, cell in (store.cells(key).items() if key in store.parts else ())
            ]
            yield key, writer.done(learnt=learnt, told=history.reported.get(key), of=writer.mask(store.rows))
        writer = self._writer(store)
        yield (), writer.done(history=history.remembered(), of=writer.mask(store.rows))

    def _restore(self, store: NearStore, key: KeyValues, reader: PartReader) -> None:
        if store.history is not None and "history" in reader.data:
            store.history.remember(reader.data["history"])
            return
        if store.history is not None and "learnt" in reader.data:
            if reader.data["told"] is not None:
                store.history.reported[key] = lists_to_tuples(reader.data["told"])
            for vector, entries, nodes in reader.data["learnt"]:
                for one, node in zip(reader.lists[entries], nodes, strict=True):
                    if node is not None:
                        store.history.adopt(key, (lists_to_tuples(vector), one.number), one.start, one.t1, node)
            return
        store.adopt_trails(key, reader.trails, reader.data["passed"])
        for written, entries in reader.data["vectors"]:
            vector = lists_to_tuples(written)
            cell = Cell(vector, vector)
            cell.entries = reader.lists[entries]
            cell.without(0)
            if cell.entries and cell.entries[-1].top >= store.low:
                store.adopt_cell(key, cell, 0)
