"""Reads and appends table rows as Python tuples and dicts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from join_stage.store.protocol import TableStore

FEW_ROWS = 20
"""So few rows are faster turned into Arrow row by row than column by column."""


class TableRows:
    """Reads rows from the tables of a store, and appends rows to them."""

    def __init__(self, store: TableStore) -> None:
        self._store = store

    def append(self, table: str, rows: Sequence[Sequence[object]]) -> None:
        """Appends rows to a table. The columns are in the order of its schema."""
        if rows:
            self._store.append(table, rows_table(rows, self._store.schema.tables[table]))

    def select(self, sql: str) -> Iterator[dict[str, Any]]:
        """Yields the rows of a query as dicts."""
        for chunk in self._store.select(sql).to_batches(max_chunksize=1000):
            yield from chunk.to_pylist()

    def tuples(self, table: str, columns: str, order: str | None = None) -> Iterator[tuple[Any, ...]]:
        """Yields all rows of a table as tuples of some columns, in ascending order of the columns in `order`."""
        rows = self._store.read(table, columns.split())
        if order is not None:
            rows = rows.sort_by([(name, "ascending") for name in order.split()])
        return zip(*(column.to_pylist() for column in rows.columns), strict=True)


def rows_table(rows: Sequence[Sequence[object]], schema: pa.Schema) -> pa.Table:
    """Returns rows as an Arrow table."""
    if not rows:
        return pa.Table.from_batches([], schema)
    if len(rows) <= FEW_ROWS:
        named = [dict(zip(schema.names, row, strict=True)) for row in rows]
        found = pa.RecordBatch.from_struct_array(pa.array(named, pa.struct(list(schema))))
        return pa.Table.from_batches([found], schema)
    columns = zip(*rows, strict=True)
    arrays = [pa.array(list(column), field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.table(arrays, schema=schema)
