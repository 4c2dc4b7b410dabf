"""What flows between operators over an interval: events, and for each the rows that have it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from common.distinct import distinct
from pattern_stage.columns import Column, Columns, Ints, Mask, joined
from pattern_stage.stretches import Stretches, spread
from xscl.algebra.events import Schema

MIX = np.uint64(0x9E3779B97F4A7C15)
"""An odd number whose products spread the bits of the other factor upwards."""

NULL_NUMBER = int(np.array([np.nan]).view(np.int64)[0])
"""What `same` returns for a number that is NULL."""


class Flow:
    """The events of an m-op over an interval, each once, and which rows have it: `events[at[i]]` is of `rows[i]`.

    Events are sorted by t1 and `at` ascends. No pair is twice. An event without a row may be there: it is nobody's.
    A flow is made of pairs, or of stretches, which become pairs when somebody asks for them.
    """

    __slots__ = ("_pairs", "events", "stretches")

    def __init__(self, events: Columns, at: Ints, rows: Ints) -> None:
        self.events = events
        self.stretches: Stretches | None = None
        self._pairs: tuple[Ints, Ints] | None = (at, rows)

    @classmethod
    def of(cls, events: Columns, stretches: Stretches) -> Flow:
        """Returns the flow of events with the rows of stretches."""
        flow = cls(events, stretches.at, stretches.rows)
        flow.stretches, flow._pairs = stretches, None
        return flow

    @property
    def at(self) -> Ints:
        """The event of each pair."""
        return self._spread()[0]

    @property
    def rows(self) -> Ints:
        """The row of each pair."""
        return self._spread()[1]

    def __len__(self) -> int:
        if self._pairs is not None:
            return len(self._pairs[0])
        assert self.stretches is not None
        return len(self.stretches)

    def only(self, kept: Mask | Ints) -> Flow:
        """Returns the flow of these pairs."""
        return Flow(self.events, self.at[kept], self.rows[kept])

    def compact(self) -> Flow:
        """Returns the same without events that are nobody's."""
        at = self.at if self.stretches is None else self.stretches.at
        if len(at) == 0:
            return Flow(self.events.take(at), at, at)
        first = np.empty(len(at), np.bool_)
        first[0] = True
        np.not_equal(at[1:], at[:-1], out=first[1:])
        used = at[first]
        if len(used) == len(self.events):
            return self
        events, at = self.events.take(used), np.cumsum(first) - 1
        return Flow(events, at, self.rows) if self.stretches is None else Flow.of(events, self.stretches.moved(at))

    def _spread(self) -> tuple[Ints, Ints]:
        if self._pairs is None:
            assert self.stretches is not None
            self._pairs = self.stretches.pairs()
        return self._pairs


def whole(events: Columns) -> Flow:
    """Returns the flow of a source, which has one row: row 0. The events are sorted by t1."""
    return Flow(events, np.arange(len(events)), np.zeros(len(events), np.int64))


def no_flow(schema: Schema, parts: int) -> Flow:
    """Returns no events of a schema, with so many places of parts."""
    none = np.zeros(0, np.int64)
    values: tuple[Column, ...] = tuple([none if kind == "string" else np.zeros(0) for _, kind in schema])
    return Flow(Columns(none, none, values, np.zeros((0, parts), np.int64)), none, none)


def sorted_flow(events: Columns, at: Ints, rows: Ints) -> Flow:
    """Returns events, given in any order, each once, as a flow."""
    order = np.argsort(events.t1, kind="stable")
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    at = places[at]
    by_place = np.argsort(at, kind="stable")
    return Flow(events.take(order), at[by_place], rows[by_place])


def same(column: Column) -> Ints:
    """Returns a number for each value of a column: equal ones for equal values, where NULL is equal to NULL."""
    if column.dtype == np.int64:
        return cast(Ints, column)
    numbers = column + np.float64(0)  # -0 is 0
    numbers[np.isnan(numbers)] = np.nan
    return numbers.view(np.int64)


def mixed(keys: Sequence[Ints], seed: int = 0) -> Ints:
    """Returns a hash of each row of columns of numbers; others with another seed. That of no column is the seed."""
    result = np.full(len(keys[0]) if keys else 0, seed, np.uint64)
    for key in keys:
        result ^= key.view(np.uint64)
        result *= MIX
        result ^= result >> np.uint64(29)
    return result.view(np.int64)


def numbered(keys: Sequence[Ints]) -> tuple[Ints, Ints]:
    """Numbers the distinct rows of columns: returns the first place of each, and the number of each row.

    They are numbered in the order of those first places.
    """
    count = len(keys[0])
    if len(keys) == 1:
        ordered = np.argsort(keys[0], kind="stable")
    else:
        hashes = mixed(keys)
        ordered = np.argsort(hashes, kind="stable")
        if not _adjacent(keys, hashes, ordered):
            ordered = np.lexsort(tuple(keys))
    differs = np.zeros(count, np.bool_)
    differs[:1] = True
    for key in keys:
        taken = key[ordered]
        differs[1:] |= taken[1:] != taken[:-1]
    # A stable sort leaves the first place of each group at its head.
    heads = ordered[differs]
    order = np.argsort(heads, kind="stable")
    numbers = np.empty(len(heads), np.int64)
    numbers[order] = np.arange(len(heads))
    result = np.empty(count, np.int64)
    result[ordered] = numbers[np.cumsum(differs) - 1]
    return heads[order], result


def joined_flow(flows: Sequence[Flow], none: Flow) -> Flow:
    """Returns events that are given in any order, in several parts, each event once, as a flow; `none` if there are no
    parts."""
    if not flows:
        return none
    starts = np.cumsum([0, *(len(flow.events) for flow in flows)])
    at = np.concatenate([flow.at + start for flow, start in zip(flows, starts, strict=False)])
    events = joined([flow.events for flow in flows])
    return sorted_flow(events, at, np.concatenate([flow.rows for flow in flows])).compact()


def _adjacent(keys: Sequence[Ints], hashes: Ints, ordered: Ints) -> bool:
    """Whether rows of one hash are equal: then equal ones are adjacent in the order of hashes."""
    taken = hashes[ordered]
    alike = np.flatnonzero(taken[1:] == taken[:-1])
    here, there = ordered[alike], ordered[alike + 1]
    return all(np.array_equal(key[here], key[there]) for key in keys)


def each_once(flow: Flow) -> Flow:
    """Returns a flow whose events or pairs are more than once as one in which they are not.

    Two events are equal if their attributes, times and parts are.
    """
    events = flow.events
    if len(events) == 0:
        return flow
    keys = [events.t1, events.t0, *(same(column) for column in events.values)]
    heads, numbers = numbered([*keys, *(np.ascontiguousarray(place) for place in _in_front(events.parts).T)])
    if len(heads) == len(events):
        return flow
    return Flow(events.take(heads), *pairs_once(numbers[flow.at], flow.rows))


def _in_front(parts: Ints) -> Ints:
    """Returns parts with their -1 behind all others: where they stand makes no difference."""
    lacking = parts < 0
    if not (lacking[:, :-1] & ~lacking[:, 1:]).any():
        return parts
    return np.take_along_axis(parts, np.argsort(lacking, axis=1, kind="stable"), 1)


def pairs_once(at: Ints, rows: Ints) -> tuple[Ints, Ints]:
    """Returns pairs once, sorted."""
    width = int(rows.max(initial=0)) + 1
    pairs = distinct(at * width + rows)
    return pairs // width, pairs % width


def sets_of(flow: Flow) -> tuple[Ints, Ints, Ints, Ints]:
    """Returns the events that have rows, the number of the set of rows of each, and these sets: pairs of the number of
    a set, ascending, and a row. Equal sets are one, if their rows stand in the same order, and those of stretches if
    they are the same places of the list."""
    stretches = flow.stretches
    if stretches is not None and np.all(stretches.at[1:] > stretches.at[:-1]):
        firsts, numbers = numbered([stretches.starts, stretches.sizes])
        taken, of = spread(stretches.starts[firsts], stretches.sizes[firsts])
        return stretches.at, numbers, of, stretches.rows[taken]
    heads = np.append(True, flow.at[1:] != flow.at[:-1])
    starts = np.flatnonzero(heads)
    if len(starts) == len(flow):
        rows, numbers = np.unique(flow.rows, return_inverse=True)
        return flow.at, numbers, np.arange(len(rows)), rows
    sizes = np.diff(starts, append=len(flow))
    places = np.arange(len(flow)) - np.repeat(starts, sizes)
    firsts, numbers = numbered([np.add.reduceat(mixed([flow.rows, places]), starts), sizes])
    if not np.array_equal(flow.rows, flow.rows[np.repeat(starts[firsts][numbers], sizes) + places]):
        firsts = numbers = np.arange(len(starts))  # two sets have one hash
    taken, of = spread(starts[firsts], sizes[firsts])
    return flow.at[starts], numbers, of, flow.rows[taken]


def merged(first: Flow, second: Flow) -> Flow:
    """Returns the flow of the events of two of one schema. Where one has fewer places of parts, others are -1."""
    places = max(first.events.parts.shape[1], second.events.parts.shape[1])
    events = joined([padded(first.events, places), padded(second.events, places)])
    at = np.concatenate([first.at, second.at + len(first.events)])
    return each_once(sorted_flow(events, at, np.concatenate([first.rows, second.rows])))


def padded(events: Columns, places: int) -> Columns:
    """Returns events with so many places of parts: those that are added are -1."""
    lacking = places - events.parts.shape[1]
    if not lacking:
        return events
    return Columns(
        events.t0, events.t1, events.values, np.pad(events.parts, ((0, 0), (0, lacking)), constant_values=-1)
    )
