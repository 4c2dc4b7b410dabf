"""NEXT and FOLD: instances of left events wait for the first right events that satisfy their conditions. NEXT pairs
each left event with the first later right events, all ties of one epoch. FOLD builds runs of right events that begin
with a left event; each run is a result, and an instance that continues."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa

from common.arrays import Ints, Mask, distinct, group_starts
from common.bounds import BEGINNING, LONGEST_WINDOW
from pattern_stage import columns as cols
from pattern_stage.columns import NO_INTS, joined
from pattern_stage.fan_out import RowReaders
from pattern_stage.index import RowClasses, each_shape
from pattern_stage.operators import Bounded, Crowded, MOpContext, Renumber, Room
from pattern_stage.search import (
    Candidates,
    InstanceColumns,
    Instances,
    PairTests,
    PartnerSearch,
    joined_batches,
    known_keys,
    pairs_of,
    take_apart,
)
from pattern_stage.values import Pairs, compile_condition, compile_value, flatten_lists, ints, lists, loaded, saved
from xscl.algebra.events import EventCondition, Fold, Next, Schema, made_of_latest

NO_INSTANCES = InstanceColumns(NO_INTS, NO_INTS, NO_INTS, NO_INTS, NO_INTS, NO_INTS)

_Sides = Callable[[cols.Columns], Sequence[cols.Columns]]  # the sides of events

_TEXTS_AT_ONCE = 256  # texts that may be made before they are counted; each has at most MOST_TEXT characters


class Joining(Bounded):
    """The instances of NEXT or FOLD, and their search for partners. Events have one side, or FOLD's two."""

    def __init__(self, context: MOpContext, schemas: tuple[Schema, Schema], sides: int) -> None:
        super().__init__(context)
        self.instances = Instances()
        self.classes = RowClasses(context.rows)
        self._left, self._right = schemas
        self._sides, self._hashed = sides, context.hashed
        self._readers = RowReaders()
        self._tests: list[PairTests] = []
        self._static = np.zeros(0, np.bool_)
        self._index = context.index(self._right, context.texts)
        self._bounded = False
        self._origins = 0
        self._made: list[tuple[Ints, Ints]] = []
        self._has_texts = False  # whether instances may have texts that functions made

    @abstractmethod
    def _condition(self, definition: Any) -> EventCondition:
        """Returns the condition by which a new shape chooses its partners."""

    def add_rows(self, new: Ints) -> None:
        for definition in self._definitions[len(self._tests) :]:
            condition = self._condition(definition)
            self._tests.append(take_apart(condition, self._left, self._right, self._texts, self._hashed))
        self._static = np.array([bool(tests.static) for tests in self._tests])
        fresh = self.classes.add(new)
        self._readers.add(new, self._rows.left[new])
        self._has_texts = self._has_texts or len(self._rows.sources) > 1
        self._bounded = self._bounded or bool(np.any(self._rows.within[new] < LONGEST_WINDOW))
        for shape, places in each_shape(self.classes.shape[fresh]):
            if self._static[shape]:
                targets = fresh[places]
                parameters = tuple(column[targets] for column in self.classes.parameters)
                self._index.add(targets, self._tests[shape].static, parameters)
        self._index.settle()

    def remove_rows(self, gone: Ints) -> None:
        self.instances.remove_rows(gone)
        self._readers.remove(gone)
        emptied = self.classes.remove(gone)
        self._index.remove(emptied[self._static[self.classes.shape[emptied]]])

    # ------------------------------------------------------------ instances

    def _enter(self, flow: cols.Flow, sides: _Sides) -> InstanceColumns:
        """Returns the instances that begin with left events."""
        if len(flow) == 0:
            return NO_INSTANCES
        if self.classes.single:
            places, members = self._readers.of(flow.rows)
            at, classes = flow.at[places], self.classes.of_row[members]
        else:
            at, classes, members = self._in_sets(flow)
        if len(at) == 0:
            return NO_INSTANCES
        used, event_of = np.unique(at, return_inverse=True)
        kept = self.instances.kept.put(sides(flow.events.take(used)))
        origins = self._origins + event_of
        self._origins += len(used)
        batch, known = self.awaiting(InstanceColumns(kept[event_of], origins, classes, members, NO_INTS, NO_INTS))
        return batch if known.all() else batch.take(known)

    def _in_sets(self, flow: cols.Flow) -> tuple[Ints, Ints, Ints]:
        """Returns events, classes and members where classes have several rows; members are shared."""
        at, numbers, of, left = cols.sets_of(flow)
        places, rows = self._readers.of(left)
        of, classes = of[places], self.classes.of_row[rows]
        of, classes, members = self._members(of, classes, rows)
        counts = np.bincount(of, minlength=int(numbers.max()) + 1)
        if len(of) == len(counts) and counts.all():
            return at, classes[numbers], members[numbers]
        taken, place = cols.spread((np.cumsum(counts) - counts)[numbers], counts[numbers])
        return at[place], classes[taken], members[taken]

    def _members(self, of: Ints, classes: Ints, rows: Ints) -> tuple[Ints, Ints, Ints]:
        """Returns the distinct pairs of a number and a class, each with the set of its rows."""
        codes = of * self.classes.end + classes
        order = np.argsort(codes, kind="stable")
        first = group_starts(codes[order])
        members = self.instances.members.put(rows[order], np.diff(first, append=len(rows)))
        return of[order][first], classes[order][first], members

    def awaiting(self, batch: InstanceColumns) -> tuple[InstanceColumns, Mask]:
        """Returns instances with keys and marks, and which may match: not those whose key is NULL."""
        shapes = self.classes.shape[batch.classes]
        keys, known = np.zeros(len(batch), np.int64), np.ones(len(batch), np.bool_)
        for shape, places in each_shape(shapes):
            found = self._tests[shape].key
            if found is not None:
                events, classes = batch.events[places], batch.classes[places]
                pairs = pairs_of(self.instances, self.classes, events, None, None, classes)
                keys[places], known[places] = known_keys(found[0](pairs))
        scopes = np.where(self._static[shapes], batch.classes, self.classes.right[batch.classes])
        self._made.append((batch.events, batch.members))
        return replace(batch, keys=keys, marks=cols.mixed([shapes, scopes, keys])), known

    def begin(
        self, inputs: Sequence[cols.Flow], until: int, room: Room, sides: _Sides
    ) -> tuple[PartnerSearch, Ints, InstanceColumns] | None:
        """Begins an interval. Returns the search, the places of the waiting instances that it may concern, and these
        instances with those that begin; None if nothing begins or finds a partner: then the interval has ended."""
        left, right = inputs
        if not len(left) and not (len(right) and len(self.instances)):
            self._sweep(self.instances.expire(until))
            return None
        new = self._enter(left, sides)
        self.make(room, int(self.sizes_of(new).sum()))
        search = self.search(right, new.classes)
        places, waiting = self.instances.touched(search.marks)
        return search, places, joined_batches([waiting, new])

    def finish(self, touched: Ints, kept: InstanceColumns, until: int) -> None:
        """Ends an interval: drops instances at `touched`, adds those of `kept` that can still match, and sweeps."""
        dropped = self.instances.drop(touched)
        if len(kept):
            ends = self.begins(kept.events) + self.classes.within[kept.classes]
            alive = ends >= until
            self.instances.add(kept.take(alive), ends[alive])
        self._sweep(dropped, self.instances.expire(until))

    def begins(self, events: Ints) -> Ints:
        """Returns the times from which on the windows of events are counted."""
        return self.instances.kept.sides[0].t0[events]

    def _sweep(self, *gone: InstanceColumns) -> None:
        """Sweeps the sets and events of instances that are gone or were made in this interval."""
        used = [*((one.events, one.members) for one in gone), *self._made]
        self._made = []
        if used:
            events, members = zip(*used, strict=True)
            self.instances.sweep(np.concatenate(events), np.concatenate(members))

    # ------------------------------------------------------------ limits

    def make(self, room: Room, count: int) -> None:
        """Takes room for `count` instances. Raises Crowded."""
        room.waiting -= count
        if room.waiting < 0:
            self._sweep()
            raise Crowded("partial")

    def give_up(self, batch: InstanceColumns, results: Ints, room: Room) -> NoReturn:
        """Raises Crowded because of the results per instance so far."""
        rows = NO_INTS if room.epoch is None else self._over(batch, results, room.epoch, self._meter.limits.matches)
        self._sweep()
        raise Crowded("matches", rows)

    def compare(self, search: PartnerSearch, room: Room, once: Callable[[InstanceColumns], Ints] | None = None) -> None:
        """Ends a search: finds the rows with too many comparisons at a time. `once` returns the places of distinct
        instances. Raises Crowded if the search has stopped for its comparisons."""
        found: list[tuple[int, Ints]] = []
        most = self._meter.limits.work
        if search.compared > most:
            batch, start, stop = search.comparisons()
            if once is not None:
                places = once(batch)
                batch, start, stop = batch.take(places), start[places], stop[places]
            for time, counts in search.candidates.crowded(start, stop, most):
                some = np.flatnonzero(counts)
                rows = self._over(batch.take(some), counts[some], time, most)
                found += [(time, rows)] if len(rows) else []
        if search.candidates.tests > room.compared:
            self._sweep()
            over = [rows for _, rows in found] if room.epoch is not None else []
            raise Crowded("work", np.concatenate([NO_INTS, *over]))
        room.over += found

    def sizes_of(self, batch: InstanceColumns) -> Ints:
        """Returns what each instance counts for while it waits."""
        sizes = np.ones(len(batch), np.int64)
        for number, places in each_shape(self.classes.made[batch.classes] if self._has_texts else NO_INTS):
            for (name, _), column in zip(self._left, self.instances.kept.sides[0].values, strict=True):
                if name in self._rows.sources[number][0]:
                    sizes[places] += self._texts.sizes(column[batch.events[places]])
        return sizes

    def waiting(self) -> Ints:
        return self.instances.counts(self.sizes_of(self.instances.all()[1]) if self._has_texts else None)

    def crowded(self, until: int) -> Ints:
        most = self._meter.limits.partial
        if len(self.instances) <= most and not self._has_texts:
            return NO_INTS
        _, batch = self.instances.all()
        return self._over(batch, self.sizes_of(batch), until, most)

    def leave(self, rows: Ints) -> None:
        self.instances.remove_rows(rows)
        self._readers.remove(rows)

    def _over(self, batch: InstanceColumns, counts: Ints, time: int, most: int) -> Ints:
        """Returns the rows for which the counts of visible instances whose windows reach `time` exceed `most`."""
        codes, which = np.unique(batch.members, return_inverse=True)
        of, rows = self.instances.members.rows(codes)
        sums = np.bincount(rows, np.bincount(which, counts, len(codes))[of])
        found: list[int] = []
        for row in np.flatnonzero(sums > most).tolist():
            first = self.instances.kept.sides[0]
            has_row = np.zeros(len(codes), np.bool_)
            has_row[of[rows == row]] = True
            mine = np.flatnonzero(has_row[which])
            mine = mine[self.begins(batch.events[mine]) + self._rows.within[row] >= time]
            mine = mine[self._sees(row, first.parts[batch.events[mine], 0])]
            if counts[mine].sum() > most:
                found.append(row)
        return np.array(found, np.int64)

    # ------------------------------------------------------------ partners

    def search(self, right: cols.Flow, new: Ints) -> PartnerSearch:
        """Prepares the search among right events for waiting instances and new classes."""
        search = PartnerSearch(self.classes, self.instances, self._tests, right.compact())
        if not len(right):
            return search.finish()
        active = self.classes.marked(new)
        active[np.flatnonzero(self.instances.by_class[: self.classes.end])] = True
        shapes = distinct(self.classes.shape[: self.classes.end][active])
        if np.any(self._static[shapes]):
            search.add_static(*self._index.hits(search.right.events, active))
        for shape in shapes[~self._static[shapes]].tolist():
            search.add_all(shape)
        return search.finish()

    def flow_of(self, events: cols.Columns, members: Ints, at: Ints, spans: Ints) -> cols.Flow:
        """Returns results of events, by t1, from each instance's members, event and span, within rows' windows."""
        if np.any(at[1:] < at[:-1]):
            order = np.argsort(at, kind="stable")
            members, at, spans = members[order], at[order], spans[order]
        if np.all(members >= 0):
            if self._bounded:
                inside = spans <= self._rows.within[members]
                at, members = at[inside], members[inside]
            return cols.Flow(events, at, members).compact()
        codes, which = np.unique(members, return_inverse=True)
        of, rows = self.instances.members.rows(codes)
        counts = np.bincount(of, minlength=len(codes))
        starts = np.cumsum(counts) - counts
        sizes = counts[which]
        if self._bounded:
            # The rows of a set by their windows, the widest first: an event is in those of a beginning.
            windows = self._rows.within[rows]
            levels = distinct(windows)
            keys = of * (len(levels) + 1) - np.searchsorted(levels, windows)
            order = np.argsort(keys, kind="stable")
            rows, keys = rows[order], keys[order]
            least = which * (len(levels) + 1) - np.searchsorted(levels, spans)
            sizes = np.searchsorted(keys, least, "right") - starts[which]
        there = np.flatnonzero(sizes)
        stretches = cols.Stretches(at[there], starts[which[there]], sizes[there], rows)
        if len(rows) < len(stretches):
            return cols.Flow.of(events, stretches).compact()
        return cols.Flow(events, *stretches.pairs()).compact()

    def codes(self) -> Iterable[Ints]:
        yield from self._index.used()
        _, batch = self.instances.all()
        for side in self.instances.kept.sides:
            for (_, kind), column in zip(self._left, side.values, strict=True):
                if kind == "string":
                    yield column[batch.events].astype(np.int64)

    def parts(self) -> Iterable[Ints]:
        _, batch = self.instances.all()
        return [side.parts[batch.events] for side in self.instances.kept.sides]

    def state(self) -> pa.Table:
        _, batch = self.instances.all()
        if not len(batch):
            return pa.table({})
        places, rows = self.instances.members.rows(batch.members)
        columns = {
            "rows": lists(rows, np.bincount(places, minlength=len(batch))),
            "event": pa.array(batch.events),
            "origin": pa.array(batch.origins),
        }
        for number, side in enumerate(self.instances.kept.sides):
            columns |= saved(side.take(batch.events), self._left, self._texts, f"{number}_")
        return pa.table(columns)

    def restore(self, table: pa.Table, renumber: Renumber) -> None:
        super().restore(table, renumber)
        if not len(table):
            return
        rows, sizes = flatten_lists(table, "rows")
        rows = renumber(rows)
        there = rows >= 0
        instances, rows = np.repeat(np.arange(len(sizes)), sizes)[there], rows[there]
        if not len(rows):
            return
        # An event that several instances have is kept once.
        first, event_of = np.unique(ints(table, "event"), return_index=True, return_inverse=True)[1:]
        sides = [loaded(table, self._left, self._texts, f"{side}_").take(first) for side in range(self._sides)]
        kept = self.instances.kept.put(sides)
        origins = ints(table, "origin") + self._origins
        self._origins = int(origins.max()) + 1
        self._made.append((kept, NO_INTS))
        of, classes, members = self._members(instances, self.classes.of_row[rows], rows)
        batch, _ = self.awaiting(InstanceColumns(kept[event_of[of]], origins[of], classes, members, NO_INTS, NO_INTS))
        self.finish(NO_INTS, batch, BEGINNING)


class Folding(Joining):
    """FOLD. Its shapes have inputs and results of one schema. An interval runs in generations: each extends the runs of
    the previous one by a right event. A run keeps only its first event and latest values."""

    def __init__(self, context: MOpContext) -> None:
        definitions: Sequence[Fold] = context.definitions
        left, right = definitions[0].left.schema, definitions[0].right.schema
        super().__init__(context, (left, right), 2)
        self._continues: list[Callable[[Pairs], Mask]] = []
        self._sets: list[list[tuple[int, Callable[[Pairs], cols.Column]]]] = []
        self._makes_texts = False
        self._places = {name: place for place, (name, _) in enumerate(left)}
        self._columns = [(part == "latest", self._places[name]) for part, name in definitions[0].names]
        self._from_right = [(self._places[name], place) for place, (name, _) in enumerate(right)]

    def _condition(self, definition: Fold) -> EventCondition:
        both = self._left, self._right, self._texts
        self._continues.append(compile_condition(definition.continues, *both))
        self._sets.append([(self._places[name], compile_value(value, *both)) for name, value in definition.sets])
        self._makes_texts = self._makes_texts or bool(made_of_latest(definition, *self._rows.sources[0]))
        self._has_texts = self._has_texts or self._makes_texts
        return definition.chooses

    def attempt(self, inputs: Sequence[cols.Flow], until: int, room: Room) -> cols.Flow:
        left, right = inputs[0].events, inputs[1].events
        width = right.parts.shape[1]
        begun = self.begin(
            inputs, until, room, lambda events: [events, replace(events, parts=np.full((len(events), width), -1))]
        )
        if begun is None:
            return self._results(left, right, NO_INSTANCES)
        search, places, batch = begun
        old, touched, unresolved, made = len(places), places[:0], [batch.take(places[:0])], [batch.take(places[:0])]
        while len(batch):
            runs, going_on, resolved = self._generation(search, batch, room)
            if old:
                touched = places[resolved[:old]]
            unresolved.append(batch.take(np.flatnonzero(~resolved[old:]) + old))
            old = 0
            made.append(runs)
            batch = runs.take(going_on)
        found = self._results(left, right, joined_batches(made))
        self.compare(search, room, self._distinct)
        self.finish(touched, self._once(joined_batches(unresolved)), until)
        return found

    def sizes_of(self, batch: InstanceColumns) -> Ints:
        return super().sizes_of(batch) + self._sizes(batch, self.classes.made[batch.classes]) - 1

    def sizes(self, flow: cols.Flow) -> Ints | None:
        if not self._makes_texts:
            return None
        classes = self.classes.of_row[flow.rows]
        columns = {place: at for at, (is_latest, place) in enumerate(self._columns) if is_latest}
        values = {place: flow.events.values[at] for place, at in columns.items()}
        return self._sizes_of(self.classes.shape[classes], np.zeros_like(classes), values, flow.at)

    def _sizes(self, batch: InstanceColumns, made: Ints) -> Ints:
        """Returns what instances count for by their latest values; without `made`, by those that FOLD made."""
        latest = dict(enumerate(self.instances.kept.sides[1].values)) if len(batch) else {}
        return self._sizes_of(self.classes.shape[batch.classes], made, latest, batch.events)

    def _sizes_of(self, shapes: Ints, made: Ints, values: Mapping[int, cols.Column], at: Ints) -> Ints:
        sizes = np.ones(len(at), np.int64)
        if not self._has_texts or not len(at):
            return sizes
        firsts, of = cols.number_distinct([shapes, made])
        for number, first in enumerate(firsts.tolist()):
            left, right = self._rows.sources[made[first]]
            places = np.flatnonzero(of == number)
            for name in made_of_latest(self._definitions[shapes[first]], left, right):
                if (place := self._places.get(name, -1)) in values:
                    codes = values[place][at[places]]
                    counts = self._texts.sizes(codes)
                    if name in left:  # where it is that of the first event, that counts
                        counts[codes == self.instances.kept.sides[0].values[place][at[places]]] = 0
                    sizes[places] += counts
        return sizes

    def _generation(
        self, search: PartnerSearch, batch: InstanceColumns, room: Room
    ) -> tuple[InstanceColumns, Mask, Mask]:
        """Returns the next generation, which of it can continue, and which of this one it came from. Runs multiply
        where many events are simultaneous, so they are processed in parts."""
        resolved = np.zeros(len(batch), np.bool_)
        found: list[tuple[InstanceColumns, Mask]] = []
        size = search.candidates.share(len(batch))
        for begin in range(0, len(batch), size):
            part = batch if size == len(batch) else batch.take(slice(begin, begin + size))
            whose, at = search.partners(part, steps=room.compared)
            if search.candidates.tests > room.compared:
                self.compare(search, room, self._distinct)
            resolved[whose + begin] = True
            step = _TEXTS_AT_ONCE if self._has_texts else max(len(whose), 1)
            for start in range(0, max(len(whose), 1), step):
                some = slice(start, start + step)
                found.append(self._next(search, part, whose[some], at[some]))
                count = int(self.sizes_of(found[-1][0]).sum())
                room.found -= count
                if room.found < 0:
                    runs = self._once(joined_batches([one for one, _ in found]))
                    self.give_up(runs, self._sizes(runs, np.zeros_like(runs.classes)), room)
                self.make(room, count)
        if len(found) == 1:
            return *found[0], resolved
        runs = joined_batches([one for one, _ in found])
        once = self._distinct(runs)
        return runs.take(once), np.concatenate([going_on for _, going_on in found])[once], resolved

    def _next(
        self, search: PartnerSearch, batch: InstanceColumns, whose: Ints, at: Ints
    ) -> tuple[InstanceColumns, Mask]:
        instances = self.instances
        shapes = self.classes.shape[batch.classes[whose]]
        held = np.zeros(len(whose), np.bool_)
        for shape, places in each_shape(shapes):
            held[places] = self._continues[shape](search.pairs(batch.take(whose[places]), at[places]))
        instances_of, at, shapes = batch.take(whose[held]), at[held], shapes[held]
        if not len(at):
            return instances_of, held[held]
        first = instances.kept.sides[0].take(instances_of.events)
        latest, right = instances.kept.sides[1].take(instances_of.events), search.right.events
        for place, other in self._from_right:
            latest.values[place][:] = right.values[other][at]
        for shape, places in each_shape(shapes):
            pairs = search.pairs(instances_of.take(places), at[places])
            for place, value in self._sets[shape]:
                latest.values[place][places] = value(pairs)
        first.t1[:] = latest.t1[:] = right.t1[at]
        latest.parts[:] = right.parts[at]
        inside = first.t1 - first.t0 <= self.classes.within[instances_of.classes]
        keys = [instances_of.origins, instances_of.classes, at, *(cols.same(column) for column in latest.values)]
        once = cols.number_distinct(keys)[0]
        once = once[inside[once]]
        events = instances.kept.put([first.take(once), latest.take(once)])
        kept = instances_of.take(once)
        return self.awaiting(InstanceColumns(events, kept.origins, kept.classes, kept.members, kept.keys, kept.marks))

    def _once(self, batch: InstanceColumns) -> InstanceColumns:
        return batch.take(self._distinct(batch))

    def _distinct(self, batch: InstanceColumns) -> Ints:
        if not len(batch):
            return batch.events
        latest = self.instances.kept.sides[1].take(batch.events)
        keys = [batch.origins, batch.classes, latest.t1, *(cols.same(column) for column in latest.values)]
        return cols.number_distinct([*keys, *(np.ascontiguousarray(place) for place in latest.parts.T)])[0]

    def _results(self, left: cols.Columns, right: cols.Columns, runs: InstanceColumns) -> cols.Flow:
        sides = self.instances.kept.sides or (left, left)
        runs = runs.take(np.argsort(sides[1].t1[runs.events], kind="stable"))
        first, latest = (side.take(runs.events) for side in sides)
        values = tuple((latest if is_latest else first).values[place] for is_latest, place in self._columns)
        then = latest.parts if len(runs) else right.parts[:0]
        events = cols.Columns(first.t0, first.t1, values, np.concatenate([first.parts, then], axis=1))
        return cols.each_once(self.flow_of(events, runs.members, np.arange(len(runs)), events.t1 - events.t0))


class Sequencing(Joining):
    """NEXT. Its shapes have inputs and results of one schema."""

    def __init__(self, context: MOpContext) -> None:
        definitions: Sequence[Next] = context.definitions
        left, right = definitions[0].left.schema, definitions[0].right.schema
        super().__init__(context, (left, right), 1)
        places = {("left", name): (0, place) for place, (name, _) in enumerate(left)}
        places |= {("right", name): (1, place) for place, (name, _) in enumerate(right)}
        self._columns = [places[name] for name in definitions[0].names]

    def _condition(self, definition: Next) -> EventCondition:
        return definition.condition

    def attempt(self, inputs: Sequence[cols.Flow], until: int, room: Room) -> cols.Flow:
        left = inputs[0].events
        begun = self.begin(inputs, until, room, lambda events: [events])
        if begun is None:
            return self._results(left, inputs[1].events, NO_INSTANCES, NO_INTS, NO_INTS)
        search, places, batch = begun
        whose, at = search.partners(batch, room.found, room.compared)
        if len(whose) > room.found:
            self.give_up(batch, np.bincount(whose, minlength=len(batch)), room)
        self.compare(search, room)
        found = self._results(left, search.right.events, batch, whose, at)
        resolved = np.zeros(len(batch), np.bool_)
        resolved[whose] = True
        old = len(places)
        self.finish(places[resolved[:old]], batch.take(np.flatnonzero(~resolved[old:]) + old), until)
        return found

    def _results(
        self, left: cols.Columns, right: cols.Columns, batch: InstanceColumns, whose: Ints, at: Ints
    ) -> cols.Flow:
        sides = self.instances.kept.sides
        kept = sides[0] if sides else left
        width = max(len(kept), 1)
        codes, places = np.unique(at * width + batch.events[whose], return_inverse=True)
        ones, others = codes % width, codes // width
        values: list[cols.Column] = [
            right.values[place][others] if side else kept.values[place][ones] for side, place in self._columns
        ]
        parts = np.concatenate([kept.parts[ones], right.parts[others]], axis=1)
        made = cols.Columns(kept.t0[ones], right.t1[others], tuple(values), parts)
        return self.flow_of(made, batch.members[whose], places, right.t1[at] - kept.t0[batch.events[whose]])


class Preceding(Sequencing):
    """LATEST BEFORE. Left events wait for `within` after their end: one that is too long for a result still hides those
    before it. A row sees left events whose first part ended after its since. The search asks, for each right event and
    each row with left events in its group, for the latest of these."""

    def begins(self, events: Ints) -> Ints:
        return self.instances.kept.sides[0].t1[events]

    def attempt(self, inputs: Sequence[cols.Flow], until: int, room: Room) -> cols.Flow:
        left = inputs[0].events
        begun = self.begin(inputs, until, room, lambda events: [events])
        if begun is None:
            return self._results(left, inputs[1].events, NO_INSTANCES, NO_INTS, NO_INTS)
        search, places, batch = begun
        found = self._found(search, batch, room)
        events = replace(batch.take(found.events), members=found.rows)
        flow = self._results(left, search.right.events, events, np.arange(len(found)), found.at)
        self.finish(NO_INTS, batch.take(slice(len(places), None)), until)
        return flow

    def _found(self, search: PartnerSearch, batch: InstanceColumns, room: Room) -> _LatestPairs:
        groups = search.groups_of(batch) if len(search.right) else NO_INTS
        there = np.flatnonzero(groups >= 0)
        found = [_LatestPairs(NO_INTS, NO_INTS, NO_INTS)]
        if not len(there):
            return found[0]
        kept, right = self.instances.kept.sides[0], search.right.events
        began = self._lineage.ends(kept.parts[batch.events, 0])
        candidates = Candidates(-kept.t1[batch.events], groups[there], there)
        of, rows = self.instances.members.rows(batch.members[there])
        width = int(rows.max()) + 1
        asking = distinct(groups[there][of] * width + rows)  # groups with their rows
        first, last = (np.searchsorted(asking, (search.groups + more) * width) for more in (0, 1))
        has, rest = self.instances.members.holders(batch.members), search.rest(batch)
        compared: list[tuple[Ints, Ints, Ints, Ints]] = []
        for block in np.split(np.arange(len(first)), np.flatnonzero(np.diff(np.cumsum(last - first) // _ASKED)) + 1):
            codes, whose = cols.spread(first[block], (last - first)[block])
            at, row = search.at[block][whose], asking[codes] % width

            def holds(asked: Ints, events: Ints, at: Ints = at, row: Ints = row) -> Mask:
                held: Mask = has(events, row[asked]) & (began[events] > self._rows.apart[row[asked]])
                if rest is not None:
                    some = np.flatnonzero(held)
                    held[some] = rest(events[some], at[asked[some]])
                return held

            oldest = self._rows.within[row] - right.t1[at]  # what ended before is too long for a result
            start, end = candidates.ranges(search.groups[block][whose], -right.t0[at], oldest)
            asked, events, stop = candidates.first(start, end, holds, room.found, room.compared)
            compared.append((row, right.t1[at], start, stop))
            room.found -= len(asked)  # those that are too long for a result, too: it may have stopped at them
            spans = right.t1[at[asked]] - kept.t0[batch.events[events]]
            asked, events = (part[spans <= self._rows.within[row[asked]]] for part in (asked, events))
            found.append(_LatestPairs(events, at[asked], row[asked]))
            if room.found < 0 or candidates.tests > room.compared:
                break
        firsts = kept.parts[batch.events, 0]
        pairs = joined(found)
        self._check(pairs, compared, candidates, has, firsts, room)
        return pairs

    def _check(
        self,
        pairs: _LatestPairs,
        compared: Sequence[tuple[Ints, Ints, Ints, Ints]],
        candidates: Candidates,
        has: Callable[[Ints, Ints], Mask],
        firsts: Ints,
        room: Room,
    ) -> None:
        """Finds the rows with too many comparisons at a time; raises Crowded if the search has stopped. `compared` has
        row, time and range of candidates."""
        over: list[tuple[int, Ints]] = []
        row, time, start, stop = (np.concatenate(column) for column in zip(*compared, strict=True))
        if (stop - start).sum() > (most := self._meter.limits.work):
            heads, of = cols.number_distinct([row, time])
            for pair in np.flatnonzero(np.bincount(of, stop - start) > most).tolist():
                mine, one = of == pair, int(row[heads[pair]])
                events = candidates.events[cols.spread(start[mine], (stop - start)[mine])[0]]
                if (has(events, np.full(len(events), one)) & self._sees(one, firsts[events])).sum() > most:
                    over.append((int(time[heads[pair]]), np.array([one], np.int64)))
        if candidates.tests > room.compared:
            self._sweep()
            rows = [rows for _, rows in over] if room.epoch is not None else []
            raise Crowded("work", np.concatenate([NO_INTS, *rows]))
        if room.found < 0:
            most, counts = self._meter.limits.matches, np.bincount(pairs.rows)
            many = np.flatnonzero(counts > most).tolist() if room.epoch is not None else []
            self._sweep()
            seen = [one for one in many if self._sees(one, firsts[pairs.events[pairs.rows == one]]).sum() > most]
            raise Crowded("matches", np.array(seen, np.int64))
        room.over += over


_ASKED = 1 << 18  # approximate number of pairs of right event and row asked at once


@dataclass(frozen=True, slots=True)
class _LatestPairs(cols.ColumnRecord):
    """Places of instances and of right events, and rows that have both."""

    events: Ints
    at: Ints
    rows: Ints

    def __len__(self) -> int:
        return len(self.rows)
