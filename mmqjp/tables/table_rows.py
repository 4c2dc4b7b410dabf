"""The rows of a store's tables, as Python has them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from join_stage.store.protocol import TableStore


class Rows:
    """Appends rows to the tables of a store, and reads them."""

    def __init__(self, store: TableStore) -> None:
        self._store = store

    def append(self, table: str, rows: Sequence[Sequence[object]]) -> None:
        """Appends rows, if there are any."""
        if rows:
            self._store.append(table, rows_table(rows, self._store.schema.tables[table]))

    def of(self, sql: str) -> Iterator[dict[str, Any]]:
        """The rows of a query, as dicts."""
        for chunk in self._store.select(sql).to_batches(max_chunksize=1000):
            yield from chunk.to_pylist()

    def tuples(self, table: str, columns: str, order: str | None = None) -> Iterator[tuple[Any, ...]]:
        """All rows of a table, as tuples of some columns, in the order of columns of numbers."""
        rows = self._store.read(table, columns.split())
        if order is not None:
            rows = rows.sort_by([(name, "ascending") for name in order.split()])
        return zip(*(column.to_pylist() for column in rows.columns), strict=True)


def rows_table(rows: Sequence[Sequence[object]], schema: pa.Schema) -> pa.Table:
    """An Arrow table of rows."""
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    arrays = [pa.array(list(column), field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.table(arrays, schema=schema)
