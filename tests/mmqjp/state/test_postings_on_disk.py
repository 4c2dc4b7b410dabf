"""The engine with postings on disk: what is opened, pruned, resumed and failed in between loses no match."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from feeds.documents import Document
from join_stage.signature import join
from join_stage.signature.plan import SignaturePlan
from join_stage.spark.engine import edge_by_edge
from join_stage.store.protocol import StoreError
from mmqjp.engine import Session
from templates.witness import R_DOC, R_DOCTS

SECOND = 1_000_000
START = 1_767_225_600 * SECOND
QUERY = "S//i->x[./k->p] JOIN {p = q, 1 h} S//o->y[./k->q] PUBLISH n"


def doc(tag: str, value: int, second: int) -> Document:
    return Document(f"d{second}", f"<{tag}><k>{value}</k></{tag}>", "S", START + second * SECOND)


@pytest.fixture(autouse=True)
def on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join, "MOST_IN_MEMORY", 0)


@pytest.mark.parametrize("most", [0, 10**6], ids=["on disk", "in memory"])
def test_a_store_that_is_pruned_first_finds_what_it_would(most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(join, "MOST_IN_MEMORY", most)
    with Session("duckdb", state=tmp_path, lateness=0) as session:
        session.subscribe(QUERY)
        session.process([doc("i", 7, second) for second in range(5)])
        session.process([doc("i", 7, 3000)])
        session.process([doc("i", 8, 4000)])
    with Session("duckdb", state=tmp_path, lateness=0) as session:
        session.prune(keep=0)
        assert len(list(session.process([doc("o", 7, 4100)]))) == 1
        assert session.stage2_counters()["documents"] >= 3


def test_a_query_that_is_resumed_before_a_prune_finds_what_it_would(tmp_path: Path):
    with Session("duckdb", state=tmp_path, lateness=0) as session:
        session.subscribe(QUERY)
        session.process([doc("i", 7, 10)])
        session.pause("n")
        session.process([doc("i", 7, 20)])
        session.resume("n")
        session.prune(keep=0)
        found = [output.xml for output in session.process([doc("o", 7, 100)])]
    assert len(found) == 1  # it sees no document of its pause


def test_postings_that_cannot_be_loaded_are_loaded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with Session("duckdb", state=tmp_path) as session:
        session.subscribe(QUERY)
        session.process([doc("i", second, second) for second in range(20)])
        session.subscribe("S//i->x[./k->p] PUBLISH m", backfill=True)  # has the postings built anew
        with monkeypatch.context() as full:
            full.setattr("join_stage.signature.plan.READ_DOCUMENTS", 3)
            full.setattr(SignaturePlan, "_settle", _no_room)
            with pytest.raises(StoreError, match="no room"):
                session.process([doc("o", 7, 30)])
        session.pause("m")  # a batch without documents
    with Session("duckdb", state=tmp_path) as session:
        assert [output.query for output in session.process([doc("o", 7, 31), doc("o", 19, 32)])] == ["n", "n"]


def _no_room(plan: SignaturePlan, end: int, *, wholly: bool = False) -> None:
    if end >= 9:
        raise StoreError("no room")


def test_an_edge_keeps_its_number_from_one_part_of_the_state_to_the_next():
    def part(*edges: tuple[int, int]) -> pa.Table:
        columns = [[0] * len(edges), [a for a, _ in edges], [b for _, b in edges], [1] * len(edges), [2] * len(edges)]
        return pa.table(columns, ["docid", "var1", "var2", "node1", "node2"])

    known: dict[int, int] = {}
    found: dict[int, tuple[int, int]] = {}
    for edges in ([(0, 1), (5, 6)], [(5, 6), (0, 1)], [(7, 8), (5, 6)]):
        groups = edge_by_edge(part(*edges), R_DOC.empty_table(), R_DOCTS.empty_table(), known).r_group
        for number, *edge in zip(*(groups[name].to_pylist() for name in groups.column_names), strict=True):
            assert found.setdefault(number, (edge[0], edge[1])) == (edge[0], edge[1])
    assert len(found) == 3
