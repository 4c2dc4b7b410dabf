"""Reads matches, some at a time: expands them to answers, numbers those that have any, and keeps their rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import pyarrow as pa

from join_stage.joiner import Matches
from mmqjp.answers.answer import Answer
from mmqjp.answers.arrivals import Arrivals
from mmqjp.answers.expand import Expansion
from mmqjp.answers.match import match_rows, matches_in
from mmqjp.documents.record import Record
from mmqjp.documents.records import StoredRecords

MATCH_CHUNK = 2_000
"""The number of matches expanded at a time. Their documents are in memory together."""


class MatchLog(Protocol):
    """Where the rows of matches with answers go."""

    @property
    def next_match(self) -> int:
        """The number of the next match."""

    def save_matches(self, rows: pa.Table) -> None:
        """Keeps rows of the table `match_rows`, which are numbered from `next_match` on."""


class MatchReader:
    """Reads the matches of one step."""

    def __init__(
        self,
        expansion: Expansion,
        records: StoredRecords,
        arrivals: Arrivals,
        template_of: Callable[[int], int],
        log: MatchLog,
    ) -> None:
        """`arrivals` has the documents of the step, and `template_of` returns the template of a row of R_T."""
        self._expansion, self._records, self._arrivals = expansion, records, arrivals
        self._template_of, self._log = template_of, log

    def read(self, matches: Matches, answers: list[Answer]) -> list[Record]:
        """Expands matches: appends to `answers`, keeps the matches, returns the published documents."""
        published: list[Record] = []
        for chunk in matches.to_batches(max_chunksize=MATCH_CHUNK):
            published += self.read_chunk(chunk, answers)
        return published

    def read_chunk(self, chunk: pa.RecordBatch, answers: list[Answer]) -> list[Record]:
        """Does the same for at most MATCH_CHUNK matches."""
        closed = self._expansion.closed(chunk["qid"].unique().to_pylist())
        open_ones = self._arrivals.before(chunk, closed) if closed else chunk
        if not open_ones.num_rows:
            return []
        open_ones = self._without_spent(open_ones)
        return self._read_open(open_ones, answers) if open_ones.num_rows else []

    def _without_spent(self, chunk: pa.RecordBatch) -> pa.RecordBatch:
        """Leaves out the pairs with equal times that nobody looks at any more."""
        qids = chunk["qid"].to_numpy()
        bounds = {
            row: looking for row in np.unique(qids).tolist() if (looking := self._expansion.looking(row)) is not None
        }
        among = np.isin(qids, list(bounds))
        if not among.any():
            return chunk
        left, right = (chunk[name].fill_null(-1).to_numpy(zero_copy_only=False) for name in ("docid1", "docid2"))
        docids = np.unique(np.concatenate([left[among], right[among]]))
        self._records.load(docids.tolist())
        times = np.array(
            [(record.t0, record.t1) for record in map(self._records.__getitem__, docids.tolist())], np.int64
        )
        places = np.searchsorted(docids, left[among]), np.searchsorted(docids, right[among])
        is_spent = times[places[0], 1] == times[places[1], 0]
        arrivals = self._arrivals.latest(chunk)[among]
        for row, looking in bounds.items():
            of_row = qids[among] == row
            for one in looking:
                is_spent[of_row] &= one.spent(arrivals[of_row])
        stays = np.ones(len(qids), np.bool_)
        stays[among] = ~is_spent
        return chunk.filter(pa.array(stays))

    def _read_open(self, chunk: pa.RecordBatch, answers: list[Answer]) -> list[Record]:
        matches = matches_in(chunk)
        self._records.load(docid for match in matches for docid in match.docids)
        published: list[Record] = []
        answered: list[int] = []
        times: list[tuple[int, int]] = []
        for place, (inputs, found) in enumerate(self._expansion.expand(matches)):
            number = self._log.next_match + len(answered)
            is_answered = False
            for item in found:
                published += item.documents
                if item.answer is not None:
                    is_answered = True
                    item.answer.matches.append(number)
                    if not (item.duplicate or item.put_off):
                        answers.append(item.answer)
            if is_answered:
                answered.append(place)
                times.append((inputs.t0, inputs.t1))
        if answered:
            rows = chunk.take(pa.array(answered))
            self._log.save_matches(match_rows(rows, times, self._log.next_match, self._template_of))
        return published
