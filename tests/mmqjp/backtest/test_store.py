import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from inspect import getsource
from itertools import count
from pathlib import Path
from random import Random
from threading import Event

import pyarrow as pa
import pytest

from common.dates import DAY
from common.errors import InputError
from feeds.documents import Document, Reject, SourceItem, Visit
from join_stage.store.protocol import QuestionInterrupted, StoreError
from mmqjp import backtest
from mmqjp.backtest import Backtest, Novelty, QueryResult, TrialRequest, day_text, summary, try_script
from mmqjp.engine import CoreEngine, Session
from mmqjp.present.item import IN_UTC
from mmqjp.service.commands import CommandQueue
from mmqjp.service.spool import Command
from mmqjp.service.sql_question import ABANDONED, BACKTEST, RUN_BESIDE, QuestionRunner, SelectQuestion
from tests.generate.events import world
from tests.generate.seeds import seeds
from tests.generate.strategies import random_case
from tests.mmqjp.answers.test_event_worlds import documents as made_of
from tests.mmqjp.answers.test_event_worlds import script as event_script
from tests.mmqjp.service.test_questions import until
from tests.support.backtest import try_in_this_process
from tests.support.cli import mmqjp, write_queries
from tests.support.service import PAIRS, Directory, Events, StopAfter
from tests.support.stores import as_files
from xscl.printer import to_xscl

READER = "FROM pairs//a->p PUBLISH seen"


@pytest.fixture
def here(monkeypatch):
    try_in_this_process(monkeypatch)


def documents(count: int, first: int = 0) -> list[Document]:
    return [Document(f"d{n}", "<a>v</a>", time=n * 1_000_000) for n in range(first, first + count)]


def digest(state: Path) -> dict[str, str]:
    return {
        str(path.relative_to(state)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(state.rglob("*"))
        if path.is_file() and "lock" not in path.name and "spool" not in path.parts
    }


def asked(state: Path, queries: Path, *options: str) -> Backtest:
    result = mmqjp("backtest", queries, "--state", state, "--json", *options)
    assert result.exit_code == 0, result.output
    return Backtest.from_dict(json.loads(result.stdout))


@pytest.mark.parametrize("files", [False, True])
def test_the_documents_of_a_store_are_tried_and_nothing_is_written(files, tmp_path, monkeypatch):
    state = tmp_path / "state"
    with Session("duckdb", state=state) as opened:
        opened.subscribe(PAIRS)
        opened.process(documents(3))
        expected = len(list(opened.outputs()))
    if files:
        as_files(state, state := tmp_path / "files")
        try_in_this_process(monkeypatch)
    before = digest(state)
    text = f"{PAIRS.replace('pairs', 'again')}; {READER}; FROM S//b; FROM S//b PUBLISH others HIDDEN"
    found = asked(state, write_queries(tmp_path, text))
    assert digest(state) == before
    assert {query.name: query.outputs for query in found.queries} == {"again": expected, "seen": 2 * expected, "q3": 0}
    assert (found.documents, found.kept, found.publishers, found.cut_short) == (3, 3, ("pairs",), None)
    assert found.novelty == Novelty(patterns=3, new_patterns=2, templates=2, new_templates=1, rows=3, new_rows=2)
    assert mmqjp("list", "--state", state, "--json").stdout.count("\n") == 1


@pytest.mark.usefixtures("here")
def test_events_of_the_store_are_tried_with_what_makes_them(tmp_path):
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
def test_event_queries_that_mind_since_when_they_see_events_are_neither_new_nor_shared(tmp_path):
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


def tried_of_store(engine: Session, text: str, *limits: int) -> Backtest:
    script = backtest.prepared(text, engine.registry)
    return backtest.backtest_store(script, lambda sql: engine.question(sql, own=True).answer(), Event(), *limits)


@pytest.mark.usefixtures("here")
def test_scripts_share_with_or_replace_what_is_registered(tmp_path):
    with Session("duckdb", state=tmp_path) as opened:
        opened.subscribe(PAIRS)
    for read_only in (False, True):
        with Session("duckdb", state=tmp_path, read_only=read_only) as opened:
            assert tried_of_store(opened, PAIRS.replace("pairs", "mine")).novelty.is_shared
    with Session("duckdb") as opened:
        opened.subscribe(f"{PAIRS}; FROM other//x PUBLISH unread")
        opened.process(documents(3))
        found = tried_of_store(opened, f"FROM S//a->a PUBLISH pairs; {READER}")
        assert {query.name: query.outputs for query in found.queries} == {"pairs": 3, "seen": 3}
        assert found.publishers == ()
        opened.pause("pairs")
        found = tried_of_store(opened, READER)
        assert (found.outputs, found.documents, found.publishers) == (0, 0, ())


@pytest.mark.usefixtures("here")
def test_the_newest_documents_are_tried_and_that_is_told():
    with Session("duckdb") as opened:
        opened.process(documents(4))
        opened.process(documents(6, 4))
        for limits in ((3, 1 << 20), (10, 3 * len("<a>v</a>"))):
            found = tried_of_store(opened, PAIRS, *limits)
            assert (found.documents, found.kept, found.outputs, found.since) == (3, 10, 3, 7_000_000)
            assert found.cut_short == "only the newest 3 documents are tried"
        question = SelectQuestion(opened, Command("", BACKTEST, {"text": PAIRS}))
        question.interrupt()
        with pytest.raises(QuestionInterrupted):
            question.answer()


@pytest.mark.usefixtures("here")
def test_documents_of_a_path_are_tried_with_the_queries_of_a_store(tmp_path):
    state, path = tmp_path / "state", tmp_path / "documents.jsonl"
    lines = (json.dumps({"id": f"d{n}", "time": n * 1_000_000, "xml": "<a>v</a>"}) for n in range(3))
    path.write_text("\n".join([*lines, "rubbish"]) + "\n")
    with Session("duckdb", state=state) as opened:
        opened.subscribe(PAIRS)
    found = asked(state, write_queries(tmp_path, READER), "--documents", str(path))
    assert (found.documents, found.kept, found.refused, found.outputs, found.publishers) == (3, 3, 1, 6, ("pairs",))


@pytest.mark.usefixtures("here")
def test_a_service_goes_on_beside_back_tests_of_which_one_runs_at_a_time(tmp_path):
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
        assert opened.counters().documents == 6 and len(place.spool.waiting(BACKTEST)) == 2
        until(lambda: not place.spool.waiting(BACKTEST), questions.step)
        for command in (first, second):
            assert Backtest.from_dict(place.answer(command).result).outputs in (6, 30)  # of three documents, or of six
    assert [event["do"] for event in events.named("command")].count(BACKTEST) == 2


def test_a_back_test_ends_with_whoever_waits_for_it(tmp_path):
    place, events = Directory(tmp_path), Events()
    with Session("duckdb", state=place.state) as opened:
        opened.process(documents(500))  # whose pairs take long
        questions = QuestionRunner(opened, place.spool, events)
        command = place.ask(BACKTEST, text=PAIRS)
        questions.step()
        place.spool.withdraw(command)
        until(lambda: not questions._running, questions.step)
        assert place.answer(command).error == ABANDONED
        rubbish = place.ask(BACKTEST)
        mistaken = place.ask(BACKTEST, text="FROM")
        until(lambda: not place.spool.waiting(BACKTEST), questions.step)
        assert "the command lacks its text" in str(place.answer(rubbish).error)
        assert "1:5" in str(place.answer(mistaken).error)


REPORTED = Backtest(documents=7, queries=(QueryResult("q", 3),))
REQUEST = TrialRequest("FROM S//a", (), 60, 1 << 60)
REPORT = f"import os, sys, signal; sys.stdin.buffer.readline(); print({json.dumps({'result': REPORTED.to_dict()})!r}, "
REPORT += "flush=True); "
HANG = "sys.stdin.buffer.read(); signal.pause()"


def jumping(happened: Callable[[], object]) -> Callable[[], float]:
    """A clock that jumps behind the end of all time limits once something has happened."""
    return lambda: 1e9 if happened() else 0.0


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


@pytest.fixture
def started(monkeypatch):
    found: list[backtest._Running] = []
    made = backtest._Running.__init__

    def noting(self: backtest._Running, *arguments: object) -> None:
        made(self, *arguments)  # type: ignore[arg-type]  # as it was called
        found.append(self)

    monkeypatch.setattr(backtest._Running, "__init__", noting)
    yield found
    assert found and all(one._process.returncode is not None for one in found)


def row_batch(xml: bytes = b"<a/>", count: int = 1) -> pa.RecordBatch:
    rows = [{"id": f"d{n}", "stream": "S", "t0": n, "t1": n, "xml": xml} for n in range(count)]
    return pa.RecordBatch.from_pylist(rows, backtest.DOCUMENTS)


def test_a_process_that_takes_too_long_is_killed(started):
    clock = jumping(lambda: started and started[0]._reported)
    found = backtest.run_process(REQUEST, (), clock=clock, command=python(REPORT + HANG))
    assert found == replace(REPORTED, cut_short="it took more than 60 s")
    assert started.pop()._process.returncode is not None
    with pytest.raises(backtest.BacktestFailed, match="it took more than 60 s before the first documents were done"):
        backtest.run_process(REQUEST, (), clock=jumping(lambda: started), command=python(f"import sys, signal; {HANG}"))


@pytest.mark.parametrize(
    ("after", "why"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "its process ended (status -9)"),
        ("sys.stdout.write('{\"result\": {'); sys.stdout.flush(); os.kill(os.getpid(), signal.SIGKILL)",
         "its process ended (status -9)"),
        ('print(\'{"failed": "no room"}\')', "no room"),
    ],
)  # fmt: skip
def test_what_a_process_reported_before_it_ended_counts(after, why):
    assert backtest.run_process(REQUEST, (), command=python(REPORT + after)) == replace(REPORTED, cut_short=why)
    with pytest.raises(backtest.BacktestFailed, match=re.escape(why)):
        backtest.run_process(REQUEST, (), command=python(f"import os, sys, signal; {after}"))


def test_it_ends_when_nobody_waits(started):
    stop = Event()

    def clock() -> float:
        if started and started[0]._reported:
            stop.set()
        return 0.0

    with pytest.raises(QuestionInterrupted):
        backtest.run_process(REQUEST, (), stop=stop, clock=clock, command=python(REPORT + HANG))
    with pytest.raises(QuestionInterrupted), backtest._one_at_a_time:  # so does one that waits for its turn
        backtest.run_process(REQUEST, (), stop=stop)
    assert len(started) == 1


def test_documents_that_cannot_be_read_or_an_interrupt_end_it(started):
    def damaged() -> Iterator[pa.RecordBatch]:
        yield row_batch()
        raise StoreError("the store is damaged")

    with pytest.raises(StoreError, match="damaged"):
        backtest.run_process(REQUEST, damaged(), command=python(REPORT + HANG))
    assert started.pop()._process.returncode is not None

    def interrupted() -> float:
        if started and started[0]._reported:
            raise KeyboardInterrupt
        return 0.0

    with pytest.raises(KeyboardInterrupt):
        backtest.run_process(REQUEST, (), clock=interrupted, command=python(REPORT + HANG))
    assert not backtest._one_at_a_time.locked()


def test_a_script_that_cannot_be_registered_is_refused():
    request = replace(REQUEST, text="FROM p//a PUBLISH q", publishers=("FROM q//a PUBLISH p",))
    with pytest.raises(backtest.BacktestRefused, match="cycle of PUBLISHed names"):
        backtest.run_process(request, iter([row_batch()]))
    assert issubclass(backtest.BacktestRefused, InputError)


def test_it_ends_when_a_batch_needs_far_too_much_memory():
    batch = row_batch(b"<r>" + b"<a>v</a>" * 100 + b"</r>", 1000)
    request = replace(REQUEST, text="FROM S//a PUBLISH all", memory=1 << 20)
    try:
        why = backtest.run_process(request, iter([batch])).cut_short
    except backtest.BacktestFailed as error:  # it may end before its first report
        why = str(error)
    assert "it needed more than 1 MiB of memory" in str(why)


def test_it_gives_way_to_others_and_ends_when_who_asked_is_killed():
    """The worker of a process that is killed gets no signal of its own."""
    code = "import os, subprocess, sys; "
    code += f"worker = subprocess.Popen([*{backtest.WORKER!r}, str(os.getpid())], stdin=sys.stdin); "
    code += "print(worker.pid, flush=True); worker.wait()"
    own = os.getpriority(os.PRIO_PROCESS, os.getpid())
    with subprocess.Popen(python(code), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as asking:
        assert asking.stdout is not None
        pid = int(asking.stdout.readline())
        until(lambda: os.getpriority(os.PRIO_PROCESS, pid) == min(own + backtest.NICE, 19), lambda: None)
        asking.kill()
        until(lambda: not Path(f"/proc/{pid}").exists() or " Z " in Path(f"/proc/{pid}/stat").read_text(), lambda: None)


def test_the_memory_of_whoever_started_it_does_not_count():
    large = bytearray(b"x") * (100 << 20)
    imports = "import resource, sys\nfrom contextlib import suppress\nfrom pathlib import Path\n"
    code = f"{imports}{getsource(backtest._peak_memory)}\nprint(_peak_memory())"
    found = subprocess.run(python(code), capture_output=True, check=True, text=True)
    assert 0 < int(found.stdout) < len(large)


ALL_PAIRS = "S/a->x FOLLOWED BY {x = y, INF} S/a->y PUBLISH pairs"


def batches(documents: list[Document], size: int = 3) -> Iterator[pa.RecordBatch]:
    streams = {document.stream for document in documents}
    for batch in backtest.read_batches(documents, streams, Counter()):
        yield from (batch.slice(first, size) for first in range(0, batch.num_rows, size))


def test_documents_and_visits_come_through_a_pipe_in_order():
    items: list[SourceItem] = [Document("a", b"<a/>", time=3, feed="f"), Visit("f", 4), Document("b", b"<b/>")]
    seen = Counter[str]()
    sent = backtest.read_batches([*items, Reject("c", "S", 1, "why", ""), Visit("f", 4, stream="T")], {"S"}, seen)
    assert [item for batch in sent for item in backtest.items_of(batch)] == items
    assert seen == {"given": 2, "refused": 1}


def tried(text: str, documents: list[Document], size: int = 3, publishers: tuple[str, ...] = ()) -> Backtest:
    request = TrialRequest(text, publishers, 1e9, 1 << 60)
    return list(try_script(request, batches(documents, size), lambda: 0.0, lambda: 0))[-1]


def numbered(number: int, text: str = "v") -> list[Document]:
    return [Document(f"d{n}", f"<a>{text}</a>", time=n * DAY) for n in range(number)]


@pytest.mark.parametrize("seed", seeds(3, 400))
def test_outputs_are_those_of_an_engine_over_the_same_documents(seed):
    script, generated = random_case(seed, 4, 12)
    documents = list({(document.stream, document.id): document for document in generated}.values())
    text = to_xscl(script)
    rng = Random(seed)
    result = tried(text, rng.sample(documents, len(documents)), rng.randint(1, 12))
    with Session("duckdb", plan="views") as engine:
        engine.subscribe(text)
        outputs = list(engine.process(documents))
        paused, known = engine.take_paused(), engine.counters().documents
    names = Counter(output.query for output in outputs)
    assert {query.name: query.outputs for query in result.queries if query.outputs} == dict(names)
    assert {query.name: query.paused for query in result.queries if query.paused} == paused
    days = Counter(day_text(output.t1 // DAY) for output in outputs)
    assert dict(result.days) == dict(days)
    last = sorted(outputs, key=lambda output: (-output.t1, output.query, output.id))[: backtest.LATEST]
    found = [match.output.to_dict() | {"seq": 0} for match in result.latest]
    assert found == [output.to_dict() | {"seq": 0} for output in last]
    assert (result.documents, result.refused, result.cut_short) == (known, 0, None)


def test_what_is_counted_and_which_queries_are_paused(monkeypatch):
    result = tried("FROM pairs//a->p PUBLISH seen", numbered(3), publishers=(f"FROM {ALL_PAIRS}",))
    assert result.queries == (QueryResult("seen", 6, None, 0.0),)
    assert {match.output.query for match in result.latest} == {"seen"}
    monkeypatch.setitem(CoreEngine.__init__.__kwdefaults__, "max_matches", 1_000)
    documents = [Document(f"d{n}", "<r>" + "<a>v</a>" * 40 + "</r>", time=n) for n in range(3)]
    result = tried("FROM S//a->x JOIN {x = y, INF} S//a->y PUBLISH many", documents, 1)
    (query,) = result.queries
    assert query.paused is not None and "matches" in query.paused
    result = tried(f"FROM {ALL_PAIRS}", [*numbered(2), Document("bad", "<a", time=9)])
    assert (result.documents, result.refused, result.outputs) == (2, 1, 1)
    result = tried("FROM S//a", numbered(1, "x" * backtest.LONGEST_XML))
    assert [match.output.xml for match in result.latest] == [""], "long outputs are shown without their documents"


def test_outputs_a_day():
    result = tried("FROM S//a PUBLISH all", numbered(40), 10)
    assert (result.outputs, result.recent_days, result.outputs_a_day) == (40, 30, 1.0)
    result = tried("FROM S//a PUBLISH all", [*numbered(2), *numbered(1, "w")])
    assert (result.outputs, result.recent_days, result.outputs_a_day) == (2, 2, 1.0)
    result = tried("FROM S//a", [])
    assert (result.outputs_a_day, result.milliseconds) == (0.0, None)
    assert (Backtest(499, seconds=1.0).milliseconds, Backtest(500, seconds=1.0).milliseconds) == (None, 2_000.0)
    result = tried("FROM S//a", [Document("d", "<a/>", time=-DAY - 1)])
    assert result.days == (("1969-12-30", 1),)
    days = ["0001-01-01", "1969-12-31", "1970-01-01", "9999-12-31"]
    assert [day_text(day) for day in (-(1 << 40), -1, 0, 1 << 40)] == days


def test_it_ends_when_its_time_is_over_or_it_needs_too_much_memory():
    request = TrialRequest(f"FROM {ALL_PAIRS}", (), 10, 1 << 60)
    clock = map(float, count(1)).__next__  # each time that it is asked, a second later
    reports = list(try_script(request, batches(numbered(200), 25), clock, lambda: 0))
    assert [report.documents for report in reports] == sorted({report.documents for report in reports})
    assert len(reports) > 1 and reports[-1].documents < 200
    assert [report.cut_short for report in reports] == [None] * (len(reports) - 1) + ["it took more than 10 s"]
    used = iter((1 << 20, 3 << 20))
    request = TrialRequest(f"FROM {ALL_PAIRS}", (), 1e9, 2 << 20)
    (report,) = try_script(request, batches(numbered(100), 10), lambda: 0.0, lambda: next(used))
    assert (report.documents, report.cut_short) == (20, "it needed more than 2 MiB of memory")


class Slow:
    """A clock by which each document takes `seconds`."""

    def __init__(self, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.sizes = 0.0, list[int]()
        processed = backtest._Trial.process

        def noted(one: backtest._Trial, batch: pa.RecordBatch) -> None:
            processed(one, batch)
            self.sizes.append(batch.num_rows)
            self.now += seconds * batch.num_rows

        monkeypatch.setattr(backtest._Trial, "process", noted)

    def __call__(self) -> float:
        return self.now


def test_documents_that_take_long_are_processed_few_at_a_time(monkeypatch):
    request = TrialRequest("FROM S//a", (), 1e9, 1 << 60)
    slow = Slow(0.1, monkeypatch)
    *_, last = try_script(request, batches(numbered(150), 1000), slow, lambda: 0)
    assert slow.sizes[:5] == [50, 25, 12, 6, 6] and set(slow.sizes[5:-1]) == {6}
    assert (last.documents, last.outputs, sum(slow.sizes)) == (150, 150, 150)
    monkeypatch.undo()
    quick = Slow(0.0001, monkeypatch)
    *_, last = try_script(request, batches(numbered(150), 1000), quick, lambda: 0)
    assert quick.sizes == [50, 100]


def test_pairs_are_those_of_the_rarest_join(tmp_path):
    documents = [Document(f"d{n}", f"<a><k>{n % 2}</k><l>same</l></a>", time=n) for n in range(10)]
    text = "FROM S/a[./k->k][./l->l] JOIN {k = m AND l = n, INF} S/a[./k->m][./l->n] PUBLISH p"
    (query,) = tried(text, documents).queries
    assert query.pairs == pytest.approx(2 * 50 / 10)


@pytest.mark.parametrize(
    ("result", "lines"),
    [
        (Backtest(), ["tried on 0 documents", "0 outputs", "nothing new: registered queries have the same patterns "
                      "and joins, and it costs only its outputs"]),
        (
            Backtest(500, 900, 1, 0, DAY, (QueryResult("q", 3),), (("1970-01-02", 3),), (), 2.5, ("p",),
                     Novelty(3, 1, 1, 0, 2, 2), "it took more than 60 s"),
            ["tried on 500 documents of 900, from 1970-01-01 00:00 to 1970-01-02 00:00 UTC; 1 could not be read",
             "together with the registered queries that it reads: p",
             "cut short: it took more than 60 s",
             "3 outputs; 1.5 a day in the last 2 days",
             "new: 1 of 3 patterns, 0 of 1 template, 2 of 2 rows",
             "1,000 documents take 5,000 ms"],
        ),
    ],
)  # fmt: skip
def test_a_result_in_words(result, lines):
    assert list(summary(result, IN_UTC)) == lines
    assert Backtest.from_dict(json.loads(json.dumps(result.to_dict()))) == result


def test_a_file_with_mistakes_and_no_documents_are_plain_errors(tmp_path):
    queries = write_queries(tmp_path, "FROM S//a JOIN")
    result = mmqjp("backtest", queries, "--documents", "examples/feeds", "--feeds")
    assert result.exit_code == 1 and "queries.xscl:1:" in result.stderr
    result = mmqjp("backtest", write_queries(tmp_path))
    assert result.exit_code == 2 and "--state" in result.stderr


@pytest.mark.parametrize("seed", seeds(1, 5))
def test_event_queries_are_answered_at_the_end_over_all_documents_or_those_that_were_tried_in_time(seed):
    rng, found = Random(seed), world(seed)
    given = [document for _, document in made_of(found)]
    result = tried(event_script(found), rng.sample(given, len(given)), rng.randint(1, 12))
    with Session("duckdb", settle=None) as engine:
        engine.subscribe(event_script(found))
        engine.process(given)
        names = Counter(output.query for output in engine.finish())
    assert {query.name: query.outputs for query in result.queries if query.outputs} == dict(names)
    text = "DEFINE EVENT A FROM S//a->a (k := a); FROM A NEXT A PUBLISH pairs"
    clock = iter([0.0, 0.0, 20.0]).__next__
    (result,) = try_script(TrialRequest(text, (), 10, 1 << 60), batches(numbered(9)), clock, lambda: 0)
    assert result.cut_short == "it took more than 10 s" and (result.documents, result.outputs) == (3, 2)


@pytest.mark.usefixtures("here")
def test_who_finds_nothing_is_led_to_the_part_that_finds_nothing(tmp_path):
    queries = write_queries(tmp_path, "FROM S//item PUBLISH all;\nFROM S//nothing PUBLISH none;")
    said = mmqjp("backtest", queries, "--documents", "examples/feeds", "--feeds").stdout.splitlines()[-1]
    assert said.startswith("nothing found by none: mmqjp check ")
    shown = mmqjp(*shlex.split(said.partition(": mmqjp ")[2].partition(" shows ")[0]))
    assert shown.exit_code == 0 and "0 of " in shown.stdout
