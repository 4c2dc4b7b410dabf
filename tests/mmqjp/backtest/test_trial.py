"""What a back-test finds is what a run finds, however the documents are cut into batches, and it heeds its limits."""

import json
from collections import Counter
from collections.abc import Iterator
from itertools import count
from random import Random

import pyarrow as pa
import pytest

from feeds.documents import Document
from mmqjp.backtest import script as script_module
from mmqjp.backtest.script import (
    DAY_US,
    LATEST,
    LONGEST_XML,
    Backtest,
    Novelty,
    QueryResult,
    TrialRequest,
    day_text,
    read_batches,
    summary,
    try_script,
)
from mmqjp.engine import Session
from mmqjp.present.item import IN_UTC
from tests.generate.event_worlds import world
from tests.generate.seeds import seeds
from tests.generate.strategies import random_case
from tests.mmqjp.answers.test_event_worlds import documents as made_of
from tests.mmqjp.answers.test_event_worlds import script as event_script
from tests.support.cli import mmqjp, write_queries
from xscl.printer import to_xscl

PAIRS = "S/a->x FOLLOWED BY {x = y, INF} S/a->y PUBLISH pairs"


def batches(documents: list[Document], size: int = 3) -> Iterator[pa.RecordBatch]:
    streams = {document.stream for document in documents}
    for batch in read_batches(documents, streams, lambda: None):
        yield from (batch.slice(first, size) for first in range(0, batch.num_rows, size))


def tried(text: str, documents: list[Document], size: int = 3, publishers: tuple[str, ...] = ()) -> Backtest:
    request = TrialRequest(text, publishers, 1e9, 1 << 60)
    return list(try_script(request, batches(documents, size), lambda: 0.0, lambda: 0))[-1]


def numbered(number: int, text: str = "v") -> list[Document]:
    return [Document(f"d{n}", f"<a>{text}</a>", time=n * DAY_US) for n in range(number)]


@pytest.mark.parametrize("seed", seeds(4, 400))
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
    days = Counter(day_text(output.t1 // DAY_US) for output in outputs)
    assert dict(result.days) == dict(days)
    last = sorted(outputs, key=lambda output: (-output.t1, output.query, output.id))[:LATEST]
    found = [match.output.to_dict() | {"seq": 0} for match in result.latest]
    assert found == [output.to_dict() | {"seq": 0} for output in last]
    assert (result.documents, result.refused, result.cut_short) == (known, 0, None)


def test_outputs_are_those_of_the_command_run(tmp_path):
    documents = "examples/feeds"
    ran = mmqjp("run", "--queries", "examples/stories.xscl", "--documents", documents, "--feeds")
    lines = [json.loads(line) for line in ran.stdout.splitlines()]
    found = mmqjp("backtest", "examples/stories.xscl", "--documents", documents, "--feeds", "--json")
    assert found.exit_code == 0, found.output
    result = json.loads(found.stdout)
    counted = Counter(line["query"] for line in lines)
    assert {query["name"]: query["outputs"] for query in result["queries"]} == dict(counted)
    ids = sorted(lines, key=lambda line: (-line["t1"], line["query"], line["id"]))
    assert [output["id"] for output in result["latest"]] == [line["id"] for line in ids[:LATEST]]
    assert json.loads(json.dumps(Backtest.from_dict(result).to_dict())) == result


def test_what_the_script_reads_of_registered_queries_is_run_and_not_counted():
    result = tried("FROM pairs//a->p PUBLISH seen", numbered(3), publishers=(f"FROM {PAIRS}",))
    assert result.queries == (QueryResult("seen", 6, None, 0.0),)
    assert {match.output.query for match in result.latest} == {"seen"}


def test_a_query_with_too_many_outputs_says_so_as_it_would_be_paused():
    documents = [Document(f"d{n}", "<r>" + "<a>v</a>" * 400 + "</r>", time=n) for n in range(3)]
    result = tried("FROM S//a->x JOIN {x = y, INF} S//a->y PUBLISH many", documents, 1)
    (query,) = result.queries
    assert query.paused is not None and "matches" in query.paused


def test_a_document_that_cannot_be_read_is_counted_and_a_long_output_shown_without_its_document():
    result = tried(f"FROM {PAIRS}", [*numbered(2), Document("bad", "<a", time=9)])
    assert (result.documents, result.refused, result.outputs) == (2, 1, 1)
    result = tried("FROM S//a", numbered(1, "x" * LONGEST_XML))
    assert [match.output.xml for match in result.latest] == [""]


def test_outputs_a_day_are_those_of_the_last_thirty_days():
    result = tried("FROM S//a PUBLISH all", numbered(60))
    assert (result.outputs, result.recent_days, result.outputs_a_day) == (60, 30, 1.0)
    result = tried("FROM S//a PUBLISH all", [*numbered(2), *numbered(1, "w")])
    assert (result.outputs, result.recent_days, result.outputs_a_day) == (2, 2, 1.0)
    assert (tried("FROM S//a", []).outputs_a_day, tried("FROM S//a", []).milliseconds) == (0.0, None)
    assert (Backtest(499, seconds=1.0).milliseconds, Backtest(500, seconds=1.0).milliseconds) == (None, 2_000.0)


def test_days_before_1970_and_beyond_the_calendar_are_days():
    result = tried("FROM S//a", [Document("d", "<a/>", time=-DAY_US - 1)])
    assert result.days == (("1969-12-30", 1),)
    days = ["0001-01-01", "1969-12-31", "1970-01-01", "9999-12-31"]
    assert [day_text(day) for day in (-(1 << 40), -1, 0, 1 << 40)] == days


def test_it_reports_again_and_again_and_ends_when_its_time_is_over():
    request = TrialRequest(f"FROM {PAIRS}", (), 10, 1 << 60)
    clock = map(float, count(1)).__next__  # each time that it is asked, a second later
    reports = list(try_script(request, batches(numbered(400), 100), clock, lambda: 0))
    assert [report.documents for report in reports] == sorted({report.documents for report in reports})
    assert len(reports) > 1 and reports[-1].documents < 400
    assert [report.cut_short for report in reports] == [None] * (len(reports) - 1) + ["it took more than 10 s"]


class Slow:
    """A clock by which each document takes `seconds`."""

    def __init__(self, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.sizes = 0.0, list[int]()
        processed = script_module._Trial.process

        def process(one: script_module._Trial, batch: pa.RecordBatch) -> None:
            processed(one, batch)
            self.sizes.append(batch.num_rows)
            self.now += seconds * batch.num_rows

        monkeypatch.setattr(script_module._Trial, "process", process)

    def __call__(self) -> float:
        return self.now


def test_documents_that_take_long_are_processed_few_at_a_time(monkeypatch):
    request = TrialRequest("FROM S//a", (), 1e9, 1 << 60)
    slow = Slow(0.1, monkeypatch)
    *_, last = try_script(request, batches(numbered(300), 1000), slow, lambda: 0)
    assert slow.sizes[:5] == [50, 25, 12, 6, 6] and set(slow.sizes[5:-1]) == {6}
    assert (last.documents, last.outputs, sum(slow.sizes)) == (300, 300, 300)
    monkeypatch.undo()
    quick = Slow(0.0001, monkeypatch)
    *_, last = try_script(request, batches(numbered(300), 1000), quick, lambda: 0)
    assert quick.sizes == [50, 100, 150]


def test_it_ends_when_it_needs_too_much_memory():
    used = iter((1 << 20, 3 << 20))
    request = TrialRequest(f"FROM {PAIRS}", (), 1e9, 2 << 20)
    (report,) = try_script(request, batches(numbered(100), 10), lambda: 0.0, lambda: next(used))
    assert (report.documents, report.cut_short) == (20, "it needed more than 2 MiB of memory")


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
            Backtest(500, 900, 1, 0, DAY_US, (QueryResult("q", 3),), (("1970-01-02", 3),), (), 2.5, ("p",),
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
def test_event_queries_are_answered_at_the_end_over_all_documents(seed):
    rng, found = Random(seed), world(seed)
    given = [document for _, document in made_of(found)]
    result = tried(event_script(found), rng.sample(given, len(given)), rng.randint(1, 12))
    with Session("duckdb", settle=None) as engine:
        engine.subscribe(event_script(found))
        engine.process(given)
        names = Counter(output.query for output in engine.finish())
    assert {query.name: query.outputs for query in result.queries if query.outputs} == dict(names)
    assert result.outputs == sum(names.values())


def test_event_queries_are_answered_over_what_was_tried_in_time():
    text = "DEFINE EVENT A FROM S//a->a (k := a); FROM A NEXT A PUBLISH pairs"
    clock = iter([0.0, 0.0, 20.0]).__next__
    (result,) = try_script(TrialRequest(text, (), 10.0, 1 << 60), batches(numbered(9)), clock, lambda: 0)
    assert result.cut_short == "it took more than 10 s" and (result.documents, result.outputs) == (3, 2)
