"""The plans `basic` (thesis, Algorithm 1) and `views` (6.5, Algorithms 4 and 5) on Spark. The view cache is in Parquet
files. One job computes the slices of a batch and the uncached ones of the state; the driver fetches and broadcasts them
like the batch. Tasks read the cached slices from files. A value that enters the cache gets a fresh number, so rows of
an evicted value, which stay until files are merged, are never taken for those of another."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit

from join_stage.protocol import (
    NEW_LEFT,
    NEW_RIGHT,
    RESULT,
    Batch,
    Cost,
    JoinPlan,
    Matches,
    QueryForm,
    SQLPlan,
    TemplateTable,
    batch_statements,
    value_pairs_statement,
)
from join_stage.store.spark.parquet_store import TableViews, files_frame, local_frame
from join_stage.tables import STATE
from join_stage.views import ROW_BYTES, SLICE, VALUE_BYTES, JoinedEdges, joined_slices_statement, slices_statement
from templates.catalog import TemplateRow
from templates.graph import executable_query, executable_views_query
from templates.witness import Witnesses

TASK_ROWS = 100_000
"""Number of rows of R_vj and R_bin, in each template, that justify a task."""


class SparkPlan(JoinPlan, Protocol):
    """A plan in the session of the engine. The views r_bin_w, r_doc_w and r_docts_w hold the batch."""

    def join(self, batch: Batch, before: Mapping[str, DataFrame]) -> Matches:
        """Answers all templates for a batch. `before` is the join state without the batch, by table; empty if there is
        none or the plan is not `in_sql`."""

    def evicted(self, files: Mapping[str, Sequence[Path]], before: int) -> None:
        """Called when files leave the join state, by table; their documents all begin before a time. The files stay
        readable until the end of the batch."""


class SparkBasicPlan(SQLPlan):
    """The plan `basic`: the conjunctive queries of all templates over the join state."""

    def __init__(self, session: SparkSession, views: TableViews) -> None:
        super().__init__()
        self._session, self._views = session, views
        self._rows: dict[int, dict[int, TemplateRow]] = {}
        self._dirty: set[int] = set()

    def put_rows(self, template: TemplateTable, rows: Sequence[TemplateRow]) -> None:
        self._templates[template.number] = template
        self._rows.setdefault(template.number, {}).update((row.id, row) for row in rows)
        self._dirty.add(template.number)

    def drop_rows(self, template: TemplateTable, rows: Sequence[TemplateRow]) -> None:
        kept = self._rows[template.number]
        for row in rows:
            kept.pop(row.id, None)
        self._dirty.add(template.number)
        if not kept:
            del self._templates[template.number], self._rows[template.number]

    def _refresh_rows(self) -> None:
        for number in self._dirty & self._templates.keys():
            template = self._templates[number]
            rows = ((row.id, *row.variables, row.window, row.ordered) for row in self._rows[number].values())
            arrays = [
                pa.array(values, pa.int32() if column.startswith("var") else None)
                for column, values in zip(template.columns, zip(*rows, strict=True), strict=True)
            ]
            self._views.show(template.name, pa.table(arrays, names=template.columns))
        self._dirty.clear()

    def join(self, batch: Batch, before: Mapping[str, DataFrame]) -> pa.Table:
        self._refresh_rows()
        templates = list(self._templates.values())
        if not templates:
            return RESULT.empty_table()
        with ExitStack() as cached:
            if any(template.shape.joins for template in templates):
                self._prepare(before, batch, cached)
            return self._answer(batch)

    def _answer(self, batch: Batch, form: QueryForm = executable_query) -> pa.Table:
        templates = list(self._templates.values())
        ((statement, numbers),) = batch_statements(templates, "array({})", with_old=batch.older, form=form)
        begin = time.perf_counter()
        found = self._session.sql(statement).toArrow().cast(RESULT)
        self._costs.add(Cost(time.perf_counter() - begin, len(found), numbers))
        return found

    def _prepare(self, before: Mapping[str, DataFrame], batch: Batch, cached: ExitStack) -> None:
        """Creates the views that the statement of a batch reads. `before` is the join state without the batch, if any.
        Only documents that share a value with the batch can match; their rows and R_vj are read once and cached for all
        templates while `cached` is open."""
        session, joined = self._session, {f"{name}_w": self._session.table(f"{name}_w") for name in STATE}
        if before:
            values = joined["r_doc_w"].select("strval")
            docs = persisted(before["r_doc"].join(values, "strval", "left_semi"), cached)
            joined["r_doc_old"] = docs.select(STATE["r_doc"].names)
            for name in ("r_bin", "r_docts"):
                joined[f"{name}_old"] = persisted(before[name].join(docs.select("docid"), "docid", "left_semi"), cached)
        for name in STATE:
            rows = joined[f"{name}_w"]
            joined[name] = joined[f"{name}_old"].unionAll(rows) if before else rows
            self._views.forget(name)
        for name, frame in joined.items():
            frame.createOrReplaceTempView(name)
        self._views.show("joined_streams", batch.scope.joined_streams())
        for side in (NEW_RIGHT, NEW_LEFT) if before else (NEW_RIGHT,):
            statement = value_pairs_statement(side, batch.scope.window, many=batch.has_many_values)
            joined[side.pairs] = persisted(session.sql(statement), cached)
        self._measure(joined)

    def _measure(self, joined: Mapping[str, DataFrame]) -> None:
        # One job fills the caches. Spark plans by size, and knows the size of a cached frame once it is computed.
        streamed = {name: frame for name, frame in joined.items() if name.startswith(("r_vj", "r_lr", "r_bin"))}
        size = reduce(DataFrame.unionAll, [frame.select(lit(1)) for frame in streamed.values()]).count()
        for name, frame in streamed.items():
            frame.coalesce(1 + size // TASK_ROWS).createOrReplaceTempView(name)

    def evicted(self, files: Mapping[str, Sequence[Path]], before: int) -> None: ...


def persisted(frame: DataFrame, cached: ExitStack) -> DataFrame:
    """Caches the frame in memory from its first computation until `cached` is closed."""
    frame.persist()
    cached.callback(frame.unpersist)
    return frame


MERGE = 16
"""Number of files merged into one."""


class CachedValue(NamedTuple):
    """A cached value: its number, and the number of rows of its slice."""

    number: int
    rows: int


@dataclass(frozen=True)
class CachedSlices:
    """The cache's state: values, least recently used first; files with numbers of rows; `size` of all slices in
    bytes."""

    entries: Mapping[str, CachedValue] = field(default_factory=lambda: MappingProxyType({}))
    files: tuple[tuple[Path, int], ...] = ()
    size: int = 0


class ViewCache:
    """Caches slices of at most `bound` bytes, in its own directory; committed and rolled back with batches."""

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
        """Approximate size of the cached slices in bytes."""
        return self._now.size

    @property
    def paths(self) -> list[str]:
        """The files with the rows of slices; some rows may be of evicted values."""
        return [str(path) for path, _ in self._now.files]

    def numbered(self, values: Iterable[str]) -> dict[str, tuple[int, bool]]:
        """For each value, its number and whether its slice is cached; numbers new values."""
        entries = self._now.entries
        return {v: (entries[v].number, True) if v in entries else (next(self._numbers), False) for v in values}

    def update(self, numbers: Mapping[str, tuple[int, bool]], computed: pa.Table, fresh: pa.Table) -> None:
        """Algorithm 5, after a batch whose values have `numbers`: adds the slices `computed` for it, extends all
        touched slices by its rows, `fresh`, and evicts the least recently used past the bound."""
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
        self._now = CachedSlices()

    def commit(self) -> None:
        self._kept = self._now
        self._sweep()

    def rollback(self) -> None:
        self._now = self._kept
        self._sweep()

    def close(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)

    def _sweep(self) -> None:
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
    return {item["values"]: item["counts"] for item in pc.value_counts(rows["value"]).to_pylist()}


def _of(rows: pa.Table, numbers: pa.Array) -> pa.Table:
    return rows.filter(pc.is_in(rows["value"], numbers))


_VALUES = pa.schema([("strval", pa.string()), ("value", pa.int64())])


class SparkViewsPlan(SparkBasicPlan):
    """The plan `views`: the queries of the templates over R_LR, which joins slices. The cache, in `directory`, is
    bounded by `cache_bytes`."""

    def __init__(self, session: SparkSession, views: TableViews, directory: Path, cache_bytes: int) -> None:
        super().__init__(session, views)
        self._cache = ViewCache(directory, cache_bytes)
        self._edges = JoinedEdges()

    def put_rows(self, template: TemplateTable, rows: Sequence[TemplateRow]) -> None:
        super().put_rows(template, rows)
        self._edges.put(template, rows)

    def drop_rows(self, template: TemplateTable, rows: Sequence[TemplateRow]) -> None:
        super().drop_rows(template, rows)
        self._edges.drop(template, rows)

    def join(self, batch: Batch, before: Mapping[str, DataFrame]) -> pa.Table:
        templates = list(self._templates.values())
        if not any(template.shape.joins for template in templates):
            self._cache.clear()  # its slices would lack the rows of this batch, and no template needs them
            return super().join(batch, before)
        self._refresh_rows()
        numbers = self._cache.numbered(pc.unique(batch.witnesses.r_doc["strval"]).to_pylist())
        for name, frame in before.items():
            frame.createOrReplaceTempView(f"{name}_old")
        computed, fresh = self._slices(batch, numbers)
        with ExitStack() as cached:
            self._prepare_views(batch, before, numbers, computed, fresh, cached)
            found = self._answer(batch, executable_views_query)
        if batch.older:
            self._cache.update(numbers, computed, fresh)
        return found

    def _slices(self, batch: Batch, numbers: Mapping[str, tuple[int, bool]]) -> tuple[pa.Table, pa.Table]:
        self._views.show("batch_values", _relation({value: number for value, (number, _) in numbers.items()}))
        statement = slices_statement("batch_values", "_w")
        missing = {value: number for value, (number, cached) in numbers.items() if not cached}
        if batch.older and missing:
            self._views.show("missing_values", _relation(missing))
            statement += "\nUNION ALL\n" + slices_statement("missing_values", "_old")
        rows = self._session.sql(statement).toArrow().cast(SLICE)
        old = pc.less(rows["docid"], batch.first_docid)
        return rows.filter(old), rows.filter(pc.invert(old))

    def _prepare_views(
        self,
        batch: Batch,
        before: Mapping[str, DataFrame],
        numbers: Mapping[str, tuple[int, bool]],
        computed: pa.Table,
        fresh: pa.Table,
        cached: ExitStack,
    ) -> None:
        session, joined = self._session, {"r_bin_w": self._session.table("r_bin_w")}
        state = rows = local_frame(session, fresh)
        rows.createOrReplaceTempView("slices_w")
        if before:
            old = local_frame(session, computed)
            hits = pa.array([number for number, hit in numbers.values() if hit], pa.int64())
            if len(hits):
                found = files_frame(session, SLICE, self._cache.paths)
                old = old.unionAll(found.join(local_frame(session, pa.table({"value": hits})), "value", "left_semi"))
            old = persisted(old, cached)
            old.createOrReplaceTempView("slices_old")
            state = old.unionAll(rows)
            if self._has_inner_edges():
                joined["r_bin_old"] = persisted(before["r_bin"].join(old.select("docid"), "docid", "left_semi"), cached)
        state.createOrReplaceTempView("slices")
        joined["r_bin"] = (
            joined["r_bin_old"].unionAll(joined["r_bin_w"]) if "r_bin_old" in joined else joined["r_bin_w"]
        )
        self._views.forget("r_bin")
        self._views.show("joined_streams", batch.scope.joined_streams())
        self._views.show("joined_edges", self._edges.table())
        for side in (NEW_RIGHT, NEW_LEFT) if before else (NEW_RIGHT,):
            statement = joined_slices_statement(side, batch.scope.window, many=batch.has_many_values)
            joined[side.edges] = persisted(session.sql(statement), cached)
        self._measure(joined)

    def _has_inner_edges(self) -> bool:
        return any(
            parent is not None and place in template.shape.parents
            for template in self._templates.values()
            for place, parent in enumerate(template.shape.parents)
        )

    def evicted(self, files: Mapping[str, Sequence[Path]], before: int) -> None:
        dropped = [path for name in STATE for path in files[name]]
        if dropped and len(self._cache):
            docids = [pq.ParquetFile(path).read(["docid"])["docid"] for path in dropped]
            self._cache.evict(pc.unique(pa.chunked_array([c for column in docids for c in column.chunks], pa.int64())))

    def extend(self, witnesses: Witnesses, *, whole: bool) -> None:
        self.forget()

    def forget(self) -> None:
        self._cache.clear()

    def committed(self) -> None:
        self._cache.commit()

    def rolled_back(self, *, whole: bool) -> None:
        self._cache.rollback()

    def close(self) -> None:
        self._cache.close()

    def counters(self) -> dict[str, int]:
        cache = self._cache
        return {
            "hits": cache.hits,
            "misses": cache.misses,
            "evictions": cache.evictions,
            "values": len(cache),
            "bytes": cache.size,
        }

    def view_cache(self) -> pa.Table:
        return self._cache.table()


def _relation(numbers: Mapping[str, int]) -> pa.Table:
    columns = [pa.array(numbers.keys(), pa.string()), pa.array(numbers.values(), pa.int64())]
    return pa.table(columns, schema=_VALUES)
