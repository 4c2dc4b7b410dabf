"""Outputs as columns: numbers the outputs of answers, makes rows of the tables, and reads outputs from rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import overload

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from mmqjp.answers.answer import Answer
from mmqjp.answers.output import Output, json_nodes
from mmqjp.queries.model import Subscription
from mmqjp.tables.answers import TABLES

OUTPUTS, OUTPUT_MATCHES = TABLES["outputs"], TABLES["output_matches"]

ROWS_AT_A_TIME = 10_000
"""The number of outputs in one table."""

Ints = NDArray[np.int64]


class Outputs(Sequence[Output]):
    """The outputs of a batch, in the order of output lines. They are kept as columns, and each is made when it is asked
    for."""

    def __init__(self, tables: Sequence[pa.Table] = ()) -> None:
        """`tables` have the columns of the table `outputs`."""
        self._tables = tables

    def __len__(self) -> int:
        return sum(len(table) for table in self._tables)

    def __iter__(self) -> Iterator[Output]:
        return chain.from_iterable(map(outputs_in, self._tables))

    @overload
    def __getitem__(self, place: int) -> Output: ...
    @overload
    def __getitem__(self, place: slice) -> list[Output]: ...
    def __getitem__(self, place: int | slice) -> Output | list[Output]:
        if isinstance(place, slice):
            return [self[i] for i in range(*place.indices(len(self)))]
        count = len(self)
        if not -count <= place < count:
            raise IndexError(place)
        place %= count
        for table in self._tables:
            if place < len(table):
                return next(outputs_in(table.slice(place, 1)))
            place -= len(table)
        raise AssertionError("the tables have as many rows as they say")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (Outputs, list)) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # as lists have none

    def __add__(self, other: Iterable[Output]) -> list[Output]:
        return [*self, *other]

    def __radd__(self, other: Iterable[Output]) -> list[Output]:
        return [*other, *self]

    def __repr__(self) -> str:
        return repr(list(self))


@dataclass(frozen=True, slots=True)
class NumberedOutputs:
    """Some outputs as rows of the tables `outputs` and `output_matches`."""

    outputs: pa.Table
    matches: pa.Table


def numbered(answers: Sequence[Answer], first: int, batch: int) -> Iterator[NumberedOutputs]:
    """Yields the outputs of answers in the order of output lines, numbered from `first`, some at a time: rows take far
    more memory than answers."""
    queries = list(chain.from_iterable(answer.recipients for answer in answers))
    of_answer = np.repeat(np.arange(len(answers)), [len(answer.recipients) for answer in answers])
    order = _order(answers, of_answer, queries)
    columns = _AnswerColumns(answers)
    for start in range(0, len(order), ROWS_AT_A_TIME):
        some = order[start : start + ROWS_AT_A_TIME]
        yield columns.rows(of_answer[some], [queries[i] for i in some.tolist()], first + start, batch)


def _order(answers: Sequence[Answer], of_answer: Ints, queries: Sequence[Subscription]) -> Ints:
    """Returns the places of outputs in the order of output lines: by t1, query, documents, nodes. `of_answer` has the
    answer of each output, and `queries` its query."""
    names = [query.name for query in queries]
    name_rank = {name: rank for rank, name in enumerate(sorted(set(names)))}
    ranks = np.fromiter(map(name_rank.__getitem__, names), np.int64, len(names))
    by_answer, t1 = _ranks([answer.order for answer in answers]), np.array([a.t1 for a in answers], np.int64)
    return np.lexsort((by_answer[of_answer], ranks, t1[of_answer]))


def _ranks(keys: Sequence[tuple[object, ...]]) -> Ints:
    """Returns the rank of each key. Equal keys have equal ranks."""
    ranks = np.zeros(len(keys), np.int64)
    rank, before = 0, None
    for place in sorted(range(len(keys)), key=keys.__getitem__):
        if keys[place] != before:
            rank, before = rank + 1, keys[place]
        ranks[place] = rank
    return ranks


class _AnswerColumns:
    """What outputs have of their answers, as columns."""

    def __init__(self, answers: Sequence[Answer]) -> None:
        self._answers = answers
        self._t0, self._t1, self._documents, self._streams, self._nodes = (
            pa.array([getattr(answer, name) for answer in answers], OUTPUTS.field(column).type)
            for name, column in _SHARED.items()
        )
        self._counts = np.array([len(answer.matches) for answer in answers], np.int64)

    def rows(self, of_answer: Ints, queries: Sequence[Subscription], first: int, batch: int) -> NumberedOutputs:
        """Returns outputs as rows, numbered from `first`, given the answer and the query of each."""
        answers = [self._answers[i] for i in of_answer.tolist()]
        taken, count = pa.array(of_answer), len(answers)
        seq = np.arange(first, first + count)
        columns = {
            "query": [query.name for query in queries],
            "t0": self._t0.take(taken),
            "t1": self._t1.take(taken),
            "documents": self._documents.take(taken),
            "streams": self._streams.take(taken),
            "nodes": self._nodes.take(taken),
            "xml": [answer.body.xml(query.name) for answer, query in zip(answers, queries, strict=True)],
            "batch": np.full(count, batch),
            "seq": seq,
            "id": [query.identity.id(answer.choice) for answer, query in zip(answers, queries, strict=True)],
        }
        matches = {
            "seq": np.repeat(seq, self._counts[of_answer]),
            "match": list(chain.from_iterable(answer.matches for answer in answers)),
        }
        return NumberedOutputs(pa.table(columns, OUTPUTS), pa.table(matches, OUTPUT_MATCHES))


_SHARED = {"t0": "t0", "t1": "t1", "documents": "documents", "streams": "streams", "nodes_json": "nodes"}
"""Attributes of an answer, and the columns of `outputs` that have them."""


def rows_of(outputs: Sequence[Output], batch: int) -> pa.Table:
    """Returns outputs as rows of the table `outputs`."""
    columns = {name: [getattr(output, name) for output in outputs] for name in _COLUMNS}
    columns |= {"nodes": [json_nodes(output.nodes) for output in outputs], "batch": [batch] * len(outputs)}
    return pa.table({name: columns[name] for name in OUTPUTS.names}, OUTPUTS)


def outputs_in(rows: pa.Table) -> Iterator[Output]:
    """Yields the outputs that rows of the table `outputs` hold."""
    known: dict[str, dict[str, int | str]] = {}
    for chunk in rows.to_batches(max_chunksize=ROWS_AT_A_TIME):
        columns = (chunk[name].to_pylist() for name in _COLUMNS)
        for query, t0, t1, documents, streams, nodes, xml, id, seq in zip(*columns, strict=True):
            if nodes not in known:
                known[nodes] = json.loads(nodes)
            yield Output(query, t0, t1, tuple(documents), tuple(streams), known[nodes], xml, id, seq)


_COLUMNS = ("query", "t0", "t1", "documents", "streams", "nodes", "xml", "id", "seq")
