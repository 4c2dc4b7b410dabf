"""Runs with a state pass over files that have not changed, and read again what an earlier run refused or missed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from feeds.stamps import SETTLED, stamp_of
from feeds.tail import Tail
from mmqjp.engine import Session
from tests.support.cli import mmqjp, write_queries

QUERY = "FROM S//item->a[./title->t] JOIN {t = u, INF} S//item->b[./title->u] PUBLISH same"
FEED = """<rss version="2.0"><channel><title>A feed</title><link>http://{host}/</link>
<atom:link xmlns:atom="http://www.w3.org/2005/Atom" rel="self" href="http://{host}/feed"/>{items}</channel></rss>"""
ITEM = "<item><guid>{}</guid><title>{}</title><pubDate>{}</pubDate></item>"
NEW, OLD = "Mon, 01 Jun 2026 23:59:00 GMT", "Mon, 01 Jan 2024 00:00:00 GMT"
LINE = '{{"id": "{0}", "time": "2026-01-01T00:00:00Z", "xml": "<{0}/>"}}\n'
LATER = 10**19
"""A clock by which every file is old."""


def feed(path: Path, host: str, *titles: str) -> Path:
    date = "Thu, 01 Jan 2026 00:0{}:00 GMT"
    items = "".join(ITEM.format(f"{host}-{n}", title, date.format(n)) for n, title in enumerate(titles))
    path.write_text(FEED.format(host=host, items=items))
    return path


def sidecar(path: Path, host: str, fetched_at: str = "2026-01-02T00:00:00Z") -> None:
    path.with_suffix(".json").write_text(json.dumps({"url": f"http://{host}/feed", "fetched_at": fetched_at}))


class Runs:
    """A directory, and runs over it that note which files they read. `dead` counts the dead letters of the last one."""

    def __init__(self, place: Path, read: list[str]) -> None:
        self.path, self.state, self.output, self.dead_letters = (place / n for n in ("in", "state", "out", "dead"))
        self.path.mkdir()
        self.read, self.dead = read, 0
        self.arguments: list[str | Path] = ["run", "--queries", write_queries(place, QUERY), "--documents", self.path]

    def run(self, *options: str, feeds: str = "--feeds") -> list[str]:
        """The names of the files that a run reads."""
        self.read.clear()
        where: list[str | Path] = ["--state", self.state, "--output", self.output, "--dead-letters", self.dead_letters]
        result = mmqjp(*self.arguments, *where, "--engine", "duckdb", *([feeds] if feeds else []), *options)
        assert result.exit_code == 0, result.stderr
        self.dead = len(self.dead_letters.read_text().splitlines()) if self.dead_letters.exists() else 0
        return sorted(set(self.read))

    def lines(self) -> int:
        return len(self.output.read_text().splitlines())

    def fetch(self, number: int, *entries: tuple[str, str]) -> None:
        """Writes a fetch of a feed, given the guids and dates of its entries."""
        items = "".join(ITEM.format(guid, guid, date) for guid, date in entries)
        (self.path / f"{number}.xml").write_text(FEED.format(host="a.example", items=items))
        sidecar(self.path / f"{number}.xml", "a.example", f"2026-06-0{number + 1}T00:00:00Z")

    def stored(self) -> list[tuple[str, int]]:
        """The ids and times of the stored documents."""
        with Session("duckdb", state=self.state, read_only=True) as engine:
            rows = engine.sql("SELECT id, t0 FROM documents WHERE kind = 'external' ORDER BY id").to_pylist()
            return [(row["id"], row["t0"]) for row in rows]

    def noted(self) -> dict[str, str]:
        """The fingerprints of the files that a later run passes over."""
        with Session("duckdb", state=self.state, read_only=True) as engine:
            return {offset.file: offset.fingerprint for offset in engine.offsets().values()}


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    read: list[str] = []
    real = Tail._items

    def items(self, file):
        read.append(file.name)
        return real(self, file)

    monkeypatch.setattr(Tail, "_items", items)
    monkeypatch.setattr("mmqjp.service.drops.time_ns", lambda: LATER)
    return Runs(tmp_path, read)


def killed(runs: Runs, monkeypatch: pytest.MonkeyPatch, after: Callable[[Session], object]) -> None:
    """A run with batches of one document, killed after the first batch for which `after` is true."""
    real = Session.process

    def process(self, *given, **options):
        real(self, *given, **options)
        if after(self):
            raise OSError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(Session, "process", process)
        with pytest.raises(AssertionError, match="killed"):
            runs.run("--batch-size", "1", "--lateness", "1h")


# ---------------------------------------------------------------- unchanged files


def test_unchanged_files_are_read_once(runs: Runs, monkeypatch: pytest.MonkeyPatch):
    path = feed(runs.path / "a.xml", "a.example", "One", "Two")
    feed(runs.path / "b.xml", "b.example", "One")

    def nothing_is_opened() -> None:
        with monkeypatch.context() as patched:
            patched.setattr("feeds.stamps._digest", lambda paths: pytest.fail(f"{paths} were read"))
            assert runs.run() == []

    assert runs.run() == ["a.xml", "b.xml"] and runs.lines() == 2
    nothing_is_opened()
    assert runs.lines() == 2
    feed(runs.path / "c.xml", "c.example", "Two")
    assert runs.run() == ["c.xml"] and runs.lines() == 4
    feed(runs.path / "b.xml", "b.example", "One", "Two")
    assert runs.run() == ["b.xml"] and runs.lines() == 8
    os.utime(path, (1, 1))
    assert runs.run() == [], "its content is the same"
    nothing_is_opened()  # the new time was noted


def test_a_change_that_keeps_size_and_time_of_a_new_file_is_seen(runs: Runs, monkeypatch: pytest.MonkeyPatch):
    path = feed(runs.path / "a.xml", "a.example", "One")
    status = path.stat()
    soon = max(status.st_mtime_ns, status.st_ctime_ns) + SETTLED
    monkeypatch.setattr("mmqjp.service.drops.time_ns", lambda: soon)
    runs.run()
    assert runs.noted()["a.xml"].startswith(" "), "its times cannot be relied on"
    feed(path, "a.example", "Two")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert runs.run() == ["a.xml"]


def test_another_sidecar_or_way_to_read_reads_a_file_again(runs: Runs):
    path = feed(runs.path / "a.xml", "a.example", "One")
    sidecar(path, "a.example")
    assert "a.xml" in runs.run() and runs.run() == []
    sidecar(path, "z.example")
    assert "a.xml" in runs.run()
    assert "a.xml" in runs.run(feeds="--feeds=raw") and runs.run(feeds="--feeds=raw") == []
    assert "a.xml" in runs.run("--versions", "ignore", feeds="--feeds=raw")


def test_files_that_give_dead_letters_are_read_each_time(runs: Runs):
    feed(runs.path / "a.xml", "a.example", "One")
    (runs.path / "bad.xml").write_text("<rss")
    (runs.path / "no.xml").write_text("none")
    assert runs.run() == ["a.xml", "bad.xml", "no.xml"]
    assert runs.run() == ["bad.xml", "no.xml"] and runs.dead == 2


def test_what_is_noted_of_files_is_forgotten_with_them(runs: Runs, monkeypatch: pytest.MonkeyPatch):
    for name in "abc":
        feed(runs.path / f"{name}.xml", f"{name}.example", name)
    runs.run()
    assert len(runs.noted()) == 3
    monkeypatch.setattr("mmqjp.commands.run.PRUNE_INTERVAL", 1)
    monkeypatch.setattr("mmqjp.state.eviction.OFFSETS_COMPACTED_AFTER", -10)
    for name in "ab":
        (runs.path / f"{name}.xml").unlink()
    runs.run()
    assert list(runs.noted()) == ["c.xml"]


def test_without_a_state_everything_is_read(runs: Runs):
    feed(runs.path / "a.xml", "a.example", "One")
    for _ in range(2):
        runs.read.clear()
        assert mmqjp(*runs.arguments, "--feeds", "--engine", "duckdb").exit_code == 0 and runs.read == ["a.xml"]


def test_pipes_and_what_cannot_be_looked_at_have_no_stamp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "a.xml").write_text("<a/>")
    assert [stamp_of(tmp_path / name, "", LATER) is None for name in ("pipe", "gone", "a.xml")] == [True, True, False]

    def refused(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", refused)
    assert stamp_of(tmp_path / "a.xml", "", LATER) is None


def test_many_runs_as_files_come_find_what_one_run_over_all_finds(runs: Runs, tmp_path: Path):
    random = Random(3)
    for number in range(8):
        host = random.choice(("a.example", "b.example"))
        path = feed(runs.path / f"{number:02}.xml", host, *random.choices(("One", "Two", "Three"), k=3))
        sidecar(path, host, f"2026-01-02T{number:02}:00:00Z")
        runs.run()
    apart = found(runs.output)
    runs.state, runs.output = tmp_path / "other", tmp_path / "other.jsonl"
    runs.run()
    assert apart == found(runs.output) and len(apart) > 20


def found(output: Path) -> list[str]:
    lines = map(json.loads, output.read_text().splitlines())
    return sorted(json.dumps({**line, "seq": 0}) for line in lines)


# ---------------------------------------------------------------- what an earlier run refused or missed


def test_an_entry_that_was_late_is_taken_by_a_run_that_lets_it_be(runs: Runs, tmp_path: Path):
    for number, entries in enumerate(([("a", NEW)], [("a", NEW), ("b", OLD)], [("a", NEW), ("b", OLD)]), 1):
        runs.fetch(number, *entries)
    for _ in range(2):
        runs.run("--lateness", "1h", "--batch-size", "1")
        assert runs.dead == 1 and len(runs.stored()) == 1 and "2.xml" not in runs.noted()
    runs.run("--lateness", "INF")
    assert runs.dead == 0 and runs.noted().keys() >= {"1.xml", "2.xml", "3.xml"}
    stored, runs.state = runs.stored(), tmp_path / "new"
    runs.run("--lateness", "INF")
    assert runs.stored() == stored and len(stored) == 2


def test_a_run_that_was_killed_reads_what_it_had_not_noted(runs: Runs, monkeypatch: pytest.MonkeyPatch):
    for name in "abc":
        feed(runs.path / f"{name}.xml", f"{name}.example", "One")
    killed(runs, monkeypatch, after=lambda session: True)
    assert {"b.xml", "c.xml"} <= set(runs.run())
    assert runs.lines() == 6 and runs.run() == []


def test_a_kill_right_after_the_batch_of_a_refused_entry_loses_nothing(runs: Runs, monkeypatch: pytest.MonkeyPatch):
    runs.fetch(1, ("a", NEW))
    runs.fetch(2, ("b", OLD), ("a", NEW))
    killed(runs, monkeypatch, after=Session.last_dead_letters)
    runs.run("--lateness", "INF")
    assert len(runs.stored()) == 2 and runs.noted().keys() >= {"1.xml", "2.xml"}


@pytest.mark.parametrize("feeds", ["--feeds", ""])
def test_a_name_so_long_that_no_sidecar_can_have_it_is_read_and_noted(runs: Runs, feeds: str):
    name = "a" * 251 + ".xml"
    feed(runs.path / name, "a.example", "One")
    assert runs.run(feeds=feeds) == [name] and runs.dead == 0
    assert len(runs.stored()) == 1 and list(runs.noted()) == [name]


@pytest.mark.parametrize("clock", [LATER, 0], ids=["times", "digests"])
@pytest.mark.parametrize("until_end", [True, False], ids=["until its end", "while it is read"])
def test_a_file_that_was_another_while_it_was_read_is_read_again(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, clock: int, until_end: bool
):
    for name in "ab":
        (runs.path / f"{name}.old").write_text(LINE.format(name))
    link, real = runs.path / "now.jsonl", Tail.drain

    def point_to(name: str) -> None:
        link.unlink(missing_ok=True)
        link.symlink_to(runs.path / f"{name}.old")

    def switched(items):
        yield from items
        if not until_end:
            point_to("a")

    def drain(self, is_wanted):
        for file, items in real(self, is_wanted):
            point_to("b")
            yield file, switched(items)

    point_to("a")
    monkeypatch.setattr("mmqjp.service.drops.time_ns", lambda: clock)
    with monkeypatch.context() as patched:
        patched.setattr(Tail, "drain", drain)
        runs.run(feeds="")
    point_to("a")
    runs.run(feeds="")
    assert [id for id, _ in runs.stored()] == ["a", "b"] and list(runs.noted()) == ["now.jsonl"]


def test_files_whose_names_are_one_as_text_do_not_share_a_stamp(runs: Runs):
    place = os.fsencode(runs.path)
    for name, content in ((b"\xfe", LINE.format("a")), (b"\xff", LINE.format("b") + "none\n")):
        with open(place + b"/" + name + b".jsonl", "w") as file:  # noqa: PTH123  # a name in bytes
            file.write(content)
    for _ in range(3):
        runs.run("--batch-size", "1", feeds="")
        assert (runs.dead, runs.noted(), len(runs.stored())) == (1, {}, 2)
