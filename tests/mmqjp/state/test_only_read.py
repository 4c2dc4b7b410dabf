"""A state that one may only read can be looked at, and who looks is in nobody's way."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

import duckdb
import pytest

from feeds.documents import Document
from join_stage.store.protocol import Outdated, StoreError
from mmqjp.engine import Session
from mmqjp.service.commands import Client, CommandQueue
from mmqjp.state.choice import OWNER_FILE, InUse, Ownership, ReadLock, is_held
from tests.processes import nursery
from tests.support.cli import mmqjp
from tests.support.service import PAIRS, Directory, Events
from tests.support.unprivileged import command_as_nobody, give_to_all, open_directory, take_back


@pytest.fixture
def state() -> Iterator[Path]:
    with open_directory() as directory:
        with Session("duckdb", state=directory / "state") as opened:
            opened.subscribe(PAIRS)
            opened.process([Document(f"d{n}", "<a>v</a>", time=n) for n in range(3)])
        yield directory / "state"


def contents(state: Path) -> dict[str, bytes]:
    return {str(path.relative_to(state)): path.read_bytes() for path in state.rglob("*") if path.is_file()}


LOOKS: list[tuple[list[str], str]] = [
    (["list", "--json"], '"name": "pairs"'),
    (["list", "pairs"], "pairs: active, since"),
    (["status", "--json"], '"outputs": 3'),
    (["query", "SELECT count(*) AS n FROM outputs"], '{"n": 3}\n'),
    (["explain", "q.xscl"], "pairs"),
]


def test_a_state_that_one_may_only_read_is_looked_at(state: Path):
    (state.parent / "q.xscl").write_text(PAIRS)
    give_to_all(state)
    before = contents(state)
    with chdir(state.parent):
        for arguments, told in LOOKS:
            result = command_as_nobody(*arguments, "--state", state)
            assert result.returncode == 0 and told in result.stdout, result.stderr
    assert contents(state) == before
    changing = command_as_nobody("pause", "pairs", "--state", state)
    assert changing.returncode == 1 and changing.stderr.count("\n") == 1 and "ermission denied" in changing.stderr


def process_and_end(state: Path) -> None:
    Session("duckdb", state=state).process([Document("d3", "<a>v</a>", time=3)])  # which is not closed


def test_what_a_killed_process_left_in_the_log_is_seen_too(state: Path):
    assert nursery.run(process_and_end, state).returncode == 0
    assert (state / "mmqjp.duckdb.wal").stat().st_size
    give_to_all(state)
    result = command_as_nobody("query", "SELECT count(*) AS n FROM outputs", "--state", state)
    assert result.stdout == '{"n": 6}\n', result.stderr
    assert (state / "mmqjp.duckdb.wal").stat().st_size
    take_back(state)
    assert mmqjp("query", "SELECT count(*) AS n FROM outputs", "--state", state).stdout == '{"n": 6}\n'


def test_an_engine_that_only_reads_changes_nothing(state: Path):
    before = contents(state)
    with Session("duckdb", state=state, read_only=True) as engine, Session("duckdb", state=state, read_only=True):
        assert list(engine.queries()) == ["pairs"] and engine.state_bytes()
        assert [output.documents for output in engine.outputs()] == [
            ("d0", "d1"), ("d0", "d2"), ("d1", "d2")
        ]  # fmt: skip
        for change in (
            lambda: engine.process([Document("d9", "<a/>")]),
            lambda: engine.pause("pairs"),
            lambda: engine.subscribe("S/b PUBLISH b"),
        ):
            with pytest.raises(StoreError, match="read only"):
                change()
    assert contents(state) == before
    with pytest.raises(StoreError, match="holds no store"):
        Session("duckdb", state=state.parent, read_only=True)
    with pytest.raises(ValueError, match="name one"):
        Session("duckdb", read_only=True)


@pytest.mark.parametrize("lack", ["DROP TABLE offsets", "UPDATE settings SET value = '2' WHERE key = 'schema_version'"])
def test_a_store_of_an_older_format_is_brought_up_to_date_by_who_may_and_told_to_others(state: Path, lack: str):
    with duckdb.connect(str(state / "mmqjp.duckdb")) as connection:
        connection.execute(lack)
    with pytest.raises(Outdated, match="older format"):
        Session("duckdb", state=state, read_only=True)
    give_to_all(state)
    result = command_as_nobody("list", "--state", state)
    assert result.returncode == 1 and "older format" in result.stderr and result.stderr.count("\n") == 1
    take_back(state)
    assert "pairs" in mmqjp("list", "--state", state).stdout
    Session("duckdb", state=state, read_only=True).close()


def test_a_service_that_starts_waits_for_those_who_look(state: Path):
    first, second = ReadLock(state), ReadLock(state)
    waited: list[float] = []

    def leave(seconds: float) -> None:
        waited.append(seconds)
        (first if len(waited) == 1 else second).release()

    held = Ownership(state, sleep=leave)
    assert len(waited) == 2 and is_held(state)
    with pytest.raises(InUse, match=f"process {os.getpid()}"):
        ReadLock(state)
    with pytest.raises(InUse, match=f"process {os.getpid()}"):
        Ownership(state, sleep=leave)
    assert len(waited) == 2  # who holds it is not waited for
    held.release()
    looks = ReadLock(state)
    with pytest.raises(InUse, match="read by others"):
        Ownership(state, timeout=1, sleep=lambda seconds: None)
    assert not is_held(state)  # who asks whether it is held is in nobody's way either
    looks.release()
    Ownership(state).release()


def test_a_question_goes_to_the_service_that_starts_meanwhile(state: Path):
    place = Directory(state.parent)
    service: list[Session] = []

    def look() -> Session:
        service.append(Session("duckdb", state=state))
        return Session("duckdb", state=state, read_only=True)

    def answer(seconds: float) -> None:
        CommandQueue(place.spool).apply(service[0], Events())

    client = Client(state, lambda: Session("duckdb", state=state), 600, sleep=answer, open_read_only=look)
    assert [row["name"] for row in client.ask("list", {})] == ["pairs"]
    service[0].close()


def test_what_was_asked_for_before_is_done_before_a_look(state: Path):
    place = Directory(state.parent)
    place.ask("pause", name="pairs")
    assert json.loads(mmqjp("list", "--state", state, "--json").stdout)["paused"] == "asked to"


def test_a_state_without_the_name_of_a_holder_is_looked_at(state: Path):
    (state / OWNER_FILE).unlink()
    ReadLock(state).release()
    assert not is_held(state) and not (state / OWNER_FILE).exists()
