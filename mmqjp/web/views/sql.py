"""Questions in SQL: the rows of one SELECT, and the tables that there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from join_stage.store.reading import QuestionRefused
from mmqjp.service.json_values import column_values
from mmqjp.tables.store_schema import SCHEMA
from mmqjp.web.site import Site

MOST_ROWS, SECONDS = 1_000, 5.0
"""The most rows of an answer, and the longest time that it may take."""

EXAMPLES = {
    "Outputs of each query": """SELECT query, count(*) AS outputs, max(t1) AS t1
FROM outputs GROUP BY query ORDER BY outputs DESC""",
    "What was refused, and why": """SELECT reason, count(*) AS documents
FROM dead_letters GROUP BY reason ORDER BY documents DESC""",
    "The largest documents": """SELECT id, stream, t0, length(xml) AS characters
FROM documents ORDER BY characters DESC LIMIT 20""",
    "The work of the last batches": """SELECT batch, documents, outputs, committed_at
FROM batches ORDER BY batch DESC LIMIT 50""",
}
"""Questions to begin with."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a question: its columns, two of which may have the same name, and its rows. `is_cut` says that
    there are more than MOST_ROWS."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    is_cut: bool


@dataclass(frozen=True, slots=True)
class Table:
    """A table or view of a store, with its columns."""

    name: str
    columns: Sequence[str]


def answer(site: Site, sql: str) -> Answer:
    """Returns the rows of a SELECT. Raises QuestionRefused for what is none, TooSlow, Busy, StoreError."""
    question = sql.strip().rstrip(";").rstrip()
    if not question:
        raise QuestionRefused("there is no question yet: write a SELECT")
    bounded = f"SELECT * FROM (\n{question}\n) AS answer LIMIT {MOST_ROWS + 1}"
    with site.slow:
        found = site.reader.select(bounded, MOST_ROWS + 1, SECONDS, asked=True)
    columns = [column_values(column) for column in found.columns]
    rows = [list(row) for row in zip(*columns, strict=True)]
    return Answer(found.column_names, rows[:MOST_ROWS], len(rows) > MOST_ROWS)


def tables(site: Site) -> list[Table]:
    """Returns the tables and views that are documented."""
    return site.kept_for_good.get("tables", None, lambda: [_table(site, name) for name in SCHEMA.documented])


def _table(site: Site, name: str) -> Table:
    return Table(name, site.own.select(f"SELECT * FROM {name} LIMIT 0", 1, SECONDS).column_names)
