"""Sinks of a service over a store: what it commits reaches them, wherever it is killed; nothing that they are owed is
dropped; status and metrics tell how they are."""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from feeds.documents import Document
from mmqjp.commands.manage_queries import client
from mmqjp.engine import Session
from mmqjp.service.commands import CommandError, CommandQueue, run_offline
from mmqjp.service.spool import CommandResult, Spool
from mmqjp.service.status import Metrics, store_status
from mmqjp.sinks.definition import SinkDefinition, SinkTables, read_sink, read_tables
from mmqjp.sinks.manager import SinkManager
from mmqjp.sinks.sink import down
from mmqjp.tables.schema import CommitMetadata
from tests.support.fake_sinks import DAY, SECOND, START, Clock, Disk, Endpoint, Endpoints, FakeJobs, definition
from tests.support.faults import FaultySession, Injected, armed, fail
from tests.support.service import PAIRS, Directory, Events
from tests.support.stores import as_files

EVERY = "FROM S//a->x PUBLISH every"


def documents(*numbers: int) -> list[Document]:
    return [Document(f"d{number}", f"<a><k>{number % 3}</k></a>", time=START + number * SECOND) for number in numbers]


def opened_sinks(
    engine: Session, clock: Clock, endpoints: dict[str, Endpoint | Disk], definitions: Iterable[SinkDefinition]
) -> SinkManager:
    def read_live(name: str, table: Any) -> SinkDefinition:
        return read_sink(name, table, Path("/nowhere"))

    opener = Endpoints(endpoints).opened
    return SinkManager(engine, definitions, opener, FakeJobs(), Events(), read_live, now=clock, random=lambda: 0.0)


def process(engine: Session, sinks: SinkManager, found: list[Document]) -> None:
    notes = sinks.notes()
    outputs = engine.process(found, notes)
    sinks.noted(notes)
    sinks.committed(outputs)


def test_nothing_that_a_sink_is_owed_is_dropped(tmp_path: Path):
    clock, endpoint = Clock(), Endpoint()
    with Session("duckdb", state=tmp_path, now=clock, lateness=0) as engine:
        engine.subscribe(PAIRS.replace("INF", "10"))
        engine.subscribe(EVERY)
        sinks = opened_sinks(engine, clock, {"s": endpoint}, [definition("s", queries=["every"])])
        sinks.pause("s")
        for number in range(0, 300, 100):
            process(engine, sinks, documents(*range(number, number + 100)))
            clock.time += 100 * SECOND
        engine.prune(SECOND, owed=sinks.owed())
        kept = "SELECT seq FROM outputs WHERE query = 'every' ORDER BY seq"
        numbers = engine.sql(kept)["seq"].to_pylist()
        assert len(numbers) == 300
        sinks.resume("s")
        for _ in range(10):
            sinks.turn()
        assert [match.output.seq for message, _ in endpoint.got for match in message.matches] == numbers
        assert sinks.owed() is None
        engine.prune(SECOND, owed=None)
        assert len(engine.sql(kept)) < 10


def test_a_sink_that_was_not_defined_meanwhile_is_told_what_was_dropped(tmp_path: Path):
    clock, endpoint = Clock(), Endpoint()
    with Session("duckdb", state=tmp_path, now=clock, lateness=0) as engine:
        engine.subscribe(EVERY)
        of_file = [replace(definition("s"), file="mmqjp.toml")]
        sinks = opened_sinks(engine, clock, {"s": endpoint}, of_file)
        process(engine, sinks, documents(*range(10)))
        for _ in range(3):
            sinks.turn()
        sinks.reload([])
        process(engine, sinks, documents(*range(10, 200)))
        engine.prune(SECOND, owed=sinks.owed())
        sinks.reload(of_file)
        sinks.save()
        for _ in range(5):
            sinks.turn()
        (gap,) = engine.sql("SELECT first, last, count FROM gaps").to_pylist()
        got = [match.output.seq for message, _ in endpoint.got for match in message.matches]
        assert got == [*range(10), *range(gap["last"] + 1, 200)] and gap["first"] == 10


def test_gaps_that_follow_each_other_become_one_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("mmqjp.tables.schema.MOST_APART", 20)
    clock = Clock()
    with Session("duckdb", state=tmp_path, now=clock) as engine:
        engine.subscribe(EVERY)
        sinks = opened_sinks(engine, clock, {"s": Endpoint()}, [definition("s", backlog="1h")])
        sinks.pause("s")
        for number in range(25):
            process(engine, sinks, documents(number))
            clock.time += 2 * 3600 * SECOND
            sinks.turn()
        assert len(engine.sql("SELECT * FROM gaps")) > 20
        engine.prune(None, owed=sinks.owed())
        rows = engine.sql("SELECT first, last, count FROM gaps").to_pylist()
        assert rows == [{"first": 0, "last": rows[0]["last"], "count": rows[0]["last"] + 1}]
        clock.time += 9 * DAY
        process(engine, sinks, documents(1_000))
        engine.prune(DAY, owed=sinks.owed())
        assert not engine.sql("SELECT * FROM gaps WHERE last < 20").to_pylist()


def test_status_and_metrics_tell_how_sinks_are(tmp_path: Path):
    clock = Clock()
    with Session("duckdb", state=tmp_path, now=clock) as engine:
        engine.subscribe(EVERY)
        endpoints: dict[str, Endpoint | Disk] = {"good": Endpoint(), "bad": Endpoint(lambda message: down("HTTP 503"))}
        sinks = opened_sinks(engine, clock, endpoints, [definition("good"), definition("bad")])
        process(engine, sinks, documents(1, 2, 3))
        clock.time += 10 * SECOND
        for _ in range(3):
            sinks.turn()
        metrics = Metrics(Events(), now=clock)
        found = store_status(engine, sinks.list())
        metrics.update(found)
        metrics.update(found)
        shown = {sink["name"]: (sink["state"], sink["behind"], sink["reason"]) for sink in found.to_dict()["sinks"]}
        assert shown == {"good": ("running", 0, ""), "bad": ("waiting", 3, "HTTP 503")}
        text = generate_latest(metrics.registry).decode()
        for line in (
            'mmqjp_sink_behind{sink="bad"} 3.0', 'mmqjp_sink_behind{sink="good"} 0.0',
            'mmqjp_sink_behind_seconds{sink="bad"} 10.0', 'mmqjp_sink_behind_seconds{sink="good"} 0.0',
            'mmqjp_sink_delivered_total{sink="good"} 3.0', 'mmqjp_sink_failed_total{sink="bad"} 1.0',
            'mmqjp_sink_given_up_total{sink="bad"} 0.0',
        ):  # fmt: skip
            assert f"\n{line}\n" in text
        metrics.update(store_status(engine))
        assert 'sink="' not in generate_latest(metrics.registry).decode()


# ------------------------------------------------------------ commands

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


LOOKS = [("sinks", {}), ("sinks", {"name": "old"}), ("sinks-failed", {"name": "old"}), ("sinks-secrets", {})]


def test_looking_at_sinks_only_reads_and_needs_no_spark(place: Directory, tmp_path: Path):
    assert applied(place, "sinks-add", {"name": "old", "table": HOOK}).error is None
    with Session("duckdb", state=place.state) as opened:
        opened.commit_metadata(CommitMetadata(settings={"sink:other": ""}))  # so that it would begin
        before = opened.ledger.settings("sink")
    as_files(place.state, tmp_path / "files")
    for state in (place.state, tmp_path / "files"):
        asks = client(state, 5, run_sinks=partial(run_offline, state, partial(tables, place)))
        asks = replace(asks, open_store=fail)
        listed, shown, failed, secrets = [asks.ask(do, arguments) for do, arguments in LOOKS]
        assert [(row["name"], row["behind"]) for row in listed] == [("old", 0), ("other", 0)]
        assert shown["definition"] == HOOK and failed == {"undelivered": [], "gaps": []} and secrets == []
        with pytest.raises(CommandError, match="no sink is named none"):
            asks.ask("sinks", {"name": "none"})
    with Session("duckdb", state=place.state) as opened:
        assert opened.ledger.settings("sink") == before
