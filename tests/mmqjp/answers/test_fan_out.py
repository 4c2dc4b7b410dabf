"""Fan-out gives each member its answers in order, however few pairs are looked at together."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from common.arrays import Ints
from mmqjp.answers.fan_out import FanOut
from mmqjp.queries.model import Identity, Members
from mmqjp.tables.schema import ANSWER_TABLES
from tests.generate.seeds import seeds

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
def test_each_member_gets_its_answers_in_order(seed: int, most: int, monkeypatch: pytest.MonkeyPatch):
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
    """Numbers outputs, given the batch and t1 of each."""
    for answer in answers:
        group = answer["batch"], answer["t1"]
        before = [other for other in groups if other < group]
        answer["first_seq"] = len(before)
        answer["last_seq"] = len(before) + groups.count(group) - 1
