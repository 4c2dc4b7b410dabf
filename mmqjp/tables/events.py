"""The tables of event patterns: events of documents, definitions of events, and snapshots of partial matches."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from join_stage.store.protocol import TableStore
from mmqjp.tables.columns import INT, INTS, TEXT, TEXTS, schema

EVENTS = schema(number=INT, stream=TEXT, docid=INT, nodes=INTS, t0=INT, t1=INT, attributes=TEXTS, batch=INT)
"""An event of a document, with its number, which no other event ever gets. `nodes` has the ids of its nodes, the root
first. Numbers among `attributes` are written as texts."""

SNAPSHOTS = schema(batch=INT, name=TEXT, state=pa.binary())
"""The parts of a snapshot by their names, each as Arrow's stream. The rows of the greatest batch count."""

TABLES = {
    "events": EVENTS,
    "pattern_state": SNAPSHOTS,
    "definitions": schema(id=INT, name=TEXT, text=TEXT, added_at=INT),
    "removed_definitions": schema(id=INT, removed_at=INT),
}


def save_events(store: TableStore, rows: pa.Table) -> None:
    """Appends rows of EVENTS."""
    if len(rows):
        store.append("events", rows)


def events_from(store: TableStore, time: int) -> pa.Table:
    """Returns the events that end at a time or later, in the order of their numbers."""
    columns = ", ".join(EVENTS.names)
    return store.select(f"SELECT {columns} FROM events WHERE t1 >= {time} ORDER BY number").cast(EVENTS)


def save_snapshot(store: TableStore, parts: Mapping[str, pa.Table], batch: int, horizon: int) -> None:
    """Writes a snapshot at a horizon in place of earlier ones, and drops the events before it: what is to come needs
    only the snapshot."""
    store.drop_before("pattern_state", "batch", batch)
    rows = [(batch, name, _written(part)) for name, part in parts.items()]
    columns = list(zip(*rows, strict=True))
    store.append(
        "pattern_state", pa.table([pa.array(column) for column in columns], names=SNAPSHOTS.names).cast(SNAPSHOTS)
    )
    store.drop_before("events", "t1", horizon)


def snapshot(store: TableStore) -> dict[str, pa.Table]:
    """Returns the parts of the latest snapshot by their names; none if there is none."""
    rows = store.read("pattern_state", SNAPSHOTS.names)
    latest = max(rows["batch"].to_pylist(), default=0)
    return {
        row["name"]: pa.ipc.open_stream(row["state"]).read_all() for row in rows.to_pylist() if row["batch"] == latest
    }


def _written(part: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, part.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(part)
    return bytes(sink.getvalue())
