"""Programs that do not use mmqjp: a statement per subscription, a streaming join on Spark, a dictionary in Python.

Each returns the pairs of items that its subscription gets, which the benchmark compares before it reports a time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from lxml import etree

from bench.realistic_workload import FIELDS, LONGEST, RealisticQuery, fields
from bench.workload import HOUR
from feeds.documents import Document

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Pairs = set[tuple[int, int]]
"""Numbers of items, the earlier first."""

Batches = Sequence[Sequence[Document]]


def by_statements(batches: Batches, asked: Sequence[RealisticQuery]) -> tuple[float, float, list[Pairs]]:
    """On DuckDB, for each batch a statement for each subscription: seconds to take the items in, seconds of all
    statements, and what each subscription gets. Items past all windows are dropped."""
    found: list[Pairs] = [set() for _ in asked]
    taken_in = joined = 0.0
    connection = duckdb.connect()
    try:
        for name, schema in FIELDS.items():
            connection.register("empty", schema.empty_table())
            connection.execute(f"CREATE TABLE {name} AS SELECT * FROM empty")
        first = 0
        for batch in batches:
            begin = time.perf_counter()
            for name, table in fields(batch, first).items():
                connection.register("arrived", table)
                connection.execute(f"INSERT INTO {name} SELECT * FROM arrived")
            old = f"SELECT doc FROM items WHERE t < {batch[0].t0 - LONGEST * HOUR}"
            for name in ("links", "authors", "categories", "items"):
                connection.execute(f"DELETE FROM {name} WHERE doc IN ({old})")
            between = time.perf_counter()
            for one, pairs in zip(asked, found, strict=True):
                pairs.update(connection.execute(one.sql.replace("$new", str(first))).fetchall())
            joined += time.perf_counter() - between
            taken_in += between - begin
            first += len(batch)
    finally:
        connection.close()
    return taken_in, joined, found


class SameTitle:
    """One subscription as a program of its own: the same headline in one channel and then, within a time, in another.

    It is what subscriptions to the headlines of two channels ask.
    """

    def __init__(self, first: str, second: str, hours: int) -> None:
        self._first, self._second, self._window = first, second, hours * HOUR
        self._seen: dict[str, list[tuple[int, int]]] = {}

    def run(self, batches: Batches) -> tuple[float, Pairs]:
        """Seconds, most of which parse, and what was found."""
        begin = time.perf_counter()
        found: Pairs = set()
        number = 0
        for batch in batches:
            for document in batch:
                self._arrived(number, document, found)
                number += 1
            self._forget(batch[-1].t0 - self._window)
        return time.perf_counter() - begin, found

    def _arrived(self, number: int, document: Document, found: Pairs) -> None:
        root = etree.fromstring(document.xml_bytes())
        channel, title = root.findtext("channel_url"), (root.findtext("title") or "").lower()
        if channel == self._second:
            for earlier, when in self._seen.get(title, ()):
                if when < document.t0 <= when + self._window:
                    found.add((earlier, number))
        if channel == self._first:
            self._seen.setdefault(title, []).append((number, document.t0))

    def _forget(self, before: int) -> None:
        self._seen = {title: live for title, of in self._seen.items() if (live := [x for x in of if x[1] >= before])}


def by_stream_join(
    session: SparkSession, batches: Batches, wanted: Sequence[tuple[str, str, int]]
) -> tuple[list[float], list[Pairs]]:
    """On Spark, a stream-stream join for each (channel, channel, hours): seconds and what it found. The items come as
    Parquet files, a batch a file, their XML already parsed."""
    seconds, found = [], []
    with TemporaryDirectory(prefix="mmqjp-naive-") as directory:
        arriving, first = Path(directory) / "items", 0
        arriving.mkdir()
        for number, batch in enumerate(batches):
            pq.write_table(_stamped(fields(batch, first)["items"]), arriving / f"{number:04}.parquet")
            first += len(batch)
        for number, (one, other, hours) in enumerate(wanted):
            pairs: Pairs = set()
            begin = time.perf_counter()
            _stream(session, arriving, Path(directory) / f"checkpoint{number}", one, other, hours, pairs)
            seconds.append(time.perf_counter() - begin)
            found.append(pairs)
    return seconds, found


def _stamped(items: pa.Table) -> pa.Table:
    return items.append_column("at", items["t"].cast(pa.timestamp("us", "UTC")))


def _stream(
    session: SparkSession, arriving: Path, checkpoint: Path, one: str, other: str, hours: int, pairs: Pairs
) -> None:
    """Runs the streaming query over all files, one a trigger, and collects its rows."""
    from pyspark.sql.functions import expr

    def side(channel: str, name: str) -> DataFrame:
        schema = "doc long, t long, channel string, url string, title string, guid string, at timestamp"
        stream = session.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(arriving))
        return stream.where(f"channel = '{channel}'").withWatermark("at", "1 hour").alias(name)

    condition = (
        f"lower(l.title) = lower(r.title) AND r.at > l.at AND r.at <= l.at + INTERVAL {hours} HOURS"  # its window
    )
    joined = side(one, "l").join(side(other, "r"), expr(condition)).selectExpr("l.doc AS doc1", "r.doc AS doc2")

    def collect(rows: DataFrame, _: int) -> None:
        pairs.update((row.doc1, row.doc2) for row in rows.collect())

    writer = joined.writeStream.foreachBatch(collect).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()
