"""Engines that are killed in the middle of their work, or whose store fails: nothing is lost, nothing comes twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from feeds.documents import Document
from join_stage import near
from join_stage.protocol import PLANS
from mmqjp.engine import Session
from tests.generate.documents import SECOND
from tests.generate.near import near_case
from tests.generate.seeds import seeds
from tests.generate.strategies import random_case
from tests.oracle.evaluation import comparable, evaluate
from tests.processes import nursery
from tests.support.agreement import as_row
from tests.support.faults import FaultySession, Injected
from xscl.parser import parse_script
from xscl.syntax import Script

LATENESS = 2 * SECOND
SIZE = 3
"""Documents in a batch."""

ENOUGH, AGAIN = 7, 2
"""The order of words is learnt from this number of texts, and again when there are AGAIN times as many."""

ABSENCES = """S//a->x NOT FOLLOWED BY {x = y, 2} S//b->y PUBLISH silent;
S//a->x NOT JOIN {x = y, 1} S//b->y PUBLISH lone;
S//a->x NOT PRECEDED BY {near(x, y, 0.5), 5} S//a->y PUBLISH fresh;
silent//a->x FOLLOWED BY {x = y, 6} S//a->y PUBLISH again;
S//a->x NOT JOIN {x = y, 3} lone//a->y PUBLISH others;
S//a->x NOT FOLLOWED BY {x = y, 1} S//b->y FOLLOWED BY {x = z, 5} S//a->z PUBLISH chained"""


class Life(NamedTuple):
    """Queries, and documents that come to them."""

    script: Script
    documents: list[Document]
    lateness: int | None = None

    def batches(self, size: int = SIZE) -> list[list[Document]]:
        return [self.documents[at : at + size] for at in range(0, len(self.documents), size)]

    def opened(self, state: Path, kind: type[Session] = Session, **options: Any) -> Any:
        given: dict[str, Any] = {} if self.lateness is None else {"lateness": self.lateness}
        engine = kind("duckdb", state=state, **given, **options)
        engine.ensure(self.script)
        return engine

    def expected(self, count: int | None = None) -> list[tuple[object, ...]]:
        """What there is to tell once this many documents have come; or all."""
        come = self.documents[:count]
        if self.lateness is None:
            return comparable(evaluate(self.script, come))
        watermark = max((document.t1 for document in come), default=0) - self.lateness
        return comparable(evaluate(self.script, come, lambda stream: watermark))


def of_any_kind(seed: int) -> Life:
    return Life(*random_case(seed, 10, 12))


def with_near(seed: int) -> Life:
    near.ENOUGH, near.AGAIN = ENOUGH, AGAIN
    return Life(*near_case(seed, queries=6, documents=16))


def with_absences(seed: int) -> Life:
    """Absences over documents that are not late."""
    rng, time, found = Random(seed), 0, list[Document]()
    for number in range(8 * SIZE):
        time += rng.choice((0, 0, 1, 1, 2)) * SECOND
        text = f"<r><{(tag := rng.choice('aab'))}>{rng.choice('uuvw')}</{tag}></r>"
        found.append(Document(f"d{number}", text, time=time - rng.choice((0, 0, LATENESS))))
    return Life(parse_script(ABSENCES), found, LATENESS)


def deciding(life: Life) -> int:
    """The place of a batch that decides what did not come, although none of it may be in the batch."""
    for at in range(3, len(life.batches())):
        before, after = (life.expected(end * SIZE) for end in (at, at + 1))
        if {"silent", "lone"} & {row[1] for row in after if row not in before}:
            return at
    raise AssertionError("no batch decides anything")


def live(make: Callable[[int], Life], seed: int, state: Path) -> None:
    """The program that is killed."""
    life = make(seed)
    engine = life.opened(state)
    for batch in life.batches():
        engine.process(batch)


def assert_told(engine: Session, life: Life, size: int = SIZE) -> None:
    """Asserts that all is told once when all documents have come, some of them again."""
    for batch in life.batches(size):
        engine.process(batch)
    assert not list(engine.dead_letters())
    outputs = list(engine.outputs())
    assert len({output.id for output in outputs}) == len(outputs)
    assert comparable(map(as_row, outputs)) == life.expected() != []


def soak(calls: int) -> Any:
    return pytest.param(calls, marks=pytest.mark.soak)


@pytest.mark.parametrize("calls", [soak(1), 3, soak(4)])
@pytest.mark.parametrize(
    "at",
    [
        "before DuckDBEngine.commit",
        "after DuckDBEngine.commit",
        "after DuckDBEngine.join",
        "before DuckDBEngine.append",
    ],
)
def test_a_killed_run_is_taken_up_again(at: str, calls: int, tmp_path: Path) -> None:
    nursery.run_killed(live, of_any_kind, 7, tmp_path, at=at, calls=calls)
    life = of_any_kind(7)
    with life.opened(tmp_path) as engine:
        assert_told(engine, life, SIZE + 1)


LEARNT = "duckdb.save_word_order"
"""Called within the engine's commit, before that of the store."""


@pytest.mark.parametrize(
    ("at", "is_there"),
    [
        (f"before {LEARNT}", False),
        (f"after {LEARNT}", False),
        (f"after {LEARNT}, after DuckDBStore.commit", True),  # no document has its keys in it yet
        (f"after {LEARNT}, after DuckDBEngine.commit", True),  # those of another batch have
    ],
)
@pytest.mark.parametrize("seed", seeds(1, 60))
def test_killed_as_the_order_of_words_is_learnt(
    seed: int, at: str, is_there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(near, "ENOUGH", ENOUGH)  # and set back
    monkeypatch.setattr(near, "AGAIN", AGAIN)
    nursery.run_killed(live, with_near, seed, tmp_path, at=at)
    life = with_near(seed)
    with life.opened(tmp_path, plan=PLANS[seed % 7 % len(PLANS)] if seed else "signature") as engine:
        assert engine.sql("SELECT version FROM word_order").num_rows == is_there
        assert_told(engine, life)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("seed", seeds(1, 40))
def test_killed_as_absences_are_decided(seed: int, when: str, tmp_path: Path) -> None:
    life = with_absences(seed)
    at = deciding(life)
    with life.opened(tmp_path):
        pass  # what is killed begins with the first batch
    nursery.run_killed(
        live, with_absences, seed, tmp_path, at=f"{when} DuckDBEngine.commit", calls=at + 2
    )  # the first opens
    with life.opened(tmp_path) as engine:
        done = engine.sql("SELECT count(*) AS n FROM documents WHERE kind = 'external'").to_pylist()[0]["n"]
        assert done == SIZE * (at + (when == "after"))
        assert_told(engine, life)


@pytest.mark.parametrize("call", ["append", "join", "commit"])
@pytest.mark.parametrize("seed", seeds(1, 40, first=1))
def test_a_store_that_fails_as_absences_are_decided(seed: int, call: str, tmp_path: Path) -> None:
    """The same process goes on, and decides them when the batch comes again."""
    life = with_absences(seed)
    at = deciding(life)
    with life.opened(tmp_path, FaultySession) as engine:
        for batch in life.batches()[:at]:
            engine.process(batch)
        with engine.store.failing(call), pytest.raises(Injected):
            engine.process(life.batches()[at])
        assert_told(engine, life)
    with life.opened(tmp_path) as engine:
        assert_told(engine, life)
