"""PATTERN with SET or EARLIEST MAXIMAL: events wait by key, and are tried when a match may be complete."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import pairwise
from typing import Any, cast

import numpy as np
import pyarrow as pa

from pattern_stage.columns import Ints
from pattern_stage.flow import Flow, distinct, sorted_flow
from pattern_stage.formula import leaves, rewritten_condition, values_of
from pattern_stage.matching.arrivals import Arrival, Arrivals, Key, MakeIndex, Role
from pattern_stage.matching.choose import Apart
from pattern_stage.matching.found import Conditions, Found, Table, table_of
from pattern_stage.matching.keyed_state import keyed_rows, keyed_table
from pattern_stage.matching.masks import expanded, mask_of, rows_of
from pattern_stage.matching.nodes import Event
from pattern_stage.matching.order import event_order
from pattern_stage.matching.program import Slots
from pattern_stage.matching.saved_parts import PartReader, PartWriter, SavedPart
from pattern_stage.matching.scalar import Writer
from pattern_stage.matching.set_search import SetForm, SetSearch
from pattern_stage.matching.store import Match
from pattern_stage.matching.template import inputs as inputs_of
from pattern_stage.operators import Origins, Renumber, RowVectors
from pattern_stage.predicates import kind_of
from pattern_stage.values import Texts
from xscl.algebra.event_sequences import Conjunct, OfItem, Pattern
from xscl.algebra.events import Attribute, Condition, Kind, Parameter

Kept = tuple[Event, tuple[int, ...], int]
"""An event that waits: with the rows that may have it in each role, and its input."""


class _Store:
    """The events of the rows with one window, by key."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.rows = 0
        self.kept: dict[Key, list[Kept]] = {}
        self.starts: list[int] = []
        self.keys_at: dict[int, set[Key]] = defaultdict(set)
        """For each time that an event of the first group begins at, keys."""
        self.passed = -(1 << 62)
        self.swept = 0


class SetMatching:
    """A pattern with SET, or with EARLIEST MAXIMAL. It has one shape; each window has events of its own.

    Events are kept only if some variable may have them by what they are alone, and by key; and nothing is tried before
    each variable has candidates in the order of the groups (phase 1 of match windows).
    """

    def __init__(
        self, definitions: Sequence[Pattern], rows: RowVectors, texts: Texts, lineage: Origins, index: MakeIndex
    ) -> None:
        self._pattern = pattern = definitions[0]
        self._rows, self._texts, self._lineage = rows, texts, lineage
        self._schemas = [schema for _, schema in sorted(inputs_of(pattern), key=lambda one: int(one[0]))]
        slots = Slots()
        self._positive = [at for at, one in enumerate(pattern.variables) if not one.negated]
        self._negated = [at for at, one in enumerate(pattern.variables) if one.negated]
        self._streams = [int(one.source.stream) for one in pattern.variables]
        conditions = Conditions(pattern, texts, slots)
        self._found = Found(pattern, texts, slots, lineage)
        alone = [one for one in (*pattern.conjuncts, *pattern.kills) if _is_alone(one, pattern)]
        rest = [one for one in pattern.conjuncts if not _is_alone(one, pattern)]
        self._tests = [conditions.condition(one.condition, one.names) for one in rest]
        self._kills = [
            [conditions.condition(one.condition, one.names, at) for one in pattern.kills if one.variable == at]
            for at in self._negated
        ]
        self._roles = [
            Role(
                self._streams[at],
                self._schemas[self._streams[at]],
                [_of_event(one) for one in alone if one.variable == at],
                texts,
                index,
            )
            for at in (*self._positive, *self._negated)
        ]
        self._form = SetForm(
            tuple([pattern.variables[at].group for at in self._positive]),
            tuple([pattern.variables[at].kleene for at in self._positive]),
            self._early(slots),
        )
        self._arrivals = Arrivals(self._schemas, pattern.keys, self._roles, texts, all_events=False)
        self._arrivals.compute(slots.values)
        self._kinds = {stream: [kind_of(one) for one in some] for stream, some in slots.values.items()}
        self._stores: dict[int, _Store] = {}
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
            if _is_alone(one, pattern) or not plain or _has_parameters(one.condition):
                continue

            def place(leaf: Attribute, names: Any = names) -> str:
                of = names[leaf.name]
                slot = slots.slot(self._streams[of.variable], Attribute("left", of.name, leaf.kind))
                return f"B[{self._positive.index(of.variable)}][0][{slot}]"

            about = frozenset(self._positive.index(of.variable) for of in names.values())
            found.append((about, writer.compiled("B", writer.condition(one.condition, place))))
        return tuple(found)

    # ------------------------------------------------------------ rows

    def add_rows(self, new: Ints) -> None:
        """Takes in rows that were added."""
        self._numbers.update(new.tolist())
        for role in self._roles:
            role.add_rows(new, self._rows)
        windows = self._rows.within[new]
        for window in np.unique(windows).tolist():
            store = self._stores.get(window)
            if store is None:
                store = self._stores[window] = _Store(window)
                if self._pattern.apart:
                    self._apart[window] = Apart(self._order, whole=False)
            store.rows |= mask_of(new[windows == window])
        for time in np.unique(self._rows.apart[new]).tolist():
            self._since.append((time, mask_of(new[self._rows.apart[new] == time])))

    def remove_rows(self, gone: Ints) -> None:
        """Forgets rows and what waits for them alone."""
        self._numbers.difference_update(gone.tolist())
        mask = mask_of(gone)
        for role in self._roles:
            role.remove_rows(gone)
        for window, store in list(self._stores.items()):
            store.rows &= ~mask
            if not store.rows:
                del self._stores[window]
                self._apart.pop(window, None)
                continue
            for key, kept in list(store.kept.items()):
                cleared = [(event, tuple([of & ~mask for of in masks]), stream) for event, masks, stream in kept]
                store.kept[key] = [one for one in cleared if any(one[1])]
                if not store.kept[key]:
                    del store.kept[key]
            if window in self._apart:
                self._apart[window].without(mask)
        self._since = [(time, rows & ~mask) for time, rows in self._since if rows & ~mask]

    # ------------------------------------------------------------ running

    def run(self, inputs: Sequence[Flow], until: int) -> Flow:
        """Returns the matches that become known before `until`."""
        every = mask_of(np.array(sorted(self._numbers), np.int64))
        epochs = list(self._arrivals.epochs(inputs, every, self._since))
        self._since = [(time, rows) for time, rows in self._since if time >= until]
        told: list[Match] = []
        for window, store in self._stores.items():
            apart = self._apart.get(window)
            for found in self._of_store(store, epochs, until):
                if apart is not None:
                    apart.forget_before(found[0].known - 2 * window)
                    found = [match._replace(rows=rows) for match, rows in apart.chosen(found)]
                told += found
        table = table_of(told, len(self._positive))
        at, rows = expanded([match.rows for match in told])
        t0 = np.array([match.t0 for match in told], np.int64)
        known = np.array([match.known for match in told], np.int64)
        return distinct(sorted_flow(self._found.events(table, t0, known), at, rows).compact())

    def _of_store(
        self, store: _Store, epochs: Sequence[tuple[int, Sequence[Arrival]]], until: int
    ) -> Iterator[list[Match]]:
        """Yields the matches that become known at one time, in the order of time; not those without any."""
        for time, arrivals in epochs:
            yield from self._pass(store, time)
            by_key: dict[Key, list[Arrival]] = {}
            for one in arrivals:
                if one.key is not None:
                    by_key.setdefault(one.key, []).append(one)
            found: list[Match] = []
            for key, some in by_key.items():
                kept = store.kept.setdefault(key, [])
                for one in some:
                    masks = tuple([of & store.rows for of in one.masks])
                    if not any(masks) or one.event[1] - one.event[0] > store.window:
                        continue
                    kept.append((one.event, masks, one.stream))
                    if self._pattern.is_late and self._begins(masks):
                        self._await(store, one.event[0], key)
                if not kept:
                    del store.kept[key]
                elif not self._pattern.is_late:
                    found += self._matches(store, key, kept, end=time)
            if found:
                yield found
            self._sweep(store, time)
        yield from self._pass(store, until)

    def _begins(self, masks: Sequence[int]) -> bool:
        return any(masks[at] for at, group in enumerate(self._form.groups) if group == 0)

    def _await(self, store: _Store, start: int, key: Key) -> None:
        if start not in store.keys_at:
            heappush(store.starts, start)
        store.keys_at[start].add(key)

    def _pass(self, store: _Store, time: int) -> Iterator[list[Match]]:
        """Yields what becomes known before a time, as its window is over."""
        store.passed = time
        while store.starts and store.starts[0] + store.window < time:
            start = heappop(store.starts)
            found: list[Match] = []
            for key in store.keys_at.pop(start):
                found += self._matches(store, key, store.kept.get(key, []), start=start)
            if found:
                yield found

    def _sweep(self, store: _Store, time: int) -> None:
        """Forgets events that are too old, as soon as there are twice as many as were kept last."""
        count = sum(map(len, store.kept.values())) if len(store.kept) < 100 else 2 * store.swept + 101
        if count <= 2 * store.swept + 100:
            return
        low = time - store.window * (2 if self._pattern.is_late else 1)
        kept = {key: [one for one in some if one[0][0] >= low] for key, some in store.kept.items()}
        store.kept = {key: some for key, some in kept.items() if some}
        store.swept = sum(map(len, store.kept.values()))

    def _matches(
        self, store: _Store, key: Key, kept: Sequence[Kept], *, end: int | None = None, start: int | None = None
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
        search = SetSearch(self._form, candidates, store.window, end=end, start=start)
        known = high if start is not None else cast(int, end)
        bound = [self._match(bindings, rows, known, key) for bindings, rows in search.matches(store.rows)]
        found = self._true(store, bound, kept)
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

    def _true(self, store: _Store, matches: list[Match], kept: Sequence[Kept]) -> list[Match]:
        """Returns what is left of matches by the conditions, HAVING and negated events."""
        if not matches:
            return matches
        table = table_of(matches, len(self._positive))
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
        heads = np.unique(at)
        return [matches[place]._replace(rows=mask_of(rows[at == place])) for place in heads.tolist()]

    def _killed(
        self,
        store: _Store,
        table: Table,
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

    def _lies(self, store: _Store, match: Match, event: Event, group: int) -> bool:
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
        self, store: _Store, found: list[Match], kept: Sequence[Kept], candidates: Sequence[Sequence[tuple[Event, int]]]
    ) -> list[Match]:
        """Returns matches without the rows that have a better one: with an earlier first event of a variable, or with
        one event more."""
        order = self._order(event[2] for some in candidates for event, _ in some)
        changed: list[Match] = []
        of: list[int] = []
        for place, match in enumerate(found):
            for bindings, rows in self._changed(match, candidates, order):
                if rows and self._is_sound(bindings, store.window):
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

    def _changed(
        self, match: Match, candidates: Sequence[Sequence[tuple[Event, int]]], order: dict[int, Any]
    ) -> Iterator[tuple[list[list[Event]], int]]:
        bindings: list[list[Event]] = [[] for _ in self._positive]
        for event, at in zip(match.events, match.components, strict=True):
            bindings[at].append(event)
        used = {event[2] for event in match.events}
        begin = min(order[number] for number in used)
        for at, some in enumerate(bindings):
            for event, of in candidates[at]:
                if event[2] in used or order[event[2]] <= begin:
                    continue
                if order[event[2]] < order[some[0][2]]:
                    yield [*bindings[:at], [event, *some[1:]], *bindings[at + 1 :]], of & match.rows
                if self._form.kleene[at]:
                    more = sorted([*some, event], key=lambda one: order[one[2]])
                    yield [*bindings[:at], more, *bindings[at + 1 :]], of & match.rows

    def _is_sound(self, bindings: Sequence[Sequence[Event]], window: int) -> bool:
        """Whether bindings have the order and the span of a match."""
        for some in bindings:
            if any(one[1] >= other[0] for one, other in pairwise(some)):
                return False
        groups = self._form.groups
        for one, group in zip(bindings, groups, strict=True):
            for other, behind in zip(bindings, groups, strict=True):
                if behind == group + 1 and max(event[1] for event in one) >= min(event[0] for event in other):
                    return False
        events = [event for some in bindings for event in some]
        return bool(max(event[1] for event in events) - min(event[0] for event in events) <= window)

    def _order(self, numbers: Iterable[int]) -> dict[int, Any]:
        return event_order(self._lineage, numbers)

    # ------------------------------------------------------------ state

    def waiting(self) -> Ints:
        """Returns how many events wait for each row."""
        counts = np.zeros(max(self._numbers, default=-1) + 1, np.int64)
        for store in self._stores.values():
            for some in store.kept.values():
                for _, masks, _ in some:
                    together = 0
                    for of in masks:
                        together |= of
                    counts[rows_of(together)] += 1
        return counts

    def codes(self) -> Iterable[Ints]:
        """Returns the codes of all texts that it holds."""
        for role in self._roles:
            yield from role.codes()
        found: set[int] = {-1}
        texts = {
            stream: [3 + place for place, kind in enumerate(kinds) if kind == "string"]
            for stream, kinds in self._kinds.items()
        }
        for store in self._stores.values():
            for key, some in store.kept.items():
                found.update(value for value in key if isinstance(value, int))
                for event, _, stream in some:
                    found.update(event[slot] for slot in texts.get(stream, ()))
        for apart in self._apart.values():
            found.update(value for key in apart.ends for value in key if isinstance(value, int))
        found.discard(-1)
        yield np.array(sorted(found), np.int64)

    def parts(self) -> Iterable[Ints]:
        """Returns the numbers of the events that wait."""
        stores = self._stores.values()
        yield np.array([event[2] for store in stores for some in store.kept.values() for event, _, _ in some], np.int64)

    def state(self) -> pa.Table:
        """Returns what waits."""
        saved: list[tuple[Key, SavedPart]] = []
        for window, store in self._stores.items():
            for key, some in store.kept.items():
                writer = self._writer()
                kept = [
                    [writer.event(stream, event), [writer.mask(of) for of in masks], stream]
                    for event, masks, stream in some
                ]
                saved.append((key, writer.done(kept=kept, passed=store.passed)))
            if window in self._apart:
                for key, ends in self._apart[window].ends.items():
                    writer = self._writer()
                    saved.append((key, writer.done(ends=[[end, writer.mask(of)] for end, of in ends])))
        return keyed_table(saved, self._key_kinds(), self._texts)

    def _writer(self) -> PartWriter:
        return PartWriter(self._texts, self._kinds, ())

    def _key_kinds(self) -> list[Kind]:
        return [dict(self._schemas[0])[name] for name in self._pattern.keys]

    def restore(self, table: pa.Table, renumber: Renumber) -> None:
        """Takes over a state that was saved."""
        for key, data, numbers, rows in keyed_rows(table, self._key_kinds(), self._texts, renumber):
            window = int(self._rows.within[next(iter(rows.values()))])
            reader = PartReader(data, numbers, rows, self._texts, self._kinds, (), ())
            if "ends" in reader.data:
                ends = [(end, reader.mask(of)) for end, of in reader.data["ends"]]
                self._apart[window].ends[key] = [(end, of) for end, of in ends if of]
                continue
            store, passed = self._stores[window], reader.data["passed"]
            for event, masks, stream in reader.data["kept"]:
                made = reader.event_of(event, stream)
                here = tuple([reader.mask(of) for of in masks])
                if any(here):
                    store.kept.setdefault(key, []).append((made, here, stream))
                    if self._pattern.is_late and self._begins(here) and made[0] + window >= passed:
                        self._await(store, made[0], key)


def _is_alone(one: Conjunct, pattern: Pattern) -> bool:
    """Whether a conjunct is about each event of its own variable alone."""
    places = {of.place if isinstance(of, OfItem) and of.variable == one.variable else "" for _, of in one.names}
    if places <= {"only", "every"}:
        return True
    if len(places) > 1 or not places <= {"first", "each"}:
        return False
    # What is said of the first event may be said of all others, too: then it is about each.
    twins = (other for other in pattern.conjuncts if other.variable == one.variable and other.phase != one.phase)
    return any(
        {of.place if isinstance(of, OfItem) and of.variable == one.variable else "" for _, of in other.names}
        == ({"first", "each"} - places)
        and _of_event(other) == _of_event(one)
        for other in twins
    )


def _of_event(one: Conjunct) -> Condition:
    """Returns such a conjunct as a condition on an event."""
    names = dict(one.names)

    def leaf(value: Any) -> Any:
        of = names.get(value.name) if isinstance(value, Attribute) else None
        return Attribute("left", of.name, value.kind) if isinstance(of, OfItem) else value

    return rewritten_condition(one.condition, leaf)


def _has_parameters(condition: Condition) -> bool:
    return any(isinstance(leaf, Parameter) for value in values_of(condition) for leaf in leaves(value))
