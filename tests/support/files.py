"""Files to read documents from: lines, an archive, and their content."""

import io
import os
from collections.abc import Sequence
from itertools import starmap
from pathlib import Path
from typing import NamedTuple

from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

from feeds.documents import Document, Visit
from feeds.tail import read_documents

RSS = (
    '<rss version="2.0"><channel><title>C</title><link>https://c.example/</link><item><title>{}</title><guid>g</guid>'
    "<pubDate>Wed, 06 May 2026 12:00:00 GMT</pubDate></item></channel></rss>"
)
NOON = 1_778_068_800_000_000
LATIN = "<?xml version='1.0' encoding='latin-1'?><b>\u00e9</b>"
LINES: list[dict[str, object]] = [
    {"id": "d1", "stream": "T", "time": "2026-05-06T12:00:00Z", "xml": "<a/>"},
    {"id": "d2", "time": [1, 2], "xml": LATIN},
    {"id": "d3", "xml": "<c/>", "note": "unknown keys are let be"},
]
DOCUMENTS = [Document("d1", "<a/>", "T", NOON), Document("d2", LATIN, "S", (1, 2)), Document("d3", "<c/>", "S", 99)]
"""The documents of LINES, read at 99 µs."""


def read(*paths, **options):
    """The documents and rejects in files and directories, read at 99 µs."""
    return [item for item in read_documents(paths, now=lambda: 99, **options) if not isinstance(item, Visit)]


def write(path: Path, content: str | bytes, mtime: int = 1_000) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    os.utime(path, (mtime, mtime))
    return path


class Record(NamedTuple):
    """A record of an archive: a response, unless it says otherwise."""

    uri: str
    body: str
    date: str = "2026-05-07T00:00:00Z"
    kind: str = "text/xml"
    status: str = "200 OK"
    of: str = "response"


def archive(path: Path, *records: Sequence[str]) -> Path:
    out = io.BytesIO()
    writer = WARCWriter(out, gzip=path.suffix == ".gz")
    for record in starmap(Record, records):
        http, kind = StatusAndHeaders(record.status, [("Content-Type", record.kind)], protocol="HTTP/1.0"), ""
        if record.of != "response":
            http, kind = None, record.kind
        made = {"payload": io.BytesIO(record.body.encode()), "http_headers": http, "warc_content_type": kind}
        made["warc_headers_dict"] = {"WARC-Date": record.date}
        writer.write_record(writer.create_warc_record(record.uri, record.of, **made))
    path.write_bytes(out.getvalue())
    return path


RECORDS = (
    Record("https://c.example/rss", RSS.format("x"), kind="text/html"),
    Record("https://c.example/gone", "<gone/>", kind="application/xml", status="404 Not Found"),
    Record("https://c.example/page", "<html/>", kind="text/html"),
    Record("https://c.example/map", "<map/>", kind="application/xml; charset=utf-8"),
    Record("https://c.example/res", "<res/>", of="resource"),
    Record("https://c.example/meta", "<meta/>", of="metadata"),
)
"""A feed, two documents, and records that are neither."""
