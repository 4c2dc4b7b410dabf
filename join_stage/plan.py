"""What the plans of both engines have in common."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import ClassVar, Protocol

from join_stage.batch_sql import TemplateTable
from join_stage.costs import Cost, Costs
from templates.catalog import Edge, Row
from templates.witness import Witnesses


class Plan(Protocol):
    """A way to answer batches over the join state. The protocol of each engine adds how a plan reads it.

    What a plan keeps of documents is committed and rolled back with the batches of the store.
    """

    in_sql: ClassVar[bool]
    """Whether it reads the batch from the relations r_bin_w, r_doc_w and r_docts_w, and the join state from tables."""

    def put_rows(self, template: TemplateTable, rows: Sequence[Row]) -> None:
        """Adds rows to the R_T of a template. A row replaces the one with its id."""

    def drop_rows(self, template: TemplateTable, rows: Sequence[Row]) -> None:
        """Removes rows from the R_T of a template."""

    def extend(self, witnesses: Witnesses, *, whole: bool) -> None:
        """Is told that witnesses of earlier documents are about to be added to the join state. If they are `whole`,
        they are all those of documents of which it has nothing yet."""

    def forget(self) -> None:
        """Is told that the join state changes in other ways: what the plan keeps of it is to be read anew."""

    def regrouped(self, kept: Collection[int], edges: Collection[Edge]) -> None:
        """Is told that groups were dropped: all but those with numbers in `kept` and those that documents have. What
        the state had of groups with none of `edges` is gone, or is asked for no more."""

    def settle(self) -> None:
        """Is told that the batch is about to be committed. May append to tables. Raises StoreError."""

    def committed(self) -> None:
        """Is told that the batch is committed."""

    def rolled_back(self, *, whole: bool) -> None:
        """Is told that the batch is rolled back. If not `whole`, its commit failed, and only
        part of it may be undone."""

    def close(self) -> None:
        """Is told that the engine is closed."""

    def counters(self) -> dict[str, int]:
        """The counters of the plan, since the engine was opened."""

    def costs(self) -> dict[int, Cost]:
        """The cost of each template, by number, in the last batch in which it was answered."""


class SQLPlan:
    """The part of a plan in SQL that both engines share. It keeps nothing about documents or groups."""

    in_sql: ClassVar[bool] = True

    def __init__(self) -> None:
        self._templates: dict[int, TemplateTable] = {}
        self._costs = Costs()

    def extend(self, witnesses: Witnesses, *, whole: bool) -> None:
        """Does nothing: the plan keeps nothing about documents."""

    def forget(self) -> None:
        """Does nothing: the plan keeps nothing about documents."""

    def regrouped(self, kept: Collection[int], edges: Collection[Edge]) -> None:
        """Does nothing: the plan keeps nothing about groups."""

    def settle(self) -> None:
        """Does nothing: the plan keeps nothing from batch to batch."""

    def committed(self) -> None:
        """Does nothing: the plan keeps nothing from batch to batch."""

    def rolled_back(self, *, whole: bool) -> None:
        """Does nothing: the plan keeps nothing from batch to batch."""

    def close(self) -> None:
        """Does nothing: the plan holds nothing open."""

    def counters(self) -> dict[str, int]:
        return {}

    def costs(self) -> dict[int, Cost]:
        return self._costs.of_templates()
