"""The protocol of m-ops, operators of many statements at once, each of them one of its rows, with limits per row; and
the stateless ones: σ, π and ∪. A limit bounds what may wait for a row, or what it finds in an epoch, that is, at one
time. A row that exceeds one is reported with the epoch and dropped before the memory is taken; its statements have no
results from then on. An interval runs as a whole if no row can exceed a limit in it, else it is halved, down to single
epochs: since the events of an epoch arrive together, results do not depend on how intervals are cut."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from common.arrays import Ints, Mask, distinct
from common.bounds import INFINITE
from common.limits import UNLIMITED, Excess, LimitName, Quota, note_excess
from pattern_stage.clauses import split_condition, static_clauses
from pattern_stage.columns import Column, Columns, Flow, Stretches, each_once, joined_flow, number_distinct
from pattern_stage.fan_out import RowReaders
from pattern_stage.index import RowClasses, StaticIndex, each_shape
from pattern_stage.lineage import Lineage
from pattern_stage.plan import Rows
from pattern_stage.values import Pairs, Texts, compile_condition, compile_value
from xscl.algebra.events import Schema


class Meter:
    """The limits of an m-op, and the rows that exceeded one since last taken."""

    def __init__(self, limits: Quota = UNLIMITED) -> None:
        self.limits = limits
        self._exceeded: dict[int, Excess] = {}

    def tell(self, rows: Ints, time: int, bound: LimitName) -> None:
        """Reports rows that exceed a limit in an epoch; the first report counts."""
        for row in rows.tolist():
            note_excess(self._exceeded, row, Excess(time, bound))

    def taken(self) -> dict[int, Excess]:
        """Returns and clears the rows that exceeded a limit."""
        found, self._exceeded = self._exceeded, {}
        return found


Renumber = Callable[[Ints], Ints]  # maps row numbers of a saved state to current ones, -1 for removed rows


Sees = Callable[[int, Ints], Mask]
"""Which events a row's statements see, given the row and the numbers of the events' first parts."""


@dataclass(frozen=True, slots=True)
class MOpContext:
    """What an m-op consists of, and runs with. `definitions` are of one kind; more may be added. `indexed`: an index
    finds static clauses. `hashed`: one dynamic equality of a condition is hashed (Cayuga's AI index). `merged`: runs of
    a PATTERN with the same memory are merged; otherwise they are as in the paper's basic algorithm."""

    definitions: Sequence[Any]
    rows: Rows
    texts: Texts
    lineage: Lineage
    meter: Meter
    sees: Sees
    indexed: bool = True
    hashed: bool = True
    merged: bool = True

    def index(self, schema: Schema, texts: Texts) -> StaticIndex:
        return StaticIndex(schema, texts, hashed=self.indexed)


class PatternOp(ABC):
    """An m-op. Its results do not depend on how events are cut into intervals. By itself, it has no state."""

    def __init__(self, context: MOpContext) -> None:
        self._definitions, self._rows, self._texts = context.definitions, context.rows, context.texts
        self._lineage, self._meter, self._sees = context.lineage, context.meter, context.sees

    @abstractmethod
    def run(self, inputs: Sequence[Flow], until: int) -> Flow:
        """Returns the results with t1 before `until`, given all events of its inputs since the last `until`."""

    @abstractmethod
    def add_rows(self, new: Ints) -> None:
        """Adds rows. They do not see events before this interval."""

    @abstractmethod
    def remove_rows(self, gone: Ints) -> None:
        """Removes rows and their state. Their numbers may be reused."""

    def waiting(self) -> Ints:
        """Returns the number of waiting instances of each row. Rows past the end have none."""
        return np.zeros(0, np.int64)

    def due(self) -> int | None:
        """Returns the time before which nothing becomes known without another event; None if nothing waits for time."""
        return None

    def codes(self) -> Iterable[Ints]:
        """Returns the codes of all its texts, except its rows', for `Texts.keep`."""
        return ()

    def parts(self) -> Iterable[Ints]:
        """Returns the numbers of the events behind its state; -1 for none."""
        return ()

    def state(self) -> pa.Table:
        """Returns the state: texts as strings, parts as event numbers, rows as numbered now."""
        return pa.table({})

    def restore(self, table: pa.Table, renumber: Renumber) -> None:  # noqa: B027  # some operators have no state
        """Restores a state, perhaps of another process, of an m-op with the same definitions."""


class Crowded(Exception):
    """An operator ran out of room for what `bound` limits; its state is unchanged. `rows` are those that exceed it
    already, if the interval was one epoch."""

    def __init__(self, bound: LimitName, rows: Ints | None = None) -> None:
        super().__init__("too much is made of an interval")
        self.bound: LimitName = bound
        self.rows: Ints = np.zeros(0, np.int64) if rows is None else rows


@dataclass(slots=True)
class Room:
    """Bounds an operator in an interval: instances that may wait, results, and comparisons. `epoch` is the common time
    of all events, if any. `over` gets the rows that take too many steps at a time."""

    waiting: int = INFINITE
    found: int = INFINITE
    compared: int = INFINITE
    epoch: int | None = None
    over: list[tuple[int, Ints]] = field(default_factory=list)


FOUND = 1 << 22  # number of results produced between checks of the limit per row

COMPARED = 1 << 26  # number of comparisons between checks of the limit per row


class Bounded(PatternOp):
    """An operator that runs within the limits of a meter, and reports rows there that exceed them."""

    _spare = 0  # lower bound of what can still wait before a row could exceed the limit

    @abstractmethod
    def attempt(self, inputs: Sequence[Flow], until: int, room: Room) -> Flow:
        """Like `run`. Raises Crowded without enough room."""

    @abstractmethod
    def crowded(self, until: int) -> Ints:
        """Returns the rows with too many visible waiting items, each in its own window, for ends from `until` on."""

    def sizes(self, flow: Flow) -> Ints | None:
        """Returns what each of these results counts for; None if that is one."""
        return None

    def leave(self, rows: Ints) -> None:
        """Stops rows that are about to be removed, and drops state of theirs that could outgrow its input."""

    def restore(self, table: pa.Table, renumber: Renumber) -> None:
        self._spare = 0

    def run(self, inputs: Sequence[Flow], until: int) -> Flow:
        if self._meter.limits == UNLIMITED:
            return self.attempt(inputs, until, Room())
        found = list(self._halved(inputs, until))
        flow = found[0] if len(found) == 1 else joined_flow(found, found[0])
        self._tell_crowded(flow)
        return flow

    def _halved(self, inputs: Sequence[Flow], until: int) -> Iterator[Flow]:
        flow = self._attempt(inputs, until)
        if flow is not None:
            yield flow
            return
        times = np.unique(np.concatenate([one.events.t1 for one in inputs]))
        if len(times) == 1:
            yield self._epoch(inputs, int(times[0]))
            # So that instances expire, and sessions end.
            yield self.attempt([_split(one, until)[1] for one in inputs], until, Room())
            return
        cut = int(times[len(times) // 2])
        before, behind = zip(*(_split(one, cut) for one in inputs), strict=True)
        yield from self._halved(before, cut)
        yield from self._halved(behind, until)

    def _attempt(self, inputs: Sequence[Flow], until: int, *, again: bool = False) -> Flow | None:
        room = Room(max(self._spare, 0), FOUND, COMPARED)
        try:
            flow = self._within(inputs, until, room)
        except Crowded as crowded:
            if again or crowded.bound != "partial":
                return None
            # Perhaps less waits than there is known of.
            self._spare = self._meter.limits.partial - int(self.waiting().max(initial=0))
            return self._attempt(inputs, until, again=True)
        self._spare = min(self._spare, room.waiting)
        return flow

    def _within(self, inputs: Sequence[Flow], until: int, room: Room) -> Flow:
        if self._meter.limits.work == INFINITE:
            room.compared = INFINITE
        flow = self.attempt(inputs, until, room)
        for time, rows in room.over:
            self._meter.tell(rows, time, "work")
        return flow

    def _epoch(self, inputs: Sequence[Flow], time: int) -> Flow:
        """Runs one epoch to its end, then counts what waits. Room grows as long as no row has too many results."""
        found, compared = FOUND, COMPARED
        while True:
            try:
                flow = self._within(inputs, time + 1, Room(INFINITE, found, compared, time))
                break
            except Crowded as crowded:
                self._tell(crowded.rows, time, crowded.bound)
                if crowded.bound == "work":
                    compared *= 4
                else:
                    found *= 4
        self._tell(self.crowded(time + 1), time, "partial")
        self._spare = 0
        return flow

    def _tell(self, rows: Ints, time: int, bound: LimitName) -> None:
        if len(rows):
            self._meter.tell(rows, time, bound)
            self.leave(rows)

    def _tell_crowded(self, flow: Flow) -> None:
        most = self._meter.limits.matches
        if most == INFINITE:
            return
        sizes = self.sizes(flow)
        if (len(flow.events) if sizes is None else sizes.sum()) <= most:
            return
        if sizes is None:
            sizes = np.ones(len(flow), np.int64)
        times, ranks, at_once = np.unique(flow.events.t1, return_inverse=True, return_counts=True)
        if at_once.max() <= most and sizes.max(initial=1) == 1:
            return
        codes, which = np.unique(flow.rows * len(times) + ranks[flow.at], return_inverse=True)
        counts = np.bincount(which, sizes, len(codes))
        for code in codes[counts > most].tolist():
            row, rank = divmod(code, len(times))
            mine = (flow.rows == row) & (ranks[flow.at] == rank)
            if sizes[mine][self._sees(row, flow.events.parts[flow.at[mine], 0])].sum() > most:
                self._meter.tell(np.array([row]), int(times[rank]), "matches")


def _split(flow: Flow, cut: int) -> tuple[Flow, Flow]:
    """Returns what ends before a time, and the rest."""
    events = int(np.searchsorted(flow.events.t1, cut))
    pairs = int(np.searchsorted(flow.at, events))
    before = Flow(flow.events.take(slice(events)), flow.at[:pairs], flow.rows[:pairs])
    return before, Flow(flow.events.take(slice(events, None)), flow.at[pairs:] - events, flow.rows[pairs:])


_DEAR = 16  # number of rows per event above which the static index is used

_BLOCK = 1 << 20  # approximate number of pairs of event and row tested at once


class Filtering(PatternOp):
    """σ: the events of input rows that satisfy a condition. Any conditions are shapes of one m-op."""

    def __init__(self, context: MOpContext) -> None:
        super().__init__(context)
        self._index = context.index
        self._conditions: dict[int, Callable[[Pairs], Mask]] = {}
        self._classes = RowClasses(context.rows)
        self._readers, self._of_class = RowReaders(), RowReaders()
        self._static: StaticIndex | None = None

    def add_rows(self, new: Ints) -> None:
        fresh = self._classes.add(new)
        self._readers.add(new, self._rows.left[new])
        self._of_class.add(new, self._classes.of_row[new])
        if self._static is not None:
            self._index_classes(self._static, fresh)
        elif int(self._readers.counts(distinct(self._rows.left[new])).max(initial=0)) > _DEAR:
            self._make_index()

    def remove_rows(self, gone: Ints) -> None:
        self._readers.remove(gone)
        self._of_class.remove(gone)
        emptied = self._classes.remove(gone)
        if self._static is not None:
            self._static.remove(emptied)

    def codes(self) -> Iterable[Ints]:
        return () if self._static is None else self._static.used()

    def run(self, inputs: Sequence[Flow], until: int) -> Flow:
        (flow,) = inputs
        if len(flow) == 0:
            return flow.compact()
        if flow.stretches is not None and len(classes := self._classes.numbers()) == 1:
            at = np.arange(len(flow.events))
            pairs = Pairs(flow.events, at, np.repeat(classes, len(at)), self._classes.parameters)
            held = self._condition(int(self._classes.shape[classes[0]]))(pairs)
            kept = flow.stretches.only(held[flow.stretches.at])
            return Flow.of(flow.events, kept.through(*self._readers.of(kept.rows))).compact()
        each = int(self._readers.counts(flow.rows).sum())
        if each > _DEAR * len(flow):
            flow = flow.compact()
            static = self._make_index() if self._static is None else self._static
            places, classes = static.hits(flow.events)
            if int(self._of_class.counts(classes).sum()) < each:
                of, rows = self._of_class.of(classes)
                at, left = places[of], self._rows.left[rows]
                width = max(int(flow.rows.max()), int(left.max(initial=0))) + 1
                if len(flow) != len(flow.events) or width > 1:
                    held = np.isin(at * width + left, flow.at * width + flow.rows)
                    at, rows = at[held], rows[held]
                return Flow(flow.events, at, rows).compact()
        if each <= min(_DEAR * len(flow), _BLOCK) and not flow.rows.any():
            rows = self._readers.of(flow.rows[:1])[1]
            if len(rows) > 1:
                return Flow.of(flow.events, self._sets(flow.events, flow.at, rows)).compact()
        blocks = np.cumsum(self._readers.counts(flow.rows)) // _BLOCK
        bounds = [0, *(np.flatnonzero(np.diff(blocks)) + 1).tolist(), len(flow)]
        found = [self._held(flow.only(np.arange(*ends))) for ends in pairwise(bounds)]
        at, rows = (np.concatenate(column) for column in zip(*found, strict=True))
        return Flow(flow.events, at, rows).compact()

    def _held(self, flow: Flow) -> tuple[Ints, Ints]:
        places, rows = self._readers.of(flow.rows)
        at = flow.at[places]
        held = self._test(flow.events, at, self._classes.of_row[rows])
        return at[held], rows[held]

    def _test(self, events: Columns, at: Ints, classes: Ints) -> Mask:
        """Returns which events satisfy the condition of the class beside them."""
        held = np.zeros(len(at), np.bool_)
        for shape, chosen in each_shape(self._classes.shape[classes]):
            pairs = Pairs(events, at[chosen], classes[chosen], self._classes.parameters)
            held[chosen] = self._condition(shape)(pairs)
        return held

    def _sets(self, events: Columns, at: Ints, rows: Ints) -> Stretches:
        """Returns which of a few rows hold for each of these events. A set of rows that several events have is one."""
        classes = np.tile(self._classes.of_row[rows], len(at))
        bits = np.packbits(self._test(events, np.repeat(at, len(rows)), classes).reshape(len(at), -1), 1)
        codes, which = np.unique(bits.view(f"u{bits.shape[1]}").ravel(), return_inverse=True)
        held = np.unpackbits(codes.view(np.uint8).reshape(len(codes), -1), 1, len(rows))
        sizes = held.sum(1, np.int64)
        stretches = Stretches(at, (np.cumsum(sizes) - sizes)[which], sizes[which], rows[held.nonzero()[1]])
        return stretches if sizes.all() else stretches.only(stretches.sizes > 0)

    def _condition(self, shape: int) -> Callable[[Pairs], Mask]:
        """The condition of a shape, compiled on first use: few are needed with an index."""
        if (found := self._conditions.get(shape)) is None:
            one = self._definitions[shape]
            found = self._conditions[shape] = compile_condition(one.condition, one.schema, None, self._texts)
        return found

    def _make_index(self) -> StaticIndex:
        static = self._static = self._index(self._definitions[0].schema, self._texts)
        self._index_classes(static, self._classes.numbers())
        return static

    def _index_classes(self, static: StaticIndex, fresh: Ints) -> None:
        for shape, places in each_shape(self._classes.shape[fresh]):
            clauses = static_clauses(split_condition(self._definitions[shape].condition, "left"))
            targets = fresh[places]
            static.add(targets, clauses, tuple(column[targets] for column in self._classes.parameters))
        static.settle()


class Selecting(PatternOp):
    """π, ρ and α: the events of input rows with new attributes. Shapes have one result schema."""

    def __init__(self, context: MOpContext) -> None:
        super().__init__(context)
        self._items: list[list[Callable[[Pairs], Column]]] = []
        self._classes = RowClasses(context.rows)
        self._readers = RowReaders()

    def add_rows(self, new: Ints) -> None:
        for definition in self._definitions[len(self._items) :]:
            schema = definition.source.schema
            self._items.append([compile_value(value, schema, None, self._texts) for _, value in definition.items])
        self._classes.add(new)
        self._readers.add(new, self._rows.left[new])

    def remove_rows(self, gone: Ints) -> None:
        self._readers.remove(gone)
        self._classes.remove(gone)

    def run(self, inputs: Sequence[Flow], until: int) -> Flow:
        (flow,) = inputs
        places, rows = self._readers.of(flow.rows)
        at, classes = flow.at[places], self._classes.of_row[rows]
        width = max(self._classes.end, 1)
        # An event is computed once for all rows of a class. Numbered in the order of `at`, they stay sorted by t1.
        heads, made = number_distinct([at * width + classes]) if len(at) else (at, at)
        sources, of = at[heads], classes[heads]
        values: list[Column] = [
            np.zeros(len(heads), np.int64) if kind == "string" else np.zeros(len(heads))
            for _, kind in self._definitions[0].schema
        ]
        for shape, chosen in each_shape(self._classes.shape[of]):
            pairs = Pairs(flow.events, sources[chosen], of[chosen], self._classes.parameters)
            for column, item in zip(values, self._items[shape], strict=True):
                column[chosen] = item(pairs)
        events = flow.events
        made_events = Columns(events.t0[sources], events.t1[sources], tuple(values), events.parts[sources])
        order = np.argsort(made, kind="stable")
        return each_once(Flow(made_events, made[order], rows[order]))


class Uniting(PatternOp):
    """∪: the events of either input's rows, without duplicates."""

    def __init__(self, context: MOpContext) -> None:
        super().__init__(context)
        self._readers = RowReaders(), RowReaders()

    def add_rows(self, new: Ints) -> None:
        for readers, sources in zip(self._readers, (self._rows.left, self._rows.right), strict=True):
            readers.add(new, sources[new])

    def remove_rows(self, gone: Ints) -> None:
        for readers in self._readers:
            readers.remove(gone)

    def run(self, inputs: Sequence[Flow], until: int) -> Flow:
        found = []
        for flow, readers in zip(inputs, self._readers, strict=True):
            places, rows = readers.of(flow.rows)
            found.append(Flow(flow.events, flow.at[places], rows).compact())
        return each_once(joined_flow(found, found[0]))
