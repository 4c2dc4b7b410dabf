"""Turns walks into the witness relations R_bin and R_doc, as Arrow tables, without a Python object for each row.

There are two sources: documents with a cached shape, which share its result, and documents that were walked together.
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
"""The largest number of values that are kept as Python strings. More exceed the processor caches and take 10 %
longer."""


class ShapedDocuments:
    """Documents with cached shapes: their ids, the results of their shapes, and the values that are needed of them.

    The caller appends to the lists, and calls `put_away` when there are HELD_VALUES values.
    """

    def __init__(self) -> None:
        self.docids: list[int] = []
        self.founds: list[ShapeFindings] = []
        self.values: list[str | None] = []
        self._texts: list[pa.Array] = []

    def __len__(self) -> int:
        return len(self.docids)

    def put_away(self) -> None:
        """Turns the values into a column."""
        self._texts.append(strings(self.values))
        self.values.clear()

    def tables(self) -> tuple[pa.Table, pa.Table]:
        """The tables of R_bin and R_doc."""
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
    """The tables of R_bin and R_doc of documents that were walked."""
    first = np.array(columns.first, np.int64)
    r_bin = documents.r_bin(witness_rows(emissions, walk, first))
    values = string_values(emissions, walk)
    nodes, elements = values.nodes(columns)
    place = np.searchsorted(first, elements, side="right") - 1
    return r_bin, documents.r_doc(place, nodes - first[place], strings(values.read(columns)))


class Documents:
    """The documents of rows, by index: their ids, and their streams. With `stream`, that has for each document an index
    into `streams`."""

    def __init__(self, docids: Sequence[int], streams: Sequence[str], stream: Ints | None = None) -> None:
        self._docids = np.array(docids, np.int64)
        self._streams, self._stream = streams, stream

    def r_bin(self, rows: WitnessRows) -> pa.Table:
        columns: list[Ints] = [self._docids[rows.document], rows.group.astype(np.int32), rows.node1, rows.node2]
        return pa.table([pa.array(column) for column in columns], R_BIN)

    def r_doc(self, place: Ints, nodes: Ints, texts: pa.Array | pa.ChunkedArray) -> pa.Table:
        """R_doc. `place`, the index of a document, `nodes` and `texts` have one length."""
        if len(set(self._streams)) == 1:
            streams = pa.repeat(self._streams[0], len(place))
        else:
            of = place if self._stream is None else self._stream[place]
            streams = pa.array(self._streams, pa.string()).take(pa.array(of))
        columns = [pa.array(self._docids[place]), pa.array(nodes), texts, streams]
        return pa.table(columns, R_DOC)


def strings(values: Sequence[str | None]) -> pa.Array:
    """An array of strings; None becomes ''."""
    array = pa.array(values, pa.string())
    if array.null_count == 0:
        return array
    # A null takes no bytes, so without the validity bitmap it is ''.
    _, offsets, data = array.buffers()
    return pa.StringArray.from_buffers(len(array), offsets, data or pa.py_buffer(b""))


def arrow_table(rows: NDArray[np.signedinteger[Any]], schema: pa.Schema) -> pa.Table:
    """Numbers of shape (rows, columns) as a table."""
    return pa.table([pa.array(np.ascontiguousarray(column)) for column in rows.T], schema)


def _picked(numbers: Ints, lengths: Sequence[int]) -> tuple[Ints, Ints]:
    """Expands documents to the rows of their shapes. `numbers` has the shape of each document, and `lengths` the number
    of rows of each shape. Returns the indices of rows, as if those of all shapes were concatenated, and of
    documents."""
    if len(lengths) == 1:
        places, rows = np.arange(len(numbers)), np.arange(lengths[0])
        return np.tile(rows, len(places)), np.repeat(places, len(rows))
    starts = np.cumsum([0, *lengths])
    counts = np.diff(starts)[numbers]
    return ranges(starts[numbers], counts), np.repeat(np.arange(len(numbers)), counts)
