"""Matches: what stage 2 finds for rows of R_T, before it is expanded to those who subscribe to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from join_stage.joiner import RESULT
from mmqjp.tables.answers import TABLES
from templates.witness import PLAIN

MATCH_ROWS = TABLES["match_rows"]


class Match(NamedTuple):
    """A row of R_outT: the shared row of R_T, one or two documents, and their nodes in the template's numbering."""

    row: int
    docid1: int
    docid2: int | None
    nodes: Sequence[int]

    @property
    def docids(self) -> tuple[int, ...]:
        """The documents, in the query's order."""
        return (self.docid1,) if self.docid2 is None else (self.docid1, self.docid2)


def matches_in(found: pa.RecordBatch) -> list[Match]:
    """Returns the matches in rows of `join_stage.joiner.RESULT`."""
    values = found["nodes"].flatten().to_pylist()
    offsets = found["nodes"].value_lengths().to_numpy().cumsum()
    nodes = [values[start:end] for start, end in pairwise([0, *offsets.tolist()])]
    rows, *docids = (found[name].to_pylist() for name in ("qid", "docid1", "docid2"))
    return list(map(Match, rows, *docids, nodes))


def as_batch(matches: Sequence[Match]) -> pa.RecordBatch:
    """Returns matches as rows of `join_stage.joiner.RESULT`."""
    columns = [list(column) for column in zip(*matches, strict=True)]
    return pa.table(columns, schema=RESULT).combine_chunks().to_batches()[0]


def match_rows(
    found: pa.RecordBatch, times: Sequence[tuple[int, int]], first: int, template_of: Callable[[int], int]
) -> pa.Table:
    """Returns rows of the table `match_rows`, numbered from `first`, for rows of `join_stage.joiner.RESULT`. `times`
    has t0 and t1 of each, and `template_of` returns the template of a row of R_T."""
    qids, place = np.unique(found["qid"].to_numpy(), return_inverse=True)
    templates = np.array([template_of(qid) for qid in qids.tolist()], np.int64)[place]
    t0, t1 = zip(*times, strict=True)
    offsets = np.append(0, found["nodes"].value_lengths().to_numpy().cumsum())
    plain = found["nodes"].flatten().to_numpy() & PLAIN
    columns = [
        np.arange(first, first + len(times)), templates, found["docid1"], found["docid2"], t0, t1,
        pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(plain)),
    ]  # fmt: skip
    return pa.table([pa.array(column) for column in columns], schema=MATCH_ROWS)
