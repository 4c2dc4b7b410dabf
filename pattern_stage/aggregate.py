"""AGGREGATE: for each group and each t1 of its events, values of the events of the group in a window that ends then."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from common.distinct import distinct
from pattern_stage.classes import Classes
from pattern_stage.columns import Column, Columns, Ints, joined
from pattern_stage.flow import Flow, each_once, numbered, same, sorted_flow
from pattern_stage.operators import NO_BOUND, Lineage, Renumber, RowVectors
from pattern_stage.predicates import Pairs, compile_value, kind_of, single_events
from pattern_stage.range_aggregates import aggregated
from pattern_stage.room import Crowded, Room, Sees
from pattern_stage.saved import ints, loaded_values, saved_values
from pattern_stage.values import Texts
from pattern_stage.window_groups import WindowGroups
from pattern_stage.window_store import WindowStore
from pattern_stage.windows import greatest_in
from xscl.algebra.events import Aggregate, AggregateName, Function, Value


@dataclass(frozen=True, slots=True)
class _Item:
    name: AggregateName
    arguments: tuple[int, ...]
    """Places among the columns of what is kept of an event."""


@dataclass(frozen=True, slots=True)
class _Sorted:
    """Events, groups one after the other and each in the order of time, and where runs of simultaneous ones are."""

    times: Ints
    columns: list[Column]
    heads: Ints
    ends: Ints


@dataclass(frozen=True, slots=True)
class _Arrived:
    """The parts of the events of this interval, and the run of each, ascending."""

    parts: Ints
    runs: Ints


class Aggregating:
    """AGGREGATE. It has one shape, as other items would give other attributes; rows differ in input, window and since.

    Of an event in a window are kept: its time, the attributes of BY, the arguments of the aggregates, and when its
    first part ended. A row sees what began after its since. Rows that see the same have one result, computed once.
    """

    def __init__(self, definitions: Sequence[Aggregate], rows: RowVectors, texts: Texts, lineage: Lineage) -> None:
        self._definition = definition = definitions[0]
        self._rows, self._texts, self._lineage = rows, texts, lineage
        self._classes, self._groups = Classes(rows), WindowGroups(rows)
        self._last_since = -NO_BOUND
        schema = definition.source.schema
        kinds = dict(schema)
        names = [name for name, _ in schema]
        self._by = [names.index(name) for name in definition.by]
        self._are_texts = [kinds[name] == "string" for name in definition.by]
        self._values: list[Callable[[Pairs], Column]] = []
        self._items: list[_Item] = []
        for _, one in definition.items:
            places = []
            for place, argument in enumerate(one.args):
                as_is = one.name == "count" or (one.name == "argmax" and place == 0)
                value: Value = argument
                if kind_of(argument) == "string" and not as_is:
                    value = Function("number", (argument,), "number")
                places.append(len(self._by) + len(self._values))
                self._are_texts.append(kind_of(value) == "string")
                self._values.append(compile_value(value, schema, None, texts))
            self._items.append(_Item(one.name, tuple(places)))
        self._store = WindowStore([*self._are_texts, True])

    def add_rows(self, new: Ints) -> None:
        """Takes in rows that were added."""
        self._classes.add(new)
        self._groups.add(new, self._classes.of_row[new])
        self._last_since = max(self._last_since, int(self._rows.apart[new].max(initial=self._last_since)))

    def remove_rows(self, gone: Ints) -> None:
        """Forgets rows and their windows."""
        self._store.remove_rows(self._groups.remove(gone))
        self._classes.remove(gone)

    def run(self, inputs: Sequence[Flow], until: int) -> Flow:
        """Returns the aggregates of all groups and times of this interval."""
        return self.attempt(inputs, until, Room())

    def attempt(self, inputs: Sequence[Flow], until: int, room: Room) -> Flow:
        """Does the same within room. Raises Crowded."""
        (flow,) = inputs
        places, groups = self._groups.groups.of(flow.rows)
        if self._definition.over is not None:
            room.waiting -= len(groups)
            if room.waiting < 0:
                raise Crowded
        at = flow.at[places]
        events, classes = flow.events, self._groups.class_of[groups]
        columns: list[Column] = [events.values[place][at] for place in self._by]
        pairs = single_events(events, at, classes, self._classes.parameters)
        columns += [value(pairs) for value in self._values]
        columns.append(self._began(events)[at])
        found = self._aggregated(flow, at, groups, columns)
        if self._definition.over is not None:
            self._store.add(groups, events.t1[at], columns, columns[: len(self._by)])
            self._store.expire(self._groups.within, until)
        return found

    def _began(self, events: Columns) -> Ints:
        """Returns when the first parts of events ended, or, of those that began after all statements, a later time."""
        began = events.t1.copy()
        unclear = np.flatnonzero(events.t0 <= self._last_since)
        if len(unclear):
            began[unclear] = self._lineage.ends(events.parts[unclear, 0])
        return began

    def _aggregated(self, flow: Flow, at: Ints, groups: Ints, columns: Sequence[Column]) -> Flow:
        by = len(self._by)
        kept = self._store.touched(groups, columns[:by])
        groups, times = np.concatenate([kept.rows, groups]), np.concatenate([kept.times, flow.events.t1[at]])
        columns = [_both(*pair) for pair in zip(kept.columns, columns, strict=True)]
        is_new = np.arange(len(groups)) >= len(kept.rows)
        # Groups one after the other, each in the order of time. A run is what is simultaneous in a group.
        keys = numbered([groups, *(same(column) for column in columns[:by])])[1] if len(groups) else groups
        moments, ranks = np.unique(times, return_inverse=True)
        step = len(moments) + 1
        codes = keys * step + ranks
        order = np.argsort(codes, kind="stable")
        codes, times, is_new = codes[order], times[order], is_new[order]
        heads = np.flatnonzero(np.diff(codes, prepend=-1))
        ends = np.append(heads[1:], len(codes))
        run_of = np.cumsum(np.diff(codes, prepend=-1) != 0) - 1
        current = is_new[heads] if len(heads) else is_new
        heads, ends = heads[current], ends[current]
        sorted_columns = [column[order] for column in columns]
        began: Ints = sorted_columns.pop().astype(np.int64)
        # Windows: of each run one for each OVER, and of each window the rows that have it.
        run, spans = self._groups.spans.of(groups[order][heads])
        over = self._groups.over[spans] if self._definition.over is not None else np.ones(len(run), np.int64)
        first = codes[heads][run] - codes[heads][run] % step
        starts = np.searchsorted(codes, first + np.searchsorted(moments, times[heads][run] - over, "right"))
        window, rows = self._groups.members.of(spans)
        since = self._rows.apart[rows]
        whole = (-greatest_in(-began, starts, ends[run]))[window] > since
        mine = np.flatnonzero(is_new)
        arrived = _Arrived(flow.events.parts[at[order[mine] - len(kept.rows)]], (np.cumsum(current) - 1)[run_of[mine]])
        data = _Sorted(times, sorted_columns, heads, ends)
        if whole.all():
            made, numbers = self._windows(data, run, starts, arrived), window
        elif np.array_equal(began, times):
            # What a row has not seen yet is at the begin of its windows.
            seen = np.flatnonzero(times[heads][run[window]] > since)
            window, rows, since = window[seen], rows[seen], since[seen]
            begins = np.maximum(
                starts[window], np.searchsorted(codes, first[window] + np.searchsorted(moments, since, "right"))
            )
            distinct_windows, numbers = numbered([run[window], begins]) if len(window) else (window, window)
            made = self._windows(data, run[window][distinct_windows], begins[distinct_windows], arrived)
        else:
            return self._one_by_one(data, run, starts, began, (window, rows, since), arrived, mine)
        return each_once(sorted_flow(made, numbers, rows))

    def _one_by_one(
        self,
        data: _Sorted,
        run: Ints,
        starts: Ints,
        began: Ints,
        asked: tuple[Ints, Ints, Ints],
        arrived: _Arrived,
        mine: Ints,
    ) -> Flow:
        """The same, with what each `since` has not seen taken out of everything."""
        made, pairs, size = [], list[tuple[Ints, Ints]](), 0
        for since in distinct(asked[2]).tolist():
            window, rows = (part[asked[2] == since] for part in asked[:2])
            seen = began > since
            before = np.append(0, np.cumsum(seen))
            there = before[data.ends] > before[data.heads]
            runs = np.cumsum(there) - 1
            part = _Sorted(
                data.times[seen],
                [column[seen] for column in data.columns],
                before[data.heads[there]],
                before[data.ends[there]],
            )
            kept = there[run[window]]
            window, rows = window[kept], rows[kept]
            here = seen[mine]
            come = _Arrived(arrived.parts[here], runs[arrived.runs[here]])
            windows, numbers = np.unique(window, return_inverse=True)
            made.append(self._windows(part, runs[run[windows]], before[starts[windows]], come))
            pairs.append((numbers + size, rows))
            size += len(windows)
        at, rows = (np.concatenate(column) for column in zip(*pairs, strict=True))
        return each_once(sorted_flow(joined(made), at, rows))

    def _windows(self, data: _Sorted, run: Ints, starts: Ints, arrived: _Arrived) -> Columns:
        """Returns the aggregates of windows, each of which begins at a place and ends with a run."""
        heads, ends = data.heads[run], data.ends[run]
        by = len(self._by)
        values = tuple(column[heads] for column in data.columns[:by])
        values += tuple(self._computed(item, data.columns, starts, ends) for item in self._items)
        # The parts are those of the events that are simultaneous.
        parts = self._lineage.together(arrived.parts, arrived.runs) if len(data.heads) else run
        t = data.times[heads]
        return Columns(t, t, values, parts[run].reshape(-1, 1))

    def _computed(self, item: _Item, columns: Sequence[Column], starts: Ints, ends: Ints) -> Column:
        """Returns an aggregate of each of these ranges of rows."""
        if not item.arguments:
            return (ends - starts).astype(np.float64)
        arguments = [columns[place] for place in item.arguments]
        return aggregated(item.name, arguments, starts, ends, self._texts)

    def crowded(self, most: int, until: int, sees: Sees) -> Ints:
        """Returns the rows for which more than so many events are in windows that end at `until` or later. What they
        see is known here."""
        candidates = np.flatnonzero(self.waiting() > most).tolist()
        if not candidates:
            return np.zeros(0, np.int64)
        kept, found = self._store.all(), []
        for row in candidates:
            mine = (kept.rows == self._groups.of_row[row]) & (kept.times + self._rows.within[row] > until)
            if np.count_nonzero(mine & (kept.columns[-1] > self._rows.apart[row])) > most:
                found.append(row)
        return np.array(found, np.int64)

    def leave(self, rows: Ints) -> None:
        """Does nothing: what waits is no more than what comes."""

    # ------------------------------------------------------------ state

    def waiting(self) -> Ints:
        """Returns how many events are in the windows of each row."""
        groups, counts = self._groups.of_row, self._store.counts
        there = (groups >= 0) & (groups < len(counts))
        return np.where(there, counts[np.where(there, groups, 0)], 0)

    def codes(self) -> Iterable[Ints]:
        """Returns the codes of all texts in windows."""
        columns = self._store.all().columns[:-1]
        return [column.astype(np.int64) for column, text in zip(columns, self._are_texts, strict=True) if text]

    def parts(self) -> Iterable[Ints]:
        """Returns none: the parts of a result are those of its own time."""
        return ()

    def state(self) -> pa.Table:
        """Returns the windows."""
        kept = self._store.all()
        # A row of a group stands for it.
        row_of = np.zeros(int(self._groups.of_row.max(initial=0)) + 1, np.int64)
        held = np.flatnonzero(self._groups.of_row >= 0)
        row_of[self._groups.of_row[held]] = held
        columns = {"row": pa.array(row_of[kept.rows]), "t1": pa.array(kept.times), "began": pa.array(kept.columns[-1])}
        for place, (column, text) in enumerate(zip(kept.columns[:-1], self._are_texts, strict=True)):
            columns[str(place)] = saved_values(column, text, self._texts)
        return pa.table(columns)

    def restore(self, table: pa.Table, renumber: Renumber) -> None:
        """Takes over windows that were saved."""
        rows = renumber(ints(table, "row"))
        there = np.flatnonzero(rows >= 0)
        columns = [
            loaded_values(table, str(place), text, self._texts)[there] for place, text in enumerate(self._are_texts)
        ]
        columns.append(ints(table, "began")[there])
        self._store.add(self._groups.of_row[rows[there]], ints(table, "t1")[there], columns, columns[: len(self._by)])


def _both(one: Column, other: Column) -> Column:
    values: Column = np.concatenate([one, other])
    return values
