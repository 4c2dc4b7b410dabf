"""The DuckDB engine: a store with the joins of the plans `basic`, `views` and `signature` over it. `basic` runs the
conjunctive queries of all templates (thesis, Algorithm 1), `views` over joined slices (thesis 6.5, Algorithm 4). Also
read-only engines, over a DuckDB store and over Spark's Parquet files: they need neither Java nor write access."""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import duckdb
import pyarrow as pa

from join_stage import protocol
from join_stage.near_candidates import IN_DUCKDB, LONGEST_FIRST, WordSets, keyed, keyed_statement
from join_stage.plans import DEFAULT_PLAN, JoinPlan, OnlyRead, opened_plan
from join_stage.signature.plan import SignaturePlan
from join_stage.store import duckdb as duckdb_store
from join_stage.store.protocol import (
    DUCKDB_FILE,
    UNBOUNDED,
    Bounds,
    Outdated,
    StoreError,
    StoreSchema,
    TableStore,
    check_not_lost,
)
from join_stage.store.spark.manifests import FileTables
from join_stage.views import CACHE_BYTES, CachedViews, SQLPlan, ViewCache, joined_slices_statement
from templates.catalog import StepEdge, TemplateRow
from templates.witness import R_GROUP, Witnesses

JOINS = 40
"""Maximum number of joins in a statement. DuckDB starts all branches of a union at once and reserves up to 4 MiB per
join and thread that it cannot spill: sixty templates in one statement exceeded the memory limit over hardly any data.
40 joins were also 10 to 20 % faster than 80 or 160."""


@duckdb_store.telling_damage
class DuckDBBasicPlan(SQLPlan):
    """The plan `basic`: the conjunctive queries of all templates over the join state, the tables r_bin, r_doc and
    r_docts. r_bin_w, r_doc_w and r_docts_w hold the batch, r_bin_old, r_doc_old and r_docts_old the state before it."""

    def __init__(self, store: TableStore, connection: duckdb.DuckDBPyConnection) -> None:
        super().__init__(store)
        self._connection = connection

    def put_rows(self, template: protocol.TemplateTable, rows: Sequence[TemplateRow]) -> None:
        self.version += 1
        if template.number not in self._templates:
            self._templates[template.number] = template
            columns = ", ".join(f"{c} {'INTEGER' if c.startswith('var') else 'BIGINT'}" for c in template.columns[:-1])
            self._connection.execute(f"CREATE OR REPLACE TEMP TABLE {template.name} ({columns}, ordered BOOLEAN)")
        self._delete_rows(template, rows)
        values = zip(*((row.id, *row.variables, row.window, row.ordered) for row in rows), strict=True)
        table = pa.table([pa.array(column) for column in values], names=template.columns)
        with duckdb_store.temporary_views(self._connection, {"fresh_rows": table}):
            self._connection.execute(f"INSERT INTO {template.name} SELECT * FROM fresh_rows")

    def drop_rows(self, template: protocol.TemplateTable, rows: Sequence[TemplateRow]) -> None:
        self.version += 1
        self._delete_rows(template, rows)
        if self._connection.execute(f"SELECT count(*) FROM {template.name}").fetchall() == [(0,)]:
            del self._templates[template.number]

    def _delete_rows(self, template: protocol.TemplateTable, rows: Sequence[TemplateRow]) -> None:
        ids = pa.table({"qid": pa.array([row.id for row in rows], pa.int64())})
        with duckdb_store.temporary_views(self._connection, {"stale_rows": ids}):
            self._connection.execute(f"DELETE FROM {template.name} WHERE qid IN (SELECT qid FROM stale_rows)")

    def join(self, batch: protocol.Batch) -> pa.Table:
        with duckdb_store.temporary_views(self._connection, {"joined_streams": batch.scope.joined_streams()}):
            for side in (protocol.NEW_RIGHT, protocol.NEW_LEFT) if batch.older else (protocol.NEW_RIGHT,):
                many = batch.witnesses.has_many_values
                state = "r_doc_all" if many else "r_doc"
                pairs = protocol.value_pairs_statement(side, batch.scope.window, many=many, state=state)
                self._connection.execute(f"CREATE OR REPLACE TEMP TABLE {side.pairs} AS {pairs}")
        return self._answer(batch)

    def _answer(self, batch: protocol.Batch, *, views: bool = False) -> pa.Table:
        templates = list(self._templates.values())
        statements = protocol.batch_statements(templates, "[{}]", with_old=batch.older, joins=JOINS, views=views)
        results = [protocol.RESULT.empty_table()]
        for statement, numbers in statements:
            begin = time.perf_counter()
            results.append(self._connection.sql(statement).to_arrow_table())
            self.costs.add(protocol.Cost(time.perf_counter() - begin, len(results[-1]), numbers))
        return pa.concat_tables(results)


class DuckDBSignaturePlan(SignaturePlan):
    def _between(self, first: int, end: int) -> Witnesses:
        some = (f"SELECT * FROM {name} WHERE docid >= {first} AND docid < {end}" for name in protocol.BOUND_STATE)
        bound, r_doc, r_docts = map(self._store.select, some)
        return Witnesses(bound, R_GROUP.empty_table(), r_doc, r_docts)


class DuckDBViewsPlan(CachedViews, DuckDBBasicPlan):
    """The plan `views`. `cache_bytes` bounds the cache."""

    def __init__(self, store: TableStore, connection: duckdb.DuckDBPyConnection, cache_bytes: int) -> None:
        DuckDBBasicPlan.__init__(self, store, connection)
        self._cache = ViewCache(cache_bytes)

    def _joined(self, batch: protocol.Batch, views: Mapping[str, pa.Table]) -> pa.Table:
        with duckdb_store.temporary_views(self._connection, views):
            for side in (protocol.NEW_RIGHT, protocol.NEW_LEFT) if batch.older else (protocol.NEW_RIGHT,):
                joined = joined_slices_statement(side, batch.scope.window, many=batch.witnesses.has_many_values)
                self._connection.execute(f"CREATE OR REPLACE TEMP TABLE {side.edges} AS {joined}")
        return self._answer(batch, views=True)

    def _select(self, sql: str, tables: Mapping[str, pa.Table]) -> pa.Table:
        with duckdb_store.temporary_views(self._connection, tables):
            return self._connection.sql(sql).to_arrow_table()


_DROP_UNUSED = """
DELETE FROM bound WHERE grp NOT IN (SELECT grp FROM groups JOIN used USING (var1, var2))
"""

_REGROUP = """
BEGIN TRANSACTION;
CREATE TEMP TABLE edges AS
  SELECT var1, var2, ((SELECT coalesce(max(grp), -1) FROM groups) + row_number() OVER ())::INTEGER AS grp
  FROM (SELECT DISTINCT var1, var2 FROM r_bin);
INSERT INTO groups SELECT grp, var1, var2 FROM edges;
INSERT INTO bound SELECT docid, grp, node1, node2 FROM r_bin JOIN edges USING (var1, var2);
DROP TABLE edges;
DROP TABLE r_bin;
COMMIT;
"""
"""Upgrades a store that has R_bin as a table: each edge becomes a group."""


@duckdb_store.telling_damage
class DuckDBEngine(duckdb_store.DuckDBStore):
    """A `JoinEngine` on DuckDB, in memory without a `directory`. `schema` declares the tables beside the join state;
    `plan`, one of PLANS, may change between openings; `cache_bytes` bounds the cache of `views`. Raises StoreError if
    the store cannot be opened, UnknownPlan for an unknown plan."""

    def __init__(
        self,
        directory: Path | None = None,
        plan: str = DEFAULT_PLAN,
        *,
        schema: StoreSchema = protocol.NOTHING_ELSE,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        super().__init__(protocol.BOUND_STORE | schema, directory)
        try:
            for name, schema in protocol.STATE.items():
                self._connection.execute(f"CREATE TEMP TABLE {name}_w ({duckdb_store.columns_of(schema)})")
            plans: dict[str, Callable[..., JoinPlan]] = {
                "basic": partial(DuckDBBasicPlan, self, self._connection),
                "views": partial(DuckDBViewsPlan, self, self._connection, cache_bytes),
                "signature": partial(DuckDBSignaturePlan, self),
            }
            self.plan = opened_plan(self, plan, directory, plans)
        except BaseException:
            self.close()
            raise
        self._older = "r_docts" not in self._empty
        self._word_sets = WordSets(lambda docids: self.find("r_doc", "docid", docids))

    def _upgrade(self, known: Collection[str]) -> None:
        if "r_bin" in known:
            self._connection.execute(_REGROUP)

    # ------------------------------------------------------------ batches

    def commit(self) -> None:
        self.plan.settle()
        super().commit()
        self.plan.committed()

    def rollback(self) -> None:
        self.plan.rolled_back(whole=self._take_back())
        self._word_sets.forget()

    def join(self, batch: Witnesses, first_docid: int, scope: protocol.JoinScope) -> protocol.Matches:
        self._add(batch)
        given = batch
        if self.plan.in_sql:
            self._settle()
            self._split_state(first_docid, many=batch.has_many_values)
            if batch.has_many_values:
                given = replace(batch, r_doc=keyed(batch.r_doc, LONGEST_FIRST))
        # Once there were older documents, there are assumed to be some: a join with none finds nothing.
        self._older = self._older or self._exists(f"r_docts WHERE docid < {first_docid}")
        with duckdb_store.translate_write_errors():
            found = self.plan.join(protocol.Batch(given, first_docid, self._older, scope))
        return self._word_sets.checked(found) if isinstance(found, pa.Table) else found

    def extend(self, witnesses: Witnesses, *, whole: bool = False) -> None:
        self.plan.extend(witnesses, whole=whole)
        self._add(witnesses)
        self._settle()

    def _add(self, batch: Witnesses) -> None:
        self.append("groups", batch.r_group)
        self.append("bound", batch.r_bin)
        self.append("r_doc", batch.r_doc)
        docid, t0, t1 = (batch.r_docts[name] for name in ("docid", "t0", "t1"))
        self.append("r_docts", pa.table([docid, t0, t0, t1], protocol.R_DOCTS_STORED))

    def _exists(self, rows: str) -> bool:
        return self._run(f"SELECT EXISTS (FROM {rows})").fetchall() == [(True,)]

    def _split_state(self, first_docid: int, *, many: bool) -> None:
        """Splits the state into r_bin_w ... (the batch) and r_bin_old ...; `many`: texts have keys, r_doc_all all."""
        for name in protocol.STATE:
            rows = f"({keyed_statement(name, IN_DUCKDB)})" if many and name == "r_doc" else name
            self._run(f"DELETE FROM {name}_w")
            self._run(f"INSERT INTO {name}_w SELECT * FROM {rows} WHERE docid >= {first_docid}")
            older = f"SELECT * FROM {rows} WHERE docid < {first_docid}"
            self._run(f"CREATE OR REPLACE TEMP VIEW {name}_old AS {older}")
        if many:
            both = "SELECT * FROM r_doc_old UNION ALL SELECT * FROM r_doc_w"
            self._run(f"CREATE OR REPLACE TEMP VIEW r_doc_all AS {both}")

    def evict(self, before: int) -> None:
        self.plan.evicted(lambda: self.select(f"SELECT docid FROM r_docts WHERE t0 < {before}")["docid"], before)
        condition = self._documents_before(before)
        for name in protocol.BOUND_STATE:  # r_docts, which decides which documents exist, goes last
            self._run(f"DELETE FROM {name} WHERE {condition}")

    def _documents_before(self, time: int) -> str:
        """SQL for docids of documents that begin before a time. The bound skips row groups: 0.1 s instead of 0.5 s."""
        old = f"FROM r_docts WHERE t0 < {time}"
        ((first, last),) = self._run(f"SELECT min(docid), max(docid) {old}").fetchall()
        if first is None:
            return "false"
        within = f"docid >= {first} AND docid <= {last}"
        if self._exists(f"r_docts WHERE {within} AND t0 >= {time}"):
            return f"{within} AND docid IN (SELECT docid {old})"
        return within

    def drop_groups(self, edges: Collection[StepEdge]) -> Collection[int]:
        used = pa.table([pa.array([edge[side] for edge in edges], pa.int32()) for side in (0, 1)], ["var1", "var2"])
        self._settle()
        with duckdb_store.temporary_views(self._connection, {"used": used}):
            self._run(_DROP_UNUSED)
        self._run("DELETE FROM groups WHERE grp NOT IN (SELECT grp FROM bound)")
        kept = {number for (number,) in self._run("SELECT DISTINCT grp FROM groups").fetchall()}
        self.plan.regrouped(kept, edges)
        return kept

    def drop_derived(self, node: int) -> None:
        self._run(f"DELETE FROM bound WHERE node1 >= {node} OR node2 >= {node}")
        self._run(f"DELETE FROM r_doc WHERE node >= {node}")
        self.plan.forget()

    def mends(self, error: Exception) -> bool:
        return isinstance(error, StoreError) and self.plan.mends(error)

    def close(self) -> None:
        if hasattr(self, "plan"):  # else opening has failed
            self.plan.close()
        super().close()


_WORD = re.compile(r"\w+")

_LISTING = frozenset(("show", "describe", "summarize", "information_schema"))  # words of statements that list relations

_GLOB = re.compile(r"([*?\[])")

_ERRORS = (duckdb.Error, OSError)


@duckdb_store.telling_damage
class DuckDBFilesReader(OnlyRead, FileTables, duckdb_store.DuckDBTables):
    """A read-only `JoinEngine` over Parquet files, as of the last batch when opened; others may write the store. A
    relation is a view over files, created when a statement first names it: then DuckDB reads all files below it."""

    def __init__(
        self, schema: StoreSchema, directory: Path, cap: Callable[[duckdb.DuckDBPyConnection], object] = lambda _: None
    ) -> None:
        """Raises StoreError if there is no store. `schema` has tables beside the join state, `cap` sets limits."""
        super().__init__(protocol.FLAT_STORE | schema, directory)
        self._made, self._below = set[str](), dict[str, frozenset[str]]()
        self._numbered: dict[str, str] | None = None
        self._spilled = tempfile.TemporaryDirectory(prefix="mmqjp-")
        # Not in memory: relations may be qualified by the name of the file.
        self._connection = duckdb.connect(str(Path(self._spilled.name) / DUCKDB_FILE))
        self._asked, self._prepared = self._connection, duckdb_store.PreparedStatements(self._connection)
        try:
            duckdb_store.set_up(self._connection)
            run = self._connection.execute
            run(f"SET temp_directory = {_text(self._spilled.name)}")
            cap(self._connection)
            run("SET parquet_metadata_cache = true")  # files never change
            paths = [path for table in self.schema.tables for path in self.unchecked_paths(table)]
            run(f"SET allowed_paths = {_texts((*paths, *map(_literal, paths)))}")
            duckdb_store.seclude(self._connection)
            run(
                "CREATE MACRO sha2(text, bits) AS "
                "CASE WHEN bits IN (0, 256) THEN sha256(text) ELSE error('sha2: only 256 bits are made') END"
            )
            run(duckdb_store.UNIX_MICROS)
        except BaseException:
            self.close()
            raise

    def select(self, sql: str, views: Mapping[str, pa.Table] | None = None) -> pa.Table:
        with self.reading(self._prepare(sql), _ERRORS):
            return super().select(sql, views)

    def question(self, sql: str, bounds: Bounds = UNBOUNDED, *, own: bool = False) -> duckdb_store.DuckDBQuestion:
        tables = self._prepare(sql)
        return duckdb_store.DuckDBQuestion(
            self._asked, self.schema, sql, bounds, lambda _: self.reading(tables, _ERRORS), own=own
        )

    def _prepare(self, sql: str) -> frozenset[str]:
        """Creates the relations that a statement names, and checks the files that it reads. Returns their tables."""
        words = set(_WORD.findall(sql.lower()))
        if words & _LISTING:
            words |= self.schema.relations | self._numbered_views().keys()
        tables = frozenset[str]().union(*map(self._tables_below, self._named_in(sql, words)))
        for table in tables:
            self.paths(table)
        for name in words:
            self._make(name)
        return tables

    def _named_in(self, sql: str, words: set[str]) -> set[str]:
        named = duckdb_store.tables_in(self._connection, sql)
        return {name for name in (words if named is None else named) if self._statement(name) is not None}

    def _tables_below(self, name: str) -> frozenset[str]:
        if name in self.schema.tables:
            return frozenset((name,))
        if name not in self._below:
            inner = self._named_in(self._statement(name) or "", set())
            self._below[name] = frozenset().union(*map(self._tables_below, inner))
        return self._below[name]

    def _make(self, name: str) -> None:
        if name in self._made or (statement := self._statement(name)) is None:
            return
        if name not in self.schema.tables:
            for inner in set(_WORD.findall(statement.lower())) - {name}:
                self._make(inner)
        try:
            self._connection.execute(f"CREATE VIEW {name} AS {statement}")
        except duckdb.Error:
            if name in self.schema.tables:
                self.paths(name)  # it has the reason
            raise
        self._made.add(name)

    def _statement(self, name: str) -> str | None:
        if name in self.schema.tables:
            return self._table(name)
        return self.schema.views.get(name) or self._numbered_views(name).get(name)

    def _table(self, name: str) -> str:
        """Selects a table; columns that files lack are null."""
        fields = list(self.schema.tables[name])
        typed = ", ".join(f"CAST(NULL AS {duckdb_store.TYPES[field.type]}) AS {field.name}" for field in fields)
        if not (paths := self.unchecked_paths(name)):
            return f"SELECT {typed} WHERE false"
        files = f"read_parquet({_texts(map(_literal, paths))}, union_by_name = true, hive_partitioning = false)"
        columns = ", ".join(field.name for field in fields)
        return f"SELECT {columns} FROM (SELECT {typed} WHERE false UNION ALL BY NAME SELECT * FROM {files})"

    def _numbered_views(self, name: str | None = None) -> dict[str, str]:
        numbered = self.schema.numbered
        if numbered is None or (name is not None and not numbered.has(name)):
            return {}
        if self._numbered is None:
            self._numbered = self.numbered_views(duckdb_store.FIRST_INDEX)
        return self._numbered


def _literal(path: str) -> str:
    return _GLOB.sub(r"[\1]", path)


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _texts(texts: Iterable[str]) -> str:
    return f"[{', '.join(map(_text, texts))}]"


@duckdb_store.telling_damage
class DuckDBReader(OnlyRead, duckdb_store.DuckDBTables):
    """A read-only `JoinEngine` over a DuckDB store; also reads the log that a killed process left beside the file."""

    def __init__(self, schema: StoreSchema, directory: Path) -> None:
        """Raises StoreError without a readable store, Outdated for an older one. `schema`: further tables."""
        self.schema = protocol.BOUND_STORE | schema
        file = directory / DUCKDB_FILE
        if not file.exists():
            check_not_lost(directory)
            raise StoreError(f"{directory} holds no store of the engine duckdb")
        duckdb_store.CommitMark(directory).check()
        try:
            self._connection = duckdb.connect(str(file), read_only=True)
        except duckdb.Error as error:
            raise StoreError(f"cannot read the store in {directory}: {error}; {duckdb_store.ADVICE}") from error
        self._spilled = tempfile.TemporaryDirectory(prefix="mmqjp-")
        try:
            if duckdb_store.has_journal(self._connection):
                self._connection.close()
                self._connection = self._whole_copy(directory, Path(self._spilled.name))
            self._asked, self._prepared = self._connection, duckdb_store.PreparedStatements(self._connection)
            # In a process that already reads the store, this is the same instance.
            if not self._connection.execute("SELECT current_setting('lock_configuration')").fetchall()[0][0]:
                duckdb_store.set_up(self._connection)
                self._connection.execute(f"SET temp_directory = '{self._spilled.name}'")
                duckdb_store.seclude(self._connection)
            self._check(directory)
        except BaseException:
            self.close()
            raise

    def _whole_copy(self, directory: Path, target: Path) -> duckdb.DuckDBPyConnection:
        """Opens a store whose journal has rows that a killed process left: they are moved to their tables in a copy."""
        duckdb_store.copy_files(directory, target, lambda name, *_: shutil.copyfile(directory / name, target / name))
        duckdb_store.DuckDBStore(self.schema, target).close()
        return duckdb.connect(str(target / DUCKDB_FILE), read_only=True)

    def _check(self, directory: Path) -> None:
        made = set(self._connection.execute("SELECT table_name, column_name FROM duckdb_columns()").fetchall())
        needed = {(name, field.name) for name, schema in self.schema.tables.items() for field in schema}
        views = {name for name, _ in made}
        if not needed <= made or not self.schema.views.keys() <= views:
            raise Outdated(
                f"the store in {directory} is of an older format: let who may write it open it once, "
                "with mmqjp list or any other command"
            )
