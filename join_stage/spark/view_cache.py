"""The view cache of the Spark engine: the rows of its slices in Parquet files, which values they are for in memory.

A value that enters the cache gets a number that no other had, so that rows of a value that has left it, which stay in
their file until the files are merged, are never taken for others.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from join_stage.views import ROW_BYTES, SLICE, VALUE_BYTES

MERGE = 16
"""So many files of slices are made into one."""


class CachedValue(NamedTuple):
    """A value in the cache: the number that stands for it, and how many rows its slice has."""

    number: int
    rows: int


@dataclass(frozen=True)
class CachedSlices:
    """What the cache holds at one time: its values, the least recently used first, and the files with their rows."""

    entries: Mapping[str, CachedValue] = field(default_factory=lambda: MappingProxyType({}))
    files: tuple[tuple[Path, int], ...] = ()
    size: int = 0


class ViewCache:
    """Slices in a directory of their own, within a bound. What changes in a batch is taken back with it."""

    def __init__(self, directory: Path, bound: int) -> None:
        self._directory, self.bound = directory, bound
        directory.mkdir()
        self._names = count()
        self._numbers = count()
        self._kept = self._now = CachedSlices()
        self._written_paths: set[Path] = set()
        self.hits = self.misses = self.evictions = 0

    def __len__(self) -> int:
        return len(self._now.entries)

    @property
    def size(self) -> int:
        """What the cached slices take, in bytes, about."""
        return self._now.size

    @property
    def paths(self) -> list[str]:
        """The files with the rows of slices; not all of these rows are still in the cache."""
        return [str(path) for path, _ in self._now.files]

    def numbered(self, values: Iterable[str]) -> dict[str, tuple[int, bool]]:
        """For each of a batch's values its number, and whether its slice is cached."""
        entries = self._now.entries
        return {v: (entries[v].number, True) if v in entries else (next(self._numbers), False) for v in values}

    def update(self, numbers: Mapping[str, tuple[int, bool]], computed: pa.Table, fresh: pa.Table) -> None:
        """Algorithm 5, after a batch whose values have `numbers`: keeps slices that were `computed` for it, adds the
        batch's own rows, `fresh`, to all slices that it touched, and drops the least recently used past the bound."""
        counted, added = _counts(computed), _counts(fresh)
        entries, size = dict(self._now.entries), self._now.size
        touched = {value: n for value, (n, cached) in numbers.items() if cached or n in counted}
        for value, number in touched.items():
            old = entries.pop(value, None)
            entry = CachedValue(number, (old.rows if old else counted[number]) + added.get(number, 0))
            size += _size(value, entry) - (_size(value, old) if old else 0)
            entries[value] = entry
        hits = sum(numbers[value][1] for value in touched)
        self.hits, self.misses = self.hits + hits, self.misses + len(touched) - hits
        # What does not fit at all goes first: to keep it would cost all others their place.
        for value in [value for value in touched if _size(value, entries[value]) > self.bound]:
            size -= _size(value, entries.pop(value))
            self.evictions += 1
        while size > self.bound:
            value = next(iter(entries))
            size -= _size(value, entries.pop(value))
            self.evictions += 1
        kept = pa.array([n for value, n in touched.items() if value in entries], pa.int64())
        rows = pa.concat_tables([_of(computed, kept), _of(fresh, kept)])
        self._now = self._tidied(
            CachedSlices(MappingProxyType(entries), (*self._now.files, *self._written(rows)), size)
        )

    def evict(self, docids: pa.Array) -> None:
        """Drops the rows of documents that have left the state."""
        rows = self.rows()
        kept = rows.filter(pc.invert(pc.is_in(rows["docid"], docids)))
        if len(kept) < len(rows):
            counted = _counts(kept)
            entries = {
                v: CachedValue(e.number, counted[e.number]) for v, e in self._now.entries.items() if e.number in counted
            }
            size = sum(_size(value, entry) for value, entry in entries.items())
            self._now = CachedSlices(MappingProxyType(entries), self._written(kept), size)

    def clear(self) -> None:
        """Drops everything."""
        self._now = CachedSlices()

    def commit(self) -> None:
        """Keeps what has changed since the last commit."""
        self._kept = self._now
        self._sweep()

    def rollback(self) -> None:
        """Takes back what has changed since the last commit."""
        self._now = self._kept
        self._sweep()

    def close(self) -> None:
        """Removes the files."""
        shutil.rmtree(self._directory, ignore_errors=True)

    def _sweep(self) -> None:
        """Removes the files that no longer count."""
        used = {path for path, _ in self._kept.files}
        for path in self._written_paths - used:
            path.unlink(missing_ok=True)
        self._written_paths = used

    def rows(self) -> pa.Table:
        """The rows of all cached slices."""
        return self._live(self._now)

    def table(self) -> pa.Table:
        """The cached slices with their values, to look at."""
        values = {entry.number: value for value, entry in self._now.entries.items()}
        rows = self.rows()
        texts = pa.array([values[number] for number in rows["value"].to_pylist()], pa.string())
        return rows.select(["docid", "var1", "var2", "node1", "node2"]).add_column(0, "strval", texts)

    def _live(self, cached: CachedSlices) -> pa.Table:
        rows = pa.concat_tables([SLICE.empty_table(), *(pq.ParquetFile(path).read() for path, _ in cached.files)])
        return _of(rows, pa.array([entry.number for entry in cached.entries.values()], pa.int64()))

    def _tidied(self, cached: CachedSlices) -> CachedSlices:
        """The same with all rows in one file, if there are many files, or most of their rows have left the cache."""
        live = sum(entry.rows for entry in cached.entries.values())
        if len(cached.files) < MERGE and sum(n for _, n in cached.files) <= 2 * live:
            return cached
        return replace(cached, files=self._written(self._live(cached)))

    def _written(self, rows: pa.Table) -> tuple[tuple[Path, int], ...]:
        if not len(rows):
            return ()
        path = self._directory / f"{next(self._names)}.parquet"
        self._written_paths.add(path)
        pq.write_table(rows, path)
        return ((path, len(rows)),)


def _size(value: str, entry: CachedValue) -> int:
    return VALUE_BYTES + len(value.encode("utf-8", "surrogatepass")) + entry.rows * ROW_BYTES


def _counts(rows: pa.Table) -> dict[int, int]:
    """How many rows each number has."""
    return {item["values"]: item["counts"] for item in pc.value_counts(rows["value"]).to_pylist()}


def _of(rows: pa.Table, numbers: pa.Array) -> pa.Table:
    return rows.filter(pc.is_in(rows["value"], numbers))
