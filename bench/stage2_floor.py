"""The floor of stage 2: what joining a batch by value must cost on this machine. This file fixes what it is.

Strings are interned to integers beforehand, and a posting (document and leaf) is an integer too. Postings are kept in
runs sorted by value. A batch is sorted, looked up in each run and in itself by binary search, and the pairs of postings
with equal values, those of the older document left, are written to memory-backed files as two arrays of 64-bit
integers. The pairs are not processed further: the floor does not decide which query they are for, nor which belong
together.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

LEAF_BITS = 8
_MEMORY = Path("/dev/shm")


def postings(first_docid: int, matrix: npt.NDArray[np.integer]) -> tuple[Ints, Ints]:
    """Values and postings of documents with consecutive ids, a row of `matrix` each, a column for each leaf."""
    documents, leaves = matrix.shape
    docids = np.arange(first_docid, first_docid + documents, dtype=np.int64)
    return matrix.astype(np.int64).ravel(), (docids[:, None] << LEAF_BITS | np.arange(leaves)).ravel()


class Floor:
    """The postings so far, in sorted runs, and the files with the pairs of the last batch."""

    def __init__(self) -> None:
        self._runs: list[tuple[Ints, Ints]] = []
        self._directory = tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None, prefix="mmqjp-floor-")
        self.files = tuple(Path(self._directory.name) / name for name in ("left", "right"))

    def __enter__(self) -> Floor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._directory.cleanup()

    def keep(self, values: Ints, arrived: Ints) -> None:
        """Makes a batch part of the state, without its pairs."""
        order = np.argsort(values, kind="stable")
        self._add(values[order], arrived[order])

    def join(self, values: Ints, arrived: Ints) -> int:
        """Writes the pairs of a batch with the state and within itself, and adds it to the state. Returns their
        number."""
        order = np.argsort(values, kind="stable")
        values, arrived = values[order], arrived[order]
        count = 0
        with ExitStack() as stack:
            left_file, right_file = (stack.enter_context(file.open("wb")) for file in self.files)
            for left, right in self._pairs(values, arrived):
                left.tofile(left_file)
                right.tofile(right_file)
                count += len(left)
        self._add(values, arrived)
        return count

    def _pairs(self, values: Ints, arrived: Ints) -> Iterator[tuple[Ints, Ints]]:
        for of_run, in_run in self._runs:
            yield _equal(of_run, in_run, values, arrived)
        left, right = _equal(values, arrived, values, arrived)
        older = left >> LEAF_BITS < right >> LEAF_BITS
        yield left[older], right[older]

    def _add(self, values: Ints, arrived: Ints) -> None:
        """Keeps a sorted run; as long as the last run is not much shorter than the one before, they become one."""
        self._runs.append((values, arrived))
        while len(self._runs) > 1 and 2 * len(self._runs[-1][0]) > len(self._runs[-2][0]):
            (values1, arrived1), (values2, arrived2) = self._runs[-2:]
            merged = np.concatenate([values1, values2])
            order = np.argsort(merged, kind="stable")
            self._runs[-2:] = [(merged[order], np.concatenate([arrived1, arrived2])[order])]


def _equal(of_left: Ints, left: Ints, of_right: Ints, right: Ints) -> tuple[Ints, Ints]:
    """The pairs of postings with equal values: the left ones sorted by `of_left`."""
    low, high = (np.searchsorted(of_left, of_right, side) for side in ("left", "right"))
    counts = high - low
    begins = np.repeat(low - np.cumsum(counts) + counts, counts)
    return left[begins + np.arange(counts.sum())], np.repeat(right, counts)
