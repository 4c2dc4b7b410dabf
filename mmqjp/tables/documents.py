"""The tables of documents: stored documents, and the ids of dropped ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

import pyarrow as pa

from join_stage.store.protocol import TableStore
from mmqjp.tables.columns import INT, INTS, TEXT, TEXTS, schema

# `kind` is external, published or hidden. `parts` and `part_ids` identify the documents behind a chain, and `source_*`
# the external documents behind any document. `bound_*` are the nodes that the children of a tuple stand for. `arrival`
# numbers external documents; other documents have that of the latest one behind them. `appeared` has an entry per part.
# `mmqjp.documents.record.Record` describes them. What is in OWN is NULL for external documents: it follows from their
# docids, ids and streams.
DOCUMENTS = schema(
    docid=INT,
    id=TEXT,
    stream=TEXT,
    t0=INT,
    t1=INT,
    xml=TEXT,
    kind=TEXT,
    parts=INTS,
    part_ids=TEXTS,
    source_ids=TEXTS,
    source_streams=TEXTS,
    bound_docids=INTS,
    bound_nodes=INTS,
    arrival=INT,
    appeared=INTS,
)

OWN = ("parts", "part_ids", "source_ids", "source_streams", "bound_docids", "bound_nodes", "appeared")
"""The columns that only documents have that were made of others. Stores have them of earlier external documents,
too."""

# External documents that were dropped.
DROPPED_IDS = schema(id=TEXT, stream=TEXT, t1=INT)

TABLES = {"documents": DOCUMENTS, "dropped_ids": DROPPED_IDS}

FROM_OUTSIDE = "SELECT id, stream, t0, xml FROM documents WHERE kind = 'external'"
"""The external documents."""

BEFORE_ARRIVALS = 1 << 40
"""Documents of a store without arrivals come before all others, in the order of their docids."""

_ARRIVAL = f"coalesce(arrival, docid - {BEFORE_ARRIVALS})"


class HasDocuments(Protocol):
    """A store, as far as `document_rows` asks."""

    def find(self, table: str, column: str, numbers: pa.Array) -> pa.Table: ...


def document_rows(store: HasDocuments, docids: Sequence[int]) -> pa.Table:
    """Returns the rows of some documents, each given once, in no particular order."""
    return store.find("documents", "docid", pa.array(docids, pa.int64()))


def documents_by_id(store: TableStore, keys: Iterable[tuple[str, str]]) -> dict[tuple[str, str], tuple[int, str]]:
    """Returns the t0 and the XML of the external documents among some, given as (stream, id), by these."""
    pairs = sorted(set(keys))
    if not pairs:
        return {}
    asked = pa.table({"stream": [stream for stream, _ in pairs], "id": [id for _, id in pairs]})
    sql = """SELECT d.stream, d.id, d.t0, d.xml FROM documents d
JOIN asked a ON d.stream = a.stream AND d.id = a.id WHERE d.kind = 'external'"""
    rows = store.select(sql, {"asked": asked}).to_pylist()
    return {(row["stream"], row["id"]): (row["t0"], row["xml"]) for row in rows}


def document_sizes(
    store: TableStore,
    streams: Collection[str],
    *,
    starts: range | None = None,
    ends: range | None = None,
    joined: bool = False,
    refused: str = "",
) -> pa.Table:
    """Returns the documents of some streams in the order of their docids: `docid`, and `size` in characters.

    With `starts`, only documents that begin in this range of times; with `ends`, only those that end in it; with
    `joined`, only those in the join state; with `refused`, none for which there is a dead letter whose reason begins
    so.
    """
    conditions = ["true"]
    if ends is not None:
        conditions.append(f"d.t1 >= {ends.start} AND d.t1 < {ends.stop}")
    if refused:
        conditions.append(
            "NOT EXISTS (SELECT 1 FROM dead_letters l WHERE l.stream = d.stream AND l.id = d.id "
            f"AND l.reason LIKE '{refused}%')"
        )
    if starts is not None:
        conditions.append(f"t0 >= {starts.start} AND t0 < {starts.stop}")
    if joined:
        conditions.append("d.docid IN (SELECT docid FROM r_docts)")
    sql = f"""SELECT d.docid, length(d.xml) AS size FROM documents d JOIN streams s ON d.stream = s.stream
WHERE {" AND ".join(conditions)} ORDER BY d.docid"""
    return store.select(sql, _streams(streams))


def hidden_tuples(store: TableStore, streams: Collection[str]) -> pa.Table:
    """Returns the tuples of hidden streams: `stream`, `parts`, `bound_docids` and `bound_nodes`."""
    sql = (
        "SELECT d.stream, d.parts, d.bound_docids, d.bound_nodes FROM documents d JOIN streams s ON d.stream = s.stream"
    )
    return store.select(sql, _streams(streams))


def known_ids(store: TableStore, documents: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
    """Returns the (stream, id) pairs that belong to stored documents or to dropped ones whose ids are kept."""
    pairs = list(documents)
    if not pairs:
        return set()
    arriving = pa.table({"stream": [s for s, _ in pairs], "id": [i for _, i in pairs]})
    sql = """SELECT d.stream, d.id FROM documents d JOIN arriving a ON d.stream = a.stream AND d.id = a.id
UNION ALL SELECT o.stream, o.id FROM dropped_ids o JOIN arriving a ON o.stream = a.stream AND o.id = a.id"""
    found = store.select(sql, {"arriving": arriving})
    return set(zip(found["stream"].to_pylist(), found["id"].to_pylist(), strict=True))


def ids_between(store: TableStore, low: int, high: int) -> pa.Table:
    """Returns `stream` and `id` of the documents with `low` <= docid < `high`, except tuples of hidden streams."""
    condition = f"docid >= {low} AND docid < {high} AND kind <> 'hidden'"
    return store.select(f"SELECT stream, id FROM documents WHERE {condition}")


def ids_of_dropped(store: TableStore) -> pa.Table:
    """Returns `stream` and `id` of the dropped documents whose ids are kept."""
    return store.select("SELECT stream, id FROM dropped_ids")


def greatest_times(store: TableStore) -> dict[str, int]:
    """Returns the greatest t1 of the external documents, by stream."""
    sql = "SELECT stream, max(t1) AS t1 FROM documents WHERE kind = 'external' GROUP BY stream"
    found = store.select(sql)
    return dict(zip(found["stream"].to_pylist(), found["t1"].to_pylist(), strict=True))


def arrivals(store: TableStore) -> pa.Table:
    """Returns the `docid` and `arrival` of all documents, in the order of their docids."""
    return store.select(f"SELECT docid, {_ARRIVAL} AS arrival FROM documents ORDER BY docid")


def first_docid_from(store: TableStore, arrival: int) -> int | None:
    """Returns the docid of the first external document at or after an arrival, or None."""
    sql = f"SELECT min(docid) AS docid FROM documents WHERE kind = 'external' AND {_ARRIVAL} >= {arrival}"
    (docid,) = store.select(sql)["docid"].to_pylist()
    return None if docid is None else int(docid)


def keep_ids(store: TableStore, before: int) -> None:
    """Copies to `dropped_ids` the ids of the external documents that begin before a time."""
    sql = f"SELECT id, stream, t1 FROM documents WHERE kind = 'external' AND t0 < {before}"
    store.append("dropped_ids", store.select(sql))


def _streams(streams: Collection[str]) -> dict[str, pa.Table]:
    return {"streams": pa.table({"stream": pa.array(sorted(streams), pa.string())})}
