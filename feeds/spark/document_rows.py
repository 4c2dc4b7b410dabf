"""Documents and rejects as rows of Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import cast
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from lxml import etree

from common.batches import in_batches
from common.prolog import read_prolog
from common.xml_parser import xml_parser
from feeds.bad_input import SourceError
from feeds.document import Document, Reject
from feeds.entries import EntryForm
from feeds.sightings import size_of

COLUMNS = "id STRING, stream STRING, t0 BIGINT, t1 BIGINT, xml STRING, reason STRING, raw BINARY"
"""A document has no `reason` and `raw`; a reject has no `xml`, and nulls for what is not known. Times are microseconds
of UTC."""

_TEXT, _INT = pa.string(), pa.int64()
SCHEMA = pa.schema(
    {"id": _TEXT, "stream": _TEXT, "t0": _INT, "t1": _INT, "xml": _TEXT, "reason": _TEXT, "raw": pa.binary()}
)
"""The same columns for Arrow."""

ROWS, BYTES = 1_000, 8 * 1024 * 1024
"""A batch ends with this many rows, or with the row that brings it to this many characters."""


def row_batches(items: Iterable[Document | Reject]) -> Iterator[pa.RecordBatch]:
    """The rows of documents and rejects, in their order."""
    return map(_batch, in_batches(items, ROWS, BYTES, size_of))


def _batch(items: Iterable[Document | Reject]) -> pa.RecordBatch:
    columns = zip(*map(_row, items), strict=True)
    arrays = [pa.array(list(column), field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.record_batch(arrays, schema=SCHEMA)


def _row(item: Document | Reject) -> tuple[object, ...]:
    if isinstance(item, Reject):
        return _rejected(item)
    try:
        text = _text(item)
    except etree.XMLSyntaxError as error:
        return _rejected(Reject(item.id, item.stream, item.t1, f"{item.id}: not well-formed: {error}", item.xml))
    except ValueError as error:
        return _rejected(Reject(item.id, item.stream, item.t1, f"{item.id}: {error}", item.xml))
    return item.id, item.stream, item.t0, item.t1, text, None, None


def _rejected(item: Reject) -> tuple[object, ...]:
    raw = item.raw if isinstance(item.raw, bytes) else item.raw.encode("utf-8", "surrogatepass")
    return item.id, item.stream, item.time, item.time, None, item.reason, raw


def _text(document: Document) -> str:
    """The document as text without an encoding declaration. What is not plainly UTF-8 is parsed and written anew."""
    data = document.xml_bytes()
    if not data.lstrip().startswith(b"<?xml"):
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            pass
    if refused := read_prolog(data).refused:  # of a DOCTYPE nothing is written
        raise ValueError(refused)
    return etree.tostring(etree.fromstring(data, xml_parser()), encoding="unicode")


def local_path(address: str) -> Path:
    """The path, or the path in a `file:` address. Raises SourceError for any other scheme: files are read by path."""
    parts = urlsplit(address)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    if parts.scheme and "://" in address:
        hint = "name a directory that the driver and the executors have in common"
        raise SourceError(address, f"what is at {parts.scheme}: cannot be read", hint)
    return Path(address).absolute()


def entry_form(value: str | None) -> EntryForm | None:
    """The form of entries that an option names; None if it is not set. Raises SourceError for any other value."""
    if value not in (None, "item", "raw"):
        raise SourceError(str(value), "no form of entries", "feeds is item or raw; lists names lists of feeds")
    return cast("EntryForm | None", value)
