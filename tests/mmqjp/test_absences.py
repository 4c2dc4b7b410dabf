"""Absences on the engines against brute force, whatever the plan, the order, the batches, and restarts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from feeds.documents import Document
from join_stage import near
from join_stage.protocol import PLANS
from mmqjp.engine import Session
from tests.generate.absences import with_absences
from tests.generate.documents import SECOND, START
from tests.generate.near import near_case
from tests.generate.seeds import seeds
from tests.generate.strategies import random_case
from tests.oracle.bindings import OutputRow
from tests.oracle.evaluation import comparable, evaluate
from tests.support.agreement import Delivery, arranged, as_row
from xscl.parser import parse_script
from xscl.syntax import Script

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUERIES, DOCUMENTS = 12, 12


@pytest.fixture(autouse=True)
def learning(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of words is learnt from a few texts, so that it changes in the middle."""
    monkeypatch.setattr(near, "ENOUGH", 5)


def case(seed: int) -> tuple[Script, list[Document], list[list[Document]]]:
    """A script with absences, documents, and these in batches."""
    rng = random.Random(seed)
    script, documents = (near_case if seed % 4 == 3 else random_case)(seed, QUERIES, DOCUMENTS)
    script = with_absences(rng, script)
    return script, documents, arranged(documents, Delivery(rng.choice([None, seed]), rng.choice([1, 2, 3, 5, 100])))


@pytest.mark.parametrize("seed", seeds(2, 400))
def test_all_is_decided_at_the_end_of_a_run(seed: int):
    script, documents, batches = case(seed)
    with Session("duckdb", plan=PLANS[seed % 3]) as engine:
        engine.ensure(script)
        got = [as_row(output) for batch in batches for output in engine.process(batch)]
        got += [as_row(output) for output in engine.finish()]
        assert not list(engine.finish())
    assert comparable(got) == comparable(evaluate(script, documents))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
def test_all_is_decided_at_the_end_of_a_run_on_spark(seed: int, spark: SparkSession):
    script, documents = (near_case if seed % 2 else random_case)(seed, 6, DOCUMENTS)
    script = with_absences(random.Random(seed), script, 90)
    with Session(spark, plan=PLANS[seed % 3]) as engine:
        engine.ensure(script)
        got = [as_row(output) for batch in arranged(documents, Delivery(seed, 5)) for output in engine.process(batch)]
        got += [as_row(output) for output in engine.finish()]
    assert comparable(got) == comparable(evaluate(script, documents)) != []


@pytest.mark.parametrize("seed", seeds(2, 400))
def test_what_the_last_watermark_decides_depends_on_no_batch_or_restart(seed: int, tmp_path: Path):
    script, _, batches = case(seed)
    rng = random.Random(-seed)
    lateness = {"*": rng.choice((0, 2, 5)) * SECOND, "T": rng.choice((1, 4, 30)) * SECOND}
    got: list[OutputRow] = []
    arrived: list[Document] = []
    while batches:
        with Session("duckdb", state=tmp_path, plan=rng.choice(PLANS), lateness=lateness, quiet=True) as engine:
            engine.ensure(script)
            for _ in range(rng.choice((1, 2, 9))):
                if batches:
                    got += map(as_row, engine.process(batches[0]))
                    late = {(letter["stream"], letter["id"]) for letter in engine.last_dead_letters()}
                    arrived += [one for one in batches.pop(0) if (one.stream, one.id) not in late]
            got += map(as_row, engine.finish())
    assert comparable(got) == comparable(evaluate(script, arrived, _watermark(arrived, lateness)))


def _watermark(arrived: Sequence[Document], lateness: dict[str, int]):
    def watermark(stream: str) -> float:
        greatest = max((one.t1 for one in arrived if one.stream == stream), default=-inf)
        return greatest - lateness.get(stream, lateness["*"])

    return watermark


def test_what_is_made_of_absences_is_decided_also_if_none_of_them_is_there():
    """Whatever the first of them decides in that batch."""
    script = parse_script("""S/a->x NOT FOLLOWED BY {x = y, 2} S/b->y PUBLISH first;
    S/c->x NOT FOLLOWED BY {x = y, 2} first//a->y PUBLISH second""")
    documents = [
        Document(name, f"<{name[0]}>u</{name[0]}>", time=START + at * SECOND)
        for name, at in (("a1", 0), ("b1", 1), ("c1", 1), ("d1", 9))
    ]
    with Session("duckdb", lateness=0) as engine:
        engine.ensure(script)
        got = [as_row(output) for output in engine.process(documents)]
    assert [row.query for row in got] == ["second"]
    assert comparable(got) == comparable(evaluate(script, documents, _watermark(documents, {"*": 0})))
