"""Records as rows of the table `documents`, and back."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa

from mmqjp.documents.record import Record
from mmqjp.tables.columns import INT, TEXT
from mmqjp.tables.documents import BEFORE_ARRIVALS, DOCUMENTS
from mmqjp.tables.table_rows import FEW_ROWS, rows_table

_COLUMNS = attrgetter(
    "docid", "id", "stream", "t0", "t1", "xml", "kind", "parts", "part_ids", "sources", "bound", "arrival", "appeared"
)


def records_table(records: Sequence[Record]) -> pa.Table:
    """Returns records as rows of the table `documents`."""
    if len(records) <= FEW_ROWS:
        return rows_table([_row(record) for record in records], DOCUMENTS)
    docid, id, stream, t0, t1, xml, kind, parts, part_ids, sources, bound, arrival, appeared = zip(
        *map(_COLUMNS, records), strict=True
    )
    source_ids, source_streams = zip(*chain.from_iterable(sources), strict=True)
    bound_nodes = [(docid, node | place << 32) for docid, (node, place) in chain.from_iterable(bound)]
    of_sources, of_bound = _offsets(sources), _offsets(bound)
    columns: dict[str, Any] = {
        "docid": docid,
        "id": id,
        "stream": stream,
        "t0": t0,
        "t1": t1,
        "xml": xml,
        "kind": kind,
        "parts": parts,
        "part_ids": part_ids,
        "source_ids": _lists(of_sources, source_ids, TEXT),
        "source_streams": _lists(of_sources, source_streams, TEXT),
        "bound_docids": _lists(of_bound, [docid for docid, _ in bound_nodes], INT),
        "bound_nodes": _lists(of_bound, [node for _, node in bound_nodes], INT),
        "arrival": arrival,
        "appeared": appeared,
    }
    return pa.table(columns, schema=DOCUMENTS)


def _row(record: Record) -> tuple[object, ...]:
    """Returns a record as a row of DOCUMENTS."""
    return (
        record.docid,
        record.id,
        record.stream,
        record.t0,
        record.t1,
        record.xml,
        record.kind,
        record.parts,
        record.part_ids,
        [source[0] for source in record.sources],
        [source[1] for source in record.sources],
        [docid for docid, _ in record.bound],
        [element | place << 32 for _, (element, place) in record.bound],
        record.arrival,
        record.appeared,
    )


def _offsets(lists: Sequence[Sequence[object]]) -> pa.Array:
    """Returns where each list begins, and where the last one ends, if they come one after the other."""
    return pa.array(np.cumsum([0, *map(len, lists)]), pa.int32())


def _lists(offsets: pa.Array, items: Sequence[object], type: pa.DataType) -> pa.ListArray:
    return pa.ListArray.from_arrays(offsets, pa.array(items, type))


def record_of(row: dict[str, Any]) -> Record:
    """Returns the record of a row of the table `documents`."""
    bound = zip(row["bound_docids"], row["bound_nodes"], strict=True)
    return Record(
        row["docid"],
        row["id"],
        row["stream"],
        row["t0"],
        row["t1"],
        row["xml"],
        row["kind"],
        tuple(row["parts"]),
        tuple(row["part_ids"]),
        tuple(zip(row["source_ids"], row["source_streams"], strict=True)),
        tuple((docid, (node & 0xFFFFFFFF, node >> 32)) for docid, node in bound),
        _arrival(row["docid"], row["arrival"]),
        tuple(row["parts"] if row["appeared"] is None else row["appeared"]),
    )


def _arrival(docid: int, arrival: int | None) -> int:
    """Returns the arrival of a stored document.

    A store without arrivals has None. Such documents come before all others, in the order of their docids.
    """
    return docid - BEFORE_ARRIVALS if arrival is None else arrival
