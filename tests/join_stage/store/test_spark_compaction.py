"""The files of a Spark store over many batches: few that count, and none gone that a query was planned over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from join_stage.store.spark.attach import _Reader
from join_stage.store.spark.parquet_store import GRACE, MERGE, ParquetStore
from join_stage.tables import FLAT_STORE
from mmqjp.tables.schema import SCHEMA
from tests.support.stores import TABLES, parquet_store

BATCHES = 40
SECOND = 1_000_000


class Clock:
    """A clock in microseconds that the test sets."""

    def __init__(self) -> None:
        self.time = 0

    def __call__(self) -> int:
        return self.time


def row(schema: pa.Schema, number: int) -> pa.Table:
    """A row with a number, or a text of it, in every column."""

    def value(kind: pa.DataType) -> Any:
        if pa.types.is_list(kind):
            return [value(kind.value_type)]
        return number if pa.types.is_integer(kind) else str(number).encode() if kind == pa.binary() else str(number)

    return pa.table([pa.array([value(field.type)], field.type) for field in schema], schema=schema)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[ParquetStore]:
    store = parquet_store(tmp_path, clock)
    yield store
    store.close()


def commit(store: ParquetStore, clock: Clock, number: int, *tables: str) -> None:
    """A small batch with a row in each of some tables, or of all, a second after the last."""
    clock.time += SECOND
    for name in tables or TABLES:
        store.append(name, row(TABLES[name], number))
    store.commit()


def files(directory: Path) -> int:
    return sum(path.suffix in (".parquet", ".json") for path in directory.rglob("*"))


def test_the_files_that_count_stay_few_in_every_table(store: ParquetStore, clock: Clock):
    for number in range(BATCHES):
        commit(store, clock, number)
        assert all(len(found) <= 2 * MERGE for found in store.files.values())
    levels = {len(found) for found in store.files.values()}
    assert levels == {BATCHES // MERGE + BATCHES % MERGE}, "merged as often as there were enough"
    for name in TABLES:
        assert len(store.read(name)) == BATCHES, name


def test_the_files_on_disk_stay_as_many_as_batches_of_the_grace_made(store: ParquetStore, clock: Clock, tmp_path: Path):
    seconds = GRACE // SECOND
    most = 0
    for number in range(3 * seconds // 20):
        clock.time += 19 * SECOND
        commit(store, clock, number, "earlier_outputs", "r_doc")
        if number == seconds // 20 + MERGE:
            most = files(tmp_path)
    assert files(tmp_path) < 1.5 * most


@pytest.mark.soak
def test_a_query_that_was_planned_before_finds_its_files(store: ParquetStore, clock: Clock, tmp_path: Path):
    for number in range(MERGE - 1):
        commit(store, clock, number)
    readers = {name: _Reader(tmp_path, name, FLAT_STORE | SCHEMA) for name in TABLES}
    planned = {name: reader.partitions() for name, reader in readers.items()}
    for number in range(MERGE + 4):
        commit(store, clock, number)
    for name, reader in readers.items():
        found = [batch for partition in planned[name] for batch in reader.read(partition)]
        assert sum(map(len, found)) == MERGE - 1, name
    clock.time += GRACE
    commit(store, clock, 0)
    with pytest.raises(FileNotFoundError):
        list(readers["earlier_outputs"].read(planned["earlier_outputs"][0]))
