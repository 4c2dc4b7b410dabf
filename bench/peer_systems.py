"""The programs of the peers, each of which runs in a process of its own: `python -m bench.peer_systems NAME DIR`.

Uses the standard library, and in each program what that needs. `joined` is the form of an expert: for each kind, an
interval join with the longest window, whose pairs are joined with the wishes, a stream too, so one can be added. `each`
has a join for each wish, with its constants. All keep their state in memory and take no checkpoints.
"""

from __future__ import annotations

import csv
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial, reduce
from importlib import import_module
from pathlib import Path
from typing import Any

from bench import peer_protocol as protocol


class MmqjpPeer:
    """Wishes as XSCL queries on our engine, on DuckDB: from the XML of items to rows in a file."""

    def __init__(self, work: protocol.PeerWork, directory: Path) -> None:
        self._work = work
        self._found = directory / "found.csv"
        self._out = self._found.open("w", newline="", encoding="utf-8")
        self._documents: list[Any] = []
        self._engine: Any = None
        self._split: Any = None

    def start(self) -> None:
        from bench.realistic import PartTimes
        from bench.workload import script_of
        from mmqjp.engine import Session

        self._engine = Session("duckdb", quiet=True)
        self._engine.subscribe(script_of(map(_parameters, self._work.wishes)))
        self._engine.process([])  # what registration leaves to the first batch
        self._split = PartTimes(self._engine)

    def prepare(self, batch: Path) -> None:
        from bench.workload import read_documents

        self._documents = list(read_documents(batch / "documents.jsonl"))

    def feed(self) -> float:
        from common.tools import gc_frozen

        with gc_frozen():
            begin = time.perf_counter()
            self._write(self._engine.process(self._documents))
            return time.perf_counter() - begin

    def add(self, wish: protocol.Wish) -> bool:
        last = self._engine.last_seq
        text = f"{_parameters(wish).xscl} PUBLISH {wish.name};"
        self._engine.subscribe(text, add=True, backfill=True)
        self._write(self._engine.outputs(after=last))
        return True

    def rows(self) -> Iterator[protocol.WishRow]:
        self._out.flush()
        with self._found.open(newline="", encoding="utf-8") as lines:
            for name, left, right in csv.reader(lines):
                yield name, int(left), int(right)

    def details(self) -> dict[str, float]:
        """The seconds of each part of the engine. The peers do not have the first ones: they get shredded rows."""
        self._split.charge()
        return {part: seconds for part, seconds in self._split.seconds.items() if part != "rest"}

    def stop(self) -> None:
        self._out.close()
        if self._engine is not None:
            self._engine.close()

    def _write(self, outputs: Iterable[Any]) -> None:
        rows = ((output.query, *(name.removeprefix("item-") for name in output.documents)) for output in outputs)
        csv.writer(self._out).writerows(rows)
        self._out.flush()


def _parameters(wish: protocol.Wish) -> Any:
    from bench.workload import Parameters

    return Parameters(wish.name, wish.kind, wish.channel, wish.width // protocol.WISH_HOUR)


class _FilePeer:
    """A peer that reads items and wishes from directories and writes rows to a file, all by its own connectors."""

    _NAMED = "{}"  # how its rows have the name of a wish

    def __init__(self, work: protocol.PeerWork, directory: Path, name: str, *, header: bool) -> None:
        self._work, self._found = work, directory / "found.csv"
        self._kinds = work.kinds
        self._wishes = [*work.wishes, *protocol.mark_wishes(work.kinds)]
        self._in = protocol.WatchedDirectories(directory / name, header=header)
        self._out = protocol.GrowingRows(self._found)

    def _begin(self) -> None:
        self._in.put_wishes("first", self._wishes)
        self._in.prepare(None, self._kinds, self._work.begins)
        self.feed()

    def prepare(self, batch: Path) -> None:
        self._in.prepare(batch, self._kinds, self._work.begins)

    def feed(self) -> float:
        begin = time.perf_counter()
        return self._out.wait(*self._in.publish()) - begin

    def add(self, wish: protocol.Wish) -> bool:
        self._in.put_wishes("added", [wish])
        self._out.wait(self._NAMED.format(wish.name))
        return True

    def details(self) -> dict[str, float]:
        return {}


def _flink_tables(printed: Path) -> Any:
    """An environment for SQL. What its connector `print` writes, to this process's standard output, goes to a file."""
    os.dup2(os.open(printed, os.O_CREAT | os.O_WRONLY), 1)
    from pyflink.table import EnvironmentSettings, TableEnvironment

    tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    # On two cores, two parallel tasks of each operator were no faster.
    tables.get_config().set("parallelism.default", "1")
    tables.get_config().set("pipeline.object-reuse", "true")
    return tables


class FlinkPeer(_FilePeer):
    """Apache Flink: a job in SQL on a cluster in its own process, which looks into the directories every 20 ms."""

    # Without the second, an item of the very millisecond that the watermark has reached would not be kept.
    _TIME = "ts AS TO_TIMESTAMP_LTZ(t / 1000, 3), WATERMARK FOR ts AS ts - INTERVAL '1' SECOND"
    _NAMED = "[{},"
    _PRINTED = re.compile(r"\+I\[(.*), (\d+), (\d+)\]$")

    def __init__(self, work: protocol.PeerWork, directory: Path) -> None:
        super().__init__(work, directory, "flink", header=False)
        self._job: Any = None

    def start(self) -> None:
        tables = _flink_tables(self._found)
        for name, columns in protocol.TABLES.items():
            tables.execute_sql(self._source(name, columns, f", {self._TIME}"))
        tables.execute_sql(self._source("wishes", protocol.WISHES, ""))
        tables.execute_sql("CREATE TABLE found (name STRING, l BIGINT, r BIGINT) WITH ('connector' = 'print')")
        selects = self._joined() if self._work.form == "joined" else self._each()
        self._job = tables.execute_sql(f"INSERT INTO found {' UNION ALL '.join(selects)}").get_job_client()
        self._begin()

    def rows(self) -> Iterator[protocol.WishRow]:
        with self._found.open(encoding="utf-8") as lines:
            for line in lines:
                if (match := self._PRINTED.search(line)) and int(match[2]) < protocol.MARK:
                    yield match[1], int(match[2]), int(match[3])

    def stop(self) -> None:
        if self._job is not None:
            self._job.cancel().result()

    def _source(self, name: str, columns: tuple[str, ...], more: str) -> str:
        typed = ", ".join(f"{column} {'BIGINT' if column in protocol.NUMERIC else 'STRING'}" for column in columns)
        return (
            f"CREATE TABLE {name} ({typed}{more}) WITH ('connector' = 'filesystem', 'format' = 'csv', "
            f"'path' = '{self._in.path(name).as_uri()}', 'source.monitor-interval' = '20 ms')"
        )

    def _joined(self) -> Iterator[str]:
        for kind in self._work.kinds:
            pairs = self._pairs(kind, self._work.longest[kind])
            yield (
                f"SELECT w.name, p.l, p.r FROM ({pairs}) p JOIN wishes w ON w.channel = p.channel AND p.d <= w.width "
                f"WHERE w.kind = '{kind}'"
            )

    def _each(self) -> Iterator[str]:
        for wish in self._wishes:
            where = f"AND l.channel = '{wish.channel}' AND r.t - l.t <= {wish.width}"
            pairs = self._pairs(wish.kind, -(-wish.width // protocol.WISH_HOUR), where)
            yield f"SELECT '{wish.name}' AS name, l, r FROM ({pairs})"

    def _pairs(self, kind: str, hours: int, where: str = "") -> str:
        earlier, column, later, other = protocol.JOINS[kind]
        return (
            f"SELECT l.channel, l.doc AS l, r.doc AS r, r.t - l.t AS d FROM {earlier} l, {later} r "
            # Flink's times are milliseconds, so those of the items are compared too.
            f"WHERE l.{column} = r.{other} AND r.ts BETWEEN l.ts AND l.ts + INTERVAL '{hours}' HOUR(3) "
            f"AND r.t > l.t {where}"
        )


class PathwayPeer(_FilePeer):
    """Pathway: its Rust engine in this process. Nothing is forgotten: lateness depends on both sides' newest time,
    and files of items and links are read one after the other, so links would be lost."""

    def __init__(self, work: protocol.PeerWork, directory: Path) -> None:
        super().__init__(work, directory, "pathway", header=True)
        self._tables: dict[str, Any] = {}
        self._pathway: Any = None

    def start(self) -> None:
        logging.disable(logging.WARNING)
        import pathway

        self._pathway = pathway
        for name, columns in {**protocol.TABLES, "wishes": protocol.WISHES}.items():
            types = {column: int if column in protocol.NUMERIC else str for column in columns}
            reading = {"schema": pathway.schema_from_types(**types), "mode": "streaming", "autocommit_duration_ms": 20}
            self._tables[name] = pathway.io.csv.read(self._in.path(name), **reading)
        found = list(self._joined() if self._work.form == "joined" else self._each())
        pathway.io.csv.write(pathway.Table.concat_reindex(*found), self._found)
        run = threading.Thread(target=pathway.run, kwargs={"monitoring_level": pathway.MonitoringLevel.NONE})
        run.daemon = True  # Pathway runs until its process ends
        run.start()
        self._begin()

    def rows(self) -> Iterator[protocol.WishRow]:
        with self._found.open(newline="", encoding="utf-8") as lines:
            for row in csv.DictReader(lines):
                if int(row["l"]) < protocol.MARK:
                    yield row["name"], int(row["l"]), int(row["r"])

    def stop(self) -> None:
        """Nothing to do: the engine's thread ends with the process."""

    def _joined(self) -> Iterator[Any]:
        all_wishes = self._tables["wishes"]
        for kind in self._work.kinds:
            pairs = self._pairs(kind, self._work.longest[kind] * protocol.WISH_HOUR)
            wishes = all_wishes.filter(all_wishes.kind == kind)
            both = pairs.join(wishes, pairs.channel == wishes.channel).select(
                name=wishes.name, l=pairs.l, r=pairs.r, d=pairs.d, width=wishes.width
            )
            yield both.filter(both.d <= both.width).without("d", "width")

    def _each(self) -> Iterator[Any]:
        this = self._pathway.this
        for wish in self._wishes:
            yield self._pairs(wish.kind, wish.width, wish.channel).select(name=wish.name, l=this.l, r=this.r)

    def _pairs(self, kind: str, width: int, channel: str | None = None) -> Any:
        temporal = self._pathway.temporal
        earlier, column, later, other = protocol.JOINS[kind]
        left, right = self._tables[earlier], self._tables[later].copy()
        if channel is not None:
            left = left.filter(left.channel == channel)
        interval = temporal.interval(1, width)
        joined = left.interval_join(right, left.t, right.t, interval, left[column] == right[other])
        return joined.select(channel=left.channel, l=left.doc, r=right.doc, d=right.t - left.t)


class SparkPeer(_FilePeer):
    """Spark Structured Streaming, with our session, in this process. `joined` is one streaming query with a
    stream-stream join for each kind. Its pairs are joined with the wishes in `foreachBatch`; an added wish gets the
    pairs that are completed from then on. `each` has a streaming query for each wish."""

    _TASKS = 2  # partitions of a join. Each costs the same for every trigger, whether it has rows or not

    def __init__(self, work: protocol.PeerWork, directory: Path) -> None:
        super().__init__(work, directory, "spark", header=True)
        self._directory, self._kinds, self._wishes = directory, [], list(work.wishes)  # it needs no marks
        self._session: Any = None
        self._wanted: Any = None
        self._queries: list[Any] = []
        self._tables: list[Any] = []
        self._lines = self._found.open("wb")

    def start(self) -> None:
        from pyspark.sql.functions import lit

        from join_stage.store.spark.session import spark_session

        self._session = spark_session(warehouse=self._directory / "warehouse", app_name="peers")
        self._session.conf.set("spark.sql.shuffle.partitions", str(self._TASKS))
        if self._work.form == "joined":
            self._publish_wishes()
            pairs = (self._pairs(kind, self._work.longest[kind]) for kind in self._work.kinds)
            self._run(reduce(lambda one, other: one.unionAll(other), pairs))
        else:
            for wish in self._wishes:
                where = f"l.channel = '{wish.channel}' AND r.t - l.t <= {wish.width}"
                pairs = self._pairs(wish.kind, -(-wish.width // protocol.WISH_HOUR), where)
                self._run(pairs.withColumn("name", lit(wish.name)))
        self._in.prepare(None, self._kinds, self._work.begins)
        self.feed()

    def feed(self) -> float:
        begin = time.perf_counter()
        self._in.publish()
        for query in self._queries:
            query.processAllAvailable()
        return time.perf_counter() - begin

    def add(self, wish: protocol.Wish) -> bool:
        self._wishes.append(wish)
        self._publish_wishes()
        return False

    def rows(self) -> Iterator[protocol.WishRow]:
        for table in self._tables:
            yield from zip(*(table[name].to_pylist() for name in ("name", "l", "r")), strict=True)

    def stop(self) -> None:
        for query in self._queries:
            query.stop()
        self._lines.close()
        if self._session is not None:
            self._session.stop()

    def _publish_wishes(self) -> None:
        import pyarrow as pa

        columns = {name: [getattr(wish, name) for wish in self._wishes] for name in protocol.WISHES}
        self._wanted = self._session.createDataFrame(pa.table(columns)).cache()

    def _pairs(self, kind: str, hours: int, where: str = "true") -> Any:
        from pyspark.sql.functions import expr

        spans = f"r.at > l.at AND r.at <= l.at + INTERVAL {hours} HOURS"
        earlier, column, later, other = protocol.JOINS[kind]
        condition = expr(f"l.{column} = r.{other} AND {spans} AND {where}")
        joined = self._stream(earlier).alias("l").join(self._stream(later).alias("r"), condition)
        return joined.selectExpr(
            f"'{kind}' AS kind", "l.channel AS channel", "l.doc AS l", "r.doc AS r", "r.t - l.t AS d"
        )

    def _stream(self, table: str) -> Any:
        from pyspark.sql.functions import expr

        columns = protocol.TABLES[table]
        schema = ", ".join(f"{name} {'LONG' if name in protocol.NUMERIC else 'STRING'}" for name in columns)
        read = self._session.readStream.schema(schema).option("header", "true").csv(str(self._in.path(table)))
        return read.withColumn("at", expr("timestamp_micros(t)")).withWatermark("at", "0 seconds")

    def _run(self, rows: Any) -> None:
        checkpoint = self._directory / f"checkpoint{len(self._queries)}"
        writer = rows.writeStream.foreachBatch(self._keep).option("checkpointLocation", str(checkpoint))
        self._queries.append(writer.start())

    def _keep(self, rows: Any, _: int) -> None:
        from pyarrow.csv import WriteOptions, write_csv

        if self._wanted is not None:
            from pyspark.sql.functions import broadcast

            rows = rows.join(broadcast(self._wanted), ["kind", "channel"]).where("d <= width")
        found = rows.select("name", "l", "r").toArrow()
        write_csv(found, self._lines, WriteOptions(include_header=False))
        self._tables.append(found)


def run_flink_task(directory: Path) -> None:
    printed = directory / "printed"
    tables = _flink_tables(printed)
    # Otherwise its parts give each other up where something stops the process for a minute.
    tables.get_config().set("heartbeat.timeout", "1 h")
    tables.execute_sql(
        "CREATE TABLE events (id BIGINT, t BIGINT, kind STRING, k STRING, x DOUBLE, "
        "ts AS TO_TIMESTAMP_LTZ(t * 1000, 3), WATERMARK FOR ts AS ts) WITH ('connector' = 'filesystem', "
        f"'format' = 'csv', 'path' = '{(directory / 'events.csv').as_uri()}')"
    )
    tables.execute_sql("CREATE TABLE found (n INT, a BIGINT, b BIGINT, c BIGINT) WITH ('connector' = 'print')")
    selects = " UNION ALL ".join(_match_recognize(protocol.read_task(directory)))
    tables.execute_sql(f"INSERT INTO found {selects}").wait()
    row = re.compile(r"\+I\[(\d+), (\d+), (\d+), (\d+)\]$")
    with printed.open(encoding="utf-8") as lines:
        protocol.finish_task(directory, [match.groups() for line in lines if (match := row.search(line))])


def _match_recognize(task: protocol.PatternTask) -> Iterator[str]:
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


PROGRAMS: dict[str, Callable[[Path], None]] = {
    "mmqjp": partial(protocol.serve_peer, MmqjpPeer),
    "flink": partial(protocol.serve_peer, FlinkPeer),
    "pathway": partial(protocol.serve_peer, PathwayPeer),
    "spark": partial(protocol.serve_peer, SparkPeer),
    "mmqjp-patterns": lambda directory: import_module("bench.patterns_peers").run_mmqjp_task(directory),
    "flink-patterns": run_flink_task,
}

if __name__ == "__main__":
    protocol.end_with_parent()
    PROGRAMS[sys.argv[1]](Path(sys.argv[2]))
