"""The files of the Spark engine: tables as Parquet files in batches, a batch visible once its manifest is in place.

A store is a directory with a folder for each table and the folder `manifests`. The newest manifest names all files that
count; it appears by a rename, so it is there whole or not at all. A file that no manifest names is what a killed run
left behind, and is removed when the store is opened. Manifests that are superseded are kept for a while, with their
files, for readers that have opened them, and the last of them for as long as it is the last.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import count, groupby, pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from common.lock import lock
from common.private import as_its_directory, make_inside, make_lock, make_state
from common.whole_file import drafts, sync_directory, sync_file
from join_stage.store.protocol import DUCKDB_FILE, SPARK_MANIFESTS, StoreError
from join_stage.store.spark.manifests import (
    EMPTY,
    DataFile,
    Files,
    Manifest,
    check_footer,
    check_whole,
    damaged,
    digests,
    highest_number,
    read_manifest,
    read_rows,
    write_manifest,
)
from join_stage.store.spark.snapshot import Snapshot
from join_stage.store.tables import STATE, TABLES

MERGE = 16
"""So many small files of one level of a table become one of the next, lest a store of many batches be slow to read."""

MERGED_BYTES = 64 << 20
"""Merged files are no larger than this."""


GRACE = 600 * 1_000_000
"""How long, microseconds, files stay that are superseded: a query that was planned before may be long."""


class ParquetStore:
    """Tables in a directory, or in a temporary one that goes at `close`. Rows are in memory until `commit`.

    `now` is the clock, in microseconds.
    """

    def __init__(self, directory: Path | None, now: Callable[[], int] = lambda: time.time_ns() // 1000) -> None:
        self._now, self._grace = now, GRACE if directory else 0
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        if directory is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="mmqjp-")
            directory = Path(self._temporary.name)
        self.directory = directory.absolute()
        self._numbers = count()
        self._buffers: dict[str, list[pa.Table]] = {}
        self._covered: list[int] = []
        self._checked: set[tuple[str, str]] = set()
        """Files that were found to be what was written, by table and name."""
        try:
            if (self.directory / DUCKDB_FILE).exists():
                raise StoreError(
                    f"{directory} holds a store of the engine duckdb: use that engine or another directory"
                )
            make_state(self.directory)
            make_inside(self.directory, SPARK_MANIFESTS)
            self._lock = _locked(self.directory / "lock")
        except OSError as error:
            raise StoreError(f"cannot open the store in {self.directory}: {error}") from error
        try:
            kept = {batch: read_manifest(self._manifest(batch)) for batch in sorted(self._batches())}
            self._batch = max(kept, default=0)
            self._committed = kept[self._batch].files if kept else EMPTY
            self.files: Files = self._committed
            """The files of each table as the current batch sees them."""
            self._superseded: deque[tuple[int, list[Path]]] = deque()
            self._drafts: list[Path] = []
            for name in TABLES:
                make_inside(self.directory, name)
                for file in self.files[name]:
                    self._find(self.directory / name / file.name, file)
            for older, newer in pairwise(kept):
                self._supersede(older, kept[older].files, kept[newer])
            self._remove_unnamed(manifest.files for manifest in kept.values())
            self._sweep()
        except BaseException:
            os.close(self._lock)
            raise

    def append(self, table: str, rows: pa.Table) -> None:
        """Adds rows to a table, as part of the current batch."""
        if len(rows):
            self._buffers.setdefault(table, []).append(rows.cast(TABLES[table]))

    def parts(self, table: str) -> tuple[pa.Table, ...]:
        """The rows of a table that are not in files yet, as they were appended."""
        return tuple(self._buffers.get(table, ()))

    def has_rows(self, table: str) -> bool:
        """Whether a table has any rows."""
        return bool(self.files[table]) or table in self._buffers

    def fresh(self, table: str) -> pa.Table:
        """The rows of a table that are not in files yet, as one table."""
        return pa.concat_tables([TABLES[table].empty_table(), *self.parts(table)])

    def paths(self, table: str) -> list[str]:
        """The files of a table, each of which is as it was written. Raises StoreError if one is not."""
        return [str(self._path(table, file)) for file in self.files[table]]

    def read(self, table: str, schema: pa.Schema | None = None, key: str | None = None) -> pa.Table:
        """A whole table, or only the columns of a schema, or the rows of a key; those of the current batch included."""
        schema = TABLES[table] if schema is None else schema
        kept = (read_rows(path, schema, key) for path in self.paths(table))
        fresh = self.fresh(table)
        if key is not None:
            fresh = fresh.filter(pc.equal(fresh["key"], key))
        return pa.concat_tables([*kept, fresh.select(schema.names)])

    def highest(self, table: str, column: str) -> int | None:
        """The greatest number in a column of a table, None if it has none. Of files only the footers are read."""
        found = [pc.max(self.fresh(table)[column]).as_py()]
        for file in self.files[table]:
            path = self.directory / table / file.name
            if (table, file.name) not in self._checked:
                check_footer(path, file)
            found.append(highest_number(path, column))
        return max((number for number in found if number is not None), default=None)

    def _path(self, table: str, file: DataFile) -> Path:
        """A file that is read, which is checked when it is first read."""
        path = self.directory / table / file.name
        if (table, file.name) not in self._checked:
            check_whole(path, file)
            self._checked.add((table, file.name))
        return path

    def _find(self, path: Path, file: DataFile) -> None:
        """Raises StoreError if a file is gone or of another size."""
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            raise StoreError(f"the store is damaged: {path} is gone; take an older copy of the store") from None
        if size != file.size:
            raise damaged(path)

    def snapshot(self) -> Snapshot:
        """The files of the last batch that is committed."""
        return Snapshot(self.directory, self._committed)

    def cover(self, first: int, last: int) -> None:
        """Notes that rows of the join state in the current batch are about documents that begin from `first` to
        `last`, although these are not among its new ones."""
        self._covered += first, last

    def evict(self, before: int) -> dict[str, list[Path]]:
        """Drops the files of the join state whose documents all begin before a time, and returns which they are."""
        kept = {name: tuple(f for f in self.files[name] if f.last is None or f.last >= before) for name in STATE}
        gone = {n: [self.directory / n / f.name for f in self.files[n] if f not in kept[n]] for n in STATE}
        self.files = {**self.files, **kept}
        return gone

    def drop_before(self, table: str, column: str, bound: int) -> None:
        """Drops the rows of a table in which a number is less than `bound`."""
        self.drop_unless(table, column, lambda numbers: pc.greater_equal(numbers, bound))

    def drop_unless(self, table: str, column: str, test: Callable[[pa.ChunkedArray], pa.ChunkedArray]) -> None:
        """Drops the rows of a table whose number in a column fails a test, nulls aside: files of nothing else go, those
        with some such rows are written anew."""
        kept: list[DataFile] = []
        for file in self.files[table]:
            only = pa.schema([TABLES[table].field(column)])
            numbers = read_rows(self._path(table, file), only)[column]
            stays = pc.fill_null(test(numbers), True)
            count = pc.sum(stays).as_py() or 0
            if count == file.rows:
                kept.append(file)
            elif count:
                rows = read_rows(self._path(table, file), TABLES[table]).filter(stays)
                kept.append(self._write(table, self._batch + 1, rows, file.level, file.first, file.last))
        self.files = {**self.files, table: tuple(kept)}
        if table in self._buffers:
            fresh = self.fresh(table)
            self._buffers[table] = [fresh.filter(pc.fill_null(test(fresh[column]), True))]

    def rollback(self) -> None:
        """Forgets what came since the last commit."""
        self._buffers.clear()
        self._covered.clear()
        self.files = self._committed
        self._remove_drafts()

    def commit(self) -> None:
        """Writes the current batch and makes it visible."""
        batch = self._batch + 1
        files = {name: self._merged(name, batch, self.files[name] + self._written(name, batch)) for name in TABLES}
        if files != self._committed or not self._batch:
            manifest = Manifest(files, self._now())
            write_manifest(self._manifest(batch), manifest)
            if self._batch:
                self._supersede(self._batch, self._committed, manifest)
            self._committed = self.files = files
            self._batch = batch
            self._buffers.clear()
            self._covered.clear()
            self._checked &= {(name, file.name) for name in TABLES for file in files[name]}
            self._remove_drafts()
            with suppress(OSError):  # the batch stands; what cannot be removed now is removed later
                self._sweep()

    def close(self) -> None:
        """Lets others open the store."""
        os.close(self._lock)
        if self._temporary is not None:
            self._temporary.cleanup()

    def _written(self, table: str, batch: int) -> tuple[DataFile, ...]:
        rows = self.fresh(table)
        if not len(rows):
            return ()
        times = [*self.fresh("r_docts")["t0"].to_pylist(), *self._covered] if table in STATE else []
        return (self._write(table, batch, rows, 0, min(times, default=None), max(times, default=None)),)

    def _merged(self, table: str, batch: int, files: tuple[DataFile, ...]) -> tuple[DataFile, ...]:
        """The files with every MERGE of one level made into one of the next."""
        small = sorted((f for f in files if f.size <= MERGED_BYTES // MERGE), key=lambda f: f.level)
        for level, group in groupby(small, key=lambda f: f.level):
            members = list(group)
            if len(members) >= MERGE:
                rows = pa.concat_tables(read_rows(self._path(table, f), TABLES[table]) for f in members)
                first = min((f.first for f in members if f.first is not None), default=None)
                last = max((f.last for f in members if f.last is not None), default=None)
                merged = self._write(table, batch, rows, level + 1, first, last)
                rest = tuple(f for f in files if f not in members)
                return self._merged(table, batch, (merged, *rest))
        return files

    def _write(
        self, table: str, batch: int, rows: pa.Table, level: int, first: int | None, last: int | None
    ) -> DataFile:
        path = self.directory / table / f"{batch}-{next(self._numbers)}.parquet"
        sink = pa.BufferOutputStream()
        pq.write_table(rows, sink)
        content = memoryview(sink.getvalue())
        self._drafts.append(path)
        with open(path, "wb", opener=as_its_directory) as file:
            file.write(content)
            sync_file(file.fileno())
        sync_directory(path.parent)
        self._checked.add((table, path.name))
        return DataFile(path.name, len(rows), len(content), level, first, last, *digests(content))

    def _supersede(self, batch: int, older: Files, newer: Manifest) -> None:
        """Notes that a manifest has another after it, which names some of its files no longer."""
        gone = [self.directory / name / f.name for name in TABLES for f in set(older[name]) - set(newer.files[name])]
        self._superseded.append((newer.written_at, [*gone, self._manifest(batch)]))

    def _sweep(self) -> None:
        """Removes what has been superseded for long, the manifest itself last: it tells which its files are."""
        before = self._now() - self._grace
        while len(self._superseded) > 1 and self._superseded[0][0] <= before:
            for path in self._superseded[0][1]:
                path.unlink(missing_ok=True)
            self._superseded.popleft()

    def _remove_drafts(self) -> None:
        """Removes files of the current batch that did not become part of it."""
        named = {self.directory / name / file.name for name in TABLES for file in self._committed[name]}
        for path in self._drafts:
            if path not in named:
                with suppress(OSError):
                    path.unlink(missing_ok=True)
        self._drafts.clear()

    def _remove_unnamed(self, kept: Iterable[Files]) -> None:
        """Removes the files that killed runs left behind."""
        named = {(name, f.name) for files in kept for name in TABLES for f in files[name]}
        for name in TABLES:
            for path in (self.directory / name).iterdir():
                if (name, path.name) not in named:
                    path.unlink()
        manifests = self.directory / SPARK_MANIFESTS
        for draft in (*drafts(manifests), *manifests.glob("*.tmp")):  # as older versions called them
            draft.unlink()

    def _manifest(self, batch: int) -> Path:
        return self.directory / SPARK_MANIFESTS / f"{batch}.json"

    def _batches(self) -> Iterable[int]:
        return (int(path.stem) for path in (self.directory / SPARK_MANIFESTS).glob("*.json"))


def _locked(path: Path) -> int:
    handle = make_lock(path.parent, path.name)
    try:
        if not lock(handle):
            raise StoreError(f"the store in {path.parent} is in use by another process")
    except BaseException:
        os.close(handle)
        raise
    return handle
