"""The rows of a micro-batch: executors make one for each item and each offset without an item, in source order."""

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
"""The schema of the rows.

- `place`: the number of the row in the micro-batch.
- `source`, `file`, `position`, `fingerprint`: the offset after the row.
- `known`, `known_fingerprint`: the committed offset of the file when the micro-batch was planned.
- A document has `xml`; a reject has `reason` and `raw`.
- A sighting and the end of a fetch have in `seen` what the driver needs to judge them. A sighting also has `xml`.
- A row without these is an offset alone. If its position is UNREAD, its file cannot be read further: `reason` says why,
  and `seen` is the address of its feed.
"""

_XML, _RAW = ROWS.names.index("xml"), ROWS.names.index("raw")

NOWHERE = -2
"""A position that no file has."""

UNREAD = -3
"""Stands for the position of a file that could not be read."""

ROWS_AT_ONCE = 1_000
BYTES_AT_ONCE = 4 << 20


def row_of(
    place: int, known: int, read: ReadItem[Item], max_document: int | None, known_fingerprint: str = ""
) -> tuple[Any, ...]:
    """The row of an item. A document of more than `max_document` bytes becomes a reject."""
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
    """The row that says why a file cannot be read further ("": another file has its name by now).

    `feed` is the address of its feed ("": not known).
    """
    where = (place, split.source, split.file, split.known, UNREAD)
    return (*where, None, None, None, None, None, reason, None, feed, None, split.known_fingerprint or None)


def to_batches(rows: Iterable[tuple[Any, ...]]) -> Iterator[pa.RecordBatch]:
    """Rows as Arrow record batches."""
    return map(_batch, in_batches(rows, ROWS_AT_ONCE, BYTES_AT_ONCE, _size))


def _size(row: tuple[Any, ...]) -> int:
    return len(row[_XML] or row[_RAW] or b"")


def _batch(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = [pa.array(list(column), field.type) for column, field in zip(zip(*rows, strict=True), ROWS, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=ROWS)


def uncommitted(rows: pa.Table, positions: Positions) -> pa.Table:
    """The rows after the committed offsets of their files. Part of a repeated micro-batch may be committed already."""
    names = ("source", "file", "known", "known_fingerprint", "position")
    stays = [
        not _is_done(known, fingerprint or "", position, positions.get((source, file)))
        for source, file, known, fingerprint, position in zip(*(rows[name].to_pylist() for name in names), strict=True)
    ]
    return rows.filter(pa.array(stays, pa.bool_()))


def _is_done(known: int, fingerprint: str, position: int, committed: Offset | None) -> bool:
    """Whether an offset is committed already. If the file was replaced, its offsets begin again at the start."""
    now = (0, "") if committed is None else (committed.position, committed.fingerprint)
    if now == (known, fingerprint):
        return False
    return now[0] == ALL_READ or ALL_READ != position <= now[0]


def readable(rows: pa.Table) -> tuple[pa.Table, dict[tuple[str, str], str]]:
    """The rows, in order, of the files that could be read, and the reasons why others could not, by (source, file).

    The reason is "" for a file whose name another file has by now, and for one that must wait for an unreadable earlier
    version of its feed.
    """
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
    """Gives the rows of a source without offsets their numbers as positions, in the given source and file."""
    count = len(rows)
    offsets = {
        "source": pa.repeat(pa.scalar(source), count),
        "file": pa.repeat(pa.scalar(file), count),
        "known": pa.repeat(pa.scalar(NOWHERE), count),
        "position": pa.array(range((batch << 32) + 1, (batch << 32) + 1 + count), pa.int64()),
        "fingerprint": pa.nulls(count, pa.string()),
        "known_fingerprint": pa.nulls(count, pa.string()),
    }
    for name, column in offsets.items():
        rows = rows.set_column(rows.schema.get_field_index(name), name, column)
    return rows


def items_of(rows: pa.Table) -> Iterator[ReadItem[Item]]:
    """The items of rows that stage 1 has evaluated on executors.

    `text` is the decoded document; `unread` holds the bytes of one that could not be decoded.
    """
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
