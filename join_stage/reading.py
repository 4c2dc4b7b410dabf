"""SQL that only asks: anything else is refused before it reaches a store."""

from __future__ import annotations

import re

import duckdb

_ASKS = re.compile(r"(?:\s|--[^\n]*\n|/\*.*?\*/|\()*(?:select|with|from|values|table|describe|show)\b", re.I | re.S)


def refuse_writes(sql: str) -> None:
    """Raises ValueError for SQL that is not a single question.

    DuckDB's parser says what it is; what that does not know, a question in the words of Spark, is told by its first
    word.
    """
    try:
        statements = duckdb.extract_statements(sql)
    except duckdb.Error:
        asks = _ASKS.match(sql) is not None
    else:
        if len(statements) != 1:
            raise ValueError(f"one SELECT is answered at a time, and this has {len(statements)} statements")
        asks = statements[0].type == duckdb.StatementType.SELECT
    if not asks:
        raise ValueError("the tables are only read: write a SELECT")
