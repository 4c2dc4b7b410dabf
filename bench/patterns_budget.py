"""What the history of a BUDGET is worth: which part of the bundles of matches is found, beside two ways without it. And
what it costs: by how much it takes longer than these.

Partial matches are kept by what was learnt, or by rank alone (those that lack least, then the latest), or by hash. Of
the events of 20 keys, a second apart, most are noise: first letters that lead nowhere. Now and then there is an
episode, which is a match. In the middle the stream drifts: what led to matches becomes noise, and the other way round.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from unittest.mock import patch

import numpy as np

from bench.patterns_errors import Found, Given, run
from bench.stage2_report import Line
from pattern_stage.pattern.history import Extension, KeyTuple, NearHistory, PartialCandidate, PartialName, hashed

STREAMS = ("A", "B", "C", "D")
KEYS, WITHIN, EPISODE = 20, 400, 60
"""Seconds, as events are one apart; and so many events have an episode among them."""


@dataclass(frozen=True)
class Case:
    """So many events, of which each key keeps so many partial matches."""

    figure: str
    errors: int
    events: int
    budget: int

    def text(self, *, bounded: bool = True) -> str:
        budget = f" BUDGET {self.budget}" if bounded else ""
        return f"PATTERN SEQ(A!, B, C, D!) WHERE {{[key]}} ERRORS <= {self.errors}{budget} WITHIN {WITHIN} s"


class ByRank(NearHistory):
    """Learns nothing, and keeps by rank: what a history takes more than this is what it costs."""

    def pass_until(self, time: int) -> None:
        pass

    def learn(self, time: int, made: Iterable[tuple[KeyTuple, Extension]]) -> None:
        pass

    def chosen(self, time: int, key: KeyTuple, candidates: Sequence[PartialCandidate], most: int) -> set[PartialName]:
        return {one.name for one in sorted(candidates, key=lambda one: one.rank)[:most]}


class ByHash(ByRank):
    """Drops at random."""

    def chosen(self, time: int, key: KeyTuple, candidates: Sequence[PartialCandidate], most: int) -> set[PartialName]:
        return {one.name for one in sorted(candidates, key=lambda one: (hashed(one), one.rank))[:most]}


def drifting(count: int, seed: int = 1) -> Given:
    """Events of which the first half has episodes A B D among A's and pairs A C, the second one A C D among A's and
    pairs A B."""
    chance = np.random.default_rng(seed)
    streams, keys = np.zeros(count, np.int64), chance.integers(0, KEYS, count)
    begin = 0
    while begin + EPISODE <= count:
        is_late = begin >= count // 2
        places = begin + np.sort(chance.choice(EPISODE, 5, replace=False))
        leads, misleads = (2, 1) if is_late else (1, 2)
        keys[places[[0, 1, 4]]] = chance.integers(0, KEYS)
        streams[places[[1, 4]]] = leads, 3
        keys[places[[2, 3]]] = chance.integers(0, KEYS)
        streams[places[3]] = misleads
        begin += EPISODE
    return Given(streams, keys)


def bundles(found: Found, events: Given) -> list[set[int]]:
    """Matches of one key, each within the window of the one before: the last events of each bundle."""
    ends: dict[int, set[int]] = {}
    for match in found:
        ends.setdefault(int(events.keys[match[-1] - 1]), set()).add(match[-1])
    made: list[set[int]] = []
    for some in ends.values():
        last = None
        for end in sorted(some):
            if last is None or end - last > WITHIN:
                made.append(set())
            made[-1].add(end)
            last = end
    return made


def recall(found: Found, every: Sequence[set[int]]) -> float:
    """Returns which part of all bundles has a match that was found."""
    ends = {match[-1] for match in found}
    return sum(bool(one & ends) for one in every) / len(every)


def measured(cases: Sequence[Case], turns: int) -> Iterator[Line]:
    """The lines of cases, which differ in their budgets: one for each way to choose what is kept. Raises AssertionError
    if one has matches that there are not."""
    events = drifting(cases[0].events)
    _, exact = run(cases[0].text(bounded=False), events, STREAMS)
    every = bundles(exact, events)
    for case in cases:
        seconds: dict[str, list[float]] = {}
        told: dict[str, Found] = {}
        for _ in range(turns):
            for name, history in (("history", NearHistory), ("rank", ByRank), ("random", ByHash)):
                with patch("pattern_stage.pattern.near.NearHistory", history):
                    taken, told[name] = run(case.text(), events, STREAMS)
                seconds.setdefault(name, []).append(taken)
        for name, found in told.items():
            assert found <= exact, f"{case}: a match that there is not"
            ratios = [one / other for one, other in zip(seconds[name], seconds["rank"], strict=True)]
            taken = median(seconds[name])
            details = {
                "events_a_second": case.events / taken,
                "recall": recall(found, every),
                "bundles": len(every),
                "over_rank": median(ratios),
            }
            yield Line("patterns", asdict(case), None, name, taken, len(found), None, None, None, False, details)


def cases(events: int | None, *, quick: bool) -> list[Case]:
    """Budgets from what keeps hardly anything to what keeps all."""
    count = events or (4_000 if quick else 12_000)
    return [Case("drift", 1, count, budget) for budget in (1, 2, 4, 8, 16, 32)]
