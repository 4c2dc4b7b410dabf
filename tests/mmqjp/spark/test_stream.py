"""The service on Spark: one streaming query from files to tables, each document once, whatever happens meanwhile."""

from __future__ import annotations

import json
import shutil
from itertools import combinations
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from feeds.history import History
from feeds.tail import Tail
from join_stage.store.spark.parquet_store import spark_columns
from mmqjp.answers.outbox import Position
from mmqjp.documents.watermarks import Timing
from mmqjp.engine import Session
from mmqjp.service.commands import CommandQueue
from mmqjp.service.loop import Service, ServiceOptions
from mmqjp.service.spool import Spool
from mmqjp.service.streaming import MICRO_BATCHES, StreamFailed, StreamingService, spark_error_text
from mmqjp.sinks.files import GrowingFile, Pipe
from mmqjp.spark.source import ROWS
from tests.support.faults import Injected, armed, fail
from tests.support.service import PAIRS, Directory, Events, stream, streaming

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECOND = 1_000_000


@pytest.fixture
def place(tmp_path: Path) -> Directory:
    return Directory(tmp_path)


def all_pairs(ids: range) -> set[tuple[str, ...]]:
    return {(f"d{a}", f"d{b}") for a, b in combinations(ids, 2)}


def totals(events: Events) -> dict[str, int]:
    """What batches counted, together."""
    names = ("documents", "outputs", "duplicates", "dead_letters")
    return {name: sum(int(str(event[name])) for event in events.named("batch")) for name in names}


def test_what_comes_is_read_once_in_order_of_its_fetch_and_lines_as_they_are_appended(
    spark: SparkSession, place: Directory
):
    place.drop("1.jsonl", range(3))
    (place.drops / "20200101T000000Z-0123456789ab.xml").write_text("<a>w</a>")
    (place.drops / "2.xml").write_text("<a><b>")
    events = stream(place, spark, PAIRS)
    assert totals(events) == {"documents": 4, "outputs": 3, "duplicates": 0, "dead_letters": 1}
    with (place.drops / "1.jsonl").open("a") as file:
        file.write(json.dumps({"id": "d3", "time": 3 * SECOND, "xml": "<a>v</a>"}) + '\n{"id": "d4", "ti')
    place.drop("3.jsonl", range(5, 8))
    again = stream(place, spark, batch_size=2)
    assert [event["documents"] for event in again.named("batch")] == [2, 2]
    with (place.drops / "1.jsonl").open("a") as file:
        file.write('me": 4000000, "xml": "<a>v</a>"}\n')
    assert totals(stream(place, spark)) == {"documents": 1, "outputs": 7, "duplicates": 0, "dead_letters": 0}
    assert set(place.pairs()) == all_pairs(range(8)) and len(place.pairs()) == 28
    assert not stream(place, spark).named("batch")
    with Session(spark, state=place.state) as engine:
        first = engine.sql("SELECT id FROM documents ORDER BY docid LIMIT 1").to_pylist()[0]["id"]
        assert first == "20200101T000000Z-0123456789ab.xml"


@pytest.mark.soak
def test_a_store_that_was_written_without_a_query_of_spark_is_gone_on_with(spark: SparkSession, place: Directory):
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
def test_a_micro_batch_that_comes_again_is_passed_over_as_far_as_it_was_done(
    owner: Any, method: str, call: int, spark: SparkSession, place: Directory
):
    place.drop("1.jsonl", range(5))
    for number in range(5, 11):  # files hold few documents here, and micro-batches several batches
        (place.drops / f"{number}.xml").write_text(f"<a>{number}</a>")
    (place.drops / "20300101T000000Z-0123456789ab.xml").write_text("<broken>")
    with armed((owner, method), fail, call, after=method == "_prune"), pytest.raises(Injected):
        stream(place, spark, PAIRS, "S/a PUBLISH all_a", in_batches_of=2)
    counted = totals(stream(place, spark, in_batches_of=2))
    assert counted["duplicates"] == 0
    lines = [json.loads(line) for line in place.output.read_text().splitlines()]
    assert sorted(line["documents"][0] for line in lines if line["query"] == "all_a") == sorted(
        [f"d{n}" for n in range(5)] + [f"{n}.xml" for n in range(5, 11)]
    )
    assert {tuple(line["documents"]) for line in lines if line["query"] == "pairs"} == all_pairs(range(5))
    assert len(lines) == 11 + 10
    with Session(spark, state=place.state) as engine:
        assert len(list(engine.dead_letters())) == 1
        marks = [file for source, file in engine.offsets() if source.startswith("spark ")]
        assert marks == [MICRO_BATCHES]


FEED = """<rss><channel><title>t</title>{}</channel></rss>"""
ENTRY = "<item><title>{0}</title><guid>{0}</guid><pubDate>{1}</pubDate></item>"


@pytest.mark.soak
def test_feeds_that_are_met_first_are_archives_and_what_is_refused_is_a_dead_letter(
    spark: SparkSession, place: Directory, tmp_path: Path
):
    entries = [ENTRY.format(n, f"Mon, 0{n} Jan 2024 00:00:00 GMT") for n in range(1, 6)]
    sidecar = json.dumps({"url": "http://f/", "fetched_at": "2024-01-05T12:00:00Z"})
    changed = ENTRY.format(2, "Tue, 09 Jan 2024 00:00:00 GMT")  # the entry that is dated the 2nd
    for number, some in enumerate((entries[:3], entries[1:5], [changed, *entries[2:4]], [*entries[1:2], changed])):
        name = f"2024010{5 + number}T000000Z-0123456789a{number}"
        (place.drops / f"{name}.json").write_text(sidecar.replace("-05T", f"-0{5 + number}T"))
        (place.drops / f"{name}.xml").write_text(FEED.format("".join(some)))
    (place.drops / "large.xml").write_text(FEED.format(ENTRY.format("x" * 600, "Mon, 08 Jan 2024 00:00:00 GMT")))
    (place.drops / "none.xml").write_text("<no feed>")
    day = 24 * 3600 * SECOND
    timing = Timing(day)
    options: dict[str, Any] = {"feeds": "item", "max_document": 500}

    def kept(engine: Session) -> object:
        found = engine.sql("SELECT id, t0, t1 FROM documents WHERE kind = 'external'").to_pylist()
        dead = [(letter["id"], letter["time"], letter["reason"], letter["raw"]) for letter in engine.dead_letters()]
        outputs = [output.to_dict() for output in engine.outputs()]
        return sorted(tuple(row.values()) for row in found), sorted(dead, key=str), sorted(outputs, key=str)

    within = "FROM S//item->a[./channel_url->x] FOLLOWED BY { x = y, 25 h } S//item->b[./channel_url->y] PUBLISH soon"
    events = stream(place, spark, "S//item", within, timing=timing, history=History(lateness=day), **options)
    assert totals(events)["outputs"] > totals(events)["documents"] >= 4, "some are near enough to another"
    with Session(spark, state=place.state) as engine:
        ours = kept(engine)
    with Session("duckdb", state=tmp_path / "other", lateness=day, max_document=500) as engine:
        engine.subscribe("S//item")
        engine.subscribe(within)
        history = History(lateness=day)
        tail = Tail(place.drops, feeds="item")
        lines = Pipe(tmp_path / "lines", Position())
        queue = CommandQueue(Spool(tmp_path / "other"))
        Service(engine, [tail], lines, queue, Events(), ServiceOptions(history=history)).run(None, Event())
        lines.close()
        assert kept(engine) == ours


def test_commands_are_done_while_it_waits_and_a_stop_is_heard(spark: SparkSession, place: Directory):
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
def test_a_micro_batch_that_begins_after_a_stop_comes_again(spark: SparkSession, place: Directory):
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
def test_why_executors_cannot_go_on_is_told_in_a_line(spark: SparkSession, place: Directory):
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
