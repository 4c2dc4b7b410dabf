"""The oracle's PATTERN with ERRORS: all chains of events, and what each lacks (docs/semantics.md, section 26).

BUDGET is not computed: what a statement with it finds is a part of what is found here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import inf

from tests.oracle.events import Event, before
from tests.oracle.pattern_matches import Match
from tests.oracle.pattern_syntax import Letter, Letters, Near, OneOf, Times

Chain = tuple[tuple[str, Event], ...]
"""Events, each with its stream."""


def near_matches(near: Near, streams: Mapping[str, Iterable[Event]]) -> set[Match]:
    events = [(name, one) for name in near.streams for one in streams[name]]
    found = set()
    for chain in _chains(near, events):
        errors = lacking(near.word, [name for name, _ in chain])
        if errors <= near.errors:
            found.add(Match((tuple(one for _, one in chain),), chain[-1][1].t1, int(errors)))
    return found


def _chains(near: Near, events: Sequence[tuple[str, Event]]) -> Iterator[Chain]:
    """The chains of events within the window that are equal, and not NULL, in all keys."""

    def alike(one: Event, first: Event) -> bool:
        return all(one.values[key] is not None and one.values[key] == first.values[key] for key in near.keys)

    def fits(one: Event, first: Event) -> bool:
        return near.within is None or one.t1 - first.t0 <= near.within.us

    waiting: list[Chain] = [((name, one),) for name, one in events if alike(one, one) and fits(one, one)]
    while waiting:
        chain = waiting.pop()
        yield chain
        first, latest = chain[0][1], chain[-1][1]
        waiting += [
            (*chain, (name, one))
            for name, one in events
            if before(latest, one) and alike(one, first) and fits(one, first)
        ]


def lacking(word: Sequence[Letters], letters: Iterable[str]) -> float:
    """The least number of letters that may be left out of a word, so that it is these letters; infinite if there is no
    such word."""
    return _lacking(tuple(word), tuple(letters))


@lru_cache(100_000)
def _lacking(word: tuple[Letters, ...], letters: tuple[str, ...]) -> float:
    if not word:
        return inf if letters else 0
    return min(
        _lacking_of(word[0], letters[:end]) + _lacking(word[1:], letters[end:]) for end in range(len(letters) + 1)
    )


@lru_cache(100_000)
def _lacking_of(part: Letters, letters: tuple[str, ...]) -> float:
    match part:
        case Letter():
            if not letters:
                return inf if part.needed else 1
            return 0 if letters == (part.stream,) else inf
        case OneOf():
            return min(_lacking(word, letters) for word in part.words)
        case Times():
            if part.least > 0:
                return _lacking((part.part, Times(part.part, part.least - 1)), letters)
            if not letters:
                return 0
            return min(
                _lacking_of(part.part, letters[:end]) + _lacking_of(part, letters[end:])
                for end in range(1, len(letters) + 1)
            )
