"""AGGREGATE: for each group and each t1 of its events, values of the events of the group in a window that ends then."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pattern_stage.classes import Classes
from pattern_stage.columns import NULL_TEXT, Column, Columns, Floats, Ints
from pattern_stage.fan_out import FanOut
from pattern_stage.flow import Flow, distinct, numbered, same, sorted_flow
from pattern_stage.operators import Lineage, Renumber, RowVectors
from pattern_stage.predicates import Pairs, compile_value, kind_of, single_events
from pattern_stage.saved import ints, loaded_values, saved_values
from pattern_stage.values import Texts
from pattern_stage.window_store import WindowStore
from pattern_stage.windows import counts_in, greatest_in, sums_in
from xscl.algebra.events import Aggregate, AggregateName, Function, Value


@dataclass(frozen=True, slots=True)
class _Item:
    name: AggregateName
    arguments: tuple[int, ...]
    """Places among the columns of what is kept of an event."""
    text: bool
    """Whether the result is a string."""


class Aggregating:
    """AGGREGATE. It has one shape, as other items would give other attributes; rows differ in input and window.

    Of an event in a window are kept: its time, the attributes of BY, and the arguments of the aggregates.
    """

    def __init__(self, definitions: Sequence[Aggregate], rows: RowVectors, texts: Texts, lineage: Lineage) -> None:
        self._definition = definition = definitions[0]
        self._rows, self._texts, self._lineage = rows, texts, lineage
        self._classes, self._readers = Classes(rows), FanOut()
        schema = definition.source.schema
        kinds = dict(schema)
        names = [name for name, _ in schema]
        self._by = [names.index(name) for name in definition.by]
        self._are_texts = [kinds[name] == "string" for name in definition.by]
        self._values: list[Callable[[Pairs], Column]] = []
        self._items: list[_Item] = []
        for _, aggregated in definition.items:
            places = []
            for place, argument in enumerate(aggregated.args):
                as_is = aggregated.name == "count" or (aggregated.name == "argmax" and place == 0)
                value: Value = argument
                if kind_of(argument) == "string" and not as_is:
                    value = Function("number", (argument,), "number")
                places.append(len(self._by) + len(self._values))
                self._are_texts.append(kind_of(value) == "string")
                self._values.append(compile_value(value, schema, None, texts))
            text = aggregated.name == "argmax" and self._are_texts[places[0]]
            self._items.append(_Item(aggregated.name, tuple(places), text))
        self._store = WindowStore(self._are_texts)

    def add_rows(self, new: Ints) -> None:
        """Takes in rows that were added."""
        self._classes.add(new)
        self._readers.add(new, self._rows.left[new])

    def remove_rows(self, gone: Ints) -> None:
        """Forgets rows and their windows."""
        self._store.remove_rows(gone)
        self._readers.remove(gone)
        self._classes.remove(gone)

    def run(self, inputs: Sequence[Flow], until: int) -> Flow:
        """Returns the aggregates of all groups and times of this interval."""
        (flow,) = inputs
        places, rows = self._readers.of(flow.rows)
        at = flow.at[places]
        events, classes = flow.events, self._classes.of_row[rows]
        columns: list[Column] = [events.values[place][at] for place in self._by]
        pairs = single_events(events, at, classes, self._classes.parameters)
        columns += [value(pairs) for value in self._values]
        found = self._aggregated(flow, at, rows, columns)
        if self._definition.over is not None:
            self._store.add(rows, events.t1[at], columns, columns[: len(self._by)])
            self._store.expire(self._rows.within, until)
        return found

    def _aggregated(self, flow: Flow, at: Ints, rows: Ints, columns: Sequence[Column]) -> Flow:
        t1 = flow.events.t1[at]
        by = len(self._by)
        kept = self._store.touched(rows, columns[:by])
        rows, times = np.concatenate([kept.rows, rows]), np.concatenate([kept.times, t1])
        columns = [_both(*pair) for pair in zip(kept.columns, columns, strict=True)]
        is_new = np.arange(len(rows)) >= len(kept.rows)
        # Groups one after the other, each in the order of time. A run is what is simultaneous in a group.
        groups = numbered([rows, *(same(column) for column in columns[:by])])[1] if len(rows) else rows
        distinct_times, ranks = np.unique(times, return_inverse=True)
        codes = groups * (len(distinct_times) + 1) + ranks
        order = np.argsort(codes, kind="stable")
        codes, times, is_new = codes[order], times[order], is_new[order]
        heads = np.flatnonzero(np.diff(codes, prepend=-1))
        ends = np.append(heads[1:], len(codes))
        run_of = np.cumsum(np.diff(codes, prepend=-1) != 0) - 1
        current = is_new[heads] if len(heads) else is_new
        heads, ends = heads[current], ends[current]
        rows, columns = rows[order], [column[order] for column in columns]
        over = self._rows.within[rows[heads]] if self._definition.over is not None else np.ones(len(heads), np.int64)
        after = np.searchsorted(distinct_times, times[heads] - over, "right")
        starts = np.searchsorted(codes, groups[order][heads] * (len(distinct_times) + 1) + after)
        values = tuple(column[heads] for column in columns[:by])
        values += tuple(self._computed(item, columns, starts, ends) for item in self._items)
        # The parts are those of the events that are simultaneous.
        of_run = np.cumsum(current) - 1
        mine = np.flatnonzero(is_new)
        sources = at[order[mine] - (len(order) - len(at))]
        parts = self._lineage.together(flow.events.parts[sources], of_run[run_of[mine]])
        t = times[heads]
        events = Columns(t, t, values, parts.reshape(-1, 1))
        return distinct(sorted_flow(events, np.arange(len(heads)), rows[heads]))

    def _computed(self, item: _Item, columns: Sequence[Column], starts: Ints, ends: Ints) -> Column:
        """Returns an aggregate of each of these ranges of rows."""
        if not item.arguments:
            return (ends - starts).astype(np.float64)
        arguments = [columns[place] for place in item.arguments]
        known = np.logical_and.reduce([_known(argument) for argument in arguments])
        counts = counts_in(known, starts, ends)
        if item.name == "count":
            return counts.astype(np.float64)
        if item.name in ("sum", "avg"):
            sums = sums_in(arguments[0], starts, ends)  # type: ignore[arg-type]  # numbers
            sums[counts == 0] = np.nan
            result: Floats = sums / np.maximum(counts, 1) if item.name == "avg" else sums
            result[~np.isfinite(result)] = np.nan
            return result
        # The greatest by a rank that is different for all rows.
        if item.name == "argmax":
            order = np.lexsort((self._falling(arguments[0]), arguments[1]))
        else:
            order = np.argsort(arguments[0] if item.name == "max" else -arguments[0], kind="stable")
        ranks = np.empty(len(order), np.int64)
        ranks[order] = np.arange(len(order))
        ranks[~known] = -1
        best = greatest_in(ranks, starts, ends)
        found = arguments[0][order[np.maximum(best, 0)]] if len(order) else arguments[0][:0]
        null = NULL_TEXT if item.text else np.nan
        return np.where(best >= 0, found, null) if item.text else np.where(best >= 0, found, null) + 0.0

    def _falling(self, column: Column) -> Column:
        """Returns keys that are the greater, the less a value is: strings go by code points."""
        if column.dtype == np.float64:
            return -column
        codes, numbers = np.unique(column, return_inverse=True)
        texts = self._texts.texts(codes.astype(np.int64))
        ranks = np.empty(len(codes), np.int64)
        ranks[sorted(range(len(codes)), key=lambda place: texts[place] or "")] = np.arange(len(codes))
        return -ranks[numbers]

    # ------------------------------------------------------------ state

    def waiting(self) -> Ints:
        """Returns how many events are in the windows of each row."""
        return self._store.counts

    def codes(self) -> Iterable[Ints]:
        """Returns the codes of all texts in windows."""
        kept = self._store.all()
        return [column.astype(np.int64) for column, text in zip(kept.columns, self._are_texts, strict=True) if text]

    def state(self) -> pa.Table:
        """Returns the windows."""
        kept = self._store.all()
        columns = {"row": pa.array(kept.rows), "t1": pa.array(kept.times)}
        for place, (column, text) in enumerate(zip(kept.columns, self._are_texts, strict=True)):
            columns[str(place)] = saved_values(column, text, self._texts)
        return pa.table(columns)

    def restore(self, table: pa.Table, renumber: Renumber) -> None:
        """Takes over windows that were saved."""
        rows = renumber(ints(table, "row"))
        there = np.flatnonzero(rows >= 0)
        columns = [
            loaded_values(table, str(place), text, self._texts)[there] for place, text in enumerate(self._are_texts)
        ]
        self._store.add(rows[there], ints(table, "t1")[there], columns, columns[: len(self._by)])


def _known(column: Column) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return column >= 0 if column.dtype == np.int64 else ~np.isnan(column)


def _both(one: Column, other: Column) -> Column:
    values: Column = np.concatenate([one, other])
    return values
