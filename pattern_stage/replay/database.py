"""What answers questions in SQL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import pyarrow as pa


class Database(Protocol):
    """A database that keeps nothing: tables are given with each question."""

    def ask(self, sql: str, tables: Mapping[str, pa.Table]) -> pa.Table:
        """Returns the answer to a question over tables of these names."""
