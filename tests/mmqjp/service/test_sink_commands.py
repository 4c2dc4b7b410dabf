"""Commands about sinks to a store that is killed: each change is made once, and answered as it was made. What changes
nothing only reads."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mmqjp.commands.manage_queries import client
from mmqjp.engine import Session
from mmqjp.service.commands import CommandError, CommandQueue, run_offline
from mmqjp.service.spool import CommandResult, Spool
from mmqjp.sinks.definition import SinkTables, read_tables
from mmqjp.tables.schema import CommitMetadata
from tests.support.faults import FaultySession, Injected, armed, fail
from tests.support.service import Directory, Events
from tests.support.stores import as_files

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
"""A command of each kind that changes sinks, in a store with the sink "old", and its result."""


@pytest.fixture
def place(tmp_path: Path) -> Directory:
    return Directory(tmp_path)


def tables(place: Directory) -> SinkTables:
    return read_tables(OTHER, place.path / "mmqjp.toml")


def queue(place: Directory) -> CommandQueue:
    return CommandQueue(place.spool, run_sinks=partial(run_offline, place.state, partial(tables, place)))


def applied(place: Directory, do: str, arguments: dict[str, Any]) -> CommandResult:
    command = place.ask(do, **arguments)
    with Session("duckdb", state=place.state) as opened:
        queue(place).apply(opened, Events())
    return place.answer(command)


def settings(place: Directory) -> dict[str, str]:
    with Session("duckdb", state=place.state) as opened:
        return opened.settings("sink")


def test_each_change_is_made_once_whatever_is_killed(place: Directory):
    """Each process but the last finds a change that is not committed, or is not answered, or the next one."""
    assert applied(place, "sinks-add", {"name": "old", "table": HOOK}).error is None
    for do, arguments, result in CHANGES:
        command = place.ask(do, **arguments)
        with FaultySession("duckdb", state=place.state) as opened:
            before = opened.settings("sink")
            with opened.store.failing("commit"), pytest.raises(Injected):
                queue(place).apply(opened, Events())
        with Session("duckdb", state=place.state) as opened:
            assert opened.settings("sink") == before, do
            with armed((Spool, "answer"), fail), pytest.raises(Injected):  # between the change and its answer
                queue(place).apply(opened, Events())
        with FaultySession("duckdb", state=place.state) as opened:
            made = opened.settings("sink")
            with opened.store.failing("commit"):
                queue(place).apply(opened, Events())
            assert place.answer(command) == CommandResult(result), do
            assert opened.settings("sink") == made, do


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


def test_looking_at_sinks_of_a_spark_store_needs_no_spark(place: Directory, tmp_path: Path):
    on_duckdb = Directory(tmp_path / "duckdb")
    assert applied(on_duckdb, "sinks-add", {"name": "old", "table": HOOK}).error is None
    as_files(on_duckdb.state, place.state)
    assert_that_looking_only_reads(place)
