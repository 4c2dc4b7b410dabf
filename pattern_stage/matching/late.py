"""Negated events that can be told to kill a match only when it is complete, as they are compared with later events."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from common.distinct import distinct
from pattern_stage.columns import Column, Ints
from pattern_stage.matching.found import Conditions, table_of
from pattern_stage.matching.masks import expanded, mask_of
from pattern_stage.matching.match import Match
from pattern_stage.matching.nodes import Event
from pattern_stage.matching.program import Program


class LateKills:
    """The negations of a pattern that are not early."""

    def __init__(self, program: Program, conditions: Conditions) -> None:
        self._variables = program.last + 1
        self._negations = []
        for at, one in enumerate(program.negations):
            if not one.early:
                tests = [test for test in program.pattern.kills if test.variable == one.variable]
                made = [conditions.condition(test.condition, test.names, one.variable) for test in tests]
                self._negations.append((at, one.group, made))

    def __bool__(self) -> bool:
        return bool(self._negations)

    def left(self, window: int, matches: Sequence[Match], parameters: tuple[Column, ...]) -> list[Match]:
        """Returns matches with the rows for which nothing kills them."""
        killed = [0] * len(matches)
        for at, group, tests in self._negations:
            pairs: list[int] = []
            others: list[Event] = []
            masks: list[int] = []
            for place, match in enumerate(matches):
                for event, rows in self._between(window, match, at, group):
                    if rows & match.rows:
                        pairs.append(place)
                        others.append(event)
                        masks.append(rows & match.rows)
            if not pairs:
                continue
            of, rows_of = expanded(masks)
            table = table_of(matches, self._variables)
            match_at: Ints = np.array(pairs, np.int64)[of]
            held = np.ones(len(of), np.bool_)
            for test in tests:
                open_at = np.flatnonzero(held)
                held[open_at] = test(table, match_at[open_at], (rows_of[open_at], parameters), others, of[open_at])
            for place in distinct(match_at[held]).tolist():
                killed[place] |= mask_of(distinct(rows_of[held & (match_at == place)]))
        return [
            match._replace(rows=match.rows & ~rows)
            for match, rows in zip(matches, killed, strict=True)
            if match.rows & ~rows
        ]

    def _between(self, window: int, match: Match, at: int, group: int) -> Sequence[tuple[Event, int]]:
        if group == 0:
            first = match.events[0][0]
            return [one for one in match.absent[at] if one[0][1] < first and match.t1 - one[0][0] <= window]
        place = bisect_left(match.components, group)
        begin, end = match.events[place - 1][1], match.events[place][0]
        return [one for one in match.absent[at] if one[0][0] > begin and one[0][1] < end]
