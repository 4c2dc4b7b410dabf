from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path
from random import Random
from threading import Event
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.streaming.datasource import ReadAllAvailable

from bench.spark_cluster import PATIENCE, SETTINGS, Cluster, NotInTime, kill, processes_below, wait_until
from feeds import confined
from feeds.documents import Reject, SourceError
from feeds.readers import Offset
from feeds.tail import LITTLE, ReadItem, Tail
from join_stage.store.spark.parquet_store import spark_columns
from mmqjp import spark_job
from mmqjp.engine import Session
from mmqjp.service.loop import watch
from mmqjp.service.streaming import MICRO_BATCHES, StreamFailed, StreamingService, spark_error_text
from mmqjp.sinks.files import GrowingFile
from mmqjp.spark import source
from tests.generate.documents import SECOND
from tests.generate.seeds import at_length, seeds
from tests.support.cli import mmqjp
from tests.support.faults import Injected, armed, fail
from tests.support.files import archive
from tests.support.service import PAIRS, Directory, Events, stream, streaming
from tests.support.unreadable import failing, shut
from xpath_stage.spark import unpacked_rows

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


def test_tasks_read_lines_as_the_frame_has_them(spark, place, tmp_path):
    found = []
    for by_tasks in (True, False):
        one = Directory(tmp_path / str(by_tasks))
        one.drop("1.jsonl", range(40))
        with (one.drops / "1.jsonl").open("a") as file:
            file.write('{"id": "no"}\n' + json.dumps({"id": "bad", "time": 0, "xml": "<a><b>"}) + "\n")
        one.drop("2.jsonl", range(40, 45))
        counted = totals(stream(one, spark, PAIRS, by_tasks=by_tasks, grain=256))
        with Session(spark, state=one.state) as engine:
            letters = engine.sql("SELECT id, stream, time, raw FROM dead_letters ORDER BY id").to_pylist()
        found.append((counted, one.output.read_text(), letters))
    assert found[0] == found[1] and found[0][0]["dead_letters"] == 2


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
        marks = [file for name, file in engine.ledger.offsets() if name.startswith("spark ")]
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


def test_little_is_answered_without_a_micro_batch_and_once_if_one_has_it_too(spark, place, monkeypatch):
    """Micro-batches are an hour apart, and executors would fail."""
    stop = Event()

    class Stopping(Events):
        def event(self, name: str, /, **fields: object) -> None:
            super().event(name, **fields)
            if name == "batch":
                stop.set()

    with Session(spark, state=place.state) as engine, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "evaluate", fail)
        engine.subscribe(PAIRS)
        with closing(watch([Tail(place.drops)], (), events := Stopping())) as watcher:
            given = {"watcher": watcher, "on_idle": lambda _: place.drop("1.jsonl", range(3))}
            streaming(place, engine, spark, events, **given).run(3600.0, stop)
        assert totals(events) == {"documents": 3, "outputs": 3, "duplicates": 0, "dead_letters": 0}

    process_rows = StreamingService._process_rows

    def late(self: StreamingService, frame: Any, number: int) -> None:
        assert self.drain(Event(), little=True) == (number == 0)
        process_rows(self, frame, number)

    monkeypatch.setattr(StreamingService, "_process_rows", late)
    place.drop("2.jsonl", range(3, 6))
    assert totals(stream(place, spark)) == {"documents": 3, "outputs": 12, "duplicates": 0, "dead_letters": 0}
    assert set(place.pairs()) == all_pairs(range(6)) and len(place.pairs()) == 15


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

    rows = spark_columns(source.ROWS)
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
    packed = source.rows_frame(session.createDataFrame(list(values), columns), "kafka", most).toArrow()
    found = pa.Table.from_batches(unpacked_rows(packed.to_batches()))
    assert found.schema.names == source.ROWS.names
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
    text_source = source.ValueSource("text", {"path": str(place.drops)})

    def run(*queries: str) -> Events:
        frame = source.streaming_frame(spark, text_source, place.state, place.state / "checkpoint" / "files")
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
        (["--engine", "spark", "--source-format", "kafka"], "--fetch or --source-format"),
        (["--engine", "spark", "--source-option", "a=b"], "--source-option is for the source that --source-format"),
        (["--engine", "spark", "--source-option", "a"], "write KEY=VALUE, not 'a'"),
    ],
)
def test_misuse_is_told_in_one_line(place, options, message):
    result = mmqjp("stream", "--source", place.drops, "--state", place.state, *options)
    assert result.exit_code == 2 and result.stderr.count("\n") == 1 and message in result.stderr
    neither = mmqjp("stream", "--engine", "duckdb", "--warehouse", place.state)
    assert neither.exit_code == 2 and "name a source" in neither.stderr


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


# ---------------------------------------------------------------- plans of micro-batches, without Spark

LIMIT = ReadAllAvailable()


def line(id: str, text: str = "") -> str:
    return json.dumps({"id": id, "xml": f"<a>{text}</a>"}) + "\n"


@pytest.fixture(autouse=True)
def _no_threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "spark" not in request.fixturenames:
        monkeypatch.setattr(source, "start_thread", lambda work: work())


class Driver:
    def __init__(self, directory: Path, **options: int) -> None:
        self.drops = directory / "drops"
        self.drops.mkdir(exist_ok=True)
        self.plans = source.PlanFiles(directory / "plans")
        self.positions: dict[tuple[str, str], Offset] = {}
        self.failed: dict[tuple[str, str], str] = {}
        self.source = source.FileSource((source.SourcePath(self.drops),), **options)  # type: ignore[arg-type]
        self.start = {"plan": 0}
        self.now = 7
        self.restart()

    def restart(self) -> None:
        self.reader = source.FileReader(self.source, lambda: self.positions, self.plans, lambda: self.now)

    def until_read(self, looks: int) -> list[str]:
        return [id for _ in range(looks) for id in self.step()]

    def planned(self) -> list[source.PlanPartition]:
        self.end = self.reader.latestOffset(self.start, LIMIT)
        return self.tasks()

    def tasks(self) -> list[source.PlanPartition]:
        found = self.reader.partitions(self.start, self.end)
        return [share for share in found if isinstance(share, source.PlanPartition)]

    def rows(self, shares: list[source.PlanPartition]) -> pa.Table:
        found = [batch for share in reversed(shares) for batch in self.reader.read(share)]
        return pa.Table.from_batches(unpacked_rows(found), source.ROWS).sort_by("place")

    def read(self, shares: list[source.PlanPartition]) -> pa.Table:
        rows, self.failed = source.split_unreadable(self.rows(shares))
        return source.uncommitted(rows, self.positions)

    def commit(self, rows: pa.Table) -> None:
        for row in rows.to_pylist():
            where = row["source"], row["file"]
            self.positions[where] = Offset(*where, row["position"], row["fingerprint"] or "")

    def step(self) -> list[str]:
        """The ids of the next micro-batch, which is done then."""
        rows = self.read(self.planned())
        self.commit(rows)
        self.reader.commit(self.end)
        self.start = self.end
        return [id for id in rows["id"].to_pylist() if id is not None]


def test_micro_batches_end_where_they_are_full_and_go_on_there(tmp_path):
    driver = Driver(tmp_path, most=3)
    (driver.drops / "1.jsonl").write_text("".join(map(line, "abcd")))
    (driver.drops / "2.xml").write_text("<a/>")
    os.utime(driver.drops / "1.jsonl", (1, 1))
    assert driver.step() == ["a", "b", "c"]
    with (driver.drops / "1.jsonl").open("a") as file:
        file.write(line("e") + '{"id": "half')
    assert driver.step() == ["d", "e", "2.xml"]
    assert driver.planned() == [] and driver.end == driver.start
    with (driver.drops / "1.jsonl").open("a") as file:
        file.write('", "xml": "<a/>"}')
    assert driver.step() == ["half"], "a last line need not be ended if it is whole"
    (driver.drops / "1.jsonl").write_text(line("f"))
    assert driver.step() == ["f"], "written anew"
    large = Driver(tmp_path, most_bytes=100)
    large.positions = driver.positions
    for name in "xyz":
        (driver.drops / f"{name}.jsonl").write_text(line(name, "v" * 60))
    assert [large.step(), large.step(), large.step()] == [["x", "y"], ["z"], []]


def test_what_is_little_is_left_to_the_service_for_as_long_as_it_reads(tmp_path):
    driver, service = Driver(tmp_path, waits=True), Driver(tmp_path)

    def reads() -> list[str]:
        found = service.step()
        driver.positions |= service.positions
        return found

    lines = driver.drops / "1.jsonl"
    for id in "abc":
        with lines.open("a") as file:
            file.write(line(id))
        assert driver.step() == [] and reads() == [id]
    (driver.drops / "2.xml").write_text("<a/>")
    assert driver.step() == driver.step() == []
    driver.now += source.LEFT_FOR
    assert [driver.step(), driver.step()] == [["2.xml"], []]
    (driver.drops / "3.xml").write_text(f"<a>{'much ' * LITTLE}</a>")
    assert driver.step() == ["3.xml"]
    with gzip.open(driver.drops / "4.jsonl.gz", "wt") as packed:
        packed.write(line("packed"))
    assert driver.step() == ["packed"]
    (driver.drops / "5.xml").write_text("<a/>")
    driver.reader.prepareForTriggerAvailableNow()
    assert driver.step() == ["5.xml"], "a run over what is there has nobody to leave it to"


def test_lines_are_read_in_many_tasks_and_admitted_in_their_order(tmp_path):
    driver = Driver(tmp_path, grain=100, tasks=8)
    (driver.drops / "1.jsonl").write_text("\n".join(map(line, map(str, range(40)))))
    tasks = driver.planned()
    assert 5 <= len(tasks) <= 8
    rows = driver.read(tasks)
    assert [id for id in rows["id"].to_pylist() if id] == [str(n) for n in range(40)]
    assert set(rows["t0"].to_pylist()) == {7, None}, "the time is that of the plan"


def test_a_plan_that_spark_has_not_heard_of_is_made_anew_and_one_that_it_has_is_not(tmp_path):
    driver = Driver(tmp_path)
    (driver.drops / "1.jsonl").write_text(line("a"))
    first = driver.planned()
    (driver.drops / "0.xml").write_text("<a/>")
    os.utime(driver.drops / "0.xml", (0, 0))
    assert driver.reader.partitions({"plan": 0}, {"plan": 1}) == first
    driver.restart()
    assert driver.reader.partitions({"plan": 0}, {"plan": 1}) == first
    assert driver.step() == ["0.xml", "a"]
    assert driver.reader.partitions({"plan": 5}, {"plan": 6}) == [], "a plan that is gone is of nothing"


def test_what_comes_after_the_beginning_is_not_for_a_run_over_what_is_there(tmp_path):
    driver = Driver(tmp_path, most=1)
    for name in "ab":
        (driver.drops / f"{name}.xml").write_text("<a/>")
    driver.reader.prepareForTriggerAvailableNow()
    (driver.drops / "c.xml").write_text("<a/>")
    assert [driver.step(), driver.step(), driver.step()] == [["a.xml"], ["b.xml"], []]


def test_what_has_gone_meanwhile_is_told_and_read_when_it_is_there_again(tmp_path):
    driver = Driver(tmp_path)
    texts = {"a.xml": "<a/>", "b.jsonl": line("b"), "c.warc": "", "d.xml": "<a/>"}
    for name, text in texts.items():
        (driver.drops / name).write_text(text)
    tasks = driver.planned()
    gone = [*texts][:3]
    for name in gone:
        (driver.drops / name).unlink()
    rows = driver.read(tasks)
    assert rows["id"].to_pylist() == ["d.xml", None]
    assert [file for (_, file), why in sorted(driver.failed.items()) if "No such file" in why] == gone
    driver.commit(rows)
    driver.start = driver.end
    for name in gone:
        (driver.drops / name).write_text(texts[name])
    assert sorted(driver.until_read(3)) == ["a.xml", "b"] and not driver.failed
    assert driver.end == driver.start


@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz"])
def test_what_cannot_be_read_further_is_let_rest_and_ends_a_run_over_what_is_there(tmp_path, name):
    driver = Driver(tmp_path)
    (driver.drops / "y.jsonl").write_text(line("y"))
    text = "".join(line(f"{n}", os.urandom(300).hex()) for n in range(90)).encode()
    (driver.drops / name).write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    with failing(driver.drops / name, after=30_000):
        first = driver.step()
        assert 9 < len(first) < 80 and "y" in first
        assert driver.until_read(70) == []
        # After the first look it is let rest for 1, 2, 4, 8, 16, 16 and 16 looks.
        assert driver.end["plan"] - 1 <= 9
        driver.reader.prepareForTriggerAvailableNow()
        assert driver.until_read(9) == [] and driver.end == driver.start
    driver.restart()
    assert sorted(first + driver.until_read(2)) == sorted([*map(str, range(90)), "y"])


def test_a_file_that_is_replaced_between_the_plan_and_the_task_is_read_as_what_it_is(tmp_path):
    driver = Driver(tmp_path, grain=1, tasks=2)
    path = driver.drops / "1.jsonl"
    path.write_text("".join(map(line, "ab")))
    assert driver.step() == ["a", "b"]
    path.open("a").write("".join(map(line, "cd")))
    tasks = driver.planned()
    path.rename(driver.drops / "1.jsonl.1")
    path.write_text("".join(map(line, "xyzuvw")))
    rows = driver.read(tasks)
    assert len(rows) == 0 and list(driver.failed.values()) == [""]
    driver.start = driver.end
    assert sorted(driver.until_read(4)) == sorted("cdxyzuvw")


def test_a_file_of_more_than_it_looked_is_read_to_its_end_before_those_behind_it(tmp_path, monkeypatch):
    monkeypatch.setattr(source, "LARGE", 2_000)
    driver = Driver(tmp_path)
    text = "".join(line(str(n), "v" * 300) for n in range(20))
    (driver.drops / "1.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    (driver.drops / "2.xml").write_text("<a/>")
    (driver.drops / "3.jsonl").write_text("".join(map(line, "xyz")))
    for number in (1, 2, 3):
        os.utime(next(driver.drops.glob(f"{number}.*")), (number, number))
    steps = [driver.step() for _ in range(4)]
    assert [id for step in steps for id in step] == [*map(str, range(20)), "2.xml", *"xyz"]
    assert list(map(len, steps)) == [7, 7, 10, 0]


@pytest.mark.parametrize("available_now", [False, True])
def test_a_large_version_of_a_feed_that_waits_for_an_earlier_one_holds_up_no_other_files(
    tmp_path, monkeypatch, available_now
):
    monkeypatch.setattr(source, "LARGE", 2_000)
    monkeypatch.setattr("feeds.splits.content_bytes", lambda waiting: 100)
    driver = Driver(tmp_path)
    driver.source = source.FileSource((source.SourcePath(driver.drops, "item"),))
    driver.restart()
    items = "".join(f"<item><guid>{n}</guid><title>{n} {'v' * 300}</title></item>" for n in range(20))
    for second in (1, 2):
        feed = driver.drops / f"{second}.xml"
        feed.write_text(f"<rss><channel>{items}</channel></rss>")
        sidecar = {"url": "https://f.example/", "fetched_at": f"1970-01-01T00:00:0{second}Z"}
        feed.with_suffix(".json").write_text(json.dumps(sidecar))
    (driver.drops / "3.jsonl").write_text("".join(map(line, "xyz")))
    if available_now:
        driver.reader.prepareForTriggerAvailableNow()
    with shut(driver.drops / "1.xml"):
        assert [driver.step(), driver.step(), driver.step()] == [[], [*"xyz"], []]


class SlowFeeds(Driver):
    """Feeds named `slow...` and records of archives with "slow" in their text take executors too long. What the driver
    would read in a thread is in `works`."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch, large: int = source.LARGE) -> None:
        self.works: list[Callable[[], None]] = []
        self.attempts = 0
        monkeypatch.setattr(source, "LARGE", large)
        monkeypatch.setattr(source, "start_thread", self.works.append)
        monkeypatch.setattr("feeds.feed.confined", self._parse)
        super().__init__(directory)
        self.source = source.FileSource((source.SourcePath(self.drops, "item"),))
        self.restart()

    def _parse(self, work: Callable[..., Any], data: bytes, *more: Any, size: int) -> Any:
        if b"slow" in data and confined._hurry.get() is not None:
            self.attempts += 1
            raise confined.HurriedError
        return confined.confined(work, data, *more, size=size)

    def drop(self, name: str, feed: str, ids: Sequence[str]) -> None:
        """A version of a feed: later than those that are there."""
        text = "".join(f"<item><guid>{id}</guid><title>{id} {'v' * 300}</title></item>" for id in ids)
        (self.drops / f"{name}.xml").write_text(f"<rss><channel><title>{name}</title>{text}</channel></rss>")
        notes = {"url": f"http://{feed}/", "fetched_at": f"1970-01-01T00:01:{len(list(self.drops.iterdir())):02}Z"}
        (self.drops / f"{name}.json").write_text(json.dumps(notes if feed else {}))

    def found(self) -> str:
        return "".join(id.split()[1] for id in self.until_read(6))


@pytest.mark.parametrize("large", [source.LARGE, 900])
def test_a_feed_that_takes_long_to_parse_is_read_by_the_driver_while_others_go_on(tmp_path, monkeypatch, large):
    driver = SlowFeeds(tmp_path, monkeypatch, large)
    driver.drop("slow1", "f", "abcd")
    driver.drop("slow2", "f", "ax")
    driver.drop("other", "g", "y")
    assert (driver.found(), len(driver.works)) == ("y", 1)
    driver.drop("another", "g", "z")
    assert (driver.found(), len(driver.works)) == ("z", 1), "the executors do not try again meanwhile"
    driver.works.pop()()
    driver.planned()
    driver.restart()
    assert (driver.found(), len(driver.works)) == ("", 1), "what was read is gone, and is read again"
    found = ""
    while driver.works:
        driver.works.pop()()
        found += driver.found()
    assert (found, driver.planned()) == ("abcdax", []), "the versions of a feed in order"
    driver.drop("slow3", "f", "b")
    driver.reader.prepareForTriggerAvailableNow()
    assert (driver.found(), driver.works) == ("b", []), "without a hurry if nothing new is waited for"


@pytest.mark.parametrize("feed", ["f{}", ""])
def test_executors_try_each_slow_feed_once_however_many_there_are(tmp_path, monkeypatch, feed):
    driver = SlowFeeds(tmp_path, monkeypatch)
    for number in range(9):
        driver.drop(f"slow{number}", feed.format(number), str(number))
    driver.drop("other", "g", "y")
    assert (driver.found(), driver.attempts) == ("y", 9)
    found = ""
    while driver.works:
        driver.works.pop()()
        found += driver.found()
    assert (sorted(found), driver.attempts) == (list("012345678"), 9)


@pytest.mark.parametrize("seed", seeds(5, 100))
def test_each_item_comes_once_and_in_the_order_of_its_feed_whatever_is_slow(tmp_path, monkeypatch, seed):
    rng = Random(seed)
    driver = SlowFeeds(tmp_path, monkeypatch, rng.choice([source.LARGE, 900, 300]))
    wanted = dict.fromkeys("fgh", "")
    found: list[str] = []
    for number in range(12):
        feed, ids = rng.choice("fgh"), [f"{number}{letter}" for letter in "abc"[: rng.randint(1, 3)]]
        wanted[feed] += "".join(ids)
        driver.drop(f"{rng.choice(['slow', 'fast'])}{number}", feed, ids)
        for _ in range(rng.randint(0, 3)):
            match rng.choice(["step", "step", "read", "restart", "repeat"]):
                case "step":
                    found += driver.step()
                case "read" if driver.works:
                    driver.works.pop(0)()
                case "restart":
                    driver.restart()
                case "repeat":  # part of a micro-batch is committed, and Spark repeats it after a restart
                    rows = driver.read(driver.planned())
                    rows = rows.slice(0, rng.randint(0, len(rows)))
                    driver.commit(rows)
                    found += [id for id in rows["id"].to_pylist() if id is not None]
                    driver.restart()
    for _ in range(60):
        while driver.works:
            driver.works.pop(0)()
        found += driver.step()
    for feed, whole in wanted.items():
        assert "".join(id.split()[1] for id in found if id.startswith(f"http://{feed}/")) == whole
    assert driver.planned() == []


def test_what_the_driver_could_read_of_an_archive_is_there_and_the_damage_is_told(tmp_path, monkeypatch):
    driver = SlowFeeds(tmp_path, monkeypatch)
    texts = [
        f"<rss><channel><item><guid>{id}</guid>{'v' * size}</item></channel></rss>"
        for id, size in (("1 slow", 0), ("2", 90_000))
    ]
    archive(driver.drops / "w.warc", *((f"http://{n}/", text, "2026-01-01T00:00:00Z") for n, text in enumerate(texts)))
    with failing(driver.drops / "w.warc", after=70_000):
        assert driver.until_read(4) == []
        driver.works.pop()()
        steps = [(driver.step(), *driver.failed.values()) for _ in range(4)]
    (found,) = [step for step in steps if step[0]]
    assert found[0][0].startswith("http://0/ 1 slow") and "Input/output error" in found[1]


def test_a_slow_feed_that_is_replaced_is_read_as_what_it_is(tmp_path, monkeypatch):
    driver = SlowFeeds(tmp_path, monkeypatch)
    driver.drop("slow1", "f", "a")
    assert driver.found() == ""
    driver.works.pop()()
    driver.drop("slow1", "f", "bc")
    found = driver.found()
    while driver.works:
        driver.works.pop()()
        found += driver.found()
    assert found == "bc"


def test_rows_without_offsets_are_numbered_within_their_micro_batch():
    item = Reject("r", "S", None, "why", "raw")
    rows = pa.Table.from_batches(
        source.to_batches(source.row_of(n, 0, ReadItem(item, Offset("", "", 0)), None) for n in range(3)), source.ROWS
    )
    found = source.assign_positions(rows, "q", "m", 2)
    assert found.schema == source.ROWS and set(found["source"].to_pylist()) == {"q"}
    assert len(source.uncommitted(found, {("q", "m"): Offset("q", "m", 2 << 32)})) == 3, (
        "of the micro-batch before all is done"
    )
    assert len(source.uncommitted(found, {("q", "m"): Offset("q", "m", (2 << 32) + 1)})) == 2
    assert len(source.uncommitted(found, {("q", "m"): Offset("q", "m", 3 << 32)})) == 0


def test_the_application_for_spark_submit_takes_the_options_of_the_service(capsys):
    with pytest.raises(SystemExit) as ended:
        spark_job.main(["--state", "nowhere"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("mmqjp: error: name a source, with --source, --fetch or")
