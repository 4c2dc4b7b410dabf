"""Matches of a pattern with sets, by trying: of each variable its candidates, one group after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pattern_stage.matching.nodes import Event
from pattern_stage.operators import NO_BOUND

Candidates = Sequence[Sequence[tuple[Event, int]]]
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

    def may_match(self, candidates: Candidates, low: int, high: int) -> bool:
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
        self, form: SetForm, candidates: Candidates, window: int, *, end: int | None = None, start: int | None = None
    ) -> None:
        self._form, self._candidates, self._window = form, candidates, window
        self._end, self._start = end, start
        last = max(form.groups)
        order = range(last + 1) if end is None else range(last, -1, -1)
        self._order = [at for group in order for at, of in enumerate(form.groups) if of == group]
        self._bound: list[list[Event] | None] = [None] * len(form.groups)
        self._used: set[int] = set()
        self._left = 0
        self._tests = form.tests(self._order)

    def matches(self, rows: int) -> Iterator[tuple[list[list[Event]], int]]:
        """Yields bindings of all variables, and the rows that may have them."""
        yield from self._from(0, rows, NO_BOUND, -NO_BOUND, _Group(-NO_BOUND, NO_BOUND))

    def leave(self, rows: int) -> None:
        """Goes on without these rows."""
        self._left |= rows

    def _from(
        self, depth: int, rows: int, first: int, last: int, group: _Group
    ) -> Iterator[tuple[list[list[Event]], int]]:
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
        self, depth: int, chain: list[Event], rows: int, first: int, last: int, group: _Group
    ) -> Iterator[tuple[list[list[Event]], int]]:
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

    def _fits(self, event: Event, first: int, last: int, group: _Group) -> bool:
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
