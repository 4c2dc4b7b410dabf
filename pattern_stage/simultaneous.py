"""What the AGGREGATEs over one input share: events at one time that are alike in whatever any of them groups by are one
row for all of them, with what their aggregates are computed from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from pattern_stage.columns import Column, Columns, Ints, Mask
from pattern_stage.flow import Flow, numbered, same
from pattern_stage.measures import Measure, compile_measure, measures_of
from pattern_stage.merging import merged
from pattern_stage.operators import Lineage
from pattern_stage.predicates import Pairs, single_events
from pattern_stage.values import Texts
from xscl.algebra.events import Aggregate, Schema

FEW = 128
"""Fewer simultaneous events of a row of the input stay as they are: to merge them would cost more than it saves."""


@dataclass(frozen=True, slots=True)
class Together:
    """Rows that stand for events, of each: the row of the input, t1, when the first part ended, how many events, the
    attributes to group by and the measures, its parts, and whether it is one of `FEW`."""

    rows: Ints
    t1: Ints
    began: Ints
    weights: Ints
    by: Mapping[str, Column]
    measures: Mapping[Measure, Column]
    parts: Ints
    few: Mask


class Simultaneous:
    """The events of an input, merged for all AGGREGATEs that were added. What is merged is a function of the events of
    a time, so nothing waits here."""

    def __init__(self, schema: Schema, texts: Texts, lineage: Lineage) -> None:
        self._schema, self._texts, self._lineage = schema, texts, lineage
        self._users: dict[int, Aggregate] = {}
        self._by: tuple[str, ...] = ()
        self._measures: dict[Measure, Callable[[Pairs], Column]] = {}
        self._flow: Flow | None = None
        self._made: dict[tuple[str, ...], Together] = {}
        """Of the last flow, by what it is grouped by."""

    def __len__(self) -> int:
        return len(self._users)

    def add(self, number: int, definition: Aggregate) -> None:
        """Adds an AGGREGATE, by a number of its own."""
        self._users[number] = definition
        self._follow()

    def remove(self, number: int) -> None:
        """Removes an AGGREGATE. The others go on with what they keep."""
        del self._users[number]
        self._follow()

    def _follow(self) -> None:
        self._by = finest(self._users.values())
        wanted = dict.fromkeys(one for definition in self._users.values() for one in all_measures(definition))
        self._measures = {
            one: self._measures.get(one) or compile_measure(one, self._schema, self._texts) for one in wanted
        }
        self.forget()

    def of(self, flow: Flow, by: tuple[str, ...]) -> Together:
        """Returns the events of a flow, merged where they are alike in `by`. All who ask for it get the same."""
        if self._flow is not flow:
            self._flow, self._made = flow, {self._by: self._finest(flow)}
        by = tuple(name for name in self._by if name in by)
        if by not in self._made:
            self._made[by] = self._rolled_up(self._made[self._by], by)
        return self._made[by]

    def is_idle(self, flow: Flow) -> bool:
        """Returns whether there is nothing to share or merge: one AGGREGATE, and few events at any time."""
        return len(self._users) == 1 and _are_all_few(flow.events.t1[flow.at])

    def forget(self) -> None:
        """Forgets the last flow."""
        self._flow, self._made = None, {}

    def _finest(self, flow: Flow) -> Together:
        names = [name for name, _ in self._schema]
        events, at = flow.events, flow.at
        pairs = single_events(events, at, flow.rows, ())
        t1, began = events.t1[at], began_of(events, self._lineage)[at]
        return self._merged(
            Together(
                flow.rows,
                t1,
                began,
                np.ones(len(at), np.int64),
                {name: events.values[names.index(name)][at] for name in self._by},
                {one: value(pairs) for one, value in self._measures.items()},
                events.parts[at],
                _are_few(flow.rows, t1, began),
            )
        )

    def _rolled_up(self, whole: Together, by: tuple[str, ...]) -> Together:
        users = (definition for definition in self._users.values() if set(definition.by) == set(by))
        own = {one for definition in users for one in all_measures(definition)}
        grouped = {name: whole.by[name] for name in by}
        measures = {one: column for one, column in whole.measures.items() if one in own}
        return self._merged(replace(whole, by=grouped, measures=measures))

    def _merged(self, of: Together) -> Together:
        """Merges what is not few: whether it is, depends neither on what it is grouped by nor on who asks."""
        many = np.flatnonzero(~of.few)
        if not len(many):
            return of
        few = np.flatnonzero(of.few)
        found = merged(
            [column[many] for column in (of.rows, of.t1, of.began, *map(same, of.by.values()))],
            [column[many] for column in (of.weights, *of.measures.values())],
            ["count", *(one.kind for one in of.measures)],
        )
        taken = np.append(few, many[found.firsts])
        order = np.argsort(found.of, kind="stable")
        sets = self._lineage.together(of.parts[many[order]], found.of[order])[found.of[found.firsts]]
        weights, *values = found.columns
        measures: dict[Measure, Column] = {}
        for (one, column), more in zip(of.measures.items(), values, strict=True):
            measures[one] = np.append(column[few], more).astype(np.float64)
        return Together(
            of.rows[taken],
            of.t1[taken],
            of.began[taken],
            np.append(of.weights[few], weights.astype(np.int64)),
            {name: column[taken] for name, column in of.by.items()},
            measures,
            np.concatenate([of.parts[few], _widened(sets, of.parts.shape[1])]),
            np.append(np.ones(len(few), np.bool_), np.zeros(len(found.firsts), np.bool_)),
        )


def _are_few(rows: Ints, t1: Ints, began: Ints) -> Mask:
    """Returns which events are among few that are simultaneous. Times ascend."""
    if _are_all_few(t1):
        return np.ones(len(t1), np.bool_)
    _, of = numbered([rows, t1, began])
    few: Mask = np.bincount(of)[of] < FEW
    return few


def _are_all_few(t1: Ints) -> bool:
    """Returns whether there are few events at each time. Times ascend."""
    return len(t1) < FEW or bool((t1[FEW - 1 :] != t1[: len(t1) - FEW + 1]).all())


def _widened(numbers: Ints, width: int) -> Ints:
    """Returns numbers as rows with so many places, the others empty."""
    parts = np.full((len(numbers), width), -1, np.int64)
    parts[:, 0] = numbers
    return parts


def finest(definitions: Iterable[Aggregate]) -> tuple[str, ...]:
    """Returns the attributes that any of these groups by."""
    return tuple(dict.fromkeys(name for one in definitions for name in one.by))


def all_measures(definition: Aggregate) -> list[Measure]:
    """Returns what the aggregates of a definition are computed from, each once."""
    return list(dict.fromkeys(measure for _, one in definition.items for measure in measures_of(one)))


def began_of(events: Columns, lineage: Lineage) -> Ints:
    """Returns when the first parts of events ended: of those without duration it is known."""
    began = events.t1.copy()
    longer = np.flatnonzero(events.t0 < events.t1)
    if len(longer):
        began[longer] = lineage.ends(events.parts[longer, 0])
    return began
