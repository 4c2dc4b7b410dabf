"""The view cache of the Spark engine: the rows of its slices are in Parquet files, its values in memory.

A value that enters the cache gets a number that was never used. Rows of an evicted value stay in their file until files
are merged, and so are never taken for those of another value.
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
"""The number of files that are merged into one."""


class CachedValue(NamedTuple):
    """A value in the cache: its number, and the number of rows of its slice."""

    number: int
    rows: int


@dataclass(frozen=True)
class CachedSlices:
    """The content of the cache at one time: its values, least recently used first, the files with their rows and the
    number of rows in each, and the `size` of all slices in bytes."""

    entries: Mapping[str, CachedValue] = field(default_factory=lambda: MappingProxyType({}))
    files: tuple[tuple[Path, int], ...] = ()
    size: int = 0


class ViewCache:
    """Slices of at most `bound` bytes, in a directory of their own. They are committed and rolled back with batches."""

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
        """The approximate size of the cached slices, in bytes."""
        return self._now.size

    @property
    def paths(self) -> list[str]:
        """The files with the rows of slices. Some rows may be of evicted values."""
        return [str(path) for path, _ in self._now.files]

    def numbered(self, values: Iterable[str]) -> dict[str, tuple[int, bool]]:
        """For each value of a batch, its number and whether its slice is cached. New values are numbered."""
        entries = self._now.entries
        return {v: (entries[v].number, True) if v in entries else (next(self._numbers), False) for v in values}

    def update(self, numbers: Mapping[str, tuple[int, bool]], computed: pa.Table, fresh: pa.Table) -> None:
        """Algorithm 5, after a batch whose values have `numbers`: adds the slices that were `computed` for it, adds the
        rows of the batch, `fresh`, to all slices that it touched, and evicts the least recently used past the bound."""
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
        # A slice larger than the bound goes first: keeping it would evict all others.
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
        """Drops the rows of documents that left the state."""
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
        """Commits the changes since the last commit."""
        self._kept = self._now
        self._sweep()

    def rollback(self) -> None:
        """Rolls back the changes since the last commit."""
        self._now = self._kept
        self._sweep()

    def close(self) -> None:
        """Removes the files."""
        shutil.rmtree(self._directory, ignore_errors=True)

    def _sweep(self) -> None:
        """Removes the files that are no longer used."""
        used = {path for path, _ in self._kept.files}
        for path in self._written_paths - used:
            path.unlink(missing_ok=True)
        self._written_paths = used

    def rows(self) -> pa.Table:
        """The rows of all cached slices."""
        return self._live(self._now)

    def table(self) -> pa.Table:
        """The rows of the cached slices with their values, for inspection."""
        values = {entry.number: value for value, entry in self._now.entries.items()}
        rows = self.rows()
        texts = pa.array([values[number] for number in rows["value"].to_pylist()], pa.string())
        return rows.select(["docid", "var1", "var2", "node1", "node2"]).add_column(0, "strval", texts)

    def _live(self, cached: CachedSlices) -> pa.Table:
        rows = pa.concat_tables([SLICE.empty_table(), *(pq.ParquetFile(path).read() for path, _ in cached.files)])
        return _of(rows, pa.array([entry.number for entry in cached.entries.values()], pa.int64()))

    def _tidied(self, cached: CachedSlices) -> CachedSlices:
        """The same content in one file, if there are many files, or if most of their rows are of evicted values."""
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
    """The number of rows of each value number."""
    return {item["values"]: item["counts"] for item in pc.value_counts(rows["value"]).to_pylist()}


def _of(rows: pa.Table, numbers: pa.Array) -> pa.Table:
    return rows.filter(pc.is_in(rows["value"], numbers))
