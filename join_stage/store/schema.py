"""What a store is opened with: its tables as Arrow schemas, and the views over them. A store knows none by itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class NumberedViews:
    """Views of one form, one for each row of a table: `r_t_0`, `r_t_1` and so on, by `prefix` and a number.

    `numbers` is the table's column with the numbers. `argument` is another of its columns, from which `statement` makes
    the view's SELECT, given the number, the argument, and the index that the engine's SQL gives to the first element of
    an array.
    """

    prefix: str
    table: str
    numbers: str
    argument: str
    statement: Callable[[int, list[int | None], int], str]

    def has(self, name: str) -> bool:
        """Whether a name is that of such a view, whether or not there is one of its number."""
        return re.fullmatch(rf"{self.prefix}\d{{1,9}}", name) is not None

    def of_rows(self, rows: pa.Table, first_index: int) -> dict[str, str]:
        """The views for rows of the table: their SELECTs by name."""
        numbered = zip(rows[self.numbers].to_pylist(), rows[self.argument].to_pylist(), strict=True)
        return {f"{self.prefix}{number}": self.statement(number, value, first_index) for number, value in numbered}


@dataclass(frozen=True, slots=True)
class Dated:
    """Tables whose rows are about documents, so that they can be dropped when these are old. The column `start` of the
    table `times`, one of them, has when documents begin."""

    tables: tuple[str, ...]
    times: str
    start: str


@dataclass(frozen=True)
class StoreSchema:
    """The tables and views of a store, by name. A view's SELECT is one that every engine of the store understands.

    `documented` are the names that somebody is told who asks about a table that there is not.
    """

    tables: Mapping[str, pa.Schema] = field(default_factory=dict)
    views: Mapping[str, str] = field(default_factory=dict)
    numbered: NumberedViews | None = None
    dated: Dated | None = None
    documented: tuple[str, ...] = ()

    def __or__(self, other: StoreSchema) -> StoreSchema:
        """The tables and views of both."""
        return StoreSchema(
            {**self.tables, **other.tables},
            {**self.views, **other.views},
            other.numbered or self.numbered,
            other.dated or self.dated,
            (*self.documented, *other.documented),
        )

    @cached_property
    def relations(self) -> frozenset[str]:
        """What a question may name, beside the numbered views."""
        return frozenset((*self.tables, *self.views))

    def has(self, name: str) -> bool:
        """Whether a question may name a relation so: in lower case."""
        return name in self.relations or (self.numbered is not None and self.numbered.has(name))
