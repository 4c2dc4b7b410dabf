"""Who asks may only read, and questions end when they must: what is refused and what is answered, beside a service."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any
from unittest.mock import Mock

import duckdb
import pyarrow as pa
import pytest

from feeds.documents import Document
from join_stage.store import protocol
from join_stage.store.protocol import LONGEST, Bounds, OutOfMemory, QuestionInterrupted, QuestionRefused, measured
from mmqjp.engine import Session
from mmqjp.service import sql_question
from mmqjp.service.commands import CommandQueue
from mmqjp.service.spool import Command, CommandResult, Spool
from mmqjp.service.sql_question import QUERY, QuestionRunner, RunningQuestion, answer_question
from mmqjp.tables.schema import TableRows
from tests.support.cli import mmqjp
from tests.support.faults import FaultySession
from tests.support.service import PAIRS, Directory, Events, StopAfter
from tests.support.stores import TABLES

SECRET = "a-secret-of-the-service"

BOTH_WRITE = [
    "DELETE FROM outputs", "INSERT INTO outputs SELECT * FROM outputs", "UPDATE outputs SET query = 'x'",
    "DROP TABLE outputs", "CREATE TABLE {here}new AS SELECT 1 AS a", "CREATE VIEW new AS SELECT 1 AS a",
    "CREATE OR REPLACE TEMPORARY VIEW outputs AS SELECT 1 AS a", "ALTER TABLE outputs ADD COLUMN a INT",
    "TRUNCATE TABLE outputs", "SELECT 1; DELETE FROM outputs", "SELECT 1; SELECT 2", "", "EXPLAIN SELECT 1",
    "MERGE INTO outputs USING (SELECT 'q' AS q) s ON query = s.q WHEN MATCHED THEN DELETE",
]  # fmt: skip

DUCKDB = [
    *(f"WITH x AS ({do} RETURNING *) SELECT * FROM x" for do in BOTH_WRITE[:3]),
    "SELECT * FROM (WITH x AS (DELETE FROM outputs RETURNING *) SELECT * FROM x)",
    "SELECT (WITH x AS (DELETE FROM outputs RETURNING 1 AS a) SELECT a FROM x)",
    "COPY (SELECT 1) TO '{here}/o.csv'",
    *(f"COPY (SELECT 1) TO '{{state}}/mmqjp.duckdb.{end}'" for end in ("wal", "tmp/x.csv")),
    "COPY outputs FROM '{secret}'", "EXPORT DATABASE '{here}/d'", "IMPORT DATABASE '{here}/d'",
    "ATTACH '{here}/other.duckdb' AS other", "ATTACH ':memory:' AS other", "INSTALL httpfs", "LOAD json",
    "SET memory_limit = '1MB'", "SET VARIABLE a = 1", "RESET memory_limit", "PRAGMA database_list", "CHECKPOINT",
    "CALL pragma_database_size()", "VACUUM", "USE main", "BEGIN TRANSACTION", "PREPARE p AS SELECT 1",
    "CREATE SEQUENCE s", "CREATE TEMP TABLE t AS SELECT 1 AS a", "CREATE MACRO m(a) AS a + 1",
    "CREATE SECRET s (TYPE http)", "EXPLAIN ANALYZE DELETE FROM outputs", "SHOW DATABASES",
    *(f"SELECT * FROM {read}('{{secret}}')" for read in ("read_text", "read_csv", "read_json", "sniff_csv", "glob")),
    "SELECT * FROM read_blob('{state}/mmqjp.duckdb')", "SELECT * FROM '{secret}'", "SELECT * FROM \"{secret}\"",
    "WITH \"{secret}\" AS (SELECT 1) SELECT * FROM \"{secret}\"", "SELECT * FROM query('SELECT * FROM outputs')",
    "SELECT * FROM json_execute_serialized_sql('{{}}')", "SELECT 'HOME'.getenv()",
    "SELECT list_transform(['HOME'], lambda x: getenv(x))",
    *(f"SELECT {call}" for call in ("getenv('HOME')", "current_setting('temp_directory')", "nextval('s')")),
    *(f"SELECT * FROM {call}()" for call in ("duckdb_settings", "duckdb_secrets")),
    *(f"SELECT * FROM {name}" for name in ("duckdb_databases", "pragma_database_list", "variable_of_python")),
    *(f"SELECT * FROM {name}" for name in ("pg_catalog.pg_settings", "other.main.outputs", "query_table('outputs')")),
    "SELECT write_log('x')",
    "SELECT 1 FROM duckdb_databases WHERE EXISTS (WITH duckdb_databases AS (SELECT 1) SELECT * FROM duckdb_databases)",
    "SELECT {nested}",
]  # fmt: skip

UNBOUNDED = [
    "SELECT from_json('[]', '[]')", "SELECT json_transform('[]', '[]')", "SELECT length(range(1000000000))",
    "SELECT 'a'.repeat(5)", "SELECT list_transform([1], x -> lpad('a', x, 'b'))", "SELECT printf('%1000d', 1)",
    "SELECT * FROM documents, unnest(generate_series(1, 9)) u(x)", "SELECT levenshtein('a', 'b')",
    "SELECT a" + ".a" * 20, "SELECT json_pretty('[]')",
]  # fmt: skip

REFLECTED = "('java.lang.System', 'setProperty', 'mmqjp.asked', 'yes')"
SPARK = [
    "FROM (SELECT 1 AS a) INSERT OVERWRITE DIRECTORY '{here}/keep' USING parquet SELECT a",
    "INSERT OVERWRITE DIRECTORY '{here}/keep' USING parquet SELECT 1 AS a",
    "WITH x AS (SELECT 1 AS a) INSERT OVERWRITE DIRECTORY '{here}/keep' USING parquet SELECT a FROM x",
    "FROM outputs INSERT INTO documents SELECT * INSERT INTO matches SELECT *",
    *(f"SELECT {name}{REFLECTED}" for name in ("reflect", "java_method", "try_reflect", "IDENTIFIER('reflect')")),
    "SELECT system.builtin.{reflect}", "SELECT * FROM VALUES ({reflect})", "SELECT * FROM range(int({reflect}))",
    "SELECT count(*) OVER w FROM outputs WINDOW w AS (ORDER BY {reflect})",
    "SELECT query FROM outputs ORDER BY {reflect}", "SELECT query FROM outputs LIMIT int({reflect})",
    "SELECT 1 FROM outputs o JOIN queries q ON {reflect} = name", "SELECT transform(array(1), x -> {reflect})",
    "SELECT * FROM outputs LATERAL VIEW explode(array({reflect})) t AS a",
    "SELECT count(*) FILTER (WHERE {reflect} = '1') FROM outputs",
    "SELECT query FROM outputs GROUP BY GROUPING SETS (({reflect}), (query))",
    "SELECT sum(t0) OVER (PARTITION BY {reflect}) FROM outputs",
    "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY {reflect}) FROM outputs",
    "SELECT * FROM (SELECT query, t0 FROM outputs) PIVOT (max({reflect}) FOR query IN ('pairs'))",
    "SELECT struct({reflect} AS a).a", "SELECT CASE WHEN 1 IN (SELECT {reflect}) THEN 1 END",
    "FROM outputs |> WHERE {reflect} = '1'", "SELECT * FROM text.`{secret}`",
    "SELECT (SELECT max(value) FROM text.`{secret}`)", "WITH x AS (SELECT * FROM text.`{secret}`) SELECT * FROM x",
    "SELECT * FROM IDENTIFIER('text.`{secret}`')", "SELECT * FROM parquet.`{state}/outputs`",
    "SELECT TRANSFORM (query) USING 'touch {here}/made' AS (a) FROM outputs",
    "SELECT input_file_name() FROM outputs", "SELECT _metadata.file_path FROM outputs",
    *(f"SELECT {what}" for what in ("current_user()", "current_user", "user", "from_protobuf(x'01', 'm', '{secret}')")),
    *(f"SELECT * FROM {what}" for what in ("read_files('{secret}')", "python_worker_logs()", "global_temp.a")),
    *(f"SELECT * FROM {schema}secret_of_the_catalog" for schema in ("", "default.")),
    "SELECT 1 FROM secret_of_the_catalog WHERE EXISTS (WITH secret_of_the_catalog AS (SELECT 1) SELECT * FROM "
    "secret_of_the_catalog)",
    "EXECUTE IMMEDIATE 'DELETE FROM outputs'", "DECLARE VARIABLE a INT", "RESET",
    "SET spark.sql.shuffle.partitions = 1",
    "ADD JAR '{here}/x.jar'", "CACHE TABLE outputs", "REFRESH TABLE outputs", "CREATE FUNCTION f AS 'a.B'",
    "BEGIN SELECT 1; END", "SHOW TABLES", "DESCRIBE EXTENDED outputs", "SELECT :a", "SELECT repeat('x', 2000000000)",
    "SELECT sequence(1, 1000000000)", "SELECT * FROM range(0, 10, 1, 1000)",
    "SELECT count(*) FROM range(1000000) a, range(1000000) b",
    "SELECT count(*) FROM documents d JOIN range(1000000) a ON a.id > d.t0 JOIN range(1000000) b ON b.id > d.t0",
    "SELECT (SELECT count(*) FROM range(1000000) a JOIN range(1000000) b ON a.id < b.id) AS n",
    "SELECT count(*) FROM (SELECT explode(documents) e FROM outputs) a CROSS JOIN range(1000000) b",
]  # fmt: skip

BOTH = [
    ("SELECT query, count(*) AS outputs FROM outputs GROUP BY query", 1), ("-- why\nselect 'x' AS a /* not */", 1),
    ("WITH a AS (SELECT 1 AS n), b AS (SELECT n + 1 AS n FROM a) SELECT * FROM a UNION ALL SELECT * FROM b", 2),
    ("SELECT * FROM documents", 3), ("SELECT name, text FROM queries WHERE removed_at IS NULL", 1),
    ("SELECT m.query, d.id FROM matches m JOIN documents d ON d.docid = m.docid1 ORDER BY d.id LIMIT 2", 2),
    ("SELECT * FROM r_t_0", 1),
    ("SELECT count(*) FROM r_bin b, r_doc d, r_docts t WHERE b.docid = d.docid AND d.docid = t.docid", 1),
    ("SELECT id, row_number() OVER (PARTITION BY stream ORDER BY t0 DESC) AS n FROM documents", 3),
    ("SELECT (SELECT max(t0) FROM documents) AS latest, EXISTS (SELECT 1 FROM dead_letters) AS any", 1),
    ("SELECT explode_me FROM (SELECT 1 AS explode_me) x WHERE explode_me IN (1, 2) AND explode_me BETWEEN 0 AND 2", 1),
    ("SELECT upper(id), length(xml), coalesce(NULL, 1), CASE WHEN t0 > 0 THEN 'a' ELSE 'b' END FROM documents", 3),
    ("SELECT CAST(t0 AS STRING), t0 / 2, -t0, t0 % 2, id LIKE 'd%', id || 'x', NOT t0 = 1 FROM documents", 3),
    ("SELECT query FROM outputs INTERSECT SELECT name FROM queries", 1),
    ("SELECT DISTINCT stream FROM documents ORDER BY ALL", 1),
    ("SELECT stream, count(*) FROM documents GROUP BY stream HAVING count(*) > 1", 1),
    ("SELECT batch, committed_at - taken_at AS took FROM batches", 1),
    ("SELECT * FROM (VALUES (1, 'a'), (2, 'b')) t(n, a)", 2), ("SELECT * FROM range(3)", 3),
    ("SELECT o.query FROM outputs o LEFT JOIN queries q ON o.query = q.name CROSS JOIN documents", 9),
]  # fmt: skip

DUCKDB_READS = [
    ("FROM outputs", 3), ("TABLE outputs", 3), ("DESCRIBE outputs", 10), ("SUMMARIZE outputs", 10),
    ("SELECT * FROM mmqjp.main.outputs", 3),
    ("SELECT table_name FROM information_schema.tables WHERE table_name = 'outputs'", 1),
    ("SELECT nodes::JSON->>'x', json_extract(nodes, '$.x') FROM outputs", 3),
    ("SELECT unnest(documents) FROM outputs", 6),
    ("SELECT o.query, d.id FROM outputs o, unnest(o.documents) AS d(id)", 6),
    ("SELECT key FROM outputs, json_each(nodes) LIMIT 1", 1),
    ("SELECT * EXCLUDE (xml) FROM outputs QUALIFY row_number() OVER (ORDER BY t1) = 1", 1),
    ("SELECT list_transform([1, 2], lambda x: x + 1), {{'a': 1}}.a, 'x'::BLOB, now(), random(), uuid()", 1),
    ("WITH RECURSIVE t(n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM t WHERE n < 3) SELECT * FROM t", 3),
    ("SELECT rank() OVER w FROM documents WINDOW w AS (ORDER BY t0)", 3), ("SELECT * FROM generate_series(1, 3)", 3),
]  # fmt: skip

SPARK_READS = [
    ("TABLE outputs", 3), ("SELECT explode(documents) FROM outputs", 6),
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
]  # fmt: skip


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
        secret, reflect = self.path / "secret.txt", f"reflect{REFLECTED}"
        return sql.format(here=self.path, state=self.state, secret=secret, nested=nested, reflect=reflect)

    def facts(self) -> dict[str, object]:
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
def on_spark(tmp_path_factory: pytest.TempPathFactory, spark) -> Iterator[Place]:
    spark.sql("CREATE TABLE default.secret_of_the_catalog USING parquet AS SELECT 1 AS a")
    place = Place(tmp_path_factory.mktemp("spark"), spark)
    yield place
    place.engine.close()
    spark.sql("DROP TABLE default.secret_of_the_catalog")


def test_duckdb_refuses_and_nothing_changes(on_duckdb: Place):
    variable_of_python = [{"a": 1}]  # noqa: F841
    before = on_duckdb.facts()
    for sql in BOTH_WRITE + DUCKDB:
        with pytest.raises((ValueError, duckdb.Error)) as refused:
            print(sql, on_duckdb.engine.sql(on_duckdb.filled(sql)))
        assert SECRET not in str(refused.value), sql
        assert len(on_duckdb.engine.sql("SELECT * FROM outputs")) == 3, sql
    assert on_duckdb.facts() == before
    for sql in UNBOUNDED:
        with pytest.raises(QuestionRefused, match="is not answered"):
            print(sql, on_duckdb.engine.question(sql).answer())


def test_spark_refuses_and_nothing_changes(on_spark: Place, spark):
    before = on_spark.facts()
    for sql in BOTH_WRITE + SPARK:
        with pytest.raises(QuestionRefused) as refused:
            print(sql, on_spark.engine.sql(on_spark.filled(sql)))
        assert SECRET not in str(refused.value), sql
    assert on_spark.facts() == before
    system = spark.sparkContext._jvm.java.lang.System
    assert system.getProperty("mmqjp.asked") is None


def test_duckdb_answers(on_duckdb: Place):
    for sql, rows in BOTH + DUCKDB_READS:
        assert on_duckdb.engine.sql(on_duckdb.filled(sql)).num_rows == rows, sql


@pytest.mark.soak
def test_spark_answers(on_spark: Place):
    for sql, rows in BOTH + SPARK_READS:
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


@pytest.mark.soak
def test_spark_refuses_in_its_plan_what_the_first_judge_would_let_pass(on_spark, monkeypatch):
    monkeypatch.setattr("join_stage.store.spark.question.check_spark_plan", lambda *_: None)
    for sql in (
        "SELECT {reflect}", "SELECT count(*) OVER w FROM outputs WINDOW w AS (ORDER BY {reflect})",
        "SELECT * FROM text.`{secret}`", "SELECT input_file_name() FROM outputs", "SELECT current_user",
        "SELECT * FROM default.secret_of_the_catalog",
    ):  # fmt: skip
        with pytest.raises(QuestionRefused) as refused:
            on_spark.engine.sql(on_spark.filled(sql))
        assert SECRET not in str(refused.value)


@pytest.mark.parametrize("place", ["on_duckdb", pytest.param("on_spark", marks=pytest.mark.spark)])
def test_an_answer_has_bounds_and_none_is_given_after_an_interrupt(place: str, request: pytest.FixtureRequest):
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
    question = engine.question("SELECT 1 AS a")
    question.interrupt()
    with pytest.raises(QuestionInterrupted):  # also before it began
        question.answer()


def test_a_question_is_interrupted_while_its_answer_is_read(on_duckdb: Place, monkeypatch: pytest.MonkeyPatch):
    question = on_duckdb.engine.question("SELECT a.range AS a FROM range(100000) a, range(100000)")

    def interrupted(reader: pa.RecordBatchReader, bounds: Bounds) -> pa.Table:
        reader.read_next_batch()
        question.interrupt()
        return measured(reader, bounds)

    monkeypatch.setattr(protocol, "measured", interrupted)
    with pytest.raises(QuestionInterrupted):
        question.answer()


def test_a_question_sees_whole_batches(on_duckdb: Place):
    store = on_duckdb.engine._store
    store.begin()
    TableRows(store).append("settings", [("half", "1", 99)])
    asked = "SELECT count(*) AS n FROM settings WHERE key = 'half'"
    assert on_duckdb.engine.sql(asked)["n"].to_pylist() == [0]
    assert on_duckdb.engine.sql(asked, trusted=True)["n"].to_pylist() == [1]
    store.rollback()
    assert json.dumps(on_duckdb.engine.sql(asked).to_pylist()) == '[{"n": 0}]'


ENDLESS = "SELECT count(*) AS n FROM range(1000000000000000000)"
CROSSED = "SELECT count(*) AS n FROM range(1000000) a, range(1000000) b, range(1000000) c"


def until(done: Callable[[], object], step: Callable[[], object]) -> None:
    for _ in range(60_000):
        if done():
            return
        step()
        Event().wait(0.01)
    raise AssertionError("it never came")


def test_a_question_that_heeds_nothing_is_answered_once_and_left_to_itself():
    let, clock, found = Event(), Mock(return_value=0.0), list[CommandResult]()
    question = Mock(answer=lambda: let.wait(60) and pa.table({"a": [1]}))  # whoever interrupts it
    asked = RunningQuestion(question, None, found.append, clock)
    asked.end("enough")
    asked.end("for another reason")
    clock.return_value = sql_question.GRACE - 1
    assert not asked.look() and not found
    clock.return_value = sql_question.GRACE
    assert asked.look() and [answer.error for answer in found] == ["enough"]
    let.set()
    asked._thread.join(60)
    assert len(found) == 1


def test_a_question_that_is_waited_for_goes_with_whoever_waits(place: Directory, monkeypatch: pytest.MonkeyPatch):
    with Session("duckdb", state=place.state) as engine:
        answer = answer_question(engine.question("SELECT 1 AS a, 2 AS a"), 30, lambda: 0.0)
        assert answer.result == {"columns": ["a", "a"], "rows": [[1, 2]]}
        monkeypatch.setattr(RunningQuestion, "look", lambda asked: (_ for _ in ()).throw(KeyboardInterrupt))
        monkeypatch.setattr("mmqjp.service.sql_question.POLL", 0.001)
        with pytest.raises(KeyboardInterrupt):
            answer_question(engine.question(CROSSED), 30, lambda: 0.0)
        assert engine.sql("SELECT 1 AS a")["a"].to_pylist() == [1]


@contextmanager
def asking(
    place: Directory, events: Events, most: int | None = None, clock: Callable[[], float] = lambda: 0.0
) -> Iterator[tuple[FaultySession, QuestionRunner]]:
    """An engine and its questions. Those that are still asked when a test fails are ended: an endless one would take a
    core from all tests that follow."""
    with FaultySession("duckdb", state=place.state) as engine:
        engine.subscribe(PAIRS)
        questions = QuestionRunner(engine, place.spool, events, most, clock)
        try:
            yield engine, questions
        finally:
            for asked in questions._running.values():
                asked.end("the test is over")


def test_the_service_goes_on_beside_a_question_which_ends_when_its_time_is_over(place: Directory):
    events, clock = Events(), Mock(return_value=0.0)
    with asking(place, events, 40, clock) as (opened, questions):
        commands = [place.ask(QUERY, sql=ENDLESS, seconds=seconds) for seconds in (30, None)]
        questions.step()
        place.drop("1.jsonl", range(3))
        service = place.service(opened, events)
        service._commands = CommandQueue(place.spool, skip=(QUERY,))
        service.run(None, StopAfter(10**9))
        assert opened.counters().documents == 3 and len(place.pairs()) == 3
        assert [place.spool.take_result(command) for command in commands] == [None, None]
        for asked, least in zip(commands, (30, 40), strict=True):  # which is the most of the service
            clock.return_value = least
            until(lambda asked=asked: asked.id not in questions._running, questions.step)  # type: ignore[misc]
            assert f"took more than {least} s" in str(place.answer(asked).error)
        assert not place.spool.waiting()
    assert {str(event["sql"]) for event in events.named("command")} >= {ENDLESS}


def test_a_question_goes_on_if_its_command_is_missed_once_and_ends_if_nobody_waits_for_it(place, monkeypatch):
    """A directory that changes while it is listed may give a file neither before nor after."""

    class Missing(Spool):
        def waiting_of(self, *kinds: str) -> list[Command]:
            return []

    events = Events()
    with asking(place, events) as (_, questions):
        place.spool.withdraw(place.ask(QUERY, sql=ENDLESS))
        questions.step()
        assert not questions._running
        command = place.ask(QUERY, sql=ENDLESS)
        questions.step()
        questions._spool = Missing(place.state)
        questions.step()
        with monkeypatch.context() as patched:
            patched.setattr(Missing, "is_waiting", lambda *_: False)
            questions.step()
        questions.step()
        questions.step()
        assert questions._running[command.id]._ended_at is None
        place.spool.withdraw(command)
        until(lambda: not questions._running, questions.step)
        assert place.answer(command).error == events.named("command")[-1]["error"] == sql_question.ABANDONED


def test_so_many_are_answered_at_once_and_the_others_wait(place: Directory):
    with asking(place, Events()) as (_, questions):
        commands = [place.ask(QUERY, sql=ENDLESS) for _ in range(sql_question.MAX_RUNNING)]
        last = place.ask(QUERY, sql="SELECT 1 AS a")
        questions.step()
        assert set(questions._running) == {command.id for command in commands}
        for command in commands:
            place.spool.withdraw(command)
        until(lambda: last.id not in {command.id for command in place.spool.waiting(QUERY)}, questions.step)
        assert place.answer(last).result["rows"] == [[1]]


def test_rubbish_among_questions_is_told(place: Directory):
    with asking(place, Events()) as (_, questions):
        for arguments in ({}, {"sql": 1}, {"sql": "SELECT 1", "seconds": "long"}):
            command = place.ask(QUERY, **arguments)
            until(lambda asked=command: not place.spool.waiting(QUERY), questions.step)  # type: ignore[misc]
            assert place.answer(command).error
        (place.state / "spool" / "commands" / "1-x.json").write_text("rubbish")
        questions.step()


def test_a_batch_that_runs_out_of_memory_goes_before_a_question(place: Directory):
    place.drop("1.jsonl", range(3))
    with asking(place, Events()) as (engine, questions):
        command = place.ask(QUERY, sql=ENDLESS)
        questions.step()
        join, tried = engine.store.join, list[int]()

        def short_of_memory(*arguments: Any) -> Any:
            tried.append(len(questions._running) and not next(iter(questions._running.values()))._done.is_set())
            if len(tried) == 1:
                raise OutOfMemory("a batch needs more memory than 2GB")
            return join(*arguments)

        service = place.service(engine, free_memory=questions.free_memory)
        service._commands = CommandQueue(place.spool, skip=(QUERY,))
        with engine.store.instead(join=short_of_memory):
            service.run(None, StopAfter(10**9))
            assert tried == [True, False] and len(place.pairs()) == 3
            assert place.answer(command).error == sql_question.MEMORY_NEEDED
            questions.step()
            tried.clear()
            place.drop("2.jsonl", range(3, 5))
            with pytest.raises(OutOfMemory):  # nobody asks: the batch is too large for the store
                service.run(None, StopAfter(10**9))
    place.run()
    assert len(place.pairs()) == 10


def test_a_question_that_needs_too_much_memory_is_refused_and_the_store_goes_on(place: Directory):
    with Session("duckdb", state=place.state) as engine:
        engine.subscribe(PAIRS)
        with pytest.raises(ValueError, match="more memory than there is"):
            engine.sql(f"SELECT length(string_agg(range || '{'x' * 50_000}', '')) FROM range(1000000)")
        engine.process([Document(f"d{n}", "<a>v</a>", time=n) for n in range(2)])
        assert engine.counters().outputs == 1


def test_the_command_has_limits(place: Directory):
    Session("duckdb", state=place.state).close()
    state: tuple[Any, ...] = ("--state", place.state)
    rows = mmqjp("query", "SELECT * FROM range(3)", *state, "--most-rows", "2")
    assert rows.exit_code == 1 and rows.stderr.endswith(" 2 rows: narrow it down, or raise --most-rows\n")
    size = mmqjp("query", f"SELECT '{'x' * 2000}' FROM range(3)", *state, "--most-bytes", "1000")
    assert size.exit_code == 1 and "more than 1,000 bytes" in size.stderr
    late = mmqjp("query", CROSSED, *state, "--timeout", "10ms")
    assert late.exit_code == 1 and "took more than 0.01 s" in late.stderr and late.stderr.count("\n") == 1
    assert mmqjp("query", "SELECT 1 AS a", *state, "--timeout", "INF").stdout == '{"a": 1}\n'


def test_spark_cancels_the_jobs_of_a_question(place: Directory, spark):
    with Session(spark, state=place.state) as engine:
        found: list[CommandResult] = []
        asked = RunningQuestion(engine.question(ENDLESS), None, found.append)
        tracker = spark.sparkContext.statusTracker()
        until(tracker.getActiveJobsIds, lambda: None)
        asked.end("enough")
        until(lambda: asked.wait(0), asked.look)
        assert found == [CommandResult(error="enough")]
        until(lambda: not tracker.getActiveJobsIds(), lambda: None)
        executors = spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos
        until(lambda: not sum(executor.numRunningTasks() for executor in executors()), lambda: None)
        assert engine.sql("SELECT 1 AS a").num_rows == 1


@pytest.mark.soak
def test_spark_puts_nothing_into_a_question(on_spark: Place):
    """Neither where it is judged nor where it runs: both must see the same text."""
    for name in ("env:HOME", "system:user.home", "spark.app.name", "spark:spark.app.name", "hivevar:x", "x"):
        text = f"${{{name}}}"
        assert on_spark.engine.sql(f"SELECT '{text}' AS a, 1 AS `{text}`").to_pylist() == [{"a": text, text: 1}]
        with pytest.raises(QuestionRefused, match=r"syntax error|SYNTAX"):
            on_spark.engine.sql(f"SELECT * FROM {text}")
