import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from itertools import count
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from feeds.files import EXPANDED
from feeds.tail import input_bytes
from join_stage.duckdb import DuckDBFilesReader
from join_stage.plans import JoinEngine
from join_stage.store.protocol import QuestionRefused, StoreError, StoreSchema
from join_stage.store.spark.parquet_store import GRACE, ParquetStore
from mmqjp.commands import demo
from mmqjp.commands import formats as opening
from mmqjp.commands.formats import chosen_engine
from mmqjp.engine import CoreEngine, Session
from mmqjp.state.engine_choice import MOST_FOR_DUCKDB, EngineChoice, Ownership, choose_engine
from mmqjp.tables.schema import SCHEMA
from tests.generate.seeds import at_length
from tests.generate.strategies import random_case
from tests.mmqjp.service.test_questions import Place
from tests.support.cli import mmqjp, write_documents, write_queries
from tests.support.files import write
from tests.support.stores import TABLES, as_files, parquet_store

RELATIONS = (*SCHEMA.documented, "recipients", "members", "r_t_0")
FILLED = ("documents", "queries", "matches", "outputs", "r_bin", "r_doc", "r_docts", "r_t_0")


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """A store on DuckDB, and one of files with the same rows: many small files, some of which were merged."""
    place = tmp_path_factory.mktemp("it's [a] store, x=1")
    script, documents = random_case(11, 8, 12)
    with Session("duckdb", state=place / "duckdb") as engine:
        engine.ensure(script)
        for document in documents:
            engine.process([document])
    as_files(place / "duckdb", place / "files", batches=20)
    return place / "duckdb", place / "files"


@pytest.fixture(scope="module")
def pair(stores, tmp_path_factory):
    """Both stores, open to be read. That on DuckDB is a copy: other tests open it to write."""
    copy = shutil.copytree(stores[0], tmp_path_factory.mktemp("copy") / "duckdb")
    with Session(state=copy, read_only=True) as one, Session(state=stores[1], read_only=True) as other:
        yield one, other


def settings_row(key: str, value: str = "1") -> pa.Table:
    return pa.table([[key], [value], [999]], TABLES["settings"])


def rows(engine: Session, sql: str) -> list[str]:
    return sorted(map(repr, engine.sql(sql).to_pylist()))


def test_relations_and_outputs_are_those_of_a_store_on_duckdb(pair):
    on_duckdb, files = pair
    assert isinstance(files._store, DuckDBFilesReader)
    for relation in RELATIONS:
        ours, theirs = (one.sql(f"SELECT * FROM {relation}") for one in pair)
        assert ours.schema == theirs.schema
        assert sorted(map(repr, ours.to_pylist())) == sorted(map(repr, theirs.to_pylist())), relation
        assert len(ours) or relation not in FILLED, relation
    ours, theirs = ({row["name"] for row in one.sql("SHOW TABLES").to_pylist()} for one in pair)
    assert ours - theirs == {"bound"} and theirs <= ours
    assert files.queries() == on_duckdb.queries()
    assert [o.to_line() for o in files.outputs()] == [o.to_line() for o in on_duckdb.outputs()]
    assert b"".join(o.to_line() for o in files.lines()) == b"".join(o.to_line() for o in on_duckdb.lines())


def test_only_the_files_of_the_store_can_be_reached(tmp_path, monkeypatch):
    place = Place(tmp_path, "duckdb")
    place.engine.close()
    as_files(place.state, tmp_path / "files")
    monkeypatch.setattr("join_stage.store.duckdb.check_question", lambda *_: None)
    with Session(state=tmp_path / "files", read_only=True) as engine:
        for sql in ("SELECT * FROM read_text('{secret}')", "COPY (SELECT 1) TO '{state}/x.parquet'"):
            with pytest.raises(duckdb.Error, match="disabled by configuration"):
                engine.sql(place.filled(sql))


def test_what_is_checked_is_remembered_only_as_long_as_it_counts(tmp_path):
    store = parquet_store(tmp_path)
    for number in range(40):
        store.append("settings", settings_row(str(number)))
        store.commit()
    assert len(store._whole) == len(store.files["settings"]) < 40
    store.close()


def test_a_file_that_goes_after_it_was_checked_is_told(stores, tmp_path):
    as_files(stores[0], tmp_path)
    with Session(state=tmp_path, read_only=True) as engine:
        store, ask = engine._store, "SELECT * FROM documents"
        looks = [
            lambda: engine.sql(ask),
            lambda: store.select(ask),
            lambda: store.read("documents", ["id"]),
            lambda: store.find("documents", "docid", pa.array([0])),
            lambda: store.highest("documents", "docid"),
        ]
        for look in looks:
            look()
        begun = store.question(ask)
        for path in (tmp_path / "documents").iterdir():
            path.unlink()
        for look in (*looks, begun.answer):
            with pytest.raises(StoreError, match=r"has gone: .* ask again"):
                look()


def test_sha2_gives_256_bits_or_an_error(pair):
    files = pair[1]
    (row,) = files.sql("SELECT sha2('a', 256) AS long, sha2('a', 0) AS short, sha2(NULL, 256) AS none").to_pylist()
    expected = sha256(b"a").hexdigest()
    assert row == {"long": expected, "short": expected, "none": None}
    for bits in ("512", "224", "NULL"):
        with pytest.raises(duckdb.Error, match="sha2: only 256 bits"):
            files.sql(f"SELECT sha2('a', {bits})")


def test_a_reader_keeps_its_batch_and_sees_no_files_of_a_killed_writer(stores, tmp_path):
    as_files(stores[0], tmp_path)
    with Session(state=tmp_path, read_only=True) as engine:
        before = rows(engine, "SELECT * FROM settings")
    killed = parquet_store(tmp_path)
    killed.append("settings", settings_row("half"))
    killed.write_out("settings")
    with Session(state=tmp_path, read_only=True) as engine:
        assert rows(engine, "SELECT * FROM settings") == before
        now = GRACE
        writer = parquet_store(tmp_path, lambda: now)
        for batch in range(40):  # which are merged
            writer.append("settings", settings_row(f"new {batch}"))
            writer.commit()
        assert rows(engine, "SELECT * FROM settings") == before
        with Session(state=tmp_path, read_only=True) as later:
            assert len(rows(later, "SELECT * FROM settings")) == len(before) + 40
        writer.close()


def test_columns_that_older_files_lack_are_null(tmp_path):
    new = pa.schema([("n", pa.int64()), ("texts", pa.list_(pa.string())), ("raw", pa.binary()), ("few", pa.int32())])
    old = pa.schema([new.field("n")])
    store = ParquetStore(StoreSchema({"t": old}), tmp_path)
    store.append("t", pa.table({"n": [1]}, old))
    store.commit()
    store.close()
    reader: JoinEngine = DuckDBFilesReader(StoreSchema({"t": new, "none": new}, {"v": "SELECT texts FROM t"}), tmp_path)
    assert reader.select("SELECT * FROM t").to_pylist() == [{"n": 1, "texts": None, "raw": None, "few": None}]
    assert reader.select("SELECT * FROM v").to_pylist() == [{"texts": None}]
    types = [str(row["column_type"]) for row in reader.select("DESCRIBE none").to_pylist()]
    assert types == ["BIGINT", "VARCHAR[]", "BLOB", "INTEGER"]
    reader.close()


def test_commands_that_look_need_no_spark_and_do_not_wait_for_who_writes(stores, monkeypatch):
    with Session(state=stores[0], read_only=True) as engine:
        outputs = list(engine.outputs())
    monkeypatch.setattr("mmqjp.engine.open_session", lambda *_: pytest.fail("Spark was started"))
    for told, *asked in (
        (f'"outputs": {len(outputs)},', "status", "--json"),
        (f'{{"n": {len(outputs)}}}\n', "query", "SELECT count(*) AS n FROM outputs"),
        (f"\n{outputs[0].query},", "matches", "--format", "csv"),
    ):
        owner = Ownership(stores[1])
        result = mmqjp(*asked, "--state", stores[1], "--wait", "0")
        owner.release()
        assert result.exit_code == 0 and told in result.stdout, (result.stdout, result.stderr)


def test_spark_is_refused_for_a_store_on_duckdb_unless_a_configuration_says_so(stores, tmp_path):
    asked = ["query", "SELECT 1 AS a", "--state", str(stores[0])]
    (tmp_path / "mmqjp.toml").write_text('engine = "spark"\n')
    assert mmqjp("--config", tmp_path / "mmqjp.toml", *asked).stdout == '{"a": 1}\n'
    refused = mmqjp(*asked, "--engine", "spark")
    assert refused.exit_code == 1 and "is on duckdb and takes DuckDB" in refused.stderr


@pytest.mark.spark
def test_spark_and_duckdb_give_the_same_rows(spark, stores, tmp_path):
    state = shutil.copytree(stores[1], tmp_path / "state")
    killed = parquet_store(state)
    killed.append("settings", settings_row("half"))
    killed.write_out("settings")
    with Session(spark, state=state, read_only=True) as by_spark, Session(state=state, read_only=True) as by_duckdb:
        for relation in RELATIONS if at_length() else ("queries", "matches", "r_doc", "dead_letters", "members"):
            sql = f"SELECT * FROM {relation}"
            assert rows(by_spark, sql) == rows(by_duckdb, sql), relation
        with pytest.raises(QuestionRefused):
            by_duckdb.sql("SELECT explode(documents) FROM outputs")
        with pytest.raises(StoreError, match="read only"):
            by_spark.pause(next(iter(by_spark.queries())))
    asked = ["query", "SELECT explode(array(1, 2)) AS n", "--state", str(state)]
    assert mmqjp(*asked, "--engine", "spark").stdout == '{"n": 1}\n{"n": 2}\n'
    assert mmqjp(*asked).exit_code == 1


SUBMIT = {"PYSPARK_GATEWAY_PORT": "12345"}
MANY = MOST_FOR_DUCKDB + 1


@pytest.mark.parametrize(
    ("given", "engine"),
    [
        ({}, "duckdb"),
        ({"documents": MOST_FOR_DUCKDB}, "duckdb"),
        ({"documents": MANY}, "spark"),
        ({"asked_by": "--master"}, "spark"),
        ({"environ": SUBMIT}, "spark"),
        ({"session_runs": lambda: True}, "spark"),
        ({"state": "none"}, "duckdb"),
        *(({"state": name, **more}, name) for name in ("duckdb", "spark") for more in ({}, {"documents": MANY})),
        *(({"state": name, "asked_by": "--master"}, name) for name in ("duckdb", "spark")),
    ],
)
def test_the_engine_is_that_of_the_state_or_spark_where_it_is_at_hand_or_needed(given, engine, tmp_path):
    (tmp_path / "spark" / "manifests").mkdir(parents=True)
    Session("duckdb", state=tmp_path / "duckdb").close()
    given = {"environ": {}, "session_runs": lambda: False} | given
    given |= {"state": tmp_path / given["state"]} if "state" in given else {}
    assert choose_engine(**given).engine == engine
    assert "state" in given or choose_engine("duckdb", **given).engine == "duckdb"


def test_why_is_told_unless_the_engine_was_asked_for_and_a_library_takes_auto(tmp_path, monkeypatch):
    assert choose_engine("spark") == EngineChoice("spark")
    assert choose_engine(environ=SUBMIT).why == "spark-submit started this process"
    monkeypatch.setattr("mmqjp.engine.choose_engine", lambda name, *_: EngineChoice({"auto": "duckdb"}[name]))
    with CoreEngine(state=tmp_path / "state"):
        assert (tmp_path / "state" / "mmqjp.duckdb").exists()


def test_input_counts_compressed_files_several_times_and_only_what_is_read(tmp_path):
    some, feeds = tmp_path / "some", tmp_path / "feeds"
    for name, content in (
        ("some/a/x.xml", "x" * 10), ("some/a/y.jsonl.gz", "xxx"), ("some/z.part", "x" * 99), ("some/.hidden", "x" * 99),
        ("feeds/a.xml", "<rss/>"), ("feeds/a.json", '{"url": "http://a.example/"}'), ("feeds/b.rss", "<rss></rss>"),
        ("feeds/photo.jpg", "x" * 999),
    ):  # fmt: skip
        write(tmp_path / name, content)
    assert input_bytes([some], 1000, feeds=False) == 10 + 3 * EXPANDED
    assert input_bytes([some / "a/x.xml", some / "a", some / "gone"], 1000, feeds=False) == 20 + 3 * EXPANDED
    assert input_bytes([some], 5, feeds=False) > 5
    assert [input_bytes([feeds], 10_000, feeds=as_feeds) for as_feeds in (True, False)] == [17, 6]


def test_run_says_on_a_terminal_which_engine_it_takes(tmp_path, monkeypatch, capsys):
    path = write_documents(tmp_path / "d.jsonl")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert chosen_engine("duckdb", paths=[path]) == EngineChoice("duckdb")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(
        opening, "choose_engine", lambda *given: choose_engine(*given, environ={}, session_runs=lambda: False)
    )
    chosen_engine("auto", paths=[path])
    assert capsys.readouterr().err == "mmqjp: on duckdb: 256 MiB of documents or less\n"


def test_a_store_on_duckdb_is_refused_before_spark_starts(tmp_path, monkeypatch):
    state = tmp_path / "state"
    Session("duckdb", state=state).close()
    monkeypatch.setattr("mmqjp.engine.open_session", lambda *given: pytest.fail("Spark was started"))
    run = "run", "--queries", write_queries(tmp_path), "--documents", write_documents(tmp_path / "d.jsonl")
    for option, status, said in (
        (("--engine", "spark"), 1, f"{state} holds a store of the engine duckdb: use that engine or another directory"),
        (("--master", "local[1]"), 2, f"the engine is duckdb (the store in {state} is on it)"),
    ):
        result = mmqjp(*run, "--state", state, *option)
        assert result.exit_code == status and said in result.stderr


@pytest.mark.soak
@pytest.mark.spark
def test_the_demo_gives_the_same_on_both(spark):
    result = mmqjp("demo", "--both")
    assert result.exit_code == 0, result.stderr
    (count,) = re.findall(r"^(\d+) matches on duckdb in", result.stdout, re.MULTILINE)
    assert int(count) > 5
    assert f"The same {count} matches on spark in" in result.stdout


def test_the_demo_fails_if_the_engines_differ(monkeypatch):
    real, runs = demo.example_run, count()

    @contextmanager
    def answered(engine: str, *given: Any) -> Iterator[demo.DemoRun]:
        with real("duckdb", *given) as found:
            yield replace(found, lines=found.lines[next(runs) :])

    monkeypatch.setattr(demo, "example_run", answered)
    result = mmqjp("demo", "--both")
    assert (result.exit_code, "spark gives different lines" in result.stderr) == (1, True)
