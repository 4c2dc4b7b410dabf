"""ONCE PER: a query outputs no key again within its window, whatever happens in between."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from feeds.documents import Document
from join_stage.store.protocol import TableStore
from mmqjp.answers.operators import is_near, once_key
from mmqjp.engine import Session
from mmqjp.tables.schema import told_among
from tests.support.shown import assert_shown

SECOND = 1_000_000
START = 1_767_225_600 * SECOND
FILTER = "FROM S//item->i[./title->t]"
PAIRS = "FROM S//a->x[./k->p] JOIN {p = q, INF} S//b->y[./k->q]"


def item(name: str, seconds: float, *titles: str, stream: str = "S") -> Document:
    titled = "".join(f"<title>{title}</title>" for title in titles)
    return Document(name, f"<item>{titled}</item>", stream, START + int(seconds * SECOND))


def items(text: str) -> list[Document]:
    """The items of a text like `d1 3.5 u | d2 4`: names, seconds and titles."""
    return [item(name, float(at), *titles) for name, at, *titles in map(str.split, text.split(" | "))]


def told(engine: Session, *documents: Document, query: str = "p") -> list[str]:
    return [" ".join(output.documents) for output in engine.process(documents) if output.query == query]


def kept(engine: Session) -> int:
    return int(engine.sql("SELECT count(*) AS n FROM told")["n"][0].as_py())


@pytest.fixture
def engine():
    with Session("duckdb") as session:
        yield session


def test_a_key_is_told_once_and_its_matches_stay(engine):
    engine.subscribe(f"{PAIRS} PUBLISH p ONCE PER (lower-case(p)); {PAIRS} PUBLISH every")
    keys = {"a1": "v", "a2": "V", "a3": "w", "b4": "v", "b5": "V", "b6": "w", "b7": "v"}
    outputs = [
        (o.query, o.documents)
        for n, (name, key) in enumerate(keys.items())
        for o in engine.process([Document(name, f"<{name[0]}><k>{key}</k></{name[0]}>", time=START + n * SECOND)])
    ]
    assert [documents for query, documents in outputs if query == "p"] == [("a1", "b4"), ("a3", "b6")]
    assert [o.seq for o in engine.outputs()] == list(range(6)), "what is not told has no number"
    matches = engine.sql("SELECT query, count(*) AS n FROM matches GROUP BY query ORDER BY query").to_pylist()
    assert matches == [{"query": "every", "n": 4}, {"query": "p", "n": 4}]
    assert_shown(engine)


TOLD = {
    "the first of a batch": (f"{FILTER} PUBLISH p ONCE PER (t)", "d3 3 u | d2 1 u | d1 1 u | d4 2 w: d1 d4; d0 0 u:"),
    "again outside of the window, on either side": (
        f"{FILTER} PUBLISH p ONCE PER (t) WITHIN 10 s",
        "d1 100 u | d2 110 u | d3 110.5 u: d1 d3; d4 90 u | d5 89.5 u | d6 105 u: d5; "
        "d7 79.5 u | d8 120.5 u | d9 121 u: d9",
    ),
    "one of several keys is new": (
        "SELECT i FROM S//item->i[./title->t] PUBLISH p ONCE PER (t)",
        "d1 1 u v: d1; d2 2 v | d3 3 v u:; d4 4 u w | d5 5 w: d4",
    ),
    "no node for a path": ("SELECT i FROM S//item->i PUBLISH p ONCE PER (i/title)", "d1 1 | d2 2 u | d3 3 u: d2"),
    "each query by itself": (
        f"{FILTER} PUBLISH p ONCE PER (t); {FILTER} PUBLISH p ONCE PER (i)",
        "d1 1 u: d1 d1; d2 2 u u: d2",
    ),
}


@pytest.mark.parametrize("case", TOLD)
def test_what_is_told(case, engine):
    query, batches = TOLD[case]
    engine.subscribe(query)
    for batch in batches.split("; "):
        given, _, expected = batch.partition(":")
        assert told(engine, *items(given)) == expected.split(), batch


def test_only_ends_that_may_be_near_are_read(engine, monkeypatch):
    """So the time does not grow with what one key has told."""
    read: list[int] = []

    def counted(store: TableStore, asked: Sequence[tuple[int, int, int, int, int]]) -> pa.Table:
        rows = told_among(store, asked)
        read.append(len(rows))
        return rows

    monkeypatch.setattr("mmqjp.state.eviction.told_among", counted)
    engine.subscribe(f"{FILTER} PUBLISH p ONCE PER (t) WITHIN 1 s")
    for n in range(0, 100, 4):
        assert told(engine, *[item(f"d{m}", 2 * m, "u") for m in range(n, n + 4)][::-1])
    assert set(read) == {0}, "they are two seconds apart"
    assert told(engine, item("e1", 21, "u"), item("e2", 20.5, "u"), item("e3", 24.5, "w"), item("e4", 40.9, "u")) == [
        "e3"
    ]
    assert read[-1] == 11, "those from 20 to 40 s"
    assert told(engine, item("e5", -1.1, "u"), item("e6", 199.1, "u")) == ["e5", "e6"]


def test_near_ends_are_found_by_bisection():
    looked: list[int] = []

    class Ends(Sequence[int]):
        def __len__(self) -> int:
            return 1_000

        def __getitem__(self, place: Any) -> Any:
            looked.append(place)
            return 10 * place

    found = [is_near(t1, Ends(), 2) for t1 in (-3, -2, 0, 3, 7, 8, 9_992, 9_993)]
    assert found == [False, True, True, False, False, True, True, False] and len(looked) < 8 * 13


def test_the_parts_of_a_key_are_kept_apart():
    assert once_key(["ab", "c"]) != once_key(["a", "bc"]) != once_key(["abc"])
    assert once_key(["1:a"]) != once_key(["", "a"])
    assert once_key(["lower", "größe"]) == (-9094257237805671647, -1165966005988169569), "stores keep it"


def test_a_query_without_a_name_is_told_from_one_with_a_number(tmp_path):
    with Session("duckdb", state=tmp_path) as engine:
        engine.subscribe('SELECT <a> PUBLISH q1 ONCE PER (t)</a> FROM S//item[. = " PUBLISH q1 ONCE PER (t)"]')
        engine.subscribe(f"{FILTER} PUBLISH q2 ONCE PER (t)")
    with Session("duckdb", state=tmp_path) as engine:
        assert {s.name: s.publishes for s in engine.registry.subscriptions.values()} == {"q1": False, "q2": True}


def test_readers_get_what_is_told_and_nothing_else(engine):
    engine.subscribe(
        f"FROM p//item->i[./title->t] PUBLISH r; FROM r//item->i JOIN {{i = j, INF}} S//x->j PUBLISH j ONCE PER (i);"
        f"{FILTER} PUBLISH p ONCE PER (lower-case(t))"
    )
    first = engine.process([item("d2", 2, "U"), item("d1", 1, "u"), Document("x1", "<x>u</x>", time=START)])
    assert [(o.query, o.documents) for o in first] == [("j", ("d1", "x1")), ("p", ("d1",)), ("r", ("d1",))]
    assert not engine.process([item("d3", 3, "u")])
    assert [o.query for o in engine.process([Document("x2", "<x>u</x>", time=START)])] == [], "told by j before"


def test_what_was_told_stays_when_a_query_rests_or_stays_and_goes_when_it_is_replaced(engine):
    text = f"{FILTER} PUBLISH p ONCE PER (t)"
    engine.subscribe(text)
    assert told(engine, item("d1", 1, "u")) == ["d1"]
    engine.pause("p")
    assert told(engine, item("d2", 2, "w")) == []
    engine.resume("p")
    assert told(engine, item("d3", 3, "u"), item("d4", 4, "w")) == ["d4"], "nothing is told in a pause"
    engine.subscribe(text)
    assert told(engine, item("d5", 5, "w")) == []
    engine.subscribe(f"{FILTER} PUBLISH p ONCE PER (t) WITHIN 1 w")
    assert told(engine, item("d6", 6, "w")) == ["d6"]
    engine.subscribe(text, backfill=True)
    assert [o.documents for o in engine.outputs() if o.query == "p"][-2:] == [("d1",), ("d2",)]
    engine.prune(keep=None)
    assert kept(engine) == 2, "what the old ones told is gone"
    engine.unsubscribe("p")
    engine.prune(keep=None)
    assert kept(engine) == 0


def test_what_exceeds_a_quota_is_not_told():
    with Session("duckdb", max_matches=2) as engine:
        engine.subscribe(f"SELECT t {FILTER} PUBLISH p ONCE PER (t)")
        assert told(engine, item("d1", 1, "a", "b"), item("d2", 2, "c", "d", "e")) == ["d1", "d1"]
        assert engine.take_paused().keys() == {"p"}
        engine.resume("p")
        assert told(engine, item("d3", 3, "b", "c")) == ["d3"]


def test_it_is_forgotten_when_no_document_can_repeat_it(tmp_path):
    with Session("duckdb", state=tmp_path, lateness=5 * SECOND) as engine:
        engine.subscribe(f"{FILTER} PUBLISH p ONCE PER (t) WITHIN 10 s; {FILTER} PUBLISH r ONCE PER (t)")
        assert told(engine, item("d1", 0, "u")) == ["d1"]
        assert told(engine, item("d2", 15, "v")) == ["d2"]
        engine.prune(keep=0)
        assert kept(engine) == 4
        assert told(engine, item("d3", 10, "u")) == [], "which is as late as can be"
    with Session("duckdb", state=tmp_path, lateness=5 * SECOND) as engine:
        assert told(engine, item("d4", 15.5, "v")) == [] and kept(engine) == 4
        engine.prune(keep=SECOND)
        assert kept(engine) == 4
        engine.prune(keep=0)
        assert kept(engine) == 3
        assert told(engine, item("d5", 100, "u"), query="r") == [] and kept(engine) == 4


@pytest.mark.parametrize("pruned", [False, True])
def test_a_backfill_repeats_nothing_that_was_told(pruned):
    with Session("duckdb", lateness=0) as engine:
        engine.subscribe(
            "FROM pub//item->i[./title->t] PUBLISH R ONCE PER (t) WITHIN 10 s; FROM S//item->i[./title->t] PUBLISH pub;"
            "FROM S//item->i JOIN {i = j, INF} X//x->j PUBLISH keeps"
        )
        for n in range(4):
            documents = [item(f"f{n}", 100 * n, f"u{n}"), Document(f"x{n}", "<x/>", "X", START + 100 * n * SECOND)]
            assert told(engine, *documents, query="R") == [f"f{n}"]
        if pruned:
            engine.prune(keep=0)
        before = [output for output in engine.outputs() if output.query == "R"]
        engine.subscribe("FROM S//item->j[./title->t] PUBLISH pub", add=True, backfill=True)
        assert [output for output in engine.outputs() if output.query == "R"] == before


@pytest.mark.parametrize("start", [0, -2 * START], ids=["now", "before 1970"])
def test_the_longest_window_ends_no_batch(start, tmp_path):
    """Its end may be later than the greatest integer of a store."""
    longest = f"{2**63 - 1} us"
    with Session("duckdb", state=tmp_path, lateness=0) as engine:
        engine.subscribe(f"{FILTER} PUBLISH p ONCE PER (t) WITHIN {longest}; {FILTER} PUBLISH ok")
        documents = [item(f"d{n}", start / SECOND + n, "uv"[n // 2]) for n in range(4)]
        assert told(engine, *documents[:3]) == ["d0", "d2"]
        assert told(engine, documents[3]) == []
        engine.prune(keep=0)
    with Session("duckdb", state=tmp_path, lateness=0) as engine:
        assert told(engine, item("d4", start / SECOND + 5, "u")) == [] and kept(engine) == 2


def test_the_longest_window_of_a_join_ends_no_batch():
    window = f"{2**63 - 1} us"
    with Session("duckdb", lateness=0) as engine:
        engine.subscribe(f"FROM S//a->x[./k->p] JOIN {{p = q, {window}}} S//b->y[./k->q] PUBLISH p")
        for name, time in {"a1": -START, "b2": START, "b3": START + 1}.items():
            outputs = engine.process([Document(name, f"<{name[0]}><k>v</k></{name[0]}>", time=time)])
            assert [o.documents for o in outputs] == ([] if name == "a1" else [("a1", name)])
            engine.prune(keep=0)
