"""`--fetch` of `run` and `stream`: what is fetched is read once, whatever ends in between, and goes when it may."""

import errno
import json
import os
import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from feeds.fetch.archive import DropArchive
from feeds.fetch.state import STATE_FILE, FetchStore, source_name
from feeds.readers import ALL_READ, Offset
from mmqjp.engine import Session
from mmqjp.service.drops import FETCHED, HOUR, DropDirectory
from mmqjp.service.log import JsonLog, NullLog
from mmqjp.service.metrics import Metrics
from tests.support.cli import mmqjp, write_queries
from tests.support.feed_server import START, Hours, Request, rss, running_server

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


@pytest.mark.parametrize("commands", [("run", "run"), ("run", "stream"), ("stream", "run")])
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


@pytest.mark.soak
@pytest.mark.spark
def test_on_spark_what_executors_read_of_feeds_is_judged_by_what_was_met(call, server, tmp_path):
    spark = ["--engine", "spark", *NOW]
    result = call("stream", *spark)
    assert result.exit_code == 0, result.stderr
    assert lines(result.stdout) == 2
    due(tmp_path / "state")
    server.serve("/a", rss("one", "two", "three", guid="a").replace("<title>one", "<title>two"))
    # "three" is new, and the changed entry joins both others called "two": each as the left one and as the right one
    assert lines(call("stream", *spark).stdout) == 6
    assert lines(call("stream", *spark).stdout) == 0 and len(server.log) == 4


def test_feeds_may_be_added_before_there_is_a_store(server, tmp_path):
    state = tmp_path / "state"
    for path in ("/a", "/b"):
        assert mmqjp("feeds", "add", server.url(path), "--state", state).exit_code == 0
    places = ["--queries", write_queries(tmp_path, QUERY), "--fetch", "--state", state]
    result = mmqjp("run", *places, *QUICK)
    assert result.exit_code == 0, result.stderr
    assert lines(result.stdout) == 2 and server.paths() == ["/a", "/b"]
    added = mmqjp("feeds", "add", server.url("/a"), "--state", state)
    assert "0 new feeds, 2 feeds in all" in added.stderr
    assert "200" in mmqjp("feeds", "list", "--state", state).stdout


def test_the_feeds_of_a_crawl_stay_where_they_are(server, tmp_path):
    crawl = tmp_path / "crawl"
    fetched = mmqjp("fetch", server.url("/a"), "--out", crawl, "--allow-private")
    assert fetched.exit_code == 0, fetched.stderr
    before = (crawl / STATE_FILE).read_bytes()
    result = mmqjp("run", "--queries", write_queries(tmp_path, QUERY), "--fetch", "--state", crawl, *QUICK)
    assert result.exit_code == 2 and "needs a --state with feeds" in result.stderr
    assert (crawl / STATE_FILE).read_bytes() == before


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


def test_raw_entries_can_be_fetched_too(call):
    raw = call("run", "--feeds=raw")
    assert ">Site</channel_title>" in raw.stdout and lines(raw.stdout) == 2


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


def test_a_feed_that_fails_is_an_event(call, server):
    server.serve("/a", b"", 500)
    (event,) = [event for event in events(call("stream", "--log", "json", *NOW), "fetch") if event["outcome"] != "new"]
    assert (event["outcome"], event["status"], event["reason"]) == ("failed", 500, "the server answered 500")


def test_visits_are_counted_for_prometheus():
    metrics = Metrics(NullLog())
    for outcome in ("new", "failed", "new"):
        metrics.event("fetch", feed="https://x.example/", outcome=outcome)
    assert metrics.registry.get_sample_value("mmqjp_fetches_total", {"outcome": "new"}) == 2


def test_something_must_be_named_to_be_read(tmp_path):
    queries = write_queries(tmp_path, QUERY)
    for command in ("run", "stream"):
        result = mmqjp(command, "--engine", "duckdb", "--queries", queries, "--state", tmp_path / "state")
        assert result.exit_code == 2 and "--fetch" in result.stderr and result.stderr.count("\n") == 1


class Offsets:
    def __init__(self, *read: str) -> None:
        self.read = read

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


def test_a_stream_removes_what_it_has_read(call, server, tmp_path):
    for number in range(3):
        server.serve("/a", rss(str(number)))
        assert call("stream", *NOW, "--keep-drops", "0s").exit_code == 0
        due(tmp_path / "state")
    folder = tmp_path / "state" / "drops" / source_name(server.url("/a"))
    assert len(list(folder.iterdir())) == 2


@pytest.mark.parametrize("command", ["run", "stream"])
def test_notes_that_later_ones_supersede_are_dropped(command, call, server, tmp_path, monkeypatch):
    monkeypatch.setattr("mmqjp.service.loop.PRUNE_INTERVAL", 4)
    monkeypatch.setattr("mmqjp.commands.run.PRUNE_INTERVAL", 4)
    monkeypatch.setattr("mmqjp.state.eviction.OFFSETS_COMPACTED_AFTER", 0)
    sizes = []
    for number in range(6):
        server.serve("/a", rss(str(number)))
        assert call(command, "--keep-drops", "0s", *(NOW if command == "stream" else [])).exit_code == 0
        due(tmp_path / "state")
        with Session("duckdb", state=tmp_path / "state") as engine:
            counted = engine.sql("SELECT (SELECT count(*) FROM settings) + (SELECT count(*) FROM offsets)")
        sizes.append(counted.column(0)[0].as_py())
    assert max(sizes) < 40 and max(sizes[4:]) <= max(sizes[:5]) + 4
