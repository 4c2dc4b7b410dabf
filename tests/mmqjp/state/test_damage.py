"""Whatever is done to any file of a store, its outputs are those of a whole one, or the damage is told. What a killed
process left is taken up again."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from common.files import read_mark, write_mark
from feeds.documents import Document, SourceError
from feeds.fetch.state import STATE_FILE, FeedState, FetchStore, HostState
from join_stage import near_candidates
from join_stage.plans import PLANS
from join_stage.signature import disk, join
from join_stage.spark import tasks
from join_stage.store.duckdb import CommitMark
from join_stage.store.protocol import COMMITTED, DUCKDB_FILE, RUNS, SPARK_MANIFESTS, StoreError
from mmqjp.engine import Session
from mmqjp.service.spool import Command, CommandResult, Spool
from mmqjp.state.engine_choice import OWNER_FILE, stored_engine
from tests.generate.documents import SECOND
from tests.generate.near import near_case
from tests.generate.seeds import seeds
from tests.mmqjp.state.test_engine_of_state import RELATIONS
from tests.oracle.evaluation import comparable, evaluate
from tests.processes import nursery
from tests.support.agreement import as_row
from tests.support.cli import mmqjp
from tests.support.damage import damaged, lost_or_swapped
from tests.support.in_turn import in_turn
from tests.support.service import PAIRS
from tests.support.stores import TABLES, as_files, parquet_store

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


def went_on(state: Path) -> Any:
    """All that is in a store that goes on with the rest of the batches: its outputs first."""
    with Session("duckdb", state=state) as engine:
        for number in range(BEFORE, BATCHES):
            engine.process(batch(number))
        outputs = [(o.seq, o.query, o.documents, o.xml) for o in engine.outputs()]
        return outputs, engine.sql("SELECT id, xml FROM documents ORDER BY docid").to_pylist(), engine.queries()


class Whole(NamedTuple):
    place: Path
    """With a store that was `closed`, and one as a kill leaves it, `killed`."""

    right: Any


@pytest.fixture(scope="module")
def whole(small, tmp_path_factory) -> Whole:
    place = tmp_path_factory.mktemp("whole")
    with Session("duckdb", state=place / "closed") as engine:
        engine.subscribe(QUERIES)
        for number in range(BEFORE):
            engine.process(batch(number))
        shutil.copytree(place / "closed", place / "killed")
    right = went_on(shutil.copytree(place / "closed", place / "right"))
    assert len(right[0]) > 30
    return Whole(place, right)


def part_told(
    numbers: range,
    damage: Callable[[Random, Path], str],
    use: Callable[[Path], Any],
    right: Any,
    copy: Path,
    error: type[Exception] = StoreError,
    words: str = "",
) -> float:
    """Which part of some damages to a copy is told, in one line. All others must not matter."""
    count = 0
    for seed in numbers:
        how = damage(Random(seed), copy)
        try:
            assert use(copy) == right, f"seed {seed}: {how}"
        except error as told:
            said = str(told)
            assert words in said and "\n" not in said and len(said) > 20, f"seed {seed}: {how}: {said}"
            count += 1
    return count / len(numbers)


@pytest.mark.parametrize(
    ("name", "left", "numbers", "least"),
    [
        (RUNS, "closed", seeds(3, 400), -1),
        (DUCKDB_FILE, "closed", seeds(5, 250), 0.2),
        (f"{DUCKDB_FILE}.wal", "killed", seeds(7, 250), 0.8),  # all of it was committed
    ],
)
def test_damage_of_a_file_is_told_or_does_not_matter(name, left, numbers, least, whole, tmp_path):
    def damage(rng: Random, copy: Path) -> str:
        return damaged(rng, whole.place / left, copy, lambda path: name in (path.name, path.parent.name))

    part = part_told(numbers, damage, went_on, whole.right, tmp_path / "copy")
    assert part > least and (name != RUNS or part == 0), "postings are built anew"


@pytest.mark.parametrize("seed", seeds(4, 600))
def test_any_damage_is_told_or_does_not_matter(seed, whole, tmp_path):
    def damage(rng: Random, copy: Path) -> str:
        return rng.choice([damaged, lost_or_swapped])(rng, whole.place / rng.choice(["closed", "killed"]), copy)

    part_told(range(seed, seed + 1), damage, went_on, whole.right, tmp_path / "copy")


@pytest.fixture(scope="module")
def files(whole: Whole, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of files, as Spark's are: many small ones, some of which were merged."""
    place = tmp_path_factory.mktemp("files")
    as_files(whole.place / "right", place, batches=10)
    return place


def by_writer(state: Path) -> Any:
    store = parquet_store(state)
    try:
        highest = store.highest("documents", "docid"), store.highest("settings", "batch")
        return highest, [store.read(name).to_pylist() for name in TABLES], dict(store.files)
    finally:
        store.close()


def by_reader(state: Path) -> Any:
    with Session(state=state, read_only=True) as engine:
        return [sorted(map(repr, engine.sql(f"SELECT * FROM {name}").to_pylist())) for name in RELATIONS]


@pytest.mark.parametrize(
    ("use", "numbers", "words"), [(by_writer, seeds(20, 1_000), ""), (by_reader, seeds(8, 200), "the store is damaged")]
)
def test_damage_of_files_is_told_when_they_are_read_or_does_not_matter(use, numbers, words, files, tmp_path):
    def damage(rng: Random, copy: Path) -> str:
        return damaged(rng, files, copy, lambda path: not words or path.suffix in (".parquet", ".json"))

    right = use(shutil.copytree(files, tmp_path / "right"))
    assert part_told(numbers, damage, use, right, tmp_path / "copy", words=words) > 0.5


def test_damage_of_the_state_of_a_fetch_is_told_or_does_not_matter(tmp_path):
    with FetchStore(tmp_path / "whole" / STATE_FILE, write=True) as store:
        store.add(FeedState(f"http://example.org/{n}", f"source-{n}") for n in range(40))
        for number, feed in enumerate(store.feeds()):
            store.commit(
                replace(feed, etag=f'"{number}"', sha256="ab" * 32, next_check=10**15 + number), f"mark {number}"
            )
            store.save_host(HostState(f"host{number}", number))

    def use(state: Path) -> Any:
        with FetchStore(state / STATE_FILE, write=True) as opened:
            feeds = opened.feeds()
            opened.commit(feeds[0])
            return feeds, [opened.host(f"host{number}") for number in range(40)], opened.archive_mark()

    def damage(rng: Random, copy: Path) -> str:
        return damaged(rng, tmp_path / "whole", copy, lambda path: path.name == STATE_FILE)

    right = use(tmp_path / "whole")
    assert part_told(seeds(25, 1_000), damage, use, right, tmp_path / "copy", SourceError) > 0.25


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
    state = shutil.copytree(whole.place / "killed", tmp_path / "copy")
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


def test_a_mark_may_lag_behind_its_store_and_no_store_behind_its_mark(whole, tmp_path, monkeypatch):
    """As after a kill between a commit and its mark, or a power failure."""
    state = shutil.copytree(whole.place / "closed", tmp_path / "copy")
    with monkeypatch.context() as patch:
        patch.setattr(CommitMark, "note", lambda mark: None)
        assert went_on(state) == whole.right
    for content in (None, b"", b"\0" * 80):
        (state / COMMITTED).unlink() if content is None else (state / COMMITTED).write_bytes(content)
        assert read_mark(state / COMMITTED) is None
        Session("duckdb", state=state).close()
        assert read_mark(state / COMMITTED) is not None
    (state / COMMITTED).write_bytes(b"1 2 3 4\n")
    with pytest.raises(StoreError, match=f"{COMMITTED}, which records the last commit, is not what was written"):
        Session("duckdb", state=state)
    newer = shutil.copytree(whole.place / "closed", tmp_path / "newer")
    went_on(newer)
    shutil.copy(whole.place / "closed" / DUCKDB_FILE, newer / DUCKDB_FILE)
    with pytest.raises(StoreError, match=f"{DUCKDB_FILE} is older than what was committed"):
        went_on(newer)


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


def test_a_damaged_command_is_answered_with_an_error_and_a_damaged_answer_is_one(tmp_path):
    spool = Spool(tmp_path)

    def damage(directory: str, command: Command, content: bytes) -> str:
        (tmp_path / "spool" / directory / f"{command.id}.json").write_bytes(content)
        waiting, answer = spool.waiting(), spool.take_result(command)
        assert command not in waiting and answer is not None
        return answer.error or ""

    for content in (b"", b"{", b"[]", b"null", b'{"do": 1}', b"\xff\xfe"):
        good, bad = spool.submit("list", {}), spool.submit("list", {})
        assert "is not a command" in damage("commands", bad, content) and spool.waiting() == [good]
        spool.answer(good, CommandResult([]))
        assert "is damaged" in damage("answers", good, content.replace(b'"do": 1', b""))
        assert spool.take_result(good) is None


def test_a_command_says_in_a_line_that_its_store_is_damaged(whole, tmp_path):
    file = shutil.copytree(whole.place / "closed", tmp_path / "copy") / DUCKDB_FILE
    file.write_bytes(file.read_bytes()[:100_000])
    result = mmqjp("list", "--state", tmp_path / "copy")
    assert result.exit_code == 1 and result.stderr.count("\n") == 1
    assert result.stderr.startswith("mmqjp: error: ") and "restore an older copy of the store" in result.stderr


def test_a_clock_that_goes_back_changes_nothing_that_was_found(tmp_path):
    def doc(second: int) -> Document:
        return Document(f"a{second}", "<a>v</a>", "S", second * SECOND)

    time = [2_000 * SECOND]
    options: dict[str, Any] = {"lateness": 5 * SECOND, "idle_after": 60 * SECOND, "now": lambda: time[0]}
    options["belated"] = "drop"
    with Session("duckdb", state=tmp_path, **options) as engine:
        engine.subscribe(PAIRS)
        engine.process([doc(1)])
        time[0] += 100 * SECOND
        engine.pass_time()
        ahead = engine.watermarks()
        time[0] -= 1_000 * SECOND
        engine.pass_time()
        assert engine.watermarks() == ahead
        assert len(engine.process([doc(2_090), doc(2_091)])) == 1
    time[0] -= 500 * SECOND
    with Session("duckdb", state=tmp_path, **options) as engine:
        assert engine.watermarks()["S"] == 2_086 * SECOND
        assert len(engine.process([doc(2_092), doc(2_080)])) == 2
        assert [row["id"] for row in engine.dead_letters()] == ["a2080"]


def live(seed: int, state: Path, **options: Any) -> Session:
    """The order of words is learnt from seven texts, and again when there are twice as many. There is no index."""
    near_candidates.ENOUGH, near_candidates.AGAIN, near_candidates.MOST_INDEXED = 7, 2, -1
    script, documents = near_case(seed, queries=6, documents=16)
    engine = Session("duckdb", state=state, **options)
    engine.ensure(script)
    for at in range(0, len(documents), 3):
        engine.process(documents[at : at + 3])
    return engine


LEARNT = "protocol.save_word_order"
"""Called within the engine's commit, before that of the store."""


@pytest.mark.parametrize(
    ("at", "is_there"),
    [
        pytest.param(f"before {LEARNT}", False, marks=pytest.mark.soak),
        (f"after {LEARNT}", False),
        (f"after {LEARNT}, after DuckDBStore.commit", True),  # no document has its keys in it yet
        (f"after {LEARNT}, after DuckDBEngine.commit", True),  # those of another batch have
    ],
)
@pytest.mark.parametrize("seed", seeds(1, 60))
def test_killed_as_the_order_of_words_is_learnt(seed, at, is_there, tmp_path, monkeypatch):
    for name in ("ENOUGH", "AGAIN", "MOST_INDEXED"):
        monkeypatch.setattr(near_candidates, name, getattr(near_candidates, name))  # is set back
    nursery.run_killed(live, seed, tmp_path, at=at)
    with Session(state=tmp_path, read_only=True) as engine:
        assert engine.sql("SELECT version FROM word_order").num_rows == is_there
    with live(seed, tmp_path, plan=PLANS[seed % 7 % len(PLANS)] if seed else "signature") as engine:
        assert not list(engine.dead_letters())
        outputs = list(engine.outputs())
    assert len({output.id for output in outputs}) == len(outputs)
    assert comparable(map(as_row, outputs)) == comparable(evaluate(*near_case(seed, queries=6, documents=16))) != []


# ---------------------------------------------------------------- on Spark


def went_on_spark(spark: "SparkSession", state: Path) -> list[tuple[Any, ...]]:
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
    of_runs, right = seed % 2 == 0, sorted((query, documents, xml) for _, query, documents, xml in whole.right[0])

    def damage(rng: Random, copy: Path) -> str:
        if seed % 4 == 1:
            return lost_or_swapped(rng, whole_on_spark, copy)
        return damaged(rng, whole_on_spark, copy, lambda path: not of_runs or path.parent.name == RUNS)

    part = part_told(range(seed, seed + 1), damage, partial(went_on_spark, spark), right, tmp_path / "copy")
    assert not (of_runs and part)
