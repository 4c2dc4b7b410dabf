"""The rows of a batch that wait until all tables are written by one statement: one for each table takes far longer."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from join_stage.store.duckdb_prepared import PreparedStatements

MOST_ROWS = 2_000
"""The number of rows that wait. More are written at once: then the time is that of the rows, and no longer that of the
statements."""


class WaitingRows:
    """Rows to insert into tables, by table. `tables` has all names; a statement names them in this order."""

    def __init__(self, prepared: PreparedStatements, tables: Iterable[str]) -> None:
        self._prepared = prepared
        self._tables = tuple(tables)
        self._rows: dict[str, list[pa.Table]] = {}
        self._count = 0

    def add(self, table: str, rows: pa.Table) -> None:
        """Adds rows."""
        if len(rows):
            self._rows.setdefault(table, []).append(rows)
            self._count += len(rows)

    @property
    def are_many(self) -> bool:
        """Whether the rows should not wait any longer."""
        return self._count > MOST_ROWS

    def write(self) -> None:
        """Inserts all rows."""
        if self._rows:
            names = [name for name in self._tables if name in self._rows]
            rows = {source_of(name): pa.concat_tables(self._rows[name]) for name in names}
            self.forget()
            self._prepared.execute(_insertion(names), rows)

    def forget(self) -> None:
        """Lets all rows go."""
        self._rows.clear()
        self._count = 0


def source_of(table: str) -> str:
    """Returns the name under which a statement reads the rows for a table."""
    return f"{table}_fresh"


def _insertion(tables: list[str]) -> str:
    *others, last = (f"INSERT INTO {name} SELECT * FROM {source_of(name)}" for name in tables)
    inner = ", ".join(f"into_{name} AS ({insert})" for name, insert in zip(tables, others, strict=False))
    return f"WITH {inner} {last}" if inner else last
