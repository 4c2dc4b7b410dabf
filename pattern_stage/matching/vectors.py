"""What is known of vectors for BUDGET: how often a partial match with one leads to a new bundle, and to which it did.

A vector is where a partial match is in the expression and what it lacks, how much of the window is left, and how long
ago its last event was, both in eighths of the window. What was never seen is told by where it is and what it lacks, or
by where it is: these are the levels that are known of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pattern_stage.matching.letters import Vector

BUNDLES, EIGHTHS, RATE, MOST_SEEN = 1_024, 8, 0.1, 4_096

SeenName = tuple[Vector, int, int]
"""Positions with what is left out, eighths of the window that are left, eighths since the last event."""

Level = tuple[Any, ...]
"""What a value and a map are kept of: a vector, or a part of it."""


class Known:
    """What is known of a level: its value, and the bundles that it has led to. `used` says when something was learnt of
    it last; None if never, or if that is forgotten."""

    __slots__ = ("_begun", "_map", "level", "used", "value")

    def __init__(self, level: Level) -> None:
        self.level = level
        self.used: int | None
        self.forget()

    def forget(self) -> None:
        """Forgets it all."""
        self.value, self._map, self._begun = 0.0, 0, 0
        self.used = None

    def map(self, begun: int) -> int:
        """Returns the bundles that it has led to, of the latest ones, when so many have begun."""
        if self._begun < begun:
            new = begun - self._begun
            if new >= BUNDLES:
                self._map = 0
            elif self._map:  # those whose bits the new ones have
                bits = ((1 << new) - 1) << self._begun % BUNDLES
                self._map &= ~(bits | bits >> BUNDLES)
            self._begun = begun
        return self._map

    def lead(self, bundle: int, begun: int) -> None:
        """Keeps that it has led to a bundle."""
        self._map = self.map(begun) | 1 << bundle % BUNDLES

    def take_over(self, value: float, map: int, begun: int, used: int) -> None:
        """Takes over what was saved."""
        self.value, self._map, self._begun, self.used = value, map, begun, used


class Seen:
    """A vector. There is one object for each, so that it is found without a look at what it is made of."""

    __slots__ = ("levels", "name")

    def __init__(self, name: SeenName, levels: tuple[Known, Known, Known]) -> None:
        self.name, self.levels = name, levels

    def known(self) -> Known:
        """Returns what is known of it, or else of a part of it."""
        whole, lacking, place = self.levels
        if whole.used is not None:
            return whole
        return lacking if lacking.used is not None else place


class Vectors:
    """All vectors that were seen, and what is known of them."""

    def __init__(self) -> None:
        self.bundles = 0
        """How many have begun."""
        self._levels: dict[Level, Known] = {}
        self._seen: dict[Vector, list[Seen | None]] = {}
        self._count = 0
        self._sweep_at = 4 * MOST_SEEN

    def __len__(self) -> int:
        """How many levels something is known of."""
        return self._count

    def known(self) -> list[Known]:
        """Returns what something is known of, what was learnt last at the end."""
        known = [one for one in self._levels.values() if one.used is not None]
        # What was learnt at one time is in an order that is the same in every process.
        return sorted(known, key=lambda one: (one.used, repr(one.level)))

    def seen(self, vector: Vector, left: int, since: int) -> Seen:
        """Returns a vector."""
        places = self._seen.get(vector)
        if places is None:
            places = self._seen[vector] = [None] * (EIGHTHS * EIGHTHS)
        found = places[EIGHTHS * left + since]
        if found is None:
            levels = (vector, left, since), (vector,), ("at", *(at for at, _ in vector))
            whole, lacking, place = map(self._level, levels)
            found = places[EIGHTHS * left + since] = Seen((vector, left, since), (whole, lacking, place))
        return found

    def _level(self, level: Level) -> Known:
        found = self._levels.get(level)
        if found is None:
            found = self._levels[level] = Known(level)
        return found

    # ------------------------------------------------------------ learning

    def learn(self, seen: Seen, target: float, time: int) -> None:
        """Brings the value of a vector nearer to a target."""
        for one in seen.levels:
            one.value += RATE * (target - one.value)
            if one.used is None:
                self._count += 1
            one.used = time

    def lead(self, trace: Iterable[Seen], bundle: int, time: int) -> None:
        """Keeps that partial matches with these vectors have led to a bundle."""
        for seen in trace:
            for one in seen.levels:
                one.lead(bundle, self.bundles)
                if one.used is None:
                    self._count += 1
                one.used = time

    def tidy(self, living: Iterable[Seen]) -> None:
        """Forgets what nothing was learnt of for longest, if too much is known. `living` has the vectors in use."""
        if self._count > MOST_SEEN:
            known = self.known()
            for one in known[: self._count - MOST_SEEN + MOST_SEEN // EIGHTHS]:
                one.forget()
                self._count -= 1
        if len(self._levels) > self._sweep_at:
            self._sweep(list(living))

    def _sweep(self, living: Sequence[Seen]) -> None:
        """Lets go of vectors that nothing is known of, and that are not in use."""
        levels = {id(one) for seen in living for one in seen.levels}
        self._levels = {level: one for level, one in self._levels.items() if one.used is not None or id(one) in levels}
        self._seen = {seen.name[0]: [None] * (EIGHTHS * EIGHTHS) for seen in living}
        for seen in living:
            vector, left, since = seen.name
            self._seen[vector][EIGHTHS * left + since] = seen
        self._sweep_at = 2 * len(self._levels) + 4 * MOST_SEEN

    # ------------------------------------------------------------ state

    def remembered(self) -> list[list[Any]]:
        """Returns what is saved of it."""
        return [[one.level, one.value, f"{one.map(self.bundles):x}"] for one in self.known()]

    def remember(self, bundles: int, saved: Sequence[Sequence[Any]]) -> None:
        """Takes over what was saved when so many bundles had begun."""
        self.bundles = bundles
        for place, (level, value, bits) in enumerate(saved):
            one = self._level(tuples(level))
            one.take_over(value, int(bits, 16), bundles, place - _BEFORE)
        self._count = len(saved)


_BEFORE = 1 << 62
"""Less than any time, as a negative number."""


def tuples(value: Any) -> Any:
    """Returns a value with tuples for lists."""
    return tuple(map(tuples, value)) if isinstance(value, list) else value
