"""What one query may cost: the same bound, however documents are batched, joined, and whenever the process restarts."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from feeds.document import Document
from join_stage.engine import PLANS
from mmqjp import Engine
from tests.agreement import as_row
from tests.oracle import comparable
from tests.oracle_bounds import Model, Watched

if TYPE_CHECKING:
    pass

BLOCK = 4

PAIR = "SELECT x, y FROM {0}//a->x JOIN {{x = y, INF}} {1}//a->y"
QUERIES = [
    Watched("F", "SELECT x FROM S//a->x PUBLISH F"),
    Watched("P", PAIR.format("S", "T") + " PUBLISH P"),
    Watched("U", "SELECT x, y FROM F//a->x JOIN {x = y, INF} T//a->y PUBLISH U"),
    Watched("R", "SELECT x FROM P//a->x PUBLISH R"),
    Watched("V", "SELECT x, y FROM R//a->x JOIN {x = y, INF} U//a->y PUBLISH V"),
    Watched("C", f"SELECT x, y, z FROM ({PAIR.format('S', 'S')}) JOIN {{y = z, INF}} T//a->z PUBLISH C",
            PAIR.format("S", "S")),
    Watched("D", f"SELECT x, y, z FROM ({PAIR.format('S', 'S')}) JOIN {{x = z, INF}} F//a->z PUBLISH D",
            PAIR.format("S", "S")),
    Watched("E", f"SELECT x, y, z FROM ({PAIR.format('P', 'T')}) JOIN {{x = z, INF}} S//a->z PUBLISH E",
            PAIR.format("P", "T")),
]  # fmt: skip
UPSTREAM = {"U": "F", "R": "P", "V": "RPUF", "D": "F", "E": "P", "Z": "P"}
"""Whose outputs each reads."""

LATE = [
    Watched("X", PAIR.format("S", "T") + " PUBLISH X"),
    Watched("Y", f"SELECT x, y, z FROM ({PAIR.format('S', 'S')}) JOIN {{y = z, INF}} T//a->z PUBLISH Y",
            PAIR.format("S", "S")),
    Watched("Z", "SELECT x FROM P//a->x PUBLISH Z"),
]  # fmt: skip


def documents(rng: random.Random, count: int) -> list[Document]:
    """Documents with a few nodes of a few values."""
    found = []
    for number in range(count):
        nodes = "".join(f"<a>{rng.choice('uvw')}</a>" for _ in range(rng.choice([1, 1, 2])))
        found.append(Document(f"d{number}", f"<r>{nodes}</r>", rng.choice("SST"), number * 1_000_000))
    return found


def fresh(query: Watched) -> Watched:
    return Watched(query.name, query.text, query.inner)


def assert_is_the_model(make: Any, seed: int, small: pytest.MonkeyPatch, count: int = 16) -> set[str]:
    """Holds an engine against the model over documents in random batches, with queries that are resumed, paused, come
    late, and restarts in between; returns why queries were paused."""
    small.setattr("mmqjp.allowance.BLOCK", BLOCK)
    small.setattr("mmqjp.spending.BLOCK", BLOCK)
    small.setattr("mmqjp.spending.SUPERSEDED", 3)
    rng = random.Random(seed)
    matches, in_all = rng.choice([1, 2, 3, 5, 8]), rng.choice([3, 6, 10, 20, 1_000])
    model = Model(matches, in_all, BLOCK, UPSTREAM)
    model.queries += map(fresh, rng.sample(QUERIES, rng.randint(1, len(QUERIES))))
    # What P publishes is kept only where somebody reads it.
    read = {query.name for query in model.queries} & {"R", "E"}
    late = [fresh(query) for query in LATE if query.name != "Z" or read]
    waiting = documents(rng, count)
    reasons: set[str] = set()
    engine: Engine = make(matches, in_all)
    try:
        engine.subscribe("; ".join(query.text for query in model.queries))
        while waiting:
            size = rng.randint(1, 7)
            batch, waiting = waiting[:size], waiting[size:]
            for document in batch:
                model.arrive(document)
            engine.process(batch)
            paused = {q.name: q.paused for q in engine.registry.subscriptions.values() if q.paused is not None}
            reasons |= set(paused.values())
            assert set(paused) == {query.name for query in model.queries if query.paused}
            names = [query.name for query in model.queries]
            match rng.choice(["go on", "pause", "resume", "resume", "late", "reopen"]):
                case "pause":
                    if not model.named(name := rng.choice(names)).paused:
                        model.named(name).pause(model.arrivals)
                    engine.pause(name)
                case "resume" if paused:
                    name = rng.choice(sorted(paused))
                    model.named(name).resume(model.arrivals)
                    engine.resume(name)
                case "late" if late:
                    query = late.pop()
                    model.backfill(query)
                    engine.subscribe(query.text, backfill=True)
                    reasons |= {s.paused for s in engine.registry.named(query.name) if s.paused is not None}
                case "reopen":
                    engine.close()
                    engine = make(matches, in_all)
        assert comparable(map(as_row, engine.undelivered())) == comparable(model.given)
    finally:
        engine.close()
    return reasons


def on_duckdb(state: Path, plans: Iterator[str]) -> Any:
    return lambda matches, in_all: Engine(
        "duckdb", state=state, plan=next(plans), max_matches=matches, max_outputs=in_all
    )


def random_plans(seed: int) -> Iterator[str]:
    rng = random.Random(seed)
    while True:
        yield rng.choice(PLANS)


@pytest.mark.parametrize("start", range(0, 40, 4))
def test_bounds_are_those_of_documents_that_come_one_by_one(start: int, tmp_path: Path, monkeypatch: Any):
    reasons: set[str] = set()
    for seed in range(start, start + 4):
        reasons |= assert_is_the_model(on_duckdb(tmp_path / str(seed), random_plans(seed)), seed, monkeypatch)
    assert any("matches of" in reason for reason in reasons)
