"""The wishes on Spark Structured Streaming, with our session, in this process.

`joined` is the form of an expert: one streaming query with a stream-stream join with the longest window for each kind.
Its pairs are joined with the wishes in `foreachBatch`, so a wish can be added while it runs; it gets the pairs that are
completed from then on. `each` has a streaming query with a stream-stream join for each wish, with its constants.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import csv

from bench.peer_files import Directories
from bench.peer_worker import JOINS, TABLES, WISHES, Row, Wish, Work, serve
from join_stage.store.spark.java import spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

NUMBERS = ("doc", "t", "width")
TASKS = 2
"""Partitions of a join. Each costs the same for every trigger, whether it has rows or not."""


class Spark:
    """The peer."""

    def __init__(self, work: Work, directory: Path) -> None:
        self._work, self._directory = work, directory
        self._wishes = list(work.wishes)
        self._in = Directories(directory / "spark", header=True)
        self._session: SparkSession | None = None
        self._asked: DataFrame | None = None
        self._queries: list[StreamingQuery] = []
        self._found: list[pa.Table] = []
        self._out = (directory / "found.csv").open("wb")

    def start(self) -> None:
        self._session = spark_session(warehouse=self._directory / "warehouse", app_name="peers")
        self._session.conf.set("spark.sql.shuffle.partitions", str(TASKS))
        if self._work.form == "joined":
            self._ask()
            made = [self._pairs(kind, self._work.longest[kind]) for kind in self._work.kinds]
            union = made[0]
            for other in made[1:]:
                union = union.unionAll(other)
            self._run(union)
        else:
            from pyspark.sql.functions import lit

            for wish in self._wishes:
                hours = -(-wish.width // 3_600_000_000)
                where = f"l.channel = '{wish.channel}' AND r.t - l.t <= {wish.width}"
                self._run(self._pairs(wish.kind, hours, where).withColumn("name", lit(wish.name)))
        self._in.prepare(None, [], self._work.begins)
        self.feed()

    def prepare(self, batch: Path) -> None:
        self._in.prepare(batch, [], self._work.begins)

    def feed(self) -> float:
        begin = time.perf_counter()
        self._in.publish()
        for query in self._queries:
            query.processAllAvailable()
        return time.perf_counter() - begin

    def add(self, wish: Wish) -> bool:
        self._wishes.append(wish)
        self._ask()
        return False

    def rows(self) -> Iterator[Row]:
        for table in self._found:
            yield from zip(*(table[name].to_pylist() for name in ("name", "l", "r")), strict=True)

    def details(self) -> dict[str, float]:
        return {}

    def stop(self) -> None:
        for query in self._queries:
            query.stop()
        self._out.close()
        if self._session is not None:
            self._session.stop()

    def _ask(self) -> None:
        """Makes a table of the wishes, which the next trigger will use."""
        assert self._session is not None
        columns = {name: [getattr(wish, name) for wish in self._wishes] for name in WISHES}
        self._asked = self._session.createDataFrame(pa.table(columns)).cache()

    def _pairs(self, kind: str, hours: int, where: str = "true") -> DataFrame:
        from pyspark.sql.functions import expr

        spans = f"r.at > l.at AND r.at <= l.at + INTERVAL {hours} HOURS"
        earlier, column, later, other = JOINS[kind]
        condition = expr(f"l.{column} = r.{other} AND {spans} AND {where}")
        joined = self._stream(earlier).alias("l").join(self._stream(later).alias("r"), condition)
        return joined.selectExpr(
            f"'{kind}' AS kind", "l.channel AS channel", "l.doc AS l", "r.doc AS r", "r.t - l.t AS d"
        )

    def _stream(self, table: str) -> DataFrame:
        from pyspark.sql.functions import expr

        assert self._session is not None
        schema = ", ".join(f"{name} {'LONG' if name in NUMBERS else 'STRING'}" for name in TABLES[table])
        read = self._session.readStream.schema(schema).option("header", "true").csv(str(self._in.path(table)))
        return read.withColumn("at", expr("timestamp_micros(t)")).withWatermark("at", "0 seconds")

    def _run(self, rows: DataFrame) -> None:
        checkpoint = self._directory / f"checkpoint{len(self._queries)}"
        writer = rows.writeStream.foreachBatch(self._keep).option("checkpointLocation", str(checkpoint))
        self._queries.append(writer.start())

    def _keep(self, rows: DataFrame, _: int) -> None:
        if self._asked is not None:
            from pyspark.sql.functions import broadcast

            rows = rows.join(broadcast(self._asked), ["kind", "channel"]).where("d <= width")
        found = rows.select("name", "l", "r").toArrow()
        csv.write_csv(found, self._out, csv.WriteOptions(include_header=False))
        self._found.append(found)


if __name__ == "__main__":
    serve(Spark)
