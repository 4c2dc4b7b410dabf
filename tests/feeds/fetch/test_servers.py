import gzip
import json
import shutil
import sqlite3
import ssl
import zlib
from contextlib import closing
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path

import brotli
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from common.dates import DAY, HOUR, MINUTE, SECOND
from feeds.documents import SourceError, Visit
from feeds.fetch.fetcher import GIVEN_UP, WarcArchive
from feeds.fetch.http import Hints, body_hints, fresh_for, resolve_host, retry_after
from feeds.fetch.state import (
    JITTER,
    STATE_FILE,
    FeedChange,
    Pace,
    after_failure,
    after_success,
    change_feeds,
    outside_skipped,
    source_name,
)
from feeds.tail import read_documents
from tests.support.feed_server import QUICK, START, Request, closed_port, failures, outcomes, rss, running_server
from tests.support.files import read
from tests.support.mail_server import make_certificate

FEED = rss("a", "b")


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
    documents = read(fetching.directory, feeds="item")
    assert [document.id.split(" ")[:2] for document in documents] == [[url, "a"], [url, "b"]]
    assert sorted(path.name for path in xml.parent.iterdir()) == [xml.with_suffix(".json").name, xml.name]
    # Nothing is asked before it is due, and then with validators.
    fetching.later(3599)
    assert outcomes(fetching.run(url)) == {}
    fetching.later(1)
    assert outcomes(fetching.run(url)) == {"unchanged": 1}
    assert [request.headers.get("If-None-Match") for request in server.log] == [None, '"1"']
    assert {request.headers["Accept-Encoding"] for request in server.log} == {"gzip, deflate, br, zstd"}
    more = rss("a", "b", "c")
    server.serve("/feed?x=1", more, Last_Modified="yesterday, I think")
    fetching.later(3600)
    assert outcomes(fetching.run(url)) == {"new": 1}
    fetching.later(3600)
    assert outcomes(fetching.run(url)) == {"unchanged": 1}, "200 in place of 304 is no new version"
    assert server.log[3].headers["If-Modified-Since"] == "yesterday, I think"
    assert fetching.bodies(url) == [FEED.encode(), more.encode()]
    assert len(read(fetching.directory, feeds="item")) == 3


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
    (document, *_) = read(fetching.directory, feeds="item")
    assert document.id.startswith(f"{url} a ")


def test_a_bomb_does_not_go_off(server, fetching):
    encoders = {"gzip": gzip.compress, "deflate": zlib.compress, "br": brotli.compress, "zstd": zstandard.compress}
    bombs = {coding: encode(b"<rss>" + b" " * 2_000_000) for coding, encode in encoders.items()}
    bombs["gzip, gzip"] = gzip.compress(bombs["gzip"])
    urls = [server.serve(f"/{n}", data, Content_Encoding=c) for n, (c, data) in enumerate(bombs.items())]
    errors = failures(fetching, *urls)
    assert all("larger than 100,000 bytes once decompressed" in error for error in errors), errors


def test_an_endless_feed_a_slow_drip_and_silence_end(server, fetching):
    def endless(request: Request) -> None:
        request.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while not server.released.is_set():
            request.write(b"1000\r\n" + b"<item/>\n" * 512 + b"\r\n")

    def drip(request: Request) -> None:
        request.write(b"HTTP/1.1 200 OK\r\nContent-Length: 90000\r\n\r\n<rss>")
        while not server.released.wait(0.02):
            request.write(b" ")

    server.routes |= {"/endless": endless, "/drip": drip, "/silence": lambda request: server.released.wait()}
    assert "larger than 100,000 bytes" in failures(fetching, server.url("/endless"))[0]
    fetching.limits = QUICK
    errors = failures(fetching, server.url("/drip"), server.url("/silence"))
    assert errors == [f"no complete answer within {QUICK.total:g} s", "the server does not answer"]


def test_what_is_no_answer(server, fetching):
    server.routes["/long"] = lambda request: request.write(b"HTTP/1.1 200 OK\r\n" + b"X: " + b"y" * 500_000)
    server.routes["/odd"] = lambda request: request.write(b"HELO\r\n\r\n")
    lengths = [server.serve(f"/{length}", FEED, Content_Length=length) for length in (10_000, "many", -1)]
    no_tls = server.url("/feed").replace("http:", "https:")
    nobody = f"http://127.0.0.1:{closed_port()}/feed"
    assert all(failures(fetching, server.url("/long"), server.url("/odd"), *lengths, no_tls, nobody))


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


def test_an_error_of_our_own_is_that_feeds_failure_and_a_damaged_state_is_not(server, fetching, monkeypatch):
    async def broken(work, body, url, size):
        if b"<title>odd" in body:
            raise RecursionError("too deep")
        return work(body, url)

    monkeypatch.setattr("feeds.fetch.fetcher.confined_aside", broken)
    odd, good = server.serve("/odd", rss("odd")), server.serve("/good", FEED)
    assert outcomes(fetching.run(odd, good)) == {"failed": 1, "new": 1}
    assert fetching.feed(odd).last_error == "unexpected RecursionError: too deep"
    fetching.later(3600)
    with closing(sqlite3.connect(fetching.directory / STATE_FILE)) as database, database:
        database.execute("UPDATE hosts SET asked_at = asked_at + 1")
    with pytest.raises(SourceError, match="a row of hosts has a wrong digest"):
        fetching.run(good)
    assert fetching.feed(good).last_error == ""


def test_a_charset_in_the_header_alone_counts_for_what_is_not_utf8(server, fetching):
    declaration = '<?xml version="1.0" encoding="iso-8859-1"?>'
    for number, (start, charset) in enumerate((("", "ISO-8859-1"), (declaration, "utf-8"))):
        body = (start + rss("caf\u00e9")).encode("latin-1")
        fetching.run(server.serve(f"/{number}", body, Content_Type=f"text/xml; charset={charset}"))
    documents = read(fetching.directory, feeds="item")
    assert ["caf\u00e9" in document.xml_bytes().decode() for document in documents] == [True, True]


def test_what_poses_as_a_feed_is_not_kept(server, fetching):
    pages = ["<!-- x --><HTML><p>no feed here <rss>", "<!DOCTYPE html><title>Sign in</title>"]
    bodies = [*pages, "<svg/>", "", '{"version": "1"}']
    urls = [server.serve(f"/{n}", body, Content_Type="application/rss+xml") for n, body in enumerate(bodies)]
    assert failures(fetching, *urls, server.serve("/nothing", b"", 304)) == [
        *["it is a web page that links to no feed"] * 2, *["the answer is not a feed"] * 3, "the server answered 304",
    ]  # fmt: skip


# ---------------------------------------------------------------- redirects, refused addresses, and TLS


def test_permanent_redirects_are_remembered_and_others_are_not(server, fetching):
    statuses = (301, 308, 302, 303, 307)
    urls = [server.serve(f"/{status}", b"", status, Location=f"/new/{status}") for status in statuses]
    for status in statuses:
        server.serve(f"/new/{status}", FEED)
    server.serve("/new/302", b"", 301, Location="/newest")  # permanent behind one that is not
    server.serve("/newest", FEED)
    fetching.run(*urls)
    assert [fetching.feed(url).address for url in urls[1:3]] == [server.url("/new/308"), urls[2]]
    missing = server.serve("/d", b"", 301, Location="/missing")
    assert failures(fetching, missing) == ["the server answered 404"] and fetching.feed(missing).address == ""
    del server.log[:]
    fetching.later(3600)
    fetching.run(*urls)
    assert {f"/{status}" for status in statuses} & {*server.paths()} == {"/302", "/303", "/307"}
    ids = [document.id.split(" ")[0] for document in read(fetching.directory, feeds="item")]
    assert sorted(ids) == sorted(urls * 2)


def test_a_feed_that_is_lost_where_it_went_is_looked_for_where_it_was(server, fetching):
    url = server.serve("/old", b"", 301, Location="/new")
    server.serve("/new", FEED)
    fetching.run(url)
    server.serve("/new", b"", 404)
    server.serve("/old", b"", 301, Location="/newest")
    server.serve("/newest", rss("c"))
    for _ in range(4):
        fetching.later(24 * 3600)
        fetching.run(url)
    assert server.paths()[2:] == ["/new", "/new", "/new", "/old", "/newest"]
    assert (fetching.feed(url).address, fetching.feed(url).errors) == (server.url("/newest"), 0)
    assert fetching.bodies(url) == [FEED.encode(), rss("c").encode()]


def test_redirects_that_lead_nowhere(server, fetching):
    cases = [
        *(("/there", "the redirects lead back to"), ("/1", "the redirects lead back to")),
        *(
            ("/far/", "more than 5 redirects"),
            ("file:///etc/passwd", "'file:/etc/passwd' is not an http or https addr"),
        ),
        *(("gopher://x/", "is not an http or https address"), ("http://[::1", "Invalid URL in location header")),
        *(("", "without saying where"), ("http://127.0.0.1:99999/", "99999 is not a port")),
        ("http://127.0.0.1:0/", "0 is not a port"),
    ]
    server.serve("/there", b"", 302, Location="/0")
    for n in range(1, 9):
        server.serve(f"/far{'/' * n}", b"", 302, Location=f"/far{'/' * (n + 1)}")
    urls = [server.serve(f"/{n}", b"", 302, Location=target) for n, (target, _) in enumerate(cases)]
    errors = failures(fetching, *urls)
    assert all(cause in error for error, (_, cause) in zip(errors, cases, strict=True)), errors
    assert len(server.log) <= len(cases) + 1 + 5


ONLY_PUBLIC = "only public addresses are allowed"


def guarded(fetching, **names):
    """Private addresses are refused; names lead to what is given, look-up by look-up, and addresses to themselves."""
    resolved = []

    async def resolve(host, port):
        resolved.append(host)
        return names[host].pop(0) if names.get(host) else [host]

    fetching.allow_private = False
    fetching.world = {"resolve": resolve}
    return resolved


def test_local_addresses_are_refused_however_they_are_written(server, fetching):
    hosts = ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "2130706433"]
    server.serve("/feed", FEED)
    fetching.allow_private = False
    fetching.world = {"resolve": resolve_host}
    errors = failures(fetching, *(server.url("/feed", host) for host in hosts))
    assert all(ONLY_PUBLIC in error for error in errors), errors
    assert server.log == []


def test_redirects_to_private_addresses_are_refused(server, fetching, monkeypatch):
    """The first hop is let through as a public server's would be; the redirect is checked like any other."""
    targets = ["http://10.0.0.7/", "http://[fe80::1]/", "http://169.254.169.254/latest/", "https://inner.test/"]
    monkeypatch.setattr("feeds.fetch.http.is_public", lambda address: address == "127.0.0.1")
    guarded(fetching, **{"public.test": [["127.0.0.1"]] * 4, "inner.test": [["192.168.0.1", "::1"]]})
    for number, target in enumerate(targets):
        server.serve(f"/{number}", b"", 301, Location=target)
    errors = failures(fetching, *(server.url(f"/{number}", "public.test") for number in range(4)))
    assert all(ONLY_PUBLIC in error for error in errors), errors
    assert sorted(server.paths()) == ["/0", "/1", "/2", "/3"]


def test_a_name_is_resolved_once_for_a_connection_and_that_address_connected_to(server, fetching, monkeypatch):
    monkeypatch.setattr("feeds.fetch.http.is_public", lambda address: address == "127.0.0.1")
    server.serve("/feed", FEED)
    rebound = [["10.0.0.7", "127.0.0.1"], ["10.0.0.7"]]
    resolved = guarded(fetching, **{"rebound.test": rebound})
    url = server.url("/feed", "rebound.test")
    assert outcomes(fetching.run(url)) == {"new": 1}
    assert (resolved, rebound) == (["rebound.test"], [["10.0.0.7"]])
    assert server.log[0].host == f"rebound.test:{server.port}"
    fetching.later(3600)
    assert outcomes(fetching.run(url)) == {"failed": 1}
    assert "rebound.test resolves to 10.0.0.7" in fetching.feed(url).last_error


OPENSSL = shutil.which("openssl")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificate(str(OPENSSL), tmp_path_factory.mktemp("tls") / "both.pem", "DNS:pub.test")


@pytest.mark.skipif(OPENSSL is None, reason="openssl makes the certificate")
@pytest.mark.parametrize(
    ("host", "trusted", "cause"),
    [
        *(("pub.test", True, ""), ("pub.test", False, "self-signed certificate")),
        ("other.test", True, "Hostname mismatch"),
    ],
)
def test_tls_goes_by_the_name(certificate, fetching, monkeypatch, host, trusted, cause):
    names: list[str] = []
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    tls.sni_callback = lambda connection, name, context: names.append(name or "")
    if trusted:
        monkeypatch.setattr("certifi.where", lambda: str(certificate))
    with running_server(tls) as server:
        server.serve("/feed", rss("a"))
        url = f"https://{host}:{server.port}/feed"
        assert outcomes(fetching.run(url)) == {"failed" if cause else "new": 1}
        assert cause in fetching.feed(url).last_error
        assert names == [host]
        assert [request.host for request in server.log] == ([] if cause else [f"{host}:{server.port}"])


# ---------------------------------------------------------------- politeness


@pytest.mark.parametrize(("status", "value"), [(429, "7200"), (503, "Wed, 06 May 2026 14:00:00 GMT")])
def test_retry_after_is_kept_to_for_all_feeds_of_the_host(server, fetching, status, value):
    url = server.serve("/busy", b"", status, Retry_After=value)
    other = server.serve("/other", FEED)
    assert outcomes(fetching.run(url, other)) == {"failed": 1, "put off": 1}
    assert server.paths() == ["/busy"]
    assert [fetching.feed(one).next_check for one in (url, other)] == [START + 2 * HOUR] * 2
    assert fetching.feed(other).errors == 0
    fetching.later(7199)
    fetching.run()
    assert len(server.log) == 1
    fetching.later(1)
    assert fetching.run().counts.total() == 2
    assert server.paths()[1] == "/busy"


def test_failures_back_off_to_a_ceiling_and_a_success_ends_that(server, fetching):
    url = server.url("/feed")
    for wait in (10, 20, 40, 80, 160, 320, 640, 1280, 1440, 1440):
        before = fetching.clock.time
        fetching.run(url)
        fetching.clock.time = fetching.feed(url).next_check
        assert (fetching.clock.time - before) // MINUTE == wait
    assert fetching.feed(url).errors == 10
    server.serve("/feed", FEED)
    fetching.run(url)
    assert (fetching.feed(url).errors, fetching.feed(url).last_error) == (0, "")


def test_how_long_a_feed_is_left_alone(server, fetching):
    cases = [
        *(("", {}, HOUR), ("<ttl>180</ttl>", {}, 3 * HOUR), ("<ttl>999999</ttl>", {}, DAY)),
        ("", {"Cache_Control": "max-age=7200", "Age": "600"}, 110 * MINUTE),
        ("<skipDays><day>Wednesday</day></skipDays>", {}, 12 * HOUR),
    ]
    for number, (extra, headers, wait) in enumerate(cases):
        server.serve(f"/{number}", rss("a", extra=extra), **headers)
        url = server.url(f"/{number}", f"h{number}.test")
        fetching.clock.time = START
        fetching.run(url)
        assert fetching.feed(url).next_check - START == wait, (extra, headers)
    url = server.validated("/feed", rss("a", extra="<ttl>120</ttl>"), '"1"')
    for _ in range(2):  # what it asked for holds after a 304, too
        before = fetching.clock.time
        fetching.run(url)
        assert fetching.feed(url).next_check - before == 2 * HOUR
        fetching.later(7200)


def test_robots_are_asked_once_a_day_and_obeyed(server, fetching):
    fetching.robots = True
    server.serve("/robots.txt", "User-agent: mmqjp\nDisallow: /private\nCrawl-delay: 5\nUser-agent: *\nDisallow: /")
    feeds = [server.serve(path, FEED) for path in ("/a", "/b", "/private/c")]
    report = fetching.run(*feeds)
    assert outcomes(report) == {"new": 2, "failed": 1}
    assert sorted(server.paths()) == ["/a", "/b", "/robots.txt"]
    assert "robots.txt" in fetching.feed(feeds[2]).last_error
    assert fetching.feed(feeds[2]).next_check >= START + DAY
    assert fetching.clock.time == START + 5 * SECOND + 5 * SECOND
    fetching.later(3600)
    fetching.run()
    # Every hop is checked.
    assert "robots.txt" in failures(fetching, server.serve("/hop", b"", 302, Location="/private/c"))[0]
    assert server.paths().count("/robots.txt") == 1 and "/private/c" not in server.paths()


@pytest.mark.parametrize(("status", "asked"), [(404, True), (403, True), (500, False), (503, False), (429, False)])
def test_robots_that_cannot_be_had(server, fetching, status, asked):
    fetching.robots = True
    server.serve("/robots.txt", b"", status)
    fetching.run(server.serve("/a", FEED))
    assert ("/a" in server.paths()) == asked


def test_no_more_requests_are_under_way_than_are_allowed(server, fetching):
    """Three hosts with six feeds each: two requests to a host at once, and four in all."""
    under_way: list[str] = []
    most: list[tuple[int, int]] = []

    def answer(request: Request) -> None:
        under_way.append(request.host)
        most.append((under_way.count(request.host), len(under_way)))
        server.released.wait(0.02)
        under_way.remove(request.host)
        request.answer(200, FEED.encode())

    urls = [server.url(f"/{number}", f"h{number % 3}.test") for number in range(18)]
    server.routes |= {f"/{number}": answer for number in range(18)}
    fetching.courtesy = {"concurrency": 4, "per_host": 2, "spacing": 0}
    assert outcomes(fetching.run(*urls)) == {"new": 18}
    assert all(of_host <= 2 and count <= 4 for of_host, count in most)


def test_a_clock_that_was_set_back_does_not_keep_us_waiting(server, fetching):
    first, second = server.serve("/a", FEED), server.serve("/b", FEED)
    fetching.clock.time = START + 400 * DAY
    fetching.run(first)
    fetching.clock.time = START
    assert outcomes(fetching.run(second)) == {"new": 1}
    assert fetching.clock.time == START + SECOND


def test_feeds_that_moved_to_one_address_are_fetched_there_once_and_those_that_redirect_for_now_each(server, fetching):
    one, two = (server.serve(f"/{name}", b"", 301, Location="/new") for name in ("one", "two"))
    server.validated("/new", FEED, '"1"')
    assert outcomes(fetching.run(one, two)) == {"new": 1, "put off": 1}
    assert sorted(server.paths()) == ["/new", "/one", "/two"]
    assert [bool(fetching.bodies(url)) for url in (one, two)] == [True, False]
    aside = fetching.feed(two)
    assert (aside.address, aside.errors, aside.last_error) == (server.url("/new"), 0, f"fetched as {one}")
    fetching.later(2 * 3600)
    assert outcomes(fetching.run()) == {"unchanged": 1, "put off": 1}
    assert server.paths()[3:] == ["/new"]
    urls = [server.serve(f"/{name}", b"", 302, Location="/new") for name in ("three", "four")]
    assert outcomes(fetching.run(*urls)) == {"new": 2}
    # One that is subscribed to where others have moved is fetched as that.
    fetching.later(2 * 3600)
    assert outcomes(fetching.run(one, two, server.url("/new"))) == {"put off": 2, "new": 1, "unchanged": 2}
    assert fetching.bodies(server.url("/new"))


def test_what_fails_or_is_gone_leaves_its_place_to_the_next(server, fetching):
    one, two = (server.serve(f"/{name}", b"", 301, Location="/new") for name in ("one", "two"))
    server.serve("/new", b"", 500)
    assert outcomes(fetching.run(one, two)) == {"failed": 1, "put off": 1}
    server.serve("/new", FEED)
    fetching.later(2 * 3600)
    assert outcomes(fetching.run()) == {"new": 1, "put off": 1}
    server.serve("/new", b"", 410)
    fetching.later(2 * 3600)
    assert outcomes(fetching.run()) == {"stopped": 1, "put off": 1}
    fetching.later(10**7)
    server.serve("/new", FEED)
    assert outcomes(fetching.run()) == {"new": 1}
    assert [len(fetching.bodies(url)) for url in (one, two)] == [1, 1]


UNREADABLE = '<!DOCTYPE rss [<!ATTLIST item x CDATA "y">]><rss version="2.0"><channel/></rss>'


@pytest.mark.parametrize("layout", ["drop", "warc"])
def test_a_crawl_says_how_far_feeds_were_visited_and_which_are_waited_for(server, fetching, layout):
    if layout == "warc":
        fetching.archive = lambda out, store: WarcArchive(out, store.archive_mark(), store.save_mark)
    urls = {name: server.url(f"/{name}") for name in ("same", "moved", "gone", "failing", "unreadable")}
    urls |= {name: server.url(f"/{name}", "busy.test") for name in ("busy", "behind")}

    def outcomes_of_feeds() -> dict[str, str]:
        """By feed, without repetition."""
        found = [one for one in read_documents([fetching.directory], feeds="item") if type(one) is Visit]
        visits = [one for one in found if one.outcome != "failed"]
        news[:] = [etree.fromstring(document.xml_bytes()) for one in found for document in one.documents]
        for url in {one.feed for one in visits if one.outcome == "complete"} - removed:
            times = [one.time for one in visits if one.feed == url and one.outcome == "complete"]
            feed = fetching.feed(url)
            assert feed.errors or max(times) == feed.checked_at
        of_feed = {name: [one.outcome for one in visits if one.feed == url] for name, url in urls.items()}
        return {name: " ".join(outcome for outcome, _ in groupby(found)) for name, found in of_feed.items()}

    def said(name: str) -> list[tuple[str | None, str | None, str | None]]:
        told = [one for one in news if one.findtext("feed") == urls[name]]
        return [(one.findtext("status"), one.findtext("error"), one.findtext("moved")) for one in told]

    removed: set[str] = set()
    news: list[etree._Element] = []
    server.validated("/same", FEED, '"1"')
    server.serve("/moved", b"", 301, Location="/same")
    server.serve("/gone", FEED)
    server.serve("/unreadable", UNREADABLE)
    server.serve("/busy", b"", 429, Retry_After="7200")
    fetching.run(*urls.values())
    found = dict.fromkeys(urls, "awaited ended") | dict.fromkeys(("same", "gone"), "awaited complete")
    assert outcomes_of_feeds() == found
    for name in ("failing", "unreadable", "busy", "behind"):
        server.serve(f"/{name}", FEED)
        # They are awaited again: the last visits are too long ago for readers to wait for these feeds, or none was
        # complete.
        found[name] += " awaited complete"
    server.serve("/gone", b"", 410)
    fetching.later(4 * 3600)
    fetching.run()
    for name, outcome in (("same", "complete"), ("moved", "ended"), ("gone", "ended")):
        found[name] += f" awaited {outcome}"
    assert outcomes_of_feeds() == found
    assert change_feeds(fetching.directory / STATE_FILE, FeedChange(remove=(urls["same"],)))
    removed.add(urls["same"])
    fetching.later(7000)
    fetching.run()
    # The removal is noted by the clock of this machine, after which a drop directory sorts later notes.
    awaited = " awaited" if layout == "warc" else ""
    found |= {"same": found["same"] + " ended", "moved": f"{found['moved']}{awaited} complete"}
    assert outcomes_of_feeds() == found
    server.serve("/failing", b"", 500)
    for _ in range(GIVEN_UP):
        assert outcomes_of_feeds()["failing"] == found["failing"]
        fetching.clock.time = max(fetching.clock.time, fetching.feed(urls["failing"]).next_check)
        fetching.run()
    assert outcomes_of_feeds()["failing"] == found["failing"] + " ended"
    ok, failed = ("200", None, None), ("500", "the server answered 500", None)
    assert said("failing") == [("404", "the server answered 404", None), ok, failed], "each once, as long as it lasts"
    assert said("same") == [ok] and [status for status, *_ in said("gone")] == ["200", "410"]
    assert said("moved") == [("200", None, urls["same"])], "the feed there was removed, so that it is fetched itself"


NOW = st.integers(0, 4_000_000_000_000_000)
CHANCE = st.floats(0, 1, exclude_max=True)
PLAIN = st.builds(Hints, st.integers(0, 400 * DAY))
SKIPPED = st.frozensets(st.integers(0, 23)), st.frozensets(st.integers(0, 6))
PACES = st.builds(Pace, st.integers(SECOND, 3 * DAY), st.just(DAY), st.integers(SECOND, 2 * DAY))


def is_skipped(moment, hints):
    when = datetime.fromtimestamp(moment // SECOND, UTC)
    return when.hour in hints.skip_hours or when.weekday() in hints.skip_days


@given(NOW, st.integers(0, 400 * DAY), st.integers(1, 10_000), PLAIN, PACES, CHANCE)
def test_neither_sooner_than_anyone_wants_nor_later_than_the_ceiling(now, asked, errors, hints, pace, chance):
    wait = after_success(now, asked, hints, pace, chance) - now
    ceiling = max(pace.longest, pace.interval)
    assert min(max(pace.interval, asked, hints.interval), ceiling) <= wait <= ceiling * (1 + JITTER)
    wait = after_failure(now, errors, None, Hints(), pace, chance) - now
    assert pace.backoff <= wait <= max(pace.longest, pace.backoff) * (1 + JITTER)
    assert wait <= after_failure(now, errors + 1, None, Hints(), pace, chance) - now
    assert after_failure(now, errors, now + asked, Hints(), pace, chance) >= now + max(asked, wait)


@given(NOW, st.builds(Hints, st.just(0), *SKIPPED), CHANCE)
def test_skipped_hours_and_days_are_skipped_and_no_other(moment, hints, chance):
    chosen = outside_skipped(moment, hints, chance)
    if not is_skipped(moment, hints) or len(hints.skip_hours) == 24 or len(hints.skip_days) == 7:
        assert chosen == moment
        return
    assert chosen > moment
    assert not is_skipped(chosen, hints)
    hour = moment - moment % HOUR + HOUR
    while hour <= chosen - HOUR:
        assert is_skipped(hour, hints)
        hour += HOUR


SY = 'xmlns:sy="http://purl.org/rss/1.0/modules/syndication/"'


@pytest.mark.parametrize(
    ("data", "hints"),
    [
        (rss("a"), Hints()),
        (rss("a", extra="<ttl> 60 </ttl>"), Hints(HOUR)),
        (rss("a", extra="<ttl>-5</ttl>"), Hints()),
        (rss("a", extra="<ttl>99999999999</ttl>"), Hints()),
        (rss("a", extra="<ttl>999999999</ttl>"), Hints(366 * DAY)),
        (rss("a", extra="<skipHours><hour>0</hour><hour>24</hour><hour>25</hour><hour>x</hour></skipHours>"),
         Hints(0, frozenset({0}))),
        (rss("a", extra="<skipDays><day>Monday</day><day> sunday </day><day>Noday</day></skipDays>"),
         Hints(0, frozenset(), frozenset({0, 6}))),
        (rss("a", extra=f"<sy:updatePeriod {SY}>\nhourly </sy:updatePeriod>"), Hints(HOUR)),
        (rss("a", extra=f"<sy:updatePeriod {SY}>fortnightly</sy:updatePeriod>"), Hints()),
        (rss("a", extra=f"<sy:updatePeriod {SY}>weekly</sy:updatePeriod>"
                        f"<sy:updateFrequency {SY}>0</sy:updateFrequency>"), Hints(7 * DAY)),
        ('<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns="http://purl.org/rss/1.0/">'
         f"<channel><sy:updatePeriod {SY}>daily</sy:updatePeriod></channel></rdf:RDF>", Hints(DAY)),
        (f'<feed xmlns="http://www.w3.org/2005/Atom"><sy:updatePeriod {SY}>daily</sy:updatePeriod></feed>', Hints(DAY)),
        ("<rss><channel><ttl>60</ttl><item>cut", Hints(HOUR)),
        ("", Hints()), ("{}", Hints()), ("<!-- -->", Hints()), ("\0", Hints()),
    ],
)  # fmt: skip
def test_what_a_body_asks_for(data, hints):
    assert body_hints(data.encode()) == hints


@pytest.mark.parametrize(
    ("value", "wait"),
    [
        ("0", 0), ("120", 2 * MINUTE), (" 120 ", 2 * MINUTE), ("9" * 30, 366 * DAY), ("-1", None), ("1.5", None),
        ("", None), ("soon", None), ("Wed, 06 May 2026 13:00:00 GMT", HOUR), ("Wed, 06 May 2020 13:00:00 GMT", 0),
        ("Wed, 06 May 2099 13:00:00 GMT", 366 * DAY),
    ],
)  # fmt: skip
def test_retry_after(value, wait):
    assert retry_after({"Retry-After": value}, START) == (None if wait is None else START + wait)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        *(({}, 0), ({"Cache-Control": "max-age=60"}, 60), ({"Cache-Control": 'private, Max-Age="60" , x'}, 60)),
        *(({"Cache-Control": "s-maxage=60"}, 0), ({"Cache-Control": "max-age=soon"}, 0), ({"Expires": "0"}, 0)),
        ({"Cache-Control": "max-age=60", "Age": "50", "Expires": "Wed, 06 May 2026 13:00:00 GMT"}, 10),
        ({"Cache-Control": "max-age=60", "Age": "70"}, 0),
        ({"Cache-Control": "max-age=60, no-store"}, 0),
        ({"Expires": "Wed, 06 May 2026 12:01:00 GMT"}, 60),
    ],
)
def test_how_long_an_answer_is_fresh(headers, seconds):
    assert fresh_for(headers, START) == seconds * SECOND
