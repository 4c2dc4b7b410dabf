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
from tests.support.feed_server import QUICK, Request, closed_port, failure, failures, outcomes, rss

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


def test_last_modified_is_sent_back_as_it_came_and_200_in_place_of_304_is_no_new_version(server, fetching):
    url = server.serve("/feed", FEED, Last_Modified="yesterday, I think")
    fetching.run(url)
    fetching.later(3600)
    assert outcomes(fetching.run(url)) == {"unchanged": 1}
    assert server.log[1].headers["If-Modified-Since"] == "yesterday, I think"
    assert fetching.bodies(url) == [FEED.encode()]


def test_every_content_coding(server, fetching):
    feed = FEED.encode()
    encoded = {
        "gzip": gzip.compress(feed),
        "x-gzip": gzip.compress(feed[:50]) + gzip.compress(feed[50:]) + b"\0\0",
        "deflate": zlib.compress(feed),
        "Deflate": zlib.compress(feed)[2:-4],
        "br": brotli.compress(feed),
        "zstd": zstandard.compress(feed),
        "gzip, identity, BR": brotli.compress(gzip.compress(feed)),
        "": feed,
    }
    urls = [server.serve(f"/{n}", body, Content_Encoding=c) for n, (c, body) in enumerate(encoded.items())]
    fetching.run(*urls)
    assert [fetching.bodies(url) for url in urls] == [[feed]] * len(encoded)
    assert {request.headers["Accept-Encoding"] for request in server.log} == {"gzip, deflate, br, zstd"}


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


ENCODERS = {"gzip": gzip.compress, "deflate": zlib.compress, "br": brotli.compress, "zstd": zstandard.compress}


def test_a_bomb_does_not_go_off(server, fetching):
    bombs = {coding: encode(b"<rss>" + b" " * 50_000_000) for coding, encode in ENCODERS.items()}
    bombs["gzip, gzip"] = gzip.compress(bombs["gzip"])
    urls = [server.serve(f"/{n}", data, Content_Encoding=c) for n, (c, data) in enumerate(bombs.items())]
    errors = failures(fetching, *urls)
    assert all("larger than 100,000 bytes once decompressed" in error for error in errors), errors


def test_an_endless_feed_ends(server, fetching):
    def endless(request: Request) -> None:
        request.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while not server.released.is_set():
            request.write(b"1000\r\n" + b"<item/>\n" * 512 + b"\r\n")

    server.routes["/feed"] = endless
    assert "larger than 100,000 bytes" in failure(fetching, server.url("/feed"))


def test_a_slow_drip_and_silence_end(server, fetching):
    def drip(request: Request) -> None:
        request.write(b"HTTP/1.1 200 OK\r\nContent-Length: 90000\r\n\r\n<rss>")
        while not server.released.wait(0.02):
            request.write(b" ")

    server.routes |= {"/drip": drip, "/silence": lambda request: server.released.wait()}
    fetching.limits = QUICK
    errors = failures(fetching, server.url("/drip"), server.url("/silence"))
    assert errors == [f"no whole answer within {QUICK.total:g} s", "the server is silent"]


def test_what_is_no_answer(server, fetching):
    server.routes["/long"] = lambda request: request.write(b"HTTP/1.1 200 OK\r\n" + b"X: " + b"y" * 500_000)
    server.routes["/odd"] = lambda request: request.write(b"HELO\r\n\r\n")
    lengths = [server.serve(f"/{length}", FEED, Content_Length=length) for length in (10_000, "many", -1)]
    no_tls = server.url("/feed").replace("http:", "https:")
    nobody = f"http://127.0.0.1:{closed_port()}/feed"
    assert all(failures(fetching, server.url("/long"), server.url("/odd"), *lengths, no_tls, nobody))


def test_a_body_that_is_not_what_its_coding_says(server, fetching):
    cases = [
        ("gzip", FEED.encode(), "the body is not gzip"),
        ("gzip", gzip.compress(FEED.encode(), mtime=0)[:-30], "the body is not gzip: it ends too early"),
        ("br", b"\xff\xff\xff", "the body is not br"),
        ("br", brotli.compress(FEED.encode())[:-9], "the body is not br: it ends too early"),
        ("zstd", b"no", "the body is not zstd"),
        ("zstd", zstandard.compress(FEED.encode())[:-9], "the body is not zstd"),
        ("rot13", b"x", "the content coding 'rot13' is not known"),
    ]
    urls = [server.serve(f"/{n}", data, Content_Encoding=coding) for n, (coding, data, _) in enumerate(cases)]
    errors = failures(fetching, *urls)
    assert all(cause in error for error, (*_, cause) in zip(errors, cases, strict=True)), errors


def test_a_length_too_short_gives_what_came_and_the_whole_the_next_time(server, fetching):
    url = server.serve("/feed", FEED, Content_Length=FEED.index("<title>b"))
    fetching.run(url)
    server.serve("/feed", FEED)
    fetching.later(3600)
    fetching.run(url)
    ids = dict.fromkeys(document.id.split(" ")[1] for document in read_documents([fetching.directory], feeds="item"))
    assert {"a", "b"} <= set(ids)


# ---------------------------------------------------------------- lies


def test_the_content_type_is_not_believed(server, fetching):
    kinds = ["text/html", "image/png", "application/octet-stream", "", "text/xml; charset=ebcdic"]
    urls = [server.serve(f"/{number}", FEED, Content_Type=kind) for number, kind in enumerate(kinds)]
    assert outcomes(fetching.run(*urls)) == {"new": len(kinds)}


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


def test_a_charset_in_the_header_alone_counts_for_what_is_not_utf8(server, fetching):
    declaration = '<?xml version="1.0" encoding="iso-8859-1"?>'
    for number, (start, charset) in enumerate((("", "ISO-8859-1"), (declaration, "utf-8"))):
        body = (start + rss("caf\u00e9")).encode("latin-1")
        fetching.run(server.serve(f"/{number}", body, Content_Type=f"text/xml; charset={charset}"))
    documents = [one for one in read_documents([fetching.directory], feeds="item") if isinstance(one, Document)]
    assert ["caf\u00e9" in document.xml_bytes().decode() for document in documents] == [True, True]


def test_what_poses_as_a_feed_is_not_kept(server, fetching):
    pages = ["<!-- x --><HTML><p>no feed here <rss>", "<!DOCTYPE html><title>Sign in</title>"]
    bodies = [*pages, "<svg/>", "", '{"version": "1"}']
    urls = [server.serve(f"/{n}", body, Content_Type="application/rss+xml") for n, body in enumerate(bodies)]
    assert failures(fetching, *urls, server.serve("/nothing", b"", 304)) == [
        *["it is a page, and names no feed"] * 2, *["the answer is not a feed"] * 3, "the server answered 304",
    ]  # fmt: skip


def test_versions_differ_in_a_guid_and_a_feed_may_go_back(server, fetching):
    for guid in ("1", "2", "1"):
        url = server.serve("/feed", rss("a", guid=guid))
        assert outcomes(fetching.run(url)) == {"new": 1}
        fetching.later(3600)
    assert fetching.bodies(url) == [rss("a", guid=guid).encode() for guid in ("1", "2", "1")]
    assert len({document.id for document in read_documents([fetching.directory], feeds="item")}) == 2
