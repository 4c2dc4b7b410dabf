"""Matches of PATTERN with SET or EARLIEST MAXIMAL, by backtracking over the candidates of each variable, group by
group. Most variables are *free*: their conditions are about each event alone, so a match stays one with another event,
or one more, within order and window. Hence EARLIEST MAXIMAL takes the earliest event of a free variable, and skips no
event of a Kleene one; otherwise there would be a binding per subset of the events. Matches are then tested and compared
with better ones. Events wait by key until sets may be complete."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from heapq import heappush
from itertools import chain, pairwise
from operator import or_
from typing import Any

from common.bounds import BEGINNING, END, deadline
from pattern_stage.operators import Meter
from pattern_stage.pattern.cells import EventTuple
from pattern_stage.pattern.match import KeptRows, SetMatch, Tally
from pattern_stage.pattern.rows import KeyValues

_Candidates = Sequence[tuple[EventTuple, int]]
"""Events in time order, each with its rows."""

CandidateEvents = Sequence[_Candidates]
"""The candidates of each variable."""

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


_Found = tuple[list[list[EventTuple]], int]
"""Bindings of all variables, and the rows that may have them."""


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
                more = min(first, event[0]), max(last, event[1])
                yield from self._with(depth, [event], held, *more, after, until)
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
        """Returns the rows for which no free variable has room for another event before a complete group, or, for the
        last group, in the window."""
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


_STEPS_OF_EVENT = 10
"""Steps of an event that is tried, or that is one of a match to be tested: it takes as long as so many of a join."""

_SWEEP = 100
"""Events are scanned for expired ones when they have doubled and grown by this number."""

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
        self.keys_at: dict[int, set[KeyValues]] = defaultdict(set)
        """Keys by begin of an event of the first group."""
        self._count = self._swept = 0
        self._room = meter.limits.partial
        """Number of events that may be added before a row may exceed the limit."""
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
            before = known.get((event[2], stream))
            if before is not None:
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
            over = tally.over()
            self._room = tally.room
            self.exceed(over, time, "partial")
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
