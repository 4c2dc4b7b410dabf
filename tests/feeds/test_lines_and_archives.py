import gzip
import json
import os
import pickle
import re
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from common.dates import iso_utc
from feeds import files
from feeds.documents import Document, Reject, SourceError, parse_iso, parse_time
from feeds.readers import read_jsonl, read_line, read_warc
from feeds.tail import read_documents
from tests.support.files import DOCUMENTS, LINES, NOON, RECORDS, RSS, archive, read, write
from tests.support.unreadable import shut


@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz", "X.JSONL"])
def test_json_lines_plain_and_compressed(tmp_path, name):
    text = "\ufeff" + "\n\r\n".join(json.dumps(line) for line in LINES)
    data = gzip.compress(text.encode()) if name.endswith("gz") else text
    assert read(write(tmp_path / name, data)) == DOCUMENTS


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        *(("{", "not JSON: "), ("[]", "not a JSON object"), ('{"xml": "<a/>"}', '"id" is missing')),
        *(('{"id": "d"}', '"xml" is missing'), ('{"id": "d", "xml": 5}', '"xml" is not a string')),
        ('{"id": 5, "xml": "<a/>"}', "id is a non-empty text"),
        ('{"id": "d", "xml": "<a/>", "stream": null}', "stream is a non-empty text"),
        ('{"id": "d", "xml": "<a/>", "stream": "mmqjp:visits"}', "are reserved"),
        ('{"id": "d", "xml": "<a/>", "time": "soon"}', "'soon' is not an ISO-8601 date"),
        ('{"id": "d", "xml": "<a/>", "time": [2, 1]}', "must not end before it starts"),
        ('{"id": "d", "xml": "<a/>", "time": 1700000000}', "Unix seconds, and numbers are microseconds"),
        ('{"id": "d", "xml": "<a/>", "time": 1700000000.5}', 'write 1700000000500000, or "2023-11-14T22:13:20.5'),
        ('{"id": "d", "xml": "<a/>", "time": %s}' % ("9" * 400), "must fit in 64 bits"),
        ('{"id": "\\ud800", "xml": "<a/>"}', "id is a non-empty text"),
        ("[" * 100_000, "nested too deeply"),
        (b'{"id": "\xff"}', "can't decode"),
    ],
)
def test_a_bad_line_is_rejected_with_its_place_and_the_rest_goes_on(tmp_path, line, cause):
    good = json.dumps(LINES[0]).encode()
    raw = line if isinstance(line, bytes) else line.encode()
    path = write(tmp_path / "x.jsonl", b"\n".join([good, raw, good]))
    first, reject, last = read(path)
    assert first == last == DOCUMENTS[0]
    assert isinstance(reject, Reject)
    assert reject.reason.startswith(f"{path}:2: ") and cause in reject.reason
    assert reject.raw.strip() == raw[: 64 * 1024]
    reject.reason.encode()
    reject.id.encode()


@given(st.datetimes(datetime(2001, 9, 10), datetime(2039, 9, 1)), st.sampled_from([1, 1_000]), st.booleans())
def test_unix_time_is_no_time_and_the_reason_says_which_it_would_be(moment, each_second, interval):
    time = int(moment.replace(tzinfo=UTC).timestamp() * each_second)
    item = line_of([0, time] if interval else time)
    assert isinstance(item, Reject)
    (written,) = re.findall(r'write (\d+), or "(.*)"', item.reason)
    assert parse_time(int(written[0])) == parse_time(written[1]) == (time * 1_000_000 // each_second,) * 2
    # Other numbers are microseconds.
    for number in (-(2**63), -1, 0, 10**9 - 1, 22 * 10**8, 10**12 - 1, 22 * 10**11, 2**63 - 1):
        assert line_of(number) == Document("d", "<a/>", time=number)


def line_of(time):
    return read_line(json.dumps({"id": "d", "time": time, "xml": "<a/>"}).encode(), "x", lambda: 0)


def test_a_line_too_long_is_skipped_without_being_held_and_a_file_that_is_too_large_is_a_reject(tmp_path, monkeypatch):
    good = json.dumps(LINES[0])
    path = write(tmp_path / "x.jsonl.gz", gzip.compress(f"{good}\n{'x' * 500_000}\n{good}\n".encode()))
    monkeypatch.setattr(files, "MAX_BYTES", 1000)
    first, reject, last = read_jsonl(path, lambda: 0)
    assert first == last == DOCUMENTS[0]
    assert isinstance(reject, Reject)
    assert reject.reason.startswith(f"{path}:2: the line is larger than")
    assert len(reject.raw) <= 64 * 1024
    path = write(tmp_path / "x.jsonl", f"{good}\n{good}")
    monkeypatch.setattr(files, "MAX_BYTES", len(good))
    assert list(read_jsonl(path, lambda: 0)) == [DOCUMENTS[0]] * 2
    path = write(tmp_path / "a.xml", f"<a>{'x' * len(good)}</a>")
    assert ["larger than" in reject.reason for feeds in (None, "item") for reject in read(path, feeds=feeds)] == [
        True
    ] * 2


def test_a_damaged_archive_gives_what_came_before_the_damage(tmp_path):
    lines = [json.dumps({"id": f"d{i}", "time": i, "xml": f"<a>{i * i}</a>"}) + "\n" for i in range(10_000)]
    data = gzip.compress("".join(lines).encode())
    for damaged in (data[:-12], data[:-8] + b"\0" * 8):
        path = write(tmp_path / "x.jsonl.gz", damaged)
        *documents, reject = read(path)
        assert len(documents) > 5_000
        assert documents == [Document(f"d{i}", f"<a>{i * i}</a>", time=i) for i in range(len(documents))]
        assert reject.reason.startswith(f"{path}:{len(documents) + 1}: the file cannot be read further")
    # What is no archive is one reject.
    for name, nonsense in (
        *(("x.jsonl.gz", "{}"), ("0.warc", "nonsense\n"), ("1.warc", "WARC/1.0\r\nWARC-Type: response\r\n\r\n")),
    ):
        (reject,) = read(write(tmp_path / name, nonsense))
        assert "cannot be read further" in reject.reason
    # A line says of itself what can be read.
    (reject,) = read(write(tmp_path / "x.jsonl", '{"id": "d", "stream": "T", "xml": 5}'))
    assert (reject.id, reject.stream, reject.time) == ("d", "T", None)


@pytest.mark.parametrize("name", ["x.warc", "x.warc.gz"])
def test_warc_responses_and_resources(tmp_path, name, monkeypatch):
    path = archive(tmp_path / name, *RECORDS)
    midnight = 1_778_112_000_000_000
    assert read(path) == [
        Document("https://c.example/map 2026-05-07T00:00:00Z", b"<map/>", "S", midnight),
        Document("https://c.example/res 2026-05-07T00:00:00Z", b"<res/>", "S", midnight),
    ]
    (entry,) = read(path, feeds="item")
    assert entry.id.startswith("https://c.example/rss g ") and entry.t0 == NOON
    monkeypatch.setattr(files, "MAX_BYTES", 5)
    *_, reject = read_warc(path, None)
    assert isinstance(reject, Reject)
    assert reject.reason == f"{path}: https://c.example/res 2026-05-07T00:00:00Z: larger than 5 bytes"


def test_a_warc_cut_short_at_any_byte_gives_whole_documents_or_rejects(tmp_path):
    whole = archive(tmp_path / "x.warc", *RECORDS).read_bytes()
    documents = read(tmp_path / "x.warc")
    rejects = 0
    for end in range(1, len(whole), 19):
        found = read(write(tmp_path / "cut.warc", whole[:end]))
        read_of_it = [item for item in found if isinstance(item, Document)]
        assert read_of_it == documents[: len(read_of_it)]
        rejects += len(found) > len(read_of_it)
    assert rejects > 0


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
    write(tmp_path / "shut" / "a.xml", "<a/>")
    write(tmp_path / "z.xml", "<z/>")
    with shut(tmp_path / "shut"):
        reject, document = read(tmp_path)
    assert isinstance(reject, Reject) and reject.reason.startswith("shut: cannot be read") and document.id == "z.xml"


def test_the_time_is_where_the_xpath_says(tmp_path):
    path = write(tmp_path / "a.xml", "<a when='x'><when>2026-05-06T12:00Z</when></a>")
    for xpath in ("//when", "string(/a/when)", "//when/text()", "/a/when[@no or not(@no)]"):
        assert read(path, time_xpath=xpath)[0].t0 == NOON
    secret = write(tmp_path / "secret", "2026-05-06")
    xml = f'<!DOCTYPE a [<!ENTITY x SYSTEM "{secret.as_uri()}">]><a>&x;</a>'  # no other file is read
    (reject,) = read(write(tmp_path / "a.xml", xml), time_xpath="/a")
    assert isinstance(reject, Reject)
    # So is a document without its time.
    write(tmp_path / "d" / "z.xml", "<a><when>Wed, 06 May 2026 12:00:00 GMT</when></a>")
    for xml, cause in (
        *(("<a><when/></a>", "not a date"), ("<a><when>soon</when></a>", "'soon', which is not a date")),
        *(("<a/>", "//when finds nothing"), ("<a>", "not well-formed"), ("", "not well-formed")),
    ):
        write(tmp_path / "d" / "t" / "a.xml", xml)
        reject, document = read(tmp_path / "d", time_xpath="//when")
        assert cause in reject.reason and document.t0 == NOON
        assert (reject.id, reject.stream, reject.raw) == ("t/a.xml", "t", xml.encode())


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


def test_a_sidecars_url_wins_links_are_resolved_against_the_final_one_and_the_fetch_bounds_the_dates(tmp_path):
    notes = {"url": "https://old.example/rss", "final_url": "https://new.example/rss", "source": "s"}
    write(tmp_path / "1.rss", RSS.format("t").replace("https://c.example/", "/home"))
    write(tmp_path / "1.json", json.dumps(notes | {"fetched_at": "2026-05-01T00:00:00Z"}))
    (document,) = read(tmp_path / "1.rss", feeds="item")
    assert document.id.startswith("https://old.example/rss g ")
    assert etree.fromstring(document.xml).findtext("channel_url") == "https://new.example/home"
    assert document.t0 == 1_777_593_600_000_000


def test_a_broken_sidecar_is_told_and_the_feed_still_read(tmp_path):
    write(tmp_path / "1.xml", RSS.format("x"))
    for sidecar in ("{", "[]", '{"fetched_at": "soon"}', "[" * 100_000):
        write(tmp_path / "1.json", sidecar)
        reject, document = read(tmp_path, feeds="item")
        assert "its sidecar 1.json cannot be used" in reject.reason and document.id.startswith("1.xml g ")


def test_every_feed_suffix_and_raw_and_other_kinds_beside_feeds(tmp_path):
    names = ["a.xml", "b.rss", "c.atom", "d.rdf", "e.feed", "f.JSON"]
    for name in (*names, "g.html"):
        write(tmp_path / name, RSS.format("x"))
    lines = write(tmp_path / "more" / "x.jsonl", json.dumps(LINES[0]))
    beside = write(tmp_path / "a.json", '{"version": "https://jsonfeed.org/version/1.1", "items": [{"id": "1"}]}')
    found = [document.id.split(" ")[0] for document in read(tmp_path, feeds="item")]
    assert found == ["a.json", *names, "d1"], "it is not a sidecar"
    beside.unlink()
    lines.unlink()
    assert all(etree.fromstring(d.xml).findtext("channel_title") == "C" for d in read(tmp_path, feeds="raw"))


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("missing.jsonl", {}, "no such file"),
        *(
            ("a.txt", {}, "does not tell the kind of file (.txt)"),
            ("README", {}, "does not tell the kind of file (no suffix)"),
        ),
        *(
            ("a.rss", {}, "add --feeds"),
            ("a.json", {}, "add --feeds"),
            ("a.txt", {"feeds": "item"}, "does not tell the kind"),
        ),
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
    assert raised.value.hint and raised.value.hint in str(raised.value)


def test_reading_is_lazy(tmp_path):
    path = write(tmp_path / "x.jsonl", "".join(json.dumps(line) + "\n" for line in LINES))
    documents = read_documents([path, write(tmp_path / "a.xml", "<a/>")], now=lambda: 99)
    assert next(documents) == DOCUMENTS[0]
    write(tmp_path / "a.xml", "<changed/>")
    assert list(documents)[-1] == Document("a.xml", b"<changed/>", time=1_000_000_000)


# ---------------------------------------------------------------- documents, their times, and their bytes


def test_a_point_in_every_spelling_a_pair_is_an_interval_and_a_day_is_its_midnight():
    for value in (
        *("2026-05-06T12:00:00Z", "2026-05-06T12:00:00", "2026-05-06 12:00", " 2026-05-06T14:00:00+02:00 "),
        *("2026-05-06T12:00:00.000000", NOON, datetime(2026, 5, 6, 12), datetime(2026, 5, 6, 12, tzinfo=UTC)),
        datetime(2026, 5, 6, 7, tzinfo=timezone(timedelta(hours=-5))),
    ):
        assert parse_time(value) == (NOON, NOON)
    assert parse_time([NOON, "2026-05-07"]) == (NOON, NOON + 12 * 3_600_000_000)
    assert parse_time((NOON, NOON)) == (NOON, NOON)
    assert parse_time("2026-05-06T12:00:00.000001Z") == (NOON + 1, NOON + 1)
    assert parse_time(datetime(1969, 12, 31, 23, 59, 59, 999999)) == (-1, -1)


def test_text_is_already_decoded_whatever_it_declares_and_bytes_keep_their_encoding():
    latin = "<?xml version='1.0' encoding='ISO-8859-1'?>"
    utf_16 = '<?xml version="1.0" encoding="utf-16" standalone="yes"?>'
    ebcdic = '\ufeff<?xml version="1.0"   encoding = "EBCDIC-CP-US"?>'
    for declaration in (latin, utf_16, ebcdic, '<?xml version="1.0"?>', ""):
        document = Document("d", declaration + "<a>\u00e9\u4e2d encoding='x'</a>", time=1)
        assert etree.fromstring(document.xml_bytes()).text == "\u00e9\u4e2d encoding='x'"
    raw = f"{latin}<a>\u00e9</a>".encode("latin-1")
    assert Document("d", raw, time=1).xml_bytes() is raw
    with pytest.raises(etree.XMLSyntaxError):  # a lone surrogate is left for the parser to refuse
        etree.fromstring(Document("d", "<a>\ud800</a>", time=1).xml_bytes())


@pytest.mark.parametrize(
    "value",
    [
        "yesterday", "", "2026-13-01", "20260506", "1778068800000000", 1.5, True, None, 2**63,
        [NOON], [NOON, NOON, NOON], [NOON, NOON - 1], [NOON, None], {"t": 1}, [[NOON, NOON], NOON],
    ],
)  # fmt: skip
def test_what_is_no_time(value):
    with pytest.raises(ValueError):
        parse_time(value)


@given(st.datetimes(min_value=datetime(1, 1, 1), max_value=datetime(9999, 12, 31)))
def test_iso_text_is_read_back(moment):
    microseconds = parse_time(moment)[0]
    assert parse_iso(iso_utc(microseconds)) == microseconds


def test_a_document_is_of_now_hashable_and_survives_pickling():
    document = Document(id="d", xml="<a/>", now=lambda: 7)
    assert (document.stream, document.t0, document.t1) == ("S", 7, 7)
    document = Document("d", b"<a/>", time=(1, 2))
    assert pickle.loads(pickle.dumps(document)) == document
    assert len({document, Document("d", b"<a/>", time=[1, 2])}) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        {"id": ""}, {"id": 5}, {"id": "\ud800"}, {"stream": ""}, {"stream": None},
        {"xml": None}, {"xml": 5}, {"time": (2, 1)}, {"time": "never"},
    ],
)  # fmt: skip
def test_what_is_no_document(arguments):
    with pytest.raises(ValueError):
        Document(**{"id": "d", "xml": "<a/>", **arguments})
