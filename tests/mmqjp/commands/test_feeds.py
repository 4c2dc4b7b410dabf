"""`mmqjp fetch`, `feeds`, `feed-link`, and `--fetch` of `run` and `stream`: feeds are listed, changed and read."""

import asyncio
import errno
import json
import os
import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from lxml import etree

from common.dates import HOUR
from feeds.fetch.fetcher import DropArchive, WarcArchive
from feeds.fetch.http import Clock
from feeds.fetch.state import STATE_FILE, ChangesOf, FetchStore, source_name
from feeds.items import LONGEST_TITLE
from feeds.readers import ALL_READ, Offset
from mmqjp.engine import Session
from mmqjp.service.commands import run_command
from mmqjp.service.drops import FETCHED, DropDirectory
from mmqjp.service.log import JsonLog
from mmqjp.service.spool import Command
from mmqjp.syndication.atom import load_feed_links
from tests.support.cli import mmqjp, printed, refused, write_queries
from tests.support.feed_server import START, FeedServer, Hours, Request, rss, running_server

LOCAL = ("--allow-private", "--spacing", "0s")
HERE = ("--allow-private", "127.0.0.1")


@pytest.fixture
def server():
    with running_server() as server:
        server.serve("/a", rss("one", "two", guid="a"))
        server.validated("/b", rss("two", "three", guid="b"), '"b"')
        yield server


@pytest.fixture
def fetch(tmp_path):
    """Calls `mmqjp fetch` into a directory on loopback, without pauses."""
    return lambda *options: mmqjp("fetch", "--out", tmp_path / "crawl", *LOCAL, *options)


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
    assert "mmqjp: interrupted: what was fetched is stored" in result.stderr
    server.serve("/slow", rss("a"))
    assert "1 new" in fetch().stderr


def opml(server: FeedServer) -> str:
    """A list that has /b in two folders, and /a, with a title, in a folder of a folder."""
    inner = f'<outline text="World"><outline text="My world" xmlUrl="{server.url("/a")}"/></outline>'
    feed = f'<outline xmlUrl="{server.url("/b")}"/>'
    folders = f'<outline text="News">{inner}{feed}</outline><outline text="Games">{feed}</outline>'
    return f"<opml><body>{folders}</body></opml>"


def test_the_list_shows_each_feed(server, fetch, tmp_path):
    server.serve("/gone", b"", 410)
    (tmp_path / "f.opml").write_text(opml(server))
    state = ["--state", tmp_path / "crawl"]
    (tmp_path / "crawl").mkdir()
    missing = f"{tmp_path / 'crawl' / STATE_FILE}: there is no state of a fetch; mmqjp fetch creates one\n"
    assert refused("feeds", "list", *state).endswith(f"error: {missing}")
    fetch(tmp_path / "f.opml", server.url("/gone"), server.url("/missing"))
    text = " ".join(mmqjp("feeds", "list", *state).stdout.split())
    assert all(words in text for words in ("errors", "200", "stopped", "404", "the server answered"))
    one, two, three, _ = map(json.loads, printed("feeds", "list", "--json", *state).splitlines())
    assert one["checked_at"].startswith("20") and one["next_check"] > one["checked_at"] and three["next_check"] is None
    assert [
        [row[key] for key in ("url", "title", "folders", "status", "errors", "stopped")] for row in (one, two, three)
    ] == [
        [server.url("/a"), "My world", ["News/World"], 200, 0, False],
        [server.url("/b"), "", ["News", "Games"], 200, 0, False],
        [server.url("/gone"), "", [], 410, 1, True],
    ]
    told = fetch().stderr
    assert (
        told.startswith("mmqjp: 4 feeds, none is due before") and "1 of them failed last, and mmqjp feeds ret" in told
    )
    for named in ([], [server.url("/gone")]):  # what failed, or what is named, can be tried again
        assert mmqjp("feeds", "retry", *named, *state).stderr == "mmqjp: 1 feed due now\n"


def known(tmp_path):
    with FetchStore(tmp_path / "crawl" / STATE_FILE) as store:
        return {feed.url: (feed.title, feed.folders) for feed in store.feeds()}


def test_feeds_are_added_and_known_as_a_person_spells_them(tmp_path):
    listed, other = "https://c.example/f", "https://example.org/"
    (tmp_path / "list.txt").write_text(f"{listed}\nftp://c.example/\n")
    state = ["--state", tmp_path / "crawl"]
    result = mmqjp("feeds", "add", tmp_path / "list.txt", "--folder", "Old", *state)
    complaint, told = result.stderr.splitlines()
    assert "list.txt:2" in complaint and "left out" in complaint
    assert (result.exit_code, told) == (0, "mmqjp: 1 new feed, 1 feed in all")
    assert mmqjp("feeds", "add", "HTTPS://Example.org", "https://example.org/#top", *state).exit_code == 0
    assert known(tmp_path) == {listed: ("", ("Old",)), other: ("", ())}
    assert mmqjp("feeds", "rename", "https://example.org", "E", *state).exit_code == 0
    assert known(tmp_path)[other] == ("E", ())
    assert mmqjp("feeds", "remove", "https://Example.org:443/", *state).exit_code == 0
    assert known(tmp_path).keys() == {listed}


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


def test_what_cannot_be_changed(tmp_path):
    assert mmqjp("feeds", "add", "https://known.example/", "--state", tmp_path / "crawl").exit_code == 0
    for arguments, status, words in WRONG:
        assert words in refused("feeds", *arguments, "--state", tmp_path / "crawl", status=status)
    assert list(known(tmp_path)) == ["https://known.example/"]


@pytest.mark.parametrize(
    ("command", "done"), [("remove", "1 feed removed"), ("rename", "is called T"), ("retry", "1 feed due now")]
)
def test_of_feeds_that_differ_in_their_password_the_one_that_is_named_is_changed(tmp_path, command, done):
    state = ["--state", tmp_path / "crawl"]
    plain, ada, bob = (f"https://{who}h.example/f" for who in ("", "ada:s3cret@", "bob:s3cret@"))
    more = ["T"] if command == "rename" else []
    assert mmqjp("feeds", "add", plain, ada, bob, *state).exit_code == 0
    named = mmqjp("feeds", command, plain, *more, *state)
    assert (named.exit_code, named.stderr.count("\n")) == (0, 1) and done in named.stderr
    assert [known(tmp_path).get(url) for url in (ada, bob)] == [("", ())] * 2
    assert mmqjp("feeds", "remove", plain, *state).exit_code == (1 if command == "remove" else 0)
    said = refused("feeds", command, plain, *more, *state)
    assert set(known(tmp_path)) == {ada, bob}
    assert "error: https://h.example/f is the address of 2 feeds, with different names or passwords" in said
    assert mmqjp("feeds", "remove", bob, *state).stderr == "mmqjp: 1 feed removed\n"
    assert done in mmqjp("feeds", command, plain, *more, *state).stderr


def test_a_fetch_that_runs_is_asked_for_changes(server, fetch, tmp_path, monkeypatch):
    fetch(server.url("/a"))
    monkeypatch.setattr("mmqjp.commands.feeds.WAIT", 0.0)
    file, state = tmp_path / "crawl" / STATE_FILE, ["--state", tmp_path / "crawl"]
    with FetchStore(file, write=True) as store:
        for do, address in (("retry", server.url("/a")), ("add", server.url("/ax")), ("remove", server.url("/a"))):
            result = mmqjp("feeds", do, address, *(HERE if do == "add" else ()), *state)
            assert result.exit_code == 0 and "; the running fetch will apply it" in result.stderr
        ChangesOf(file).take(store)
        assert [feed.url for feed in store.feeds()] == [server.url("/ax")]
        said = refused("feeds", "rename", server.url("/ax"), "T", *state)  # which is not left to others
    assert "another fetch is using this state; wait for it, or end it" in said


def test_feeds_that_were_added_are_read_by_fetch_without_a_list(server, tmp_path):
    queries = write_queries(tmp_path, "SELECT t FROM S//item[./feed_title->t][./folder = 'F'][./title = 'one']")
    state = ["--state", tmp_path / "state"]
    stream = ["stream", *NOW, *PLAIN, "--queries", queries, *state, "--allow-private", "--fetch"]
    assert "--fetch without a LIST needs a --state with feeds" in refused(*stream, status=2)
    assert mmqjp("feeds", "add", server.url("/a"), "--title", "A", "--folder", "F", *HERE, *state).exit_code == 0
    found = mmqjp(*stream)  # there was no store yet
    assert found.exit_code == 0, found.stderr
    assert "0 new feeds, 1 feed in all" in mmqjp("feeds", "add", server.url("/a"), *state).stderr
    assert "<t><feed_title>A</feed_title></t>" in found.stdout and len(found.stdout.splitlines()) == 1
    assert "both with and without a LIST" in refused(*stream, "--fetch", server.url("/b"), status=2)


@pytest.fixture
def state(tmp_path):
    with Session("duckdb", state=tmp_path / "state") as engine:
        engine.subscribe("S//a->x PUBLISH aé; S//b->x PUBLISH b")
    return tmp_path / "state"


def link(state, *options):
    return printed("feed-link", "--state", state, *options).removesuffix("\n")


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
        assert "c" in refused("feed-link", "c", "--state", state, *options)


def test_a_link_is_revoked_once_by_one_command(state):
    """Also if the process is killed before it answers, and runs the command again."""
    with Session("duckdb", state=state) as engine:
        command = Command("1", "revoke-feed-link", {"name": "b"})
        results = [run_command(engine, command) for _ in range(2)]
        assert [result.result for result in results] == [["b"], ["b"]]
        assert run_command(engine, Command("2", "feed-link", {"name": "b"})).result == 1


QUERY = "FROM S//item->a[./title->t] JOIN { t = u, INF } S//item->b[./title->u] PUBLISH same"
PLAIN = ("--engine", "duckdb", "--lateness", "INF")
NOW = ("--trigger", "available-now")


@pytest.fixture
def call(server, tmp_path):
    (tmp_path / "feeds.txt").write_text(f"{server.url('/a')}\n{server.url('/b')}\n")
    queries = write_queries(tmp_path, QUERY)
    places = ["--queries", queries, "--fetch", tmp_path / "feeds.txt", "--state", tmp_path / "state"]
    return lambda command, *options: mmqjp(command, *places, *PLAIN, *LOCAL, *options)


def due(state: Path) -> None:
    with FetchStore(state / "drops" / STATE_FILE, write=True) as store:
        for feed in store.feeds():
            store.commit(replace(feed, next_check=0))


def lines(text: str) -> int:
    return len([line for line in text.splitlines() if line.startswith('{"id"')])


@pytest.mark.parametrize("commands", [("run", "stream"), ("stream", "run")])
def test_what_is_new_is_fetched_and_answered_once(commands, call, server, tmp_path):
    """`run` and `stream` may take turns on one state."""
    (first, *options), (second, *more) = ([one, *(NOW if one == "stream" else ())] for one in commands)
    result = call(first, *options)
    assert result.exit_code == 0, result.stderr
    assert lines(result.stdout) == 2 and server.paths() == ["/a", "/b"]
    assert lines(call(first, *options).stdout) == 0 and len(server.log) == 2  # none is due
    due(tmp_path / "state")
    server.serve("/a", rss("one", "two", "three", guid="a"))
    assert lines(call(second, *more).stdout) == 2 and len(server.log) == 4
    assert server.log[-1].headers.get("If-None-Match") or server.log[-2].headers.get("If-None-Match")
    listed = printed("feeds", "list", "--state", tmp_path / "state")
    assert "200" in listed and "304" in listed


@pytest.mark.parametrize("layout", ["drop", "warc"])
def test_run_and_stream_decide_alike_over_a_crawl_as_far_as_its_feeds_were_visited(server, fetching, tmp_path, layout):
    if layout == "warc":
        fetching.archive = lambda out, store: WarcArchive(out, store.archive_mark(), store.save_mark)
    fetching.directory = tmp_path / "crawl"
    fetching.run(server.url("/a"), server.url("/b"), server.url("/missing"))
    for hour in range(1, 4):
        if hour == 2:
            both = rss("two", "late", guid="b").replace("10:00:00", "13:30:00").replace("13:30:00", "10:00:00", 1)
            server.serve("/b", both)
        fetching.later(3700)
        fetching.run()
    item = "S//item->{0}[./feed_url->of_{0}]".format
    silence = f"FROM {item('a')} NOT FOLLOWED BY {{ of_a = of_b, 4 h }} {item('b')} PUBLISH silent"
    queries = write_queries(tmp_path, f"{silence};\nFROM S//item->a PUBLISH all")
    for number, (command, *options) in enumerate(
        (
            ["run", "--documents"],
            ["run", "--lateness", "0s", "--state", tmp_path / "run", "--documents"],
            ["stream", "--lateness", "0s", "--state", tmp_path / "stream", *NOW, "--source"],
            ["stream", "--lateness", "0s", "--state", tmp_path / "small", *NOW, "--batch-size", 1, "--source"],
        )
    ):
        output = tmp_path / f"{number}.jsonl"
        plain = "--engine", "duckdb", "--queries", queries, "--feeds", "--output", output
        mmqjp(command, *plain, *options, fetching.directory)
        rows = map(json.loads, output.read_text().splitlines())
        found = sorted((row["query"], row["documents"][0].split(" ")[1]) for row in rows)
        # `b` was not silent after 10:00; whether it was after 13:30 was not to be seen by 15:05.
        assert found[:5] == [("all", title) for title in ("aone", "atwo", "blate", "bthree", "btwo")]
        assert found[5:] == [("silent", title) for title in ("aone", "atwo")]


def test_something_must_be_named_to_be_read_and_a_crawl_is_not_it(server, fetch, tmp_path):
    crawl, queries = tmp_path / "crawl", write_queries(tmp_path, QUERY)
    assert fetch(server.url("/a")).exit_code == 0
    before = (crawl / STATE_FILE).read_bytes()
    said = refused("run", "--queries", queries, "--fetch", "--state", crawl, *PLAIN, *LOCAL, status=2)
    assert "needs a --state with feeds" in said and (crawl / STATE_FILE).read_bytes() == before
    for command in ("run", "stream"):
        said = refused(command, "--engine", "duckdb", "--queries", queries, "--state", tmp_path / "state", status=2)
        assert "--fetch" in said


def test_run_without_a_state_leaves_nothing(server, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "tmp").mkdir()
    reading = ("--queries", write_queries(tmp_path, QUERY), "--documents", tmp_path / "x.jsonl")
    fetching = (*LOCAL, "--fetch", server.url("/a"), "--fetch", server.url("/missing"))
    refused("run", *PLAIN, *reading, *fetching, status=2)
    (tmp_path / "x.jsonl").write_text(json.dumps({"id": "d", "xml": "<item><title>one</title></item>"}))
    result = mmqjp("run", *PLAIN, *reading, *fetching)
    assert result.exit_code == 0 and lines(result.stdout) == 2
    assert "1 new, 0 unchanged, 1 failed" in result.stderr and "the server answered 404" in result.stderr
    assert list((tmp_path / "tmp").iterdir()) == []


def test_changed_versions_are_documents_unless_they_are_ignored(call, server, tmp_path):
    def changed(title: str, *options: str) -> int:
        server.serve("/a", rss("one", "two", guid="a").replace("<title>one", f"<title>{title}"))
        found = lines(call("stream", *NOW, *options).stdout)
        due(tmp_path / "state")
        return found

    assert changed("one") == 2
    assert changed("three", "--versions", "ignore") == 0
    assert changed("two") == 4  # with the other "two" of each feed, as the left one and as the right one


def events(result: Any, name: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in result.stderr.splitlines() if line.startswith("{")]
    return [event for event in found if event["event"] == name]


def test_a_stream_fetches_while_it_runs_and_ends_cleanly(call, server, monkeypatch):
    event, documents = JsonLog.event, 0

    def told(log: JsonLog, name: str, /, **fields: Any) -> None:
        nonlocal documents
        event(log, name, **fields)
        if name == "batch":
            documents += fields["documents"]
            if documents == 4:
                os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(JsonLog, "event", told)
    result = call("stream", "--trigger", "0.01s", "--log", "json")
    assert result.exit_code == 0, result.stderr
    assert lines(result.stdout) == 2
    fetched = {(event["feed"], event["outcome"]) for event in events(result, "fetch")}
    assert fetched == {(server.url("/a"), "new"), (server.url("/b"), "new")}
    assert [event["visits"] for event in events(result, "fetch-ended")] == [2]
    assert [name["event"] for name in map(json.loads, result.stderr.splitlines())][-1] == "stopped"
    assert not any(thread.name == "fetch" for thread in threading.enumerate())


def test_a_signal_ends_a_fetch_that_is_under_way(call, server, monkeypatch):
    def silent(request: Request) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        server.released.wait()

    server.routes["/a"] = silent
    result = call("stream", "--log", "json", "--trigger", "0.01s")
    assert result.exit_code == 0, result.stderr
    assert events(result, "stopped")


@pytest.mark.parametrize("options", [(), NOW])
def test_a_fetch_that_fails_as_a_whole_ends_the_stream_with_its_error(call, monkeypatch, options):
    def full(archive: DropArchive, capture: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "drops")

    with monkeypatch.context() as patched:
        patched.setattr(DropArchive, "keep", full)
        result = call("stream", "--log", "json", *options)
    assert result.exit_code == 1
    assert [event["error"] for event in events(result, "fetch-failed")] != []
    last = result.stderr.splitlines()[-1]
    assert last == "mmqjp: error: drops: No space left on device; free some disk space, or write elsewhere"
    assert lines(call("stream", *NOW).stdout) == 2


def test_versions_that_are_read_go_after_a_while_but_for_the_newest(fetching, server, tmp_path):
    url = server.url("/a")
    for number in range(4):
        server.serve("/a", rss(str(number)))
        fetching.run(url)
        fetching.later(2 * 3600)
    folder = fetching.directory / source_name(url)
    names = [f"{folder.name}/{path.name}" for path in sorted(folder.glob("*.xml"))]

    def left(drops: DropDirectory, *read: str) -> int:
        files = [*((FETCHED, name) for name in read), ("else", "x")]
        offsets = {(source, file): Offset(source, file, ALL_READ) for source, file in files}
        drops.sweep(Mock(**{"ledger.offsets.return_value": offsets}))
        found = list(folder.iterdir())
        assert len(found) % 2 == 0
        return len(found) // 2

    clock = Hours(START + 6 * HOUR)
    assert left(DropDirectory(fetching.directory, None, clock.now), *names) == 4
    drops = DropDirectory(fetching.directory, 3 * HOUR, clock.now)
    assert left(drops, *names[1:]) == 3  # the first is not read; the second has been there long enough
    assert left(drops, *names) == 3  # not so soon again
    clock.time += HOUR
    assert left(drops, *names) == 2
    clock.time += 100 * HOUR
    assert left(drops, *names) == 1
    # The newest tells that nothing has changed.
    fetching.later(2 * 3600)
    fetching.run(url)
    assert len(fetching.bodies(url)) == 1


@pytest.mark.parametrize("way", ["stream --fetch", "warc"])
def test_titles_and_folders_come_from_the_list_to_the_items(server, tmp_path, way):
    queries = write_queries(tmp_path, "SELECT t, f FROM S//item[./feed_title->t][./folder->f][./title = 'two']")
    (tmp_path / "feeds.opml").write_text(opml(server))
    reading = ["--queries", queries, *PLAIN, "--state", tmp_path / "state"]
    if way == "stream --fetch":
        result = mmqjp("stream", *reading, *NOW, *LOCAL, "--fetch", tmp_path / "feeds.opml")
    else:
        assert mmqjp("fetch", tmp_path / "feeds.opml", "--out", tmp_path / "crawl", *LOCAL, "--warc").exit_code == 0
        result = mmqjp("run", *reading, "--documents", tmp_path / "crawl", "--feeds")
    assert result.exit_code == 0, result.stderr
    outputs = [etree.fromstring(json.loads(line)["xml"]) for line in result.stdout.splitlines()]
    assert {(one.findtext("t/feed_title"), one.findtext("f/folder")) for one in outputs} == {
        *(("My world", "News"), ("My world", "News/World"), ("Site", "News"), ("Site", "Games"))
    }


def test_a_feed_that_is_renamed_gives_its_new_title_with_what_is_new(server, tmp_path):
    queries = write_queries(tmp_path, "SELECT i/title AS t, i/feed_title AS f FROM S//item->i PUBLISH all")
    state = ["--state", tmp_path / "state"]
    run = ["run", "--queries", queries, *PLAIN, *state, "--fetch", server.url("/b"), *LOCAL]
    assert mmqjp(*run).stdout.count("<f><feed_title>Site</feed_title></f>") == 2
    server.serve("/b", rss("two", "three", "four", guid="b"))
    assert mmqjp("feeds", "rename", server.url("/b"), "Games", *state).exit_code == 0
    due(tmp_path / "state")
    (line,) = mmqjp(*run).stdout.splitlines()  # the entries that were there before are no new versions
    assert "<f><feed_title>Games</feed_title></f>" in line and "four" in line


# ---------------------------------------------------------------- settings


def test_settings_are_changed_shown_and_used_by_the_next_fetch(server, fetch, tmp_path):
    url, state = server.url("/a"), ("--state", tmp_path / "crawl")
    assert fetch(url).exit_code == 0
    crawl = tmp_path / "crawl"
    assert "known: none" in refused("feeds", "set", url, "user=ada", "password=hunter2", *state)
    stored = mmqjp("feeds", "secret", "pw", *state, input="s3cr:et\n")
    assert (stored.exit_code, stored.stderr) == (0, "mmqjp: pw: stored\n")
    assert "exists" in refused("feeds", "secret", "pw", *state, input="x\n")
    assert "control characters" in refused("feeds", "secret", "empty", *state, input="\n")
    keys = "user=ada", "password=pw", 'headers={"X-Key" = {secret = "pw"}}', "verify=false"
    told = mmqjp("feeds", "set", url, *keys, *state)
    assert told.stderr.splitlines()[0].startswith(f"mmqjp: warning: {url}: the certificate is not checked")
    assert mmqjp("feeds", "set", "--all", "user_agent=Me/1", "--folder", "News", *state).exit_code == 0
    (tmp_path / "mmqjp.toml").write_text(
        f'[feed."{url}"]\nuser_agent = "File/1"\n[folder.""]\ncookies = {{ a = "b" }}\n'
    )
    configured = ("--config", tmp_path / "mmqjp.toml")
    shown = mmqjp(*configured, "feeds", "show", url, "--json", *state)
    assert json.loads(shown.stdout)["settings"] == {
        "user": "ada", "password": {"secret": "pw"}, "headers": {"X-Key": {"secret": "pw"}},
        "verify": False, "user_agent": "File/1", "cookies": {"a": "b"},
    }  # fmt: skip
    assert "the certificate is not checked" in mmqjp("feeds", "list", *state).stderr
    text = mmqjp(*configured, "feeds", "show", url, *state).stdout
    assert "  user_agent = File/1\n" in text and "s3cr" not in text
    assert "sets user_agent of" in mmqjp(*configured, "feeds", "set", url, "user_agent=X", *state).stderr
    assert mmqjp(*configured, "feeds", "set", url, "verify=", *state).stderr == "mmqjp: 1 setting changed\n"
    mmqjp("feeds", "retry", url, *state)
    again = mmqjp(*configured, "fetch", "--out", crawl, *LOCAL)
    assert again.exit_code == 0, again.stderr
    sent = server.log[-1].headers
    assert (sent["User-Agent"], sent["X-Key"], sent["Cookie"]) == ("File/1", "s3cr:et", "a=b")
    exported = mmqjp("feeds", "export", *state).stdout
    assert 'mmqjp:user="ada"' in exported and "s3cr" not in exported
    files = [path for path in crawl.rglob("*") if path.is_file() and "secrets" not in path.parts]
    assert files and not [path for path in files if b"s3cr" in path.read_bytes()]
    assert mmqjp("feeds", "set", url, "user=", "password=", "headers=", *state).exit_code == 0
    assert "password" not in mmqjp("feeds", "show", url, *state).stdout


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (["https://a.example/", "interval=soon"], "interval: 'soon' is not a duration"),
        (["https://a.example/", "intervall=1h"], "did you mean interval?"),
        (["https://a.example/"], "write a setting, such as interval=30min"),
        (["interval=1h"], "name feeds by their addresses, or folders with --folder, or --all"),
        (["https://b.example/", "hub=false"], "is not a feed of"),
        (["https://a.example/", "headers={X"], "is no TOML"),
        (["https://a.example/", "hub=false", "hub=true"], "hub is given twice"),
        (["https://a.example/", "hub=false", "--allow-private", "not a host"], "is not a host"),
    ],
)
def test_settings_that_cannot_be_are_refused(tmp_path, arguments, cause):
    assert mmqjp("feeds", "add", "https://a.example/", "--state", tmp_path / "crawl").exit_code == 0
    told = mmqjp("feeds", "set", *arguments, "--state", tmp_path / "crawl")
    assert told.exit_code in (1, 2) and cause in told.stderr


def test_feeds_inside_the_network_are_refused_at_once_with_what_allows_them(server, tmp_path):
    state = ("--state", tmp_path / "crawl")
    refusal = refused("feeds", "add", server.url("/a"), *state)
    (tmp_path / "mmqjp.toml").write_text("[serve]\nallow-private = true")
    everywhere = ("--config", tmp_path / "mmqjp.toml")
    assert mmqjp(*everywhere, "feeds", "add", server.url("/a"), "--state", tmp_path / "other").exit_code == 0
    assert "127.0.0.1 is not a public address" in refusal and "--allow-private 127.0.0.1 of mmqjp feeds add" in refusal
    (tmp_path / "list.txt").write_text(f"http://nas.lan/feed\n{server.url('/a')}\nhttps://a.example/\n")
    told = mmqjp("feeds", "add", tmp_path / "list.txt", "--allow-private", "127.0.0.0/8", *state)
    assert told.exit_code == 0 and "nas.lan is not a public address" in told.stderr
    assert told.stderr.splitlines()[-1] == "mmqjp: 2 new feeds, 2 feeds in all"
    assert mmqjp("feeds", "set", "--all", "--allow-private", "127.0.0.0/8", *state).exit_code == 0
    again = mmqjp("feeds", "add", tmp_path / "list.txt", *state)
    assert again.stderr.splitlines()[-1] == "mmqjp: 0 new feeds, 2 feeds in all; 2 were there already"
    (tmp_path / "list.txt").write_text("https://a.example/\nhttps://b.example/\n")
    more = mmqjp("feeds", "add", tmp_path / "list.txt", *state).stderr.splitlines()
    assert more == ["mmqjp: 1 new feed, 3 feeds in all; 1 was there already", "  https://b.example/"]
    mmqjp("feeds", "remove", "https://a.example/", "https://b.example/", *state)
    assert "1 new" in mmqjp("fetch", "--out", tmp_path / "crawl", "--spacing", "0s").stderr


def test_the_configuration_says_what_is_wrong_with_settings(tmp_path):
    for text, cause in (
        ('[feed."https://a.example/"]\nintervall = "1h"', "did you mean interval?"),
        ('[folder.News]\npassword = "My Secret!"', 'folder."News".password: name a secret, do not write it here'),
        ("feed = 1", "write a table, as in"),
    ):
        (tmp_path / "mmqjp.toml").write_text(text)
        told = mmqjp("--config", tmp_path / "mmqjp.toml", "feeds", "list", "--state", tmp_path)
        assert told.exit_code == 2 and cause in told.stderr and "Secret!" not in told.stderr


def test_a_list_sets_what_it_may_and_new_feeds_begin_with_their_settings(tmp_path):
    state = ("--state", tmp_path / "crawl")
    namespace = "xmlns:mmqjp='urn:mmqjp:opml'"
    (tmp_path / "f.opml").write_text(
        f"<opml {namespace}><body><outline text='A/B' mmqjp:hub='false'><outline xmlUrl='https://a.example/' "
        "mmqjp:interval='2h' mmqjp:proxy='http://evil.example:1'/></outline></body></opml>"
    )
    told = mmqjp("feeds", "add", tmp_path / "f.opml", "--set", "block=ad", "--history", "2y", *state)
    assert told.exit_code == 0 and "proxy: ignored in a list" in told.stderr
    shown = json.loads(mmqjp("feeds", "show", "https://a.example/", "--json", *state).stdout)
    assert shown["settings"] == {"interval": "2 h", "block": ["ad"], "history": "730 d", "hub": False}
    assert 'text="A/B"' in mmqjp("feeds", "export", *state).stdout


@pytest.mark.parametrize("command", ["fetch", "run"])
def test_a_list_that_is_fetched_sets_its_keys_at_each_start(server, tmp_path, command):
    listed, url = tmp_path / "f.opml", server.url("/a")
    state = ("--state", tmp_path / "crawl" / STATE_FILE if command == "fetch" else tmp_path / "crawl")
    reading = ("--queries", write_queries(tmp_path), "--output", tmp_path / "o", *state, "--fetch", listed)
    words = ("fetch", listed, "--out", tmp_path / "crawl") if command == "fetch" else ("run", *reading)

    def fetched(keys: str) -> tuple[str, dict[str, Any]]:
        listed.write_text(
            f"<opml xmlns:mmqjp='urn:mmqjp:opml'><body><outline text='N' mmqjp:hub='false'><outline xmlUrl='{url}' "
            f"{keys}/></outline></body></opml>"
        )
        result = mmqjp(*words, *LOCAL)
        return result.stderr, json.loads(mmqjp("feeds", "show", url, "--json", *state).stdout)["settings"]

    told, shown = fetched("mmqjp:user_agent='Me/1' mmqjp:ca='/etc/ca.pem' mmqjp:interval='2h'")
    assert "ca: ignored in a list" in told and server.log[-1].headers["User-Agent"] == "Me/1"
    assert shown == {"user_agent": "Me/1", "interval": "2 h", "hub": False}
    mmqjp("feeds", "set", url, "user_agent=You/1", "longest=3h", *state)
    mmqjp("feeds", "set", "--folder", "N", "hub=true", *state)
    assert fetched("mmqjp:user_agent='Me/2'")[1] == {
        "user_agent": "Me/2", "interval": "2 h", "longest": "3 h", "hub": False,
    }  # fmt: skip
    told, shown = fetched("mmqjp:interval='4h'")
    assert f"{url}: longest: write at least the interval" in told and shown["interval"] == "2 h", "nothing is changed"
    added = mmqjp("feeds", "add", listed, *HERE, *state)
    assert added.exit_code != 0 and f"{url}: longest: write at least the interval" in added.stderr
