"""Makes docs/tables.md: the tables and views of a store, with the types of their columns, from a store."""

from __future__ import annotations

import tempfile

import pyarrow as pa

import mmqjp
from join_stage.tables import BOUND_STORE
from mmqjp.tables.schema import SCHEMA, SPARK_VIEWS
from tests.support.table_meanings import BEHIND, MEANINGS, MEANT

HEAD = """\
# Tables

<!-- Made by `python -m tests.support.docs --write`. Do not edit. -->

A state directory holds these tables and views. `mmqjp query "SELECT ..." --state DIR` reads them. So does any DuckDB
client that opens `DIR/mmqjp.duckdb` while no other process has it, and any Spark session after `attach`, where they are
in the database `mmqjp` ([Python](python.md)). Times are microseconds since 1970, in UTC. A docid is the number of a
document in the store.
"""

TAIL = """
## Behind them

These hold what the views above are made of, and what a store needs to go on after a restart. They may change with every
version.

| Table | What it holds |
| --- | --- |
"""

QUERY = "FROM S//item->a[./title->t1] JOIN {t1 = t2, 1 d} S//item->b[./title->t2]"
"""A query, so that the store has a table of a template."""

TYPES = {
    pa.int64(): "integer",
    pa.int32(): "integer",
    pa.string(): "text",
    pa.binary(): "bytes",
    pa.bool_(): "boolean",
    pa.float64(): "number",
}


def page() -> str:
    """The text of the page."""
    with tempfile.TemporaryDirectory() as directory, mmqjp.Engine("duckdb", state=directory, quiet=True) as engine:
        engine.subscribe(QUERY)
        parts = [HEAD]
        for name, (meaning, columns) in MEANINGS.items():
            found = MEANT[name] if name in SPARK_VIEWS else _types(engine, "r_t_0" if name == "r_t_N" else name)
            parts.append(_section(name, meaning, columns, found))
    parts.append(TAIL)
    parts += [f"| `{name}` | {meaning} |\n" for name, meaning in BEHIND.items()]
    return "".join(parts)


def undescribed() -> set[str]:
    """Tables and views of a store that the page leaves out, and names on it that no store has."""
    there = {*SCHEMA.tables, *SCHEMA.views, *BOUND_STORE.tables, *BOUND_STORE.views, *SPARK_VIEWS, "r_t_N"}
    return there ^ (MEANINGS.keys() | BEHIND.keys())


def _types(engine: mmqjp.Engine, name: str) -> dict[str, str]:
    """The types of the columns of a table or view, as the page calls them."""
    found = engine.sql(f"SELECT * FROM {name} LIMIT 0", trusted=True).schema
    return {field.name: _type(field.type) for field in found}


def _type(kind: pa.DataType) -> str:
    return f"list of {_type(kind.value_type)}s" if pa.types.is_list(kind) else TYPES[kind]


def _section(name: str, meaning: str, columns: dict[str, str], types: dict[str, str]) -> str:
    if columns.keys() - types.keys():
        raise ValueError(f"{name} has no column {columns.keys() - types.keys()}")
    rows = "".join(f"| `{column}` | {kind} | {columns[column]} |\n" for column, kind in types.items())
    return f"\n## {name}\n\n{meaning}\n\n| Column | Type | |\n| --- | --- | --- |\n{rows}"
