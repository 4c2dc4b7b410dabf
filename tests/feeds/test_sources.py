"""Paths to documents: XML files and directories, feeds of a crawl, and what cannot be read."""

import json
import os
from pathlib import Path

import pytest
from lxml import etree

from feeds.documents import Document, Reject, SourceError
from feeds.tail import read_documents
from tests.support.files import DOCUMENTS, LINES, NOON, RSS, read, warc, write

# ---------------------------------------------------------------- XML


def test_a_file_and_a_directory_of_xml(tmp_path):
    write(tmp_path / "b.xml", "<b/>", 2)
    write(tmp_path / "blog" / "x" / "c.XML", "<c/>", 3)
    write(tmp_path / "a.xml", "<a/>", 1)
    write(tmp_path / "a.txt", "no")
    a = Document("a.xml", b"<a/>", "S", 1_000_000)
    assert read(tmp_path) == [
        a,
        Document("b.xml", b"<b/>", "S", 2_000_000),
        Document("blog/x/c.XML", b"<c/>", "blog", 3_000_000),
    ]
    assert read(tmp_path / "a.xml", str(tmp_path / "a.xml")) == [a, a]


def test_links_that_leave_the_directory_are_not_followed(tmp_path):
    write(tmp_path / "secret" / "s.xml", "<s/>")
    inside = write(tmp_path / "d" / "a.xml", "<a/>")
    (tmp_path / "d" / "b.xml").symlink_to(inside)
    (tmp_path / "d" / "c.xml").symlink_to(tmp_path / "secret" / "s.xml")
    (tmp_path / "d" / "dir").symlink_to(tmp_path / "secret")
    (tmp_path / "d" / "loop").symlink_to(tmp_path / "d")
    (tmp_path / "d" / "e.xml").symlink_to(tmp_path / "d" / "e.xml")
    (tmp_path / "d" / "f.xml").mkdir()
    os.mkfifo(tmp_path / "d" / "pipe.xml")
    assert [document.id for document in read(tmp_path / "d")] == ["a.xml", "b.xml"]


def test_a_name_that_is_not_utf8_is_shown_in_replacement(tmp_path):
    write(Path(os.fsdecode(bytes(tmp_path) + b"/\xff.xml")), "<a/>")
    (document,) = read(tmp_path)
    assert document.id.endswith(".xml")
    assert "\ufffd" in document.id


def test_what_cannot_be_listed_is_a_reject(tmp_path, monkeypatch):
    write(tmp_path / "d" / "shut" / "a.xml", "<a/>")
    write(tmp_path / "d" / "z.xml", "<z/>")
    scan = os.scandir

    def guarded(path):
        if Path(path).name == "shut":
            raise PermissionError(13, "Permission denied")
        return scan(path)

    monkeypatch.setattr("feeds.files.os.scandir", guarded)
    reject, document = read(tmp_path / "d")
    assert isinstance(reject, Reject)
    assert reject.reason.startswith("shut: cannot be read")
    assert document.id == "z.xml"


@pytest.mark.parametrize("xpath", ["//when", "string(/a/when)", "//when/text()", "/a/when[@no or not(@no)]"])
def test_the_time_is_where_the_xpath_says(tmp_path, xpath):
    path = write(tmp_path / "a.xml", "<a when='x'><when>2026-05-06T12:00Z</when></a>")
    assert read(path, time_xpath=xpath)[0].t0 == NOON


@pytest.mark.parametrize(
    ("xml", "cause"),
    [
        ("<a><when/></a>", "no date"),
        ("<a><when>soon</when></a>", "'soon', which is no date"),
        ("<a/>", "//when finds nothing"),
        ("<a>", "not well-formed"),
        ("", "not well-formed"),
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


def test_a_file_too_large_is_a_reject(tmp_path, monkeypatch):
    monkeypatch.setattr("feeds.files.MAX_BYTES", 10)
    (reject,) = read(write(tmp_path / "a.xml", "<a>0123456789</a>"))
    assert "larger than" in reject.reason
    (reject,) = read(tmp_path / "a.xml", feeds="item")
    assert "larger than" in reject.reason


# ---------------------------------------------------------------- feeds


def test_a_crawl_names_its_feeds_and_dates_them(tmp_path):
    for version, title, fetched in (
        ("1", "old", "2026-05-07T00:00:00+00:00"),
        ("2", "old", "2026-05-08"),
        ("3", "new", 5),
    ):
        write(tmp_path / "src" / f"{version}.xml", RSS.format(title))
        write(tmp_path / "src" / f"{version}.json", json.dumps({"source": "src", "fetched_at": fetched}))
    documents = read(tmp_path, feeds="item")
    # The third has no time of its fetch, and its file is the oldest; the second has nothing that the first has not.
    assert [document.id.split(" ")[:2] for document in documents] == [["src", "g"]] * 2
    assert [document.t0 for document in documents] == [NOON, NOON + 12 * 3_600_000_000]


def test_a_crawl_is_read_in_order_of_its_fetches(tmp_path):
    for source, stem in (
        ("b", "20260506T120000Z-aaaaaaaaaaaa"),
        ("a", "20260506T120000000001Z-bbbbbbbbbbbb"),
        ("c", "20260505T120000Z-cccccccccccc"),
    ):
        write(tmp_path / source / f"{stem}.xml", RSS.format(source))
        write(tmp_path / source / f"{stem}.json", json.dumps({"url": f"https://{source}.example/"}))
    write(tmp_path / "a" / "20260507T120000Z-dddddddddddd.json", '{"url": "its feed is not renamed yet"}')
    warc(tmp_path / "z.warc.gz", True)
    documents = read(tmp_path, feeds="item")
    assert [document.id.split(" ")[0][8:9] for document in documents] == ["c", "b", "a", "c"]
    # The first one's date is bounded by the time in its file's name.
    assert documents[0].t0 == NOON - 24 * 3_600_000_000


def test_links_are_resolved_against_the_address_that_answered(tmp_path):
    write(tmp_path / "1.xml", RSS.format("t").replace("https://c.example/", "/home"))
    write(tmp_path / "1.json", '{"url": "https://old.example/rss", "final_url": "https://new.example/rss"}')
    (document,) = read(tmp_path / "1.xml", feeds="item")
    assert document.id.startswith("https://old.example/rss g ")
    assert etree.fromstring(document.xml).findtext("channel_url") == "https://new.example/home"


def test_a_sidecars_url_wins_and_its_fetch_bounds_the_dates(tmp_path):
    write(tmp_path / "1.rss", RSS.format("t"))
    write(tmp_path / "1.json", '{"url": "https://u.example/rss", "source": "s", "fetched_at": "2026-05-01T00:00:00Z"}')
    (document,) = read(tmp_path / "1.rss", feeds="item")
    assert document.id.startswith("https://u.example/rss g ")
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


def test_every_feed_suffix_and_raw(tmp_path):
    names = ["a.xml", "b.rss", "c.atom", "d.rdf", "e.feed", "f.JSON"]
    for name in names:
        write(tmp_path / name, RSS.format("x"))
    write(tmp_path / "g.html", RSS.format("x"))
    assert [document.id.split(" ")[0] for document in read(tmp_path, feeds="item")] == names
    assert all(etree.fromstring(d.xml).findtext("channel_title") == "C" for d in read(tmp_path, feeds="raw"))


def test_other_kinds_are_read_as_ever_beside_feeds(tmp_path):
    lines = write(tmp_path / "x.jsonl", json.dumps(LINES[0]))
    feed = write(tmp_path / "x.xml", RSS.format("x"))
    assert [document.id.split(" ")[0] for document in read(lines, feed, feeds="item")] == ["d1", "x.xml"]


# ---------------------------------------------------------------- what cannot be read at all


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("missing.jsonl", {}, "no such file"),
        ("missing", {}, "no such file"),
        ("a.txt", {}, "not known from its name (.txt)"),
        ("README", {}, "not known from its name (no suffix)"),
        ("a.rss", {}, "add --feeds"),
        ("a.json", {}, "add --feeds"),
        ("a.txt", {"feeds": "item"}, "not known"),
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
