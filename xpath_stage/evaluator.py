"""Stage 1 (thesis 6.3): documents in, witness relations out, each document walked once for all registered patterns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, compress, count

import numpy as np
import pyarrow as pa

from templates.catalog import Change, Edge
from templates.witness import R_BIN, R_DOC, R_DOCTS, R_GROUP, Witnesses, node_id
from xpath_stage.automaton import MAX_STATES, Automaton
from xpath_stage.emissions import OWN, Emissions, Ints, ranges, witness_rows
from xpath_stage.parse import ParsedDocument
from xpath_stage.shapes import MAX_SHAPES, Found, ShapeCache
from xscl.functions import derive

CHUNK = 200_000
"""Elements after which what was found is turned into columns."""


_serials = count()


@dataclass(slots=True)
class StreamDocument:
    """A parsed document on its way through stage 1. Times in UTC microseconds."""

    docid: int
    stream: str
    t0: int
    t1: int
    tree: ParsedDocument


class XPathStage:
    """The shared XPath evaluator: registered patterns change by `add` and `remove`, `evaluate` matches documents.

    `groups` are those of an earlier run. Past `max_states` the automaton forgets its states and makes them anew, past
    `max_shapes` the shape cache does; with 0 there is no shape cache.
    """

    def __init__(
        self,
        groups: Iterable[tuple[int, frozenset[Edge]]] = (),
        *,
        max_states: int = MAX_STATES,
        max_shapes: int = MAX_SHAPES,
    ) -> None:
        self._automaton = Automaton(max_states)
        self._automaton.restore_groups(groups)
        self._shapes = ShapeCache(self._automaton, self._walk, max_shapes)

    def add(self, change: Change) -> None:
        self._automaton.add(change)
        self._shapes.forget()

    def remove(self, change: Change) -> None:
        self._automaton.remove(change)
        self._shapes.forget()

    def counters(self) -> dict[str, int]:
        """States of the automaton; how often they, or the shapes, were flushed; documents with a shape met before or
        not."""
        return {
            "states": self._automaton.states,
            "flushes": self._automaton.flushes + self._shapes.flushes,
            "shape_hits": self._shapes.hits,
            "shape_misses": self._shapes.misses,
        }

    def finish_batch(self, *, committed: bool) -> None:
        """Tells whether the groups that `evaluate` handed out are stored for good; else it hands them out again."""
        self._automaton.groups_saved(committed)

    def evaluate(self, documents: Iterable[StreamDocument]) -> Witnesses:
        """The witness relations of a batch; `r_group` holds the groups that are new since the last batch."""
        times: list[tuple[int, int, int]] = []
        r_bin, r_doc = [R_BIN.empty_table()], [R_DOC.empty_table()]
        found = self._batch()
        for document in documents:
            times.append((document.docid, document.t0, document.t1))
            found.add(document, self._shapes.found(document.stream, document.tree))
            if found.elements > CHUNK:
                r_bin.append(found.r_bin(self._automaton.emissions))
                r_doc.append(found.r_doc())
                found = self._batch()
        r_bin.append(found.r_bin(self._automaton.emissions))
        r_doc.append(found.r_doc())
        groups = [(group, *edge) for group, edge in self._automaton.take_groups()]
        return Witnesses(
            pa.concat_tables(r_bin), _table(groups, R_GROUP), pa.concat_tables(r_doc), _table(times, R_DOCTS)
        )

    def _batch(self) -> _Batch:
        if self._automaton.bound_emissions():
            self._shapes.forget()
        return _Batch()

    def _walk(self, stream: str, document: ParsedDocument) -> Found:
        walk = self._automaton.walk(stream, document)
        values, counts = self._automaton.emissions.values, document.counts
        elements: list[int] = []
        others: list[tuple[int, int, tuple[str, ...]]] = []
        for i in compress(count(), map(values.__getitem__, walk.elements)):
            wanted = values[walk.elements[i]]
            if wanted is OWN:
                elements.append(i)
            else:
                others += [(i, 0, functions) for functions in wanted]
        for emission, owner, place in walk.attributes:
            others += [(owner, place, functions) for functions in values[emission]]
        leaves = not any(map(counts.__getitem__, elements))
        return Found(walk, elements, leaves, others, [*elements, *(node_id(*other) for other in others)])


class _Batch:
    """What was found in some documents, on its way into columns."""

    def __init__(self) -> None:
        self._serial = next(_serials)
        self._docids: list[int] = []
        self._streams: list[str] = []
        self._founds: list[Found] = []
        self._numbers: list[int] = []
        self._texts: list[str] = []
        self.elements = 0

    def add(self, document: StreamDocument, found: Found) -> None:
        if found.batch != self._serial:
            found.batch, found.number = self._serial, len(self._founds)
            self._founds.append(found)
        tree = document.tree
        self.elements += len(tree.tags)
        self._docids.append(document.docid)
        self._streams.append(document.stream)
        self._numbers.append(found.number)
        self._texts += tree.string_values(found.elements, leaves=found.leaves)
        for element, place, functions in found.others:
            value = tree.string_value(element, place)
            for name in functions:
                value = derive(name, value)
            self._texts.append(value)

    def r_bin(self, emissions: Emissions) -> pa.Table:
        if not self._founds:
            return R_BIN.empty_table()
        rows = witness_rows(emissions, [found.walk for found in self._founds])
        starts = np.searchsorted(rows.walk, np.arange(len(self._founds) + 1))
        picked, of_document = self._picked(starts)
        docids = np.array(self._docids, np.int64)[of_document]
        columns: list[Ints] = [rows.group.astype(np.int32), rows.node1, rows.node2]
        return pa.table([pa.array(docids), *(pa.array(column[picked]) for column in columns)], R_BIN)

    def r_doc(self) -> pa.Table:
        starts = np.cumsum([0, *(len(found.nodes) for found in self._founds)])
        nodes = np.fromiter(chain.from_iterable(found.nodes for found in self._founds), np.int64, int(starts[-1]))
        picked, of_document = self._picked(starts)
        docids = np.array(self._docids, np.int64)[of_document]
        streams = pa.array(self._streams, pa.string()).take(pa.array(of_document))
        texts = pa.array(self._texts, pa.string())
        return pa.table([pa.array(docids), pa.array(nodes[picked]), texts, streams], R_DOC)

    def _picked(self, starts: Ints) -> tuple[Ints, Ints]:
        """Rows of what was found, for each document those of its walk, and the places of the documents."""
        numbers = np.array(self._numbers, np.int64)
        counts = np.diff(starts)[numbers]
        return ranges(starts[numbers], counts), np.repeat(np.arange(len(numbers)), counts)


def _table(rows: Sequence[Sequence[object]], schema: pa.Schema) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    return pa.table([pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema)
