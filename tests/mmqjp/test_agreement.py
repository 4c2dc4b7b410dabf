"""The engine against the oracle on random scripts and documents, whatever the plan, the batches and the order of
arrival: joins, ONCE PER, near() and absences. With near() over restarts: `test_live_model`. And what operators find
at both ends of the times and windows that are allowed is what they find among ordinary times."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lxml import etree

from bench.workload import items, queries
from common.bounds import EARLIEST, INFINITE, LATEST
from feeds.documents import VISITS_STREAM, Document, Visit
from feeds.tail import read_documents
from join_stage import near_candidates, near_index
from join_stage.plans import DEFAULT_PLAN, PLANS
from join_stage.signature import join
from join_stage.spark.engine import SparkEngine
from join_stage.views import CACHE_BYTES
from mmqjp.answers import bindings, fan_out, output
from mmqjp.engine import Session
from tests.generate.absences import with_absences
from tests.generate.crawls import HOUR, crawl
from tests.generate.documents import SECOND, START
from tests.generate.near import near_case
from tests.generate.queries import with_once
from tests.generate.seeds import at_length, seeds
from tests.generate.strategies import random_case
from tests.live.cases import fed, small_case
from tests.live.operations import Doc, taken
from tests.live.run import same, same_rows
from tests.oracle.bindings import OutputRow
from tests.oracle.cases import arriving, brief, cases, docs
from tests.oracle.course import Course
from tests.oracle.evaluation import comparable, evaluate
from tests.oracle.query_answers import evaluate_in_steps
from tests.support.agreement import Delivery, arranged, as_row, assert_agrees
from tests.support.in_process import run_in_process
from tests.support.in_turn import in_turn
from xscl.parser import parse_script
from xscl.syntax import Script

BOUNDS = (CACHE_BYTES, 2_000, 20_000)
"""Of the cache of the plan views."""
DOCUMENTS = 12

Case = tuple[Script, list[Document]]


@pytest.fixture(autouse=True)
def learning(monkeypatch):
    """The order of words is learnt from a few texts, so that it changes in the middle."""
    monkeypatch.setattr(near_candidates, "ENOUGH", 5)
    monkeypatch.setattr(near_candidates, "AGAIN", 2)


def once(seed: int, count: int, most: int = DOCUMENTS) -> Case:
    script, documents = random_case(seed, count, most)
    return with_once(random.Random(seed), script), documents


KINDS: dict[str, Callable[[int], Case]] = {
    "any": lambda seed: random_case(seed, 20, DOCUMENTS),
    "once": lambda seed: once(seed, 20),
    "once, few": lambda seed: once(seed, *(4, 7) if at_length() else (3, 5)),
    "near": lambda seed: near_case(seed, documents=16),
    "near, few": lambda seed: near_case(seed, queries=4, documents=12),
}


def some(**numbers: range) -> list[tuple[str, int]]:
    return [(kind.replace("_", ", "), seed) for kind, some in numbers.items() for seed in some]


def delivery(seed: int, batches: Sequence[int] = (1, 2, 3, 5, 100)) -> Delivery:
    rng = random.Random(seed)
    return Delivery(rng.choice([None, seed]), rng.choice(batches))


ON_DUCKDB = some(any=seeds(3, 1_100), once=seeds(1, 300), near=seeds(3, 60))
ON_SPARK = some(any=seeds(1, 110, 5000), once_few=seeds(1, 30, 7000))


@pytest.mark.parametrize(("case", "plan"), in_turn(ON_DUCKDB, PLANS), ids=str)
def test_duckdb_agrees_with_the_oracle(case, plan, monkeypatch):
    kind, seed = case
    monkeypatch.setattr(bindings, "BLOCK", (1, 5, bindings.BLOCK)[seed % 3])
    for module in (bindings, output, fan_out):  # by columns, however few there are
        monkeypatch.setattr(module, "FEW", module.FEW * (seed % 2))
    monkeypatch.setattr(near_candidates, "MOST_INDEXED", (-1, 40, 1 << 26)[seed % 3])
    monkeypatch.setattr(near_index, "MANY_POSTINGS", (-1, 12_000)[seed % 2])
    with Session("duckdb", plan=plan, cache_bytes=BOUNDS[seed % len(BOUNDS)]) as engine:
        assert_agrees(engine, *KINDS[kind](seed), delivery(seed))


@pytest.mark.parametrize(
    ("case", "plan"),
    [
        *in_turn(ON_SPARK, (DEFAULT_PLAN, "basic", "views")),
        *(pytest.param(("near, few", 11), plan, marks=pytest.mark.soak) for plan in PLANS),
    ],
    ids=str,
)
def test_spark_agrees_with_the_oracle(case, plan, spark):
    kind, seed = case
    with Session(spark, plan=plan) as engine:
        assert_agrees(engine, *KINDS[kind](seed), delivery(seed, (4, 5, 100)))


@pytest.mark.parametrize(("kind", "seed"), some(near=seeds(1, 100), once=seeds(0, 300)))
def test_executors_agree_with_the_oracle(kind, seed, spark, tmp_path, monkeypatch):
    context = run_in_process(monkeypatch, cores=1 + (seed + 2) % 4, seed=seed)
    monkeypatch.setattr(near_candidates, "MOST_HELD", 50)
    if seed % 2:
        monkeypatch.setattr(join, "MOST_IN_MEMORY", 0)
    script, documents = near_case(seed, queries=8, documents=16) if kind == "near" else once(seed, 12)
    with Session(spark, state=tmp_path) as engine:
        assert assert_agrees(engine, script, documents, delivery(seed, (3, 5))) or kind == "once"
    assert context.jobs


def test_the_first_small_batch_of_a_store_asks_spark_nothing(spark, monkeypatch):
    """Its first question costs the JVM ten seconds."""
    asked: list[str] = []
    select = SparkEngine.select

    def noted(engine: SparkEngine, sql: str, views: Mapping[str, pa.Table] | None = None) -> pa.Table:
        asked.append(sql)
        return select(engine, sql, views)

    monkeypatch.setattr(SparkEngine, "select", noted)
    script = "FROM S//a->x JOIN {x/k = y/k, 1 h} S//a->y PUBLISH p; FROM p//a->x PUBLISH again"
    documents = [Document(f"d{n}", "<a><k>1</k></a>", "S", n * SECOND) for n in range(2)]
    with Session(spark) as engine:
        engine.subscribe(script)
        assert {one.query for one in engine.process(documents)} == {"p", "again"}
    assert asked == []


def test_equal_inner_inputs_are_different_documents_and_constants_can_be_compared():
    text = (
        "(S/a->x JOIN {x = y, INF} S/a->y) JOIN {x = z, INF} (S/a->z JOIN {z = w, INF} S/a->w);"
        '(SELECT x, "1" AS one FROM S/a->x) JOIN {x = y AND one = y, INF} S/b->y'
    )
    given = docs("d1@0 <a>1</a> | d2@1 <a>1</a> | d3@2 <a>2</a> | d4@3 <b>1</b> | d5@4 <b>2</b>")
    with Session("duckdb") as engine:
        assert assert_agrees(engine, parse_script(text), given, Delivery(None, 2)) == 4 + 2


@pytest.mark.soak
def test_the_lifelike_workload_agrees_with_the_oracle():
    script, documents = parse_script(queries(60)), list(items(150))
    for plan in PLANS:
        with Session("duckdb", plan=plan) as engine:
            assert assert_agrees(engine, script, documents, Delivery(5, 40)) > 5


# ---------------------------------------------------------------- absences


def absent(seed: int) -> tuple[Script, list[Document], list[list[Document]]]:
    script, documents = (near_case if seed % 4 == 3 else random_case)(seed, 12, DOCUMENTS)
    return with_absences(random.Random(seed), script), documents, arranged(documents, delivery(seed))


def at_the_end(engine: Session, script: Script, batches: list[list[Document]]) -> list[OutputRow]:
    engine.ensure(script)
    got = [as_row(output) for batch in batches for output in engine.process(batch)]
    got += [as_row(output) for output in engine.finish()]
    assert not list(engine.finish())
    return got


@pytest.mark.parametrize("seed", seeds(2, 400))
def test_all_is_decided_at_the_end_of_a_run(seed):
    script, documents, batches = absent(seed)
    with Session("duckdb", plan=PLANS[seed % 3]) as engine:
        assert comparable(at_the_end(engine, script, batches)) == comparable(evaluate(script, documents))


# ---------------------------------------------------------------- watermarks


def world(seed: int) -> tuple[Script, list[Document | Visit]]:
    """Documents in about the order of time, in two worlds of three as entries of feeds that are visited."""
    rng = random.Random(-seed)
    script, documents = small_case(rng, 7, 16)
    if seed % 10 < 2:
        script, samples = (random_case, near_case)[seed % 10](seed, 7, 16)
        documents = list(map(taken, samples))
    script = with_once(rng, with_absences(rng, script, rng.choice((0, 30, 60))), rng.choice((0, 0, 40)))
    found = sorted(documents, key=lambda one: one.t1 + rng.randrange(6) * SECOND)
    items = fed(rng, found) if seed % 3 else found
    return script, [one.document() if isinstance(one, Doc) else one for one in items]


def assert_lives(
    rng: random.Random, script: Script, items: Sequence[Document | Visit], timing: dict[str, Any], place: Path | None
) -> None:
    """Processes items in some batches; without a `place` of state as a finite run, else with restarts."""
    course, got = Course(**timing), list[OutputRow]()
    cuts = sorted(rng.sample(range(1, len(items)), min(len(items) - 1, rng.choice((1, 3, 5, 12)))))
    batches = [items[begin:end] for begin, end in pairwise([0, *cuts, len(items)])]
    waiting = list(batches)
    while waiting:
        count = rng.choice((1, 3, 9)) if place else len(batches)
        with Session("duckdb", state=place, plan=rng.choice(PLANS), now=lambda: START, quiet=True, **timing) as engine:
            engine.ensure(script)
            for batch in waiting[:count]:
                got += map(as_row, engine.process(batch))
            del waiting[:count]
            got += map(as_row, engine.finish())
            rows = engine.sql("SELECT stream, id, watermark FROM documents WHERE kind = 'external'").to_pylist()
            belated = engine.belated().by_stream
    steps = batches if any(query.once for query in script.queries) else [items]
    steps = [[one for item in step for one in _apart(item)] for step in steps]
    same_rows("outputs", got, evaluate_in_steps(script, steps, course, finish=place is None))
    kept = {(row["stream"], row["id"], row["watermark"]) for row in rows}
    same("watermarks", kept, {(*key, watermark) for key, (_, watermark) in course.taken.items()})
    same("belated", belated, +course.belated)


def _apart(item: Document | Visit) -> Sequence[Document | Visit]:
    """A visit as the documents about it, and visits of both streams that its feed fills."""
    if isinstance(item, Document):
        return [item]
    streams = [item.stream, VISITS_STREAM] if item.stream == "S" else [item.stream]
    return [*item.documents, *(replace(item, stream=stream) for stream in streams if item.outcome != "failed")]


@pytest.mark.parametrize("seed", seeds(4, 5_000))
def test_what_watermarks_decide_depends_on_no_batch_or_restart(seed, tmp_path):
    script, items = world(seed)
    rng = random.Random(seed)
    lateness = {"*": rng.choice((0, 0, 2, 5)) * SECOND, "T": rng.choice((0, 1, 4)) * SECOND}
    belated = rng.choice(("take", "take", "take", {"*": "take", "S": "drop"}))
    timing = {"lateness": lateness, "idle_after": rng.choice((6 * SECOND, None)), "belated": belated}
    assert_lives(rng, script, items, timing, tmp_path if seed % 5 else None)


CRAWLED = """
SELECT t FROM S/item[./title->t] JOIN UNORDERED {lower-case(t) = lower-case(u), 6 h} S/item[./title->u] PUBLISH pairs;
FROM S/item->x[./title->t] FOLLOWED BY {t = u, 3 h} S/item->y[./title->u] PUBLISH again;
FROM S/item->x[./title->t] NOT FOLLOWED BY {t = u, 8 h} S/item[./title->u] PUBLISH silent;
FROM S/item->x[./title->t] NOT PRECEDED BY {t = u, 8 h} S/item[./title->u] PUBLISH first;
SELECT t FROM S/item[./title->t] PUBLISH told ONCE PER (lower-case(t)) WITHIN 5 h;
FROM pairs//title->t NOT JOIN {t = u, 2 h} told//title->u PUBLISH alone;
FROM S/item->x[./title->t] JOIN {t = u, 4 h} S/item->y[./title->u] FOLLOWED BY {u = v, 9 h} S/item[./title->v];
FROM mmqjp:visits/visit->v[./error][./feed->f] NOT FOLLOWED BY {f = g, 5 h}
  mmqjp:visits/visit[not(./error)][./feed->g] PUBLISH failing;
SELECT t, w FROM S/item[./title->t][./guid->g] FOLLOWED BY {g = w, 60 h} mmqjp:visits/visit/withdrawn->w PUBLISH gone;
FROM mmqjp:visits/visit->v[./moved] PUBLISH moved
"""


@pytest.mark.parametrize("seed", seeds(2, 1_000))
def test_a_crawl_gives_what_its_feeds_showed_when_they_were_visited(seed, tmp_path):
    rng = random.Random(seed)
    written = crawl(rng, tmp_path / "crawl")
    read = [one for one in read_documents([tmp_path / "crawl"], feeds="item") if isinstance(one, Document | Visit)]
    same("items", *([_brief(one) for one in some] for some in (read, written)))
    timing = {"lateness": rng.choice((0, 0, 1, 24)) * HOUR, "idle_after": rng.choice((4 * HOUR, None))}
    assert_lives(rng, parse_script(CRAWLED), read, timing, tmp_path / "state" if seed % 4 else None)


def _brief(item: Document | Visit) -> object:
    if isinstance(item, Visit):
        news = [(one.id, one.t0, one.feed, etree.fromstring(one.xml_bytes())) for one in item.documents]
        return item, [(*about, sorted((part.tag, part.text) for part in root)) for *about, root in news]
    title = item.xml if item.id == item.xml else etree.fromstring(item.xml_bytes()).findtext("title")
    return title, item.t0, item.t1, item.feed


@pytest.mark.parametrize(("script", "items", "expected"), cases("belated"))
def test_belated_documents(script, items, expected):
    for plan, size in zip(PLANS, (1, 3, 100), strict=True):
        with Session("duckdb", plan=plan, lateness=2 * SECOND, quiet=True) as engine:
            engine.ensure(script)
            given = arriving(items)
            batches = [given[at : at + size] for at in range(0, len(given), size)]
            got = [as_row(one) for batch in batches for one in engine.process(batch)]
            assert brief([*got, *map(as_row, engine.finish())]) == expected, (plan, size)


# ---------------------------------------------------------------- both ends of what is allowed

DEFINED = "DEFINE EVENT A FROM S//a->r (k := r/@k); "
EVENTS = (
    "FROM A NEXT A WITHIN {w}",
    "FROM A NEXT{{$1.k = $2.k}} A WITHIN {w}",
    "FROM A NEXT{{DUR <= {w}}} A",
    "FROM A NEXT{{GAP <= {w}}} A",
    "FROM A FOLD{{$2.k = $.k,,}} A WITHIN {w}",
    "FROM AGGREGATE{{count() AS n OVER {w}}} A",
    "FROM AGGREGATE{{count() AS n BY k OVER {w}}} A",
    "FROM FILTER{{DUR <= {w}}} A",
    "PATTERN SEQ(A a, A b) WITHIN {w}",
    "PATTERN SEQ(A a, A b) WITHIN {w} NON OVERLAPPING",
    'PATTERN SEQ(~(A n), A a, A b) WHERE {{n.k = "z"}} WITHIN {w}',
    'PATTERN SEQ(A a, A b, ~(A n)) WHERE {{n.k = "z"}} WITHIN {w}',
    "PATTERN SEQ(A a, A+ b[]) WHERE skip_till_next_match {{}} WITHIN {w}",
    "PATTERN SEQ(SET(A a, A b)) WITHIN {w}",
    "PATTERN SEQ(A a, A+ b[]) WITHIN {w} EARLIEST MAXIMAL",
    "PATTERN SEQ(A, A) ERRORS <= 1 WITHIN {w}",
    "PATTERN SEQ(A, A, A) ERRORS <= 1 BUDGET 5 WITHIN {w}",
)
JOINS = (
    "FROM S/a->x JOIN UNORDERED {{x/@k = y/@k, {w}}} S/a->y",
    "FROM S/a->x FOLLOWED BY {{x/@k = y/@k, {w}}} S/a->y",
    "FROM S/a->x JOIN UNORDERED {{near(x, y, 0.5), {w}}} S/a->y",
    "FROM S/a->x NOT FOLLOWED BY {{x/@k = y/@k, {w}}} S/b->y",
    "FROM S/a->x NOT FOLLOWED BY {{x/@k = y/@k, {w}}} S/a->y",
    "FROM S/a->x NOT JOIN {{x/@k = y/@k, {w}}} S/b->y",
    "FROM S/a->x NOT PRECEDED BY {{x/@k = y/@k, {w}}} S/a->y",
    "FROM S/a->x FOLLOWED BY {{x/@k = y/@k, {w}}} S/a->y FOLLOWED BY {{y/@k = z/@k, {w}}} S/a->z",
    "FROM S/a->x NOT FOLLOWED BY {{x/@k = y/@k, {w}}} S/b->y PUBLISH P",
    "FROM P//a->x NOT FOLLOWED BY {{x/@k = y/@k, {w}}} S/b->y",
    "SELECT x FROM S/a->x PUBLISH Q ONCE PER (x/@k) WITHIN {w}",
)
FIRST, LAST = EARLIEST + 1, LATEST - 1
TIMES = [(FIRST, FIRST + 1, 0, LAST), (FIRST, FIRST, LAST - 1, LAST, LAST)]


@cache
def found(texts: Sequence[str], times: tuple[int, ...], window: str, plan: str) -> dict[str, list[object]]:
    """What each text finds among documents of these times."""
    script = "; ".join(text.format(w=window) for text in texts)
    with Session("duckdb", settle=None, quiet=True, plan=plan) as engine:
        engine.subscribe(DEFINED + script)
        for number, time in enumerate(times):
            engine.process([Document(f"d{number}", '<a k="1">one two</a>', "S", time)])
        list(engine.finish())
        outputs = sorted((one.query, one.documents, str(one.nodes)) for one in engine.outputs())
    return {name: list(some) for name, some in groupby(outputs, key=itemgetter(0))}


@pytest.mark.parametrize(("texts", "plan"), [(EVENTS, DEFAULT_PLAN), *((JOINS, plan) for plan in PLANS)])
@pytest.mark.parametrize("times", TIMES)
def test_what_is_found_is_what_there_is_among_ordinary_times_in_the_same_order(
    texts: Sequence[str], plan: str, times: tuple[int, ...]
):
    ordinary = tuple(sorted(set(times)).index(time) * 10**6 for time in times)
    wanted = found(texts, ordinary, "1 h", DEFAULT_PLAN)
    assert found(texts, times, f"{INFINITE} us", plan) == wanted
    assert len(wanted) == len(texts)
