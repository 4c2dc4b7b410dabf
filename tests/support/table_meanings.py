"""What the tables and views of a store and their columns mean, for docs/tables.md."""

from __future__ import annotations

import tomllib

from tests.support.places import DATA

_FOUND = tomllib.loads((DATA / "table_meanings.toml").read_text("utf-8"))

MEANINGS: dict[str, tuple[str, dict[str, str]]] = {
    name: (found["is"], found["columns"]) for name, found in _FOUND["meanings"].items()
}
"""What users may rely on: the meaning of each table or view, and of its columns."""

MEANT = {"costs": dict(zip(MEANINGS["costs"][1], ("integer", "text", "integer", "number", "integer"), strict=True))}
"""The types of the columns of views that a DuckDB store does not have."""

BEHIND: dict[str, str] = _FOUND["behind"]
"""What else a store has."""
