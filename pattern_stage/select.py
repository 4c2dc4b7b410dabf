"""The stateless operators: σ, π and ∪."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import numpy as np

from common.arrays import Ints, distinct
from pattern_stage.clauses import split_condition, static_clauses
from pattern_stage.columns import Column, Columns, Flow, Mask, each_once, joined_flow, number_distinct
from pattern_stage.fan_out import RowReaders
from pattern_stage.index import RowClasses, StaticIndex, each_shape
from pattern_stage.operators import MOpContext, PatternOp
from pattern_stage.values import Pairs, compile_condition, compile_value

_DEAR = 16
"""Number of rows per event above which the static index is used."""

_BLOCK = 1 << 20
"""Approximate number of pairs of event and row tested at once."""


class Filtering(PatternOp):
    """σ: the events of input rows that satisfy a condition. Any conditions are shapes of one m-op."""

    def __init__(self, context: MOpContext) -> None:
        super().__init__(context)
        self._index = context.index
        self._conditions: dict[int, Callable[[Pairs], Mask]] = {}
        self._classes = RowClasses(context.rows)
        self._readers = RowReaders()
        self._of_class = RowReaders()
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
        blocks = np.cumsum(self._readers.counts(flow.rows)) // _BLOCK
        bounds = [0, *(np.flatnonzero(np.diff(blocks)) + 1).tolist(), len(flow)]
        found = [self._held(flow.only(np.arange(*ends))) for ends in pairwise(bounds)]
        at, rows = (np.concatenate(column) for column in zip(*found, strict=True))
        return Flow(flow.events, at, rows).compact()

    def _held(self, flow: Flow) -> tuple[Ints, Ints]:
        places, rows = self._readers.of(flow.rows)
        at, classes = flow.at[places], self._classes.of_row[rows]
        held = np.zeros(len(at), np.bool_)
        for shape, chosen in each_shape(self._classes.shape[classes]):
            pairs = Pairs(flow.events, at[chosen], classes[chosen], self._classes.parameters)
            held[chosen] = self._condition(shape)(pairs)
        return at[held], rows[held]

    def _condition(self, shape: int) -> Callable[[Pairs], Mask]:
        """The condition of a shape, compiled on first use: few are needed with an index."""
        found = self._conditions.get(shape)
        if found is None:
            definition = self._definitions[shape]
            found = compile_condition(definition.condition, definition.schema, None, self._texts)
            self._conditions[shape] = found
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
