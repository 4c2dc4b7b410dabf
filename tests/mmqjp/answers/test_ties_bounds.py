"""Counting pairs with equal times has bounds, which do not depend on batches, and follows pauses."""

from __future__ import annotations

import pytest

from feeds.documents import Document
from join_stage.protocol import PLANS
from mmqjp.answers import query_operators, quota
from mmqjp.documents.record import Record
from mmqjp.engine import Session
from tests.generate.documents import SECOND
from tests.support.in_turn import in_turn

PAIRS = "S//a->x FOLLOWED BY {x = y, INF} S//a->y PUBLISH pairs"


def at(seconds: float, count: int, first: int, text: str = "<a>v</a>") -> list[Document]:
    return [Document(f"d{n}", text.encode(), "S", int(seconds * SECOND)) for n in range(first, first + count)]


def counted(given: list[Document], size: int, plan: str, query: str = PAIRS) -> tuple[dict[str, int], list[str]]:
    with Session("duckdb", plan=plan) as engine:
        engine.subscribe(query)
        found = []
        for start in range(0, len(given), size):
            found += [output.id for output in engine.process(given[start : start + size])]
        return engine.ties(), sorted(found)


@pytest.mark.parametrize(("bounds", "plan"), in_turn([(4, 1000, 10), (100, 9, 10), (100, 10, 10), (2, 5, 3)], PLANS))
def test_the_bounds_do_not_depend_on_batches(bounds: tuple[int, int, int], plan: str, monkeypatch: pytest.MonkeyPatch):
    of_document, of_form, expected = bounds
    monkeypatch.setattr(quota, "MOST_PAIRS", of_document)
    monkeypatch.setattr(quota, "MOST_OF_FORM", of_form)
    given = [*at(1, 9, 0), *at(2, 1, 9)]
    found = [counted(given, size, plan) for size in (1, 2, 5, 100)]
    assert found == [({"pairs": expected}, found[0][1])] * 4
    assert len(found[0][1]) == 9


def test_a_document_whose_pairs_take_too_many_steps_counts_none(monkeypatch: pytest.MonkeyPatch):
    query = "S//a->x[./t->t][./k->k] FOLLOWED BY {k = l AND contains(t, u), INF} S//a->y[./u->u][./k->l] PUBLISH pairs"
    small, large = "<a><k>v</k><t>m</t><u>m</u></a>", f"<a><k>v</k>{'<t>m</t>' * 20}{'<u>w</u>' * 20}</a>"
    given = [*at(1, 3, 0, small), *at(1, 6, 3, large), *at(2, 1, 9, small)]
    monkeypatch.setattr(quota, "MOST_STEPS", 1000)
    monkeypatch.setattr(query_operators, "MOST_STEPS", 1000)
    found = [counted(given, size, "signature", query) for size in (1, 3, 100)]
    assert found == [({"pairs": 3}, found[0][1])] * 3


def test_pairs_past_the_bounds_are_not_expanded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(quota, "MOST_OF_FORM", 50)
    looked: list[tuple[Record, Record]] = []
    is_tie = query_operators.is_tie

    def noted(left: Record, right: Record) -> bool:
        looked.append((left, right))
        return is_tie(left, right)

    monkeypatch.setattr(query_operators, "is_tie", noted)
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
