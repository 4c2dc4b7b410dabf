"""Commands about sinks to a store that is killed: each change is made once, and answered as it was made. What changes
nothing only reads."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mmqjp.commands.manage_queries import client
from mmqjp.engine import Session
from mmqjp.service.commands import CommandError, CommandQueue, run_offline
from mmqjp.service.spool import CommandResult, Spool
from mmqjp.sinks.definition import SinkTables, read_tables
from mmqjp.tables.schema import CommitMetadata
from tests.support.faults import FaultySession, Injected, armed, fail
from tests.support.service import Directory, Events

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOOK = {"kind": "webhook", "url": "https://example.org/hook"}
OTHER = {"sinks": {"other": HOOK}}

CHANGES: list[tuple[str, dict[str, Any], Any]] = [
    ("sinks-add", {"name": "new", "table": HOOK}, "new"),
    ("sinks-set", {"name": "old", "table": {"wait": "5s"}}, "old"),
    ("sinks-pause", {"name": "old"}, "old"),
    ("sinks-resume", {"name": "old"}, "old"),
    ("sinks-replay", {"name": "old", "from": "start"}, "old"),
    ("sinks-remove", {"name": "old"}, "old"),
    ("sinks-reload", {}, ["other"]),
]
"""A command of each kind that changes sinks, over a store with the sink "old", and its result."""


@pytest.fixture
def place(tmp_path: Path) -> Directory:
    return Directory(tmp_path)


def tables(place: Directory) -> SinkTables:
    return read_tables(OTHER, place.path / "mmqjp.toml")


def queue(place: Directory) -> CommandQueue:
    return CommandQueue(place.spool, run_sinks=partial(run_offline, place.state, partial(tables, place)))


def applied(place: Directory, do: str, arguments: dict[str, Any], engine: Any = "duckdb") -> CommandResult:
    command = place.ask(do, **arguments)
    with Session(engine, state=place.state) as opened:
        queue(place).apply(opened, Events())
    return place.answer(command)


def settings(place: Directory) -> dict[str, str]:
    with Session("duckdb", state=place.state) as opened:
        return opened.settings("sink")


@pytest.mark.parametrize(("do", "arguments", "result"), CHANGES, ids=[do for do, *_ in CHANGES])
def test_a_change_that_was_made_before_a_kill_is_not_made_again(
    place: Directory, do: str, arguments: dict[str, Any], result: Any
):
    assert applied(place, "sinks-add", {"name": "old", "table": HOOK}).error is None
    command = place.ask(do, **arguments)
    with (
        Session("duckdb", state=place.state) as opened,
        armed((Spool, "answer"), fail),  # between the change and its answer
        pytest.raises(Injected),
    ):
        queue(place).apply(opened, Events())
    made = settings(place)
    with FaultySession("duckdb", state=place.state) as again, again.store.failing("commit"):
        queue(place).apply(again, Events())
    assert place.answer(command) == CommandResult(result)
    assert settings(place) == made


@pytest.mark.parametrize(("do", "arguments", "result"), CHANGES, ids=[do for do, *_ in CHANGES])
def test_a_change_that_was_not_committed_before_a_kill_is_made_later(
    place: Directory, do: str, arguments: dict[str, Any], result: Any
):
    assert applied(place, "sinks-add", {"name": "old", "table": HOOK}).error is None
    command = place.ask(do, **arguments)
    before = settings(place)
    with (
        FaultySession("duckdb", state=place.state) as opened,
        opened.store.failing("commit"),
        pytest.raises(Injected),
    ):
        queue(place).apply(opened, Events())
    assert settings(place) == before
    with Session("duckdb", state=place.state) as again:
        queue(place).apply(again, Events())
    assert place.answer(command) == CommandResult(result)


LOOKS = [("sinks", {}), ("sinks", {"name": "old"}), ("sinks-failed", {"name": "old"}), ("sinks-secrets", {})]


def assert_that_looking_only_reads(place: Directory) -> None:
    run_sinks = partial(run_offline, place.state, partial(tables, place))
    asks = replace(client(place.state, 5, run_sinks=run_sinks), open_store=fail)
    listed, shown, failed, secrets = [asks.ask(do, arguments) for do, arguments in LOOKS]
    assert [(row["name"], row["behind"]) for row in listed] == [("old", 0), ("other", 0)]
    assert shown["definition"] == HOOK and failed == {"undelivered": [], "gaps": []} and secrets == []
    with pytest.raises(CommandError, match="no sink is named none"):
        asks.ask("sinks", {"name": "none"})


def test_looking_at_sinks_only_reads(place: Directory):
    applied(place, "sinks-add", {"name": "old", "table": HOOK})
    with Session("duckdb", state=place.state) as opened:
        opened.commit_metadata(CommitMetadata(settings={"sink:other": ""}))  # so that it would begin
    before = settings(place)
    assert_that_looking_only_reads(place)
    assert settings(place) == before


def test_looking_at_sinks_of_a_spark_store_needs_no_spark(place: Directory, spark: SparkSession):
    assert applied(place, "sinks-add", {"name": "old", "table": HOOK}, spark).error is None
    assert_that_looking_only_reads(place)
