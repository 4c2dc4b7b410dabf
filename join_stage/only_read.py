"""The writing half of a `JoinEngine` that is opened to be read only."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NoReturn

import pyarrow as pa

from join_stage.batch_sql import TemplateTable
from join_stage.costs import Cost
from join_stage.joiner import Scope
from join_stage.store.protocol import StoreError
from templates.catalog import Edge, Row
from templates.witness import Witnesses


class OnlyRead:
    """Ignores rows of R_T, which no batch will need, and refuses all other changes with StoreError."""

    def put_rows(self, template: TemplateTable, rows: Sequence[Row]) -> None:
        """Does nothing: no batch is answered."""

    def drop_rows(self, template: TemplateTable, rows: Sequence[Row]) -> None:
        """Does nothing: no batch is answered."""

    def begin(self) -> NoReturn:
        raise StoreError("the store was opened to be read only")

    def commit(self) -> NoReturn:
        self.begin()

    def rollback(self) -> None:
        """Does nothing: no batch was begun."""

    def append(self, table: str, rows: pa.Table) -> NoReturn:
        self.begin()

    def join(self, batch: Witnesses, first_docid: int, scope: Scope) -> NoReturn:
        self.begin()

    def extend(self, witnesses: Witnesses, *, whole: bool = False) -> NoReturn:
        self.begin()

    def evict(self, before: int) -> NoReturn:
        self.begin()

    def drop_groups(self, edges: Collection[Edge]) -> NoReturn:
        self.begin()

    def drop_derived(self, node: int) -> NoReturn:
        self.begin()

    def drop_before(self, table: str, column: str, bound: int) -> NoReturn:
        self.begin()

    def follow(self, tables: Collection[str]) -> None:
        """Cannot tell."""

    def counters(self) -> dict[str, int]:
        return {}

    def costs(self) -> dict[int, Cost]:
        return {}
