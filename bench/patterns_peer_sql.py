"""Statements as an expert would write them in SQL: one query over the events and a table of parameters, on DuckDB."""

from __future__ import annotations

import duckdb
import numpy as np
import pyarrow as pa

from bench.patterns_peer_task import Task
from common.arrays import Ints

_STARTS = """
    WITH starts AS (
        SELECT * FROM events e
        WHERE kind = 'A' AND EXISTS (SELECT 1 FROM parameters WHERE e.x >= low AND e.x < high)
    ), pairs AS (
        SELECT l.id, l.x, r.id AS b, r.t FROM starts l JOIN events r
        ON r.kind = 'B' AND r.k = l.k AND r.x > l.x AND r.t > l.t AND r.t <= l.t + 86400
    )"""

_PARAMETERS = "JOIN parameters ON x >= low AND x < high"

FORMS: dict[str, dict[str, str]] = {
    "first after": {
        "rank": f"""{_STARTS}, ranked AS (
            SELECT id, x, b, rank() OVER (PARTITION BY id ORDER BY t) AS place FROM pairs
        ) SELECT n, id, b, 0 FROM ranked {_PARAMETERS} WHERE place = 1""",
        "arg_min": f"""{_STARTS}, firsts AS (
            SELECT id, any_value(x) AS x, arg_min(b, t) AS b FROM pairs GROUP BY id
        ) SELECT n, id, b, 0 FROM firsts {_PARAMETERS}""",
    },
    "rising runs": {
        "lead": f"""
        WITH steps AS (
            SELECT *, lead(x) OVER later > x AS rises, lead(id) OVER later AS following, lead(t) OVER later AS end_t
            FROM events WHERE kind = 'A' WINDOW later AS (PARTITION BY k ORDER BY t)
        ), runs AS (
            SELECT id, x, t, rises, min(CASE WHEN NOT rises THEN id END) OVER rest AS latest,
                min(CASE WHEN NOT rises THEN following END) OVER rest AS following,
                min(CASE WHEN NOT rises THEN end_t END) OVER rest AS end_t
            FROM steps
            WINDOW rest AS (PARTITION BY k ORDER BY t ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING)
        ) SELECT n, id, latest, following FROM runs {_PARAMETERS}
        WHERE rises AND following IS NOT NULL AND end_t - t <= 86400""",
    },
}
"""The forms of a template that we could think of, by name. Numbers of events ascend as their times do."""


def connected(events: pa.Table, task: Task) -> duckdb.DuckDBPyConnection:
    """A database in memory with the events and the parameters, on one processor."""
    connection = duckdb.connect(config={"threads": 1})
    low, high = zip(*task.ranges, strict=True)
    parameters = pa.table({"n": np.arange(len(low)), "low": low, "high": high})
    for name, table in (("events", events), ("parameters", parameters)):
        connection.register("given", table)
        connection.execute(f"CREATE TABLE {name} AS SELECT * FROM given")
        connection.unregister("given")
    return connection


def answered(connection: duckdb.DuckDBPyConnection, template: str, form: str) -> Ints:
    """The rows, in any order."""
    columns = connection.execute(FORMS[template][form]).fetchnumpy()
    return np.column_stack([column.astype(np.int64) for column in columns.values()])
