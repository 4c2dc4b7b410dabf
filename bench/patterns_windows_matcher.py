"""The matcher that match windows are compared with in their paper: an automaton of sets, window by window.

A state of the automaton is the set of variables that have events. It is run for each window, from its first event on,
and each further event meets all its instances. Where an instance goes on in several ways, it becomes several. Where
nothing is asked but of each event alone, an instance takes all that it can: what it left out would make it neither
earliest nor maximal. Only an event that closes a set with `+` may be passed over, if that set goes on later. Else an
instance may also leave out what it could take; and what could be earlier or longer is left out at the end.

The first phase is Algorithm 1, whose two faults are mended: at the end, windows that cannot have a match are passed
over, instead of ending all; and whether variables have candidates, in order, is asked of the window as it is.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from bench.patterns_windows_data import Component, Given, Question


class Event(NamedTuple):
    number: int
    time: int
    of: int
    kind: str
    value: float


Bound = tuple[tuple[Event, ...], ...]
"""The events of each variable."""

Match = tuple[tuple[int, ...], ...]
"""Their numbers."""


class Instance(NamedTuple):
    """How far an instance has come: its set, what its variables have, and whether it has passed over what would have
    closed its set since it took an event last."""

    place: int
    bound: Bound
    passed: bool


def events(given: Given) -> list[Event]:
    """The events one by one."""
    kinds = [given.names[kind] for kind in given.kinds.tolist()]
    columns = (given.times.tolist(), given.of.tolist(), kinds, given.values.tolist())
    return [Event(number, *one) for number, one in enumerate(zip(*columns, strict=True))]


class Automaton:
    """Returns the matches of a question that begin with the first event of a window."""

    def __init__(self, question: Question, *, parted: bool) -> None:
        """`parted`: all events of a window belong together."""
        self._question = question
        self._variables = [one for some in question.sets for one in some]
        self._set_of = [place for place, some in enumerate(question.sets) for _ in some]
        self._of_set = [
            [at for at, of in enumerate(self._set_of) if of == place] for place in range(len(question.sets))
        ]
        self._together = question.together and not parted
        self._is_free = not any(one.rises or one.falls for one in self._variables)
        self._goes_on = [any(one.kleene for one in some) for some in question.sets]

    def matches(self, window: Sequence[Event]) -> Iterator[Match]:
        """Yields the matches of a window."""
        first = window[0]
        nothing: Bound = ((),) * len(self._variables)
        live = [
            Instance(0, _with(nothing, at, first), False)
            for at in self._of_set[0]
            if self._variables[at].kind == first.kind
        ]
        if not live:
            return
        complete = [one for one in live if self._is_complete(one)]
        live = [one for one in live if not self._is_over(one)]
        for event in window:
            if event is first:
                continue
            after: list[Instance] = []
            for one in live:
                for step in self._steps(one, event, first):
                    if step is not one and self._is_complete(step):
                        complete.append(step)
                    if not self._is_over(step):
                        after.append(step)
            live = after
            if not live:
                break
        for bound in self._chosen([one.bound for one in complete], window):
            yield tuple(tuple(event.number for event in some) for some in bound)

    def _is_complete(self, one: Instance) -> bool:
        return one.place == len(self._of_set) - 1 and self._is_full(one)

    def _is_over(self, one: Instance) -> bool:
        return self._is_complete(one) and not self._goes_on[one.place]

    def _is_full(self, one: Instance) -> bool:
        return all(one.bound[at] for at in self._of_set[one.place])

    def _steps(self, one: Instance, event: Event, first: Event) -> list[Instance]:
        """What becomes of an instance at an event."""
        if self._together and event.of != first.of:
            return [one]
        found = []
        for at in self._of_set[one.place]:
            variable = self._variables[at]
            if event.kind == variable.kind and _takes(variable, one.bound[at], event):
                found.append(Instance(one.place, _with(one.bound, at, event), False))
        if found:
            return found if self._is_free else [*found, one]
        if one.place + 1 < len(self._of_set) and self._is_full(one):
            for at in self._of_set[one.place + 1]:
                if event.kind == self._variables[at].kind:
                    if not one.passed:
                        found.append(Instance(one.place + 1, _with(one.bound, at, event), False))
                    if self._goes_on[one.place] or not self._is_free:
                        found.append(one._replace(passed=self._is_free))
                    return found
        return [one]

    # ------------------------------------------------------------ earliest and maximal

    def _chosen(self, complete: list[Bound], window: Sequence[Event]) -> list[Bound]:
        if self._is_free:
            # Of those that go on in the last set, the longest.
            return [
                one for one in complete if not self._goes_on[-1] or not any(_is_part(one, other) for other in complete)
            ]
        return [one for one in complete if not any(map(self._is_valid, self._changed(one, window)))]

    def _changed(self, bound: Bound, window: Sequence[Event]) -> Iterator[Bound]:
        """With an earlier first event of a variable, or with one event more."""
        used = {event.number for some in bound for event in some}
        for at, some in enumerate(bound):
            for event in window:
                if event.number in used or event.kind != self._variables[at].kind or event is window[0]:
                    continue
                if event.time < some[0].time:
                    yield (*bound[:at], (event, *some[1:]), *bound[at + 1 :])
                if self._variables[at].kleene:
                    more = tuple(sorted((*some, event), key=lambda one: one.time))
                    yield (*bound[:at], more, *bound[at + 1 :])

    def _is_valid(self, bound: Bound) -> bool:
        for variable, some in zip(self._variables, bound, strict=True):
            if any(not _takes(variable, (one,), other) for one, other in pairwise(some)):
                return False
        if self._together and len({event.of for some in bound for event in some}) > 1:
            return False
        for at, place in enumerate(self._set_of):
            for other, behind in enumerate(self._set_of):
                if behind == place + 1 and bound[at][-1].time >= bound[other][0].time:
                    return False
        return True


def _with(bound: Bound, at: int, event: Event) -> Bound:
    return (*bound[:at], (*bound[at], event), *bound[at + 1 :])


def _takes(variable: Component, before: tuple[Event, ...], event: Event) -> bool:
    """Whether a variable that has some events may have another one."""
    if not before:
        return True
    if not variable.kleene or event.time <= before[-1].time:
        return False
    if variable.rises:
        return event.value > before[-1].value
    return not variable.falls or event.value < before[-1].value


def _is_part(one: Bound, other: Bound) -> bool:
    return one != other and all(set(some) <= set(more) for some, more in zip(one, other, strict=True))


# ---------------------------------------------------------------- the first phase


def matches(question: Question, given: Sequence[Event], pruned: str) -> set[Match]:
    """The matches of a question, found window by window. `pruned` has `f` for filtered windows, `p` for parted ones,
    and `c` if the necessary conditions are asked before a window is matched."""
    filtered, parted, asked = "f" in pruned, "p" in pruned and question.together, "c" in pruned
    automaton = Automaton(question, parted=parted)
    sets = [[one.kind for one in some] for some in question.sets]
    kinds = {kind for some in sets for kind in some}
    found: set[Match] = set()

    def match(window: deque[Event]) -> None:
        if not asked or _may_match(window, sets, len(kinds)):
            found.update(automaton.matches(window))

    windows: dict[int, deque[Event]] = defaultdict(deque)
    for event in given:
        if filtered and event.kind not in kinds:
            continue
        window = windows[event.of if parted else 0]
        while window and event.time - window[0].time > question.window:
            match(window)
            window.popleft()
        window.append(event)
    for window in windows.values():
        while window:
            match(window)
            window.popleft()
    return found


def _may_match(window: deque[Event], sets: Sequence[Sequence[str]], count: int) -> bool:
    if len(window) < count or window[0].kind not in sets[0]:
        return False
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for event in window:
        first.setdefault(event.kind, event.time)
        last[event.kind] = event.time
    if any(kind not in first for some in sets for kind in some):
        return False
    return all(first[one] < last[other] for some, behind in pairwise(sets) for one in some for other in behind)
