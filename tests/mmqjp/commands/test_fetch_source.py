"""`--fetch` of `run` and `stream`: what is fetched is read once, and goes when it may; where items are from."""

import errno
import json
import os
import signal
import threading
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import pytest
from lxml import etree

from common.dates import HOUR
from feeds.fetch.fetcher import DropArchive
from feeds.fetch.state import STATE_FILE, FetchStore, source_name
from feeds.readers import ALL_READ, Offset
from mmqjp.service.drops import FETCHED, DropDirectory
from mmqjp.service.log import JsonLog
from tests.support.cli import mmqjp, write_queries
from tests.support.feed_server import START, FeedServer, Hours, Request, rss, running_server

QUERY = "FROM S//item->a[./title->t] JOIN { t = u, INF } S//item->b[./title->u] PUBLISH same"
QUICK = ["--engine", "duckdb", "--allow-private", "--spacing", "0s", "--lateness", "INF"]


@pytest.fixture
def server():
    with running_server() as server:
        server.serve("/a", rss("one", "two", guid="a"))
        server.validated("/b", rss("two", "three", guid="b"), '"b"')
        yield server


@pytest.fixture
def call(server, tmp_path):
    (tmp_path / "feeds.txt").write_text(f"{server.url('/a')}\n{server.url('/b')}\n")
    queries = write_queries(tmp_path, QUERY)

    def call(command: str, *options: str | Path) -> Any:
        places = ["--queries", queries, "--fetch", tmp_path / "feeds.txt", "--state", tmp_path / "state"]
        return mmqjp(command, *map(str, places), *QUICK, *options)

    return call


def due(state: Path) -> None:
    with FetchStore(state / "drops" / STATE_FILE, write=True) as store:
        for feed in store.feeds():
            store.commit(replace(feed, next_check=0))


def lines(text: str) -> int:
    return len([line for line in text.splitlines() if line.startswith('{"id"')])


NOW = ["--trigger", "available-now"]


@pytest.mark.parametrize("commands", [("run", "stream"), ("stream", "run")])
def test_what_is_new_is_fetched_and_answered_once(commands, call, server, tmp_path):
    """`run` and `stream` may take turns on one state."""
    (first, *options), (second, *more) = ([one, *(NOW if one == "stream" else [])] for one in commands)
    result = call(first, *options)
    assert result.exit_code == 0, result.stderr
    assert lines(result.stdout) == 2 and server.paths() == ["/a", "/b"]
    assert lines(call(first, *options).stdout) == 0 and len(server.log) == 2  # none is due
    due(tmp_path / "state")
    server.serve("/a", rss("one", "two", "three", guid="a"))
    assert lines(call(second, *more).stdout) == 2 and len(server.log) == 4
    assert server.log[-1].headers.get("If-None-Match") or server.log[-2].headers.get("If-None-Match")
    listed = mmqjp("feeds", "list", "--state", tmp_path / "state")
    assert listed.exit_code == 0 and "200" in listed.stdout and "304" in listed.stdout


def test_something_must_be_named_to_be_read_and_a_crawl_is_not_it(server, tmp_path):
    crawl = tmp_path / "crawl"
    fetched = mmqjp("fetch", server.url("/a"), "--out", crawl, "--allow-private")
    assert fetched.exit_code == 0, fetched.stderr
    before = (crawl / STATE_FILE).read_bytes()
    result = mmqjp("run", "--queries", write_queries(tmp_path, QUERY), "--fetch", "--state", crawl, *QUICK)
    assert result.exit_code == 2 and "needs a --state with feeds" in result.stderr
    assert (crawl / STATE_FILE).read_bytes() == before
    queries = write_queries(tmp_path, QUERY)
    for command in ("run", "stream"):
        result = mmqjp(command, "--engine", "duckdb", "--queries", queries, "--state", tmp_path / "state")
        assert result.exit_code == 2 and "--fetch" in result.stderr and result.stderr.count("\n") == 1


def test_run_without_a_state_leaves_nothing(server, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "tmp").mkdir()
    queries = write_queries(tmp_path, QUERY)
    arguments = ["run", "--queries", queries, *QUICK, "--fetch", server.url("/a"), "--fetch", server.url("/missing")]
    result = mmqjp(*arguments, "--documents", tmp_path / "x.jsonl")
    assert result.exit_code == 2
    (tmp_path / "x.jsonl").write_text(json.dumps({"id": "d", "xml": "<item><title>one</title></item>"}))
    result = mmqjp(*arguments, "--documents", tmp_path / "x.jsonl")
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
    assert {(event["feed"], event["outcome"]) for event in events(result, "fetch")} == {
        (server.url("/a"), "new"),
        (server.url("/b"), "new"),
    }
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


@pytest.mark.parametrize("options", [[], NOW])
def test_a_fetch_that_fails_as_a_whole_ends_the_stream_with_its_error(call, monkeypatch, options):
    def full(archive: DropArchive, capture: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "drops")

    with monkeypatch.context() as patched:
        patched.setattr(DropArchive, "keep", full)
        result = call("stream", "--log", "json", *options)
    assert result.exit_code == 1
    assert [event["error"] for event in events(result, "fetch-failed")] != []
    last = result.stderr.splitlines()[-1]
    assert last == "mmqjp: error: drops: No space left on device; make room on the disk, or write elsewhere"
    assert lines(call("stream", *NOW).stdout) == 2


class Offsets:
    def __init__(self, *read: str) -> None:
        self.read, self.ledger = read, self

    def offsets(self) -> dict[tuple[str, str], Offset]:
        read = [*((FETCHED, name) for name in self.read), ("else", "x")]
        return {(source, file): Offset(source, file, ALL_READ) for source, file in read}


def test_versions_that_are_read_go_after_a_while_but_for_the_newest(fetching, server, tmp_path):
    url = server.url("/a")
    for number in range(4):
        server.serve("/a", rss(str(number)))
        fetching.run(url)
        fetching.later(2 * 3600)
    folder = fetching.directory / source_name(url)
    names = [f"{folder.name}/{path.name}" for path in sorted(folder.glob("*.xml"))]

    def left(drops: DropDirectory, *read: str) -> int:
        drops.sweep(Offsets(*read))  # type: ignore[arg-type]
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


PLAIN = ["--engine", "duckdb", "--lateness", "INF"]

WORLD = """SELECT t, f FROM S//item[./feed_title->t][./folder->f][./title = "one"] PUBLISH world"""


def section(name: str, *items: tuple[str, str]) -> str:
    """A section of a news site. Items have a title, which is in their addresses, and HTML."""
    made = "".join(
        f"<item><title>{title}</title><link>https://news.example/{title}</link>"
        f"<description>{escape(html)}</description></item>"
        for title, html in items
    )
    channel = f"<title>News: {name}</title><link>https://news.example/</link><language>en</language>"
    return f'<rss version="2.0"><channel>{channel}{made}</channel></rss>'


@pytest.fixture
def news():
    with running_server() as server:
        link = "see <a href='http://news.example:80/one/?utm_source=rss'>one</a>"
        server.serve("/world", section("world", ("one", "first"), ("two", link)))
        server.serve("/sport", section("sport", ("one", "first, in another section")))
        yield server


def opml(server: FeedServer) -> str:
    """A list that has the section of sports in two folders, and the other, with a title, in a folder of a folder."""
    world, sport = server.url("/world"), server.url("/sport")
    inner = f'<outline text="World"><outline text="My world" xmlUrl="{world}"/></outline>'
    feed = f'<outline xmlUrl="{sport}"/>'
    folders = f'<outline text="News">{inner}{feed}</outline><outline text="Games">{feed}</outline>'
    return f"<opml><body>{folders}</body></opml>"


WORLDS = {
    ("My world", "News"), ("My world", "News/World"), ("News: sport", "News"), ("News: sport", "Games"),
}  # fmt: skip


def told(text: str) -> set[tuple[str, str]]:
    outputs = [etree.fromstring(json.loads(line)["xml"]) for line in text.splitlines() if '"world"' in line]
    return {(output.findtext("t/feed_title", ""), output.findtext("f/folder", "")) for output in outputs}


@pytest.mark.parametrize("way", ["stream --fetch", "warc"])
def test_titles_and_folders_come_from_the_list_to_the_items(news, tmp_path, way):
    queries = write_queries(tmp_path, WORLD)
    (tmp_path / "feeds.opml").write_text(opml(news))
    local = ["--allow-private", "--spacing", "0s"]
    reading = ["--queries", queries, *PLAIN, "--state", tmp_path / "state"]
    if way == "stream --fetch":
        result = mmqjp("stream", *reading, "--trigger", "available-now", *local, "--fetch", tmp_path / "feeds.opml")
    else:
        assert mmqjp("fetch", tmp_path / "feeds.opml", "--out", tmp_path / "crawl", *local, "--warc").exit_code == 0
        result = mmqjp("run", *reading, "--documents", tmp_path / "crawl", "--feeds")
    assert result.exit_code == 0, result.stderr
    assert told(result.stdout) == WORLDS


def test_a_feed_that_is_renamed_gives_its_new_title_with_what_is_new(news, tmp_path):
    queries = write_queries(tmp_path, "SELECT i/title AS t, i/feed_title AS f FROM S//item->i PUBLISH all")
    fetch = ["--fetch", news.url("/sport"), "--allow-private", "--spacing", "0s"]
    run = ["run", "--queries", queries, *PLAIN, "--state", tmp_path / "state", *fetch]
    assert "<f><feed_title>News: sport</feed_title></f>" in mmqjp(*run).stdout
    news.serve("/sport", section("sport", ("one", "first, in another section"), ("three", "third")))
    state = ["--state", tmp_path / "state"]
    assert mmqjp("feeds", "rename", news.url("/sport"), "Games", *state).exit_code == 0
    with FetchStore(tmp_path / "state" / "drops" / STATE_FILE, write=True) as store:
        for feed in store.feeds():
            store.commit(replace(feed, next_check=0))
    (line,) = mmqjp(*run).stdout.splitlines()  # the entry that was there before is no new version
    assert "<f><feed_title>Games</feed_title></f>" in line and "three" in line
