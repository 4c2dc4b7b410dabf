"""The search for matches of a PATTERN without SET: its variables take events one after the other."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterator, Sequence
from functools import partial as bound
from itertools import takewhile

from mmqjp.explain.funnel_stage import Stage
from mmqjp.explain.pattern_text import STRATEGIES, component_text
from mmqjp.explain.retrace.event import Event, before
from mmqjp.explain.retrace.patterns.asked import Asked, Match
from mmqjp.explain.retrace.patterns.seeking import Partial, Search, came_text
from mmqjp.explain.retrace.patterns.sought import ORDER, STRATEGY, Rank
from mmqjp.explain.retrace.stages import event_text
from mmqjp.explain.terms import duration_text


class InLine(Search):
    """Looks for runs."""

    def begins(self) -> Iterator[Partial]:
        """See Search."""
        for one in self.events(0):
            self.take(1)
            if self._is_ok(None, one, 0):
                begun = Partial(((one,),), self.covers(one))
                if self._may_have_all(begun):
                    yield begun

    def steps(self, partial: Partial) -> Iterator[Partial]:
        """See Search."""
        at = len(partial.bound) - 1
        nexts = [at] if self.variable(at).kleene else []
        nexts += [at + 1] if at + 1 < len(self.positive) else []
        if not nexts:
            return
        blocking = self._blocking(partial, nexts[0])
        for to in nexts:
            yield from self._to(partial, to, blocking)

    def _to(self, partial: Partial, to: int, blocking: Event | None) -> Iterator[Partial]:
        """Yields a partial match with an event more of a variable."""
        comes = False
        for one in self._behind(partial, to):
            self.take(1)
            comes = True
            if not self._is_ok(partial, one, to):
                is_last = self._is_too_far(partial, one) and self.whole.is_alike(one, partial.first)
            elif is_last := blocking is not None and blocking.t1 < one.t1:
                self._tell_blocked(self.rank(partial, one, to, STRATEGY), blocking)
            else:
                more = partial.with_event(one, to, self.covers(one))
                if self._may_have_all(more):
                    yield more
            if is_last and not self._misses(partial, one):
                break  # no later one is better
        self._tell_order(partial, to, comes=comes)

    def _behind(self, partial: Partial, to: int) -> Iterator[Event]:
        """Yields the events of a variable that begin when the last one of a partial match has ended."""
        events = self.events(to)
        for place in range(bisect_right(events, partial.last.t1, key=_t1), len(events)):
            if before(partial.last, events[place]):
                yield events[place]

    def _misses(self, partial: Partial, one: Event) -> bool:
        """Whether a document that a partial match has not is of an event behind another one."""
        missing = self.wanted - partial.covered
        return any(
            self.covers(other) & missing
            for at in range(len(partial.bound) - 1, len(self.positive))
            for other in self.named[at]
            if other.t1 >= one.t1
        )

    def _tell_order(self, partial: Partial, to: int, *, comes: bool) -> None:
        """Keeps that an event of the documents, or any, does not come behind a partial match."""
        missing = self.wanted - partial.covered
        early = [one for one in self.named[to] if self.covers(one) & missing and not before(partial.last, one)]
        for one in early:
            self.take(1)
            self.furthest.fails(self.rank(partial, one, to, ORDER), bound(self._early, partial, one, to), ())
        if not comes and to == len(partial.bound):
            rank = len(partial.covered), to, ORDER, partial.first.t0 - partial.last.t1
            what = f"no {component_text(self.variable(to))} begins after the end of {event_text(partial.last)}"
            self.furthest.fails(rank, lambda: self.missing_stage(to).told(what), ())

    def _early(self, partial: Partial, one: Event, to: int) -> Stage:
        gap = partial.last.t1 - one.t0
        last = event_text(partial.last)
        if gap:
            what = f"{event_text(one)} begins {duration_text(gap)} before the end of {last}"
        else:
            what = f"{event_text(one)} begins just when {last} ends, and has to begin later"
        return self.missing_stage(to).told(what)

    # ------------------------------------------------------------ which event may be next

    def _is_ok(self, partial: Partial | None, one: Event, at: int) -> bool:
        """Whether an event may be the next one of a variable, but for the strategy."""
        return (
            self.is_alike(partial, one, at)
            and self.is_near(partial, one, at)
            and self.holds(partial, one, at, self._tests(partial, one, at))
        )

    def _tests(self, partial: Partial | None, one: Event, at: int) -> Iterator[tuple[Asked, Match, int | None]]:
        is_first = partial is None or at == len(partial.bound)
        if partial is not None and is_first:
            match = self.match(partial)
            yield from ((asked, match, new) for asked, new in self.ends(partial))
        more = Partial(((one,),), frozenset()) if partial is None else partial.with_event(one, at, frozenset())
        match, number = self.match(more), self.numbers[at]
        for asked, conjunct in self.asked:
            if conjunct.variable == number and conjunct.phase == ("first" if is_first else "each"):
                yield asked, match, None if is_first else number

    def ends(self, partial: Partial) -> Iterator[tuple[Asked, int | None]]:
        """See Search."""
        number = self.numbers[len(partial.bound) - 1]
        for asked, conjunct in self.asked:
            if conjunct.variable == number and conjunct.phase == "complete":
                yield asked, None

    def _is_too_far(self, partial: Partial, one: Event) -> bool:
        """Whether an event, and so all that end later, are out of the window."""
        within = self.pattern.within
        return within is not None and one.t1 - partial.first.t0 > within

    # ------------------------------------------------------------ strategies

    def _blocking(self, partial: Partial, wanted: int) -> Event | None:
        """Returns an event that a partial match cannot pass over, of those the one that ends first; `wanted` is the
        variable whose events it would take."""
        match self.pattern.strategy:
            case "any":
                return None
            case "next":
                near = takewhile(lambda one: not self._is_too_far(partial, one), self._behind(partial, wanted))
                return next((one for one in near if self._is_taken(partial, one, wanted)), None)
        every = [one for name in self.pattern.streams for one in self._first_behind(partial, self.given(name))]
        return min(every, key=_t1, default=None)

    def _first_behind(self, partial: Partial, events: Sequence[Event]) -> Iterator[Event]:
        for place in range(bisect_right(events, partial.last.t1, key=_t1), len(events)):
            self.take(1)
            one = events[place]
            if before(partial.last, one) and (
                self.pattern.strategy == "strict" or self.whole.is_alike(one, partial.first)
            ):
                yield one
                return

    def _is_taken(self, partial: Partial, one: Event, at: int) -> bool:
        self.take(1)
        if not self.whole.is_alike(one, partial.first):
            return False
        for asked, match, new in self._tests(partial, one, at):
            self.take(1)
            if asked.failing(match, new) is not None:
                return False
        return True

    def _tell_blocked(self, rank: Rank, by: Event | None) -> None:
        """Keeps that a partial match cannot pass over an event."""
        assert by is not None, "it blocks"
        why = {
            "strict": "nothing may come in between",
            "partition": f"it is equal in {', '.join(self.pattern.keys)}",
            "next": "the match so far takes it",
        }[self.pattern.strategy]
        what = f"{came_text(by)}, and {why}"
        stage = Stage("strategy", STRATEGIES[self.pattern.strategy], 0, "events")
        self.furthest.fails(rank, lambda: stage.told(what), (by,))

    # ------------------------------------------------------------ which are followed

    def _may_have_all(self, partial: Partial) -> bool:
        """Whether all documents may be in it in the end. Keeps that they cannot."""
        missing = self.wanted - partial.covered
        if not missing:
            return True
        if not self.has_room(partial):
            return False
        later = [
            self.covers(one)
            for place in range(len(partial.bound) - 1, len(self.positive))
            for one in self.named[place]
            if before(partial.last, one)
        ]
        return missing <= frozenset[int]().union(*later)

    def likeness(self, partial: Partial) -> Hashable:
        """See Search."""
        if not self.whole.kills:
            return None
        return tuple((id(some[0]), id(some[-1])) for some in partial.bound)


def _t1(event: Event) -> int:
    return event.t1
