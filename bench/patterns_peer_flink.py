"""Statements on Apache Flink: a job with a MATCH_RECOGNIZE for each, in SQL, through PyFlink."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from bench.patterns_peer_task import Task, finish, given_directory, read_task

_PRINTED = re.compile(r"\+I\[(\d+), (\d+), (\d+), (\d+)\]$")


def _matches(task: Task) -> Iterator[str]:
    """A SELECT for each statement."""
    for number, (low, high) in enumerate(task.ranges):
        start = f"A AS A.kind = 'A' AND A.x >= {low!r} AND A.x < {high!r}"
        if task.template == "first after":
            source = "events"
            # With the reluctant `N*?`, Flink 2.3 skips a few partners.
            measures, pattern = "A.id AS a, B.id AS b, CAST(0 AS BIGINT) AS c", "A N* B"
            defined = f"{start}, N AS N.kind = 'A' OR N.x <= A.x, B AS B.kind = 'B' AND B.x > A.x"
        else:
            # Flink takes no greedy quantifier at the end, so a run ends with the event that no longer rises.
            source = "(SELECT * FROM events WHERE kind = 'A')"
            measures, pattern = "A.id AS a, LAST(R.id) AS b, C.id AS c", "A R+ C"
            rises = "(LAST(R.x, 1) IS NULL AND R.x > A.x) OR R.x > LAST(R.x, 1)"
            defined = f"{start}, R AS {rises}, C AS C.x <= LAST(R.x)"
        yield (
            f"SELECT CAST({number} AS INT), a, b, c FROM {source} MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts "
            f"MEASURES {measures} ONE ROW PER MATCH AFTER MATCH SKIP TO NEXT ROW PATTERN ({pattern}) "
            f"WITHIN INTERVAL '1' DAY DEFINE {defined})"
        )


def _run(directory: Path) -> None:
    # The connector `print` writes to the standard output of the JVM, which is that of this process.
    printed = directory / "printed"
    os.dup2(os.open(printed, os.O_CREAT | os.O_WRONLY), 1)
    from pyflink.table import EnvironmentSettings, TableEnvironment

    tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    tables.get_config().set("parallelism.default", "1")
    tables.get_config().set("pipeline.object-reuse", "true")
    # Else its parts give each other up where something stops the process for a minute.
    tables.get_config().set("heartbeat.timeout", "1 h")
    tables.execute_sql(
        "CREATE TABLE events (id BIGINT, t BIGINT, kind STRING, k STRING, x DOUBLE, "
        "ts AS TO_TIMESTAMP_LTZ(t * 1000, 3), WATERMARK FOR ts AS ts) WITH ('connector' = 'filesystem', "
        f"'format' = 'csv', 'path' = '{(directory / 'events.csv').as_uri()}')"
    )
    tables.execute_sql("CREATE TABLE found (n INT, a BIGINT, b BIGINT, c BIGINT) WITH ('connector' = 'print')")
    tables.execute_sql(f"INSERT INTO found {' UNION ALL '.join(_matches(read_task(directory)))}").wait()
    with printed.open(encoding="utf-8") as lines:
        finish(directory, [match.groups() for line in lines if (match := _PRINTED.search(line))])


if __name__ == "__main__":
    _run(given_directory())
