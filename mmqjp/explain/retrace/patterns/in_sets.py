"""The search for matches of a PATTERN with SET: its variables take events in any order of time inside of a set."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from mmqjp.explain.pattern_text import component_text
from mmqjp.explain.retrace.event import Event, before
from mmqjp.explain.retrace.patterns.asked import Asked, Match
from mmqjp.explain.retrace.patterns.seeking import Partial, Search
from mmqjp.explain.retrace.patterns.sought import ORDER
from mmqjp.explain.retrace.stages import event_text
from xscl.algebra.event_sequences import Conjunct


class InSets(Search):
    """Looks for bindings, variable by variable."""

    def begins(self) -> Iterator[Partial]:
        """See Search."""
        yield from self._to(None, 0)

    def steps(self, partial: Partial) -> Iterator[Partial]:
        """See Search."""
        at = len(partial.bound) - 1
        if self.variable(at).kleene:
            yield from self._to(partial, at)
        if at + 1 < len(self.positive):
            yield from self._to(partial, at + 1)

    def _to(self, partial: Partial | None, to: int) -> Iterator[Partial]:
        """Yields a partial match with an event more of a variable."""
        used = set() if partial is None else set(map(id, partial.events()))
        comes = False
        for one in self.events(to):
            self.take(1)
            if id(one) in used:
                continue
            if partial is not None and (earlier := self._not_before(partial, one, to)) is not None:
                if self.covers(one) - partial.covered:
                    self._tell_order(partial, one, to, earlier)
                continue
            comes = True
            if (
                self.is_alike(partial, one, to)
                and self.is_near(partial, one, to)
                and self.holds(partial, one, to, self._tests(partial, one, to))
            ):
                more = self._with(partial, one, to)
                if self._may_have_all(more):
                    yield more
        if not comes and partial is not None and to == len(partial.bound):
            rank = len(partial.covered), to, ORDER, 0
            what = f"no {component_text(self.variable(to))} begins after the end of what comes before it"
            self.furthest.fails(rank, lambda: self.missing_stage(to).told(what), ())

    def _not_before(self, partial: Partial, one: Event, to: int) -> Event | None:
        """Returns an event of a partial match that has to be over when one of a variable begins, and is not."""
        group = self.variable(to).group
        behind = [
            other
            for at, some in enumerate(partial.bound)
            for other in some
            if self.variable(at).group < group or at == to
        ]
        return next((other for other in behind if not before(other, one)), None)

    def _tell_order(self, partial: Partial, one: Event, to: int, earlier: Event) -> None:
        what = f"{event_text(one)} does not begin after the end of {event_text(earlier)}"
        rank = self.rank(partial, one, to, ORDER)
        self.furthest.fails(rank, lambda: self.missing_stage(to).told(what), ())

    def _with(self, partial: Partial | None, one: Event, to: int) -> Partial:
        if partial is None:
            return Partial(((one,),), self.covers(one))
        return partial.with_event(one, to, self.covers(one))

    # ------------------------------------------------------------ conditions

    def _tests(self, partial: Partial | None, one: Event, at: int) -> Iterator[tuple[Asked, Match, int | None]]:
        is_first = partial is None or at == len(partial.bound)
        if partial is not None and is_first:
            whole = self.match(partial)
            yield from ((asked, whole, new) for asked, new in self.ends(partial))
        match, number = self.match(self._with(partial, one, at)), self.numbers[at]
        for asked, conjunct in self.asked:
            if self._is_of_step(asked, conjunct, at) and conjunct.phase == ("first" if is_first else "each"):
                yield asked, match, None if is_first else number

    def ends(self, partial: Partial) -> Iterator[tuple[Asked, int | None]]:
        """See Search."""
        at = len(partial.bound) - 1
        for asked, conjunct in self.asked:
            if self._last(asked) == at and not self._is_of_step(asked, conjunct, at):
                yield asked, None

    def _last(self, asked: Asked) -> int:
        return max((self.numbers.index(one) for one in asked.variables), default=0)

    def _is_of_step(self, asked: Asked, conjunct: Conjunct, at: int) -> bool:
        """Whether a condition is about events of one variable as they are added."""
        return self._last(asked) == at and len(asked.variables) < 2 and conjunct.phase != "complete"

    # ------------------------------------------------------------ which are followed

    def _may_have_all(self, partial: Partial) -> bool:
        """Whether all documents may be in it in the end."""
        missing = self.wanted - partial.covered
        if not missing:
            return True
        if not self.has_room(partial):
            return False
        last = len(partial.bound) - 1
        begin = last if self.variable(last).kleene else last + 1
        rest = [self.covers(one) for at in range(begin, len(self.positive)) for one in self.named[at]]
        return missing <= frozenset[int]().union(*rest)

    def likeness(self, partial: Partial) -> Hashable:
        """See Search."""
        at = len(partial.bound) - 1
        rest = {one.source.stream for one in self.positive[at:]}
        shared = [
            id(one)
            for place, some in enumerate(partial.bound)
            if self.variable(place).source.stream in rest
            for one in some
        ]
        groups: dict[int, tuple[int, int]] = {}
        for place, some in enumerate(partial.bound):
            group = self.variable(place).group
            t0, t1 = groups.get(group, (some[0].t0, some[0].t1))
            groups[group] = min(t0, *(one.t0 for one in some)), max(t1, *(one.t1 for one in some))
        return frozenset(shared), tuple(groups.items())
