"""A store of Spark is read by DuckDB, without Java: the same relations and rows, beside whoever writes it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
import pytest

from join_stage.duckdb_files import DuckDBFilesReader
from join_stage.protocol import JoinEngine
from join_stage.store.protocol import Outdated, QuestionRefused, StoreError, StoreSchema
from join_stage.store.spark.parquet_store import GRACE, ParquetStore
from mmqjp.engine import CoreEngine, Session
from mmqjp.state.choice import Ownership
from mmqjp.tables.schema import SCHEMA
from tests.generate.seeds import seeds
from tests.generate.strategies import random_case
from tests.mmqjp.service.test_questions import BOTH, BOTH_WRITE, DUCKDB, DUCKDB_READS, SECRET, Place
from tests.support.cli import mmqjp
from tests.support.damage import damaged
from tests.support.stores import TABLES, as_files, parquet_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RELATIONS = (*SCHEMA.documented, "recipients", "members", "r_t_0")


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
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
def pair(stores: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Session, Session]]:
    """Both stores, open to be read. That on DuckDB is a copy: other tests open it to write."""
    copy = shutil.copytree(stores[0], tmp_path_factory.mktemp("copy") / "duckdb")
    with Session(state=copy, read_only=True) as one, Session(state=stores[1], read_only=True) as other:
        yield one, other


def settings_row(key: str, value: str = "1") -> pa.Table:
    return pa.table([[key], [value], [999]], TABLES["settings"])


def rows(engine: Session, sql: str) -> list[str]:
    return sorted(map(repr, engine.sql(sql).to_pylist()))


@pytest.mark.parametrize("relation", RELATIONS)
def test_relations_have_the_columns_types_and_rows_of_a_store_on_duckdb(pair: tuple[Session, Session], relation: str):
    on_duckdb, files = pair
    assert isinstance(files._store, DuckDBFilesReader)
    assert files.sql(f"DESCRIBE {relation}") == on_duckdb.sql(f"DESCRIBE {relation}")
    assert rows(files, f"SELECT * FROM {relation}") == rows(on_duckdb, f"SELECT * FROM {relation}")


def test_there_are_rows_to_compare(pair: tuple[Session, Session]):
    for relation in ("documents", "queries", "matches", "outputs", "r_bin", "r_doc", "r_docts", "r_t_0"):
        assert rows(pair[1], f"SELECT * FROM {relation}"), relation


def test_all_relations_are_shown(pair: tuple[Session, Session]):
    on_duckdb, files = ({row["name"] for row in one.sql("SHOW TABLES").to_pylist()} for one in pair)
    assert on_duckdb - files == {"bound"} and files <= on_duckdb


def test_outputs_queries_and_lines_are_those_of_duckdb(pair: tuple[Session, Session]):
    on_duckdb, files = pair
    assert files.queries() == on_duckdb.queries()
    assert [o.to_line() for o in files.outputs()] == [o.to_line() for o in on_duckdb.outputs()]
    assert b"".join(o.to_line() for o in files.lines()) == b"".join(o.to_line() for o in on_duckdb.lines())


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A store of files with secrets beside it, open to be read."""
    place = Place(tmp_path_factory.mktemp("files"), "duckdb")
    place.engine.close()
    as_files(place.state, place.path / "copy")
    place.state = place.path / "copy"
    with Session(state=place.state, read_only=True) as place.engine:
        yield place


@pytest.mark.parametrize("sql", BOTH_WRITE + DUCKDB)
def test_what_duckdb_refuses_is_refused(place: Place, sql: str):
    variable_of_python = [{"a": 1}]  # noqa: F841  # which DuckDB must not find
    before = place.facts()
    with pytest.raises((ValueError, duckdb.Error)) as refused:
        place.engine.sql(place.filled(sql))
    assert SECRET not in str(refused.value) and place.facts() == before


@pytest.mark.parametrize(("sql", "number"), BOTH + DUCKDB_READS)
def test_what_duckdb_answers_is_answered(place: Place, sql: str, number: int):
    assert place.engine.sql(place.filled(sql)).num_rows == number


def test_only_the_files_of_the_store_can_be_reached(place: Place, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("join_stage.store.duckdb.check_question", lambda *_: None)
    for sql in ("SELECT * FROM read_text('{secret}')", "COPY (SELECT 1) TO '{state}/x.parquet'"):
        with pytest.raises(duckdb.Error, match="disabled by configuration"):
            place.engine.sql(place.filled(sql))


def test_damage_is_told_when_a_damaged_table_is_read(stores: tuple[Path, Path], tmp_path: Path):
    with Session(state=stores[1], read_only=True) as engine:
        sound = {relation: rows(engine, f"SELECT * FROM {relation}") for relation in RELATIONS}
    told, words = 0, ""
    for seed in seeds(12, 200):
        what = damaged(Random(seed), stores[1], tmp_path / "copy", lambda path: path.suffix in (".parquet", ".json"))
        try:
            with Session(state=tmp_path / "copy", read_only=True) as engine:
                for relation, expected in sound.items():
                    assert rows(engine, f"SELECT * FROM {relation}") == expected, (what, relation)
        except StoreError as error:
            told += 1
            words += str(error)
    assert told > 2 and words.count("the store is damaged") == told


def test_a_file_that_has_gone_is_told(stores: tuple[Path, Path], tmp_path: Path):
    as_files(stores[0], tmp_path)
    with Session(state=tmp_path, read_only=True) as engine:
        for path in (tmp_path / "documents").iterdir():
            path.unlink()
        with pytest.raises(StoreError, match=r"has gone: .* ask again"):
            engine.sql("SELECT * FROM documents")
        assert engine.sql("SELECT count(*) AS n FROM queries")["n"].to_pylist() == [8]


def test_a_file_that_goes_after_it_was_checked_is_told(stores: tuple[Path, Path], tmp_path: Path):
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


def test_sha2_gives_256_bits_or_an_error(pair: tuple[Session, Session]):
    files = pair[1]
    (row,) = files.sql("SELECT sha2('a', 256) AS long, sha2('a', 0) AS short, sha2(NULL, 256) AS none").to_pylist()
    expected = sha256(b"a").hexdigest()
    assert row == {"long": expected, "short": expected, "none": None}
    for bits in ("512", "224", "NULL"):
        with pytest.raises(duckdb.Error, match="sha2: only 256 bits"):
            files.sql(f"SELECT sha2('a', {bits})")


def test_who_reads_keeps_the_batch_that_it_has_opened(stores: tuple[Path, Path], tmp_path: Path):
    as_files(stores[0], tmp_path)
    with Session(state=tmp_path, read_only=True) as engine:
        before = rows(engine, "SELECT * FROM settings")
        now = GRACE
        writer = parquet_store(tmp_path, lambda: now)
        for batch in range(40):  # which are merged
            writer.append("settings", settings_row(f"new {batch}"))
            writer.commit()
        assert rows(engine, "SELECT * FROM settings") == before
        with Session(state=tmp_path, read_only=True) as later:
            assert len(rows(later, "SELECT * FROM settings")) == len(before) + 40
        writer.close()


def test_files_that_a_killed_writer_left_are_not_seen(stores: tuple[Path, Path], tmp_path: Path):
    as_files(stores[0], tmp_path)
    with Session(state=tmp_path, read_only=True) as engine:
        before = rows(engine, "SELECT * FROM settings")
    killed = parquet_store(tmp_path)
    killed.append("settings", settings_row("half"))
    killed.write_out("settings")
    with Session(state=tmp_path, read_only=True) as engine:
        assert rows(engine, "SELECT * FROM settings") == before


def test_columns_that_older_files_lack_are_null(tmp_path: Path):
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


def test_a_store_of_an_older_format_is_told(stores: tuple[Path, Path], tmp_path: Path):
    as_files(stores[0], tmp_path)
    store = parquet_store(tmp_path)
    store.append("settings", settings_row("schema_version", "5"))
    store.commit()
    store.close()
    with pytest.raises(Outdated):
        CoreEngine(state=tmp_path, read_only=True)


LOOKS = [
    (["status", "--json"], '"outputs": {outputs},'),
    (["query", "SELECT count(*) AS n FROM outputs"], '{{"n": {outputs}}}\n'),
    pytest.param(["list", "--json"], '"queries": 1', marks=pytest.mark.soak),
    pytest.param(["list", "{name}"], "{name}: active, since", marks=pytest.mark.soak),
    pytest.param(["matches", "--format", "csv"], "\n{name},", marks=pytest.mark.soak),
]


@pytest.mark.parametrize(("arguments", "told"), LOOKS)
def test_commands_that_look_need_no_spark_and_do_not_wait_for_who_writes(
    stores: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, arguments: list[str], told: str
):
    with Session(state=stores[0], read_only=True) as engine:
        outputs = list(engine.outputs())
    known = {"outputs": len(outputs), "name": outputs[0].query}
    asked = [argument.format(**known) for argument in arguments]
    monkeypatch.setattr("mmqjp.engine.open_session", lambda *_: pytest.fail("Spark was started"))
    for held in (False, True):
        owner = Ownership(stores[1]) if held else None
        result = mmqjp(*asked, "--state", stores[1], "--wait", "0")
        if owner is not None:
            owner.release()
        assert result.exit_code == 0 and told.format(**known) in result.stdout, (result.stdout, result.stderr)


def test_a_look_does_not_load_spark(stores: tuple[Path, Path]):
    program = "import sys; from mmqjp.engine import Session; Session(state=sys.argv[1], read_only=True).close(); "
    program += "print('pyspark' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program, stores[1]], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_spark_is_refused_for_a_store_on_duckdb_unless_a_configuration_says_so(
    stores: tuple[Path, Path], tmp_path: Path
):
    asked = ["query", "SELECT 1 AS a", "--state", str(stores[0])]
    (tmp_path / "mmqjp.toml").write_text('engine = "spark"\n')
    assert mmqjp("--config", tmp_path / "mmqjp.toml", *asked).stdout == '{"a": 1}\n'
    refused = mmqjp(*asked, "--engine", "spark")
    assert refused.exit_code == 1 and "is on duckdb, whose SQL it takes" in refused.stderr


@pytest.mark.spark
def test_spark_and_duckdb_give_the_same_rows(spark: SparkSession, tmp_path: Path):
    script, documents = random_case(5, 8, 24)
    with Session(spark, state=tmp_path, lateness=3_000_000) as engine:
        engine.ensure(script)
        for document in documents:  # so many batches that files are merged
            engine.process([document])
        engine.prune(5_000_000)  # which drops documents, and evicts join state
    killed = parquet_store(tmp_path)
    killed.append("settings", settings_row("half"))
    killed.write_out("settings")
    with (
        Session(spark, state=tmp_path, read_only=True) as by_spark,
        Session(state=tmp_path, read_only=True) as by_duckdb,
    ):
        for relation in RELATIONS:
            sql = f"SELECT * FROM {relation}"
            assert rows(by_spark, sql) == rows(by_duckdb, sql), relation
        with pytest.raises(QuestionRefused):
            by_duckdb.sql("SELECT explode(documents) FROM outputs")
        with pytest.raises(StoreError, match="read only"):
            by_spark.pause(next(iter(by_spark.queries())))
    asked = ["query", "SELECT explode(array(1, 2)) AS n", "--state", str(tmp_path)]
    assert mmqjp(*asked, "--engine", "spark").stdout == '{"n": 1}\n{"n": 2}\n'
    assert mmqjp(*asked).exit_code == 1
