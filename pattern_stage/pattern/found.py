"""Complete matches in bundles: matches that end alike and begin at different events of one trail. A bundle is expanded
to columns only to evaluate conditions and values, vectorised; its events are listed only on demand. The matches of an
epoch are counted by row against its limit. Rows share runs, so a match belongs to a row only if its span is within the
row's window. Negations that refer to later events are checked on complete matches."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import numpy as np

from common.arrays import Ints, Mask, distinct
from common.bounds import INFINITE
from pattern_stage.columns import Column, Columns, bare_columns, column_of, spread
from pattern_stage.definition import of_items
from pattern_stage.lineage import Lineage
from pattern_stage.measures import aggregate_ranges
from pattern_stage.pattern.cells import EVERY, EventTuple, Root, Trail, expanded, flags_of, masks_by_place, rows_to_mask
from pattern_stage.pattern.match import Items, MatchCandidate, MatchList, Tally
from pattern_stage.pattern.program import EventSlots, aggregated_args
from pattern_stage.pattern.rows import columns_at
from pattern_stage.plan import Rows
from pattern_stage.values import Pairs, Texts, compile_condition, compile_value, every_event, json_arrays, plain_values
from xscl.algebra import events as algebra

_AT_ONCE = 50_000  # approximate number of matches expanded at a time

_place, _t1 = attrgetter("place"), itemgetter(1)


class Ending(NamedTuple):
    """What matches that end with an event share: when they are known, the time range of their begins, their end, and
    the key values; negated events to check, by negation; and the number of missing letters."""

    known: int
    low: int
    high: int
    t1: int
    key: Any
    absent: Sequence[Sequence[tuple[EventTuple, int]]] = ()
    errors: int = 0


class Later:
    """The last events of matches: those of a trail up to a place, and those behind them."""

    __slots__ = ("behind", "bound", "count", "length", "place", "trail")

    def __init__(self, trail: Trail, place: int, behind: Later | None) -> None:
        self.trail, self.place, self.behind = trail, place, behind
        self.count = place + 1 - trail.forgotten
        self.length: int = self.count + (behind.length if behind else 0)
        self.bound: dict[int, list[Later]] | None = None

    def by_variable(self) -> dict[int, list[Later]]:
        """Returns the pieces of each variable, in time order."""
        if self.bound is None:
            self.bound = {}
            piece: Later | None = self
            while piece is not None:
                self.bound.setdefault(piece.trail.component, []).append(piece)
                piece = piece.behind
        return self.bound


class Bundle(NamedTuple):
    """Matches that begin at roots of a trail, continue to a place in it, and end alike. Roots are between `first` and
    `stop` of their list, but not all of these begin a match."""

    ending: Ending
    trail: Trail
    place: int
    first: int
    stop: int
    rows: int
    later: Later | None

    def roots(self) -> Iterator[Root]:
        """Yields the roots with the rows that have the match."""
        low, high, t1, rows = self.ending.low, self.ending.high, self.ending.t1, self.rows
        for root in self.trail.roots[self.first : self.stop]:
            if (held := rows & root.rows) and low <= root.start <= high and root.bound < t1:
                yield root._replace(rows=held)

    def events(self, begin: int) -> list[EventTuple]:
        """Returns the events of the match that begins at a place of the trail."""
        found = self.trail.until(self.place, begin)
        piece = self.later
        while piece is not None:
            found += piece.trail.until(piece.place)
            piece = piece.behind
        return found


def bundles(ending: Ending, trail: Trail, place: int, rows: int, alive: Callable[[], int]) -> Iterator[Bundle]:
    """Yields the matches that end at a place of a trail, with these rows while they are `alive`."""
    low, high = ending.low, ending.high
    stack: list[tuple[Trail, int, int, Later | None]] = [(trail, place, rows, None)]
    while stack:
        trail, place, rows, later = stack.pop()
        rows &= alive()
        if not rows:
            continue
        if roots := trail.roots:
            first, stop = 0, len(roots)
            if roots[-1].place > place:
                stop = bisect_right(roots, place, key=_place)
            if stop and roots[0].start < low:
                # No event begins after its end.
                oldest = trail.forgotten + bisect_left(trail.events, low, key=_t1)
                first = bisect_left(roots, oldest, 0, stop, key=_place)
            if first < stop:
                yield Bundle(ending, trail, place, first, stop, rows, later)
        if not trail.segments:
            continue
        behind = Later(trail, place, later)
        for entries, begin, stop, of in trail.segments:
            if here := rows & of:
                for at in range(begin, stop):
                    one = entries[at]
                    if one.start >= low and one.oldest <= high and (held := here & one.rows):
                        stack.append((one.trail, one.place, held, behind))


def batch_bundles(bundles: Sequence[Bundle]) -> Iterator[Sequence[Bundle]]:
    """Yields bundles in batches that expand to little memory."""
    begin = matches = 0
    for end, one in enumerate(bundles, 1):
        matches += one.stop - one.first
        if matches >= _AT_ONCE:
            yield bundles[begin:end]
            begin, matches = end, 0
    if begin < len(bundles):
        yield bundles[begin:]


_FEW = 16  # up to this number, roots are read one by one


class BundleTable(MatchList):
    """Expanded bundles. Match i, of bundle `of[i]`, begins at a place of its trail at time `t0[i]`."""

    def __init__(self, bundles: Sequence[Bundle], of: Ints, places: Ints, t0: Ints, *, distinct: bool) -> None:
        """`distinct`: equal sets of events of different bundles get equal numbers."""
        self.bundles, self.of, self._places, self.t0, self._distinct = bundles, of, places, t0, distinct
        self.count = len(t0)
        endings = np.array([(one.ending.known, one.ending.t1, one.ending.errors) for one in bundles], np.int64)
        self.known, self.t1, self.errors = endings.reshape(-1, 3)[of].T.copy()
        self._items: dict[int, Items] = {}

    def take(self, at: Ints) -> BundleTable:
        return BundleTable(self.bundles, self.of[at], self._places[at], self.t0[at], distinct=self._distinct)

    def sizes(self, variable: int) -> Ints:
        found = [sum(piece.count for piece in _pieces(one, variable)) for one in self.bundles]
        if variable:
            return np.array(found, np.int64)[self.of]
        found = [count + bundle.place + 1 for count, bundle in zip(found, self.bundles, strict=True)]
        return np.array(found, np.int64)[self.of] - self._places

    def lengths(self) -> Ints:
        behind = [bundle.place + 1 + (bundle.later.length if bundle.later else 0) for bundle in self.bundles]
        return np.array(behind, np.int64)[self.of] - self._places

    def ids(self, match: int) -> list[int]:
        """Returns the numbers of a match's events, variable by variable."""
        return [event[2] for event in self.bundles[int(self.of[match])].events(int(self._places[match]))]

    def ends(self, variable: int, slot: int, kind: algebra.Kind, *, last: bool) -> Column:
        if variable == 0 and not last:
            places = zip(self.of.tolist(), self._places.tolist(), strict=True)
            firsts = [self.bundles[of].trail.event(place)[slot] for of, place in places]
            return column_of(firsts, are_texts=kind == "string")
        values = []
        for bundle in self.bundles:
            pieces: Sequence[Later | Bundle] = _pieces(bundle, variable) or [bundle]
            end = pieces[-1].trail.event(pieces[-1].place) if last else pieces[0].trail.events[0]
            values.append(end[slot])
        return column_of(values, are_texts=kind == "string")[self.of]

    def events(self, variable: int) -> Items:
        if variable not in self._items:
            events: list[EventTuple] = []
            firsts: list[int] = []
            for bundle in self.bundles:
                firsts.append(len(events))
                if variable == 0:
                    firsts[-1] -= bundle.trail.forgotten
                    events += bundle.trail.until(bundle.place)
                for piece in _pieces(bundle, variable):
                    events += piece.trail.until(piece.place)
            starts = np.array(firsts, np.int64)[self.of]
            self._items[variable] = Items(events, starts + self._places if variable == 0 else starts)
        return self._items[variable]

    def parts(self, variable: int, lineage: Lineage) -> Ints:
        if self._distinct:
            return super().parts(variable, lineage)
        ranges: list[tuple[int, int]] = []
        members: list[Ints] = []
        end = 0
        known: dict[int, tuple[int, int]] = {}
        firsts = np.array([bundle.place for bundle in self.bundles], np.int64)
        np.minimum.at(firsts, self.of, self._places)
        for at, (bundle, least) in enumerate(zip(self.bundles, firsts.tolist(), strict=True)):
            name = id(bundle.later) if variable else -1 - at  # bundles that end alike have the same
            if name not in known:
                some = [piece.trail.numbers(piece.trail.forgotten, piece.place) for piece in _pieces(bundle, variable)]
                start = end
                if variable == 0:
                    some = [bundle.trail.numbers(least, bundle.place), *some]
                    start -= least
                members += some
                end += sum(map(len, some))
                known[name] = start, end
            ranges.append(known[name])
        begins, ends = np.array(ranges, np.int64)[self.of].T
        return lineage.ranges(np.concatenate(members), begins + (0 if variable else self._places), ends)


def _pieces(bundle: Bundle, variable: int) -> Sequence[Later]:
    return () if bundle.later is None else bundle.later.by_variable().get(variable, ())


# ---------------------------------------------------------------- which matches there are


class BundleMatches(NamedTuple):
    """Matches, and pairs of match and row, sorted by match."""

    table: BundleTable
    at: Ints
    rows: Ints

    def only(self, kept: Mask) -> BundleMatches:
        """Returns these pairs, and the remaining matches."""
        at, rows = self.at[kept], self.rows[kept]
        left = distinct(at)
        if len(left) == self.table.count:
            return BundleMatches(self.table, at, rows)
        return BundleMatches(self.table.take(left), np.searchsorted(left, at), rows)

    def candidates(self) -> list[MatchCandidate]:
        """Returns the matches as NON OVERLAPPING compares them."""
        table = self.table
        masks = masks_by_place(self.at, self.rows, table.count)
        columns = (table.of, table.known, table.t0, table.t1, table.errors, table.lengths())
        matches = enumerate(zip(masks, *(column.tolist() for column in columns), strict=True))
        return [
            MatchCandidate(known, t0, t1, rows, errors, length, table.bundles[of].ending.key, partial(table.ids, match))
            for match, (rows, of, known, t0, t1, errors, length) in matches
        ]

    def with_rows(self, masks: Sequence[int]) -> BundleMatches:
        at, rows = expanded(masks)
        return BundleMatches(self.table, at, rows).only(np.ones(len(at), np.bool_))


def expand_bundles(bundles: Sequence[Bundle], *, distinct: bool) -> BundleMatches:
    """`distinct`: see BundleTable."""
    of, places, starts, masks = list[int](), list[int](), list[int](), list[int]()
    many: list[tuple[int, Ints, Ints, Ints, Ints]] = []
    columns: dict[int, _RootColumns] = {}
    for number, bundle in enumerate(bundles):
        if bundle.stop - bundle.first <= _FEW:
            for root in bundle.roots():
                of.append(number)
                places.append(root.place)
                starts.append(root.start)
                masks.append(root.rows)
            continue
        if id(bundle.trail) not in columns:
            columns[id(bundle.trail)] = _RootColumns(bundle.trail.roots)
        many.append((number, *_picked(bundle, columns[id(bundle.trail)])))
    at, rows = expanded(masks)
    found: list[Ints] = [np.array(column, np.int64) for column in (of, places, starts)]
    if many:
        numbers, more_places, more_starts, more_at, more_rows = zip(*many, strict=True)
        sizes = np.array(list(map(len, more_places)), np.int64)
        more = np.repeat(numbers, sizes), np.concatenate(more_places), np.concatenate(more_starts)
        at = np.concatenate([at, *map(np.add, more_at, len(of) + np.cumsum(sizes) - sizes)])
        rows = np.concatenate([rows, *more_rows])
        found = [np.append(one, other) for one, other in zip(found, more, strict=True)]
    return BundleMatches(BundleTable(bundles, *found, distinct=distinct), at, rows)


class _RootColumns:
    """Roots as columns: pairs of row and root, and the offset of each root's rows with the end of the last."""

    def __init__(self, roots: Sequence[Root]) -> None:
        *columns, masks = zip(*roots, strict=True)
        self.places, self.starts, self.bounds = (np.array(column, np.int64) for column in columns)
        self.of, self.rows = expanded(masks)
        self.firsts = np.searchsorted(self.of, np.arange(len(roots) + 1))


def _picked(bundle: Bundle, roots: _RootColumns) -> tuple[Ints, Ints, Ints, Ints]:
    """Returns places and starts of the matches of a bundle, and pairs of match and row."""
    ending, first, stop = bundle.ending, bundle.first, bundle.stop
    starts = roots.starts[first:stop]
    held = (starts >= ending.low) & (starts <= ending.high) & (roots.bounds[first:stop] < ending.t1)
    pairs = slice(int(roots.firsts[first]), int(roots.firsts[stop]))
    rows, of = roots.rows[pairs], roots.of[pairs] - first
    kept = flags_of(bundle.rows, int(rows.max(initial=0)) + 1)[rows] & held[of]
    rows, of = rows[kept], of[kept]
    numbers = np.zeros(stop - first, np.int64)
    numbers[of] = 1
    chosen = np.flatnonzero(numbers)
    numbers[chosen] = np.arange(len(chosen))
    return roots.places[first:stop][chosen], starts[chosen], numbers[of], rows


_Rows = tuple[Ints, tuple[Column, ...]]  # by pair its row, and the parameter columns

MatchTest = Callable[[MatchList, Ints, _Rows, Sequence[EventTuple], Ints | None], Mask]
"""Whether a condition holds for pairs of match and row, perhaps each with the place of a negated event."""

_Computed = Callable[[MatchList, Ints, Mapping[int, Ints]], Column]
"""A column for places of matches. A name for each event of a variable is resolved by the given event numbers."""


class Conditions:
    """Compiles conditions and values over complete matches of a pattern."""

    def __init__(self, pattern: algebra.Pattern, texts: Texts, slots: EventSlots) -> None:
        self._pattern, self._texts, self._slots = pattern, texts, slots
        self._positive = [at for at, one in enumerate(pattern.variables) if not one.negated]

    def condition(
        self, condition: algebra.EventCondition, names: algebra.Names, negated: int | None = None
    ) -> MatchTest:
        """Compiles a condition on pairs of match and row; with `negated`, of match and an event of that variable."""
        positive: algebra.Names = tuple((name, of) for name, of in names if of.variable != negated)
        columns = [self._referent(of) for _, of in positive]
        right: algebra.Schema = ()
        slots: list[int] = []
        if negated is not None:
            source = self._pattern.variables[negated].source
            own = {name: of for name, of in names if of.variable == negated}
            used = {of.name for of in own.values() if isinstance(of, algebra.OfItem)}
            right = tuple((name, kind) for name, kind in source.schema if name in used)
            slots = self._slots.of_schema(int(source.stream), right)
            condition = of_items(condition, own, "right")
        holds = compile_condition(condition, self._schema(positive), right or None, self._texts)
        ranges: dict[int, int] = {}  # the variables over all of whose events it quantifies, each with the first of them
        for _, of in positive:
            place = of.place if isinstance(of, algebra.OfItem) else ""
            if place == "every":
                ranges[of.variable] = 0
            elif place in ("each", "previous") or (isinstance(of, algebra.OfItems) and of.earlier):
                ranges[of.variable] = 1

        def held(table: MatchList, at: Ints, rows: _Rows, others: Sequence[EventTuple], other_at: Ints | None) -> Mask:
            pair, items = np.arange(len(at)), dict[int, Ints]()
            for variable, first in ranges.items():
                place = self._positive.index(variable)
                numbers, of = spread(np.full(len(pair), first), np.maximum(table.sizes(place)[at[pair]] - first, 0))
                items = {key: column[of] for key, column in items.items()} | {place: numbers}
                pair = pair[of]
            values = [compute(table, at[pair], items) for compute in columns]
            left, every = bare_columns(values, len(pair)), np.arange(len(pair))
            there = None if other_at is None else other_at[pair]
            outcome = holds(Pairs(left, every, rows[0][pair], rows[1], columns_at(others, slots, right), there))
            if not ranges:
                return outcome
            result: Mask = np.ones(len(at), np.bool_)
            result[pair[~outcome]] = False
            return result

        return held

    def item(self, item: algebra.Returned) -> Callable[[MatchList], Column]:
        """Compiles a value of matches, or a JSON array of its values for each event of a variable."""
        columns = [self._referent(of) for _, of in item.names]
        variable = None if item.each is None else self._positive.index(item.each)
        computed = compile_value(item.value, self._schema(item.names), None, self._texts)

        def found(table: MatchList) -> Column:
            at, items = np.arange(table.count), dict[int, Ints]()
            if variable is not None:
                items[variable], at = spread(np.zeros(table.count, np.int64), table.sizes(variable))
            column = computed(every_event(bare_columns([compute(table, at, items) for compute in columns], len(at))))
            if variable is None:
                return column
            ends = np.cumsum(table.sizes(variable)).tolist()
            return self._texts.codes(json_arrays(plain_values(column, self._texts), ends))

        return found

    def events(self) -> Callable[[MatchList], Column]:
        variables = [self._pattern.variables[at].source for at in self._positive]
        slots = [self._slots.of_schema(int(one.stream), one.schema) for one in variables]

        def found(table: MatchList) -> Column:
            sizes = np.stack([table.sizes(variable) for variable in range(len(variables))], axis=1)
            ends = np.cumsum(sizes).reshape(sizes.shape)
            rows: list[tuple[Any, ...]] = [()] * int(sizes.sum())
            for variable, (one, places) in enumerate(zip(variables, slots, strict=True)):
                items = table.events(variable)
                at, _ = spread(items.starts, sizes[:, variable])
                columns = [
                    plain_values(items.column(slot, at, kind), self._texts)
                    for slot, (_, kind) in zip(places, one.schema, strict=True)
                ]
                to, _ = spread((ends - sizes)[:, variable], sizes[:, variable])
                for place, values in zip(to.tolist(), zip(*columns, strict=True), strict=False):  # none has no values
                    rows[place] = values
            return self._texts.codes(json_arrays(rows, ends[:, -1].tolist()))

        return found

    def _schema(self, names: algebra.Names) -> algebra.Schema:
        return tuple((name, self._kind(of)) for name, of in names)

    def _kind(self, of: algebra.Referent) -> algebra.Kind:
        if isinstance(of, algebra.OfItem):
            return dict(self._pattern.variables[of.variable].source.schema)[of.name]
        if isinstance(of, algebra.OfItems) and of.aggregated.name == "argmax":
            return algebra.value_kind(of.aggregated.args[0])
        return "number"

    def _referent(self, of: algebra.Referent) -> _Computed:
        variable = self._positive.index(of.variable)
        stream = int(self._pattern.variables[of.variable].source.stream)
        if isinstance(of, algebra.Length):
            return lambda table, at, items: table.sizes(variable)[at].astype(np.float64)
        if isinstance(of, algebra.OfItems):
            return self._aggregate(of, variable, stream)
        assert isinstance(of, algebra.OfItem), "this is a value of one match"
        kind = self._kind(of)
        slot = self._slots.slot(stream, algebra.Attribute("left", of.name, kind))
        place = of.place

        def taken(table: MatchList, at: Ints, items: Mapping[int, Ints]) -> Column:
            if place in ("only", "first", "last"):
                return table.ends(variable, slot, kind, last=place == "last")[at]
            places = table.events(variable).starts[at] + items[variable]
            return table.events(variable).column(slot, places - (place == "previous"), kind)

        return taken

    def _aggregate(self, of: algebra.OfItems, variable: int, stream: int) -> _Computed:
        one = of.aggregated
        args = aggregated_args(one)
        slots, kinds = [self._slots.slot(stream, arg) for arg in args], [algebra.value_kind(arg) for arg in args]

        def computed(table: MatchList, at: Ints, items: Mapping[int, Ints]) -> Column:
            sizes = items[variable] if of.earlier else table.sizes(variable)[at]
            if not args:
                return sizes.astype(np.float64)
            events = table.events(variable)
            places, _ = spread(events.starts[at], sizes)
            columns = [events.column(slot, places, kind) for slot, kind in zip(slots, kinds, strict=True)]
            ends = np.cumsum(sizes)
            return aggregate_ranges(one.name, columns, ends - sizes, ends, self._texts)

        return computed


class ResultBuilder:
    """Builds result events from the reported matches of a pattern."""

    def __init__(self, pattern: algebra.Pattern, texts: Texts, slots: EventSlots, lineage: Lineage) -> None:
        self._lineage = lineage
        self._variables = sum(not one.negated for one in pattern.variables)
        conditions = Conditions(pattern, texts, slots)
        self.having: MatchTest | None = None  # the condition of HAVING
        if pattern.having != algebra.AllOf():
            self.having = conditions.condition(pattern.having, pattern.having_names)
        returned = {item.name: item for item in pattern.returned or ()}
        self._items = [
            conditions.events() if name == algebra.EVENTS else conditions.item(returned[name])
            for name, _ in pattern.schema
        ]

    def events(self, table: MatchList, t0: Ints, t1: Ints) -> Columns:
        """Returns matches as events with this t0 and t1."""
        parts = [table.parts(variable, self._lineage) for variable in range(self._variables)]
        return Columns(t0, t1, tuple([item(table) for item in self._items]), np.stack(parts, axis=1))


class RowWindows:
    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._windows: list[int] = []
        self._fitting: list[int] = []  # by window, ascending, the rows with no smaller one

    def follow(self, numbers: Ints) -> None:
        within = self._rows.within[numbers]
        self._windows = distinct(within).tolist()
        self._fitting = [rows_to_mask(numbers[within >= window]) for window in self._windows]

    def fitting(self, span: int) -> int:
        """Returns the rows whose window fits a span."""
        place = bisect_left(self._windows, span)
        if place == 0:
            return EVERY
        return self._fitting[place] if place < len(self._windows) else 0

    def of(self, rows: Ints) -> Ints:
        return self._rows.within[rows]


class AtOnce:
    """Collects the matches of an epoch."""

    def __init__(self, most: int, windows: RowWindows) -> None:
        self._most = self._room = most
        self._windows = windows
        self._bundles: list[Bundle] = []
        self._counted = 0
        self._tally = Tally(most)

    def add(self, bundle: Bundle) -> int:
        """Adds a bundle. Returns the rows that now have too many matches."""
        self._bundles.append(bundle)
        self._room -= bundle.stop - bundle.first
        if self._room >= 0:
            return 0
        # There were as many roots as a row may have matches: only now one may have too many.
        for one in self._bundles[self._counted :]:
            for root in one.roots():
                self._tally.add(root.rows & self._windows.fitting(one.ending.t1 - root.start))
        self._counted = len(self._bundles)
        over = self._tally.over()
        self._room = self._tally.room
        return over

    def end(self, rows: int) -> list[Bundle]:
        """Ends the epoch. Returns the bundles of these rows."""
        found, self._bundles, self._counted, self._room = self._bundles, [], 0, self._most
        self._tally.clear()
        return [one._replace(rows=held) for one in found if (held := one.rows & rows)]


_BLOCK = 100_000  # approximate number of pairs of match and negated event compared at a time

_Absent = Iterable[tuple[Sequence[tuple[EventTuple, int]], Ints]]
"""Events of a negated variable with their rows, and the places of the pairs of match and row that these may kill."""


class Kills:
    """The conditions by which the events of a negated variable kill complete matches."""

    def __init__(self, pattern: algebra.Pattern, conditions: Conditions, variable: int) -> None:
        group, groups = pattern.variables[variable].group, [one.group for one in pattern.variables if not one.negated]
        self._before = [at for at, of in enumerate(groups) if of == group - 1]
        self._behind = [at for at, of in enumerate(groups) if of == group]
        kills = [test for test in pattern.kills if test.variable == variable]
        self._tests = [conditions.condition(test.condition, test.names, variable) for test in kills]

    def killed(
        self, table: MatchList, at: Ints, of: _Rows, absent: _Absent, window: int, steps: Ints, most: int = INFINITE
    ) -> Mask:
        """Returns which pairs of match and row some event kills. Counts comparisons in `steps`, by row; a row with more
        than `most` has no matches."""
        rows, parameters = of
        killed = np.zeros(len(at), np.bool_)
        for chosen, others, events in self._blocks(table, at, rows, absent, window):
            steps += np.bincount(rows[chosen], minlength=len(steps))
            killed |= (steps > most)[rows]
            if killed.all():
                break
            alive = ~killed[chosen]
            chosen, others = chosen[alive], others[alive]
            for test in self._tests:
                held = test(table, at[chosen], (rows[chosen], parameters), events, others)
                chosen, others = chosen[held], others[held]
            killed[chosen] = True
        return killed

    def _blocks(
        self, table: MatchList, at: Ints, rows: Ints, absent: _Absent, window: int
    ) -> Iterator[tuple[Ints, Ints, Sequence[EventTuple]]]:
        """Yields pairs of match and row, places of the row's negated events in the match's gap, and these events."""
        begin, end = table.t1 - window - 1, table.t0 + window + 1
        if self._before:
            begin = np.maximum.reduce([_times(table, variable, last=True) for variable in self._before])
        if self._behind:
            end = np.minimum.reduce([_times(table, variable, last=False) for variable in self._behind])
        for some, mine in absent:
            if not some:
                continue
            events = [event for event, _ in some]
            t0, t1 = (np.array(column, np.int64) for column in zip(*(event[:2] for event in events), strict=True))
            event_at, event_rows = expanded([rows for _, rows in some])
            step = max(1, _BLOCK // len(event_at))
            for part in (mine[first : first + step] for first in range(0, len(mine), step)):
                pair_at, where = spread(np.zeros(len(part), np.int64), np.full(len(part), len(event_at)))
                chosen, others = part[where], event_at[pair_at]
                matches = at[chosen]
                lies = (t0[others] > begin[matches]) & (t1[others] < end[matches])
                lies &= event_rows[pair_at] == rows[chosen]
                yield chosen[lies], others[lies], events


def _times(table: MatchList, variable: int, *, last: bool) -> Ints:
    """Returns by match the t1 of a variable's last event, or the t0 of its first."""
    return table.ends(variable, 1 if last else 0, "string", last=last).astype(np.int64)
