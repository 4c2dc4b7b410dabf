"""Types of columns, and schemas made of them."""

from __future__ import annotations

import pyarrow as pa

INT, TEXT = pa.int64(), pa.string()
INTS, TEXTS = pa.list_(INT), pa.list_(TEXT)


def schema(**columns: pa.DataType) -> pa.Schema:
    """Returns a schema with these columns, in this order."""
    return pa.schema(list(columns.items()))
