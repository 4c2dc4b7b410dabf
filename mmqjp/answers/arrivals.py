"""Maps documents to the latest arrival behind them, a column at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from mmqjp.answers.quota import NEVER

LoadArrivals = Callable[[], pa.Table]
"""Returns a table of `docid`, in ascending order, and `arrival`."""


class Arrivals:
    """The arrivals of documents by docid. Docids are added in ascending order; `load` is called on first use."""

    def __init__(self, load: LoadArrivals | None = None) -> None:
        self._load = load
        self._docids: list[int] = []
        self._arrivals: list[int] = []
        self._known: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None

    def add(self, docid: int, arrival: int) -> None:
        """Adds a document."""
        self._docids.append(docid)
        self._arrivals.append(arrival)
        self._known = None

    def before(self, chunk: pa.RecordBatch, closed: Mapping[int, int]) -> pa.RecordBatch:
        """Keeps the matches whose latest arrival comes before the row's entry in `closed`. `chunk` has the columns of
        RESULT; `closed` maps rows of R_T to the arrival from which on nobody wants their matches."""
        qids, position = np.unique(chunk["qid"].to_numpy(), return_inverse=True)
        until = np.array([closed.get(qid, NEVER) for qid in qids.tolist()], np.int64)[position]
        return chunk.filter(pa.array(self.latest(chunk) < until))

    def latest(self, chunk: pa.RecordBatch) -> NDArray[np.int64]:
        """Returns the latest arrival of each match. `chunk` has the columns of RESULT."""
        return np.maximum(self._of(chunk["docid1"]), self._of(chunk["docid2"]))

    def _of(self, docids: pa.Array) -> NDArray[np.int64]:
        """Returns the arrival of each docid. Unknown documents come before all others."""
        known, arrivals = self._table()
        sought = docids.fill_null(-1).to_numpy(zero_copy_only=False)
        position = np.searchsorted(known, sought)
        position[position == len(known)] = 0
        return np.where(known[position] == sought, arrivals[position], -NEVER)

    def _table(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        if self._known is None:
            if self._load is not None:
                load, self._load = self._load(), None
                self._docids[:0], self._arrivals[:0] = load["docid"].to_pylist(), load["arrival"].to_pylist()
            self._known = np.array([-2, *self._docids], np.int64), np.array([0, *self._arrivals], np.int64)
        return self._known
