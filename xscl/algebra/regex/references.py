"""Searches with back-references, for which there is no linear-time search: by trying, within a number of steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from xscl.algebra.regex.charsets import CharSet
from xscl.algebra.regex.syntax import Chars, Choice, Edge, Group, Reference, Regex, Repeat, Sequence

MAX_STEPS = 200_000
"""How many steps a search may take. It takes about a fifth of a second then."""

_Captured = tuple[tuple[int, int, int], ...]
"""For each group that is referred to: where it was opened, and the start and end of what it captured last."""

_UNSET = (-1, 0, 0)
_MATCHED = 0


@dataclass(frozen=True, slots=True)
class _OneOf:
    symbols: frozenset[str]
    then: int


@dataclass(frozen=True, slots=True)
class _At:
    end: bool
    then: int


@dataclass(frozen=True, slots=True)
class _Fork:
    ways: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Open:
    place: int
    then: int


@dataclass(frozen=True, slots=True)
class _Close:
    place: int
    then: int


@dataclass(frozen=True, slots=True)
class _Again:
    place: int
    then: int


class Program:
    """A regular expression as states, each with those that may follow. State 0 means that a match was found.

    A search visits each combination of a state, a place in the text and what is captured once. So it finds a match if
    there is one, and a repetition of the empty text ends.
    """

    def __init__(self, tree: Regex, referred: frozenset[int], symbols: Mapping[CharSet, frozenset[str]]) -> None:
        """`referred` are the groups that are referred to, by number. `symbols` are those of each set of characters."""
        self._symbols = symbols
        self._place = {number: place for place, number in enumerate(sorted(referred))}
        self._states: list[_OneOf | _At | _Fork | _Open | _Close | _Again] = [_Fork(())]
        self._start = self._before(tree, _MATCHED)

    def _state(self, state: _OneOf | _At | _Fork | _Open | _Close | _Again) -> int:
        self._states.append(state)
        return len(self._states) - 1

    def _before(self, tree: Regex, then: int) -> int:
        """Makes the states that lead through `tree` to the state `then`, and returns the first."""
        match tree:
            case Chars(chars=chars):
                return self._state(_OneOf(self._symbols[chars], then))
            case Edge(end=end):
                return self._state(_At(end, then))
            case Sequence(parts=parts):
                for part in reversed(parts):
                    then = self._before(part, then)
                return then
            case Choice(arms=arms):
                return self._state(_Fork(tuple(self._before(arm, then) for arm in arms)))
            case Repeat():
                return self._repeated(tree, then)
            case Group(item=item, number=number) if number in self._place:
                place = self._place[number]
                return self._state(_Open(place, self._before(item, self._state(_Close(place, then)))))
            case Group(item=item):
                return self._before(item, then)
            case Reference(number=number):
                return self._state(_Again(self._place[number], then))
        raise AssertionError(f"not a regular expression: {tree!r}")

    def _repeated(self, repeat: Repeat, then: int) -> int:
        if repeat.most is None:
            loop = self._state(_Fork(()))
            self._states[loop] = _Fork((self._before(repeat.item, loop), then))
            first = loop
        else:
            first = then
            for _ in range(repeat.most - repeat.least):
                first = self._state(_Fork((self._before(repeat.item, first), then)))
        for _ in range(repeat.least):
            first = self._before(repeat.item, first)
        return first

    def search(self, text: str, symbols: str, first: int) -> bool | None:
        """Whether a match starts at the place `first` or later; None if the search takes more than MAX_STEPS.

        `symbols` is `text` written in the alphabet's symbols, one for each character.
        """
        steps = 0
        for begin in range(first, len(text) + 1):
            todo: list[tuple[int, int, _Captured]] = [(self._start, begin, (_UNSET,) * len(self._place))]
            seen = set(todo)
            while todo:
                steps += 1
                if steps > MAX_STEPS:
                    return None
                state, at, captured = todo.pop()
                if state == _MATCHED:
                    return True
                for following in self._following(state, at, captured, text, symbols):
                    if following not in seen:
                        seen.add(following)
                        todo.append(following)
        return False

    def _following(
        self, number: int, at: int, captured: _Captured, text: str, symbols: str
    ) -> list[tuple[int, int, _Captured]]:
        state = self._states[number]
        match state:
            case _OneOf():
                return [(state.then, at + 1, captured)] if symbols[at : at + 1] in state.symbols else []
            case _At():
                return [(state.then, at, captured)] if at == (len(text) if state.end else 0) else []
            case _Fork():
                return [(way, at, captured) for way in state.ways]
            case _Open():
                _, start, end = captured[state.place]
                return [(state.then, at, _changed(captured, state.place, (at, start, end)))]
            case _Close():
                return [(state.then, at, _changed(captured, state.place, (-1, captured[state.place][0], at)))]
            case _Again():
                _, start, end = captured[state.place]
                same = text.startswith(text[start:end], at)
                return [(state.then, at + end - start, captured)] if same else []


def _changed(captured: _Captured, place: int, group: tuple[int, int, int]) -> _Captured:
    return (*captured[:place], group, *captured[place + 1 :])
