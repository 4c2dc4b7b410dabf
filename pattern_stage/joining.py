"""What NEXT and FOLD have in common: instances of left events wait for the first right events that they hold for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn

import numpy as np
import pyarrow as pa

from common.distinct import distinct
from pattern_stage.classes import Classes, each_shape
from pattern_stage.columns import Columns, Ints, Mask
from pattern_stage.fan_out import FanOut
from pattern_stage.flow import Flow, mixed, sets_of
from pattern_stage.instances import Batch, Instances
from pattern_stage.operators import NO_BOUND, Index, Renumber, RowVectors
from pattern_stage.pair_tests import PairTests, known_keys, take_apart
from pattern_stage.room import Crowded, Room, Sees
from pattern_stage.saved import flat, ints, lists, loaded, saved
from pattern_stage.search import Search, pairs_of
from pattern_stage.stretches import Stretches, spread
from pattern_stage.values import Texts
from xscl.algebra.events import Condition, Schema

_NONE = np.zeros(0, np.int64)
NO_INSTANCES = Batch(_NONE, _NONE, _NONE, _NONE, _NONE, _NONE)


class Joining:
    """The instances of NEXT or FOLD, and how they find their partners. Events have one side, or FOLD's two."""

    def __init__(
        self,
        schemas: tuple[Schema, Schema],
        sides: int,
        rows: RowVectors,
        texts: Texts,
        index: Callable[[Schema, Texts], Index],
        hashed: bool,
    ) -> None:
        self.instances = Instances(sides)
        self.classes = Classes(rows)
        self._left, self._right = schemas
        self._sides = sides
        self._rows, self._texts, self._hashed = rows, texts, hashed
        self._readers = FanOut()
        self._tests: list[PairTests] = []
        self._static = np.zeros(0, np.bool_)
        self._index = index(self._right, texts)
        self._bounded = False
        self._origins = 0
        self._made: list[tuple[Ints, Ints]] = []

    # ------------------------------------------------------------ rows

    def add_shapes(self, conditions: Iterable[Condition]) -> None:
        """Takes in the conditions of shapes that were added."""
        self._tests += [take_apart(one, self._left, self._right, self._texts, self._hashed) for one in conditions]
        self._static = np.array([bool(tests.static) for tests in self._tests])

    def add_rows(self, new: Ints) -> None:
        """Takes in rows that were added."""
        fresh = self.classes.add(new)
        self._readers.add(new, self._rows.left[new])
        self._bounded = self._bounded or bool(np.any(self._rows.within[new] < NO_BOUND))
        for shape, places in each_shape(self.classes.shape[fresh]):
            if self._static[shape]:
                targets = fresh[places]
                parameters = tuple(column[targets] for column in self.classes.parameters)
                self._index.add(targets, self._tests[shape].static, parameters)
        self._index.settle()

    def remove_rows(self, gone: Ints) -> None:
        """Forgets rows and what waits for them alone."""
        self.instances.remove_rows(gone)
        self._readers.remove(gone)
        emptied = self.classes.remove(gone)
        self._index.remove(emptied[self._static[self.classes.shape[emptied]]])

    # ------------------------------------------------------------ instances

    def enter(self, flow: Flow, sides: Callable[[Columns], Sequence[Columns]]) -> Batch:
        """Returns the instances that begin with left events. `sides` makes the sides of an event."""
        if len(flow) == 0:
            return NO_INSTANCES
        at, classes, members = self._alone(flow) if self.classes.single else self._in_sets(flow)
        if len(at) == 0:
            return NO_INSTANCES
        used, event_of = np.unique(at, return_inverse=True)
        kept = self.instances.kept.put(sides(flow.events.take(used)))
        origins = self._origins + event_of
        self._origins += len(used)
        batch, known = self.awaiting(Batch(kept[event_of], origins, classes, members, _NONE, _NONE))
        return batch if known.all() else batch.take(known)

    def _alone(self, flow: Flow) -> tuple[Ints, Ints, Ints]:
        """Returns events of left events with their classes and members, where each class has one row."""
        places, rows = self._readers.of(flow.rows)
        ones = np.ones(len(rows), np.int64)
        return flow.at[places], self.classes.of_row[rows], self.instances.members.put(rows, ones)

    def _in_sets(self, flow: Flow) -> tuple[Ints, Ints, Ints]:
        """Returns the same where classes have several rows. Events of the same left rows have the same members."""
        at, numbers, of, left = sets_of(flow)
        places, rows = self._readers.of(left)
        of, classes = of[places], self.classes.of_row[rows]
        codes = of * self.classes.end + classes
        order = np.argsort(codes, kind="stable")
        first = np.flatnonzero(np.diff(codes[order], prepend=-1))
        members = self.instances.members.put(rows[order], np.diff(first, append=len(rows)))
        of, classes = of[order][first], classes[order][first]
        counts = np.bincount(of, minlength=int(numbers.max()) + 1)
        taken, place = spread((np.cumsum(counts) - counts)[numbers], counts[numbers])
        return at[place], classes[taken], members[taken]

    def awaiting(self, batch: Batch) -> tuple[Batch, Mask]:
        """Returns instances with their keys and marks, and which of them may hold: not those whose key is NULL."""
        shapes = self.classes.shape[batch.classes]
        keys, known = np.zeros(len(batch), np.int64), np.ones(len(batch), np.bool_)
        for shape, places in each_shape(shapes):
            found = self._tests[shape].key
            if found is not None:
                events, classes = batch.events[places], batch.classes[places]
                keys[places], known[places] = known_keys(
                    found[0](pairs_of(self.instances, self.classes, events, None, None, classes))
                )
        scopes = np.where(self._static[shapes], batch.classes, self.classes.right[batch.classes])
        marks = mixed([shapes, scopes, keys])
        self._made.append((batch.events, batch.members))
        return Batch(batch.events, batch.origins, batch.classes, batch.members, keys, marks), known

    def idle(self, left: Flow, right: Flow, until: int) -> bool:
        """Ends an interval in which nothing begins and nothing finds a partner; returns whether it is one."""
        if len(left) or (len(right) and len(self.instances)):
            return False
        gone = self.instances.expire(until)
        self.instances.sweep(gone.events, gone.members)
        return True

    def finish(self, touched: Ints, kept: Batch, until: int) -> None:
        """Ends an interval: drops the instances at the places `touched`, and keeps others, as long as they can still
        find a partner. The sets and events of all others go."""
        dropped = self.instances.drop(touched)
        if len(kept):
            ends = self.instances.kept.sides[0].t0[kept.events] + self.classes.within[kept.classes]
            alive = ends >= until
            self.instances.add(kept.take(alive), ends[alive])
        late = self.instances.expire(until)
        used = [(dropped.events, dropped.members), (late.events, late.members), *self._made]
        events, members = zip(*used, strict=True)
        self.instances.sweep(np.concatenate(events), np.concatenate(members))
        self._made = []

    # ------------------------------------------------------------ limits

    def make(self, room: Room, count: int) -> None:
        """Takes room for so many more instances. Raises Crowded."""
        room.waiting -= count
        if room.waiting < 0:
            self._abandon()
            raise Crowded

    def give_up(self, batch: Batch, results: Ints, room: Room) -> NoReturn:
        """Gives up because of the results of instances so far, which are counted: raises Crowded."""
        rows = _NONE if room.epoch is None else self._over(batch, results, room.epoch, room.most, room.sees)
        self._abandon()
        raise Crowded(rows)

    def crowded(self, most: int, until: int, sees: Sees) -> Ints:
        """Returns the rows for which more than so many instances wait that they see, each in its own window."""
        if len(self.instances) <= most:
            return _NONE
        _, batch = self.instances.all()
        return self._over(batch, np.ones(len(batch), np.int64), until, most, sees)

    def leave(self, rows: Ints) -> None:
        """Makes no more instances for rows that are about to be removed, and forgets those that wait."""
        self.instances.remove_rows(rows)
        self._readers.remove(rows)

    def _over(self, batch: Batch, counts: Ints, time: int, most: int, sees: Sees) -> Ints:
        """Returns the rows for which counts of instances that they see, of those whose windows reach a time, sum up to
        more than `most`."""
        codes, which = np.unique(batch.members, return_inverse=True)
        of, rows = self.instances.members.rows(codes)
        sums = np.bincount(rows, np.bincount(which, counts, len(codes))[of])
        found: list[int] = []
        first = self.instances.kept.sides[0] if len(batch) else None
        for row in np.flatnonzero(sums > most).tolist():
            has_row = np.zeros(len(codes), np.bool_)
            has_row[of[rows == row]] = True
            assert first is not None, "there are instances"
            mine = np.flatnonzero(has_row[which])
            mine = mine[first.t0[batch.events[mine]] + self._rows.within[row] >= time]
            mine = mine[sees(row, first.parts[batch.events[mine], 0])]
            if counts[mine].sum() > most:
                found.append(row)
        return np.array(found, np.int64)

    def _abandon(self) -> None:
        """Forgets what was made since the last interval."""
        if self._made:
            events, members = zip(*self._made, strict=True)
            self.instances.sweep(np.concatenate(events), np.concatenate(members))
        self._made = []

    # ------------------------------------------------------------ partners

    def search(self, right: Flow, new: Ints) -> Search:
        """Prepares the search among right events for the partners of all that waits, and of new classes."""
        search = Search(self.classes, self.instances, self._tests, right.compact())
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

    def results(self, events: Columns, members: Ints, at: Ints, spans: Ints) -> Flow:
        """Returns results: their events, sorted by t1, and of each instance with one its members, the place of its
        event and its span. A row has those that are in its window."""
        if np.any(at[1:] < at[:-1]):
            order = np.argsort(at, kind="stable")
            members, at, spans = members[order], at[order], spans[order]
        if np.all(members >= 0):
            if self._bounded:
                inside = spans <= self._rows.within[members]
                at, members = at[inside], members[inside]
            return Flow(events, at, members).compact()
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
        stretches = Stretches(at[there], starts[which[there]], sizes[there], rows)
        if len(rows) < len(stretches):
            return Flow.of(events, stretches).compact()
        return Flow(events, *stretches.pairs()).compact()

    # ------------------------------------------------------------ state

    def codes(self) -> Iterable[Ints]:
        """Returns the codes of all texts that it holds."""
        yield from self._index.used()
        _, batch = self.instances.all()
        for side in self.instances.kept.sides:
            for (_, kind), column in zip(self._left, side.values, strict=True):
                if kind == "string":
                    yield column[batch.events].astype(np.int64)

    def parts(self) -> Iterable[Ints]:
        """Returns the numbers of the events that what waits was made of."""
        _, batch = self.instances.all()
        return [side.parts[batch.events] for side in self.instances.kept.sides]

    def state(self) -> pa.Table:
        """Returns all that waits."""
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
        """Takes over what waited."""
        if not len(table):
            return
        rows, sizes = flat(table, "rows")
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
        self._made.append((kept, _NONE))
        classes = self.classes.of_row[rows]
        codes = instances * self.classes.end + classes
        order = np.argsort(codes, kind="stable")
        first = np.flatnonzero(np.diff(codes[order], prepend=-1))
        members = self.instances.members.put(rows[order], np.diff(first, append=len(rows)))
        of, classes = instances[order][first], classes[order][first]
        batch, _ = self.awaiting(Batch(kept[event_of[of]], origins[of], classes, members, _NONE, _NONE))
        self.finish(_NONE, batch, -NO_BOUND)
