"""A regular expression over letters as an automaton that may leave letters out.

Each letter of the expression is a position. From a position, or from the begin, an event leads to a position of its
stream, at the cost of the letters that are left out on the way. A chain of events is told by a vector: of each position
that it may end at the least number of letters left out so far. So a chain has one vector, however it is read.
"""

from __future__ import annotations

from dataclasses import dataclass

from xscl.algebra.event_sequences import Letter, Letters, OneOf, Repeated, Word

Vector = tuple[tuple[int, int], ...]
"""Positions with what is left out until there, in order."""

_NEVER = 1 << 30


@dataclass(slots=True)
class _Piece:
    """A part of an expression: where its words begin and end, and whether it has the empty word."""

    first: frozenset[int]
    last: frozenset[int]
    empty: bool


class Automaton:
    """An expression, of whose words at most so many letters may be left out."""

    def __init__(self, letters: Letters, errors: int) -> None:
        self.errors = errors
        self.letters: list[Letter] = []
        """That of each position."""
        self.follow: list[set[int]] = []
        """For each position those that may come next, if nothing is left out."""
        whole = self._piece(letters)
        self.first, self.last = whole.first, whole.last
        begins = self._costs(whole.first)
        after = [self._costs(frozenset(follow)) for follow in self.follow]
        ends = [self._end(at, whole.last) for at in range(len(self.letters))]
        self._ends = ends
        self._steps: dict[int, list[list[tuple[int, int]]]] = {}
        """For each input: from each position, and from the begin (the last), where to and at which cost."""
        for stream in {int(one.source.stream) for one in self.letters}:
            mine = [at for at, one in enumerate(self.letters) if int(one.source.stream) == stream]
            self._steps[stream] = [
                [(to, costs[to]) for to in mine if costs[to] <= errors] for costs in [*after, begins]
            ]

    def begin(self, stream: int) -> Vector:
        """Returns the vector of a chain of one event; an empty one if there is none."""
        return tuple(sorted(self._steps[stream][-1]))

    def step(self, vector: Vector, stream: int) -> Vector:
        """Returns the vector of a chain with an event more."""
        found: dict[int, int] = {}
        steps = self._steps[stream]
        for at, cost in vector:
            for to, more in steps[at]:
                if cost + more <= self.errors and cost + more < found.get(to, _NEVER):
                    found[to] = cost + more
        return tuple(sorted(found.items()))

    def lacking(self, vector: Vector) -> int | None:
        """Returns how many letters a chain lacks at least; None if too many."""
        least = min((cost + self._ends[at] for at, cost in vector), default=_NEVER)
        return least if least <= self.errors else None

    # ------------------------------------------------------------ making

    def _piece(self, letters: Letters) -> _Piece:
        match letters:
            case Letter():
                at = len(self.letters)
                self.letters.append(letters)
                self.follow.append(set())
                return _Piece(frozenset([at]), frozenset([at]), False)
            case OneOf(parts=parts):
                pieces = [self._piece(part) for part in parts]
                first = frozenset[int]().union(*(one.first for one in pieces))
                last = frozenset[int]().union(*(one.last for one in pieces))
                return _Piece(first, last, any(one.empty for one in pieces))
            case Word(parts=parts):
                whole = _Piece(frozenset(), frozenset(), True)
                for part in parts:
                    whole = self._then(whole, self._piece(part))
                return whole
            case Repeated(part=part, least=least):
                whole = _Piece(frozenset(), frozenset(), True)
                for _ in range(max(least, 1)):
                    one = self._piece(part)
                    whole = self._then(whole, one)
                for at in one.last:
                    self.follow[at] |= one.first
                return _Piece(whole.first, whole.last, whole.empty or least == 0)

    def _then(self, one: _Piece, other: _Piece) -> _Piece:
        for at in one.last:
            self.follow[at] |= other.first
        return _Piece(
            one.first | other.first if one.empty else one.first,
            other.last | one.last if other.empty else other.last,
            one.empty and other.empty,
        )

    def _cost(self, at: int) -> int:
        return _NEVER if self.letters[at].needed else 1

    def _costs(self, begins: frozenset[int]) -> list[int]:
        """Returns how many letters are left out at least before each position, from where `begins` are next."""
        costs = [_NEVER] * len(self.letters)
        waiting = list(begins)
        for at in begins:
            costs[at] = 0
        while waiting:
            at = waiting.pop(0)
            for to in self.follow[at]:
                cost = costs[at] + self._cost(at)
                if cost < costs[to]:
                    costs[to] = cost
                    waiting.append(to)
        return costs

    def _end(self, at: int, last: frozenset[int]) -> int:
        """Returns how many letters are left out at least from behind a position to the end."""
        if at in last:
            return 0
        costs = self._costs(frozenset(self.follow[at]))
        return min((costs[one] + self._cost(one) for one in last), default=_NEVER)
