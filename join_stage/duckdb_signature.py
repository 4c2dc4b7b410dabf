"""The `signature` plan on DuckDB: builds the postings from the tables of the store."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from join_stage.joiner import Batch, Matches
from join_stage.signature.signature_plan import SignaturePlan
from join_stage.state_tables import (
    BOUND_STATE,
    latest_texts,
    runs_manifest,
    save_runs_manifest,
    save_word_order,
    word_order,
)
from join_stage.store.protocol import TableStore
from templates.witness import R_GROUP, Witnesses


class DuckDBSignaturePlan(SignaturePlan):
    """A `DuckDBPlan`. Keeps runs in `directory`, if there is one."""

    def __init__(self, store: TableStore, directory: Path | None) -> None:
        super().__init__(_StoredState(store), directory)

    def join(self, batch: Batch) -> Matches:
        return self.answer(batch)

    def evicted(self, docids: str, before: int) -> None:
        self.evict(before)


class _StoredState:
    """The `StoredState` of a store on DuckDB."""

    def __init__(self, store: TableStore) -> None:
        self._store = store

    def groups(self) -> pa.Table:
        return self._store.read("groups", R_GROUP.names)

    def end(self) -> int:
        return self._store.highest("r_docts", "docid") + 1

    def between(self, first: int, end: int) -> Witnesses:
        some = (f"SELECT * FROM {name} WHERE docid >= {first} AND docid < {end}" for name in BOUND_STATE)
        bound, r_doc, r_docts = map(self._store.select, some)
        return Witnesses(bound, R_GROUP.empty_table(), r_doc, r_docts)

    def manifest(self) -> str | None:
        return runs_manifest(self._store)

    def save_manifest(self, manifest: str) -> None:
        save_runs_manifest(self._store, manifest)

    def texts(self, docids: pa.Array) -> pa.Table:
        return self._store.find("r_doc", "docid", docids)

    def latest_texts(self, most: int) -> list[str]:
        return latest_texts(self._store, most)

    def word_order(self) -> list[int] | None:
        return word_order(self._store)

    def save_word_order(self, frequent: list[int]) -> None:
        save_word_order(self._store, frequent)
