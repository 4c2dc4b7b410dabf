"""Matches of a pattern with sets, by trying: of each variable its candidates, one group after the other.

Candidates for EARLIEST MAXIMAL, by trying: a first event, then of each variable its earliest candidates.

What a pattern asks of many variables is about each event alone. Such a variable is *free*: with another event instead,
or one more, a match stays one, as long as the order and the window do. So of a free variable the earliest event is
taken, and of one with several events no event is passed over on the way. Without that there would be a binding for each
subset of the events.

The matches of a PATTERN with SET among the events that wait for one key: found, tested, and compared with others.

EARLIEST MAXIMAL: what would be better than a match.

The events that wait for sets to become complete, by key.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappush
from itertools import pairwise
from typing import Any, cast

import numpy as np

from common.arrays import Ints, distinct
from pattern_stage.clauses import has_parameters
from pattern_stage.definition import inputs as inputs_of
from pattern_stage.definition import is_alone, of_event
from pattern_stage.operators import LimitName, Meter, OriginLookup, RowVectors
from pattern_stage.pattern.found import Conditions, ResultBuilder, Tally
from pattern_stage.pattern.masks import EventTuple, expanded, mask_to_rows, rows_to_mask
from pattern_stage.pattern.match import Apart, MatchTable, SetMatch, event_order
from pattern_stage.pattern.program import EventSlots
from pattern_stage.pattern.rows import EventRole, KeyValues, MakeIndex, RoleEvents, Writer
from pattern_stage.plan import NO_BOUND
from pattern_stage.values import Texts, value_kind
from xscl.algebra.events import Attribute, OfItem, Pattern

CandidateEvents = Sequence[Sequence[tuple[EventTuple, int]]]
"""Of each variable the events that it may have, in order of time, each with its rows."""


@dataclass(frozen=True, slots=True)
class SetForm:
    """The variables of a pattern, negated ones aside: of each its group, and whether it has several events.

    `early` are conditions about plain variables, each with the variables that it is about; they take the bindings.
    `free` says of which variables nothing is asked but of each event alone.
    """

    groups: tuple[int, ...]
    kleene: tuple[bool, ...]
    early: tuple[tuple[frozenset[int], Callable[[Any], bool]], ...]
    free: tuple[bool, ...]

    def tests(self, order: Sequence[int]) -> list[list[Callable[[Any], bool]]]:
        """Returns for each variable, in an order of binding them, the early conditions that can be tested then."""
        return [
            [test for about, test in self.early if at in about and about <= set(order[:place])]
            for place, at in enumerate(order, 1)
        ]

    def may_match(self, candidates: CandidateEvents, low: int, high: int) -> bool:
        """Whether there can be a match between two times: each variable has a candidate, and the first one of each is
        before the last one of each variable of the next group. It tells what cannot match, at little cost."""
        first: list[int] = []
        last: list[int] = []
        for some in candidates:
            ends = [event[1] for event, _ in some if event[0] >= low and event[1] <= high]
            if not ends:
                return False
            first.append(min(ends))
            last.append(max(event[0] for event, _ in some if event[0] >= low and event[1] <= high))
        return all(
            first[one] < last[other]
            for one, group in enumerate(self.groups)
            for other, behind in enumerate(self.groups)
            if behind == group + 1
        )


@dataclass(slots=True)
class _Group:
    """How far a search has come, at the begin of a group."""

    after: int
    """What the events of the group begin after, if groups are tried from the first one on."""
    until: int
    """What they end before, if groups are tried from the last one on."""


class SetSearch:
    """One search: for matches whose last event ends at `end`, or, with `start`, whose first one begins then."""

    def __init__(
        self,
        form: SetForm,
        candidates: CandidateEvents,
        window: int,
        *,
        end: int | None = None,
        start: int | None = None,
    ) -> None:
        self._form, self._candidates, self._window = form, candidates, window
        self._end, self._start = end, start
        last = max(form.groups)
        order = range(last + 1) if end is None else range(last, -1, -1)
        self._order = [at for group in order for at, of in enumerate(form.groups) if of == group]
        self._bound: list[list[EventTuple] | None] = [None] * len(form.groups)
        self._used: set[int] = set()
        self._left = 0
        self._tests = form.tests(self._order)

    def matches(self, rows: int) -> Iterator[tuple[list[list[EventTuple]], int]]:
        """Yields bindings of all variables, and the rows that may have them."""
        yield from self._from(0, rows, NO_BOUND, -NO_BOUND, _Group(-NO_BOUND, NO_BOUND))

    def leave(self, rows: int) -> None:
        """Goes on without these rows."""
        self._left |= rows

    def _from(
        self, depth: int, rows: int, first: int, last: int, group: _Group
    ) -> Iterator[tuple[list[list[EventTuple]], int]]:
        """Goes on with a variable. `first` is the least t0 so far, `last` the greatest t1."""
        order, groups = self._order, self._form.groups
        rows &= ~self._left
        if not rows:
            return
        if depth and (depth == len(order) or groups[order[depth]] != groups[order[depth - 1]]):
            # A group is complete: what is to be at the end is known.
            bounds = self._next_group(groups[order[depth - 1]])
            if depth == len(order):
                if self._is_whole(first, last):
                    yield [list(one or ()) for one in self._bound], rows
                return
            if bounds is None:
                return
            group = bounds
        at = order[depth]
        for event, of in self._candidates[at]:
            held = rows & of & ~self._left
            if held and self._fits(event, first, last, group) and event[2] not in self._used:
                yield from self._with(depth, [event], held, min(first, event[0]), max(last, event[1]), group)

    def _with(
        self, depth: int, chain: list[EventTuple], rows: int, first: int, last: int, group: _Group
    ) -> Iterator[tuple[list[list[EventTuple]], int]]:
        at = self._order[depth]
        self._bound[at] = chain
        self._used.add(chain[-1][2])
        if self._form.kleene[at] or all(test(self._bound) for test in self._tests[depth]):
            yield from self._from(depth + 1, rows, first, last, group)
        if self._form.kleene[at]:
            for event, of in self._candidates[at]:
                held = rows & of & ~self._left
                if (
                    held
                    and event[0] > chain[-1][1]
                    and event[2] not in self._used
                    and self._fits(event, first, last, group)
                ):
                    more = min(first, event[0]), max(last, event[1])
                    yield from self._with(depth, [*chain, event], held, *more, group)
        self._used.discard(chain[-1][2])
        self._bound[at] = chain[:-1] or None

    def _fits(self, event: EventTuple, first: int, last: int, group: _Group) -> bool:
        t0, t1 = event[0], event[1]
        if not (t0 > group.after and t1 < group.until):
            return False
        if self._start is not None and t0 < self._start:
            return False
        if self._end is not None and t1 > self._end:
            return False
        return bool(max(last, t1) - min(first, t0) <= self._window)

    def _next_group(self, group: int) -> _Group | None:
        """Returns what the next group's events lie between; None if no match can be made of this one."""
        events = [
            event for one, of in zip(self._bound, self._form.groups, strict=True) if of == group for event in one or ()
        ]
        if self._end is None:
            after = max(event[1] for event in events)
            if group == 0 and min(event[0] for event in events) != self._start:
                return None
            return _Group(after, NO_BOUND)
        if group == max(self._form.groups) and max(event[1] for event in events) != self._end:
            return None
        return _Group(-NO_BOUND, min(event[0] for event in events))

    def _is_whole(self, first: int, last: int) -> bool:
        return first == self._start if self._end is None else last == self._end


_Found = tuple[list[list[EventTuple]], int]
"""Bindings of all variables, and the rows that may have them."""


class EarliestSearch:
    """One search: for matches whose last event ends at `end`, or, with `start`, whose first one begins then. All that
    are earliest and maximal are found, and some others."""

    def __init__(
        self,
        form: SetForm,
        candidates: CandidateEvents,
        window: int,
        *,
        end: int | None = None,
        start: int | None = None,
    ) -> None:
        self._form, self._candidates, self._window = form, candidates, window
        self._end, self._start = end, start
        self._last_group = max(form.groups)
        self._bound: list[list[EventTuple]] = [[] for _ in form.groups]
        self._used: set[int] = set()
        self._left = 0
        roles = Counter(event[2] for some in candidates for event, _ in some)
        # An event that another variable may have, too, may be passed over for that.
        self._own = [
            [(event, of) for event, of in some if roles[event[2]] == 1] if free else []
            for some, free in zip(candidates, form.free, strict=True)
        ]
        self._is_own = {event[2] for some in self._own for event, _ in some}

    def matches(self, rows: int) -> Iterator[_Found]:
        """Yields bindings of all variables, and the rows that may have them."""
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
                if rows & of and event[1] - event[0] <= self._window:
                    self._first = event
                    yield from self._with(0, [event], rows & of, event[0], event[1], None, NO_BOUND)

    def leave(self, rows: int) -> None:
        """Goes on without these rows."""
        self._left |= rows

    def _from(self, depth: int, rows: int, first: int, last: int, after: int | None, until: int) -> Iterator[_Found]:
        """Goes on with a variable. `first` is the least t0 so far, `last` the greatest t1. The events of its group
        begin after `after`, and not after `until`: then a variable of the group would have room for one event more."""
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
            until = NO_BOUND
        at = order[depth]
        earlier = tied = 0
        time = -1
        for event, of in self._candidates[at]:
            if event[1] > time:
                earlier, tied, time = earlier | tied, 0, event[1]
                if not rows & ~earlier & ~self._left:
                    return
            if not self._follows(event, after) or event[0] > until:
                continue
            if max(last, event[1]) - min(first, event[0]) > self._window:
                continue
            if held := rows & of & ~earlier & ~self._left:
                more = min(first, event[0]), max(last, event[1])
                yield from self._with(depth, [event], held, *more, after, until)
            if event[2] in self._is_own and event[0] >= self._first[0] and event[1] > self._first[1]:
                tied |= of

    def _follows(self, event: EventTuple, after: int | None) -> bool:
        """Whether an event may be bound: of the first group those that are not before the first event."""
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
            for event, of in self._candidates[at]:
                if event[0] <= end[1] or event[0] > until or event[2] in self._used:
                    continue
                if event[1] - first > self._window:
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
        """Returns when the next event of a free variable ends that could be behind its last one. What else its group
        has begins before that, and the next group, too."""
        for event, of in self._own[at]:
            if event[0] > end[1] and not rows & ~of:
                return int(event[1])
        return NO_BOUND

    def _has_next(self, group: int, after: int, until: int) -> bool:
        """Whether an event of a group begins in time."""
        return until == NO_BOUND or any(
            after < event[0] <= until
            for at, of in enumerate(self._form.groups)
            if of == group
            for event, _ in self._candidates[at]
        )

    def _complete(self, group: int, rows: int, first: int) -> int:
        """Returns the rows for which no free variable has room for one event more, now that a group is complete: not
        before it, and, if it is the last one, not in the window."""
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
    form: SetForm, match: SetMatch, candidates: Sequence[Sequence[tuple[EventTuple, int]]], order: dict[int, Any]
) -> Iterator[tuple[list[list[EventTuple]], int]]:
    """Yields the bindings of a match with an earlier first event of a variable, or with one event more, and for which
    of its rows these are candidates."""
    bindings: list[list[EventTuple]] = [[] for _ in form.groups]
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
            if form.kleene[at]:
                more = sorted([*some, event], key=lambda one: order[one[2]])
                yield [*bindings[:at], more, *bindings[at + 1 :]], of & match.rows


def is_sound(form: SetForm, bindings: Sequence[Sequence[EventTuple]], window: int) -> bool:
    """Whether bindings have the order and the span of a match."""
    for some in bindings:
        if any(one[1] >= other[0] for one, other in pairwise(some)):
            return False
    groups = form.groups
    for one, group in zip(bindings, groups, strict=True):
        for other, behind in zip(bindings, groups, strict=True):
            if behind == group + 1 and max(event[1] for event in one) >= min(event[0] for event in other):
                return False
    events = [event for some in bindings for event in some]
    return bool(max(event[1] for event in events) - min(event[0] for event in events) <= window)


_SWEEP = 100
"""Events are looked through for old ones when there are twice as many, and so many more."""

BufferedEvent = tuple[EventTuple, tuple[int, ...], int]
"""An event that waits: with the rows that may have it in each role, and its input."""


class KeptSets:
    """The events of the rows with one window, by key."""

    def __init__(self, window: int, wait: int, meter: Meter) -> None:
        """`wait` says how long events are kept after they began."""
        self.window, self.wait, self._meter = window, wait, meter
        self.rows = 0
        self.kept: dict[KeyValues, list[BufferedEvent]] = {}
        self.starts: list[int] = []
        self.keys_at: dict[int, set[KeyValues]] = defaultdict(set)
        """For each time that an event of the first group begins at, keys."""
        self.passed = -(1 << 62)
        self._count = self._swept = 0
        self._room = meter.limits.partial
        """How many events may be added before a row may exceed the limit."""
        self._gone = 0
        """The rows that have exceeded a limit in this epoch."""
        self.found = Tally(meter.limits.matches)
        """What is tried in an epoch that may be a match."""

    def keep(self, key: KeyValues, one: BufferedEvent) -> None:
        self.kept.setdefault(key, []).append(one)
        self._count += 1
        self._room -= 1

    def due(self) -> int | None:
        """Returns a time: nothing becomes known before without another event. None if nothing waits for its window."""
        return self.starts[0] + self.window if self.starts else None

    def await_window(self, start: int, key: KeyValues) -> None:
        """Has a key looked at when the window of an event that begins at `start` is over."""
        if start not in self.keys_at:
            heappush(self.starts, start)
        self.keys_at[start].add(key)

    # ------------------------------------------------------------ what goes

    def end_epoch(self, time: int) -> None:
        """Ends an epoch with events: forgets what is too old, from time to time, and rows that keep too much."""
        if self._count > 2 * self._swept + _SWEEP:
            low = time - self.wait
            kept = {key: [one for one in some if one[0][0] >= low] for key, some in self.kept.items()}
            self.kept = {key: some for key, some in kept.items() if some}
            self._count = self._swept = sum(map(len, self.kept.values()))
        if self._room < 0:
            self.exceed(self._over(time), time, "partial")
        self.end_found()

    def end_found(self) -> None:
        """Ends an epoch, whether there were events in it or not."""
        self.found.clear()
        if self._gone:
            self.remove_rows(self._gone)
            self._gone = 0

    def _over(self, time: int) -> int:
        """Returns the rows for which more events wait than the limit says."""
        tally, low = Tally(self._meter.limits.partial), time - self.wait
        for some in self.kept.values():
            for event, masks, _ in some:
                if event[0] >= low:
                    tally.add(together(masks) & self.rows)
        over = tally.over()
        self._room = tally.room
        return over

    def exceed(self, rows: int, time: int, bound: LimitName) -> None:
        """Follows that rows exceed a limit: nothing more is tried for them."""
        if rows:
            self._meter.tell(mask_to_rows(rows), time, bound)
            self.rows &= ~rows
            self._gone |= rows

    def remove_rows(self, gone: int) -> None:
        """Forgets rows, and what waits for them alone."""
        self.rows &= ~gone
        for key, kept in list(self.kept.items()):
            cleared = [(event, tuple([of & ~gone for of in masks]), stream) for event, masks, stream in kept]
            self.kept[key] = [one for one in cleared if any(one[1])]
            if not self.kept[key]:
                del self.kept[key]


def together(masks: Iterable[int]) -> int:
    """Returns the rows that any of these sets has."""
    found = 0
    for mask in masks:
        found |= mask
    return found


class SetFinder:
    """Finds the matches of a pattern with SET, or with EARLIEST MAXIMAL."""

    def __init__(
        self,
        definitions: Sequence[Pattern],
        rows: RowVectors,
        texts: Texts,
        lineage: OriginLookup,
        index: MakeIndex,
        meter: Meter,
    ) -> None:
        self._pattern = pattern = definitions[0]
        self._is_late = pattern.is_late
        self._rows, self._texts, self._lineage, self._meter = rows, texts, lineage, meter
        self._schemas = [schema for _, schema in sorted(inputs_of(pattern), key=lambda one: int(one[0]))]
        slots = EventSlots()
        self._positive = [at for at, one in enumerate(pattern.variables) if not one.negated]
        self._negated = [at for at, one in enumerate(pattern.variables) if one.negated]
        self._streams = [int(one.source.stream) for one in pattern.variables]
        conditions = Conditions(pattern, texts, slots)
        self._found = ResultBuilder(pattern, texts, slots, lineage)
        alone = [one for one in (*pattern.conjuncts, *pattern.kills) if is_alone(one, pattern)]
        rest = [one for one in pattern.conjuncts if not is_alone(one, pattern)]
        self._tests = [conditions.condition(one.condition, one.names) for one in rest]
        self._kills = [
            [conditions.condition(one.condition, one.names, at) for one in pattern.kills if one.variable == at]
            for at in self._negated
        ]
        self._roles = [
            EventRole(
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
        self._arrivals = RoleEvents(self._schemas, pattern.keys, self._roles, texts, all_events=False)
        self._arrivals.compute(slots.values)
        self._kinds = {stream: [value_kind(one) for one in some] for stream, some in slots.values.items()}
        self._stores: dict[int, KeptSets] = {}
        self._apart: dict[int, Apart] = {}
        self._numbers: set[int] = set()
        self._since: list[tuple[int, int]] = []

    def _early(self, slots: EventSlots) -> tuple[Any, ...]:
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
        self,
        store: KeptSets,
        key: KeyValues,
        kept: Sequence[BufferedEvent],
        *,
        end: int | None = None,
        start: int | None = None,
    ) -> list[SetMatch]:
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
        bound: list[SetMatch] = []
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

    def _match(self, bindings: Sequence[Sequence[EventTuple]], rows: int, known: int, key: KeyValues) -> SetMatch:
        events = [event for some in bindings for event in some]
        components = [at for at, some in enumerate(bindings) for _ in some]
        t0, t1 = min(event[0] for event in events), max(event[1] for event in events)
        return SetMatch(known, t0, t1, rows, events, components, key)

    def _true(self, store: KeptSets, matches: list[SetMatch], kept: Sequence[BufferedEvent]) -> list[SetMatch]:
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
        return [matches[place]._replace(rows=rows_to_mask(rows[at == place])) for place in heads.tolist()]

    def _killed(
        self,
        store: KeptSets,
        table: MatchTable,
        matches: Sequence[SetMatch],
        at: Ints,
        rows: Ints,
        kept: Sequence[BufferedEvent],
        place: int,
        variable: int,
    ) -> Any:
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

    def _lies(self, store: KeptSets, match: SetMatch, event: EventTuple, group: int) -> bool:
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
        found: list[SetMatch],
        kept: Sequence[BufferedEvent],
        candidates: Sequence[Sequence[tuple[EventTuple, int]]],
    ) -> list[SetMatch]:
        """Returns matches without the rows that have a better one: with an earlier first event of a variable, or with
        one event more."""
        order = self._ordered({event[2]: event[1] for some in candidates for event, _ in some})
        changed: list[SetMatch] = []
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
