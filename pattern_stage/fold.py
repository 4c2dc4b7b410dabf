"""FOLD: runs of right events that begin with a left event. Each run is a result, and an instance that goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pattern_stage.classes import each_shape
from pattern_stage.columns import Column, Columns, Ints, Mask
from pattern_stage.flow import Flow, each_once, numbered, same
from pattern_stage.instances import Batch, joined_batches
from pattern_stage.joining import NO_INSTANCES, Joining
from pattern_stage.operators import Index, Renumber, RowVectors
from pattern_stage.predicates import Pairs, compile_condition, compile_value
from pattern_stage.room import Room, Sees
from pattern_stage.search import Search
from pattern_stage.values import Texts
from xscl.algebra.events import Fold, Schema, Value


@dataclass(frozen=True, slots=True)
class _Step:
    """What a shape does with the right events that are next."""

    continues: Callable[[Pairs], Mask]
    sets: tuple[tuple[int, Callable[[Pairs], Column]], ...]


class Folding:
    """FOLD. Its shapes have inputs and results of one schema.

    An interval goes in generations: the instances of one are the runs of the one before, each a right event longer. A
    run keeps its first event and its latest values, and forgets all in between.
    """

    def __init__(
        self,
        definitions: Sequence[Fold],
        rows: RowVectors,
        texts: Texts,
        index: Callable[[Schema, Texts], Index],
        *,
        hashed: bool = True,
    ) -> None:
        """`hashed`: one dynamic equality of the first condition is (Cayuga's AI index)."""
        left, right = definitions[0].left.schema, definitions[0].right.schema
        self._definitions, self._texts, self._left, self._right = definitions, texts, left, right
        self._steps: list[_Step] = []
        self._joining = Joining((left, right), 2, rows, texts, index, hashed)
        self._places = {name: place for place, (name, _) in enumerate(left)}
        self._columns = [(part == "latest", self._places[name]) for part, name in definitions[0].names]
        self._from_right = [(self._places[name], place) for place, (name, _) in enumerate(right)]

    def add_rows(self, new: Ints) -> None:
        """Takes in rows that were added."""
        added = self._definitions[len(self._steps) :]
        for definition in added:
            sets = tuple((self._places[name], self._value(value)) for name, value in definition.sets)
            continues = compile_condition(definition.continues, self._left, self._right, self._texts)
            self._steps.append(_Step(continues, sets))
        self._joining.add_shapes(definition.chooses for definition in added)
        self._joining.add_rows(new)

    def remove_rows(self, gone: Ints) -> None:
        """Forgets rows and what waits for them."""
        self._joining.remove_rows(gone)

    def run(self, inputs: Sequence[Flow], until: int) -> Flow:
        """Returns the runs that end in this interval."""
        return self.attempt(inputs, until, Room())

    def attempt(self, inputs: Sequence[Flow], until: int, room: Room) -> Flow:
        """Does the same within room. Raises Crowded."""
        left, right = inputs
        joining, instances = self._joining, self._joining.instances
        if joining.idle(left, right, until):
            return self._results(left.events, right.events, NO_INSTANCES)
        width = right.events.parts.shape[1]
        new = joining.enter(left, lambda events: [events, _begun(events, width)])
        joining.make(room, len(new))
        # A class that has no instance now gets none in this interval.
        search = joining.search(right, new.classes)
        places, waiting = instances.touched(search.marks)
        batch = joined_batches([waiting, new])
        old, touched, unresolved, made = len(places), places[:0], [batch.take(places[:0])], [batch.take(places[:0])]
        while len(batch):
            runs, going_on, resolved = self._generation(search, batch, room)
            if old:
                touched = places[resolved[:old]]
            unresolved.append(batch.take(np.flatnonzero(~resolved[old:]) + old))
            old = 0
            made.append(runs)
            batch = runs.take(going_on)
        found = self._results(left.events, right.events, joined_batches(made))
        joining.finish(touched, self._once(joined_batches(unresolved)), until)
        return found

    def crowded(self, most: int, until: int, sees: Sees) -> Ints:
        """Returns the rows for which more than so many runs wait."""
        return self._joining.crowded(most, until, sees)

    def leave(self, rows: Ints) -> None:
        """Makes no more for rows that are about to be removed."""
        self._joining.leave(rows)

    def _generation(self, search: Search, batch: Batch, room: Room) -> tuple[Batch, Mask, Mask]:
        """Returns the next generation, which of it can go on, and which of this one it came from.

        Runs that met in one are many where many events are simultaneous, so a part of them is looked at at once.
        """
        resolved = np.zeros(len(batch), np.bool_)
        found: list[tuple[Batch, Mask]] = []
        size = search.candidates.share(len(batch))
        for begin in range(0, len(batch), size):
            part = batch if size == len(batch) else batch.take(slice(begin, begin + size))
            whose, at = search.partners(part)
            resolved[whose + begin] = True
            found.append(self._next(search, part, whose, at))
            room.found -= len(found[-1][0])
            if room.found < 0:
                runs = self._once(joined_batches([one for one, _ in found]))
                self._joining.give_up(runs, np.ones(len(runs), np.int64), room)
            self._joining.make(room, len(found[-1][0]))
        if len(found) == 1:
            return *found[0], resolved
        runs = joined_batches([one for one, _ in found])
        once = self._distinct(runs)
        return runs.take(once), np.concatenate([going_on for _, going_on in found])[once], resolved

    def _next(self, search: Search, batch: Batch, whose: Ints, at: Ints) -> tuple[Batch, Mask]:
        """Returns the next generation, and which of it can go on."""
        joining, instances = self._joining, self._joining.instances
        shapes = joining.classes.shape[batch.classes[whose]]
        held = np.zeros(len(whose), np.bool_)
        for shape, places in each_shape(shapes):
            held[places] = self._steps[shape].continues(search.pairs(batch.take(whose[places]), at[places]))
        instances_of, at, shapes = batch.take(whose[held]), at[held], shapes[held]
        if not len(at):
            return instances_of, held[held]
        first = instances.kept.sides[0].take(instances_of.events)
        latest, right = instances.kept.sides[1].take(instances_of.events), search.right.events
        for place, other in self._from_right:
            latest.values[place][:] = right.values[other][at]
        for shape, places in each_shape(shapes):
            pairs = search.pairs(instances_of.take(places), at[places])
            for place, value in self._steps[shape].sets:
                latest.values[place][places] = value(pairs)
        first.t1[:] = latest.t1[:] = right.t1[at]
        latest.parts[:] = right.parts[at]
        inside = first.t1 - first.t0 <= joining.classes.within[instances_of.classes]
        keys = [instances_of.origins, instances_of.classes, at, *(same(column) for column in latest.values)]
        once = numbered(keys)[0]
        once = once[inside[once]]
        events = instances.kept.put([first.take(once), latest.take(once)])
        kept = instances_of.take(once)
        return joining.awaiting(Batch(events, kept.origins, kept.classes, kept.members, kept.keys, kept.marks))

    def _once(self, batch: Batch) -> Batch:
        """Returns instances without those that are equal to others, to which other paths have led."""
        return batch.take(self._distinct(batch)) if len(batch) else batch

    def _distinct(self, batch: Batch) -> Ints:
        """Returns where the instances are that are equal to none before them."""
        if not len(batch):
            return batch.events
        latest = self._joining.instances.kept.sides[1].take(batch.events)
        keys = [batch.origins, batch.classes, latest.t1, *(same(column) for column in latest.values)]
        return numbered([*keys, *(np.ascontiguousarray(place) for place in latest.parts.T)])[0]

    def _results(self, left: Columns, right: Columns, runs: Batch) -> Flow:
        """Returns runs as events."""
        sides = self._joining.instances.kept.sides or (left, left)
        runs = runs.take(np.argsort(sides[1].t1[runs.events], kind="stable"))
        first, latest = (side.take(runs.events) for side in sides)
        values = tuple((latest if is_latest else first).values[place] for is_latest, place in self._columns)
        then = latest.parts if len(runs) else right.parts[:0]
        events = Columns(first.t0, first.t1, values, np.concatenate([first.parts, then], axis=1))
        return each_once(self._joining.results(events, runs.members, np.arange(len(runs)), events.t1 - events.t0))

    # ------------------------------------------------------------ state

    def waiting(self) -> Ints:
        """Returns how many instances wait for each row."""
        return self._joining.instances.counts()

    def codes(self) -> Iterable[Ints]:
        """Returns the codes of all texts that it holds."""
        return self._joining.codes()

    def parts(self) -> Iterable[Ints]:
        """Returns the numbers of the events that what waits was made of."""
        return self._joining.parts()

    def state(self) -> pa.Table:
        """Returns what waits."""
        return self._joining.state()

    def restore(self, table: pa.Table, renumber: Renumber) -> None:
        """Takes over a state that was saved."""
        self._joining.restore(table, renumber)

    def _value(self, value: Value) -> Callable[[Pairs], Column]:
        return compile_value(value, self._left, self._right, self._texts)


def _begun(events: Columns, places: int) -> Columns:
    """Returns the latest values of runs of left events alone, whose latest part is none of the right."""
    return Columns(events.t0, events.t1, events.values, np.full((len(events), places), -1))
