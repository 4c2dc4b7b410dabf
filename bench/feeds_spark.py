"""Feeds of a drop directory to documents on Spark's executors, on all cores of this machine, beside one core here."""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from bench.feeds_measurement import Measurement
from bench.timing import clocked
from bench.workload import START
from feeds.documents import Document
from feeds.files import FEED_SUFFIX, SIDECAR_SUFFIX
from feeds.readers import drop_stem
from feeds.spark.sources import FILES, entries
from feeds.tail import read_documents
from join_stage.store.spark.java import spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SPARK_ENTRIES, SPARK_ROUNDS = 5_000, 3


def measure_spark(case: dict[str, str | int], files: Sequence[bytes], rounds: int) -> Measurement:
    """Measures how long the feeds of some files, each a feed of its own, take to become rows that go nowhere.

    AssertionError if they are not the documents that this process reads.
    """
    with TemporaryDirectory() as name:
        directory = Path(name).resolve()
        write_drops(directory, files)
        session = spark_session()
        found = entries(session.read.format("binaryFile").options(**FILES).load(str(directory)), directory, "item")
        rows = compare(found, directory)
        there, here = [], []
        for _ in range(rounds):
            there.append(clocked(lambda: found.write.format("noop").mode("overwrite").save()))
            here.append(clocked(lambda: list(read_documents([directory], feeds="item"))))
    seconds, baseline = statistics.median(there), statistics.median(here)
    return Measurement(
        "feeds", case, seconds, rows, rows / seconds, engine="spark", baseline="one core", speedup=baseline / seconds
    )


def write_drops(directory: Path, files: Sequence[bytes]) -> None:
    """Files as a crawl would have left them, each the first version of a feed."""
    for number, data in enumerate(files):
        path = directory / f"feed-{number}" / drop_stem(START, hashlib.sha256(data).hexdigest())
        path.parent.mkdir()
        path.with_name(path.name + SIDECAR_SUFFIX).write_text(json.dumps({"url": f"https://{number}.example/"}))
        path.with_name(path.name + FEED_SUFFIX).write_bytes(data)


def compare(found: DataFrame, directory: Path) -> int:
    """How many documents there are; AssertionError if Spark's are not those of this process."""
    ours = sorted(
        (item.id, item.t0, item.xml_bytes().decode())
        for item in read_documents([directory], feeds="item")
        if isinstance(item, Document)
    )
    theirs = sorted(tuple(row) for row in found.where("reason IS NULL").select("id", "t0", "xml").collect())
    assert theirs == ours, "Spark and this process do not give the same documents"
    return len(ours)
