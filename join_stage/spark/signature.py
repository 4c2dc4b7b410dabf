"""The `signature` plan on Spark: the driver keeps the postings, and joins small batches; tasks join large ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import DataFrame

from join_stage.arrays import dictionary_encode
from join_stage.joiner import Batch, Matches, Scope, has_many_values
from join_stage.signature.signature_plan import SignaturePlan, telling_no_room
from join_stage.spark.spread.merger import SparkMerger, merge_on_executor
from join_stage.spark.spread.spread import Spread
from join_stage.state_tables import (
    STATE,
    latest_texts,
    runs_manifest,
    save_runs_manifest,
    save_word_order,
    word_order,
)
from join_stage.store.protocol import TableStore
from join_stage.store.spark.parquet_store import ParquetStore
from templates.witness import R_GROUP, Witnesses

_EDGE = 1 << 30
"""The first number of a group of a single edge. The numbers of stage 1 are less."""


class SparkSignaturePlan(SignaturePlan):
    """A `SparkPlan` over the engine's own tables, whose files `files` reads. Keeps runs in `directory`. Executors join
    large batches, unless the store is temporary: who has outputs may read them when it is gone."""

    def __init__(self, store: TableStore, files: ParquetStore, directory: Path, context: SparkContext) -> None:
        # With one core of this machine, a batch would have to wait for a merge.
        merger = SparkMerger(context) if not files.is_temporary and context.defaultParallelism > 1 else None
        if merger is not None:
            files.merge_elsewhere = partial(merge_on_executor, context)
        super().__init__(_StoredState(store, files), directory, merger)
        self._files = files
        self._spread = None if files.is_temporary else Spread(context, self._join.rows, self._join.costs)

    def join(self, batch: Batch, before: Mapping[str, DataFrame]) -> Matches:
        return self.answer(batch)

    def _matches(self, batch: Witnesses, scope: Scope) -> Matches:
        docids = batch.r_docts["docid"]
        if self._spread is None or not self._spread.takes(len(docids), self._join.on_disk):
            return super()._matches(batch, scope)
        with telling_no_room():
            written = self._join.write(batch, scope, self._end - 1)
        docids = sorted(docids.to_pylist())
        texts = self._texts() if has_many_values(batch) else ()
        return self._spread.matches(docids, written.run, written.others, written.filtered, scope, texts)

    def _texts(self) -> Sequence[str]:
        """The files in which executors find the words of texts, those of the batch included."""
        self._files.write_out("r_doc")
        return self._files.paths_to_look_up("r_doc")

    def close(self) -> None:
        super().close()
        if self._spread is not None:
            self._spread.close()

    def evicted(self, files: Mapping[str, Sequence[Path]], before: int) -> None:
        self.evict(before)


class _StoredState:
    """The `StoredState` of a store of files."""

    def __init__(self, store: TableStore, files: ParquetStore) -> None:
        self._store, self._files = store, files
        self._numbers: dict[int, int] = {}
        """The numbers of edges as groups, by both their variables in one number. They stay the same."""

    def groups(self) -> pa.Table:
        return self._files.read("groups")

    def end(self) -> int:
        return self._store.highest("r_docts", "docid") + 1

    def between(self, first: int, end: int) -> Witnesses:
        r_bin, r_doc, r_docts = (self._files.read_between(name, "docid", first, end) for name in STATE)
        return edge_by_edge(r_bin, r_doc, r_docts, self._numbers)

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


def edge_by_edge(r_bin: pa.Table, r_doc: pa.Table, r_docts: pa.Table, known: dict[int, int]) -> Witnesses:
    """The flat join state as witnesses in which each edge is a group of its own. `known` has the numbers that edges
    got before, and gets those of new ones."""
    code, edges = dictionary_encode((r_bin["var1"].to_numpy().astype(np.int64) << 32) | r_bin["var2"].to_numpy())
    numbers = np.array([known.setdefault(edge, _EDGE + len(known)) for edge in edges.tolist()], np.int64)
    columns = (numbers, edges >> 32, edges & 0xFFFFFFFF)
    groups = pa.table([pa.array(column.astype(np.int32)) for column in columns], R_GROUP)
    bound = r_bin.select(["docid", "node1", "node2"]).add_column(1, "grp", pa.array(numbers[code].astype(np.int32)))
    return Witnesses(bound, groups, r_doc, r_docts)
