"""The tables of a store as Spark sees them: temporary views over the files and the rows of the current batch."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from join_stage.store.spark.manifests import DataFile
from join_stage.store.spark.snapshot import Rows
from join_stage.store.tables import TABLES

_TYPES = {
    pa.int64(): "BIGINT",
    pa.int32(): "INT",
    pa.string(): "STRING",
    pa.binary(): "BINARY",
    pa.list_(pa.int64()): "ARRAY<BIGINT>",
    pa.list_(pa.string()): "ARRAY<STRING>",
}

VIEWS = {
    "queries": """SELECT a.qid, a.name, a.text, a.template, a.window_us, a.added_at, r.removed_at
FROM added_queries a LEFT JOIN removed_queries r USING (qid)""",
    "matches": """SELECT q.query, m.docid1, m.docid2, m.t0, m.t1, m.bindings
FROM match_rows m JOIN match_queries q USING (match)""",
}

"""What stands over the tables."""

_WORD = re.compile(r"\w+")
_ROW_VIEW = re.compile(r"r_t_(\d{1,9})")


def file_urls(paths: Iterable[str]) -> list[str]:
    """Paths as Spark takes them for files of this file system, whichever is its default."""
    return [f"file://{path}" for path in paths]


def local_frame(session: SparkSession, rows: pa.Table) -> DataFrame:
    """Rows as a data frame. In one chunk: of a table with an empty chunk in it PySpark 4.3 drops what follows."""
    return session.createDataFrame(rows.combine_chunks())


class TableViews:
    """Keeps a session's temporary views of the tables; a view is made anew only when its table has changed."""

    def __init__(self, session: SparkSession, store: Rows) -> None:
        self._session, self._store = session, store
        self._seen: dict[str, tuple[tuple[DataFile, ...], tuple[pa.Table, ...]]] = {}

    def frame(self, table: str) -> DataFrame:
        """The table as it is now, the current batch's rows included."""
        parts = []
        if paths := self._store.paths(table):
            parts.append(self._session.read.schema(spark_columns(TABLES[table])).parquet(*file_urls(paths)))
        fresh = self._store.fresh(table)
        if len(fresh) or not parts:
            parts.append(local_frame(self._session, fresh))
        return parts[0] if len(parts) == 1 else parts[0].unionAll(parts[1])

    def forget(self, table: str) -> None:
        """Notes that another view stands under a table's name: it is made anew when a query names the table."""
        self._seen.pop(table, None)

    def refresh(self, sql: str) -> None:
        """Brings the views that a query names up to date, and makes those that stand for a template's R_T."""
        words = set(_WORD.findall(sql.lower()))
        for name, statement in self._derived(words).items():
            inner = set(_WORD.findall(statement))
            self._refresh_tables(inner)
            self._session.sql(f"CREATE OR REPLACE TEMPORARY VIEW {name} AS {statement}")
        self._refresh_tables(words)

    def _refresh_tables(self, words: set[str]) -> None:
        for table in words & TABLES.keys():
            state = (self._store.files[table], self._store.parts(table))
            if self._seen.get(table) != state:
                self.frame(table).createOrReplaceTempView(table)
                self._seen[table] = state

    def _derived(self, words: set[str]) -> dict[str, str]:
        """The views over tables that are named, with their statements."""
        found = {name: statement for name, statement in VIEWS.items() if name in words}
        for match in filter(None, map(_ROW_VIEW.fullmatch, words)):
            if (nodes := self._nodes(int(match[1]))) is not None:
                found[match[0]] = row_view(int(match[1]), nodes)
        return found

    def _nodes(self, template: int) -> int | None:
        """The number of nodes of a template; None if there is no such template."""
        rows = self._store.read("templates").select(["template", "parents"]).to_pylist()
        return next((len(row["parents"]) for row in rows if row["template"] == template), None)


def row_view(template: int, nodes: int) -> str:
    """R_T as in Table 6.4(a): a row for each conjunctive query of each query."""
    variables = ", ".join(f"variables[{i}] AS var{i + 1}" for i in range(nodes))
    return f"""SELECT qid, {variables}, window_us AS wl
FROM placements WHERE template = {template} AND qid NOT IN (SELECT qid FROM removed_queries)"""


def spark_columns(schema: pa.Schema) -> str:
    """A schema as Spark's readers take it."""
    return ", ".join(f"`{field.name}` {_TYPES[field.type]}" for field in schema)
