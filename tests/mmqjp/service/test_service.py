"""The service: batches, stops, one holder of a store, commands that are done once, and what it tells of itself. What it
commits reaches its sinks, wherever it is killed, and nothing that they are owed is dropped. Its watcher: which changes
matter, what happens when the system tells nothing, and the real notices of the system."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path
from threading import Event
from typing import Any, Self
from unittest.mock import Mock

import pytest
from prometheus_client import generate_latest

from common.dates import iso_utc
from feeds.documents import Document, SourceItem, Visit
from feeds.history import History, NotedVisit
from feeds.readers import drop_stem, visits_text
from feeds.tail import Tail
from join_stage.store.protocol import StoreError
from mmqjp.commands import manage_queries
from mmqjp.commands.console import stopping
from mmqjp.engine import Session
from mmqjp.service.commands import RESULT_RETENTION, Client, CommandError, CommandQueue, NoAnswer, run_offline
from mmqjp.service.log import JsonLog, NullLog, TextLog
from mmqjp.service.loop import (
    RETRY,
    FileWatcher,
    Intake,
    WatchedPath,
    Watcher,
    file_system_of,
    mounted_file_systems,
    watch,
)
from mmqjp.service.spool import Command, CommandResult, Spool
from mmqjp.service.status import Metrics, store_status
from mmqjp.sinks.definition import SinkTables, read_tables
from mmqjp.sinks.manager import SinkManager
from mmqjp.sinks.sink import down
from mmqjp.state.engine_choice import InUse, is_held
from mmqjp.tables.schema import CommitMetadata
from tests.mmqjp.documents.test_time import HOUR, NOW, SECOND, WINDOW, doc
from tests.support.cli import mmqjp
from tests.support.fake_sinks import DAY, START, Clock, Disk, Endpoint, definition, manager
from tests.support.faults import FaultySession, Injected, armed, fail
from tests.support.feed_server import rss
from tests.support.service import PAIRS, Directory, Events, StopAfter
from tests.support.stores import as_files


def test_a_batch_ends_where_it_is_full_and_what_comes_between_two_runs_is_read_by_the_second(place: Directory):
    place.drop("1.jsonl", range(5))
    place.drop("2.jsonl", range(5, 7))
    events = Events()
    place.run(PAIRS, events=events, batch_size=3)
    told = [(event["documents"], event["waiting_files"]) for event in events.named("batch")]
    assert told == [(3, 1), (3, 0), (1, 0)]
    place.drop("3.jsonl", range(7, 9), text="v" * 100)
    events.clear()
    place.run(events=events, batch_bytes=100)
    assert [event["documents"] for event in events.named("batch")] == [1, 1]
    assert sorted(place.pairs()) == [*combinations([f"d{n}" for n in range(7)], 2), ("d7", "d8")]
    events.clear()
    place.run(events=events)
    assert not events.named("batch")


@pytest.mark.parametrize("batch_size", [1, 100])
def test_visits_reach_the_engine_in_their_order_also_alone_and_after_a_restart(place: Directory, batch_size: int):
    feed = "https://a.example/"

    def fetch(day: int, *visits: NotedVisit, title: str = "") -> None:
        folder = place.drops / ("a" if title else "visits")
        folder.mkdir(exist_ok=True)
        path = folder / drop_stem(day * DAY, "0" * 12)
        path.with_suffix(".json").write_text(json.dumps({"url": feed}))
        content = rss(title).encode() if title else visits_text(visits)
        path.with_suffix(".xml" if title else ".visits").write_bytes(content)

    def said(item: SourceItem) -> tuple[int, str]:
        return (item.time // DAY, item.outcome) if isinstance(item, Visit) else (0, getattr(item, "feed", ""))

    def read() -> list[list[tuple[int, str]]]:
        with Session("duckdb", state=place.state) as engine:
            intake = Intake(engine, [Tail(place.drops, feeds="item")], History(), batch_size, 1 << 20, print)
            batches = []
            for batch in intake.batches():
                engine.process(batch.items, intake.metadata(batch, {}))
                intake.committed(batch)
                batches.append([said(one) for one in batch.items])
            return batches

    fetch(10, NotedVisit(feed, 10 * DAY, "awaited"))
    fetch(12, title="old")
    fetch(14, NotedVisit(feed, 13 * DAY, since=12 * DAY), NotedVisit(feed, 16 * DAY, since=15 * DAY))
    first, rest = [(10, "awaited"), (0, feed)], [(12, "complete"), (13, "complete")]
    assert read() == ([first, rest] if batch_size == 1 else [first + rest])
    assert read() == []
    fetch(15, title="old")  # which has no new entry
    assert read() == [[(16, "complete")]]
    fetch(17, NotedVisit(feed, 17 * DAY, since=15 * DAY))
    assert read() == [[(17, "complete")]]


def test_a_second_engine_is_told_who_holds_the_store(tmp_path: Path):
    with Session("duckdb", state=tmp_path):
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
    with subprocess.Popen([sys.executable, "-c", program, tmp_path / "mmqjp.duckdb"], stdin=-1, stdout=-1) as other:
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
    with ThreadPoolExecutor() as pool:
        assert not pool.submit(stopping().__enter__).result().is_set()


def test_events_are_json_or_lines_for_people():
    written: list[str] = []
    JsonLog(written.append, lambda: 1_000).event("batch", documents=1, where=Path("x"))
    log = TextLog(written.append, lambda: 0, terminal=True)
    log.event("batch", documents=12345, seconds=0.12345, text="a\nb")
    log.event("stopped", rate=12345.6)
    assert written == [
        '{"time": "1970-01-01T00:00:00.001Z", "event": "batch", "documents": 1, "where": "x"}\n',
        '1970-01-01T00:00:00.000Z batch documents=12345 seconds=0.123 text="a\\nb"',
        "\r\x1b[K1970-01-01T00:00:00.000Z stopped rate=12346\n",
    ]


def test_a_service_tells_which_runaway_query_is_paused(place: Directory):
    events = Events()
    place.drop("1.jsonl", range(8))
    with Session("duckdb", state=place.state, max_matches=3) as engine:
        engine.subscribe(PAIRS)
        place.service(engine, events, batch_size=1).run(None, StopAfter(10**9))
    reason = "more than 3 matches of the document 'd4' (max-matches)"
    assert events.named("paused") == [{"name": "pairs", "reason": reason}]


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


class Calls(Watcher):
    """A watcher that does what the test says in each wait, and then calls for a look. At the end it sets the stop."""

    def __init__(self, stop: Event, *steps: Callable[[], object]) -> None:
        self._stop, self._steps, self.waits = stop, list(steps), 0

    def wait(self, seconds: float, stop: Any) -> bool:
        self.waits += 1
        if not self._steps:
            self._stop.set()
            return False
        self._steps.pop(0)()
        return True


def test_a_service_looks_when_it_is_called(place: Directory):
    stop, events = Event(), Events()
    idle: list[Session] = []
    drops = (partial(place.drop, f"{first}.jsonl", range(first, first + 2)) for first in (0, 2))
    watcher = Calls(stop, *drops, lambda: place.ask("pause", name="pairs"))
    place.run(PAIRS, events=events, trigger=NEVER, stop=stop, watcher=watcher, on_idle=idle.append)
    assert [event["documents"] for event in events.named("batch")] == [2, 2]
    assert [event["do"] for event in events.named("command")] == ["pause"] and len(place.pairs()) == 6
    assert len(idle) == 1, "what only time calls for is left to the regular looks"


@pytest.mark.parametrize(("share", "pairs"), [(1e12, 1), (0, 3)])
def test_a_call_in_vain_is_followed_by_a_rest(share: float, pairs: int, place: Directory, monkeypatch):
    """News that come meanwhile are read after it; commands do not wait for that."""
    monkeypatch.setattr("mmqjp.service.loop.SHARE", share)
    stop, events = Event(), Events()
    drops = (lambda: place.drop("1.jsonl", range(2))), (lambda: None), (lambda: place.drop("2.jsonl", [2]))
    watcher = Calls(stop, *drops, lambda: place.ask("pause", name="pairs"))
    place.run(PAIRS, events=events, trigger=NEVER, stop=stop, watcher=watcher)
    assert len(place.pairs()) == pairs and [event["do"] for event in events.named("command")] == ["pause"]


ALL: dict[str, Any] = {"text": "S/a PUBLISH all_a", "add": False, "backfill": False}


def client(place: Directory, wait: float = 30.0, sleep: Callable[[float], object] = lambda seconds: None) -> Client:
    times: Iterator[int] = iter(range(10**9))
    return Client(place.state, lambda: Session("duckdb", state=place.state), wait, lambda: float(next(times)), sleep)


def test_a_running_service_does_commands_between_batches_in_order(place: Directory):
    events = Events()
    place.drop("1.jsonl", range(4))
    given: list[tuple[str, dict[str, Any]]] = [
        ("subscribe", ALL), ("pause", {"name": "all_a"}), ("list", {}), ("pause", {"name": "none"}),
        ("show", {"name": "none"}), ("dance", {}), ("subscribe", ALL | {"text": "S/"}),
    ]  # fmt: skip
    asked = [place.ask(do, **arguments) for do, arguments in given]
    place.run(PAIRS, events=events)
    subscribed, paused, listed, *failed = map(place.answer, asked)
    assert subscribed == paused == CommandResult(["all_a"])
    assert [(row["name"], row["paused"]) for row in listed.result] == [("pairs", None), ("all_a", "asked to")]
    errors = [answer.error or "" for answer in failed]
    assert errors[:3] == [*2 * ["no query is named 'none'"], "unknown command 'dance'"] and "error" in errors[3]
    assert [event["do"] for event in events.named("command")] == [command.do for command in asked]
    assert len(place.pairs()) == 6


def test_a_command_without_its_arguments_is_a_mistake_and_a_fault_of_ours_is_none(place, monkeypatch):
    asked = [place.ask(do, other=1) for do in ("subscribe", "unsubscribe", "pause", "resume", "show")]
    with Session("duckdb", state=place.state) as engine:
        CommandQueue(place.spool).apply(engine, Events())
    assert all((place.answer(command).error or "").startswith("the command lacks its ") for command in asked)
    place.ask("subscribe", **ALL)
    with Session("duckdb", state=place.state) as engine:
        for fault in (ValueError, KeyError, TypeError):
            monkeypatch.setattr(engine.registry, "add", Mock(side_effect=fault))
            with pytest.raises(fault):
                CommandQueue(place.spool).apply(engine, Events())


def test_a_free_store_is_opened_for_all_that_waits_and_what_nobody_can_open_is_not_kept(place: Directory):
    earlier = place.ask("subscribe", **ALL)
    assert client(place).ask("pause", {"name": "all_a"}) == ["all_a"]
    assert place.answer(earlier) == CommandResult(["all_a"])
    assert [row["paused"] for row in client(place).ask("show", {"name": "all_a"})] == ["asked to"]
    with pytest.raises(CommandError, match="no query is named 'none'"):
        client(place).ask("unsubscribe", {"name": "none"})
    with pytest.raises(StoreError, match="broken"):
        Client(place.state, Mock(side_effect=StoreError("broken")), 5).ask("subscribe", ALL)
    assert not place.spool.waiting()


def test_a_held_store_is_waited_for_and_what_was_asked_is_kept(place: Directory):
    with Session("duckdb", state=place.state) as engine:
        with pytest.raises(NoAnswer, match=r"no answer within 5 s: .*in use by process .*; the command is kept"):
            client(place, wait=5).ask("subscribe", ALL)
        with pytest.raises(NoAnswer, match="ask again later"):
            client(place, wait=5).ask("list", {})
        queue = CommandQueue(place.spool)
        assert queue.apply(engine, Events()) == 1 and list(engine.queries()) == ["all_a"]
        answered = client(place, sleep=lambda seconds: queue.apply(engine, Events()))
        assert [row["name"] for row in answered.ask("list", {})] == ["all_a"]


def test_rubbish_in_the_spool_is_answered_and_old_answers_go(place: Directory):
    place.ask("list")
    commands, answers = place.state / "spool" / "commands", place.state / "spool" / "answers"
    for name, text in (("1-x.json", "rubbish"), ("2-x.json", "{}"), (".3-x.json.77", "draft"), ("4-x.txt", "")):
        (commands / name).write_text(text)
    assert [command.do for command in place.spool.waiting()] == ["list"]
    assert sorted(path.name for path in answers.iterdir()) == ["1-x.json", "2-x.json"]
    assert "is not a command" in place.answer(Command("1-x", "", {})).error  # type: ignore[operator]
    CommandQueue(place.spool, lambda: RESULT_RETENTION + 10)
    assert list(answers.iterdir()) == [] and not (commands / ".3-x.json.77").exists()
    assert len(place.spool.waiting()) == 1


def test_status_is_the_same_running_and_stopped(tmp_path: Path):
    with Session("duckdb", state=tmp_path, lateness=HOUR) as engine:
        engine.subscribe(f"{WINDOW}; T//b->x FOLLOWED BY {{x = y, 5}} T//b->y PUBLISH other")
        engine.pause("other")
        engine.subscribe("FROM S//a->x NOT FOLLOWED BY {x = y, 9} U//a->y PUBLISH silent")
        engine.process([doc(0), doc(1), doc(5, "T"), Document("bad", "<a>", time=NOW)])
        visits = [Visit(feed, NOW + at * SECOND, stream="U") for feed, at in (("f", 1), ("g", 9))]
        engine.process([*visits, Document("late", "<a>v</a>", "U", NOW - 2 * HOUR, feed="g")])
        metrics = Metrics(NullLog())
        metrics.update(status := store_status(engine))
        found = status.to_dict()
    told = json.loads(mmqjp("status", "--state", tmp_path, "--json").stdout)
    for key in ("batches", "state_bytes"):  # a store that is closed keeps its costs, in one more
        assert told.pop(key) and found.pop(key)
    assert told == json.loads(json.dumps(found))
    counts = ("queries", "paused", "documents", "outputs", "dead_letters")
    assert [told[name] for name in counts] == [3, 1, 4, 2, 1]
    assert told["horizon"] == NOW + SECOND - HOUR and told["evictable_before"] == NOW - 9 * SECOND - HOUR
    assert told["streams"][0] == {
        "stream": "S", "documents": 2, "bytes": 16, "latest": NOW + SECOND, "watermark": NOW + SECOND - HOUR,
        "belated": 0,
    }  # fmt: skip
    until = NOW + 9 * SECOND + 1 + HOUR
    assert told["absences"] == [{"query": "silent", "documents": 2, "until": until, "stream": "U", "feed": "f"}]
    assert (told["waiting"], told["belated"], told["streams"][2]["belated"]) == ({"silent": 2}, {"silent": 1}, 1)
    samples = ("belated", "stream", "U", 1), ("too_late", "query", "silent", 1), ("waiting", "query", "silent", 2)
    for name, label, value, number in samples:
        assert metrics.registry.get_sample_value(f"mmqjp_{name}_documents", {label: value}) == number
    text = mmqjp("status", "--state", tmp_path).stdout
    assert "queries        3, 1 of them paused" in text and "2027-01-15T07:00:01Z" in text
    waits = f"2 documents wait, the first until {iso_utc(until)}, for f"
    too_late = "1 document came too late to change its earlier outputs"
    assert f"too late       silent: {too_late}\nwaiting        silent: {waits}\n" in text
    assert mmqjp("list", "silent", "--state", tmp_path).stdout.endswith(f"  {too_late}\n  {waits}\n")


def test_metrics_tell_what_the_log_and_the_status_do(place: Directory):
    place.drop("1.jsonl", range(3))
    events = Events()
    metrics = Metrics(events, now=lambda: 12 * SECOND)
    place.ask("subscribe", **ALL | {"text": PAIRS})
    with Session("duckdb", state=place.state, lateness=SECOND, now=lambda: 5 * SECOND) as engine:
        service = place.service(engine, metrics, on_idle=lambda e: metrics.update(store_status(e)))
        service.run(None, StopAfter(10**9))
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics.serve(0)}/metrics") as response:
        text = response.read().decode()
    lines = {
        "mmqjp_documents_total 3.0", "mmqjp_outputs_total 3.0", "mmqjp_dead_letters_total 0.0",
        "mmqjp_batch_seconds_count 1.0", 'mmqjp_commands_total{do="subscribe"} 1.0',
        'mmqjp_queries{state="active"} 1.0', 'mmqjp_watermark_seconds{stream="S"} 1.0',
        'mmqjp_kept_documents{stream="S"} 3.0', "mmqjp_evictable_before_seconds -9.0",
        "mmqjp_lag_seconds 10.0", "mmqjp_waiting_files 0.0",
    }  # fmt: skip
    assert lines <= {*text.splitlines()}
    assert re.search(r"^mmqjp_state_bytes [1-9]", text, re.M)
    (batch,) = events.named("batch")
    assert (batch["lag_seconds"], batch["waiting_files"]) == (3.0, 0) and batch["state_bytes"]
    with Session("duckdb") as engine:
        Metrics(NullLog()).update(store_status(engine))


def test_metrics_that_cannot_be_served_are_told(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = mmqjp("stream", "--engine", "duckdb", "--source", tmp_path, "--state", tmp_path / "state",
                       "--metrics-port", str(port), "--trigger", "available-now")  # fmt: skip
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1].startswith(f"mmqjp: error: metrics cannot be served at 127.0.0.1:{port}: ")


# ------------------------------------------------------------ sinks over a store


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def every(tmp_path: Path, clock: Clock) -> Iterator[Session]:
    """An engine with a query that finds every document."""
    with Session("duckdb", state=tmp_path, now=clock, lateness=0) as engine:
        engine.subscribe("FROM S//a->x PUBLISH every")
        yield engine


def process(engine: Session, sinks: SinkManager, numbers: Iterable[int], turns: int = 0) -> None:
    """Processes documents with numbers, notes what the sinks say, and lets them take turns."""
    xml, notes = "<a><k>v</k></a>", sinks.notes()
    outputs = engine.process([Document(f"d{n}", xml, time=START + n * SECOND) for n in numbers], notes)
    sinks.noted(notes)
    sinks.committed(outputs)
    for _ in range(turns):
        sinks.turn()


def seqs(endpoint: Endpoint) -> list[int]:
    return [match.output.seq for message, _ in endpoint.got for match in message.matches]


def test_nothing_that_a_sink_is_owed_is_dropped(every, clock):
    every.subscribe(PAIRS)
    endpoint = Endpoint()
    sinks = manager(every, {"s": endpoint}, [definition("s", queries=["every"])], clock=clock)
    sinks.pause("s")
    for number in range(0, 300, 100):
        process(every, sinks, range(number, number + 100))
        clock.time += 100 * SECOND
    every.prune(SECOND, owed=sinks.owed())
    kept = "SELECT seq FROM outputs WHERE query = 'every' ORDER BY seq"
    numbers = every.sql(kept)["seq"].to_pylist()
    assert len(numbers) == 300
    sinks.resume("s")
    for _ in range(10):
        sinks.turn()
    assert seqs(endpoint) == numbers and sinks.owed() is None
    every.prune(SECOND, owed=None)
    assert len(every.sql(kept)) < 10


def test_a_sink_that_was_not_defined_meanwhile_is_told_what_was_dropped(every, clock):
    endpoint, of_file = Endpoint(), [replace(definition("s"), file="mmqjp.toml")]
    sinks = manager(every, {"s": endpoint}, of_file, clock=clock)
    process(every, sinks, range(10), turns=3)
    sinks.reload([])
    process(every, sinks, range(10, 200))
    every.prune(SECOND, owed=sinks.owed())
    sinks.reload(of_file)
    sinks.save()
    for _ in range(5):
        sinks.turn()
    (gap,) = every.sql("SELECT first, last, count FROM gaps").to_pylist()
    assert seqs(endpoint) == [*range(10), *range(gap["last"] + 1, 200)] and gap["first"] == 10


def test_gaps_that_follow_each_other_become_one_row(every, clock, monkeypatch):
    monkeypatch.setattr("mmqjp.tables.schema.MOST_APART", 20)
    sinks = manager(every, {"s": Endpoint()}, [definition("s", backlog="1h")], clock=clock)
    sinks.pause("s")
    for number in range(25):
        process(every, sinks, [number])
        clock.time += 2 * 3600 * SECOND
        sinks.turn()
    assert len(every.sql("SELECT * FROM gaps")) > 20
    every.prune(None, owed=sinks.owed())
    rows = every.sql("SELECT first, last, count FROM gaps").to_pylist()
    assert rows == [{"first": 0, "last": rows[0]["last"], "count": rows[0]["last"] + 1}]
    clock.time += 9 * DAY
    process(every, sinks, [1_000])
    every.prune(DAY, owed=sinks.owed())
    assert not every.sql("SELECT * FROM gaps WHERE last < 20").to_pylist()


def test_status_and_metrics_tell_how_sinks_are(every, clock):
    endpoints: dict[str, Endpoint | Disk] = {"good": Endpoint(), "bad": Endpoint(lambda message: down("HTTP 503"))}
    sinks = manager(every, endpoints, map(definition, endpoints), clock=clock)
    process(every, sinks, [1, 2, 3])
    clock.time += 10 * SECOND
    for _ in range(3):
        sinks.turn()
    metrics = Metrics(Events(), now=clock)
    found = store_status(every, sinks.list())
    metrics.update(found)
    metrics.update(found)
    shown = {sink["name"]: (sink["state"], sink["behind"], sink["reason"]) for sink in found.to_dict()["sinks"]}
    assert shown == {"good": ("running", 0, ""), "bad": ("waiting", 3, "HTTP 503")}
    lines = {
        'mmqjp_sink_behind{sink="bad"} 3.0', 'mmqjp_sink_behind{sink="good"} 0.0',
        'mmqjp_sink_behind_seconds{sink="bad"} 10.0', 'mmqjp_sink_behind_seconds{sink="good"} 0.0',
        'mmqjp_sink_delivered_total{sink="good"} 3.0', 'mmqjp_sink_failed_total{sink="bad"} 1.0',
        'mmqjp_sink_given_up_total{sink="bad"} 0.0',
    }  # fmt: skip
    assert lines <= {*generate_latest(metrics.registry).decode().splitlines()}
    metrics.update(store_status(every))
    assert 'sink="' not in generate_latest(metrics.registry).decode()


# ------------------------------------------------------------ commands about sinks

HOOK = {"kind": "webhook", "url": "https://example.org/hook"}

CHANGES: list[tuple[str, dict[str, Any], Any]] = [
    ("sinks-add", {"name": "new", "table": HOOK}, "new"),
    ("sinks-set", {"name": "old", "table": {"wait": "5s"}}, "old"),
    ("sinks-pause", {"name": "old"}, "old"),
    ("sinks-resume", {"name": "old"}, "old"),
    ("sinks-replay", {"name": "old", "from": "start"}, 0),
    ("sinks-remove", {"name": "old"}, "old"),
    ("sinks-reload", {}, ["other"]),
]
"""A command of each kind that changes sinks, in a store with the sink "old", and its result."""


def tables(place: Directory) -> SinkTables:
    return read_tables({"sinks": {"other": HOOK}}, place.path / "mmqjp.toml")


def queue(place: Directory) -> CommandQueue:
    return CommandQueue(place.spool, run_sinks=partial(run_offline, place.state, partial(tables, place)))


def applied(place: Directory, do: str, arguments: dict[str, Any]) -> CommandResult:
    command = place.ask(do, **arguments)
    with Session("duckdb", state=place.state) as opened:
        queue(place).apply(opened, Events())
    return place.answer(command)


def test_each_change_is_made_once_whatever_is_killed(place: Directory):
    """Each process but the last finds a change that is not committed, or is not answered, or the next one."""
    assert applied(place, "sinks-add", {"name": "old", "table": HOOK}).error is None
    for do, arguments, result in CHANGES:
        command = place.ask(do, **arguments)
        with FaultySession("duckdb", state=place.state) as opened:
            before = opened.ledger.settings("sink")
            with opened.store.failing("commit"), pytest.raises(Injected):
                queue(place).apply(opened, Events())
        with Session("duckdb", state=place.state) as opened:
            assert opened.ledger.settings("sink") == before, do
            with armed((Spool, "answer"), fail), pytest.raises(Injected):  # between the change and its answer
                queue(place).apply(opened, Events())
        with FaultySession("duckdb", state=place.state) as opened:
            made = opened.ledger.settings("sink")
            with opened.store.failing("commit"):
                queue(place).apply(opened, Events())
            assert place.answer(command) == CommandResult(result), do
            assert opened.ledger.settings("sink") == made, do


def test_looking_at_sinks_only_reads_and_needs_no_spark(place: Directory, tmp_path: Path):
    assert applied(place, "sinks-add", {"name": "old", "table": HOOK}).error is None
    with Session("duckdb", state=place.state) as opened:
        opened.commit_metadata(CommitMetadata(settings={"sink:other": ""}))  # so that it would begin
        before = opened.ledger.settings("sink")
    as_files(place.state, tmp_path / "files")
    for state in (place.state, tmp_path / "files"):
        asks = manage_queries.client(state, 5, run_sinks=partial(run_offline, state, partial(tables, place)))
        asks = replace(asks, open_store=fail)
        listed, shown = asks.ask("sinks", {}), asks.ask("sinks", {"name": "old"})
        failed, secrets = asks.ask("sinks-failed", {"name": "old"}), asks.ask("sinks-secrets", {})
        assert [(row["name"], row["behind"]) for row in listed] == [("old", 0), ("other", 0)]
        assert shown["definition"] == HOOK and failed == {"undelivered": [], "gaps": []} and secrets == []
        with pytest.raises(CommandError, match="no sink is named none"):
            asks.ask("sinks", {"name": "none"})
    with Session("duckdb", state=place.state) as opened:
        assert opened.ledger.settings("sink") == before


# ------------------------------------------------------------ the watcher

ADDED, MODIFIED, GONE = 1, 2, 3


class Told:
    """Notices that the test gives: each wait gets the next answer, or the error. It keeps what was watched."""

    def __init__(self) -> None:
        self.answers: list[set[tuple[int, str]] | str | Exception] = []
        self.watched, self.now = list[list[str]](), 0.0
        self.refusal: Exception | None = None

    def open(self, directories: Sequence[str]) -> Self:
        self.watched.append(list(directories))
        if self.refusal is not None:
            raise self.refusal
        return self

    def watch(self, debounce_ms: int, step_ms: int, timeout_ms: int, stop_event: Any) -> set[tuple[int, str]] | str:
        if not self.answers:
            self.now += timeout_ms / 1000
            return "timeout"
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        """Does nothing."""


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def drops(tmp_path: Path) -> Path:
    (tmp_path / "drops" / "sub").mkdir(parents=True)
    return tmp_path / "drops"


def watcher_of(told: Told, *paths: Path, log: Events | None = None) -> FileWatcher:
    watched = [WatchedPath(tail.path, tail.is_wanted) for tail in map(Tail, paths)]
    return FileWatcher(watched, Events() if log is None else log, told.open, lambda: told.now)


def waits(watcher: FileWatcher, told: Told, *changes: tuple[int, Path]) -> bool:
    told.answers = [{(kind, str(path))} for kind, path in changes]
    return watcher.wait(0.5, Event())


def test_only_what_may_be_read_matters(told: Told, drops: Path):
    (drops / "all").symlink_to("/")  # which is not followed
    watcher = watcher_of(told, drops)
    assert told.watched == [sorted(map(str, [drops.parent, drops, drops / "sub"]))]
    assert watcher.changed() is None, "any file may have come before the watch"
    assert waits(watcher, told, (ADDED, drops / "a.xml"))
    assert waits(watcher, told, (MODIFIED, drops / "sub" / "a.jsonl"))
    assert watcher.changed() == {f"{drops}/a.xml", f"{drops}/sub/a.jsonl"} and watcher.changed() == set()
    kept = [(ADDED, drops / name) for name in (".a.xml", "a.xml.part", "a.duckdb.wal", "b.txt")]
    assert not waits(watcher, told, *kept, (GONE, drops / "a.xml"), (ADDED, drops.parent / "lines.jsonl"))
    assert not told.answers and len(told.watched) == 1, "each was looked at, and none was a reason to watch anew"
    assert waits(watcher, told, *kept, (ADDED, drops / "a.xml"))


def test_what_is_beside_a_file_does_not_matter(told: Told, tmp_path: Path):
    log = tmp_path / "x.jsonl"
    log.touch()
    watcher = watcher_of(told, log)
    assert told.watched == [[str(tmp_path)]]
    assert waits(watcher, told, (MODIFIED, log))
    assert waits(watcher, told, (ADDED, tmp_path / "x.jsonl.1"))
    (tmp_path / "state").mkdir()
    assert not waits(watcher, told, (ADDED, tmp_path / "y.jsonl"), (ADDED, tmp_path / "state"))


def test_a_path_that_leads_elsewhere_is_noticed_without_being_told(told: Told, drops: Path, tmp_path: Path):
    (tmp_path / "one").mkdir()
    link = tmp_path / "one" / "link"
    link.symlink_to(drops)
    watcher = watcher_of(told, link)
    assert [str(link), str(link / "sub")] == told.watched[-1][1:]
    shutil.move(tmp_path / "one", tmp_path / "two")
    (tmp_path / "one").mkdir()
    link.symlink_to(tmp_path)
    assert not waits(watcher, told)
    told.now += 1
    assert waits(watcher, told) and str(link / "drops") in told.watched[-1]


@pytest.mark.parametrize("error", [OSError("no space"), RuntimeError("no inotify"), ValueError("not UTF-8")])
def test_where_nothing_is_told_the_watcher_waits_and_says_so(told: Told, drops: Path, error: Exception):
    told.refusal, log, stop = error, Events(), StopAfter(5)
    watcher = watcher_of(told, drops, log=log)
    assert not watcher.wait(3, stop) and not watcher.wait(3, stop)
    told.now = RETRY
    assert not watcher.wait(3, stop)
    assert log.named("polling") == [{"reason": str(error)}] and len(told.watched) == 2
    told.refusal, told.now = None, 2 * RETRY
    assert watcher.wait(3, stop), "something may have come meanwhile"
    assert log.named("watching") == [{"directories": 3}]


def test_notices_that_fail_later_are_a_reason_to_look_and_then_to_wait(told: Told, drops: Path):
    log = Events()
    watcher = watcher_of(told, drops, log=log)
    told.answers = [RuntimeError("limit reached (Error { kind: x })")]
    assert watcher.wait(3, Event()) and log.named("polling") == [{"reason": "limit reached"}]
    told.now = RETRY
    assert watcher.wait(3, StopAfter(0)) and [name for name, _ in log] == ["watching", "polling", "watching"]


def test_a_wait_ends_with_a_stop_and_with_a_second_signal(told: Told, drops: Path):
    watcher = watcher_of(told, drops)
    told.answers = ["stop"]
    assert not watcher.wait(3, Event())
    told.answers = ["signal"]
    with pytest.raises(KeyboardInterrupt):
        watcher.wait(3, Event())
    assert not Watcher().wait(3, StopAfter(0))


def test_too_many_directories_are_polled(told: Told, drops: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("mmqjp.service.loop.MOST_DIRECTORIES", 2)
    log = Events()
    watcher_of(told, drops, log=log)
    assert log == [("polling", {"reason": f"{drops} has more than 2 directories"})] and not told.watched


def test_the_system_tells_of_files_directories_and_commands(tmp_path: Path, drops: Path):
    """With the library itself. The waits are as short as those of the service, and end when something is told."""
    spool, log = Spool(tmp_path / "state"), Events()
    watcher = watch([Tail(drops)], [spool], log)
    assert [name for name, _ in log] == ["watching"]

    def is_told() -> bool:
        """Whether something is told, within a minute. What else is told at once is passed over."""
        found = any(watcher.wait(0.1, Event()) for _ in range(600))
        return found and not all(watcher.wait(0.1, Event()) for _ in range(600))

    def made_anew() -> None:
        shutil.rmtree(drops)
        drops.mkdir()

    (tmp_path / "a").write_text("<a/>")
    for change in (
        lambda: (tmp_path / "a").rename(drops / "sub" / "a.xml"),
        lambda: (drops / "a.jsonl").write_text("{}\n"),
        lambda: (drops / "new").mkdir(),
        lambda: (drops / "new" / "b.xml").write_text("<b/>"),
        made_anew,
        lambda: (drops / "c.xml").write_text("<c/>"),
        lambda: spool.submit("list", {}),
    ):
        change()
        assert is_told()
    watcher.close()


def test_names_may_be_of_any_bytes(drops: Path):
    log = Events()
    watcher = FileWatcher([WatchedPath(drops, Tail(drops).is_wanted)], log)
    Path(os.fsdecode(bytes(drops) + b"/\xff.xml")).touch()
    assert watcher.wait(60, Event())
    assert [name for name, _ in log] == ["watching"]


def test_file_systems_of_other_machines_are_known(tmp_path: Path):
    lines = ["1 0 8:1 / / rw - ext4 /dev/sda rw", r"7 1 0:3 / /my\040share rw shared:2 - nfs4 host:/x rw", "rubbish"]
    mounts = mounted_file_systems(lines)
    assert file_system_of(Path("/my share/a/b"), mounts) == "nfs4"
    assert file_system_of(Path("/my"), mounts) == "ext4" and file_system_of(Path("/my"), {}) == ""
