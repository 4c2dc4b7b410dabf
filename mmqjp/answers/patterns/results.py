"""What the kernel finds in an interval, by the forms of event queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mmqjp.answers.patterns.kernels import Results
from pattern_stage.columns import Columns, Ints, joined
from xscl.algebra.events import Schema

LATE = "late for patterns"
"""How the reason begins why no statement gets the events of a document that came too late."""


@dataclass(frozen=True, slots=True)
class FormResults:
    """Results of a form: its id, and its events with their attributes."""

    form_id: str
    schema: Schema
    events: Columns


@dataclass(frozen=True, slots=True)
class Late:
    """A document whose events no statement gets, and why."""

    docid: int
    reason: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """What waits in event patterns: `events` that end at the `horizon` or later, and what others wait for a partner,
    `partial` matches, those of several forms for each."""

    horizon: int
    events: int
    partial: int


def by_form(found: Sequence[Results], form_ids: Mapping[int, str]) -> list[FormResults]:
    """Returns results by form. `form_ids` has the id of the form behind each number of a statement."""
    results = []
    for one in found:
        order = np.argsort(one.statements, kind="stable")
        numbers, starts = np.unique(one.statements[order], return_index=True)
        for number, places in zip(numbers.tolist(), np.split(order, starts[1:]), strict=True):
            results.append(FormResults(form_ids[number], one.schema, one.events.take(one.at[places])))
    return results


def in_order(composed: Sequence[Columns]) -> Columns:
    """Returns events of one schema in the order of t1. Statements may have results with different places of parts."""
    events = joined(composed)
    order: Ints = np.argsort(events.t1, kind="stable")
    return events.take(order)
