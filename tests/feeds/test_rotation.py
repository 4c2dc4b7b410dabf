"""Files of lines that grow, are moved, copied, cut, made anew, shut and opened: each line is read once, by whomever."""

import json
import random
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest

from feeds.documents import Document, Reject
from feeds.readers import Offset
from feeds.tail import RACY, Tail
from mmqjp.engine import Session
from mmqjp.tables.schema import CommitMetadata
from tests.feeds.test_tail import Reader
from tests.generate.seeds import seeds
from tests.mmqjp.service.test_killed import Commands, serve
from tests.mmqjp.spark.test_streaming_plans import Driver
from tests.processes import nursery
from tests.support.in_turn import in_turn
from tests.support.rotating import Rotating
from tests.support.service import Directory, Events, StopAfter
from tests.support.unreadable import shut

SOON = 20_000_000
"""Nanoseconds after which the times of a file do show that it has changed: what was seen counts while a test runs."""


def line_of(item: Document | Reject) -> str:
    """What was written, in short."""
    if isinstance(item, Document):
        return item.id
    return str(item.raw).partition('"id": ')[2].partition('"')[2].partition('"')[0]


def written(program: Rotating) -> Counter[str]:
    """The lines that a program wrote, in short."""
    return Counter(f"d{number}" for number in range(len(program.lines)))


@pytest.mark.parametrize(("seed", "single"), in_turn(seeds(2, 200), [False, True]))
def test_each_line_is_read_once_whatever_becomes_of_its_file(
    seed: int, single: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    rng = random.Random(seed)
    monkeypatch.setattr("feeds.tail.RACY", rng.choice([RACY, SOON]))
    positions: dict[tuple[str, str], Offset] = {}
    found: Counter[str] = Counter()
    path = tmp_path / "x.jsonl"
    path.touch()
    reader = Reader(Tail(path if single else tmp_path))
    reader.positions = positions

    def look(most: int = 10**6) -> None:
        """A service that was killed is begun again, and may be killed again."""
        nonlocal reader
        if rng.random() < 0.3 and path.exists():
            reader = Reader(Tail(path if single else tmp_path))
            reader.positions = positions
        found.update(map(line_of, reader.read(most)))

    writer = Rotating(tmp_path, rng, look, long=bool(seed % 2), kinds=not single)
    for _ in range(40):
        writer.act()
        if rng.random() < 0.4:
            with shut(*writer.to_shut()):
                look(rng.choice([1, 2, 5, 10**6]))
        if rng.random() < 0.3:
            look(rng.choice([1, 3, 10**6]))
    look()
    look()
    assert found == written(writer)


@pytest.mark.parametrize("seed", seeds(2, 200))
def test_each_line_is_read_once_by_micro_batches_that_are_repeated(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    rng = random.Random(seed)
    monkeypatch.setattr("feeds.tail.RACY", rng.choice([RACY, SOON]))
    driver = Driver(tmp_path, most=rng.choice([2, 5, 100]), grain=rng.choice([1, 100, 10_000]), tasks=3)
    found: Counter[str] = Counter()

    def commit(rows: pa.Table) -> None:
        driver.commit(rows)
        for row in rows.to_pylist():
            if row["id"] is not None:
                raw = row["raw"] and row["raw"].decode()
                found[line_of(Reject("", "S", None, "", raw) if raw else Document(row["id"], "", time=0))] += 1

    def micro_batch(change: bool = False) -> None:
        """A micro-batch, if there is one, which may come again, in part done, also after Spark was begun again."""
        tasks = driver.planned()
        if driver.end == driver.start:
            return
        while rng.random() < 0.3:
            if change:
                writer.act_unseen()
            rows = driver.read(tasks)
            if rng.random() < 0.5:
                commit(rows.slice(0, rng.randint(0, len(rows))))
            if rng.random() < 0.5:
                driver.restart()
                tasks = driver.tasks()
        if change and rng.random() < 0.3:
            writer.act_unseen()
        commit(driver.read(tasks))
        driver.start = driver.end

    def look() -> None:
        for _ in range(40):
            micro_batch()

    writer = Rotating(driver.drops, rng, look, long=bool(seed % 2))
    for _ in range(20):
        writer.act()
        if rng.random() < 0.2:
            with shut(*writer.to_shut()):
                micro_batch()
        if rng.random() < 0.6:
            micro_batch(change=True)
    look()
    assert found == written(writer)


@pytest.mark.parametrize("seed", seeds(1, 2))
def test_a_service_that_is_killed_takes_each_line_in_once(seed: int, tmp_path: Path):
    rng = random.Random(seed)
    place = Directory(tmp_path)

    def look() -> None:
        done = nursery.run(serve, place.path)
        assert done.returncode == 0, done.stderr

    with Session("duckdb", state=place.state) as engine:
        engine.subscribe("S/a PUBLISH all")
    writer = Rotating(place.drops, rng, look, long=bool(seed % 2))
    for _ in range(2):
        for _ in range(2):
            writer.act()
        nursery.run(serve, place.path, kill=(f"before {rng.choice(Commands.seams)}", rng.randint(1, 3)))
    look()
    with Session("duckdb", state=place.state) as engine:
        kept = [row["id"] for row in engine.sql("SELECT id FROM documents WHERE kind = 'external'").to_pylist()]
        dead = [line_of(Reject("", "S", None, "", row["raw"])) for row in engine.dead_letters()]
    assert Counter(kept + dead) == written(writer)
    lines = [json.loads(line)["documents"][0] for line in place.output.read_text().splitlines()]
    assert sorted(lines) == sorted(kept)


def test_what_cannot_be_read_is_told_once_by_a_service_and_read_by_it_later(tmp_path: Path):
    place, events = Directory(tmp_path), Events()
    place.drop("1.jsonl", range(3))
    place.drop("2.jsonl", range(3, 6))

    class Opening(StopAfter):
        """After three looks, the file can be opened."""

        def is_set(self) -> bool:
            if self.left == 20:
                closed.close()
            return super().is_set()

    with ExitStack() as closed, Session("duckdb", state=place.state) as engine:
        closed.enter_context(shut(place.drops / "1.jsonl"))
        engine.subscribe("S/a PUBLISH all")
        place.service(engine, events).run(0.0, Opening(30))
        kept = [row["id"] for row in engine.sql("SELECT id FROM documents ORDER BY docid").to_pylist()]
    assert kept == ["d3", "d4", "d5", "d0", "d1", "d2"]
    assert [name for name, _ in events if "readable" in name] == ["unreadable", "readable"]
    (told,) = events.named("unreadable")
    assert told == {"file": "1.jsonl", "reason": "cannot be read: Permission denied"}
    assert not list(events.named("dead-letter"))


def test_a_store_that_was_written_without_marks_goes_on(tmp_path: Path):
    place = Directory(tmp_path)
    place.drop("1.jsonl", range(3))
    with Session("duckdb", state=place.state) as engine:
        engine.subscribe("S/a PUBLISH all")
        size = (place.drops / "1.jsonl").stat().st_size
        engine.commit_metadata(CommitMetadata((Offset(str(place.drops), "1.jsonl", size),)))
    place.drop("1.jsonl", range(5))
    place.run()
    assert [json.loads(line)["documents"] for line in place.output.read_text().splitlines()] == [["d3"], ["d4"]]


def test_what_could_not_be_looked_into_is_looked_into_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("feeds.tail.RACY", -(10**12))
    path, copied = tmp_path / "1.jsonl", tmp_path / "1.jsonl.old"
    path.write_text('{"id": "d0", "xml": "<a/>"}\n')
    tail = Tail(tmp_path)
    reader = Reader(tail)
    assert [item.id for item in reader.read()] == ["d0"]
    known = dict(reader.positions)
    copied.write_text(path.read_text() + '{"id": "d1", "xml": "<a/>"}\n')
    path.unlink()
    with shut(copied):
        assert not list(tail.waiting(known))
    assert [waiting.file for waiting in tail.waiting(known)] == ["1.jsonl.old", "1.jsonl.old"]


def test_what_was_found_elsewhere_is_found_until_it_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("feeds.tail.RACY", -(10**12))  # a directory seen once is not listed again
    path = tmp_path / "1.jsonl"
    path.write_text('{"id": "d0", "xml": "<a/>"}\n')
    tail = Tail(tmp_path)
    reader = Reader(tail)
    assert [item.id for item in reader.read()] == ["d0"]
    known = dict(reader.positions)
    moved, copied = tmp_path / "1.jsonl.1", tmp_path / "1.jsonl.2"
    path.rename(moved)
    copied.touch()
    with moved.open("a") as file:
        file.write('{"id": "d1", "xml": "<a/>"}\n')
    for _ in range(3):
        assert [(w.file, w.reads, w.start.position > 0) for w in tail.waiting(known)] == [
            ("1.jsonl.1", False, True),
            ("1.jsonl.1", True, True),
        ]
    with copied.open("ab") as file:  # the copy is done later
        file.write(moved.read_bytes())
    assert {w.file for w in tail.waiting(known)} == {"1.jsonl.1", "1.jsonl.2"}
