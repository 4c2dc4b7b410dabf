"""PATTERN with ALL MATCHES TOGETHER: aggregates of the matches that end with one event, without enumerating them. There
may be exponentially many; as in GRETA (Poppe, Lei, Rundensteiner, Maier), aggregates are propagated along the graph of
events instead. A node is an event bound to a variable, with the registers of the runs that end there. Its predecessors
are the first nodes of cells, up to the last one that ends before it begins.

Each event ends a window of its own, in which fewer first events are left, so sums have to forget runs that began with
the others. For this, a checkpoint divides the nodes into two parts. A recent node has the sums of runs that began since
the checkpoint and, by cell of the earlier part, of the ways that lead from there to the node. For the earlier nodes,
the ways to the checkpoint are summed backwards, once, for each first event that may expire. The sums of a window are
the product of both. When a window begins after the checkpoint, the checkpoint moves."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from itertools import chain, compress, groupby
from math import inf, nan
from operator import add, itemgetter
from typing import Any, Literal, NamedTuple, cast

import numpy as np

from common.arrays import Ints
from common.bounds import BEGINNING, END, INFINITE
from pattern_stage.columns import Column, Columns, Flow, bare_columns, column_of, each_once, no_flow, sorted_flow
from pattern_stage.operators import Meter, MOpContext
from pattern_stage.pattern.cells import CellTable, EventTuple
from pattern_stage.pattern.host import Epochs, PartReader, PatternHost, SavedPart
from pattern_stage.pattern.match import KeptRows
from pattern_stage.pattern.program import CompiledEdge, EventSlots, PatternProgram, aggregated_args
from pattern_stage.pattern.rows import Arrival, KeyValues, arrivals_by_key
from pattern_stage.plan import Rows
from pattern_stage.values import Pairs, Texts, compile_condition, compile_value, every_event
from xscl.algebra import events as algebra
from xscl.algebra.values import number_text

Sums = list[list[Any]]
"""By measure, a number for each column: what began since the checkpoint, then by cell of the earlier part. The first
measure is the number of runs; sums are multiples of 2 to the power of -1074, as all numbers are."""

_BITS = 1074
_GREATEST = float.fromhex("0x1.fffffffffffffp+1023")


TrendMeasureKind = Literal["events", "known", "sum", "min", "max"]


class TrendMeasure(NamedTuple):
    """What is summed over runs. Of the events of a variable (its place among those without ~): their number, the number
    of values at `slot` that are not NULL, their sum, the least or the greatest."""

    kind: TrendMeasureKind
    variable: int
    slot: int = -1
    is_text: bool = False

    def of(self, event: EventTuple) -> Any:
        """Returns what an event adds; None for nothing."""
        if self.kind == "events":
            return 1
        value = event[self.slot]
        if value < 0 if self.is_text else value != value:
            return None
        if self.kind == "known":
            return 1
        if self.kind != "sum":
            return value
        numerator, denominator = value.as_integer_ratio()
        return numerator << (_BITS + 1 - denominator.bit_length())


class SumAlgebra:
    """Sums over sets of runs: of either of two sets, of runs with one more event, of all ways through two parts."""

    def __init__(self, measures: Sequence[TrendMeasure]) -> None:
        self._measures = measures
        self._by_variable: dict[int, list[tuple[int, TrendMeasure]]] = {}
        for place, one in enumerate(measures, 1):
            self._by_variable.setdefault(one.variable, []).append((place, one))
        self._adding: list[Any] = [add, *({"min": min, "max": max}.get(one.kind, add) for one in measures)]
        self._nothing: list[Any] = [0, *({"min": inf, "max": -inf}.get(one.kind, 0) for one in measures)]

    def nothing(self, columns: int) -> Sums:
        return [[zero] * columns for zero in self._nothing]

    def one(self, columns: int, column: int) -> Sums:
        """Returns the sums of one run without events, in a column."""
        found = self.nothing(columns)
        found[0][column] = 1
        return found

    def either(self, one: Sums, other: Sums) -> Sums:
        return [list(map(plus, left, right)) for plus, left, right in zip(self._adding, one, other, strict=True)]

    def extended(self, sums: Sums, variable: int, event: EventTuple) -> Sums:
        """Returns sums of the runs with one more event, as one of a variable."""
        found, counts = list(sums), sums[0]
        for place, measure in self._by_variable.get(variable, ()):
            if (value := measure.of(event)) is None:
                continue
            old = sums[place]
            if measure.kind == "min":
                found[place] = [
                    value if count and value < least else least for count, least in zip(counts, old, strict=True)
                ]
            elif measure.kind == "max":
                found[place] = [
                    value if count and value > most else most for count, most in zip(counts, old, strict=True)
                ]
            elif value == 1:
                found[place] = list(map(add, old, counts))
            else:
                found[place] = [sum_ + value * count for sum_, count in zip(old, counts, strict=True)]
        return found

    def through(self, recent: Sums, earlier: Sums | None) -> list[Any]:
        """Returns the sums of runs that began since the checkpoint, and of those that came by a cell from before."""
        found = [column[0] for column in recent]
        if earlier is None:
            return found
        for at, (count, before) in enumerate(zip(recent[0][1:], earlier[0], strict=True), 1):
            if not count or not before:
                continue
            found[0] += count * before
            for place, plus in enumerate(self._adding[1:], 1):
                here, there = recent[place][at], earlier[place][at - 1]
                both = here * before + there * count if plus is add else plus(here, there)
                found[place] = plus(found[place], both)
        return found


class TrendNode:
    """An event bound to a variable. `sources` are cells with the number of their first nodes that it may follow,
    including nodes dropped since; with `root`, runs begin here. The latest of its runs begins at `start`."""

    __slots__ = ("cell", "event", "number", "root", "sources", "start", "state")

    def __init__(self, event: EventTuple, state: int) -> None:
        self.event, self.state, self.root = event, state, False
        self.sources: list[tuple[SummedCell, int]] = []
        self.start: int = BEGINNING
        self.cell: SummedCell | None = None
        self.number = 0  # in its cell

    def follow(self, cell: SummedCell, stop: int) -> None:
        self.sources.append((cell, stop))
        self.start = max(self.start, cell.top(stop))

    def weight(self, low: int) -> int:
        """Returns the weight of the node: itself, and its sources with runs that begin at `low` or later."""
        return (self.start >= low) * (1 + sum(cell.top(stop) >= low for cell, stop in self.sources))


class SummedCell:
    """The nodes of one state with equal registers, by t1. The first `frozen` are those of the earlier part; `totals`
    are sums over the first nodes of the recent part. The checkpoint has the cell as `column`; 0 for none."""

    __slots__ = ("column", "dropped", "ends", "frozen", "registers", "starts", "totals")

    def __init__(self, registers: tuple[Any, ...]) -> None:
        self.registers = registers
        self.ends: list[int] = []  # the t1 of each
        self.starts: list[int] = []  # when the latest run of the first ones begins
        self.totals: list[Sums] = []
        self.dropped = self.frozen = self.column = 0

    def before(self, t0: int) -> int:
        """Returns the number of nodes, including dropped ones, that end before a time."""
        return self.dropped + bisect_left(self.ends, t0)

    def top(self, stop: int) -> int:
        """Returns when the latest run of the first nodes begins."""
        return self.starts[stop - self.dropped - 1] if stop > self.dropped else BEGINNING

    def add(self, node: TrendNode) -> None:
        node.cell, node.number = self, self.dropped + len(self.ends)
        self.ends.append(node.event[1])
        self.starts.append(max(node.start, self.starts[-1]) if self.starts else node.start)

    def turn(self, low: int, checkpoint: int, column: int) -> None:
        """Drops first nodes whose runs begin before `low`. `column` is its own if there are earlier nodes then."""
        gone = bisect_left(self.starts, low)
        del self.starts[:gone], self.ends[:gone]
        self.dropped += gone
        self.frozen, self.totals = self.before(checkpoint), []
        self.column = column if self.frozen > self.dropped else 0


class SummedKey:
    """The nodes of one key."""

    def __init__(self, sums: SumAlgebra, hashed: Sequence[Collection[int]]) -> None:
        self._sums = sums
        self.tables: list[CellTable[SummedCell]] = [CellTable(registers) for registers in hashed]
        self._nodes: list[TrendNode] = []
        self.arrivals: list[tuple[int, Arrival]] = []  # the events of nodes, each with the begin of its latest run
        self._columns = 1
        self._checkpoint: int = BEGINNING  # earlier nodes end before it
        self._column_of: dict[tuple[SummedCell, int], int] = {}
        """The columns of the first earlier nodes of a cell: events that span the checkpoint follow only these."""
        self._oldest: int = END  # when the first recent run begins
        self._starts: list[int] = []  # when runs of the earlier part begin, the latest first, negated
        self._earlier: list[Sums] = []  # sums of the ways of the first of these to each cell at the checkpoint
        self.size = 0

        self.top: int = BEGINNING  # when the latest run begins

    def waiting(self, low: int) -> int:
        return sum(node.start >= low for node in self._nodes)

    def weight(self, low: int) -> int:
        self.size = sum(node.weight(low) for node in self._nodes)
        return self.size

    def advance(self, low: int) -> None:
        """Called before an epoch: runs that begin before `low` have expired."""
        if low > self._oldest:
            self._turn(low, self._nodes[-1].event[1] + 1, ())

    def prepare(self, nodes: Iterable[TrendNode], low: int) -> None:
        """Called before the new nodes of an event are summed."""
        spanning = [one for node in nodes for one in node.sources if _is_within(*one) and one not in self._column_of]
        if spanning:
            self._turn(low, self._checkpoint, spanning)

    def summed(self, node: TrendNode, low: int) -> Sums:
        """Returns the sums of the runs that end with a node."""
        found: Sums | None = None
        ways: list[int] = []  # the columns of runs that come from before the checkpoint, or begin here
        if node.root and node.event[0] >= low:
            ways.append(0)
            self._oldest = min(self._oldest, node.event[0])
        for cell, stop in node.sources:
            if column := cell.column if stop >= cell.frozen else self._column_of.get((cell, stop), 0):
                ways.append(column)
            if stop > cell.frozen:
                total = cell.totals[stop - cell.frozen - 1]
                found = total if found is None else self._sums.either(found, total)
        if found is None:
            found = self._sums.nothing(self._columns)
        if ways:
            counts = found[0].copy()
            for column in ways:
                counts[column] += 1
            found = [counts, *found[1:]]
        return self._sums.extended(found, node.state, node.event)

    def keep(self, node: TrendNode, registers: tuple[Any, ...], sums: Sums) -> None:
        cells = self.tables[node.state]
        if (cell := cells.get(registers)) is None:
            cell = cells[registers] = SummedCell(registers)
        cell.add(node)
        self.top = max(self.top, node.start)
        self.size += 1 + len(node.sources)
        self._append(node, cell, sums)

    def _append(self, node: TrendNode, cell: SummedCell, sums: Sums) -> None:
        cell.totals.append(self._sums.either(cell.totals[-1], sums) if cell.totals else sums)
        self._nodes.append(node)

    def over(self, sums: Sums, low: int) -> list[Any]:
        """Returns the sums of the runs that begin at `low` or later."""
        begun = bisect_right(self._starts, -low)
        return self._sums.through(sums, self._earlier[begun - 1] if begun else None)

    def _turn(self, low: int, checkpoint: int, spanning: Iterable[tuple[SummedCell, int]]) -> None:
        """Moves the checkpoint, and drops what has expired. `spanning` are sources of a new event that spans it."""
        self._columns, self._checkpoint = 1, checkpoint
        for cells in self.tables:
            for name, cell in list(cells.items()):
                cell.turn(low, checkpoint, self._columns)
                self._columns += cell.column > 0
                if not cell.ends:
                    del cells[name]
        nodes = [node for node in self._nodes if node.cell is not None and node.number >= node.cell.dropped]
        self.arrivals = [one for one in self.arrivals if one[0] >= low]
        cut = bisect_left(nodes, checkpoint, key=_t1)
        every = chain(spanning, (one for node in nodes[cut:] for one in node.sources))
        within = dict.fromkeys(one for one in every if _is_within(*one))
        self._column_of = {one: column for column, one in enumerate(within, self._columns)}
        self._columns += len(within)
        self._sum_backwards(nodes[:cut], low)
        self._nodes, self._oldest = nodes[:cut], END
        for node in nodes[cut:]:
            assert node.cell is not None, "it is kept"
            self._append(node, node.cell, self.summed(node, low))

    def _sum_backwards(self, nodes: Sequence[TrendNode], low: int) -> None:
        """Sums the ways from each node of the earlier part to each column at the checkpoint."""
        columns = self._columns - 1
        behind = {one: self._sums.one(columns, column - 1) for one, column in self._column_of.items()}
        """Returns, by cell and number of its first nodes, the sums of the ways that continue from each."""
        running: dict[SummedCell, tuple[int, Sums]] = {}  # by cell the number of nodes that are left, and what goes on
        roots: list[tuple[int, Sums]] = []
        for node in reversed(nodes):
            cell = node.cell
            assert cell is not None, "it is kept"
            left, ways = running.get(cell) or (cell.frozen, self._sums.one(columns, cell.column - 1))
            if (more := behind.pop((cell, left), None)) is not None:
                ways = self._sums.either(ways, more)
            running[cell] = left - 1, ways
            ways = self._sums.extended(ways, node.state, node.event)
            if node.root and node.event[0] >= low:
                roots.append((-node.event[0], ways))
            for source in node.sources:
                if source[1] > source[0].dropped:
                    known = behind.get(source)
                    behind[source] = ways if known is None else self._sums.either(known, ways)
        roots.sort(key=itemgetter(0))
        self._starts, self._earlier = [start for start, _ in roots], []
        for _, ways in roots:
            self._earlier.append(self._sums.either(self._earlier[-1], ways) if self._earlier else ways)


def _is_within(cell: SummedCell, stop: int) -> bool:
    """Whether the first nodes of a cell are some, but not all, of its earlier nodes."""
    return cell.dropped < stop < cell.frozen


def _t1(node: TrendNode) -> int:
    return node.event[1]  # type: ignore[no-any-return]  # an int


class Ended(NamedTuple):
    """The sums over the matches of a row that end with an event."""

    event: EventTuple
    row: int
    sums: list[Any]


class SummedRuns(KeptRows):
    """The nodes of one row, by key."""

    def __init__(self, program: PatternProgram, sums: SumAlgebra, window: int, meter: Meter) -> None:
        super().__init__(window, meter)
        self._program, self._sums = program, sums
        self.parts: dict[KeyValues, SummedKey] = {}
        self._swept = self._size = 0

    @property
    def row(self) -> int:
        return self.rows.bit_length() - 1

    @property
    def low(self) -> int:
        """The least begin of a run that can continue."""
        return self.passed - self.window

    def waiting(self) -> Iterable[tuple[int, int]]:
        return [(self.rows, sum(part.waiting(self.low) for part in self.parts.values()))]

    def pass_until(self, until: int) -> None:
        """Advances time, and drops expired keys if there may be many."""
        self.passed = max(self.passed, until)
        if len(self.parts) > 2 * self._swept + 100:
            self.parts = {key: part for key, part in self.parts.items() if part.top >= self.low}
            self._swept = len(self.parts)

    def step(self, time: int, arrivals: Sequence[Arrival]) -> list[Ended]:
        """Processes the events of an epoch. Returns those that end a match."""
        self.passed = max(self.passed, time)
        found: list[Ended] = []
        steps = 0
        for key, some in arrivals_by_key(arrivals).items() if self.rows else ():
            part = self.parts.get(key) or SummedKey(self._sums, self._program.hashed)
            before = part.size
            part.advance(self.low)
            for arrival in some:
                steps += self._meet(part, arrival, found)
            if part.arrivals:
                self.parts[key] = part
            self._size += part.size - before
        if self._meter.limits.work < INFINITE:
            self.spend(self.rows, steps, time)
            self.end_steps(time)
        if self._size > self._meter.limits.partial:  # some may have expired
            self._size = sum(part.weight(self.low) for part in self.parts.values())
            if self._size > self._meter.limits.partial:
                self.exceed(self.rows, time, "partial")
        return found if self.rows else []

    def _meet(self, part: SummedKey, arrival: Arrival, found: list[Ended]) -> int:
        """Adds an event. Returns the number of cells with which it was compared."""
        program, event, masks = self._program, arrival.event, arrival.masks
        if event[0] < self.low:
            return 0
        made: dict[tuple[int, tuple[Any, ...]], TrendNode] = {}

        def node(state: int, registers: tuple[Any, ...]) -> TrendNode:
            return made.get((state, registers)) or made.setdefault((state, registers), TrendNode(event, state))

        steps = 0
        for state, cells in enumerate(part.tables):
            take = program.kleene[state] and masks[program.takes[state].role] & self.rows
            begin = state < program.last and masks[program.begins[state + 1].role] & self.rows
            if not cells or not (take or begin):
                continue
            edges = [program.takes[state].equal] if take else []
            edges += [program.begins[state + 1].equal] if begin else []
            for cell in cells.asked(edges, event) if program.hashed[state] else cells.values():
                stop = cell.before(event[0])
                if cell.top(stop) < self.low:
                    continue
                steps += 1
                if take and self._held(program.takes[state], cell.registers, event):
                    node(state, program.take[state](cell.registers, event)).follow(cell, stop)
                complete = begin and self._held(program.completes[state], cell.registers, ())
                if complete and self._held(program.begins[state + 1], cell.registers, event):
                    registers = program.begin[state + 1](cell.registers, event)
                    node(state + 1, registers).follow(cell, stop)
        if masks[program.begins[0].role] & self.rows:
            root = node(0, program.begin[0]((), event))
            root.root, root.start = True, event[0]
        self._take(part, arrival, made, found)
        return steps

    def _take(
        self, part: SummedKey, arrival: Arrival, made: dict[tuple[int, tuple[Any, ...]], TrendNode], found: list[Ended]
    ) -> None:
        program, total = self._program, None
        part.prepare(made.values(), self.low)
        latest: int = BEGINNING
        for (state, registers), node in made.items():
            sums = part.summed(node, self.low)
            if state == program.last and self._held(program.completes[state], registers, ()):
                total = sums if total is None else self._sums.either(total, sums)
            if state < program.last or program.kleene[state]:
                part.keep(node, registers, sums)
                latest = max(latest, node.start)
        if latest > BEGINNING:
            part.arrivals.append((latest, arrival))
        if total is not None and (sums := part.over(total, self.low))[0]:
            found.append(Ended(arrival.event, self.row, sums))

    def _held(self, edge: CompiledEdge, registers: tuple[Any, ...], event: EventTuple) -> bool:
        if edge.holds is not None and not edge.holds(registers, event):
            return False
        return all(test.holds(registers, event, self.row) for test in edge.by_row)


# ---------------------------------------------------------------- results


class CommonValues:
    """Compiles the values that all matches ending with an event share."""

    def __init__(self, pattern: algebra.Pattern, texts: Texts, slots: EventSlots) -> None:
        self._pattern, self._texts, self._slots = pattern, texts, slots
        self.measures: list[TrendMeasure] = []
        self.having: Any = None
        if pattern.having != algebra.AllOf():
            columns, schema = self._columns(pattern.having_names)
            self.having = columns, compile_condition(pattern.having, schema, None, texts)
        items = {item.name: item for item in pattern.returned or ()}
        self._items = [self._item(items[name]) for name, _ in pattern.schema]

    def flow(self, found: Sequence[Ended], rows: Rows) -> Flow:
        """Returns results; equal ones of different rows are one event."""
        of = np.array([one.row for one in found], np.int64)
        if self.having is not None and len(found):
            columns, holds = self.having
            left = bare_columns([column(found) for column in columns], len(found))
            held = holds(Pairs(left, np.arange(len(found)), of, rows.parameters))
            found, of = list(compress(found, held.tolist())), of[held]
        if not found:
            return no_flow(self._pattern.schema, 1)
        t0, t1, parts = np.array([one.event[:3] for one in found], np.int64).T.copy()
        events = Columns(t0, t1, tuple([item(found) for item in self._items]), parts.reshape(-1, 1))
        return each_once(sorted_flow(events, np.arange(len(found)), of))

    def _item(self, item: algebra.Returned) -> _Computed:
        if algebra.is_exact(item):
            number, known = self._exact(cast(algebra.OfMatches, item.names[0][1]))
            return lambda found: self._texts.codes(
                [sum_text(one.sums[number]) if not known or one.sums[known] else None for one in found]
                if known
                else [decimal_text(one.sums[number]) for one in found]
            )
        columns, schema = self._columns(item.names)
        value = compile_value(item.value, schema, None, self._texts)
        return lambda found: value(every_event(bare_columns([column(found) for column in columns], len(found))))

    def _columns(self, names: algebra.Names) -> tuple[list[_Computed], algebra.Schema]:
        found = [self._column(of) for _, of in names]
        schema = tuple((name, kind) for (name, _), (_, kind) in zip(names, found, strict=True))
        return [column for column, _ in found], schema

    def _column(self, of: algebra.Referent) -> tuple[_Computed, algebra.Kind]:
        source = self._pattern.variables[of.variable].source
        if isinstance(of, algebra.OfItem):
            kind = dict(source.schema)[of.name]
            slot = self._slots.slot(int(source.stream), algebra.Attribute("left", of.name, kind))
            return lambda found: column_of([one.event[slot] for one in found], are_texts=kind == "string"), kind
        assert isinstance(of, algebra.OfMatches), "other values differ between matches"
        name = "count" if of.aggregated is None else of.aggregated.name
        number, known = self._exact(of)

        def value(sums: list[Any]) -> float:
            if name == "count":
                return float(min(sums[number], int(_GREATEST)))
            if not sums[known]:
                return nan
            return ratio(sums[number], sums[known] if name == "avg" else 1) if name in ("sum", "avg") else sums[number]

        return lambda found: np.array([value(one.sums) for one in found], np.float64), "number"

    def _exact(self, of: algebra.OfMatches) -> tuple[int, int]:
        """Returns the places of an aggregate's number and, but for counts, of the number of values."""
        if of.aggregated is None:
            return 0, 0
        stream = int(self._pattern.variables[of.variable].source.stream)
        name, args = of.aggregated.name, aggregated_args(of.aggregated)
        if not args:
            return self._measure("events", of.variable), 0
        slot, is_text = self._slots.slot(stream, args[0]), algebra.value_kind(args[0]) == "string"
        known = self._measure("known", of.variable, slot, is_text)
        if name == "count":
            return known, 0
        return self._measure("sum" if name == "avg" else cast(Any, name), of.variable, slot), known

    def _measure(self, kind: TrendMeasureKind, variable: int, slot: int = -1, is_text: bool = False) -> int:
        one = TrendMeasure(kind, variable, slot, is_text)
        if one not in self.measures:
            self.measures.append(one)
        return 1 + self.measures.index(one)


_Computed = Callable[[Sequence[Ended]], Column]


def ratio(sum_: int, count: int) -> float:
    """Returns a sum divided by a number, as the nearest number; the greatest if it is greater than all.

    >>> ratio(3 << 1074, 2)
    1.5
    """
    try:
        return sum_ / (count << _BITS)
    except OverflowError:
        return _GREATEST if sum_ > 0 else -_GREATEST


def sum_text(sum_: int) -> str:
    """Returns a sum as text, with all digits if it is whole.

    >>> sum_text(-5 << 1074), sum_text(5 << 1072)
    ('-5', '1.25')
    """
    whole, rest = divmod(sum_, 1 << _BITS)
    return number_text(ratio(sum_, 1)) if rest and abs(whole) < _GREATEST else decimal_text(whole)


def decimal_text(number: int) -> str:
    """Returns a whole number as text, however long it is.

    >>> decimal_text(10**5000 + 7) == "1" + "0" * 4999 + "7"
    True
    """
    if number < 0:
        return "-" + decimal_text(-number)
    if number.bit_length() <= _SHORT:
        return str(number)
    digits = number.bit_length() * 3 // 20  # about half of them
    high, low = divmod(number, 10**digits)
    return decimal_text(high) + decimal_text(low).rjust(digits, "0")


_SHORT = 4_000  # number of bits that Python writes as text


class SumMatching(PatternHost[SummedRuns, Sequence[Ended]]):
    """A pattern with ALL MATCHES TOGETHER. Each row has its own store, whose saved state is the events of nodes."""

    def __init__(self, context: MOpContext) -> None:
        pattern, slots = cast(algebra.Pattern, context.definitions[0]), EventSlots()
        self._program = program = PatternProgram(pattern, context.texts, slots)
        super().__init__(context, program.streams)
        edges = [*zip(program.streams, program.begins, strict=True)]
        edges += compress(zip(program.streams, program.takes, strict=True), program.kleene)
        for role, (_, edge) in enumerate(edges):
            edge.role = role
        self._row_tests = [test for edge in (*program.completes, *(edge for _, edge in edges)) for test in edge.by_row]
        self._values = CommonValues(pattern, context.texts, slots)
        self._sums = SumAlgebra(self._values.measures)
        self._take_roles([(stream, edge.static) for stream, edge in edges], slots)

    def _groups(self, rows: Ints) -> Iterable[tuple[int, int]]:
        return [(row, 0) for row in rows.tolist()]

    def _new_store(self, window: int) -> SummedRuns:
        return SummedRuns(self._program, self._sums, window, self._meter)

    def _of_store(self, group: Hashable, store: SummedRuns, epochs: Epochs, until: int) -> Iterator[Sequence[Ended]]:
        for time, arrivals in epochs:
            if mine := [one for one in arrivals if any(mask & store.rows for mask in one.masks)]:
                yield store.step(time, mine)
        store.pass_until(until)

    def _results(self, all_found: Sequence[Sequence[Ended]]) -> Flow:
        return self._values.flow([one for some in all_found for one in some], self._rows)

    def _arrivals_of(self, store: SummedRuns) -> Iterator[tuple[KeyValues, list[Arrival]]]:
        """Yields the events of a store that may still matter, by key."""
        for key, part in store.parts.items():
            if some := [one for start, one in part.arrivals if start >= store.low]:
                yield key, some

    def _events(self, store: SummedRuns) -> Iterator[tuple[int, EventTuple]]:
        return ((one.stream, one.event) for _, some in self._arrivals_of(store) for one in some)

    def _codes(self, store: SummedRuns) -> Iterable[Any]:
        return [value for key in store.parts for value in key]

    def _saved(self, store: SummedRuns) -> Iterator[tuple[KeyValues, SavedPart]]:
        for key, some in self._arrivals_of(store):
            writer = self._writer(store)
            arrivals = [
                [
                    writer.event(one.stream, one.event),
                    one.stream,
                    [*map(bool, (mask & store.rows for mask in one.masks))],
                ]
                for one in some
            ]
            yield key, writer.done(arrivals=arrivals, rows=writer.mask(store.rows), passed=store.passed)

    def _restore(self, store: SummedRuns, key: KeyValues, reader: PartReader) -> None:
        arrivals = [
            Arrival(key, reader.event_of(event, stream), tuple([store.rows * one for one in masks]), stream)
            for event, stream, masks in reader.data["arrivals"]
        ]
        for time, some in groupby(arrivals, key=lambda one: one.event[1]):
            store.step(time, list(some))
        store.pass_until(reader.data["passed"])
