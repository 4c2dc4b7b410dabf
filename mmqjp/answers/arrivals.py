"""Which document from outside is the latest behind each document of a step, for many at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from mmqjp.answers.allowance import NEVER

Kept = Callable[[], pa.Table]
"""Gives docids in their order, and arrivals."""


class Arrivals:
    """The arrivals of documents by their docids, which come in order; those of `kept` are read when they are needed."""

    def __init__(self, kept: Kept | None = None) -> None:
        self._kept = kept
        self._docids: list[int] = []
        self._arrivals: list[int] = []
        self._known: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None

    def add(self, docid: int, arrival: int) -> None:
        """Takes note of a document."""
        self._docids.append(docid)
        self._arrivals.append(arrival)
        self._known = None

    def before(self, chunk: pa.RecordBatch, closed: Mapping[int, int]) -> pa.RecordBatch:
        """Those of matches, as rows of RESULT, that are not of a row that is closed from their arrival on."""
        qids, place = np.unique(chunk["qid"].to_numpy(), return_inverse=True)
        until = np.array([closed.get(qid, NEVER) for qid in qids.tolist()], np.int64)[place]
        arrival = np.maximum(self._of(chunk["docid1"]), self._of(chunk["docid2"]))
        return chunk.filter(pa.array(arrival < until))

    def _of(self, docids: pa.Array) -> NDArray[np.int64]:
        """The arrivals of documents; of those that are not known, before all others."""
        known, arrivals = self._table()
        wanted = docids.fill_null(-1).to_numpy(zero_copy_only=False)
        place = np.searchsorted(known, wanted)
        place[place == len(known)] = 0
        return np.where(known[place] == wanted, arrivals[place], -NEVER)

    def _table(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        if self._known is None:
            if self._kept is not None:
                kept, self._kept = self._kept(), None
                self._docids[:0], self._arrivals[:0] = kept["docid"].to_pylist(), kept["arrival"].to_pylist()
            self._known = np.array([-2, *self._docids], np.int64), np.array([0, *self._arrivals], np.int64)
        return self._known
