"""Queries that come late and see kept documents, and queries that pause. Random ones do in `test_live_model`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from feeds.documents import Document
from mmqjp.engine import Session
from tests.support.delivery import undelivered
from tests.support.faults import FaultySession, Injected
from xscl.parser import parse_script
from xscl.printer import to_xscl

if TYPE_CHECKING:
    pass

PAIRS = "S/a->x FOLLOWED BY {x = y, 10} S/a->y"
CHAIN = "S/a->x JOIN {x = y, INF} S/a->y JOIN {y = z, INF} S/b->z"


def doc(number: int, tag: str = "a", stream: str = "S") -> Document:
    return Document(f"{tag}{number}", f"<{tag}>v</{tag}>", stream, number * 1_000_000)


def test_a_chain_is_completed_by_tuples_that_were_there_and_by_new_ones(tmp_path: Path):
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
def test_a_query_that_is_replaced_gives_nothing_in_the_backfill_of_the_other(other: str):
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


def test_paused_queries_miss_what_passes_and_keep_what_was_before(tmp_path: Path):
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
