"""What one query may cost: the same bound, however documents are batched, joined, and whenever the process restarts."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from feeds.documents import Document
from join_stage.protocol import PLANS
from mmqjp.answers.output import Output
from mmqjp.answers.quota import OutOfSteps, Steps
from mmqjp.engine import Session
from tests.generate.seeds import seeds
from tests.oracle.bounds import Model, Watched
from tests.oracle.evaluation import comparable
from tests.support.agreement import as_row
from tests.support.cli import mmqjp, write_documents, write_queries
from tests.support.delivery import mark_delivered, undelivered
from xpath_stage.binder import PreparedNode, each_binding
from xpath_stage.documents import parse_document
from xscl.lower import PatternBuilder
from xscl.parser import parse_script
from xscl.syntax import Block

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
    small.setattr("mmqjp.answers.quota.BLOCK", BLOCK)
    small.setattr("mmqjp.answers.usage.USAGE_COMPACTED_AFTER", 3)
    rng = random.Random(seed)
    matches, in_all = rng.choice([1, 2, 3, 5, 8]), rng.choice([3, 6, 10, 20, 1_000])
    model = Model(matches, in_all, BLOCK, UPSTREAM)
    model.queries += map(fresh, rng.sample(QUERIES, rng.randint(1, len(QUERIES))))
    # What P publishes is kept only where somebody reads it.
    read = {query.name for query in model.queries} & {"R", "E"}
    late = [fresh(query) for query in LATE if query.name != "Z" or read]
    waiting = documents(rng, count)
    reasons: set[str] = set()
    engine: Session = make(matches, in_all)
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
        assert comparable(map(as_row, undelivered(engine))) == comparable(model.given)
    finally:
        engine.close()
    return reasons


def on_duckdb(state: Path, plans: Iterator[str]) -> Any:
    return lambda matches, in_all: Session(
        "duckdb", state=state, plan=next(plans), max_matches=matches, max_outputs=in_all
    )


def random_plans(seed: int) -> Iterator[str]:
    rng = random.Random(seed)
    while True:
        yield rng.choice(PLANS)


@pytest.mark.parametrize("first", seeds(1, 300))
def test_bounds_are_those_of_documents_that_come_one_by_one(first: int, tmp_path: Path, monkeypatch: Any):
    reasons: set[str] = set()
    for seed in range(4 * first, 4 * first + 3):
        reasons |= assert_is_the_model(on_duckdb(tmp_path / str(seed), random_plans(seed)), seed, monkeypatch)
    assert any("matches of" in reason for reason in reasons)


@pytest.mark.soak
@pytest.mark.parametrize("seed", [3, 22])
def test_bounds_on_spark(seed: int, spark: SparkSession, tmp_path: Path, monkeypatch: Any):
    plans = random_plans(seed)

    def make(matches: int, in_all: int) -> Session:
        return Session(spark, state=tmp_path, plan=next(plans), max_matches=matches, max_outputs=in_all)

    assert assert_is_the_model(make, seed, monkeypatch, 8)


# ---------------------------------------------------------------- work


def spent(engine: Session) -> dict[str, tuple[int, int]]:
    """What each account has spent: outputs and steps."""
    rows = engine.sql("SELECT owner, sum(outputs) AS outputs, sum(work) AS work FROM spent GROUP BY owner").to_pylist()
    return {row["owner"]: (int(row["outputs"]), int(row["work"])) for row in rows}


WORK = """SELECT x, y, k FROM S/r[./a->x][.//a->k] JOIN {x = y AND k != y, INF} T//a->y PUBLISH W;
SELECT x, y, z FROM (SELECT x, y FROM S//a->x JOIN {x = y AND x != "w", INF} S//a->y) JOIN {y = z, INF} T//a->z;
SELECT k FROM W//a->k; SELECT r, x, y FROM S//r->r[.//a->x][.//a->y]"""


def test_the_same_steps_are_counted_whatever_the_batches_and_the_plan():
    found = []
    for plan, size in (("signature", 1), ("basic", 7), ("views", 30)):
        with Session("duckdb", plan=plan) as engine:
            engine.subscribe(WORK)
            waiting = documents(random.Random(5), 16)
            while waiting:
                engine.process(waiting[:size])
                waiting = waiting[size:]
            found.append(spent(engine))
    assert found[0] and all(one == found[0] for one in found)


def test_what_a_late_query_spends_is_what_it_would_have_spent():
    found = []
    for late in (False, True):
        with Session("duckdb") as engine:
            engine.subscribe("S//a PUBLISH other")
            waiting = documents(random.Random(6), 12)
            for begin in (True, False):
                if begin is not late:
                    engine.subscribe(WORK.split(";")[1], backfill=late)
                engine.process(waiting if begin else [])
            other = engine.registry.named("other")[0].form_id
            found.append({key: value for key, value in spent(engine).items() if key != other})
    assert found[0] == found[1] and len(found[0]) == 2


@pytest.mark.parametrize("size", [1, 20])
def test_work_without_outputs_is_bounded(size: int):
    with Session("duckdb", max_work=60) as engine:
        engine.subscribe('S//a->x JOIN {x = y AND x = "nothing", INF} S//a->y PUBLISH vain; S//a PUBLISH other')
        engine.subscribe("S//a->x JOIN {x = y AND starts-with(x, z), INF} S/r[./z->z]//a->y PUBLISH in_vain")
        given: list[Output] = []
        for start in range(0, 20, size):
            batch = [Document(f"d{n}", "<r><z>!</z><a>v</a></r>", time=n) for n in range(start, start + size)]
            given += engine.process(batch)
        assert len(given) == 20 and {output.query for output in given} == {"other"}
        paused = {s.name: s.paused for s in engine.registry.subscriptions.values() if s.paused is not None}
        assert list(paused) == ["in_vain"] and "more than 60 steps for the document 'd" in paused["in_vain"]


NESTED = "p[.//a->q[.//a->r[.//a->x]]]"
DEEP = [
    f"SELECT p, q, r, x FROM S//a->{NESTED}",
    "SELECT p, q, r, x FROM S//a->p[.//a->q][.//a->r][.//a->x]",
    f"SELECT p, q, r, x, y FROM S//a->{NESTED} JOIN {{x = y, INF}} S//a->y",
    f"SELECT y FROM S//b->y JOIN {{x = y AND p != q AND q != r, INF}} S//a->{NESTED}",
]


def test_patterns_that_bind_in_very_many_ways_end_soon():
    nested = "<a>" * 250 + "v" + "</a>" * 250
    with Session("duckdb", max_matches=50, max_work=20_000) as engine:
        engine.subscribe("; ".join([*(f"{text} PUBLISH deep{n}" for n, text in enumerate(DEEP)), "S PUBLISH other"]))
        batch = [Document("b", "<b>v</b>", time=0), Document("one", nested, time=1), Document("two", nested, time=2)]
        assert [output.query for output in engine.process(batch)] == ["other"] * 3
        assert all(engine.registry.named(f"deep{n}")[0].paused is not None for n in range(len(DEEP)))


def test_bindings_are_found_in_few_steps_and_none_is_tried_in_vain():
    def steps(text: str, most: int, deep: int = 250) -> tuple[int, int]:
        block = parse_script(text).queries[0].source
        assert isinstance(block, Block)
        pattern = PreparedNode(PatternBuilder({}).path(block.steps))
        document = parse_document(b"<a>" * deep + b"v" + b"</a>" * deep)
        left, count = Steps(most), 0
        try:
            for _ in each_binding(pattern, document, {}, left.take):
                count += 1
        except OutOfSteps:
            return count, most + 1
        return count, most - left.left

    # 250 over 4 are 159 million; what is asked for comes at once.
    count, taken = steps("//a->p[.//a->q[.//a->r[.//a->x]]]", 200_000)
    assert count > 20_000 and taken == 200_001
    assert steps("//a[.//a[.//a[.//a->x]]]", 200_000)[0] == 247
    assert steps("//a->p[.//a->q[.//a->r[.//b->x]]]", 200_000)[0] == 0
    assert steps("//a->p[.//a[.//a->x]]", 10**7, 30)[0] == 28 * 29 // 2


def test_run_pauses_what_passes_a_bound_and_says_so(tmp_path: Path):
    documents = [{"id": f"d{n}", "time": f"2026-01-01T00:00:{n:02}Z", "xml": "<a>v</a>"} for n in range(30)]
    path = write_documents(tmp_path / "documents.jsonl", documents)
    queries = write_queries(tmp_path, "S/a->x FOLLOWED BY {x = y, INF} S/a->y PUBLISH pairs; S/a PUBLISH one")
    given = []
    for size in ("1", "100"):
        bounds = ("--max-outputs", "100", "--max-work", "1000")
        result = mmqjp("run", "--queries", queries, "--documents", path, "--batch-size", size, *bounds)
        assert result.exit_code == 0
        reason = "more than 100 matches in 10,000 documents, with 'd14' (max-outputs)"
        assert f"mmqjp: pairs is paused: {reason}" in result.stderr
        given.append(sorted(result.stdout.splitlines()))
    assert len(given[0]) == 30 + 13 * 14 // 2 and given[0] == given[1]


def test_documents_are_numbered_on_when_all_were_dropped(tmp_path: Path):
    clock = [10]

    def engine() -> Session:
        return Session("duckdb", state=tmp_path, lateness=0, idle_after=1, now=lambda: clock[0])

    with engine() as first:
        first.process([Document(f"d{n}", "<a>v</a>", time=n) for n in range(5)])
        first.subscribe("S/a->x FOLLOWED BY {x = y, 10} S/a->y PUBLISH pairs")
    with engine() as second:
        clock[0] = 10**9
        second.pass_time()
        mark_delivered(second)
        second.prune(0)
        assert second.sql("SELECT * FROM documents").num_rows == 0
    with engine() as third:
        got = third.process([Document(f"e{n}", "<a>v</a>", time=10**9 + n) for n in range(2)])
        assert [output.documents for output in got] == [("e0", "e1")]
