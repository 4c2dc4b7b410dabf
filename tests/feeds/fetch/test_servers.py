import gzip
import json
import shutil
import sqlite3
import ssl
import zlib
from contextlib import closing
from pathlib import Path

import brotli
import pytest
import zstandard

from feeds.documents import Document, SourceError
from feeds.fetch.http import resolve_host
from feeds.fetch.state import STATE_FILE, source_name
from feeds.tail import read_documents
from tests.support.feed_server import (
    QUICK,
    closed_port,
    drip,
    failure,
    failures,
    flood,
    hang,
    outcomes,
    rss,
    running_server,
)
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
    documents = list(read_documents([fetching.directory], feeds="item"))
    assert [document.id.split(" ")[:2] for document in documents] == [[url, "a"], [url, "b"]]
    assert sorted(path.name for path in xml.parent.iterdir()) == [xml.with_suffix(".json").name, xml.name]
    # Nothing is asked before it is due, and then with validators.
    fetching.later(3599)
    assert outcomes(fetching.run(url)) == {}
    fetching.later(1)
    assert outcomes(fetching.run(url)) == {"unchanged": 1}
    assert [request.headers.get("If-None-Match") for request in server.log] == [None, '"1"']
    more = rss("a", "b", "c")
    server.serve("/feed?x=1", more, Last_Modified="yesterday, I think")
    fetching.later(3600)
    assert outcomes(fetching.run(url)) == {"new": 1}
    fetching.later(3600)
    assert outcomes(fetching.run(url)) == {"unchanged": 1}, "200 in place of 304 is no new version"
    assert server.log[3].headers["If-Modified-Since"] == "yesterday, I think"
    assert fetching.bodies(url) == [FEED.encode(), more.encode()]
    assert len(list(read_documents([fetching.directory], feeds="item"))) == 3


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


def test_a_bomb_does_not_go_off(server, fetching):
    encoders = {"gzip": gzip.compress, "deflate": zlib.compress, "br": brotli.compress, "zstd": zstandard.compress}
    bombs = {coding: encode(b"<rss>" + b" " * 2_000_000) for coding, encode in encoders.items()}
    bombs["gzip, gzip"] = gzip.compress(bombs["gzip"])
    urls = [server.serve(f"/{n}", data, Content_Encoding=c) for n, (c, data) in enumerate(bombs.items())]
    errors = failures(fetching, *urls)
    assert all("larger than 100,000 bytes once decompressed" in error for error in errors), errors


def test_an_endless_feed_a_slow_drip_and_silence_end(server, fetching):
    start = b"HTTP/1.1 200 OK\r\nContent-Length: 90000\r\n\r\n<rss>"
    server.routes |= {"/endless": flood(200), "/drip": drip(start), "/silence": hang}
    assert "larger than 100,000 bytes" in failure(fetching, server.url("/endless"))
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
    with pytest.raises(SourceError, match="a row of hosts is not what was written"):
        fetching.run(good)
    assert fetching.feed(good).last_error == ""


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
    assert failure(fetching, missing) == "the server answered 404" and fetching.feed(missing).address == ""
    del server.log[:]
    fetching.later(3600)
    fetching.run(*urls)
    assert {f"/{status}" for status in statuses} & {*server.paths()} == {"/302", "/303", "/307"}
    ids = [document.id.split(" ")[0] for document in read_documents([fetching.directory], feeds="item")]
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
        *(("", "without saying where"), ("http://127.0.0.1:99999/", "99999 is no port")),
        ("http://127.0.0.1:0/", "0 is no port"),
    ]
    server.serve("/there", b"", 302, Location="/0")
    for n in range(1, 9):
        server.serve(f"/far{'/' * n}", b"", 302, Location=f"/far{'/' * (n + 1)}")
    urls = [server.serve(f"/{n}", b"", 302, Location=target) for n, (target, _) in enumerate(cases)]
    errors = failures(fetching, *urls)
    assert all(cause in error for error, (_, cause) in zip(errors, cases, strict=True)), errors
    assert len(server.log) <= len(cases) + 1 + 5


ONLY_PUBLIC = "only public addresses are fetched from"


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
    assert "rebound.test leads to 10.0.0.7" in fetching.feed(url).last_error


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
