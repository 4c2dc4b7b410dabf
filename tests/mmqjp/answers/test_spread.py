"""Answers that executors find and write are those of the embedded engine, to the number; whatever is paused, lost,
repeated or rolled back. The tasks run in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from feeds.documents import Document
from join_stage.signature import join
from mmqjp.answers.fan_out import Outputs
from mmqjp.answers.output import Output
from mmqjp.engine import Session
from tests.generate.once import with_once
from tests.generate.seeds import seeds
from tests.generate.strategies import random_case
from tests.mmqjp.answers.test_bounds import assert_is_the_model
from tests.support.agreement import Delivery, arranged, assert_agrees
from tests.support.in_process import Context, run_in_process

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def counted(context: Context) -> Callable[[], int]:
    """Counts the jobs of a context since this call."""
    before = context.jobs
    return lambda: context.jobs - before


@pytest.mark.parametrize("seed", seeds(1, 300))
def test_executors_agree_with_the_oracle(
    seed: int, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    context = run_in_process(monkeypatch, cores=1 + seed % 4, seed=seed)
    if seed % 2:
        monkeypatch.setattr(join, "MOST_IN_MEMORY", 0)
    rng = Random(seed)
    script, documents = random_case(seed, 12, 12)
    script = with_once(rng, script, rng.choice([0, 50]))
    with Session(spark, state=tmp_path) as engine:
        assert_agrees(engine, script, documents, Delivery(rng.choice([None, seed]), rng.choice([3, 5, 100])))
    assert context.jobs


@pytest.mark.parametrize("seed", seeds(1, 100))
def test_executors_keep_to_bounds(seed: int, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    context = run_in_process(monkeypatch, cores=3, seed=seed)

    def make(matches: int, in_all: int) -> Session:
        return Session(spark, state=tmp_path, max_matches=matches, max_outputs=in_all)

    assert_is_the_model(make, seed, monkeypatch, 10)
    assert context.jobs


STREAMS = "SST"


def lively_script(rng: Random) -> str:
    """Queries with windows, filters, literals, several joins, alternatives, and some that read others."""
    queries = []
    for number in range(rng.randint(4, 9)):
        one, other = rng.choice(STREAMS), rng.choice(STREAMS)
        literal = rng.choice(["", "", f" AND contains(v, '{rng.choice('uvw')}')", " AND starts-with(v, 'u')"])
        op, window = rng.choice(["JOIN", "JOIN UNORDERED", "FOLLOWED BY"]), rng.choice(["INF", "5 s", "8 s"])
        query = rng.choice(
            [
                f"SELECT v, w FROM {one}//r[./a->v] {op} {{v = w{literal}, {window}}} {other}//r[./a->w]",
                f"SELECT x, v FROM {one}//r->x[./a->v][./b->y] {op} {{v = w AND y = z, INF}} "
                f"{other}//r[./a->w][./b->z]",
                f"SELECT v FROM {one}//r[./a->v]",
                f"SELECT v, y FROM {one}//r[./a->v][./b->x] {op} {{v = w OR x = y, INF}} {other}//r[./a->w][./b->y]",
                f"SELECT x FROM {one}//r[./a->v][./b->x] {op} {{x = y, INF}} {other}//r[./a->w][./b->y]",
            ]
        )
        once = rng.choice(["", "", " ONCE PER (v)", " ONCE PER (lower-case(v)) WITHIN 3 s"])
        queries.append(f"{query} PUBLISH P{number}{once}")
    if rng.random() < 0.5:
        queries.append("SELECT q FROM P0//v->q JOIN {q = w, INF} S//r[./a->w] PUBLISH Reader")
    if rng.random() < 0.5:
        queries.append("SELECT q FROM P1//x->q PUBLISH Other")
    return "; ".join(queries)


def lively_documents(rng: Random, count: int) -> list[Document]:
    found = []
    for number in range(count):
        nodes = "".join(f"<a>{rng.choice('uvwx')}</a>" for _ in range(rng.choice([0, 1, 1, 2])))
        nodes += "".join(f"<b>{rng.choice('yz')}</b>" for _ in range(rng.choice([0, 1, 1])))
        time = 1_000_000 * rng.randrange(count)
        found.append(Document(f"d{number}", f"<r>{nodes}</r>", rng.choice(STREAMS), (time, time + rng.choice([0, 10]))))
    return found


def written(state: Path) -> set[str]:
    """The files of tables in a state directory."""
    return {path.name for path in state.glob("*/*.parquet")}


def named(state: Path) -> set[str]:
    """Those that a manifest names."""
    manifests = [json.loads(path.read_text()) for path in (state / "manifests").glob("*.json")]
    return {file["name"] for manifest in manifests for files in manifest["tables"].values() for file in files}


def told(outputs: list[Output]) -> list[tuple[object, ...]]:
    return [(o.seq, o.id, o.query, o.documents, tuple(o.nodes.items()), o.xml) for o in outputs]


@pytest.mark.soak
@pytest.mark.parametrize("seed", seeds(1, 400, 14))
def test_outputs_have_the_same_numbers_as_on_the_embedded_engine(
    seed: int, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    context = run_in_process(monkeypatch, cores=1 + seed % 3, seed=seed)
    rng = Random(seed)
    if seed % 2:  # tasks are tried again, or are tried twice at the same time
        attempts = Random(seed)
        monkeypatch.setattr(context, "attempted", lambda task: (task() if attempts.random() < 0.3 else None, task())[1])
    script = lively_script(rng)
    batches = arranged(lively_documents(rng, 24), Delivery(None, 6))
    options: dict[str, Any] = rng.choice([{}, {}, {"max_matches": 3}, {"max_work": 60}])
    paused = rng.sample(range(4), 2)
    with Session("duckdb", **options) as ours, Session(spark, state=tmp_path, **options) as theirs:
        every: list[list[Output]] = [[], []]
        before: list[list[Outputs]] = []
        for engine in (ours, theirs):
            engine.subscribe(script)
        for number, batch in enumerate(batches):
            if number in paused:
                for engine in (ours, theirs):
                    (engine.pause if number == min(paused) else engine.resume)("P1")
            # The driver joins some batches alone.
            monkeypatch.setattr("join_stage.spark.tasks.LEAST_DOCUMENTS", rng.choice([1, 1, 1, 100]))
            monkeypatch.setattr("join_stage.spark.tasks.MOST_INDEX", rng.choice([0, 1 << 20, 1 << 20]))
            got = [engine.process(batch) for engine in (ours, theirs)]
            assert told(list(got[1])) == told(list(got[0]))
            assert len(got[1]) == len(got[0])
            lines = [b"".join(some.text for some in outputs.lines()) for outputs in got]
            assert lines[1] == lines[0]
            assert sum(some.count for some in got[1].lines()) == len(got[0])
            before += [got]
            for place, outputs in enumerate(got):
                every[place] += outputs
            assert written(tmp_path) <= named(tmp_path), "what an attempt wrote in vain is gone"
        assert {s.name: s.paused for s in ours.registry.subscriptions.values()} == {
            s.name: s.paused for s in theirs.registry.subscriptions.values()
        }
        assert told(list(theirs.outputs())) == told(every[0])
        for ours_then, theirs_then in before:  # whose files were merged, or removed
            assert told(list(theirs_then)) == told(list(ours_then))
            assert b"".join(x.text for x in theirs_then.lines()) == b"".join(x.text for x in ours_then.lines())
        for table in ("matches", "output_matches", "answers"):
            sql = f"SELECT count(*) AS n FROM {table}"
            assert theirs.sql(sql).to_pylist() == ours.sql(sql).to_pylist(), table
    assert context.jobs
