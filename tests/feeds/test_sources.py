"""Paths to documents: XML files and directories, feeds of a crawl, and what cannot be read."""

import json
import os
from pathlib import Path

import pytest
from lxml import etree

from feeds.documents import Document, Reject, SourceError
from feeds.tail import read_documents
from tests.support.files import DOCUMENTS, LINES, NOON, RSS, read, warc, write
from tests.support.unreadable import shut

# ---------------------------------------------------------------- XML


def test_a_file_and_a_directory_of_xml(tmp_path):
    write(tmp_path / "b.xml", "<b/>", 2)
    write(tmp_path / "blog" / "x" / "c.XML", "<c/>", 3)
    write(tmp_path / "a.xml", "<a/>", 1)
    write(tmp_path / "a.txt", "no")
    a = Document("a.xml", b"<a/>", "S", 1_000_000)
    b, c = Document("b.xml", b"<b/>", "S", 2_000_000), Document("blog/x/c.XML", b"<c/>", "blog", 3_000_000)
    assert read(tmp_path) == [a, b, c]
    assert read(tmp_path / "a.xml", str(tmp_path / "a.xml")) == [a, a]


def test_links_that_leave_the_directory_are_not_followed_and_names_that_are_not_utf8_are_shown(tmp_path):
    write(tmp_path / "secret" / "s.xml", "<s/>")
    inside = write(tmp_path / "d" / "a.xml", "<a/>")
    (tmp_path / "d" / "b.xml").symlink_to(inside)
    (tmp_path / "d" / "c.xml").symlink_to(tmp_path / "secret" / "s.xml")
    (tmp_path / "d" / "dir").symlink_to(tmp_path / "secret")
    (tmp_path / "d" / "loop").symlink_to(tmp_path / "d")
    (tmp_path / "d" / "e.xml").symlink_to(tmp_path / "d" / "e.xml")
    (tmp_path / "d" / "f.xml").mkdir()
    os.mkfifo(tmp_path / "d" / "pipe.xml")
    write(Path(os.fsdecode(bytes(tmp_path) + b"/d/z\xff.xml")), "<a/>")
    first, second, odd = (document.id for document in read(tmp_path / "d"))
    assert (first, second) == ("a.xml", "b.xml") and odd.endswith(".xml") and "\ufffd" in odd


def test_what_cannot_be_listed_is_a_reject(tmp_path):
    write(tmp_path / "d" / "shut" / "a.xml", "<a/>")
    write(tmp_path / "d" / "z.xml", "<z/>")
    with shut(tmp_path / "d" / "shut"):
        reject, document = read(tmp_path / "d")
    assert isinstance(reject, Reject) and reject.reason.startswith("shut: cannot be read")
    assert document.id == "z.xml"


@pytest.mark.parametrize("xpath", ["//when", "string(/a/when)", "//when/text()", "/a/when[@no or not(@no)]"])
def test_the_time_is_where_the_xpath_says(tmp_path, xpath):
    path = write(tmp_path / "a.xml", "<a when='x'><when>2026-05-06T12:00Z</when></a>")
    assert read(path, time_xpath=xpath)[0].t0 == NOON


@pytest.mark.parametrize(
    ("xml", "cause"),
    [
        *(("<a><when/></a>", "no date"), ("<a><when>soon</when></a>", "'soon', which is no date")),
        *(("<a/>", "//when finds nothing"), ("<a>", "not well-formed"), ("", "not well-formed")),
    ],
)
def test_a_document_without_its_time_is_a_reject(tmp_path, xml, cause):
    write(tmp_path / "d" / "t" / "a.xml", xml)
    write(tmp_path / "d" / "z.xml", "<a><when>Wed, 06 May 2026 12:00:00 GMT</when></a>")
    reject, document = read(tmp_path / "d", time_xpath="//when")
    assert cause in reject.reason
    assert (reject.id, reject.stream, reject.raw) == ("t/a.xml", "t", xml.encode())
    assert document.t0 == NOON


def test_the_times_parser_reads_no_other_file(tmp_path):
    secret = write(tmp_path / "secret", "2026-05-06")
    xml = f'<!DOCTYPE a [<!ENTITY x SYSTEM "{secret.as_uri()}">]><a>&x;</a>'
    (reject,) = read(write(tmp_path / "a.xml", xml), time_xpath="/a")
    assert isinstance(reject, Reject)


@pytest.mark.parametrize("feeds", [None, "item"])
def test_a_file_too_large_is_a_reject(tmp_path, monkeypatch, feeds):
    monkeypatch.setattr("feeds.files.MAX_BYTES", 10)
    (reject,) = read(write(tmp_path / "a.xml", "<a>0123456789</a>"), feeds=feeds)
    assert "larger than" in reject.reason


# ---------------------------------------------------------------- feeds


def test_a_crawl_names_its_feeds_and_dates_them(tmp_path):
    versions = (("1", "old", "2026-05-07T00:00:00+00:00"), ("2", "old", "2026-05-08"), ("3", "new", 5))
    for version, title, fetched in versions:
        write(tmp_path / "src" / f"{version}.xml", RSS.format(title))
        write(tmp_path / "src" / f"{version}.json", json.dumps({"source": "src", "fetched_at": fetched}))
    documents = read(tmp_path, feeds="item")
    # The third has no time of its fetch, and its file is the oldest; the second has nothing that the first has not.
    assert [document.id.split(" ")[:2] for document in documents] == [["src", "g"]] * 2
    assert [document.t0 for document in documents] == [NOON, NOON + 12 * 3_600_000_000]


def test_a_crawl_is_read_in_order_of_its_fetches(tmp_path):
    times = {"b": "20260506T120000Z", "a": "20260506T120000000001Z", "c": "20260505T120000Z"}
    for source, time in times.items():
        stem = f"{time}-{source * 12}"
        write(tmp_path / source / f"{stem}.xml", RSS.format(source))
        write(tmp_path / source / f"{stem}.json", json.dumps({"url": f"https://{source}.example/"}))
    write(tmp_path / "a" / "20260507T120000Z-dddddddddddd.json", '{"url": "its feed is not renamed yet"}')
    warc(tmp_path / "z.warc.gz", True)
    documents = read(tmp_path, feeds="item")
    assert [document.id.split(" ")[0][8:9] for document in documents] == ["c", "b", "a", "c"]
    # The first one's date is bounded by the time in its file's name.
    assert documents[0].t0 == NOON - 24 * 3_600_000_000


def test_a_sidecars_url_wins_links_are_resolved_against_the_final_one_and_the_fetch_bounds_the_dates(tmp_path):
    notes = {"url": "https://old.example/rss", "final_url": "https://new.example/rss", "source": "s"}
    write(tmp_path / "1.rss", RSS.format("t").replace("https://c.example/", "/home"))
    write(tmp_path / "1.json", json.dumps(notes | {"fetched_at": "2026-05-01T00:00:00Z"}))
    (document,) = read(tmp_path / "1.rss", feeds="item")
    assert document.id.startswith("https://old.example/rss g ")
    assert etree.fromstring(document.xml).findtext("channel_url") == "https://new.example/home"
    assert document.t0 == 1_777_593_600_000_000


def test_a_json_feed_beside_an_xml_feed_is_a_feed(tmp_path):
    write(tmp_path / "1.xml", RSS.format("x"))
    feed = {"version": "https://jsonfeed.org/version/1.1", "items": [{"id": "1", "title": "j"}]}
    write(tmp_path / "1.json", json.dumps(feed), 7)
    titles = [(d.id.split(" ")[0], etree.fromstring(d.xml).findtext("title")) for d in read(tmp_path, feeds="item")]
    assert titles == [("1.json", "j"), ("1.xml", "x")]


@pytest.mark.parametrize("sidecar", ["{", "[]", '{"fetched_at": "soon"}', "[" * 100_000])
def test_a_broken_sidecar_is_told_and_the_feed_still_read(tmp_path, sidecar):
    write(tmp_path / "1.xml", RSS.format("x"))
    write(tmp_path / "1.json", sidecar)
    reject, document = read(tmp_path, feeds="item")
    assert "its sidecar 1.json cannot be used" in reject.reason
    assert document.id.startswith("1.xml g ")


def test_every_feed_suffix_and_raw_and_other_kinds_beside_feeds(tmp_path):
    names = ["a.xml", "b.rss", "c.atom", "d.rdf", "e.feed", "f.JSON"]
    for name in (*names, "g.html"):
        write(tmp_path / name, RSS.format("x"))
    lines = write(tmp_path / "more" / "x.jsonl", json.dumps(LINES[0]))
    assert [document.id.split(" ")[0] for document in read(tmp_path, feeds="item")] == [*names, "d1"]
    lines.unlink()
    assert all(etree.fromstring(d.xml).findtext("channel_title") == "C" for d in read(tmp_path, feeds="raw"))


# ---------------------------------------------------------------- what cannot be read at all


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        *(("missing.jsonl", {}, "no such file"), ("missing", {}, "no such file")),
        *(("a.txt", {}, "not known from its name (.txt)"), ("README", {}, "not known from its name (no suffix)")),
        *(("a.rss", {}, "add --feeds"), ("a.json", {}, "add --feeds"), ("a.txt", {"feeds": "item"}, "not known")),
        ("empty", {}, "holds no *.xml file"),
        ("empty", {"feeds": "item"}, "holds no *.atom"),
        ("a.xml", {"time_xpath": "//["}, "not an XPath expression"),
    ],
)
def test_source_errors_come_before_the_first_document(tmp_path, name, options, words):
    for file in ("a.txt", "README", "a.rss", "a.json", "a.xml"):
        write(tmp_path / file, "<a/>")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="(?s)" + "".join(f"[{c}]" for c in words)) as raised:
        read_documents([tmp_path / "a.xml", tmp_path / name], **options)
    assert raised.value.hint
    assert raised.value.hint in str(raised.value)


def test_reading_is_lazy(tmp_path):
    path = write(tmp_path / "x.jsonl", "".join(json.dumps(line) + "\n" for line in LINES))
    later = write(tmp_path / "a.xml", "<a/>")
    documents = read_documents([path, later], now=lambda: 99)
    assert next(documents) == DOCUMENTS[0]
    write(later, "<changed/>")
    assert list(documents)[-1] == Document("a.xml", b"<changed/>", time=1_000_000_000)
