"""The matches of a PATTERN with SET among the events that wait for one key: found, tested, and compared with others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np

from common.distinct import distinct
from pattern_stage.columns import Ints
from pattern_stage.formula import has_parameters
from pattern_stage.limits import Meter
from pattern_stage.matching.alone import is_alone, of_event
from pattern_stage.matching.arrivals import Arrivals, Key, MakeIndex, Role
from pattern_stage.matching.choose import Apart
from pattern_stage.matching.earliest_search import EarliestSearch
from pattern_stage.matching.found import Conditions, Found
from pattern_stage.matching.kept_sets import Kept, KeptSets
from pattern_stage.matching.masks import expanded, mask_of
from pattern_stage.matching.match import Match
from pattern_stage.matching.maximal import changed_bindings, is_sound
from pattern_stage.matching.nodes import Event
from pattern_stage.matching.order import event_order
from pattern_stage.matching.scalar import Writer
from pattern_stage.matching.set_search import SetForm, SetSearch
from pattern_stage.matching.slots import Slots
from pattern_stage.matching.tables import MatchTable
from pattern_stage.matching.template import inputs as inputs_of
from pattern_stage.operators import Origins, RowVectors
from pattern_stage.predicates import kind_of
from pattern_stage.values import Texts
from xscl.algebra.event_sequences import OfItem, Pattern
from xscl.algebra.events import Attribute


class SetFinder:
    """Finds the matches of a pattern with SET, or with EARLIEST MAXIMAL."""

    def __init__(
        self,
        definitions: Sequence[Pattern],
        rows: RowVectors,
        texts: Texts,
        lineage: Origins,
        index: MakeIndex,
        meter: Meter,
    ) -> None:
        self._pattern = pattern = definitions[0]
        self._is_late = pattern.is_late
        self._rows, self._texts, self._lineage, self._meter = rows, texts, lineage, meter
        self._schemas = [schema for _, schema in sorted(inputs_of(pattern), key=lambda one: int(one[0]))]
        slots = Slots()
        self._positive = [at for at, one in enumerate(pattern.variables) if not one.negated]
        self._negated = [at for at, one in enumerate(pattern.variables) if one.negated]
        self._streams = [int(one.source.stream) for one in pattern.variables]
        conditions = Conditions(pattern, texts, slots)
        self._found = Found(pattern, texts, slots, lineage)
        alone = [one for one in (*pattern.conjuncts, *pattern.kills) if is_alone(one, pattern)]
        rest = [one for one in pattern.conjuncts if not is_alone(one, pattern)]
        self._tests = [conditions.condition(one.condition, one.names) for one in rest]
        self._kills = [
            [conditions.condition(one.condition, one.names, at) for one in pattern.kills if one.variable == at]
            for at in self._negated
        ]
        self._roles = [
            Role(
                self._streams[at],
                self._schemas[self._streams[at]],
                [of_event(one) for one in alone if one.variable == at],
                texts,
                index,
            )
            for at in (*self._positive, *self._negated)
        ]
        asked = {of.variable for one in rest for _, of in one.names} | {of.variable for _, of in pattern.having_names}
        self._form = SetForm(
            tuple([pattern.variables[at].group for at in self._positive]),
            tuple([pattern.variables[at].kleene for at in self._positive]),
            self._early(slots),
            tuple([not self._negated and at not in asked for at in self._positive]),
        )
        self._arrivals = Arrivals(self._schemas, pattern.keys, self._roles, texts, all_events=False)
        self._arrivals.compute(slots.values)
        self._kinds = {stream: [kind_of(one) for one in some] for stream, some in slots.values.items()}
        self._stores: dict[int, KeptSets] = {}
        self._apart: dict[int, Apart] = {}
        self._numbers: set[int] = set()
        self._since: list[tuple[int, int]] = []

    def _early(self, slots: Slots) -> tuple[Any, ...]:
        """Returns what is about plain variables, and about no row: tested as soon as these are bound."""
        pattern, found = self._pattern, []
        writer = Writer(self._texts)
        for one in pattern.conjuncts:
            names = dict(one.names)
            plain = all(isinstance(of, OfItem) and of.place == "only" for of in names.values())
            if is_alone(one, pattern) or not plain or has_parameters(one.condition):
                continue

            def place(leaf: Attribute, names: Any = names) -> str:
                of = names[leaf.name]
                slot = slots.slot(self._streams[of.variable], Attribute("left", of.name, leaf.kind))
                return f"B[{self._positive.index(of.variable)}][0][{slot}]"

            about = frozenset(self._positive.index(of.variable) for of in names.values())
            found.append((about, writer.compiled("B", writer.condition(one.condition, place))))
        return tuple(found)

    def _matches(
        self, store: KeptSets, key: Key, kept: Sequence[Kept], *, end: int | None = None, start: int | None = None
    ) -> list[Match]:
        """Returns the matches of a key that become known now: whose last event ends at `end`, or whose first one
        begins at `start`."""
        low, high = (
            (end - store.window, end) if end is not None else (cast(int, start), cast(int, start) + store.window)
        )
        candidates = [
            [(event, masks[at]) for event, masks, _ in kept if masks[at] and event[0] >= low and event[1] <= high]
            for at in range(len(self._positive))
        ]
        if not self._form.may_match(candidates, low, high):
            return []
        searching = EarliestSearch if self._pattern.maximal else SetSearch
        search = searching(self._form, candidates, store.window, end=end, start=start)
        known = high if start is not None else cast(int, end)
        bound: list[Match] = []
        for bindings, rows in search.matches(store.rows):
            bound.append(self._match(bindings, rows, known, key))
            store.found.add(rows)
            if over := store.found.over():
                store.exceed(over, known, "matches")
                search.leave(over)
        left = [match._replace(rows=match.rows & store.rows) for match in bound if match.rows & store.rows]
        found = self._true(store, left, kept)
        if self._pattern.maximal and found:
            # Another match may begin earlier, as long as its first event does not end earlier.
            others = [
                [(event, masks[at]) for event, masks, _ in kept if masks[at]] for at in range(len(self._positive))
            ]
            found = self._maximal(store, found, kept, others)
        return found

    def _match(self, bindings: Sequence[Sequence[Event]], rows: int, known: int, key: Key) -> Match:
        events = [event for some in bindings for event in some]
        components = [at for at, some in enumerate(bindings) for _ in some]
        t0, t1 = min(event[0] for event in events), max(event[1] for event in events)
        return Match(known, t0, t1, rows, events, components, key)

    def _true(self, store: KeptSets, matches: list[Match], kept: Sequence[Kept]) -> list[Match]:
        """Returns what is left of matches by the conditions, HAVING and negated events."""
        if not matches:
            return matches
        table = MatchTable(matches, len(self._positive))
        at, rows = expanded([match.rows for match in matches])
        parameters = self._rows.parameters
        for test in self._tests:
            held = test(table, at, (rows, parameters), (), None)
            at, rows = at[held], rows[held]
        held = self._found.having(table, at, rows, parameters)
        at, rows = at[held], rows[held]
        for place, variable in enumerate(self._negated):
            killed = self._killed(store, table, matches, at, rows, kept, place, variable)
            at, rows = at[~killed], rows[~killed]
        heads = distinct(at)
        return [matches[place]._replace(rows=mask_of(rows[at == place])) for place in heads.tolist()]

    def _killed(
        self,
        store: KeptSets,
        table: MatchTable,
        matches: Sequence[Match],
        at: Ints,
        rows: Ints,
        kept: Sequence[Kept],
        place: int,
        variable: int,
    ) -> Any:
        """Returns which pairs of a match and a row an event of a negated variable kills."""
        group, role = self._pattern.variables[variable].group, len(self._positive) + place
        absent = [(event, masks[role]) for event, masks, _ in kept if masks[role]]
        pairs: list[int] = []
        others: list[int] = []
        between: dict[int, list[int]] = {}
        for pair, (match_at, row) in enumerate(zip(at.tolist(), rows.tolist(), strict=True)):
            if match_at not in between:
                match = matches[match_at]
                between[match_at] = [
                    number for number, (event, _) in enumerate(absent) if self._lies(store, match, event, group)
                ]
            for number in between[match_at]:
                if absent[number][1] >> row & 1:
                    pairs.append(pair)
                    others.append(number)
        killed = np.zeros(len(at), np.bool_)
        if pairs:
            pair_at, other_at = np.array(pairs, np.int64), np.array(others, np.int64)
            events = [event for event, _ in absent]
            for test in self._kills[place]:
                held = test(table, at[pair_at], (rows[pair_at], self._rows.parameters), events, other_at)
                pair_at, other_at = pair_at[held], other_at[held]
            killed[pair_at] = True
        return killed

    def _lies(self, store: KeptSets, match: Match, event: Event, group: int) -> bool:
        """Whether an event lies where one of a negated variable before a group does."""
        groups = self._form.groups
        before = [one for one, at in zip(match.events, match.components, strict=True) if groups[at] == group - 1]
        behind = [one for one, at in zip(match.events, match.components, strict=True) if groups[at] == group]
        if not all(one[1] < event[0] for one in before) or not all(event[1] < one[0] for one in behind):
            return False
        if not before:
            return bool(match.t1 - event[0] <= store.window)
        return bool(behind or event[1] - match.t0 <= store.window)

    # ------------------------------------------------------------ EARLIEST MAXIMAL

    def _maximal(
        self,
        store: KeptSets,
        found: list[Match],
        kept: Sequence[Kept],
        candidates: Sequence[Sequence[tuple[Event, int]]],
    ) -> list[Match]:
        """Returns matches without the rows that have a better one: with an earlier first event of a variable, or with
        one event more."""
        order = self._ordered({event[2]: event[1] for some in candidates for event, _ in some})
        changed: list[Match] = []
        of: list[int] = []
        for place, match in enumerate(found):
            for bindings, rows in changed_bindings(self._form, match, candidates, order):
                if rows and is_sound(self._form, bindings, store.window):
                    changed.append(self._match(bindings, rows, match.known, match.key))
                    of.append(place)
        numbers = {id(one.events): place for one, place in zip(changed, of, strict=True)}
        worse = [0] * len(found)
        for one in self._true(store, changed, kept):
            worse[numbers[id(one.events)]] |= one.rows
        return [
            match._replace(rows=match.rows & ~rows)
            for match, rows in zip(found, worse, strict=True)
            if match.rows & ~rows
        ]

    def _ordered(self, ends: dict[int, int]) -> dict[int, Any]:
        """Returns what to sort events with these t1 by. What they are called matters for those of one time alone."""
        return self._order(ends) if len(set(ends.values())) < len(ends) else ends

    def _order(self, numbers: Iterable[int]) -> dict[int, Any]:
        return event_order(self._lineage, numbers)
