"""Fetching from a server that behaves, and from one that misbehaves in every way that we know."""

import gzip
import json
import sqlite3
import zlib
from contextlib import closing

import brotli
import pytest
import zstandard

from feeds.documents import Document, SourceError
from feeds.fetch.state import STATE_FILE, source_name
from feeds.tail import read_documents
from tests.support.feed_server import QUICK, Request, closed_port, failure, outcomes, rss

FEED = rss("a", "b")


# ---------------------------------------------------------------- as it should be


def test_a_feed_is_kept_with_its_sidecar_and_read_again(server, fetching):
    url = server.validated("/feed?x=1", FEED, '"1"')
    assert outcomes(fetching.run(url)) == {"new": 1}
    (xml,) = (fetching.directory / source_name(url)).glob("*.xml")
    assert xml.read_text() == FEED
    notes = json.loads(xml.with_suffix(".json").read_text())
    assert xml.name == f"20260506T120000000000Z-{notes['sha256']}.xml"
    assert notes == notes | {
        "url": url, "final_url": url, "status": 200, "fetched_at": "2026-05-06T12:00:00Z",
        "etag": '"1"', "last_modified": "", "content_type": "application/rss+xml",
    }  # fmt: skip
    documents = list(read_documents([fetching.directory], feeds="item"))
    assert [document.id.split(" ")[:2] for document in documents] == [[url, "a"], [url, "b"]]
    assert sorted(path.name for path in xml.parent.iterdir()) == [xml.with_suffix(".json").name, xml.name]


def test_nothing_is_asked_before_it_is_due_and_then_with_validators(server, fetching):
    url = server.validated("/feed", FEED, '"1"')
    fetching.run(url)
    fetching.later(3599)
    assert outcomes(fetching.run(url)) == {}
    fetching.later(1)
    assert outcomes(fetching.run(url)) == {"unchanged": 1}
    assert [request.headers.get("If-None-Match") for request in server.log] == [None, '"1"']
    server.validated("/feed", rss("a", "b", "c"), '"2"')
    fetching.later(3600)
    assert outcomes(fetching.run(url)) == {"new": 1}
    assert fetching.bodies(url) == [FEED.encode(), rss("a", "b", "c").encode()]
    assert len(list(read_documents([fetching.directory], feeds="item"))) == 3


def test_last_modified_is_sent_back_as_it_came(server, fetching):
    url = server.serve("/feed", FEED, Last_Modified="yesterday, I think")
    fetching.run(url)
    fetching.later(3600)
    fetching.run(url)
    assert server.log[1].headers["If-Modified-Since"] == "yesterday, I think"


@pytest.mark.parametrize(
    ("coding", "encode"),
    [
        ("gzip", gzip.compress),
        ("x-gzip", lambda data: gzip.compress(data[:50]) + gzip.compress(data[50:]) + b"\0\0"),
        ("deflate", zlib.compress),
        ("deflate", lambda data: zlib.compress(data)[2:-4]),
        ("br", brotli.compress),
        ("zstd", zstandard.compress),
        ("gzip, identity, BR", lambda data: brotli.compress(gzip.compress(data))),
        ("", lambda data: data),
    ],
)
def test_every_content_coding(server, fetching, coding, encode):
    url = server.serve("/feed", encode(FEED.encode()), Content_Encoding=coding)
    fetching.run(url)
    assert fetching.bodies(url) == [FEED.encode()]
    assert server.log[0].headers["Accept-Encoding"] == "gzip, deflate, br, zstd"


def test_a_page_leads_to_its_feed_which_is_remembered(server, fetching):
    server.serve("/blog/feed", FEED)
    page = """<!doctype html><html><head><link rel="alternate" type="application/rss+xml" title="Comments" href="c">
    <link rel="stylesheet" href="x"><LINK REL="x ALTERNATE" TYPE="application/atom+xml; charset=utf-8" HREF="blog/feed">
    <body>&nbsp;<![ broken"""
    url = server.serve("/", page, Content_Type="text/html")
    assert outcomes(fetching.run(url)) == {"new": 1}
    fetching.later(3600)
    fetching.run(url)
    assert server.paths() == ["/", "/blog/feed", "/blog/feed"]
    (document, *_) = read_documents([fetching.directory], feeds="item")
    assert document.id.startswith(f"{url} a ")


# ---------------------------------------------------------------- sizes and times


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd", "gzip, gzip"])
def test_a_bomb_does_not_go_off(server, fetching, coding):
    encoders = {"gzip": gzip.compress, "deflate": zlib.compress, "br": brotli.compress, "zstd": zstandard.compress}
    data = b"<rss>" + b" " * 50_000_000
    for name in coding.split(", "):
        data = encoders[name](data)
    url = server.serve("/bomb", data, Content_Encoding=coding)
    assert "larger than 100,000 bytes once decompressed" in failure(fetching, url)


def test_an_endless_feed_ends(server, fetching):
    def endless(request: Request) -> None:
        request.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while not server.released.is_set():
            request.write(b"1000\r\n" + b"<item/>\n" * 512 + b"\r\n")

    server.routes["/feed"] = endless
    assert "larger than 100,000 bytes" in failure(fetching, server.url("/feed"))


def test_a_slow_drip_ends(server, fetching):
    def drip(request: Request) -> None:
        request.write(b"HTTP/1.1 200 OK\r\nContent-Length: 90000\r\n\r\n<rss>")
        while not server.released.wait(0.02):
            request.write(b" ")

    server.routes["/feed"] = drip
    fetching.limits = QUICK
    assert failure(fetching, server.url("/feed")) == f"no whole answer within {QUICK.total:g} s"


def test_silence_ends(server, fetching):
    fetching.limits = QUICK
    server.routes["/feed"] = lambda request: server.released.wait()
    assert failure(fetching, server.url("/feed")) == "the server is silent"


def test_headers_without_end_and_nonsense(server, fetching):
    server.routes["/long"] = lambda request: request.write(b"HTTP/1.1 200 OK\r\n" + b"X: " + b"y" * 500_000)
    server.routes["/odd"] = lambda request: request.write(b"HELO\r\n\r\n")
    for path in ("/long", "/odd"):
        assert failure(fetching, server.url(path))


@pytest.mark.parametrize("length", [10_000, "many", -1])
def test_a_wrong_length(server, fetching, length):
    url = server.serve("/feed", FEED, Content_Length=length)
    assert failure(fetching, url)


@pytest.mark.parametrize(
    ("coding", "data", "cause"),
    [
        ("gzip", FEED.encode(), "the body is not gzip"),
        ("gzip", gzip.compress(FEED.encode(), mtime=0)[:-30], "the body is not gzip: it ends too early"),
        ("br", b"\xff\xff\xff", "the body is not br"),
        ("br", brotli.compress(FEED.encode())[:-9], "the body is not br: it ends too early"),
        ("zstd", b"no", "the body is not zstd"),
        ("zstd", zstandard.compress(FEED.encode())[:-9], "the body is not zstd"),
        ("rot13", b"x", "the content coding 'rot13' is not known"),
    ],
)
def test_a_body_that_is_not_what_its_coding_says(server, fetching, coding, data, cause):
    assert cause in failure(fetching, server.serve("/feed", data, Content_Encoding=coding))


def test_nobody_there(fetching):
    assert failure(fetching, f"http://127.0.0.1:{closed_port()}/feed")


def test_a_length_too_short_gives_what_came_and_the_whole_the_next_time(server, fetching):
    url = server.serve("/feed", FEED, Content_Length=FEED.index("<title>b"))
    fetching.run(url)
    server.serve("/feed", FEED)
    fetching.later(3600)
    fetching.run(url)
    ids = dict.fromkeys(document.id.split(" ")[1] for document in read_documents([fetching.directory], feeds="item"))
    assert {"a", "b"} <= set(ids)


def test_tls_to_one_who_does_not_speak_it(server, fetching):
    assert failure(fetching, server.url("/feed").replace("http:", "https:"))


# ---------------------------------------------------------------- lies


@pytest.mark.parametrize("kind", ["text/html", "image/png", "application/octet-stream", "", "text/xml; charset=ebcdic"])
def test_the_content_type_is_not_believed(server, fetching, kind):
    url = server.serve("/feed", FEED, Content_Type=kind)
    assert outcomes(fetching.run(url)) == {"new": 1}


def test_validators_that_cannot_be_sent_back_are_not(server, fetching):
    url = server.url("/feed")
    head = "HTTP/1.1 200 OK\r\nConnection: close\r\nETag: \u00e9\r\nLast-Modified: " + "y" * 2000
    server.routes["/feed"] = lambda request: request.write(f"{head}\r\n\r\n{FEED}".encode("latin-1"))
    for _ in range(2):
        fetching.run(url)
        fetching.later(3600)
    assert fetching.feed(url).errors == 0
    assert not {"If-None-Match", "If-Modified-Since"} & server.log[1].headers.keys()


def test_an_error_of_our_own_is_that_feeds_failure(server, fetching, monkeypatch):
    async def broken(work, body, url, size):
        if b"<title>odd" in body:
            raise RecursionError("too deep")
        return work(body, url)

    monkeypatch.setattr("feeds.fetch.fetcher.confined_aside", broken)
    odd, good = server.serve("/odd", rss("odd")), server.serve("/good", FEED)
    assert outcomes(fetching.run(odd, good)) == {"failed": 1, "new": 1}
    assert fetching.feed(odd).last_error == "unexpected RecursionError: too deep"


def test_a_state_that_is_damaged_is_no_feeds_failure(server, fetching):
    url = server.serve("/feed", FEED)
    fetching.run(url)
    fetching.later(3600)
    with closing(sqlite3.connect(fetching.directory / STATE_FILE)) as database, database:
        database.execute("UPDATE hosts SET asked_at = asked_at + 1")
    with pytest.raises(SourceError, match="a row of hosts is not what was written"):
        fetching.run(url)
    assert fetching.feed(url).last_error == ""


@pytest.mark.parametrize("declared", [False, True])
def test_a_charset_in_the_header_alone_counts_for_what_is_not_utf8(server, fetching, declared):
    start = '<?xml version="1.0" encoding="iso-8859-1"?>' if declared else ""
    charset = "utf-8" if declared else "ISO-8859-1"
    body = (start + rss("caf\u00e9")).encode("latin-1")
    url = server.serve("/feed", body, Content_Type=f"text/xml; charset={charset}")
    fetching.run(url)
    (document,) = read_documents([fetching.directory], feeds="item")
    assert isinstance(document, Document)
    assert "caf\u00e9" in document.xml_bytes().decode()


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        ("<!-- x --><HTML><p>no feed here <rss>", "it is a page, and names no feed"),
        ("<!DOCTYPE html><title>Sign in</title>", "it is a page, and names no feed"),
        ("<svg/>", "the answer is not a feed"),
        ("", "the answer is not a feed"),
        ('{"version": "1"}', "the answer is not a feed"),
    ],
)
def test_what_poses_as_a_feed_is_not_kept(server, fetching, body, cause):
    assert failure(fetching, server.serve("/feed", body, Content_Type="application/rss+xml")) == cause


def test_200_in_place_of_304_is_no_new_version(server, fetching):
    url = server.serve("/feed", FEED, ETag='"1"')
    fetching.run(url)
    fetching.later(3600)
    assert outcomes(fetching.run(url)) == {"unchanged": 1}
    assert fetching.bodies(url) == [FEED.encode()]


def test_304_to_one_who_has_nothing_is_a_failure(server, fetching):
    assert failure(fetching, server.serve("/feed", b"", 304)) == "the server answered 304"


def test_guids_that_change_are_new_versions_of_the_feed_and_documents(server, fetching):
    url = server.serve("/feed", rss("a", guid="1"))
    fetching.run(url)
    server.serve("/feed", rss("a", guid="2"))
    fetching.later(3600)
    assert outcomes(fetching.run(url)) == {"new": 1}
    assert len({document.id for document in read_documents([fetching.directory], feeds="item")}) == 2


def test_a_feed_that_goes_back_is_kept_three_times(server, fetching):
    for title in ("a", "b", "a"):
        url = server.serve("/feed", rss(title))
        fetching.run(url)
        fetching.later(3600)
    assert fetching.bodies(url) == [rss(title).encode() for title in ("a", "b", "a")]
