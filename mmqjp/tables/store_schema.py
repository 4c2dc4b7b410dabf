"""The schema that a store is opened with: all tables beside the join state, and the views over them.

Tables are append-only: each row is written by one batch.
"""

from __future__ import annotations

from join_stage.store.schema import StoreSchema
from mmqjp.tables import (
    answers,
    batches,
    command_answers,
    dead_letters,
    deliveries,
    documents,
    events,
    offsets,
    queries,
    settings,
    spent,
    told,
)

TABLES = (
    documents.TABLES
    | dead_letters.TABLES
    | answers.TABLES
    | batches.TABLES
    | queries.TABLES
    | settings.TABLES
    | offsets.TABLES
    | spent.TABLES
    | command_answers.TABLES
    | told.TABLES
    | deliveries.TABLES
    | events.TABLES
)

_DOCUMENTED = (
    "documents",
    "queries",
    "matches",
    "outputs",
    "output_matches",
    "dead_letters",
    "events",
    "batches",
    "gaps",
    "undelivered",
    "r_bin",
    "r_doc",
    "r_docts",
)

SCHEMA = StoreSchema(
    TABLES, queries.VIEWS | answers.VIEWS, queries.R_T, documented=_DOCUMENTED, former_names=answers.FORMER_NAMES
)
"""All tables and views of a store beside the join state."""

TIMES = frozenset(("t0", "t1", "time", "timestamp", "added_at", "removed_at", "noted_at", "taken_at", "committed_at"))
"""The columns of tables and views that hold times, in microseconds."""
