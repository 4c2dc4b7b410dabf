"""The ids that a store has are told from new ones, whatever was added, dropped or rolled back."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from feeds.documents import Document
from mmqjp.documents import record
from mmqjp.engine import Session
from tests.generate.seeds import seeds
from tests.support.faults import FaultySession, Injected

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY = 86_400_000_000


def drawn(rng: random.Random, count: int) -> list[Document]:
    """Documents of few ids, so that many are there already."""
    return [Document(f"d{rng.randint(0, 60)}", "<a/>", rng.choice("ST"), time=DAY) for _ in range(count)]


@pytest.mark.parametrize("seed", seeds(2, 100))
def test_each_id_of_a_stream_enters_once(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(record, "RECENT_IDS", 3)
    monkeypatch.setattr(record, "READ_IDS", 4)
    rng = random.Random(seed)
    engine = FaultySession("duckdb", state=tmp_path)
    engine.subscribe("S//a PUBLISH T")  # whose documents are in T, beside those from outside
    known: set[tuple[str, str]] = set()
    for _ in range(20):
        batch = drawn(rng, rng.randint(1, 8))
        if rng.random() < 0.2:
            with engine.store.failing("commit"), pytest.raises(Injected):
                engine.process(batch)
        if rng.random() < 0.2:
            engine.close()
            engine = FaultySession("duckdb", state=tmp_path)
        before = engine.counters().documents
        engine.process(batch)
        new = {(document.stream, document.id) for document in batch} - known
        assert engine.counters().documents - before == len(new)
        known |= new
        if rng.random() < 0.2:
            engine.prune(0, rng.choice([None, DAY]))
    assert len(known) > 40
    engine.close()


def test_ids_stay_known_when_their_documents_are_dropped_and_then_go(tmp_path: Path):
    with Session("duckdb", state=tmp_path, lateness=0) as engine:
        engine.subscribe("S//a")
        engine.process([Document("old", "<a/>", time=DAY), Document("new", "<a/>", time=10 * DAY)])
        engine.prune(0, None)
        engine.process([Document("old", "<a/>", time=10 * DAY)])
        assert engine.counters().duplicates == 1
        engine.prune(0, 0)
        engine.process([Document("old", "<a/>", time=10 * DAY)])
        assert engine.counters().documents == 3


def test_ids_are_known_on_spark(spark: SparkSession, tmp_path: Path):
    for _ in range(2):
        with Session(spark, state=tmp_path) as engine:
            engine.subscribe("S//a")
            engine.process([Document(f"d{n}", "<a/>", time=DAY) for n in range(3)])
            engine.process([Document("d1", "<a/>", time=DAY), Document("d1", "<a/>", "T", time=DAY)])
    with Session(spark, state=tmp_path) as engine:
        rows = engine.sql("SELECT stream, id FROM documents ORDER BY stream, id", trusted=True).to_pylist()
    assert [(row["stream"], row["id"]) for row in rows] == [("S", "d0"), ("S", "d1"), ("S", "d2"), ("T", "d1")]
