"""The table of dead letters: documents that were refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from join_stage.store.protocol import TableStore
from mmqjp.tables.columns import INT, TEXT, schema
from mmqjp.tables.table_rows import TableRows

DEAD_LETTERS = schema(id=TEXT, stream=TEXT, time=INT, reason=TEXT, raw=pa.binary(), noted_at=INT)

TABLES = {"dead_letters": DEAD_LETTERS}


def dead_letters(store: TableStore) -> Iterator[dict[str, Any]]:
    """Yields all dead letters, in no particular order."""
    return TableRows(store).select("SELECT * FROM dead_letters")
