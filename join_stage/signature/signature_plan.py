"""The `signature` plan on any engine: postings in memory, rebuilt from the stored join state when they may differ."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from join_stage.batch_sql import TemplateTable
from join_stage.costs import Cost
from join_stage.joiner import Batch, Matches
from join_stage.signature.join import Mark, SignatureJoin
from templates.catalog import Edge, Row
from templates.witness import Witnesses


@dataclass(frozen=True, slots=True)
class StoredState:
    """What postings are built from: the groups of a store, as rows of R_GROUP, and its join state without the batch,
    None if it is empty."""

    groups: pa.Table
    witnesses: Witnesses | None


class SignaturePlan:
    """Joins in memory. The tables of the store are what lasts. The plan of each engine adds how they are read: for the
    first batch, and after the postings fell behind them."""

    in_sql: ClassVar[bool] = False

    def __init__(self) -> None:
        self._join = SignatureJoin()
        self._loaded = False
        self._before: Mark | None = None
        self._extended = False

    @property
    def reads_state(self) -> bool:
        """Whether the next batch reads the stored state."""
        return not self._loaded

    def put_rows(self, template: TemplateTable, rows: Sequence[Row]) -> None:
        self._join.put_rows(template.shape, rows)

    def drop_rows(self, template: TemplateTable, rows: Sequence[Row]) -> None:
        self._join.drop_rows(rows)

    def answer(self, batch: Batch, stored: Callable[[], StoredState]) -> Matches:
        """Answers all templates for a batch. Calls `stored` if the postings must be built."""
        if not self._loaded:
            state = stored()
            self._join.restart(state.groups)
            if state.witnesses is not None:
                self._join.load(state.witnesses)
            self._loaded = True
        self._note()
        return self._join.join(batch.witnesses, batch.scope)

    def evict(self, before: int) -> None:
        """Drops the postings of documents that begin before a time, in microseconds."""
        self._note()
        self._join.evict(before)

    def extended(self) -> None:
        """The postings lack what was added. Those built from now on have it, and are dropped if the batch is rolled
        back."""
        self._loaded, self._extended = False, True

    def regrouped(self, kept: Collection[int], edges: Collection[Edge]) -> None:
        self._note()
        self._join.keep_groups(kept, edges)

    def _note(self) -> None:
        """Notes the postings before a batch changes them."""
        self._before = self._before or self._join.mark()

    def committed(self) -> None:
        self._before, self._extended = None, False

    def rolled_back(self, *, whole: bool) -> None:
        if self._before is not None:
            whole = whole and not self._extended
            self._loaded = whole and self._loaded and self._join.back_to(self._before)
        self._before, self._extended = None, False

    def counters(self) -> dict[str, int]:
        return self._join.counters()

    def costs(self) -> dict[int, Cost]:
        return self._join.costs.of_templates()
