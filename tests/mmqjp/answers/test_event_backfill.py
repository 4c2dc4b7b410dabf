"""Event queries that come late and see kept documents: the same outputs as if they had been there from the beginning.

Random statements come late in `test_event_kills`."""

from __future__ import annotations

from collections import Counter

import pytest

from common.errors import InvalidValue
from feeds.documents import Document
from mmqjp.engine import Session
from tests.generate.documents import SECOND
from tests.generate.seeds import seeds
from tests.mmqjp.answers.event_world import END
from tests.support.faults import FaultySession, Injected

CHAIN = """
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
def test_chains_of_joins_and_events_are_completed(case: int) -> None:
    """The first statements of a chain are there, the others come late."""
    (split, at), statements, arrive = SPLITS[case], CHAIN.split(";"), "abaabcbccab"
    with Session("duckdb", settle=0) as early, Session("duckdb", settle=0) as late:
        early.subscribe(CHAIN)
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


def test_a_backfill_that_cannot_be_stored_is_not_made(engine: FaultySession) -> None:
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


def test_what_a_publisher_told_between_pauses_is_read() -> None:
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


def test_readers_that_were_there_get_only_what_is_not_late() -> None:
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


def test_what_came_too_late_is_not_for_a_backfill_either() -> None:
    with Session("duckdb", settle=0, quiet=True) as engine:
        engine.subscribe("DEFINE EVENT A FROM S//a->a (k := a/k); FROM A PUBLISH all")
        given(engine, "aa", 5)
        given(engine, "a", 1)
        assert [one["reason"].startswith("late for patterns: ") for one in engine.dead_letters()] == [True]
        engine.subscribe("FROM A NEXT A PUBLISH pairs", backfill=True)
        engine.process([Document("end", "<x/>", "S", END)])
        assert [one.documents for one in engine.outputs() if one.query == "pairs"] == [("d5", "d6")]


def test_definitions_alone_are_registered_with_a_backfill() -> None:
    with Session("duckdb") as engine:
        assert engine.subscribe("DEFINE EVENT A FROM S//a->a (k := a/k)", backfill=True) == []
        assert engine.subscribe("FROM A PUBLISH all", backfill=True) == ["all"]


def test_sql_has_no_state_that_a_backfill_could_join() -> None:
    with Session("duckdb", settle=None, patterns="sql") as engine:
        text = "DEFINE EVENT A FROM S//a->a (k := a/k); FROM A NEXT A PUBLISH pairs"
        with pytest.raises(InvalidValue, match="SQL answers event queries at the end of a run, and has no backfill"):
            engine.subscribe(text, backfill=True)
        assert not engine.queries()
