"""Who asks may only read: what must be refused and what must be answered, on both engines, with nothing changed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
import pytest

from feeds.documents import Document
from join_stage.store import duckdb as duckdb_module
from join_stage.store.protocol import LONGEST, Bounds, QuestionInterrupted, QuestionRefused, measured
from mmqjp.engine import Session
from mmqjp.tables.schema import save_settings
from tests.generate.seeds import at_length
from tests.support.service import PAIRS
from tests.support.stores import TABLES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECRET = "a-secret-of-the-service"

BOTH_WRITE = [
    "DELETE FROM outputs",
    "INSERT INTO outputs SELECT * FROM outputs",
    "UPDATE outputs SET query = 'x'",
    "DROP TABLE outputs",
    "CREATE TABLE {here}new AS SELECT 1 AS a",
    "CREATE VIEW new AS SELECT 1 AS a",
    "CREATE OR REPLACE TEMPORARY VIEW outputs AS SELECT 1 AS a",
    "ALTER TABLE outputs ADD COLUMN a INT",
    "TRUNCATE TABLE outputs",
    "SELECT 1; DELETE FROM outputs",
    "SELECT 1; SELECT 2",
    "",
    "EXPLAIN SELECT 1",
    "MERGE INTO outputs USING (SELECT 'q' AS q) s ON query = s.q WHEN MATCHED THEN DELETE",
]

DUCKDB = [
    "WITH x AS (DELETE FROM outputs RETURNING *) SELECT * FROM x",
    "WITH x AS (UPDATE outputs SET query = 'x' RETURNING *) SELECT * FROM x",
    "WITH x AS (INSERT INTO outputs SELECT * FROM outputs RETURNING *) SELECT 1",
    "SELECT * FROM (WITH x AS (DELETE FROM outputs RETURNING *) SELECT * FROM x)",
    "SELECT (WITH x AS (DELETE FROM outputs RETURNING 1 AS a) SELECT a FROM x)",
    "COPY outputs TO '{here}/o.csv'",
    "COPY (SELECT 1) TO '{state}/mmqjp.duckdb.wal'",
    "COPY (SELECT 1) TO '{state}/mmqjp.duckdb.tmp/x.csv'",
    "COPY outputs FROM '{secret}'",
    "EXPORT DATABASE '{here}/d'",
    "IMPORT DATABASE '{here}/d'",
    "ATTACH '{here}/other.duckdb' AS other",
    "ATTACH ':memory:' AS other",
    "INSTALL httpfs",
    "LOAD json",
    "SET memory_limit = '1MB'",
    "SET VARIABLE a = 1",
    "RESET memory_limit",
    "PRAGMA database_list",
    "CALL pragma_database_size()",
    "CHECKPOINT",
    "VACUUM",
    "USE main",
    "BEGIN TRANSACTION",
    "PREPARE p AS SELECT 1",
    "CREATE SEQUENCE s",
    "CREATE TEMP TABLE t AS SELECT 1 AS a",
    "CREATE MACRO m(a) AS a + 1",
    "CREATE SECRET s (TYPE http)",
    "EXPLAIN ANALYZE DELETE FROM outputs",
    "SELECT * FROM read_text('{secret}')",
    "SELECT * FROM read_blob('{state}/mmqjp.duckdb')",
    "SELECT * FROM read_csv('{secret}')",
    "SELECT * FROM read_json('{secret}')",
    "SELECT * FROM sniff_csv('{secret}')",
    "SELECT * FROM glob('{here}/*')",
    "SELECT * FROM '{secret}'",
    "SELECT * FROM \"{secret}\"",
    "WITH \"{secret}\" AS (SELECT 1) SELECT * FROM \"{secret}\"",
    "SELECT * FROM query('SELECT * FROM outputs')",
    "SELECT * FROM query_table('outputs')",
    "SELECT * FROM json_execute_serialized_sql('{{}}')",
    "SELECT getenv('HOME')",
    "SELECT 'HOME'.getenv()",
    "SELECT list_transform(['HOME'], lambda x: getenv(x))",
    "SELECT current_setting('temp_directory')",
    "SELECT nextval('s')",
    "SELECT write_log('x')",
    "SELECT * FROM duckdb_settings()",
    "SELECT * FROM duckdb_databases",
    "SELECT 1 FROM duckdb_databases WHERE EXISTS (WITH duckdb_databases AS (SELECT 1) SELECT * FROM duckdb_databases)",
    "SELECT * FROM pragma_database_list",
    "SELECT * FROM duckdb_secrets()",
    "SELECT * FROM pg_catalog.pg_settings",
    "SELECT * FROM other.main.outputs",
    "SHOW DATABASES",
    "SELECT * FROM variable_of_python",
    "SELECT {nested}",
]  # fmt: skip

SPARK = [
    "FROM (SELECT 1 AS a) INSERT OVERWRITE DIRECTORY '{here}/keep' USING parquet SELECT a",
    "INSERT OVERWRITE DIRECTORY '{here}/keep' USING parquet SELECT 1 AS a",
    "WITH x AS (SELECT 1 AS a) INSERT OVERWRITE DIRECTORY '{here}/keep' USING parquet SELECT a FROM x",
    "FROM outputs INSERT INTO documents SELECT * INSERT INTO matches SELECT *",
    "SELECT reflect('java.lang.System', 'setProperty', 'mmqjp.asked', 'yes')",
    "SELECT java_method('java.lang.System', 'setProperty', 'mmqjp.asked', 'yes')",
    "SELECT try_reflect('java.lang.System', 'setProperty', 'mmqjp.asked', 'yes')",
    "SELECT IDENTIFIER('reflect')('java.lang.System', 'setProperty', 'mmqjp.asked', 'yes')",
    "SELECT system.builtin.reflect('java.lang.System', 'setProperty', 'mmqjp.asked', 'yes')",
    "SELECT * FROM VALUES (reflect('java.lang.System', 'setProperty', 'mmqjp.asked', 'yes'))",
    "SELECT * FROM range(int(reflect('java.lang.System', 'setProperty', 'mmqjp.asked', 'yes')))",
    "SELECT count(*) OVER w FROM outputs WINDOW w AS (ORDER BY reflect('java.lang.System', 'getProperty', 'x'))",
    "SELECT query FROM outputs ORDER BY reflect('java.lang.System', 'setProperty', 'mmqjp.asked', 'yes')",
    "SELECT query FROM outputs LIMIT int(reflect('java.lang.System', 'setProperty', 'mmqjp.asked', '1'))",
    "SELECT 1 FROM outputs o JOIN queries q ON reflect('java.lang.System', 'setProperty', 'mmqjp.asked', 'yes') = name",
    "SELECT transform(array(1), x -> reflect('java.lang.System', 'setProperty', 'mmqjp.asked', 'yes'))",
    "SELECT * FROM outputs LATERAL VIEW explode(array(reflect('java.lang.System', 'getProperty', 'x'))) t AS a",
    "SELECT count(*) FILTER (WHERE reflect('java.lang.System', 'getProperty', 'x') = '1') FROM outputs",
    "SELECT query FROM outputs GROUP BY GROUPING SETS ((reflect('java.lang.System', 'getProperty', 'x')), (query))",
    "SELECT sum(t0) OVER (PARTITION BY reflect('java.lang.System', 'getProperty', 'x')) FROM outputs",
    "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY reflect('java.lang.System', 'getProperty', 'x')) FROM outputs",
    "SELECT * FROM (SELECT query, t0 FROM outputs) PIVOT (max(reflect('a.B', 'c')) FOR query IN ('pairs'))",
    "SELECT struct(reflect('java.lang.System', 'getProperty', 'x') AS a).a",
    "SELECT CASE WHEN 1 IN (SELECT reflect('java.lang.System', 'getProperty', 'x')) THEN 1 END",
    "FROM outputs |> WHERE reflect('java.lang.System', 'getProperty', 'x') = '1'",
    "SELECT * FROM text.`{secret}`",
    "SELECT (SELECT max(value) FROM text.`{secret}`)",
    "WITH x AS (SELECT * FROM text.`{secret}`) SELECT * FROM x",
    "SELECT * FROM IDENTIFIER('text.`{secret}`')",
    "SELECT * FROM parquet.`{state}/outputs`",
    "SELECT TRANSFORM (query) USING 'touch {here}/made' AS (a) FROM outputs",
    "SELECT input_file_name() FROM outputs",
    "SELECT _metadata.file_path FROM outputs",
    "SELECT current_user()",
    "SELECT current_user",
    "SELECT user",
    "SELECT * FROM read_files('{secret}')",
    "SELECT * FROM python_worker_logs()",
    "SELECT from_protobuf(binary('a'), 'm', '{secret}')",
    "SELECT * FROM secret_of_the_catalog",
    "SELECT * FROM default.secret_of_the_catalog",
    "SELECT 1 FROM secret_of_the_catalog WHERE EXISTS (WITH secret_of_the_catalog AS (SELECT 1) SELECT * FROM "
    "secret_of_the_catalog)",
    "SELECT * FROM global_temp.a",
    "EXECUTE IMMEDIATE 'DELETE FROM outputs'",
    "DECLARE VARIABLE a INT",
    "SET spark.sql.shuffle.partitions = 1",
    "RESET",
    "ADD JAR '{here}/x.jar'",
    "CACHE TABLE outputs",
    "REFRESH TABLE outputs",
    "CREATE FUNCTION f AS 'a.B'",
    "BEGIN SELECT 1; END",
    "SHOW TABLES",
    "DESCRIBE EXTENDED outputs",
    "SELECT :a",
    "SELECT repeat('x', 2000000000)",
    "SELECT sequence(1, 1000000000)",
    "SELECT * FROM range(0, 10, 1, 1000)",
    "SELECT count(*) FROM range(1000000) a, range(1000000) b",
    "SELECT count(*) FROM documents d JOIN range(1000000) a ON a.id > d.t0 JOIN range(1000000) b ON b.id > d.t0",
    "SELECT (SELECT count(*) FROM range(1000000) a JOIN range(1000000) b ON a.id < b.id) AS n",
    "SELECT count(*) FROM (SELECT explode(documents) e FROM outputs) a CROSS JOIN range(1000000) b",
]  # fmt: skip

BOTH = [
    ("SELECT query, count(*) AS outputs FROM outputs GROUP BY query", 1),
    ("-- why\nselect 'x' AS a /* not */", 1),
    ("WITH a AS (SELECT 1 AS n), b AS (SELECT n + 1 AS n FROM a) SELECT * FROM a UNION ALL SELECT * FROM b", 2),
    ("SELECT * FROM documents", 3),
    ("SELECT name, text FROM queries WHERE removed_at IS NULL", 1),
    ("SELECT m.query, d.id FROM matches m JOIN documents d ON d.docid = m.docid1 ORDER BY d.id LIMIT 2", 2),
    ("SELECT * FROM r_t_0", 1),
    ("SELECT count(*) FROM r_bin b, r_doc d, r_docts t WHERE b.docid = d.docid AND d.docid = t.docid", 1),
    ("SELECT id, row_number() OVER (PARTITION BY stream ORDER BY t0 DESC) AS n FROM documents", 3),
    ("SELECT (SELECT max(t0) FROM documents) AS latest, EXISTS (SELECT 1 FROM dead_letters) AS any", 1),
    ("SELECT explode_me FROM (SELECT 1 AS explode_me) x WHERE explode_me IN (1, 2) AND explode_me BETWEEN 0 AND 2", 1),
    ("SELECT upper(id), length(xml), coalesce(NULL, 1), CASE WHEN t0 > 0 THEN 'a' ELSE 'b' END FROM documents", 3),
    ("SELECT CAST(t0 AS STRING), t0 / 2, -t0, t0 % 2, id LIKE 'd%', id || 'x', NOT t0 = 1 FROM documents",
     3),
    ("SELECT query FROM outputs INTERSECT SELECT name FROM queries", 1),
    ("SELECT DISTINCT stream FROM documents ORDER BY ALL", 1),
    ("SELECT stream, count(*) FROM documents GROUP BY stream HAVING count(*) > 1", 1),
    ("SELECT batch, committed_at - taken_at AS took FROM batches", 1),
    ("SELECT * FROM (VALUES (1, 'a'), (2, 'b')) t(n, a)", 2),
    ("SELECT * FROM range(3)", 3),
    ("SELECT o.query FROM outputs o LEFT JOIN queries q ON o.query = q.name CROSS JOIN documents", 9),
]  # fmt: skip

DUCKDB_READS = [
    ("FROM outputs", 3),
    ("TABLE outputs", 3),
    ("DESCRIBE outputs", 10),
    ("SUMMARIZE outputs", 10),
    ("SELECT * FROM mmqjp.main.outputs", 3),
    ("SELECT table_name FROM information_schema.tables WHERE table_name = 'outputs'", 1),
    ("SELECT nodes::JSON->>'x', json_extract(nodes, '$.x') FROM outputs", 3),
    ("SELECT unnest(documents) FROM outputs", 6),
    ("SELECT o.query, d.id FROM outputs o, unnest(o.documents) AS d(id)", 6),
    ("SELECT key FROM outputs, json_each(nodes) LIMIT 1", 1),
    ("SELECT * EXCLUDE (xml) FROM outputs QUALIFY row_number() OVER (ORDER BY t1) = 1", 1),
    ("SELECT list_transform([1, 2], lambda x: x + 1), {{'a': 1}}.a, 'x'::BLOB, now(), random(), uuid()", 1),
    ("WITH RECURSIVE t(n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM t WHERE n < 3) SELECT * FROM t", 3),
    ("SELECT rank() OVER w FROM documents WINDOW w AS (ORDER BY t0)", 3),
    ("SELECT * FROM generate_series(1, 3)", 3),
]

SPARK_READS = [
    ("TABLE outputs", 3),
    ("SELECT explode(documents) FROM outputs", 6),
    ("SELECT query, d FROM outputs LATERAL VIEW explode(documents) t AS d", 6),
    ("SELECT get_json_object(nodes, '$.x'), from_json(nodes, 'x INT').x FROM outputs", 3),
    ("SELECT transform(documents, d -> upper(d)), documents[0], size(documents) FROM outputs", 3),
    ("SELECT timestamp_micros(t0), date_trunc('day', timestamp_micros(t1)), current_date FROM outputs", 3),
    ("SELECT approx_percentile(t0, 0.5), collect_list(id), count(*) FILTER (WHERE t0 > 0) FROM documents", 1),
    ("SELECT id FROM documents QUALIFY row_number() OVER (ORDER BY t0) = 1", 1),
    ("FROM outputs |> WHERE t0 >= 0 |> SELECT query", 3),
    ("SELECT stream, grouping(stream), count(*) FROM documents GROUP BY CUBE (stream)", 2),
    ("SELECT stack(2, 1, 2), 'a' RLIKE 'b', date '2026-01-01' + interval 1 day", 2),
    ("SELECT d.id FROM documents d JOIN documents e ON d.t0 < e.t0", 3),
    ("SELECT d.id FROM documents d WHERE d.docid NOT IN (SELECT docid1 FROM matches WHERE docid1 < 0)", 3),
]


class Place:
    """A store with three documents and as many outputs, and what must not be read or touched beside it."""

    def __init__(self, path: Path, engine: object) -> None:
        self.path, self.state = path, path / "state"
        (path / "secret.txt").write_text(SECRET)
        (path / "keep").mkdir()
        (path / "keep" / "file").write_text("kept")
        self.engine = Session(engine, state=self.state)  # type: ignore[arg-type]
        self.engine.subscribe(PAIRS)
        self.engine.process([Document(f"d{n}", "<a>v</a>", time=n) for n in range(3)])

    def filled(self, sql: str) -> str:
        nested = "(" * 2000 + "1" + ")" * 2000
        return sql.format(here=self.path, state=self.state, secret=self.path / "secret.txt", nested=nested)

    def facts(self) -> dict[str, object]:
        """What no question may change."""
        keys = {"answers": "t1", "documents": "docid", "added_queries": "qid", "settings": "batch", "offsets": "batch"}
        store = self.engine._store
        rows = {name: store.read(name, TABLES[name].names).sort_by(key).to_pylist() for name, key in keys.items()}
        beside = {path.name: path.read_bytes() for path in self.path.rglob("*") if path.is_file()
                  and self.state not in path.parents}  # fmt: skip
        return {**rows, "beside": beside, "home": os.environ.get("HOME")}


@pytest.fixture(scope="module")
def on_duckdb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    place = Place(tmp_path_factory.mktemp("duckdb"), "duckdb")
    yield place
    place.engine.close()


@pytest.fixture(scope="module")
def on_spark(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Place]:
    spark.sql("CREATE TABLE default.secret_of_the_catalog USING parquet AS SELECT 1 AS a")
    place = Place(tmp_path_factory.mktemp("spark"), spark)
    yield place
    place.engine.close()
    spark.sql("DROP TABLE default.secret_of_the_catalog")


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT from_json('[]', '[]')", "SELECT json_transform('[]', '[]')", "SELECT length(range(1000000000))",
        "SELECT 'a'.repeat(5)", "SELECT list_transform([1], x -> lpad('a', x, 'b'))", "SELECT printf('%1000d', 1)",
        "SELECT * FROM documents, unnest(generate_series(1, 9)) u(x)", "SELECT levenshtein('a', 'b')",
        "SELECT a" + ".a" * 20, "SELECT json_pretty('[]')",
    ],
)  # fmt: skip
def test_duckdb_refuses_what_cannot_be_bounded_or_ended(on_duckdb: Place, sql: str):
    with pytest.raises(QuestionRefused, match="is not answered"):
        on_duckdb.engine.question(sql).answer()


@pytest.mark.parametrize("sql", BOTH_WRITE + DUCKDB)
def test_duckdb_refuses_and_nothing_changes(on_duckdb: Place, sql: str):
    variable_of_python = [{"a": 1}]  # noqa: F841
    before = on_duckdb.facts()
    with pytest.raises((ValueError, duckdb.Error)) as refused:
        on_duckdb.engine.sql(on_duckdb.filled(sql))
    assert SECRET not in str(refused.value) and on_duckdb.facts() == before


def test_spark_refuses_and_nothing_changes(on_spark: Place, spark: SparkSession):
    before = on_spark.facts()
    for sql in BOTH_WRITE + SPARK:
        with pytest.raises(QuestionRefused) as refused:
            print(sql, on_spark.engine.sql(on_spark.filled(sql)))
        assert SECRET not in str(refused.value), sql
    assert on_spark.facts() == before
    system = spark.sparkContext._jvm.java.lang.System  # type: ignore[union-attr]
    assert system.getProperty("mmqjp.asked") is None


@pytest.mark.parametrize(("sql", "rows"), BOTH + DUCKDB_READS)
def test_duckdb_answers(on_duckdb: Place, sql: str, rows: int):
    assert on_duckdb.engine.sql(on_duckdb.filled(sql)).num_rows == rows


def test_spark_answers(on_spark: Place):
    for sql, rows in (BOTH + SPARK_READS)[:: 1 if at_length() else 3]:
        assert on_spark.engine.sql(on_spark.filled(sql)).num_rows == rows, sql


def test_duckdb_itself_refuses_what_the_judge_would_let_pass(on_duckdb: Place, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("join_stage.store.duckdb.check_question", lambda *_: None)
    before = on_duckdb.facts()
    for sql, word in (
        ("WITH x AS (DELETE FROM answers RETURNING *) SELECT * FROM x", "read-only"),
        ("DELETE FROM answers", "read-only"),
        ("COPY outputs TO '{here}/o.csv'", "disabled by configuration"),
        ("SELECT * FROM read_text('{secret}')", "disabled by configuration"),
        ("SELECT * FROM '{secret}.csv'", "disabled by configuration"),
        ("SELECT * FROM variable_of_python", "does not exist"),
        ("SET memory_limit = '1MB'", "locked"),
        ("INSTALL httpfs", "disabled by configuration"),
    ):
        variable_of_python = [{"a": 1}]  # noqa: F841
        with pytest.raises(duckdb.Error, match=word):
            on_duckdb.engine.sql(on_duckdb.filled(sql))
    assert on_duckdb.facts() == before


def test_spark_refuses_in_its_plan_what_the_first_judge_would_let_pass(
    on_spark: Place, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("join_stage.store.spark.question.check_spark_plan", lambda *_: None)
    for sql in (
        "SELECT reflect('java.lang.System', 'getProperty', 'user.home')",
        "SELECT count(*) OVER w FROM outputs WINDOW w AS (ORDER BY reflect('java.lang.System', 'getProperty', 'x'))",
        "SELECT * FROM text.`{secret}`",
        "SELECT input_file_name() FROM outputs",
        "SELECT current_user",
        "SELECT * FROM default.secret_of_the_catalog",
    ):
        with pytest.raises(QuestionRefused) as refused:
            on_spark.engine.sql(on_spark.filled(sql))
        assert SECRET not in str(refused.value)


@pytest.mark.parametrize("place", ["on_duckdb", pytest.param("on_spark", marks=pytest.mark.spark)])
def test_an_answer_has_bounds(place: str, request: pytest.FixtureRequest):
    engine = request.getfixturevalue(place).engine
    assert engine.question("SELECT * FROM range(5)", Bounds(rows=5)).answer().num_rows == 5
    with pytest.raises(QuestionRefused, match="more than 4 rows: narrow it down"):
        engine.question("SELECT * FROM range(5)", Bounds(rows=4)).answer()
    with pytest.raises(QuestionRefused, match="more than 30 bytes: narrow it down"):
        engine.question("SELECT * FROM range(5)", Bounds(size=30)).answer()
    with pytest.raises(QuestionRefused, match=f"at most {LONGEST:,}"):
        engine.sql("SELECT " + "1," * LONGEST + "1")
    with pytest.raises(QuestionRefused, match="did you mean outputs"):
        engine.sql("SELECT * FROM output")


@pytest.mark.parametrize("place", ["on_duckdb", pytest.param("on_spark", marks=pytest.mark.spark)])
def test_a_question_that_was_interrupted_before_it_began_gives_nothing(place: str, request: pytest.FixtureRequest):
    question = request.getfixturevalue(place).engine.question("SELECT 1 AS a")
    question.interrupt()
    with pytest.raises(QuestionInterrupted):
        question.answer()


def test_a_question_is_interrupted_while_its_answer_is_read(on_duckdb: Place, monkeypatch: pytest.MonkeyPatch):
    question = on_duckdb.engine.question("SELECT a.range AS a FROM range(100000) a, range(100000)")

    def interrupted(reader: pa.RecordBatchReader, bounds: Bounds) -> pa.Table:
        reader.read_next_batch()
        question.interrupt()
        return measured(reader, bounds)

    monkeypatch.setattr(duckdb_module, "measured", interrupted)
    with pytest.raises(QuestionInterrupted):
        question.answer()


def test_a_question_sees_whole_batches(on_duckdb: Place):
    store = on_duckdb.engine._store
    store.begin()
    save_settings(store, {"half": "1"}, batch=99)
    asked = "SELECT count(*) AS n FROM settings WHERE key = 'half'"
    assert on_duckdb.engine.sql(asked)["n"].to_pylist() == [0]
    assert on_duckdb.engine.sql(asked, trusted=True)["n"].to_pylist() == [1]
    store.rollback()
    assert json.dumps(on_duckdb.engine.sql(asked).to_pylist()) == '[{"n": 0}]'
