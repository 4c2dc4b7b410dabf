"""The embedded engine: a DuckDB store with the joins of any plan over it."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Sequence
from pathlib import Path

import pyarrow as pa

from common.private import make_inside
from join_stage.batch_sql import TemplateTable
from join_stage.costs import Cost
from join_stage.duckdb_basic import DuckDBBasicPlan, DuckDBPlan
from join_stage.duckdb_signature import DuckDBSignaturePlan
from join_stage.duckdb_views import DuckDBViewsPlan
from join_stage.joiner import DEFAULT_PLAN, PLANS, Batch, Matches, Scope, UnknownPlan, has_many_values
from join_stage.near.key_sql import IN_DUCKDB, keyed_statement
from join_stage.near.word_sets import WordSets
from join_stage.state_tables import (
    BOUND_STATE,
    BOUND_STORE,
    NOTHING_ELSE,
    R_DOCTS_STORED,
    RUNS,
    STATE,
    drop_runs_manifest,
    runs_manifest,
)
from join_stage.store.duckdb_damage import telling_damage
from join_stage.store.duckdb_store import DuckDBStore, columns_of, written
from join_stage.store.duckdb_tables import registered
from join_stage.store.schema import StoreSchema
from join_stage.views import CACHE_BYTES
from templates.catalog import Edge, Row
from templates.witness import Witnesses

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
"""Upgrades a store that has R_bin as a table: each of its edges becomes a group."""


@telling_damage
class DuckDBEngine(DuckDBStore):
    """A `JoinEngine` on DuckDB, in memory if there is no `directory`.

    `schema` declares the tables beside the join state. `plan` is one of PLANS, and may be another one than the last
    time. `cache_bytes` bounds the cache of the plan `views`. Raises StoreError if the store cannot be opened, and
    UnknownPlan for an unknown plan.
    """

    _to_close: DuckDBPlan | None = None
    """The plan, as soon as there is one."""

    def __init__(
        self,
        directory: Path | None = None,
        plan: str = DEFAULT_PLAN,
        *,
        schema: StoreSchema = NOTHING_ELSE,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        super().__init__(BOUND_STORE | schema, directory)
        try:
            for name, schema in STATE.items():
                self._connection.execute(f"CREATE TEMP TABLE {name}_w ({columns_of(schema)})")
            self._plan = self._to_close = self._make_plan(plan, directory, cache_bytes)
        except BaseException:
            self.close()
            raise
        self._older = False
        self._word_sets = WordSets(lambda docids: self.find("r_doc", "docid", docids))

    def _upgrade(self, known: Collection[str]) -> None:
        if "r_bin" in known:
            self._connection.execute(_REGROUP)

    # ------------------------------------------------------------ R_T

    def put_rows(self, template: TemplateTable, rows: Sequence[Row]) -> None:
        self._plan.put_rows(template, rows)

    def drop_rows(self, template: TemplateTable, rows: Sequence[Row]) -> None:
        self._plan.drop_rows(template, rows)

    # ------------------------------------------------------------ batches

    def commit(self) -> None:
        self._plan.settle()
        super().commit()
        self._plan.committed()

    def rollback(self) -> None:
        self._plan.rolled_back(whole=self._take_back())
        self._word_sets.forget()

    def join(self, batch: Witnesses, first_docid: int, scope: Scope) -> Matches:
        self._add(batch)
        if self._plan.in_sql:
            self._settle()
            self._split_state(first_docid, many=has_many_values(batch))
        # Once there were older documents, it is assumed that there are some: a join with none finds nothing.
        self._older = self._older or self._has_documents_before(first_docid)
        with written():
            found = self._plan.join(Batch(batch, first_docid, self._older, scope))
        return self._word_sets.checked(found) if isinstance(found, pa.Table) else found

    def extend(self, witnesses: Witnesses, *, whole: bool = False) -> None:
        self._plan.extend(witnesses, whole=whole)
        self._forget_runs()
        self._add(witnesses)
        self._settle()

    def _forget_runs(self) -> None:
        """Drops the runs of the plan `signature` if another plan is used, which does not keep them up to date."""
        if self._plan.in_sql:
            drop_runs_manifest(self)

    def _add(self, batch: Witnesses) -> None:
        """Appends witnesses to the join state."""
        self.append("groups", batch.r_group)
        self.append("bound", batch.r_bin)
        self.append("r_doc", batch.r_doc)
        docid, t0, t1 = (batch.r_docts[name] for name in ("docid", "t0", "t1"))
        self.append("r_docts", pa.table([docid, t0, t0, t1], R_DOCTS_STORED))

    def _has_documents_before(self, docid: int) -> bool:
        return self._run(f"SELECT EXISTS (FROM r_docts WHERE docid < {docid})").fetchall() == [(True,)]

    def _split_state(self, first_docid: int, *, many: bool) -> None:
        """Splits the join state into the part of the batch (r_bin_w ...) and the part before it (r_bin_old ...). With
        `many`, nodes may have several values: then texts have their keys there, and r_doc_all is both parts."""
        for name in STATE:
            rows = f"({keyed_statement(name, IN_DUCKDB)})" if many and name == "r_doc" else name
            self._run(f"DELETE FROM {name}_w")
            self._run(f"INSERT INTO {name}_w SELECT * FROM {rows} WHERE docid >= {first_docid}")
            older = f"SELECT * FROM {rows} WHERE docid < {first_docid}"
            self._run(f"CREATE OR REPLACE TEMP VIEW {name}_old AS {older}")
        if many:
            both = "SELECT * FROM r_doc_old UNION ALL SELECT * FROM r_doc_w"
            self._run(f"CREATE OR REPLACE TEMP VIEW r_doc_all AS {both}")

    def evict(self, before: int) -> None:
        docids = f"SELECT docid FROM r_docts WHERE t0 < {before}"
        self._settle()
        self._plan.evicted(docids, before)
        self._forget_runs()
        condition = self._documents_before(before)
        for name in BOUND_STATE:  # r_docts, which tells the documents, goes last
            self._run(f"DELETE FROM {name} WHERE {condition}")

    def _documents_before(self, time: int) -> str:
        """The condition in SQL that a docid is that of a document that begins before a time.

        Documents come nearly in the order of their times, and row groups of DuckDB that are outside of a range are not
        read: with 10 million documents, a thirtieth of them are deleted in 0.1 s instead of 0.5 s.
        """
        old = f"FROM r_docts WHERE t0 < {time}"
        ((first, last),) = self._run(f"SELECT min(docid), max(docid) {old}").fetchall()
        if first is None:
            return "false"
        within = f"docid >= {first} AND docid <= {last}"
        if self._run(f"SELECT EXISTS (FROM r_docts WHERE {within} AND t0 >= {time})").fetchall() == [(True,)]:
            return f"{within} AND docid IN (SELECT docid {old})"
        return within

    def drop_groups(self, edges: Collection[Edge]) -> Collection[int]:
        used = pa.table([pa.array([edge[side] for edge in edges], pa.int32()) for side in (0, 1)], ["var1", "var2"])
        self._settle()
        with registered(self._connection, {"used": used}):
            self._run(_DROP_UNUSED)
        self._run("DELETE FROM groups WHERE grp NOT IN (SELECT grp FROM bound)")
        kept = {number for (number,) in self._run("SELECT DISTINCT grp FROM groups").fetchall()}
        self._plan.regrouped(kept, edges)
        return kept

    def drop_derived(self, node: int) -> None:
        self._run(f"DELETE FROM bound WHERE node1 >= {node} OR node2 >= {node}")
        self._run(f"DELETE FROM r_doc WHERE node >= {node}")
        self._plan.forget()
        self._forget_runs()

    def _make_plan(self, name: str, directory: Path | None, cache_bytes: int) -> DuckDBPlan:
        """The plan of a name. Raises UnknownPlan if there is none."""
        if name in PLANS and name != "signature" and directory is not None and runs_manifest(self) is None:
            shutil.rmtree(directory / RUNS, ignore_errors=True)
        if name == "basic":
            return DuckDBBasicPlan(self._connection)
        if name == "views":
            return DuckDBViewsPlan(self._connection, cache_bytes)
        if name == "signature":
            return DuckDBSignaturePlan(self, None if directory is None else make_inside(directory, RUNS))
        raise UnknownPlan(name)

    def counters(self) -> dict[str, int]:
        return self._plan.counters()

    def close(self) -> None:
        if self._to_close is not None:
            self._to_close.close()
        super().close()

    def costs(self) -> dict[int, Cost]:
        return self._plan.costs()
