"""NEXT: each left event with the first later right events for which the condition holds, all ties of one epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pyarrow as pa

from pattern_stage.columns import Column, Columns, Ints
from pattern_stage.flow import Flow
from pattern_stage.instances import Batch, joined_batches
from pattern_stage.joining import NO_INSTANCES, Joining
from pattern_stage.operators import Index, Renumber, RowVectors
from pattern_stage.room import Room, Sees
from pattern_stage.values import Texts
from xscl.algebra.events import Next, Schema

_NONE = np.zeros(0, np.int64)


class Sequencing:
    """NEXT. Its shapes have inputs and results of one schema."""

    def __init__(
        self,
        definitions: Sequence[Next],
        rows: RowVectors,
        texts: Texts,
        index: Callable[[Schema, Texts], Index],
        *,
        hashed: bool = True,
    ) -> None:
        """`hashed`: one dynamic equality of a condition is (Cayuga's AI index)."""
        left, right = definitions[0].left.schema, definitions[0].right.schema
        self._definitions, self._shapes = definitions, 0
        self._joining = Joining((left, right), 1, rows, texts, index, hashed)
        places = {("left", name): (0, place) for place, (name, _) in enumerate(left)}
        places |= {("right", name): (1, place) for place, (name, _) in enumerate(right)}
        self._columns = [places[name] for name in definitions[0].names]

    def add_rows(self, new: Ints) -> None:
        """Takes in rows that were added."""
        self._joining.add_shapes(definition.condition for definition in self._definitions[self._shapes :])
        self._shapes = len(self._definitions)
        self._joining.add_rows(new)

    def remove_rows(self, gone: Ints) -> None:
        """Forgets rows and what waits for them."""
        self._joining.remove_rows(gone)

    def waiting(self) -> Ints:
        """Returns how many instances wait for each row."""
        return self._joining.instances.counts()

    def run(self, inputs: Sequence[Flow], until: int) -> Flow:
        """Returns left events with their partners."""
        return self.attempt(inputs, until, Room())

    def attempt(self, inputs: Sequence[Flow], until: int, room: Room) -> Flow:
        """Does the same within room. Raises Crowded."""
        left, right = inputs
        joining, instances = self._joining, self._joining.instances
        if joining.idle(left, right, until):
            return self._results(left.events, right.events, NO_INSTANCES, _NONE, _NONE)
        new = joining.enter(left, lambda events: [events])
        joining.make(room, len(new))
        search = joining.search(right, new.classes)
        places, waiting = instances.touched(search.marks)
        batch = joined_batches([waiting, new])
        whose, at = search.partners(batch, room.found)
        if len(whose) > room.found:
            joining.give_up(batch, np.bincount(whose, minlength=len(batch)), room)
        found = self._results(left.events, search.right.events, batch, whose, at)
        resolved = np.zeros(len(batch), np.bool_)
        resolved[whose] = True
        old = len(places)
        joining.finish(places[resolved[:old]], batch.take(np.flatnonzero(~resolved[old:]) + old), until)
        return found

    def crowded(self, most: int, until: int, sees: Sees) -> Ints:
        """Returns the rows for which more than so many instances wait."""
        return self._joining.crowded(most, until, sees)

    def leave(self, rows: Ints) -> None:
        """Makes no more for rows that are about to be removed."""
        self._joining.leave(rows)

    def _results(self, left: Columns, right: Columns, batch: Batch, whose: Ints, at: Ints) -> Flow:
        """Returns instances with their partners, as one event where several have the same."""
        sides = self._joining.instances.kept.sides
        kept = sides[0] if sides else left
        width = max(len(kept), 1)
        codes, places = np.unique(at * width + batch.events[whose], return_inverse=True)
        ones, others = codes % width, codes // width
        values: list[Column] = [
            right.values[place][others] if side else kept.values[place][ones] for side, place in self._columns
        ]
        parts = np.concatenate([kept.parts[ones], right.parts[others]], axis=1)
        made = Columns(kept.t0[ones], right.t1[others], tuple(values), parts)
        spans = right.t1[at] - kept.t0[batch.events[whose]]
        return self._joining.results(made, batch.members[whose], places, spans)

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
