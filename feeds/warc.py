"""Reads crawls in WARC files: responses and resources that hold XML or feeds, with the times of their records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from warcio.archiveiterator import ArchiveIterator

from feeds.credentials import without_credentials
from feeds.dates import parse_iso
from feeds.document import DEFAULT_STREAM, Document, Reject
from feeds.entries import EntryForm, read_entries
from feeds.files import MAX_BYTES, RAW_KEPT, printable
from feeds.item import Origin, bounded_folders
from feeds.sightings import Item
from feeds.sniff import kind_of_body
from feeds.text import LONGEST_TITLE, one_line
from feeds.unreadable import is_unreadable

FINAL_URI = "WARC-Final-URI"
"""A field of our own: the address that answered. The record's target is the address in the subscription."""

TITLE, FOLDER = "WARC-Feed-Title", "WARC-Feed-Folder"
"""Fields of our own: what the reader calls the feed, and each folder of the reader's list that it is in."""

_HEAD = 64 * 1024


def read_warc(path: Path, feeds: EntryForm | None, max_bytes: int = MAX_BYTES) -> Iterator[Item]:
    """The items of the archive in its order. Other records (requests, pages, pictures, failures) are passed over.

    Without `feeds` each XML body is a document: its id is the address and the record's date, its stream S. With it, the
    entries of feeds are read: the address is the feed's, the record's date the time of the fetch. Raises OSError if the
    archive cannot be read.
    """
    name = printable(str(path))
    with path.open("rb") as file:
        bodies = _bodies(file, name, feeds is not None, max_bytes)
        while True:
            # warcio does not look whether what it reads is there: damage shows as any kind of exception.
            try:
                body = next(bodies, None)
            except Exception as error:
                if is_unreadable(error):
                    raise
                yield Reject(name, DEFAULT_STREAM, None, f"{name}: the archive cannot be read further: {error}", b"")
                return
            if body is None:
                return
            yield from _documents(body, name, feeds, max_bytes)


def first_date(path: Path) -> int | None:
    """The date of the archive's first record, microseconds; None if it has none that can be read. Raises OSError."""
    with path.open("rb") as file:
        try:
            record = next(iter(ArchiveIterator(file)))
            return parse_iso(record.rec_headers.get_header("WARC-Date") or "")
        except Exception:  # damage shows as any kind of exception
            return None


@dataclass(frozen=True, slots=True)
class _Body:
    """The content of a record: at most one byte more than is allowed. `cut`: the archive ends before the record
    does."""

    address: str
    date: str
    final: str
    content_type: str
    title: str
    folders: tuple[str, ...]
    data: bytes
    cut: bool


def _bodies(file: BinaryIO, name: str, feeds: bool, max_bytes: int) -> Iterator[_Body]:
    for record in ArchiveIterator(file):
        if record.rec_type not in ("response", "resource") or not _succeeded(record):
            continue
        body = record.content_stream()
        head = body.read(_HEAD)
        if not (kind_of_body(head) == "feed" if feeds else _is_xml(record, head)):
            continue
        data = head + body.read(max(0, max_bytes + 1 - len(head)))
        if len(data) <= max_bytes:
            while record.raw_stream.read(_HEAD):
                pass
        yield _Body(
            address=without_credentials(one_line(record.rec_headers.get_header("WARC-Target-URI") or name)).strip("<>"),
            date=record.rec_headers.get_header("WARC-Date") or "",
            final=without_credentials(one_line(record.rec_headers.get_header(FINAL_URI) or "")),
            content_type=_content_type(record),
            title=next(_fields(record, TITLE), "")[:LONGEST_TITLE].strip(),
            folders=bounded_folders(_fields(record, FOLDER)),
            data=data,
            cut=len(data) <= max_bytes and record.raw_stream.limit > 0,
        )


def _fields(record: Any, name: str) -> Iterator[str]:
    """The values of a record's field, which may be repeated."""
    return (one_line(value) for key, value in record.rec_headers.headers if key.lower() == name.lower())


def _succeeded(record: Any) -> bool:
    return record.http_headers is None or record.http_headers.get_statuscode() == "200"


def _documents(body: _Body, name: str, feeds: EntryForm | None, max_bytes: int) -> Iterator[Item]:
    id = f"{body.address} {body.date}".strip()
    cause = ""
    time = 0
    try:
        time = parse_iso(body.date)
    except ValueError as error:
        cause = f"the record's date: {error}"
    if len(body.data) > max_bytes:
        cause = f"larger than {max_bytes} bytes"
    elif body.cut:
        cause = "the archive ends within the record"
    if cause:
        yield Reject(id, DEFAULT_STREAM, None, f"{name}: {id}: {cause}", body.data[:RAW_KEPT])
    elif feeds:
        origin = Origin(id, time, body.address, time, body.final, body.content_type, body.title, body.folders)
        yield from read_entries(body.data, origin, feeds)
    else:
        yield Document(id, body.data, DEFAULT_STREAM, time)


def _content_type(record: Any) -> str:
    headers = record.http_headers or record.rec_headers
    return str(headers.get_header("Content-Type") or "")


def _is_xml(record: Any, head: bytes) -> bool:
    kind = _content_type(record).partition(";")[0].strip().lower()
    return kind in ("application/xml", "text/xml") or kind.endswith("+xml") or head.lstrip().startswith(b"<?xml")
