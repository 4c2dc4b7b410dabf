"""Answers as rows: numbers the answers of a batch and their outputs, and makes rows of the tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

import numpy as np
import pyarrow as pa

from mmqjp.answers.answer import Answer
from mmqjp.queries.members import Ints, Members
from mmqjp.tables.answers import TABLES

ANSWERS, WITHHELD, ANSWER_MATCHES = TABLES["answers"], TABLES["withheld"], TABLES["answer_matches"]


@dataclass(frozen=True, slots=True)
class AnswerRows:
    """The answers of a batch as rows of the tables `answers`, `withheld` and `answer_matches`."""

    answers: pa.Table
    withheld: pa.Table
    matches: pa.Table

    @property
    def outputs(self) -> int:
        """The number of outputs."""
        return int(self.answers["recipients"].to_numpy().sum()) if len(self.answers) else 0


def answer_rows(
    given: Sequence[Answer], members: Mapping[str, Members], batch: int, first_answer: int, first_seq: int
) -> AnswerRows:
    """Returns the answers of a batch that anybody gets, in the order of their outputs, numbered from `first_answer`,
    and their outputs from `first_seq`."""
    ordered = _in_order([answer for answer in given if answer.form in members])
    counts = np.array([count_recipients(answer, members[answer.form], batch) for answer in ordered], np.int64)
    answers = [answer for answer, count in zip(ordered, counts.tolist(), strict=True) if count]
    counts = counts[counts > 0]
    number = range(first_answer, first_answer + len(answers))
    first, last, place = _numbers(np.array([answer.t1 for answer in answers], np.int64), counts, first_seq)
    shared = zip(*map(_SHARED, answers), strict=True) if answers else [()] * len(_ATTRIBUTES)
    columns: dict[str, object] = dict(zip(_ATTRIBUTES, shared, strict=True))
    columns |= {
        "answer": number,
        "head": [answer.body.before for answer in answers],
        "tail": [answer.body.after for answer in answers],
        "batch": np.full(len(answers), batch),
        "first_seq": first,
        "last_seq": last,
        "place": place,
        "recipients": counts,
    }
    return AnswerRows(
        pa.table({name: columns[name] for name in ANSWERS.names}, ANSWERS),
        _pairs(number, (answer.withheld for answer in answers), WITHHELD),
        _pairs(number, (answer.matches for answer in answers), ANSWER_MATCHES),
    )


_ATTRIBUTES = (
    "form", "t0", "t1", "documents", "streams", "nodes", "choice", "width", "appeared", "first_qid", "arrival",
)  # fmt: skip
"""Columns of `answers` that are attributes of an answer."""

_SHARED = attrgetter(*_ATTRIBUTES)
_BY_DOCUMENTS = attrgetter("t1", "documents")


def count_recipients(answer: Answer, members: Members, batch: int) -> int:
    """Returns how many members get an answer."""
    got = members.count(answer.width, answer.appeared, answer.first_qid, batch, answer.arrival)
    return got - len(answer.withheld)


def by_answer(withheld: pa.Table) -> dict[int, frozenset[int]]:
    """Returns rows of `withheld` as qids by answer."""
    found: dict[int, set[int]] = {}
    for answer, qid in zip(*(column.to_pylist() for column in withheld.columns), strict=True):
        found.setdefault(answer, set()).add(qid)
    return {answer: frozenset(qids) for answer, qids in found.items()}


def _numbers(t1: Ints, counts: Ints, first_seq: int) -> tuple[Ints, Ints, Ints]:
    """Returns the first and last number of the outputs that end when an answer ends, and its place among those."""
    if not len(t1):
        return t1, t1, t1
    starts = np.flatnonzero(np.append(True, np.diff(t1) != 0))
    sizes = np.diff(np.append(starts, len(t1)))
    outputs = np.add.reduceat(counts, starts)
    ends = first_seq + np.cumsum(outputs)
    place = np.arange(len(t1)) - np.repeat(starts, sizes)
    return np.repeat(ends - outputs, sizes), np.repeat(ends - 1, sizes), place


def _pairs(numbers: range, others: Iterator[Sequence[int]], schema: pa.Schema) -> pa.Table:
    """Returns rows of a number and each of the others that belong to it."""
    lists = list(others)
    counts = [len(one) for one in lists]
    columns = np.repeat(np.array(numbers, np.int64), counts), [other for one in lists for other in one]
    return pa.table([pa.array(column, pa.int64()) for column in columns], schema=schema)


def _in_order(answers: Sequence[Answer]) -> list[Answer]:
    """Returns answers in the order of their outputs. Their nodes are only looked at if there are others over the same
    documents, because that takes most of the time."""
    found: list[Answer] = []
    for _, same in groupby(sorted(answers, key=_BY_DOCUMENTS), key=_BY_DOCUMENTS):
        several = list(same)
        found += sorted(several, key=_order) if len(several) > 1 else several
    return found


def _order(answer: Answer) -> tuple[object, ...]:
    return answer.order
