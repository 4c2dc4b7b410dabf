"""Candidates for EARLIEST MAXIMAL, by trying: a first event, then of each variable its earliest candidates.

What a pattern asks of many variables is about each event alone. Such a variable is *free*: with another event instead,
or one more, a match stays one, as long as the order and the window do. So of a free variable the earliest event is
taken, and of one with several events no event is passed over on the way. Without that there would be a binding for each
subset of the events.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from pattern_stage.matching.nodes import Event
from pattern_stage.matching.set_search import Candidates, SetForm
from pattern_stage.operators import NO_BOUND

Found = tuple[list[list[Event]], int]
"""Bindings of all variables, and the rows that may have them."""


class EarliestSearch:
    """One search: for matches whose last event ends at `end`, or, with `start`, whose first one begins then. All that
    are earliest and maximal are found, and some others."""

    def __init__(
        self, form: SetForm, candidates: Candidates, window: int, *, end: int | None = None, start: int | None = None
    ) -> None:
        self._form, self._candidates, self._window = form, candidates, window
        self._end, self._start = end, start
        self._last_group = max(form.groups)
        self._bound: list[list[Event]] = [[] for _ in form.groups]
        self._used: set[int] = set()
        self._left = 0
        roles = Counter(event[2] for some in candidates for event, _ in some)
        # An event that another variable may have, too, may be passed over for that.
        self._own = [
            [(event, of) for event, of in some if roles[event[2]] == 1] if free else []
            for some, free in zip(candidates, form.free, strict=True)
        ]
        self._is_own = {event[2] for some in self._own for event, _ in some}

    def matches(self, rows: int) -> Iterator[Found]:
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

    def _from(self, depth: int, rows: int, first: int, last: int, after: int | None, until: int) -> Iterator[Found]:
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

    def _follows(self, event: Event, after: int | None) -> bool:
        """Whether an event may be bound: of the first group those that are not before the first event."""
        if event[2] in self._used:
            return False
        if after is not None:
            return bool(event[0] > after)
        return bool((event[1], event[2]) > (self._first[1], self._first[2]))

    def _with(
        self, depth: int, chain: list[Event], rows: int, first: int, last: int, after: int | None, until: int
    ) -> Iterator[Found]:
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

    def _room(self, at: int, end: Event, rows: int) -> int:
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
