"""`mmqjp fetch`, `feeds` and `feed-link`: feeds are fetched, listed, changed and linked."""

import asyncio
import json
import os
import signal

import pytest

from feeds.fetch.http import Clock
from feeds.fetch.state import STATE_FILE, ChangesOf, FetchStore
from feeds.items import LONGEST_TITLE
from mmqjp.engine import Session
from mmqjp.service.commands import run_command
from mmqjp.service.spool import Command
from mmqjp.syndication.atom import load_feed_links
from tests.support.cli import mmqjp, write_queries
from tests.support.feed_server import rss


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
            result = mmqjp(*command)
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


def test_the_state_is_where_it_is_said_to_be(server, fetch, tmp_path):
    assert fetch(server.url("/a"), "--state", tmp_path / "mine.sqlite").exit_code == 0
    assert (tmp_path / "mine.sqlite").is_file()
    assert mmqjp("feeds", "list", "--state", tmp_path / "mine.sqlite").exit_code == 0
    assert not (tmp_path / "crawl" / STATE_FILE).exists()


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

    start = Clock().now()
    monkeypatch.setattr(Clock, "now", lambda self: start + passed)
    monkeypatch.setattr(Clock, "sleep_until", sleep_until)
    result = fetch(server.url("/a"), "--watch")
    assert result.exit_code == 0
    assert result.stderr == "mmqjp: 1 feed, 3 visits: 1 new, 2 unchanged, 0 failed, 0 stopped, 0 put off\n"
    assert 3 * hour <= passed <= 3.3 * hour + 10


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


def test_the_list_shows_each_feed(server, fetch, tmp_path):
    server.serve("/gone", b"", 410)
    (tmp_path / "f.opml").write_text(
        '<opml><body><outline text="F"><outline text="G"><outline text="A" xmlUrl="{0}"/></outline></outline>'
        '<outline text="H"><outline xmlUrl="{0}"/></outline></body></opml>'.format(server.url("/a"))
    )
    state = ["--state", tmp_path / "crawl"]
    (tmp_path / "crawl").mkdir()
    none = mmqjp("feeds", "list", *state)
    missing = f"mmqjp: error: {tmp_path / 'crawl' / STATE_FILE}: there is no state of a fetch; mmqjp fetch makes one\n"
    assert (none.exit_code, none.stderr) == (1, missing)
    fetch(tmp_path / "f.opml", server.url("/gone"), server.url("/missing"))
    text = " ".join(mmqjp("feeds", "list", *state).stdout.split())
    assert all(words in text for words in ("errors", "200", "stopped", "404", "the server answered"))
    one, two, _ = map(json.loads, mmqjp("feeds", "list", "--json", *state).stdout.splitlines())
    assert one["checked_at"].startswith("20") and one["next_check"] > one["checked_at"]
    assert {key: one[key] for key in ("url", "title", "folders", "status", "errors", "stopped")} == {
        "url": server.url("/a"), "title": "A", "folders": ["F/G", "H"], "status": 200, "errors": 0, "stopped": False,
    }  # fmt: skip
    assert (two["url"], two["status"], two["stopped"], two["next_check"]) == (server.url("/gone"), 410, True, None)


def test_feeds_that_failed_or_stopped_can_be_tried_again(server, fetch, tmp_path):
    server.serve("/gone", b"", 410)
    fetch(server.url("/gone"), server.url("/missing"), server.url("/a"))
    assert fetch().stderr.startswith("mmqjp: 3 feeds, none is due before")
    for named in ([], [server.url("/gone")]):
        assert mmqjp("feeds", "retry", *named, "--state", tmp_path / "crawl").stderr == "mmqjp: 1 feed due now\n"


@pytest.fixture
def known(tmp_path):
    def read():
        with FetchStore(tmp_path / "crawl" / STATE_FILE) as store:
            return {feed.url: (feed.title, feed.folders) for feed in store.feeds()}

    return read


def test_the_feeds_of_a_list_are_added(tmp_path, known):
    a, b, c = (f"https://{name}.example/f" for name in "abc")
    (tmp_path / "list.opml").write_text(
        f'<opml version="2.0"><body><outline text="News"><outline text="A" xmlUrl="{a}"/></outline>'
        f'<outline text="B" xmlUrl="{b}"/></body></opml>'
    )
    (tmp_path / "list.txt").write_text(f"{c}\nftp://c.example/\n")
    state = ["--state", tmp_path / "crawl"]
    result = mmqjp("feeds", "add", tmp_path / "list.opml", tmp_path / "list.txt", *state)
    complaint, told = result.stderr.splitlines()
    assert "list.txt:2" in complaint and "left out" in complaint
    assert (result.exit_code, told) == (0, "mmqjp: 3 new feeds, 3 feeds in all")
    assert known() == {a: ("A", ("News",)), b: ("B", ()), c: ("", ())}
    assert mmqjp("feeds", "add", tmp_path / "list.opml", "--title", "T", *state).exit_code == 2
    assert mmqjp("feeds", "add", tmp_path / "list.txt", "--folder", "Old", *state).exit_code == 0
    assert known()[c] == ("", ("Old",))
    assert mmqjp("feeds", "add", "HTTPS://Example.org", "https://example.org/#top", *state).exit_code == 0
    assert known().keys() == {a, b, c, "https://example.org/"}, "as a person spells it"
    assert mmqjp("feeds", "rename", "https://example.org", "E", *state).exit_code == 0
    assert mmqjp("feeds", "remove", "https://Example.org:443/", *state).exit_code == 0
    assert known().keys() == {a, b, c}


WRONG = [
    (["add", "ftp://ada:s3cret@example.org/"], 1, "error: 'ftp://example.org/' is not an http or https address"),
    (["add", "https://a.example/", "https://b.example/", "--title", "T"], 2, "--title is for one feed"),
    (["add", "https://a.example/", "--title", "x" * (LONGEST_TITLE + 1)], 2, "write at most 1,000"),
    (["add"], 2, "Missing argument 'ADDRESS|LIST...'"),
    (["remove", "https://a.example/"], 1, "https://a.example/ is not a feed of"),
    (["rename", "https://a.example/", "T"], 1, "mmqjp feeds list shows them"),
    (["retry", "https://ada:s3cret@know.exmple/"], 1, "feeds list shows them; did you mean https://known.example/?\n"),
    (["rename", "https://a.example/"], 2, "Missing argument 'TITLE'"),
]


def test_what_cannot_be_changed(tmp_path, known):
    assert mmqjp("feeds", "add", "https://known.example/", "--state", tmp_path / "crawl").exit_code == 0
    for arguments, status, words in WRONG:
        result = mmqjp("feeds", *arguments, "--state", tmp_path / "crawl")
        assert result.exit_code == status and words in result.stderr and len(result.stderr.splitlines()) == 1
    assert list(known()) == ["https://known.example/"]


@pytest.mark.parametrize(
    ("command", "done"), [("remove", "1 feed removed"), ("rename", "is called T"), ("retry", "1 feed due now")]
)
def test_of_feeds_that_differ_in_their_password_the_one_that_is_named_is_changed(tmp_path, known, command, done):
    state = ["--state", tmp_path / "crawl"]
    plain, ada, bob = (f"https://{who}h.example/f" for who in ("", "ada:s3cret@", "bob:s3cret@"))
    more = ["T"] if command == "rename" else []
    assert mmqjp("feeds", "add", plain, ada, bob, *state).exit_code == 0
    named = mmqjp("feeds", command, plain, *more, *state)
    assert (named.exit_code, named.stderr.count("\n")) == (0, 1) and done in named.stderr
    assert [known().get(url) for url in (ada, bob)] == [("", ())] * 2
    assert mmqjp("feeds", "remove", plain, *state).exit_code == (1 if command == "remove" else 0)
    refused = mmqjp("feeds", command, plain, *more, *state)
    assert refused.exit_code == 1 and set(known()) == {ada, bob}
    assert "error: https://h.example/f is the address of 2 feeds, with different names or passwords" in refused.stderr
    assert mmqjp("feeds", "remove", bob, *state).stderr == "mmqjp: 1 feed removed\n"
    assert done in mmqjp("feeds", command, plain, *more, *state).stderr


def test_a_fetch_that_runs_is_asked_for_changes(server, fetch, tmp_path, monkeypatch):
    fetch(server.url("/a"))
    monkeypatch.setattr("mmqjp.commands.feeds.WAIT", 0.0)
    file, state = tmp_path / "crawl" / STATE_FILE, ["--state", tmp_path / "crawl"]
    with FetchStore(file, write=True) as store:
        for do, address in (("retry", server.url("/a")), ("add", server.url("/ax")), ("remove", server.url("/a"))):
            before = store.feeds()
            result = mmqjp("feeds", do, address, *state)
            assert result.exit_code == 0 and "; the fetch that is running will take it in" in result.stderr
            assert store.feeds() == before
            ChangesOf(file).take(store)
            assert store.feeds() != before
        result = mmqjp("feeds", "rename", server.url("/ax"), "T", *state)  # which is not left to others
    assert result.exit_code == 1 and "another fetch is using this state; wait for it, or end it" in result.stderr


def test_feeds_that_were_added_are_read_by_fetch_without_a_list(server, tmp_path):
    command = ["stream", "--trigger", "available-now"]
    queries = write_queries(tmp_path, "SELECT t FROM S//item[./feed_title->t][./folder = 'F'][./title = 'one']")
    state = ["--state", tmp_path / "state"]
    options = ["--engine", "duckdb", "--queries", queries, *state, "--allow-private", "--lateness", "INF", "--fetch"]
    early = mmqjp(*command, *options)
    assert early.exit_code == 2 and "--fetch without a LIST needs a --state with feeds" in early.stderr
    assert mmqjp("feeds", "add", server.url("/a"), "--title", "A", "--folder", "F", *state).exit_code == 0
    found = mmqjp(*command, *options)  # there was no store yet
    assert found.exit_code == 0, found.stderr
    assert "0 new feeds, 1 feed in all" in mmqjp("feeds", "add", server.url("/a"), *state).stderr
    assert "<t><feed_title>A</feed_title></t>" in found.stdout and len(found.stdout.splitlines()) == 1
    mixed = mmqjp(*command, *options, "--fetch", server.url("/b"))
    assert mixed.exit_code == 2 and "with a LIST and without" in mixed.stderr


@pytest.fixture
def state(tmp_path):
    with Session("duckdb", state=tmp_path / "state") as engine:
        engine.subscribe("S//a->x PUBLISH aé; S//b->x PUBLISH b")
    return tmp_path / "state"


def link(state, *options):
    result = mmqjp("feed-link", "--state", state, *options)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout.removesuffix("\n")


def test_a_link_opens_its_feed_until_it_is_revoked(state):
    one = link(state, "aé", "--public-url", "https://x.example/")
    other = link(state, "b", "--public-url", "https://x.example")
    assert one.startswith("https://x.example/f/") and one.endswith("/a%C3%A9.atom")
    assert one == link(state, "aé", "--public-url", "https://x.example")
    revoked = [link(state, "aé", "--revoke", "--public-url", "https://x.example") for _ in range(2)]
    keys, links = (address.split("/")[4] for address in (one, *revoked)), load_feed_links(state)
    assert [links.revoked_before("aé", key) for key in keys] == [0, 1, 2]
    assert other == link(state, "b", "--public-url", "https://x.example")


def test_the_feed_of_a_removed_query_keeps_its_link(state):
    before = link(state, "b")
    assert before.startswith("http://127.0.0.1:8765/f/"), "the address of serve is the default"
    assert mmqjp("unsubscribe", "b", "--state", state).exit_code == 0
    assert link(state, "b") == before
    for options in ((), ("--revoke",)):
        result = mmqjp("feed-link", "c", "--state", state, *options)
        assert result.exit_code != 0 and result.stderr.startswith("mmqjp: error: ") and "c" in result.stderr


def test_a_link_is_revoked_once_by_one_command(state):
    """Also if the process is killed before it answers, and runs the command again."""
    with Session("duckdb", state=state) as engine:
        command = Command("1", "revoke-feed-link", {"name": "b"})
        results = [run_command(engine, command) for _ in range(2)]
        assert [result.result for result in results] == [["b"], ["b"]]
        assert run_command(engine, Command("2", "feed-link", {"name": "b"})).result == 1
