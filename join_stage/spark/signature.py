"""The `signature` plan of the Spark engine: postings in the driver's memory, made anew from the join state's files."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from join_stage.costs import Cost
from join_stage.joiner import Batch, Matches
from join_stage.plan import TemplateTable
from join_stage.signature.arrays import encoded
from join_stage.signature.joiner import Mark, SignatureJoin
from join_stage.state_tables import STATE
from join_stage.store.spark.tables import TableViews
from templates.catalog import Edge, Row
from templates.witness import R_GROUP, Witnesses

_EDGE = 1 << 30
"""The first number of a group that stands for a single edge; those of stage 1 are less."""


class SignaturePlan:
    """Joins in the driver beside the store, whose files are what is kept for good."""

    in_sql: ClassVar[bool] = False

    def __init__(self, views: TableViews) -> None:
        self._views = views
        self._join = SignatureJoin()
        self._loaded = False
        self._before: Mark | None = None
        self._extended = False

    @property
    def reads_state(self) -> bool:
        return not self._loaded

    def put_rows(self, template: TemplateTable, rows: Sequence[Row]) -> None:
        self._join.put_rows(template.shape, rows)

    def drop_rows(self, template: TemplateTable, rows: Sequence[Row]) -> None:
        self._join.drop_rows(rows)

    def join(self, batch: Batch, before: Mapping[str, DataFrame]) -> Matches:
        if not self._loaded:
            self._join.restart(self._views.frame("groups").toArrow())
            if before:
                self._join.load(edge_by_edge(*(before[name].toArrow() for name in STATE)))
            self._loaded = True
        self._note()
        return self._join.join(batch.witnesses, batch.scope)

    def evicted(self, files: Mapping[str, Sequence[Path]], before: int) -> None:
        self._note()
        self._join.evict(before)

    def extended(self) -> None:
        """The postings lack what was added; those that are made from now on have it, and go if the batch does."""
        self._loaded, self._extended = False, True

    def regrouped(self, edges: Collection[Edge]) -> None:
        self._note()
        self._join.keep_groups((), edges)

    def _note(self) -> None:
        """Notes what is kept before a batch changes it."""
        self._before = self._before or self._join.mark()

    def committed(self) -> None:
        self._before, self._extended = None, False

    def rolled_back(self) -> None:
        if self._before is not None:
            self._loaded = self._loaded and not self._extended and self._join.back_to(self._before)
        self._before, self._extended = None, False

    def counters(self) -> dict[str, int]:
        return self._join.counters()

    def costs(self) -> dict[int, Cost]:
        return self._join.costs.of_templates()

    def close(self) -> None:
        """Nothing is held outside this process."""


def edge_by_edge(r_bin: pa.Table, r_doc: pa.Table, r_docts: pa.Table) -> Witnesses:
    """The join state as witnesses in which each edge is a group of its own."""
    code, edges = encoded((r_bin["var1"].to_numpy().astype(np.int64) << 32) | r_bin["var2"].to_numpy())
    numbers = np.arange(len(edges), dtype=np.int64) + _EDGE
    columns = (numbers, edges >> 32, edges & 0xFFFFFFFF)
    groups = pa.table([pa.array(column.astype(np.int32)) for column in columns], R_GROUP)
    bound = r_bin.select(["docid", "node1", "node2"]).add_column(1, "grp", pa.array(numbers[code].astype(np.int32)))
    return Witnesses(bound, groups, r_doc, r_docts)
