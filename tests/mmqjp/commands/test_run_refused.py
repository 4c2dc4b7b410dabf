"""A run with a state tries again what became a dead letter in an earlier run, and reads what it may have missed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from feeds.stamps import stamp_of
from feeds.tail import Tail
from mmqjp.engine import Session
from mmqjp.service import drops
from tests.support.cli import mmqjp, write_queries

QUERY = "FROM S//item->a PUBLISH items"
FEED = '<rss version="2.0"><channel><title>F</title><link>http://a.example/</link>{}</channel></rss>'
ITEM = "<item><guid>{}</guid><title>{}</title><pubDate>{}</pubDate></item>"
LATER = 10**19
"""A clock by which every file is old."""
NEW, OLD = "Mon, 01 Jun 2026 23:59:00 GMT", "Mon, 01 Jan 2024 00:00:00 GMT"

LINE = '{{"id": "{0}", "time": "2026-01-01T00:00:00Z", "xml": "<{0}/>"}}\n'


class Runs:
    """A directory, and runs over it with a state."""

    def __init__(self, place: Path) -> None:
        self.path, self.place = place / "d", place
        self.path.mkdir()
        self.queries = write_queries(place, QUERY)

    def fetch(self, number: int, *entries: tuple[str, str]) -> None:
        """Writes a fetch of the feed, given the guids and dates of its entries."""
        items = "".join(ITEM.format(guid, guid, date) for guid, date in entries)
        (self.path / f"{number}.xml").write_text(FEED.format(items))
        notes = {"url": "http://a.example/feed", "fetched_at": f"2026-06-0{number + 1}T00:00:00Z"}
        (self.path / f"{number}.json").write_text(json.dumps(notes))

    def run(self, *options: str, state: str = "st") -> int:
        """The number of dead letters of a run."""
        dead = self.place / "dead"
        where = {"--documents": self.path, "--state": self.place / state, "--dead-letters": dead}
        paths = [str(part) for pair in where.items() for part in pair]
        result = mmqjp("run", "--queries", self.queries, *paths, "--engine", "duckdb", *options)
        assert result.exit_code == 0, result.stderr
        return len(dead.read_text().splitlines()) if dead.exists() else 0

    def stored(self, state: str = "st") -> list[tuple[str, int]]:
        """The ids and times of the stored documents."""
        with Session("duckdb", state=self.place / state, read_only=True) as engine:
            rows = engine.sql("SELECT id, t0 FROM documents WHERE kind = 'external' ORDER BY id").to_pylist()
            return [(row["id"], row["t0"]) for row in rows]

    def noted(self, state: str = "st") -> set[str]:
        """The files that a later run passes over."""
        with Session("duckdb", state=self.place / state, read_only=True) as engine:
            return {offset.file for offset in engine.offsets().values()}


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


def test_an_entry_that_was_late_is_taken_by_a_run_that_lets_it_be(runs: Runs):
    runs.fetch(1, ("a", NEW))
    runs.fetch(2, ("a", NEW), ("b", OLD))
    runs.fetch(3, ("a", NEW), ("b", OLD))
    strict = ("--feeds", "--lateness", "1h", "--batch-size", "1")
    for _ in range(2):
        assert runs.run(*strict) == 1 and len(runs.stored()) == 1
        assert "2.xml" not in runs.noted()
    assert runs.run("--feeds", "--lateness", "INF") == 0
    assert {"1.xml", "2.xml", "3.xml"} <= runs.noted()
    runs.run("--feeds", "--lateness", "INF", state="new")
    assert runs.stored() == runs.stored("new") and len(runs.stored()) == 2


def test_a_kill_right_after_the_batch_of_a_refused_entry_loses_nothing(runs: Runs, monkeypatch: pytest.MonkeyPatch):
    runs.fetch(1, ("a", NEW))
    runs.fetch(2, ("b", OLD), ("a", NEW))
    real = Session.process

    def process(self, *given, **options):
        real(self, *given, **options)
        if self.last_dead_letters():
            raise OSError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(Session, "process", process)
        with pytest.raises(AssertionError, match="killed"):
            runs.run("--feeds", "--lateness", "1h", "--batch-size", "1")
    runs.run("--feeds", "--lateness", "INF")
    assert len(runs.stored()) == 2 and runs.noted() >= {"1.xml", "2.xml"}


@pytest.mark.parametrize("options", [("--feeds",), ()], ids=["feeds", "documents"])
def test_a_name_so_long_that_no_sidecar_can_have_it_is_read_and_noted(runs: Runs, options: tuple[str, ...]):
    runs.fetch(1, ("a", NEW))
    name = "a" * 251 + ".xml"
    (runs.path / "1.xml").rename(runs.path / name)
    (runs.path / "1.json").unlink()
    assert runs.run(*options) == 0 and len(runs.stored()) == 1 and runs.noted() == {name}


def test_a_sidecar_that_cannot_be_looked_at_gives_no_stamp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "a.xml").write_text("<a/>")

    def refused(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    assert stamp_of(tmp_path / "a.xml", "", 0) is not None
    monkeypatch.setattr(Path, "is_file", refused)
    assert stamp_of(tmp_path / "a.xml", "", 0) is None


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
    monkeypatch.setattr(drops, "time_ns", lambda: clock)
    with monkeypatch.context() as patched:
        patched.setattr(Tail, "drain", drain)
        runs.run()
    point_to("a")
    runs.run()
    assert [id for id, _ in runs.stored()] == ["a", "b"] and runs.noted() == {"now.jsonl"}


def test_files_whose_names_are_one_as_text_do_not_share_a_stamp(runs: Runs):
    place = os.fsencode(runs.path)
    for name, content in ((b"\xfe", LINE.format("a")), (b"\xff", LINE.format("b") + "none\n")):
        with open(place + b"/" + name + b".jsonl", "w") as file:  # noqa: PTH123  # a name in bytes
            file.write(content)
    for _ in range(3):
        assert runs.run("--batch-size", "1") == 1
        assert runs.noted() == set() and len(runs.stored()) == 2
