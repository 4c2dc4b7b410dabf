"""EARLIEST MAXIMAL: what would be better than a match."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from pattern_stage.matching.match import Match
from pattern_stage.matching.nodes import Event
from pattern_stage.matching.set_search import SetForm


def changed_bindings(
    form: SetForm, match: Match, candidates: Sequence[Sequence[tuple[Event, int]]], order: dict[int, Any]
) -> Iterator[tuple[list[list[Event]], int]]:
    """Yields the bindings of a match with an earlier first event of a variable, or with one event more, and for which
    of its rows these are candidates."""
    bindings: list[list[Event]] = [[] for _ in form.groups]
    for event, at in zip(match.events, match.components, strict=True):
        bindings[at].append(event)
    used = {event[2] for event in match.events}
    begin = min(order[number] for number in used)
    for at, some in enumerate(bindings):
        for event, of in candidates[at]:
            if event[2] in used or order[event[2]] <= begin:
                continue
            if order[event[2]] < order[some[0][2]]:
                yield [*bindings[:at], [event, *some[1:]], *bindings[at + 1 :]], of & match.rows
            if form.kleene[at]:
                more = sorted([*some, event], key=lambda one: order[one[2]])
                yield [*bindings[:at], more, *bindings[at + 1 :]], of & match.rows


def is_sound(form: SetForm, bindings: Sequence[Sequence[Event]], window: int) -> bool:
    """Whether bindings have the order and the span of a match."""
    for some in bindings:
        if any(one[1] >= other[0] for one, other in pairwise(some)):
            return False
    groups = form.groups
    for one, group in zip(bindings, groups, strict=True):
        for other, behind in zip(bindings, groups, strict=True):
            if behind == group + 1 and max(event[1] for event in one) >= min(event[0] for event in other):
                return False
    events = [event for some in bindings for event in some]
    return bool(max(event[1] for event in events) - min(event[0] for event in events) <= window)
