"""From walks to the witness relations R_bin and R_doc, as Arrow tables without a Python object a row.

Documents come here in two ways: those of a shape that the cache knows share what was found, the others were walked over
together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from templates.witness import R_BIN, R_DOC
from xpath_stage.columns import Columns
from xpath_stage.emissions import Emissions, Ints, Walk, WitnessRows, ranges, witness_rows
from xpath_stage.shapes import ShapeFindings
from xpath_stage.string_values import string_values

HELD_VALUES = 500
"""Values that are held as Python's strings: more of them leave the processor's caches, and take a tenth longer."""


class ShapedDocuments:
    """Documents of known shapes: their ids, what was found in another of their shape, and the values wanted of them.

    Who adds one appends to these, and has the values made columns when there are `HELD_VALUES`.
    """

    def __init__(self) -> None:
        self.docids: list[int] = []
        self.founds: list[ShapeFindings] = []
        self.values: list[str | None] = []
        self._texts: list[pa.Array] = []

    def __len__(self) -> int:
        return len(self.docids)

    def put_away(self) -> None:
        """Makes columns of the values."""
        self._texts.append(strings(self.values))
        self.values.clear()

    def tables(self) -> tuple[pa.Table, pa.Table]:
        """R_bin and R_doc."""
        number_of = {found: number for number, found in enumerate(dict.fromkeys(self.founds))}
        founds = list(number_of)
        if len(founds) == 1:
            numbers = np.zeros(len(self.founds), np.int64)
        else:
            numbers = np.fromiter(map(number_of.__getitem__, self.founds), np.int64, len(self.founds))
        documents = Documents(self.docids, [found.stream for found in founds], numbers)
        rows = WitnessRows.concatenated([found.rows for found in founds])
        picked, place = _picked(numbers, [len(found.rows.group) for found in founds])
        r_bin = documents.r_bin(WitnessRows(place, rows.group[picked], rows.node1[picked], rows.node2[picked]))
        picked, place = _picked(numbers, [len(found.nodes) for found in founds])
        nodes = np.concatenate([found.nodes for found in founds])[picked]
        texts = pa.chunked_array([*self._texts, strings(self.values)])
        return r_bin, documents.r_doc(place, nodes, texts)


def walked_tables(
    emissions: Emissions, documents: Documents, columns: Columns, walk: Walk
) -> tuple[pa.Table, pa.Table]:
    """R_bin and R_doc of documents that were walked over."""
    first = np.array(columns.first, np.int64)
    r_bin = documents.r_bin(witness_rows(emissions, walk, first))
    values = string_values(emissions, walk)
    nodes, elements = values.nodes(columns)
    place = np.searchsorted(first, elements, side="right") - 1
    return r_bin, documents.r_doc(place, nodes - first[place], strings(values.read(columns)))


class Documents:
    """The documents that rows are about, by their places."""

    def __init__(self, docids: Sequence[int], streams: Sequence[str], stream: Ints | None = None) -> None:
        self._docids = np.array(docids, np.int64)
        self._streams, self._stream = streams, stream

    def r_bin(self, rows: WitnessRows) -> pa.Table:
        columns: list[Ints] = [self._docids[rows.document], rows.group.astype(np.int32), rows.node1, rows.node2]
        return pa.table([pa.array(column) for column in columns], R_BIN)

    def r_doc(self, place: Ints, nodes: Ints, texts: pa.Array | pa.ChunkedArray) -> pa.Table:
        """R_doc with these texts."""
        if len(set(self._streams)) == 1:
            streams = pa.repeat(self._streams[0], len(place))
        else:
            of = place if self._stream is None else self._stream[place]
            streams = pa.array(self._streams, pa.string()).take(pa.array(of))
        columns = [pa.array(self._docids[place]), pa.array(nodes), texts, streams]
        return pa.table(columns, R_DOC)


def strings(values: Sequence[str | None]) -> pa.Array:
    """Strings; None stands for ''."""
    array = pa.array(values, pa.string())
    if array.null_count == 0:
        return array
    # What is missing takes no bytes, so it is '' where nothing says that it is missing.
    _, offsets, data = array.buffers()
    return pa.StringArray.from_buffers(len(array), offsets, data or pa.py_buffer(b""))


def arrow_table(rows: NDArray[np.signedinteger[Any]], schema: pa.Schema) -> pa.Table:
    """Rows of numbers as a table."""
    return pa.table([pa.array(np.ascontiguousarray(column)) for column in rows.T], schema)


def _picked(numbers: Ints, lengths: Sequence[int]) -> tuple[Ints, Ints]:
    """For documents of shapes with these numbers, the rows of their shapes, of which each has so many; and the
    documents."""
    if len(lengths) == 1:
        places, rows = np.arange(len(numbers)), np.arange(lengths[0])
        return np.tile(rows, len(places)), np.repeat(places, len(rows))
    starts = np.cumsum([0, *lengths])
    counts = np.diff(starts)[numbers]
    return ranges(starts[numbers], counts), np.repeat(np.arange(len(numbers)), counts)
