"""PATTERN with SET or EARLIEST MAXIMAL: events wait by key, and are tried when a match may be complete."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import partial
from heapq import heappop
from itertools import islice
from typing import Any, cast

import numpy as np

from common.bounds import deadline
from pattern_stage.clauses import has_parameters
from pattern_stage.columns import Flow, each_once, sorted_flow
from pattern_stage.definition import is_alone, of_event
from pattern_stage.operators import MOpContext
from pattern_stage.pattern.cells import EventTuple, masks_by_place
from pattern_stage.pattern.found import Conditions, Kills, ResultBuilder
from pattern_stage.pattern.host import Epochs, PatternHost
from pattern_stage.pattern.match import MatchTable, SetMatch
from pattern_stage.pattern.program import EventSlots
from pattern_stage.pattern.rows import KeyValues, arrivals_by_key, scalar_functions
from pattern_stage.pattern.set_search import (
    BufferedEvent,
    CandidateEvents,
    EarliestSearch,
    KeptSets,
    SetForm,
    SetSearch,
    changed_bindings,
    is_sound,
)
from pattern_stage.pattern.state import PartReader, SavedPart
from pattern_stage.values import Writer
from xscl.algebra.events import Attribute, OfItem, Pattern

_AT_ONCE = 256
"""Matches that are tested together, and compared with what may be better."""


class SetMatching(PatternHost[KeptSets, SetMatch]):
    """A pattern with SET, or with EARLIEST MAXIMAL. Each window has its own events. Events are kept only if some
    variable accepts them, alone and by key; nothing is tried before each variable has candidates in the order of the
    groups (phase 1 of match windows)."""

    def __init__(self, context: MOpContext) -> None:
        super().__init__(context)
        self._pattern = pattern = cast(Pattern, context.definitions[0])
        texts = context.texts
        self._is_late = pattern.is_late
        slots = EventSlots()
        self._positive = [at for at, one in enumerate(pattern.variables) if not one.negated]
        self._negated = [at for at, one in enumerate(pattern.variables) if one.negated]
        self._inputs = [int(one.source.stream) for one in pattern.variables]
        conditions = Conditions(pattern, texts, slots)
        self._found = ResultBuilder(pattern, texts, slots, context.lineage)
        alone = [one for one in (*pattern.conjuncts, *pattern.kills) if is_alone(one, pattern)]
        rest = [one for one in pattern.conjuncts if not is_alone(one, pattern)]
        self._tests = [conditions.condition(one.condition, one.names) for one in rest]
        self._tests += filter(None, [self._found.having])
        self._kills = [Kills(pattern, conditions, at) for at in self._negated]
        roles = [
            (self._inputs[at], [of_event(one) for one in alone if one.variable == at])
            for at in (*self._positive, *self._negated)
        ]
        asked = {of.variable for one in rest for _, of in one.names} | {of.variable for _, of in pattern.having_names}
        self._form = SetForm(
            tuple([pattern.variables[at].group for at in self._positive]),
            tuple([pattern.variables[at].kleene for at in self._positive]),
            self._early(slots),
            tuple([not self._negated and at not in asked for at in self._positive]),
        )
        self._is_plain = not rest and not self._negated and not pattern.having_names
        """Whether all that is in order and in the window is a match."""
        self._take_roles(roles, slots)

    def _early(self, slots: EventSlots) -> tuple[Any, ...]:
        pattern, found = self._pattern, []
        writer = Writer(scalar_functions(self._texts))
        for one in pattern.conjuncts:
            names = dict(one.names)
            plain = all(isinstance(of, OfItem) and of.place == "only" for of in names.values())
            if is_alone(one, pattern) or not plain or has_parameters(one.condition):
                continue

            def place(leaf: Attribute, names: Any = names) -> str:
                of = names[leaf.name]
                slot = slots.slot(self._inputs[of.variable], Attribute("left", of.name, leaf.kind))
                return f"B[{self._positive.index(of.variable)}][0][{slot}]"

            about = frozenset(self._positive.index(of.variable) for of in names.values())
            found.append((about, writer.compiled("B", writer.condition(one.condition, place))))
        return tuple(found)

    def _matches(self, store: KeptSets, key: KeyValues, *, end: int | None = None, start: int = 0) -> list[SetMatch]:
        """Returns the matches whose last event ends at `end`, or, without it, whose first begins at `start`."""
        low, known = (start, deadline(start, store.window)) if end is None else (end - store.window, end)
        every = [
            [(event, masks[at]) for event, masks, _ in store.kept.get(key, ()) if masks[at]]
            for at in range(len(self._positive))
        ]
        candidates = [[one for one in some if one[0][0] >= low and one[0][1] <= known] for some in every]
        if not self._form.may_match(candidates):
            return []
        searching = EarliestSearch if self._pattern.maximal else SetSearch
        spend = partial(store.spend, time=known)
        search = searching(self._form, candidates, store.window, spend, end, start if end is None else None)
        found: list[SetMatch] = []
        bound = (self._match(bindings, rows, known, key) for bindings, rows in search.matches(store.rows))
        while some := list(islice(bound, _AT_ONCE)):
            for match in some:
                store.spend(match.rows & store.rows, len(match.events), known)
            for match in self._true(store, _of_rows(some, store.rows)):
                found.append(match)
                store.found.add(match.rows)
            store.exceed(store.found.over(), known, "matches")
            search.leave(~store.rows)
        found = _of_rows(found, store.rows)
        if self._pattern.maximal:
            # Another match may begin earlier, as long as its first event does not end earlier.
            parts = (found[begin : begin + _AT_ONCE] for begin in range(0, len(found), _AT_ONCE))
            found = [one for part in parts for one in self._maximal(store, part, every)]
        return _of_rows(found, store.rows)

    def _match(self, bindings: list[list[EventTuple]], rows: int, known: int, key: KeyValues) -> SetMatch:
        t0 = min(event[0] for some in bindings for event in some)
        t1 = max(event[1] for some in bindings for event in some)
        return SetMatch(known, t0, t1, rows, bindings, key)

    def _true(self, store: KeptSets, matches: list[SetMatch]) -> list[SetMatch]:
        """Returns the matches, all of one key, that satisfy all conditions, with the rows for which they do."""
        if not matches:
            return matches
        table = MatchTable(matches, len(self._positive))
        at, rows, parameters = table.at, table.rows, self._rows.parameters
        for test in self._tests:
            held = test(table, at, (rows, parameters), (), None)
            at, rows = at[held], rows[held]
        for role, kills in enumerate(self._kills, len(self._positive)):
            absent = [(event, masks[role]) for event, masks, _ in store.kept[matches[0].key] if masks[role]]
            steps = np.zeros(int(rows.max(initial=-1)) + 1, np.int64)
            every = np.arange(len(at))
            killed = kills.killed(table, (at, rows), [(absent, every)], store.window, parameters, steps)
            at, rows = at[~killed], rows[~killed]
        masks = masks_by_place(at, rows, len(matches))
        return [match._replace(rows=mask) for match, mask in zip(matches, masks, strict=True) if mask]

    # ------------------------------------------------------------ EARLIEST MAXIMAL

    def _maximal(self, store: KeptSets, found: list[SetMatch], candidates: CandidateEvents) -> list[SetMatch]:
        """Removes the rows of matches with a better one: an earlier first event of a variable, or one event more."""
        order: dict[int, Any] = {event[2]: event[1] for some in candidates for event, _ in some}
        if len(set(order.values())) < len(order):  # names matter only for simultaneous events
            order = self._order(order)
        changed: list[SetMatch] = []
        numbers: dict[int, int] = {}
        """By the identity of changed bindings, the place of the match that they are better than."""
        worse = [0] * len(found)
        for place, match in enumerate(found):
            for bindings, rows in changed_bindings(self._form, match, candidates, order):
                rows &= store.rows & ~worse[place]
                if rows and is_sound(self._form, bindings, store.window):
                    store.spend(rows, len(match.events), match.known)
                    if self._is_plain:
                        worse[place] |= rows
                        continue
                    changed.append(self._match(bindings, rows, match.known, match.key))
                    numbers[id(bindings)] = place
        for one in self._true(store, changed):
            worse[numbers[id(one.bindings)]] |= one.rows
        return [one for match, rows in zip(found, worse, strict=True) for one in _of_rows([match], ~rows)]

    def _new_store(self, window: int) -> KeptSets:
        # With late matches, events are kept as long as an event that began before.
        return KeptSets(window, 2 * window if self._is_late else window, self._meter)

    def _of_store(self, group: Hashable, store: KeptSets, epochs: Epochs, until: int) -> Iterator[SetMatch]:
        apart = self._apart.get(group)
        for found in self._steps(store, epochs, until):
            if apart is not None:
                chosen = apart.chosen([match.candidate() for match in found], 2 * store.window)
                found = [match._replace(rows=rows) for match, rows in zip(found, chosen, strict=True) if rows]
            yield from found

    def _results(self, all_found: Sequence[SetMatch]) -> Flow:
        table = MatchTable(all_found, len(self._positive))
        events = self._found.events(table, table.t0, table.known)
        return each_once(sorted_flow(events, table.at, table.rows).compact())

    def _steps(self, store: KeptSets, epochs: Epochs, until: int) -> Iterator[list[SetMatch]]:
        for time, arrivals in epochs:
            yield from self._pass(store, time)
            found: list[SetMatch] = []
            for key, some in arrivals_by_key(arrivals).items():
                for one in some:
                    masks = tuple([of & store.rows for of in one.masks])
                    if not any(masks) or one.event[1] - one.event[0] > store.window:
                        continue
                    store.keep(key, (one.event, masks, one.stream))
                    if self._is_late and self._begins(masks):
                        store.await_window(one.event[0], key)
                if key in store.kept and not self._is_late:
                    found += self._matches(store, key, end=time)
            store.end_epoch(time)
            if found:
                yield found
        yield from self._pass(store, until)

    def _begins(self, masks: Sequence[int]) -> bool:
        return any(masks[at] for at, group in enumerate(self._form.groups) if group == 0)

    def _pass(self, store: KeptSets, time: int) -> Iterator[list[SetMatch]]:
        store.passed = time
        while store.starts and deadline(store.starts[0], store.window) < time:
            start = heappop(store.starts)
            found: list[SetMatch] = []
            for key in store.keys_at.pop(start):
                found += self._matches(store, key, start=start)
            store.end_found(deadline(start, store.window))
            if found:
                yield found

    def _codes(self, store: KeptSets) -> Iterable[Any]:
        return (value for key in store.kept for value in key)

    def _events(self, store: KeptSets) -> Iterator[tuple[int, EventTuple]]:
        return ((stream, event) for some in store.kept.values() for event, _, stream in some)

    def _saved(self, store: KeptSets) -> Iterator[tuple[KeyValues, SavedPart]]:
        for key, some in store.kept.items():
            writer = self._writer()
            kept = [
                [writer.event(stream, event), [writer.mask(of) for of in masks], stream]
                for event, masks, stream in some
            ]
            yield key, writer.done(kept=kept, passed=store.passed)

    def _restore(self, store: KeptSets, key: KeyValues, reader: PartReader) -> None:
        passed = reader.data["passed"]
        store.passed = max(store.passed, passed)
        some: list[BufferedEvent] = []
        for event, masks, stream in reader.data["kept"]:
            made = reader.event_of(event, stream)
            here = tuple([reader.mask(of) for of in masks])
            if any(here):
                some.append((made, here, stream))
                if self._is_late and self._begins(here) and made[0] + store.window >= passed:
                    store.await_window(made[0], key)
        store.adopt(key, some)


def _of_rows(matches: Sequence[SetMatch], rows: int) -> list[SetMatch]:
    return [match._replace(rows=match.rows & rows) for match in matches if match.rows & rows]
