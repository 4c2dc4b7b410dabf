import json
import pickle
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from common.arrays import Ints
from common.limits import UNLIMITED
from feeds.documents import Document
from join_stage.plans import PLANS
from mmqjp.answers.accounts import Accounts, EarlierUsage
from mmqjp.answers.bindings import node_orders, read_nodes
from mmqjp.answers.fan_out import FanOut, Outputs, line_order
from mmqjp.answers.output import STORY_HEAD, Output, size_of_story
from mmqjp.answers.quota import NEVER
from mmqjp.answers.spread import ShippedQueries
from mmqjp.engine import Session
from mmqjp.queries.model import Identity, Members
from mmqjp.tables.schema import ANSWER_TABLES
from tests.generate.documents import SECOND
from tests.generate.queries import with_hidden, with_once
from tests.generate.seeds import at_length, expect_some, seeds
from tests.generate.strategies import random_case
from tests.oracle.bindings import OutputRow
from tests.oracle.values import STRING_TESTS
from tests.support.agreement import Delivery, arranged, as_row
from tests.support.in_process import run_in_process
from tests.support.shown import assert_shown
from xpath_stage import keywords
from xpath_stage.keywords import INDEXES


def some_members(rng: random.Random, first_qid: int) -> Members:
    """Members of which many have the same name, window and times."""
    count = rng.randint(1, 12)
    rows = sorted((rng.choice("abcde"), first_qid + n) for n in range(count))
    names = [name for name, _ in rows]

    def column(low: int, high: int) -> Ints:
        return np.array([rng.randint(low, high) for _ in rows], np.int64)

    identities = [Identity(f"{name} {qid}") for name, qid in rows]
    qids = np.array([qid for _, qid in rows], np.int64)
    ended = np.where(column(0, 2) == 0, column(1, 3), 1 << 62)
    return Members(names, identities, qids, column(0, 4), column(-1, 3), column(0, 2), ended, column(-1, 9))


Row = tuple[int, str, list[str], int, int, int, str]
"""t1, name, documents, place, qid, batch, id."""


def brute_force(
    answers: list[dict[str, Any]], members: Mapping[str, Members], withheld: Mapping[int, frozenset[int]]
) -> Iterator[Row]:
    for a in answers:
        of = members[a["form"]]
        for i, name in enumerate(of.names):
            began, ended, at = int(of.begun[i]), int(of.ended[i]), int(of.ended_at[i])
            in_time = began <= a["batch"] and (a["batch"] < ended or (a["batch"] == ended and a["arrival"] < at))
            if not in_time or of.windows[i] < a["width"] or of.sinces[i] >= a["appeared"]:
                continue
            if of.qids[i] < a["first_qid"] or int(of.qids[i]) in withheld.get(a["answer"], ()):
                continue
            yield a["t1"], name, a["documents"], a["place"], int(of.qids[i]), a["batch"], of.identities[i].id(b"c")


@pytest.mark.parametrize("seed", seeds(5, 2_000))
def test_answers_are_sorted_by_what_lines_show_first(seed):
    rng = random.Random(seed)
    tails = {STORY_HEAD: [f'" t0="1" members="{n}"/>' for n in (2, 10)], '<match query="': ["/>"]}
    nodes = ['{"a": 2}', '{"a": 10}', '{"a": "2/@k"}', '{"a": 2, "b": 1}']
    rows: list[dict[str, Any]] = [
        {
            "t1": rng.randint(0, 2),
            "documents": rng.choices(["d1", "d10", "é"], k=rng.randint(1, 3)),
            "head": (head := rng.choice([*tails][seed % 2 :])),
            "tail": rng.choice(tails[head]),
            **{name: rng.choice(some) for name, some in (("nodes", nodes), ("choice", "pq"), ("form", "xy"))},
        }
        for _ in range(rng.choice([1, 30, 300]))
    ]
    places = sorted(rng.sample(range(len(rows)), rng.randint(0, len(rows))))
    for by_t1 in (True, False):

        def key(place: int, *, by_t1: bool = by_t1) -> tuple[Any, ...]:
            row = rows[place]
            size = size_of_story(row["tail"]) if row["head"] == STORY_HEAD else 0
            shown = node_orders(read_nodes(row["nodes"]))
            return row["t1"] * by_t1, size, row["documents"], shown, row["choice"], row["form"]

        found = line_order(pa.Table.from_pylist(rows), np.array(places, np.int64), by_t1=by_t1)
        assert found.tolist() == sorted(places, key=key)


@pytest.mark.parametrize("seed", seeds(5, 2_000))
@pytest.mark.parametrize("most", [1, 7, 10_000])
def test_each_member_gets_its_answers_in_order(seed, most, monkeypatch):
    monkeypatch.setattr("mmqjp.answers.fan_out.ROWS_AT_A_TIME", most)
    monkeypatch.setattr("mmqjp.answers.fan_out.CHARACTERS_AT_A_TIME", 4 * most)
    rng = random.Random(seed)
    members = {form: some_members(rng, 20 * n) for n, form in enumerate("xyz"[: rng.randint(1, 3)])}
    answers: list[dict[str, Any]] = []
    withheld: dict[int, frozenset[int]] = {}
    for batch in range(rng.randint(1, 3)):
        for t1 in sorted({rng.randint(0, 3) for _ in range(3)}):
            for place in range(rng.randint(1, 4)):
                form = rng.choice(sorted(members))
                if rng.random() < 0.3:
                    withheld[len(answers)] = frozenset(rng.sample(members[form].qids.tolist(), 1))
                answers.append({
                    "answer": len(answers), "form": form, "t0": 0, "t1": t1, "documents": [f"d{place}"],
                    "streams": ["S"], "nodes": '{"x": 1}', "head": '<m q="', "tail": '"/>', "choice": "c",
                    "width": rng.randint(-1, 4), "appeared": rng.randint(0, 4), "first_qid": rng.choice([0, 0, 25]),
                    "arrival": rng.randint(0, 9), "batch": batch, "place": place, "recipients": 0,
                })  # fmt: skip
    answers = [answer for answer in answers if list(brute_force([answer], members, withheld))]
    expected = sorted(brute_force(answers, members, withheld), key=lambda row: (row[5], row[0], row[1], row[3], row[4]))
    groups = [(row[5], row[0]) for row in expected]
    for answer in answers:
        group = answer["batch"], answer["t1"]
        answer["first_seq"] = sum(other < group for other in groups)
        answer["last_seq"] = answer["first_seq"] + groups.count(group) - 1
    table = pa.Table.from_pylist(answers, ANSWER_TABLES["answers"])
    fan_out = FanOut(table, members, withheld)
    outputs = [output for chunk in fan_out.chunks() for output in chunk.outputs()]
    assert [(o.t1, o.query, list(o.documents), o.id) for o in outputs] == [
        (t1, name, documents, id) for t1, name, documents, _, _, _, id in expected
    ]
    assert [o.seq for o in outputs] == list(range(len(outputs)))
    lines = chain.from_iterable(chunk.lines() for chunk in fan_out.chunks())
    assert b"".join(some.text for some in lines) == b"".join(o.to_line() for o in outputs)
    for chunk in fan_out.chunks():  # an answer has 4 characters
        read = {*chunk.pairs[0].tolist()}
        assert len(read) <= most or len({answers[place]["first_seq"] for place in read}) == 1
    by_time = FanOut(table.sort_by([("t1", "ascending"), ("first_seq", "ascending")]), members, withheld, by_time=True)
    again = [output for chunk in by_time.chunks() for output in chunk.outputs()]
    assert outputs == sorted(again, key=lambda one: one.seq)
    assert [(o.t1, o.query, o.documents) for o in again] == sorted((o.t1, o.query, o.documents) for o in again)
    assert [o.seq for chunk in fan_out.chunks() for o in chunk.after(3).outputs()] == list(range(4, len(outputs)))


def ids(outputs: list[Output]) -> list[tuple[str, OutputRow]]:
    return sorted((output.id, as_row(output)) for output in outputs)


def assert_consistent(engine: Session, outputs: list[Output]) -> None:
    """Numbers are consecutive in the order of commits, ids and numbers are what the table has, each output has its
    matches, and each match with a query an output."""
    assert [output.seq for output in outputs] == list(range(len(outputs)))
    assert len({output.id for output in outputs}) == len(outputs)
    assert list(engine.outputs()) == outputs
    assert_shown(engine)
    linked = engine.sql(
        """SELECT o.seq, m.match, m.docid1, m.docid2, q.query FROM outputs o
JOIN output_matches l ON o.seq = l.seq JOIN match_rows m ON l.match = m.match
JOIN matches q ON q.match = m.match AND q.query = o.query""",
        trusted=True,
    ).to_pylist()
    by_seq: dict[int, list[list[str]]] = {}
    for row in linked:
        docids = [docid for docid in (row["docid1"], row["docid2"]) if docid is not None]
        sources = [source[0] for docid in docids for source in engine._batches.records[docid].sources]
        by_seq.setdefault(row["seq"], []).append(sources)
    for output in outputs:
        assert all(sources == list(output.documents) for sources in by_seq[output.seq])
    unused = "SELECT count(*) AS n FROM match_rows WHERE match NOT IN (SELECT match FROM output_matches)"
    assert engine.sql(unused, trusted=True)["n"].to_pylist() == [0]


def matched(engine: Session) -> list[tuple[object, ...]]:
    """The rows of `matches`, with documents and nodes as every store has them."""
    rows = engine.sql("SELECT query, docid1, docid2, bindings FROM matches", trusted=True).to_pylist()
    sources = {
        row[end]: engine._batches.records[row[end]].sources
        for row in rows
        for end in ("docid1", "docid2")
        if row[end] is not None
    }
    return sorted(
        (row["query"], str(sources.get(row["docid1"])), str(sources.get(row["docid2"])), row["bindings"])
        for row in rows
    )


@pytest.mark.parametrize("seed", seeds(2, 400))
def test_ids_and_matches_do_not_depend_on_order_batches_plans_and_restarts(seed, tmp_path):
    rng = random.Random(seed)
    script, documents = random_case(seed)
    with Session("duckdb", plan=rng.choice(PLANS)) as engine:
        engine.ensure(script)
        first = [output for batch in arranged(documents, Delivery(None, 100)) for output in engine.process(batch)]
        assert_consistent(engine, first)
        matches = matched(engine)
    state, again = tmp_path / "state", list[Output]()
    for batch in arranged(documents, Delivery(seed, rng.randint(1, 5))):
        with Session("duckdb", state=state, plan=rng.choice(PLANS)) as engine:
            engine.ensure(script)
            again += engine.process(batch)
    assert ids(again) == ids(first)
    with Session("duckdb", state=state) as engine:
        assert_consistent(engine, again)
        assert matched(engine) == matches


def test_outputs_are_a_sequence_however_they_are_cut():
    with Session("duckdb") as engine:
        engine.subscribe("".join(f"S//a->x PUBLISH n{n};" for n in range(3)))
        outputs = engine.process([Document(f"d{n}", "<a/>", time=n) for n in range(4)])
    every = list(outputs)
    assert len(every) == len(outputs) == 12
    ends = [None, -20, -3, 0, 2, 11, 20]
    for cut in (slice(a, b, step) for a in ends for b in ends for step in (None, 1, 3, -1, -4)):
        assert outputs[cut] == every[cut]
    assert [outputs[n] for n in range(-12, 12)] == every + every
    assert repr(outputs) == repr(every) and repr(Outputs()) == "[]"
    for beyond in (12, -13):
        with pytest.raises(IndexError):
            outputs[beyond]


OR = "FROM S//a->x[./k->p] JOIN {p = q OR p = r, INF} S//b->y[./k->q][./l->r]"
EACH = "SELECT x FROM S//a->x[./k->p] JOIN {p = q, INF} S//b->y[./*->q]"


@pytest.mark.parametrize(("query", "texts", "matches"), [(OR, 1, 2), (EACH, 1, 2), (EACH, 20, 100)])
def test_an_output_is_of_each_match_that_gives_it_and_stored_with_a_hundred_at_most(engine, query, texts, matches):
    engine.subscribe(f"{query} PUBLISH one")
    xmls = f"<a>{'<k>v</k>' * texts}</a>", f"<b>{'<k>v</k>' * texts}<l>v</l></b>"
    (output,) = engine.process([Document(xml, xml, time=1) for xml in xmls])
    assert_consistent(engine, [output])
    assert engine.sql("SELECT seq FROM output_matches", trusted=True)["seq"].to_pylist() == [0] * matches


def named(state: Path) -> set[str]:
    manifests = [json.loads(path.read_text()) for path in (state / "manifests").glob("*.json")]
    return {file["name"] for manifest in manifests for files in manifest["tables"].values() for file in files}


def told(outputs: list[Output]) -> list[tuple[object, ...]]:
    return [(o.seq, o.id, o.query, o.documents, tuple(o.nodes.items()), o.xml) for o in outputs]


@pytest.mark.soak
@pytest.mark.parametrize("seed", seeds(0, 400, 14))
def test_outputs_have_the_same_numbers_as_on_the_embedded_engine(seed, spark, tmp_path, monkeypatch):
    context = run_in_process(monkeypatch, cores=1 + seed % 3, seed=seed)
    rng = Random(seed)
    if seed % 2:  # tasks are tried again, or are tried twice at the same time
        attempts = Random(seed)
        monkeypatch.setattr(context, "attempted", lambda task: (task() if attempts.random() < 0.3 else None, task())[1])
    script, documents = random_case(seed, 12, 24)
    script = with_hidden(rng, with_once(rng, script, 40), 30)
    batches = arranged(documents, Delivery(None, 6))
    options: dict[str, Any] = rng.choice([{}, {}, {"max_matches": 3}, {"max_work": 60}])
    paused = rng.sample(range(len(batches)), 2)
    with Session("duckdb", **options) as ours, Session(spark, state=tmp_path, **options) as theirs:
        every: list[list[Output]] = [[], []]
        before: list[list[Outputs]] = []
        for engine in (ours, theirs):
            names = engine.ensure(script)
        for number, batch in enumerate(batches):
            if number in paused:
                for engine in (ours, theirs):
                    (engine.pause if number == min(paused) else engine.resume)(names[1])
            # The driver joins some batches alone.
            monkeypatch.setattr("join_stage.spark.tasks.LEAST_DOCUMENTS", rng.choice([1, 1, 1, 100]))
            monkeypatch.setattr("join_stage.spark.tasks.MOST_INDEX", rng.choice([0, 1 << 20, 1 << 20]))
            got = [engine.process(batch) for engine in (ours, theirs)]
            assert told(list(got[1])) == told(list(got[0]))
            assert len(got[1]) == len(got[0])
            lines = [b"".join(some.text for some in outputs.lines()) for outputs in got]
            assert lines[1] == lines[0]
            assert sum(some.count for some in got[1].lines()) == len(got[0])
            before += [got]
            for place, outputs in enumerate(got):
                every[place] += outputs
            written = {path.name for path in tmp_path.glob("*/*.parquet")}
            assert written <= named(tmp_path), "what an attempt wrote in vain is gone"
        assert {s.name: s.paused for s in ours.registry.subscriptions.values()} == {
            s.name: s.paused for s in theirs.registry.subscriptions.values()
        }
        assert told(list(theirs.outputs())) == told(every[0])
        for ours_then, theirs_then in before:  # whose files were merged, or removed
            assert told(list(theirs_then)) == told(list(ours_then))
            assert b"".join(x.text for x in theirs_then.lines()) == b"".join(x.text for x in ours_then.lines())
        for table in ("matches", "output_matches", "answers"):
            sql = f"SELECT count(*) AS n FROM {table}"
            assert theirs.sql(sql).to_pylist() == ours.sql(sql).to_pylist(), table
    assert context.jobs


START = 1_780_000_000 * SECOND

TEXTS = [
    "FROM S//a->x[./t->t] FOLLOWED BY {t = u, WINDOW} S//b->y[./t->u]",
    "SELECT c, d FROM S//a->x[./t->t][./c->c] JOIN {t = u AND c != d, WINDOW} S//b->y[./t->u][./c->d]",
    "SELECT t FROM S//a->x[./t->t][./c->c] FOLLOWED BY {t = u OR c = u, WINDOW} S//b[./t->u]",
    "SELECT <both k='{t}'>{x}{u}</both> FROM S//a->x[.//t->t] JOIN {t = u, WINDOW} S//b->y[./c->u]",
    "FROM S//a->x[./t->t] FOLLOWED BY {t = u, 30} S//b->y[./t->u] FOLLOWED BY {u = v, WINDOW} S//a[./t->v]",
    "FROM S//a->x[./t->t][./c->c] JOIN {t = u AND contains(c, 'LITERAL'), WINDOW} S//b->y[./t->u]",
    "SELECT c FROM S//a->x[./t->t][./c->c] FOLLOWED BY "
    "{t = u AND (contains(c, 'LITERAL') OR contains(c, 'LITERAL')), WINDOW} S//b->y[./t->u]",
    "FROM S//a->x[./t->t][./c->c] JOIN "
    "{t = u AND c != d AND (starts-with(d, 'LITERAL') OR ends-with(c, 'LITERAL')), WINDOW} S//b->y[./t->u][./c->d]",
]

VALUES = ["0", "1", "2", "0", "1", "2", "12", "210"]


@dataclass(frozen=True)
class Step:
    """Queries that come, (name, text), and some that are paused, resumed and removed, by name; then documents."""

    new: Sequence[tuple[str, str]]
    paused: Sequence[str]
    resumed: Sequence[str]
    removed: Sequence[str]
    documents: Sequence[Document]


def steps(rng: random.Random) -> list[Step]:
    texts = rng.sample(TEXTS, 3) + rng.sample(TEXTS[-3:], 1)
    names: list[str] = []
    paused: set[str] = set()
    made, number, numbers = [], 0, count()
    for _ in range(rng.randint(3, 5)):
        new = [(f"n{next(numbers)}", _text(rng, texts)) for _ in range(rng.randint(2, 6))]
        names += [name for name, _ in new]
        resumed = [name for name in sorted(paused) if rng.random() < 0.5]
        to_pause = [name for name in names if name not in paused and rng.random() < 0.2]
        paused = (paused - set(resumed)) | set(to_pause)
        removed = [name for name in names if rng.random() < 0.1]
        names = [name for name in names if name not in removed]
        paused -= set(removed)
        documents = []
        for _ in range(rng.randint(4, 12)):
            number += 1
            leaves = "".join(f"<{leaf}>{rng.choice(VALUES)}</{leaf}>" for leaf in rng.choices("tc", k=3))
            name = rng.choice("ab")
            documents.append(Document(f"d{number}", f"<{name}>{leaves}</{name}>", time=START + number * SECOND))
        made.append(Step(new, to_pause, resumed, removed, documents))
    return made


def used(session: Session) -> dict[str, tuple[int, int]]:
    spent = session.sql("SELECT * FROM spent").to_pylist()
    members = {row["qid"]: row for row in session.sql("SELECT * FROM members WHERE ended > 1000000").to_pylist()}
    found = {}
    for query in session.registry.subscriptions.values():
        member = members.get(query.qid)
        if member is None:
            continue
        form = session.registry.form(query.form_id)
        assert form is not None
        outputs = work = 0
        for row in spent:
            times = 1 if row["owner"] == form.id else form.shared.get(row["owner"], 0)
            reach = row["width"] <= member["widest"] and row["since"] >= member["since"]
            if not (times and reach and row["first_qid"] <= query.qid and row["begun"] >= member["begun"]):
                times = int(row["owner"] == str(query.qid) and row["begun"] == member["begun"])
            outputs, work = outputs + times * row["outputs"], work + times * row["work"]
        found[query.name] = outputs, work
    return found


def _text(rng: random.Random, texts: Sequence[str]) -> str:
    text = rng.choice(texts).replace("WINDOW", rng.choice(["3", "10", "20", "INF"]))
    while "LITERAL" in text:
        text = text.replace("LITERAL", rng.choice(["", "0", "1", "2", "12", "21", "3"]), 1)
    return text


def answers_of(given: Sequence[Step], only: str | None, **quota: Any) -> dict[str, Any]:
    outputs: dict[str, list[object]] = {}
    paused: set[str] = set()
    with Session("duckdb", **quota) as opened:
        for step in given:
            for name, text in step.new:
                if only in (None, name):
                    opened.subscribe(f"{text} PUBLISH {name}")
            for name in opened.queries():
                if name in step.paused and name not in paused:
                    opened.pause(name)
                if name in step.resumed and name not in paused:
                    opened.resume(name)
                if name in step.removed:
                    opened.unsubscribe(name)
            for o in opened.process(step.documents):
                outputs.setdefault(o.query, []).append((o.t0, o.t1, o.documents, dict(o.nodes), o.xml, o.id))
            paused |= opened.take_paused().keys()
        matches = opened.sql("SELECT query, docid1, docid2 FROM matches ORDER BY 1, 2, 3").to_pylist()
        spent = used(opened)
        active = {query.name for query in opened.registry.subscriptions.values() if query.active}
    found: dict[str, Any] = {}
    removed = {name for step in given for name in step.removed if only in (None, name)}
    for name in active | paused | removed:
        ours = [(row["docid1"], row["docid2"]) for row in matches if row["query"] == name]
        found[name] = outputs.get(name, []), ours, spent.get(name, (0, 0)), name in paused
    return found


@pytest.mark.parametrize("seed", seeds(1, 400))
def test_queries_get_together_what_each_gets_alone(seed):
    rng = random.Random(seed)
    quota: dict[str, Any] = [{}, {"max_matches": 3}, {"max_outputs": 12}, {"max_work": 60}][seed % 4]
    given = steps(rng)
    together = answers_of(given, None, **quota)
    for name in list(together) if at_length() else rng.sample(list(together), 5):
        of_query, alone = together[name], answers_of(given, name, **quota)[name]
        assert (of_query[0], of_query[2:]) == (alone[0], alone[2:])
        assert len(of_query[1]) == len(alone[1])  # numbers of documents differ: tuples of inner joins have some
    expect_some(sum(len(of_query[0]) for of_query in together.values()) > (2 if quota else 10))


HAS: dict[str, Callable[[str, str], bool]] = {
    "contains": str.__contains__,
    "starts-with": str.startswith,
    "ends-with": str.endswith,
    "has-words": STRING_TESTS["has-words"],
    "has-phrase": STRING_TESTS["has-phrase"],
}


def word(rng: random.Random, most: int) -> str:
    return "".join(rng.choice("aab\u00e9\U0001f600  ") for _ in range(rng.randint(0, most)))


@pytest.mark.parametrize("few", [1, 32])
@pytest.mark.parametrize("name", INDEXES)
@pytest.mark.parametrize("seed", seeds(1, 200))
def test_an_index_finds_what_looking_for_each_literal_finds(name, few, seed, monkeypatch):
    monkeypatch.setattr(keywords, "FEW", few)
    rng, index, known = random.Random(seed), INDEXES[name](), set[str]()
    found = 0
    for _ in range(300):
        literal = word(rng, 4)
        match rng.choice(["add", "add", "remove", "find"]):
            case "add" if literal not in known:
                index.add(literal)
                known.add(literal)
            case "remove" if known:
                gone = rng.choice(sorted(known))
                index.remove(gone)
                known.remove(gone)
            case "find":
                text = word(rng, 12)
                expected = {one for one in known if HAS[name](text, one)}
                assert index.found_in(text) == expected
                found += len(expected)
    assert found > 50


def test_texts_with_many_occurrences_are_searched():
    index = INDEXES["contains"]()
    for length in range(200):
        index.add("a" * length)
    assert len(index.found_in("a" * 10_000)) == 200


@pytest.mark.parametrize("size", [7, 100])
def test_work_for_several_literal_tests_counts_together_in_any_batches(size):
    """The query matches nothing, and neither of its two tests takes enough work to pause it."""
    condition = "contains(w, 'zz') OR starts-with(w, 'zz')"
    query = f"FROM S//a->x[./w->w] JOIN {{x = y AND ({condition}), INF}} S//a->y PUBLISH n"
    documents = [Document(f"d{n}", f"<a><w>t{n // 2}</w></a>", time=START + n) for n in range(100)]
    with Session("duckdb") as free:
        free.subscribe(query)
        list(free.process(documents))
        spent = [row["work"] for row in free.sql("SELECT work FROM spent").to_pylist()]
    assert len(spent) == 2 and spent[0] == spent[1]
    bound = spent[0] // 10 + 1  # a block may use ten times as much: each test stays within it
    most = next(n for n in range(1, 101) if sum(spent) * (n // 2) // 50 > 10 * bound)
    with Session("duckdb", max_work=bound) as bounded:
        bounded.subscribe(query)
        arrived, paused = 0, dict[str, str]()
        while not paused and arrived < len(documents):
            list(bounded.process(documents[arrived : arrived + size]))
            arrived += size
            paused = bounded.take_paused()
        assert f"'d{most - 1}'" in paused["n"]


def test_queries_that_are_shipped_have_accounts():
    texts = ["", ' AND contains(x, "v")']
    script = "; ".join(f"S/a->x FOLLOWED BY {{x = y{text}, 1 h}} S/a->y" for text in texts)
    with Session("duckdb") as engine:
        engine.subscribe(script)
        shipped = pickle.loads(pickle.dumps(ShippedQueries(engine.registry)))
    accounts = Accounts(shipped, UNLIMITED, {}, EarlierUsage(), 0)
    parts = [part for row in shipped.rows.tolist() for part in shipped.parts_of_row(row)]
    assert len(parts) == len(texts)
    for part in parts:
        assert accounts.looking(part) is not None and accounts.cutoff(part) == NEVER
