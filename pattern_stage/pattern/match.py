"""Matches of a pattern, as objects and columns, and the state of a key. Also NON OVERLAPPING, which reports matches of
a key that begin after the last reported one; and a total order of events."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from common import limits
from common.arrays import Ints
from common.bounds import BEGINNING, INFINITE
from common.limits import LimitName
from pattern_stage.columns import Column, column_of, spread
from pattern_stage.fan_out import grow_array
from pattern_stage.lineage import Lineage
from pattern_stage.operators import Meter
from pattern_stage.pattern.cells import Cell, CellTable, EventTuple, expanded, mask_to_rows, rows_to_mask
from pattern_stage.pattern.rows import KeyValues
from templates.witness import plain_node
from xscl.algebra.events import Kind


class MatchCandidate(NamedTuple):
    """A candidate to report: when it is known, its begin and end, rows, missing letters, number of events, key values,
    and a function for the numbers of its events, variable by variable."""

    known: int
    t0: int
    t1: int
    rows: int
    errors: int
    length: int
    key: Any
    ids: Callable[[], Sequence[int]]


class Apart:
    """NON OVERLAPPING: the end of the last reported match of each key, by rows."""

    def __init__(self, order: Callable[[Iterable[int]], dict[int, Any]], *, whole: bool) -> None:
        """`order` gives sort keys of event numbers. `whole`: all keys count as one."""
        self._order, self._whole = order, whole
        self.ends: dict[Any, list[tuple[int, int]]] = {}  # ends of matches, each with its rows, by key
        self._swept = 0

    def chosen(self, matches: Sequence[MatchCandidate], longest: int) -> list[int]:
        """Returns for each match, given all that become known at some times, the rows to report it for. Matches begin
        `longest` before they are known, or later."""
        if len(self.ends) > 2 * self._swept + 100:
            low = matches[0].known - longest
            self.ends = {key: some for key, some in self.ends.items() if any(end >= low for end, _ in some)}
            self._swept = len(self.ends)
        found = [0] * len(matches)
        ranks = [(one.known, one.errors, one.t0, -one.length) for one in matches]
        for _, equal in groupby(sorted(range(len(matches)), key=ranks.__getitem__), key=ranks.__getitem__):
            left = [place for place in equal if self._left(matches[place])]
            if len(left) > 1:
                order = self._order({number for place in left for number in matches[place].ids()})
                left.sort(key=lambda place: [order[number] for number in matches[place].ids()])
            for place in left:
                one = matches[place]
                found[place] = rows = self._left(one)
                if rows:
                    key = () if self._whole else one.key
                    others = [(end, of & ~rows) for end, of in self.ends.get(key, ()) if of & ~rows]
                    self.ends[key] = [*others, (one.t1, rows)]
        return found

    def _left(self, one: MatchCandidate) -> int:
        rows = one.rows
        for end, of in self.ends.get(() if self._whole else one.key, ()):
            if one.t0 <= end:
                rows &= ~of
        return rows

    def adopt(self, key: Any, ends: Iterable[tuple[int, int]]) -> None:
        """Adopts saved ends, of other rows than there are already."""
        kept = [(end, rows) for end, rows in ends if rows]
        if kept:
            key = () if self._whole else key
            self.ends[key] = [*self.ends.get(key, ()), *kept]

    def without(self, rows: int) -> None:
        kept = {key: [(end, of & ~rows) for end, of in some if of & ~rows] for key, some in self.ends.items()}
        self.ends = {key: some for key, some in kept.items() if some}


class Tally:
    """Counts by sets of rows, and finds rows with more than `most`; inspects single rows only if one may have."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._counts: dict[int, int] = {}
        self.room = most  # lower bound of what may be counted before a row has too much; may be negative

    def add(self, rows: int, amount: int = 1) -> None:
        """Counts `amount` for each of these rows."""
        self._counts[rows] = self._counts.get(rows, 0) + amount
        self.room -= amount

    def clear(self) -> None:
        self._counts, self.room = {}, self._most

    def over(self) -> int:
        """Returns, and forgets, the rows with more than `most`."""
        if self.room >= 0:
            return 0
        counts = self.by_row()
        found = rows_to_mask(np.flatnonzero(counts > self._most))
        if found:
            before, self._counts = self._counts, {}
            for mask, amount in before.items():
                self.add(mask & ~found, amount)
            self._counts.pop(0, None)
        self.room = self._most - int(counts[counts <= self._most].max(initial=0))
        return found

    def by_row(self) -> Ints:
        found = np.zeros(max((mask.bit_length() for mask in self._counts), default=0), np.int64)
        for mask, amount in self._counts.items():
            found[mask_to_rows(mask)] += amount
        return found


class BlockSteps:
    """The steps that each row has taken in its block: consecutive times at which it took any."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._times = self._steps = np.zeros(0, np.int64)

    def add(self, counts: Ints) -> int:
        """Counts the steps of one time by row, and returns the rows that have taken too many."""
        rows = np.flatnonzero(counts)
        self._grow(len(counts))
        ended = rows[self._times[rows] == limits.BLOCK]
        self._times[ended] = self._steps[ended] = 0
        self._times[rows] += 1
        self._steps[rows] += counts[rows]
        return rows_to_mask(rows[self._steps[rows] > self._most])

    def remove_rows(self, gone: int) -> None:
        rows = mask_to_rows(gone)
        rows = rows[rows < len(self._times)]
        self._times[rows] = self._steps[rows] = 0

    def saved(self) -> Iterator[tuple[int, int, int]]:
        """Yields times, steps, and the rows that have taken these."""
        pairs = np.stack([self._times, self._steps], axis=1)
        for times, steps in np.unique(pairs[self._times > 0], axis=0).tolist():
            yield times, steps, rows_to_mask(np.flatnonzero((pairs == (times, steps)).all(axis=1)))

    def adopt(self, times: int, steps: int, mask: int) -> None:
        rows = mask_to_rows(mask)
        self._grow(int(rows.max(initial=-1)) + 1)
        self._times[rows], self._steps[rows] = times, steps

    def _grow(self, size: int) -> None:
        self._times, self._steps = grow_array(self._times, size), grow_array(self._steps, size)


class KeptRows(ABC):
    """What waits for some rows. `window` is the greatest span of a match."""

    def __init__(self, window: int, meter: Meter) -> None:
        self.window, self._meter = window, meter
        self.rows = 0
        self.passed: int = BEGINNING  # the time up to which it was advanced
        self._gone = 0  # the rows that exceeded a limit in this epoch
        self._steps = Tally(meter.limits.work)
        self.block = BlockSteps(meter.limits.work_of_block)

    def add_rows(self, new: int, window: int) -> None:
        """Adds rows whose greatest window this is."""
        self.rows |= new
        self.window = max(self.window, window)

    def remove_rows(self, gone: int) -> None:
        """Removes rows, and state for them alone."""
        self.rows &= ~gone
        self.block.remove_rows(gone)

    def exceed(self, rows: int, time: int, bound: LimitName) -> None:
        """Stops work for rows that exceed a limit."""
        if rows:
            self._meter.tell(mask_to_rows(rows), time, bound)
            self.rows &= ~rows
            self._gone |= rows

    def spend(self, rows: int, steps: int, time: int) -> int:
        """Counts steps for rows in an epoch, and stops those that take too many. Returns them."""
        self._steps.add(rows, steps)
        over = self._steps.over()
        self.exceed(over, time, "work")
        return over

    def end_steps(self, time: int, counts: Ints | None = None) -> None:
        """Ends the steps of an epoch, or those counted by row."""
        if counts is not None:
            self.exceed(rows_to_mask(np.flatnonzero(counts > self._meter.limits.work)), time, "work")
        if self._meter.limits.work_of_block < INFINITE:
            self.exceed(self.block.add(self._steps.by_row() if counts is None else counts), time, "work_of_block")
        self._steps.clear()

    @abstractmethod
    def waiting(self) -> Iterable[tuple[int, int]]:
        """Returns sets of rows, each with the number of what waits for them."""

    def due(self) -> int | None:
        """Returns the time before which nothing becomes known without another event; None if nothing waits for time."""
        return None


class SetMatch(NamedTuple):
    known: int
    t0: int
    t1: int
    rows: int
    bindings: list[list[EventTuple]]  # the events of each variable
    key: KeyValues

    @property
    def events(self) -> list[EventTuple]:
        return [event for some in self.bindings for event in some]

    def candidate(self) -> MatchCandidate:
        ids = [event[2] for event in self.events]
        return MatchCandidate(self.known, self.t0, self.t1, self.rows, 0, len(ids), self.key, lambda: ids)


class KeyState:
    __slots__ = ("absent", "tables")

    def __init__(self, hashed: Sequence[Collection[int]], negations: int) -> None:
        self.tables: list[CellTable[Cell]] = [CellTable(registers) for registers in (*hashed, hashed[-1])]
        """The cells of each state, and, last, matches that a negated event may still kill."""
        self.absent: list[list[tuple[EventTuple, int]]] = [[] for _ in range(negations)]
        """Events of negated variables to compare matches with, each with its rows, by t1."""

    def is_empty(self) -> bool:
        return not (any(self.tables) or any(self.absent))


def event_order(lineage: Lineage, numbers: Iterable[int]) -> dict[int, Any]:
    """Returns sort keys of events, equal in every store: t1, stream, document, nodes, or a composed event's digest."""
    found = lineage.origins(np.array(list(numbers), np.int64))
    times = Counter(one.t1 for one in found.values())
    ids = lineage.document_ids({one.docid for one in found.values() if one.docid >= 0 and times[one.t1] > 1})
    return {
        number: (one.t1, one.stream, ids.get(one.docid), [plain_node(node) for node in one.nodes], one.digest)
        for number, one in found.items()
    }


@dataclass(frozen=True, slots=True)
class Items:
    """The events of a variable of matches, match by match; `starts` has the offsets."""

    events: Sequence[EventTuple]
    starts: Ints

    def column(self, slot: int, places: Ints, kind: Kind) -> Column:
        """Returns a value of the events at these places."""
        events = self.events
        return column_of([events[place][slot] for place in places.tolist()], are_texts=kind == "string")


class MatchList(ABC):
    """Matches as columns. Variables are numbered without negated ones."""

    count: int
    t0: Ints
    t1: Ints

    @abstractmethod
    def sizes(self, variable: int) -> Ints:
        """Returns the number of a variable's events in each match."""

    @abstractmethod
    def ends(self, variable: int, slot: int, kind: Kind, *, last: bool) -> Column:
        """Returns a value of each match's first or last event of a variable."""

    @abstractmethod
    def events(self, variable: int) -> Items: ...

    def parts(self, variable: int, lineage: Lineage) -> Ints:
        """Returns the number of each match's set of events of a variable."""
        items = self.events(variable)
        places, at = spread(items.starts, self.sizes(variable))
        numbers = np.fromiter((items.events[place][2] for place in places.tolist()), np.int64, len(places))
        return lineage.together(numbers.reshape(-1, 1), at) if len(at) > self.count else numbers


class MatchTable(MatchList):
    """Matches with listed events. `at` and `rows` are pairs of match and row."""

    def __init__(self, matches: Sequence[SetMatch], variables: int) -> None:
        self.count = len(matches)
        self.t0, self.t1, self.known = (
            np.fromiter((getattr(match, name) for match in matches), np.int64, len(matches))
            for name in ("t0", "t1", "known")
        )
        self.at, self.rows = expanded([match.rows for match in matches])
        self._events = [event for match in matches for event in match.events]
        sizes = [len(some) for match in matches for some in match.bindings]
        self._sizes = np.array(sizes, np.int64).reshape(len(matches), variables)
        self._starts = np.cumsum(self._sizes).reshape(self._sizes.shape) - self._sizes

    def sizes(self, variable: int) -> Ints:
        return self._sizes[:, variable]

    def ends(self, variable: int, slot: int, kind: Kind, *, last: bool) -> Column:
        places = self._starts[:, variable] + (self._sizes[:, variable] - 1 if last else 0)
        return self.events(variable).column(slot, places, kind)

    def events(self, variable: int) -> Items:
        return Items(self._events, self._starts[:, variable])
