"""Outputs: fan-out to members in order; ids, numbers and matches are the same however they came about."""

import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from common.arrays import Ints
from feeds.documents import Document
from join_stage.protocol import PLANS
from mmqjp.answers.fan_out import FanOut, Outputs
from mmqjp.answers.output import Output
from mmqjp.engine import Session
from mmqjp.queries.model import Identity, Members
from mmqjp.tables.schema import ANSWER_TABLES
from tests.generate.seeds import seeds
from tests.generate.strategies import random_case
from tests.oracle.bindings import OutputRow
from tests.support.agreement import Delivery, arranged, as_row
from tests.support.shown import assert_shown
from xscl.syntax import Script

ANSWERS = ANSWER_TABLES["answers"]


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
    """All pairs, by the words of the table."""
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
@pytest.mark.parametrize("most", [1, 7, 10_000])
def test_each_member_gets_its_answers_in_order(seed, most, monkeypatch):
    monkeypatch.setattr("mmqjp.answers.fan_out.ROWS_AT_A_TIME", most)
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
    number_groups(answers, [(row[5], row[0]) for row in expected])
    table = pa.Table.from_pylist(answers, ANSWERS)
    fan_out = FanOut(table, members, withheld)
    outputs = [output for chunk in fan_out.chunks() for output in chunk.outputs()]
    assert [(o.t1, o.query, list(o.documents), o.id) for o in outputs] == [
        (t1, name, documents, id) for t1, name, documents, _, _, _, id in expected
    ]
    assert [o.seq for o in outputs] == list(range(len(outputs)))
    assert b"".join(chunk.lines().text for chunk in fan_out.chunks()) == b"".join(o.to_line() for o in outputs)
    by_time = FanOut(table.sort_by([("t1", "ascending"), ("first_seq", "ascending")]), members, withheld, by_time=True)
    again = [output for chunk in by_time.chunks() for output in chunk.outputs()]
    assert outputs == sorted(again, key=lambda one: one.seq)
    assert [(o.t1, o.query, o.documents) for o in again] == sorted((o.t1, o.query, o.documents) for o in again)
    assert [o.seq for chunk in fan_out.chunks() for o in chunk.after(3).outputs()] == list(range(4, len(outputs)))


def number_groups(answers: list[dict[str, Any]], groups: list[tuple[int, int]]) -> None:
    for answer in answers:
        group = answer["batch"], answer["t1"]
        before = [other for other in groups if other < group]
        answer["first_seq"] = len(before)
        answer["last_seq"] = len(before) + groups.count(group) - 1


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
        sources = [source[0] for docid in docids for source in engine.records[docid].sources]
        by_seq.setdefault(row["seq"], []).append(sources)
    for output in outputs:
        assert all(sources == list(output.documents) for sources in by_seq[output.seq])
    unused = "SELECT count(*) AS n FROM match_rows WHERE match NOT IN (SELECT match FROM output_matches)"
    assert engine.sql(unused, trusted=True)["n"].to_pylist() == [0]


def answered(engine: Session, script: Script, documents: list[Document], delivery: Delivery) -> list[Output]:
    engine.ensure(script)
    outputs = [output for batch in arranged(documents, delivery) for output in engine.process(batch)]
    assert_consistent(engine, outputs)
    return outputs


@pytest.mark.parametrize("seed", seeds(1, 400))
def test_ids_do_not_depend_on_order_batches_plans_and_restarts(seed, tmp_path):
    rng = random.Random(seed)
    script, documents = random_case(seed)
    with Session("duckdb", plan=rng.choice(PLANS)) as engine:
        first = answered(engine, script, documents, Delivery(None, 100))
    state, again = tmp_path / "state", list[Output]()
    for batch in arranged(documents, Delivery(seed, rng.randint(1, 5))):
        with Session("duckdb", state=state, plan=rng.choice(PLANS)) as engine:
            engine.ensure(script)
            again += engine.process(batch)
    assert ids(again) == ids(first)
    with Session("duckdb", state=state) as engine:
        assert_consistent(engine, again)


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


def test_an_output_is_of_a_match_for_each_row_that_gives_it():
    with Session("duckdb") as engine:
        engine.subscribe("FROM S//a->x[./k->p] JOIN {p = q OR p = r, INF} S//b->y[./k->q][./l->r] PUBLISH either")
        (output,) = engine.process([
            Document("d1", "<a><k>v</k></a>", time=1), Document("d2", "<b><k>v</k><l>v</l></b>", time=2)
        ])  # fmt: skip
        assert_consistent(engine, [output])
        assert engine.sql("SELECT seq FROM output_matches", trusted=True)["seq"].to_pylist() == [0, 0]
