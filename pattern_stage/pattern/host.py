"""What all PATTERNs do alike: rows in stores, intervals, NON OVERLAPPING, and the saved state. A pattern has one shape.
Its rows are in groups, each with a store of what waits for them: rows that can share runs or events are one group. The
state is a table row per key, with rows of the m-op, event numbers, and JSON text. The text has events, trails, lists of
entries and cells, in process-independent form; shared items are written once and referred to by number."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import groupby
from operator import or_
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from common.arrays import Ints, distinct
from pattern_stage.columns import NULL_TEXT, Flow, column_of, each_once, joined_flow
from pattern_stage.definition import AnyPattern, sees_before
from pattern_stage.definition import inputs as inputs_of
from pattern_stage.operators import MOpContext, PatternOp, Renumber
from pattern_stage.pattern.cells import EVERY, Cell, EventTuple, Root, Trail, TrailEntry, mask_to_rows, rows_to_mask
from pattern_stage.pattern.found import Bundle, BundleMatches, batch_bundles, expand_bundles
from pattern_stage.pattern.match import Apart, KeptRows, MatchCandidate, event_order
from pattern_stage.pattern.program import FIRST_SLOT, EventSlots
from pattern_stage.pattern.rows import Arrival, EventRole, KeyValues, Register, RoleEvents, RowTest
from pattern_stage.pattern.trails import KeptTrails
from pattern_stage.values import Texts, flatten_lists, lists, loaded_values, saved_values
from xscl.algebra.events import EventCondition, Kind, value_kind

_KindsOf = Mapping[int, Sequence[Kind]]  # the kinds of the values of events, by input


@dataclass(slots=True)
class SavedPart:
    """A part as text, with its rows and event numbers."""

    data: str
    rows: list[int]
    numbers: list[int]


class PartWriter:
    def __init__(self, texts: Texts, kinds: _KindsOf, streams: Sequence[int], alive: int) -> None:
        """`streams` has the input of each variable. Rows that are not `alive` are left out: trails still have them."""
        self._texts, self._kinds, self._streams, self._alive = texts, kinds, streams, alive
        self._events: dict[int, tuple[int, list[Any]]] = {}
        """By the number of an event, its number in the text, and its times and values."""
        self._trails: dict[int, tuple[int, Trail]] = {}
        self._lists: dict[int, tuple[int, list[TrailEntry]]] = {}
        self._rows: set[int] = set()

    def event(self, stream: int, event: EventTuple) -> int:
        if event[2] not in self._events:
            values = [
                self._texts.text(value) if kind == "string" else value
                for value, kind in zip(event[FIRST_SLOT:], self._kinds.get(stream, ()), strict=True)
            ]
            self._events[event[2]] = len(self._events), [event[0], event[1], *values]
        return self._events[event[2]][0]

    def mask(self, rows: int) -> list[int] | None:
        if rows == EVERY:
            return None
        found: list[int] = mask_to_rows(rows & self._alive).tolist()
        self._rows.update(found)
        return found

    def trail(self, trail: Trail) -> int:
        """Returns the number of a trail, written once."""
        return self._trails.setdefault(id(trail), (len(self._trails), trail))[0]

    def entries(self, entries: list[TrailEntry]) -> int:
        """Returns the number of a list of entries, written once."""
        return self._lists.setdefault(id(entries), (len(self._lists), entries))[0]

    def cells(self, cells: Mapping[Any, Cell], layout: Sequence[Register]) -> list[Any]:
        return [
            [
                map_register_texts(layout, cell.registers, self._texts.text),
                self.entries(cell.entries),
                [[t1, t0, self.mask(rows)] for t1, t0, rows in cell.kills],
            ]
            for cell in cells.values()
        ]

    def done(self, **more: Any) -> SavedPart:
        trails, lists = list[Any](), list[Any]()
        while len(trails) < len(self._trails) or len(lists) < len(self._lists):
            trails += [self._written_trail(trail) for _, trail in list(self._trails.values())[len(trails) :]]
            lists += [
                [
                    [t1, self.trail(trail), place, self.mask(rows), start, oldest, top, self.mask(reach)]
                    for t1, trail, place, rows, start, oldest, top, reach in entries
                ]
                for _, entries in list(self._lists.values())[len(lists) :]
            ]
        events = [written for _, written in self._events.values()]
        data = json.dumps({"events": events, "trails": trails, "lists": lists, **more}, separators=(",", ":"))
        return SavedPart(data, sorted(self._rows), list(self._events))

    def _written_trail(self, trail: Trail) -> list[Any]:
        stream = self._streams[trail.component]
        return [
            trail.component,
            [self.event(stream, event) for event in trail.events],
            self.mask(trail.rows),
            trail.forgotten,
            [[place, start, bound, self.mask(rows)] for place, start, bound, rows in trail.roots],
            [[self.entries(entries), begin, end, self.mask(rows)] for entries, begin, end, rows in trail.segments],
        ]


class PartReader:
    def __init__(
        self, row: Loaded, texts: Texts, kinds: _KindsOf, streams: Sequence[int], absent_streams: Sequence[int]
    ) -> None:
        self.data: dict[str, Any] = json.loads(row.data)
        self._rows, self._numbers, self._texts, self._kinds = row.rows, row.numbers, texts, kinds
        self._events: dict[int, EventTuple] = {}
        of = {event: streams[component] for component, events, *_ in self.data["trails"] for event in events}
        for stream, some in zip(absent_streams, self.data.get("absent", ()), strict=False):
            of.update({event: stream for event, _ in some})
        self._stream_of = of
        self.trails = [
            Trail(component, list(map(self.event, events)), self.mask(rows), forgotten)
            for component, events, rows, forgotten, _, _ in self.data["trails"]
        ]
        self.lists = [
            [
                TrailEntry(t1, self.trails[trail], place, self.mask(rows), start, oldest, top, self.mask(reach))
                for t1, trail, place, rows, start, oldest, top, reach in entries
            ]
            for entries in self.data["lists"]
        ]
        for trail, (*_, roots, segments) in zip(self.trails, self.data["trails"], strict=True):
            trail.roots = [Root(place, start, bound, self.mask(rows)) for place, start, bound, rows in roots]
            trail.segments = [(self.lists[of], begin, end, self.mask(rows)) for of, begin, end, rows in segments]

    def event(self, number: int) -> EventTuple:
        if (found := self._events.get(number)) is None:
            t0, t1, *values = self.data["events"][number]
            read = [
                self._texts.code(value) if kind == "string" else value
                for value, kind in zip(values, self._kinds.get(self._stream_of[number], ()), strict=True)
            ]
            found = self._events[number] = (t0, t1, self._numbers[number], *read)
        return found

    def event_of(self, number: int, stream: int) -> EventTuple:
        self._stream_of[number] = stream
        return self.event(number)

    def mask(self, rows: list[int] | None) -> int:
        if rows is None:
            return EVERY
        return reduce(or_, (1 << self._rows[row] for row in rows if row in self._rows), 0)

    def cells(
        self, saved: Sequence[Any], layout: Sequence[Register], name: Callable[[tuple[Any, ...]], tuple[Any, ...]]
    ) -> Iterator[Cell]:
        """Yields the cells of a state that have rows left."""
        for values, entries, kills in saved:
            registers = tuple(map_register_texts(layout, values, self._texts.code))
            cell = Cell(name(registers), registers)
            cell.entries = self.lists[entries]
            cell.without(0)
            cell.kills = [(t1, t0, self.mask(rows)) for t1, t0, rows in kills]
            if cell.entries:
                yield cell


def map_register_texts(layout: Sequence[Register], values: Sequence[Any], text: Callable[[Any], Any]) -> list[Any]:
    """Returns the values of registers with their texts mapped; tuples may have become lists."""

    def mapped(register: Register, value: Any) -> Any:
        is_text = register.kinds[:1] == ("string",)
        match register.kind:
            case "first" | "last" | "min" | "max":
                return text(value) if is_text else value
            case "sum" | "numbers":
                return tuple(value)
            case "distinct":
                members = [text(one) if is_text else one for one in value]
                return members if isinstance(value, frozenset) else frozenset(members)
            case "argmax":
                return value[0], text(value[1]) if is_text else value[1]
            case "every" | "each":
                kinds = [part.kind == "string" for part in register.parts]
                tuples = [
                    tuple(text(one) if is_one else one for one, is_one in zip(some, kinds, strict=True))
                    for some in value
                ]
                return tuples if isinstance(value, frozenset) else frozenset(tuples)
        return value

    return [mapped(register, value) for register, value in zip(layout, values, strict=True)]


class Loaded(NamedTuple):
    """A row of the table; `rows` maps saved rows to current ones."""

    key: tuple[Any, ...]
    data: str
    numbers: list[int]
    rows: dict[int, int]


def keyed_table(saved: Sequence[tuple[tuple[Any, ...], SavedPart]], kinds: Sequence[Kind], texts: Texts) -> pa.Table:
    """Returns a table of parts and keys of these kinds; the empty key stands for all."""
    if not saved:
        return pa.table({})
    columns = {
        "rows": _lists([part.rows for _, part in saved]),
        "parts": _lists([part.numbers for _, part in saved]),
        "data": pa.array([part.data for _, part in saved], pa.string()),
    }
    for place, kind in enumerate(kinds):
        null: Any = -1 if kind == "string" else np.nan
        values = column_of([key[place] if key else null for key, _ in saved], are_texts=kind == "string")
        columns[f"key_{place}"] = saved_values(values, kind == "string", texts)
    return pa.table(columns)


def is_keyed(table: pa.Table) -> bool:
    """Whether a table of state is one of `keyed_table`."""
    return "data" in table.column_names


def keyed_rows(table: pa.Table, kinds: Sequence[Kind], texts: Texts, renumber: Renumber) -> Iterator[Loaded]:
    """Yields the table rows with any rows of the m-op left."""
    if not len(table):
        return
    columns = [loaded_values(table, f"key_{at}", kind == "string", texts).tolist() for at, kind in enumerate(kinds)]
    keys = list(zip(*columns, strict=True)) if columns else [()] * len(table)
    rows, row_sizes = flatten_lists(table, "rows")
    numbers, sizes = flatten_lists(table, "parts")
    row_ends, ends = np.cumsum(row_sizes)[:-1], np.cumsum(sizes)[:-1]
    parts = np.split(rows, row_ends), np.split(renumber(rows), row_ends), np.split(numbers, ends)
    for key, text, before, now, mine in zip(keys, table["data"].to_pylist(), *parts, strict=True):
        known = {old: new for old, new in zip(before.tolist(), now.tolist(), strict=True) if new >= 0}
        if known:
            yield Loaded(key, text, mine.tolist(), known)


def _lists(values: Sequence[Sequence[int]]) -> pa.Array:
    sizes = np.array([len(one) for one in values], np.int64)
    return lists(np.array([one for some in values for one in some], np.int64), sizes)


S = TypeVar("S", bound=KeptRows)
T = TypeVar("T", bound=KeptTrails)
F = TypeVar("F")

Epochs = Sequence[tuple[int, Sequence[Arrival]]]  # the times of an interval, each with its events


class PatternHost(PatternOp, Generic[S, F]):
    _by_window, _by_since = True, False
    """Whether each window has its own store, else runs use the greatest window of their store; and each since."""

    def __init__(self, context: MOpContext, streams: Sequence[int] = (), absent_streams: Sequence[int] = ()) -> None:
        """`streams` has the input of each variable whose events are in trails, `absent_streams` of each negated one."""
        super().__init__(context)
        pattern: AnyPattern = context.definitions[0]
        self._streams, self._absent_streams, self._index = streams, absent_streams, context.index
        self._schemas = [schema for _, schema in sorted(inputs_of(pattern), key=lambda one: int(one[0]))]
        self._keys = pattern.keys
        self._key_kinds = [dict(self._schemas[0])[name] for name in pattern.keys]
        self._is_apart, self._sees_before = pattern.apart, sees_before(pattern)
        self._stores: dict[Any, S] = {}
        self._apart: dict[Any, Apart] = {}
        self._whole = False  # whether all keys count as one for NON OVERLAPPING
        self._numbers: set[int] = set()
        self._row_tests: Sequence[RowTest] = ()
        self._since: list[tuple[int, int]] = []

    def _take_roles(
        self, conditions: Iterable[tuple[int, Sequence[EventCondition]]], slots: EventSlots, *, all_events: bool = False
    ) -> None:
        """Takes the stream and conditions of each role of events, and the values of events that are needed."""
        roles = [EventRole(stream, self._schemas[stream], of, self._texts, self._index) for stream, of in conditions]
        self._static_tests = [test for role in roles for test in role.tests]
        self._arrivals = RoleEvents(self._schemas, self._keys, roles, self._texts, slots.values, all_events=all_events)
        self._kinds: dict[int, list[Kind]] = {stream: list(map(value_kind, of)) for stream, of in slots.values.items()}

    def _groups(self, rows: Ints) -> Iterable[tuple[int, int]]:
        """Returns each row's group: window, and since where rows that share a store must have seen the same."""
        nothing = np.zeros(len(rows), np.int64)
        windows = self._rows.within[rows] if self._by_window else nothing
        since = self._rows.apart[rows] if self._by_since else nothing
        return zip(windows.tolist(), since.tolist(), strict=True)

    @abstractmethod
    def _new_store(self, window: int) -> S:
        """Returns the store of a group whose first row has this window."""

    def add_rows(self, new: Ints) -> None:
        self._numbers.update(new.tolist())
        for test in self._static_tests:
            test.add_rows(new, self._rows)
        grouped = defaultdict[tuple[int, int], list[int]](list)
        for row, group in zip(new.tolist(), self._groups(new), strict=True):
            grouped[group].append(row)
        for group, some in sorted(grouped.items()):
            mine = np.array(some, np.int64)
            if group not in self._stores:
                self._stores[group] = self._new_store(int(self._rows.within[mine[0]]))
                if self._is_apart:
                    self._apart[group] = Apart(self._order, whole=self._whole)
            self._stores[group].add_rows(rows_to_mask(mine), int(self._rows.within[mine].max()))
        if self._sees_before:
            for time in distinct(self._rows.apart[new]).tolist():
                self._since.append((time, rows_to_mask(new[self._rows.apart[new] == time])))
        self._follow()

    def remove_rows(self, gone: Ints) -> None:
        self._numbers.difference_update(gone.tolist())
        mask = rows_to_mask(gone)
        for test in self._static_tests:
            test.remove_rows(gone)
        for group, store in list(self._stores.items()):
            store.remove_rows(mask)
            if not store.rows:
                del self._stores[group]
                self._apart.pop(group, None)
            elif group in self._apart:
                self._apart[group].without(mask)
        self._since = [(time, rows & ~mask) for time, rows in self._since if rows & ~mask]
        self._follow()

    def _follow(self) -> None:
        numbers = np.array(sorted(self._numbers), np.int64)
        for test in self._row_tests:
            test.follow(self._rows, numbers)

    def run(self, inputs: Sequence[Flow], until: int) -> Flow:
        every = rows_to_mask(np.array(sorted(self._numbers), np.int64))
        epochs = list(self._arrivals.epochs(inputs, every, self._since))
        self._since = [(time, rows) for time, rows in self._since if time >= until]
        found = [one for group, store in self._stores.items() for one in self._of_store(group, store, epochs, until)]
        return self._results(found)

    @abstractmethod
    def _of_store(self, group: Hashable, store: S, epochs: Epochs, until: int) -> Iterable[F]:
        """Returns what becomes known of the rows of a store before `until`."""

    @abstractmethod
    def _results(self, all_found: Sequence[F]) -> Flow:
        """Returns what was found as results."""

    def _order(self, numbers: Iterable[int]) -> dict[int, Any]:
        return event_order(self._lineage, numbers)

    def due(self) -> int | None:
        times = (store.due() for store in self._stores.values())
        return min((time for time in times if time is not None), default=None)

    def waiting(self) -> Ints:
        counts = np.zeros(max(self._numbers, default=-1) + 1, np.int64)
        for store in self._stores.values():
            for mask, count in store.waiting():
                counts[mask_to_rows(mask)] += count
        return counts

    @abstractmethod
    def _events(self, store: S) -> Iterator[tuple[int, EventTuple]]:
        """Yields the events that a store keeps, each with its input."""

    @abstractmethod
    def _codes(self, store: S) -> Iterable[Any]:
        """Returns the key values of a store, and the codes that it keeps beside events."""

    def codes(self) -> Iterable[Ints]:
        for test in self._static_tests:
            yield from test.codes()
        texts = {
            stream: [FIRST_SLOT + place for place, kind in enumerate(kinds) if kind == "string"]
            for stream, kinds in self._kinds.items()
        }
        known = [value for apart in self._apart.values() for key in apart.ends for value in key]
        for store in self._stores.values():
            known += self._codes(store)
            for stream, event in self._events(store):
                known += [event[slot] for slot in texts.get(stream, ())]
        found = {code for code in known if isinstance(code, int)}  # numbers are floats
        yield np.array(sorted(found - {NULL_TEXT}), np.int64)

    def parts(self) -> Iterable[Ints]:
        yield np.array([event[2] for store in self._stores.values() for _, event in self._events(store)], np.int64)

    def state(self) -> pa.Table:
        """Returns the state: a table row per key, and for ends of reported matches."""
        saved: list[tuple[KeyValues, SavedPart]] = []
        for group, store in self._stores.items():
            saved += self._saved(store)
            if spent := list(store.block.saved()):
                writer = self._writer(store)
                saved.append(((), writer.done(spent=[(times, steps, writer.mask(of)) for times, steps, of in spent])))
            if group in self._apart:
                for key, ends in self._apart[group].ends.items():
                    writer = self._writer(store)
                    saved.append((key, writer.done(ends=[[end, writer.mask(of)] for end, of in ends])))
        return keyed_table(saved, self._key_kinds, self._texts)

    def restore(self, table: pa.Table, renumber: Renumber) -> None:
        for row in keyed_rows(table, self._key_kinds, self._texts, renumber):
            (group,) = self._groups(np.array([next(iter(row.rows.values()))]))
            reader = PartReader(row, self._texts, self._kinds, self._streams, self._absent_streams)
            if "ends" in reader.data:
                self._apart[group].adopt(row.key, [(end, reader.mask(of)) for end, of in reader.data["ends"]])
            elif "spent" in reader.data:
                for times, steps, spent in reader.data["spent"]:
                    self._stores[group].block.adopt(times, steps, reader.mask(spent))
            else:
                self._restore(self._stores[group], row.key, reader)

    def _writer(self, store: S) -> PartWriter:
        return PartWriter(self._texts, self._kinds, self._streams, store.rows)

    @abstractmethod
    def _saved(self, store: S) -> Iterator[tuple[KeyValues, SavedPart]]:
        """Yields the parts of a store, each with its key."""

    @abstractmethod
    def _restore(self, store: S, key: KeyValues, reader: PartReader) -> None:
        """Restores a part."""


class BundleHost(PatternHost[T, BundleMatches]):
    """A pattern whose matches are found in bundles."""

    _settles: bool  # whether the results of an epoch must be known before the next
    _nothing: Flow  # the results of no matches

    @abstractmethod
    def _step(self, store: T, time: int, arrivals: Sequence[Arrival]) -> list[Bundle]:
        """Processes the events of an epoch. Returns what became known since the previous one, and in it."""

    @abstractmethod
    def _flow(self, found: BundleMatches) -> Flow:
        """Returns matches as results."""

    def _checked(self, store: T, found: BundleMatches) -> BundleMatches:
        """Returns the matches to choose among, of those of an epoch."""
        return found

    def _tell(self, store: T, matches: Sequence[MatchCandidate], chosen: Sequence[int]) -> None:
        """Called with the rows for which each match is reported."""

    def _of_store(self, group: Hashable, store: T, epochs: Epochs, until: int) -> Iterator[BundleMatches]:
        store.begin()
        bundles: list[Bundle] = []
        for time, arrivals in epochs:
            if self._settles:
                yield from self._settled(group, store, store.pass_until(time))
            bundles += self._step(store, time, arrivals)
            if self._settles:
                yield from self._settled(group, store, bundles)
                bundles = []
        bundles += store.pass_until(until)
        if self._settles:
            yield from self._settled(group, store, bundles)
        else:
            for some in batch_bundles(bundles):
                yield expand_bundles(some, distinct=self._distinct)

    def _events(self, store: T) -> Iterator[tuple[int, EventTuple]]:
        for trail in store.trails():
            yield from ((self._streams[trail.component], event) for event in trail.events)
        for part in store.parts.values():
            for stream, some in zip(self._absent_streams, part.absent, strict=True):
                yield from ((stream, event) for event, _ in some)

    @property
    def _distinct(self) -> bool:
        return len(self._stores) > 1

    def _settled(self, group: Hashable, store: T, bundles: Iterable[Bundle]) -> Iterator[BundleMatches]:
        apart = self._apart.get(group)
        for _, some in groupby(bundles, key=lambda one: one.ending.known):
            found = self._checked(store, expand_bundles(list(some), distinct=self._distinct))
            if apart is not None and len(found.at):
                candidates = found.candidates()
                chosen = apart.chosen(candidates, store.window)
                self._tell(store, candidates, chosen)
                found = found.with_rows(chosen)
            yield found

    def _results(self, all_found: Sequence[BundleMatches]) -> Flow:
        flow = joined_flow([self._flow(self._in_window(one)) for one in all_found if len(one.at)], self._nothing)
        return each_once(flow) if self._distinct else flow

    def _in_window(self, found: BundleMatches) -> BundleMatches:
        if self._by_window:
            return found
        return found.only((found.table.t1 - found.table.t0)[found.at] <= self._rows.within[found.rows])
