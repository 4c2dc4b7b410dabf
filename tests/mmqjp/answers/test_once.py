from collections.abc import Sequence
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from feeds.documents import Document
from join_stage.plans import PLANS
from join_stage.store.protocol import TableStore
from mmqjp.answers import operators as counting
from mmqjp.answers import quota
from mmqjp.answers.operators import is_near, once_key
from mmqjp.documents.record import Record
from mmqjp.engine import Session
from mmqjp.tables.schema import told_among
from tests.generate.documents import SECOND
from tests.generate.seeds import seeds
from tests.generate.strategies import random_case
from tests.oracle.evaluation import ties
from tests.support.agreement import Delivery, arranged, assert_agrees
from tests.support.faults import FaultySession, Injected
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


def documents(rng: Random, count: int) -> list[Document]:
    found = []
    for number in range(count):
        parts = "".join(f"<{tag}>{rng.choice('uUv')}</{tag}>" for tag in rng.choice(["tk", "tk", "kt", "t", "ttk"]))
        t0 = rng.randrange(4) * SECOND
        times = (t0, t0 + rng.choice([0, 0, 0, SECOND]))
        found.append(Document(f"d{number}", f"<a>{parts}</a>".encode(), rng.choice("SSST"), times))
    return found


def tied_pair(rng: Random, stream: str = "S") -> str:
    """A join of documents at the same times, or one that is symmetrical, or nearly so."""
    op = rng.choice(["FOLLOWED BY", "FOLLOWED BY", "JOIN", "JOIN UNORDERED", "JOIN UNORDERED"])
    one, two = rng.choice([("", ""), ("", ""), ("", "[./k]"), ("[./t][./k]", "[./k][./t]")])
    window, other = rng.choice(["INF", "1 s", "0"]), rng.choice([stream, stream, "T"])
    return f"{stream}//a{one}->x {op} {{{rng.choice(PREDICATES)}, {window}}} {other}//a{two}->y"


def tied_script(rng: Random) -> Script:
    """Such joins alone, as the inner joins of chains, and over what others PUBLISH."""
    found = [f"{rng.choice(SELECTS)}{tied_pair(rng)}" for _ in range(5)]
    found += [
        f"SELECT <a>{{x/t}}{{x/k}}</a> FROM {tied_pair(rng)} PUBLISH P",
        f"SELECT x FROM {tied_pair(rng)} PUBLISH P",
    ]
    found += [tied_pair(rng, "P").replace("P//a", "P//*"), f"{tied_pair(rng)} FOLLOWED BY {{y/t = z/t, INF}} S//a->z"]
    found += ["P//t->p JOIN UNORDERED {p = q, INF} P//t->q"]
    found += [f"S//a->z FOLLOWED BY {{z/t = x/t or z/k = y/k, 3 s}} ({tied_pair(rng)})"]
    found += [f"(SELECT x/t AS t, y/k AS k FROM {tied_pair(rng)}) JOIN UNORDERED {{t = z/k, INF}} T//a->z"]
    return parse_script("; ".join(found))


@pytest.mark.parametrize("seed", seeds(3, 400, first=2))  # 3 and 4 have ties of queries that look for literals
def test_outputs_and_ties_are_those_of_the_oracle_after_a_rollback_and_a_restart(seed, tmp_path):
    rng = Random(seed)
    text, given = random_case(seed, 12, 12) if seed % 4 == 2 else (tied_script(rng), documents(rng, 7))
    with FaultySession("duckdb", state=tmp_path, plan=PLANS[seed % 3]) as engine:
        engine.ensure(text)
        with engine.store.failing("commit"), pytest.raises(Injected):
            engine.process(given)
        assert not engine.ties()
        assert_agrees(engine, text, given, Delivery(rng.choice([None, seed]), rng.choice([1, 2, 4, 100])))
        assert engine.ties() == ties(text, given)
    with Session("duckdb", state=tmp_path) as engine:
        assert engine.ties() == ties(text, given)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(40))
def test_executors_count_the_same(seed, spark, tmp_path, monkeypatch):
    if seed % 2 == 0:
        run_in_process(monkeypatch, cores=1 + seed % 4, seed=seed)
    rng = Random(seed)
    text, given = tied_script(rng), documents(rng, 9)
    with Session(spark, state=tmp_path, plan="signature" if seed % 2 == 0 else PLANS[seed % 3]) as engine:
        engine.ensure(text)
        for batch in arranged(given, Delivery(seed, 5)):
            engine.process(batch)
        assert engine.ties() == ties(text, given)


PAIRS = "S//a->x FOLLOWED BY {x = y, INF} S//a->y PUBLISH pairs"


def at(seconds: int, count: int, first: int = 0, text: str = "<a>v</a>") -> list[Document]:
    return [Document(f"d{n}", text, "S", seconds * SECOND) for n in range(first, first + count)]


def test_each_query_of_a_form_counts_what_it_sees_and_for_no_bound():
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
    with Session("duckdb", max_matches=1, max_outputs=1, max_work=3) as engine:
        engine.subscribe(PAIRS)
        engine.process(at(1, 5))
        assert engine.ties() == {"pairs": 10}
        assert [query.paused for query in engine.registry.subscriptions.values()] == [None]
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
    assert len(looked) < 600  # of 3,540 in both orders


def test_counts_of_queries_that_are_gone_are_dropped():
    with Session("duckdb") as engine:
        for n in range(30):
            engine.subscribe(PAIRS)
            engine.process(at(n, 2, 2 * n))
            assert engine.ties() == {"pairs": 1}
            engine.unsubscribe("pairs")
        stored = engine._batches.pipeline.ties._ledger.settings("ties ")
        assert [len(text) < 400 for text in stored.values()] == [True]
        engine.subscribe("S//a->x FOLLOWED BY {x = y, INF} S//a[./b]->y; " + PAIRS.replace("S//", "T//"))
        engine.process([Document(f"t{n}", b"<a>v</a>", "T", SECOND) for n in range(2)])
        assert engine.ties() == {"pairs": 1}
        assert sorted(map(bool, engine._batches.pipeline.ties._ledger.settings("ties ").values())) == [False, True]


BEGIN = 1_767_225_600 * SECOND
FILTER = "FROM S//item->i[./title->t]"


def item(name: str, seconds: float, *titles: str, stream: str = "S") -> Document:
    titled = "".join(f"<title>{title}</title>" for title in titles)
    return Document(name, f"<item>{titled}</item>", stream, BEGIN + int(seconds * SECOND))


def told_once(engine: Session, *documents: Document, query: str = "p") -> list[str]:
    return [" ".join(output.documents) for output in engine.process(documents) if output.query == query]


def kept(engine: Session) -> int:
    return int(engine.sql("SELECT count(*) AS n FROM told")["n"][0].as_py())


def test_only_ends_that_may_be_near_are_read(engine, monkeypatch):
    """So the time does not grow with what one key has told."""
    read: list[int] = []

    def counted(store: TableStore, asked: Sequence[tuple[int, int, int, int, int]]) -> pa.Table:
        rows = told_among(store, asked)
        read.append(len(rows))
        return rows

    monkeypatch.setattr("mmqjp.answers.operators.told_among", counted)
    engine.subscribe(f"{FILTER} PUBLISH p ONCE PER (t) WITHIN 1 s")
    for n in range(0, 100, 4):
        assert told_once(engine, *[item(f"d{m}", 2 * m, "u") for m in range(n, n + 4)][::-1])
    assert set(read) == {0}, "they are two seconds apart"
    assert told_once(
        engine, item("e1", 21, "u"), item("e2", 20.5, "u"), item("e3", 24.5, "w"), item("e4", 40.9, "u")
    ) == ["e3"]
    assert read[-1] == 11, "those from 20 to 40 s"
    assert told_once(engine, item("e5", -1.1, "u"), item("e6", 199.1, "u")) == ["e5", "e6"]


def test_parts_of_keys_and_near_ends():
    looked: list[int] = []

    class Ends(Sequence[int]):
        def __len__(self) -> int:
            return 1_000

        def __getitem__(self, place: Any) -> Any:
            looked.append(place)
            return 10 * place

    found = [is_near(t1, Ends(), 2) for t1 in (-3, -2, 0, 3, 7, 8, 9_992, 9_993)]
    assert found == [False, True, True, False, False, True, True, False] and len(looked) < 8 * 13
    assert once_key(["ab", "c"]) != once_key(["a", "bc"]) != once_key(["abc"])
    assert once_key(["1:a"]) != once_key(["", "a"])
    assert once_key(["lower", "größe"]) == (-9094257237805671647, -1165966005988169569), "stores keep it"


def test_a_query_without_a_name_is_told_from_one_with_a_number(tmp_path):
    with Session("duckdb", state=tmp_path) as engine:
        engine.subscribe('SELECT <a> PUBLISH q1 ONCE PER (t)</a> FROM S//item[. = " PUBLISH q1 ONCE PER (t)"]')
        engine.subscribe(f"{FILTER} PUBLISH q2 ONCE PER (t)")
    with Session("duckdb", state=tmp_path) as engine:
        assert {s.name: s.publishes for s in engine.registry.subscriptions.values()} == {"q1": False, "q2": True}


def test_what_queries_told_is_dropped_when_they_are_replaced_or_removed(engine):
    text = f"{FILTER} PUBLISH p ONCE PER (t)"
    engine.subscribe(text)
    assert told_once(engine, item("d1", 1, "u"), item("d2", 2, "w")) == ["d1", "d2"]
    engine.subscribe(f"{text} WITHIN 1 w")
    assert told_once(engine, item("d3", 3, "w")) == ["d3"] and kept(engine) == 3
    engine.prune(keep=None)
    assert kept(engine) == 1
    engine.unsubscribe("p")
    engine.prune(keep=None)
    assert kept(engine) == 0


def test_what_exceeds_a_quota_is_not_told():
    with Session("duckdb", max_matches=2) as engine:
        engine.subscribe(f"SELECT t {FILTER} PUBLISH p ONCE PER (t)")
        assert told_once(engine, item("d1", 1, "a", "b"), item("d2", 2, "c", "d", "e")) == ["d1", "d1"]
        assert engine.take_paused().keys() == {"p"}
        engine.resume("p")
        assert told_once(engine, item("d3", 3, "b", "c")) == ["d3"]


def test_it_is_forgotten_when_no_document_can_repeat_it(tmp_path):
    with Session("duckdb", state=tmp_path, lateness=5 * SECOND) as engine:
        engine.subscribe(f"{FILTER} PUBLISH p ONCE PER (t) WITHIN 10 s; {FILTER} PUBLISH r ONCE PER (t)")
        assert told_once(engine, item("d1", 0, "u")) == ["d1"]
        assert told_once(engine, item("d2", 15, "v")) == ["d2"]
        engine.prune(keep=0)
        assert kept(engine) == 4
        assert told_once(engine, item("d3", 10, "u")) == [], "which is as late as can be"
    with Session("duckdb", state=tmp_path, lateness=5 * SECOND) as engine:
        assert told_once(engine, item("d4", 15.5, "v")) == [] and kept(engine) == 4
        engine.prune(keep=SECOND)
        assert kept(engine) == 4
        engine.prune(keep=0)
        assert kept(engine) == 3
        assert told_once(engine, item("d5", 100, "u"), query="r") == [] and kept(engine) == 4


@pytest.mark.parametrize("start", [0, -2 * BEGIN], ids=["now", "before 1970"])
def test_the_longest_window_ends_no_batch(start, tmp_path):
    """Its end may be later than the greatest integer of a store."""
    longest = f"{2**63 - 1} us"
    with Session("duckdb", state=tmp_path, lateness=0) as engine:
        engine.subscribe(f"{FILTER} PUBLISH p ONCE PER (t) WITHIN {longest}; {FILTER} PUBLISH ok")
        engine.subscribe(f"FROM S//title->t FOLLOWED BY {{t = u, {longest}}} S//title->u PUBLISH pairs")
        documents = [item(f"d{n}", start / SECOND + n, "uv"[n // 2]) for n in range(4)]
        assert told_once(engine, *documents[:3]) == ["d0", "d2"]
        assert told_once(engine, documents[3]) == []
        engine.prune(keep=0)
    with Session("duckdb", state=tmp_path, lateness=0) as engine:
        assert told_once(engine, item("d4", start / SECOND + 5, "u")) == [] and kept(engine) == 2
        pairs = [" ".join(output.documents) for output in engine.outputs() if output.query == "pairs"]
        assert pairs == ["d2 d3", "d0 d4", "d1 d4"], "the first output was old"
