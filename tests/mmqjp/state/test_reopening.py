"""A store that is closed and opened again between any two steps is as one that was never closed, and parses no text."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import duckdb
import pytest
from hypothesis import given

from feeds.documents import Document
from join_stage.protocol import PLANS
from join_stage.store.protocol import DUCKDB_FILE, StoreError
from mmqjp.engine import Session
from templates.catalog import Catalog
from tests.generate.seeds import at_length, seeds
from tests.generate.strategies import cases, random_case
from tests.oracle.evaluation import comparable
from tests.support.agreement import as_row
from tests.support.cli import mmqjp
from tests.support.conjuncts import conjuncts_of
from xscl.algebra.trees import pattern_from_json, pattern_to_json
from xscl.parser import parse_script
from xscl.printer import to_xscl
from xscl.syntax import Script

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUERIES = """
S//a->x[./b->y][./c = 'it''s "so"'] FOLLOWED BY {lower-case(y) = lower-case(z), 1 h} S//a->w[./b->z] PUBLISH pairs;
SELECT x FROM pairs/match->x PUBLISH again;
S//a[./b->p] FOLLOWED BY {p = q, 1 h} S//a[./b->q] FOLLOWED BY {q = r AND p != 'n', 1 h} S//a[./b->r] PUBLISH chain;
S//a->m[matches(., 'v+')] PUBLISH filtered
"""

Step = Callable[[Session], object]


def doc(number: int, text: str = "v") -> Document:
    return Document(f"d{number}", f'<a><b>{text}</b><c>it\'s "so"</c></a>', "S", number * 1_000_000)


def steps(seed: int, queries: int, documents: int) -> list[Step]:
    """What is done with an engine: documents come, queries come, go, rest and go on."""
    rng = Random(seed)
    script, samples = random_case(seed, queries, documents)
    texts = [to_xscl(Script((query,), script.namespaces)) for query in script.queries]
    found: list[Step] = [partial(_subscribe, text, rng.random() < 0.3) for text in texts]
    found += [partial(_process, [sample]) for sample in samples]
    found += [partial(_to_some, do, rng.random()) for do in ("pause", "resume", "unsubscribe", "pause")]
    rng.shuffle(found)
    return [*found, partial(_process, [Document(f"last {d.id}", d.xml, d.stream, d.t0) for d in samples])]


def _subscribe(text: str, backfill: bool, engine: Session) -> None:
    engine.subscribe(text, add=True, backfill=backfill)


def _process(documents: list[Document], engine: Session) -> None:
    engine.process(documents)


def _to_some(do: str, place: float, engine: Session) -> None:
    if names := sorted(engine.queries()):
        getattr(engine, do)(names[int(place * len(names))])


def definitions(engine: Session) -> list[tuple[str, str]]:
    """The steps that an engine looks for; their ids may differ, as a store remembers those of queries that went."""
    return sorted((step.stream, str(step.node)) for step in engine.catalog.steps.values())


def assert_reopened_is_the_same(engine: object, plan: str, seed: int, tmp_path: Path, queries: int = 8) -> int:
    """Asserts that; how many outputs there were."""
    rng = Random(seed)
    kept = Session(engine, state=tmp_path / "reopened", plan=plan)  # type: ignore[arg-type]
    with Session(engine, plan=plan) as other:  # type: ignore[arg-type]
        for step in steps(seed, queries, 10):
            for one in (other, kept):
                step(one)
            if rng.random() < 0.5:
                kept.close()
                kept = Session(engine, state=tmp_path / "reopened", plan=plan)  # type: ignore[arg-type]
        found = [[as_row(output) for output in one.outputs()] for one in (other, kept)]
        assert comparable(found[0]) == comparable(found[1])
        assert other.queries() == kept.queries()
        assert definitions(other) == definitions(kept)
        for name in list(other.queries()):
            kept.unsubscribe(name)
        assert not kept.catalog.steps and not kept.registry.rows and not kept.registry._hidden
    kept.close()
    return len(found[0])


@pytest.mark.parametrize("seed", seeds(1, 480))
def test_reopened_stores_go_on_as_if_they_had_not_been_closed(seed: int, tmp_path: Path):
    queries = 16 if at_length() else 5
    assert_reopened_is_the_same("duckdb", PLANS[seed % len(PLANS)], seed, tmp_path, queries)


@pytest.mark.soak
def test_reopened_stores_go_on_on_spark(spark: SparkSession, tmp_path: Path):
    assert assert_reopened_is_the_same(spark, "signature", 3, tmp_path, queries=4)


def test_texts_are_parsed_when_something_is_delivered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with Session("duckdb", state=tmp_path) as before:
        before.subscribe(QUERIES)
        assert len(before.process([doc(1), doc(2)])) == 4  # pairs, again, and filtered twice
    parsed: list[str] = []

    def parse(text: str, *, stored: bool) -> Script:
        parsed.append(text)
        return parse_script(text, stored=stored)

    monkeypatch.setattr("mmqjp.queries.compile.parse_script", parse)
    with Session("duckdb", state=tmp_path) as again:
        assert again.process([Document("other", "<z/>", "S", 3_000_000)]) == [] and parsed == []
        assert again.process([doc(4, "n")]) == [] and parsed == []
        found = [o.query for o in again.process([doc(5)])]
        assert sorted(found) == ["again"] * 2 + ["chain"] + ["filtered"] + ["pairs"] * 2
        assert len(parsed) == 4


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE variables SET node = '[1]'",
        "UPDATE variables SET node = '{'",
        "DELETE FROM variables WHERE parent IS NOT NULL",
        "DELETE FROM templates",
        "DELETE FROM inner_placements",
        "UPDATE placements SET streams = NULL",
    ],
)
def test_a_store_whose_tables_do_not_agree_is_refused(damage: str, tmp_path: Path):
    with Session("duckdb", state=tmp_path) as engine:
        engine.subscribe(QUERIES)
    with duckdb.connect(str(tmp_path / DUCKDB_FILE)) as connection:
        connection.execute(damage)
    with pytest.raises(StoreError, match="do not agree"):
        Session("duckdb", state=tmp_path)
    result = mmqjp("list", "--state", tmp_path)
    assert result.exit_code == 1 and result.stderr.startswith("mmqjp: error: ") and result.stderr.count("\n") == 1


def test_a_query_whose_text_is_not_what_stands_for_it_is_told(tmp_path: Path):
    with Session("duckdb", state=tmp_path) as engine:
        engine.subscribe("S//a PUBLISH one")
    for text, message in (
        ("S//b PUBLISH one", "the stored row of a query belongs to another one"),
        ("S//", "cannot read"),
    ):
        with duckdb.connect(str(tmp_path / DUCKDB_FILE)) as connection:
            connection.execute("UPDATE added_queries SET text = ?", [text])
        with Session("duckdb", state=tmp_path) as engine, pytest.raises(StoreError, match=message):
            engine.process([doc(1)])


@given(cases(max_queries=4))
def test_patterns_are_read_as_they_were_written(case: tuple[Script, object]):
    catalog = Catalog()
    for conjunct in conjuncts_of(case[0]):
        catalog.add(conjunct, 1, True)
    for step in catalog.steps.values():
        assert pattern_from_json(pattern_to_json(step.node)) == step.node


@pytest.mark.parametrize(
    "text",
    ["", "1", "[]", '["/","element","","a",[],[]]', '["up","element","","a",[],[],[]]', '["/","text","","a",[],[],[]]',
     '["/","element",1,"a",[],[],[]]', '["/","element","","a",[["=",1]],[],[]]',
     '["/","element","","a",[["!","x"]],[],[]]',
     '["/","element","","a",[],[],["exec"]]', "[" * 100_000],
)  # fmt: skip
def test_what_is_no_pattern_is_refused(text: str):
    with pytest.raises(ValueError):
        pattern_from_json(text)
