from __future__ import annotations

import re
from contextlib import closing
from datetime import date
from itertools import count as count_up
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feeds.documents import Document
from join_stage.protocol import FLAT_STORE
from join_stage.store.protocol import StoreError
from join_stage.store.spark import manifests
from join_stage.store.spark import parquet_store as store_module
from join_stage.store.spark.parquet_store import GRACE, MERGE, ParquetStore, _Reader, local_frame, table_source
from mmqjp.engine import Session
from mmqjp.spark.source import attach
from mmqjp.tables.schema import SCHEMA
from tests.generate.seeds import at_length
from tests.support.feed_server import Hours
from tests.support.places import ROOT
from tests.support.stores import TABLES, parquet_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def settings(*batches: int) -> pa.Table:
    rows = [{"key": "k", "value": str(b), "batch": b} for b in batches]
    return pa.Table.from_pylist(rows, schema=TABLES["settings"])


def commit(store: ParquetStore, *batches: int) -> None:
    for batch in batches:
        store.append("settings", settings(batch))
        store.commit()


def kept(store: ParquetStore) -> list[int]:
    return sorted(row["batch"] for row in store.read("settings").to_pylist())


def on_disk(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("module", "step", "error"),
    [
        (manifests, "write_manifest", KeyboardInterrupt),  # stands for the end of the process
        (manifests, "sync_directory", KeyboardInterrupt),
        (manifests, "sync_file", OSError),
    ],
)
def test_a_commit_that_fails_leaves_nothing(
    module: ModuleType, step: str, error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: object) -> None:
        raise error

    store = parquet_store(tmp_path)
    commit(store, 1)
    with monkeypatch.context() as patch:
        patch.setattr(module, step, fail)
        with pytest.raises(error):
            commit(store, 2)
    if error is OSError:  # the disk was full
        store.rollback()
        assert kept(store) == [1]
        commit(store, 3)
        assert kept(store) == [1, 3]
    before = on_disk(tmp_path)
    store.close()
    with closing(parquet_store(tmp_path)) as again:
        assert kept(again) == ([1, 3] if error is OSError else [1])
        assert error is OSError or len(before - on_disk(tmp_path)) == 1, "the orphan is gone"
        commit(again, 4)
    with closing(parquet_store(tmp_path)) as again:
        assert kept(again)[-1] == 4


def test_a_draft_of_a_manifest_does_not_count_and_one_that_cannot_be_read_is_named(tmp_path: Path):
    manifest_files = tmp_path / "manifests"
    with closing(parquet_store(tmp_path)) as store:
        commit(store, 1)
    for draft in ("2.tmp", ".2.json.4711.draft"):  # of an older version, and of this one
        (manifest_files / draft).write_text('{"format": 1, "tab')
    with closing(parquet_store(tmp_path)) as again:
        assert kept(again) == [1] and [path.name for path in manifest_files.iterdir()] == ["1.json"]
    for text in ("", "[]", '{"format": 2, "tables": {}}', '{"format": 1, "tables": {"settings": [1]}}'):
        (manifest_files / "4.json").write_text(text)
        for _ in range(2):  # the store is not left locked
            with pytest.raises(StoreError, match=r"4\.json"):
                parquet_store(tmp_path)


def test_a_missing_file_is_named(tmp_path: Path):
    with closing(parquet_store(tmp_path / "store")) as store:
        commit(store, 1)
    (lost,) = (tmp_path / "store" / "settings").iterdir()
    lost.unlink()
    (tmp_path / "state").write_text("")
    for directory, named in (("store", lost.name), ("state", "state")):
        with pytest.raises(StoreError, match=named):
            parquet_store(tmp_path / directory)


def test_a_temporary_store_goes_when_it_is_closed():
    store = parquet_store(None)
    commit(store, 1)
    assert on_disk(store.directory)
    store.close()
    assert not store.directory.exists()


def test_many_small_files_are_merged_and_none_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(store_module, "MERGE", few := 4)
    clock, batches = Hours(0), few * few + 3
    with closing(parquet_store(tmp_path, clock.now)) as store:
        for batch in range(batches):
            commit(store, batch)
            clock.time += GRACE // 4
            assert len(on_disk(tmp_path)) < 6 * few, "superseded files go when their time has come"
        assert len(store.files["settings"]) < 2 * few
        assert {file.level for file in store.files["settings"]} == {0, 2}
        assert kept(store) == list(range(batches))
    with closing(parquet_store(tmp_path, clock.now)) as again:
        assert kept(again) == list(range(batches))
        clock.time += GRACE
        commit(again, batches)
        assert len(on_disk(tmp_path)) < 3 * few, "merged files are gone"


def test_superseded_files_stay_for_those_who_have_planned_to_read_them(tmp_path: Path):
    clock, reader = Hours(0), _Reader(tmp_path, "settings", FLAT_STORE | SCHEMA)
    with closing(parquet_store(tmp_path, clock.now)) as store:
        commit(store, *range(MERGE - 1))
        planned, files = reader.partitions(), store.paths("settings")
        commit(store, *range(MERGE - 1, 3 * MERGE))
        assert not set(files) & set(store.paths("settings"))
    with closing(parquet_store(tmp_path, clock.now)):
        found = [batch for partition in planned for batch in reader.read(partition)]
        assert sum(map(len, found)) == MERGE - 1, "also after a restart"
        (tmp_path / "settings" / "99-9.parquet").touch()
        clock.time = GRACE
    with closing(parquet_store(tmp_path, clock.now)) as store:
        with pytest.raises(FileNotFoundError):  # time goes on between restarts
            list(reader.read(planned[0]))
        commit(store, 0)
    assert not (tmp_path / "settings" / "99-9.parquet").exists(), "a file without a manifest goes at once"


def add_documents(store: ParquetStore, *starts: int) -> None:
    rows = [{"docid": t, "timestamp": t, "t0": t, "t1": t} for t in starts]
    store.append("r_docts", pa.Table.from_pylist(rows, schema=TABLES["r_docts"]))
    store.commit()


def test_files_of_documents_before_a_time_are_dropped_with_the_batch(tmp_path: Path):
    with closing(parquet_store(tmp_path)) as store:
        for starts in ((5, 9), (7, 20), (30,)):
            add_documents(store, *starts)
        for end in (store.rollback, store.commit):
            assert store.read("r_docts")["t0"].to_pylist() == [5, 9, 7, 20, 30]
            store.drop_dated(10)
            assert store.read("r_docts")["t0"].to_pylist() == [7, 20, 30]
            end()
    with closing(parquet_store(tmp_path)) as again:
        assert again.read("r_docts")["t0"].to_pylist() == [7, 20, 30]
        # Merged state goes when all of it is old.
        add_documents(again, *range(31, 40))
        for start in range(40, 37 + MERGE):
            add_documents(again, start)
        (file,) = again.files["r_docts"]
        assert file.first == 7 and file.last is not None
        again.drop_dated(file.last)
        assert again.has_rows("r_docts")
        again.drop_dated(file.last + 1)
        assert not again.has_rows("r_docts")


@pytest.mark.soak
def test_no_row_after_an_empty_chunk_is_lost(spark: SparkSession):
    empty = settings()
    rows = pa.concat_tables([empty, empty, settings(1), empty, empty, settings(2, 3)])
    assert local_frame(spark, rows).count() == 3


def test_a_changed_byte_is_noticed_in_the_part_that_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(manifests, "GROUP_BYTES", 4_000)
    monkeypatch.setattr(manifests, "LEAST_ROWS", 4)
    in_parts = parquet_store(tmp_path)  # of a few rows
    rows = [{"docid": n, "id": str(n), "xml": f"<a>{n:0390}</a>", "t0": n} for n in range(100)]
    in_parts.append("documents", pa.Table.from_pylist(rows, schema=TABLES["documents"]))
    in_parts.commit()
    in_parts.close()
    (path,) = (tmp_path / "documents").iterdir()
    group = pq.read_metadata(path).row_group(2)
    at = group.column(group.num_columns - 1).data_page_offset - 20
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    store = parquet_store(tmp_path)
    assert len(store.find("documents", "docid", pa.array([0, 99]))) == 2, "which are elsewhere"
    with pytest.raises(StoreError, match=r"the store is damaged: .*restore an older copy"):
        store.find("documents", "docid", pa.array(range(100)))


# ---------------------------------------------------------------- the tables, as sources of Spark


@pytest.fixture
def reader(spark: SparkSession) -> SparkSession:
    return spark.newSession()


PAIRS = "FROM S//a->x[./b->y] FOLLOWED BY {y = z, 1 h} S//a->w[./b->z] PUBLISH pairs"


def doc(number: int, text: str = "v") -> Document:
    return Document(f"d{number}", f"<a><b>{text}</b></a>", "S", number * 1_000_000)


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
