"""Sources that grow: what is new, where reading goes on, and in which order files are read."""

import gzip
import json
import os
from io import BytesIO
from pathlib import Path

import pytest
from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

from feeds.document import Document, Reject
from feeds.errors import SourceError
from feeds.tail import ALL_READ, Offset, Tail, waiting_files

FEED = "<rss><channel><title>t</title><item><title>{0}</title><guid>{0}</guid></item></channel></rss>"


def line(id: str) -> str:
    return json.dumps({"id": id, "time": 1, "xml": "<a/>"})


class Reader:
    """Reads a source as a service does, remembering positions."""

    def __init__(self, *tails: Tail) -> None:
        self.tails = tails
        self.positions: dict[tuple[str, str], int] = {}

    def read(self, most: int = 1000) -> list[Document | Reject]:
        found: list[Document | Reject] = []
        for waiting in waiting_files(self.tails, self.positions):
            for piece in waiting.tail.read(waiting, self.positions.get((waiting.source, waiting.file), 0)):
                if len(found) == most:
                    return found
                self.positions[piece.offset.source, piece.offset.file] = piece.offset.position
                if piece.item is not None:
                    found.append(piece.item)
        return found

    def ids(self, most: int = 1000) -> list[str]:
        return [item.id for item in self.read(most)]


def test_lines_are_read_as_they_come(tmp_path: Path):
    path = tmp_path / "x.jsonl"
    reader = Reader(Tail(tmp_path))
    path.write_text(f"{line('a')}\n\n{line('b')}\n{line('c')[:10]}")
    assert reader.ids() == ["a", "b"] and reader.ids() == []
    path.write_text(f"{line('a')}\n\n{line('b')}\n{line('c')}")  # whole, though its line may not be ended yet
    assert reader.ids() == ["c"]
    with path.open("a") as file:
        file.write(f"\n{line('d')}\nno json\n")
    assert [type(item) for item in reader.read()] == [Document, Reject]
    assert reader.ids() == []


def test_a_file_of_lines_that_was_written_anew_is_read_anew(tmp_path: Path):
    path = tmp_path / "x.jsonl"
    path.write_text(f"{line('a')}\n{line('b')}\n")
    reader = Reader(Tail(path))
    assert reader.ids() == ["a", "b"]
    path.write_text(f"{line('c')}\n")
    assert reader.ids() == ["c"] and reader.ids() == []


def test_reading_goes_on_in_the_middle_of_any_file(tmp_path: Path):
    with gzip.open(tmp_path / "x.jsonl.gz", "wt") as file:
        file.write("".join(line(id) + "\n" for id in "abc"))
    (tmp_path / "y.jsonl").write_text("".join(line(id) + "\n" for id in "def"))
    reader = Reader(Tail(tmp_path))
    assert [reader.ids(2), reader.ids(2), reader.ids(2), reader.ids(2)] == [["a", "b"], ["c", "d"], ["e", "f"], []]
    assert reader.positions[str(tmp_path), "x.jsonl.gz"] == ALL_READ


def test_other_files_are_read_once_and_drafts_not_at_all(tmp_path: Path):
    (tmp_path / "T").mkdir()
    (tmp_path / "T" / "x.xml").write_text("<a/>")
    for name in (".y.xml", "y.xml.tmp", "y.xml.part", "y.txt"):
        (tmp_path / name).write_text("<a/>")
    reader = Reader(Tail(tmp_path))
    (document,) = reader.read()
    assert isinstance(document, Document) and (document.id, document.stream) == ("T/x.xml", "T")
    assert reader.ids() == []
    (tmp_path / ".y.xml").rename(tmp_path / "y.xml")
    assert reader.ids() == ["y.xml"]


def test_files_are_read_in_order_of_the_fetch(tmp_path: Path):
    first, second = tmp_path / "one", tmp_path / "two"
    for directory in (first, second):
        directory.mkdir()

    def feed(path: Path, modified: int) -> None:
        path.write_text(FEED.format(path.stem))
        os.utime(path, (modified, modified))

    feed(first / "z.xml", 5)  # by the sidecar
    (first / "z.json").write_text(json.dumps({"url": "http://z/", "fetched_at": "2026-01-01T00:00:00Z"}))
    feed(first / "20260102T000000Z-0123456789abcdef.xml", 9_000_000_000)  # by its name
    feed(second / "20260101T120000500000Z-0123456789abcdef.xml", 1)
    feed(second / "m.xml", 1_000_000_000)  # by its time
    out = BytesIO()
    writer = WARCWriter(out, gzip=False)
    headers = StatusAndHeaders("200 OK", [("Content-Type", "text/xml")], protocol="HTTP/1.0")
    body = BytesIO(FEED.format("warc").encode())
    date = {"WARC-Date": "2026-01-01T18:00:00Z"}
    writer.write_record(
        writer.create_warc_record("http://w/", "response", payload=body, http_headers=headers, warc_headers_dict=date)
    )
    (second / "x.warc").write_bytes(out.getvalue())
    reader = Reader(Tail(first, feeds="item"), Tail(second, feeds="item"))
    got = [id.split()[1] for id in reader.ids()]
    assert got == ["m", "z", "20260101T120000500000Z-0123456789abcdef", "warc", "20260102T000000Z-0123456789abcdef"]


def test_a_sidecar_is_no_document_whether_its_feed_is_there_or_not(tmp_path: Path):
    (tmp_path / "x.json").write_text(json.dumps({"url": "http://x/", "fetched_at": "2026-01-01T00:00:00Z"}))
    reader = Reader(Tail(tmp_path, feeds="item"))
    assert reader.read() == []
    (tmp_path / "x.xml").write_text(FEED.format("e"))
    assert [id.split()[0] for id in reader.ids()] == ["http://x/"]
    (tmp_path / "y.json").write_text("neither")
    assert [type(item) for item in reader.read()] == [Reject]


def test_a_file_that_vanishes_is_passed_over_or_told(tmp_path: Path):
    (tmp_path / "x.xml").write_text("<a/>")
    (tmp_path / "y.jsonl").write_text(line("a"))
    tail = Tail(tmp_path)
    waiting = list(tail.waiting({}))
    for path in tmp_path.iterdir():
        path.unlink()
    pieces = [piece for found in waiting for piece in tail.read(found, 0)]
    assert {type(piece.item) for piece in pieces} == {Reject, type(None)}
    assert Offset(str(tmp_path), "x.xml", ALL_READ) in [piece.offset for piece in pieces]
    assert list(tail.waiting({})) == []


def test_what_is_no_source_is_refused(tmp_path: Path):
    with pytest.raises(SourceError, match="no such file or directory"):
        Tail(tmp_path / "none")
    (tmp_path / "x.csv").touch()
    with pytest.raises(SourceError, match="kind of file"):
        Tail(tmp_path / "x.csv")
    with pytest.raises(SourceError, match="not an XPath"):
        Tail(tmp_path, time_xpath="][")
