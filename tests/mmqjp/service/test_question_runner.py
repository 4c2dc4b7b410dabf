"""Questions beside a service: it goes on, they end when they must, and each is answered once."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from feeds.documents import Document
from join_stage.store.protocol import OutOfMemory, QuestionInterrupted
from mmqjp.engine import Session
from mmqjp.service.commands import Client, CommandQueue
from mmqjp.service.spool import Command, CommandResult, Spool
from mmqjp.service.sql_question import (
    ABANDONED,
    ENDING,
    GRACE,
    MAX_RUNNING,
    MEMORY_NEEDED,
    QUERY,
    QuestionRunner,
    RunningQuestion,
    answer_question,
)
from tests.support.cli import mmqjp
from tests.support.faults import FaultySession
from tests.support.service import PAIRS, Directory, Events, StopAfter, events_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ENDLESS = "SELECT count(*) AS n FROM range(1000000000000000000)"
CROSSED = "SELECT count(*) AS n FROM range(1000000) a, range(1000000) b, range(1000000) c"


class Clock:
    """A clock that stands until it is set."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Stubborn:
    """A question that ends when it is let, whoever interrupts it."""

    def __init__(self, heeds: bool) -> None:
        self.let, self.heeds, self.interrupted = Event(), heeds, 0

    def answer(self) -> pa.Table:
        self.let.wait(60)
        if self.interrupted and self.heeds:
            raise QuestionInterrupted("cut")
        return pa.table({"a": [1]})

    def interrupt(self) -> None:
        self.interrupted += 1
        if self.heeds:
            self.let.set()


def until(done: Callable[[], object], step: Callable[[], object]) -> None:
    """Steps until something is so, for as long as a starved machine may need."""
    for _ in range(60_000):
        if done():
            return
        step()
        Event().wait(0.01)
    raise AssertionError("it never came")


def test_a_question_is_ended_when_its_time_is_over():
    clock, question, found = Clock(), Stubborn(heeds=True), list[CommandResult]()
    asked = RunningQuestion(question, 5, found.append, clock)
    clock.now = 4.9
    assert not asked.look() and not question.interrupted
    clock.now = 5
    asked.look()
    assert asked.wait(60) and asked.look() and question.interrupted
    assert [answer.error for answer in found] == [
        "the question took more than 5 s: narrow it down, or give it more with --timeout"
    ]


def test_a_question_that_heeds_nothing_is_answered_once_and_left_to_itself():
    clock, question, found = Clock(), Stubborn(heeds=False), list[CommandResult]()
    asked = RunningQuestion(question, None, found.append, clock)
    asked.end("enough")
    asked.end("for another reason")
    clock.now = GRACE - 1
    assert not asked.look() and not found
    clock.now = GRACE
    assert asked.look() and [answer.error for answer in found] == ["enough"]
    question.let.set()
    asked._thread.join(60)
    assert len(found) == 1


def test_a_question_that_is_waited_for_goes_with_whoever_waits(place: Directory, monkeypatch: pytest.MonkeyPatch):
    with Session("duckdb", state=place.state) as engine:
        clock = Clock()
        assert answer_question(engine.question("SELECT 1 AS a, 2 AS a"), 30, clock) == CommandResult(
            {"columns": ["a", "a"], "rows": [[1, 2]]}
        )
        clock = Clock()
        monkeypatch.setattr(RunningQuestion, "look", lambda asked: (_ for _ in ()).throw(KeyboardInterrupt))
        monkeypatch.setattr("mmqjp.service.sql_question.POLL", 0.001)
        with pytest.raises(KeyboardInterrupt):
            answer_question(engine.question(CROSSED), 30, clock)
        assert engine.sql("SELECT 1 AS a")["a"].to_pylist() == [1]


def asking(
    place: Directory, engine: Session, events: Events, clock: Clock, most: float | None = None
) -> QuestionRunner:
    return QuestionRunner(engine, place.spool, events, most, clock)


@contextmanager
def ended(questions: QuestionRunner) -> Iterator[QuestionRunner]:
    """Ends what is still asked when a test fails: an endless question would take a core from all that follow."""
    try:
        yield questions
    finally:
        for asked in questions._running.values():
            asked.end("the test is over")


def test_the_service_goes_on_beside_a_question_which_ends_when_its_time_is_over(place: Directory):
    events, clock = Events(), Clock()
    with (
        Session("duckdb", state=place.state) as opened,
        ended(asking(place, opened, events, clock, most=40)) as questions,
    ):
        opened.subscribe(PAIRS)
        command = place.ask(QUERY, sql=ENDLESS, seconds=30)
        questions.step()
        place.drop("1.jsonl", range(3))
        service = place.service(opened, events)
        service._commands = CommandQueue(place.spool, skip=(QUERY,))
        service.run(None, StopAfter(10**9))
        assert opened.counters().documents == 3 and len(place.pairs()) == 3
        assert place.spool.take_result(command) is None
        second = place.ask(QUERY, sql="SELECT count(*) AS n FROM documents WHERE kind = 'external'")  # at the same time
        until(lambda: second.id not in {command.id for command in place.spool.waiting_of(QUERY)}, questions.step)
        assert place.answer(second).result == {"columns": ["n"], "rows": [[3]]}
        other = place.ask(QUERY, sql=ENDLESS, seconds=None)
        questions.step()
        for asked, least in ((command, 30), (other, 40)):  # which is the most of the service
            clock.now = least
            until(lambda asked=asked: asked.id not in questions._running, questions.step)  # type: ignore[misc]
            assert f"took more than {least} s" in str(place.answer(asked).error)
        assert not place.spool.waiting()
        opened.process([Document("later", "<a>v</a>", time=10)])
    assert {str(event["sql"]) for event in events.named("command")} >= {ENDLESS}


def test_a_question_goes_on_if_its_command_is_missed_once_and_ends_if_nobody_waits_for_it(
    place: Directory, monkeypatch: pytest.MonkeyPatch
):
    """A directory that changes while it is listed may give a file neither before nor after."""

    class Missing(Spool):
        def waiting_of(self, *kinds: str) -> list[Command]:
            return []

    events = Events()
    with Session("duckdb", state=place.state) as engine, ended(asking(place, engine, events, Clock())) as questions:
        place.spool.withdraw(place.ask(QUERY, sql=ENDLESS))
        questions.step()
        assert not questions._running
        command = place.ask(QUERY, sql=ENDLESS)
        questions.step()
        questions._spool = Missing(place.state)
        questions.step()
        assert questions._running[command.id]._ended_at is None
        monkeypatch.setattr(Missing, "is_waiting", lambda *_: False)
        questions.step()
        monkeypatch.undo()
        questions.step()
        questions.step()
        assert questions._running[command.id]._ended_at is None
        place.spool.withdraw(command)
        until(lambda: not questions._running, questions.step)
        assert place.answer(command).error == events.named("command")[-1]["error"] == ABANDONED


def test_so_many_are_answered_at_once_and_the_others_wait(place: Directory):
    with Session("duckdb", state=place.state) as engine:
        questions = asking(place, engine, Events(), Clock())
        commands = [place.ask(QUERY, sql=ENDLESS) for _ in range(MAX_RUNNING)]
        last = place.ask(QUERY, sql="SELECT 1 AS a")
        questions.step()
        assert set(questions._running) == {command.id for command in commands}
        for command in commands:
            place.spool.withdraw(command)
        until(lambda: last.id not in {command.id for command in place.spool.waiting_of(QUERY)}, questions.step)
        assert place.answer(last).result["rows"] == [[1]]


def test_questions_end_with_the_service(place: Directory):
    events = Events()
    with Session("duckdb", state=place.state) as engine:
        command = place.ask(QUERY, sql=ENDLESS, seconds=None)
        with QuestionRunner(engine, place.spool, events) as questions:
            until(lambda: questions._running, lambda: None)
        assert place.answer(command).error == ENDING
        assert engine.sql("SELECT 1 AS a").num_rows == 1


def test_rubbish_among_questions_is_told(place: Directory):
    events = Events()
    with Session("duckdb", state=place.state) as engine:
        questions = asking(place, engine, events, Clock())
        for arguments in ({}, {"sql": 1}, {"sql": "SELECT 1", "seconds": "long"}):
            command = place.ask(QUERY, **arguments)
            until(lambda asked=command: not place.spool.waiting_of(QUERY), questions.step)  # type: ignore[misc]
            assert place.answer(command).error
        (place.state / "spool" / "commands" / "1-x.json").write_text("rubbish")
        questions.step()


def test_a_batch_that_runs_out_of_memory_goes_before_a_question(place: Directory):
    place.drop("1.jsonl", range(3))
    with FaultySession("duckdb", state=place.state) as engine:
        engine.subscribe(PAIRS)
        questions = asking(place, engine, Events(), Clock())
        command = place.ask(QUERY, sql=ENDLESS)
        questions.step()
        join, tried = engine.store.join, list[int]()

        def short_of_memory(*arguments: Any) -> Any:
            tried.append(len(questions._running) and not next(iter(questions._running.values()))._done.is_set())
            if len(tried) == 1:
                raise OutOfMemory("a batch needs more memory than 2GB")
            return join(*arguments)

        service = place.service(engine, free_memory=questions.free_memory)
        service._commands = CommandQueue(place.spool, skip=(QUERY,))
        with engine.store.instead(join=short_of_memory):
            service.run(None, StopAfter(10**9))
            assert tried == [True, False] and len(place.pairs()) == 3
            assert place.answer(command).error == MEMORY_NEEDED
            questions.step()
            tried.clear()
            place.drop("2.jsonl", range(3, 5))
            with pytest.raises(OutOfMemory):  # nobody asks: the batch is too large for the store
                service.run(None, StopAfter(10**9))
    place.run()
    assert len(place.pairs()) == 10


def test_a_question_that_needs_too_much_memory_is_refused_and_the_store_goes_on(place: Directory):
    with Session("duckdb", state=place.state) as engine:
        engine.subscribe(PAIRS)
        with pytest.raises(ValueError, match="more memory than there is"):
            engine.sql(f"SELECT length(string_agg(range || '{'x' * 50_000}', '')) FROM range(1000000)")
        engine.process([Document(f"d{n}", "<a>v</a>", time=n) for n in range(2)])
        assert engine.counters().outputs == 1


def test_a_stop_is_obeyed_while_an_endless_question_is_answered(place: Directory):
    place.drop("1.jsonl", range(3))
    with place.start() as process:
        next(events_of(process, "batch"))
        asked = place.ask(QUERY, sql=ENDLESS, seconds=None)
        client = Client(place.state, lambda: Session("duckdb"), 120)
        quick = client.ask(QUERY, {"sql": "SELECT count(*) FROM documents"})
        assert quick["rows"] == [[3]]  # which was asked later: the other is being answered
        process.send_signal(signal.SIGTERM)
        assert next(events_of(process, "stopped"))
    assert process.returncode == 0
    assert place.answer(asked).error == ENDING


def test_the_command_has_limits(place: Directory):
    Session("duckdb", state=place.state).close()
    state: tuple[Any, ...] = ("--state", place.state)
    rows = mmqjp("query", "SELECT * FROM range(3)", *state, "--most-rows", "2")
    assert rows.exit_code == 1 and rows.stderr == (
        "mmqjp: error: the answer has more than 2 rows: narrow it down, or raise --most-rows\n"
    )
    size = mmqjp("query", f"SELECT '{'x' * 2000}' FROM range(3)", *state, "--most-bytes", "1000")
    assert size.exit_code == 1 and "more than 1,000 bytes" in size.stderr
    late = mmqjp("query", CROSSED, *state, "--timeout", "10ms")
    assert late.exit_code == 1 and "took more than 0.01 s" in late.stderr and late.stderr.count("\n") == 1
    assert mmqjp("query", "SELECT 1 AS a", *state, "--timeout", "INF").stdout == '{"a": 1}\n'
    refused = mmqjp("query", "WITH x AS (DELETE FROM outputs RETURNING *) SELECT * FROM x", *state)
    assert refused.exit_code == 1 and refused.stderr == "mmqjp: error: the tables are only read: write a SELECT\n"


def test_a_client_that_gives_up_takes_its_question_back(place: Directory):
    clock = iter(range(10**9))
    with Session("duckdb", state=place.state) as engine:
        client = Client(place.state, lambda: engine, 3, lambda: float(next(clock)), lambda seconds: None)
        with pytest.raises(RuntimeError, match="ask again later"):
            client.ask(QUERY, {"sql": ENDLESS})
        assert place.spool.is_empty()


def test_spark_cancels_the_jobs_of_a_question(place: Directory, spark: SparkSession):
    with Session(spark, state=place.state) as engine:
        found: list[CommandResult] = []
        asked = RunningQuestion(engine.question(ENDLESS), None, found.append)
        tracker = spark.sparkContext.statusTracker()
        until(tracker.getActiveJobsIds, lambda: None)
        asked.end("enough")
        until(lambda: asked.wait(0), asked.look)
        assert found == [CommandResult(error="enough")]
        until(lambda: not tracker.getActiveJobsIds(), lambda: None)
        executors = spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos
        until(lambda: not sum(executor.numRunningTasks() for executor in executors()), lambda: None)
        assert engine.sql("SELECT 1 AS a").num_rows == 1
