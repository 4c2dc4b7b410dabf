"""The funnel of a query: how many of the kept documents get past each stage, and what is said of the first that none
does."""

from __future__ import annotations

import json

import pytest

from feeds.documents import Document
from mmqjp.engine import Session
from mmqjp.present import query_lookup
from mmqjp.present.why_not import QueryFunnels, query_funnel

SECOND = 1_000_000
SCRIPT = (
    'FROM S/a->x[./k->k][./t = "news"] FOLLOWED BY {k = l AND x/n != y/n, 10 s} S/b->y[./l->l] PUBLISH p; '
    "FROM T/c PUBLISH q"
)


def a(key: str, n: int, kind: str = "news") -> str:
    return f"<a><k>{key}</k><t>{kind}</t><n>{n}</n></a>"


def b(key: str, n: int) -> str:
    return f"<b><l>{key}</l><n>{n}</n></b>"


DOCUMENTS = [
    (a("u", 1), 0), (a("v", 1), 0), (a("v", 1, "blog"), 0), (b("v", 1), 0), (b("v", 2), 3), (b("v", 2), 30),
    (b("v", 1), 4), (b("w", 1), 4),
]  # fmt: skip


def funnel_of(engine: Session, name: str = "p", **options: int) -> QueryFunnels:
    found = query_funnel(lambda sql: engine.question(sql).answer(), name, **options)
    assert QueryFunnels.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    return found


def fill(engine: Session, script: str = SCRIPT) -> None:
    engine.subscribe(script)
    engine.process([Document(f"d{n}", xml, time=time * SECOND) for n, (xml, time) in enumerate(DOCUMENTS)])


STAGES = [
    ("S", 8), ("/a", 3), ("./k", 3), ('./t = "news"', 2), ("x/n", 2), ("S", 8), ("/b", 5), ("./l", 5), ("y/n", 5),
    ("k = l", 1), ("FOLLOWED BY", 3), ("10 s", 2), ("x/n != y/n", 1),
]  # fmt: skip


def test_each_stage_counts_what_gets_past_it():
    with Session("duckdb") as engine:
        fill(engine)
        found = funnel_of(engine)
    (funnel,) = found.funnels
    parts = [(stage.part, stage.found) for stage in funnel.stages if stage.part != "./t"]
    assert parts == STAGES
    (equality,) = (stage for stage in funnel.stages if stage.kind == "equality")
    assert (equality.left, equality.right, equality.unit) == (2, 2, "values")
    assert (funnel.found, funnel.failed, found.outputs, found.documents) == (1, None, 1, 8)
    assert funnel.ties == 0


def test_pairs_that_only_equal_times_leave_out_are_counted():
    with Session("duckdb") as engine:
        fill(engine, SCRIPT.replace("x/n != y/n", "x/n = y/n"))
        (funnel,) = funnel_of(engine).funnels
        assert funnel.ties == engine.ties()["p"] == 1


def test_the_first_stage_that_nothing_passes_is_named_with_a_hint():
    script = "FROM S/a->x[./kk->k] FOLLOWED BY {k = l, 1 s} S/b->y[./l->l] PUBLISH p"
    with Session("duckdb") as engine:
        fill(engine, script)
        (funnel,) = funnel_of(engine).funnels
    assert funnel.failed is not None
    assert (funnel.failed.part, funnel.failed.block, funnel.failed.hint) == ("./kk", 1, "did you mean k (in 3)?")
    assert [stage.found for stage in funnel.stages if stage.block == 2] == [8, 5, 5]


def test_no_document_of_a_stream_and_no_query_of_a_name():
    with Session("duckdb") as engine:
        fill(engine)
        found = funnel_of(engine, "q")
        assert found.funnels[0].failed is not None
        assert found.funnels[0].failed.message == "there is no document of stream T"
        assert funnel_of(engine, "qq").message == "no query is called qq"


def test_documents_that_a_query_does_not_see_are_counted_apart():
    with Session("duckdb") as engine:
        fill(engine)
        engine.subscribe("FROM S/b PUBLISH later")
        engine.process([Document("new", "<b/>", time=99 * SECOND)])
        engine.pause("later", "for now")
        engine.process([Document("newest", "<b/>", time=99 * SECOND)])
        (funnel,) = funnel_of(engine, "later").funnels
        assert (funnel.unseen, funnel.found, funnel.paused) == (9, 1, "for now")


def test_a_part_of_very_many_documents_or_of_large_ones_is_looked_at(monkeypatch: pytest.MonkeyPatch):
    with Session("duckdb") as engine:
        fill(engine)
        assert funnel_of(engine, most=3).documents == 3
        monkeypatch.setattr(query_lookup, "MOST_CHARACTERS_OF_ONE", 30)
        found = funnel_of(engine)
        assert (found.documents, found.left_out) == (5, 3)


def test_the_queries_of_a_union_have_a_funnel_each():
    with Session("duckdb") as engine:
        engine.subscribe("FROM S/a PUBLISH u; FROM S/b PUBLISH u")
        engine.process([Document(f"d{n}", xml, time=time) for n, (xml, time) in enumerate(DOCUMENTS)])
        found = funnel_of(engine, "u")
        assert [funnel.found for funnel in found.funnels] == [3, 5] and found.outputs == 8
