"""Files to read documents from: lines, an archive, and their content."""

import io
import os
from pathlib import Path

from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

from feeds.documents import Document
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
    """The content of files and directories, read at 99 µs."""
    return list(read_documents(paths, now=lambda: 99, **options))


def write(path: Path, content: str | bytes, mtime: int = 1_000) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    os.utime(path, (mtime, mtime))
    return path


def archive(path: Path, *feeds: tuple[str, str, str]) -> None:
    """An archive of responses with feeds: the address, the text and the date of each."""
    out = io.BytesIO()
    writer = WARCWriter(out, gzip=path.suffix == ".gz")
    for url, text, date in feeds:
        headers = StatusAndHeaders("200 OK", [("Content-Type", "text/xml")], protocol="HTTP/1.0")
        made = {"payload": io.BytesIO(text.encode()), "http_headers": headers, "warc_headers_dict": {"WARC-Date": date}}
        writer.write_record(writer.create_warc_record(url, "response", **made))
    path.write_bytes(out.getvalue())


def warc(path: Path, gzipped: bool) -> Path:
    """An archive of a feed, two documents, and records that are neither."""
    out = io.BytesIO()
    writer = WARCWriter(out, gzip=gzipped)

    def add(uri, kind, body, status="200 OK", rec_type="response"):
        http = StatusAndHeaders(status, [("Content-Type", kind)], protocol="HTTP/1.1")
        writer.write_record(
            writer.create_warc_record(
                uri,
                rec_type,
                payload=io.BytesIO(body.encode()),
                http_headers=http if rec_type == "response" else None,
                warc_content_type=kind,
                warc_headers_dict={"WARC-Date": "2026-05-07T00:00:00Z"},
            )
        )

    add("https://c.example/rss", "text/html", RSS.format("x"))
    add("https://c.example/gone", "application/xml", "<gone/>", "404 Not Found")
    add("https://c.example/page", "text/html", "<html/>")
    add("https://c.example/map", "application/xml; charset=utf-8", "<map/>")
    add("https://c.example/res", "text/xml", "<res/>", rec_type="resource")
    add("https://c.example/meta", "text/xml", "<meta/>", rec_type="metadata")
    return write(path, out.getvalue())
