"""Queries that come late and see kept documents, and queries that pause; random ones are in other files."""

from collections import Counter

import pytest

from common.errors import InvalidValue
from feeds.documents import Document
from mmqjp.engine import Session
from tests.generate.documents import SECOND
from tests.generate.seeds import seeds
from tests.mmqjp.answers.event_world import END
from tests.support.delivery import undelivered
from tests.support.faults import FaultySession, Injected
from xscl.parser import parse_script
from xscl.printer import to_xscl

PAIRS = "S/a->x FOLLOWED BY {x = y, 10} S/a->y"
CHAIN = "S/a->x JOIN {x = y, INF} S/a->y JOIN {y = z, INF} S/b->z"


def doc(number: int, tag: str = "a", stream: str = "S") -> Document:
    return Document(f"{tag}{number}", f"<{tag}>v</{tag}>", stream, number * 1_000_000)


def test_a_chain_is_completed_by_tuples_that_were_there_and_by_new_ones(tmp_path):
    with Session("duckdb", state=tmp_path) as engine:
        engine.process([doc(0)])
        engine.subscribe(f"{CHAIN} PUBLISH early")
        engine.process([doc(1), doc(2)])
        engine.subscribe(f"{CHAIN} PUBLISH late", backfill=True)
    with Session("duckdb", state=tmp_path) as engine:
        got = engine.process([doc(9, "b")])
        pairs = {(f"a{m}", f"a{n}", "b9") for m in range(3) for n in range(3) if m != n}
        assert {o.documents for o in got if o.query == "late"} == pairs
        assert {o.documents for o in got if o.query == "early"} == {("a1", "a2", "b9"), ("a2", "a1", "b9")}
        assert len(got) == 8


def test_what_a_late_query_publishes_reaches_its_readers_once():
    with Session("duckdb") as engine:
        engine.subscribe("P//match->m PUBLISH reader")
        engine.process([doc(1), doc(2)])
        for _ in range(2):
            engine.subscribe(f"{PAIRS} PUBLISH P", backfill=True)
        got = [output.query for output in undelivered(engine)]
        assert got.count("reader") == 1 and got.count("P") == 2
        assert len(engine.queries()["P"]) == 1


@pytest.mark.parametrize("other", ["P/match->m PUBLISH R", "SELECT m FROM P/match->m PUBLISH R"])
def test_a_query_that_is_replaced_gives_nothing_in_the_backfill_of_the_other(other):
    with Session("duckdb") as engine:
        engine.subscribe("P/match->m PUBLISH R; R/match PUBLISH reader")
        engine.process([doc(1)])
        engine.subscribe(f"S/a PUBLISH P; {other}", backfill=True)
        got = [output.query for output in undelivered(engine)]
        assert sorted(got) == ["P", "R", "reader"]
        assert engine.queries()["R"] == [to_xscl(parse_script(other))]
        assert sorted(output.query for output in engine.process([doc(2)])) == ["P", "R", "reader"]


def test_a_query_whose_replacement_fails_goes_on():
    with FaultySession("duckdb") as engine:
        engine.subscribe("P/match->m PUBLISH R; P/match->n PUBLISH R; S/b PUBLISH P")
        engine.pause("R")
        engine.subscribe("P/match->m PUBLISH R", add=True)
        engine.process([doc(1)])
        for number, name in enumerate(("extend", "commit", "append"), 2):
            with engine.store.failing(name), pytest.raises(Injected):
                engine.subscribe("S/a PUBLISH P; P/match->o PUBLISH R", backfill=True)
            assert sorted(output.query for output in engine.process([doc(number, "b")])) == ["P", "R"]
        assert [s.active for s in engine.registry.named("R")] == [False, False, True]


def test_a_backfill_that_fails_leaves_nothing():
    with FaultySession("duckdb") as engine:
        engine.subscribe(PAIRS)
        engine.process([doc(1)])
        for name in ("extend", "commit"):
            with engine.store.failing(name), pytest.raises(Injected):
                engine.subscribe(f"{CHAIN} PUBLISH late", backfill=True)
        assert list(engine.queries()) == ["q1"] and not undelivered(engine)
        assert [o.documents for o in engine.process([doc(2)])] == [("a1", "a2")]
        engine.subscribe(f"{CHAIN} PUBLISH late", backfill=True)
        assert len(engine.process([doc(9, "b")])) == 2


def test_paused_queries_miss_what_passes_and_keep_what_was_before(tmp_path):
    with Session("duckdb", state=tmp_path) as engine:
        engine.subscribe(f"{PAIRS} PUBLISH p; {PAIRS} PUBLISH other; {CHAIN} PUBLISH chain")
        engine.process([doc(1)])
        engine.pause("p", "for a rest")
        engine.pause("chain")
        engine.pause("p")  # is already
        assert {o.query for o in engine.process([doc(2)])} == {"other"}
    with Session("duckdb", state=tmp_path) as engine:
        assert engine.registry.named("p")[0].paused == "for a rest"
        assert {o.query for o in engine.process([doc(3)])} == {"other"}
        engine.resume("p")
        engine.resume("chain")
        assert {o.documents for o in engine.process([doc(4)]) if o.query == "p"} == {("a1", "a4")}
    with Session("duckdb", state=tmp_path) as engine:
        assert {o.documents for o in engine.process([doc(5)]) if o.query == "p"} == {("a1", "a5"), ("a4", "a5")}
        got = {o.documents for o in engine.process([doc(9, "b")])}
        assert got == {(f"a{m}", f"a{n}", "b9") for m in (1, 4, 5) for n in (1, 4, 5) if m != n}
        with pytest.raises(KeyError, match="no query is named 'none'"):
            engine.pause("none")


def test_a_row_that_only_paused_queries_share_is_not_joined():
    with Session("duckdb") as engine:
        engine.subscribe(f"{PAIRS} PUBLISH one; {PAIRS} PUBLISH two")
        engine.process([doc(1)])
        engine.pause("one")
        assert {o.query for o in engine.process([doc(2)])} == {"two"}
        engine.pause("two")
        assert not engine.registry._live
        assert engine.process([doc(3)]) == []
        engine.unsubscribe("two")  # what is left of the row is paused
        assert engine.process([doc(4)]) == [] and not engine.registry._live
        engine.resume("one")
        assert {o.documents for o in engine.process([doc(5)])} == {("a1", "a5")}
        engine.pause("one")
        engine.unsubscribe("one")
        assert not engine.catalog.steps and not engine.registry._active_targets


def test_a_script_replaces_the_queries_of_its_names_and_keeps_equal_ones():
    with Session("duckdb") as engine:
        engine.subscribe(f"{PAIRS} PUBLISH p; S/a PUBLISH p; S/b PUBLISH q")
        engine.process([doc(1)])
        kept = engine.registry.named("p")[0]
        assert engine.subscribe(f"{PAIRS} PUBLISH p; S/c PUBLISH p") == ["p", "p"]
        assert engine.registry.named("p")[0] is kept
        assert [to_xscl(parse_script(text)) for text in engine.queries()["p"]] == [
            to_xscl(parse_script(text)) for text in (f"{PAIRS} PUBLISH p", "S/c PUBLISH p")
        ]
        assert {o.documents for o in engine.process([doc(2)])} == {("a1", "a2")}
        engine.subscribe("S/a PUBLISH p", add=True)
        assert len(engine.queries()["p"]) == 3 and list(engine.queries()) == ["p", "q"]
        # A cycle is judged by what stays.
        engine.subscribe("q/match PUBLISH p")
        with pytest.raises(ValueError, match="a cycle"):
            engine.subscribe("p/match PUBLISH q")
        engine.subscribe("p/match PUBLISH r; S/a PUBLISH p")
        engine.subscribe("p/match PUBLISH q")
        assert {o.query for o in engine.process([doc(3)])} == {"p", "q", "r"}


EVENT_CHAIN = """
FROM S//a->a[./k->k] FOLLOWED BY {k = k2, 1 h} S//b->b[./k->k2] PUBLISH pairs;
DEFINE EVENT Pair FROM pairs//match->m (k := m/a/k);
FROM Pair NEXT {$1.k = $2.k} Pair PUBLISH twice;
FROM twice//match->m[./k->k] FOLLOWED BY {k = k3, 1 h} S//c->c[./k->k3] PUBLISH last;
DEFINE EVENT Last FROM last//match->m (k := m/match/k);
FROM AGGREGATE {count() AS n BY k OVER 1 h} Last PUBLISH counted;
FROM FILTER {n >= 2} counted PUBLISH often
"""


def given(engine: Session, names: str, first: int = 0) -> None:
    for number, name in enumerate(names, first):
        at = number * SECOND
        engine.process([Document(f"d{number}", f"<x><{name}><k>u</k></{name}></x>", "S", (at, at))])


def summary(engine: Session) -> Counter[tuple[object, ...]]:
    return Counter((one.id, one.query, one.xml, one.documents) for one in engine.outputs())


SPLITS = ((0, 9), (2, 7), (5, 11), (1, 4), (3, 9), (4, 7), (6, 9))


@pytest.mark.parametrize("case", seeds(3, len(SPLITS)))
def test_chains_of_joins_and_events_are_completed(case):
    """The first statements of a chain are there, the others come late."""
    (split, at), statements, arrive = SPLITS[case], EVENT_CHAIN.split(";"), "abaabcbccab"
    with Session("duckdb", settle=0) as early, Session("duckdb", settle=0) as late:
        early.subscribe(EVENT_CHAIN)
        given(early, arrive)
        if split:
            late.subscribe(";".join(statements[:split]))
            for name in ("pairs", "twice", "last"):  # what nothing reads is not kept as a document
                if name in late.queries():
                    late.subscribe(f"FROM {name}//match->m", add=True)
        given(late, arrive[:at])
        late.subscribe(";".join(statements[split:]), backfill=True)
        given(late, arrive[at:], at)
        for engine in (early, late):
            engine.process([Document("end", "<x/>", "S", END)])
        found = Counter({key: count for key, count in summary(late).items() if not str(key[1]).startswith("q")})
        assert found == summary(early)
        assert sum(found.values()) > 20


def test_a_backfill_that_cannot_be_stored_is_not_made(engine):
    engine.subscribe(
        "DEFINE EVENT E FROM S//x->x (k := x/k, n := number(x/n)); FROM E NEXT {$1.k = $2.k} E PUBLISH early"
    )

    def arrives(number: int) -> None:
        xml = f"<x><k>{'uv'[number % 2]}</k><n>{number}</n></x>"
        engine.process([Document(f"d{number}", xml, "S", (number * 3_600_000_000,) * 2)])

    for number in range(6):
        arrives(number)
    text = "FROM early NEXT {$1.k = $2.k} E PUBLISH late; FROM AGGREGATE {sum(n) AS n BY k OVER 10 h} E PUBLISH summed"
    with engine.store.failing("commit"), pytest.raises(Injected):
        engine.subscribe(text, backfill=True)
    assert set(engine.queries()) == {"early"}
    before = engine.last_seq
    engine.subscribe(text, backfill=True)
    assert engine.last_seq > before
    with engine.store.failing("commit"), pytest.raises(Injected):
        arrives(6)
    for number in range(6, 12):
        arrives(number)
    outputs = list(engine.outputs())
    sums = [one.xml.partition("<n>")[2].partition("<")[0] for one in outputs if one.query == "summed"]
    assert sums == ["0", "1", "2", "4", "6", "9", "12", "16", "20", "25", "30"]
    assert Counter(one.query for one in outputs) == {"early": 9, "late": 7, "summed": 11}


def test_what_a_publisher_told_between_pauses_is_read():
    with Session("duckdb", settle=0) as engine:
        engine.subscribe("DEFINE EVENT A FROM S//a->a (k := a/k); FROM A NEXT A PUBLISH pairs; FROM A")
        given(engine, "aaa")
        engine.pause("pairs")
        given(engine, "aaa", 3)
        engine.resume("pairs")
        given(engine, "aaa", 6)
        engine.pause("pairs")
        engine.subscribe("FROM pairs PUBLISH read", backfill=True)
        told_before = sorted(one.documents for one in engine.outputs() if one.query == "pairs")
        assert sorted(one.documents for one in engine.outputs() if one.query == "read") == told_before
        assert len(told_before) == 3


def test_readers_that_were_there_get_only_what_is_not_late():
    with Session("duckdb", settle=2 * SECOND) as engine:
        engine.subscribe(
            "DEFINE EVENT A FROM S//a->a (k := a/k); FROM FILTER {k = 'none'} A PUBLISH some; FROM some PUBLISH read; "
            "FROM some//match->m PUBLISH documents"
        )
        given(engine, "aaaa")
        engine.subscribe("FROM FILTER {k = 'u'} A PUBLISH some", add=True, backfill=True)
        engine.process([Document("end", "<x/>", "S", END)])
        found = Counter(one.query for one in engine.outputs())
        assert found == {"some": 4, "documents": 4, "read": 3}


def test_what_came_too_late_is_not_for_a_backfill_either():
    with Session("duckdb", settle=0, quiet=True) as engine:
        assert engine.subscribe("DEFINE EVENT A FROM S//a->a (k := a/k)", backfill=True) == []
        assert engine.subscribe("FROM A PUBLISH all", backfill=True) == ["all"]
        given(engine, "aa", 5)
        given(engine, "a", 1)
        assert [one["reason"].startswith("late for patterns: ") for one in engine.dead_letters()] == [True]
        engine.subscribe("FROM A NEXT A PUBLISH pairs", backfill=True)
        engine.process([Document("end", "<x/>", "S", END)])
        assert [one.documents for one in engine.outputs() if one.query == "pairs"] == [("d5", "d6")]


def test_sql_has_no_state_that_a_backfill_could_join():
    with Session("duckdb", settle=None, patterns="sql") as engine:
        text = "DEFINE EVENT A FROM S//a->a (k := a/k); FROM A NEXT A PUBLISH pairs"
        with pytest.raises(InvalidValue, match="SQL answers event queries at the end of a run, and has no backfill"):
            engine.subscribe(text, backfill=True)
        assert not engine.queries()
