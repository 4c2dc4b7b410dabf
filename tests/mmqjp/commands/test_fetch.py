"""`mmqjp fetch`: from a list of feeds to matches, and what is said of feeds that fail."""

import asyncio
import errno
import os
import signal

import pytest

from feeds.fetch.archive import DropArchive
from feeds.fetch.http import SystemClock
from feeds.fetch.state import STATE_FILE, FetchStore, source_name
from tests.support.cli import mmqjp as call
from tests.support.cli import write_queries
from tests.support.feed_server import rss

QUERY = "FROM S//item->a[./title->t] JOIN { t = u, 2 d } S//item->b[./title->u] PUBLISH same"


@pytest.mark.parametrize("layout", [[], ["--warc"]])
def test_from_opml_to_matches(server, fetch, tmp_path, layout):
    opml = f'<opml><body><outline text="F"><outline xmlUrl="{server.url("/a")}"/></outline></body></opml>'
    (tmp_path / "feeds.opml").write_text(opml)
    result = fetch(tmp_path / "feeds.opml", server.url("/b"), *layout)
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "mmqjp: 2 feeds, 2 visits: 2 new, 0 unchanged, 0 failed, 0 stopped, 0 put off\n"
    assert fetch(*layout).stderr.startswith("mmqjp: 2 feeds, none is due before 20")
    queries = write_queries(tmp_path, QUERY)
    matches = call("run", "--engine", "duckdb", "--queries", queries, "--documents", tmp_path / "crawl", "--feeds")
    assert matches.exit_code == 0, matches.stderr
    assert len(matches.stdout.splitlines()) == 2  # the same two entries, each as the left one
    assert f"{server.url('/a')} two" in matches.stdout


def test_work_of_which_nothing_comes_has_failed(server, fetch):
    result = fetch(server.url("/missing"), server.url("/lost"))
    assert result.exit_code == 1 and result.stderr.splitlines()[-1].startswith("mmqjp: error: no feed that was due")
    assert fetch().exit_code == 0  # nothing is due, and nothing failed
    result = fetch("gopher://example.org/feed")
    assert result.exit_code == 1 and "gopher" in result.stderr.splitlines()[0]
    assert result.stderr.splitlines()[-1].startswith("mmqjp: error: none of the addresses in the lists")


def test_a_state_that_was_damaged_is_told_in_one_line(server, fetch, tmp_path):
    assert fetch(server.url("/a")).exit_code == 0
    state = tmp_path / "crawl" / STATE_FILE
    whole = state.read_bytes()
    for damaged in (b"garbage", whole[:100], whole[:-2000], whole[:5000] + bytes(4000) + whole[9000:]):
        state.write_bytes(damaged)
        for command in (["fetch", "--out", tmp_path / "crawl"], ["feeds", "list", "--state", tmp_path / "crawl"]):
            result = call(*command)
            if result.exit_code:
                assert result.exit_code == 1 and len(result.stderr.splitlines()) == 1, result.stderr
                assert "unexpected" not in result.stderr and "; " in result.stderr


def test_failures_are_told_and_the_work_has_not_failed(server, fetch, tmp_path):
    urls = [server.url(f"/missing{n}") for n in range(5)]
    (tmp_path / "list.txt").write_text(f"{server.url('/a')}\nftp://x.example/\n")
    result = fetch(tmp_path / "list.txt", *urls)
    complaint, *lines = result.stderr.splitlines()
    assert result.exit_code == 0
    assert f"mmqjp: {tmp_path / 'list.txt'}:2: 'ftp://x.example/' is not an http or https address" in complaint
    assert lines[0] == "mmqjp: 6 feeds, 6 visits: 1 new, 0 unchanged, 5 failed, 0 stopped, 0 put off"
    assert lines[1] == f"  {server.url('/missing0')}: the server answered 404"
    assert lines[4] == "  and 2 more; mmqjp feeds list shows them"


def test_private_addresses_are_refused_unless_allowed(server, tmp_path):
    result = call("fetch", "--out", tmp_path, server.url("/a"))
    assert "127.0.0.1 leads to 127.0.0.1, and only public addresses are fetched from" in result.stderr
    assert server.log == []


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        (["missing.opml"], 1, "missing.opml: no such file"),
        ([], 2, "name a list of feeds"),
        (["https://x.example/", "--spacing", "INF"], 2, "INF is not allowed here"),
        (["https://x.example/", "--interval", "soon"], 2, "is not a duration"),
        (["https://x.example/", "--concurrency", "0"], 2, "is not in the range"),
    ],
)
def test_what_cannot_be_done(tmp_path, options, status, words):
    result = call("fetch", "--out", tmp_path / "out", *options)
    assert result.exit_code == status and words in result.stderr and len(result.stderr.splitlines()) == 1


def test_the_state_is_where_it_is_said_to_be(server, fetch, tmp_path):
    assert fetch(server.url("/a"), "--state", tmp_path / "mine.sqlite").exit_code == 0
    assert (tmp_path / "mine.sqlite").is_file()
    assert call("feeds", "list", "--state", tmp_path / "mine.sqlite").exit_code == 0
    assert not (tmp_path / "crawl" / STATE_FILE).exists()


def test_only_the_feeds_of_the_lists_are_fetched(server, fetch, tmp_path):
    fetch(server.url("/a"))
    fetch(server.url("/b"))
    assert server.paths() == ["/a", "/b"]
    with FetchStore(tmp_path / "crawl" / STATE_FILE) as store:
        assert [feed.source for feed in store.feeds()] == [source_name(server.url(path)) for path in ("/a", "/b")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_watching_goes_on_until_a_signal_and_ends_in_peace(server, fetch, monkeypatch, number):
    """The feed is asked three times, an hour of the clock apart, and then the signal comes."""
    hour, passed = 3_600_000_000, 0

    async def sleep_until(self, moment):
        nonlocal passed
        passed = max(passed, moment - start)
        if len(server.log) == 3:
            os.kill(os.getpid(), number)
            await asyncio.Event().wait()

    start = SystemClock().now()
    monkeypatch.setattr(SystemClock, "now", lambda self: start + passed)
    monkeypatch.setattr(SystemClock, "sleep_until", sleep_until)
    result = fetch(server.url("/a"), "--watch")
    assert result.exit_code == 0
    assert result.stderr == "mmqjp: 1 feed, 3 visits: 1 new, 2 unchanged, 0 failed, 0 stopped, 0 put off\n"
    assert 3 * hour <= passed <= 3.3 * hour + 10


def test_a_full_disk_stops_all_and_what_was_fetched_is_not_lost(server, fetch, tmp_path, monkeypatch):
    keep = DropArchive.keep

    def full(archive, capture):
        if capture.url == server.url("/b"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "crawl")
        keep(archive, capture)

    monkeypatch.setattr(DropArchive, "keep", full)
    result = fetch(server.url("/a"), server.url("/b"), "--concurrency", "1")
    assert result.exit_code == 1
    assert result.stderr == "mmqjp: error: crawl: No space left on device; make room on the disk, or write elsewhere\n"
    monkeypatch.setattr(DropArchive, "keep", keep)
    assert fetch().stderr.startswith("mmqjp: 2 feeds, 1 visit: 1 new")
    assert server.paths() == ["/a", "/b", "/b"]


def test_a_single_round_that_is_interrupted_says_so_and_goes_on_later(server, fetch):
    def interrupt(request):
        os.kill(os.getpid(), signal.SIGINT)
        server.released.wait()

    server.routes["/slow"] = interrupt
    result = fetch(server.url("/slow"))
    assert result.exit_code == 130
    assert "mmqjp: interrupted: what was fetched is kept" in result.stderr
    server.serve("/slow", rss("a"))
    assert "1 new" in fetch().stderr
