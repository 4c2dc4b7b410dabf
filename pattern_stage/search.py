"""The join search of NEXT and FOLD: the first right events, with all ties, that satisfy the conditions of waiting
instances. It runs for all instances of an interval at once. Instances are left events, or runs so far, each with its
membership: the set of rows that have it, by code. A condition is split into what an index finds, what a hash finds, and
what is left to test."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from common.arrays import Ints, Mask, distinct
from common.bounds import INFINITE
from pattern_stage.clauses import Clauses, common_equalities, split_condition, static_clauses
from pattern_stage.columns import NO_INTS, Column, ColumnRecord, Columns, Flow, joined, mixed, same, spread
from pattern_stage.fan_out import CountedPlaces, KeptEvents, Slots, grow_array
from pattern_stage.index import RowClasses, each_shape
from pattern_stage.values import Pairs, Texts, compile_condition, compile_value
from xscl.algebra.events import AllOf, Comparison, EventCondition, Function, Schema, value_kind

_LITTLE = 4096  # up to this number of rows, unused sets are not compacted


class RowSets:
    """Interned sets of rows, by code: a single row is its own code, codes of sets are negative."""

    def __init__(self) -> None:
        self._rows = np.zeros(16, np.int64)
        self._end = self._waste = 0
        self._places = CountedPlaces()
        self._starts, self._sizes = np.zeros(16, np.int64), np.zeros(16, np.int64)

    def put(self, rows: Ints, sizes: Ints) -> Ints:
        """Adds concatenated non-empty sets without uses; returns their codes."""
        firsts = np.cumsum(sizes) - sizes
        codes: Ints = rows[firsts]
        several = np.flatnonzero(sizes > 1)
        if len(several) == 0:
            return codes
        counts = sizes[several]
        taken, _ = spread(firsts[several], counts)
        places = self._places.take(len(several))
        self._starts = grow_array(self._starts, self._places.end)
        self._sizes = grow_array(self._sizes, self._places.end)
        self._rows = grow_array(self._rows, self._end + len(taken))
        self._rows[self._end : self._end + len(taken)] = rows[taken]
        self._starts[places], self._sizes[places] = self._end + np.cumsum(counts) - counts, counts
        self._end += len(taken)
        codes[several] = -1 - places
        return codes

    def rows(self, codes: Ints) -> tuple[Ints, Ints]:
        """Returns pairs: index of a given code, ascending, and a row of its set."""
        sets = codes < 0
        if not np.any(sets):
            return np.arange(len(codes)), codes
        places = np.where(sets, -1 - codes, 0)
        numbers, place_of = spread(self._starts[places], np.where(sets, self._sizes[places], 1))
        rows = self._rows[numbers]
        if not np.all(sets):
            rows[~sets[place_of]] = codes[~sets]
        return place_of, rows

    def use(self, codes: Ints) -> None:
        self._places.use(-1 - codes[codes < 0])

    def leave(self, codes: Ints) -> None:
        self._places.leave(-1 - codes[codes < 0])

    def holders(self, codes: Ints) -> Callable[[Ints, Ints], Mask]:
        """Returns a test whether the set of a given code, by index, has a row."""
        if np.all(codes >= 0):
            return lambda at, rows: codes[at] == rows
        known, which = np.unique(codes, return_inverse=True)
        of, members = self.rows(known)
        width = int(members.max(initial=0)) + 1
        pairs = np.sort(of * width + members)

        def has(at: Ints, rows: Ints) -> Mask:
            wanted = which[at] * width + rows
            found: Mask = pairs[np.minimum(np.searchsorted(pairs, wanted), len(pairs) - 1)] == wanted
            return found & (rows < width)

        return has

    def sweep(self, codes: Ints) -> None:
        """Drops those of these sets without uses."""
        unused = self._places.sweep(-1 - codes[codes < 0])
        self._waste += int(self._sizes[unused].sum())
        self._sizes[unused] = 0
        if self._waste > max(_LITTLE, self._end // 2):
            self.remove(np.zeros(0, np.int64))

    def remove(self, gone: Ints) -> None:
        """Removes rows from all sets, which may leave sets empty."""
        there = np.flatnonzero(self._sizes[: self._places.end])
        places, set_of = spread(self._starts[there], self._sizes[there])
        kept = ~np.isin(self._rows[places], gone)
        rows = self._rows[places[kept]]
        self._sizes[there] = np.bincount(set_of[kept], minlength=len(there))
        self._starts[there] = np.cumsum(self._sizes[there]) - self._sizes[there]
        self._rows[: len(rows)] = rows
        self._end, self._waste = len(rows), 0

    def empty(self, codes: Ints, gone: Ints) -> Ints:
        """Returns which of these sets had only rows in `gone`, which `remove` was given."""
        sets = codes < 0
        sizes = self._sizes[np.where(sets, -1 - codes, 0)]
        return np.flatnonzero(np.where(sets, sizes == 0, np.isin(codes, gone)))


@dataclass(frozen=True, slots=True)
class InstanceColumns(ColumnRecord):
    events: Ints  # places in `Instances.kept`
    origins: Ints  # identifies the left event that an instance began with
    classes: Ints
    members: Ints  # codes of `Instances.members`
    keys: Ints  # the value required by the hashed equality; 0 without one
    marks: Ints  # hashes of all that an event must match to touch an instance

    def __len__(self) -> int:
        return len(self.events)


def joined_batches(batches: Sequence[InstanceColumns]) -> InstanceColumns:
    return joined([batch for batch in batches if len(batch)] or batches[:1])


class Instances:
    """Waiting instances, in columns. An interval costs time in the instances touched, and a scan of the marks."""

    def __init__(self) -> None:
        self.kept = KeptEvents()
        self.members = RowSets()
        self.by_class = np.zeros(16, np.int64)  # number of instances by class
        self._slots = Slots()
        self._alive = np.zeros(16, np.bool_)
        self._ends = np.zeros(16, np.int64)
        self._batch = InstanceColumns(*(np.zeros(16, np.int64) for _ in range(6)))

    def __len__(self) -> int:
        return len(self._slots)

    def all(self) -> tuple[Ints, InstanceColumns]:
        places = np.flatnonzero(self._alive[: self._slots.end])
        return places, self._batch.take(places)

    def counts(self, sizes: Ints | None = None) -> Ints:
        """Returns each row's waiting instances, each counted as in `sizes`. Rows past the end have none."""
        _, batch = self.all()
        codes, which = np.unique(batch.members, return_inverse=True)
        uses = np.bincount(which, sizes, len(codes))
        places, rows = self.members.rows(codes)
        return np.bincount(rows, uses[places]).astype(np.int64)

    def touched(self, marks: Ints) -> tuple[Ints, InstanceColumns]:
        """Returns the places and instances with these marks, and perhaps a few more."""
        table = np.zeros(1 << max(10, int(8 * len(marks)).bit_length()), np.bool_)
        table[marks & (len(table) - 1)] = True
        end = self._slots.end
        places = np.flatnonzero(table[self._batch.marks[:end] & (len(table) - 1)] & self._alive[:end])
        return places, self._batch.take(places)

    def add(self, batch: InstanceColumns, ends: Ints) -> None:
        """Adds instances that expire when the horizon passes `ends`."""
        places = self._slots.take(len(batch))
        size = self._slots.end
        if size > len(self._alive):
            columns = (getattr(self._batch, name) for name in InstanceColumns.__slots__)
            self._batch = InstanceColumns(*(grow_array(column, size) for column in columns))
            self._ends = grow_array(self._ends, size)
            self._alive = np.append(self._alive, np.zeros(len(self._ends) - len(self._alive), np.bool_))
        for name in InstanceColumns.__slots__:
            getattr(self._batch, name)[places] = getattr(batch, name)
        self._ends[places], self._alive[places] = ends, True
        self.kept.use(batch.events)
        self.members.use(batch.members)
        self.by_class = grow_array(self.by_class, int(batch.classes.max(initial=-1)) + 1)
        np.add.at(self.by_class, batch.classes, 1)

    def drop(self, places: Ints) -> InstanceColumns:
        """Removes and returns instances. Their events and sets stay until swept."""
        batch = self._batch.take(places)
        self._alive[places] = False
        self._slots.give(places)
        np.subtract.at(self.by_class, batch.classes, 1)
        self.kept.leave(batch.events)
        self.members.leave(batch.members)
        return batch

    def sweep(self, events: Ints, members: Ints) -> None:
        """Drops those of these events and sets that no waiting instance uses."""
        self.kept.sweep(events)
        self.members.sweep(members)

    def expire(self, until: int) -> InstanceColumns:
        """Removes and returns, as `drop`, the instances that ended before this horizon."""
        end = self._slots.end
        return self.drop(np.flatnonzero((self._ends[:end] < until) & self._alive[:end]))

    def remove_rows(self, gone: Ints) -> None:
        """Removes rows, and instances left without rows."""
        places, batch = self.all()
        self.members.remove(gone)
        lonely = self.drop(places[self.members.empty(batch.members, gone)])
        self.sweep(lonely.events, lonely.members)


_PAIRS = 1 << 20  # approximate number of pairs tested at once

CandidateTest = Callable[[Ints, Ints], Mask]  # whether instances match events, given the places of both


class Candidates:
    """Candidate events in groups, each in order of t1."""

    def __init__(self, times: Ints, groups: Ints, events: Ints) -> None:
        """`times`: sorted t1 of all events. Pair i says that event `events[i]` is in `groups[i]`."""
        self.tests = 0
        self._times, ranks = np.unique(times, return_inverse=True)
        self._step = len(self._times) + 1
        codes = groups * self._step + ranks[events]
        if np.all(codes[1:] >= codes[:-1]):
            self._codes, self.events = codes, events
        else:
            order = np.argsort(codes, kind="stable")
            self._codes, self.events = codes[order], events[order]

    def ranges(self, groups: Ints, after: Ints, until: Ints) -> tuple[Ints, Ints]:
        """Returns the range of a group's events with `after < t1 <= until`."""
        first = np.searchsorted(self._codes, groups * self._step + np.searchsorted(self._times, after, "right"))
        last = np.searchsorted(self._codes, groups * self._step + np.searchsorted(self._times, until, "right"))
        return first, last

    def first(
        self, start: Ints, end: Ints, test: CandidateTest | None, most: int = INFINITE, steps: int = INFINITE
    ) -> tuple[Ints, Ints, Ints]:
        """Returns pairs of instance and event: the first event that each matches, with all matching ties; sorted by
        instance. `start` and `end` are those of `ranges`. Without a test all match. Also returns, for each instance,
        where the epoch of these ends, which is `end` without any. Stops past `most` pairs, or `steps` tests in all."""
        found: list[tuple[Ints, Ints]] = []
        count = 0
        stops = start.copy()
        active = np.flatnonzero(start < end)
        at, end = start[active], end[active]
        size = 1
        while len(active) and count <= most and self.tests <= steps:
            # What is tested at once becomes longer, so that the rounds are few, and little is tested in vain. It ends
            # with an epoch, so that ties are not torn apart.
            reach = np.minimum(at + size, end)
            stop = np.minimum(np.searchsorted(self._codes, self._codes[reach - 1], "right"), end)
            part = max(1, int(np.searchsorted(np.cumsum(stop - at), _PAIRS, "right")))
            places, whose = spread(at[:part], (stop - at)[:part])
            self.tests += len(places)
            stops[active[:part]] = stop[:part]
            if test is not None:
                held = test(active[whose], self.events[places])
                places, whose = places[held], whose[held]
            codes = self._codes[places]
            heads = np.ones(len(whose), np.bool_)
            np.not_equal(whose[1:], whose[:-1], out=heads[1:])
            stops[active[whose[heads]]] = np.searchsorted(self._codes, codes[heads], "right")
            ties = codes == codes[heads][np.cumsum(heads) - 1]
            found.append((active[whose[ties]], self.events[places[ties]]))
            count += len(found[-1][0])
            open_ = np.ones(len(active), np.bool_)
            open_[whose] = False
            at[:part] = stop[:part]
            open_ &= at < end
            active, at, end = active[open_], at[open_], end[open_]
            if part == len(stop):
                size *= 4
        if not found:
            return NO_INTS, NO_INTS, stops
        instances, events = (np.concatenate(column) for column in zip(*found, strict=True))
        if len(found) > 1:
            order = np.argsort(instances, kind="stable")
            instances, events = instances[order], events[order]
        return instances, events, stops

    def crowded(self, start: Ints, stop: Ints, most: int) -> Iterator[tuple[int, Ints]]:
        """Given ranges of events, yields the times of more than `most` of them, and how many of each are there."""
        ends = np.zeros(len(self._codes) + 1, np.int64)
        np.add.at(ends, start, 1)
        np.subtract.at(ends, stop, 1)
        counts = np.bincount(self._codes % self._step, np.cumsum(ends)[:-1], self._step)
        first = self._codes[np.minimum(start, len(self._codes) - 1)] // self._step * self._step
        for rank in np.flatnonzero(counts > most).tolist():
            low, high = (np.searchsorted(self._codes, first + rank, side) for side in ("left", "right"))
            yield int(self._times[rank]), np.maximum(np.minimum(stop, high) - np.maximum(start, low), 0)

    def share(self, count: int) -> int:
        """Returns how many of `count` instances to process together, by their ties."""
        if count * len(self.events) <= _PAIRS:
            return count
        bounds = np.flatnonzero(np.diff(self._codes, prepend=-1, append=-1))
        return min(count, max(1, _PAIRS // int(np.diff(bounds).max(initial=1))))


_PairColumn = Callable[[Pairs], Column]


@dataclass(frozen=True, slots=True)
class PairTests:
    static: Clauses  # clauses on the right event that the condition implies; empty if there are none
    key: tuple[_PairColumn, _PairColumn] | None
    """Values of instance and right event that are equal where the condition holds."""
    rest: Callable[[Pairs], Mask] | None  # the remaining test


def take_apart(condition: EventCondition, left: Schema, right: Schema, texts: Texts, hashed: bool) -> PairTests:
    """Splits a condition of NEXT, or FOLD's first one; without `hashed`, no equality is hashed."""
    clauses = split_condition(condition)
    static = static_clauses(clauses)
    equal = next(iter(common_equalities(clauses)), None) if hashed else None
    key = None
    if equal is not None:
        one, other = equal
        if value_kind(one) != value_kind(other):
            one, other = (Function("number", (side,), "number") for side in equal)
        key = compile_value(one, left, right, texts), compile_value(other, left, right, texts)
    rest: EventCondition = condition
    if len(clauses) == 1:
        others = [Comparison("=", *pair) for pair in clauses[0].equalities if pair != equal]
        rest = AllOf((*others, *clauses[0].rest))
    tested = compile_condition(rest, left, right, texts) if rest != AllOf() else None
    return PairTests(() if () in static else static, key, tested)


def known_keys(column: Column) -> tuple[Ints, Mask]:
    """Returns keys, and the mask of those not NULL."""
    return same(column), column >= 0 if column.dtype == np.int64 else ~np.isnan(column)


def pairs_of(
    instances: Instances, classes: RowClasses, events: Ints, right: Columns | None, right_at: Ints | None, of: Ints
) -> Pairs:
    sides = instances.kept.sides
    return Pairs(sides[0], events, of, classes.parameters, right, right_at, sides[-1])


class PartnerSearch:
    """The right events of an interval as candidates, in groups by shape, scope and key. The scope is a class where
    static clauses choose events, else a row of the right input."""

    def __init__(self, classes: RowClasses, instances: Instances, tests: Sequence[PairTests], right: Flow) -> None:
        self.right = right
        self._classes, self._instances, self._tests = classes, instances, tests
        self._class_scopes, self._row_scopes = np.full(classes.end, -1, np.int64), NO_INTS
        self._blocks: dict[int, tuple[int, Ints]] = {}
        self._parts: list[tuple[Ints, Ints, Ints]] = [(NO_INTS, NO_INTS, NO_INTS)]
        self.marks = NO_INTS
        self._end = 0
        self.compared = 0  # number of pairs of an instance and a candidate up to the time of its partners
        self._compared: list[tuple[InstanceColumns, Ints, Ints]] = []
        if len(right):
            rows = distinct(right.rows)
            self._row_scopes = np.full(max(int(rows[-1]), int(classes.right.max(initial=0))) + 1, -1, np.int64)
            self._row_scopes[rows] = np.arange(len(rows))

    def add_static(self, at: Ints, classes: Ints) -> None:
        """Adds events chosen by static clauses, each with a class."""
        right, shapes, rows = self.right, self._classes.shape, self._classes.right
        if len(right) != len(right.events) or right.rows.any() or rows[classes].any():
            width = len(self._row_scopes)
            held = np.isin(at * width + rows[classes], right.at * width + right.rows)
            at, classes = at[held], classes[held]
        hit = np.flatnonzero(self._classes.marked(classes))
        self._class_scopes[hit] = np.arange(len(hit))
        for shape, places in each_shape(shapes[classes]):
            self._add(shape, at[places], classes[places], self._class_scopes, len(hit))

    def add_all(self, shape: int) -> None:
        """Adds all right events, each with a row of the right input."""
        self._add(shape, self.right.at, self.right.rows, self._row_scopes, int(self._row_scopes.max()) + 1)

    def _add(self, shape: int, at: Ints, of: Ints, scopes: Ints, count: int) -> None:
        values, groups, keys = NO_INTS, scopes[of], np.zeros(len(at), np.int64)
        if (key := self._tests[shape].key) is not None:
            used, place = np.unique(at, return_inverse=True)
            right = self.right.events.take(used)
            every = np.arange(len(used))
            # Only the right event is mentioned.
            found, known = known_keys(key[1](Pairs(right, every, every, (), right, every)))
            values, numbers = np.unique(found, return_inverse=True)
            keys, held = found[place], known[place]
            groups = groups * len(values) + numbers[place]
            at, of, groups, keys = at[held], of[held], groups[held], keys[held]
        self._parts.append((groups + self._end, at, mixed([np.full(len(at), shape), of, keys])))
        self._blocks[shape] = (self._end, values)
        self._end += count * max(len(values), 1)

    def finish(self) -> PartnerSearch:
        self.groups, self.at, self.marks = map(np.concatenate, zip(*self._parts, strict=True))
        self.candidates = Candidates(self.right.events.t1, self.groups, self.at)
        return self

    def partners(self, batch: InstanceColumns, most: int = INFINITE, steps: int = INFINITE) -> tuple[Ints, Ints]:
        """Returns pairs of instance and first partners, sorted by instance. Past `most`, or once more than `steps`
        were tested in all, some may be left out."""
        if not len(batch) or not len(self.right):
            return NO_INTS, NO_INTS
        start, end = self._ranges(batch)
        whose, at, stop = self.candidates.first(start, end, self._test(batch), most, steps)
        self.compared += int((stop - start).sum())
        if steps < INFINITE:
            self._compared.append((batch, start, stop))
        return whose, at

    def comparisons(self) -> tuple[InstanceColumns, Ints, Ints]:
        """Returns the instances compared, and the ranges of their candidates."""
        batches, starts, stops = zip(*self._compared, strict=True)
        return joined_batches(batches), np.concatenate(starts), np.concatenate(stops)

    def _ranges(self, batch: InstanceColumns) -> tuple[Ints, Ints]:
        groups, sides = self.groups_of(batch), self._instances.kept.sides
        until = sides[0].t0[batch.events] + self._classes.within[batch.classes]
        start, end = self.candidates.ranges(groups, sides[-1].t1[batch.events], until)
        return start, np.where(groups >= 0, end, start)

    def groups_of(self, batch: InstanceColumns) -> Ints:
        """Returns the group of candidates for each instance; -1 if there is none."""
        shapes = self._classes.shape[batch.classes]
        groups = np.full(len(batch), -1, np.int64)
        for shape, places in each_shape(shapes):
            if (block := self._blocks.get(shape)) is None:
                continue
            offset, values = block
            classes = batch.classes[places]
            tests = self._tests[shape]
            scopes = self._class_scopes[classes] if tests.static else self._row_scopes[self._classes.right[classes]]
            found = scopes >= 0
            group = scopes + offset
            if tests.key is not None:
                keys = batch.keys[places]
                number = np.minimum(np.searchsorted(values, keys), max(len(values) - 1, 0))
                found &= values[number] == keys if len(values) else False
                group = scopes * len(values) + number + offset
            groups[places] = np.where(found, group, -1)
        return groups

    def _test(self, batch: InstanceColumns) -> CandidateTest | None:
        right = self.right.events
        ends = self._instances.kept.sides[-1].t1[batch.events]
        points, rest = bool(np.all(right.t0 == right.t1)), self.rest(batch)
        if points:
            return rest

        def holds(instances: Ints, events: Ints) -> Mask:
            held: Mask = ends[instances] < right.t0[events]
            return held if rest is None else held & rest(instances, events)

        return holds

    def rest(self, batch: InstanceColumns) -> CandidateTest | None:
        """Returns the test of what neither groups nor times say."""
        shapes = self._classes.shape[batch.classes]
        rests = {shape: self._tests[shape].rest for shape in distinct(shapes).tolist()}
        if not any(rests.values()):
            return None

        def holds(instances: Ints, events: Ints) -> Mask:
            held: Mask = np.ones(len(instances), np.bool_)
            for shape, places in each_shape(shapes[instances]):
                if (rest := rests[shape]) is not None:
                    held[places] = rest(self.pairs(batch.take(instances[places]), events[places]))
            return held

        return holds

    def pairs(self, batch: InstanceColumns, at: Ints) -> Pairs:
        """Returns instances and right events as conditions take them."""
        return pairs_of(self._instances, self._classes, batch.events, self.right.events, at, batch.classes)
