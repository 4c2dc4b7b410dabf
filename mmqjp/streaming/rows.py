"""What executors make of a micro-batch: a row for each document, reject or mere offset, in the order of the source."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from feeds.document import Document, Reject
from feeds.sightings import Listed, SeenEntry, from_json, to_json
from feeds.tail import ALL_READ, Offset, Piece, Positions
from mmqjp.batches import size_refusal

ROWS = pa.schema(
    [
        ("place", pa.int64()),
        ("source", pa.string()),
        ("file", pa.string()),
        ("known", pa.int64()),
        ("position", pa.int64()),
        ("id", pa.string()),
        ("stream", pa.string()),
        ("t0", pa.int64()),
        ("t1", pa.int64()),
        ("xml", pa.binary()),
        ("reason", pa.string()),
        ("raw", pa.binary()),
        ("seen", pa.string()),
    ]
)
"""`place` is the row's in the micro-batch. `source`, `file` and `position` are the offset that is reached with it, and
`known` the file's position when the micro-batch was planned. A document has `xml`; a reject `reason` and `raw`; a row
without `id` is an offset alone. What a fetch of a feed shows is judged by this process: `seen` is what it needs."""

_XML, _RAW = ROWS.names.index("xml"), ROWS.names.index("raw")

NEVER = -2
"""No position of a file."""

ROWS_AT_ONCE = 1_000
BYTES_AT_ONCE = 4 << 20


def row_of(place: int, known: int, piece: Piece, max_document: int | None) -> tuple[Any, ...]:
    """The row of a piece; a document of more than `max_document` bytes is a reject."""
    offset, item = piece.offset, piece.item
    where = (place, offset.source, offset.file, known, offset.position)
    if isinstance(item, Document) and (reason := size_refusal(item, max_document)):
        item = Reject(item.id, item.stream, item.t0, reason, item.xml)
    seen = to_json(item) if isinstance(item, SeenEntry | Listed) else None
    if isinstance(item, Document):
        return (*where, item.id, item.stream, item.t0, item.t1, item.xml_bytes(), None, None, seen)
    if isinstance(item, Reject):
        raw = item.raw if isinstance(item.raw, bytes) else item.raw.encode("utf-8", "surrogatepass")
        return (*where, item.id, item.stream, item.time, None, None, item.reason, raw, seen)
    return (*where, None, None, None, None, None, None, None, None)


def to_batches(rows: Iterable[tuple[Any, ...]]) -> Iterator[pa.RecordBatch]:
    """Rows as Arrow's, some at a time."""
    waiting: list[tuple[Any, ...]] = []
    size = 0
    for row in rows:
        waiting.append(row)
        size += len(row[_XML] or row[_RAW] or b"")
        if len(waiting) >= ROWS_AT_ONCE or size >= BYTES_AT_ONCE:
            yield _batch(waiting)
            waiting, size = [], 0
    if waiting:
        yield _batch(waiting)


def _batch(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = [pa.array(list(column), field.type) for column, field in zip(zip(*rows, strict=True), ROWS, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=ROWS)


def uncommitted(rows: pa.Table, positions: Positions) -> pa.Table:
    """The rows behind what is committed of their files: a micro-batch that comes again may be done in part."""
    stays = [
        not _is_done(known, position, positions.get((source, file), 0))
        for source, file, known, position in zip(
            *(rows[name].to_pylist() for name in ("source", "file", "known", "position")), strict=True
        )
    ]
    return rows.filter(pa.array(stays, pa.bool_()))


def _is_done(known: int, position: int, committed: int) -> bool:
    """Whether an offset is behind what is committed. A file that was written anew begins again before it."""
    if committed == known:
        return False
    return committed == ALL_READ or ALL_READ != position <= committed


def numbered(rows: pa.Table, source: str, file: str, batch: int) -> pa.Table:
    """Rows of a source that tells no offsets: each has its number in the micro-batch, under these names."""
    count = len(rows)
    offsets = {
        "source": pa.repeat(pa.scalar(source), count),
        "file": pa.repeat(pa.scalar(file), count),
        "known": pa.repeat(pa.scalar(NEVER), count),
        "position": pa.array(range((batch << 32) + 1, (batch << 32) + 1 + count), pa.int64()),
    }
    for name, column in offsets.items():
        rows = rows.set_column(rows.schema.get_field_index(name), name, column)
    return rows


def pieces(rows: pa.Table) -> Iterator[Piece]:
    """The pieces that rows are of, as stage 1 on executors left them: with `text`, the document as it was read, or
    `unread`, the bytes of one that could not be."""
    names = ("source", "file", "position", "id", "stream", "t0", "t1", "reason", "raw", "seen", "text", "unread")
    for source, file, position, id, stream, t0, t1, reason, raw, seen, text, unread in zip(
        *(rows[name].to_pylist() for name in names), strict=True
    ):
        offset = Offset(source, file, position)
        if id is None:
            yield Piece(None, offset)
        elif seen is not None:
            yield Piece(from_json(seen, id, unread if text is None else text), offset)
        elif reason is not None:
            yield Piece(Reject(id, stream, t0, reason, raw), offset)
        else:
            yield Piece(Document(id, unread if text is None else text, stream, (t0, t1)), offset)
