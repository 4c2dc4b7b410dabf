from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path
from random import Random
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from bench.spark_cluster import PATIENCE, SETTINGS, Cluster, NotInTime, kill, processes_below, wait_until
from feeds.documents import SourceError
from join_stage.store.spark.parquet_store import spark_columns
from mmqjp import spark_job
from mmqjp.engine import Session
from mmqjp.service.streaming import MICRO_BATCHES, StreamFailed, StreamingService, spark_error_text
from mmqjp.sinks.files import GrowingFile
from mmqjp.spark.source import ROWS, ValueSource, rows_frame, streaming_frame
from tests.generate.documents import SECOND
from tests.generate.seeds import at_length
from tests.support.cli import mmqjp
from tests.support.faults import Injected, armed, fail
from tests.support.service import PAIRS, Directory, Events, stream, streaming

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def all_pairs(ids: range) -> set[tuple[str, ...]]:
    return {(f"d{a}", f"d{b}") for a, b in combinations(ids, 2)}


def totals(events: Events) -> dict[str, int]:
    names = ("documents", "outputs", "duplicates", "dead_letters")
    return {name: sum(int(str(event[name])) for event in events.named("batch")) for name in names}


@pytest.mark.soak
def test_what_comes_is_read_once_in_order_of_its_fetch_and_lines_as_they_are_appended(spark, place):
    place.drop("1.jsonl", range(3))
    (place.drops / "20200101T000000Z-0123456789ab.xml").write_text("<a>w</a>")
    (place.drops / "2.xml").write_text("<a><b>")
    events = stream(place, spark, PAIRS)
    assert totals(events) == {"documents": 4, "outputs": 3, "duplicates": 0, "dead_letters": 1}
    with (place.drops / "1.jsonl").open("a") as file:
        file.write(json.dumps({"id": "d3", "time": 3 * SECOND, "xml": "<a>v</a>"}) + '\n{"id": "half')
    place.drop("3.jsonl", range(4, 7))
    again = stream(place, spark, batch_size=2)
    assert [event["documents"] for event in again.named("batch")] == [2, 2]
    assert set(place.pairs()) == all_pairs(range(7)) and len(place.pairs()) == 21
    with Session(spark, state=place.state) as engine:
        first = engine.sql("SELECT id FROM documents ORDER BY docid LIMIT 1").to_pylist()[0]["id"]
        assert first == "20200101T000000Z-0123456789ab.xml"


@pytest.mark.soak
def test_a_store_that_was_written_without_a_query_of_spark_is_gone_on_with(spark, place):
    place.drop("1.jsonl", range(4))
    place.run(PAIRS, engine=spark)
    place.drop("2.jsonl", range(4, 6))
    assert totals(stream(place, spark))["duplicates"] == 0
    shutil.rmtree(place.state / "checkpoint")
    place.drop("3.jsonl", range(6, 7))
    assert totals(stream(place, spark)) == {"documents": 1, "outputs": 6, "duplicates": 0, "dead_letters": 0}
    assert set(place.pairs()) == all_pairs(range(7)) and len(place.pairs()) == 21


@pytest.mark.parametrize(
    ("owner", "method", "call"),
    [
        pytest.param(StreamingService, "_process_rows", 1, marks=pytest.mark.soak),  # before anything is done
        (StreamingService, "_process", 2),  # between the batches of a micro-batch
        pytest.param(Session, "process", 2, marks=pytest.mark.soak),
        pytest.param(GrowingFile, "write", 2, marks=pytest.mark.soak),  # a batch is there, its lines are not
        pytest.param(StreamingService, "_prune", 3, marks=pytest.mark.soak),
        pytest.param(StreamingService, "_prune", 6, marks=pytest.mark.soak),  # Spark has not heard of what is done
    ],
)  # fmt: skip
def test_a_micro_batch_that_comes_again_is_passed_over_as_far_as_it_was_done(owner, method, call, spark, place):
    first, count = (5, 11) if at_length() else (3, 6)
    place.drop("1.jsonl", range(first))
    for number in range(first, count):  # files hold few documents here, and micro-batches several batches
        (place.drops / f"{number}.xml").write_text(f"<a>{number}</a>")
    (place.drops / "20300101T000000Z-0123456789ab.xml").write_text("<broken>")
    with armed((owner, method), fail, call, after=method == "_prune"), pytest.raises(Injected):
        stream(place, spark, PAIRS, "S/a PUBLISH all_a", in_batches_of=2)
    counted = totals(stream(place, spark, in_batches_of=2))
    assert counted["duplicates"] == 0
    lines = [json.loads(line) for line in place.output.read_text().splitlines()]
    assert sorted(line["documents"][0] for line in lines if line["query"] == "all_a") == sorted(
        [f"d{n}" for n in range(first)] + [f"{n}.xml" for n in range(first, count)]
    )
    assert {tuple(line["documents"]) for line in lines if line["query"] == "pairs"} == all_pairs(range(first))
    assert len(lines) == count + first * (first - 1) // 2
    with Session(spark, state=place.state) as engine:
        assert len(list(engine.dead_letters())) == 1
        marks = [file for source, file in engine.ledger.offsets() if source.startswith("spark ")]
        assert marks == [MICRO_BATCHES]


def test_commands_are_done_while_it_waits_and_a_stop_is_heard(spark, place):
    stop = Event()

    class Hearing(Events):
        """Asks, once the first batch is done, and stops when that is answered."""

        def event(self, name: str, /, **fields: object) -> None:
            super().event(name, **fields)
            if name == "batch" and len(self.named("batch")) == 1:
                place.ask("subscribe", text="S/a PUBLISH later", add=False, backfill=True)
            if name == "command":
                stop.set()

    events = Hearing()
    place.drop("1.jsonl", range(3))
    with Session(spark, state=place.state) as engine:
        engine.subscribe(PAIRS)
        streaming(place, engine, spark, events).run(3600.0, stop)
    assert [event["do"] for event in events.named("command")] == ["subscribe"]
    lines = [json.loads(line)["query"] for line in place.output.read_text().splitlines()]
    assert sorted(lines) == ["later"] * 3 + ["pairs"] * 3


@pytest.mark.soak
def test_a_micro_batch_that_begins_after_a_stop_comes_again(spark, place):
    place.drop("1.jsonl", range(6))
    stop = Event()

    class Stopping(Events):
        def event(self, name: str, /, **fields: object) -> None:
            super().event(name, **fields)
            stop.set()

    with Session(spark, state=place.state) as engine:
        engine.subscribe(PAIRS)
        events = Stopping()
        streaming(place, engine, spark, events, batch_size=2).run(1e-3, stop)
        assert len(events.named("batch")) == 1
    assert totals(stream(place, spark)) == {"documents": 4, "outputs": 14, "duplicates": 0, "dead_letters": 0}
    assert set(place.pairs()) == all_pairs(range(6)) and len(place.pairs()) == 15


@pytest.mark.soak
def test_why_executors_cannot_go_on_is_told_in_a_line(spark, place):
    def fail(batches: Any) -> Any:
        raise ValueError("no such luck")

    rows = spark_columns(ROWS)
    (place.drops / "1.txt").write_text("<a/>")
    frame = spark.readStream.text(str(place.drops)).mapInArrow(fail, rows)
    with pytest.raises(StreamFailed, match=r"^ValueError: no such luck$"):
        stream(place, spark, frame=frame)
    with Session(spark, state=place.state) as engine:
        assert engine.batch > 0, "the store is free and whole"


def test_what_a_process_of_sparks_said_last_is_the_cause():
    planner = """[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when the source performed latestOffset
Traceback (most recent call last):
  File "x.py", line 1, in <module>
feeds.errors.SourceError: drops: no such file or directory; make it

    at org.apache.spark.sql.Source.latest(Source.scala:84)
"""
    assert spark_error_text(PySparkException(planner)) == "SourceError: drops: no such file or directory; make it"
    assert spark_error_text(PySparkException("Job aborted\n  at x")) == "Job aborted"
    assert spark_error_text(PySparkException("")) == "PySparkException"


def test_only_an_engine_on_spark_evaluates_data_frames():
    with Session("duckdb") as engine, pytest.raises(TypeError, match="on Spark"):
        engine.evaluate(None)  # type: ignore[arg-type]


RECORD = {"id": "d1", "stream": "T", "time": 5, "xml": "<a>1</a>"}


def rows(
    session: SparkSession, columns: str, *values: tuple[Any, ...], most: int | None = None
) -> list[dict[str, Any]]:
    found = rows_frame(session.createDataFrame(list(values), columns), "kafka", most).toArrow()
    assert found.schema.names == ROWS.names
    listed: list[dict[str, Any]] = found.sort_by("place").to_pylist()
    return listed


def test_rows_as_kafka_has_them_are_documents(spark):
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


def test_other_columns_are_taken_where_they_are_there(spark):
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
def test_what_spark_reads_otherwise_is_answered_once(spark, place):
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
def test_the_command_reads_a_source_of_sparks(spark, place):
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
def test_misuse_is_told_in_one_line(place, options, message):
    result = mmqjp("stream", "--source", place.drops, "--state", place.state, *options)
    assert result.exit_code == 2 and result.stderr.count("\n") == 1 and message in result.stderr
    neither = mmqjp("stream", "--engine", "duckdb", "--warehouse", place.state)
    assert neither.exit_code == 2 and "name what to read" in neither.stderr


class Application:
    """An application on a Spark cluster of this machine."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process, self._log = process, log

    def runs(self) -> bool:
        return self.process.poll() is None

    def said(self) -> str:
        return self._log.read_text("utf-8", "replace")

    def kill(self) -> None:
        below = processes_below(self.process.pid)
        for pid in [*below, self.process.pid]:
            kill(pid)
        self.process.wait()
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in below), "the end of the driver")


def submit(cluster: Cluster, name: str, program: Path, arguments: Sequence[str | Path]) -> Application:
    settings = {**SETTINGS, "spark.log.level": "WARN"}
    options = [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
    process = cluster.start(name, "spark-submit", "--master", cluster.url, *options, str(program), *map(str, arguments))
    return Application(process, cluster.directory / f"{name}.log")


def amid(place: Directory, number: int) -> bool:
    """Whether a micro-batch from this one on is begun and not done, as Spark's checkpoint says."""
    checkpoint = place.state / "checkpoint" / "files"
    begun, done = (
        {int(path.name) for path in (checkpoint / name).glob("*") if path.name.isdecimal()}
        for name in ("offsets", "commits")
    )
    return any(one >= number for one in begun - done)


def kill_amid(cluster: Cluster, driver: Application, place: Directory) -> None:
    try:
        wait_until(lambda: amid(place, 0), "the first micro-batch", driver.runs)
        kill(cluster.executors()[0])
        wait_until(lambda: amid(place, 1), "the second micro-batch", driver.runs)
    except NotInTime as error:
        raise AssertionError(driver.said()[-3000:]) from error
    finally:
        driver.kill()


LARGE = 2_200
"""Documents of a micro-batch that executors join."""

JOINED = """
S//a[./b->x] FOLLOWED BY {x = y, 40} S//a[./b->y] PUBLISH pairs;
S//a[./b->x][./c->u] JOIN {x = y AND u = v, INF} S//a[./b->y][./c->v] PUBLISH twice;
S//a[./b->x] JOIN {x = y AND contains(x, "7"), 90} S//a[./b->y] PUBLISH sevens;
pairs//b->x JOIN {x = y, 1} S//a[./b->y] PUBLISH again
"""


@pytest.mark.soak
def test_what_executors_join_and_write_is_what_the_embedded_engine_finds(tmp_path):
    """An executor is killed in the first micro-batch, and the driver in the second. A cold start with one micro-batch
    of each kind is behind them: one that the driver joins alone, and two that executors join."""
    local, place = (Directory(path) for path in (tmp_path / "local", tmp_path / "cluster"))
    rng = Random(7)
    first = 0
    for number, count in enumerate((LARGE, LARGE, 90)):
        lines = []
        for n in range(first, first + count):
            xml = f"<a><b>{rng.randrange(LARGE)}</b><c>{rng.randrange(5)}</c></a>"
            lines.append(json.dumps({"id": f"d{n}", "time": 1_700_000_000_000_000 + n * 1_000_000, "xml": xml}) + "\n")
        first += count
        for one in (local, place):
            (one.drops / f"2026010{number + 1}T000000Z-0123456789ab.jsonl").write_text("".join(lines))
    queries = tmp_path / "q.xscl"
    queries.write_text(JOINED)

    def options_of(one: Directory) -> list[str]:
        where = ["--source", one.drops, "--state", one.state, "--output", one.output, "--queries", queries]
        more = ["--lateness", "INF", "--max-ahead", "INF", "--batch-size", LARGE, "--log", "json"]
        return [*map(str, where), *map(str, more)]

    embedded = mmqjp("stream", "--engine", "duckdb", "--trigger", "available-now", *options_of(local))
    assert embedded.exit_code == 0, embedded.output
    options = options_of(place)
    job = Path(spark_job.__file__)
    with Cluster(tmp_path / "spark") as cluster:
        driver = submit(cluster, "first", job, [*options, "--trigger", "1s"])
        kill_amid(cluster, driver, place)
        last = submit(cluster, "second", job, [*options, "--trigger", "available-now"])
        assert last.process.wait(PATIENCE) == 0, last.said()
    found, wanted = (sorted(one.output.read_text().splitlines()) for one in (place, local))
    assert found == wanted and len(found) > 1_500
    by_executors = [path for path in (place.state / "answers").iterdir() if path.stem.count("-") == 3]
    assert by_executors, "executors have written answers"
