"""Back-tests over stores: with the registered queries that a script reads, beside a service, and nothing is written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from feeds.documents import Document
from mmqjp.backtest.process import BacktestEnded, BacktestLimits, StoreBacktest
from mmqjp.backtest.script import Backtest, Novelty
from mmqjp.engine import Session
from mmqjp.service.commands import CommandQueue
from mmqjp.service.spool import Spool
from mmqjp.service.sql_question import ABANDONED, BACKTEST, RUN_BESIDE, QuestionRunner
from tests.support.backtest import try_in_this_process
from tests.support.cli import mmqjp, write_queries
from tests.support.service import PAIRS, Directory, Events, StopAfter

READER = "FROM pairs//a->p PUBLISH seen"


@pytest.fixture(params=["duckdb", pytest.param("spark", marks=pytest.mark.spark)])
def engine(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue("spark") if request.param == "spark" else request.param


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    try_in_this_process(monkeypatch)


def documents(count: int, first: int = 0) -> list[Document]:
    return [Document(f"d{n}", "<a>v</a>", time=n * 1_000_000) for n in range(first, first + count)]


def digest(state: Path) -> dict[str, str]:
    """The digests of the files of a state directory, except for locks."""
    return {
        str(path.relative_to(state)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(state.rglob("*"))
        if path.is_file() and "lock" not in path.name and "spool" not in path.parts
    }


def asked(state: Path, queries: Path, *options: str) -> Backtest:
    result = mmqjp("backtest", queries, "--state", state, "--json", *options)
    assert result.exit_code == 0, result.output
    return Backtest.from_dict(json.loads(result.stdout))


def test_the_documents_of_a_store_are_tried_and_nothing_is_written(tmp_path: Path, engine: Any):
    state = tmp_path / "state"
    with Session(engine, state=state) as opened:
        opened.subscribe(PAIRS)
        opened.process(documents(3))
        expected = len(list(opened.outputs()))
    before = digest(state)
    found = asked(state, write_queries(tmp_path, f"{PAIRS.replace('pairs', 'again')}; {READER}; FROM S//b"))
    assert digest(state) == before
    assert {query.name: query.outputs for query in found.queries} == {"again": expected, "seen": 2 * expected, "q3": 0}
    assert (found.documents, found.kept, found.publishers, found.cut_short) == (3, 3, ("pairs",), None)
    assert found.novelty == Novelty(patterns=3, new_patterns=2, templates=2, new_templates=1, rows=3, new_rows=2)
    assert mmqjp("list", "--state", state, "--json").stdout.count("\n") == 1


@pytest.mark.usefixtures("here")
def test_events_of_the_store_are_tried_with_what_makes_them(tmp_path: Path):
    state = tmp_path / "state"
    text = "DEFINE EVENT A FROM S//a->a (k := a); FROM A NEXT A PUBLISH pairs; FROM pairs//match->m PUBLISH told"
    with Session("duckdb", state=state) as opened:
        opened.subscribe(text)
        opened.process(documents(4))
    before = digest(state)
    script = "FROM pairs NEXT A PUBLISH threes; FROM A NEXT A PUBLISH again; FROM told/match->m PUBLISH documents"
    found = asked(state, write_queries(tmp_path, script))
    assert digest(state) == before
    counts = {query.name: query.outputs for query in found.queries}
    assert counts == {"threes": 2, "again": 3, "documents": 3}
    assert set(found.publishers) == {"A", "pairs", "told"} and (found.documents, found.kept) == (4, 4)
    assert (found.novelty.definitions, found.novelty.event_queries, found.novelty.new_event_queries) == (0, 2, 1)
    changed = asked(state, write_queries(tmp_path, "DEFINE EVENT A FROM S//a->x (k := x); FROM A NEXT A PUBLISH pairs"))
    assert (changed.outputs, changed.novelty.new_definitions, changed.publishers) == (3, 1, ())
    refused = mmqjp("backtest", write_queries(tmp_path, "FROM FILTER {k = 'v'} Pots"), "--state", state)
    assert refused.exit_code == 1 and "there are no events Pots" in refused.output


@pytest.mark.usefixtures("here")
def test_event_queries_that_mind_since_when_they_see_events_are_neither_new_nor_shared(tmp_path: Path):
    state = tmp_path / "state"
    text = "DEFINE EVENT A FROM S//a->a (k := a); AGGREGATE{count() AS n BY k OVER 1 h} A PUBLISH counts; FROM A NEXT A"
    with Session("duckdb", state=state) as opened:
        opened.process(documents(3))
        opened.subscribe(text)
        opened.process(documents(6))
    again = mmqjp("backtest", write_queries(tmp_path, text), "--state", state)
    assert again.exit_code == 0 and "pairs a document" not in again.stdout
    assert "1 event query would not share the work of the same one" in again.stdout and "new: 0 of 1" in again.stdout
    found = asked(state, write_queries(tmp_path, text.replace("counts", "mine").replace("1 h", "2 h") + "; FROM S//a"))
    assert (found.novelty.new_event_queries, found.novelty.same_event_queries, found.novelty.is_shared) == (1, 0, False)
    assert [query.pairs is None for query in found.queries] == [True, True, False]


@pytest.mark.usefixtures("here")
def test_a_shared_script_costs_its_outputs_only(tmp_path: Path):
    with Session("duckdb", state=tmp_path) as opened:
        opened.subscribe(PAIRS)
    for read_only in (False, True):
        with Session("duckdb", state=tmp_path, read_only=read_only) as opened:
            assert StoreBacktest(opened, PAIRS.replace("pairs", "mine")).run().novelty.is_shared


@pytest.mark.usefixtures("here")
def test_what_the_script_publishes_takes_the_place_of_what_is_registered():
    with Session("duckdb") as opened:
        opened.subscribe(f"{PAIRS}; FROM other//x PUBLISH unread")
        opened.process(documents(3))
        found = StoreBacktest(opened, f"FROM S//a->a PUBLISH pairs; {READER}").run()
        assert {query.name: query.outputs for query in found.queries} == {"pairs": 3, "seen": 3}
        assert found.publishers == ()
        opened.pause("pairs")
        found = StoreBacktest(opened, READER).run()
        assert (found.outputs, found.documents, found.publishers) == (0, 0, ())


@pytest.mark.usefixtures("here")
def test_the_newest_documents_are_tried_and_that_is_told():
    with Session("duckdb") as opened:
        opened.process(documents(4))
        opened.process(documents(6, 4))
        for limits in (BacktestLimits(documents=3), BacktestLimits(characters=3 * len("<a>v</a>"))):
            found = StoreBacktest(opened, PAIRS, limits).run()
            assert (found.documents, found.kept, found.outputs, found.since) == (3, 10, 3, 7_000_000)
            assert found.cut_short == "only the newest 3 documents are tried"
        backtest = StoreBacktest(opened, PAIRS)
        backtest.interrupt()
        with pytest.raises(BacktestEnded):
            backtest.run()


@pytest.mark.usefixtures("here")
def test_documents_of_a_path_are_tried_with_the_queries_of_a_store(tmp_path: Path):
    state, path = tmp_path / "state", tmp_path / "documents.jsonl"
    lines = (json.dumps({"id": f"d{n}", "time": n * 1_000_000, "xml": "<a>v</a>"}) for n in range(3))
    path.write_text("\n".join([*lines, "rubbish"]) + "\n")
    with Session("duckdb", state=state) as opened:
        opened.subscribe(PAIRS)
    found = asked(state, write_queries(tmp_path, READER), "--documents", str(path))
    assert (found.documents, found.kept, found.refused, found.outputs, found.publishers) == (3, 3, 1, 6, ("pairs",))


def until(done: Callable[[], object], step: Callable[[], object]) -> None:
    """Steps until something is so, for as long as a starved machine may need."""
    for _ in range(60_000):
        if done():
            return
        step()
        Event().wait(0.01)
    raise AssertionError("it never came")


def test_a_service_goes_on_beside_back_tests_of_which_one_runs_at_a_time(tmp_path: Path):
    place, events = Directory(tmp_path), Events()
    with Session("duckdb", state=place.state) as opened:
        opened.subscribe(PAIRS)
        opened.process(documents(3))
        questions = QuestionRunner(opened, place.spool, events)
        first, second = (place.ask(BACKTEST, text=READER) for _ in range(2))
        queries = [place.ask("query", sql="SELECT 1 AS a") for _ in range(2)]
        questions.step()
        assert set(questions._running) == {first.id, *(query.id for query in queries)}
        place.drop("1.jsonl", range(3, 6))
        service = place.service(opened, events)
        service._commands = CommandQueue(place.spool, skip=RUN_BESIDE)
        service.run(None, StopAfter(10**9))
        assert opened.counters().documents == 6 and len(place.spool.waiting_of(BACKTEST)) == 2
        until(lambda: not place.spool.waiting_of(BACKTEST), questions.step)
        for command in (first, second):
            answer = place.answer(command)
            assert answer.error is None
            assert Backtest.from_dict(answer.result).outputs in (6, 30)  # of three documents, or of six
    assert [event["do"] for event in events.named("command")].count(BACKTEST) == 2


def test_a_back_test_ends_with_whoever_waits_for_it(tmp_path: Path):
    place, events = Directory(tmp_path), Events()
    with Session("duckdb", state=place.state) as opened:
        opened.process(documents(2_000))  # whose pairs take long
        questions = QuestionRunner(opened, place.spool, events)
        command = place.ask(BACKTEST, text=PAIRS)
        questions.step()
        place.spool.withdraw(command)
        until(lambda: not questions._running, questions.step)
        assert place.answer(command).error == ABANDONED
        rubbish = place.ask(BACKTEST)
        mistaken = place.ask(BACKTEST, text="FROM")
        until(lambda: not place.spool.waiting_of(BACKTEST), questions.step)
        assert "not a question" in str(place.answer(rubbish).error)
        assert "1:5" in str(place.answer(mistaken).error)


@pytest.mark.usefixtures("here")
def test_whoever_opens_the_store_runs_what_waits(tmp_path: Path):
    place = Directory(tmp_path)
    command = place.ask(BACKTEST, text=PAIRS)
    with Session("duckdb", state=place.state) as opened:
        opened.process(documents(3))
        CommandQueue(Spool(place.state)).apply(opened, Events())
    assert Backtest.from_dict(place.answer(command).result).outputs == 3
