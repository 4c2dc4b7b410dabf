from __future__ import annotations

import re
from datetime import date
from itertools import count as count_up
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from feeds.documents import Document
from join_stage.protocol import FLAT_STORE
from join_stage.store.protocol import StoreError
from join_stage.store.spark.parquet_store import table_source
from mmqjp.engine import Session
from mmqjp.spark.source import attach
from mmqjp.tables.schema import SCHEMA
from tests.generate.seeds import at_length
from tests.support.places import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAIRS = "FROM S//a->x[./b->y] FOLLOWED BY {y = z, 1 h} S//a->w[./b->z] PUBLISH pairs"


def doc(number: int, text: str = "v") -> Document:
    return Document(f"d{number}", f"<a><b>{text}</b></a>", "S", number * 1_000_000)


@pytest.fixture
def reader(spark: SparkSession) -> SparkSession:
    return spark.newSession()


def count(reader: SparkSession, table: str) -> int:
    return reader.table(f"mmqjp.{table}").count()


def test_all_tables_say_what_the_engine_says(spark: SparkSession, reader: SparkSession, tmp_path: Path):
    tmp_path /= "no [p]attern, {but} a* name?"
    with Session(spark, state=tmp_path) as engine:
        engine.subscribe(PAIRS)
        engine.process([doc(0, "0")])
        attach(reader, tmp_path)
        engine.process([doc(n, str(n % 2)) for n in range(1, 5)] + [Document("bad", "<a>")])
        some = ["queries", "r_t_0"]
        more = ["documents", "outputs", "matches", "dead_letters", "batches", "r_bin", "r_doc", "r_docts"]
        for table in some + more * at_length():
            ours = sorted(map(repr, engine.sql(f"SELECT * FROM {table}").to_pylist()))
            theirs = sorted(repr(row.asDict()) for row in reader.sql(f"SELECT * FROM mmqjp.{table}").collect())
            assert len(ours) > 0
            assert theirs == ours, table
        assert count(reader, "documents") == 5
    costs = reader.sql("SELECT plan, template, matches FROM mmqjp.costs").collect()  # with nobody writing
    assert [tuple(row) for row in costs] == [("signature", 0, 4)]


@pytest.mark.soak
def test_another_store_takes_the_place_of_the_first(spark: SparkSession, reader: SparkSession, tmp_path: Path):
    for name, documents in (("one", 2), ("other", 4)):
        with Session(spark, state=tmp_path / name) as engine:
            engine.subscribe(PAIRS)
            engine.process([doc(n) for n in range(documents)])
    for name, documents in (("one", 2), ("other", 4), ("one", 2)):
        attach(reader, tmp_path / name)
        assert count(reader, "documents") == documents
    for name in ("one", "other"):
        attach(reader, tmp_path / name, f"of_{name}")
    assert [reader.table(f"of_{name}.documents").count() for name in ("one", "other")] == [2, 4]
    assert [reader.sql(f"SELECT * FROM of_{name}.matches").count() for name in ("one", "other")] == [1, 6]


@pytest.mark.soak
def test_only_tables_of_older_versions_are_replaced(spark: SparkSession, reader: SparkSession, tmp_path: Path):
    with pytest.raises(StoreError, match="holds no store"):
        attach(reader, tmp_path / "nothing")
    with Session(spark, state=tmp_path) as engine:
        engine.subscribe("S/a PUBLISH ones")
        engine.process([Document("d", "<a/>", time=0)])
        reader.sql("CREATE DATABASE older")
        reader.dataSource.register(table_source(tmp_path, "earlier_outputs", FLAT_STORE | SCHEMA))
        reader.sql("CREATE TABLE older.outputs USING mmqjp_earlier_outputs")
        assert reader.table("older.outputs").count() == 0
        for _ in range(2):
            attach(reader, tmp_path, "older")
        assert reader.table("older.outputs").count() == 1
        reader.sql("DROP DATABASE older CASCADE")
        reader.sql("CREATE DATABASE own")
        reader.sql("CREATE TABLE own.outputs USING parquet AS SELECT 1 AS a")
        with pytest.raises(StoreError, match=r"own\.outputs is a table of its own"):
            attach(reader, tmp_path, "own")
        assert [row["a"] for row in reader.sql("SELECT a FROM own.outputs").collect()] == [1]
        reader.sql("DROP DATABASE own CASCADE")
    assert reader.catalog.currentDatabase() == "default"


@pytest.mark.soak
def test_the_questions_in_the_documentation_are_answered(spark: SparkSession, reader: SparkSession, tmp_path: Path):
    def item(number: int, title: str) -> Document:
        xml = f"<item><channel_url>http://feed{number}</channel_url><title>{title}</title></item>"
        return Document(f"d{number}", xml, "S", number * 1_000_000)

    clock = count_up(1, 250_000)
    with Session(spark, state=tmp_path, now=lambda: next(clock)) as engine:
        engine.subscribe("FROM S//item->x[./title->y] FOLLOWED BY {y = z, 1 h} S//item->w[./title->z] PUBLISH same")
        engine.subscribe("S//item[./title = 'never'] PUBLISH never")
        engine.process([item(1, "a"), item(2, "b"), item(3, "a")])
    attach(reader, tmp_path)
    page = (ROOT / "docs" / "spark.md").read_text("utf-8")
    questions = re.findall(r"```sql\n(.*?)```", page, re.S)
    answers = [[tuple(row) for row in reader.sql(question).collect()] for question in questions]
    assert answers[0] == [(date(1970, 1, 1), "same", 1)]
    assert answers[1] == [("http://feed1", "http://feed3", 1)]
    assert [(template, queries) for template, _, queries in answers[2]] == [(0, 1)]
    assert [name for name, _ in answers[3]] == ["never"]
    taken_at, committed_at = reader.sql("SELECT taken_at, committed_at FROM mmqjp.batches").collect()[0]
    seconds = (committed_at - taken_at) / 1e6
    assert seconds > 0 and answers[4] == [("same", [seconds] * 3)]
