"""Outputs have ids that are the same however they came about, consecutive numbers, and the matches that they are of."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from feeds.documents import Document
from join_stage.protocol import PLANS
from mmqjp.answers.fan_out import Outputs
from mmqjp.answers.output import Output
from mmqjp.engine import Session
from tests.generate.seeds import seeds
from tests.generate.strategies import random_case
from tests.oracle.bindings import OutputRow
from tests.support.agreement import Delivery, arranged, as_row
from tests.support.shown import assert_shown
from xscl.syntax import Script


def ids(outputs: list[Output]) -> list[tuple[str, OutputRow]]:
    """The ids with what they are of, in an order of their own."""
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
def test_ids_do_not_depend_on_order_batches_plans_and_restarts(seed: int, tmp_path: Path):
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
