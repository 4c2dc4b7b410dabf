"""The rows that executors make of a micro-batch: one for each item or mere offset, in the order of the source."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from common.batches import in_batches
from feeds.document import Document, Reject
from feeds.offsets import ALL_READ, Offset, Positions
from feeds.sightings import EndOfFetch, Item, Sighting, fetch_in, from_json, to_json
from feeds.splits import Split
from feeds.tail import ReadItem
from mmqjp.documents.batching import size_refusal

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
        ("fingerprint", pa.string()),
        ("known_fingerprint", pa.string()),
    ]
)
"""`place` is the row's in the micro-batch. `source`, `file`, `position` and `fingerprint` are the offset behind it;
`known` and `known_fingerprint` are the file's when the micro-batch was planned. A document has `xml`, a reject `reason`
and `raw`. A sighting and the end of a fetch have in `seen` what the driver needs to judge them, a sighting also its
document. Any other row is an offset alone, or, if the position is UNREAD, the `reason` why a file cannot be read
further, with the address of its feed in `seen`."""

_XML, _RAW = ROWS.names.index("xml"), ROWS.names.index("raw")

NEVER = -2
"""No position of a file."""

UNREAD = -3
"""In place of the position of a file that could not be read."""

ROWS_AT_ONCE = 1_000
BYTES_AT_ONCE = 4 << 20


def row_of(
    place: int, known: int, read: ReadItem[Item], max_document: int | None, known_fingerprint: str = ""
) -> tuple[Any, ...]:
    """The row of an item; a document of more than `max_document` bytes is a reject."""
    offset, item, seen = read.offset, read.item, None
    where = (place, offset.source, offset.file, known, offset.position)
    fingerprints = offset.fingerprint or None, known_fingerprint or None
    if isinstance(item, Sighting):
        seen = to_json(item)
        item = item.at(item.fetch.time)
    if isinstance(item, Document) and (reason := size_refusal(item, max_document)):
        item, seen = Reject(item.id, item.stream, item.t0, reason, item.xml), None
    match item:
        case Document():
            return (*where, item.id, item.stream, item.t0, item.t1, item.xml_bytes(), None, None, seen, *fingerprints)
        case Reject():
            raw = item.raw if isinstance(item.raw, bytes) else item.raw.encode("utf-8", "surrogatepass")
            return (*where, item.id, item.stream, item.time, None, None, item.reason, raw, None, *fingerprints)
        case EndOfFetch():
            return (*where, *[None] * 7, to_json(item), *fingerprints)
        case None:
            return (*where, *[None] * 8, *fingerprints)


def unread_row(place: int, split: Split, reason: str, feed: str) -> tuple[Any, ...]:
    """The row that says why a file cannot be read further; "" if another file has its name by now. `feed` is the
    address of its feed, "" if it is not known."""
    where = (place, split.source, split.file, split.known, UNREAD)
    return (*where, None, None, None, None, None, reason, None, feed, None, split.known_fingerprint or None)


def to_batches(rows: Iterable[tuple[Any, ...]]) -> Iterator[pa.RecordBatch]:
    """Rows as Arrow's, some at a time."""
    return map(_batch, in_batches(rows, ROWS_AT_ONCE, BYTES_AT_ONCE, _size))


def _size(row: tuple[Any, ...]) -> int:
    return len(row[_XML] or row[_RAW] or b"")


def _batch(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = [pa.array(list(column), field.type) for column, field in zip(zip(*rows, strict=True), ROWS, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=ROWS)


def uncommitted(rows: pa.Table, positions: Positions) -> pa.Table:
    """The rows behind what is committed of their files: a micro-batch that comes again may be done in part."""
    names = ("source", "file", "known", "known_fingerprint", "position")
    stays = [
        not _is_done(known, fingerprint or "", position, positions.get((source, file)))
        for source, file, known, fingerprint, position in zip(*(rows[name].to_pylist() for name in names), strict=True)
    ]
    return rows.filter(pa.array(stays, pa.bool_()))


def _is_done(known: int, fingerprint: str, position: int, committed: Offset | None) -> bool:
    """Whether an offset is committed already. A file that was written anew begins again before it."""
    now = (0, "") if committed is None else (committed.position, committed.fingerprint)
    if now == (known, fingerprint):
        return False
    return now[0] == ALL_READ or ALL_READ != position <= now[0]


def readable(rows: pa.Table) -> tuple[pa.Table, dict[tuple[str, str], str]]:
    """The rows, in their order, of files as far as they could be read; and why others could not, by source and file, ""
    if another file has the name by now. What a feed shows behind a fetch that could not be read waits for that."""
    failed: dict[tuple[str, str], str] = {}
    if pc.min(rows["position"]).as_py() != UNREAD:
        return rows, failed
    feeds = {""}
    stays: list[bool] = []
    names = ("source", "file", "position", "reason", "seen")
    for source, file, position, reason, seen in zip(*(rows[name].to_pylist() for name in names), strict=True):
        if position == UNREAD:
            failed.setdefault((source, file), reason)
            feeds.add(seen)
        elif seen is not None and len(feeds) > 1 and fetch_in(seen).feed in feeds:
            failed.setdefault((source, file), "")
        stays.append((source, file) not in failed)
    return rows.filter(pa.array(stays, pa.bool_())), failed


def numbered(rows: pa.Table, source: str, file: str, batch: int) -> pa.Table:
    """Rows of a source that tells no offsets: each has its number in the micro-batch, under these names."""
    count = len(rows)
    offsets = {
        "source": pa.repeat(pa.scalar(source), count),
        "file": pa.repeat(pa.scalar(file), count),
        "known": pa.repeat(pa.scalar(NEVER), count),
        "position": pa.array(range((batch << 32) + 1, (batch << 32) + 1 + count), pa.int64()),
        "fingerprint": pa.nulls(count, pa.string()),
        "known_fingerprint": pa.nulls(count, pa.string()),
    }
    for name, column in offsets.items():
        rows = rows.set_column(rows.schema.get_field_index(name), name, column)
    return rows


def items_of(rows: pa.Table) -> Iterator[ReadItem[Item]]:
    """The items that rows are of, as stage 1 on executors left them: with `text`, the document as it was read, or
    `unread`, the bytes of one that could not be."""
    names = (
        "source",
        "file",
        "position",
        "fingerprint",
        "id",
        "stream",
        "t0",
        "t1",
        "reason",
        "raw",
        "seen",
        "text",
        "unread",
    )
    for source, file, position, fingerprint, id, stream, t0, t1, reason, raw, seen, text, unread in zip(
        *(rows[name].to_pylist() for name in names), strict=True
    ):
        offset = Offset(source, file, position, fingerprint or "")
        if seen is not None:
            yield ReadItem(from_json(seen, id, unread if text is None else text), offset)
        elif id is None:
            yield ReadItem(None, offset)
        elif reason is not None:
            yield ReadItem(Reject(id, stream, t0, reason, raw), offset)
        else:
            yield ReadItem(Document(id, unread if text is None else text, stream, (t0, t1)), offset)
