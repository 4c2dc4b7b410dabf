"""PATTERN with SET or EARLIEST MAXIMAL: events wait by key, and are tried when a match may be complete. Matches are
found by backtracking over the candidates of each variable, group by group. Most variables are *free*: their conditions
are about each event alone, so a match stays one with another event, or one more, within order and window. Hence
EARLIEST MAXIMAL takes the earliest event of a free variable, and skips no event of a Kleene one; otherwise there would
be a binding per subset of the events. Matches are then tested and compared with better ones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from heapq import heappop, heappush
from itertools import chain, islice, pairwise, product
from operator import or_
from typing import Any, cast

import numpy as np

from common.bounds import BEGINNING, END, deadline
from pattern_stage.clauses import has_parameters
from pattern_stage.columns import Flow, each_once, sorted_flow
from pattern_stage.definition import is_alone, of_event
from pattern_stage.operators import Meter, MOpContext
from pattern_stage.pattern.cells import EventTuple, masks_by_place
from pattern_stage.pattern.found import Conditions, Kills, ResultBuilder
from pattern_stage.pattern.host import Epochs, PartReader, PatternHost, SavedPart
from pattern_stage.pattern.match import KeptRows, MatchTable, SetMatch, Tally
from pattern_stage.pattern.program import EventSlots
from pattern_stage.pattern.rows import KeyValues, arrivals_by_key, scalar_functions
from pattern_stage.values import Writer
from xscl.algebra.events import Attribute, OfItem, Pattern

_Candidates = Sequence[tuple[EventTuple, int]]  # events in time order, each with its rows

CandidateEvents = Sequence[_Candidates]  # the candidates of each variable

Spend = Callable[[int, int], int]
"""Counts that many events for each of some rows, and returns those that have taken too many steps."""


@dataclass(frozen=True, slots=True)
class SetForm:
    """The variables of a pattern, negated ones aside: group, and whether Kleene. `early` are conditions on plain
    variables, each with its variables; they take the bindings. `free` variables have only conditions on each event
    alone."""

    groups: tuple[int, ...]
    kleene: tuple[bool, ...]
    early: tuple[tuple[frozenset[int], Callable[[Any], bool]], ...]
    free: tuple[bool, ...]

    def tests(self, order: Sequence[int]) -> list[list[Callable[[Any], bool]]]:
        """Returns by variable, in binding order, the early conditions that become testable."""
        return [
            [test for about, test in self.early if at in about and about <= set(order[:place])]
            for place, at in enumerate(order, 1)
        ]

    def may_match(self, candidates: CandidateEvents) -> bool:
        """A cheap necessary condition for a match: each variable has a candidate, and the first one of each is before
        the last one of each variable of the next group."""
        if not all(candidates):
            return False
        first = [min(event[1] for event, _ in some) for some in candidates]
        last = [max(event[0] for event, _ in some) for some in candidates]
        return all(
            first[one] < last[other]
            for one, group in enumerate(self.groups)
            for other, behind in enumerate(self.groups)
            if behind == group + 1
        )


_Found = tuple[list[list[EventTuple]], int]  # bindings of all variables, and the rows that may have them


class _Search(ABC):
    """A search for matches whose last event ends at `end`, or, with `start`, whose first begins then."""

    def __init__(
        self, form: SetForm, candidates: CandidateEvents, window: int, spend: Spend, end: int | None, start: int | None
    ) -> None:
        self._form, self._candidates, self._window, self._spend = form, candidates, window, spend
        self._end, self._start = end, start
        self._bound: list[list[EventTuple]] = [[] for _ in form.groups]
        self._used: set[int] = set()
        self._left = 0
        self._prepare()

    @abstractmethod
    def _prepare(self) -> None:
        """Called once all that was given is known."""

    @abstractmethod
    def matches(self, rows: int) -> Iterator[_Found]: ...

    def leave(self, rows: int) -> None:
        self._left |= rows

    def _tried(self, at: int, rows: int, found: _Candidates | None = None) -> _Candidates:
        """Counts and returns the candidates of a variable, or those of them that are `found`."""
        if found is None:
            found = self._candidates[at]
        self._left |= self._spend(rows & ~self._left, len(found))
        return found


class SetSearch(_Search):
    """Finds all matches."""

    def _prepare(self) -> None:
        form, candidates = self._form, self._candidates
        last = max(form.groups)
        order = range(last + 1) if self._end is None else range(last, -1, -1)
        self._order = [at for group in order for at, of in enumerate(form.groups) if of == group]
        self._tests = form.tests(self._order)
        self._decides = sum(of == form.groups[self._order[0]] for of in form.groups) - 1
        """Place of the variable that completes the first group to be bound, which has the given end or begin."""
        at = self._order[self._decides]
        self._deciding: _Candidates | None = None
        if self._end is None:
            self._deciding = [one for one in candidates[at] if one[0][0] == self._start]
        elif not form.kleene[at]:
            self._deciding = [one for one in candidates[at] if one[0][1] == self._end]

    def matches(self, rows: int) -> Iterator[_Found]:
        return self._from(0, rows, END, BEGINNING, BEGINNING, END)

    def _from(self, depth: int, rows: int, first: int, last: int, after: int, until: int) -> Iterator[_Found]:
        """Binds the next variable. `first` is the least t0 so far, `last` the greatest t1. The group's events begin
        behind `after`, if groups are tried from the first, or end before `until`."""
        order, groups = self._order, self._form.groups
        rows &= ~self._left
        if not rows:
            return
        has_bound = first == self._start if self._end is None else last == self._end
        if depth and (depth == len(order) or groups[order[depth]] != groups[order[depth - 1]]):
            # A group is complete: what is to be at the end is known.
            if depth == len(order):
                if has_bound:
                    yield [list(some) for some in self._bound], rows
                return
            if not has_bound:
                return
            group = groups[order[depth - 1]]
            bound = [event for some, of in zip(self._bound, groups, strict=True) if of == group for event in some]
            if self._end is None:
                after = max(event[1] for event in bound)
            else:
                until = min(event[0] for event in bound)
        at = order[depth]
        missing = depth == self._decides and not has_bound
        for event, of in self._tried(at, rows, self._deciding if missing else None):
            held = rows & of & ~self._left
            if held and self._fits(event, first, last, after, until):
                yield from self._with(depth, [event], held, min(first, event[0]), max(last, event[1]), after, until)

    def _with(
        self, depth: int, chain: list[EventTuple], rows: int, first: int, last: int, after: int, until: int
    ) -> Iterator[_Found]:
        at = self._order[depth]
        self._bound[at] = chain
        self._used.add(chain[-1][2])
        if self._form.kleene[at] or all(test(self._bound) for test in self._tests[depth]):
            yield from self._from(depth + 1, rows, first, last, after, until)
        if self._form.kleene[at]:
            for event, of in self._tried(at, rows):
                held = rows & of & ~self._left
                if held and event[0] > chain[-1][1] and self._fits(event, first, last, after, until):
                    more = min(first, event[0]), max(last, event[1])
                    yield from self._with(depth, [*chain, event], held, *more, after, until)
        self._used.discard(chain[-1][2])
        self._bound[at] = chain[:-1]

    def _fits(self, event: EventTuple, first: int, last: int, after: int, until: int) -> bool:
        t0, t1, number = event[:3]
        return bool(
            after < t0
            and t1 < until
            and (self._start is None or t0 >= self._start)
            and (self._end is None or t1 <= self._end)
            and max(last, t1) - min(first, t0) <= self._window
            and number not in self._used
        )


class EarliestSearch(_Search):
    """Finds a superset of the earliest and maximal ones."""

    def _prepare(self) -> None:
        form, candidates = self._form, self._candidates
        self._last_group = max(form.groups)
        roles = Counter(event[2] for some in candidates for event, _ in some)
        # An event that another variable may have, too, may be passed over for that.
        self._own = [
            [(event, of) for event, of in some if roles[event[2]] == 1] if free else []
            for some, free in zip(candidates, form.free, strict=True)
        ]
        self._is_own = {event[2] for some in self._own for event, _ in some}

    def matches(self, rows: int) -> Iterator[_Found]:
        groups = self._form.groups
        firsts = [at for at, group in enumerate(groups) if group == 0]
        if self._end is not None and not any(
            event[1] == self._end
            for at, group in enumerate(groups)
            if group == self._last_group
            for event, _ in self._candidates[at]
        ):
            return
        latest = None
        if self._start is not None:
            # Another event may begin first, but none may end before the first one.
            begins = [event[1] for at in firsts for event, _ in self._candidates[at] if event[0] == self._start]
            latest = max(begins, default=-1)
        rest = sorted((at for at, group in enumerate(groups) if group), key=lambda at: groups[at])
        for at in firsts:
            self._order = [at, *(other for other in firsts if other != at), *rest]
            self._tests = self._form.tests(self._order)
            for event, of in self._candidates[at]:
                if latest is not None and event[1] > latest:
                    break
                if rows & of & ~self._left and event[1] - event[0] <= self._window:
                    self._first = event
                    yield from self._with(0, [event], rows & of, event[0], event[1], None, END)

    def _from(self, depth: int, rows: int, first: int, last: int, after: int | None, until: int) -> Iterator[_Found]:
        """Binds the next variable. `first` is the least t0 so far, `last` the greatest t1. The group's events begin
        after `after` and not after `until`: else a variable would have room for another event."""
        order, groups = self._order, self._form.groups
        if depth == len(order) or groups[order[depth]] != groups[order[depth - 1]]:
            group = groups[order[depth - 1]]
            rows = self._complete(group, rows, first)
            if not rows or (group == 0 and self._start is not None and first != self._start):
                return
            if depth == len(order):
                if self._end is None or last == self._end:
                    yield [list(some) for some in self._bound], rows
                return
            after = max(some[-1][1] for some, of in zip(self._bound, groups, strict=True) if of == group)
            if not self._has_next(group + 1, after, until):
                return
            until = END
        at = order[depth]
        earlier = tied = 0
        time = -1
        for event, of in self._tried(at, rows):
            if event[1] > time:
                earlier, tied, time = earlier | tied, 0, event[1]
                if not rows & ~earlier & ~self._left:
                    return
            if not self._follows(event, after) or event[0] > until:
                continue
            if max(last, event[1]) - min(first, event[0]) > self._window:
                continue
            if held := rows & of & ~earlier & ~self._left:
                yield from self._with(depth, [event], held, min(first, event[0]), max(last, event[1]), after, until)
            if event[2] in self._is_own and event[0] >= self._first[0] and event[1] > self._first[1]:
                tied |= of

    def _follows(self, event: EventTuple, after: int | None) -> bool:
        """Whether an event may be bound; in the first group, if it is not before the first event."""
        if event[2] in self._used:
            return False
        if after is not None:
            return bool(event[0] > after)
        return bool((event[1], event[2]) > (self._first[1], self._first[2]))

    def _with(
        self, depth: int, chain: list[EventTuple], rows: int, first: int, last: int, after: int | None, until: int
    ) -> Iterator[_Found]:
        at, end = self._order[depth], chain[-1]
        self._bound[at] = chain
        self._used.add(end[2])
        if not self._form.kleene[at]:
            if all(test(self._bound) for test in self._tests[depth]):
                yield from self._from(depth + 1, rows, first, last, after, until)
        else:
            room = min(until, self._room(at, end, rows))
            groups = self._form.groups
            bound = (some[-1] for some, of in zip(self._bound, groups, strict=True) if of == groups[at] and some)
            if all(event[0] <= room for event in bound):
                yield from self._from(depth + 1, rows, first, last, after, room)
            passed: list[tuple[int, int]] = []
            for event, of in self._tried(at, rows):
                if event[0] <= end[1] or event[0] > until or event[2] in self._used or event[1] - first > self._window:
                    continue
                held = rows & of & ~self._left
                for t1, others in passed:
                    if t1 < event[0]:
                        held &= ~others
                if held:
                    yield from self._with(depth, [*chain, event], held, first, max(last, event[1]), after, until)
                if event[2] in self._is_own:
                    passed.append((event[1], of))
        self._used.discard(end[2])
        self._bound[at] = chain[:-1]

    def _room(self, at: int, end: EventTuple, rows: int) -> int:
        """Returns the end of the next possible event of a free variable behind its last. The rest of its group, and the
        next group, begin before that."""
        for event, of in self._own[at]:
            if event[0] > end[1] and not rows & ~of:
                return int(event[1])
        return END

    def _has_next(self, group: int, after: int, until: int) -> bool:
        return until == END or any(
            after < event[0] <= until
            for at, of in enumerate(self._form.groups)
            if of == group
            for event, _ in self._candidates[at]
        )

    def _complete(self, group: int, rows: int, first: int) -> int:
        """Returns the rows without room for another free event before a complete group, or last in the window."""
        form = self._form
        begin = min(some[0][0] for some, of in zip(self._bound, form.groups, strict=True) if of == group)
        for at, of_group in enumerate(form.groups):
            if not form.kleene[at] or not form.free[at] or of_group not in (group - 1, group):
                continue
            if of_group == group and group < self._last_group:
                continue
            until = begin - 1 if of_group < group else first + self._window
            end = self._bound[at][-1][1]
            for event, of in self._own[at]:
                if event[0] > end and event[1] <= until:
                    rows &= ~of
        return rows


def changed_bindings(
    form: SetForm, match: SetMatch, candidates: CandidateEvents, order: dict[int, Any]
) -> Iterator[tuple[list[list[EventTuple]], int]]:
    """Yields variations with an earlier first event of a variable or one event more, and the rows that allow them."""
    bindings, used = match.bindings, {event[2] for event in match.events}
    begin = min(order[number] for number in used)
    for at, some in enumerate(bindings):
        for event, of in candidates[at]:
            if event[2] in used or order[event[2]] <= begin:
                continue
            if order[event[2]] < order[some[0][2]]:
                yield [*bindings[:at], [event, *some[1:]], *bindings[at + 1 :]], of & match.rows
            if form.kleene[at]:
                more = sorted([*some, event], key=lambda one: order[one[2]])
                yield [*bindings[:at], more, *bindings[at + 1 :]], of & match.rows


def is_sound(form: SetForm, bindings: Sequence[Sequence[EventTuple]], window: int) -> bool:
    """Whether bindings satisfy the order and span of a match."""
    if any(one[1] >= other[0] for some in bindings for one, other in pairwise(some)):
        return False
    for (one, group), (other, behind) in product(zip(bindings, form.groups, strict=True), repeat=2):
        if behind == group + 1 and max(event[1] for event in one) >= min(event[0] for event in other):
            return False
    events = [event for some in bindings for event in some]
    return bool(max(event[1] for event in events) - min(event[0] for event in events) <= window)


_STEPS_OF_EVENT = 10
"""Steps charged for an event that is tried, or that belongs to a match being tested, in steps of a join."""

_SWEEP = 100  # events are scanned for expired ones when they have doubled and grown by this number

BufferedEvent = tuple[EventTuple, tuple[int, ...], int]
"""A waiting event, the rows that accept it in each role, and its input."""


class KeptSets(KeptRows):
    """The waiting events of the rows with one window, by key."""

    def __init__(self, window: int, wait: int, meter: Meter) -> None:
        """`wait`: how long events are kept after they began."""
        super().__init__(window, meter)
        self.wait = wait
        self.kept: dict[KeyValues, list[BufferedEvent]] = {}
        self.starts: list[int] = []
        self.keys_at: dict[int, set[KeyValues]] = defaultdict(set)  # keys by begin of an event of the first group
        self._count = self._swept = 0
        self._room = meter.limits.partial  # number of events that may be added before a row may exceed the limit
        self.found = Tally(meter.limits.matches)
        """Matches of an epoch, which EARLIEST MAXIMAL and NON OVERLAPPING choose among."""

    def keep(self, key: KeyValues, one: BufferedEvent) -> None:
        self.kept.setdefault(key, []).append(one)
        self._count += 1
        self._room -= 1

    def adopt(self, key: KeyValues, some: Iterable[BufferedEvent]) -> None:
        """Adopts saved events, which rows other than these may have kept already."""
        known = {(one[0][2], one[2]): one for one in self.kept.pop(key, ())}
        for event, masks, stream in some:
            if before := known.get((event[2], stream)):
                masks = tuple([one | other for one, other in zip(before[1], masks, strict=True)])
            known[event[2], stream] = event, masks, stream
        for one in sorted(known.values(), key=lambda one: one[0][1]):
            self.keep(key, one)

    def waiting(self) -> Iterator[tuple[int, int]]:
        return ((reduce(or_, masks, 0), 1) for some in self.kept.values() for _, masks, _ in some)

    def due(self) -> int | None:
        return deadline(self.starts[0], self.window) if self.starts else None

    def await_window(self, start: int, key: KeyValues) -> None:
        """Schedules a key for the end of the window of an event that begins at `start`."""
        if start not in self.keys_at:
            heappush(self.starts, start)
        self.keys_at[start].add(key)

    def end_epoch(self, time: int) -> None:
        """Ends an epoch with events: drops expired ones, periodically, and rows with too many."""
        low = time - self.wait
        if self._count > 2 * self._swept + _SWEEP:
            kept = {key: [one for one in some if one[0][0] >= low] for key, some in self.kept.items()}
            self.kept = {key: some for key, some in kept.items() if some}
            self._count = self._swept = sum(map(len, self.kept.values()))
        if self._room < 0:
            tally = Tally(self._meter.limits.partial)
            for event, masks, _ in chain.from_iterable(self.kept.values()):
                if event[0] >= low:
                    tally.add(reduce(or_, masks, 0) & self.rows)
            self.exceed(tally.over(), time, "partial")
            self._room = tally.room
        self.end_found(time)

    def end_found(self, time: int) -> None:
        self.found.clear()
        self.end_steps(time)
        if self._gone:
            self.remove_rows(self._gone)
            self._gone = 0

    def spend(self, rows: int, events: int, time: int) -> int:
        return super().spend(rows, events * _STEPS_OF_EVENT, time)

    def remove_rows(self, gone: int) -> None:
        super().remove_rows(gone)
        for key, kept in list(self.kept.items()):
            cleared = ((event, tuple([of & ~gone for of in masks]), stream) for event, masks, stream in kept)
            self.kept[key] = [one for one in cleared if any(one[1])]
            if not self.kept[key]:
                del self.kept[key]


_AT_ONCE = 256  # matches that are tested together, and compared with what may be better


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
            killed = kills.killed(table, at, (rows, parameters), [(absent, np.arange(len(at)))], store.window, steps)
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
        return each_once(sorted_flow(self._found.events(table, table.t0, table.known), table.at, table.rows).compact())

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
            writer = self._writer(store)
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
