"""The service: batches with their offsets, output lines each once, a stop between batches, one holder of a store."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from itertools import combinations
from pathlib import Path
from threading import Event

import pytest

from feeds.documents import Document
from join_stage.store.protocol import StoreError
from mmqjp.commands.console import stopping
from mmqjp.engine import Session
from mmqjp.service.log import JsonLog, TextLog
from mmqjp.service.loop import Service, Stop
from mmqjp.sinks.files import GrowingFile
from mmqjp.state.choice import InUse, is_held
from tests.support.cli import mmqjp
from tests.support.faults import Injected, armed, fail
from tests.support.service import PAIRS, Directory, Events, StopAfter


def all_pairs(ids: range) -> set[tuple[str, ...]]:
    return {(f"d{a}", f"d{b}") for a, b in combinations(ids, 2)}


def test_a_batch_ends_where_it_is_full_and_what_comes_between_two_runs_is_read_by_the_second(place: Directory):
    place.drop("1.jsonl", range(5))
    place.drop("2.jsonl", range(5, 7))
    events = Events()
    place.run(PAIRS, events=events, batch_size=3)
    assert [event["documents"] for event in events.named("batch")] == [3, 3, 1]
    place.drop("3.jsonl", range(7, 9), text="v" * 100)
    events.clear()
    place.run(events=events, batch_bytes=100)
    assert [event["documents"] for event in events.named("batch")] == [1, 1]
    assert set(place.pairs()) == all_pairs(range(7)) | {("d7", "d8")} and len(place.pairs()) == 22
    events.clear()
    place.run(events=events)
    assert not events.named("batch")


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
    options: list[str | Path] = ["--engine", "duckdb", "--source", place.drops, "--state", place.state]
    options += ["--trigger", "available-now"]
    result = mmqjp("stream", *options, "--queries", queries, "--output", place.output, "--log", "json")
    assert result.exit_code == 0, result.output
    assert [json.loads(line)["event"] for line in result.stderr.splitlines()] == ["started", "batch", "stopped"]
    assert set(place.pairs()) == all_pairs(range(3))
    place.drop("2.jsonl", range(3, 4))
    result = mmqjp("stream", *options)  # to standard output
    assert {tuple(json.loads(line)["documents"]) for line in result.stdout.splitlines()} == {
        (f"d{n}", "d3") for n in range(3)
    }


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


def test_a_document_that_is_too_large_or_of_too_many_nodes_is_a_dead_letter():
    with Session("duckdb", max_document=30, max_nodes=4) as engine:
        engine.subscribe("S//a PUBLISH all")
        texts = ["<a><b/><b c='1'/></a>", "<a><b/><b c='1' d=''/></a>", "<a><b/><b/><b/><b/></a>", f"<a>{'x' * 23}</a>"]
        texts.append(f"<a>{'x' * 24}</a>")
        outputs = engine.process([Document(str(n), text, time=n) for n, text in enumerate(texts)])
        assert [output.documents for output in outputs] == [("0",), ("3",)]
        reasons = [letter["reason"] for letter in engine.last_dead_letters()]
        assert sorted(reasons) == ["31 bytes, and 30 are allowed", *2 * ["more than 4 elements and attributes"]]


# ------------------------------------------------------------ how it waits

NEVER = 1e9
"""A trigger, in seconds, that no test lives to see."""


class Calls:
    """A watcher that does what the test says in each wait, and then calls for a look. At the end it sets the stop."""

    def __init__(self, stop: Event, *steps: Callable[[], object]) -> None:
        self._stop, self._steps, self.waits = stop, list(steps), 0

    def wait(self, seconds: float, stop: Stop) -> bool:
        self.waits += 1
        if not self._steps:
            self._stop.set()
            return False
        self._steps.pop(0)()
        return True

    def close(self) -> None:
        pass


class Rests(Event):
    """A stop that is set after so many waits. It does not wait."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.left = most

    def wait(self, timeout: float | None = None) -> bool:
        self.left -= 1
        if not self.left:
            self.set()
        return self.is_set()


def dropping(place: Directory, firsts: list[int], count: int) -> list[Callable[[], object]]:
    """Steps that drop a file each, with documents from a number on."""
    return [partial(place.drop, f"{first}.jsonl", range(first, first + count)) for first in firsts]


def test_a_service_looks_when_it_is_called(place: Directory):
    stop, events = Event(), Events()
    idle: list[Session] = []
    watcher = Calls(stop, *dropping(place, [0, 2], 2), lambda: place.ask("pause", name="pairs"))
    with Session("duckdb", state=place.state) as engine:
        engine.subscribe(PAIRS)
        place.service(engine, events, watcher=watcher, on_idle=idle.append).run(NEVER, stop)
    assert [event["documents"] for event in events.named("batch")] == [2, 2]
    assert [event["do"] for event in events.named("command")] == ["pause"] and len(place.pairs()) == 6
    assert len(idle) == 1, "what only time calls for is left to the regular looks"


def test_the_outputs_do_not_depend_on_the_watcher(place: Directory, tmp_path: Path):
    stop = Event()
    with Session("duckdb", state=place.state) as engine:
        engine.subscribe(PAIRS)
        place.service(engine, watcher=Calls(stop, *dropping(place, [6, 0, 3], 3))).run(NEVER, stop)
    polled = Directory(tmp_path / "polled")
    for drop in dropping(polled, [6, 0, 3], 3):
        drop()
    with Session("duckdb", state=polled.state) as engine:
        engine.subscribe(PAIRS)
        polled.service(engine).run(1e-3, Rests(3))
    assert sorted(place.pairs()) == sorted(polled.pairs()) and len(place.pairs()) == 36


def test_a_call_in_vain_is_followed_by_a_rest(place: Directory, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("mmqjp.service.loop.SHARE", 1e12)
    stop = Rests(20)
    watcher = Calls(stop, lambda: place.drop("1.jsonl", range(2)), lambda: None, lambda: place.drop("2.jsonl", [2]))
    with Session("duckdb", state=place.state) as engine:
        engine.subscribe(PAIRS)
        place.service(engine, watcher=watcher).run(NEVER, stop)
        assert engine.counters().documents == 2 and watcher.waits == 2
    assert stop.left == 0, "the rest is made of short waits, between which commands are run"


def test_a_service_that_rests_runs_commands(place: Directory, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("mmqjp.service.loop.SHARE", 1e12)
    events = Events()
    asked = iter([True, False])

    class Asking(Rests):
        def wait(self, timeout: float | None = None) -> bool:
            if next(asked, False):
                place.ask("list")
            return super().wait(timeout)

    stop = Asking(3)
    with Session("duckdb", state=place.state) as engine:
        place.service(engine, events, watcher=Calls(stop, lambda: None)).run(NEVER, stop)
    assert [event["do"] for event in events.named("command")] == ["list"]
