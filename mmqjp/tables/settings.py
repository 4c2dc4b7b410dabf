"""The table of settings: texts by keys. Of several rows of one key the one of the highest batch counts."""

from __future__ import annotations

from collections.abc import Mapping

from join_stage.store.protocol import TableStore
from mmqjp.tables.columns import INT, TEXT, schema
from mmqjp.tables.table_rows import Rows

TABLES = {"settings": schema(key=TEXT, value=TEXT, batch=INT)}

SPARK_VIEWS = {
    "costs": """
SELECT kept.batch, kept.cost.plan, CAST(template AS BIGINT) AS template, measured.seconds, measured.matches
FROM (
  SELECT batch, from_json(value, 'plan STRING, templates MAP<STRING, STRUCT<seconds: DOUBLE, matches: BIGINT>>') AS cost
  FROM settings WHERE key = 'costs') AS kept
LATERAL VIEW explode(kept.cost.templates) AS template, measured"""
}
"""Views that Spark alone understands. `costs` has what templates cost in the last batch in which each was answered, for
each run that was closed."""


def setting(store: TableStore, key: str) -> str | None:
    """What was noted last under a key; None if nothing was."""
    found = store.read("settings", ["value", "batch"], key).sort_by("batch")
    value: str | None = found["value"][-1].as_py() if len(found) else None
    return value


def settings(store: TableStore, prefix: str) -> dict[str, str]:
    """What was noted last under each key that begins so, by the rest of the key."""
    rows = Rows(store).of(f"SELECT key, value FROM settings WHERE key LIKE '{prefix}%' ORDER BY batch")
    return {row["key"].removeprefix(prefix): row["value"] for row in rows}


def save_settings(store: TableStore, values: Mapping[str, str], batch: int) -> None:
    """Notes texts by their keys, in the batch of a number."""
    Rows(store).append("settings", [(key, value, batch) for key, value in values.items()])


def drop_superseded(store: TableStore, batch: int) -> None:
    """Writes the settings that count anew, in the batch of a number, and drops all that were written before."""
    latest = settings(store, "")
    store.drop_before("settings", "batch", batch)
    save_settings(store, latest, batch)
