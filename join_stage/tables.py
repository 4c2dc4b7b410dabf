"""The tables of the join state (thesis 6.3.1): schemas by engine, and queries; and what engines share."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa

from common.files import make_inside
from join_stage.protocol import JoinPlan, UnknownPlan
from join_stage.store.protocol import RUNS, Dated, StoreError, StoreSchema, TableStore
from templates.witness import MANY, R_BIN, R_DOC, R_GROUP


class OnlyRead:
    """Ignores rows of R_T, since no batch follows, and refuses all other changes with StoreError."""

    plan = JoinPlan()

    def rollback(self, *_: object) -> None: ...

    follow = rollback

    def begin(self, *_: object, **__: object) -> NoReturn:
        raise StoreError("the store was opened to be read only")

    commit = append = join = extend = evict = drop_groups = drop_derived = drop_before = begin

    def mends(self, error: Exception) -> bool:
        return False


R_BIN_FLAT = pa.schema(
    [("docid", pa.int64()), ("var1", pa.int32()), ("var2", pa.int32()), ("node1", pa.int64()), ("node2", pa.int64())]
)
"""R_bin with a row for each edge."""

R_DOCTS_STORED = pa.schema([("docid", pa.int64()), ("timestamp", pa.int64()), ("t0", pa.int64()), ("t1", pa.int64())])
"""R_docTS; `timestamp` is the thesis' name for t0."""

STATE = {"r_bin": R_BIN_FLAT, "r_doc": R_DOC, "r_docts": R_DOCTS_STORED}
"""The join state, which batches extend and eviction shortens."""

BOUND_STATE = {"bound": R_BIN, "r_doc": R_DOC, "r_docts": R_DOCTS_STORED}
"""The join state as stage 1 gives it: R_bin by groups of edges, which table `groups` has."""

POSTING_RUNS = pa.schema([("version", pa.int64()), ("manifest", pa.string())])
"""Manifests of the runs of postings, by plan `signature`; the row with the greatest version counts."""

WORD_ORDER = pa.schema([("version", pa.int64()), ("frequent", pa.list_(pa.int64()))])
"""The word order for the keys of texts (`join_stage.near`): numbers of the words that come last. Empty until learnt."""

_BESIDE = {"groups": R_GROUP, "posting_runs": POSTING_RUNS, "word_order": WORD_ORDER}

_R_BIN = "SELECT docid, var1, var2, node1, node2 FROM bound JOIN groups USING (grp)"

_DATED = Dated(tuple(STATE), "r_docts", "t0")

FLAT_STORE = StoreSchema(STATE | _BESIDE, dated=_DATED)
"""The tables of a store with R_bin by edges, on Spark."""

BOUND_STORE = StoreSchema(BOUND_STATE | _BESIDE, {"r_bin": _R_BIN})
"""The tables of a store with R_bin by groups, on DuckDB: r_bin is a view."""

NOTHING_ELSE = StoreSchema()

_KEYS = {"r_bin": ("docid", "var1", "var2", "node1", "node2"), "r_doc": ("docid", "node"), "r_docts": ("docid",)}
"""The key columns of the tables of the join state."""

DOCUMENTS = "SELECT count(*) AS n FROM r_docts"
"""The number of documents in the join state."""

EQUAL_VALUES = """
WITH postings AS (
  SELECT b.var2 AS var, d.strval, count(*) AS n
  FROM r_bin b JOIN r_doc d ON d.docid = b.docid AND d.node = b.node2 GROUP BY b.var2, d.strval
)
SELECT l.var AS var1, r.var AS var2, sum(l.n * r.n) AS pairs
FROM postings l JOIN postings r ON l.strval = r.strval GROUP BY l.var, r.var"""
"""The number of pairs of nodes with equal values, by variables, in the join state."""


def docids_between(store: TableStore, first: int, before: int) -> set[int]:
    """The docids of documents with `first` <= begin < `before`, in microseconds."""
    rows = store.select(f"SELECT docid FROM r_docts WHERE t0 >= {first} AND t0 < {before}")
    return set(rows["docid"].to_pylist())


def has_documents_between(store: TableStore, first: int, before: int) -> bool:
    """Whether documents have `first` <= begin < `before`, in microseconds."""
    return len(store.select(f"SELECT docid FROM r_docts WHERE t0 >= {first} AND t0 < {before} LIMIT 1")) > 0


def flatten_edges(r_bin: pa.Table, r_group: pa.Table) -> pa.Table:
    """Expands rows of R_BIN to R_BIN_FLAT, in any order; R_GROUP has their groups."""
    return r_bin.join(r_group, "grp", join_type="inner").select(R_BIN_FLAT.names)


def missing(store: TableStore, table: str, rows: pa.Table) -> pa.Table:
    """The rows that a table of STATE lacks."""
    same = " AND ".join(f"f.{column} = s.{column}" for column in _KEYS[table])
    return store.select(f"SELECT f.* FROM found f LEFT JOIN {table} s ON {same} WHERE s.docid IS NULL", {"found": rows})


def latest_texts(store: TableStore, most: int) -> list[str]:
    """At most `most` word-joined texts, the latest ones, as in R_doc."""
    order = f"ORDER BY docid DESC LIMIT {most}"
    rows = store.select(f"SELECT strval FROM r_doc WHERE node >= {MANY} AND strval <> '' {order}")
    return list(rows["strval"].to_pylist())


def runs_manifest(store: TableStore) -> str | None:
    """The manifest of the runs of postings on disk, if any."""
    found: str | None = newest(store, "posting_runs")
    return found


def newest(store: TableStore, table: str) -> Any:
    """The second column of the row with the greatest version; None if there is no row."""
    rows = store.read(table, store.schema.tables[table].names).sort_by("version")
    return rows[1][-1].as_py() if len(rows) else None


def append_newest(store: TableStore, table: str, value: object) -> int:
    """Appends a row with the next version, which it returns."""
    version = store.highest(table, "version") + 1
    store.append(table, pa.table([[version], [value]], store.schema.tables[table]))
    return version


def times_rebuilt(store: TableStore) -> int:
    """How often damaged runs of postings were built anew."""
    rebuilt: int = json.loads(runs_manifest(store) or "{}").get("rebuilt", 0)
    return rebuilt


def save_word_order(store: TableStore, frequent: list[int]) -> None:
    append_newest(store, "word_order", frequent)


def save_runs_manifest(store: TableStore, manifest: str) -> None:
    store.drop_before("posting_runs", "version", append_newest(store, "posting_runs", manifest))


def drop_runs_manifest(store: TableStore) -> None:
    """Has the postings on disk rebuilt when next needed."""
    if (version := store.highest("posting_runs", "version")) >= 0:
        store.drop_before("posting_runs", "version", version + 1)


def opened_plan(
    store: TableStore, name: str, directory: Path | None, plans: Mapping[str, Callable[..., JoinPlan]]
) -> JoinPlan:
    """A plan of an engine; `signature` gets a folder for runs, if the store has a directory. Raises UnknownPlan."""
    if name not in plans:
        raise UnknownPlan(name)
    if name == "signature":
        return plans[name](None if directory is None else make_inside(directory, RUNS))
    if directory is not None and runs_manifest(store) is None:
        shutil.rmtree(directory / RUNS, ignore_errors=True)
    return plans[name]()
