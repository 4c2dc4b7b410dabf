"""The kind `parquet`: each output once, whatever ends the process, fills the disk or happens to the files."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest

import mmqjp.sinks.parquet as parquet_file
from mmqjp.answers.outbox import Position
from mmqjp.sinks.definition import ParquetOptions
from mmqjp.sinks.parquet import ParquetFile, ParquetSink
from tests.support.faults import Killed, Point, armed, killed
from tests.support.messages import TIME, output
from tests.support.sink_store import SinkStore, full

HOUR = 3_600_000_000


def rows(directory: Path, more: str = "") -> list[dict[str, Any]]:
    """The rows of all files, as DuckDB reads them."""
    if not list(directory.glob("*.parquet")):
        return []
    found = duckdb.sql(f"SELECT * FROM '{directory}/*.parquet' {more}")
    assert found is not None
    return list(found.to_arrow_table().to_pylist())


class Store(SinkStore[ParquetSink]):
    """A store with a sink of the kind `parquet`."""

    def __init__(self, directory: Path, rows: int = 5) -> None:
        super().__init__()
        self.options = ParquetOptions(directory, rows, HOUR)

    def opened(self, position: Position) -> ParquetSink:
        return ParquetSink(self.options, position, self.warnings.append, lambda: self.now)

    def finish(self) -> None:
        """Closes the last file, by the time."""
        self.deliver()
        self.now += 2 * HOUR
        self.deliver()

    def seqs(self) -> list[int]:
        """The outputs of all files that can be seen."""
        return [row["seq"] for row in rows(self.options.path, "ORDER BY filename, file_row_number")]

    def names(self) -> list[str]:
        return sorted(path.name for path in self.options.path.iterdir())


def name(first: int, last: int) -> str:
    return f"{first:012d}-{last:012d}.parquet"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "out")


# ------------------------------------------------------------ files


def test_files_have_whole_writes_and_say_what_they_have(store):
    store.commit(13)
    store.deliver(at_a_time=3)
    assert [one for one in store.names() if not one.startswith(".")] == [name(0, 5), name(6, 11)]
    assert store.seqs() == list(range(12)) and Position.from_setting(store.setting).acked == 11
    assert [one.startswith(".") for one in store.names()] == [True, False, False]


def test_a_file_is_closed_when_it_is_old_also_over_restarts_and_without_outputs(store):
    store.commit(1)
    store.deliver()
    assert store.sink.closes_at == TIME + HOUR and store.seqs() == []
    store.now += HOUR - 1
    store.open()
    store.deliver()
    assert store.sink.closes_at == TIME + HOUR and store.seqs() == []
    store.now += 1
    store.deliver()
    assert store.seqs() == [0] and store.sink.closes_at is None and store.names() == [name(0, 0)]
    store.deliver()
    store.commit(1)
    store.deliver()
    assert store.sink.closes_at == store.now + HOUR and store.names()[1:] == [name(0, 0)]


def test_columns_are_those_of_an_output_line_with_times_as_such(store):
    odd = replace(
        output(0), documents=("d1", "ü\U0001f600\0"), streams=("S", "T"), nodes={"x": 1, "y": "2/@a"}, xml="<é/>"
    )
    store.outputs = [odd]
    store.finish()
    (row,) = rows(store.options.path)
    assert list(row) == list(odd.to_dict())
    moment = datetime.fromtimestamp(TIME / 1e6, UTC)
    assert row == odd.to_dict() | {"t0": moment, "t1": moment, "nodes": '{"x": 1, "y": "2/@a"}'}


def test_rows_are_written_in_groups_as_they_come(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_file, "GROUP_ROWS", 4)
    store = Store(tmp_path / "out", rows=10)
    store.commit(10)
    store.finish()
    (path,) = store.options.path.glob("*.parquet")
    assert [pq.ParquetFile(path).metadata.row_group(n).num_rows for n in range(3)] == [4, 4, 2]


# ------------------------------------------------------------ kills

SEAMS: list[Point] = [
    (ParquetSink, "prepare"),
    (ParquetSink, "write"),
    (ParquetFile, "__init__"),
    (ParquetFile, "add"),
    (ParquetFile, "_write_group"),
    (ParquetFile, "finish"),
    (parquet_file, "sync_file"),
    (parquet_file, "sync_directory"),
    (Path, "rename"),
    (Path, "unlink"),
    (Path, "mkdir"),
    (Store, "note"),
]


def abandoned(store: Store) -> None:
    """What a killed process leaves: nothing is closed."""
    if store.sink is not None and store.sink._file is not None:
        store.sink._file._writer.is_open = False
    store.sink = None


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("point", SEAMS, ids=[point[1] for point in SEAMS])
def test_a_kill_anywhere_loses_nothing_and_repeats_nothing(tmp_path, point, after, monkeypatch):
    # What would clean up is not run in a process that is killed.
    monkeypatch.setattr(ParquetFile, "abandon", lambda self: None)
    monkeypatch.setattr(ParquetSink, "_give_up", lambda self: None)
    strikes = 0
    for calls in range(1, 8):
        store = Store(tmp_path / f"{calls}")
        for count in (7, 6, 5, 4):
            abandoned(store)
            store.commit(count, wanted=lambda seq: seq % 3 != 2)
            try:
                with armed(point, killed, calls, after=after):
                    store.deliver()
                    store.deliver()
            except Killed:
                strikes += 1
        abandoned(store)
        store.finish()
        assert store.seqs() == [seq for seq in range(22) if seq % 3 != 2]
        assert not [one for one in store.names() if one.startswith(".")]
    assert strikes


def test_what_was_closed_and_not_noted_is_removed_and_written_again(store):
    store.commit(5)
    store.deliver()
    store.commit(5)
    store.deliver(noting=False)
    assert store.names() == [name(0, 5), name(6, 9)] or len(store.seqs()) > 5
    store.open()
    store.finish()
    assert store.seqs() == list(range(10))


def test_what_is_asked_for_again_takes_the_place_of_what_was_there(store):
    store.commit(12)
    store.finish()
    assert store.names() == [name(0, 5), name(6, 11)]
    position = Position.from_setting(store.setting)
    store.setting = Position(3, position.details).to_setting()
    store.open()
    store.finish()
    assert store.seqs() == list(range(12)) and store.names()[0] == name(0, 3)


# ------------------------------------------------------------ full disks


WRITES: list[Point] = [
    (ParquetFile, "__init__"),
    (ParquetFile, "add"),
    (ParquetFile, "_write_group"),
    (parquet_file, "sync_file"),
    (Path, "rename"),
]


@pytest.mark.parametrize("point", WRITES, ids=[point[1] for point in WRITES])
def test_a_full_disk_takes_nothing_away(store, point):
    store.commit(3)
    store.deliver()
    store.commit(9)
    with armed(point, full), pytest.raises(OSError, match="No space"):
        store.finish()
    assert not list(store.options.path.glob(".*"))  # which makes room
    store.finish()
    assert store.seqs() == list(range(12))


def test_a_disk_that_is_really_full(store):
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full")
    store.commit(12)
    store.deliver(at_a_time=12)
    store.commit(3)
    draft = store.options.path / f".{store.sink.position().details['owner']}.draft"
    draft.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space"):
        store.finish()
    draft.unlink(missing_ok=True)
    store.finish()
    assert store.seqs() == list(range(15))


# ------------------------------------------------------------ what others do


def test_a_draft_that_others_remove_or_replace_is_written_again(store):
    store.commit(3)
    store.deliver()
    (draft,) = store.options.path.glob(".*")
    draft.unlink()
    store.commit(1)
    store.deliver()
    assert len(store.warnings) == 1 and "was removed or replaced" in store.warnings[0]
    (store.options.path / "x").write_text("x")
    (store.options.path / "x").replace(draft)
    store.finish()
    assert store.seqs() == list(range(4)) and len(store.warnings) == 2


def test_a_directory_that_is_removed_is_made_again(store):
    store.commit(8)
    store.deliver()
    for path in store.options.path.iterdir():
        path.unlink()
    store.options.path.rmdir()
    store.finish()
    assert store.seqs() == [6, 7]


def test_files_of_others_stay(store):
    store.commit(7)
    store.deliver()
    own = (store.options.path / name(0, 5)).read_bytes()
    others = {name(100, 105): b"not parquet", "x.parquet": own, "note.txt": b"a"}
    table = pq.read_table(store.options.path / name(0, 5)).replace_schema_metadata({"mmqjp.sink": "another"})
    pq.write_table(table, store.options.path / name(200, 205))
    for other, content in others.items():
        (store.options.path / other).write_bytes(content)
    store.open()
    store.finish()
    assert {*others, name(200, 205), name(0, 5), name(6, 6)} == set(store.names())


def test_a_name_that_others_have_taken_is_an_error_until_it_is_free(store):
    store.commit(7)
    store.deliver()
    (store.options.path / name(6, 6)).write_bytes(b"theirs")
    with pytest.raises(FileExistsError, match="is there already, and is not ours"):
        store.finish()
    (store.options.path / name(6, 6)).unlink()
    store.finish()
    assert store.seqs() == list(range(7))


def test_a_directory_of_another_sink_or_of_a_state_that_is_gone_is_refused(store):
    store.commit(6)
    store.deliver()
    other = Store(store.options.path)
    other.commit(6)
    with pytest.raises(FileExistsError, match="choose another directory, or move its files away"):
        other.deliver()
    assert store.seqs() == list(range(6))


def test_another_directory_gets_what_follows(store, tmp_path):
    store.commit(8)
    store.deliver()
    store.options = replace(store.options, path=tmp_path / "other")
    store.open()
    store.finish()
    assert store.seqs() == [6, 7] and list((tmp_path / "out").iterdir()) == [tmp_path / "out" / name(0, 5)]


def test_a_missing_directory_above_is_an_error(tmp_path):
    store = Store(tmp_path / "missing" / "out")
    with pytest.raises(FileNotFoundError):
        store.deliver()


@pytest.mark.soak
def test_spark_reads_them_as_one_data_set(store, spark):
    store.commit(13)
    store.finish()
    found = spark.read.parquet(str(store.options.path)).orderBy("seq")
    assert [row.seq for row in found.collect()] == list(range(13))
    assert found.first().documents == ["d0"] and int(found.first().t0.timestamp()) == TIME // 1_000_000
