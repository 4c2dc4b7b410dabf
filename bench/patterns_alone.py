"""The statements of the pattern benchmarks one at a time, as one would write each by hand in NumPy over all events."""

from __future__ import annotations

import numpy as np

from bench.patterns_workload import SECOND, WITHIN, Step, Steps, Stocks, Template
from common.arrays import Ints
from pattern_stage.columns import Floats, Mask

Found = set[tuple[int, int, int]]
"""Results, by the numbers of the events of the three steps."""

_AFTER = WITHIN // SECOND


def alone(template: Template, steps: Steps, events: Stocks) -> Found:
    """The results of one statement. Events are a second apart."""
    one, two, three = (_holding(step, events) for step in steps)
    match template:
        case "LinearStat":
            return _consecutive(one[:-2] & two[1:-1] & three[2:])
        case "LinearDyn":
            rising, again = (_rising(step, events.continuous) for step in steps[1:])
            return _consecutive(one[:-2] & two[1:-1] & three[2:] & rising[:-1] & again[1:])
    chosen, chosen_again = (np.flatnonzero(_equal(step, events)) for step in steps[1:])
    found: Found = set()
    for first in np.flatnonzero(one).tolist():
        for second in _followers(template, chosen, first, first):
            if two[second]:
                thirds = _followers(template, chosen_again, second, first)
                found |= {(first, second, third) for third in thirds if three[third]}
    return found


def _holding(step: Step, events: Stocks) -> Mask:
    held: Mask = np.ones(events.discrete.shape[1], np.bool_)
    for place, value in step.equal:
        held &= events.discrete[place] == value
    for place, low, high in step.ranges:
        held &= (events.continuous[place] >= low) & (events.continuous[place] <= high)
    return held


def _equal(step: Step, events: Stocks) -> Mask:
    (place, value), _ = step.equal
    found: Mask = events.discrete[place] == value
    return found


def _rising(step: Step, continuous: Floats) -> Mask:
    values = continuous[step.ranges[0][0]]
    found: Mask = values[1:] > values[:-1]
    return found


def _consecutive(starts: Mask) -> Found:
    return {(start, start + 1, start + 2) for start in np.flatnonzero(starts).tolist()}


def _followers(template: Template, chosen: Ints, after: int, first: int) -> list[int]:
    """The events that may follow: with NEXT one, with FOLD all that are chosen within the window."""
    begin, end = np.searchsorted(chosen, (after, first + _AFTER), side="right").tolist()
    return chosen[begin : min(end, begin + 1) if template == "Filter" else end].tolist()  # type: ignore[no-any-return]
