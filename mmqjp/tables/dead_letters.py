"""The table of documents that could not be taken in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from join_stage.store.protocol import TableStore
from mmqjp.tables.columns import INT, TEXT, schema
from mmqjp.tables.table_rows import Rows

DEAD_LETTERS = schema(id=TEXT, stream=TEXT, time=INT, reason=TEXT, raw=pa.binary(), noted_at=INT)

TABLES = {"dead_letters": DEAD_LETTERS}


def dead_letters(store: TableStore) -> Iterator[dict[str, Any]]:
    """All dead letters, in no particular order."""
    return Rows(store).of("SELECT * FROM dead_letters")
