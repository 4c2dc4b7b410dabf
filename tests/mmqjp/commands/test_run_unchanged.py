"""A run with a state passes over the files that have not changed since an earlier one, and finds what is new."""

from __future__ import annotations

import json
import os
from pathlib import Path
from random import Random

import pytest

from feeds import stamps
from feeds.stamps import SETTLED, stamp_of
from feeds.tail import Tail
from mmqjp.commands import run as run_module
from mmqjp.engine import Session
from mmqjp.service import drops
from tests.support.cli import mmqjp, write_queries

QUERY = "FROM S//item->a[./title->t] JOIN {t = u, INF} S//item->b[./title->u] PUBLISH same"
FEED = """<rss version="2.0"><channel><title>A feed</title><link>http://{host}/</link>
<atom:link xmlns:atom="http://www.w3.org/2005/Atom" rel="self" href="http://{host}/feed"/>{items}</channel></rss>"""
ITEM = "<item><guid>{guid}</guid><title>{title}</title><pubDate>Thu, 01 Jan 2026 00:0{n}:00 GMT</pubDate></item>"
LATER = 10**19
"""A clock by which every file is old."""


def feed(path: Path, host: str, *titles: str) -> Path:
    items = "".join(ITEM.format(guid=f"{host}-{n}", title=title, n=n) for n, title in enumerate(titles))
    path.write_text(FEED.format(host=host, items=items))
    return path


class Feeds:
    """A directory of feeds, and runs over it that note which files they read."""

    def __init__(self, place: Path, read: list[str]) -> None:
        self.path, self.state, self.output = place / "feeds", place / "state", place / "out.jsonl"
        self.path.mkdir()
        self.read, self._queries = read, write_queries(place, QUERY)

    def run(self, *options: str) -> list[str]:
        """The names of the files that a run reads."""
        self.read.clear()
        where = {"--documents": self.path, "--state": self.state, "--output": self.output}
        paths = ["--feeds", *(str(part) for pair in where.items() for part in pair)]
        result = mmqjp("run", "--queries", self._queries, *paths, "--engine", "duckdb", *options)
        assert result.exit_code == 0, result.stderr
        return sorted(set(self.read))

    def lines(self) -> int:
        return len(self.output.read_text().splitlines())


@pytest.fixture
def feeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Feeds:
    read: list[str] = []
    real = Tail._items

    def items(self, file):
        read.append(file.name)
        return real(self, file)

    monkeypatch.setattr(Tail, "_items", items)
    monkeypatch.setattr(drops, "time_ns", lambda: LATER)
    return Feeds(tmp_path, read)


def test_unchanged_files_are_read_once(feeds: Feeds):
    feed(feeds.path / "a.xml", "a.example", "One", "Two")
    feed(feeds.path / "b.xml", "b.example", "One")
    assert feeds.run() == ["a.xml", "b.xml"] and feeds.lines() == 2
    assert feeds.run() == [] and feeds.lines() == 2
    feed(feeds.path / "c.xml", "c.example", "Two")
    assert feeds.run() == ["c.xml"] and feeds.lines() == 4
    feed(feeds.path / "b.xml", "b.example", "One", "Two")
    assert feeds.run() == ["b.xml"] and feeds.lines() == 8


def test_unchanged_files_are_not_even_opened(feeds: Feeds, monkeypatch: pytest.MonkeyPatch):
    feed(feeds.path / "a.xml", "a.example", "One")
    feeds.run()
    monkeypatch.setattr(stamps, "_digest", lambda paths: pytest.fail(f"{paths} were read"))
    assert feeds.run() == []


def test_a_file_whose_time_alone_has_changed_is_not_parsed_again(feeds: Feeds, monkeypatch: pytest.MonkeyPatch):
    path = feed(feeds.path / "a.xml", "a.example", "One")
    feeds.run()
    os.utime(path, (1, 1))
    assert feeds.run() == []
    monkeypatch.setattr(stamps, "_digest", lambda paths: pytest.fail("the new time was not kept"))
    assert feeds.run() == []


def test_a_change_that_keeps_size_and_time_of_a_new_file_is_seen(feeds: Feeds, monkeypatch: pytest.MonkeyPatch):
    path = feed(feeds.path / "a.xml", "a.example", "One")
    status = path.stat()
    soon = max(status.st_mtime_ns, status.st_ctime_ns) + SETTLED
    monkeypatch.setattr(drops, "time_ns", lambda: soon)
    feeds.run()
    (kept,) = (offset.fingerprint for offset in opened_offsets(feeds))
    assert kept.startswith(" "), "its times cannot be relied on"
    feed(path, "a.example", "Two")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert feeds.run() == ["a.xml"]


def opened_offsets(feeds: Feeds):
    with Session("duckdb", state=feeds.state) as engine:
        return list(engine.offsets().values())


def test_a_changed_sidecar_has_its_feed_read_again(feeds: Feeds):
    feed(feeds.path / "a.xml", "a.example", "One")
    (feeds.path / "a.json").write_text('{"url": "http://a.example/feed", "fetched_at": "2026-01-02T00:00:00Z"}')
    assert "a.xml" in feeds.run() and feeds.run() == []
    (feeds.path / "a.json").write_text('{"url": "http://z.example/feed", "fetched_at": "2026-01-02T00:00:00Z"}')
    assert "a.xml" in feeds.run()


def test_another_way_to_read_reads_all_again(feeds: Feeds):
    feed(feeds.path / "a.xml", "a.example", "One")
    assert feeds.run() == ["a.xml"] and feeds.run("--feeds=raw") == ["a.xml"]
    assert feeds.run() == [] and feeds.run("--versions", "ignore") == ["a.xml"]


def test_files_that_give_dead_letters_are_read_each_time(feeds: Feeds):
    feed(feeds.path / "a.xml", "a.example", "One")
    (feeds.path / "bad.xml").write_text("<rss")
    (feeds.path / "no.xml").write_text("none")
    assert feeds.run() == ["a.xml", "bad.xml", "no.xml"]
    assert feeds.run("--dead-letters", str(feeds.output.with_name("dead"))) == ["bad.xml", "no.xml"]
    assert len(feeds.output.with_name("dead").read_text().splitlines()) == 2


def test_a_run_that_was_killed_reads_what_it_had_not_noted(feeds: Feeds, monkeypatch: pytest.MonkeyPatch):
    for name in "abc":
        feed(feeds.path / f"{name}.xml", f"{name}.example", "One")
    real, batches = Session.process, []

    def process(self, *given, **options):
        batches.append(1)
        if len(batches) == 2:
            raise OSError("killed")
        return real(self, *given, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Session, "process", process)
        with pytest.raises(AssertionError, match="killed"):
            feeds.run("--batch-size", "1")
    again = feeds.run()
    assert {"b.xml", "c.xml"} <= set(again)
    assert feeds.lines() == 6 and feeds.run() == []


def test_what_is_kept_is_forgotten_with_its_file(feeds: Feeds, monkeypatch: pytest.MonkeyPatch):
    for name in "abc":
        feed(feeds.path / f"{name}.xml", f"{name}.example", name)
    feeds.run()
    assert len(opened_offsets(feeds)) == 3
    monkeypatch.setattr(run_module, "PRUNE_INTERVAL", 1)
    monkeypatch.setattr("mmqjp.state.eviction.OFFSETS_COMPACTED_AFTER", -10)
    for name in "ab":
        (feeds.path / f"{name}.xml").unlink()
    feeds.run()
    assert [offset.file for offset in opened_offsets(feeds)] == ["c.xml"]


def test_without_a_state_everything_is_read(feeds: Feeds):
    feed(feeds.path / "a.xml", "a.example", "One")
    asked = ["run", "--queries", str(feeds._queries), "--documents", str(feeds.path), "--feeds", "--engine", "duckdb"]
    for _ in range(2):
        feeds.read.clear()
        assert mmqjp(*asked).exit_code == 0 and feeds.read == ["a.xml"]


def test_pipes_and_what_cannot_be_read_have_no_stamp(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    assert stamp_of(tmp_path / "pipe", "", LATER) is None
    assert stamp_of(tmp_path / "gone", "", LATER) is None


def test_many_runs_as_files_come_find_what_one_run_over_all_finds(feeds: Feeds, tmp_path: Path):
    random, fetches = Random(3), []
    for number in range(12):
        host = random.choice(("a.example", "b.example"))
        titles = [random.choice(("One", "Two", "Three")) for _ in range(3)]
        fetches.append((f"{number:02}", host, titles))

    def write(number: str, host: str, titles: list[str]) -> None:
        feed(feeds.path / f"{number}.xml", host, *titles)
        notes = {"url": f"http://{host}/feed", "fetched_at": f"2026-01-02T{number}:00:00Z"}
        (feeds.path / f"{number}.json").write_text(json.dumps(notes))

    for fetch in fetches:
        write(*fetch)
        feeds.run()
    apart = found(feeds.output)
    feeds.state, feeds.output = tmp_path / "other", tmp_path / "other.jsonl"
    feeds.run()
    assert apart == found(feeds.output) and len(apart) > 20


def found(output: Path) -> list[str]:
    """The outputs in a file, without their numbers."""
    lines = map(json.loads, output.read_text().splitlines())
    return sorted(json.dumps({**line, "seq": 0}) for line in lines)
