"""Saves and loads the state of patterns: a table row per key, with rows of the m-op, event numbers, and JSON text. The
text has events, trails, lists of entries and cells, in process-independent form; shared items are written once and
referred to by number."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from pattern_stage.columns import column_of
from pattern_stage.operators import Renumber
from pattern_stage.pattern.cells import EVERY, Cell, EventTuple, Root, Trail, TrailEntry, mask_to_rows
from pattern_stage.pattern.program import FIRST_SLOT
from pattern_stage.pattern.rows import Register
from pattern_stage.values import Texts, flatten_lists, lists, loaded_values, saved_values
from xscl.algebra.events import Kind

_KindsOf = Mapping[int, Sequence[Kind]]
"""The kinds of the values of events, by input."""


@dataclass(slots=True)
class SavedPart:
    """A part as text, with its rows and event numbers."""

    data: str
    rows: list[int]
    numbers: list[int]


class PartWriter:
    def __init__(self, texts: Texts, kinds: _KindsOf, streams: Sequence[int]) -> None:
        """`streams` has the input of each variable."""
        self._texts, self._kinds, self._streams = texts, kinds, streams
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
        found: list[int] = mask_to_rows(rows).tolist()
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
        trails: list[Any] = []
        lists: list[Any] = []
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
            trail.segments = [
                (self.lists[entries], begin, end, self.mask(rows)) for entries, begin, end, rows in segments
            ]

    def event(self, number: int) -> EventTuple:
        found = self._events.get(number)
        if found is None:
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
            case "sum":
                return tuple(value)
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
    columns = {}
    for place, kind in enumerate(kinds):
        null: Any = -1 if kind == "string" else np.nan
        values = column_of([key[place] if key else null for key, _ in saved], are_texts=kind == "string")
        columns[f"key_{place}"] = saved_values(values, kind == "string", texts)
    return pa.table(
        {
            "rows": _lists([part.rows for _, part in saved]),
            "parts": _lists([part.numbers for _, part in saved]),
            "data": pa.array([part.data for _, part in saved], pa.string()),
            **columns,
        }
    )


def is_keyed(table: pa.Table) -> bool:
    """Whether a table of state is one of `keyed_table`."""
    return "data" in table.column_names


def keyed_rows(table: pa.Table, kinds: Sequence[Kind], texts: Texts, renumber: Renumber) -> Iterator[Loaded]:
    """Yields the table rows with any rows of the m-op left."""
    if not len(table):
        return
    columns = [
        loaded_values(table, f"key_{place}", kind == "string", texts).tolist() for place, kind in enumerate(kinds)
    ]
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
