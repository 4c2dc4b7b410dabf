"""Strangers' SQL in a process of its own: what it does there reaches nobody else, and it sees what is committed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread, Timer
from typing import Any

import pyarrow as pa
import pytest

from common import child
from common.arrays import packed
from feeds.documents import Document
from join_stage.store.protocol import Bounds, Question, QuestionInterrupted, QuestionRefused, StoreError
from mmqjp.engine import Session
from mmqjp.state import sql_worker
from mmqjp.state.sql_worker import ParquetSource, SqlWorkers
from tests.generate.hostile_sql import KINDS, hostile_statement
from tests.generate.seeds import at_length, seeds
from tests.mmqjp.service.test_questions import BOTH, DUCKDB_READS, ENDLESS, Place, until
from tests.processes import nursery
from tests.support.service import PAIRS
from tests.support.stores import as_files

BOUNDS = Bounds(1_000, 1 << 20)
COUNT = "SELECT count(*) AS n FROM documents"
CRASH = """SELECT json_contains(replace(string_agg('x', ''), 'x', '[') || replace(string_agg('x', ''), 'x', ']'), '1')
FROM range(300000)"""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with Place(tmp_path_factory.mktemp("duckdb"), "duckdb").engine as engine:
        yield engine


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlWorkers]:
    """Those of a store of files, as Spark's are."""
    place = Place(tmp_path_factory.mktemp("files"), "duckdb")
    place.engine.close()
    as_files(place.state, place.path / "files")
    workers = SqlWorkers(ParquetSource(place.path / "files"))
    yield workers
    workers.close()


def document(number: int) -> Document:
    return Document(f"new {number}", "<a>v</a>", time=number)


def the_only(table: pa.Table) -> object:
    ((value,),) = (row.values() for row in table.to_pylist())
    return value


def workers_of(engine: Session) -> SqlWorkers:
    engine.confined_question("SELECT 1 AS a", BOUNDS).answer()
    assert engine._workers is not None
    return engine._workers


def test_answers_are_those_of_the_engine(engine: Session, files: SqlWorkers):
    filled = [(sql.format(), rows) for sql, rows in BOTH + DUCKDB_READS]
    for sql, _ in filled:
        found = engine.confined_question(sql).answer()
        assert (found.column_names, len(found)) == ((own := engine.question(sql).answer()).column_names, len(own)), sql
    for sql, _ in BOTH:
        assert len(files.question(sql, BOUNDS).answer()) == len(engine.question(sql).answer()), sql


def test_each_question_sees_what_is_committed_and_no_more(tmp_path: Path):
    with Session("duckdb", state=tmp_path) as engine:
        engine.subscribe(PAIRS)
        for number in range(4):
            engine.process([document(number)])
            if number % 4 == 1:
                engine._store._connection.execute("CHECKPOINT")  # type: ignore[attr-defined]
            engine._store.begin()
            assert the_only(engine.confined_question(COUNT, BOUNDS).answer()) == number + 1
            engine._store.rollback()


def test_an_answer_that_a_checkpoint_may_have_spoilt_is_asked_again(engine: Session, monkeypatch: pytest.MonkeyPatch):
    workers, asked = workers_of(engine), list[object]()
    ask = sql_worker._Worker.ask

    def checkpointed(
        worker: sql_worker._Worker, snapshot: sql_worker.StoreVersion, sql: str, bounds: Bounds
    ) -> pa.Table:
        found = ask(worker, snapshot, sql, bounds)
        asked.append(snapshot.mark)
        if len(asked) < most:
            engine.process([document(len(asked) + 1_000 * most)])
            engine._store._connection.execute("CHECKPOINT")  # type: ignore[attr-defined]
            if len(asked) == 1:
                raise StoreError("it read what is not there any more")
        return found

    monkeypatch.setattr(sql_worker._Worker, "ask", checkpointed)
    for most in (3, 100):
        asked.clear()
        question = workers.question(COUNT, BOUNDS)
        if most == 3:
            assert the_only(question.answer()) == the_only(engine.question(COUNT).answer()) and len(set(asked)) == 3
        else:
            with pytest.raises(StoreError, match="changes faster than the question is answered"):
                question.answer()


def test_checkpoints_wait_for_questions(engine: Session):
    store, thresholds = engine._store, list[object]()

    def note() -> None:
        thresholds.append(the_only(store.select("SELECT current_setting('checkpoint_threshold') AS a")))

    note()
    with store.checkpoints_held():  # type: ignore[attr-defined]
        with store.checkpoints_held():  # type: ignore[attr-defined]
            note()
        note()
    note()
    before, *held, after = thresholds
    assert before == after and held[0] == held[1] != before


def test_what_ends_the_process_is_told_and_reaches_nobody_else(engine: Session, files: SqlWorkers):
    for workers in (workers_of(engine), files)[: 2 if at_length() else 1]:
        before = workers.question(COUNT, BOUNDS).answer()
        beside = workers.question(ENDLESS, BOUNDS)
        ended = list[BaseException]()

        def ask(beside: Question = beside, ended: list[BaseException] = ended) -> None:
            try:
                beside.answer()
            except QuestionInterrupted as error:
                ended.append(error)

        thread = Thread(target=ask)
        thread.start()
        with pytest.raises(QuestionRefused, match=r"ended the process that answers questions \(signal SIG"):
            workers.question(CRASH, BOUNDS).answer()
        assert workers.question(COUNT, BOUNDS).answer() == before
        assert thread.is_alive()
        while not ended:
            beside.interrupt()
            thread.join(0.05)
        thread.join()
        interrupted = workers.question("SELECT 1 AS a", BOUNDS)
        interrupted.interrupt()
        with pytest.raises(QuestionInterrupted):
            interrupted.answer()


def test_memory_is_bounded(engine: Session):
    sql = "SELECT length(list_distinct(list(range))) FROM range(1000000000)"
    with pytest.raises(QuestionRefused, match=r"memory|ended the process"):
        engine.confined_question(sql, BOUNDS).answer()


def test_the_process_has_no_secrets_no_network_and_no_file_of_others(
    engine: Session, files: SqlWorkers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SECRET", "hush")
    secret = tmp_path / "secret.txt"
    secret.write_text("hush")
    for workers in (SqlWorkers(workers_of(engine)._source), SqlWorkers(files._source)):
        workers.question("SELECT 1 AS a", BOUNDS).answer()
        process = Path(f"/proc/{workers._idle[0]._process.pid}")
        if process.exists():
            assert b"hush" not in (process / "environ").read_bytes()
            assert "Max core file size        0 " in (process / "limits").read_text()
            status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
            assert int(status["VmPeak"].split()[0]) << 10 <= sql_worker.ADDRESS_SPACE
        with pytest.raises(QuestionRefused, match="is not answered"):
            workers.question(f"SELECT * FROM read_text('{secret}')", BOUNDS).answer()
        workers.close()
        with pytest.raises(QuestionInterrupted):
            workers.question("SELECT 1 AS a", BOUNDS).answer()


def test_the_list_of_functions_is_not_all_that_keeps_files_out(engine: Session, tmp_path: Path):
    """The judge is left out, as if it had a hole: DuckDB and the system refuse."""
    secret = tmp_path / "secret.txt"
    secret.write_text("hush")
    can_leave_files = nursery.run(leave_files).returncode == 0  # whether this system can keep a process from files
    script = f"""
import os, sys
from pathlib import Path
from common import child
from join_stage.store import duckdb as judge
from mmqjp.state import sql_worker
judge.check_question = lambda *_: None
serve = sql_worker._serve
def tried(*arguments):
    try:
        open({str(secret)!r}).read()
        os._exit(3)
    except PermissionError:
        serve(*arguments)
sql_worker._serve = tried if {can_leave_files} else serve
sql_worker.main(int(sys.argv[1]), sys.argv[2])
"""
    workers = SqlWorkers(workers_of(engine)._source)
    started = child.start

    def start(command: list[str], **options: Any) -> Any:
        at = command.index("-m")
        return started([*command[:at], "-c", script, *command[at + 2 :]], **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(child, "start", start)
        for sql in (f"SELECT * FROM read_text('{secret}')", f"SELECT * FROM '{secret}'", "SELECT getenv('SECRET')"):
            found = ""
            with suppress(QuestionRefused, StoreError):
                found = str(workers.question(sql, BOUNDS).answer().to_pylist())
            assert "hush" not in found
        assert the_only(workers.question(COUNT, BOUNDS).answer()) == the_only(engine.question(COUNT).answer())
        workers.close()


def leave_files() -> None:
    sys.exit(not child.leave_files([], []))


def test_answers_are_data(engine: Session):
    table = pa.table({"a": ["x"] * 50})
    whole = bytes(packed(table))
    assert sql_worker._unpacked(whole, BOUNDS) == table
    for cut in (
        b"",
        whole[:40],
        whole[: len(whole) // 2],
        b"\x80\x04N." + whole,
        whole[:60] + b"\xff" * 200 + whole[260:],
    ):
        with pytest.raises(QuestionRefused):
            print(sql_worker._unpacked(cut, BOUNDS))
    with pytest.raises(QuestionRefused, match="more than 49 rows"):
        sql_worker._unpacked(whole, Bounds(49))


def ask_and_die(state: Path) -> None:
    print(workers_of(Session("duckdb", state=state))._idle[0]._process.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_ends_with_whoever_started_it(tmp_path: Path):
    stat = Path(f"/proc/{int(nursery.run(ask_and_die, tmp_path / 'state').stdout)}/stat")
    until(lambda: not stat.exists() or " Z " in stat.read_text(), lambda: None)


@pytest.mark.parametrize("seed", seeds(1, 4))
def test_hostile_statements_end_nothing(engine: Session, files: SqlWorkers, seed: int, monkeypatch):
    """They are asked in turn while documents are committed and the tables are read."""
    monkeypatch.setattr("mmqjp.state.sql_worker.STALE", 0.0)  # the log becomes large: see all that is committed
    documents = int(str(the_only(engine.question(COUNT, own=True).answer())))
    for number in range(100 if at_length() else len(KINDS)):
        sql = hostile_statement(seed * 100 + number)
        asked = [engine.confined_question(sql, BOUNDS), files.question(sql, BOUNDS)]
        for question in asked if at_length() else asked[number % 2 :][:1]:
            timer = Timer(2.0 if at_length() else 0.3, question.interrupt)
            timer.start()
            with suppress(QuestionRefused, QuestionInterrupted, StoreError):
                question.answer()
            timer.cancel()
            engine.process([Document(f"hostile {seed} {number} {documents}", "<a>v</a>", time=10_000 + documents)])
            documents += 1
            assert the_only(engine.question(COUNT, own=True).answer()) == documents
    assert the_only(engine.confined_question(COUNT, BOUNDS).answer()) == documents
    assert the_only(files.question(COUNT, BOUNDS).answer()) == 3
