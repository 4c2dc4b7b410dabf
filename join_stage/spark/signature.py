"""The `signature` plan of the Spark engine: postings in the driver's memory, made anew from the join state's files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from pyspark.sql import DataFrame

from join_stage.costs import Cost
from join_stage.engine import Batch, Matches
from join_stage.plan import TemplateTable
from join_stage.signature.joiner import SignatureJoin
from join_stage.spark.tables import TableViews
from join_stage.tables import STATE
from templates.catalog import Row


class SignaturePlan:
    """Joins in the driver beside the store, whose files are what is kept for good."""

    in_sql: ClassVar[bool] = False

    def __init__(self, views: TableViews) -> None:
        self._views = views
        self._join = SignatureJoin()
        self._loaded = False

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
                self._join.load(*(before[name].toArrow() for name in STATE))
            self._loaded = True
        return self._join.join(batch.witnesses, batch.scope)

    def evicted(self, files: Mapping[str, Sequence[Path]], before: int) -> None:
        self._join.evict(before)

    def committed(self) -> None:
        """What is kept is as it should be."""

    def rolled_back(self) -> None:
        """The postings hold documents that are not there."""
        self._loaded = False

    def counters(self) -> dict[str, int]:
        return self._join.counters()

    def costs(self) -> dict[int, Cost]:
        return self._join.costs.of_templates()

    def close(self) -> None:
        """Nothing is held outside this process."""
