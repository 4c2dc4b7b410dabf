"""Whatever is done to any file of a store, its outputs are those of a whole one, or the damage is told."""

import shutil
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from common.files import read_mark, write_mark
from feeds.documents import Document
from join_stage.signature import disk, join
from join_stage.spark import tasks
from join_stage.store.duckdb import CommitMark
from join_stage.store.protocol import COMMITTED, DUCKDB_FILE, RUNS, SPARK_MANIFESTS, StoreError
from mmqjp.engine import Session
from mmqjp.state.engine_choice import OWNER_FILE, stored_engine
from tests.generate.documents import SECOND
from tests.generate.seeds import seeds
from tests.support.cli import mmqjp
from tests.support.damage import damaged, lost_or_swapped
from tests.support.in_turn import in_turn
from tests.support.stores import as_files, parquet_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUERIES = """S//a[./x->v] FOLLOWED BY {v = w, 10} S//a[./x->w] PUBLISH p;
S//a[./x->v][./y->r] FOLLOWED BY {v = w AND r = s, 30} S//b[./x->w][./y->s] PUBLISH q;
S//a[./x->v] JOIN {lower-case(v) = w, INF} S//b[./x->w] PUBLISH c"""

BATCHES, BEFORE, SIZE = 5, 3, 12
"""Batches of SIZE documents; BEFORE of them are processed before the damage."""


@pytest.fixture(scope="module", autouse=True)
def small():
    """All postings of a batch are written, and merged a few at a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(join, "MOST_IN_MEMORY", 0)
        patch.setattr(disk, "PIECE", 16)
        yield


def batch(number: int) -> list[Document]:
    rng, documents = Random(number), []
    for place in range(number * SIZE, number * SIZE + SIZE):
        tag, value = rng.choice("ab"), f"<x>{rng.choice('vwVW')}{rng.randrange(4)}</x><y>{rng.randrange(3)}</y>"
        documents.append(Document(f"d{place}", f"<r><{tag}>{value}</{tag}></r>", "S", place * SECOND))
    return documents


Found = list[tuple[Any, ...]]


def went_on(state: Path) -> Found:
    """All outputs of a store that goes on with the rest of the batches."""
    with Session("duckdb", state=state) as engine:
        for number in range(BEFORE, BATCHES):
            engine.process(batch(number))
        return [(o.seq, o.query, o.documents, o.xml) for o in engine.outputs()]


class Whole(NamedTuple):
    place: Path
    """With a store that was `closed`, and one as a kill leaves it, `killed`."""

    right: Found


@pytest.fixture(scope="module")
def whole(small, tmp_path_factory) -> Whole:
    place = tmp_path_factory.mktemp("whole")
    with Session("duckdb", state=place / "closed") as engine:
        engine.subscribe(QUERIES)
        for number in range(BEFORE):
            engine.process(batch(number))
        shutil.copytree(place / "closed", place / "killed")
    right = went_on(shutil.copytree(place / "closed", place / "right"))
    assert len(right) > 30
    return Whole(place, right)


@pytest.mark.parametrize("seed", seeds(3, 400))
def test_damaged_postings_give_the_same_outputs(seed, whole, tmp_path):
    how = damaged(Random(seed), whole.place / "closed", tmp_path / "copy", lambda path: path.parent.name == RUNS)
    assert went_on(tmp_path / "copy") == whole.right, how


@pytest.mark.parametrize("seed", seeds(4, 600))
def test_any_damage_is_told_or_does_not_matter(seed, whole, tmp_path):
    rng = Random(seed)
    how = rng.choice([damaged, lost_or_swapped])(rng, whole.place / rng.choice(["closed", "killed"]), tmp_path / "copy")
    found, error = None, ""
    try:
        found = went_on(tmp_path / "copy")
    except StoreError as told:
        error = str(told)
    assert found == whole.right or (found is None and "\n" not in error and len(error) > 20), f"{how}: {error}"


def test_rebuilding_is_told_once_and_counted(whole, tmp_path, caplog):
    state = shutil.copytree(whole.place / "closed", tmp_path / "copy")
    for path in (state / RUNS).iterdir():
        content = path.read_bytes()
        path.write_bytes(content[:100] + bytes([content[100] ^ 1]) + content[101:])
    for _ in range(2):
        assert went_on(state) == whole.right
    (told,) = [record.getMessage() for record in caplog.records if "rebuilt" in record.getMessage()]
    assert f"{state / RUNS}" in told and "is damaged between bytes 0 and 1,0" in told
    with Session(state=state, read_only=True) as engine:
        assert engine.times_rebuilt() == 1
    assert "rebuilt        postings that were damaged, 1 time\n" in mmqjp("status", "--state", state).stdout


@pytest.mark.parametrize("left", [RUNS, COMMITTED, f"{DUCKDB_FILE}.wal"])
def test_parts_of_a_store_are_no_new_store(left, whole, tmp_path):
    state = tmp_path / "copy"
    shutil.copytree(whole.place / "killed", state)
    for path in state.iterdir():
        if path.name not in (left, OWNER_FILE):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for opens in (went_on, stored_engine, parquet_store, lambda state: Session(state=state, read_only=True)):
        with pytest.raises(StoreError, match=f"has lost its data: {left} is there"):
            opens(state)


@pytest.mark.parametrize(("harm", "read_only"), in_turn(["gone", "cut", "damaged"], [True, False]))
def test_a_log_that_lost_commits_is_told(harm, read_only, whole, tmp_path):
    shutil.copytree(whole.place / "killed", tmp_path / "copy")
    log = tmp_path / "copy" / f"{DUCKDB_FILE}.wal"
    content = log.read_bytes()
    if harm == "gone":
        log.unlink()
    else:
        log.write_bytes(content[:-1] if harm == "cut" else content[:-9] + b"?" + content[-8:])
    for _ in range(2):
        with pytest.raises(StoreError, match=f"lost commits: {log.name} has .* is {harm}; put it back as it was"):
            Session("auto" if read_only else "duckdb", state=tmp_path / "copy", read_only=read_only)


def test_a_file_that_is_older_than_its_mark_is_told(whole, tmp_path):
    shutil.copytree(whole.place / "closed", tmp_path / "copy")
    went_on(tmp_path / "copy")
    shutil.copy(whole.place / "closed" / DUCKDB_FILE, tmp_path / "copy" / DUCKDB_FILE)
    with pytest.raises(StoreError, match=f"{DUCKDB_FILE} is older than what was committed"):
        went_on(tmp_path / "copy")


def test_a_mark_may_lag_behind_its_store(whole, tmp_path, monkeypatch):
    """As after a kill between a commit and its mark, or a power failure."""
    state = tmp_path / "copy"
    shutil.copytree(whole.place / "closed", state)
    with monkeypatch.context() as patch:
        patch.setattr(CommitMark, "note", lambda mark: None)
        assert went_on(state) == whole.right
    for content in (None, b"", b"\0" * 80):
        (state / COMMITTED).unlink() if content is None else (state / COMMITTED).write_bytes(content)
        assert read_mark(state / COMMITTED) is None
        Session("duckdb", state=state).close()
        assert read_mark(state / COMMITTED) is not None
    (state / COMMITTED).write_bytes(b"1 2 3 4\n")
    with pytest.raises(StoreError, match=f"{COMMITTED}, which tells whether .* is not what was written"):
        Session("duckdb", state=state)


def test_manifests_that_are_gone_or_swapped_are_told(whole, tmp_path):
    state, names = tmp_path / "files", tmp_path / "files" / SPARK_MANIFESTS
    as_files(whole.place / "right", state, batches=3)
    shutil.copytree(state, tmp_path / "kept")
    newest = max(names.glob("*.json"), key=lambda path: int(path.stem))
    older = min(names.glob("*.json"), key=lambda path: int(path.stem))
    newest.unlink()
    for _ in range(2):
        for opens in (parquet_store, lambda state: Session(state=state, read_only=True)):
            with pytest.raises(
                StoreError, match=f"lost commits: its manifest {newest.name} is gone, and the newest one"
            ):
                opens(state)
    shutil.copy(older, newest)
    with pytest.raises(StoreError, match=f"{newest.name} is not what was written"):
        parquet_store(state)
    for path in names.iterdir():
        path.unlink()
    with pytest.raises(StoreError, match="the newest one is gone, too"):
        parquet_store(state)
    names.rmdir()
    with pytest.raises(StoreError, match=f"has lost its data: {COMMITTED} is there"):
        parquet_store(state)
    write_mark(tmp_path / "kept" / COMMITTED, 1)
    parquet_store(tmp_path / "kept").close()


# ---------------------------------------------------------------- on Spark


def went_on_spark(spark: "SparkSession", state: Path) -> Found:
    with Session(spark, state=state) as engine:
        for number in range(BEFORE, BATCHES):
            engine.process(batch(number))
        return sorted((o.query, o.documents, o.xml) for o in engine.outputs())


@pytest.fixture(scope="module")
def whole_on_spark(small: None, spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Path:
    state = tmp_path_factory.mktemp("spark") / "state"
    with Session(spark, state=state) as engine:
        engine.subscribe(QUERIES)
        for number in range(BEFORE):
            engine.process(batch(number))
    return state


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.parametrize("by_tasks", [True, False])
@pytest.mark.parametrize("seed", seeds(2, 12))
def test_any_damage_of_a_store_on_spark(seed, by_tasks, spark, whole, whole_on_spark, tmp_path, monkeypatch):
    """Small batches are joined in this process, or all by tasks of the executors."""
    monkeypatch.setattr(tasks, "LEAST_DOCUMENTS", 1 if by_tasks else 2_000)
    rng, right = Random(seed), sorted((query, documents, xml) for _, query, documents, xml in whole.right)
    of_runs = seed % 2 == 0
    how = damaged(rng, whole_on_spark, tmp_path / "copy", lambda path: not of_runs or path.parent.name == RUNS)
    if seed % 4 == 1:
        how = lost_or_swapped(rng, whole_on_spark, tmp_path / "copy")
    try:
        assert went_on_spark(spark, tmp_path / "copy") == right, how
    except StoreError:
        assert not of_runs, how
