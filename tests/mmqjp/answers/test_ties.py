"""Pairs of equal times: JOIN UNORDERED leaves one of two mirrored matches, FOLLOWED BY counts what it leaves out."""

from random import Random

import pytest

from feeds.documents import Document
from join_stage.protocol import PLANS
from mmqjp.answers import query_operators as counting
from mmqjp.answers import quota
from mmqjp.answers.query_operators import left_out_for_equal_times
from mmqjp.answers.quota import DEFAULT_QUOTA
from mmqjp.documents.record import Record
from mmqjp.engine import Session
from tests.generate.documents import SECOND
from tests.generate.seeds import seeds
from tests.generate.strategies import random_case
from tests.oracle.ties import ties
from tests.support.agreement import Delivery, arranged, assert_agrees
from tests.support.in_process import run_in_process
from xscl.parser import parse_script
from xscl.syntax import Script

PREDICATES = [
    "x/t = y/t",
    "x/t = y/k",
    "x/t = y/k or x/k = y/t",
    "x/t = y/t and x/k != y/k",
    "x/t = y/t and x/k < y/k",
    "x/t = y/t and x/k >= y/k or x/k = y/k",
    "lower-case(x/t) = lower-case(y/t)",
    "lower-case(x/t) = y/t",
    "x/t = y/t and contains(x/k, 'u')",
    "x/t = y/t and contains(x/k, 'v')",
    "x/t = y/t and x/k = 'u'",
    "x/t = y/t and contains(x/k, 'u') and contains(y/k, 'u')",
    "x/t = y/t and contains(x/k, y/k)",
]
SELECTS = ["", "SELECT x, y FROM ", "SELECT x/k AS k FROM ", "SELECT <p>{x/t}{y/k}</p> FROM "]


def pair(rng: Random, stream: str = "S") -> str:
    filters = rng.choice([("", ""), ("", ""), ("", "[./k]"), ("[./t][./k]", "[./k][./t]")])
    other = rng.choice([stream, stream, stream, "T"])
    window = rng.choice(["INF", "2 s", "0"])
    return f"{stream}//a{filters[0]}->x JOIN UNORDERED {{{rng.choice(PREDICATES)}, {window}}} {other}//a{filters[1]}->y"


def script(rng: Random) -> str:
    """Queries that are symmetrical, or nearly so, alone, as the inner joins of chains, and over what others PUBLISH."""
    op = rng.choice(["JOIN", "JOIN UNORDERED", "FOLLOWED BY"])
    found = [f"{rng.choice(SELECTS)}{pair(rng)}" for _ in range(3)]
    found += [f"SELECT x/t AS t FROM {pair(rng)} PUBLISH P", "SELECT <a>{x/t}</a> FROM S//a->x PUBLISH P"]
    found += ["P//t->p JOIN UNORDERED {p = q, INF} P//t->q", f"{pair(rng)} {op} {{y/t = z/t, INF}} S//a->z"]
    found += [f"S//a->z {op} {{z/t = x/t or z/k = y/k, 3 s}} ({pair(rng)})"]
    found += [f"(SELECT x/t AS t, y/k AS k FROM {pair(rng)}) {op} {{t = z/k, INF}} T//a->z"]
    return "; ".join(found)


def documents(rng: Random, count: int) -> list[Document]:
    found = []
    for number in range(count):
        parts = "".join(f"<{tag}>{rng.choice('uUv')}</{tag}>" for tag in rng.choice(["tk", "tk", "kt", "t", "ttk"]))
        t0 = rng.randrange(4) * SECOND
        times = (t0, t0 + rng.choice([0, 0, 0, SECOND]))
        found.append(Document(f"d{number}", f"<a>{parts}</a>".encode(), rng.choice("SSST"), times))
    return found


@pytest.mark.parametrize("seed", seeds(2, 300))
def test_it_agrees_with_the_oracle(seed):
    rng = Random(seed)
    text, given = parse_script(script(rng)), documents(rng, 6)
    with Session("duckdb", plan=PLANS[seed % 3]) as engine:
        assert_agrees(engine, text, given, Delivery(rng.choice([None, seed]), rng.choice([1, 2, 4, 100])))


SAME = "S//a->x[./t->t] JOIN UNORDERED {t = u, INF} S//a->y[./t->u]"
TWINS = [Document(f"d{n}", "<a><t>v</t></a>", "S", time * SECOND) for n, time in enumerate([5, 3, 5])]
TOLD = {("d1", "d0"), ("d1", "d2"), ("d0", "d2")}


@pytest.mark.parametrize("given", [TWINS, TWINS[::-1]])
def test_each_pair_is_told_once_and_stays_so_after_a_restart(given, tmp_path):
    with Session("duckdb", state=tmp_path) as engine:
        engine.subscribe(f"{SAME} PUBLISH same; S//a->x[./t->t] JOIN {{t = u, INF}} S//a->y[./t->u] PUBLISH both")
        told = [output.documents for output in engine.process(given[:2]) if output.query == "same"]
        rows = {target.row for query in engine.registry.subscriptions.values() for target in query.targets}
        assert len(rows) == 1, "both operators share the row of R_T"
    with Session("duckdb", state=tmp_path) as engine:
        assert [q.text for q in engine.registry.subscriptions.values() if q.name == "same"] == [
            "FROM S//a->x[./t->t] JOIN UNORDERED {t = u, INF} S//a->y[./t->u] PUBLISH same"
        ]
        outputs = list(engine.process(given[2:]))
        told += [output.documents for output in outputs if output.query == "same"]
        assert sorted(told) == sorted(TOLD)
        assert len([output for output in outputs if output.query == "both"]) == 4


def test_a_backfill_tells_each_pair_once_and_what_its_mirror_tells_counts_for_no_bound():
    with Session("duckdb", max_matches=2) as engine:
        engine.subscribe("S//a PUBLISH every")
        for document in TWINS:
            engine.process([document])
        engine.subscribe(f"{SAME} PUBLISH same", backfill=True)
        assert {output.documents for output in engine.outputs() if output.query == "same"} == TOLD
        assert {query.paused for query in engine.registry.subscriptions.values()} == {None}


def tied_pair(rng: Random, stream: str = "S") -> str:
    op = rng.choice(["FOLLOWED BY", "FOLLOWED BY", "FOLLOWED BY", "JOIN"])
    window, other = rng.choice(["INF", "1 s", "0"]), rng.choice("SST")
    return f"{stream}//a->x {op} {{{rng.choice(PREDICATES)}, {window}}} {other}//a->y"


def tied_script(rng: Random) -> Script:
    found = [f"{rng.choice(SELECTS[:3])}{tied_pair(rng)}" for _ in range(5)]
    found += [
        f"SELECT <a>{{x/t}}{{x/k}}</a> FROM {tied_pair(rng)} PUBLISH P",
        f"SELECT x FROM {tied_pair(rng)} PUBLISH P",
    ]
    found += [tied_pair(rng, "P").replace("P//a", "P//*"), f"{tied_pair(rng)} FOLLOWED BY {{y/t = z/t, INF}} S//a->z"]
    found += [f"S//a->z FOLLOWED BY {{z/t = x/t or z/k = y/k, 3 s}} ({tied_pair(rng)})"]
    return parse_script("; ".join(found))


def counted(engine: Session, text: Script, given: list[Document], delivery: Delivery) -> dict[str, int]:
    engine.ensure(text)
    for batch in arranged(given, delivery):
        engine.process(batch)
    return engine.ties()


@pytest.mark.parametrize("seed", seeds(3, 400))
def test_they_are_those_of_the_oracle(seed):
    rng = Random(seed)
    text, given = random_case(seed, 12, 12) if seed % 4 == 2 else (tied_script(rng), documents(rng, 7))
    with Session("duckdb", plan=PLANS[seed % 3]) as engine:
        found = counted(engine, text, given, Delivery(rng.choice([None, seed]), rng.choice([1, 2, 4, 100])))
    assert found == ties(text, given)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(40))
def test_executors_count_the_same(seed, spark, tmp_path, monkeypatch):
    if seed % 2 == 0:
        run_in_process(monkeypatch, cores=1 + seed % 4, seed=seed)
    rng = Random(seed)
    text, given = tied_script(rng), documents(rng, 9)
    with Session(spark, state=tmp_path, plan="signature" if seed % 2 == 0 else PLANS[seed % 3]) as engine:
        assert counted(engine, text, given, Delivery(seed, 5)) == ties(text, given)


PAIRS = "S//a->x FOLLOWED BY {x = y, INF} S//a->y PUBLISH pairs"


def at(seconds: int, count: int, first: int = 0, text: str = "<a>v</a>") -> list[Document]:
    return [Document(f"d{n}", text, "S", seconds * SECOND) for n in range(first, first + count)]


def test_they_stay_after_a_restart_and_are_gone_with_a_rollback(tmp_path, monkeypatch):
    with Session("duckdb", state=tmp_path) as engine:
        engine.subscribe(PAIRS)
        engine.process(at(1, 3))
        assert engine.ties() == {"pairs": 3}
        with monkeypatch.context() as broken:
            broken.setattr(engine._store, "commit", lambda *_: (_ for _ in ()).throw(OSError("disk")))
            with pytest.raises(OSError, match="disk"):
                engine.process(at(1, 1, 3))
        assert engine.ties() == {"pairs": 3}
    with Session("duckdb", state=tmp_path) as engine:
        assert engine.ties() == {"pairs": 3}
        engine.process(at(1, 1, 3))
        assert engine.ties() == {"pairs": 6}


def test_each_query_of_a_form_counts_what_it_sees():
    with Session("duckdb") as engine:
        engine.subscribe(f"{PAIRS}; {PAIRS.replace('INF', '1 h').replace('pairs', 'near')}")
        engine.process(at(1, 2))
        engine.subscribe(PAIRS.replace("pairs", "later"))
        engine.subscribe(PAIRS.replace("pairs", "backfilled"), backfill=True)
        engine.process(at(2, 2, 2))
        assert engine.ties() == {"pairs": 2, "near": 2, "backfilled": 2, "later": 1}
        engine.pause("near")
        engine.process(at(3, 2, 4))
        engine.resume("near")
        engine.process(at(4, 3, 6))
        assert engine.ties() == {"pairs": 6, "near": 3, "backfilled": 6, "later": 5}
        engine.unsubscribe("pairs")
        assert "pairs" not in engine.ties()


def test_they_count_for_no_bound():
    with Session("duckdb", max_matches=1, max_outputs=1, max_work=3) as engine:
        engine.subscribe(PAIRS)
        engine.process(at(1, 5))
        assert engine.ties() == {"pairs": 10}
        assert [query.paused for query in engine.registry.subscriptions.values()] == [None]


LEFT_OUT = {
    "S//a->x[./t->t] FOLLOWED BY {t = u, 1 h} S//a->y[./t->u]": True,
    "S//a->x[./t->t] JOIN {t = u, 1 h} S//a->y[./t->u]": False,
    "S//a->x[./t->t] FOLLOWED BY {t = u and x/k != y/k, 1 h} S//a->y[./t->u]": False,
    "S//a->x[./t->t] FOLLOWED BY {t = u, 1 h} T//a->y[./t->u]": False,
    "S//a->x[./t->t] FOLLOWED BY {t = u or x/k = y/k, 0} S//a->y[./t->u]": True,
}


def test_a_pair_is_left_out_because_of_equal_times_alone():
    with Session("duckdb") as engine:
        engine.subscribe("; ".join([*LEFT_OUT, "S//a"]))
        engine.process([Document(f"d{n}", "<a><t>v</t><k>w</k></a>", "S", SECOND) for n in range(2)])
        records = [engine.records[0], engine.records[1]]
        for query, expected in zip(engine.registry.subscriptions.values(), LEFT_OUT.values(), strict=False):
            assert left_out_for_equal_times(query, records, DEFAULT_QUOTA) is expected, query.text


def bounded(given: list[Document], size: int, query: str = PAIRS) -> tuple[dict[str, int], list[str]]:
    with Session("duckdb") as engine:
        engine.subscribe(query)
        batches = [given[start : start + size] for start in range(0, len(given), size)]
        found = [output.id for batch in batches for output in engine.process(batch)]
        return engine.ties(), sorted(found)


@pytest.mark.parametrize(
    ("of_document", "of_form", "of_step", "expected"),
    [(4, 1000, 99, 10), (100, 9, 99, 10), (100, 10, 99, 10), (2, 5, 99, 3), (4, 9, 8, None)],
)
def test_bounds_do_not_depend_on_batches(of_document, of_form, of_step, expected, monkeypatch):
    """All but that of a step, which remembers no more than its bound."""
    monkeypatch.setattr(quota, "MOST_PAIRS", of_document)
    monkeypatch.setattr(quota, "MOST_OF_FORM", of_form)
    monkeypatch.setattr(counting, "MOST_TIES", of_step)
    given = [*at(1, 9), *at(2, 1, 9)]
    one, *others = (bounded(given, size) for size in (1, 2, 100))
    assert len(one[1]) == 9 and [ids for _, ids in others] == [one[1]] * 2
    if expected is None:
        assert 0 < others[-1][0]["pairs"] <= of_step
    else:
        assert [found for found, _ in (one, *others)] == [{"pairs": expected}] * 3


def test_a_document_whose_pairs_take_too_many_steps_counts_none(monkeypatch):
    query = "S//a->x[./t->t][./k->k] FOLLOWED BY {k = l AND contains(t, u), INF} S//a->y[./u->u][./k->l] PUBLISH pairs"
    small, large = "<a><k>v</k><t>m</t><u>m</u></a>", f"<a><k>v</k>{'<t>m</t>' * 20}{'<u>w</u>' * 20}</a>"
    given = [*at(1, 3, text=small), *at(1, 6, 3, large), *at(2, 1, 9, small)]
    monkeypatch.setattr(quota, "MOST_STEPS", 1000)
    monkeypatch.setattr(counting, "MOST_STEPS", 1000)
    found = [bounded(given, size, query) for size in (1, 3, 100)]
    assert found == [({"pairs": 3}, found[0][1])] * 3


def test_pairs_past_the_bounds_are_not_expanded(monkeypatch):
    monkeypatch.setattr(quota, "MOST_OF_FORM", 50)
    looked: list[tuple[Record, Record]] = []
    is_tie = counting.is_tie

    def noted(left: Record, right: Record) -> bool:
        looked.append((left, right))
        return is_tie(left, right)

    monkeypatch.setattr(counting, "is_tie", noted)
    with Session("duckdb") as engine:
        engine.subscribe(PAIRS)
        for start in range(0, 60, 10):
            engine.process(at(1, 10, start))
    assert len(looked) < 400  # of 3,540 in both orders


def test_a_pause_takes_away_what_was_withheld_before_it():
    query = "S//a->x FOLLOWED BY {x = y, 1 s} S//a->y PUBLISH "
    with Session("duckdb") as engine:
        engine.subscribe(f"{query}A; {query}B")
        engine.pause("A")
        engine.process(at(0, 1, 0))
        engine.resume("A")
        engine.process(at(0, 5, 1))
        engine.pause("A")
        engine.process(at(50, 1, 10))
        engine.resume("A")
        engine.process([*at(100, 1, 20), *at(100, 2, 21)])
        assert engine.ties() == {"B": 18, "A": 3}


def test_counts_of_queries_that_are_gone_are_dropped():
    with Session("duckdb") as engine:
        for n in range(30):
            engine.subscribe(PAIRS)
            engine.process(at(n, 2, 2 * n))
            assert engine.ties() == {"pairs": 1}
            engine.unsubscribe("pairs")
        stored = engine._components.pipeline.ties._ledger.settings("ties ")
        assert [len(text) < 400 for text in stored.values()] == [True]
        engine.subscribe("S//a->x FOLLOWED BY {x = y, INF} S//a[./b]->y; " + PAIRS.replace("S//", "T//"))
        engine.process([Document(f"t{n}", b"<a>v</a>", "T", SECOND) for n in range(2)])
        assert engine.ties() == {"pairs": 1}
        assert sorted(map(bool, engine._components.pipeline.ties._ledger.settings("ties ").values())) == [False, True]
