"""Records as rows of the table `documents`, and back."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import pyarrow as pa

from mmqjp.documents.record import Record, own_part_id
from mmqjp.tables.documents import BEFORE_ARRIVALS, DOCUMENTS, OWN
from mmqjp.tables.table_rows import FEW_ROWS, rows_table

_EXTERNAL = attrgetter("docid", "id", "stream", "t0", "t1", "xml", "kind", "arrival")


def records_table(records: Sequence[Record]) -> pa.Table:
    """Returns records as rows of the table `documents`."""
    if len(records) <= FEW_ROWS:
        return rows_table([_row(record) for record in records], DOCUMENTS)
    external = [record for record in records if record.kind == "external"]
    others = [_row(record) for record in records if record.kind != "external"]
    return pa.concat_tables([_external_rows(external), rows_table(others, DOCUMENTS)])


def _external_rows(records: Sequence[Record]) -> pa.Table:
    if not records:
        return DOCUMENTS.empty_table()
    docid, id, stream, t0, t1, xml, kind, arrival = zip(*map(_EXTERNAL, records), strict=True)
    columns: dict[str, Any] = {
        "docid": docid,
        "id": id,
        "stream": stream,
        "t0": t0,
        "t1": t1,
        "xml": xml,
        "kind": kind,
        "arrival": arrival,
    } | {name: pa.nulls(len(records), DOCUMENTS.field(name).type) for name in OWN}
    return pa.table({name: columns[name] for name in DOCUMENTS.names}, DOCUMENTS)


def _row(record: Record) -> tuple[object, ...]:
    """Returns a record as a row of DOCUMENTS."""
    is_external = record.kind == "external"
    lists: tuple[object, ...] = (None,) * 6
    if not is_external:
        lists = (
            record.parts,
            record.part_ids,
            [source[0] for source in record.sources],
            [source[1] for source in record.sources],
            [docid for docid, _ in record.bound],
            [element | place << 32 for _, (element, place) in record.bound],
        )
    return (
        record.docid,
        record.id,
        record.stream,
        record.t0,
        record.t1,
        record.xml,
        record.kind,
        *lists,
        record.arrival,
        None if is_external else record.appeared,
    )


def record_of(row: dict[str, Any]) -> Record:
    """Returns the record of a row of the table `documents`."""
    docid, id, stream = row["docid"], row["id"], row["stream"]
    times_and_xml = row["t0"], row["t1"], row["xml"]
    arrival = _arrival(docid, row["arrival"])
    if row["parts"] is None:
        own, source = (docid,), ((id, stream),)
        return Record(
            docid, id, stream, *times_and_xml, "external", own, (own_part_id(stream, id),), source, (), arrival, own
        )
    bound = zip(row["bound_docids"], row["bound_nodes"], strict=True)
    return Record(
        docid,
        id,
        stream,
        *times_and_xml,
        row["kind"],
        tuple(row["parts"]),
        tuple(row["part_ids"]),
        tuple(zip(row["source_ids"], row["source_streams"], strict=True)),
        tuple((docid, (node & 0xFFFFFFFF, node >> 32)) for docid, node in bound),
        arrival,
        tuple(row["parts"] if row["appeared"] is None else row["appeared"]),
    )


def _arrival(docid: int, arrival: int | None) -> int:
    """Returns the arrival of a stored document.

    A store without arrivals has None. Such documents come before all others, in the order of their docids.
    """
    return docid - BEFORE_ARRIVALS if arrival is None else arrival
