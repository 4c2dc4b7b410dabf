"""Stage 1 (thesis 6.3): documents in, witness relations out, each document walked once for all registered patterns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa
from lxml import etree

from templates.catalog import Change, Edge
from templates.witness import R_BIN, R_DOC, R_DOCTS, R_GROUP, Witnesses, node_id
from xpath_stage.automaton import MAX_STATES, Automaton, State
from xpath_stage.filters import FilterBank, Masks
from xpath_stage.parse import ParsedDocument, text_of
from xscl.functions import derive


@dataclass(frozen=True, slots=True)
class StreamDocument:
    """A parsed document on its way through stage 1. Times in UTC microseconds."""

    docid: int
    stream: str
    t0: int
    t1: int
    tree: ParsedDocument


class XPathStage:
    """The shared XPath evaluator: registered patterns change by `add` and `remove`, `evaluate` matches documents.

    `groups` are those of an earlier run; past `max_states` the automaton forgets its states and makes them anew.
    """

    def __init__(self, groups: Iterable[tuple[int, frozenset[Edge]]] = (), *, max_states: int = MAX_STATES) -> None:
        self._filters = FilterBank()
        self._automaton = Automaton(self._filters, max_states)
        self._automaton.restore_groups(groups)

    def add(self, change: Change) -> None:
        self._automaton.add(change)

    def remove(self, change: Change) -> None:
        self._automaton.remove(change)

    def counters(self) -> dict[str, int]:
        """States of the automaton, and how often they were flushed."""
        return {"states": self._automaton.states, "flushes": self._automaton.flushes}

    def finish_batch(self, *, committed: bool) -> None:
        """Tells whether the groups that `evaluate` handed out are stored for good; else it hands them out again."""
        self._automaton.groups_saved(committed)

    def evaluate(self, documents: Iterable[StreamDocument]) -> Witnesses:
        """The witness relations of a batch; `r_group` holds the groups that are new since the last batch."""
        walk = _Walk(self._automaton, self._filters)
        times = []
        for document in documents:
            times.append((document.docid, document.t0, document.t1))
            walk.document(document)
        groups = [(group, *edge) for group, edge in self._automaton.take_groups()]
        return Witnesses(
            _table(walk.r_bin, R_BIN), _table(groups, R_GROUP), _table(walk.r_doc, R_DOC), _table(times, R_DOCTS)
        )


def _table(rows: Sequence[Sequence[object]], schema: pa.Schema) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    return pa.table([pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema)


class _Walk:
    """The top-down pass over documents, which collects rows."""

    def __init__(self, automaton: Automaton, filters: FilterBank) -> None:
        self._automaton, self._filters = automaton, filters
        self.r_bin: list[tuple[object, ...]] = []
        self.r_doc: list[tuple[object, ...]] = []

    def document(self, document: StreamDocument) -> None:
        masks = self._filters.masks(document.tree) if self._filters else None
        root = self._automaton.root(document.stream)
        self._docid, self._stream, self._masks = document.docid, document.stream, masks
        self._count = 0
        self._element(document.tree.elements[0], root, [])

    def _element(self, element: etree._Element, above: State, path: list[int]) -> None:
        number = self._count
        self._count += 1
        masks: Masks | None = self._masks
        mask = masks.elements[number] if masks else 0
        state = self._automaton.enter(self._stream, above, "element", str(element.tag), mask)
        path.append(number)
        if state.rows:
            self._emit(state, path)
        if state.values:
            self._values(state, number, text_of(element))
        if self._automaton.has_attributes and element.attrib:
            for place, (name, value) in enumerate(element.attrib.items(), 1):
                mask = masks.attributes.get((number, place), 0) if masks else 0
                of_attribute = self._automaton.enter(self._stream, state, "attribute", str(name), mask)
                if of_attribute.rows or of_attribute.values:
                    node = node_id(number, place)
                    path.append(node)
                    self._emit(of_attribute, path)
                    self._values(of_attribute, node, str(value))
                    path.pop()
        for child in element:
            self._element(child, state, path)
        path.pop()

    def _emit(self, state: State, path: list[int]) -> None:
        for row in state.rows:
            node1 = path[row.depth] | node_id(0, 0, row.functions1)
            node2 = path[-1] | node_id(0, 0, row.functions2)
            self.r_bin.append((self._docid, row.group, node1, node2))

    def _values(self, state: State, node: int, text: str) -> None:
        for functions in state.values:
            value = text
            for name in functions:
                value = derive(name, value)
            self.r_doc.append((self._docid, node | node_id(0, 0, functions), value))
