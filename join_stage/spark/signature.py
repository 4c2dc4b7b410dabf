"""The `signature` plan on Spark: builds the postings, which are in the memory of the driver, from the stored files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from join_stage.joiner import Batch, Matches
from join_stage.signature.arrays import dictionary_encode
from join_stage.signature.signature_plan import SignaturePlan, StoredState
from join_stage.state_tables import STATE
from join_stage.store.spark.tables import TableViews
from templates.witness import R_GROUP, Witnesses

_EDGE = 1 << 30
"""The first number of a group of a single edge. The numbers of stage 1 are less."""


class SparkSignaturePlan(SignaturePlan):
    """A `SparkPlan`."""

    def __init__(self, views: TableViews) -> None:
        super().__init__()
        self._views = views

    def join(self, batch: Batch, before: Mapping[str, DataFrame]) -> Matches:
        return self.answer(batch, lambda: self._stored(before))

    def evicted(self, files: Mapping[str, Sequence[Path]], before: int) -> None:
        self.evict(before)

    def close(self) -> None:
        """Does nothing: everything is in the memory of this process."""

    def _stored(self, before: Mapping[str, DataFrame]) -> StoredState:
        groups = self._views.frame("groups").toArrow()
        return StoredState(groups, edge_by_edge(*(before[name].toArrow() for name in STATE)) if before else None)


def edge_by_edge(r_bin: pa.Table, r_doc: pa.Table, r_docts: pa.Table) -> Witnesses:
    """The flat join state as witnesses in which each edge is a group of its own."""
    code, edges = dictionary_encode((r_bin["var1"].to_numpy().astype(np.int64) << 32) | r_bin["var2"].to_numpy())
    numbers = np.arange(len(edges), dtype=np.int64) + _EDGE
    columns = (numbers, edges >> 32, edges & 0xFFFFFFFF)
    groups = pa.table([pa.array(column.astype(np.int32)) for column in columns], R_GROUP)
    bound = r_bin.select(["docid", "node1", "node2"]).add_column(1, "grp", pa.array(numbers[code].astype(np.int32)))
    return Witnesses(bound, groups, r_doc, r_docts)
