"""Plans in SQL on any engine; for `views` (thesis 6.5, Algorithms 4 and 5) the SQL of slices and joins, and the cache.
A slice is R_L,s of the thesis (6.5): the rows of R_doc with one string value, joined with R_bin on node = node2, with
the stream and times of their document. The view cache has complete slices: all rows of both for the value. A value that
enters the cache gets a fresh number, so leftover rows of an evicted value are not mistaken for its."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from types import MappingProxyType
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from common.bounds import INFINITE
from join_stage.plans import JoinPlan
from join_stage.protocol import APART, R_BIN_FLAT, SPAN, Batch, Matches, Orientation, TemplateTable, drop_runs_manifest
from join_stage.store.protocol import TableStore
from templates.graph import Shape
from templates.witness import Witnesses

CACHE_BYTES = 256 << 20  # maximum bytes of cached slices between batches; a batch may use more

ROW_BYTES = 72  # bytes of a row of a slice: nine columns, uncompressed

VALUE_BYTES = 64  # approximate bytes of a cached value beside its text and slice

SLICE = pa.schema([("value", pa.int64()), *R_BIN_FLAT, ("stream", pa.string()), ("t0", pa.int64()), ("t1", pa.int64())])
"""Rows of slices. `value` numbers the string value, in the cache and in a batch."""


class BatchValue(NamedTuple):
    number: int
    is_cached: bool  # whether its slice is


BatchValues = Mapping[str, BatchValue]  # the string values of a batch

MERGE = 16  # number of parts of the cache that are copied into one


class CachedValue(NamedTuple):
    """A cached value: its number, and the number of rows of its slice."""

    number: int
    rows: int


@dataclass(frozen=True)
class CachedSlices:
    """The cache's state: values, least recently used first; rows, perhaps also of evicted values; `size` in bytes."""

    entries: Mapping[str, CachedValue] = field(default_factory=lambda: MappingProxyType({}))
    rows: pa.Table = field(default_factory=SLICE.empty_table)
    size: int = 0

    def live(self) -> pa.Table:
        return _of(self.rows, [entry.number for entry in self.entries.values()])


class ViewCache:
    """Caches slices of at most `bound` bytes; committed and rolled back with batches."""

    def __init__(self, bound: int) -> None:
        self.bound = bound
        self._numbers = count()
        self._kept = self._now = CachedSlices()
        self._hits = self._misses = self._evictions = 0

    def numbered(self, values: Iterable[str]) -> BatchValues:
        """Numbers values; those that are not cached get new numbers."""
        entries = self._now.entries
        found = ((v, entries.get(v)) for v in values)
        return {v: BatchValue(known.number if known else next(self._numbers), known is not None) for v, known in found}

    def slices(self, values: BatchValues) -> pa.Table:
        """The rows of the cached slices of some values."""
        return _of(self._now.rows, [number for number, is_cached in values.values() if is_cached])

    def update(self, values: BatchValues, computed: pa.Table, fresh: pa.Table) -> None:
        """Algorithm 5: adds `computed` slices, extends touched ones by `fresh`, evicts the least recently used."""
        counted, added = _counts(computed), _counts(fresh)
        entries, size = dict(self._now.entries), self._now.size
        touched = {value: n for value, (n, is_cached) in values.items() if is_cached or n in counted}
        for value, number in touched.items():
            old = entries.pop(value, None)
            entry = CachedValue(number, (old.rows if old else counted[number]) + added.get(number, 0))
            size += _size(value, entry) - (_size(value, old) if old else 0)
            entries[value] = entry
        hits = sum(values[value].is_cached for value in touched)
        self._hits, self._misses = self._hits + hits, self._misses + len(touched) - hits
        # A slice larger than the bound goes first: keeping it would evict all others.
        doomed = [value for value in touched if _size(value, entries[value]) > self.bound]
        while doomed or size > self.bound:
            value = doomed.pop() if doomed else next(iter(entries))
            size -= _size(value, entries.pop(value))
            self._evictions += 1
        stays = [number for value, number in touched.items() if value in entries]
        rows = pa.concat_tables([self._now.rows, _of(computed, stays), _of(fresh, stays)])
        self._now = CachedSlices(MappingProxyType(entries), rows, size)
        if len(rows) > 2 * sum(entry.rows for entry in entries.values()):
            self._now = CachedSlices(self._now.entries, self._now.live(), size)
        if self._now.rows["value"].num_chunks > MERGE:
            self._now = CachedSlices(self._now.entries, self._now.rows.combine_chunks(), size)

    def evict(self, docids: pa.ChunkedArray) -> None:
        """Drops the rows of documents that left the state."""
        rows = self._now.live()
        kept = rows.filter(pc.invert(pc.is_in(rows["docid"], docids.combine_chunks())))
        if len(kept) < len(rows):
            counted, known = _counts(kept), self._now.entries.items()
            entries = {v: CachedValue(e.number, counted[e.number]) for v, e in known if e.number in counted}
            size = sum(_size(value, entry) for value, entry in entries.items())
            self._now = CachedSlices(MappingProxyType(entries), kept, size)

    def clear(self) -> None:
        self._now = CachedSlices()

    def commit(self) -> None:
        self._kept = self._now

    def rollback(self) -> None:
        self._now = self._kept

    def counters(self) -> dict[str, int]:
        cached = {"values": len(self._now.entries), "bytes": self._now.size}
        return {"hits": self._hits, "misses": self._misses, "evictions": self._evictions, **cached}


def _size(value: str, entry: CachedValue) -> int:
    return VALUE_BYTES + len(value.encode("utf-8", "surrogatepass")) + entry.rows * ROW_BYTES


def _counts(rows: pa.Table) -> dict[int, int]:
    return {item["values"]: item["counts"] for item in pc.value_counts(rows["value"]).to_pylist()}


def _of(rows: pa.Table, numbers: list[int]) -> pa.Table:
    return rows.filter(pc.is_in(rows["value"], pa.array(numbers, pa.int64())))


class SQLPlan(JoinPlan):
    """The part of a SQL plan that both engines share. It does not keep the runs of the plan `signature` up to date, so
    it drops their manifest when the state changes otherwise than by batches."""

    def __init__(self, store: TableStore) -> None:
        super().__init__()
        self._store = store
        self._templates: dict[int, TemplateTable] = {}
        self.version = 0  # changes with the rows of R_T

    @property
    def has_joins(self) -> bool:
        return any(template.shape.joins for template in self._templates.values())

    def extend(self, witnesses: Witnesses, *, whole: bool) -> None:
        drop_runs_manifest(self._store)

    def evicted(self, docids: Callable[[], pa.ChunkedArray], before: int) -> None:
        drop_runs_manifest(self._store)

    def forget(self) -> None:
        drop_runs_manifest(self._store)


class CachedViews(SQLPlan):
    """The part of the plan `views` that both engines share: the queries of templates over R_LR, which joins slices."""

    _cache: ViewCache
    _edges: tuple[int, pa.Table] = (-1, None)  # the version of the rows of R_T, and the pairs of edges that they join

    def _select(self, sql: str, tables: Mapping[str, pa.Table]) -> pa.Table:
        """Answers a query over the tables of a batch, and over named ones."""
        raise NotImplementedError

    def _joined(self, batch: Batch, views: Mapping[str, pa.Table]) -> Matches:
        """Answers all templates over R_LR, which is made of the views `slices`, `slices_old` (the cached ones and those
        of the state), `slices_w` (of the batch), `joined_edges` and `joined_streams`."""
        raise NotImplementedError

    def join(self, batch: Batch) -> Matches:
        if not self.has_joins:
            self._cache.clear()  # its slices would lack the rows of this batch, and no template needs them
            return super().join(batch)
        values = self._cache.numbered(pc.unique(batch.witnesses.r_doc["strval"]).to_pylist())
        computed, fresh = self._slices(batch, values)
        old = pa.concat_tables([computed, self._cache.slices(values)])
        views = {"slices_old": old, "slices_w": fresh, "slices": pa.concat_tables([old, fresh])}
        if self._edges[0] != self.version:
            self._edges = self.version, self._select(joined_edges_statement(self._templates.values()), {})
        edges = {"joined_edges": self._edges[1], "joined_streams": batch.scope.joined_streams()}
        found = self._joined(batch, views | edges)
        if batch.older:
            self._cache.update(values, computed, fresh)
        return found

    def _slices(self, batch: Batch, values: BatchValues) -> tuple[pa.Table, pa.Table]:
        """The slices of a batch's values: of the state before it those that are not cached, and of the batch itself."""
        numbers = {value: number for value, (number, _) in values.items()}
        tables, statement = {"batch_values": _relation(numbers)}, slices_statement("batch_values", "_w")
        missing = {value: number for value, number in numbers.items() if not values[value].is_cached}
        if batch.older and missing:
            tables["missing_values"] = _relation(missing)
            statement += "\nUNION ALL\n" + slices_statement("missing_values", "_old")
        rows = self._select(statement, tables).cast(SLICE)
        is_old = pc.less(rows["docid"], batch.first_docid)
        return rows.filter(is_old), rows.filter(pc.invert(is_old))

    def extend(self, witnesses: Witnesses, *, whole: bool) -> None:
        super().extend(witnesses, whole=whole)
        self._cache.clear()

    def evicted(self, docids: Callable[[], pa.ChunkedArray], before: int) -> None:
        super().evicted(docids, before)
        self._cache.evict(docids())

    def forget(self) -> None:
        super().forget()
        self._cache.clear()

    def committed(self) -> None:
        self._cache.commit()

    def rolled_back(self, *, whole: bool) -> None:
        self._cache.rollback()
        if not whole:  # the batch may have been committed
            self._cache.clear()
            self._cache.commit()

    def counters(self) -> dict[str, int]:
        return self._cache.counters()


def _relation(numbers: Mapping[str, int]) -> pa.Table:
    return pa.table({"strval": pa.array(numbers.keys(), pa.string()), "value": pa.array(numbers.values(), pa.int64())})


def joined_edges_statement(templates: Iterable[TemplateTable]) -> str:
    """The pairs of edges, left and right, that the value joins of the rows of R_T join; some template has one."""
    selects: dict[str, None] = {}
    for template in templates:
        for join in template.shape.joins:
            nodes = [node for leaf in join for node in (_parent(template.shape, leaf), leaf)]
            columns = ", ".join(f"var{node + 1} AS var{place}" for place, node in enumerate(nodes, 1))
            selects[f"SELECT {columns} FROM {template.name}"] = None
    return f"SELECT DISTINCT * FROM ({' UNION ALL '.join(selects)}) AS joined"


def _parent(shape: Shape, leaf: int) -> int:
    parent = shape.parents[leaf]
    return leaf if parent is None else parent


def slices_statement(values: str, suffix: str) -> str:
    """The slices of the values in `values` (strval, value). `suffix` ends the names of R_doc, R_bin and R_docTS."""
    # The hint, which is a comment to DuckDB, spares Spark a shuffle of R_bin: few rows have these values.
    return f"""SELECT /*+ BROADCAST(n) */ n.value, n.docid, b.var1, b.var2, b.node1, b.node2, n.stream, n.t0, n.t1
FROM r_bin{suffix} b JOIN (
  SELECT m.value, m.docid, m.node, m.stream, t.t0, t.t1 FROM r_docts{suffix} t JOIN (
    SELECT v.value, d.docid, d.node, d.stream FROM r_doc{suffix} d JOIN {values} v ON v.strval = d.strval
  ) m ON m.docid = t.docid
) n ON n.docid = b.docid AND n.node = b.node2"""


def joined_slices_statement(side: Orientation, window: int, *, many: bool) -> str:
    """R_LR: pairs of rows of `slices`, left and right, with equal value, edges that some row of R_T joins, and
    documents that some query may join. With `many`, nodes may have several values, and each pair occurs once. The
    documents, `span` and `apart` are as in R_vj."""
    # All conditions on the left side come before the join with the right side, which makes the many pairs.
    within = "" if window == INFINITE else f" AND {SPAN} <= {window}"
    return f"""SELECT {"DISTINCT " if many else ""}l.docid AS docid1, l.var1, l.var2, l.node1, l.node2,
  r.docid AS docid2, r.var1 AS var3, r.var2 AS var4, r.node1 AS node3, r.node2 AS node4,
  {SPAN} AS span, {APART} AS apart
FROM slices{side.left} l JOIN joined_edges e ON e.var1 = l.var1 AND e.var2 = l.var2
JOIN joined_streams s ON s.stream1 = l.stream
JOIN slices{side.right} r ON r.value = l.value AND r.var1 = e.var3 AND r.var2 = e.var4 AND r.stream = s.stream2
WHERE l.docid <> r.docid{within}"""
