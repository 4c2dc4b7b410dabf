import random
from collections import Counter
from collections.abc import Iterable
from copy import deepcopy
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from feeds.documents import Document
from join_stage import near_candidates
from join_stage.plans import PLANS
from mmqjp.engine import Session
from tests.generate.documents import SECOND, chance
from tests.generate.seeds import at_length, expect_some, seeds
from tests.oracle.bindings import OutputRow
from tests.oracle.bounds import Model, Watched
from tests.oracle.evaluation import comparable
from tests.support.agreement import as_row
from tests.support.cli import mmqjp, write_documents, write_queries
from tests.support.delivery import undelivered
from tests.support.faults import FaultySession, Injected
from xpath_stage.documents import element_text, parse_document
from xscl.parser import parse_script

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
    found = []
    for number in range(count):
        nodes = "".join(f"<a>{rng.choice('uvw')}</a>" for _ in range(rng.choice([1, 1, 2])))
        found.append(Document(f"d{number}", f"<r>{nodes}</r>", rng.choice("SST"), number * 1_000_000))
    return found


def assert_is_the_model(state: Path, seed: int, small: pytest.MonkeyPatch) -> set[str]:
    """Holds an engine against the model over documents in random batches, with queries that are resumed, paused, come
    late, and restarts in between; returns why queries were paused."""
    small.setattr("common.limits.BLOCK", BLOCK)
    small.setattr("mmqjp.answers.accounts.USAGE_COMPACTED_AFTER", 3)
    rng, plans = random.Random(seed), random.Random(seed)
    matches, in_all = rng.choice([1, 2, 3, 5, 8]), rng.choice([3, 6, 10, 20, 1_000])
    model = Model(matches, in_all, BLOCK, UPSTREAM)
    model.queries += deepcopy(rng.sample(QUERIES, rng.randint(1, len(QUERIES))))
    # What P publishes is kept only where somebody reads it.
    read = {query.name for query in model.queries} & {"R", "E"}
    late = [deepcopy(query) for query in LATE if query.name != "Z" or read]
    waiting = documents(rng, 16)
    reasons: set[str] = set()

    def opened() -> Session:
        plan = plans.choice(PLANS)
        return Session("duckdb", state=state, plan=plan, max_matches=matches, max_outputs=in_all)

    engine = opened()
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
                    engine = opened()
        assert comparable(map(as_row, undelivered(engine))) == comparable(model.given)
    finally:
        engine.close()
    return reasons


@pytest.mark.parametrize("first", seeds(1, 300))
def test_bounds_are_those_of_documents_that_come_one_by_one(first, tmp_path, monkeypatch):
    reasons: set[str] = set()
    for seed in range(4 * first, 4 * first + (3 if at_length() else 2)):
        reasons |= assert_is_the_model(tmp_path / str(seed), seed, monkeypatch)
    expect_some([reason for reason in reasons if "matches of" in reason])


def spent(engine: Session) -> dict[str, tuple[int, int]]:
    rows = engine.sql("SELECT owner, sum(outputs) AS outputs, sum(work) AS work FROM spent GROUP BY owner").to_pylist()
    return {row["owner"]: (int(row["outputs"]), int(row["work"])) for row in rows}


WORK = """SELECT x, y, k FROM S/r[./a->x][.//a->k] JOIN {x = y AND k != y, INF} T//a->y PUBLISH W;
SELECT x, y, z FROM (SELECT x, y FROM S//a->x JOIN {x = y AND x != "w", INF} S//a->y) JOIN {y = z, INF} T//a->z;
SELECT k FROM W//a->k; SELECT r, x, y FROM S//r->r[.//a->x][.//a->y]"""


def test_steps_are_the_same_in_any_batches_plans_and_backfills():
    found = []
    for plan, size in (("signature", 1), ("basic", 7), ("views", 30)):
        with Session("duckdb", plan=plan) as engine:
            engine.subscribe(WORK)
            waiting = documents(random.Random(5), 16)
            while waiting:
                engine.process(waiting[:size])
                waiting = waiting[size:]
            found.append(spent(engine))
    with Session("duckdb") as engine:
        engine.subscribe("S//nothing")
        engine.process(documents(random.Random(5), 16))
        engine.subscribe(WORK, backfill=True)
        found.append(spent(engine))
    assert found[0] and all(one == found[0] for one in found)


NESTED = "p[.//a->q[.//a->r[.//a->x]]]"
DEEP = [
    f"SELECT p, q, r, x FROM S//a->{NESTED}",
    "SELECT p, q, r, x FROM S//a->p[.//a->q][.//a->r][.//a->x]",
    f"SELECT p, q, r, x, y FROM S//a->{NESTED} JOIN {{x = y, INF}} S//a->y",
    f"SELECT y FROM S//b->y JOIN {{x = y AND p != q AND q != r, INF}} S//a->{NESTED}",
]
IN_VAIN = "SELECT p, q, r, x FROM S//a->p[.//a->q[.//a->r[.//c->x]]] PUBLISH in_vain"


def test_patterns_that_bind_in_very_many_ways_end_soon():
    nested = "<a>" * 250 + "v" + "</a>" * 250
    with Session("duckdb", max_matches=50, max_work=20_000) as engine:
        deep = (f"{text} PUBLISH deep{n}" for n, text in enumerate(DEEP))
        engine.subscribe("; ".join([*deep, IN_VAIN, "S PUBLISH other"]))
        batch = [Document("b", "<b>v</b>", time=0), Document("one", nested, time=1), Document("two", nested, time=2)]
        assert [output.query for output in engine.process(batch)] == ["other"] * 3
        assert engine.take_paused().keys() == {f"deep{n}" for n in range(len(DEEP))}


def test_run_pauses_what_passes_a_bound_and_says_so(tmp_path):
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


EVENT_QUERIES = """
DEFINE EVENT A FROM S//a->a (k := a/@k);
DEFINE EVENT B FROM S//b->b (l := b/@k);
FROM A NEXT{k = l} B WITHIN 6 s PUBLISH pairs;
FROM A PUBLISH all;
FROM FILTER{l = "none"} B PUBLISH goes_on;
FROM AGGREGATE{count() AS n OVER 5 s} A PUBLISH counts
"""
EVENT_BOUNDS = (
    (2, 100, 100, 100), (100, 3, 100, 100), (3, 5, 100, 100), (1, 1, 100, 100), (100, 100, 5, 100), (100, 100, 100, 2)
)  # fmt: skip


PATTERNS = """
DEFINE EVENT A FROM S//a->a (k := a/@k);
DEFINE EVENT B FROM S//b->b (l := b/@k);
PATTERN SEQ(A a, B b) WHERE { a.k = b.l } WITHIN 6 s RETURN a.k AS k PUBLISH anyhow;
PATTERN SEQ(A+ a[], B b) WHERE skip_till_next_match { a[i].k = a[i-1].k AND b.l = a[1].k } WITHIN 6 s
    RETURN b.l AS k PUBLISH runs;
PATTERN SEQ(~(A n), B b) WHERE { n.k = b.l } WITHIN 4 s RETURN b.l AS k PUBLISH alone
"""
GOES_ON = """;
FROM FILTER{l = "none"} B PUBLISH goes_on
"""
STORIES = """
FROM S//r->x JOIN {x/*/@k = y/*/@k, 3 s} S//r->y PUBLISH told STORIES LASTING 4 s;
FROM STORIES{LASTING 9 s HAVING members > 2} told_pairs PUBLISH long
"""

Found = Counter[tuple[str, int, int, str]]


class Event(NamedTuple):
    name: str
    time: int
    key: str


def event_documents(rng: Random, count: int) -> list[tuple[int, list[Event]]]:
    times = sorted(rng.randint(0, count) for _ in range(count))
    return [
        (time, [Event(rng.choice("AAB"), time, rng.choice("uv")) for _ in range(rng.choice((0, 1, 1, 2, 4)))])
        for time in times
    ]


def sent(number: int, time: int, events: Iterable[Event], stream: str = "S") -> Document:
    inside = "".join(f'<{one.name.lower()} k="{one.key}"/>' for one in events)
    return Document(f"d{number}", f"<r>{inside}</r>", stream, time * SECOND)


def told(engine: Session) -> Found:
    found: Found = Counter()
    for one in engine.outputs():
        values = {str(child.tag): element_text(child) for child in parse_document(one.xml.encode(), trusted=True).root}
        value = one.story + one.change or values.get("k") or values["n"]
        found[one.query, one.t0 // SECOND, one.t1 // SECOND, value] += 1
    return found


@pytest.mark.parametrize("seed", seeds(4, 600))
def test_queries_are_paused_at_the_same_time(seed, tmp_path, monkeypatch):
    """Also if all are paused: then nothing moves the horizon but a resumption. Streams may lag behind others, and
    batches fail."""
    rng = Random(seed)
    monkeypatch.setattr("pattern_stage.operators.FOUND", rng.choice((2, 1 << 22)))
    lags = {stream: rng.choice((0, 0, 3, 12)) for stream in "ST"}
    made = [(*one, rng.choice("ST")) for one in event_documents(rng, 40)]
    arrived = [sent(number, *one) for number, one in enumerate(sorted(made, key=lambda one: one[0] + lags[one[2]]))]
    stops = sorted(rng.sample(range(5, 38), 3))
    monkeypatch.setattr("common.limits.BLOCK", BLOCK)
    names = ("max_matches", "max_partial", "max_outputs", "max_work")
    bounds: dict[str, Any] = dict(zip(names, rng.choice(EVENT_BOUNDS), strict=True))
    script = (PATTERNS + rng.choice(("", GOES_ON)), EVENT_QUERIES, STORIES)[seed % 3]
    if chance(rng, 70):
        script = script.replace("B FROM S", "B FROM T")

    def opened(state: Path) -> FaultySession:
        return FaultySession("duckdb", state=state, settle=0, **bounds, quiet=True)

    def life(state: Path, *, plain: bool) -> tuple[list[str | None], Found]:
        """Returns why each query was paused at each stop, where all are resumed, and the outputs. In a plain life
        documents come one by one; in others in any batches, with restarts and failures."""
        engine = opened(state)
        names = engine.subscribe(script)
        reasons: list[str | None] = []
        for start, stop in pairwise((0, *stops)):
            while start < stop:
                end = start + 1 if plain else min(start + rng.randint(1, 9), stop)
                if not plain and chance(rng, 15):
                    with engine.store.failing(rng.choice(("append", "commit"))), pytest.raises(Injected):
                        engine.process(arrived[start:end])
                engine.process(arrived[start:end])
                start = end
                if not plain and chance(rng, 40):
                    engine.close()
                    engine = opened(state)
            paused = {name: engine.registry.named(name)[0].paused for name in names}
            reasons += paused.values()
            for name in (name for name, reason in paused.items() if reason is not None):
                engine.resume(name)
        engine.process([Document(f"last {stream}", "<none/>", stream, 50 * SECOND) for stream in "ST"])
        found = told(engine)
        engine.close()
        return reasons, found

    plain = life(tmp_path / "plain", plain=True)
    for number in range(2 if at_length() else 1):
        assert life(tmp_path / f"{number}", plain=False) == plain


LIMITED = [
    ("max_matches", 1, "all", "1 match at 1970-01-01T00:00:01Z", 0),
    ("max_matches", 2, "all", "2 matches at 1970-01-01T00:00:13Z", 10),
    ("max_matches", 2, "pairs", "2 matches at 1970-01-01T00:00:06Z", 2),
    ("max_partial", 1, "counts", "1 partial match waits after 1970-01-01T00:00:01Z", 0),
    ("max_partial", 3, "counts", "3 partial matches wait after 1970-01-01T00:00:02Z", 1),
    ("max_partial", 3, "pairs", "3 partial matches wait after 1970-01-01T00:00:13Z", 7),
    ("max_outputs", 5, "all", "5 matches at 10,000 times in a row, with 1970-01-01T00:00:06Z", 5),
    ("max_outputs", 5, "pairs", "5 matches at 10,000 times in a row, with 1970-01-01T00:00:09Z", 5),
    ("max_work", 2, "all", "2 steps at 1970-01-01T00:00:13Z", 10),
    ("max_work", 2, "pairs", "2 steps at 1970-01-01T00:00:06Z", 2),
]
"""Bounds, queries that exceed them, the reasons, and how many outputs there are before. What is counted is held against
brute force in tests/pattern_stage/test_limits.py."""


@pytest.mark.parametrize("backfill", [False, True])
@pytest.mark.parametrize(("option", "most", "name", "reason", "before"), LIMITED)
def test_limits_are_told_and_are_those_of_a_backfill_too(option, most, name, reason, before, backfill, monkeypatch):
    monkeypatch.setattr("common.limits.BLOCK", BLOCK)
    with Session("duckdb", settle=0, **{option: most}, quiet=True) as engine:
        engine.subscribe("FROM S//nothing PUBLISH nothing" if backfill else EVENT_QUERIES)
        engine.process([sent(number, *one) for number, one in enumerate(event_documents(Random(2), 25))])
        engine.process([Document("last", "<none/>", "S", 50 * SECOND)])
        if backfill:
            engine.subscribe(EVENT_QUERIES, backfill=True)
        assert engine.registry.named(name)[0].paused == f"more than {reason} ({option.replace('_', '-')})"
        assert sum(one.query == name for one in engine.outputs()) == before
        engine.process([sent(100, 60, [Event("A", 60, "u")]), sent(101, 61, [Event("B", 61, "u")])])
        engine.process([Document("end", "<none/>", "S", 70 * SECOND)])
        active = {name for name in ("pairs", "all", "counts") if engine.registry.named(name)[0].active}
        assert {one.query for one in engine.outputs() if one.t1 >= 60 * SECOND} == active


def test_another_query_of_the_same_form_begins_anew(tmp_path):
    with Session("duckdb", state=tmp_path, settle=0, max_matches=2, max_partial=2, quiet=True) as engine:
        engine.subscribe(EVENT_QUERIES)
        many = [Event("A", 1, "u")] * 3
        engine.process([sent(1, 1, many), sent(2, 2, [])])
        assert engine.registry.named("pairs")[0].paused and engine.registry.named("all")[0].paused
        engine.subscribe("FROM A NEXT{k = l} B WITHIN 6 s PUBLISH others")
        engine.process([sent(3, 3, [Event("A", 3, "u")]), sent(4, 4, [Event("B", 4, "u")]), sent(5, 5, [])])
        assert [one.query for one in engine.outputs() if one.query in ("pairs", "others")] == ["others"]


@pytest.mark.parametrize("clauses", ["HAVING a.k = 'none'", "NON OVERLAPPING", "HAVING a.k = 'none' NON OVERLAPPING"])
def test_a_pause_says_what_chooses_after_matches_are_counted(clauses):
    definitions = EVENT_QUERIES.partition("FROM A NEXT")[0]
    with Session("duckdb", settle=0, max_matches=1, quiet=True) as engine:
        engine.subscribe(f"{definitions} PATTERN SEQ(A a, B b) WITHIN 9 s {clauses} PUBLISH q".replace("'", '"'))
        engine.process([sent(time, time, [Event(name, time, "u")]) for time, name in ((1, "A"), (2, "A"), (3, "B"))])
        engine.process([sent(4, 9, [])])
        names = ", ".join(one for one in ("HAVING", "NON OVERLAPPING") if one in clauses)
        reason = f"more than 1 match at 1970-01-01T00:00:03Z, before {names} (max-matches)"
        assert engine.registry.named("q")[0].paused == reason


ABSENCES = """S//a->x NOT FOLLOWED BY {x = y AND x != k, 4} S/r[./a->y][./k->k] PUBLISH A;
S/r[./a->x][./k->k] NOT JOIN {k = m AND x != y, 3} T/r[./a->y][./k->m] PUBLISH B;
S/r[./a->x][./k->k] NOT PRECEDED BY {k = m AND starts-with(y, x), 6} S/r[./a->y][./k->m] PUBLISH C;
SELECT x, z FROM (SELECT x FROM S//a->x NOT FOLLOWED BY {x = y AND k != "nothing", 2} S/r[./a->y][./k->k])
  FOLLOWED BY {x = z, 9} T//a->z PUBLISH D;
A//a->x NOT FOLLOWED BY {x = y AND x != k, 2} T/r[./a->y][./k->k] PUBLISH E;
T//a->x NOT JOIN {x = y AND x != k, 2} A//r[./a->y][./k->k] PUBLISH F;
S/r[./t->x][./k->k] NOT PRECEDED BY {near(x, y, 0.5) AND k != m, 6} S/r[./t->y][./k->m] PUBLISH G;
S/r[./t->x][./k->k] NOT FOLLOWED BY {near(x, y, 0.7) AND starts-with(m, k), 4} S/r[./t->y][./k->m] PUBLISH H"""


@pytest.fixture(autouse=True)
def learning(monkeypatch):
    """The order of words is learnt in the middle: in another batch if these are longer."""
    monkeypatch.setattr(near_candidates, "ENOUGH", 6)


def near_in_time(rng: random.Random, count: int) -> list[Document]:
    """Documents in the order of time, so that none is late. Many have equal values that no query wants to be equal."""
    found, time = [], 0
    for number in range(count):
        time += rng.choice((0, 0, 1, 1, 2, 5)) * SECOND
        nodes = "".join(f"<a>{rng.choice('uv')}</a>" for _ in range(rng.choice((1, 1, 2))))
        text = " ".join(rng.choices(("storm", "hits", "the", "coast", "a"), k=rng.choice((2, 3, 4))))
        xml = f"<r>{nodes}<k>{rng.choice('uuv')}</k><t>{text}</t></r>"
        found.append(Document(f"d{number}", xml, rng.choice("SST"), time))
    return found


def lived(script: str, given: list[Document], size: int, most: int) -> tuple[object, ...]:
    """The outputs, why queries were paused, and what was spent, if so many documents come at a time."""
    with Session("duckdb", lateness=0, max_work=most, quiet=True) as engine:
        engine.subscribe(script)
        got: list[OutputRow] = []
        for start in range(0, len(given), size):
            got += map(as_row, engine.process(given[start : start + size]))
        paused = {one.name: one.paused for one in engine.registry.subscriptions.values() if one.paused is not None}
        rows = engine.sql("SELECT owner, sum(work) AS work FROM spent GROUP BY owner ORDER BY owner").to_pylist()
        return comparable(got), paused, [(row["owner"], int(row["work"])) for row in rows]


@pytest.mark.parametrize("seed", seeds(1, 400))
def test_the_bounds_of_absences_depend_on_no_batch(seed):
    rng = random.Random(seed)
    script = "; ".join(rng.sample([one.strip() for one in ABSENCES.split(";")], 8)[: rng.choice((1, 3, 6))])
    given, most = near_in_time(rng, 16), rng.choice((8, 12, 16, 24, 40, 10_000))
    one, *others = (lived(script, given, size, most) for size in (1, rng.choice((2, 5, 9)), 100))
    expect_some(one[0] or one[1])
    assert others == [one, one]


def test_a_decision_that_takes_too_long_pauses_the_query_at_the_document_that_decides_it():
    """Also if that comes long after its own document."""
    text = "S/r[./a->x][./k->k] NOT FOLLOWED BY {x = y AND starts-with(m, k), 100} S/r[./a->y][./m->m] PUBLISH silent"
    vain = [Document(f"v{n}", f"<r><a>u</a><m>{'!' * 12_800}</m></r>", time=(n + 1) * SECOND) for n in range(10)]
    ends = [Document(name, "<z/>", time=at * SECOND) for name, at in (("last", 100), ("decides", 101), ("later", 102))]
    given = [Document("d", "<r><a>u</a><k>?</k></r>", time=0), *vain, *ends]
    for size in (1, 7):
        out, paused, _ = lived(text, given, size, 400)
        assert not out and paused == {"silent": "more than 400 steps for the document 'decides' (max-work)"}
        assert lived(text, given, size, 1_000)[0]


PARTNERS = {
    "NOT FOLLOWED BY": ("106-106 110-110 106-110", "99-99 105-105 111-111 106-111"),
    "NOT JOIN": ("100-105 110-110 95-95 95-105", "111-111 94-94 95-110"),
    "NOT PRECEDED BY": ("99-99 95-95 95-99", "100-100 99-100 94-99 106-106"),
}
"""By operator, times of documents that are partners of one from 100 to 105, and of some that are not."""


@pytest.mark.parametrize("op", PARTNERS)
def test_which_documents_are_partners(op):
    partners, others = (some.split() for some in PARTNERS[op])
    spans = [(int(t0), int(t1)) for t0, _, t1 in (span.partition("-") for span in partners + others)]
    with Session("duckdb") as engine:
        engine.subscribe(f"S/a->x {op} {{x = y, 10 us}} S/b->y")
        engine.process(Document(f"b{n}", f"<b>{n}</b>", time=span) for n, span in enumerate(spans))
        engine.process(Document(f"a{n}", f"<a>{n}</a>", time=(100, 105)) for n in range(len(spans)))
        alone = {output.documents[0] for output in engine.finish()}
    assert alone == {f"a{n}" for n in range(len(partners), len(spans))}


@pytest.mark.parametrize(("most", "decided"), [(10, ["a0", "a1", "a2"]), (2, [])])
def test_silence_decides_once_within_quotas_although_a_commit_fails(most, decided, tmp_path):
    now, idle, lateness = 100 * SECOND, 60 * SECOND, 3 * SECOND

    def opened() -> FaultySession:
        options = {"idle_after": idle, "now": lambda: now, "max_outputs": most}
        return FaultySession("duckdb", state=tmp_path, lateness=lateness, quiet=True, **options)

    with opened() as engine:
        engine.subscribe("S/a->x NOT FOLLOWED BY {x = y, 10} S/b->y PUBLISH alone; alone//a PUBLISH readers")
        engine.process([Document(f"a{n}", f"<a>{n}</a>", time=now) for n in range(3)])
        now += idle
        assert not engine.pass_time()
    with opened() as engine:
        now += idle + 10 * SECOND + 2 * lateness
        with engine.store.failing("commit"), pytest.raises(Injected):
            engine.pass_time()
        assert not list(engine.outputs())
        assert engine.pass_time() and not engine.pass_time()
        told = [(one.seq, one.query, one.documents[0]) for one in engine.outputs()]
        right = [(name, id) for name in ("alone", "readers") for id in decided]
        assert told == [(seq, name, id) for seq, (name, id) in enumerate(right)]
        assert (engine.registry.named("alone")[0].paused is not None) == (not decided)


@pytest.mark.parametrize(
    "made", ["SELECT concat(k, k) AS t FROM A", "FROM AGGREGATE{argmax(concat(k, k), 1) AS t OVER 1 s} A"]
)
def test_characters_of_outputs_count_at_many_times_in_a_row(made, tmp_path, monkeypatch):
    """13 steps at a time, then 51. With one document a batch there is a snapshot before the restart."""
    monkeypatch.setattr("common.limits.BLOCK", 12)
    given = [sent(time, time, [Event("A", time, f"{time:03}" * (66 if time < 44 else 134))]) for time in range(1, 64)]
    script = parse_script(f"{EVENT_QUERIES.partition('FROM A NEXT')[0]} {made} PUBLISH q")
    for most, size, at in ((55, 1, "00:59"), (55, 100, "00:59"), (60, 7, "01:00"), (62, 7, None)):
        for begin in range(0, len(given), 55):
            with Session("duckdb", state=tmp_path / f"{most}-{size}", settle=0, max_work=most, quiet=True) as engine:
                engine.ensure(script)
                for start in range(begin, min(begin + 55, len(given)), size):
                    engine.process(given[start : min(start + size, begin + 55)])
                found, reason = len(list(engine.outputs())), engine.registry.named("q")[0].paused
        assert found == {"00:59": 58, "01:00": 59, None: 62}[at]
        why = f"more than {10 * most} steps at 10,000 times in a row, with 1970-01-01T00:{at}Z (max-work)"
        assert reason == (why if at else None)
