"""A source of Arrow rows for DuckDB that is registered once, and whose rows change."""

from __future__ import annotations

import pyarrow as pa


class RowSource:
    """DuckDB reads the `rows` that it holds at that moment. All have one schema."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._empty = self.rows = schema.empty_table()

    def clear(self) -> None:
        """Lets the rows go."""
        self.rows = self._empty

    def __arrow_c_schema__(self) -> object:
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.rows.__arrow_c_stream__(requested_schema)
