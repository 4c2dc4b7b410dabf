"""What the plans of both engines have in common: how a batch is answered, and what is kept from batch to batch."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import ClassVar, Protocol

from join_stage.batch_sql import TemplateTable
from join_stage.costs import Cost, Costs
from templates.catalog import Edge, Row


class Plan(Protocol):
    """A way to answer batches over the join state of an engine. Each engine's protocol says how a plan gets at it.

    What a plan keeps of documents follows the batches of the store: they are committed, or taken back.
    """

    in_sql: ClassVar[bool]
    """Whether it reads the batch's part of the join state in r_bin_w, r_doc_w and r_docts_w."""

    def put_rows(self, template: TemplateTable, rows: Sequence[Row]) -> None:
        """Adds rows to the template's R_T; a row with a known id replaces it."""

    def drop_rows(self, template: TemplateTable, rows: Sequence[Row]) -> None:
        """Takes rows out of the template's R_T."""

    def extended(self) -> None:
        """The join state has more of documents that came before."""

    def regrouped(self, kept: Collection[int], edges: Collection[Edge]) -> None:
        """Of the groups of edges only those of the numbers `kept` are there still, and those that documents have; what
        the state had of groups without any of `edges` has left it, or is asked for no more."""

    def committed(self) -> None:
        """The batch has been committed."""

    def rolled_back(self, *, whole: bool) -> None:
        """The batch has been taken back; not `whole`: its commit failed, and perhaps only part of it was."""

    def counters(self) -> dict[str, int]:
        """What the plan counts, since the engine was opened."""

    def costs(self) -> dict[int, Cost]:
        """What templates cost in the last batch that each was answered in, by the templates' numbers."""


class SQLPlan:
    """The part of a plan in SQL that is alike on both engines. It keeps nothing about documents or groups."""

    in_sql: ClassVar[bool] = True

    def __init__(self) -> None:
        self._templates: dict[int, TemplateTable] = {}
        self._costs = Costs()

    def extended(self) -> None:
        """Nothing is kept about documents."""

    def regrouped(self, kept: Collection[int], edges: Collection[Edge]) -> None:
        """Nothing is kept about groups."""

    def committed(self) -> None:
        """Nothing is kept from batch to batch."""

    def rolled_back(self, *, whole: bool) -> None:
        """Nothing is kept from batch to batch."""

    def counters(self) -> dict[str, int]:
        return {}

    def costs(self) -> dict[int, Cost]:
        return self._costs.of_templates()
