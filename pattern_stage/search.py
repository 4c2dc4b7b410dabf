"""The search of an interval: which right events waiting instances may hold for, and the first of them that they do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from common.distinct import distinct
from pattern_stage.classes import Classes, each_shape
from pattern_stage.columns import Columns, Ints, Mask
from pattern_stage.flow import Flow, mixed
from pattern_stage.instances import Batch, Instances
from pattern_stage.operators import NO_BOUND
from pattern_stage.pair_tests import PairTests, known_keys
from pattern_stage.partners import Candidates, Test
from pattern_stage.predicates import Pairs

_NONE = np.zeros(0, np.int64)


def pairs_of(
    instances: Instances, classes: Classes, events: Ints, right: Columns | None, right_at: Ints | None, of: Ints
) -> Pairs:
    """Returns pairs of events of instances and right ones, with the classes of the instances."""
    sides = instances.kept.sides
    return Pairs(sides[0], events, right, right_at, sides[-1], of, classes.parameters)


class Search:
    """The right events of an interval as candidates. A group is those of a shape with one scope and key.

    The scope is a class where static clauses choose the events, else a row of the right input.
    """

    def __init__(self, classes: Classes, instances: Instances, tests: Sequence[PairTests], right: Flow) -> None:
        self.right = right
        self._classes, self._instances, self._tests = classes, instances, tests
        self._class_scopes, self._row_scopes = np.full(classes.end, -1, np.int64), _NONE
        self._blocks: dict[int, tuple[int, Ints]] = {}
        self._parts: list[tuple[Ints, Ints, Ints]] = []
        self._end = 0
        if len(right):
            rows = distinct(right.rows)
            self._row_scopes = np.full(max(int(rows[-1]), int(classes.right.max(initial=0))) + 1, -1, np.int64)
            self._row_scopes[rows] = np.arange(len(rows))

    def add_static(self, at: Ints, classes: Ints) -> None:
        """Adds events that static clauses choose, each with a class."""
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
        values, groups, keys = _NONE, scopes[of], np.zeros(len(at), np.int64)
        key = self._tests[shape].key
        if key is not None:
            used, place = np.unique(at, return_inverse=True)
            right = self.right.events.take(used)
            every = np.arange(len(used))
            # Only the right event is mentioned.
            found, known = known_keys(key[1](Pairs(right, every, right, every, None, every, ())))
            values, numbers = np.unique(found, return_inverse=True)
            keys, held = found[place], known[place]
            groups = groups * len(values) + numbers[place]
            at, of, groups, keys = at[held], of[held], groups[held], keys[held]
        self._parts.append((groups + self._end, at, mixed([np.full(len(at), shape), of, keys])))
        self._blocks[shape] = (self._end, values)
        self._end += count * max(len(values), 1)

    def finish(self) -> Search:
        """Says that all have been added; returns itself."""
        parts = self._parts or [(_NONE, _NONE, _NONE)]
        groups, at, marks = (np.concatenate(column) for column in zip(*parts, strict=True))
        self.candidates = Candidates(self.right.events.t1, groups, at)
        self.marks: Ints = marks
        return self

    def partners(self, batch: Batch, most: int = NO_BOUND) -> tuple[Ints, Ints]:
        """Returns pairs of an instance and an event: of each instance its first partners. Sorted by instance. If they
        are more than `most`, some may be left out."""
        if not len(batch) or not len(self.right):
            return _NONE, _NONE
        start, end = self._ranges(batch)
        return self.candidates.first(start, end, self._test(batch), most)

    def _ranges(self, batch: Batch) -> tuple[Ints, Ints]:
        """Returns where the candidates of instances begin and end."""
        shapes = self._classes.shape[batch.classes]
        groups = np.full(len(batch), -1, np.int64)
        for shape, places in each_shape(shapes):
            block = self._blocks.get(shape)
            if block is None:
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
        sides = self._instances.kept.sides
        until = sides[0].t0[batch.events] + self._classes.within[batch.classes]
        start, end = self.candidates.ranges(groups, sides[-1].t1[batch.events], until)
        return start, np.where(groups >= 0, end, start)

    def _test(self, batch: Batch) -> Test | None:
        """Returns what has to be tested besides; None if there is nothing."""
        right = self.right.events
        ends = self._instances.kept.sides[-1].t1[batch.events]
        shapes = self._classes.shape[batch.classes]
        rests = {shape: self._tests[shape].rest for shape in distinct(shapes).tolist()}
        points = bool(np.all(right.t0 == right.t1))
        if points and not any(rests.values()):
            return None

        def holds(instances: Ints, events: Ints) -> Mask:
            held: Mask = np.ones(len(instances), np.bool_) if points else ends[instances] < right.t0[events]
            for shape, places in each_shape(shapes[instances]):
                rest = rests[shape]
                if rest is not None:
                    which = instances[places]
                    held[places] &= rest(self.pairs(batch.take(which), events[places]))
            return held

        return holds

    def pairs(self, batch: Batch, at: Ints) -> Pairs:
        """Returns instances with right events, at these places, as conditions take them."""
        return pairs_of(self._instances, self._classes, batch.events, self.right.events, at, batch.classes)
