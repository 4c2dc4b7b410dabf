"""The table of settings: texts by key. The row with the highest batch is the current one."""

from __future__ import annotations

from collections.abc import Mapping

from join_stage.store.protocol import TableStore
from mmqjp.tables.columns import INT, TEXT, schema
from mmqjp.tables.table_rows import TableRows

TABLES = {"settings": schema(key=TEXT, value=TEXT, batch=INT)}

SPARK_VIEWS = {
    "costs": """
SELECT kept.batch, kept.cost.plan, CAST(template AS BIGINT) AS template, measured.seconds, measured.matches
FROM (
  SELECT batch, from_json(value, 'plan STRING, templates MAP<STRING, STRUCT<seconds: DOUBLE, matches: BIGINT>>') AS cost
  FROM settings WHERE key = 'costs') AS kept
LATERAL VIEW explode(kept.cost.templates) AS template, measured"""
}
"""Views that only Spark can run. `costs` has, for each run that was closed, the costs of templates in the last batch
that matched each."""


def setting(store: TableStore, key: str) -> str | None:
    """Returns the latest value of a setting, or None."""
    found = store.read("settings", ["value", "batch"], key).sort_by("batch")
    value: str | None = found["value"][-1].as_py() if len(found) else None
    return value


def settings(store: TableStore, prefix: str) -> dict[str, str]:
    """Returns the latest values of all settings with a prefix, by the rest of their keys."""
    rows = TableRows(store).select(f"SELECT key, value FROM settings WHERE key LIKE '{prefix}%' ORDER BY batch")
    return {row["key"].removeprefix(prefix): row["value"] for row in rows}


def save_settings(store: TableStore, values: Mapping[str, str], batch: int) -> None:
    """Writes settings by key, in a batch."""
    TableRows(store).append("settings", [(key, value, batch) for key, value in values.items()])


def compact_settings(store: TableStore, batch: int) -> None:
    """Writes the current settings again, in a batch, and drops all earlier rows."""
    latest = settings(store, "")
    store.drop_before("settings", "batch", batch)
    save_settings(store, latest, batch)
