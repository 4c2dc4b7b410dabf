import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
import pytest
from py4j.protocol import Py4JError

from join_stage.duckdb import DuckDBEngine
from join_stage.plans import JoinEngine
from join_stage.signature import disk, join, postings
from join_stage.signature import runs as runs_module
from join_stage.signature.disk import MOST_RUNS, Merge, Merger, StoredRuns
from join_stage.signature.postings import PathClass, PathClasses, PostingRun, RowIndex, ValueDictionary, grouped
from join_stage.signature.runs import DiskRun, PagedRecords, PagePool, RunFile, RunWriter, write_run
from join_stage.spark.tasks import SparkMerger, merge_on_executor
from join_stage.store.protocol import RUNS, DamagedRun, StoreError
from join_stage.store.spark.manifests import Merging, read_rows, write_data_file
from templates.witness import NO_WITNESSES
from tests.generate.joins import SECOND, JoinCase, Result, random_join_case, run_case, sorted_rows
from tests.generate.seeds import at_length, expect_some, seeds
from tests.support.in_process import Context, run_in_process

GROUPS = [(0, [(1, 2)]), (1, [(1, 3)]), (2, [(1, 4), (2, 5)])]
Flat = list[tuple[object, ...]]


def random_run(
    rng: np.random.Generator, documents: int, first: int, values: int
) -> tuple[PostingRun, ValueDictionary, PathClasses]:
    """Documents from docid `first` on, some of which begin at one time, with values of which a few are common."""
    classes = PathClasses(RowIndex())
    classes.learn(GROUPS)
    numbers = np.array([classes.number(PathClass((int(group),), False, "S")) for group in rng.permutation(3)])
    known, count = ValueDictionary(), documents * 6
    instance = np.sort(rng.integers(0, documents, count))
    number = known.numbers(f"v{min(int(value), values)}" for value in rng.zipf(1.3, count))
    code = number << postings.CODE_BITS | numbers[rng.integers(0, 3, count)]
    order = np.argsort(code, kind="stable")
    t0 = np.sort(rng.integers(0, 20, documents)) * 10 + int(rng.integers(0, 100))
    wide = 1 << 40 if rng.random() < 0.2 else 0
    run = grouped(
        code[order],
        time=t0[instance[order]],
        node=rng.integers(0, 50, count)[order] + wide,
        inner=rng.integers(0, 9, (count, int(rng.integers(0, 3)))),
        instance=instance[order],
        top=rng.integers(0, 5, documents),
        document=np.arange(documents),
        docid=np.arange(first, first + documents),
        t0=t0,
        t1=t0 + int(rng.choice([0, 3])),
    )
    return run, known, classes


def written(
    path: Path, run: PostingRun, values: ValueDictionary, classes: PathClasses, low: int | None = None
) -> DiskRun:
    write_run(path, run, values, classes)
    return opened(path, classes, low)


def opened(path: Path, classes: PathClasses, low: int | None = None) -> DiskRun:
    file = RunFile(path, PagePool())
    return DiskRun(file, classes.numbers(file.head.classes), low)


def flat(run: DiskRun) -> Flat:
    """The postings that are not evicted, in no order. Asserts that the file is sorted as it says."""
    file, found = run.file, []
    groups, all_postings = file.groups.range(0, len(file.groups)), file.postings.range(0, len(file.postings))
    starts = [*groups["start"].tolist(), len(all_postings)]
    keys = [(int(g["high"]), int(g["low"]), int(g["path_class"])) for g in groups]
    assert keys == sorted(set(keys))
    for (high, low, number), start, end in zip(keys, starts, starts[1:], strict=False):
        postings = all_postings[start:end]
        places = [(int(p["time"]), int(p["instance"])) for p in postings]
        assert places
        assert places == sorted(places)
        for posting in postings:
            if run.low is None or posting["time"] >= run.low:
                inner = posting["inner"].tolist() if "inner" in (posting.dtype.names or ()) else []
                duration = int(posting["duration"]) if file.head.layout.lasting else 0
                told = [int(posting[name]) for name in ("time", "node", "top")]
                told += [int(posting["docid"]) + file.head.base, duration, *inner, *[0] * (2 - len(inner))]
                found.append((high, low, file.head.classes[number], *told))
    return sorted(found, key=repr)


@pytest.mark.parametrize("seed", seeds(3, 200))
def test_a_merged_run_has_the_postings_of_all(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rng = np.random.default_rng(seed)
    monkeypatch.setattr(disk, "PIECE", int(rng.choice([7, 100, 5_000])))
    low = None if seed % 2 else 60
    runs = []
    for number in range(int(rng.integers(1, 4))):
        run, values, classes = random_run(rng, int(rng.choice([1, 5, 200])), number * 1000, 300)
        one = written(tmp_path / f"{number}.run", run, values, classes, low)
        if low is None or one.file.head.last >= low:
            runs.append(one)
    if not runs:
        return
    merge = Merge(runs, tmp_path / "merged.run", Merger())
    merge.start()
    merge.join()
    assert merge.is_done, merge.error
    merged = opened(tmp_path / "merged.run", classes)
    assert flat(merged) == sorted((posting for run in runs for posting in flat(run)), key=repr)
    head = merged.file.head
    times = merged.file.postings.range(0, head.postings)["time"]
    assert (head.first, head.last, head.postings) == (times.min(), times.max(), len(times))


def test_a_merge_that_is_abandoned_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(disk, "PIECE", 7)
    rng = np.random.default_rng(2)
    runs = [written(tmp_path / f"{i}.run", *random_run(rng, 100, i * 100, 50)) for i in range(2)]
    merge = Merge(runs, tmp_path / "merged.run", Merger())
    merge.start()
    merge.abandon()
    assert not (tmp_path / "merged.run").exists()
    never = Merge(runs, tmp_path / "merged.run", Merger())
    never.abandon()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.run", "1.run"]


@pytest.mark.parametrize("seed", seeds(2, 50))
def test_records_are_found_however_few_pages_are_kept(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rng = np.random.default_rng(seed)
    monkeypatch.setattr(runs_module, "PAGE", int(rng.choice([8, 100, 1024])))
    monkeypatch.setattr(runs_module, "LIMIT", int(rng.choice([4_000, 1 << 20])))
    monkeypatch.setattr(runs_module, "AT_ONCE", 20)
    kind = np.dtype([("one", "<u4"), ("two", "<i8")])
    records = np.zeros(int(rng.choice([1, 5, 3_000])), kind)
    records["one"], records["two"] = rng.integers(0, 1 << 32, len(records)), rng.integers(-9, 9, len(records))
    path = tmp_path / "records"
    path.write_bytes(b"before.." + records.tobytes() + bytes(range(3)) * (seed % 2))
    pool = PagePool()
    with path.open("rb") as file:
        arrays = [PagedRecords(file.fileno(), 8, len(records), kind, pool) for _ in range(2)]
        for _ in range(60):
            array = arrays[int(rng.integers(0, 2))]
            places = rng.integers(0, len(records), int(rng.integers(0, 70)))
            assert (array.at(places) == records[places]).all()
            assert (array.at(places, "two") == records["two"][places]).all()
        first, end = sorted(rng.integers(0, len(records) + 1, 2).tolist())
        assert (arrays[0].range(first, end) == records[first:end]).all()


# ---------------------------------------------------------------- kills, full disks and damage


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """All postings of a batch are written, and merged a few at a time."""
    monkeypatch.setattr(join, "MOST_IN_MEMORY", 0)
    monkeypatch.setattr(disk, "PIECE", 16)


@contextmanager
def engine_of(case: JoinCase, directory: Path) -> Iterator[DuckDBEngine]:
    with closing(DuckDBEngine(directory, "signature")) as engine:
        for template, rows in case.templates:
            engine.plan.put_rows(template, rows)
        yield engine


def results_from(engine: JoinEngine, case: JoinCase, first_batch: int) -> list[Result]:
    """The results of the batches from `first_batch` on, each committed."""
    results = []
    for first, batch in case.batches[first_batch:]:
        engine.begin()
        results.append(sorted_rows(engine.join(batch, first, case.scope)))
        engine.commit()
    return results


def expected(case: JoinCase) -> list[Result]:
    with closing(DuckDBEngine(plan="basic")) as engine:
        return run_case(engine, case)


@pytest.mark.parametrize("seed", seeds(1, 200))
def test_whatever_a_killed_process_leaves_is_opened(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The state is copied in the middle of writing, merging and removing files, as a process that dies leaves it."""
    rng = Random(seed)
    case = random_join_case(seed, templates=3, batches=6, in_order=True)
    wanted = expected(case)
    copies: list[Path] = []

    def dies_now(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if rng.random() < 0.05:
                copies.append(tmp_path / f"copy{len(copies)}")
                shutil.copytree(tmp_path / "state", copies[-1])
            return function(*arguments, **named)

        return call

    with monkeypatch.context() as patched:
        for owner, name in ((RunWriter, "_write"), (RunWriter, "finish"), (Path, "unlink"), (StoredRuns, "committed")):
            patched.setattr(owner, name, dies_now(getattr(owner, name)))
        with engine_of(case, tmp_path / "state") as engine:
            results_from(engine, case, 0)
    expect_some(copies)
    for copy in copies:
        with engine_of(case, copy) as engine:
            done = (engine.highest("r_docts", "docid") + 1) // 4  # documents of a batch
            assert results_from(engine, case, done) == wanted[done:]
            engine.begin()
            engine.join(NO_WITNESSES, 10**6, case.scope)  # which opens the runs, if no batch was left
            engine.evict(10**9 * SECOND)
            engine.commit()
            assert not list((copy / RUNS).iterdir())


@pytest.mark.parametrize("seed", seeds(1, 100))
def test_a_full_disk_stops_a_batch_and_loses_nothing(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rng = Random(seed)
    case = random_join_case(seed, templates=3, batches=6, in_order=True)
    write = RunWriter._write
    full, said = False, []

    def may_fail(writer: RunWriter, content: bytes, at: int) -> int:
        if full and rng.random() < 0.5:
            raise OSError(28, "No space left on device")
        return write(writer, content, at)

    monkeypatch.setattr(RunWriter, "_write", may_fail)
    with engine_of(case, tmp_path) as engine:
        for (first, batch), rows in zip(case.batches, expected(case), strict=True):
            for may_be_full in (True, False):
                full = may_be_full and rng.random() < 0.7
                engine.begin()
                assert sorted_rows(engine.join(batch, first, case.scope)) == rows
                try:
                    engine.commit()
                    break
                except StoreError as error:
                    said.append(str(error))
                    engine.rollback()
            assert not full or may_be_full
    expect_some(said)
    assert all("No space left on device; make room" in text for text in said)


def test_damaged_runs_are_built_anew_from_the_tables(tmp_path: Path):
    case = random_join_case(3, templates=3, batches=6, in_order=True)
    wanted = expected(case)
    with engine_of(case, tmp_path) as engine:
        assert results_from(engine, replace(case, batches=case.batches[:3]), 0) == wanted[:3]
    for batch, harm in enumerate((lambda _: None, lambda run: run[:-1], lambda run: run[:-40] + b"?" + run[-39:]), 3):
        harmed = list((tmp_path / RUNS).iterdir())
        assert harmed
        for path in harmed:
            damaged = harm(path.read_bytes())
            path.unlink() if damaged is None else path.write_bytes(damaged)
        with engine_of(case, tmp_path) as engine:
            assert results_from(engine, replace(case, batches=case.batches[: batch + 1]), batch) == [wanted[batch]]


def merged(runs: StoredRuns, times: int = 1, *, window: int = 1 << 60, committed: bool = True) -> None:
    for _ in range(times):
        runs.merge(window, PathClasses(RowIndex()))
        for merge in [*runs._merges]:
            if merge.ident is not None:
                merge.join()
        if committed:
            runs.committed()


@pytest.mark.parametrize("in_order", [pytest.param(True, marks=pytest.mark.soak), False])
def test_what_is_evicted_leaves_the_disk(in_order: bool, tmp_path: Path):
    """Documents of five or ten hours, with a window of one hour; one of them is dated a century ahead."""
    hour, count = 3_600_000_000, 200 if at_length() else 35
    rng, runs, most = np.random.default_rng(3), StoredRuns(tmp_path), 0
    runs.open(None, PathClasses(RowIndex()))
    for number in range(count):
        run, values, classes = random_run(rng, 40, number * 40, 30)
        begin = number * hour // 20 if in_order else int(rng.integers(max(0, number - 15), number + 1)) * hour // 20
        if number == 5:
            begin += 100 * 365 * 24 * hour
        run = replace(run, time=run.time + begin, t0=run.t0 + begin, t1=run.t1 + begin)
        runs.add(run, values, classes, number * 40 + 39)
        runs.evict((number - 20) * hour // 20)
        merged(runs, window=hour)
        most = max(most, len(runs.now.runs))
    assert most <= MOST_RUNS
    alive = sum(
        int((run.file.postings.range(0, len(run))["time"] >= (count - 21) * hour // 20).sum()) for run in runs.now.runs
    )
    assert sum(map(len, runs.now.runs)) < 3 * alive
    named = {run.file.path.name for run in runs.now.runs} | {merge.path.name for merge in runs._merges}
    assert {path.name for path in tmp_path.iterdir()} <= named


# ---------------------------------------------------------------- merges on executors

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> Context:
    return run_in_process(monkeypatch, cores=2)


def runs_of(tmp_path: Path, context: Context, count: int) -> StoredRuns:
    runs, rng = StoredRuns(tmp_path, SparkMerger(context)), np.random.default_rng(5)  # type: ignore[arg-type]  # which stands for one
    runs.open(None, PathClasses(RowIndex()))
    for number in range(count):
        run, values, classes = random_run(rng, 40, number * 40, 30)
        runs.add(run, values, classes, number * 40 + 39)
    return runs


def fails(*_: object) -> list[object]:
    raise Py4JError("an executor was lost")


def test_runs_are_merged_by_tasks_that_may_fail(tmp_path: Path, context: Context, monkeypatch: pytest.MonkeyPatch):
    runs = runs_of(tmp_path, context, 2)
    with monkeypatch.context() as patch:
        patch.setattr(context, "attempted", fails)
        merged(runs, 3)  # and no batch fails
    assert len(runs.now.runs) == 2 and len(list(tmp_path.iterdir())) == 2
    run, values, classes = random_run(np.random.default_rng(6), 300, 80, 30)
    runs.add(run, values, classes, 379)
    postings = sum(map(len, runs.now.runs))
    merged(runs, 6)
    assert [len(run) for run in runs.now.runs] == [postings] and len(list(tmp_path.iterdir())) == 1 <= context.jobs


def test_a_killed_task_leaves_nothing_for_good(tmp_path: Path, context: Context, monkeypatch: pytest.MonkeyPatch):
    runs = runs_of(tmp_path, context, 2)

    def half(*_: object) -> None:
        raise OSError(28, "no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(RunWriter, "put_groups", half)
        merged(runs, committed=False)
        runs.merge(1 << 60, PathClasses(RowIndex()))
    assert len(list(tmp_path.iterdir())) == 2
    (tmp_path / "9-x.77").write_text("of a killed process")
    runs._merges.clear()
    runs.open(runs.manifest(), PathClasses(RowIndex()))
    runs.committed()
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("on_executors", [True, False])
def test_files_of_tables_are_merged_there_or_here(
    on_executors: bool, tmp_path: Path, context: Context, monkeypatch: pytest.MonkeyPatch
):
    if not on_executors:
        monkeypatch.setattr(context, "attempted", fails)
    inputs = []
    for number in range(3):
        rows = pa.table({"n": [number, number + 10], "text": ["x", None]}, SCHEMA)
        inputs.append(tmp_path / f"{number}.parquet")
        write_data_file(inputs[-1], [rows], SCHEMA)
    file = merge_on_executor(context, Merging(tmp_path / "all.parquet", tuple(inputs), SCHEMA, 1, None, None))  # type: ignore[arg-type]  # which stands for one
    assert (file.name, file.rows, file.level) == ("all.parquet", 6, 1)
    assert read_rows(tmp_path / "all.parquet", SCHEMA)["n"].to_pylist() == [0, 10, 1, 11, 2, 12]
    assert len(list(tmp_path.iterdir())) == 4


def as_format_1(path: Path) -> None:
    """Makes a run file as it was before there were checksums."""
    file = RunFile(path, PagePool())
    told = json.loads(file.head.to_json())
    for name in ("page", "sums", "name"):
        del told[name]
    text = json.dumps(told | {"format": 1}).encode()
    end = len(text).to_bytes(8, "little") + crc32(text).to_bytes(8, "little") + b"mmqjprun"
    path.write_bytes(path.read_bytes()[: file.head.starts[4]] + text + end)


def test_files_without_checksums_are_read_and_get_them_by_a_merge(tmp_path: Path):
    runs, rng = StoredRuns(tmp_path), np.random.default_rng(5)
    runs.open(None, PathClasses(RowIndex()))
    for number in (0, 1):
        runs.add(*random_run(rng, 400 // (1 + 2 * number), number * 400, 30), number * 400 + 399)
    kept = [flat(run) for run in runs.now.runs]
    manifest = runs.manifest()
    for path in tmp_path.iterdir():
        as_format_1(path)
    again = StoredRuns(tmp_path)
    assert again.open(manifest, PathClasses(RowIndex()))
    assert [run.file.head.page for run in again.now.runs] == [0, 0]
    assert [flat(run) for run in again.now.runs] == kept
    merged(again, 6)
    assert all(run.file.head.page for run in again.now.runs)
    for run in again.now.runs:
        run.file.check()
    assert sorted(repr(posting) for run in again.now.runs for posting in flat(run)) == sorted(map(repr, chain(*kept)))


@pytest.mark.parametrize("seed", seeds(2, 100))
def test_each_byte_of_a_run_is_compared_and_what_is_no_run_refused(seed: int, tmp_path: Path):
    rng = np.random.default_rng(seed)
    path = tmp_path / "0.run"
    written(path, *random_run(rng, int(rng.choice([1, 30, 300])), 0, 50)).file.check()
    whole, turned = path.read_bytes(), Random(seed)
    file = RunFile(path, PagePool())
    starts, sizes = file.head.starts, [kind.itemsize for kind in file.head.types]
    ends = [start + count * size for start, count, size in zip(starts, file.head.counts, sizes, strict=False)]

    def turn(start: int, end: int) -> None:
        at = turned.randrange(start, end)
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << turned.randrange(8)]) + whole[at + 1 :])

    for start, end in zip(starts, ends, strict=False):
        for _ in range(20):
            turn(start, end)
            with pytest.raises(DamagedRun, match="is damaged"):
                RunFile(path, PagePool()).check()
    for _ in range(50):
        turn(starts[-1], len(whole))
        with pytest.raises(DamagedRun, match="is damaged"):
            RunFile(path, PagePool())
    for content in (b"", b"x" * 10, whole[:-1], whole + b"x", whole[:-30] + whole[-29:], whole[64:]):
        path.write_bytes(content)
        with pytest.raises(DamagedRun, match="is damaged"):
            RunFile(path, PagePool())
    (tmp_path / "1.run").write_bytes(whole)
    with pytest.raises(DamagedRun, match="that of another file"):
        RunFile(tmp_path / "1.run", PagePool())
    with pytest.raises(DamagedRun, match="is gone"):
        RunFile(tmp_path / "2.run", PagePool())
