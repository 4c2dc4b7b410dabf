"""What waits for events of one key as text that any process can take over: events, trails, lists of entries, cells.

What is shared is written once, and referred to by its number.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pattern_stage.matching.cells import Cell
from pattern_stage.matching.masks import rows_of
from pattern_stage.matching.nodes import EVERY, Entry, Event, Root, Trail
from pattern_stage.matching.registers import Register
from pattern_stage.matching.slots import FIRST_SLOT
from pattern_stage.values import Texts
from xscl.algebra.events import Kind

Values = Mapping[int, Sequence[Kind]]
"""The kinds of the values of events, by input."""


@dataclass(slots=True)
class SavedPart:
    """A part as text, with the rows and the numbers of events in it."""

    data: str
    rows: list[int]
    numbers: list[int]


class PartWriter:
    """Writes one part."""

    def __init__(self, texts: Texts, kinds: Values, streams: Sequence[int]) -> None:
        """`streams` has the input of each variable."""
        self._texts, self._kinds, self._streams = texts, kinds, streams
        self._numbers: list[int] = []
        self._events: dict[int, int] = {}
        self._written: list[list[Any]] = []
        self._trails: dict[int, int] = {}
        self._trail_list: list[Trail] = []
        self._lists: dict[int, int] = {}
        self._list_list: list[list[Entry]] = []
        self._rows: set[int] = set()

    def event(self, stream: int, event: Event) -> int:
        """Returns the number of an event."""
        found = self._events.get(event[2])
        if found is None:
            found = self._events[event[2]] = len(self._written)
            values = [
                self._texts.text(value) if kind == "string" else value
                for value, kind in zip(event[FIRST_SLOT:], self._kinds.get(stream, ()), strict=True)
            ]
            self._written.append([event[0], event[1], *values])
            self._numbers.append(event[2])
        return found

    def mask(self, rows: int) -> list[int] | None:
        """Returns rows; None for all."""
        if rows == EVERY:
            return None
        found: list[int] = rows_of(rows).tolist()
        self._rows.update(found)
        return found

    def trail(self, trail: Trail) -> int:
        """Returns the number of a trail."""
        found = self._trails.get(id(trail))
        if found is None:
            found = self._trails[id(trail)] = len(self._trail_list)
            self._trail_list.append(trail)
        return found

    def entries(self, entries: list[Entry]) -> int:
        """Returns the number of a list of entries."""
        found = self._lists.get(id(entries))
        if found is None:
            found = self._lists[id(entries)] = len(self._list_list)
            self._list_list.append(entries)
        return found

    def registers(self, layout: Sequence[Register], values: Sequence[Any]) -> list[Any]:
        """Returns registers."""
        return [changed(register, value, self._texts.text) for register, value in zip(layout, values, strict=True)]

    def cells(self, cells: Mapping[Any, Cell], layout: Sequence[Register]) -> list[Any]:
        """Returns the cells of a state."""
        return [
            [
                self.registers(layout, cell.registers),
                self.entries(cell.entries),
                [[t1, t0, self.mask(rows)] for t1, t0, rows in cell.kills],
            ]
            for cell in cells.values()
        ]

    def done(self, **more: Any) -> SavedPart:
        """Returns what was written, with what else there is."""
        trails: list[Any] = []
        lists: list[Any] = []
        while len(trails) < len(self._trail_list) or len(lists) < len(self._list_list):
            trails += [self._written_trail(trail) for trail in self._trail_list[len(trails) :]]
            for entries in self._list_list[len(lists) :]:
                lists.append(
                    [
                        [
                            *(one.t1, self.trail(one.trail), one.place, self.mask(one.rows)),
                            *(one.start, one.oldest, one.top, self.mask(one.reach)),
                        ]
                        for one in entries
                    ]
                )
        data = json.dumps({"events": self._written, "trails": trails, "lists": lists, **more}, separators=(",", ":"))
        return SavedPart(data, sorted(self._rows), self._numbers)

    def _written_trail(self, trail: Trail) -> list[Any]:
        stream = self._streams[trail.component]
        return [
            trail.component,
            [self.event(stream, event) for event in trail.events],
            self.mask(trail.rows),
            trail.forgotten,
            [[root.place, root.start, root.bound, self.mask(root.rows)] for root in trail.roots],
            [[self.entries(entries), begin, end, self.mask(rows)] for entries, begin, end, rows in trail.segments],
        ]


class PartReader:
    """Reads one part."""

    def __init__(
        self,
        saved: str,
        numbers: Sequence[int],
        rows: Mapping[int, int],
        texts: Texts,
        kinds: Values,
        streams: Sequence[int],
        absent_streams: Sequence[int],
    ) -> None:
        """`rows` says which row each of the saved ones is now; those that are gone are not there."""
        self.data: dict[str, Any] = json.loads(saved)
        self._rows, self._texts, self._kinds = rows, texts, kinds
        self._numbers = numbers
        self._events: dict[int, Event] = {}
        of = {event: streams[component] for component, events, *_ in self.data["trails"] for event in events}
        for at, some in enumerate(self.data.get("absent", ())):
            of.update({event: absent_streams[at] for event, _ in some})
        self._stream_of = of
        self.trails = [self._trail(*one[:5]) for one in self.data["trails"]]
        """All trails."""
        self.lists = [[self._entry(*one) for one in entries] for entries in self.data["lists"]]
        for trail, (*_, segments) in zip(self.trails, self.data["trails"], strict=True):
            trail.segments = [
                (self.lists[entries], begin, end, self.mask(rows)) for entries, begin, end, rows in segments
            ]

    def _trail(self, component: int, events: list[int], rows: Any, forgotten: int, roots: list[Any]) -> Trail:
        trail = Trail(component, [self.event(one) for one in events], self.mask(rows), forgotten)
        trail.roots = [Root(place, start, bound, self.mask(of)) for place, start, bound, of in roots]
        return trail

    def _entry(
        self, t1: int, trail: int, place: int, rows: Any, start: int, oldest: int, top: int, reach: Any
    ) -> Entry:
        return Entry(t1, self.trails[trail], place, self.mask(rows), start, oldest, top, self.mask(reach))

    def event(self, number: int) -> Event:
        """Returns an event by its number."""
        found = self._events.get(number)
        if found is None:
            t0, t1, *values = self.data["events"][number]
            read = [
                self._texts.code(value) if kind == "string" else value
                for value, kind in zip(values, self._kinds.get(self._stream_of[number], ()), strict=True)
            ]
            found = self._events[number] = (t0, t1, self._numbers[number], *read)
        return found

    def event_of(self, number: int, stream: int) -> Event:
        """Returns an event of an input by its number."""
        self._stream_of[number] = stream
        return self.event(number)

    def mask(self, rows: list[int] | None) -> int:
        """Returns rows as they are numbered now."""
        if rows is None:
            return EVERY
        found = 0
        for row in rows:
            if row in self._rows:
                found |= 1 << self._rows[row]
        return found

    def registers(self, layout: Sequence[Register], values: Sequence[Any]) -> tuple[Any, ...]:
        """Returns registers."""
        return tuple(
            [changed(register, value, self._texts.code) for register, value in zip(layout, values, strict=True)]
        )

    def cells(self, saved: Sequence[Any], layout: Sequence[Register]) -> dict[tuple[Any, ...], Cell]:
        """Returns the cells of a state that have any rows left."""
        found: dict[tuple[Any, ...], Cell] = {}
        for values, entries, kills in saved:
            registers = self.registers(layout, values)
            cell = Cell(registers, registers)
            cell.entries = self.lists[entries]
            cell.without(0)
            cell.kills = [(t1, t0, self.mask(rows)) for t1, t0, rows in kills]
            if cell.entries:
                found[registers] = cell
        return found


def changed(register: Register, value: Any, text: Callable[[Any], Any]) -> Any:
    """Returns a register's value with its texts changed; tuples may have become lists."""
    is_text = [kind == "string" for kind in register.kinds]
    match register.kind:
        case "first" | "last" | "min" | "max":
            return text(value) if is_text[0] else value
        case "sum":
            return tuple(value)
        case "argmax":
            return value[0], text(value[1]) if is_text[0] else value[1]
        case "every" | "each":
            kinds = [part.kind == "string" for part in register.parts]
            tuples = [
                tuple(text(one) if is_one else one for one, is_one in zip(some, kinds, strict=True)) for some in value
            ]
            return tuples if isinstance(value, frozenset) else frozenset(tuples)
    return value


def codes(register: Register, value: Any) -> list[int]:
    """Returns the codes of the texts in a register's value."""
    found: list[int] = []
    changed(register, value, found.append)
    return found
