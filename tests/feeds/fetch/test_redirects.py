"""Where a fetch is led: redirects, and addresses that are refused."""

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from feeds.fetch.http import FetchError, open_client, resolve_host
from feeds.tail import read_documents
from tests.support.feed_server import failure, failures, outcomes, rss, running_server

FEED = rss("a", "b")


def test_permanent_redirects_are_remembered_and_others_are_not(server, fetching):
    statuses = (301, 308, 302, 303, 307)
    urls = [server.serve(f"/{status}", b"", status, Location=f"/new/{status}") for status in statuses]
    for status in statuses:
        server.serve(f"/new/{status}", FEED)
    fetching.run(*urls)
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


def test_what_is_permanent_behind_a_temporary_redirect_is_not_nor_one_to_a_failure(server, fetching):
    server.serve("/c", FEED)
    server.serve("/b", b"", 301, Location="/c")
    url = server.serve("/a", b"", 302, Location="/b")
    fetching.run(url)
    assert fetching.feed(url).address == url
    url = server.serve("/d", b"", 301, Location="/missing")
    assert failure(fetching, url) == "the server answered 404" and fetching.feed(url).address == ""


def test_redirects_that_lead_nowhere(server, fetching):
    cases = [
        *(("/there", "the redirects lead back to"), ("/1", "the redirects lead back to")),
        *(
            ("/far/", "more than 5 redirects"),
            ("file:///etc/passwd", "'file:/etc/passwd' is not an http or https address"),
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
    assert all("only public addresses are fetched from" in error for error in errors), errors
    assert server.log == []


def test_redirects_to_private_addresses_are_refused(server, fetching, monkeypatch):
    """The first hop is let through as a public server's would be; the redirect is checked like any other."""
    targets = ["http://10.0.0.7/", "http://[fe80::1]/", "http://169.254.169.254/latest/", "https://inner.test/"]
    monkeypatch.setattr("feeds.fetch.http.is_public", lambda address: address == "127.0.0.1")
    guarded(fetching, **{"public.test": [["127.0.0.1"]] * 4, "inner.test": [["192.168.0.1", "::1"]]})
    for number, target in enumerate(targets):
        server.serve(f"/{number}", b"", 301, Location=target)
    errors = failures(fetching, *(server.url(f"/{number}", "public.test") for number in range(4)))
    assert all("only public addresses are fetched from" in error for error in errors), errors
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


# ---------------------------------------------------------------- bodies and TLS

BODY = "Grüße ".encode() * 20_000
OPENSSL = shutil.which("openssl")


@pytest.fixture
def hook(server):
    server.routes["/hook"] = lambda request: request.answer(204, Connection="keep-alive")
    return server.url("/hook")


def post(url: str, *contents: bytes | AsyncIterator[bytes], allow_private: bool = True) -> list[int]:
    """Posts bodies over one client. Returns the statuses of the answers."""

    async def run() -> list[int]:
        async with open_client(allow_private, 2) as client:
            return [(await client.post(url, content=content)).status_code for content in contents]

    return asyncio.run(run())


def test_bodies_are_sent_whole_over_one_connection_and_in_chunks_if_they_come_in_parts(server, hook):
    async def parts() -> AsyncIterator[bytes]:
        for start in range(0, len(BODY), 1_000):
            yield BODY[start : start + 1_000]

    assert post(hook, BODY, b"", b"{}", parts()) == [204] * 4
    assert [request.body for request in server.log] == [BODY, b"", b"{}", BODY]


def test_a_body_does_not_reach_a_private_address(server, hook):
    with pytest.raises(FetchError, match="only public addresses"):
        post(hook, BODY, allow_private=False)
    assert server.log == []


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of its own making for pub.test, and its key, in one file."""
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    names = ["-subj", "/CN=pub.test", "-addext", "subjectAltName=DNS:pub.test"]
    command = [str(OPENSSL), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names]
    made = subprocess.run([*command, "-keyout", "-", "-out", "-"], check=True, capture_output=True)
    path.write_bytes(made.stdout)
    return path


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
