"""Where a fetch is led: redirects, and addresses that are refused."""

import pytest

from feeds.tail import read_documents
from tests.support.feed_server import failure, outcomes, rss

FEED = rss("a", "b")


@pytest.mark.parametrize("status", [301, 308, 302, 303, 307])
def test_permanent_redirects_are_remembered_and_others_are_not(server, fetching, status):
    server.serve("/new", FEED)
    url = server.serve("/old", b"", status, Location="/new")
    fetching.run(url)
    fetching.later(3600)
    fetching.run(url)
    assert server.paths()[2] == ("/new" if status in (301, 308) else "/old")
    assert [d.id.split(" ")[0] for d in read_documents([fetching.directory], feeds="item")] == [url, url]


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


def test_what_is_permanent_behind_a_temporary_redirect_is_not(server, fetching):
    server.serve("/c", FEED)
    server.serve("/b", b"", 301, Location="/c")
    url = server.serve("/a", b"", 302, Location="/b")
    fetching.run(url)
    assert fetching.feed(url).address == url


def test_a_permanent_redirect_to_a_failure_is_not_remembered(server, fetching):
    url = server.serve("/a", b"", 301, Location="/missing")
    assert failure(fetching, url) == "the server answered 404"
    assert fetching.feed(url).address == ""


@pytest.mark.parametrize(
    ("routes", "cause"),
    [
        ({"/a": "/b", "/b": "/a"}, "the redirects lead back to"),
        ({"/a": "/a"}, "the redirects lead back to"),
        ({"/a": "/a/"} | {f"/a{'/' * n}": f"/a{'/' * (n + 1)}" for n in range(1, 9)}, "more than 5 redirects"),
        ({"/a": "file:///etc/passwd"}, "'file:/etc/passwd' is not an http or https address"),
        ({"/a": "gopher://x/"}, "is not an http or https address"),
        ({"/a": "http://[::1"}, "Invalid URL in location header"),
        ({"/a": ""}, "without saying where"),
        ({"/a": "http://127.0.0.1:99999/"}, "99999 is no port"),
        ({"/a": "http://127.0.0.1:0/"}, "0 is no port"),
    ],
)
def test_redirects_that_lead_nowhere(server, fetching, routes, cause):
    for path, target in routes.items():
        server.serve(path, b"", 302, Location=target)
    assert cause in failure(fetching, server.url("/a"))
    assert len(server.log) <= 6


def guarded(fetching, **names):
    """Private addresses are refused; names lead to what is given, look-up by look-up, and addresses to themselves."""
    resolved = []

    async def resolve(host, port):
        resolved.append(host)
        return names[host].pop(0) if names.get(host) else [host]

    fetching.allow_private = False
    fetching.world = {"resolve": resolve}
    return resolved


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "2130706433"])
def test_local_addresses_are_refused_however_they_are_written(server, fetching, host):
    from feeds.fetch.http import resolve_host

    url = server.url("/feed", host)
    server.serve("/feed", FEED)
    fetching.allow_private = False
    fetching.world = {"resolve": resolve_host}
    assert "only public addresses are fetched from" in failure(fetching, url)
    assert server.log == []


@pytest.mark.parametrize(
    "target", ["http://10.0.0.7/", "http://[fe80::1]/", "http://169.254.169.254/latest/", "https://inner.test/"]
)
def test_redirects_to_private_addresses_are_refused(server, fetching, target, monkeypatch):
    """The first hop is let through as a public server's would be; the redirect is checked like any other."""
    monkeypatch.setattr("feeds.fetch.http.is_public", lambda address: address == "127.0.0.1")
    guarded(fetching, **{"public.test": [["127.0.0.1"]], "inner.test": [["192.168.0.1", "::1"]]})
    server.serve("/feed", b"", 301, Location=target)
    assert "only public addresses are fetched from" in failure(fetching, server.url("/feed", "public.test"))
    assert server.paths() == ["/feed"]


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
