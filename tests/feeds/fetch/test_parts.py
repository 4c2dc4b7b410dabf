import asyncio
import gzip
import json
import re
import sqlite3
import zlib
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import brotli
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree
from warcio.archiveiterator import ArchiveIterator

from common.dates import SECOND
from feeds import feed as feed_module
from feeds.documents import Document, Reject, SourceError, VisitOutcome
from feeds.fetch import fetcher, state
from feeds.fetch.fetcher import (
    FILE_AGE,
    Archive,
    Capture,
    DropArchive,
    Job,
    Settings,
    VisitNotes,
    WarcArchive,
    World,
    remove_read,
)
from feeds.fetch.http import MOST_MEMBERS, DecodeError, Hints, body_hints, decode, feeds_of_page, is_public
from feeds.fetch.lists import ListedFeed, read_feed_list, read_feed_lists, read_opml, write_opml
from feeds.fetch.state import (
    STATE_FILE,
    AddedFeed,
    ChangesOf,
    FeedChange,
    FeedState,
    FetchStore,
    HostState,
    change_feeds,
)
from feeds.files import kind_of_body
from feeds.history import NotedVisit
from feeds.items import LONGEST_TITLE, MOST_FOLDERS, Entry, item_xml
from feeds.readers import Sidecar, drop_stem, read_sidecar, read_stem, sidecar_json, visits_text
from feeds.tail import Tail
from tests.support.faults import Killed, armed, killed
from tests.support.feed_server import START, Hours, rss, to_loopback
from tests.support.files import read

PRIVATE = """
    10.0.0.1 172.16.0.1 192.168.1.1 127.0.0.1 127.9.9.9 169.254.169.254 0.0.0.0 100.64.0.1 192.0.0.1 192.0.2.1
    224.0.0.1 240.0.0.1 255.255.255.255 :: ::1 fe80::1 fe80::1%eth0 fc00::1 fec0::1 ff02::1 2001:db8::1 ::ffff:127.0.0.1
    ::ffff:10.0.0.1 64:ff9b::7f00:1 2002:7f00:1:: 2002:a00:1::1 ::127.0.0.1 2001:0:a00:1:: localhost 1.2.3 192.0.0.8
    192.0.0.9 192.88.99.1 168.63.129.16 198.19.255.255 3fff::1 3fff:fff::1 2001:1::1 2001:20::1 100::1 100:0:0:1::1
    64:ff9b:1::1.1.1.1 64:ff9b::a8:3f81 64:ff9b::a83f:8110 2002:c058:6301:: ::1.1.1.1 4000::1
    2606:4700::1111%eth0 198.18.0.1 5f00::1
"""
PUBLIC = """
    1.1.1.1 93.184.215.14 2606:4700::1111 ::ffff:1.1.1.1 64:ff9b::1.1.1.1 2002:101:101::1 168.63.129.15 168.63.129.17
    192.0.1.0 191.255.255.255 192.88.98.255 192.88.100.0 100.63.255.255 100.128.0.0 172.15.255.255 172.32.0.0
    198.17.255.255 198.20.0.0 223.255.255.255 2001:200::1 2001:db7::1 2001:db9::1 3ffe::1 3fff:1000::1
"""


def test_addresses_that_are_public():
    assert [address for address in [*PRIVATE.split(), ""] if is_public(address)] == []
    assert [address for address in PUBLIC.split() if not is_public(address)] == []


ENCODERS = {"gzip": gzip.compress, "br": brotli.compress, "zstd": zstandard.compress}


@given(st.binary(max_size=5000), st.integers(0, 3000), st.sampled_from([*ENCODERS]))
def test_what_was_encoded_is_decoded_and_an_error_if_it_is_cut(data, cut, coding):
    encoded = ENCODERS[coding](data)
    assert decode(encoded, coding, 5000) == data
    with pytest.raises(DecodeError, match=f"the body is not {coding}"):
        decode(encoded[: cut % len(encoded)] or b"\x1f", coding, 5000)
    for codings, encoded in (
        ("x-gzip", gzip.compress(data[:50]) + gzip.compress(data[50:]) + b"\0\0"),
        ("deflate", zlib.compress(data)),
        ("Deflate", zlib.compress(data)[2:-4]),
        ("gzip, identity, BR", brotli.compress(gzip.compress(data))),
    ):
        assert decode(encoded, codings, 5000) == data
    with pytest.raises(DecodeError, match="the content coding 'rot13' is not known"):
        decode(b"a" + data, "rot13", 5000)


@pytest.mark.parametrize(
    "coding", ["utf-16le", "UTF-8; q=1", "identity, none", "text/xml", "aws-chunked", '"gzip"', "x;, br"]
)
@pytest.mark.parametrize("plain", [b"\n<rss/>", b' {"a": 1}', "\ufeff<rss/>".encode(), " <a/>".encode("utf-16-be")])
def test_a_coding_that_is_none_leaves_a_plain_body(coding, plain):
    encode = ENCODERS.get(coding.strip('"').removeprefix("x;, "), bytes)
    assert decode(encode(plain), coding, 5000) == plain


@pytest.mark.parametrize(("coding", "compress"), [("gzip", gzip.compress), ("zstd", zstandard.compress)])
def test_a_body_has_many_compressed_parts_but_not_any_number(coding, compress):
    parts = [compress(b"a")] * (MOST_MEMBERS - 1)
    assert decode(b"".join([compress(b""), *parts]), coding, 10_000) == b"a" * (MOST_MEMBERS - 1)
    with pytest.raises(DecodeError, match="more than 1,000 compressed parts"):
        decode(compress(b"") * 20_000, coding, 10_000)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (rss("a"), "feed"),
        (f"\ufeff\n <?xml version='1.0'?><?x y?><!-- <html> -->\n<!DOCTYPE rss [<!ENTITY a 'b'>]>{rss('a')}", "feed"),
        ('<atom:feed xmlns:atom="http://www.w3.org/2005/Atom"/>', "feed"),
        ('<rdf:RDF xmlns:rdf="x">', "feed"),
        ('{"version": "https:\\/\\/jsonfeed.org\\/version\\/1.1"}', "feed"),
        ("<html><head><title>t</title>", "page"),
        ("<!doctype HTML><!-- --><p>", "page"),
        ("<html><body><feed xmlns='http://www.w3.org/2005/Atom'>", "feed"),
        ("<html><pre>&lt;rss version='2.0'>", "page"),
        *(("<opml/>", "other"), ("nothing", "other"), ("", "other"), ("<!---->" * 20_000, "other")),
    ],
)
def test_kinds_of_bodies(body, kind):
    assert kind_of_body(body.encode()) == kind
    assert kind_of_body(body.encode("utf-16")) == kind


def test_feeds_of_a_page_in_its_order_and_comments_last():
    page = b"""<html><head><base href="/blog/"><link rel=alternate type="application/rss+xml" href="c" title="Comments">
    <link rel="feed alternate" type="TEXT/XML" href="a?x=1&amp;y=2"><link rel=alternate type=text/html href=no>
    <link rel="alternate" type="application/atom+xml"><link rel=alternate type=application/atom+xml href='http://[x'>
    <link rel=alternate type=application/rss+xml href=" java\nscript:x"><link rel=alternate type=text/xml href="data:x">
    <link rel=alternate type=application/feed+json href=" //other.example/f.json "></head>"""
    assert feeds_of_page(page, "https://s.example/index") == [
        "https://s.example/blog/a?x=1&y=2",
        "https://other.example/f.json",
        "https://s.example/blog/c",
    ]


@given(st.binary(max_size=300))
def test_no_body_is_too_odd(data):
    feeds_of_page(data, "https://s.example/")
    kind_of_body(data)
    body_hints(data)
    for coding in ("gzip", "deflate", "br", "zstd"):
        with suppress(DecodeError):
            assert isinstance(decode(data, coding, 1000), bytes)


OPML = """<?xml version="1.0"?><opml version="1.0"><head/><body>
<outline text="Top" xmlUrl="https://top.example/feed"/>
<outline text="News"><!-- a comment --><outline title="World" text="w">
  <outline text="Feed &amp; Co" XMLURL=" https://world.example/feed "/></outline>
  <outline type="rss" title="N" xmlurl="feed://news.example/rss"/>
  <outline text="empty"/></outline>
<outline text="odd" xmlUrl="javascript:alert(1)"/>
</body></opml>"""


def test_opml_of_any_nesting():
    assert read_opml(OPML.encode()).feeds == [
        ListedFeed("https://top.example/feed", "Top", "", 2),
        ListedFeed("https://world.example/feed", "Feed & Co", "News/World", 4),
        ListedFeed("feed://news.example/rss", "N", "News", 5),
        ListedFeed("javascript:alert(1)", "odd", "", 7),
    ]


ONE = "https://a.example/?x=1&y=2"
OUTLINES = {  # with the title that is read, and the folder
    f'<outline text="A&B & C" xmlUrl="{ONE}"/>': ("A&B & C", ""),
    '<outline text="A&nbsp;B&hellip;&#55357;&#56832;" xmlUrl="https://a.example/?x=1&amp;y=2"/>': ("A B…😀", ""),
    f'<outline text="the "big" one" xmlUrl="{ONE}"/>': ('the "big" one', ""),
    f'<outline text="a <b>c</b> < d" xmlUrl="{ONE}"/>': ("a <b>c</b> < d", ""),
    f'<outline text="a" text="b" xmlUrl="{ONE}"/>': ("a", ""),
    f"<outline text=a xmlUrl={ONE} />": ("a", ""),
    f"<OUTLINE TEXT='it's' XMLURL='{ONE}'/>": ("it's", ""),
    f'<outline text="F"><outline text="a" xmlUrl="{ONE}"></outline><outline te': ("a", "F"),
    f'<outline text="F & G"><outline text="a" xmlUrl="{ONE}"></outline></outline>': ("a", "F & G"),
    f'<outline text="F "G""><outline text="a" xmlUrl="{ONE}"/></outline>': ("a", 'F "G"'),
    f'<outline text="a\x0bb\x1f" nl:x="1" xmlUrl="{ONE}"/>': ("ab", ""),
    f'<outline text="TV/Radio"><outline text="a\\b"><outline text="c" xmlUrl="{ONE}"/></outline></outline>': (
        "c",
        r"TV\/Radio/a\\b",
    ),
    f'<outline type="rss" text="a" url="{ONE}"/>': ("a", ""),
    f'<!-- <outline xmlUrl="https://no.example/"/> & --><outline text="a "b"" xmlUrl="{ONE}"/>': ('a "b"', ""),
    f'<outline text="a" xmlUrl="{ONE}"/><outline text="" xmlUrl="https://A.example:443/?x=1&y=2"/>': ("a", ""),
}
AROUND = [
    '<?xml version="1.0"?><opml version="2.0"><head/><body>{}</body></opml>', "<opml>{}</opml>",
    "<OPML><BODY>{}</BODY></OPML>",
    '<?xml version="1.0" encoding="UTF-16"?>\n<!DOCTYPE opml SYSTEM "o"><opml><body>{}</body></opml> trailing <b>',
    'ï»¿ <?xml version="1.0"?><opml><body>{}</body></opml>',
]  # fmt: skip


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("around", AROUND)
def test_every_list_that_readers_export_is_read(around: str, encoding: str):
    if encoding.startswith("utf-16-"):  # is known by its beginning alone
        around = around[around.index("<") :]
    for outlines, (title, folder) in OUTLINES.items():
        feeds, complaints, *_ = read_feed_list(around.format(outlines).encode(encoding), "l")
        assert [(one.url, one.title, one.folder) for one in feeds] == [(ONE, title, folder)], outlines
        assert not complaints


def test_the_folders_of_a_list_survive_its_export():
    paths = ["A", "A B", "A/B", r"A\/B/C", "A/B/C"]
    listed = [ListedFeed(f"https://{n}.example/", "", path) for n, path in enumerate(paths)]
    found = read_opml(text := write_opml(reversed(listed)))
    assert {(one.url, one.folder) for one in found.feeds} == {(one.url, one.folder) for one in listed}
    assert re.findall(rb'<outline text="([^"h]+)"', text) == [b"A", b"B", b"C", b"A B", b"A/B", b"C"]


def test_lists_of_every_kind_together_each_feed_once(tmp_path):
    (tmp_path / "a.opml").write_text(OPML)
    (tmp_path / "b.txt").write_text("\ufeff# mine\nhttps://TOP.example:443/feed#x\n\n  not an address\n", "utf-8")
    names = [str(tmp_path / "a.opml"), str(tmp_path / "b.txt"), "https://third.example"]
    feeds, complaints, *_ = read_feed_lists(names)
    assert [feed.url for feed in feeds] == [
        "https://top.example/feed", "https://world.example/feed", "http://news.example/rss", "https://third.example/",
    ]  # fmt: skip
    assert feeds[1] == FeedState(feeds[1].url, state.source_name(feeds[1].url), "Feed & Co", "News/World")
    assert [complaint.removeprefix(str(tmp_path)) for complaint in complaints] == [
        "/a.opml:7: 'javascript:alert(1)' is not an http or https address; it is left out",
        "/b.txt:4: 'not an address' is not an http or https address; it is left out",
    ]


def test_lists_that_cannot_be_read(tmp_path):
    file = tmp_path / "list"
    for content, cause in (
        *((b"<rss><channel>", "not well-formed"), (b"<rss/>", "not OPML"), (b"\xff\xfe\x00", "not a text")),
        (b"<opml" + b"<outline a='" * 2_000, "its outlines cannot be recognised"),
        (b"<!DOCTYPE o [<!ENTITY e SYSTEM 'file:///etc/passwd'>]><opml><body>&e;</body></opml>", "from outside"),
    ):
        file.write_bytes(content)
        with pytest.raises(SourceError, match=cause):
            read_feed_lists([str(file)])
    for path, cause in ((tmp_path / "missing", "no such file"), (tmp_path, "cannot be read")):
        with pytest.raises(SourceError, match=cause):
            read_feed_lists([str(path)])


def test_a_feeds_name_is_a_safe_one_and_its_own():
    paths = ("", "a", "A", "a/../b", "\0\n", "é", "%41", "x" * 300, "x" * 301)
    names = {state.source_name(f"https://x.example/{path}") for path in paths}
    assert len(names) == len(paths) and all(re.fullmatch(r"[a-z0-9][a-z0-9-]{8,80}", name) for name in names)


FEED = FeedState("https://a.example/", "a")


def test_the_state_is_kept_and_a_known_feed_is_not_begun_again(tmp_path):
    changed = replace(FEED, etag='"x"', next_check=5, errors=2, hints=Hints(3, frozenset({1})), stopped=True, title="t")
    with FetchStore(tmp_path / "s", write=True) as store:
        store.add([FEED, FeedState("https://b.example/", "b")])
        store.commit(changed, "mark 1")
        store.save_host(HostState("h", 1, 2, "robots", 3))
    with FetchStore(tmp_path / "s", write=True) as store:
        store.add([replace(FEED, title="t2", folder="f")])
        assert store.feeds() == [replace(changed, title="t2", folder="f"), FeedState("https://b.example/", "b")]
        assert store.archive_mark() == "mark 1"
        assert (store.host("h"), store.host("?")) == (HostState("h", 1, 2, "robots", 3), HostState("?"))
        with FetchStore(tmp_path / "s") as reader:
            assert reader.feeds() == store.feeds()
    # What a list does not say stays.
    with FetchStore(tmp_path / "lists", write=True) as store:
        for told, title, folders in (
            *((("T", "F"), "T", ("F",)), ((), "T", ("F",)), (("", "G\nH/I"), "T", ("G", "H/I")), (("U",), "U", ())),
        ):
            store.add([FeedState(FEED.url, "a", *told)])
            (known,) = store.feeds()
            assert (known.title, known.folders) == (title, folders)


def test_states_that_are_not_ours(tmp_path):
    with pytest.raises(SourceError, match="there is no state"):
        FetchStore(tmp_path / "missing")
    (tmp_path / "text").write_text("no database, but long enough to be looked at " * 50)
    for name, statement, cause in (
        ("newer", "PRAGMA user_version = 9", "has format 9"),
        ("other", "CREATE TABLE t (x)", "has format 0"),
        ("text", "", "cannot be used as the state of a fetch"),
    ):
        with closing(sqlite3.connect(tmp_path / name)) as database:
            database.execute(statement)
        with pytest.raises(SourceError, match=cause):
            FetchStore(tmp_path / name, write=True)


def warcs(directory: Path) -> Archive:
    return WarcArchive(directory, "", lambda mark: None)


def capture(title: str, fetched: int, /, **more: Any) -> Capture:
    about = Sidecar("https://a.example/", fetched, "https://b.example/", etag='"1"', content_type="text/xml", **more)
    headers = [("Content-Type", "text/xml"), ("Content-Encoding", "gzip"), ("ETag", '"1"')]
    return Capture(replace(about, sha256=f"{hash(title) % 2**64:064x}"), "a", headers, rss(title).encode())


def titles(path: Path) -> list[str]:
    """The titles of all entries; a Reject has none, and fails the test."""
    documents = read(path, feeds="item")
    return [etree.fromstring(d.xml).findtext("title", "") for d in documents]


def test_a_drop_knows_its_newest_version_and_clears_what_a_kill_left(tmp_path):
    archive = DropArchive(tmp_path)
    assert archive.newest("a") is None
    for number, title in enumerate("abc"):
        archive.keep(capture(title, START + number))
    for draft in (".xml.draft", ".json.4711.draft"):  # of an older version, and of this one
        (tmp_path / "a" / f".{drop_stem(START + 9, '0' * 64)}{draft}").write_bytes(b"half")
    (tmp_path / "a" / ".notes.draft").write_bytes(b"not ours")
    (tmp_path / "a" / f"{drop_stem(START + 9, '0' * 64)}.json").write_text('{"url": "not renamed yet"}')
    again = DropArchive(tmp_path)
    assert again.newest("a") == (START + 2, capture("c", 0).about.sha256)
    assert [path.name for path in tmp_path.rglob(".*")] == [".notes.draft"]
    assert titles(tmp_path) == ["a", "b", "c"]


def test_visits_are_noted_some_at_a_time_and_at_once_where_readers_wait_for_them(tmp_path):
    clock, archive = Hours(), DropArchive(tmp_path)

    def files() -> list[Path]:
        return sorted(tmp_path.glob("visits/*.visits"))

    with FetchStore(tmp_path / STATE_FILE, write=True) as store:
        notes, written = VisitNotes(store, archive, clock), list[int]()
        steps: list[tuple[int, VisitOutcome, bool]] = [
            (0, "complete", True),  # the first
            (9, "complete", True),
            (0, "complete", False),
            (1, "complete", False),
            (1, "ended", False),
            (1, "complete", True),
            (-60, "complete", False),  # the clock was set back
        ]
        for wait, outcome, is_round_over in steps:
            clock.time += wait * SECOND
            store.add_visits([NotedVisit(f"https://{outcome}.example/", clock.time, outcome, START)])
            notes.turn(is_round_over=is_round_over)
            written.append(len(files()))
        assert written == [1, 1, 1, 2, 2, 3, 4]
        store.add_visits(NotedVisit(f"https://{name}.example/", START) for name in "ab")
        with suppress(Killed), armed((FetchStore, "drop_visits"), killed):
            notes.write()
        for again in (DropArchive(tmp_path), archive):
            VisitNotes(store, again, clock).write()
        assert len(files()) == 5 and store.visits() == []
    times = [stem[0] for path in files() if (stem := read_stem(path.stem)) is not None]
    assert times == sorted(set(times)) and len(times) == 5, "they are read in the order in which they were written"
    for keeps, folder, before in ((5, "", START * 2), (5, "visits", START), (1, "visits", START * 2)):
        remove_read(tmp_path, {f"{folder}/{path.name}" for path in files()}, before)
        assert len(files()) == keeps


def test_what_is_no_visit_is_a_reject_with_its_line(tmp_path):
    (tmp_path / "visits").mkdir()
    visits = [
        NotedVisit("https://a.example/ä", START, "ended"),
        NotedVisit("https://b.example/", START + 1, since=START),
    ]
    lines = [
        b"{}",
        b"no",
        b'{"feed": "https://a.example/", "outcome": "complete", "time": 5}',
        b'{"feed": 1}',
        b"[" * 9999,
    ]
    path = tmp_path / "visits" / f"{drop_stem(START, '0' * 12)}.visits"
    path.write_bytes(visits_text(visits) + b"\n".join(lines))
    items = [item for _, items in Tail(tmp_path, feeds="item").drain() for item in items]
    assert items[:2] == visits and len(items) == 7
    for number, reject in enumerate(items[2:], 3):
        assert isinstance(reject, Reject) and reject.reason.startswith(f"visits/{path.name}: line {number}: "), reject
    assert Tail(tmp_path).names() == set()  # where no feeds are read


def test_a_warc_is_read_again_without_what_was_not_committed(tmp_path):
    (tmp_path / "zzz.warc.gz").write_bytes(gzip.compress(b"not ours"))
    archive = warcs(tmp_path)
    archive.keep(capture("a", START))
    archive.met_again(capture("a", START + 1), START)
    archive.keep(capture("b", START + 2))
    mark = archive.mark
    assert mark is not None
    archive.keep(capture("not committed", START + 3))
    archive.close()
    (growing,) = tmp_path.glob("*.open")
    assert growing.name.removesuffix(".open") == mark.split()[0]
    archive = WarcArchive(tmp_path, mark, lambda mark: None)
    archive.keep(capture("c", START + 4))
    archive.finish()
    (tmp_path / "zzz.warc.gz").unlink()
    assert titles(tmp_path) == ["a", "b", "c"]
    (path,) = tmp_path.iterdir()
    with path.open("rb") as file:
        records = [(one.rec_type, one.rec_headers.get_header("WARC-Date")) for one in ArchiveIterator(file)]
    assert [kind for kind, _ in records] == ["response", "revisit", "response", "response"]
    assert records[0][1] == "2026-05-06T12:00:00Z"


def test_a_warc_is_followed_by_the_next_after_an_hour_and_read_when_it_is_whole(tmp_path):
    archive = warcs(tmp_path)
    archive.keep(capture("a", START))
    archive.keep(capture("b", START + FILE_AGE - 1))
    assert [path.suffix for path in tmp_path.iterdir()] == [".open"]
    archive.keep(capture("c", START + FILE_AGE))
    assert titles(tmp_path) == ["a", "b"]
    archive.finish()
    assert titles(tmp_path) == ["a", "b", "c"] and len(list(tmp_path.iterdir())) == 2
    mark = f"{max(path.name for path in tmp_path.iterdir())} 0"
    again = WarcArchive(tmp_path, mark, lambda mark: None)  # what is whole is left alone
    again.finish()
    assert titles(tmp_path) == ["a", "b", "c"]


def test_links_in_a_warc_are_resolved_against_the_address_that_answered(tmp_path):
    archive = warcs(tmp_path)
    relative = capture("a", START)
    archive.keep(replace(relative, body=relative.body.replace(b"https://site.example", b"")))
    archive.finish()
    (document,) = read(tmp_path, feeds="item")
    assert document.id.startswith("https://a.example/ a ")
    assert etree.fromstring(document.xml).findtext("item_url") == "https://b.example/a"


@given(st.integers(0, 4_000_000_000_000_000), st.integers(0, 2**256 - 1))
def test_names_in_a_drop_say_when_and_what(moment, digest):
    assert read_stem(drop_stem(moment, f"{digest:064x}")) == (moment, f"{digest:064x}")
    for stem in ("", "x", "20261350T000000Z-aaaaaaaaaaaa", "20260506T120000Z-aaa", "20260506T120000Z-"):
        assert read_stem(stem) is None


TITLE, FOLDERS = 'Größe: 10 € \U0001f600; "x" <y> %41', ("Nachrichten/日本", "a: b", "c, d")


@pytest.mark.parametrize("kind", [DropArchive, warcs])
def test_any_title_and_folder_comes_through_an_archive_as_far_as_it_is_not_too_long(tmp_path, monkeypatch, kind):
    long = "t" * 5_000, (*LONG, *map(str, range(5_000)))
    for name, (title, folders) in (("crawl", (TITLE, FOLDERS)), ("long", long)):
        archive = kind(tmp_path / name)
        archive.keep(capture("one", START, title=title, folders=folders))
        archive.finish()
    (document,) = read(tmp_path / "crawl", feeds="item")
    assert isinstance(document, Document)
    item = etree.fromstring(document.xml_bytes())
    assert item.findtext("feed_title") == TITLE
    assert [folder.text for folder in item.iter("folder")] == ["Nachrichten", *FOLDERS]
    seen: list[tuple[str, tuple[str, ...]]] = []

    def noted(entry: Entry, url: str, title: str, folders: tuple[str, ...]) -> bytes:
        seen.append((title, folders))
        return item_xml(entry, url, title, folders)

    monkeypatch.setattr(feed_module, "item_xml", noted)
    monkeypatch.setattr(feed_module, "confined", lambda work, *arguments, size: work(*arguments))
    read(tmp_path / "long", feeds="item")
    ((title, folders),) = seen
    assert title == "t" * LONGEST_TITLE and len(folders) == MOST_FOLDERS
    assert folders[:5] == ("a" * 600, LONG[1], "e" * 1_000, "f" * 1_000, "0")


def test_a_sidecar_is_read_as_it_was_written_and_those_of_other_crawlers_may_say_anything(tmp_path):
    file = tmp_path / "f.json"
    sidecar = Sidecar(url="https://a.example/", fetched=START, title=TITLE, folders=FOLDERS)
    file.write_bytes(sidecar_json(sidecar))
    assert read_sidecar(file) == sidecar
    for notes in ('{"title": 1, "folders": "News"}', '{"title": null, "folders": {"a": 1}}', '{"folders": [1, null]}'):
        file.write_text(notes)
        assert read_sidecar(file) == Sidecar()


def listed(tmp_path: Path, body: str) -> FeedState:
    (tmp_path / "f.opml").write_text(f"<opml><body>{body}</body></opml>", "utf-8")
    (feed,) = read_feed_lists([str(tmp_path / "f.opml")]).feeds
    return feed


def test_a_feed_is_in_all_the_folders_where_it_is_listed_and_its_address_is_no_title(tmp_path):
    feed = "<outline text='{}' xmlUrl='https://a.example/'/>"
    named = nested(["A"], feed.format("")) + feed.format("T") + nested(["B"], feed.format("U"))
    found = listed(tmp_path, named)
    assert (found.title, found.folders) == ("T", ("A", "B"))
    many = "".join(nested([f"{n}"], feed.format("")) for n in range(3 * MOST_FOLDERS))
    assert len(listed(tmp_path, many).folders) == MOST_FOLDERS
    assert listed(tmp_path, "<outline text='https://a.example/' xmlUrl='https://a.example/'/>").title == ""
    # Of a path that is too long, inner folders are left out, whole, and what is around a feed counts for it alone.
    names = ["a" * 500, "b" * 499, "c", "d"]
    assert listed(tmp_path, nested(names, feed)).folders == ("/".join(names[:2]),)
    assert listed(tmp_path, nested(["a" * 500, "b" * 500, "c"], feed)).folders == ("a" * 500,)
    assert listed(tmp_path, nested(["A"], nested(["x" * 999], feed) + nested(["B"], feed))).folders == ("A", "A/B")


def nested(names: list[str], inside: str) -> str:
    return "".join(f"<outline text='{name}'>" for name in names) + inside + "</outline>" * len(names)


def test_a_list_of_many_nested_folders_stays_small(tmp_path):
    feeds = "".join(f"<outline xmlUrl='https://a.example/{n}'/>" for n in range(1_000))
    (tmp_path / "f.opml").write_text(f"<opml><body>{nested(['x' * 1_000] * 240, feeds)}</body></opml>")
    found = read_feed_lists([str(tmp_path / "f.opml")]).feeds
    assert len(found) == 1_000 and sum(len(feed.folder) for feed in found) == 1_000_000


LONG = ("a" * 600 + "/" + "b" * 500, "c" * 500 + "/" + "d" * 499, "e" * 2_000, "f" * 1_000 + "/g")


# ---------------------------------------------------------------- changes of what is fetched


@pytest.fixture
def file(tmp_path):
    return tmp_path / "fetch.sqlite"


def urls(file):
    with FetchStore(file) as store:
        return [feed.url for feed in store.feeds()]


def adding(*urls):
    return FeedChange(add=tuple(map(AddedFeed, urls)))


def test_changes_wait_for_a_fetch_that_runs_in_their_order_and_are_made_once(file):
    a, b, c = (f"https://{name}.example/" for name in "abc")
    with FetchStore(file, write=True) as store:
        changes = adding(a, b), FeedChange(remove=(a,)), FeedChange(remove=(c,))
        assert not any(change_feeds(file, one) for one in changes)
        assert store.feeds() == []
        changed, removed = ChangesOf(file).take(store)
        assert [feed.url for feed in changed] == [b] and removed == {a, c}
        assert ChangesOf(file).take(store) == ([], set())
        assert not change_feeds(file, changes[2], 0.1, sleep=lambda seconds: None)
        assert change_feeds(file, changes[2], 60, sleep=lambda seconds: ChangesOf(file).take(store))
    assert urls(file) == [b]
    # Without a fetch they are made at once.
    assert change_feeds(file, FeedChange(add=(AddedFeed(a, "A", "News"),)))
    assert change_feeds(file, FeedChange(add=(AddedFeed(a, "AA"),), remove=(b,)))
    with FetchStore(file) as store:
        assert [(feed.url, feed.title, feed.folder) for feed in store.feeds()] == [(a, "AA", "News")]


def test_a_change_of_a_busy_feed_waits_with_all_after_it_and_what_is_no_change_is_passed_over(file):
    with FetchStore(file, write=True) as store:
        changes = ChangesOf(file)
        for name in "ab":
            change_feeds(file, adding(f"https://{name}.example/"))
        assert changes.take(store, {"https://a.example/"}) == ([], set())
        assert [feed.url for feed in changes.take(store)[0]] == ["https://a.example/", "https://b.example/"]
        change_feeds(file, adding("https://me:pw@a.example/"))
        (kept,) = file.parent.glob(".*.changes/*.json")
        # Addresses may have passwords, and are the owner's alone.
        assert [path.stat().st_mode & 0o077 for path in (kept, kept.parent)] == [0, 0]
        for number, text in enumerate(["", "[]", '{"add": 1}', json.dumps({"add": [{"x": 1}], "remove": []})]):
            kept.with_name(f"0{number}.json").write_text(text)
        assert [feed.url for feed in changes.take(store)[0]] == ["https://me:pw@a.example/"]
        assert list(kept.parent.iterdir()) == []


def test_a_watch_without_feeds_takes_in_what_is_added_removed_and_due(server, file, monkeypatch):
    """The first feed comes after the start; a retry brings it at once; one that was removed is asked no more."""
    monkeypatch.setattr(fetcher, "LOOK", 0.01)
    a, b = (server.serve(path, rss("one")) for path in ("/a", "/b"))

    async def asked(count):
        while len(server.log) < count or list(file.parent.glob(".*.changes/*.json")):
            await asyncio.sleep(0.005)

    class StandingClock(Hours):
        async def sleep_until(self, moment):
            if moment > self.time:
                await asyncio.Event().wait()

    async def run():
        stop = asyncio.Event()
        world = World(clock=StandingClock(), resolve=to_loopback)
        job = Job((), file.parent, Settings("test", spacing=0, allow_private=True))
        running = asyncio.create_task(job.run(watch=True, stop=stop, world=world))
        while not file.exists():
            await asyncio.sleep(0.005)
        for count, change in (
            (1, adding(a)),
            (2, FeedChange(retry=(a,))),
            (3, FeedChange(add=(AddedFeed(b),), remove=(a,))),
            (3, FeedChange(retry=(a,))),
        ):
            await asyncio.to_thread(change_feeds, file, change)
            async with asyncio.timeout(20):
                await asked(count)
        stop.set()
        await running

    asyncio.run(run())
    assert server.paths() == ["/a", "/a", "/b"]
    assert urls(file) == [b]
