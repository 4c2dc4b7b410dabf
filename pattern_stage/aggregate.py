"""AGGREGATE: for each group and each t1 of its events, aggregates over the group's events in a window that ends then.
AGGREGATEs over one input share work: simultaneous events of equal groups become one row of measures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any, cast

import numpy as np
import pyarrow as pa

from common.arrays import Ints, Mask, distinct
from common.bounds import END
from pattern_stage import measures as sums
from pattern_stage.columns import Column, Columns, Flow, each_once, joined, number_distinct, same, sorted_flow
from pattern_stage.fan_out import Interned, grow_array
from pattern_stage.index import RowClasses, each_shape
from pattern_stage.lineage import Lineage
from pattern_stage.operators import Bounded, Crowded, MOpContext, Renumber, Room
from pattern_stage.values import Pairs, Texts, flatten_lists, ints, lists, loaded_values, saved_values
from xscl.algebra.events import Aggregate, Schema, is_made_text

FEW = 128  # fewer simultaneous events of an input row are not merged: it would cost more than it saves


@dataclass(frozen=True, slots=True)
class SimultaneousRows:
    """Rows that stand for events: input row, t1, end of the first part, number of events, grouping attributes,
    measures, parts, and whether it is one of `FEW`."""

    rows: Ints
    t1: Ints
    began: Ints
    weights: Ints
    by: Mapping[str, Column]
    measures: Mapping[sums.Measure, Column]
    parts: Ints
    few: Mask


class Simultaneous:
    """The events of an input, merged for all AGGREGATEs over it; only simultaneous ones, so nothing waits here."""

    def __init__(self, schema: Schema, texts: Texts, lineage: Lineage) -> None:
        self._schema, self._texts, self._lineage = schema, texts, lineage
        self._users: dict[int, Aggregate] = {}
        self._by: tuple[str, ...] = ()
        self._measures: dict[sums.Measure, Callable[[Pairs], Column]] = {}
        self._flow: Flow | None = None
        self._made: dict[tuple[str, ...], SimultaneousRows] = {}  # for the last flow, by grouping attributes

    def __len__(self) -> int:
        return len(self._users)

    def add(self, number: int, definition: Aggregate) -> None:
        self._users[number] = definition
        self._follow()

    def remove(self, number: int) -> None:
        del self._users[number]
        self._follow()

    def _follow(self) -> None:
        self._by = finest(self._users.values())
        wanted = dict.fromkeys(one for definition in self._users.values() for one in all_measures(definition))
        self._measures = {
            one: self._measures.get(one) or sums.compile_measure(one, self._schema, self._texts) for one in wanted
        }
        self.forget()

    def of(self, flow: Flow, by: tuple[str, ...]) -> SimultaneousRows:
        """Returns the events of a flow, merged where they agree in `by`; cached per flow."""
        if self._flow is not flow:
            self._flow, self._made = flow, {self._by: self._finest(flow)}
        by = tuple(name for name in self._by if name in by)
        if by not in self._made:
            whole = self._made[self._by]
            users = (definition for definition in self._users.values() if set(definition.by) == set(by))
            own = {one: whole.measures[one] for definition in users for one in all_measures(definition)}
            rolled_up = replace(whole, by={name: whole.by[name] for name in by}, measures=own)
            self._made[by] = self._merged(rolled_up)
        return self._made[by]

    def is_idle(self, flow: Flow) -> bool:
        """Returns whether there is nothing to share or merge: one AGGREGATE, and few events at each time."""
        return len(self._users) == 1 and _are_all_few(flow.events.t1[flow.at])

    def forget(self) -> None:
        self._flow, self._made = None, {}

    def _finest(self, flow: Flow) -> SimultaneousRows:
        names = [name for name, _ in self._schema]
        events, at = flow.events, flow.at
        pairs = Pairs(events, at, flow.rows)
        t1, began = events.t1[at], began_of(events, self._lineage)[at]
        few: Mask = np.ones(len(t1), np.bool_)
        if not _are_all_few(t1):
            _, of = number_distinct([flow.rows, t1, began])
            few = np.bincount(of)[of] < FEW
        weights, by = np.ones(len(at), np.int64), {name: events.values[names.index(name)][at] for name in self._by}
        measures = {one: value(pairs) for one, value in self._measures.items()}
        return self._merged(SimultaneousRows(flow.rows, t1, began, weights, by, measures, events.parts[at], few))

    def _merged(self, of: SimultaneousRows) -> SimultaneousRows:
        """Merges all but the few; which are few depends neither on the grouping nor on the caller."""
        many = np.flatnonzero(~of.few)
        if not len(many):
            return of
        few = np.flatnonzero(of.few)
        found = sums.merge_rows_by_key(
            [column[many] for column in (of.rows, of.t1, of.began, *map(same, of.by.values()))],
            [column[many] for column in (of.weights, *of.measures.values())],
            ["count", *(one.kind for one in of.measures)],
        )
        taken = np.append(few, many[found.firsts])
        order = np.argsort(found.of, kind="stable")
        sets = self._lineage.together(of.parts[many[order]], found.of[order])[found.of[found.firsts]]
        weights, *values = found.columns
        parts = np.full((len(sets), of.parts.shape[1]), -1, np.int64)
        parts[:, 0] = sets
        columns = of.rows[taken], of.t1[taken], of.began[taken], np.append(of.weights[few], weights.astype(np.int64))
        by = {name: column[taken] for name, column in of.by.items()}
        measures = {
            one: np.append(column[few], more).astype(np.float64)
            for (one, column), more in zip(of.measures.items(), values, strict=True)
        }
        parts = np.concatenate([of.parts[few], parts])
        return SimultaneousRows(*columns, by, measures, parts, np.arange(len(taken)) < len(few))


def _are_all_few(t1: Ints) -> bool:
    return len(t1) < FEW or bool((t1[FEW - 1 :] != t1[: len(t1) - FEW + 1]).all())


def finest(definitions: Iterable[Aggregate]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for one in definitions for name in one.by))


def all_measures(definition: Aggregate) -> list[sums.Measure]:
    return list(dict.fromkeys(measure for _, one in definition.items for measure in sums.measures_of(one)))


def began_of(events: Columns, lineage: Lineage) -> Ints:
    """Returns when the first parts of events ended; known without lineage for events without duration."""
    began = events.t1.copy()
    longer = np.flatnonzero(events.t0 < events.t1)
    if len(longer):
        began[longer] = lineage.ends(events.parts[longer, 0])
    return began


class _OpenSessions(Interned):
    group: Ints


@dataclass(frozen=True, slots=True)
class _Sorted:
    """Events by group and time; `heads` and `ends` of the runs of simultaneous ones that have an event of this
    interval; and the parts of the events of this interval, with the run of each, ascending."""

    times: Ints
    weights: Ints
    columns: list[Column]
    heads: Ints
    ends: Ints
    parts: Ints
    runs: Ints


class Aggregating(Bounded):
    """The AGGREGATE operator. It has one shape, since other items give other attributes; rows differ in input, window
    and since. State, by event in a window: time, attributes of BY, measures, and end of the first part. A row sees
    events that began after its since; rows that see the same share one result. With `shared`, simultaneous events that
    agree in BY are one, merged for other AGGREGATEs, too. A result's parts are those of its own time."""

    def __init__(self, context: MOpContext, shared: Simultaneous | None) -> None:
        super().__init__(context)
        self._definition = definition = cast(Aggregate, context.definitions[0])
        self._shared, texts = shared, context.texts
        self._classes, self._groups = RowClasses(context.rows), sums.WindowGroups(context.rows)
        schema = definition.source.schema
        kinds = dict(schema)
        self._by = [list(kinds).index(name) for name in definition.by]
        self._measures = all_measures(definition)
        self._values = [sums.compile_measure(one, schema, texts) for one in self._measures]
        self._items = [
            sums.AggregateItem(one.name, tuple(self._measures.index(measure) for measure in sums.measures_of(one)))
            for _, one in definition.items
        ]
        self._are_texts = [kinds[name] == "string" for name in definition.by]
        self._are_texts += [measure.is_text for measure in self._measures]
        self._store = sums.WindowStore([*self._are_texts, True])

    def add_rows(self, new: Ints) -> None:
        self._classes.add(new)
        self._groups.add(new, self._classes.of_row[new])

    def remove_rows(self, gone: Ints) -> None:
        self._store.remove_rows(self._groups.remove(gone))
        self._classes.remove(gone)

    def attempt(self, inputs: Sequence[Flow], until: int, room: Room) -> Flow:
        (flow,) = inputs
        shared = self._shared
        come, parts = self._each(flow) if shared is None or shared.is_idle(flow) else self._together(flow, shared)
        if self._definition.over is not None:
            room.waiting -= int(come.sizes.sum())
            if room.waiting < 0:
                raise Crowded("partial")
        found = self._aggregated(come, parts)
        if self._definition.over is not None:
            self._keep(come)
            self._store.expire(self._groups.within, until)
        return found

    def _keep(self, come: sums.WindowRows) -> None:
        self._store.add(come, len(self._by))

    def _kept(self) -> sums.WindowRows:
        """Returns the events that wait, by group of rows."""
        return self._store.all()

    def _sized(self, groups: Ints, times: Ints, weights: Ints, columns: Sequence[Column]) -> sums.WindowRows:
        sizes = np.ones(len(groups), np.int64)
        for number, places in each_shape(self._classes.made[self._groups.class_of[groups]]):
            left = self._rows.sources[number][0]
            is_made = [name in left for name in self._definition.by]
            is_made += [one.is_text and is_made_text(one.of, {"left": left}) for one in self._measures]
            for column in compress(columns, is_made):
                sizes[places] += self._texts.sizes(column[places])
        return sums.WindowRows(groups, times, weights, weights * sizes, tuple(columns))

    def _each(self, flow: Flow) -> tuple[sums.WindowRows, Ints]:
        places, groups = self._groups.groups.of(flow.rows)
        at, events = flow.at[places], flow.events
        columns: list[Column] = [events.values[place][at] for place in self._by]
        pairs = Pairs(events, at, self._groups.class_of[groups], self._classes.parameters)
        columns += [value(pairs) for value in self._values]
        columns.append(began_of(events, self._lineage)[at])
        return self._sized(groups, events.t1[at], np.ones(len(at), np.int64), columns), events.parts[at]

    def _together(self, flow: Flow, shared: Simultaneous) -> tuple[sums.WindowRows, Ints]:
        whole = shared.of(flow, self._definition.by)
        places, groups = self._groups.groups.of(whole.rows)
        columns: list[Column] = [whole.by[name][places] for name in self._definition.by]
        columns += [whole.measures[one][places] for one in self._measures]
        columns.append(whole.began[places])
        return self._sized(groups, whole.t1[places], whole.weights[places], columns), whole.parts[places]

    def _aggregated(self, come: sums.WindowRows, parts: Ints) -> Flow:
        by = len(self._by)
        kept = self._store.touched(come.rows, come.columns[:by])
        groups, times = np.concatenate([kept.rows, come.rows]), np.concatenate([kept.times, come.times])
        weights = np.concatenate([kept.weights, come.weights])
        columns: list[Any] = [np.concatenate(pair) for pair in zip(kept.columns, come.columns, strict=True)]
        is_new = np.arange(len(groups)) >= len(kept.rows)
        # Groups one after the other, each in the order of time. A run is what is simultaneous in a group.
        keys = number_distinct([groups, *(same(column) for column in columns[:by])])[1] if len(groups) else groups
        moments, ranks = np.unique(times, return_inverse=True)
        step = len(moments) + 1
        codes = keys * step + ranks
        order = np.argsort(codes, kind="stable")
        codes, times, weights, is_new = codes[order], times[order], weights[order], is_new[order]
        is_head = np.diff(codes, prepend=-1) != 0
        heads, run_of = np.flatnonzero(is_head), np.cumsum(is_head) - 1
        ends = np.append(heads[1:], len(codes))
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
        whole = (-sums.greatest_in(-began, starts, ends[run]))[window] > since
        mine = np.flatnonzero(is_new)
        mine_parts, runs = parts[order[mine] - len(kept.rows)], (np.cumsum(current) - 1)[run_of[mine]]
        data = _Sorted(times, weights, sorted_columns, heads, ends, mine_parts, runs)
        if whole.all():
            made, numbers = self._windows(data, run, starts), window
        elif np.array_equal(began, times):
            # What a row has not seen yet is at the begin of its windows.
            seen = np.flatnonzero(times[heads][run[window]] > since)
            window, rows, since = window[seen], rows[seen], since[seen]
            seen_from = np.searchsorted(codes, first[window] + np.searchsorted(moments, since, "right"))
            begins = np.maximum(starts[window], seen_from)
            distinct_windows, numbers = number_distinct([run[window], begins]) if len(window) else (window, window)
            made = self._windows(data, run[window][distinct_windows], begins[distinct_windows])
        else:
            return self._one_by_one(data, run, starts, began, (window, rows, since), mine)
        return each_once(sorted_flow(made, numbers, rows))

    def _one_by_one(
        self, data: _Sorted, run: Ints, starts: Ints, began: Ints, asked: tuple[Ints, Ints, Ints], mine: Ints
    ) -> Flow:
        """Like `_windows`, for rows whose `since` excludes some events of windows."""
        made, pairs, size = [], list[tuple[Ints, Ints]](), 0
        for since in distinct(asked[2]).tolist():
            window, rows = (part[asked[2] == since] for part in asked[:2])
            seen = began > since
            before = np.append(0, np.cumsum(seen))
            there = before[data.ends] > before[data.heads]
            runs, here = np.cumsum(there) - 1, seen[mine]
            events = data.times[seen], data.weights[seen], [column[seen] for column in data.columns]
            bounds = before[data.heads[there]], before[data.ends[there]]
            part = _Sorted(*events, *bounds, data.parts[here], runs[data.runs[here]])
            kept = there[run[window]]
            window, rows = window[kept], rows[kept]
            windows, numbers = np.unique(window, return_inverse=True)
            made.append(self._windows(part, runs[run[windows]], before[starts[windows]]))
            pairs.append((numbers + size, rows))
            size += len(windows)
        at, rows = (np.concatenate(column) for column in zip(*pairs, strict=True))
        return each_once(sorted_flow(joined(made), at, rows))

    def _windows(self, data: _Sorted, run: Ints, starts: Ints) -> Columns:
        heads, ends = data.heads[run], data.ends[run]
        by = len(self._by)
        values = tuple(column[heads] for column in data.columns[:by])
        measured = data.columns[by:]
        totals = sums.totals_of(data.weights, measured, self._measures)
        values += tuple(sums.computed(item, measured, totals, starts, ends, self._texts) for item in self._items)
        t, parts = data.times[heads], run
        if len(data.heads):
            # The parts are those of the events that are simultaneous: one, or a set that was made together, or more.
            parts = data.parts[np.flatnonzero(np.diff(data.runs, prepend=-1)), 0]
            if data.parts.shape[1] > 1 or not np.array_equal(parts[data.runs], data.parts[:, 0]):
                parts = self._lineage.together(data.parts, data.runs)
        return Columns(t, t, values, parts[run].reshape(-1, 1))

    def crowded(self, until: int) -> Ints:
        most = self._meter.limits.partial
        candidates = np.flatnonzero(self.waiting() > most).tolist()
        if not candidates:
            return np.zeros(0, np.int64)
        kept, found = self._kept(), []
        for row in candidates:
            mine = (kept.rows == self._groups.of_row[row]) & (kept.times + self._rows.within[row] > until)
            if kept.sizes[mine & (kept.columns[len(self._are_texts)] > self._rows.apart[row])].sum() > most:
                found.append(row)
        return np.array(found, np.int64)

    def waiting(self) -> Ints:
        """Returns what the events in the windows of each row count for."""
        groups, counts = self._groups.of_row, self._store.counts
        there = (groups >= 0) & (groups < len(counts))
        return np.where(there, counts[np.where(there, groups, 0)], 0)

    def codes(self) -> Iterable[Ints]:
        columns = compress(self._store.all().columns, self._are_texts)
        return [column.astype(np.int64) for column in columns]

    def state(self) -> pa.Table:
        kept = self._kept()
        # A row of a group stands for it.
        row_of = np.zeros(int(self._groups.of_row.max(initial=0)) + 1, np.int64)
        held = np.flatnonzero(self._groups.of_row >= 0)
        row_of[self._groups.of_row[held]] = held
        began, *others = kept.columns[len(self._are_texts) :]
        columns = {"row": pa.array(row_of[kept.rows]), "t1": pa.array(kept.times), "began": pa.array(began)}
        columns["events"] = pa.array(kept.weights)
        for place, (column, text) in enumerate(zip(kept.columns, self._are_texts, strict=False)):
            columns[str(place)] = saved_values(column, text, self._texts)
        if others:
            columns["parts"] = lists(others[0].astype(np.int64), np.ones(len(began), np.int64))
        return pa.table(columns)

    def restore(self, table: pa.Table, renumber: Renumber) -> None:
        super().restore(table, renumber)
        rows = renumber(ints(table, "row"))
        there = np.flatnonzero(rows >= 0)
        is_old = "events" not in table.column_names
        by = self._are_texts[: len(self._by)]
        are_texts = [*by, *sums.kept_before(self._definition)] if is_old else self._are_texts
        columns = [loaded_values(table, str(place), text, self._texts)[there] for place, text in enumerate(are_texts)]
        if is_old:
            columns[len(by) :] = sums.as_measures(self._definition, columns[len(by) :], self._measures)
        columns.append(ints(table, "began")[there])
        if "parts" in table.column_names:
            columns.append(flatten_lists(table, "parts")[0][there])
        groups, times = self._groups.of_row[rows[there]], ints(table, "t1")[there]
        weights = np.ones(len(there), np.int64) if is_old else ints(table, "events")[there]
        self._keep(self._sized(groups, times, weights, columns))


class SessionAggregating(Aggregating):
    """AGGREGATE over sessions. The rows of a group have one window and one since, so they see the same events. An open
    session is a group with values of BY; by its number, the store has its events until it is over. Behind the columns
    of AGGREGATE, the store has the number of an event's part."""

    def __init__(self, context: MOpContext, shared: Simultaneous | None) -> None:
        super().__init__(context, shared)
        self._store = sums.WindowStore([*self._are_texts, True, True])
        self._open = _OpenSessions(("group", *(f"by_{place}" for place in self._by)))
        self._ends = np.zeros(16, np.int64)  # by open session: when it is over, as far as is known
        self._since = np.zeros(16, np.int64)  # by group

    def add_rows(self, new: Ints) -> None:
        super().add_rows(new)
        groups = self._groups.of_row[new]
        self._since = grow_array(self._since, int(groups.max(initial=-1)) + 1)
        self._since[groups] = self._rows.apart[new]

    def remove_rows(self, gone: Ints) -> None:
        emptied = self._groups.remove(gone)
        every = self._open.numbers()
        over = every[np.isin(self._open.group[every], emptied)]
        self._open.free(self._open.release(np.repeat(over, self._open.count[over])))
        self._store.remove_rows(over)
        self._classes.remove(gone)

    def attempt(self, inputs: Sequence[Flow], until: int, room: Room) -> Flow:
        (flow,) = inputs
        shared = self._shared
        come, parts = self._each(flow) if shared is None or shared.is_idle(flow) else self._together(flow, shared)
        if len(parts):
            numbers = self._lineage.together(parts, np.arange(len(parts)))
            come = replace(come, columns=(*come.columns, numbers))
            come = come.take(come.columns[len(self._are_texts)] > self._since[come.rows])
            room.waiting -= int(come.sizes.sum())
            if room.waiting < 0:
                raise Crowded("partial")
            self._keep(come)
        return self._over(until)

    def _keep(self, come: sums.WindowRows) -> None:
        keys = [same(column) for column in come.columns[: len(self._by)]]
        numbers, fresh, _ = self._open.intern([come.rows, *keys])
        self._store.add(replace(come, rows=numbers), 0)
        self._ends = grow_array(self._ends, self._open.end)
        self._ends[fresh] = END
        order = np.lexsort((come.times, numbers))
        numbers, times = numbers[order], come.times[order]
        own = times + self._groups.within[come.rows[order]]
        is_first = np.diff(numbers, prepend=-1) != 0
        # By event, when the session would be over without it: an open one, or with the event before.
        ends = np.where(is_first, np.minimum(self._ends[numbers], own), np.append(0, own[:-1]))
        self._ends[numbers[is_first]] = ends[is_first]
        has_gap = np.zeros(self._open.end, np.bool_)
        has_gap[numbers[times >= ends]] = True
        goes_on = ~has_gap[numbers]  # else the session ends in this interval, and what is behind the gap begins another
        np.maximum.at(self._ends, numbers[goes_on], own[goes_on])

    def _kept(self) -> sums.WindowRows:
        kept = self._store.all()
        return replace(kept, rows=self._open.group[kept.rows])

    def _over(self, until: int) -> Flow:
        """Ends sessions, and returns their results."""
        every = self._open.numbers()
        due = every[self._ends[every] < until]
        kept = self._store.touched(due, [])
        kept = kept.take(np.isin(kept.rows, due))
        kept = kept.take(np.lexsort((kept.times, kept.rows)))
        within = self._groups.within[self._open.group[kept.rows]]
        is_first = np.diff(kept.rows, prepend=-1) != 0
        is_first |= np.diff(kept.times, prepend=0) >= within
        heads, session = np.flatnonzero(is_first), np.cumsum(is_first) - 1
        stops = np.append(heads, len(is_first))[1:]
        ends = kept.times[stops - 1] + within[stops - 1]
        over = ends < until
        self._ends[kept.rows[heads]] = ends  # of several of a group, that of the last one stays
        if len(due):
            going_on = kept.take(~over[session])
            self._open.free(self._open.release(kept.rows[over[session]]))
            self._store.remove_rows(due)
            self._store.add(going_on, 0)
        # The rows of each session that is over.
        heads, stops, ends = heads[over], stops[over], ends[over]
        by, measured = len(self._by), kept.columns[len(self._by) : len(self._are_texts)]
        totals = sums.totals_of(kept.weights, measured, self._measures)
        values = tuple(column[heads] for column in kept.columns[:by])
        values += tuple(sums.computed(item, measured, totals, heads, stops, self._texts) for item in self._items)
        parts = kept.columns[-1][over[session]].astype(np.int64).reshape(-1, 1)
        if len(heads):
            parts = self._lineage.together(parts, np.repeat(np.arange(len(heads)), stops - heads)).reshape(-1, 1)
        of, spans = self._groups.spans.of(self._open.group[kept.rows[heads]])
        places, rows = self._groups.members.of(spans)
        made = Columns(kept.times[heads], ends, values, parts)
        return each_once(sorted_flow(made, of[places], rows))

    def due(self) -> int | None:
        every = self._open.numbers()
        return int(self._ends[every].min()) if len(every) else None

    def waiting(self) -> Ints:
        every = self._open.numbers()
        counts = np.zeros(max(int(self._groups.of_row.max(initial=0)) + 1, 1), np.int64)
        np.add.at(counts, self._open.group[every], grow_array(self._store.counts, self._open.end)[every])
        return np.where(self._groups.of_row >= 0, counts[self._groups.of_row], 0)

    def crowded(self, until: int) -> Ints:
        return np.flatnonzero(self.waiting() > self._meter.limits.partial)

    def parts(self) -> Iterable[Ints]:
        return [self._store.all().columns[-1].astype(np.int64)]
