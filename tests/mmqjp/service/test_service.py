"""The service: batches with their offsets, output lines each once, a stop between batches, one holder of a store."""

import json
import os
import signal
import subprocess
import sys
import threading
from itertools import combinations
from pathlib import Path

import pytest

from feeds.documents import Document
from join_stage.store.protocol import StoreError
from mmqjp.commands.console import stopping
from mmqjp.engine import Session
from mmqjp.service.log import JsonLog, TextLog
from mmqjp.service.loop import Service
from mmqjp.sinks.files import GrowingFile
from mmqjp.state.choice import InUse, is_held
from tests.support.cli import mmqjp
from tests.support.faults import Injected, armed, fail
from tests.support.service import PAIRS, Directory, Events, StopAfter, events_of


@pytest.fixture
def place(tmp_path: Path) -> Directory:
    return Directory(tmp_path)


def all_pairs(ids: range) -> set[tuple[str, ...]]:
    return {(f"d{a}", f"d{b}") for a, b in combinations(ids, 2)}


def test_what_comes_between_two_runs_is_read_by_the_second(place: Directory):
    place.drop("1.jsonl", range(3))
    place.run(PAIRS)
    place.drop("2.jsonl", range(3, 5))
    events = Events()
    place.run(events=events)
    assert [event["documents"] for event in events.named("batch")] == [2]
    assert set(place.pairs()) == all_pairs(range(5)) and len(place.pairs()) == 10
    events.clear()
    place.run(events=events)
    assert not events.named("batch")


def test_a_batch_ends_where_it_is_full(place: Directory):
    place.drop("1.jsonl", range(5))
    place.drop("2.jsonl", range(5, 7))
    events = Events()
    place.run(PAIRS, events=events, batch_size=3)
    assert [event["documents"] for event in events.named("batch")] == [3, 3, 1]
    place.drop("3.jsonl", range(7, 9), text="v" * 100)
    events.clear()
    place.run(events=events, batch_bytes=100)
    assert [event["documents"] for event in events.named("batch")] == [1, 1]


def test_a_stop_is_heard_after_the_batch_and_the_rest_is_read_later(place: Directory):
    place.drop("1.jsonl", range(6))
    with Session("duckdb", state=place.state) as engine:
        engine.subscribe(PAIRS)
        place.service(engine, batch_size=2).run(1.0, StopAfter(1))
        assert engine.counters().documents == 2
    place.run()
    assert set(place.pairs()) == all_pairs(range(6)) and len(place.pairs()) == 15


def test_a_run_that_waits_looks_again_at_every_trigger(place: Directory):
    events = Events()

    class Dropping(StopAfter):
        def wait(self, timeout: float) -> bool:
            place.drop("1.jsonl", range(2))
            return super().wait(timeout)

    with Session("duckdb", state=place.state) as engine:
        engine.subscribe(PAIRS)
        place.service(engine, events).run(1e-9, Dropping(0))  # set at once
        assert not events
        place.drop("0.jsonl", [5])
        place.service(engine, events).run(1e-3, Dropping(12))
        assert engine.counters().documents == 3


@pytest.mark.parametrize("failing", ["write", "_note_delivered", "_commit_settings"])
def test_lines_that_were_not_noted_as_written_are_written_again_in_their_place(place: Directory, failing: str):
    place.drop("1.jsonl", range(3))
    place.run(PAIRS)
    place.drop("2.jsonl", range(3, 6))
    with Session("duckdb", state=place.state) as engine:
        service = place.service(engine, batch_size=2)
        broken = GrowingFile if failing == "write" else Service
        with armed((broken, failing), fail, after=True), pytest.raises(Injected):
            service.run(None, StopAfter(10**9))
    half = place.output.read_bytes()
    place.run()
    assert place.output.read_bytes().startswith(half)
    assert set(place.pairs()) == all_pairs(range(6)) and len(place.pairs()) == 15


def test_a_second_engine_is_told_who_holds_the_store(tmp_path: Path):
    with Session("duckdb", state=tmp_path):
        assert is_held(tmp_path)
        with pytest.raises(InUse, match=rf"in use by process {os.getpid()} \(.*, since 20"):
            Session("duckdb", state=tmp_path)
        (tmp_path / "owner").write_text("rubbish")
        with pytest.raises(InUse, match="in use by another process"):
            Session("duckdb", state=tmp_path)
    assert not is_held(tmp_path) and not is_held(tmp_path / "none")
    with pytest.raises(StoreError, match="cannot open the store"):
        Session("duckdb", state=tmp_path / "owner")
    Session("duckdb", state=tmp_path).close()


def test_a_store_that_another_program_has_open_is_told_in_one_line(tmp_path: Path):
    Session("duckdb", state=tmp_path).close()
    program = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print(flush=True); sys.stdin.read()"
    file = str(tmp_path / "mmqjp.duckdb")
    with subprocess.Popen([sys.executable, "-c", program, file], stdin=-1, stdout=-1) as other:
        assert other.stdout is not None
        other.stdout.readline()
        result = mmqjp("list", "--state", tmp_path)
        other.communicate(b"")
    assert result.exit_code == 1 and result.stderr.count("\n") == 1
    assert f"PID {other.pid}" in result.stderr


def test_signals_ask_for_a_stop_and_the_second_ends_at_once():
    before = signal.getsignal(signal.SIGINT)  # Spark's, where another test has started it
    with stopping() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wait(10) and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
    found = []
    thread = threading.Thread(target=lambda: found.append(stopping().__enter__()))
    thread.start()
    thread.join()
    assert not found[0].is_set()


def test_events_are_json_or_lines_for_people():
    written: list[str] = []
    JsonLog(written.append, lambda: 1_000).event("batch", documents=1, where=Path("x"))
    assert json.loads(written.pop()) == {
        "time": "1970-01-01T00:00:00.001Z", "event": "batch", "documents": 1, "where": "x"
    }  # fmt: skip
    log = TextLog(written.append, lambda: 0, terminal=True)
    log.event("batch", documents=12345, seconds=0.12345, text="a\nb")
    log.event("stopped", rate=12345.6)
    assert written == [
        '1970-01-01T00:00:00.000Z batch documents=12345 seconds=0.123 text="a\\nb"',
        "\r\x1b[K1970-01-01T00:00:00.000Z stopped rate=12346\n",
    ]


def test_the_command_reads_what_is_there_and_ends(place: Directory):
    place.drop("1.jsonl", range(3))
    queries = place.path / "q.xscl"
    queries.write_text(PAIRS)
    options: list[str | Path] = [
        "--engine",
        "duckdb",
        "--source",
        place.drops,
        "--state",
        place.state,
        "--trigger",
        "available-now",
    ]
    result = mmqjp("stream", *options, "--queries", queries, "--output", place.output, "--log", "json")
    assert result.exit_code == 0, result.output
    assert [json.loads(line)["event"] for line in result.stderr.splitlines()] == ["started", "batch", "stopped"]
    assert set(place.pairs()) == all_pairs(range(3))
    place.drop("2.jsonl", range(3, 4))
    result = mmqjp("stream", *options)  # to standard output
    assert {tuple(json.loads(line)["documents"]) for line in result.stdout.splitlines()} == {
        (f"d{n}", "d3") for n in range(3)
    }


def test_a_signal_ends_the_command_with_status_0(place: Directory):
    place.drop("1.jsonl", range(3))
    with place.start() as process:
        next(events_of(process, "batch"))
        process.send_signal(signal.SIGTERM)
        assert next(events_of(process, "stopped"))
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--trigger", "soon"], "'soon' is not a duration"),
        (["--trigger", "INF"], "write a duration like 10s, or available-now"),
        (["--source", "none"], "none: no such file or directory"),
        (["--master", "local"], "--master is for the engine spark"),
        (["--output", "none/out"], "No such file or directory"),
    ],
)
def test_misuse_is_told_in_one_line(place: Directory, options: list[str], message: str):
    result = mmqjp("stream", "--engine", "duckdb", "--source", place.drops, "--state", place.state, *options)
    assert result.exit_code in (1, 2) and result.stderr.count("\n") == 1
    assert result.stderr.startswith("mmqjp: error: ") and message in result.stderr


def test_a_runaway_query_is_paused_with_a_reason_and_the_others_go_on(place: Directory):
    events = Events()
    with Session("duckdb", state=place.state, max_matches=3) as engine:
        engine.subscribe(f"{PAIRS}; S/a PUBLISH all_a; pairs/match PUBLISH reader")
        place.drop("1.jsonl", range(8))
        place.service(engine, events, batch_size=1).run(None, StopAfter(10**9))
        reason = "more than 3 matches of the document 'd4' (max-matches)"
        assert events.named("paused") == [{"name": "pairs", "reason": reason}]
    with Session("duckdb", state=place.state) as engine:
        (query,) = engine.registry.named("pairs")
        assert query.paused == reason and query.gaps[0][1] is None
        got = engine.sql("SELECT query, count(*) AS n FROM outputs GROUP BY query").to_pylist()
        assert {row["query"]: row["n"] for row in got} == {"pairs": 6, "all_a": 8, "reader": 6}
        engine.resume("pairs")
        assert engine.process([Document("d9", "<a>v</a>", time=9_000_000)])
    assert "d4" not in mmqjp("list", "--state", place.state).stdout


def test_a_document_that_is_too_large_is_a_dead_letter(place: Directory):
    with Session("duckdb", max_document=8) as engine:
        engine.subscribe("S/a")
        assert len(engine.process([Document("x", "<a>1</a>", time=0), Document("y", "<a>12</a>", time=0)])) == 1
        assert [row["reason"] for row in engine.dead_letters()] == ["9 bytes, and 8 are allowed"]


def test_a_document_of_too_many_nodes_is_a_dead_letter():
    with Session("duckdb", max_nodes=4) as engine:
        engine.subscribe("S//a PUBLISH all")
        texts = [
            "<a><b/><b c='1'/></a>",
            "<a><b/><b c='1' d=''/></a>",
            "<a><b/><b/><b/><b/></a>",
            "<a>" + "x" * 99 + "</a>",
        ]
        outputs = engine.process([Document(str(n), text, time=n) for n, text in enumerate(texts)])
        assert [output.documents for output in outputs] == [("0",), ("3",)]
        reasons = [letter["reason"] for letter in engine.last_dead_letters()]
        assert reasons == ["more than 4 elements and attributes"] * 2
