"""Commands to a store that is held or not: each is done once, whoever is killed meanwhile, and answered."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import Mock

import pytest

from join_stage.store.protocol import StoreError
from mmqjp.engine import Session
from mmqjp.service import spool as spool_module
from mmqjp.service.commands import RESULT_RETENTION, Client, CommandError, CommandQueue, NoAnswer, run_command
from mmqjp.service.spool import Command, CommandResult, Spool
from mmqjp.state.choice import stored_engine
from tests.support.cli import mmqjp
from tests.support.faults import FaultySession, Injected, armed, fail
from tests.support.service import PAIRS, Directory, Events, StopAfter

ALL: dict[str, Any] = {"text": "S/a PUBLISH all_a", "add": False, "backfill": False}


def client(place: Directory, wait: float = 30.0, sleep: Callable[[float], object] = lambda seconds: None) -> Client:
    times: Iterator[int] = iter(range(10**9))
    return Client(place.state, lambda: Session("duckdb", state=place.state), wait, lambda: float(next(times)), sleep)


def test_a_running_service_does_commands_between_batches_in_order(place: Directory):
    events = Events()
    place.drop("1.jsonl", range(4))
    with Session("duckdb", state=place.state) as engine:
        engine.subscribe(PAIRS)
        asked = [
            place.ask("subscribe", **ALL),
            place.ask("pause", name="all_a"),
            place.ask("list"),
            place.ask("pause", name="none"),
            place.ask("show", name="none"),
            place.ask("dance"),
            place.ask("subscribe", **ALL | {"text": "S/"}),
        ]
        place.service(engine, events).run(None, StopAfter(10**9))
        answers = [place.answer(command) for command in asked]
        assert answers[:2] == [CommandResult(["all_a"]), CommandResult(["all_a"])]
        assert [(row["name"], row["paused"]) for row in answers[2].result] == [("pairs", None), ("all_a", "asked to")]
        assert answers[3] == answers[4] == CommandResult(error="no query is named 'none'")
        assert answers[5].error == "unknown command 'dance'"
        assert answers[6].error is not None and "error" in answers[6].error
    assert [event["do"] for event in events.named("command")] == [command.do for command in asked]
    assert len(place.pairs()) == 6


@pytest.mark.parametrize("point", ["answer", "_write"])
def test_a_command_that_was_done_before_a_kill_is_not_done_again(
    place: Directory, point: str, monkeypatch: pytest.MonkeyPatch
):
    command = place.ask("subscribe", **ALL | {"add": True})
    with Session("duckdb", state=place.state) as engine:
        broken: object = Spool if point == "answer" else spool_module
        with armed((broken, point), fail), pytest.raises(Injected):
            CommandQueue(place.spool).apply(engine, Events())
        assert len(engine.queries()["all_a"]) == 1
    for _ in range(2):  # killed between the answer and the command's end, too
        with Session("duckdb", state=place.state) as engine:
            CommandQueue(place.spool).apply(engine, Events())
            assert len(engine.queries()["all_a"]) == 1
        assert place.answer(command) == CommandResult(["all_a"])
        (place.state / "spool" / "commands" / f"{command.id}.json").write_text(
            json.dumps({"do": "subscribe", "arguments": ALL | {"add": True}})
        )


def test_a_change_that_fails_in_the_store_ends_the_service_and_is_done_later(place: Directory):
    command = place.ask("subscribe", **ALL)
    with FaultySession("duckdb", state=place.state) as engine:
        with engine.store.failing("commit"), pytest.raises(Injected):
            CommandQueue(place.spool).apply(engine, Events())
        assert CommandQueue(place.spool).apply(engine, Events()) == 1
    assert place.answer(command) == CommandResult(["all_a"])


def test_a_command_without_its_arguments_is_answered(place: Directory):
    asked = [place.ask(do, other=1) for do in ("subscribe", "unsubscribe", "pause", "resume", "show")]
    with Session("duckdb", state=place.state) as engine:
        CommandQueue(place.spool).apply(engine, Events())
    assert all((place.answer(command).error or "").startswith("the command lacks its ") for command in asked)


def test_a_fault_of_ours_is_no_mistake_of_who_asks(place: Directory, monkeypatch: pytest.MonkeyPatch):
    place.ask("subscribe", **ALL)
    with Session("duckdb", state=place.state) as engine:
        for fault in (ValueError, KeyError, TypeError):
            monkeypatch.setattr(engine.registry, "add", Mock(side_effect=fault))
            with pytest.raises(fault):
                CommandQueue(place.spool).apply(engine, Events())


def test_a_free_store_is_opened_and_all_that_waits_is_done(place: Directory):
    earlier = place.ask("subscribe", **ALL)
    assert client(place).ask("pause", {"name": "all_a"}) == ["all_a"]
    assert place.answer(earlier) == CommandResult(["all_a"])
    assert [row["paused"] for row in client(place).ask("show", {"name": "all_a"})] == ["asked to"]
    with pytest.raises(CommandError, match="no query is named 'none'"):
        client(place).ask("unsubscribe", {"name": "none"})


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


def test_what_nobody_can_open_is_told_and_not_kept(place: Directory):
    def fail() -> Session:
        raise StoreError("broken")

    with pytest.raises(StoreError, match="broken"):
        Client(place.state, fail, 5).ask("subscribe", ALL)
    assert not place.spool.waiting()


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


def test_questions_in_sql_are_answered_in_columns_and_rows(place: Directory):
    with Session("duckdb", state=place.state) as engine:
        engine.subscribe(PAIRS)

        def ask(sql: str) -> CommandResult:
            return run_command(engine, Command("1", "query", {"sql": sql}))

        assert ask("SELECT name, 'x'::BLOB AS raw FROM queries").result["columns"] == ["name", "raw"]
        assert "raw" in ask("SELECT 'x'::BLOB AS raw").to_json()
        assert "nothing" in str(ask("SELECT * FROM nothing").error)
        assert engine.process([]) == []  # the store works as before


def test_the_commands_as_a_user_calls_them(place: Directory):
    queries = place.path / "q.xscl"
    queries.write_text(f"{PAIRS}; S/a->x PUBLISH a_long_one;")
    state: tuple[Any, ...] = ("--state", place.state)
    missing = mmqjp("list", *state)
    assert missing.exit_code == 1 and "there is no store in" in missing.stderr
    assert mmqjp("subscribe", queries, *state, "--engine", "duckdb").stdout == (
        "pairs: subscribed\na_long_one: subscribed\n"
    )
    assert stored_engine(place.state) == "duckdb"
    place.drop("1.jsonl", range(3))
    place.run()
    assert mmqjp("pause", "pairs", *state).stdout == "pairs: paused\n"
    assert "paused: asked to" in mmqjp("list", *state).stdout
    shown = mmqjp("list", "pairs", *state).stdout
    assert shown.startswith("pairs: paused: asked to, since 20") and "FOLLOWED BY" in shown
    assert json.loads(mmqjp("list", "pairs", *state, "--json").stdout)["sees_documents_after"] == -1
    assert mmqjp("resume", "pairs", *state).stdout == "pairs: resumed\n"
    assert mmqjp("unsubscribe", "a_long_one", *state).stdout == "a_long_one: removed\n"
    assert [json.loads(line)["name"] for line in mmqjp("list", *state, "--json").stdout.splitlines()] == ["pairs"]
    sql = "SELECT query, count(*) AS n FROM outputs GROUP BY query ORDER BY query"
    assert mmqjp("query", sql, *state).stdout == '{"query": "a_long_one", "n": 3}\n{"query": "pairs", "n": 3}\n'
    refused = mmqjp("query", "DROP TABLE outputs", *state)
    assert refused.exit_code == 1 and refused.stderr == "mmqjp: error: the tables are only read: write a SELECT\n"
    with Session("duckdb", state=place.state):
        busy = mmqjp("list", *state, "--wait", "0")
    assert busy.exit_code == 1 and "no answer within 0 s" in busy.stderr


def test_mistakes_in_a_file_are_shown_where_they_stand(place: Directory):
    queries = place.path / "q.xscl"
    queries.write_text("S/")
    result = mmqjp("subscribe", queries, "--state", place.state, "--engine", "duckdb")
    assert result.exit_code == 1 and result.stderr.startswith(f"{queries}:1:") and not place.state.exists()
