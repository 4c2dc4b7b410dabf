"""The wishes on Apache Flink: a job in SQL, submitted through PyFlink to a cluster in its own process.

`joined` is the form of an expert: for each kind, an interval join of the items with the longest window, whose pairs
are joined with the wishes. The wishes are a stream too, so one can be added while the job runs. `each` has a join for
each wish, with its constants, in one job. Both keep their state in memory and take no checkpoints. Items and wishes are
files in directories that Flink looks into every 20 ms.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.peer_files import MARK, Directories, Growing, mark_wishes
from bench.peer_worker import JOINS, TABLES, WISHES, Row, Wish, Work, serve

NUMBERS = ("doc", "t", "width")
TASKS = 1
"""On two cores, two parallel tasks of each operator were no faster."""

_PRINTED = re.compile(r"\+I\[(.*), (\d+), (\d+)\]$")
# Without the second, an item of the very millisecond that the watermark has reached would not be kept.
_TIME = "ts AS TO_TIMESTAMP_LTZ(t / 1000, 3), WATERMARK FOR ts AS ts - INTERVAL '1' SECOND"
_SPAN = "r.ts BETWEEN l.ts AND l.ts + INTERVAL '{hours}' HOUR(3)"


class Flink:
    """The peer."""

    def __init__(self, work: Work, directory: Path) -> None:
        self._work = work
        self._wishes = [*work.wishes, *mark_wishes(work.kinds)]
        self._in = Directories(directory / "flink", header=False)
        self._printed = directory / "printed"
        self._out = Growing(self._printed)
        self._job: Any = None

    def start(self) -> None:
        # The connector `print` writes to the standard output of the JVM, which is that of this process.
        printed = os.open(self._printed, os.O_CREAT | os.O_WRONLY)
        os.dup2(printed, 1)
        from pyflink.table import EnvironmentSettings, TableEnvironment

        tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
        tables.get_config().set("parallelism.default", str(TASKS))
        tables.get_config().set("pipeline.object-reuse", "true")
        for name, columns in TABLES.items():
            tables.execute_sql(self._source(name, columns, f", {_TIME}"))
        tables.execute_sql(self._source("wishes", WISHES, ""))
        tables.execute_sql("CREATE TABLE found (name STRING, l BIGINT, r BIGINT) WITH ('connector' = 'print')")
        made = self._joined() if self._work.form == "joined" else self._each()
        self._job = tables.execute_sql(f"INSERT INTO found {' UNION ALL '.join(made)}").get_job_client()
        self._in.put_wishes("first", self._wishes)
        self._in.prepare(None, self._work.kinds, self._work.begins)
        self.feed()

    def prepare(self, batch: Path) -> None:
        self._in.prepare(batch, self._work.kinds, self._work.begins)

    def feed(self) -> float:
        begin = time.perf_counter()
        return self._out.wait(*self._in.publish()) - begin

    def add(self, wish: Wish) -> bool:
        self._in.put_wishes("added", [wish])
        self._out.wait(f"[{wish.name},")
        return True

    def rows(self) -> Iterator[Row]:
        with self._printed.open(encoding="utf-8") as lines:
            for line in lines:
                if (match := _PRINTED.search(line)) and int(match[2]) < MARK:
                    yield match[1], int(match[2]), int(match[3])

    def details(self) -> dict[str, float]:
        return {}

    def stop(self) -> None:
        if self._job is not None:
            self._job.cancel().result()

    def _source(self, name: str, columns: tuple[str, ...], more: str) -> str:
        typed = ", ".join(f"{column} {'BIGINT' if column in NUMBERS else 'STRING'}" for column in columns)
        return (
            f"CREATE TABLE {name} ({typed}{more}) WITH ('connector' = 'filesystem', 'format' = 'csv', "
            f"'path' = '{self._in.path(name).as_uri()}', 'source.monitor-interval' = '20 ms')"
        )

    def _joined(self) -> Iterator[str]:
        for kind in self._work.kinds:
            pairs = _pairs(kind, self._work.longest[kind])
            yield (
                f"SELECT w.name, p.l, p.r FROM ({pairs}) p JOIN wishes w ON w.channel = p.channel AND p.d <= w.width "
                f"WHERE w.kind = '{kind}'"
            )

    def _each(self) -> Iterator[str]:
        for wish in self._wishes:
            hours = -(-wish.width // 3_600_000_000)
            pairs = _pairs(wish.kind, hours, f"AND l.channel = '{wish.channel}' AND r.t - l.t <= {wish.width}")
            yield f"SELECT '{wish.name}' AS name, l, r FROM ({pairs})"


def _pairs(kind: str, hours: int, where: str = "") -> str:
    earlier, column, later, other = JOINS[kind]
    return (
        f"SELECT l.channel, l.doc AS l, r.doc AS r, r.t - l.t AS d FROM {earlier} l, {later} r "
        # Flink's times are milliseconds, so those of the items are compared too.
        f"WHERE l.{column} = r.{other} AND {_SPAN.format(hours=hours)} AND r.t > l.t {where}"
    )


if __name__ == "__main__":
    serve(Flink)
