"""Documents from any streaming source of Spark's: what a value is, and where its id, stream and time come from."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from feeds.documents import SourceError
from mmqjp.service.streaming import StreamingService
from mmqjp.spark.source import ROWS, ValueSource, rows_frame, streaming_frame
from tests.support.cli import mmqjp
from tests.support.faults import Injected, armed, fail
from tests.support.service import Directory, Events, stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORD = {"id": "d1", "stream": "T", "time": 5, "xml": "<a>1</a>"}


@pytest.fixture
def place(tmp_path: Path) -> Directory:
    return Directory(tmp_path)


def rows(
    session: SparkSession, columns: str, *values: tuple[Any, ...], most: int | None = None
) -> list[dict[str, Any]]:
    found = rows_frame(session.createDataFrame(list(values), columns), "kafka", most).toArrow()
    assert found.schema.names == ROWS.names
    listed: list[dict[str, Any]] = found.sort_by("place").to_pylist()
    return listed


def test_rows_as_kafka_has_them_are_documents(spark: SparkSession):
    columns = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp"
    at = datetime(2026, 1, 2, tzinfo=UTC)
    found = rows(
        spark,
        columns,
        (None, b"<a/>", "news", 1, 7, at),
        (b"k", None, "news", 1, 8, at),
        (None, json.dumps(RECORD).encode(), "news", 1, 9, at),
        (None, b' {"id": "d2", "xml": "<b/>"}', "news", 2, 0, at),
        (None, b"{no json", "news", 2, 1, at),
        (None, b"", "news", 2, 2, at),
        (None, b"<a>12345</a>", "news", 2, 3, at),
        most=11,
    )  # fmt: skip
    day = 1_767_312_000_000_000
    kept = {row["id"]: (row["stream"], row["t0"], row["xml"]) for row in found if row["reason"] is None}
    assert kept == {
        "news/1/7": ("news", day, b"<a/>"),
        "d1": ("T", 5, b"<a>1</a>"),
        "d2": ("S", day, b"<b/>"),
        "news/2/2": ("news", day, b""),
    }
    reasons = {row["id"]: row["reason"] for row in found if row["reason"] is not None}
    assert reasons["news/2/3"] == "12 bytes, and 11 are allowed"
    (other,) = reasons.keys() - {"news/2/3"}
    assert other == "kafka: news/2/1" and "not JSON" in reasons[other]


def test_other_columns_are_taken_where_they_are_there(spark: SparkSession):
    (one,) = rows(spark, "id int, stream string, time bigint, xml string", (4, "T", 9, "<a/>"))
    assert (one["id"], one["stream"], one["t0"], one["t1"]) == ("4", "T", 9, 9)
    first, second = rows(spark, "value string, time string", ("<a/>", "2026-01-02"), ("<a/>", "2026-01-03"))
    assert first["stream"] == "S" and first["t0"] == 1_767_312_000_000_000 and first["id"] != second["id"]
    assert rows(spark, "value string, time string", ("<a/>", "2026-01-02"))[0]["id"] == first["id"]
    (seconds,) = rows(spark, "value string, time bigint", ("<a/>", 1_700_000_000))
    assert "looks like Unix seconds" in seconds["reason"]
    with pytest.raises(SourceError, match="no column is called value or xml; it has a, b"):
        rows(spark, "a int, b int", (1, 2))


@pytest.mark.soak
def test_what_spark_reads_otherwise_is_answered_once(spark: SparkSession, place: Directory):
    """A source of which Spark alone knows how far it is read: a crash between two batches of a micro-batch."""
    (place.drops / "1.txt").write_text("".join(json.dumps(RECORD | {"id": f"d{n}"}) + "\n" for n in range(5)) + "{\n")
    source = ValueSource("text", {"path": str(place.drops)})

    def run(*queries: str) -> Events:
        frame = streaming_frame(spark, source, place.state, place.state / "checkpoint" / "files")
        return stream(place, spark, *queries, frame=frame, in_batches_of=2)

    with armed((StreamingService, "_process"), fail, calls=3), pytest.raises(Injected):
        run("T/a PUBLISH all_a")
    events = run()
    assert [(event["documents"], event["duplicates"], event["dead_letters"]) for event in events.named("batch")] == [
        (1, 0, 1)
    ]
    (place.drops / "2.txt").write_text(json.dumps(RECORD | {"id": "d5"}))
    assert [event["documents"] for event in run().named("batch")] == [1]
    assert place.pairs() == [(f"d{n}",) for n in range(6)]


@pytest.mark.soak
def test_the_command_reads_a_source_of_sparks(spark: SparkSession, place: Directory):
    spark.createDataFrame([("d1", "<a/>"), ("d2", "<a/>")], "id string, xml string").write.parquet(
        str(place.drops / "p")
    )
    queries = place.path / "q.xscl"
    queries.write_text("S/a PUBLISH all_a")
    common: list[str | Path] = ["--engine", "spark", "--state", place.state, "--queries", queries]
    common += ["--trigger", "available-now"]
    given = ["--source-format", "parquet", "--source-option", f"path={place.drops / 'p'}"]
    result = mmqjp("stream", *common, *given)
    assert result.exit_code == 0, result.output
    assert sorted(json.loads(line)["documents"] for line in result.stdout.splitlines()) == [["d1"], ["d2"]]
    missing = mmqjp("stream", *common, "--source-format", "nosuch")
    assert missing.exit_code == 1 and missing.stderr.splitlines()[-1].startswith("mmqjp: error: nosuch: ")
    assert "is its connector among the packages" in missing.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--engine", "duckdb", "--checkpoint", "c"], "--checkpoint is for the engine spark"),
        (["--engine", "duckdb", "--source-format", "kafka"], "--source-format is for the engine spark"),
        (["--engine", "spark", "--source-format", "kafka"], "or with --source-format"),
        (["--engine", "spark", "--source-option", "a=b"], "--source-option is for the source that --source-format"),
        (["--engine", "spark", "--source-option", "a"], "write KEY=VALUE, not 'a'"),
    ],
)
def test_misuse_is_told_in_one_line(place: Directory, options: list[str], message: str):
    result = mmqjp("stream", "--source", place.drops, "--state", place.state, *options)
    assert result.exit_code == 2 and result.stderr.count("\n") == 1 and message in result.stderr
    neither = mmqjp("stream", "--engine", "duckdb", "--warehouse", place.state)
    assert neither.exit_code == 2 and "name what to read" in neither.stderr
