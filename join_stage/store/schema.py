"""The schema that a store is opened with: its tables, as Arrow schemas, and the views over them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class NumberedViews:
    """A view for each row of a table, such as `r_t_0`, `r_t_1` and so on: `prefix` and a number.

    `numbers` is the column of the table with the numbers. `statement` makes the SELECT of a view from the number, the
    value in the column `argument`, and the index of the first element of an array in the SQL of the engine.
    """

    prefix: str
    table: str
    numbers: str
    argument: str
    statement: Callable[[int, list[int | None], int], str]

    def has(self, name: str) -> bool:
        """Whether a name has the form of these names."""
        return re.fullmatch(rf"{self.prefix}\d{{1,9}}", name) is not None

    def of_rows(self, rows: pa.Table, first_index: int) -> dict[str, str]:
        """The SELECTs of the views for rows of the table, by name."""
        numbered = zip(rows[self.numbers].to_pylist(), rows[self.argument].to_pylist(), strict=True)
        return {f"{self.prefix}{number}": self.statement(number, value, first_index) for number, value in numbered}


@dataclass(frozen=True, slots=True)
class Dated:
    """Tables whose rows are dropped when their documents are old. `times` is the one of them whose column `start` says
    when documents begin."""

    tables: tuple[str, ...]
    times: str
    start: str


@dataclass(frozen=True)
class StoreSchema:
    """The tables of a store and the SELECTs of its views, by name. Both engines must understand the SELECTs.

    `documented` are the names that a question about an unknown table is answered with. `former_names` has what tables
    are called in stores of older formats. The SELECTs may call `sha2(text, 256)`, as in Spark, and name other views.
    """

    tables: Mapping[str, pa.Schema] = field(default_factory=dict)
    views: Mapping[str, str] = field(default_factory=dict)
    numbered: NumberedViews | None = None
    dated: Dated | None = None
    documented: tuple[str, ...] = ()
    former_names: Mapping[str, str] = field(default_factory=dict)

    def __or__(self, other: StoreSchema) -> StoreSchema:
        """The tables and views of both."""
        return StoreSchema(
            {**self.tables, **other.tables},
            {**self.views, **other.views},
            other.numbered or self.numbered,
            other.dated or self.dated,
            (*self.documented, *other.documented),
            {**self.former_names, **other.former_names},
        )

    def folder(self, table: str) -> str:
        """The folder of a table in a store of files: older stores have it, too."""
        return self.former_names.get(table, table)

    @cached_property
    def relations(self) -> frozenset[str]:
        """The relations that a question may name, beside the numbered views."""
        return frozenset((*self.tables, *self.views))

    def has(self, name: str) -> bool:
        """Whether a question may name a relation by this name, in lower case."""
        return name in self.relations or (self.numbered is not None and self.numbered.has(name))
