"""The `views` plan on DuckDB (thesis 6.5, Algorithms 4 and 5), with the view cache in temporary tables.

`cached_slices` holds the rows of the slices, `cached_values` the string values and their numbers. `view_cache` is the
view of both that the thesis calls VC. The tables change in the transaction of a batch: if it is rolled back, the cache
is as it was.
"""

from __future__ import annotations

from collections.abc import Sequence

import duckdb
import pyarrow as pa

from join_stage.batch_sql import NEW_LEFT, NEW_RIGHT, TemplateTable
from join_stage.duckdb_basic import DuckDBBasicPlan
from join_stage.joiner import Batch
from join_stage.store.duckdb_tables import registered
from join_stage.views import ROW_BYTES, VALUE_BYTES, JoinedEdges, joined_slices_statement, slices_statement
from templates.catalog import Row
from templates.conjunctive import executable_views_query
from templates.witness import Witnesses

_SLICE_COLUMNS = """value BIGINT, docid BIGINT, var1 INTEGER, var2 INTEGER, node1 BIGINT, node2 BIGINT,
stream VARCHAR, t0 BIGINT, t1 BIGINT"""

_TABLES = f"""
CREATE OR REPLACE TEMP SEQUENCE value_numbers;
CREATE OR REPLACE TEMP TABLE cached_slices ({_SLICE_COLUMNS});
CREATE OR REPLACE TEMP TABLE cached_values (value BIGINT, strval VARCHAR, overhead BIGINT, n BIGINT, used BIGINT);
CREATE OR REPLACE TEMP VIEW view_cache AS
  SELECT strval, docid, var1, var2, node1, node2 FROM cached_slices JOIN cached_values USING (value);
"""
"""`n` is the number of rows of a value, `used` the last batch that held it, `overhead` its bytes beside the rows."""

_BATCH_VALUES = """CREATE OR REPLACE TEMP TABLE batch_values AS
SELECT w.strval, coalesce(c.value, nextval('value_numbers')) AS value, c.value IS NOT NULL AS cached
FROM (SELECT DISTINCT strval FROM r_doc_w) w LEFT JOIN cached_values c ON c.strval = w.strval"""

_OLD_SLICES = f"""CREATE OR REPLACE TEMP TABLE slices_old AS
SELECT s.* FROM cached_slices s WHERE s.value IN (SELECT value FROM batch_values WHERE cached)
UNION ALL
{slices_statement("(SELECT strval, value FROM batch_values WHERE NOT cached)", "_old")}"""
"""R_L of the state before the batch: the cached slices, and those computed now for the other values."""

_TOUCHED = f"""CREATE OR REPLACE TEMP TABLE touched_values AS
SELECT v.value, v.strval, v.cached, {VALUE_BYTES} + strlen(v.strval) AS overhead, o.n + coalesce(w.n, 0) AS n
FROM batch_values v JOIN (SELECT value, count(*) AS n FROM slices_old GROUP BY value) o ON o.value = v.value
LEFT JOIN (SELECT value, count(*) AS n FROM slices_w GROUP BY value) w ON w.value = v.value"""
"""STR: the values that the batch shares with the state, and the number of rows of their slices, batch included."""

_DOOMED = f"""CREATE OR REPLACE TEMP TABLE doomed_values AS
SELECT value, n FROM (
  SELECT value, n, overhead + n * {ROW_BYTES} AS bytes, sum(CASE WHEN bytes <= $bound THEN bytes END)
    OVER (ORDER BY used DESC, bytes, value ROWS UNBOUNDED PRECEDING) AS upto FROM cached_values
) WHERE bytes > $bound OR upto > $bound"""
"""The values to evict: the least recently used past the bound, and those larger than the bound."""

STALE_ROWS = 100_000
"""The number of deleted rows from which a table is rewritten. DuckDB keeps them until then."""


class DuckDBViewsPlan(DuckDBBasicPlan):
    """The plan `views`: the queries of the templates over R_LR, which joins slices. `cache_bytes` bounds the cache."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, cache_bytes: int) -> None:
        super().__init__(connection)
        self.bound = cache_bytes
        self._edges = JoinedEdges()
        self._batches = self._hits = self._misses = self._evictions = self._deleted = 0
        connection.execute(_TABLES)

    def put_rows(self, template: TemplateTable, rows: Sequence[Row]) -> None:
        super().put_rows(template, rows)
        self._edges.put(template, rows)

    def drop_rows(self, template: TemplateTable, rows: Sequence[Row]) -> None:
        super().drop_rows(template, rows)
        self._edges.drop(template, rows)

    def join(self, batch: Batch) -> pa.Table:
        run = self._connection.execute
        run(_BATCH_VALUES)
        run(f"CREATE OR REPLACE TEMP TABLE slices_w AS {slices_statement('batch_values', '_w')}")
        state = "SELECT * FROM slices_w"
        if batch.older:
            run(_OLD_SLICES)
            state += " UNION ALL SELECT * FROM slices_old"
        run(f"CREATE OR REPLACE TEMP VIEW slices AS {state}")
        views = {"joined_streams": batch.scope.joined_streams(), "joined_edges": self._edges.table()}
        with registered(self._connection, views):
            for side in (NEW_RIGHT, NEW_LEFT) if batch.older else (NEW_RIGHT,):
                joined = joined_slices_statement(side, batch.scope.window, many=batch.has_many_values)
                run(f"CREATE OR REPLACE TEMP TABLE {side.edges} AS {joined}")
        found = self._answer(batch, executable_views_query)
        if batch.older:
            self._maintain()
        return found

    def _maintain(self) -> None:
        """Algorithm 5: adds the slices of the batch to those that it touched, and evicts what exceeds the bound."""
        run = self._connection.execute
        self._batches += 1
        run(_TOUCHED)
        run(f"""UPDATE cached_values SET n = t.n, used = {self._batches} FROM touched_values t
WHERE t.cached AND t.value = cached_values.value""")
        run(f"""INSERT INTO cached_values
SELECT value, strval, overhead, n, {self._batches} FROM touched_values WHERE NOT cached""")
        counts = "SELECT count(*) FILTER (cached), count(*) FILTER (NOT cached) FROM touched_values"
        ((hits, misses),) = run(counts).fetchall()
        self._hits, self._misses = self._hits + hits, self._misses + misses
        if self._bytes() > self.bound:
            self._shrink()
        run("""INSERT INTO cached_slices
WITH kept AS (SELECT value, cached FROM touched_values WHERE value IN (SELECT value FROM cached_values))
SELECT * FROM slices_old WHERE value IN (SELECT value FROM kept WHERE NOT cached)
UNION ALL SELECT * FROM slices_w WHERE value IN (SELECT value FROM kept)""")

    def _shrink(self) -> None:
        """Evicts slices until the rest is within the bound."""
        self._connection.execute(_DOOMED, {"bound": self.bound})
        values = self._delete("cached_values", "value IN (SELECT value FROM doomed_values)")
        self._evictions += values
        self._deleted += values + self._delete("cached_slices", "value IN (SELECT value FROM doomed_values)")
        self._tidy()

    def _delete(self, table: str, condition: str) -> int:
        ((deleted,),) = self._connection.execute(f"DELETE FROM {table} WHERE {condition}").fetchall()
        return int(deleted)

    def _tidy(self) -> None:
        """Rewrites the tables when more rows are deleted than are left."""
        if self._deleted > max(STALE_ROWS, self._bytes() // ROW_BYTES):
            for table in ("cached_slices", "cached_values"):
                self._connection.execute(f"CREATE OR REPLACE TEMP TABLE {table} AS SELECT * FROM {table}")
            self._deleted = 0

    def evicted(self, docids: str, before: int) -> None:
        run = self._connection.execute
        run(f"""CREATE OR REPLACE TEMP TABLE evicted_rows AS
SELECT value, count(*) AS n FROM cached_slices WHERE docid IN ({docids}) GROUP BY value""")
        gone = self._delete("cached_slices", f"docid IN ({docids})")
        if gone:
            run("""UPDATE cached_values SET n = cached_values.n - e.n FROM evicted_rows e
WHERE e.value = cached_values.value""")
            self._deleted += gone + self._delete("cached_values", "n = 0")
            self._tidy()

    def extend(self, witnesses: Witnesses, *, whole: bool) -> None:
        self.forget()

    def forget(self) -> None:
        """Drops all cached slices: they lack what was added."""
        for table in ("cached_slices", "cached_values"):
            self._connection.execute(f"DELETE FROM {table}")

    def rolled_back(self, *, whole: bool) -> None:
        if not whole:  # temporary tables may have been committed before the others failed
            self._connection.execute(_TABLES)

    def counters(self) -> dict[str, int]:
        ((values,),) = self._connection.execute("SELECT count(*) FROM cached_values").fetchall()
        return {
            "hits": self._hits,
            "misses": self._misses,
            "evictions": self._evictions,
            "values": values,
            "bytes": self._bytes(),
        }

    def view_cache(self) -> pa.Table:
        """The rows of the cached slices, for inspection."""
        return self._connection.sql("SELECT * FROM view_cache").to_arrow_table()

    def _bytes(self) -> int:
        ((size,),) = self._connection.execute(
            f"SELECT coalesce(sum(overhead + n * {ROW_BYTES}), 0) FROM cached_values"
        ).fetchall()
        return int(size)
